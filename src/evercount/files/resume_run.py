"""What a run knows before it counts: its stream (that of the state, a new one or the next year's),
ticks and ledger.

A new stream fits into its ledger (`ledger`) or is refused before anything is counted. It is entered
when its first ticks are written under their private name and before they are published. A crash in
between leaves the budget spent and nothing published: the safe side. The file is locked from the
check to the entry.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evercount._validate import FloatArray, stated
from evercount.declarations.cautions import changed_noise, differences
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.settle import Settled, settle, with_noise_of
from evercount.declarations.view_names import TickMark, check_mark, stack_rows
from evercount.engine.carried_totals import CarriedTotals, check_carries
from evercount.engine.stream import Stream, TaskStream
from evercount.errors import HorizonReached, ParameterError
from evercount.files.cap_users import UsedBefore
from evercount.files.published import Published, check_new_writer, fill_lake
from evercount.files.release_job import RESTART, Job
from evercount.files.run_state import Places, State, read_state
from evercount.privacy import Budget, Cost, Ledger, compose, successor_text
from evercount.privacy.guarantee_text import stated_promise, stated_unit
from evercount.queries import Query, build_query
from evercount.queries.sensitivities import rows_of

if TYPE_CHECKING:
    from evercount.files.store_home import StoreHome

NOT_ENTERED = (
    "{} is not in the ledger {}: a ledger must be given from the first run on. Start a new stream "
    "with it, or enter this one: Ledger(path=…).spend(…)"
)


@dataclass(frozen=True)
class Entered:
    name: str | None = None  # its name there; None without a ledger
    sentence: str | None = None
    spend: Callable[[], None] = lambda: None  # enter a new stream, on the disk when this returns


def enter(
    job: Job,
    stream: Stream,
    state: State | None,
    publishes: bool,
    goes_on: bool,
    cleanup: ExitStack,
) -> Entered:
    """Look the stream of a state up in the ledger, or check that a new one fits.

    With `goes_on` it has taken over the caps of the streams of its chain; any other stream of that
    chain is refused.

    A run that publishes nothing starts no ledger.

    **Guarantee.** A stream that does not fit is refused before its events are read, and no tick of
    a stream is published that is not in the ledger. Test: tests/files/test_release_ledger.py.
    """
    known = None if state is None else state.entry
    if job.ledger is None:
        if job.total is not None:
            raise ParameterError("`total` needs `ledger`: the file whose total it is")
        return Entered(known)
    ledger = _open(Path(job.ledger), job.total, stream.budget, publishes, cleanup)
    names = {entry.name for entry in ledger.entries}
    own = job.out or job.state or job.declaration.name
    if state is not None:
        if known not in names:
            raise ParameterError(
                NOT_ENTERED.format(f"the stream of {own}, which has released ticks,", job.ledger)
            )
        sentence = ledger.sentence()
        ledger.close()  # other runs may go on
        return Entered(known, f"Ledger {job.ledger}: {sentence}")
    chain = stream.cost.chain
    if chain and not goes_on and any(entry.cost.chain == chain for entry in ledger.entries):
        raise ParameterError(
            f"the ledger {job.ledger} has a stream of this name and start that carries its caps "
            "over: continue it (`renew`), or give this one another `name`"
        )
    name = next(
        one
        for number in count(1)
        if (one := own if number == 1 else f"{own} {number}") not in names
    )
    ledger.check(name, stream.cost)

    def spend() -> None:
        ledger.spend(name, stream.cost)
        ledger.close()

    return Entered(name, f"Ledger {job.ledger}: {ledger.sentence([stream.cost])}", spend)


def _open(
    path: Path,
    total: tuple[float, float] | None,
    budget: Budget,
    publishes: bool,
    cleanup: ExitStack,
) -> Ledger:
    if path.exists():
        ledger = Ledger(path=path, wait=True)
    elif total is not None:
        whole = replace(budget, epsilon=total[0], delta=total[1], calibration="tight")
        ledger = Ledger(whole, path if publishes else None)
    else:
        raise ParameterError(f"there is no ledger at {path}: `total` starts one, such as 1,1e-6")
    cleanup.callback(ledger.close)
    kept = ledger.total.epsilon, ledger.total.delta
    if total is not None and kept != total:
        raise ParameterError(
            f"the ledger {path} has the total {kept[0]:g},{kept[1]:g}, which was fixed when it "
            "started: omit `total`, or give the same"
        )
    return ledger


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
    # what persons have used of their caps in the streams that this one goes on for
    handed_on: Mapping[str, UsedBefore]
    earlier: tuple[Cost, ...]
    stream: Stream  # the run's own: that of a store has one of its own, which this one is a copy of
    entered: Entered
    first: int
    stop: int
    joined: tuple[str, ...]  # labels of keys that join with the tick `joins`
    joins: int | None
    awaited: Query | None  # the query with those keys, where they join after the ticks of this run
    # whether they join with `stop`, and more ticks are due: this is the first of two runs
    goes_on: bool
    marks: tuple[TickMark, ...]  # what the operator says about ticks, in this run and before

    @property
    def declaration(self) -> StreamDeclaration:
        return self.job.declaration

    @property
    def publishes(self) -> bool:
        return not self.job.check and self.stop > self.first

    @property
    def published(self) -> FloatArray:
        none = np.empty((0, len(self.stream.labels)))
        if self.before is None:
            return none
        return stack_rows(self.before.numbers, none) if self.joined else self.before.numbers

    @property
    def readable(self) -> StreamDeclaration:
        """The declaration by which rows are legal: those of keys that are about to join are no
        faults."""
        # such keys count as `other` until they join
        if self.awaited is None or rows_of(self.awaited).keys[1]:
            return self.declaration
        return self.declaration.with_query(self.awaited)

    @property
    def composed(self) -> str | None:
        return compose_sentence(self.earlier, self.stream.cost) if self.earlier else None

    @property
    def added(self) -> str | None:
        """What a new stream adds to others over the same events, which nothing keeps account of;
        None for others."""
        if self.before is not None or self.earlier or self.job.ledger is not None:
            return None
        cost = self.stream.cost
        both = compose((cost, cost))
        return (
            "This is a new noise stream: it adds to what other streams over the same events spend. "
            f"Two like it keep epsilon={stated(both.epsilon)}, delta={stated(both.delta)} "
            "together; `ledger` FILE keeps account of all."
        )


def resume(
    job: Job, places: Places, scratch: Path, home: StoreHome | None, cleanup: ExitStack
) -> Run:
    state = read_state(places) if home is None else home.read()
    if home is not None and places.output is not None:
        home.check_output(places.output, job.declaration.name, state)
    earlier = () if state is None else tuple(map(Cost.from_dict, state.earlier))
    restarted, renewing = job.new_noise_stream and state is not None, False
    if restarted and state is not None:
        if job.declaration.carry_caps:
            raise ParameterError(
                "`new_noise_stream` would restart the caps that this stream carries over: omit one "
                "of the two"
            )
        _check_charged(job, state, "the new one")
        earlier, state = (*earlier, _loaded(job, state.stream, home, cleanup).cost), None
    carried = (
        home.carried
        if home is not None
        else CarriedTotals.load(None if state is None else state.carried)
    )
    job = replace(_settled(job, state, home), carried=carried)
    complete = state is not None and _complete(job.declaration, state)
    if job.renew:
        declares = state is None and (home is None or home.live is None)
        _check_renewal(job, home, declares or complete)
    handed_on: Mapping[str, UsedBefore] = {}
    if job.renew and state is not None and complete:
        _check_charged(job, state, "the next one")
        handed_on = _used_caps(job.declaration, state) if job.declaration.carry_caps else {}
        earlier, renewing = (*earlier, job.declaration.build(replay=True).cost), True
        with ExitStack() as own:
            _finish_lake(job, state, _loaded(job, state.stream, home, own), home)
        job, state = _renewed(job, state, home, cleanup), None
    declaration, kept = job.declaration, None if state is None else state.stream
    if state is None and home is not None and home.live is not None and not renewing:  # declared
        kept = home.live.stream.dump()
    stream = _loaded(job, kept, home, cleanup, handed_on)
    if state is not None:
        _finish_lake(job, state, stream, home)
    elif job.lake is not None:
        check_new_writer(job.lake, _lake_name(job, home, renewing), declaration.schedule)
    joined: list[str] = []
    awaited, joins = _awaited_keys(job, stream)
    keyed = job if awaited is None else replace(job, add_keys=())
    # the keys of a renewed stream of a store change with its next run
    if home is None or not renewing:
        joined = stream.add_keys(keyed.add_keys) if keyed.add_keys else []
        if home is not None:
            joined = home.change_keys(keyed) or joined
        elif hidden := [label for label in job.remove_keys if label not in stream.hidden_labels]:
            stream.remove_keys(hidden)
    job = replace(job, declaration=declaration.with_query(stream.query))
    goes_on = False
    try:
        first, stop = _due(job, stream)
        if awaited is not None and joins is not None:
            joined = stream._joining(job.add_keys)[1]
            goes_on = joins < stop
            stop = min(joins, stop)
    except HorizonReached as over:
        # nobody else has what was published
        if state is not None and home is None and job.out is None:
            over.table = Published.of(
                job, stream, state.numbers, state.tables, _known_marks(state, home)
            ).table()
        raise
    if state is not None:
        state.closed.check(first, declaration.schedule)
    publishes = not job.check and stop > first
    return Run(
        job=job,
        places=places,
        scratch=scratch,
        before=state,
        home=home,
        restarted=restarted or renewing,
        renewing=renewing,
        handed_on=handed_on,
        earlier=earlier,
        stream=stream,
        entered=enter(job, stream, state, publishes, renewing, cleanup),
        first=first,
        stop=stop,
        joined=tuple(joined),
        joins=joins,
        awaited=awaited,
        goes_on=goes_on,
        marks=_noted(job, state, home, publishes),
    )


def _awaited_keys(job: Job, stream: Stream) -> tuple[Query | None, int | None]:
    """Return the query with the keys of a job that join later than with the next tick, or None, and
    when keys join.

    **Guarantee.** Keys join at a tick that the operator names, from which on their rows count, and
    have no number before it. Test:
    tests/files/test_join_at_a_date.py::test_keys_join_at_a_date_as_in_two_runs.
    """
    if job.add_keys_from is None or not job.add_keys:
        return None, None
    query, labels = stream._joining(job.add_keys)
    if not labels:
        return None, None
    schedule, next_tick = job.declaration.schedule, stream.tick + 1
    joins = max(1, schedule.tick_of(job.add_keys_from))
    if joins < next_tick:
        raise ParameterError(
            f"`add_keys_from` {schedule.show(job.add_keys_from)}: that day is released, and keys "
            "have no numbers in released ticks. The first tick that they can join begins at "
            f"{schedule.show(schedule.start_of(next_tick))}"
        )
    return (None, joins) if joins == next_tick else (query, joins)


def _finish_lake(job: Job, state: State, stream: Stream, home: StoreHome | None) -> None:
    """Append to the table of a lake what a run that died has left out."""
    if job.lake is not None:
        job = replace(job, declaration=job.declaration.with_query(stream.query))
        fill_lake(
            Published.of(job, stream, state.numbers, state.tables, _known_marks(state, home)), home
        )


def _lake_name(job: Job, home: StoreHome | None, renewing: bool) -> str:
    """Return the name by which a table of a lake will know a new stream; a store names the one that
    goes on anew."""
    named = None if home is None else home.new_name(renewing)
    return job.declaration.name if named is None else named


def _loaded(
    job: Job,
    kept: dict[str, Any] | None,
    home: StoreHome | None,
    cleanup: ExitStack,
    inherited_caps: Mapping[str, UsedBefore] | None = None,
) -> Stream:
    """Load a stream that was kept, or build a new one that begins with the caps it inherits.

    Where a store keeps the stream, this is one beside that of the store.
    """
    declaration, task = job.declaration, home is not None
    if kept is None:
        stream = declaration.build(
            secret=job.secret, task=task, inherited_caps=inherited_caps or {}
        )
    else:
        stream = (TaskStream if task else Stream).load(kept, declaration.period_of)
    cleanup.callback(stream.close)
    return stream


def _used_caps(declaration: StreamDeclaration, state: State) -> Mapping[str, UsedBefore]:
    """Return what persons have used of their caps: a query of persons keeps that in its stream,
    others next to it.

    **Guarantee.** A stream that goes on with `carry_caps` begins with what every person has used in
    all streams of its chain, whatever it counts. Test:
    tests/files/test_carry_caps.py::test_caps_are_those_of_one_stream.
    """
    if declaration.query.people is None:
        return state.users
    return {user: (used[0], used[1]) for user, used in state.stream["users"].items()}


def _check_charged(job: Job, state: State, which: str) -> None:
    """Refuse to follow a stream in a ledger without it, or one that is in none with a ledger."""
    if state.entry is not None and job.ledger is None:
        raise ParameterError(
            f"the stream is in a ledger: give `ledger`, which is charged for {which}, too"
        )
    if state.entry is None and job.ledger is not None and not job.new_noise_stream:
        raise ParameterError(NOT_ENTERED.format("the stream that is renewed", job.ledger))


def _renewed(job: Job, state: State, home: StoreHome | None, cleanup: ExitStack) -> Job:
    """The job of the stream that goes on for the one of a state, with the keys that have joined
    that."""
    carried, asked = None, state.stream["query"]
    if job.carry_totals and home is not None:
        carried = home.totals_at_end()
    elif job.carry_totals:
        old, since = _loaded(job, state.stream, home, cleanup), job.declaration.schedule.begin
        carried = CarriedTotals.after(old._errors, old.tick, state.numbers[-1], since, job.carried)
    counts = build_query(asked["name"], dict(asked["parameters"]))
    return replace(
        job, declaration=job.declaration.with_query(counts).renewed(), secret=None, carried=carried
    )


def _noted(
    job: Job, state: State | None, home: StoreHome | None, publishes: bool
) -> tuple[TickMark, ...]:
    """The notes of earlier runs and, if something is published with them, of this one."""
    notes = job.notes if publishes else ()
    if home is not None:
        return home.note(notes)
    known = list(_known_marks(state, home))
    for note in notes:
        mark = note.on(job.declaration.schedule)
        check_mark(job.declaration, mark, len(known))
        known += [] if mark in known else [mark]
    return tuple(known)


def _known_marks(state: State | None, home: StoreHome | None) -> tuple[TickMark, ...]:
    if home is not None:
        return home.marks
    return () if state is None else tuple(TickMark(*one) for one in state.marks)


def _complete(declaration: StreamDeclaration, state: State) -> bool:
    horizon = declaration.horizon
    return horizon is not None and state.closed.until >= declaration.schedule.start_of(horizon + 1)


def _check_renewal(job: Job, home: StoreHome | None, now: bool) -> None:
    """Refuse to renew by itself what costs more each time, unless a ledger or a cap says how much
    may be spent, and to carry totals over where they do not add up. `now`: the stream is declared,
    or renewed, by this run."""
    declaration = job.declaration
    if job.carry_totals:
        check_carries(declaration.query, declaration.stream_postprocess, declaration.revise_for)
    charged = job.ledger is not None or (home is not None and home.capped)
    if charged or declaration.renews_for_free:
        return
    if declaration.budget.period is None:
        raise ParameterError(
            "a person may be in every year, so each renewal adds to what is spent: give `ledger` "
            "with a `total` that allows for it, protect persons within a `period`, or declare "
            "`carry_caps` from the first year on"
        )
    if now:
        raise ParameterError(_cut_horizon(declaration))


def _cut_horizon(declaration: StreamDeclaration) -> str:
    """Say what is wrong with a horizon that is not a whole number of periods, and which one is."""
    during = declaration.during
    end = None if during is None else during.whole.end
    whole = "" if end is None else f", such as {declaration.schedule.tick_of(end) - 1}"
    return (
        f"the horizon of {declaration.horizon} ticks ends in the middle of a period of "
        f"{declaration.budget.period}: the next stream counts what the same persons do in that "
        "period again, so a renewal adds to what is spent. Choose a `horizon` of whole "
        f"periods{whole}, or give `ledger` with a `total` that allows for it. A stream that has "
        "begun goes on without `renew`; declare its successor with another `out` and a `start` "
        "that is a whole number of periods after this one"
    )


def _settled(job: Job, state: State | None, home: StoreHome | None) -> Job:
    """The job with the noise of the stream that it continues, or of a new one, which is chosen
    here."""
    if state is not None:
        known, first, facts = state.settled, state.first_start, state.output_facts
    elif home is not None and home.live is not None:  # declared, and nothing is released
        known, first, facts = (
            home.live.declaration,
            home.first_start() if home.live.follows else None,
            {},
        )
    else:
        _check_first(job)
        return replace(job, declaration=settle(job.declaration))
    return replace(job, declaration=_continued(job, known, first, facts))


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
            "for ticks of exactly 86,400 seconds write 24h, and a `period` may be a number of "
            "ticks"
        )


def _continued(
    job: Job, known: Settled, first_start: int | None, facts: Mapping[str, object]
) -> Settled:
    """The declaration of a run that goes on with a known stream, or ParameterError where it
    declares another."""
    declaration, schedule = job.declaration, job.declaration.schedule
    if not job.zone_given:
        declaration = declaration.with_schedule(replace(schedule, zone=known.schedule.zone))
    if first_start is not None and set(declaration.query.labels) < set(known.query.labels):
        declaration = replace(declaration, query=known.query)  # keys joined the streams before it
    if first_start is not None and declaration.schedule.start == first_start:
        declaration = declaration.going_on(known.schedule.begin, declaration)
    earliest = declaration.earliest
    changes = differences(known, declaration)
    for name in ("out format", "digits"):
        before, now = (one.get(name, "full") for one in (facts, job.output_facts))
        if before != now:
            changes.append(f"{name} was {before!r} and is now {now!r}")
    if changes:
        if declaration.postprocess != known.postprocess:
            changes.append(
                "post-processing is chosen in the first run, because what is published stays as it "
                f"is: give `postprocess` as it was ({', '.join(known.postprocess) or 'none'}), and "
                "round or clip the numbers where they are read"
            )
        raise ParameterError(
            "this is not the stream in the state: "
            + "; ".join(changes)
            + (
                f". Use the previous parameters to continue it{changed_noise(known, declaration)}. "
                "A new stream is a successor with a later `start` and another `out`; "
                "`new_noise_stream` starts again with these and adds to the spent budget"
            )
        )
    # views may change, but not what an output shows
    if with_noise_of(declaration, known).main_view != known.main_view:
        declaration = replace(declaration, views=(known.main_view, *declaration.views))
    settled = with_noise_of(declaration, known).with_schedule(known.schedule)
    return settled if earliest is None else settled._changed(earliest=earliest)


def _due(job: Job, stream: Stream) -> tuple[int, int]:
    """1-based [first, stop): the ticks to release now."""
    horizon, schedule = stream.horizon, job.declaration.schedule
    if horizon is not None and stream.tick >= horizon:
        raise HorizonReached(horizon, f"{successor_text(stream.cost)} {RESTART}")
    start = job.declaration.first_begin
    if job.end is not None and job.end <= start:
        raise ParameterError(
            f"`end` {schedule.show(job.end)} is not after `start` {schedule.show(start)}"
        )
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
        f"Together with {len(earlier)} earlier noise stream{'s' * (len(earlier) > 1)} over the "
        f"same data: {stated_promise(together)} ({stated_unit(together)})."
    )
