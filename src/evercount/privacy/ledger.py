"""Ledger: one total budget, spent by several streams about the same events; it refuses to overspend.

Entries are immutable and only ever added. They add up as `composition.py` says, and the δ that streams reserve for
numerical error adds up beside it.
"""

from __future__ import annotations

import json
import math
import threading
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from evercount._validate import check_number
from evercount.errors import BudgetExceeded, EvercountError, ParameterError, SnapshotError
from evercount.privacy import gaussian
from evercount.privacy.budget import Budget
from evercount.privacy.composition import (
    check_same_unit,
    compose_mu,
    epsilon_of,
    largest_mu,
    largest_pure,
    mixed_delta_upper,
    pure_sum,
    round_down,
    round_up,
    spent_mu,
)

_FORMAT = "evercount-ledger"
_VERSION = 2
_READABLE = (1, 2)
"""Version 1 knew no pure entries; its files read the same."""
_LEAST_DELTA = 2.0**-1022


@dataclass(frozen=True)
class Entry:
    """One stream's share: its name, its own budget, the μ it spent (0.0 if it is pure), and its place in the ledger."""

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

    @property
    def pure(self) -> bool:
        """Whether the entry is a pure mechanism (δ = 0), which adds ε and not μ²."""
        return self.budget.pure


class Ledger:
    """What has been spent of `total`. Safe to use from several threads.

    **Guarantee.** The streams of all entries together, with the numerical error that each declared, are
    (total.epsilon, total.delta)-DP, also where they run side by side and inputs depend on earlier releases. Let ε_p be
    Σε of the pure entries and μ = √Σμ² of the others. After every `spend` ε_p ≤ ε in exact arithmetic, and

        p·δ(μ, ε − ε_p) + (1 − p)·δ(μ, ε + ε_p) + Σ numeric_delta ≤ δ,    p = 1/(1 + e^−ε_p)

    with the float error of its evaluation included, or the entry is refused and nothing is recorded. A total with
    δ = 0 takes pure entries only. Assumes that each stream is pure where its budget has δ = 0, else Gaussian, and
    calibrated with the budget of its entry (for a stream with numerical error: `numeric_delta` is the δ by which it may
    miss the ideal mechanism, for the ε of `total`). Proof: `composition.proof.md`. Tests:
    `tests/privacy/test_privacy_ledger.py`, test_ledger_never_exceeds_its_total, test_mixed_profile_against_oracle.
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
        where it costs (1+e^ε_total)/(1+e^ε) times as much (`mechanisms/exact/exact_noise.proof.md`, theorem), unless it
        is `restated` already. A budget with δ = 0 is a pure entry. A sparse counter with δ > 0 has a pure part and a
        Gaussian one and takes two entries (`SparsePlan.budgets`).
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
        total = self._total.epsilon
        # (1 + e^total)/(1 + e^ε), without overflow
        ratio = math.exp(min(total - epsilon, 700.0)) * (1 + math.exp(-total)) / (1 + math.exp(-epsilon))
        return min(1.0, numeric * ratio * (1 + 1e-12))

    def _record(self, name: str, budget: Budget, note: str, numeric: float) -> Entry:
        mu = spent_mu(budget)
        with self._lock:
            if any(entry.name == name for entry in self._entries):
                raise ParameterError(f"the ledger already has an entry {name!r}: names are unique.")
            entries = (*self._entries, Entry(len(self._entries), name, mu, budget, numeric, note))
            if not _fits(self._total, entries):
                raise BudgetExceeded(_refusal(self._total, self._entries, entries[-1]))
            self._entries = entries
        return entries[-1]

    @property
    def mu(self) -> float:
        """√Σμ² of all Gaussian entries; 0.0 where there is none."""
        return compose_mu(entry.mu for entry in self._entries)

    @property
    def pure_epsilon(self) -> float:
        """Σε of all pure entries, rounded up; 0.0 where there is none."""
        return round_up(pure_sum(entry.budget for entry in self._entries))

    def spent(self) -> float:
        """The ε that all entries have spent, at the total's δ less the numerical error (rounded up).

        It is never below Σε of the pure entries, although some of δ could be traded for a little of that.
        """
        entries = self._entries
        if not entries:
            return 0.0
        mu = compose_mu(entry.mu for entry in entries)
        return epsilon_of(mu, pure_sum(entry.budget for entry in entries), _delta_left(self._total, entries))

    def remaining(self, *, pure: bool = False) -> Budget | None:
        """The largest budget that still fits in one piece, at the total's δ where possible; None if none.

        Gaussian, unless the total is pure or `pure` asks for the largest pure budget that still fits.
        """
        return _remaining(self._total, self._entries, pure or self._total.pure)

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
            if data.get("version") not in _READABLE:
                raise SnapshotError(f"the ledger has version {data.get('version')!r}, this program reads {_READABLE}.")
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
        if not math.isclose(check_number("mu", item["mu"]), spent_mu(budget), rel_tol=1e-9):
            raise ParameterError(f"entry {number} states mu={item['mu']!r}, and its budget buys {spent_mu(budget)!r}.")
        self.spend(item["name"], budget, note=item["note"], numeric_delta=item["numeric_delta"], restated=True)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and (self._total, self._entries) == (other._total, other._entries)

    def __repr__(self) -> str:
        pure = f", pure_epsilon={self.pure_epsilon:.6g}" if any(entry.pure for entry in self._entries) else ""
        return f"Ledger({self._total!r}, {len(self._entries)} entries, mu={self.mu:.6g}{pure})"


# -- what fits ---------------------------------------------------------------------------------------------------------


def _delta_left(total: Budget, entries: tuple[Entry, ...]) -> float:
    """δ of the total less the numerical error of all entries, rounded down; may be 0.0 or less."""
    return round_down(Fraction(total.delta) - sum((Fraction(entry.numeric_delta) for entry in entries), Fraction(0)))


def _fits(total: Budget, entries: tuple[Entry, ...]) -> bool:
    left, pure = _delta_left(total, entries), pure_sum(entry.budget for entry in entries)
    if left < 0 or pure > Fraction(total.epsilon):
        return False
    mu = compose_mu(entry.mu for entry in entries)
    return mu == 0 or (left > 0 and mixed_delta_upper(mu, pure, total.epsilon) <= left)


def _remaining(total: Budget, entries: tuple[Entry, ...], pure: bool) -> Budget | None:
    left, used = _delta_left(total, entries), pure_sum(entry.budget for entry in entries)
    spent = compose_mu(entry.mu for entry in entries)
    if pure:
        rest = round_down(largest_pure(total, spent, used, left) - used)
        return Budget(rest, 0.0, total.adjacency, "tight", total.unit, total.max_events) if rest > 0 else None
    if left < _LEAST_DELTA:
        return None
    whole = largest_mu(total, used, left)
    if spent >= whole:
        return None
    mu = math.sqrt((whole - spent) * (whole + spent))
    # A small rest costs no ε at the total's δ; it is then stated at the smaller δ where it does.
    delta = min(left, gaussian.delta_of(mu, 0.0) / 2)
    if delta < _LEAST_DELTA:
        return None
    return Budget.from_mu(mu, delta, total.adjacency, total.unit, total.max_events)


def _refusal(total: Budget, earlier: tuple[Entry, ...], entry: Entry) -> str:
    """Why an entry does not fit, and what would."""
    if total.pure and (not entry.pure or entry.numeric_delta):
        return (
            f"{entry.name!r} is not pure (its delta is {entry.delta:g}, numeric delta {entry.numeric_delta:.3g}), and "
            "the total has delta=0, which only pure mechanisms keep. Spend Budget(epsilon, delta=0), or start the "
            "ledger with a small positive delta."
        )
    needs = f"epsilon={entry.epsilon!r} of pure privacy" if entry.pure else f"mu={entry.mu:.6g}"
    numeric = f" and numeric delta {entry.numeric_delta:.3g}" if entry.numeric_delta or not entry.pure else ""
    left = _remaining(total, earlier, entry.pure)
    if left is None:
        rest = "Nothing is left."
    elif left.pure:
        rest = f"At most epsilon={left.epsilon!r} of pure privacy is left."  # all digits: sums are compared exactly
    else:
        rest = f"At most epsilon={left.epsilon:.6g} at delta={left.delta:.3g} is left."
    return (
        f"{entry.name!r} needs {needs}{numeric}; together with {len(earlier)} earlier "
        f"{'entry' if len(earlier) == 1 else 'entries'} that exceeds epsilon={total.epsilon:g}, delta={total.delta:g}. "
        + rest
    )
