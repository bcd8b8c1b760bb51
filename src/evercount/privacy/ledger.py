"""Ledger: one total budget, spent by several streams about the same events; it refuses to overspend.

Entries are immutable and only ever added. Composition is exact: Gaussian mechanisms add as μ² (Gaussian-DP),
and the δ that streams reserve for numerical error adds up beside it.
"""

from __future__ import annotations

import json
import math
import threading
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from evercount.errors import BudgetExceeded, EvercountError, ParameterError, SnapshotError
from evercount.privacy import gaussian
from evercount.privacy.budget import Budget, check_same_unit, compose_mu
from evercount.privacy.checks import check_number

_FORMAT = "evercount-ledger"
_VERSION = 1


@dataclass(frozen=True)
class Entry:
    """One stream's share: its name, its own budget, the μ it spent, and its place in the ledger."""

    sequence: int
    name: str
    mu: float
    budget: Budget
    numeric_delta: float = 0.0
    note: str = ""

    @property
    def epsilon(self) -> float:
        """ε of the stream's own promise."""
        return self.budget.epsilon

    @property
    def delta(self) -> float:
        """δ of the stream's own promise, without `numeric_delta`."""
        return self.budget.delta


class Ledger:
    """What has been spent of `total`. Safe to use from several threads.

    **Guarantee.** The streams of all entries together, with the numerical error that each declared, are
    (total.epsilon, total.delta)-DP: δ(√Σμ², ε) + Σ numeric_delta ≤ δ holds after every `spend`, with the
    float error of its evaluation included, or the entry is refused and nothing is recorded. Assumes that each
    stream's noise is Gaussian and is calibrated with the budget of its entry (for a stream with numerical
    error: `numeric_delta` is the δ by which it may miss the ideal mechanism, for the ε of `total`). Proof:
    `gaussian.proof.md`, section 5. Test: `test_privacy_ledger.py::test_ledger_never_exceeds_its_total`.
    """

    def __init__(self, total: Budget) -> None:
        if not isinstance(total, Budget):
            raise ParameterError(f"a ledger starts from a Budget, not {type(total).__name__}.")
        self._total = total
        self._entries: tuple[Entry, ...] = ()
        self._lock = threading.Lock()

    @property
    def total(self) -> Budget:
        """The budget that all entries share."""
        return self._total

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries, in the order in which they were spent."""
        return self._entries

    def spend(
        self, name: str, budget: Budget, note: str = "", numeric_delta: float = 0.0, *, restated: bool = False
    ) -> Entry:
        """Record a stream and return its entry, or raise BudgetExceeded with nothing recorded.

        `numeric_delta` is the stream's own, which was computed at the ε of `budget`; it is restated at the total's ε,
        where it costs (1+e^ε_total)/(1+e^ε) times as much (`mechanisms/exact.proof.md`, theorem), unless it is
        `restated` already.
        """
        if not isinstance(name, str) or not name:
            raise ParameterError(f"an entry needs a name, not {name!r}.")
        if not isinstance(budget, Budget):
            raise ParameterError(f"an entry spends a Budget, not {type(budget).__name__}.")
        if not isinstance(note, str):
            raise ParameterError(f"a note is text, not {note!r}.")
        check_same_unit(self._total, budget)
        numeric = check_number("numeric_delta", numeric_delta)
        if numeric < 0:
            raise ParameterError(f"numeric_delta must not be negative, not {numeric_delta!r}.")
        return self._record(name, budget, note, numeric if restated else self._at_total(numeric, budget.epsilon))

    def _at_total(self, numeric: float, epsilon: float) -> float:
        """A numerical δ that was computed at `epsilon`, restated at the total's ε."""
        if not numeric or self._total.epsilon <= epsilon:
            return numeric
        ratio = (1 + math.exp(min(self._total.epsilon, 700.0))) / (1 + math.exp(min(epsilon, 700.0)))
        return min(1.0, numeric * ratio * (1 + 1e-12))

    def _record(self, name: str, budget: Budget, note: str, numeric: float) -> Entry:
        mu = budget.mu
        with self._lock:
            if any(entry.name == name for entry in self._entries):
                raise ParameterError(f"the ledger already has an entry {name!r}: names are unique.")
            entries = (*self._entries, Entry(len(self._entries), name, mu, budget, numeric, note))
            if not _fits(self._total, entries):
                left = _remaining(self._total, self._entries)
                raise BudgetExceeded(
                    f"{name!r} needs mu={mu:.6g} and numeric delta {numeric:.3g}; together with "
                    f"{len(self._entries)} earlier entries that exceeds epsilon={self._total.epsilon:g}, "
                    f"delta={self._total.delta:g}. "
                    + (
                        f"At most epsilon={left.epsilon:.6g} at delta={left.delta:.3g} is left."
                        if left
                        else "Nothing is left."
                    )
                )
            self._entries = entries
        return entries[-1]

    @property
    def mu(self) -> float:
        """√Σμ² of all entries; 0.0 for an empty ledger."""
        return compose_mu(entry.mu for entry in self._entries)

    def spent(self) -> float:
        """The ε that all entries have spent, at the total's δ less the numerical error (rounded up)."""
        entries = self._entries
        if not entries:
            return 0.0
        return gaussian.epsilon_of(compose_mu(e.mu for e in entries), _delta_left(self._total, entries))

    def remaining(self) -> Budget | None:
        """The largest budget that still fits in one piece, at the total's δ where possible; None if none."""
        return _remaining(self._total, self._entries)

    # -- JSON ------------------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """The ledger as JSON text; `from_json` gives an equal ledger."""
        return json.dumps(
            {
                "format": _FORMAT,
                "version": _VERSION,
                "total": self._total.to_dict(),
                "entries": [
                    {
                        "sequence": entry.sequence,
                        "name": entry.name,
                        "mu": entry.mu,
                        "budget": entry.budget.to_dict(),
                        "numeric_delta": entry.numeric_delta,
                        "note": entry.note,
                    }
                    for entry in self._entries
                ],
            },
            indent=2,
        )

    @classmethod
    def from_json(cls, text: str) -> Ledger:
        """The ledger of `to_json`; entries are checked again, damage or overspending is a SnapshotError."""
        try:
            data = json.loads(text)
            if not isinstance(data, dict) or data.get("format") != _FORMAT:
                raise SnapshotError("this is not a ledger written by evercount.")
            if data.get("version") != _VERSION:
                raise SnapshotError(f"the ledger has version {data.get('version')!r}, this program reads {_VERSION}.")
            ledger = cls(Budget.from_dict(data["total"]))
            for number, item in enumerate(data["entries"]):
                ledger._restore(number, item)
        except SnapshotError:
            raise
        except (EvercountError, KeyError, TypeError, ValueError) as error:
            raise SnapshotError(f"the ledger is damaged or was changed: {error}") from error
        return ledger

    def _restore(self, number: int, item: dict[str, Any]) -> None:
        if set(item) != {"sequence", "name", "mu", "budget", "numeric_delta", "note"} or item["sequence"] != number:
            raise ParameterError(f"entry {number} is out of order or has other fields than an entry has.")
        budget = Budget.from_dict(item["budget"])
        if not math.isclose(check_number("mu", item["mu"]), budget.mu, rel_tol=1e-9):
            raise ParameterError(f"entry {number} states mu={item['mu']!r}, and its budget buys {budget.mu!r}.")
        self.spend(item["name"], budget, note=item["note"], numeric_delta=item["numeric_delta"], restated=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and (self._total, self._entries) == (other._total, other._entries)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Ledger({self._total!r}, {len(self._entries)} entries, mu={self.mu:.6g})"


def _delta_left(total: Budget, entries: tuple[Entry, ...]) -> float:
    """δ of the total less the numerical error of all entries, rounded down; may be 0.0 or less."""
    exact = Fraction(total.delta) - sum((Fraction(entry.numeric_delta) for entry in entries), Fraction(0))
    left = float(exact)
    return left if Fraction(left) <= exact else math.nextafter(left, -math.inf)


def _fits(total: Budget, entries: tuple[Entry, ...]) -> bool:
    left = _delta_left(total, entries)
    return left > 0 and gaussian.delta_upper(compose_mu(entry.mu for entry in entries), total.epsilon) <= left


def _remaining(total: Budget, entries: tuple[Entry, ...]) -> Budget | None:
    left = _delta_left(total, entries)
    if left < 2.0**-1022:
        return None
    whole, spent = gaussian.mu_of(total.epsilon, left), compose_mu(entry.mu for entry in entries)
    if spent >= whole:
        return None
    mu = math.sqrt((whole - spent) * (whole + spent))
    # A small rest costs no ε at the total's δ; it is then stated at the smaller δ where it does.
    delta = min(left, gaussian.delta_of(mu, 0.0) / 2)
    if delta < 2.0**-1022:
        return None
    return Budget.from_mu(mu, delta, total.adjacency, total.unit, total.max_events)
