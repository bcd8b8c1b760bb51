"""Ledger: one total budget, spent by several streams about the same events; it refuses to overspend.

Entries are immutable and only ever added. They add up as `composition.py` says, and the δ that streams reserve for
numerical error adds up beside it. With a path the ledger is kept in a file that one Ledger at a time has open, and
that shows when entries were changed or removed (`ledger_file.py`). A ledger is never copied.
"""

from __future__ import annotations

import json
import math
import os
import threading
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

from evercount._validate import check_number
from evercount.errors import BudgetExceeded, EvercountError, ParameterError, SnapshotError
from evercount.privacy import gaussian
from evercount.privacy.budget import Budget
from evercount.privacy.composition import (
    check_same_unit,
    compose_mu,
    largest_mu,
    largest_pure,
    least_epsilon,
    mixed_delta_upper,
    numeric_at,
    pure_sum,
    round_down,
    round_up,
    spent_mu,
)
from evercount.privacy.ledger_file import LEDGER_FORMAT, LedgerFile

_VERSION = 2
_READABLE = (1, 2)
"""Version 1 knew no pure entries; its files read the same."""
_FIELDS = {"sequence", "name", "mu", "budget", "numeric_delta", "note"}
_LEAST_DELTA = 2.0**-1022


@dataclass(frozen=True)
class Entry:
    """One stream's share: its name, its own budget, the μ it spent (0.0 if it is pure), and its place in the ledger.

    Args:
        sequence: its place in the ledger, from 0.
        name: the name of the stream.
        mu: what it spent of Gaussian privacy; 0.0 if it is pure.
        budget: its own budget.
        numeric_delta: the part of δ that pays for finite arithmetic.
        note: what the user wrote beside it.
        stream: an identifier of the stream.

    >>> from evercount.privacy import Budget, Ledger
    >>> Ledger(Budget(1.0, 1e-6)).spend("cases", Budget(0.5, 0.0)).mu
    0.0
    """

    sequence: int
    name: str
    mu: float
    budget: Budget
    numeric_delta: float = 0.0
    note: str = ""
    stream: str = ""
    """What tells this stream from every other, where `Stream(..., ledger=...)` has spent."""

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

    Args:
        total: the budget that all entries share. For a file that exists it may be omitted, else it must be the same.
        path: the file that keeps the ledger; it is created, or continued, and locked until `close` or the end of the
            with-block. None: the ledger lives in this process only. A file of an earlier version (the text of
            `to_json`) is taken over: its entries become the first ones of the chain.
        key: 16 to 64 random bytes that key the chain of a file. With it nobody who lacks the key can change, remove or
            add entries unseen; without it only accidents and careless edits are seen (`ledger_file.py`).
        head: where the head of the chain is kept; default `<path>.head`.
        adopt: accept a file whose head is missing or names another copy. Only if nothing was spent elsewhere since.

    Raises:
        ParameterError: no total where one is needed, or key, head or adopt without a path.
        StoreError: the file is locked by another ledger, was changed, or is a copy.

    **Guarantee.** The streams of all entries together, with the numerical error that each declared, are
    (total.epsilon, total.delta)-DP, also where they run side by side and inputs depend on earlier releases. Let ε_p be
    Σε of the pure entries and μ = √Σμ² of the others. After every `spend` ε_p ≤ ε in exact arithmetic, and

        p·δ(μ, ε − ε_p) + (1 − p)·δ(μ, ε + ε_p) + Σ numeric_delta ≤ δ,    p = 1/(1 + e^−ε_p)

    with the float error of its evaluation included, or the entry is refused and nothing is recorded. A total with
    δ = 0 takes pure entries only. Assumes that each stream is pure where its budget has δ = 0, else Gaussian, and
    calibrated with the budget of its entry (for a stream with numerical error: `numeric_delta` is the δ by which it may
    miss the ideal mechanism, for the ε of `total`). Proof: `composition.proof.md`. Tests:
    `tests/privacy/test_privacy_ledger.py`, test_ledger_never_exceeds_its_total, test_mixed_profile_against_oracle.

    One budget is spent once: a copy of the object (copy, pickle, fork) cannot spend, a second Ledger on the same file
    is refused while the first is open, and a copy of the file is refused. A spend is on the disk before `spend`
    returns. Tests: `tests/privacy/test_privacy_ledger_file.py`.

    >>> ledger = Ledger(Budget(1.0, 1e-9))
    >>> ledger.spend("hourly counts", Budget(0.5, 1e-9)).sequence
    0
    """

    def __init__(
        self,
        total: Budget | None = None,
        path: str | Path | None = None,
        *,
        key: bytes | None = None,
        head: str | Path | None = None,
        adopt: bool = False,
    ) -> None:
        if total is not None and not isinstance(total, Budget):
            raise ParameterError(f"a ledger starts from a Budget, not {type(total).__name__}.")
        if path is None and (total is None or key is not None or head is not None or adopt):
            raise ParameterError("a ledger without a path starts from a Budget; key, head and adopt go with a path.")
        self._entries: tuple[Entry, ...] = ()
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._copy = False
        self._file: LedgerFile | None = None
        if path is None:
            assert total is not None
            self._total = total
            return
        file = LedgerFile(path, key, head, adopt)
        try:
            self._load(file, total)
        except BaseException:
            file.close()
            raise
        self._file = file

    def _load(self, file: LedgerFile, total: Budget | None) -> None:
        """The entries of a file; a new or an old one gets its first lines."""
        if not file.records:
            if file.old is not None:
                earlier = Ledger.from_json(file.old)
                self._total, self._entries = earlier._total, earlier._entries
            elif total is None:
                file.path.unlink()  # an empty file that this call has made
                raise ParameterError(f"there is no ledger at {file.path}: give its total to start one.")
            else:
                self._total = total
            self._check_total(total)
            file.begin([_to_dict(entry) for entry in self._entries], self._total.to_dict())
            return
        try:
            self._total = Budget.from_dict(file.records[0]["total"])
            for number, item in enumerate(file.records[1:]):
                self._restore(number, item)
        except (EvercountError, KeyError, TypeError, ValueError) as error:
            raise SnapshotError(f"the ledger {file.path} is damaged or was changed: {error}") from error
        self._check_total(total)

    def _check_total(self, total: Budget | None) -> None:
        if total is not None and total != self._total:
            raise ParameterError(f"the ledger's total is {self._total!r}, not {total!r}: leave the total away.")

    def close(self) -> None:
        """Give the file's lock back; this object spends no more."""
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_file", None) is not None:
            self.close()

    def __copy__(self) -> NoReturn:
        raise ParameterError("a ledger is not copied: two copies would spend one budget twice; pass the ledger itself")

    def __deepcopy__(self, memo: Any) -> NoReturn:
        self.__copy__()

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        raise ParameterError("a ledger is not pickled: keep it in a file (path=…), and open that where it is needed")

    def _check_may_spend(self) -> None:
        if self._copy:
            raise ParameterError(
                "this ledger was read from text: it is a copy, and spends nothing. Open the ledger's file, "
                "Ledger(path=…); to continue from the text, write it to a file and open that."
            )
        if self._process != os.getpid():
            raise ParameterError(
                "this ledger was opened before a fork: parent and child would spend one budget twice. Open it in the "
                "process that spends, Ledger(path=…)."
            )
        if self._file is not None and self._file.closed:
            raise ParameterError(f"the ledger {self._file.path} is closed: open it again.")

    @property
    def total(self) -> Budget:
        """The budget that all entries share."""
        return self._total

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries, in the order in which they were spent."""
        return self._entries

    def spend(
        self,
        name: str,
        budget: Budget,
        note: str = "",
        numeric_delta: float = 0.0,
        *,
        restated: bool = False,
        stream: str = "",
    ) -> Entry:
        """Record a stream and return its entry, or raise BudgetExceeded with nothing recorded.

        `numeric_delta` is the stream's own, which was computed at the ε of `budget`; it is restated at the total's ε,
        where it costs (1+e^ε_total)/(1+e^ε) times as much (`mechanisms/exact/exact_noise.proof.md`, theorem), unless it
        is `restated` already. If that is more than the stream's own δ, the stream may count as its promise alone, a
        pure entry of its ε with its δ as `numeric_delta` (`composition.proof.md`, section 6), if more is left that way.
        A budget with δ = 0 is a pure entry. A sparse counter with δ > 0 has a pure part and a Gaussian one and takes
        two entries (`SparsePlan.budgets`). `stream` identifies the stream; one that has spent
        already is refused.

        Args:
            name: The name of the entry, used by no other.
            budget: What the stream spends, with the adjacency and unit of the total.
            note: A remark for readers of the ledger.
            numeric_delta: What finite arithmetic costs of δ, at least 0.
            restated: Whether `numeric_delta` is for the total's ε already.
            stream: The stream's identifier, or "".

        Returns:
            The new entry.

        Raises:
            ParameterError: An argument is not legal, or the name is taken.
            BudgetExceeded: It does not fit into what is left.
        """
        self._check_may_spend()
        if not isinstance(name, str) or not name:
            raise ParameterError(f"an entry needs a name, not {name!r}.")
        if not isinstance(budget, Budget):
            raise ParameterError(f"an entry spends a Budget, not {type(budget).__name__}.")
        if not isinstance(note, str) or not isinstance(stream, str):
            raise ParameterError(f"a note and a stream's identifier are texts, not {note!r} and {stream!r}.")
        check_same_unit(self._total, budget)
        numeric = check_number("numeric_delta", numeric_delta)
        if numeric < 0:
            raise ParameterError(f"numeric_delta must not be negative, not {numeric_delta!r}.")
        ways = [(budget, numeric if restated else numeric_at(numeric, budget.epsilon, self._total.epsilon))]
        promised = round_up(Fraction(budget.delta) + Fraction(numeric))
        if not restated and ways[0][1] > promised:
            ways.append((replace(budget, delta=0.0), promised))
        with self._lock:
            self._check_names(name, stream)
            fresh = [Entry(len(self._entries), name, spent_mu(one), one, n, note, stream) for one, n in ways]
            entry = _best(self._total, self._entries, fresh)
            if self._file is not None:
                before = len(self._file.records)
                try:
                    self._file.append(_to_dict(entry))
                finally:
                    if len(self._file.records) > before:  # it is on the disk, also where the head could not be written
                        self._entries = (*self._entries, entry)
            else:
                self._entries = (*self._entries, entry)
        return entry

    def _check_names(self, name: str, stream: str) -> None:
        """Refuse a name or a stream that the ledger has already."""
        for entry in self._entries:
            if stream and entry.stream == stream:
                raise ParameterError(
                    f"this stream (its secret and its declaration) has spent already, as {entry.name!r}. Continue from "
                    "its snapshot with Stream.restore, which spends nothing. If it was lost before its first release, "
                    "start again with a new secret, which spends again."
                )
            if entry.name == name:
                raise ParameterError(f"the ledger already has an entry {name!r}: names are unique.")

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

        It is never below Σε of the pure entries, although some of δ could be traded for a little of that. The rule is
        that of `spent_together`, at the δ of the total instead of the sum of the entries' δ.

        Returns:
            The ε.
        """
        entries = self._entries
        if not entries:
            return 0.0
        mu, pure = compose_mu(entry.mu for entry in entries), pure_sum(entry.budget for entry in entries)
        numerics = [(entry.numeric_delta, self._total.epsilon) for entry in entries]
        epsilon = least_epsilon(mu, pure, self._total.delta, numerics)
        return self._total.epsilon if epsilon is None else epsilon

    def remaining(self, *, pure: bool = False) -> Budget | None:
        """The largest budget that still fits in one piece, at the total's δ where possible; None if none.

        Gaussian, unless the total is pure or `pure` asks for the largest pure budget that still fits.

        Args:
            pure: Whether the budget shall have δ = 0.

        Returns:
            The budget, or None.
        """
        return _remaining(self._total, self._entries, pure or self._total.pure)

    # -- JSON ------------------------------------------------------------------------------------------------

    def to_json(self) -> str:
        """The ledger as JSON text, for the eye and for `from_json`. A ledger that lasts is kept in a file (`path`).

        Returns:
            The text.
        """
        return json.dumps(
            {
                "format": LEDGER_FORMAT,
                "version": _VERSION,
                "total": self._total.to_dict(),
                "entries": [_to_dict(entry) for entry in self._entries],
            },
            indent=2,
        )

    @classmethod
    def from_json(cls, text: str) -> Ledger:
        """The ledger of `to_json`, to be read: it is a copy, so it spends nothing.

        Entries are checked again; damage or overspending is a SnapshotError.

        Args:
            text: A result of `to_json`.

        Returns:
            The copy.

        Raises:
            SnapshotError: The text is anything else.
        """
        try:
            data = json.loads(text)
            if not isinstance(data, dict) or data.get("format") != LEDGER_FORMAT:
                raise SnapshotError("this is not a ledger written by evercount.")
            if data.get("version") not in _READABLE:
                raise SnapshotError(f"the ledger has version {data.get('version')!r}, this program reads {_READABLE}.")
            ledger = cls(Budget.from_dict(data["total"]))
            for number, item in enumerate(data["entries"]):
                ledger._restore(number, item)
            ledger._copy = True
        except SnapshotError:
            raise
        except (EvercountError, KeyError, TypeError, ValueError) as error:
            raise SnapshotError(f"the ledger is damaged or was changed: {error}") from error
        return ledger

    def _restore(self, number: int, item: dict[str, Any]) -> None:
        if set(item) - {"stream"} != _FIELDS or item["sequence"] != number:
            raise ParameterError(f"entry {number} is out of order or has other fields than an entry has.")
        budget = Budget.from_dict(item["budget"])
        if not math.isclose(check_number("mu", item["mu"]), spent_mu(budget), rel_tol=1e-9):
            raise ParameterError(f"entry {number} states mu={item['mu']!r}, and its budget buys {spent_mu(budget)!r}.")
        stream = item.get("stream", "")
        self.spend(
            item["name"], budget, note=item["note"], numeric_delta=item["numeric_delta"], restated=True, stream=stream
        )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ledger) and (self._total, self._entries) == (other._total, other._entries)

    def __repr__(self) -> str:
        pure = f", pure_epsilon={self.pure_epsilon:.6g}" if any(entry.pure for entry in self._entries) else ""
        return f"Ledger({self._total!r}, {len(self._entries)} entries, mu={self.mu:.6g}{pure})"


def _to_dict(entry: Entry) -> dict[str, Any]:
    """An entry as it is kept; `stream` is omitted where there is none."""
    kept = {
        "sequence": entry.sequence,
        "name": entry.name,
        "mu": entry.mu,
        "budget": entry.budget.to_dict(),
        "numeric_delta": entry.numeric_delta,
        "note": entry.note,
    }
    return {**kept, "stream": entry.stream} if entry.stream else kept


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


def _best(total: Budget, entries: tuple[Entry, ...], fresh: list[Entry]) -> Entry:
    """Of these ways to write down the next entry, the one after which most is left."""
    fitting = [entry for entry in fresh if _fits(total, (*entries, entry))]
    if not fitting:
        raise BudgetExceeded(_refusal(total, entries, fresh[0]))

    def left(entry: Entry) -> float:
        rest = _remaining(total, (*entries, entry), total.pure)
        return 0.0 if rest is None else rest.mu if not rest.pure else rest.epsilon

    return fitting[0] if len(fitting) == 1 else max(fitting, key=left)


def _remaining(total: Budget, entries: tuple[Entry, ...], pure: bool) -> Budget | None:
    left, used = _delta_left(total, entries), pure_sum(entry.budget for entry in entries)
    spent = compose_mu(entry.mu for entry in entries)
    if pure:
        rest = round_down(largest_pure(total, spent, used, left) - used)
        return Budget(rest, 0.0, total.adjacency, "tight", total.unit, total.max_events) if rest > 0 else None
    if left < _LEAST_DELTA:
        return None
    allowed = largest_mu(total, used, left)
    if spent >= allowed:
        return None
    mu = math.sqrt((allowed - spent) * (allowed + spent))
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
