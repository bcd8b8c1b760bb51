"""One run of `evercount release`: events file → totals → released rows → committed release file.

Which ticks a run releases is decided by the public schedule alone: those that have ended by `now` (and by `end`), up to
the horizon. The rows have no say in it. If the last event decided, the length of the output would reveal it.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from evercount._safe_files import new_private, refuse_link
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.schedule import Schedule
from evercount.declarations.view_names import shown_tables, stack_rows
from evercount.engine.close_ticks import close_ticks
from evercount.engine.press_table import round_table
from evercount.engine.release_table import LEVEL, ReleaseTable
from evercount.engine.stream import Stream
from evercount.engine.view_widths import RUNNING
from evercount.engine.write_table import parquet_modules, write_tables
from evercount.errors import BudgetExceeded, ParameterError, StoreError
from evercount.files import published as outputs
from evercount.files.count_run import Counted, count_rows_of
from evercount.files.event_sql import columns_of
from evercount.files.lake_table import open_lake
from evercount.files.published import Published, description_path, view_path
from evercount.files.release_job import Job, Outcome, OutputKind
from evercount.files.resume_run import Run, resume
from evercount.files.run_state import Closed, Places, State, archive, commit, discard, locked
from evercount.privacy import successor_text

if TYPE_CHECKING:
    from evercount.files.store_home import StoreHome

Progress = Callable[[str, int, int], None]  # what is done, how many ticks of it, of how many (0: unknown)


def release_file(job: Job, progress: Progress | None = None, stdin: IO[bytes] | None = None) -> Outcome:
    """Count the file, release the ticks that have ended, and publish them, or raise with nothing changed.

    **Guarantee.** All runs with one state together are one `Stream`, so its guarantee holds for all that they publish:
    a tick is released once (`run_state.py`), from totals in which every event counts once (`count_rows.py`). Ticks are
    chosen by the clock, not by the data. What is not protected: that a run failed, and what it says about bad rows;
    these are for the operator. Tests: tests/cli/test_cli_release.py::test_runs_in_pieces_are_one_run.
    """
    tell = progress or (lambda what, done, total: None)
    columns_of(job.declaration)
    with TemporaryDirectory(prefix="evercount-") as folder, _interruptible(), ExitStack() as cleanup:
        if job.db is None:
            places = Places.of(job.out, job.state, Path(folder))
        else:
            _check_db(job)
            places = replace(Places.of(None, None, Path(folder)), output=None if job.out is None else Path(job.out))
        _check_paths(job, places)
        _check_extras(job)
        scratch = cleanup.enter_context(locked(places))
        home = None
        if job.db is not None:
            from evercount.files.store_home import StoreHome  # a store is an extra

            home = StoreHome(job, cleanup)
        earlier: Outcome | None = None
        for number in itertools.count():
            (own := scratch / str(number)).mkdir(mode=0o700)
            with ExitStack() as each:
                try:
                    run = resume(job, places, own, home, each)
                except BudgetExceeded as error:
                    if earlier is None:
                        raise
                    return replace(earlier, not_renewed=str(error))  # what this run has released stays released
                tell("counting", 0, 0)
                outcome = _publish(run, count_rows_of(run, stdin), tell)
            if job.check or not (job.renew and outcome.complete):
                return outcome if earlier is None or outcome.released else earlier
            earlier = outcome
        raise AssertionError("a stream that is complete is renewed, and one that is not ends the run")


def _publish(run: Run, counted: Counted, tell: Progress) -> Outcome:
    """Commit the ticks and their rows, then draw what is read back from them."""
    job, places, stream, schedule = run.job, run.places, run.stream, run.declaration.schedule
    archived: tuple[Path, ...] = ()
    numbers, tables = run.published, () if run.before is None else run.before.tables
    if not job.check and run.stop > run.first:
        if run.restarted:
            if run.home is not None and places.output is not None:
                _export_again(run.home, job, places.output)
            archived = tuple(archive(places, lambda path: _beside(path, job)))
            for path in archived:
                outputs.rename_description(path)
        if run.home is not None:
            run.entered.spend()
            state, stream = _commit_to_store(run, run.home, counted)
        else:
            with _undone(places):
                state = _write(run, counted, tell)
                run.entered.spend()  # on the disk before anything is published
            try:
                if job.kept:
                    commit(places, state)
            except OSError as error:
                raise StoreError(f"the run could not be published: {error.strerror or error}") from error
        numbers, tables = state.numbers, state.tables
    published = Published.of(job, stream, numbers, tables, run.marks)
    drawn, views = None, []
    if not job.check and stream.tick:
        outputs.fill_lake(job, stream, numbers, tables)
        if job.plot is not None:
            drawn = outputs.draw_releases(published, Path(job.plot), run.scratch)
        if places.output is not None:
            views = outputs.write_views(places.output, published, main=run.home is not None)
    return Outcome(
        job=job,
        first=run.first,
        last=(run.first if job.check else run.stop) - 1,
        declaration=run.declaration,
        guarantee=published.guarantee,
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
        published=published.table,
        joined=run.joined,
    )


def _beside(output: Path, job: Job) -> list[Path]:
    views = [view_path(output, name) for name in job.all_views]
    return [*views, *map(description_path, [output, *views])]


def _export_again(home: StoreHome, job: Job, output: Path) -> None:
    """Write the files of the stream that is renewed once more: a run that was killed may not have written them."""
    state, live = home.read(), home.live
    assert state is not None
    assert live is not None
    job = replace(job, declaration=StreamDeclaration.from_dict(state.declaration), carried=home.carried)
    published = Published.of(job, live.stream, state.numbers, state.tables, home.marks)
    outputs.write_views(output, published, main=True)


def _commit_to_store(run: Run, home: StoreHome, counted: Counted) -> tuple[State, Stream]:
    """Release the ticks in the store; its stream takes the place of the one that was built to look at."""
    if run.before is None:
        run.stream.close()
    state = home.commit(run.declaration, counted.rows.totals, _state(run, counted, {}), run.job, run.renewing)
    assert home.live is not None
    return state, home.live.stream


def _state(run: Run, counted: Counted, stream: dict[str, Any]) -> State:
    return State(
        declaration=run.declaration.to_dict(),
        output_facts=run.job.output_facts,
        stream=stream,
        closed=Closed.before(run.stop, run.declaration.schedule),
        numbers=np.empty((0, 0)),
        earlier=tuple(cost.to_dict() for cost in run.earlier),
        entry=run.entered.name,
        users=counted.rows.users,
        consumed=counted.consumed,
        seen=counted.seen,
        first_start=run.declaration.earliest,
        marks=tuple((one.first, one.last, one.text) for one in run.marks),
        carried=None if run.job.carried is None or run.home is not None else run.job.carried.to_dict(),
    )


def _write(run: Run, counted: Counted, tell: Progress) -> State:
    """Write the new output under its private name; the state that belongs to it."""
    job, before, stream, schedule = run.job, run.before, run.stream, run.declaration.schedule
    totals, numbers = counted.rows.totals, [run.published]
    own: list[ReleaseTable] = []
    own_ticks, said = stream.query.publishing.own_ticks, stream.guarantee_by(run.declaration.tick)

    def closed() -> Iterator[ReleaseTable]:
        for table in close_ticks(stream, totals, schedule.starts_of, level=job.level):
            if outputs.keeps_tables(stream.query):
                own.append(table)
            if not own_ticks:
                numbers.append(table.numbers[:, 0])
            yield table
            tell("releasing", stream.tick + 1 - totals.first_tick, len(totals))

    if job.kind is None or run.marks:
        for _ in closed():
            pass
    if run.marks and job.kind is not None:  # a note may be about any tick, so all rows are written again
        kept = (*(() if before is None else before.tables), *outputs.own_tables(own))
        table = Published.of(job, stream, stack_rows(*numbers), kept, run.marks).output()
        tables = iter([table if job.full_digits else round_table(table)])
        _write_rows(job.kind, None, run.places.pending, tables, schedule, said, header=True)
    elif job.kind is not None:
        old = None if before is None else run.places.output
        made = run.declaration.view_postprocess
        tables = shown_tables(stream, closed(), run.declaration.shown, schedule, run.published, job.level, made)
        if job.carried is not None and run.declaration.shown == RUNNING:
            tables = map(partial(job.carried.add_to, errors=stream._errors, level=job.level), tables)
        if not job.full_digits:
            tables = map(round_table, tables)
        _write_rows(job.kind, old, run.places.pending, tables, schedule, said, header=before is None)
    return replace(
        _state(run, counted, stream.dump()),
        numbers=stack_rows(*numbers),
        tables=(*(() if before is None else before.tables), *outputs.own_tables(own)),
    )


def _write_rows(
    kind: OutputKind,
    old: Path | None,
    new: Path,
    tables: Iterable[ReleaseTable],
    schedule: Schedule,
    guarantee: str,
    *,
    header: bool = True,
) -> None:
    """Write the rows of `old` unchanged and those of `tables` after them into the private file `new`, down to disk. A
    CSV without `old` begins with its header, unless an earlier run has written it elsewhere."""
    with new_private(new) as file:
        if old is not None and kind != "parquet":
            with old.open("rb") as before:
                shutil.copyfileobj(before, file)
        metadata = {"evercount.guarantee": guarantee}
        write_tables(kind, file, tables, schedule, metadata, header=header and old is None, old=old)
        file.flush()
        os.fsync(file.fileno())


def _check_db(job: Job) -> None:
    for given, why in (
        (job.state is not None, "`state` does not go with `db`: the store is the state"),
        (job.new_noise_stream, "`new_noise_stream` does not go with `db`: declare a stream of another `name`"),
        (job.out == "-", "`out` - does not go with `db`: name a file, or omit it"),
        (job.declaration.carry_caps, "`carry_caps` is for state files: omit `db` or `carry_caps`"),
        (job.level != LEVEL, f"a store keeps intervals of {LEVEL:.0%}: omit the level"),
    ):
        if given:
            raise ParameterError(why)


def _check_paths(job: Job, places: Places) -> None:
    """No two of the files may be the same, and what is written is not a symbolic link (`_safe_files.py`)."""
    written = {"`out`": places.output, "`state`": places.state, "`rejects`": job.rejects, "`plot`": job.plot}
    written["`ledger`"] = job.ledger
    named = [("the input", name) for name in job.files if name != "-"]
    seen: dict[Path, str] = {}
    if places.output is not None:
        written |= {f"the view {name}": view_path(places.output, name) for name in job.all_views}
        if job.kind == "csv":
            tables = [places.output, *(view_path(places.output, name) for name in job.all_views)]
            written |= {f"the description of {path.name}": description_path(path) for path in tables}
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
    if job.carry_totals and not job.renew:
        raise ParameterError("`carry_totals` needs `renew`: it is about the next stream")
    if job.kind == "parquet":
        parquet_modules()
    if job.lake is not None:
        if job.declaration.revise_for is not None:
            raise ParameterError("`lake` tables get each tick once, and `late` revise publishes it again: use `out`")
        if not job.kept:
            raise ParameterError("`lake` needs `state`: without it a second run could not know what the first released")
        open_lake(job.lake)
    if job.notes and job.out == "-":
        raise ParameterError("`notes` need a file as `out`, which every run rewrites once there are notes")
    if job.all_views and job.out == "-":
        raise ParameterError("views need a file as `out`: they are read back from all ticks of the output")
    if job.plot is not None:
        from evercount.plotting import new_axes

        new_axes()
        if job.out == "-":
            raise ParameterError("`plot` needs a file as `out`: the chart shows all ticks of it")
        if Path(job.plot).suffix.lower() not in outputs.CHARTS:
            raise ParameterError(f"`plot` {job.plot!r}: the name must end in {', '.join(outputs.CHARTS)}")


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
