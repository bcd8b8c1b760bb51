"""One run of `evercount release`: events file → totals → released rows → committed release file.

Which ticks a run releases is decided by the public schedule alone: those that have ended by `now` (and by `end`), up to
the horizon. The rows have no say in it. If the last event decided, the length of the output would reveal it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import IO

from evercount._safe_files import refuse_link
from evercount._validate import stated
from evercount.declare.declaration import StreamDeclaration
from evercount.declare.view_names import check_views
from evercount.engine.close_ticks import close_ticks
from evercount.engine.release_table import LEVEL, ReleaseTable
from evercount.engine.stream import Stream
from evercount.engine.tick_totals import TickEvents, TickTotals
from evercount.errors import BadRows, HorizonReached, ParameterError, StoreError
from evercount.files.bad_rows import MOST_SHOWN, LateRows, Reject, find_rejects, write_rejects
from evercount.files.count_rows import CountedRows, count
from evercount.files.draw_releases import CHARTS, draw_releases
from evercount.files.event_sql import columns_of
from evercount.files.run_state import Closed, Places, Spent, State, archive, commit, discard, locked, read_state
from evercount.files.sink import output_kind, parquet_modules, write_releases
from evercount.files.source import Prefix, SeenRows, Source, freeze, open_source
from evercount.files.write_views import view_path, write_views
from evercount.noise import Secret
from evercount.privacy import Budget
from evercount.privacy.composition import spent_together
from evercount.text_rules import check_public_text

Progress = Callable[[str, int, int], None]
"""What is being done, how many ticks of it are done, of how many (0: not known)."""


@dataclass(frozen=True)
class Job:
    """What one run is asked to do.

    Args:
        file: the events: one path, or several; patterns are not expanded here (`source.expand_inputs`).
        declaration: what is released.
        out: the release file, or "-".
        now: the present time, in microseconds since 1970.
        end: release no tick that ends after this.
        state: the state file; by default beside the output.
        rejects: a private file for all rows that do not count: bad ones and, with late="drop", late ones.
        plot: a chart to draw.
        skip_bad: leave bad rows out instead of refusing the file.
        new_noise_stream: start again with new noise over the same data.
        delimiter: what stands between the columns of a CSV.
        level: the level of the intervals.
        check: look at everything and publish nothing.
    """

    file: str | tuple[str, ...]
    declaration: StreamDeclaration
    out: str
    now: int
    end: int | None = None
    state: str | None = None
    rejects: str | None = None
    plot: str | None = None
    views: tuple[str, ...] = ()
    """Views beside those of the declaration."""
    skip_bad: bool = False
    new_noise_stream: bool = False
    delimiter: str = ","
    level: float = LEVEL
    check: bool = False
    secret: Secret | None = None
    """The secret of a new stream; None draws one. For audits and tests: one secret serves one stream only."""
    zone_given: bool = True
    """Whether the operator named the zone; if not, a run that continues takes the one of its state."""

    @property
    def files(self) -> tuple[str, ...]:
        """The paths of the events, or "-"."""
        return (self.file,) if isinstance(self.file, str) else self.file


@dataclass(frozen=True)
class Outcome:
    """What a run has done: public, but for the bad rows."""

    first: int
    last: int
    """1-based ticks released by this run; last < first where no tick had ended."""
    horizon: int | None
    guarantee: str
    places: Places
    composed: str | None
    archived: tuple[Path, ...]
    bad: int
    shown: tuple[Reject, ...]
    next_end: str
    """When the next tick ends."""
    start: str = ""
    """When the first tick begins."""
    continued: bool = False
    """Whether an earlier run has released ticks."""
    late: str = "drop"
    """The rule for rows of ticks that are released."""
    drawn: tuple[int, int] | None = None
    """How many cells the chart shows, and of how many."""
    views: tuple[Path, ...] = ()
    """The files of the views that were written."""

    @property
    def released(self) -> int:
        """The number of ticks that this run has released."""
        return max(0, self.last - self.first + 1)

    @property
    def complete(self) -> bool:
        """Whether the last tick of the horizon is released."""
        return self.horizon is not None and self.last >= self.horizon


def release_file(job: Job, progress: Progress | None = None, stdin: IO[bytes] | None = None) -> Outcome:
    """Count the file, release the ticks that have ended, and publish them, or raise with nothing changed.

    **Guarantee.** All runs with one state together are one `Stream`, so its guarantee holds for all that they publish:
    a tick is released once (`run_state.py`), from totals in which every event counts once (`count_rows.py`). Ticks are
    chosen by the clock, not by the data. What is not protected: that a run failed, and what it says about bad rows;
    these are for the operator. Tests: tests/cli/test_cli_release.py::test_runs_in_pieces_are_one_run.

    Args:
        job: what to do.
        progress: called with what is being done.
        stdin: standard input, where it is not the program's own.

    Returns:
        What was done.

    Raises:
        ParameterError: the job contradicts itself, or the state that it continues.
        InputError: the events cannot be read, or rows are bad (`BadRows`).
        HorizonReached: all ticks of the horizon were released before.
        StoreError: the state or the output is locked, changed or cannot be written.
    """
    tell = progress or (lambda what, done, total: None)
    kind = output_kind(job.out)
    places = Places.of(job.out, job.state)
    _check_paths(job, places)
    _check_extras(job)
    columns_of(job.declaration)
    with _interruptible(), locked(places) as scratch, ExitStack() as cleanup:
        state = read_state(places)
        kept: tuple[Path, ...] = ()
        earlier = () if state is None else state.earlier
        if job.new_noise_stream and state is not None:
            old = Stream.load(state.stream)
            cleanup.callback(old.close)
            earlier = (*earlier, Spent(old.budget.to_dict(), old.numeric_delta))
        before = None if job.new_noise_stream else state
        job = _settled(job, before)
        declaration = job.declaration
        stream = declaration.build(secret=job.secret) if before is None else Stream.load(before.stream)
        if before is None:  # of no ticks: the guarantee states the promise of the cap from the first row on
            stream.run([], capped=declaration.budget.unit == "user" and not declaration.query.names_users)
        cleanup.callback(stream.close)
        composed = compose_sentence(earlier, Spent(stream.budget.to_dict(), stream.numeric_delta)) if earlier else None
        first, stop = _due(job, stream)
        if before is not None and before.closed is not None:
            before.closed.check(first, declaration.schedule)
        next_end = declaration.schedule.show(declaration.schedule.start_of(stop + 1))
        sources = tuple(
            open_source(name, scratch, job.delimiter, stdin, number=number) for number, name in enumerate(job.files)
        )
        rejects = _write_rejects(job, sources, scratch, before, first)
        tell("counting", 0, 0)
        counted, consumed, sources = _counted(job, sources, scratch, before, first, stop)
        shown = _report_bad(job, sources, scratch, counted.bad, rejects.shown)
        if job.check:
            stop = first
        if stop > first:
            if job.new_noise_stream and state is not None:
                kept = tuple(archive(places, state))
            tables = _closed(stream, declaration, counted.totals, job.level, tell)
            continued = None if before is None else places.output
            with _undone(places):
                schedule = declaration.schedule
                write_releases(
                    kind, continued, places.pending, tables, schedule, stream.guarantee, header=before is None
                )
                users = {**(before.users if before else {}), **counted.users}
                facts = declaration.to_dict(), output_facts(job), stream.dump(), ""
                after = State(*facts, earlier, users, consumed, rejects.seen, Closed.before(stop, schedule))
            try:
                commit(places, after)
            except OSError as error:
                raise StoreError(f"the run could not be published: {error.strerror or error}") from error
        drawn, views = None, []
        if not job.check and places.output is not None and places.output.exists():
            if job.plot is not None:
                drawn = draw_releases(places.output, Path(job.plot), stream, declaration, scratch, job.level)
            if names := wanted_views(job):
                views = write_views(places.output, stream, declaration, names, job.level)
        return Outcome(
            first,
            stop - 1,
            declaration.horizon,
            stream.guarantee,
            places,
            composed,
            kept,
            counted.bad,
            shown,
            next_end,
            declaration.schedule.show(declaration.schedule.begin),
            before is not None,
            declaration.late,
            drawn,
            tuple(views),
        )


def wanted_views(job: Job) -> tuple[str, ...]:
    """The declared views and those of the run, checked."""
    declaration = job.declaration
    names = (*declaration.views, *job.views)
    return check_views(names, declaration.query, declaration.schedule, declaration.postprocess)


def output_facts(job: Job) -> dict[str, object]:
    """What all runs of one output share beside the declaration.

    Args:
        job: the run.

    Returns:
        The facts, as the state keeps them.

    >>> from evercount import Budget, Count
    >>> output_facts(Job("events.csv", StreamDeclaration("flu", Count(), Budget(1, 1e-9)), "flu.csv", now=0))
    {'out format': 'csv', 'to stdout': False}
    """
    return {"out format": output_kind(job.out), "to stdout": job.out == "-"}


def _settled(job: Job, state: State | None) -> Job:
    """The job with a zone, checked against the state that it continues."""
    declaration, schedule = job.declaration, job.declaration.schedule
    if state is None:
        if schedule.calendar and not job.zone_given:
            raise ParameterError(
                f"ticks of {schedule.tick} follow the calendar of a time zone: add --tz Europe/Vienna or --tz UTC; "
                "for ticks of 86,400 seconds sharp write 24h"
            )
        if columns_of(declaration).key is not None:
            for key in declaration.query.row_keys[0]:
                check_public_text("--keys: the key", key)
        return job
    known = StreamDeclaration.from_dict(state.declaration)
    if not job.zone_given:
        schedule = replace(schedule, zone=known.schedule.zone)
        declaration = replace(declaration, schedule=schedule)
    differences = known.differences(declaration)
    for name, value in output_facts(job).items():
        if state.output_facts.get(name) != value:
            differences.append(f"{name} was {state.output_facts.get(name)!r} and is now {value!r}")
    if differences:
        raise ParameterError(
            "this is another stream than the one in the state: " + "; ".join(differences) + ". Use the parameters of "
            "before to continue it; --new-noise-stream starts again with these and adds to the spent budget"
        )
    return replace(job, declaration=replace(declaration, schedule=known.schedule))


def _closed(
    stream: Stream, declaration: StreamDeclaration, totals: TickTotals | TickEvents, level: float, tell: Progress
) -> Iterator[ReleaseTable]:
    """The released tables, with progress."""
    for table in close_ticks(stream, totals, declaration.schedule.starts_of, level=level):
        yield table
        tell("releasing", table.ticks.stop - totals.first_tick, len(totals))


def compose_sentence(earlier: tuple[Spent, ...], now: Spent) -> str:
    """What all noise streams over the same data promise together, by the rule of `spent_together`.

    Args:
        earlier: the promises of the noise streams before.
        now: the promise of this one.

    Returns:
        A sentence.

    Raises:
        ParameterError: the promises are about different things.

    Guarantee. That of `spent_together`; the numbers are rounded up. Test:
    tests/files/test_release_run.py::test_composed_promise.
    """
    together = spent_together([(Budget.from_dict(one.budget), one.numeric_delta) for one in (*earlier, now)])
    return (
        f"Together with {len(earlier)} earlier noise stream{'s' * (len(earlier) > 1)} over the same data: "
        f"epsilon={stated(together.epsilon)}, delta={stated(together.delta)} (adjacency {together.adjacency}, unit "
        f"{together.unit})."
    )


# -- steps ------------------------------------------------------------------------------------------------------------


def _due(job: Job, stream: Stream) -> tuple[int, int]:
    """1-based [first, stop): the ticks to release now."""
    horizon, schedule = stream.horizon, job.declaration.schedule
    if horizon is not None and stream.tick >= horizon:
        raise HorizonReached(
            horizon,
            "For later events start a new stream with a later --start and another --out (each event is then in one of "
            "the two only); with --horizon none it has no end.",
        )
    until = job.now if job.end is None else min(job.now, job.end)
    if job.end is not None and job.end <= schedule.begin:
        raise ParameterError(f"--end {schedule.show(job.end)} is not after --start {schedule.show(schedule.begin)}")
    first = stream.tick + 1
    stop = max(schedule.tick_of(until), first) if until > schedule.begin else first
    return first, stop if horizon is None else min(stop, horizon + 1)


def _counted(
    job: Job, sources: tuple[Source, ...], scratch: Path, before: State | None, first: int, stop: int
) -> tuple[CountedRows, Prefix | None, tuple[Source, ...]]:
    """The counts of the due ticks; with late=next also how much of the file they come from; and what was read.

    Why every row counts once. late=drop: a row counts in the run that releases the tick of its time, and a tick is
    released by one run. late=next: call a row new in the first run whose copy of the file holds it and which releases
    something. If the tick of its time is still open then, it counts with that tick, in whichever run releases it. If
    it is closed, the row counts in this run, in the first open tick; later runs find it inside the prefix that was
    consumed and its tick closed, and leave it alone. The prefix is advanced only by a commit, together with the ticks.
    """
    users = before.users if before else {}
    if job.declaration.late == "drop":
        return count(sources, job.declaration, first, stop, scratch, users=users), None, sources
    if len(sources) > 1 or sources[0].kind == "parquet" or job.files == ("-",):
        raise ParameterError(
            "--late next needs one CSV or JSONL file that only grows, to tell late rows from rows that were counted; "
            "use --late drop for several files, Parquet and standard input"
        )
    frozen, tail, consumed = freeze(sources[0], scratch, before.consumed if before else None)
    return count(frozen, job.declaration, first, stop, scratch, late=tail, users=users), consumed, (frozen,)


@dataclass(frozen=True)
class _Written:
    """The first bad rows of a written file of rejects, and what was read for it."""

    shown: tuple[Reject, ...] | None = None
    seen: dict[str, SeenRows] = field(default_factory=dict)


def _write_rejects(job: Job, sources: tuple[Source, ...], scratch: Path, before: State | None, first: int) -> _Written:
    """Write --rejects, before anything is counted: rows that come in between may be called late, never forgotten."""
    if job.rejects is None:
        return _Written()
    columns = columns_of(job.declaration).used
    for source in sources:
        source.require(*columns)
    late = LateRows(first, before.seen if before else {}) if job.declaration.late == "drop" else None
    try:
        shown = write_rejects(Path(job.rejects), find_rejects(sources, job.declaration, scratch, late))
    except OSError as error:
        raise StoreError(f"--rejects {job.rejects} cannot be written: {error.strerror}") from error
    return _Written(tuple(shown), {} if late is None else late.now)


def _report_bad(
    job: Job, sources: tuple[Source, ...], scratch: Path, bad: int, shown: tuple[Reject, ...] | None
) -> tuple[Reject, ...]:
    """The first bad rows; BadRows without --skip-bad."""
    if not bad:
        return ()
    if shown is None:
        shown = tuple(islice(find_rejects(sources, job.declaration, scratch), MOST_SHOWN))
    if not job.skip_bad:
        raise BadRows(sources[0].name if len(sources) == 1 else f"{len(sources)} files", bad, shown)
    return shown


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
    """No two of the files may be the same, and what is written is no symbolic link (`_safe_files.py`)."""
    written = {"--out": places.output, "--state": places.state, "--rejects": job.rejects, "--plot": job.plot}
    named = [("the input", name) for name in job.files if name != "-"]
    seen: dict[Path, str] = {}
    if places.output is not None:
        written |= {f"the view {name}": view_path(places.output, name) for name in wanted_views(job)}
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
    if wanted_views(job) and job.out == "-":
        raise ParameterError("views need --out FILE: they are read back from all ticks of the output")
    if job.plot is not None:
        from evercount.plotting import new_axes

        new_axes()
        if job.out == "-":
            raise ParameterError("--plot needs --out FILE: the chart shows all ticks, read back from the output")
        if Path(job.plot).suffix.lower() not in CHARTS:
            raise ParameterError(f"--plot {job.plot!r}: the name must end in {', '.join(CHARTS)}")
