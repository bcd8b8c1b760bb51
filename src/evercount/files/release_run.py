"""One run of `evercount release`: events file → totals → released rows → committed release file.

Which ticks a run releases is decided by the public schedule alone: those that have ended by `now` (and by `end`), up to
the horizon. The rows have no say in it. If the last event decided, the length of the output would reveal it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from evercount._arrays import FloatArray
from evercount._safe_files import refuse_link
from evercount._validate import stated
from evercount.declare.declaration import StreamDeclaration, changed_noise
from evercount.declare.view_names import shown_tables, stack_rows
from evercount.engine.close_ticks import close_ticks
from evercount.engine.press_table import round_table
from evercount.engine.release_table import LEVEL, ReleaseTable
from evercount.engine.stream import Stream
from evercount.engine.write_table import parquet_modules
from evercount.errors import BadRows, HorizonReached, ParameterError, StoreError
from evercount.files.bad_rows import MOST_SHOWN, LateRows, Reject, find_rejects, write_rejects
from evercount.files.cap_users import UsedBefore
from evercount.files.count_rows import CountedRows, count
from evercount.files.draw_releases import CHARTS, draw_releases
from evercount.files.dropped_events import DroppedEvents, dropped_events
from evercount.files.event_sql import columns_of
from evercount.files.frame_source import frame_source
from evercount.files.lake_table import append_new, open_lake
from evercount.files.ledger_entry import Entered, enter
from evercount.files.new_rows import split_new
from evercount.files.published import (
    Published,
    describe_files,
    description_path,
    keeps_tables,
    own_tables,
    view_path,
    write_views,
)
from evercount.files.release_job import Job, Outcome
from evercount.files.run_state import Closed, Places, State, archive, commit, discard, locked, read_state
from evercount.files.sink import write_releases
from evercount.files.source import Prefix, SeenRows, Source, open_source
from evercount.privacy import Cost, compose, successor_text
from evercount.privacy.time_range import lies_in_one_range
from evercount.queries import build_query

if TYPE_CHECKING:
    from evercount.declare.tick_marks import TickMark
    from evercount.files.store_home import StoreHome

Progress = Callable[[str, int, int], None]
"""What is being done, how many ticks of it are done, of how many (0: not known)."""


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
            check_db(job)
            places = replace(Places.of(None, None, Path(folder)), output=None if job.out is None else Path(job.out))
        _check_paths(job, places)
        _check_extras(job)
        scratch = cleanup.enter_context(locked(places))
        home = None if job.db is None else _home(job, cleanup)
        earlier: Outcome | None = None
        for number in itertools.count():
            (own := scratch / str(number)).mkdir(mode=0o700)
            with ExitStack() as each:
                run = _resume(job, places, own, home, each)
                tell("counting", 0, 0)
                outcome = _publish(run, _count(run, stdin), tell)
            if job.check or not (job.renew and outcome.complete):
                return outcome if earlier is None or outcome.released else earlier
            earlier = outcome
        raise AssertionError("a stream that is complete is renewed, and one that is not ends the run")


def _home(job: Job, cleanup: ExitStack) -> StoreHome:
    from evercount.files.store_home import StoreHome  # a store is an extra

    return StoreHome(job, cleanup)


def check_db(job: Job) -> None:
    """Refuse what does not go with a store."""
    for given, why in (
        (job.state is not None, "`state` does not go with `db`: the store is the state"),
        (job.new_noise_stream, "`new_noise_stream` does not go with `db`: declare a stream of another `name`"),
        (job.out == "-", "`out` - does not go with `db`: name a file, or omit it"),
        (job.declaration.carry_caps, "`carry_caps` is for state files: omit `db` or `carry_caps`"),
        (job.level != LEVEL, f"a store keeps intervals of {LEVEL:.0%}: omit the level"),
    ):
        if given:
            raise ParameterError(why)


# -- resume -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Run:
    """A run that knows its stream and its ticks, [first, stop) from 1."""

    job: Job
    places: Places
    scratch: Path
    before: State | None
    """The state that the run continues."""
    home: StoreHome | None
    """The store that keeps the stream, in place of a state file."""
    restarted: bool
    """Whether new noise takes the place of a stream."""
    renewing: bool
    """Whether that is because its horizon is complete."""
    handed_on: Mapping[str, UsedBefore]
    """What persons have used of their caps in the streams that this one goes on for."""
    earlier: tuple[Cost, ...]
    stream: Stream
    composed: str | None
    entered: Entered
    first: int
    stop: int
    joined: tuple[str, ...]
    """Labels of keys that join with `first`."""

    @property
    def declaration(self) -> StreamDeclaration:
        return self.job.declaration

    @property
    def published(self) -> FloatArray:
        """All that earlier runs have published."""
        none = np.empty((0, len(self.stream.labels)))
        if self.before is None:
            return none
        return stack_rows(self.before.numbers, none) if self.joined else self.before.numbers


def _resume(job: Job, places: Places, scratch: Path, home: StoreHome | None, cleanup: ExitStack) -> _Run:
    """Take up the stream of the state, or begin one."""
    state = read_state(places) if home is None else home.read()
    earlier = () if state is None else tuple(map(Cost.from_dict, state.earlier))
    restarted = job.new_noise_stream and state is not None
    if job.new_noise_stream and state is not None:
        if job.declaration.carry_caps:
            raise ParameterError(
                "`new_noise_stream` would begin caps anew that this stream carries over: omit one of the two"
            )
        if state.entry is not None and job.ledger is None:
            raise ParameterError("the stream is in a ledger: give `ledger`, which is charged for the new one, too")
        old = Stream.load(state.stream, job.declaration.period_of)
        cleanup.callback(old.close)
        earlier, state = (*earlier, old.cost), None
    if home is not None and job.remove_keys:
        raise ParameterError("a store shows all keys of a stream: `remove_keys` is for streams that files keep")
    if job.full_digits is None:  # an output goes on with the digits that it has
        began = state is not None and home is None and "digits" not in state.output_facts
        job = replace(job, full_digits=began)
    job = _settled(job, state, home)
    if job.renew:
        _check_renewal(job, home)
    renewing = job.renew and state is not None and _complete(job.declaration, state)
    handed_on: Mapping[str, UsedBefore] = {}
    if renewing:
        assert state is not None
        handed_on = state.users if job.declaration.carry_caps else {}
        cost = job.declaration.build(replay=True).cost
        if (state.entry is None) != (job.ledger is None):
            raise ParameterError(
                "the stream is in a ledger: give `ledger`, which is charged for the next one, too"
                if job.ledger is None
                else f"the stream that is renewed is not in the ledger {job.ledger}: a ledger is given from the first "
                "run on. Enter it, Ledger(path=…).spend(…), or start a new stream"
            )
        state_query = state.stream["query"]
        restarted, earlier, state = True, (*earlier, cost), None
        counts = build_query(state_query["name"], dict(state_query["parameters"]))  # with the keys that have joined
        job = replace(job, declaration=job.declaration.with_query(counts).renewed(), secret=None)
    declaration = job.declaration
    if state is None:
        stream = declaration.build(secret=job.secret)
    elif home is not None and home.live is not None:
        stream = home.live.stream
    else:
        stream = Stream.load(state.stream, declaration.period_of)
    if home is None or stream is not (home.live and home.live.stream):  # the store closes its own
        cleanup.callback(stream.close)
    job = replace(job, declaration=declaration.with_query(stream.query))
    if state is not None:
        _fill_lake(job, stream, state.numbers, state.tables)  # what a run that died has left out
    joined: list[str] = []
    if home is not None and renewing:
        pass  # keys join the renewed stream with its next run
    elif home is not None and home.live is not None and not job.check:
        joined = home.join(job.add_keys)
    elif home is not None and job.add_keys:
        raise ParameterError("the store has no such stream yet: give all keys as `keys`")
    else:
        joined = stream.add_new_keys(job.add_keys)
    if hidden := [label for label in job.remove_keys if label not in stream.hidden_labels]:
        stream.remove_keys(hidden)
    job = replace(job, declaration=declaration.with_query(stream.query))
    composed = compose_sentence(earlier, stream.cost) if earlier else None
    first, stop = _due(job, stream)
    if state is not None:
        state.closed.check(first, declaration.schedule)
    publishes = not job.check and stop > first
    entered = enter(
        job, stream, None if state is None else state.entry, state is None, publishes, cleanup, goes_on=renewing
    )
    return _Run(
        job,
        places,
        scratch,
        state,
        home,
        restarted,
        renewing,
        handed_on,
        earlier,
        stream,
        composed,
        entered,
        first,
        stop,
        tuple(joined),
    )


def _complete(declaration: StreamDeclaration, state: State) -> bool:
    """Whether all ticks of the horizon are released."""
    horizon = declaration.horizon
    return horizon is not None and state.closed.until >= declaration.schedule.start_of(horizon + 1)


def _check_renewal(job: Job, home: StoreHome | None) -> None:
    """Refuse to renew by itself what costs more each time, unless a ledger or a cap says how much may be spent."""
    free = lies_in_one_range(job.declaration.budget) or job.declaration.carry_caps
    if free or job.ledger is not None or (home is not None and home.capped):
        return
    raise ParameterError(
        "a person may be in every year, so each renewal adds to what is spent: give `ledger` with a `total` that "
        "allows for it, protect persons within a `period`, or declare `carry_caps` from the first year on"
    )


def _settled(job: Job, state: State | None, home: StoreHome | None = None) -> Job:
    """The job with a zone, checked against the state that it continues."""
    declaration, schedule = job.declaration, job.declaration.schedule
    if state is None and home is not None and home.live is not None:  # declared, and nothing is released
        known = home.live.declaration
        first = home.first_start()
        state_first = first if home.live.follows else None
        return replace(job, declaration=_continued(job, known, state_first, {}))
    if state is None:
        if schedule.start is None:
            raise ParameterError(
                "`start` is missing: the time at which the first tick begins, such as 2026-01-01. It is public and "
                "does not follow from the events"
            )
        period = declaration.budget.period
        if isinstance(period, str) and not schedule.calendar and not job.zone_given:
            raise ParameterError(
                f"periods of {period} follow the calendar of a time zone: add `zone` Europe/Vienna or `zone` UTC, or "
                "give `period` as a number of ticks"
            )
        if schedule.calendar and not job.zone_given:
            raise ParameterError(
                f"ticks of {schedule.tick} follow the calendar of a time zone: add `zone` Europe/Vienna or `zone` UTC; "
                "for ticks of 86,400 seconds sharp write 24h"
            )
        return job
    known = StreamDeclaration.from_dict(state.declaration)
    return replace(job, declaration=_continued(job, known, state.first_start, state.output_facts))


def _continued(
    job: Job, known: StreamDeclaration, first_start: int | None, facts: Mapping[str, object]
) -> StreamDeclaration:
    """The declaration of a run that goes on with a known stream, or ParameterError where it declares another."""
    declaration, schedule = job.declaration, job.declaration.schedule
    if not job.zone_given:
        declaration = declaration.with_schedule(replace(schedule, zone=known.schedule.zone))
    if first_start is not None and set(declaration.query.labels) < set(known.query.labels):
        declaration = replace(declaration, query=known.query)  # keys that joined the streams before it
    if first_start is not None and declaration.schedule.start == first_start:
        declaration = declaration.going_on(known.schedule.begin, declaration)
    earliest = declaration.earliest
    differences = known.differences(declaration)
    for name in {**job.output_facts, **facts}:
        value = job.output_facts.get(name, "full")
        if facts.get(name, "full") != value:
            differences.append(f"{name} was {facts.get(name, 'full')!r} and is now {value!r}")
    if differences:
        raise ParameterError(
            "this is another stream than the one in the state: " + "; ".join(differences) + ". Use the previous "
            f"parameters to continue it{changed_noise(known, declaration)}. A new stream is a successor with a later "
            "`start` and another `out`; `new_noise_stream` starts again with these and adds to the spent budget"
        )
    declaration = declaration.as_known(known).with_schedule(known.schedule)
    if declaration.shown != known.shown:  # views may change, but not what an output shows
        declaration = replace(declaration, views=(known.shown, *declaration.views))
    if earliest is not None:
        object.__setattr__(declaration, "earliest", earliest)
    return declaration


def _due(job: Job, stream: Stream) -> tuple[int, int]:
    """1-based [first, stop): the ticks to release now."""
    horizon, schedule = stream.horizon, job.declaration.schedule
    if horizon is not None and stream.tick >= horizon:
        raise HorizonReached(
            horizon,
            f"{successor_text(stream.cost)} Give it a later `start` and another `out`; with `horizon` none a stream "
            "has no end.",
        )
    if job.end is not None and job.end <= schedule.begin:
        raise ParameterError(f"`end` {schedule.show(job.end)} is not after `start` {schedule.show(schedule.begin)}")
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
    ) or (frame_source(job.file, columns_of(run.declaration).used, run.scratch),)
    shown, seen = _write_rejects(run, sources)
    late: tuple[Source, ...] = ()
    consumed: dict[str, Prefix] = {}
    if run.declaration.late != "drop":
        if job.files == ("-",) or sources[0].kind == "frame":
            raise ParameterError(
                f"`late` {run.declaration.late} needs files that only grow, to tell late rows from rows that were "
                "counted; use `late` drop for data frames and standard input"
            )
        split = split_new(sources, run.scratch, (before.consumed or None) if before else None)
        sources, late, consumed = split.files, split.new, split.consumed
    users = before.users if before else run.handed_on
    rows = count(sources, run.declaration, run.first, run.stop, run.scratch, late=late, users=users)
    dropped = None
    if job.check and columns_of(run.declaration).user is not None:
        dropped = dropped_events(sources, run.declaration, run.first, run.stop, run.scratch)
    if rows.bad and shown is None:
        shown = tuple(itertools.islice(find_rejects(sources, run.declaration, run.scratch), MOST_SHOWN))
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
        raise StoreError(f"`rejects` {job.rejects} cannot be written: {error.strerror}") from error
    return tuple(shown), {} if late is None else late.now


# -- publish ----------------------------------------------------------------------------------------------------------


def _publish(run: _Run, counted: _Counted, tell: Progress) -> Outcome:
    """Commit the ticks and their rows, then draw what is read back from them."""
    job, places, stream, schedule = run.job, run.places, run.stream, run.declaration.schedule
    archived: tuple[Path, ...] = ()
    numbers, tables = run.published, () if run.before is None else run.before.tables
    if not job.check and run.stop > run.first:
        if run.restarted:
            if run.home is not None and places.output is not None:
                _export_again(run.home, job, places.output)
            archived = tuple(archive(places, lambda path: [view_path(path, name) for name in job.all_views]))
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
    marks = () if run.home is None else run.home.marks
    published = _published(job, stream, numbers, tables, marks)
    drawn, views = None, []
    if not job.check and stream.tick:
        _fill_lake(job, stream, numbers, tables)
        if job.plot is not None:
            drawn = draw_releases(published, Path(job.plot), run.scratch)
        if places.output is not None:
            views = write_views(places.output, published, main=run.home is not None)
            digits = bool(job.full_digits)
            describe_files([places.output, *views], run.declaration, stream.guarantee, job.level, full_digits=digits)
    return Outcome(
        job=job,
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
        published=published.table,
        joined=run.joined,
    )


def _export_again(home: StoreHome, job: Job, output: Path) -> None:
    """Write the files of the stream that is renewed once more: a run that was killed may not have written them."""
    state, live = home.read(), home.live
    assert state is not None
    assert live is not None
    job = replace(job, declaration=StreamDeclaration.from_dict(state.declaration))
    write_views(output, _published(job, live.stream, state.numbers, state.tables, home.marks), main=True)


def _commit_to_store(run: _Run, home: StoreHome, counted: _Counted) -> tuple[State, Stream]:
    """Release the ticks in the store; its stream takes the place of the one that was built to look at."""
    if run.before is None:
        run.stream.close()
    state = home.commit(run.declaration, counted.rows.totals, _state(run, counted, {}), run.job, run.renewing)
    assert home.live is not None
    return state, home.live.stream


def _state(run: _Run, counted: _Counted, stream: dict[str, Any]) -> State:
    """The state after a run, but for what is published."""
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
    )


def _published(
    job: Job,
    stream: Stream,
    numbers: FloatArray,
    tables: tuple[dict[str, Any], ...],
    marks: tuple[TickMark, ...] = (),
) -> Published:
    labels = stream.query.labels if stream.query.publishing.own_ticks else None
    releases = stream.read_back(numbers, labels=labels)
    views, digits = job.all_views, bool(job.full_digits)
    return Published(job.declaration, stream.guarantee, views, job.level, releases, tables, digits, marks)


def _fill_lake(job: Job, stream: Stream, numbers: FloatArray, tables: tuple[dict[str, Any], ...]) -> None:
    """Append to the table of a lake what is committed and not there."""
    if job.lake is not None and not job.check:
        declaration = job.declaration
        view = _published(job, stream, numbers, tables).view(declaration.shown)
        append_new(job.lake, declaration.name, [view], declaration.schedule, stream.guarantee)


def _write(run: _Run, counted: _Counted, tell: Progress) -> State:
    """Write the new output under its private name; the state that belongs to it."""
    job, before, stream, schedule = run.job, run.before, run.stream, run.declaration.schedule
    totals, numbers = counted.rows.totals, [run.published]
    own: list[ReleaseTable] = []
    own_ticks = stream.query.publishing.own_ticks

    def closed() -> Iterator[ReleaseTable]:
        for table in close_ticks(stream, totals, schedule.starts_of, level=job.level):
            if keeps_tables(stream.query):
                own.append(table)
            if not own_ticks:
                numbers.append(table.numbers[:, 0])
            yield table
            tell("releasing", stream.tick + 1 - totals.first_tick, len(totals))

    if job.kind is None:
        for _ in closed():
            pass
    else:
        old = None if before is None else run.places.output
        made = run.declaration.view_postprocess
        tables = shown_tables(stream, closed(), run.declaration.shown, schedule, run.published, job.level, made)
        if not job.full_digits:
            tables = map(round_table, tables)
        write_releases(job.kind, old, run.places.pending, tables, schedule, stream.guarantee, header=before is None)
    return replace(
        _state(run, counted, stream.dump()),
        numbers=stack_rows(*numbers),
        tables=(*(() if before is None else before.tables), *own_tables(own)),
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
    if job.kind == "parquet":
        parquet_modules()
    if job.lake is not None:
        if job.declaration.revise_for is not None:
            raise ParameterError("`lake` tables get each tick once, and `late` revise publishes it again: use `out`")
        if not job.kept:
            raise ParameterError("`lake` needs `state`: without it a second run could not know what the first released")
        open_lake(job.lake)
    if job.all_views and job.out == "-":
        raise ParameterError("views need a file as `out`: they are read back from all ticks of the output")
    if job.plot is not None:
        from evercount.plotting import new_axes

        new_axes()
        if job.out == "-":
            raise ParameterError("`plot` needs a file as `out`: the chart shows all ticks of it")
        if Path(job.plot).suffix.lower() not in CHARTS:
            raise ParameterError(f"`plot` {job.plot!r}: the name must end in {', '.join(CHARTS)}")
