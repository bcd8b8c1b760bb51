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
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from evercount._safe_files import disk_errors, new_private, refuse_link
from evercount.declarations.view_names import shown_tables, stack_rows
from evercount.engine.arrivals import Arrivals
from evercount.engine.build import RUNNING
from evercount.engine.close_ticks import close_ticks
from evercount.engine.release_table import ReleaseTable
from evercount.engine.write_table import parquet_modules, round_table, write_tables
from evercount.errors import BadRows, ParameterError
from evercount.files import published as outputs
from evercount.files.bad_rows import (
    MOST_SHOWN,
    LateRows,
    Reject,
    find_rejects,
    split_new,
    write_rejects,
)
from evercount.files.cap_users import DroppedEvents, dropped_events
from evercount.files.count_rows import count
from evercount.files.event_sql import columns_of
from evercount.files.published import Published, description_path, open_lake, view_path
from evercount.files.release_job import Job, Outcome
from evercount.files.resume_run import Run, resume
from evercount.files.run_state import Adapt, Closed, Places, State, archive, commit, locked
from evercount.files.source import (
    Prefix,
    SeenRows,
    Source,
    frame_source,
    open_sources,
    with_one_line_end,
)

if TYPE_CHECKING:
    from evercount.files.store_home import StoreHome

# what is done, how many ticks of it, of how many (0: unknown)
Progress = Callable[[str, int, int], None]


def release_file(job: Job, progress: Progress | None = None) -> Outcome:
    """Count the file, release the ticks that have ended, and publish them, or raise with nothing
    changed.

    **Guarantee.** All runs with one state together are one `Stream`, so its guarantee holds for all
    that they publish: a tick is released once (`run_state.py`), from totals in which every event
    counts once (`count_rows.py`). Ticks are chosen by the clock, not by the data. What is not
    protected: that a run failed, and what it says about bad rows; these are for the operator.
    Tests: tests/cli/test_cli_release.py::test_runs_in_pieces_are_one_run.
    """
    tell = progress or (lambda what, done, total: None)
    columns_of(job.declaration)
    with (
        TemporaryDirectory(prefix="evercount-") as folder,
        _interruptible(),
        ExitStack() as cleanup,
    ):
        places = Places.of(
            job.out, f"{folder}/state" if job.db is not None else job.state, Path(folder)
        )
        _check_options(job)
        _check_paths(job, places)
        _check_extras(job)
        scratch = cleanup.enter_context(locked(places))
        home = None
        if job.db is not None:
            from evercount.files.store_home import StoreHome  # a store is an extra

            home = StoreHome(job, cleanup)
        sources = _open_sources(job, scratch)
        outcome = _run_once(job, places, scratch, home, sources, tell)
        if not outcome.run.goes_on or job.check:
            return outcome
        rest = scratch / "after keys have joined"
        rest.mkdir(mode=0o700)
        second = replace(job, new_noise_stream=False)
        return _both(outcome, _run_once(second, places, rest, home, sources, tell))


def _run_once(
    job: Job,
    places: Places,
    scratch: Path,
    home: StoreHome | None,
    sources: tuple[Source, ...],
    tell: Progress,
) -> Outcome:
    """Do a run up to where keys join that have a date, or to its end; what it opens is closed
    afterwards."""
    with ExitStack() as own:
        run = resume(job, places, scratch, home, own)
        tell("counting", 0, 0)
        return _publish(run, _count(run, sources), tell)


def _both(first: Outcome, second: Outcome) -> Outcome:
    """What two runs have done together, of which the second began when keys joined."""
    begin = first.run
    run = replace(second.run, first=begin.first, before=begin.before, restarted=begin.restarted)
    return replace(second, run=run, archived=(*first.archived, *second.archived))


def _open_sources(job: Job, scratch: Path) -> tuple[Source, ...]:
    if job.files:
        return open_sources(job.files, scratch, job.delimiter)
    return (frame_source(job.file, columns_of(job.declaration).used, scratch),)


def _publish(run: Run, counted: Counted, tell: Progress) -> Outcome:
    """Commit the ticks and their rows, then draw what is read back from them."""
    job, output, stream, state = run.job, run.places.output, run.stream, run.before
    archived: tuple[Path, ...] = ()
    # the commit says that outputs have markers
    if run.home is not None and output is not None and not job.check:
        run.home.mark_output(output)
    if run.publishes:
        if run.restarted:
            if run.home is not None and output is not None:
                _export_again(run.home, job, output)
            archived = tuple(archive(run.places, {} if output is None else _archived(output, job)))
        if run.home is not None:
            run.entered.spend()
            stream.close()  # the store has its own
            state, stream = run.home.commit(
                counted.rows.totals, _state(run, counted, {}), job, run.renewing
            )
        else:
            with disk_errors("the output cannot be written"), ExitStack() as undone:
                if run.places.pending is not None:
                    undone.callback(run.places.pending.unlink, missing_ok=True)
                state = _write(run, counted, tell)
                run.entered.spend()  # on the disk before anything is published
                undone.pop_all()
            if job.kept:
                with disk_errors("the run could not be published"):
                    commit(run.places, state)
    numbers = state.numbers if run.publishes and state is not None else run.published
    tables = () if state is None else state.tables
    published = Published.of(job, stream, numbers, tables, run.marks)
    views: list[Path] = []
    if not job.check and stream.tick:
        outputs.fill_lake(published, run.home)
        if job.plot is not None:
            outputs.draw_releases(published, Path(job.plot), run.scratch)
        if output is not None:
            if run.home is not None:
                run.home.mark_output(output)
            views = outputs.write_views(output, published, main=run.home is not None)
    return Outcome(
        run=run,
        published=published,
        bad=counted.rows.bad,
        shown=counted.shown,
        dropped=counted.dropped,
        archived=archived,
        views=tuple(views),
    )


@dataclass(frozen=True)
class Counted:
    """What a run counts. Secret."""

    rows: Arrivals
    shown: tuple[Reject, ...]
    # with late=next and late=revise, how much of each file the counts come from
    consumed: dict[str, Prefix]
    seen: dict[str, SeenRows]
    dropped: DroppedEvents | None


def _count(run: Run, opened: tuple[Source, ...]) -> Counted:
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
    sources = with_one_line_end(opened, run.scratch, "whole")
    seen = _write_rejects(run, sources)
    late: tuple[Source, ...] = ()
    consumed: dict[str, Prefix] = {}
    if run.declaration.late != "drop":
        if job.files == ("-",) or sources[0].kind == "frame":
            raise ParameterError(
                f"`late` {run.declaration.late} needs files that only grow, to tell late rows from "
                "rows that were counted; use `late` drop for data frames and standard input"
            )
        # what was read before is told by its bytes, so line ends are looked at afterwards
        sources, late, consumed = split_new(
            opened, run.scratch, (before.consumed or None) if before else None
        )
        sources = with_one_line_end(sources, run.scratch, "complete")
        late = with_one_line_end(late, run.scratch, "new")
    users = before.users if before else run.handed_on
    ticks = (run.first, run.stop)
    rows = count(
        sources, run.declaration, *ticks, run.scratch, late=late, users=users, reading=run.readable
    )
    dropped = None
    if (
        job.check
        and columns_of(run.declaration).user is not None
        and run.declaration.revise_for is None
    ):
        dropped = dropped_events(sources, run.declaration, run.first, run.stop, run.scratch)
    shown = (
        tuple(islice(find_rejects(sources, run.readable, run.scratch), MOST_SHOWN))
        if rows.bad
        else ()
    )
    if rows.bad and not job.skip_bad:
        raise BadRows(
            sources[0].name if len(sources) == 1 else f"{len(sources)} files", rows.bad, shown
        )
    return Counted(rows, shown, consumed, seen, dropped)


def _write_rejects(run: Run, sources: tuple[Source, ...]) -> dict[str, SeenRows]:
    """Write --rejects, before anything is counted: rows that come in between may be called late,
    never forgotten. Returns what was read."""
    job = run.job
    if job.rejects is None:
        return {}
    late = (
        LateRows(run.first, run.before.seen if run.before else {})
        if run.declaration.late == "drop"
        else None
    )
    with disk_errors(f"`rejects` {job.rejects} cannot be written"):
        rejects = find_rejects(sources, run.readable, run.scratch, late)
        write_rejects(Path(job.rejects), rejects, len(sources) > 1)
    return {} if late is None else late.now


def _beside(output: Path, job: Job) -> dict[str, Path]:
    """What is written next to an output: further views, and of each CSV its description."""
    views = {f"the view {name}": view_path(output, name) for name in job.all_views}
    tables = (output, *views.values()) if job.kind == "csv" else ()
    return views | {f"the description of {path.name}": description_path(path) for path in tables}


def _archived(output: Path, job: Job) -> dict[Path, Adapt | None]:
    """What is kept when a new stream takes the names, and how a copy differs from it: a description
    names its table."""
    beside = _beside(output, job).values()
    descriptions = {description_path(path) for path in (output, *beside)}
    return {
        path: outputs.renamed_description if path in descriptions else None
        for path in (output, *beside)
    }


def _export_again(home: StoreHome, job: Job, output: Path) -> None:
    """Write the files of the stream that is renewed once more: a run that was killed may not have
    written them."""
    state, stream = home.committed()
    job = replace(job, declaration=state.settled, carried=home.carried)
    outputs.write_views(
        output, Published.of(job, stream, state.numbers, state.tables, home.marks), main=True
    )


def _state(run: Run, counted: Counted, stream: dict[str, Any]) -> State:
    return State(
        declaration=run.declaration.to_dict(),
        output_facts=run.job.output_facts,
        stream=stream,
        closed=Closed.before(run.stop, run.declaration.schedule),
        numbers=np.empty((0, 0)),
        earlier=tuple(cost.to_dict() for cost in run.earlier),
        entry=run.entered.name,
        users=counted.rows.caps_used,
        consumed=counted.consumed,
        seen=counted.seen,
        first_start=run.declaration.earliest,
        marks=tuple((one.first, one.last, one.text) for one in run.marks),
        marks_outputs=run.home is not None,
        carried=None
        if run.job.carried is None or run.home is not None
        else run.job.carried.to_dict(),
    )


def _write(run: Run, counted: Counted, tell: Progress) -> State:
    """Write the new output under its private name, down to disk: the rows of the old one unchanged,
    and the new ones after them. Returns the state that belongs to it."""
    job, before, stream, schedule = run.job, run.before, run.stream, run.declaration.schedule
    totals, numbers = counted.rows.totals, [run.published]
    own: list[ReleaseTable] = []

    def closed() -> Iterator[ReleaseTable]:
        for table in close_ticks(stream, totals, schedule.starts_of):
            if outputs.keeps_tables(stream.query):
                own.append(table)
            if not stream.query.publishing.own_ticks:
                numbers.append(table.numbers[:, 0])
            yield table
            tell("releasing", stream.tick + 1 - totals.first_tick, len(totals))

    def all_tables() -> tuple[dict[str, Any], ...]:
        return (*(() if before is None else before.tables), *outputs.own_tables(own))

    if job.kind is None or run.marks:
        for _ in closed():
            pass
    if job.kind is not None and run.places.pending is not None:
        if run.marks:  # a note may be about any tick, so all rows are written again
            tables = iter(
                [Published.of(job, stream, stack_rows(*numbers), all_tables(), run.marks).output()]
            )
        else:
            made = run.declaration.view_postprocess
            tables = shown_tables(
                stream, closed(), run.declaration.main_view, schedule, run.published, made
            )
            if job.carried is not None and run.declaration.main_view == RUNNING:
                tables = map(partial(job.carried.add_to, errors=stream._errors), tables)
        if not job.full_digits:
            tables = map(round_table, tables)
        anew = before is None or bool(run.marks)
        old = None if anew else run.places.output
        metadata = {"evercount.guarantee": stream.guarantee_by(run.declaration.tick)}
        with new_private(run.places.pending) as file:
            if old is not None and job.kind != "parquet":
                with old.open("rb") as rows:
                    shutil.copyfileobj(rows, file)
            write_tables(job.kind, file, tables, schedule, metadata, header=anew, old=old)
            file.flush()
            os.fsync(file.fileno())
    return replace(
        _state(run, counted, stream.dump()), numbers=stack_rows(*numbers), tables=all_tables()
    )


def _check_options(job: Job) -> None:
    db, lake, revised = (
        job.db is not None,
        job.lake is not None,
        job.declaration.revise_for is not None,
    )
    refused = {
        "`state` does not go with `db`: the store is the state": db and job.state,
        "`new_noise_stream` does not go with `db`: declare a stream of another `name`": db
        and job.new_noise_stream,
        "`carry_caps` is for state files: omit `db` or `carry_caps`": db
        and job.declaration.carry_caps,
        "`carry_totals` needs `renew`: it is about the next stream": job.carry_totals
        and not job.renew,
        "`lake` tables get each tick once, but `late` revise publishes ticks again: use `out`": lake
        and revised,
        "`lake` needs `state`: without it a second run could not know what the first released": lake
        and not job.kept,
    }
    for why, given in refused.items():
        if given:
            raise ParameterError(why)


def _check_paths(job: Job, places: Places) -> None:
    """No two of the files may be the same, and what is written is not a symbolic link
    (`_safe_files.py`)."""
    written = {
        "`out`": places.output,
        "`state`": places.state,
        "`rejects`": job.rejects,
        "`plot`": job.plot,
    }
    written["`ledger`"] = job.ledger
    if places.output is not None:
        written |= _beside(places.output, job)
    seen = {Path(name).resolve(): "the input" for name in job.files if name != "-"}
    for what, name in written.items():
        if name is None:
            continue
        refuse_link(what, Path(name))
        path = Path(name).resolve()
        if path in seen:
            raise ParameterError(
                f"{what} and {seen[path]} are the same file {name}: name different ones"
            )
        seen[path] = what
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
        if Path(job.plot).suffix.lower() not in outputs.CHARTS:
            raise ParameterError(
                f"`plot` {job.plot!r}: the name must end in {', '.join(outputs.CHARTS)}"
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
