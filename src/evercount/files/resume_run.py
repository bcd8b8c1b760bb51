"""What a run knows before it counts: its stream (the one that is kept, a new one, or the one of the
next year), its ticks, and its entry in a ledger."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from evercount._validate import stated
from evercount.declarations.cautions import changed_noise, differences
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.settle import Settled, settle, with_noise_of
from evercount.declarations.tick_marks import TickMark, check_mark, hidden_labels, hide, show_again
from evercount.engine.add_keys import label_of
from evercount.engine.carried_totals import CarriedTotals
from evercount.engine.stream import Stream
from evercount.errors import HorizonReached, ParameterError
from evercount.files.cap_users import UsedBefore
from evercount.files.keeper import Closed, Keeper, RunState
from evercount.files.lake_table import check_new_writer
from evercount.files.ledger_entry import LedgerEntry, enter_known, enter_new
from evercount.files.published import Publication
from evercount.files.release_job import RESTART, Job
from evercount.files.renewal import (
    check_charged,
    check_renewal,
    is_complete,
    renewed,
    totals_at_end,
    used_caps,
)
from evercount.privacy import Cost, compose, successor_text
from evercount.privacy.guarantee_text import stated_promise, stated_unit
from evercount.queries import Query
from evercount.queries.sensitivities import rows_of


@dataclass(frozen=True)
class Predecessors:
    """The streams before the one of a run, over the same events, and what they hand on to it."""

    costs: tuple[Cost, ...] = ()
    # what persons have used of their caps in them
    caps: Mapping[str, UsedBefore] = field(default_factory=dict)
    # the running totals that it goes on from
    totals: CarriedTotals | None = None
    # whether new noise takes the place of the last of them, whose files are archived
    replaced: bool = False
    # whether that is because its horizon is complete
    renewed: bool = False


@dataclass(frozen=True)
class Joining:
    """The keys that a run lets join and leave."""

    # labels of those that join, or are shown again, at the tick `since`
    labels: tuple[str, ...] = ()
    since: int | None = None
    # the query with these keys, if they join after the ticks of this run
    awaited: Query | None = None
    # all keys that were asked for, if they join now, and those of them that are new
    keys: tuple[Any, ...] = ()
    new_keys: tuple[Any, ...] = ()
    # labels that are no longer shown
    hidden: tuple[str, ...] = ()


@dataclass(frozen=True)
class Run:
    """A run that knows its stream and its ticks, [first, stop) from 1."""

    job: Job
    keeper: Keeper
    # what the commit before this run has left; None for a new stream
    before: RunState | None
    predecessors: Predecessors
    # the run's own: that of a store has one of its own, which this one is a copy of
    stream: Stream
    entry: LedgerEntry
    first: int
    stop: int
    joining: Joining
    # whether keys join at `stop` and more ticks are due: this is the first of two runs
    continues: bool
    # what the operator says about ticks, in this run and before
    marks: tuple[TickMark, ...]

    @property
    def declaration(self) -> StreamDeclaration:
        return self.job.declaration

    @property
    def publishes(self) -> bool:
        return not self.job.check and self.stop > self.first

    @property
    def new_notes(self) -> tuple[TickMark, ...]:
        """What this run says about ticks that no run before it has said."""
        before = () if self.before is None else self.before.marks
        return tuple(mark for mark in self.marks if mark.hides is None and mark not in before)

    @property
    def joined_keys(self) -> tuple[tuple[int, list[Any]], ...]:
        """The keys that have joined, each time after which tick."""
        state = self.keeper.begun if self.before is None else self.before
        earlier = () if state is None or self.predecessors.replaced else state.joined
        if not self.joining.new_keys:
            return earlier
        return (*earlier, (self.first - 1, list(self.joining.new_keys)))

    @property
    def readable(self) -> StreamDeclaration:
        """The declaration by which rows are legal: those of keys that are about to join are."""
        awaited = self.joining.awaited
        counted_as_other = awaited is not None and rows_of(awaited).keys[1]
        if awaited is None or counted_as_other:
            return self.declaration
        return self.declaration.with_query(awaited)

    @property
    def composed(self) -> str | None:
        costs = self.predecessors.costs
        return compose_sentence(costs, self.stream.cost) if costs else None

    @property
    def adds(self) -> str | None:
        """What a new stream adds to others over the same events, which no ledger knows of."""
        continued = self.before is not None or self.predecessors.costs
        if continued or self.job.ledger is not None:
            return None
        cost = self.stream.cost
        both = compose((cost, cost))
        return (
            "This is a new noise stream: it adds to what other streams over the same events spend. "
            f"Two like it keep epsilon={stated(both.epsilon)}, delta={stated(both.delta)} "
            "together; `ledger` FILE keeps account of all."
        )


def resume(job: Job, keeper: Keeper, cleanup: ExitStack) -> Run:
    """Find out which stream a run is about, and which of its ticks are due."""
    state = keeper.load()
    keeper.check_output()
    predecessors = _predecessors(job, keeper, state)
    if predecessors.replaced:
        state = None
    job = replace(job, declaration=_settled(job, keeper, state, predecessors))
    complete = state is not None and is_complete(job.declaration, state)
    begins = state is None and keeper.begun is None
    if job.renew:
        check_renewal(job, keeper.capped, now=begins or complete)
    if job.renew and state is not None and complete:
        job, predecessors = _renew(job, keeper, state, predecessors)
        state = None

    stream = _open_stream(job, keeper, predecessors)
    cleanup.callback(stream.close)
    _check_lake(job, keeper, state, stream, predecessors)
    marks = () if state is None else state.marks
    joining = _joining(job, stream, marks)
    if joining.awaited is None:
        stream.add_keys(job.add_keys)
        marks = hide(marks, joining.hidden, stream.tick + 1)
        marks = show_again(marks, joining.labels, stream.tick + 1)
    job = replace(job, declaration=job.declaration.with_query(stream.query))
    try:
        first, stop = _due(job, stream)
    except HorizonReached as over:
        if state is not None and job.out is None:  # nobody else has what was published
            over.table = Publication(job, keeper, stream, marks, predecessors.totals).table()
        raise
    continues = False
    if joining.awaited is not None and joining.since is not None:
        continues = joining.since < stop
        stop = min(joining.since, stop)
    if state is not None:
        state.closed.check(first, job.declaration.schedule)
    if predecessors.costs:  # refused now, and not when it is said what all of them cost
        compose((*predecessors.costs, stream.cost))
    publishes = not job.check and stop > first
    return Run(
        job=job,
        keeper=keeper,
        before=state,
        predecessors=predecessors,
        stream=stream,
        entry=_entry(job, state, stream, publishes, predecessors, cleanup),
        first=first,
        stop=stop,
        joining=joining,
        continues=continues,
        marks=_with_notes(job, marks) if publishes else marks,
    )


def _predecessors(job: Job, keeper: Keeper, state: RunState | None) -> Predecessors:
    """What the streams before have handed on; `new_noise_stream` replaces the one that is kept."""
    known = keeper.begun if state is None else state
    if known is None:
        return Predecessors()
    costs = tuple(map(Cost.from_dict, known.earlier))
    if state is None or not job.new_noise_stream:
        return Predecessors(costs, known.users, known.carried_totals)
    if job.declaration.carry_caps:
        raise ParameterError(
            "`new_noise_stream` would restart the caps that this stream carries over: omit one of "
            "the two"
        )
    check_charged(job, state, "the new one")
    with keeper.open_stream() as ended:
        return Predecessors((*costs, ended.cost), replaced=True)


def _renew(
    job: Job, keeper: Keeper, state: RunState, predecessors: Predecessors
) -> tuple[Job, Predecessors]:
    """The job of the stream that goes on for a complete one, and what that hands on."""
    check_charged(job, state, "the next one")
    with keeper.open_stream() as ended:
        published = Publication(job, keeper, ended, state.marks, state.carried_totals)
        published.fill_lake()  # a run that died may have left ticks out
        caps: Mapping[str, UsedBefore] = {}
        if job.declaration.carry_caps:
            caps = used_caps(job.declaration, state, ended)
        totals = None
        if job.carry_totals:
            totals = totals_at_end(keeper, state, ended)
        following = renewed(job, ended._parameters.declared)
        costs = (*predecessors.costs, ended.cost)
    return following, Predecessors(costs, caps, totals, replaced=True, renewed=True)


def declaration_of(job: Job, keeper: Keeper, state: RunState) -> Settled:
    """The declaration with the noise of a stream that is kept; ParameterError for another one."""
    return _settled(job, keeper, state, Predecessors())


def _settled(
    job: Job, keeper: Keeper, state: RunState | None, predecessors: Predecessors
) -> Settled:
    """The declaration with the noise of the stream that it continues, or of a new one."""
    if state is not None:
        changes = keeper.output_changes(job.output_facts)
        return _continued(job, state.settled, state.first_start, changes)
    if keeper.begun is not None and not predecessors.replaced:
        return _continued(job, keeper.begun.settled, keeper.begun.first_start, [])
    _check_first(job)
    return settle(job.declaration)


def _check_first(job: Job) -> None:
    """Refuse to begin a stream without a start, or with days of a zone that nobody named."""
    schedule, period = job.declaration.schedule, job.declaration.budget.period
    if schedule.start is None:
        raise ParameterError(
            "`start` is missing: the time at which the first tick begins, such as 2026-01-01. It "
            "is public and must not follow from the events"
        )
    if (schedule.calendar or isinstance(period, str)) and not job.zone_given:
        what = f"ticks of {schedule.tick}" if schedule.calendar else f"periods of {period}"
        raise ParameterError(
            f"{what} follow the calendar of a time zone: add `zone` Europe/Vienna or `zone` UTC; "
            "for ticks of exactly 86,400 seconds write 24h, and a `period` may be a number of ticks"
        )


def _continued(
    job: Job, known: Settled, first_start: int | None, changes: Sequence[str]
) -> Settled:
    """The declaration of a run that goes on with a known stream; ParameterError for another."""
    declaration, schedule = job.declaration, job.declaration.schedule
    if not job.zone_given:
        declaration = declaration.with_schedule(replace(schedule, zone=known.schedule.zone))
    if first_start is not None and set(declaration.query.labels) < set(known.query.labels):
        declaration = replace(declaration, query=known.query)  # keys joined the streams before it
    if first_start is not None and declaration.schedule.start == first_start:
        declaration = declaration.going_on(known.schedule.begin, declaration)
    earliest = declaration.earliest
    changes = [*differences(known, declaration), *changes]
    if changes:
        if declaration.postprocess != known.postprocess:
            changes.append(
                "post-processing is chosen in the first run, because what is published stays as it "
                "is: give `postprocess` as it was "
                f"({', '.join(known.postprocess) or 'none'}), and round or clip the numbers where "
                "they are read"
            )
        raise ParameterError(
            "this is not the stream in the state: " + "; ".join(changes) + ". Use the previous "
            f"parameters to continue it{changed_noise(known, declaration)}. A new stream is a "
            "successor with a later `start` and another `out`; `new_noise_stream` starts again "
            "with these and adds to the spent budget"
        )
    if with_noise_of(declaration, known).main_view != known.main_view:
        # views may change, but not what an output shows
        declaration = replace(declaration, views=(known.main_view, *declaration.views))
    settled = with_noise_of(declaration, known).with_schedule(known.schedule)
    return settled if earliest is None else settled._follows(earliest, declaration.first_name)


def _open_stream(job: Job, keeper: Keeper, predecessors: Predecessors) -> Stream:
    """The stream that is kept, or a new one that begins with the caps it inherits."""
    kept = keeper.state is not None or keeper.begun is not None
    if kept and not predecessors.replaced:
        return keeper.open_stream()
    return keeper.build_stream(job.declaration, predecessors.caps, job.secret)


def _check_lake(
    job: Job,
    keeper: Keeper,
    state: RunState | None,
    stream: Stream,
    predecessors: Predecessors,
) -> None:
    """Append what a killed run has left out; refuse a table of another stream."""
    if job.lake is None:
        return
    if state is not None:
        known = replace(job, declaration=job.declaration.with_query(stream.query))
        Publication(known, keeper, stream, state.marks, predecessors.totals).fill_lake()
        return
    name = keeper.name_in_lakes(job.declaration, predecessors.renewed)
    check_new_writer(job.lake, name, job.declaration.schedule)


def _joining(job: Job, stream: Stream, marks: Sequence[TickMark]) -> Joining:
    """Which keys join and leave, and when.

    **Guarantee.** Keys join at a tick that the operator names, from which on their rows count, and
    have no number before it. Test: tests/files/test_join_at_a_date.py
    ::test_keys_join_at_a_date_as_in_two_runs.
    """
    query, new = stream._joining(job.add_keys)
    gone = hidden_labels(marks, stream.tick + 1)
    again = [label for key in job.add_keys if (label := label_of(key)) in gone]
    hidden = _hidden(job, stream, gone)
    labels = (*again, *new)
    new_keys = tuple(key for key in job.add_keys if label_of(key) in new)
    now = Joining(labels, keys=tuple(job.add_keys), new_keys=new_keys, hidden=hidden)
    if job.add_keys_from is None or not labels:
        return now
    schedule, next_tick = job.declaration.schedule, stream.tick + 1
    since = max(1, schedule.tick_of(job.add_keys_from))
    if since < next_tick:
        raise ParameterError(
            f"`add_keys_from` {schedule.show(job.add_keys_from)}: that day is released, and keys "
            "have no numbers in released ticks. The first tick that they can join begins at "
            f"{schedule.show(schedule.start_of(next_tick))}"
        )
    if since == next_tick:
        return replace(now, since=since)
    return Joining(labels, since, awaited=query, hidden=hidden)


def _hidden(job: Job, stream: Stream, gone: Sequence[str]) -> tuple[str, ...]:
    """The labels that a run hides; ParameterError if there are no such, or none would be left."""
    if not job.remove_keys:
        return ()
    known = stream.query.labels
    unknown = [label for label in job.remove_keys if label not in known]
    if unknown or stream.query.discovery is not None:
        named = ", ".join(map(repr, unknown))
        raise ParameterError(f"there is no key {named} in the list of this stream")
    if not set(known) - set(gone) - set(job.remove_keys):
        raise ParameterError("nothing would be left to show; end the stream instead")
    return tuple(label for label in job.remove_keys if label not in gone)


def _with_notes(job: Job, known: Sequence[TickMark]) -> tuple[TickMark, ...]:
    """What is said about ticks, with the notes of this run."""
    marks = list(known)
    for note in job.notes:
        mark = note.on(job.declaration.schedule)
        check_mark(job.declaration, mark, len(marks))
        if mark not in marks:
            marks.append(mark)
    return tuple(marks)


def _due(job: Job, stream: Stream) -> tuple[int, int]:
    """1-based [first, stop): the ticks to release now."""
    horizon, schedule = stream.horizon, job.declaration.schedule
    if horizon is not None and stream.tick >= horizon:
        raise HorizonReached(horizon, f"{successor_text(stream.cost)} {RESTART}")
    start = job.declaration.first_begin
    if job.end is not None and job.end <= start:
        shown = schedule.show(job.end), schedule.show(start)
        raise ParameterError("`end` {} is not after `start` {}".format(*shown))
    ended = job.declaration.ended(job.now)
    if job.end is not None:
        ended = min(ended, schedule.tick_of(job.end) - 1)
    return stream.tick + 1, max(stream.tick, ended) + 1


def _entry(
    job: Job,
    state: RunState | None,
    stream: Stream,
    publishes: bool,
    predecessors: Predecessors,
    cleanup: ExitStack,
) -> LedgerEntry:
    if state is not None:
        return enter_known(job, state.entry, cleanup)
    return enter_new(
        job,
        stream,
        publishes=publishes,
        continues_chain=predecessors.renewed,
        cleanup=cleanup,
    )


def compose_sentence(earlier: tuple[Cost, ...], now: Cost) -> str:
    """What all noise streams over the same data promise together.

    **Guarantee.** That of `compose`; the numbers are rounded up. Test:
    tests/files/test_release_run.py::test_composed_promise.
    """
    together = compose((*earlier, now))
    streams = "stream" if len(earlier) == 1 else "streams"
    return (
        f"Together with {len(earlier)} earlier noise {streams} over the same data: "
        f"{stated_promise(together)} ({stated_unit(together)})."
    )


def begun_state(run: Run) -> RunState:
    """The state of a stream that is declared and has released nothing: what it inherits is kept
    with it, so that a run that dies forgets none of it."""
    return _state_of(run, 1, run.predecessors.caps)


def state_after(run: Run, caps: Mapping[str, UsedBefore]) -> RunState:
    """What the commit of a run keeps besides the stream and what it publishes."""
    return _state_of(run, run.stop, caps)


def _state_of(run: Run, next_tick: int, caps: Mapping[str, UsedBefore]) -> RunState:
    totals = run.predecessors.totals
    return RunState(
        declaration=run.declaration.to_dict(),
        output_facts=run.job.output_facts,
        closed=Closed.before(next_tick, run.declaration.schedule),
        earlier=tuple(cost.to_dict() for cost in run.predecessors.costs),
        entry=run.entry.name,
        users=caps,
        first_start=run.declaration.earliest,
        joined=run.joined_keys,
        marks=run.marks,
        carried=None if totals is None else totals.to_dict(),
    )
