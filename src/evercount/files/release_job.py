"""What one run of a release is asked to do, and what it has done."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from evercount.declarations.cautions import published_line
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.tick_marks import NewMark
from evercount.declarations.view_names import check_views
from evercount.engine.carried_totals import CarriedTotals
from evercount.engine.release_table import LEVEL, ReleaseTable
from evercount.engine.user_counting import enforced_by
from evercount.errors import ParameterError
from evercount.files.bad_rows import Reject
from evercount.files.dropped_events import DroppedEvents
from evercount.files.run_state import Places
from evercount.noise import Secret
from evercount.privacy import counted_text

OutputKind = Literal["csv", "jsonl", "parquet"]
SUFFIXES: dict[str, OutputKind] = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}


def output_kind(name: str) -> OutputKind:
    """The format that a name asks for; standard output is CSV.

    >>> output_kind("hourly.parquet"), output_kind("-")
    ('parquet', 'csv')
    """
    if name == "-":
        return "csv"
    try:
        return SUFFIXES[Path(name).suffix.lower()]
    except KeyError:
        raise ParameterError(f"`out` {name!r}: the name must end in .csv, .jsonl or .parquet, or be '-'") from None


@dataclass(frozen=True)
class Job:
    file: Any  # the events: a path or several (expanded by `source.expand_inputs`), or a data frame
    declaration: StreamDeclaration
    out: str | None  # the release file, "-", or None: the state alone keeps what is published
    now: int  # the present time, in microseconds since 1970
    end: int | None = None  # release no tick that ends after this
    state: str | None = None  # the state file; by default next to the output. With neither, a run keeps nothing.
    rejects: str | None = None  # a private file for rows that do not count: bad ones, and with late="drop" late ones
    plot: str | None = None
    lake: str | None = None  # a Delta or Iceberg table that gets the released ticks, too: `lake_table.py`
    views: tuple[str, ...] = ()  # views in addition to those of the declaration
    skip_bad: bool = False  # leave bad rows out instead of refusing the file
    new_noise_stream: bool = False  # start again with new noise over the same data
    delimiter: str = ","
    level: float = LEVEL
    check: bool = False  # look at everything and publish nothing
    secret: Secret | None = None  # of a new stream; None draws one. For audits and tests: it serves one stream
    ledger: str | None = None  # the ledger file in which the stream is entered before its first tick is published
    total: tuple[float, float] | None = None  # (ε, δ) of the ledger, where this run starts it
    add_keys: tuple[Any, ...] = ()  # they join with the first tick of this run, unless they are there already
    remove_keys: tuple[str, ...] = ()  # labels that are not shown any more
    full_digits: bool | None = True
    """Whether the output has all digits, or as many as the error allows; None: as the output has had so far, and for a
    new one no more than the error allows."""
    db: str | None = None  # the store that keeps the stream in place of a state file: an SQLite file or a URL
    renew: bool = False  # go on with a new stream when the horizon is complete
    carry_totals: bool = False  # let the running totals of that one go on from the last ones of this
    carried: CarriedTotals | None = None  # the running totals that the stream goes on from
    notes: tuple[NewMark, ...] = ()  # what the operator says about ticks
    zone_given: bool = True  # whether the operator named the zone; else a run goes on with that of its state

    @property
    def files(self) -> tuple[str, ...]:
        """The paths of the events, or "-"; none for a data frame."""
        if isinstance(self.file, str):
            return (self.file,)
        return self.file if isinstance(self.file, tuple) else ()

    @property
    def all_views(self) -> tuple[str, ...]:
        """The declared views and those of the run, checked, without the one that the output shows."""
        one = self.declaration
        names = check_views((*one.views, *self.views), one.query, one.schedule, one.stream_postprocess)
        if one.revise_for is not None:  # the output has all revisions, and views the newest ones
            return tuple(dict.fromkeys((*names, one.shown)))
        return tuple(name for name in names if name != one.shown)

    @property
    def kept(self) -> bool:
        return self.out is not None or self.state is not None or self.db is not None

    @property
    def kind(self) -> OutputKind | None:
        return None if self.out is None else output_kind(self.out)

    @property
    def output_facts(self) -> dict[str, object]:
        """What all runs of one output share besides the declaration, as the state keeps it."""
        if self.db is not None:  # outputs are exports, which may change
            return {}
        digits = {} if self.full_digits else {"digits": "as the error allows"}
        return {"out format": self.kind, "to stdout": self.out == "-", **digits}


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """What a run has done: public, but for the bad rows."""

    job: Job
    first: int
    last: int  # 1-based ticks released by this run; last < first where no tick had ended
    declaration: StreamDeclaration  # the stream, with the zone of its state
    guarantee: str
    places: Places
    composed: str | None  # what all noise streams over the same data promise together, where there were several
    ledger: str | None  # what all streams of the ledger promise together
    bad: int
    shown: tuple[Reject, ...]
    next_end: str  # when the next tick ends
    continued: bool  # whether an earlier run has released ticks
    following: str  # what the next stream of this kind costs
    archived: tuple[Path, ...] = ()
    drawn: tuple[int, int] | None = None  # how many cells the chart shows, and of how many
    views: tuple[Path, ...] = ()
    dropped: DroppedEvents | None = None  # of a check of users: what caps drop. Secret.
    published: Callable[[], ReleaseTable]  # makes `table`
    joined: tuple[str, ...] = ()  # labels of keys that joined with this run
    not_renewed: str | None = None  # why no stream goes on for this one, whose horizon is complete

    @cached_property
    def table(self) -> ReleaseTable:
        """What the stream has published so far, in the view that its output shows."""
        return self.published()

    @property
    def released(self) -> int:
        return max(0, self.last - self.first + 1)

    @property
    def complete(self) -> bool:
        return self.declaration.horizon is not None and self.last >= self.declaration.horizon

    def facts(self) -> dict[str, Any]:
        """The summary for programs. Public facts only: no number of rows."""
        job, places = self.job, self.places
        return {
            "checked": job.check,
            "released": self.released,
            "first_tick": self.first if self.released else None,
            "last_tick": self.last,
            "horizon": job.declaration.horizon,
            "complete": self.complete,
            "next_tick_ends": None if self.complete else self.next_end,
            "output": None if places.output is None else str(places.output),
            "state": str(places.state) if job.db is None else None,
            "db": job.db,
            "rejects": job.rejects,
            "plot": job.plot,
            "lake": job.lake,
            "kept": [str(path) for path in self.archived],
            "views": [str(path) for path in self.views],
            "shows": self.declaration.shown,
            "noise_for": list(self.declaration.noise_for),
            "late": job.declaration.late,
            "wait": job.declaration.wait,
            "revise_for": job.declaration.revise_for,
            "epsilon": job.declaration.budget.epsilon,
            "delta": job.declaration.budget.delta,
            "joined": list(self.joined),
            "guarantee": self.guarantee,
            "composed": self.composed,
            "ledger": self.ledger,
        }

    def summary(self) -> str:
        """What the run has done and what it promises. Nothing here depends on the events."""
        job, target = self.job, self.places.output or "standard output"
        ticks = f"tick {self.first}" if self.released == 1 else f"ticks {self.first} to {self.last}"
        if job.check:
            lines = ["Checked: options, files and state fit together. Nothing was published."]
        elif self.released:
            lines = [f"Released {ticks} to {target}; state (secret): {self.places.state}"]
            if job.db is not None:
                target = "the store" if self.places.output is None else f"the store and {target}"
                lines = [f"Released {ticks} to {target}"]
        elif self.continued:
            lines = [f"No tick has ended since the last run; {target} is unchanged."]
        else:
            schedule = self.declaration.schedule
            begin = schedule.show(schedule.begin)
            lines = [f"No tick has ended yet: the stream begins at {begin}. Nothing was written."]
        if self.continued and job.declaration.late == "drop":
            where = f"they are listed in {job.rejects}" if job.rejects else "`rejects` FILE lists them"
            lines.append(f"Late rows, of ticks before tick {self.first}, do not count (`late` drop); {where}.")
        if job.notes and not self.released:
            lines.append("The notes are not written, because no tick has ended: give them again next time.")
        if self.not_renewed is not None:
            lines.append(
                f"The horizon of {job.declaration.horizon} ticks is complete, and no stream continues it: "
                f"{self.not_renewed.rstrip('.')}. What was released stays released; later runs exit with status 6."
            )
        elif self.complete and job.renew:
            lines.append(
                f"The horizon of {job.declaration.horizon} ticks is complete; the next run continues with a new "
                f"stream. {self.following}"
            )
        elif self.complete:
            lines.append(
                f"The horizon of {job.declaration.horizon} ticks is complete; this stream releases no more, and later "
                f"runs exit with status 4. {self.following} Give it a later `start` and another `out`; with `horizon` "
                "none a stream has no end."
            )
        else:
            lines.append(f"The next tick {'closes' if job.declaration.waits else 'ends'} at {self.next_end}.")
        if job.carried is not None:
            lines.append(
                f"Running totals count from {self.declaration.schedule.show(job.carried.since)} on: the last published "
                f"ones go on, and their error (std {job.carried.std:.3g}) is added to what is stated."
            )
        if self.drawn is not None and self.drawn[0] < self.drawn[1]:
            lines.append(f"The chart shows the first {self.drawn[0]} of {self.drawn[1]} cells.")
        if self.joined:
            named = ", ".join(self.joined[:8]) + (", …" if len(self.joined) > 8 else "")
            when = (
                f"counted from tick {self.first} on" if self.released else "not counted yet: give them again next time"
            )
            lines.append(f"Keys that join: {named}; {when}. They cost nothing, if they were not chosen by the events.")
        lines += [f"Kept: {path}" for path in self.archived]
        lines += [f"View: {path}" for path in self.views]
        if job.lake is not None and not job.check:
            lines.append(f"Table: {job.lake} has all released ticks.")
        before = 0.0 if job.carried is None else job.carried.std
        lines.append(published_line(self.declaration, new=not self.continued, before=before))
        declared = self.declaration
        if about := counted_text(declared.budget, enforced_by(declared.released_query, None), declared.tick):
            lines.append(about)
        lines.append(self.guarantee)
        lines += [line for line in (self.composed, self.ledger) if line is not None]
        return "\n".join(lines)
