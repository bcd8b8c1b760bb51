"""One run of `evercount release`: events file → totals → released rows → committed release file.

Which ticks a run releases is decided by the public schedule alone: those that have ended by `now`
(and by `end`), up to the horizon. The rows have no say in it. If the last event decided, the length
of the output would reveal it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, islice
from pathlib import Path

import numpy as np

from evercount._safe_files import disk_errors, new_private, refuse_link
from evercount.declarations.tick_marks import with_marks
from evercount.declarations.view_names import needed_after, shown_tables
from evercount.engine.arrivals import Arrivals
from evercount.engine.build import RUNNING
from evercount.engine.release_table import ReleaseTable
from evercount.engine.stream import Stream
from evercount.engine.write_table import parquet_modules, round_table, write_tables
from evercount.errors import BadRows, ParameterError
from evercount.files.bad_rows import (
    MOST_SHOWN,
    LateRows,
    Reject,
    find_rejects,
    split_new,
    write_rejects,
)
from evercount.files.cap_users import DroppedEvents, dropped_events
from evercount.files.charts import CHARTS, draw_releases
from evercount.files.count_rows import count
from evercount.files.event_sql import columns_of
from evercount.files.keeper import Keeper
from evercount.files.lake_table import open_lake
from evercount.files.open_keeper import open_keeper
from evercount.files.output_file import OutputFile, state_path
from evercount.files.published import Publication
from evercount.files.release_job import Job, Outcome
from evercount.files.resume_run import Run, resume, state_after
from evercount.files.source import (
    Prefix,
    SeenRows,
    Source,
    frame_source,
    open_sources,
    with_one_line_end,
)
from evercount.files.view_files import copies_beside, files_beside, write_views

Progress = Callable[
    [str, int, int], None
]  # what is done, how many ticks of it, of how many (0: unknown)


def release_file(job: Job, progress: Progress | None = None) -> Outcome:
    """Count the file, release the ticks that have ended, and publish them, or raise with nothing
    changed.

    **Guarantee.** All runs over one keeper together are one `Stream`, so its guarantee holds for
    all that they publish: a tick is released once (`keeper.py`), from totals in which every event
    counts once (`count_rows.py`). Ticks are chosen by the clock, not by the data. What is not
    protected: that a run failed, and what it says about bad rows; these are for the operator.
    Tests: tests/cli/test_cli_release.py::test_runs_in_pieces_are_one_run,
    tests/files/test_keepers.py.
    """
    tell = progress or (lambda what, done, total: None)
    columns_of(job.declaration)
    _check_options(job)
    _check_paths(job)
    _check_extras(job)
    with interruptible(), ExitStack() as cleanup:
        keeper = open_keeper(job)
        cleanup.callback(keeper.close)
        sources = _open_sources(job, keeper.scratch)
        outcome = _run_once(job, keeper, keeper.scratch, sources, tell)
        if not outcome.run.continues or job.check:
            return outcome
        rest = keeper.scratch / "after keys have joined"
        rest.mkdir(mode=0o700)
        again = replace(job, new_noise_stream=False)
        return _both(outcome, _run_once(again, keeper, rest, sources, tell))


def _run_once(
    job: Job, keeper: Keeper, scratch: Path, sources: tuple[Source, ...], tell: Progress
) -> Outcome:
    """Do a run up to where keys join that have a date, or to its end; close what it opens."""
    with ExitStack() as cleanup:
        run = resume(job, keeper, cleanup)
        tell("counting", 0, 0)
        return _publish(run, _count(run, sources, scratch), tell)


def _both(first: Outcome, second: Outcome) -> Outcome:
    """What two runs have done together, of which the second began when keys joined."""
    begin = first.run
    run = replace(
        second.run,
        first=begin.first,
        before=begin.before,
        predecessors=begin.predecessors,
    )
    return replace(
        second,
        run=run,
        archived=(*first.archived, *second.archived),
        newest=second.newest or first.newest,
    )


def _open_sources(job: Job, scratch: Path) -> tuple[Source, ...]:
    if job.files:
        return open_sources(job.files, scratch, job.delimiter)
    return (frame_source(job.file, columns_of(job.declaration).used, scratch),)


# -- publishing ----------------------------------------------------------------------------------


def _publish(run: Run, counted: Counted, tell: Progress) -> Outcome:
    """Commit the ticks and their rows, then draw what is read back from them."""
    job, keeper = run.job, run.keeper
    archived: list[Path] = []
    newest: list[ReleaseTable] = []
    stream = run.stream
    if run.publishes:
        if run.predecessors.replaced:
            archived = _archive(run)
        stream = keeper.declare(run)
        keeper.note(run.marks)
        write = partial(_write_output, run, tell, newest)
        state = state_after(run, counted.rows.caps_used)
        state = replace(state, consumed=counted.consumed, seen=counted.seen)
        keeper.commit(run, state, counted.rows.totals, write)
    published = Publication(job, keeper, stream, run.marks, run.predecessors.totals)
    views: list[Path] = []
    if not job.check and stream.tick:
        if not run.publishes:
            _repair_output(run, published)
        published.fill_lake()
        if job.plot is not None:
            draw_releases(published, Path(job.plot), keeper.scratch)
        if keeper.output is not None:
            views = write_views(keeper.output.path, published)
    return Outcome(
        run=run,
        published=published,
        bad=counted.rows.bad,
        shown=counted.shown,
        dropped=counted.dropped,
        archived=tuple(archived),
        views=tuple(views),
        newest=newest[0] if newest else None,
    )


def _archive(run: Run) -> list[Path]:
    """Keep the files of the stream whose place a new one takes, as of its last commit."""
    keeper = run.keeper
    if keeper.output is None:
        return keeper.archive({})
    state = keeper.state
    assert state is not None
    with keeper.open_stream() as ended:
        job = replace(run.job, declaration=state.settled.with_query(ended.query))
        published = Publication(job, keeper, ended, state.marks, state.carried_totals)
        _repair_output(
            replace(run, job=job, before=state, stream=ended, marks=state.marks), published
        )
        write_views(keeper.output.path, published)  # a run that died may not have written them
    return keeper.archive(copies_beside(keeper.output.path, run.job))


def _repair_output(run: Run, published: Publication) -> None:
    """Write an output anew that is not the one of the last commit."""
    keeper, output = run.keeper, run.keeper.output
    if output is None or keeper.state is None or keeper.is_current(run.job.output_facts):
        return
    with disk_errors("the output cannot be written"):
        _write_file(run, output, iter([published.output()]), append=False)
        keeper.keep(replace(keeper.state, output_facts=run.job.output_facts))


def _write_output(
    run: Run,
    tell: Progress,
    newest: list[ReleaseTable],
    stream: Stream,
    released: Iterator[ReleaseTable],
) -> None:
    """Write the new output under its private name, down to the disk: the rows of the old one
    unchanged, and those of the ticks that are being released after them. `newest` gets the last
    rows that are written."""
    first, ticks = run.first, run.stop - run.first

    def reported() -> Iterator[ReleaseTable]:
        for table in released:
            yield table
            tell("releasing", stream.tick + 1 - first, ticks)

    output = run.keeper.output
    if output is None or run.job.kind is None:
        for _ in reported():
            pass
        return
    job, declaration = run.job, run.declaration
    view, schedule = declaration.main_view, declaration.schedule
    earlier = np.empty((0, len(stream.labels)))
    if run.before is not None:
        earlier = run.keeper.published(needed_after(stream, view, schedule, first))
    tables = shown_tables(stream, reported(), view, schedule, earlier, declaration.view_postprocess)
    carried = run.predecessors.totals
    if carried is not None and view == RUNNING:
        tables = map(partial(carried.add_to, errors=stream._errors), tables)
    tables = (with_marks(table, run.marks, view) for table in tables)
    tables = _watched(tables, newest, job)
    # a note may be about any tick, so all rows are written again
    append = run.before is not None and run.keeper.is_current(job.output_facts)
    if run.new_notes:
        append = False
    if run.before is not None and not append:
        known = Publication(job, run.keeper, run.stream, run.marks, carried)
        tables = chain([known.output()], tables)
    _write_file(run, output, tables, append=append)


def _watched(
    tables: Iterator[ReleaseTable], newest: list[ReleaseTable], job: Job
) -> Iterator[ReleaseTable]:
    """Pass tables on, and leave the last tick that has numbers in `newest`, as it is written."""
    for table in tables:
        with_numbers = np.flatnonzero(~np.isnan(table.numbers[:, 0]).all(axis=1))
        if len(with_numbers) and table.starts is not None and job.declaration.revise_for is None:
            last = int(with_numbers[-1])
            one = slice(last, last + 1)
            tick = ReleaseTable(
                table.ticks[one], table.starts[one], table.cells, table.numbers[one]
            )
            newest[:] = [tick if job.full_digits else round_table(tick)]
        yield table


def _write_file(
    run: Run, output: OutputFile, tables: Iterator[ReleaseTable], *, append: bool
) -> None:
    """Write a new output under its private name; with `append`, after the rows of the old one."""
    job, kind = run.job, run.job.kind
    assert kind is not None
    if not job.full_digits:
        tables = map(round_table, tables)
    metadata = {"evercount.guarantee": run.stream.guarantee_by(run.declaration.tick)}
    old = output.path if append else None
    with new_private(output.pending) as file:
        if old is not None and kind != "parquet":
            with old.open("rb") as rows:
                shutil.copyfileobj(rows, file)
        schedule = run.declaration.schedule
        write_tables(kind, file, tables, schedule, metadata, header=not append, old=old)
        file.flush()
        os.fsync(file.fileno())


# -- counting ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Counted:
    """What a run counts. Secret."""

    rows: Arrivals
    shown: tuple[Reject, ...]
    # with late=next and late=revise, how much of each file the counts come from
    consumed: dict[str, Prefix]
    seen: dict[str, SeenRows]
    dropped: DroppedEvents | None


def _count(run: Run, opened: tuple[Source, ...], scratch: Path) -> Counted:
    """Count the due ticks, and report rows that do not count.

    Why every row counts once. late=drop: a row counts in the run that releases the tick of its
    time, and a tick is released by one run. late=next, late=revise: call a row new in the first run
    whose copy of the files holds it and which releases something. If the tick of its time is still
    open then, it counts with that tick, in whichever run releases it. If it is closed, the row
    counts in this run, in the first open tick (revise: for its own); later runs find it inside the
    prefix that was consumed and its tick closed, and leave it alone. The prefixes are advanced only
    by a commit, together with the ticks.
    """
    job, before = run.job, run.before
    declaration, ticks = run.declaration, (run.first, run.stop)
    sources = with_one_line_end(opened, scratch, "whole")
    seen = _write_rejects(run, sources, scratch)
    late: tuple[Source, ...] = ()
    consumed: dict[str, Prefix] = {}
    if declaration.late != "drop":
        _check_grows(job, sources)
        # what was read before is told by its bytes, so line ends are looked at afterwards
        earlier = (before.consumed or None) if before is not None else None
        sources, late, consumed = split_new(opened, scratch, earlier)
        sources = with_one_line_end(sources, scratch, "complete")
        late = with_one_line_end(late, scratch, "new")
    rows = count(
        sources,
        declaration,
        *ticks,
        scratch,
        late=late,
        users=run.predecessors.caps if before is None else before.users,
        reading=run.readable,
    )
    dropped = None
    if job.check and columns_of(declaration).user is not None and declaration.revise_for is None:
        dropped = dropped_events(sources, declaration, *ticks, scratch)
    shown: tuple[Reject, ...] = ()
    if rows.bad:
        shown = tuple(islice(find_rejects(sources, run.readable, scratch), MOST_SHOWN))
    if rows.bad and not job.skip_bad:
        name = sources[0].name if len(sources) == 1 else f"{len(sources)} files"
        raise BadRows(name, rows.bad, shown)
    return Counted(rows, shown, consumed, seen, dropped)


def _check_grows(job: Job, sources: tuple[Source, ...]) -> None:
    """Refuse late rows that could not be told from rows that were counted."""
    if job.files == ("-",) or sources[0].kind == "frame":
        raise ParameterError(
            f"`late` {job.declaration.late} needs files that only grow, to tell late rows from "
            "rows that were counted; use `late` drop for data frames and standard input"
        )


def _write_rejects(run: Run, sources: tuple[Source, ...], scratch: Path) -> dict[str, SeenRows]:
    """Write --rejects, before anything is counted: rows that come in between may be called late,
    never forgotten. Returns what was read."""
    job = run.job
    if job.rejects is None:
        return {}
    late = None
    if run.declaration.late == "drop":
        late = LateRows(run.first, {} if run.before is None else run.before.seen)
    with disk_errors(f"`rejects` {job.rejects} cannot be written"):
        rejects = find_rejects(sources, run.readable, scratch, late)
        write_rejects(Path(job.rejects), rejects, len(sources) > 1)
    return {} if late is None else late.now


# -- checks before a run ---------------------------------------------------------------------------


def _check_options(job: Job) -> None:
    revised = job.declaration.revise_for is not None
    if job.carry_totals and not job.renew:
        raise ParameterError("`carry_totals` needs `renew`: it is about the next stream")
    if job.lake is not None and revised:
        raise ParameterError(
            "`lake` tables get each tick once, but `late` revise publishes ticks again: use `out`"
        )
    if job.lake is not None and not job.kept:
        raise ParameterError(
            "`lake` needs `state`: without it a second run could not know what the first released"
        )


def _check_paths(job: Job) -> None:
    """No two of the files may be the same, and what is written is not a symbolic link
    (`_safe_files.py`)."""
    output = None if job.out is None else Path(job.out)
    written: dict[str, str | Path | None] = {
        "`out`": output,
        "`state`": state_path(job.out, job.state),
        "`rejects`": job.rejects,
        "`plot`": job.plot,
        "`ledger`": job.ledger,
    }
    if output is not None:
        written |= files_beside(output, job)
    files = {Path(name).resolve(): "the input" for name in job.files if name != "-"}
    for what, name in written.items():
        if name is None:
            continue
        refuse_link(what, Path(name))
        path = Path(name).resolve()
        if path in files:
            raise ParameterError(
                f"{what} and {files[path]} are the same file {name}: name different ones"
            )
        files[path] = what
        if not path.parent.is_dir():
            raise ParameterError(f"{what} {name}: there is no folder {path.parent}")
        if path.is_dir():
            raise ParameterError(f"{what} {name} is a directory: name a file")


def _check_extras(job: Job) -> None:
    """Refuse before the run what would fail after it: a missing library, a chart of a kind that
    cannot be drawn."""
    if job.kind == "parquet":
        parquet_modules()
    if job.lake is not None:
        open_lake(job.lake)
    if job.plot is not None:
        from evercount.plotting import new_axes

        new_axes()
        if Path(job.plot).suffix.lower() not in CHARTS:
            raise ParameterError(f"`plot` {job.plot!r}: the name must end in {', '.join(CHARTS)}")


@contextmanager
def interruptible() -> Iterator[None]:
    """DuckDB turns Ctrl-C into a RuntimeError: turn it back into KeyboardInterrupt."""
    try:
        yield
    except RuntimeError as error:
        if "interrupted" in str(error).lower():
            raise KeyboardInterrupt from error
        raise
