"""Keeper: where a stream is kept between runs of `release`. A run asks it and tells it, and never
asks which one it is (`tests/files/test_keepers.py` walks the syntax tree).

    load ─► the stream as its last commit left it
    declare ─► the stream that releases: the one that was loaded, or a new one
    note ─► what the operator says about ticks
    commit ─► ticks, output and state after them, whole or not at all
    published(after) ─► what is released
    close

Two keepers: a state file (`state_file.py`), which is replaced by a rename, and a store
(`store_keeper.py`), which has transactions. `open_keeper.py` chooses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from evercount._validate import FloatArray
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.schedule import Schedule
from evercount.declarations.settle import Settled
from evercount.declarations.tick_marks import TickMark
from evercount.engine.carried_totals import CarriedTotals
from evercount.engine.close_ticks import TickEvents, TickTotals
from evercount.engine.release_table import ReleaseTable
from evercount.engine.stream import Stream
from evercount.errors import SnapshotError, StoreError
from evercount.files.archive import AdaptCopy
from evercount.files.cap_users import UsedBefore
from evercount.files.output_file import OutputFile
from evercount.files.source import Prefix, SeenRows
from evercount.noise import Secret

if TYPE_CHECKING:
    from evercount.files.resume_run import Run

Totals = TickTotals | TickEvents
WriteTables = Callable[[Stream, Iterator[ReleaseTable]], None]
"""Writes the output under its private name, down to the disk, while the ticks are released."""


class Closed(NamedTuple):
    """The instant at which the last released tick ended, and the offsets of the zone until then.

    Another version of the time zone data may move both, and counted rows would count again.
    """

    until: int
    offsets: list[list[int]]

    @classmethod
    def before(cls, tick: int, schedule: Schedule) -> Closed:
        until = schedule.start_of(tick)
        return cls(until, [[piece.since, piece.offset] for piece in schedule.pieces(until)])

    def check(self, tick: int, schedule: Schedule) -> None:
        """Refuse to go on with `tick` if the zone's rules for the released ticks have changed.

        **Guarantee.** Rows that were counted in released ticks have the same instants in this run,
        and these lie before `tick`. Test: tests/files/test_zone_rules.py
        ::test_other_rules_of_the_zone_count_no_row_twice.
        """
        if Closed.before(tick, schedule) != self:
            raise StoreError(
                f"the rules of the time zone {schedule.zone} for ticks that are released have "
                "changed since the last run, so rows that were counted could count again. Run with "
                "the previous time zone data (PYTHONTZPATH), or start again with "
                "`new_noise_stream`, which adds to the spent budget"
            )


@dataclass(frozen=True)
class RunState:
    """All that a later run needs to go on, besides the stream and what it has published. Secret."""

    declaration: dict[str, Any]
    # format and digits of the output
    output_facts: dict[str, Any]
    closed: Closed
    # name and digest of the output that belongs to this state
    output: tuple[str, str] | None = None
    # what earlier noise streams over the same data cost
    earlier: tuple[dict[str, Any], ...] = ()
    # the stream's name in a ledger file that it has spent in
    entry: str | None = None
    # what each user has used in the open period, except queries that count users themselves
    users: Mapping[str, UsedBefore] = field(default_factory=dict)
    # how much of each file has been counted, if late rows count
    consumed: dict[str, Prefix] = field(default_factory=dict)
    # what a run that wrote rejects had read, by file
    seen: dict[str, SeenRows] = field(default_factory=dict)
    # the start of the first of its renewals, which options still name
    first_start: int | None = None
    # published tables that do not follow from published numbers
    tables: tuple[dict[str, Any], ...] = ()
    # the keys that have joined, each time after which tick. Public.
    joined: tuple[tuple[int, list[Any]], ...] = ()
    # what the operator says about ticks. Public.
    marks: tuple[TickMark, ...] = ()
    # the running totals that the stream goes on from (`CarriedTotals.to_dict`)
    carried: dict[str, Any] | None = None

    @property
    def settled(self) -> Settled:
        """The declaration, with the noise that was settled when the stream began."""
        return Settled.from_dict(self.declaration)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RunState:
        """The inverse of `vars`, as JSON keeps it."""
        try:
            consumed = {name: Prefix(*prefix) for name, prefix in data["consumed"].items()}
            seen = {name: SeenRows(*rows) for name, rows in data["seen"].items()}
            output = data["output"]
            plain = {
                "closed": Closed(*data["closed"]),
                "output": None if output is None else tuple(output),
                "earlier": tuple(data["earlier"]),
                "tables": tuple(data["tables"]),
                "joined": tuple((after, keys) for after, keys in data["joined"]),
                "marks": tuple(TickMark.from_list(mark) for mark in data["marks"]),
                "users": {user: tuple(used) for user, used in data["users"].items()},
            }
            return cls(**{**data, "consumed": consumed, "seen": seen, **plain})
        except (KeyError, TypeError, AttributeError) as error:
            raise SnapshotError(f"malformed state ({type(error).__name__})") from error

    def to_dict(self) -> dict[str, Any]:
        marks = tuple(mark.to_list() for mark in self.marks)
        return {**vars(self), "marks": marks}

    @property
    def carried_totals(self) -> CarriedTotals | None:
        return CarriedTotals.load(self.carried)


class Keeper(ABC):
    """Where one stream is kept. It is locked while it is open.

    Subclasses keep the contract of `tests/files/test_keepers.py`, which runs every life over each.
    """

    # private, for this run only; it may hold copies of events
    scratch: Path
    output: OutputFile | None
    # what is left by the last commit; None if nothing is released
    state: RunState | None = None
    # the state of a stream that is declared and has released nothing, if there is one
    begun: RunState | None = None
    # whether somebody has set a limit on what all streams here spend together
    capped: bool = False

    @property
    @abstractmethod
    def place(self) -> str:
        """Where the stream is, for operators: "daily.csv.state (the state, which is secret)"."""

    @property
    def state_name(self) -> str | None:
        """The name of the state file, if that is what it is."""
        return None

    @abstractmethod
    def load(self) -> RunState | None:
        """Read what the last commit left, and finish what a killed run has begun."""

    @abstractmethod
    def check_output(self) -> None:
        """Refuse to publish over what another stream has published; after `load`."""

    @abstractmethod
    def open_stream(self) -> Stream:
        """A stream that goes on from the last commit. The caller closes it."""

    @abstractmethod
    def build_stream(
        self, declaration: StreamDeclaration, caps: Mapping[str, UsedBefore], secret: Secret | None
    ) -> Stream:
        """A new stream before its first tick, whose persons have used these caps."""

    @abstractmethod
    def published(self, after: int = 0) -> FloatArray:
        """The numbers that the stream has published after a tick, shape (ticks, outputs)."""

    @abstractmethod
    def own_tables(self) -> tuple[dict[str, Any], ...]:
        """The tables that it has published, if they do not follow from the numbers."""

    @abstractmethod
    def output_changes(self, facts: Mapping[str, object]) -> list[str]:
        """What a run would change about an output that must stay as it is, in words."""

    @abstractmethod
    def is_current(self, facts: Mapping[str, object]) -> bool:
        """Whether the output is the one of the last commit, so that new rows are appended."""

    @abstractmethod
    def name_in_lakes(self, declaration: StreamDeclaration, renewing: bool) -> str:
        """The name by which tables of a lake know the stream, or the one that renews it."""

    @abstractmethod
    def declare(self, run: Run) -> Stream:
        """The stream that releases the ticks of a run, with the keys that join and leave."""

    @abstractmethod
    def note(self, marks: Sequence[TickMark]) -> None:
        """Keep what the operator says about ticks, with the next commit at the latest."""

    @abstractmethod
    def commit(self, run: Run, state: RunState, totals: Totals, write: WriteTables) -> None:
        """Release the ticks of `totals`: ticks, output and `state` are kept whole or not at all.

        **Guarantee.** A reader sees the run whole or not at all, a committed tick is never computed
        again, and no committed release is lost, wherever the process is killed. Tests:
        tests/files/test_run_state.py, which kills a process at every step.
        """

    @abstractmethod
    def keep(self, state: RunState) -> None:
        """Keep a state and the pending output that belongs to it; no tick is released."""

    @abstractmethod
    def archive(self, beside: Mapping[Path, AdaptCopy | None]) -> list[Path]:
        """Copy outputs, and the state if it is a file, so that a new stream takes their names."""

    @abstractmethod
    def close(self) -> None:
        """Give the lock back."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
