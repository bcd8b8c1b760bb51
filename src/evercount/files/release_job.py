"""What one run of a release is asked to do, and what it has done."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from evercount.declarations.cautions import published_line
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.tick_marks import NewMark
from evercount.declarations.view_names import check_views
from evercount.engine.release_table import ReleaseTable
from evercount.engine.state import enforced_by
from evercount.errors import ParameterError
from evercount.files.bad_rows import Reject
from evercount.files.cap_users import DroppedEvents
from evercount.noise import Secret
from evercount.privacy import counted_text, successor_text

if TYPE_CHECKING:
    from evercount.files.published import Publication
    from evercount.files.resume_run import Run

OutputKind = Literal["csv", "jsonl", "parquet"]
RESTART = "Give it a later `start` and another `out`; with `horizon` none a stream has no end."
SUFFIXES: dict[str, OutputKind] = {
    ".csv": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".parquet": "parquet",
}


def output_kind(name: str) -> OutputKind:
    """The format that a name asks for.

    >>> output_kind("hourly.parquet")
    'parquet'
    """
    try:
        return SUFFIXES[Path(name).suffix.lower()]
    except KeyError:
        raise ParameterError(
            f"`out` {name!r}: the name must end in .csv, .jsonl or .parquet"
        ) from None


@dataclass(frozen=True)
class Job:
    file: Any  # the events: a path or several (expanded by `source.expand_inputs`), or a data frame
    declaration: StreamDeclaration
    out: str | None  # the release file, or None: the state alone keeps what is published
    now: int  # the present time, in microseconds since 1970
    end: int | None = None  # release no tick that ends after this
    # the state file; by default next to the output. With neither, a run keeps nothing.
    state: str | None = None
    # a private file for rows that do not count: bad ones, and with late="drop" late ones
    rejects: str | None = None
    plot: str | None = None
    # a Delta or Iceberg table that gets the released ticks, too: `published.py`
    lake: str | None = None
    views: tuple[str, ...] = ()  # views in addition to those of the declaration
    skip_bad: bool = False  # leave bad rows out instead of refusing the file
    new_noise_stream: bool = False  # start again with new noise over the same data
    delimiter: str = ","
    check: bool = False  # look at everything and publish nothing
    # of a new stream; None draws one. For audits and tests: it serves one stream
    secret: Secret | None = None
    # the ledger file in which the stream is entered before its first tick is published
    ledger: str | None = None
    total: tuple[float, float] | None = None  # (ε, δ) of the ledger, where this run starts it
    # they join with the first tick of this run, unless they are there already
    add_keys: tuple[Any, ...] = ()
    # they join with the tick that holds this instant; None: with the first of the run
    add_keys_from: int | None = None
    remove_keys: tuple[str, ...] = ()  # labels that are not shown any more
    full_digits: bool = True  # whether the output has all digits, or as many as the error allows
    # the store that keeps the stream in place of a state file: an SQLite file or a URL
    db: str | None = None
    renew: bool = False  # go on with a new stream when the horizon is complete
    # let the running totals of that one go on from the last ones of this
    carry_totals: bool = False
    notes: tuple[NewMark, ...] = ()  # what the operator says about ticks
    # whether the operator named the zone; else a run goes on with that of its state
    zone_given: bool = True

    @property
    def files(self) -> tuple[str, ...]:
        """The paths of the events, or "-"; none for a data frame."""
        if isinstance(self.file, str):
            return (self.file,)
        return self.file if isinstance(self.file, tuple) else ()

    @property
    def all_views(self) -> tuple[str, ...]:
        """The declared views and those of the run, checked, without the one that the output
        shows."""
        one = self.declaration
        names = check_views(
            (*one.views, *self.views), one.query, one.schedule, one.stream_postprocess
        )
        if one.revise_for is not None:  # the output has all revisions, and views the newest ones
            return tuple(dict.fromkeys((*names, one.main_view)))
        return tuple(name for name in names if name != one.main_view)

    @property
    def kept(self) -> bool:
        """Whether anything is left of the stream after the run."""
        return any((self.out, self.state, self.db))

    @property
    def kind(self) -> OutputKind | None:
        return None if self.out is None else output_kind(self.out)

    @property
    def output_facts(self) -> dict[str, object]:
        """What all runs of one output share besides the declaration, as a keeper has it."""
        facts: dict[str, object] = {"out format": self.kind}
        if not self.full_digits:
            facts["digits"] = "as the error allows"
        return facts


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """What a run has done. What it says of itself is public, but for the bad rows."""

    run: Run
    published: Publication  # all that its stream has published so far
    bad: int
    shown: tuple[Reject, ...]
    dropped: DroppedEvents | None  # of a check of users: what caps drop. Secret.
    archived: tuple[Path, ...]
    views: tuple[Path, ...]
    # the last tick with numbers that this run has written to its output
    newest: ReleaseTable | None

    @property
    def job(self) -> Job:
        return self.run.job

    @cached_property
    def table(self) -> ReleaseTable:
        """What the stream has published so far, in the view that its output shows."""
        return self.published.table()

    @property
    def last(self) -> int:
        """The last tick that this run has released; before `first` where no tick had ended."""
        return (self.run.first if self.job.check else self.run.stop) - 1

    @property
    def released(self) -> int:
        return self.last - self.run.first + 1

    @property
    def complete(self) -> bool:
        return (
            self.job.declaration.horizon is not None and self.last >= self.job.declaration.horizon
        )

    @property
    def next_end(self) -> str:
        """When the next tick ends."""
        declaration = self.job.declaration
        return declaration.schedule.show(declaration.closes(self.run.stop))

    def facts(self) -> dict[str, Any]:
        """The summary for programs. Public facts only: no number of rows."""
        job, keeper, declared = self.job, self.run.keeper, self.job.declaration
        return {
            "checked": job.check,
            "released": self.released,
            "first_tick": self.run.first if self.released else None,
            "last_tick": self.last,
            "horizon": declared.horizon,
            "complete": self.complete,
            "next_tick_ends": None if self.complete else self.next_end,
            "output": None if keeper.output is None else str(keeper.output.path),
            "state": keeper.state_name,
            "kept": [str(path) for path in self.archived],
            "views": [str(path) for path in self.views],
            "shows": declared.main_view,
            "noise_for": list(declared.noise_for),
            "epsilon": declared.budget.epsilon,
            "delta": declared.budget.delta,
            "joined": list(self.run.joining.labels),
            "guarantee": self.published.guarantee,
            "composed": self.run.composed,
            "ledger": self.run.entry.sentence,
        }

    def summary(self) -> str:
        """What the run has done and what it promises. Nothing here depends on the events."""
        run, declared = self.run, self.job.declaration
        totals = run.predecessors.totals
        lines = [self._what_happened(), *self._about_rows(), self._what_follows()]
        if totals is not None:
            lines.append(
                f"Running totals count from {declared.schedule.show(totals.since)} on: the last "
                f"published ones go on, and their error (std {totals.std:.3g}) is added to what is "
                "stated."
            )
        if run.joining.labels:
            lines.append(self._who_joins())
        lines += [f"Kept: {path}" for path in self.archived]
        lines += [f"View: {path}" for path in self.views]
        new = run.before is None and not run.predecessors.renewed
        lines.append(published_line(declared, new=new, before=totals.std if totals else 0.0))
        if not self.job.check and counted_text(declared.budget):
            lines.append(
                "Caps leave events out: `evercount inspect` with the same files and options shows "
                "how many, to you alone."
            )
        enforced = enforced_by(declared.released_query, None)
        promises = (
            counted_text(declared.budget, enforced, declared.tick),
            self.published.guarantee,
            run.composed,
            run.adds if self.released else None,
            run.entry.sentence,
        )
        return "\n".join([*lines, *(line for line in promises if line)])

    def _what_happened(self) -> str:
        run, schedule = self.run, self.job.declaration.schedule
        if self.job.check:
            return "Checked: options, files and state fit together. Nothing was published."
        if self.released:
            ticks = f"ticks {run.first} to {self.last}"
            if self.released == 1:
                ticks = f"tick {run.first}"
            output = run.keeper.output
            place = run.keeper.place
            where = place if output is None else f"{output.path} and {place}"
            return f"Released {ticks} to {where}"
        if run.before is not None:
            return "No tick has ended since the last run; nothing has changed."
        begin = schedule.show(schedule.begin)
        return f"No tick has ended yet: the stream begins at {begin}. Nothing was written."

    def _about_rows(self) -> list[str]:
        """Lines on late rows, and on notes that are not written yet."""
        job, run, lines = self.job, self.run, []
        if run.before is not None and job.declaration.late == "drop":
            where = "`rejects` FILE lists them"
            if job.rejects:
                where = f"they are listed in {job.rejects}"
            lines.append(
                f"Late rows, of ticks before tick {run.first}, do not count (`late` drop); {where}."
            )
        if job.notes and not self.released:
            lines.append(
                "The notes are not written, because no tick has ended: give them again next time."
            )
        return lines

    def _what_follows(self) -> str:
        """When the next tick ends, or what comes after the last one."""
        declared = self.job.declaration
        if not self.complete:
            verb = "closes" if declared.waits else "ends"
            return f"The next tick {verb} at {self.next_end}."
        following = successor_text(self.run.stream.cost)
        then = "this stream releases no more, and later runs exit with status 4. "
        then += f"{following} {RESTART}"
        if self.job.renew:
            then = f"the next run continues with a new stream. {following}"
        return f"The horizon of {declared.horizon} ticks is complete; {then}"

    def _who_joins(self) -> str:
        run, schedule = self.run, self.job.declaration.schedule
        joining = run.joining
        named = ", ".join(joining.labels[:8])
        if len(joining.labels) > 8:
            named += ", …"
        since = run.first if joining.since is None else joining.since
        when = f"counted from tick {since}"
        if self.job.add_keys_from is not None:
            when += f" ({schedule.show(schedule.start_of(since))})"
        when += " on"
        if self.last < since:
            when += "; not counted yet: give them again next time"
        return (
            f"Keys that join: {named}; {when}. They cost nothing if chosen without looking at the "
            "events."
        )
