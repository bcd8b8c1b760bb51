"""Which stream a run goes on with, and which ticks are due: the stream of the state, a new one, or the next year's."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from evercount._arrays import FloatArray
from evercount._validate import stated
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.same_stream import as_known, changed_noise, differences
from evercount.declarations.tick_marks import TickMark, check_mark
from evercount.declarations.view_names import stack_rows
from evercount.engine.carried_totals import CarriedTotals, check_carries
from evercount.engine.stream import Stream
from evercount.errors import HorizonReached, ParameterError
from evercount.files.cap_users import UsedBefore
from evercount.files.ledger_entry import Entered, enter
from evercount.files.published import fill_lake
from evercount.files.release_job import Job
from evercount.files.run_state import Places, State, read_state
from evercount.privacy import Cost, compose, successor_text
from evercount.privacy.time_range import lies_in_one_range
from evercount.queries import build_query

if TYPE_CHECKING:
    from evercount.files.store_home import StoreHome


@dataclass(frozen=True)
class Run:
    """A run that knows its stream and its ticks, [first, stop) from 1."""

    job: Job
    places: Places
    scratch: Path
    before: State | None  # the state that the run continues
    home: StoreHome | None  # the store that keeps the stream, in place of a state file
    restarted: bool  # whether new noise takes the place of a stream
    renewing: bool  # whether that is because its horizon is complete
    handed_on: Mapping[str, UsedBefore]  # what persons have used of their caps in the streams that this one goes on for
    earlier: tuple[Cost, ...]
    stream: Stream
    composed: str | None
    entered: Entered
    first: int
    stop: int
    joined: tuple[str, ...]  # labels of keys that join with `first`
    marks: tuple[TickMark, ...]  # what the operator says about ticks, in this run and before

    @property
    def declaration(self) -> StreamDeclaration:
        return self.job.declaration

    @property
    def published(self) -> FloatArray:
        none = np.empty((0, len(self.stream.labels)))
        if self.before is None:
            return none
        return stack_rows(self.before.numbers, none) if self.joined else self.before.numbers


def resume(job: Job, places: Places, scratch: Path, home: StoreHome | None, cleanup: ExitStack) -> Run:
    state = read_state(places) if home is None else home.read()
    earlier = () if state is None else tuple(map(Cost.from_dict, state.earlier))
    restarted = job.new_noise_stream and state is not None
    if job.new_noise_stream and state is not None:
        if job.declaration.carry_caps:
            raise ParameterError(
                "`new_noise_stream` would restart the caps that this stream carries over: omit one of the two"
            )
        if state.entry is not None and job.ledger is None:
            raise ParameterError("the stream is in a ledger: give `ledger`, which is charged for the new one, too")
        old = Stream.load(state.stream, job.declaration.period_of)
        cleanup.callback(old.close)
        earlier, state = (*earlier, old.cost), None
    if job.full_digits is None:  # an output goes on with the digits that it has
        began = state is not None and home is None and "digits" not in state.output_facts
        job = replace(job, full_digits=began)
    carried = None if state is None else CarriedTotals.load(state.carried)
    job = replace(_settled(job, state, home), carried=carried if home is None else home.carried)
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
                else f"the stream that is renewed is not in the ledger {job.ledger}: a ledger must be given from "
                "the first run on. Enter it, Ledger(path=…).spend(…), or start a new stream"
            )
        carried = None
        if job.carry_totals and home is not None:
            carried = home.totals_at_end()
        elif job.carry_totals:
            old = Stream.load(state.stream, job.declaration.period_of)
            cleanup.callback(old.close)
            since = job.declaration.schedule.begin
            carried = CarriedTotals.after(old._errors, old.tick, state.numbers[-1], since, job.carried)
        state_query = state.stream["query"]
        restarted, earlier, state = True, (*earlier, cost), None
        counts = build_query(state_query["name"], dict(state_query["parameters"]))  # with the keys that have joined
        job = replace(job, declaration=job.declaration.with_query(counts).renewed(), secret=None, carried=carried)
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
        fill_lake(job, stream, state.numbers, state.tables)  # what a run that died has left out
    joined: list[str] = []
    if home is not None and renewing:
        pass  # keys join the renewed stream with its next run
    elif home is not None and home.live is not None and not job.check:
        joined = home.join(job.add_keys)
    elif home is not None and job.add_keys:
        raise ParameterError("the store has no such stream yet: give all keys as `keys`")
    else:
        joined = stream.add_new_keys(job.add_keys)
    if home is not None:
        if job.remove_keys and not job.check:
            home.hide(job.remove_keys)
    elif hidden := [label for label in job.remove_keys if label not in stream.hidden_labels]:
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
    begun = job, places, scratch, state, home, restarted, renewing, handed_on, earlier, stream, composed, entered
    return Run(*begun, first, stop, tuple(joined), _noted(job, state, home, publishes))


def _noted(job: Job, state: State | None, home: StoreHome | None, publishes: bool) -> tuple[TickMark, ...]:
    """The notes of earlier runs and, if something is published with them, of this one."""
    if home is not None:
        return home.note(job.notes if publishes else ())
    known = [] if state is None else [TickMark(*one) for one in state.marks]
    for note in job.notes if publishes else ():
        mark = note.on(job.declaration.schedule)
        check_mark(job.declaration, mark, len(known))
        known += [] if mark in known else [mark]
    return tuple(known)


def _complete(declaration: StreamDeclaration, state: State) -> bool:
    horizon = declaration.horizon
    return horizon is not None and state.closed.until >= declaration.schedule.start_of(horizon + 1)


def _check_renewal(job: Job, home: StoreHome | None) -> None:
    """Refuse to renew by itself what costs more each time, unless a ledger or a cap says how much may be spent, and to
    carry totals over where they do not add up."""
    if job.carry_totals:
        check_carries(job.declaration.query, job.declaration.stream_postprocess, job.declaration.revise_for)
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
        first = home.first_start() if home.live.follows else None
        return replace(job, declaration=_continued(job, home.live.declaration, first, {}))
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
                "for ticks of exactly 86,400 seconds write 24h"
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
    changes = differences(known, declaration)
    for name in {**job.output_facts, **facts}:
        value = job.output_facts.get(name, "full")
        if facts.get(name, "full") != value:
            changes.append(f"{name} was {facts.get(name, 'full')!r} and is now {value!r}")
    if changes:
        raise ParameterError(
            "this is another stream than the one in the state: " + "; ".join(changes) + ". Use the previous "
            f"parameters to continue it{changed_noise(known, declaration)}. A new stream is a successor with a later "
            "`start` and another `out`; `new_noise_stream` starts again with these and adds to the spent budget"
        )
    declaration = as_known(declaration, known).with_schedule(known.schedule)
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
    start = schedule.begin if job.declaration.earliest is None else job.declaration.earliest  # of the first year
    if job.end is not None and job.end <= start:
        raise ParameterError(f"`end` {schedule.show(job.end)} is not after `start` {schedule.show(start)}")
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
        f"{'person' if together.unit == 'user' else together.unit})."
    )
