"""One run of `evercount release`: events file → totals → released rows → committed release file.

Which ticks a run releases is decided by the public schedule alone: those that have ended by `now` (and by `end`), up to
the horizon. The rows have no say in it. If the last event decided, the length of the output would reveal it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import IO

import numpy as np

from evercount._arrays import FloatArray
from evercount._safe_files import refuse_link
from evercount._validate import stated
from evercount.declare.declaration import StreamDeclaration, changed_noise
from evercount.declare.view_names import check_views, shown_tables, stack_rows
from evercount.engine.close_ticks import close_ticks
from evercount.engine.release_table import LEVEL, ReleaseTable
from evercount.engine.stream import Stream
from evercount.engine.write_table import parquet_modules
from evercount.errors import BadRows, HorizonReached, ParameterError, StoreError
from evercount.files.bad_rows import MOST_SHOWN, LateRows, Reject, find_rejects, write_rejects
from evercount.files.count_rows import CountedRows, count
from evercount.files.draw_releases import CHARTS, draw_releases
from evercount.files.dropped_events import DroppedEvents, dropped_events
from evercount.files.event_sql import columns_of
from evercount.files.ledger_entry import Entered, enter
from evercount.files.new_rows import split_new
from evercount.files.run_state import Closed, Places, State, archive, commit, discard, locked, read_state
from evercount.files.sink import output_kind, write_releases
from evercount.files.source import Prefix, SeenRows, Source, open_source
from evercount.files.write_views import view_path, write_views
from evercount.noise import Secret
from evercount.privacy import Cost, compose, successor_text

Progress = Callable[[str, int, int], None]
"""What is being done, how many ticks of it are done, of how many (0: not known)."""


@dataclass(frozen=True)
class Job:
    """What one run is asked to do."""

    file: str | tuple[str, ...]
    """The events: one path, or several; patterns are not expanded here (`source.expand_inputs`)."""
    declaration: StreamDeclaration
    out: str
    """The release file, or "-"."""
    now: int
    """The present time, in microseconds since 1970."""
    end: int | None = None
    """Release no tick that ends after this."""
    state: str | None = None
    """The state file; by default next to the output."""
    rejects: str | None = None
    """A private file for all rows that do not count: bad ones and, with late="drop", late ones."""
    plot: str | None = None
    views: tuple[str, ...] = ()
    """Views in addition to those of the declaration."""
    skip_bad: bool = False
    """Leave bad rows out instead of refusing the file."""
    new_noise_stream: bool = False
    """Start again with new noise over the same data."""
    delimiter: str = ","
    level: float = LEVEL
    check: bool = False
    """Look at everything and publish nothing."""
    secret: Secret | None = None
    """The secret of a new stream; None draws one. For audits and tests: one secret serves one stream only."""
    ledger: str | None = None
    """The ledger file in which the stream is entered before its first tick is published."""
    total: tuple[float, float] | None = None
    """(ε, δ) of the ledger, where this run starts it."""
    zone_given: bool = True
    """Whether the operator named the zone; if not, a run that continues takes the one of its state."""

    @property
    def files(self) -> tuple[str, ...]:
        """The paths of the events, or "-"."""
        return (self.file,) if isinstance(self.file, str) else self.file

    @property
    def all_views(self) -> tuple[str, ...]:
        """The declared views and those of the run, checked, without the one that the output shows."""
        one = self.declaration
        names = check_views((*one.views, *self.views), one.query, one.schedule, one.postprocess)
        if one.revise_for is not None:  # the output has all revisions, and views the newest ones
            return tuple(dict.fromkeys((*names, one.shown)))
        return tuple(name for name in names if name != one.shown)

    @property
    def output_facts(self) -> dict[str, object]:
        """What all runs of one output share besides the declaration, as the state keeps it."""
        return {"out format": output_kind(self.out), "to stdout": self.out == "-"}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a run has done: public, but for the bad rows."""

    first: int
    last: int
    """1-based ticks released by this run; last < first where no tick had ended."""
    declaration: StreamDeclaration
    """The stream, with the zone of its state."""
    guarantee: str
    places: Places
    composed: str | None
    """What all noise streams over the same data promise together, where there were several."""
    ledger: str | None
    """What all streams of the ledger promise together."""
    bad: int
    shown: tuple[Reject, ...]
    next_end: str
    """When the next tick ends."""
    continued: bool
    """Whether an earlier run has released ticks."""
    following: str
    """What the next stream of this kind costs."""
    archived: tuple[Path, ...] = ()
    drawn: tuple[int, int] | None = None
    """How many cells the chart shows, and of how many."""
    views: tuple[Path, ...] = ()
    dropped: DroppedEvents | None = None
    """Of a check of users: what caps drop. Secret."""

    @property
    def released(self) -> int:
        """The number of ticks that this run has released."""
        return max(0, self.last - self.first + 1)

    @property
    def complete(self) -> bool:
        """Whether the last tick of the horizon is released."""
        return self.declaration.horizon is not None and self.last >= self.declaration.horizon


def release_file(job: Job, progress: Progress | None = None, stdin: IO[bytes] | None = None) -> Outcome:
    """Count the file, release the ticks that have ended, and publish them, or raise with nothing changed.

    **Guarantee.** All runs with one state together are one `Stream`, so its guarantee holds for all that they publish:
    a tick is released once (`run_state.py`), from totals in which every event counts once (`count_rows.py`). Ticks are
    chosen by the clock, not by the data. What is not protected: that a run failed, and what it says about bad rows;
    these are for the operator. Tests: tests/cli/test_cli_release.py::test_runs_in_pieces_are_one_run.
    """
    tell = progress or (lambda what, done, total: None)
    places = Places.of(job.out, job.state)
    _check_paths(job, places)
    _check_extras(job)
    columns_of(job.declaration)
    with _interruptible(), locked(places) as scratch, ExitStack() as cleanup:
        run = _resume(job, places, scratch, cleanup)
        tell("counting", 0, 0)
        counted = _count(run, stdin)
        return _publish(run, counted, tell)


# -- resume -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Run:
    """A run that knows its stream and its ticks, [first, stop) from 1."""

    job: Job
    places: Places
    scratch: Path
    before: State | None
    """The state that the run continues."""
    restarted: bool
    """Whether new noise takes the place of a stream."""
    earlier: tuple[Cost, ...]
    stream: Stream
    composed: str | None
    entered: Entered
    first: int
    stop: int

    @property
    def declaration(self) -> StreamDeclaration:
        return self.job.declaration

    @property
    def published(self) -> FloatArray:
        """All that earlier runs have published."""
        return np.empty((0, len(self.stream.labels))) if self.before is None else self.before.numbers


def _resume(job: Job, places: Places, scratch: Path, cleanup: ExitStack) -> _Run:
    """Take up the stream of the state, or begin one."""
    state = read_state(places)
    earlier = () if state is None else tuple(map(Cost.from_dict, state.earlier))
    restarted = job.new_noise_stream and state is not None
    if job.new_noise_stream and state is not None:
        if state.entry is not None and job.ledger is None:
            raise ParameterError("the stream is in a ledger: give --ledger FILE, which is charged for the new one, too")
        old = Stream.load(state.stream, job.declaration.period_of)
        cleanup.callback(old.close)
        earlier, state = (*earlier, old.cost), None
    job = _settled(job, state)
    declaration = job.declaration
    stream = declaration.build(secret=job.secret) if state is None else Stream.load(state.stream, declaration.period_of)
    cleanup.callback(stream.close)
    composed = compose_sentence(earlier, stream.cost) if earlier else None
    first, stop = _due(job, stream)
    if state is not None:
        state.closed.check(first, declaration.schedule)
    publishes = not job.check and stop > first
    entered = enter(job, stream, None if state is None else state.entry, state is None, publishes, cleanup)
    return _Run(job, places, scratch, state, restarted, earlier, stream, composed, entered, first, stop)


def _settled(job: Job, state: State | None) -> Job:
    """The job with a zone, checked against the state that it continues."""
    declaration, schedule = job.declaration, job.declaration.schedule
    if state is None:
        period = declaration.budget.period
        if isinstance(period, str) and not schedule.calendar and not job.zone_given:
            raise ParameterError(
                f"periods of {period} follow the calendar of a time zone: add --tz Europe/Vienna or --tz UTC, or give "
                "--period as a number of ticks"
            )
        if schedule.calendar and not job.zone_given:
            raise ParameterError(
                f"ticks of {schedule.tick} follow the calendar of a time zone: add --tz Europe/Vienna or --tz UTC; "
                "for ticks of 86,400 seconds sharp write 24h"
            )
        return job
    known = StreamDeclaration.from_dict(state.declaration)
    if not job.zone_given:
        declaration = declaration.with_schedule(replace(schedule, zone=known.schedule.zone))
    differences = known.differences(declaration)
    for name, value in job.output_facts.items():
        if state.output_facts.get(name) != value:
            differences.append(f"{name} was {state.output_facts.get(name)!r} and is now {value!r}")
    if differences:
        raise ParameterError(
            "this is another stream than the one in the state: " + "; ".join(differences) + ". Use the previous "
            f"parameters to continue it{changed_noise(known, declaration)}. A new stream is a successor with a later "
            "--start and another --out; --new-noise-stream starts again with these and adds to the spent budget"
        )
    declaration = declaration.as_known(known).with_schedule(known.schedule)
    if declaration.shown != known.shown:  # views may change, but not what an output shows
        declaration = replace(declaration, views=(known.shown, *declaration.views))
    return replace(job, declaration=declaration)


def _due(job: Job, stream: Stream) -> tuple[int, int]:
    """1-based [first, stop): the ticks to release now."""
    horizon, schedule = stream.horizon, job.declaration.schedule
    if horizon is not None and stream.tick >= horizon:
        raise HorizonReached(
            horizon,
            f"{successor_text(stream.cost)} Give it a later --start and another --out; with --horizon none a stream "
            "has no end.",
        )
    if job.end is not None and job.end <= schedule.begin:
        raise ParameterError(f"--end {schedule.show(job.end)} is not after --start {schedule.show(schedule.begin)}")
    ended = job.declaration.ended(job.now)
    if job.end is not None:
        ended = min(ended, schedule.tick_of(job.end) - 1)
    return stream.tick + 1, max(stream.tick, ended) + 1


def compose_sentence(earlier: tuple[Cost, ...], now: Cost) -> str:
    """What all noise streams over the same data promise together.

    **Guarantee.** That of `compose`; the numbers are rounded up. Test:
    tests/files/test_release_run.py::test_composed_promise.
    """
    together = compose((*earlier, now))
    return (
        f"Together with {len(earlier)} earlier noise stream{'s' * (len(earlier) > 1)} over the same data: "
        f"epsilon={stated(together.epsilon)}, delta={stated(together.delta)} (adjacency {together.adjacency}, unit "
        f"{together.unit})."
    )


# -- count ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Counted:
    rows: CountedRows
    shown: tuple[Reject, ...]
    consumed: dict[str, Prefix]
    """With late=next and late=revise, how much of each file the counts come from."""
    seen: dict[str, SeenRows]
    dropped: DroppedEvents | None


def _count(run: _Run, stdin: IO[bytes] | None) -> _Counted:
    """Count the due ticks, and report rows that do not count.

    Why every row counts once. late=drop: a row counts in the run that releases the tick of its time, and a tick is
    released by one run. late=next, late=revise: call a row new in the first run whose copy of the files holds it and
    which releases something. If the tick of its time is still open then, it counts with that tick, in whichever run
    releases it. If it is closed, the row counts in this run, in the first open tick (revise: for its own); later runs
    find it inside the prefix that was consumed and its tick closed, and leave it alone. The prefixes are advanced only
    by a commit, together with the ticks.
    """
    job, before = run.job, run.before
    sources: tuple[Source, ...] = tuple(
        open_source(name, run.scratch, job.delimiter, stdin, number=number) for number, name in enumerate(job.files)
    )
    shown, seen = _write_rejects(run, sources)
    late: tuple[Source, ...] = ()
    consumed: dict[str, Prefix] = {}
    if run.declaration.late != "drop":
        if job.files == ("-",):
            raise ParameterError(
                f"--late {run.declaration.late} needs files that only grow, to tell late rows from rows that were "
                "counted; use --late drop for standard input"
            )
        split = split_new(sources, run.scratch, (before.consumed or None) if before else None)
        sources, late, consumed = split.files, split.new, split.consumed
    users = before.users if before else {}
    rows = count(sources, run.declaration, run.first, run.stop, run.scratch, late=late, users=users)
    dropped = None
    if job.check and columns_of(run.declaration).user is not None:
        dropped = dropped_events(sources, run.declaration, run.first, run.stop, run.scratch)
    if rows.bad and shown is None:
        shown = tuple(islice(find_rejects(sources, run.declaration, run.scratch), MOST_SHOWN))
    if rows.bad and not job.skip_bad:
        raise BadRows(sources[0].name if len(sources) == 1 else f"{len(sources)} files", rows.bad, shown or ())
    return _Counted(rows, (shown or ()) if rows.bad else (), consumed, seen, dropped)


def _write_rejects(run: _Run, sources: tuple[Source, ...]) -> tuple[tuple[Reject, ...] | None, dict[str, SeenRows]]:
    """Write --rejects, before anything is counted: rows that come in between may be called late, never forgotten.

    Returns the first bad rows (None without --rejects), and what was read."""
    job = run.job
    if job.rejects is None:
        return None, {}
    for source in sources:
        source.require(*columns_of(run.declaration).used)
    late = LateRows(run.first, run.before.seen if run.before else {}) if run.declaration.late == "drop" else None
    try:
        shown = write_rejects(Path(job.rejects), find_rejects(sources, run.declaration, run.scratch, late))
    except OSError as error:
        raise StoreError(f"--rejects {job.rejects} cannot be written: {error.strerror}") from error
    return tuple(shown), {} if late is None else late.now


# -- publish ----------------------------------------------------------------------------------------------------------


def _publish(run: _Run, counted: _Counted, tell: Progress) -> Outcome:
    """Commit the ticks and their rows, then draw what is read back from them."""
    job, places, stream, schedule = run.job, run.places, run.stream, run.declaration.schedule
    archived: tuple[Path, ...] = ()
    numbers = run.published
    if not job.check and run.stop > run.first:
        if run.restarted:
            archived = tuple(archive(places))
        with _undone(places):
            state = _write(run, counted, tell)
            run.entered.spend()  # on the disk before anything is published
        numbers = state.numbers
        try:
            commit(places, state)
        except OSError as error:
            raise StoreError(f"the run could not be published: {error.strerror or error}") from error
    drawn, views = None, []
    if not job.check and places.output is not None and places.output.exists():
        if job.plot is not None:
            drawn = draw_releases(places.output, Path(job.plot), stream, run.declaration, run.scratch, job.level)
        if job.all_views:
            views = write_views(places.output, stream.read_back(numbers), schedule, job.all_views, job.level)
    return Outcome(
        first=run.first,
        last=(run.first if job.check else run.stop) - 1,
        declaration=run.declaration,
        guarantee=stream.guarantee,
        places=places,
        composed=run.composed,
        ledger=run.entered.sentence,
        following=successor_text(stream.cost),
        archived=archived,
        bad=counted.rows.bad,
        shown=counted.shown,
        next_end=schedule.show(run.declaration.closes(run.stop)),
        continued=run.before is not None,
        drawn=drawn,
        views=tuple(views),
        dropped=counted.dropped,
    )


def _write(run: _Run, counted: _Counted, tell: Progress) -> State:
    """Write the new output under its private name; the state that belongs to it."""
    job, before, stream, schedule = run.job, run.before, run.stream, run.declaration.schedule
    totals, numbers = counted.rows.totals, [run.published]
    own_ticks = stream.query.publishing.own_ticks

    def closed() -> Iterator[ReleaseTable]:
        for table in close_ticks(stream, totals, schedule.starts_of, level=job.level):
            if not own_ticks:  # keys of the day have no other view
                numbers.append(table.numbers[:, 0])
            yield table
            tell("releasing", stream.tick + 1 - totals.first_tick, len(totals))

    old = None if before is None else run.places.output
    tables = shown_tables(stream, closed(), run.declaration.shown, schedule, run.published, job.level)
    write_releases(
        output_kind(job.out), old, run.places.pending, tables, schedule, stream.guarantee, header=before is None
    )
    return State(
        declaration=run.declaration.to_dict(),
        output_facts=job.output_facts,
        stream=stream.dump(),
        closed=Closed.before(run.stop, schedule),
        numbers=stack_rows(*numbers),
        earlier=tuple(cost.to_dict() for cost in run.earlier),
        entry=run.entered.name,
        users=counted.rows.users,
        consumed=counted.consumed,
        seen=counted.seen,
    )


@contextmanager
def _interruptible() -> Iterator[None]:
    """DuckDB turns Ctrl-C into a RuntimeError: turn it back into KeyboardInterrupt."""
    try:
        yield
    except RuntimeError as error:
        if "interrupted" in str(error).lower():
            raise KeyboardInterrupt from error
        raise


@contextmanager
def _undone(places: Places) -> Iterator[None]:
    """Remove the private files when a run ends before its commit, Ctrl-C included."""
    try:
        yield
    except OSError as error:
        discard(places)
        raise StoreError(f"the output cannot be written: {error.strerror or error}") from error
    except BaseException:
        discard(places)
        raise


def _check_paths(job: Job, places: Places) -> None:
    """No two of the files may be the same, and what is written is not a symbolic link (`_safe_files.py`)."""
    written = {"--out": places.output, "--state": places.state, "--rejects": job.rejects, "--plot": job.plot}
    written["--ledger"] = job.ledger
    named = [("the input", name) for name in job.files if name != "-"]
    seen: dict[Path, str] = {}
    if places.output is not None:
        written |= {f"the view {name}": view_path(places.output, name) for name in job.all_views}
    for what, name in (*named, *written.items()):
        if name is None:
            continue
        if what != "the input":
            refuse_link(what, Path(name))
        path = Path(name).resolve()
        if path in seen:
            raise ParameterError(f"{what} and {seen[path]} are the same file {name}: name different ones")
        seen[path] = what
        if what != "the input" and not path.parent.is_dir():
            raise ParameterError(f"{what} {name}: there is no folder {path.parent}")
        if what != "the input" and path.is_dir():
            raise ParameterError(f"{what} {name} is a directory: name a file")


def _check_extras(job: Job) -> None:
    """Refuse before the run what would fail after it: a missing library, a chart without a file to read."""
    if output_kind(job.out) == "parquet":
        parquet_modules()
    if job.all_views and job.out == "-":
        raise ParameterError("views need --out FILE: they are read back from all ticks of the output")
    if job.plot is not None:
        from evercount.plotting import new_axes

        new_axes()
        if job.out == "-":
            raise ParameterError("--plot needs --out FILE: the chart shows all ticks, read back from the output")
        if Path(job.plot).suffix.lower() not in CHARTS:
            raise ParameterError(f"--plot {job.plot!r}: the name must end in {', '.join(CHARTS)}")
