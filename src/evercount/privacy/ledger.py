"""Ledger: one total budget, spent by several streams about the same events; it refuses to
overspend.

Entries are immutable and only ever added. Which fit is decided by `accounts.py`. With a path the
ledger is kept in a file that one Ledger at a time has open, and that shows when entries were
changed or removed (`ledger_file.py`). A ledger is never copied.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import NoReturn, SupportsIndex

from evercount.errors import BudgetExceeded, EvercountError, ParameterError, SnapshotError
from evercount.privacy.accounts import Filter
from evercount.privacy.budget import Budget
from evercount.privacy.composition import Cost, as_cost, check_one_unit, check_periods, compose
from evercount.privacy.guarantee_text import stated_promise
from evercount.privacy.ledger_file import LedgerFile
from evercount.privacy.time_range import TimeRange


@dataclass(frozen=True)
class Entry:
    """What one stream has spent.

    Args:
        name: the name of the stream.
        cost: what it costs.

    >>> from evercount.privacy import Budget, Ledger
    >>> Ledger(Budget(1.0, 1e-6)).spend("cases", Budget(0.5, 0.0)).cost.plain
    True
    """

    name: str
    cost: Cost


class Ledger:
    """What has been spent of `total`. Safe to use from several threads.

    Args:
        total: the budget that all entries share. For a file that exists it may be omitted, else it
            must be the same.
        path: the file that keeps the ledger; it is created, or continued, and locked until `close`
            or the end of the with-block. None: the ledger lives in this process only.
        key: 16 to 64 random bytes that key the chain of a file. With it nobody who lacks the key
            can change, remove or add entries unseen; without it only accidents and careless edits
            are seen (`ledger_file.py`).
        head: where the head of the chain is kept; default `<path>.head`.
        adopt: accept a file whose head is missing or names another copy. Only if nothing was spent
            elsewhere since.
        wait: wait until another Ledger has closed the file, instead of refusing.

    Raises:
        ParameterError: no total where one is needed, or key, head or adopt without a path.
        StoreError: the file is locked by another ledger, was changed, or is a copy.

    All entries are Gaussian noise within half of δ, or their promises add up to no more than ε and
    half of δ. One entry alone may take everything.

    **Guarantee.** The streams of all entries together are (total.epsilon, total.delta)-DP, even
    where they run side by side and where inputs, and number, kind and budget of the streams, depend
    on earlier releases. Assumes that each stream keeps its `Cost`, and that everything released
    about these events is in this ledger. Streams over disjoint time ranges share the total only
    where a unit can be in both. Proof: `composition.proof.md`, sections 7 and 8. Tests:
    `tests/privacy/test_privacy_adaptive.py`, test_no_adaptive_choice_beats_the_total;
    `tests/privacy/test_privacy_ledger.py`, test_mixtures_never_exceed_their_total;
    `tests/privacy/test_successors.py`, test_ten_years_cost_one.

    One budget is spent once: a copy of the object (copy, pickle, fork) cannot spend, a second
    Ledger on the same file is refused while the first is open, and a copy of the file is refused. A
    spend is on the disk before `spend` returns. Tests: `tests/privacy/test_privacy_ledger_file.py`.

    >>> ledger = Ledger(Budget(1.0, 1e-9))
    >>> ledger.spend("by another program", Budget(0.5, 1e-10)).name
    'by another program'
    >>> ledger.remaining(pure=True).budget.epsilon
    0.5
    """

    def __init__(
        self,
        total: Budget | None = None,
        path: str | Path | None = None,
        *,
        key: bytes | None = None,
        head: str | Path | None = None,
        adopt: bool = False,
        wait: bool = False,
    ) -> None:
        if total is not None and not isinstance(total, Budget):
            raise ParameterError(f"a ledger starts from a Budget, not {type(total).__name__}.")
        if path is None and (total is None or key is not None or head is not None or adopt):
            raise ParameterError(
                "a ledger without a path starts from a Budget; key, head and adopt go with a path."
            )
        self._entries: tuple[Entry, ...] = ()
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._file: LedgerFile | None = None
        if path is None:
            assert total is not None
            self._filter = Filter(total)
            return
        file = LedgerFile(path, key, head, adopt, wait)
        try:
            self._filter = Filter(self._load(file, total))
        except BaseException:
            file.close()
            raise
        self._file = file

    def _load(self, file: LedgerFile, declared: Budget | None) -> Budget:
        """Read the entries of a file and return its total; begin a new one with its first line."""
        if not file.records:
            if declared is None:
                file.path.unlink()  # an empty file that this call has made
                raise ParameterError(
                    f"there is no ledger at {file.path}: give its total to start one"
                )
            file.begin({"total": declared.to_dict(), "plain": None})
            return declared
        try:
            total = Budget.from_dict(file.records[0]["total"])
            if file.records[0]["plain"] is not None:
                raise ParameterError(
                    "it has a separate part for pure streams, which is not supported"
                )
            self._entries = tuple(
                Entry(one["name"], Cost.from_dict(one["cost"])) for one in file.records[1:]
            )
        except (EvercountError, KeyError, TypeError, ValueError) as error:
            raise SnapshotError(
                f"the ledger {file.path} is damaged or was changed: {error}"
            ) from error
        if declared is not None and declared != total:
            raise ParameterError(f"the ledger's total is {total!r}: omit it, or give the same.")
        return total

    def close(self) -> None:
        """Release the lock of the file; this object spends no more."""
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_file", None) is not None:
            self.close()

    # what `copy` and `pickle` both ask
    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise ParameterError(
            "a ledger is not copied or pickled: two copies would spend one budget twice. Pass the "
            "ledger itself, or keep it in a file (path=…), and open that where it is needed"
        )

    def _check_may_spend(self) -> None:
        """Refuse a ledger that is closed, or was opened before a fork."""
        if self._process != os.getpid():
            raise ParameterError(
                "this ledger was opened before a fork: parent and child would spend one budget "
                "twice. Open it in the process that spends, Ledger(path=…)."
            )
        if self._file is not None and self._file.closed:
            raise ParameterError(f"the ledger {self._file.path} is closed: open it again.")

    @property
    def total(self) -> Budget:
        """The budget that all entries share."""
        return self._filter.total

    def sentence(self, more: Iterable[Cost] = ()) -> str:
        """What the streams of all entries promise together, in words; the total holds whatever they
        are.

        Args:
            more: Costs that are not entered yet.

        Returns:
            One sentence, with numbers rounded up.

        Raises:
            ParameterError: Costs about different units.

        >>> Ledger(Budget(1.0, 1e-6)).sentence([Cost(Budget(0.5, 0.0))])
        '1 stream, together epsilon=0.5, delta=0, of a total of epsilon=1, delta=1e-06.'
        """
        costs = [*(entry.cost for entry in self._entries), *more]
        if not costs:
            return f"no stream yet, of a total of {stated_promise(self.total)}."
        count = f"{len(costs)} streams" if len(costs) > 1 else "1 stream"
        total = f"of a total of {stated_promise(self.total)}."
        try:
            check_periods(costs)
        except ParameterError:  # entered before periods were compared
            return (
                f"{count}, whose periods begin at different times, so that they cannot be added "
                f"up, {total}"
            )
        return f"{count}, together {stated_promise(compose(costs))}, {total}"

    @property
    def entries(self) -> tuple[Entry, ...]:
        """All entries, in the order in which they were spent."""
        return self._entries

    def spend(self, name: str, cost: Cost | Budget) -> Entry:
        """Record a stream and return its entry, or raise BudgetExceeded with nothing recorded.

        Args:
            name: The name of the entry, used by no other. `Stream(..., ledger=...)` takes one that
                tells the stream (its secret and its declaration) from every other.
            cost: What the stream costs (`Stream.cost`), about the unit of the total. A Budget is
                its promise alone: that is right for every mechanism that keeps it, and more than
                Gaussian noise costs. A sparse counter with δ > 0 has a pure part and a Gaussian
                one, and takes two entries (`SparsePlan.budgets`).

        Returns:
            The new entry.

        Raises:
            ParameterError: An argument is not legal, or the name is taken.
            BudgetExceeded: It does not fit into what is left.
        """
        self._check_may_spend()
        entry = Entry(name, as_cost(cost))
        record = {"name": name, "cost": entry.cost.to_dict()}
        with self._lock:
            self._check_fits(entry)
            try:
                if self._file is not None:
                    self._file.append(record)
            finally:  # where only the head could not be written, the entry is on the disk
                if self._file is None or self._file.records[-1] is record:
                    self._entries = (*self._entries, entry)
        return entry

    def check(self, name: str, cost: Cost | Budget) -> None:
        """Refuse what `spend` would refuse, and record nothing.

        Args:
            name: As in `spend`.
            cost: As in `spend`.

        Raises:
            ParameterError: As in `spend`.
            BudgetExceeded: As in `spend`.
        """
        self._check_may_spend()
        with self._lock:
            self._check_fits(Entry(name, as_cost(cost)))

    def _check_fits(self, entry: Entry) -> None:
        """Refuse an entry whose name is used, or that exceeds what is left."""
        name = entry.name
        earlier = [one.cost for one in self._entries]
        if not isinstance(name, str) or not name:
            raise ParameterError(f"an entry needs a name, got {name!r}")
        if any(one.name == name for one in self._entries):
            raise ParameterError(
                f"the ledger already has an entry {name!r}. A stream that has spent continues from "
                "its snapshot with Stream.restore, which spends nothing; if it was lost before its "
                "first release, start again with a new secret, which spends again. Anything else "
                "needs a name of its own."
            )
        check_one_unit([Cost(self.total), *earlier, entry.cost])
        check_periods([entry.cost], earlier)
        if not self._filter.admits([*earlier, entry.cost]):
            raise BudgetExceeded(self._refusal(earlier, entry))

    def remaining(self, *, pure: bool = False, during: TimeRange | None = None) -> Cost | None:
        """The largest cost that still fits as a single cost: Gaussian noise, or ε of pure privacy.

        Args:
            pure: Whether it must have δ = 0, as it always does where the total is pure.
            during: The time range of the stream (`StreamDeclaration.during`); None: it may meet
                every event.

        Returns:
            The cost, or None if nothing of that kind is left.

        Raises:
            ParameterError: Persons are protected in periods, and `during` does not say that its own
                begin when those of all entries do.
        """
        earlier = [entry.cost for entry in self._entries]
        check_periods([Cost(self.total, during=during)], earlier)
        return self._filter.remaining(earlier, pure or self.total.pure, during)

    def _refusal(self, earlier: list[Cost], entry: Entry) -> str:
        """Say why an entry does not fit, and what is left."""
        total = self.total
        cost = entry.cost
        if total.pure and not cost.budget.pure:
            return (
                f"{entry.name!r} is not pure (its delta is {cost.budget.delta:g}), and the total "
                "has delta=0, which only pure mechanisms keep. Spend Budget(epsilon, delta=0), or "
                "start the ledger with a small positive delta."
            )
        kinds = (True,) if total.pure else (True, False)
        rests = (self._filter.remaining(earlier, pure, cost.during) for pure in kinds)
        left = ", or ".join(_spoken(rest) for rest in rests if rest is not None)
        rest = f"What is left: at most {left}." if left else "Nothing is left."
        return (
            f"{entry.name!r} needs {_spoken(cost)}; with all entries so far ({len(earlier)}) that "
            f"exceeds the parts of epsilon={total.epsilon:g}, delta={total.delta:g}. {rest}"
        )

    def __repr__(self) -> str:
        return f"Ledger({self.total!r}, {len(self._entries)} entries)"


def _spoken(cost: Cost) -> str:
    """Write a cost in words, with all digits of ε: sums are compared exactly."""
    budget = cost.budget
    if budget.pure:
        return f"epsilon={budget.epsilon!r} of pure privacy"
    kind = "a promise" if cost.plain else "Gaussian noise"
    return f"{kind} of epsilon={budget.epsilon!r} at delta={budget.delta:.3g}"
