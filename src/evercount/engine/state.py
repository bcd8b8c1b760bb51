"""A stream as a value: frozen parameters, a frozen state, and `advance`, the only place where noise
meets data.

increments ──add──► running sums ──+ noise──► noisy sums ──decode──► published numbers
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np

from evercount._validate import AnyArray, FloatArray, IntArray
from evercount.engine.error_model import ErrorModel
from evercount.engine.release import Release, Releases
from evercount.engine.retries import TickDigest
from evercount.engine.user_counting import UserCaps
from evercount.errors import HorizonReached, ParameterError, PrecisionReached
from evercount.factorizations import Factorization
from evercount.mechanisms import Noise
from evercount.privacy import Budget, Cost, Enforced, TimeRange, guarantee_text, successor_text
from evercount.privacy.guarantee_text import MANUAL
from evercount.queries.base import Query
from evercount.queries.key_counts import Thresholds
from evercount.queries.user_cap import Used, UserState

# numbers of a run that are processed at a time: they stay in the processor's cache
NUMBERS_AT_A_TIME = 1 << 18


# running sums below this, in size, are kept as int64: adding noise to them cannot overflow
NARROW_SUM = 2**62

# int64, or Python's whole numbers (dtype object) where int64 might not hold a sum
RunningSums = AnyArray


Counting = Literal["events", "named", "capped", "by query", "by door"]
"""How a stream accounts for users, in this order: events are protected and users play no part;
every event names its user; the caller promises the cap; the query reads users from the events and
needs no cap; files, the store or Spark have capped what they count."""
Capped = bool | Literal["by door"]
"""Whether the events of a tick are capped already: True is the caller's promise, "by door" is
`close_ticks`."""


@dataclass(frozen=True, eq=False)
class StreamParameters:
    # what is released; it is made of the declared one where that is not `declared` itself
    query: Query
    declared: Query
    budget: Budget
    horizon: int | None
    factorization: Factorization
    noise: Noise
    postprocess: tuple[str, ...]
    replay: bool
    errors: ErrorModel
    thresholds: Thresholds | None = None  # when a key becomes public, where nobody listed the keys
    views: tuple[str, ...] = ("running",)  # what the noise was chosen for
    during: TimeRange | None = None  # the time range whose events it counts
    user_caps: UserCaps | None = None  # what is counted of a user, where users are protected
    revise_for: int | None = None
    """For how many ticks each day is published again; None where the past stays as it was
    published."""
    part: range | None = None  # the cells of the declared query that are released; None for all

    def check_limit(self, tick: int, ticks: int) -> None:
        """Refuse `ticks` more ticks after `tick`: beyond the horizon, or beyond what exact noise
        can do without one."""
        limit = self.noise.limit
        if limit is not None and tick + ticks > limit:
            if self.horizon is None:
                raise PrecisionReached(limit)
            raise self.over()

    def over(self) -> HorizonReached:
        """The refusal of a tick beyond the horizon, with what the next stream would cost."""
        assert self.horizon is not None
        endless = "Next time, horizon=None is a stream without end."
        return HorizonReached(self.horizon, f"{successor_text(self.cost)} {endless}")

    @property
    def cost(self) -> Cost:
        """What the stream costs: its budget, how much of δ no noise pays for, and when.

        **Guarantee.** A query that knows more of the past than the events of its own stream has no
        time range here, so that it is never charged as a successor. Test:
        `tests/engine/test_successor_streams.py::test_a_query_that_knows_the_past_is_no_successor`.
        """
        during = self.during if self.query.starts_empty else None
        return Cost(self.budget, self.noise.numeric_delta, during, self.noise.unseen)

    @cached_property
    def dumped(self) -> dict[str, Any]:
        """Their part of a snapshot, which every tick of a service writes."""
        part = None
        if self.part is not None:
            part = [self.part.start, self.part.stop]
        return {
            "query": {"name": self.declared.name, "parameters": self.declared.parameters()},
            "budget": self.budget.to_dict(),
            "horizon": self.horizon,
            "factorization": self.factorization.spec,
            "views": list(self.views),
            "during": None if self.during is None else self.during.to_list(),
            "postprocess": list(self.postprocess),
            "part": part,
            "revise_for": self.revise_for,
            "joined": [list(one) for one in self.errors.joined],
        }

    def releases(self, first_tick: int, rows: PublishedRows, counting: Counting | None) -> Releases:
        sentence = guarantee_sentence(self.budget, enforced_by(self.query, counting), self.replay)
        rows.values.flags.writeable = False  # what is published stays as it is
        return Releases(
            first_tick, rows.values, self.errors, sentence, self.postprocess, rows.sums, rows.labels
        )


@dataclass(frozen=True, eq=False)
class PublishedRows:
    """Published numbers, shape (ticks, outputs), and the noisy sums behind them where their errors
    need these. Where keys are discovered, `labels` are those of all these ticks, and numbers that a
    tick does not publish are NaN."""

    values: FloatArray
    sums: FloatArray | None
    labels: Sequence[str] | None = None


@dataclass(frozen=True, eq=False)
class StreamState:
    """All that changes from tick to tick, but for the noise, which is a function of the tick. A
    step makes a new state and puts it in the place of the old one: a step that fails leaves the old
    one as it was. Encoders with `Query.in_place` change `encoder` themselves, after all checks;
    `Stream` then refuses to go on if it was interrupted there."""

    tick: int
    totals: RunningSums  # exact running sums, in grid units
    encoder: Any
    highest: FloatArray | None = None  # the largest published numbers, for monotone releases
    users: UserState = field(default_factory=dict)
    """What each user has used of the caps in this period, without what `last_users` says. Shared by
    successive states: see `with_users`."""
    # users whose entry the last ticks changed
    last_users: Mapping[str, Used] = field(default_factory=dict)
    counting: Counting | None = None
    # what the last step was given and what it released, for a retry
    last: tuple[TickDigest, Release] | None = None
    hidden: tuple[int, ...] = ()  # places of published numbers that are not shown any more

    @classmethod
    def initial(cls, query: Query) -> StreamState:
        return cls(0, np.zeros(query.cells, np.int64), query.initial_state())

    def with_users(self) -> StreamState:
        """The same state with the changes of the last ticks written into `users`. Entries are
        absolute, so writing them twice does no harm; that is why an interruption does none."""
        if not self.last_users:
            return self
        self.users.update(self.last_users)
        return replace(self, last_users={})


Advanced = tuple[PublishedRows, StreamState]  # what ticks publish, and the stream after them


def advance(
    parameters: StreamParameters, state: StreamState, increments: IntArray, *, encoder: Any
) -> Advanced:
    size = max(1, NUMBERS_AT_A_TIME // parameters.query.cells)
    if len(increments) <= size:
        rows, state = _advance_block(parameters, state, increments)
        return rows, replace(state, encoder=encoder)
    values = np.empty((len(increments), parameters.query.outputs))
    sums = []
    for start in range(0, len(increments), size):
        rows, state = _advance_block(parameters, state, increments[start : start + size])
        values[start : start + size] = rows.values
        if rows.sums is not None:
            sums.append(rows.sums)
    rows = PublishedRows(values, np.concatenate(sums) if sums else None)
    return rows, replace(state, encoder=encoder)


def _advance_block(
    parameters: StreamParameters, state: StreamState, increments: IntArray
) -> Advanced:
    """Release some ticks at once: add noise to the running sums, decode and post-process them."""
    query = parameters.query
    noise = parameters.noise.stream
    sums, totals = _running_sums(state, increments, query.lags)
    drawn = noise.rows(state.tick + 1, len(increments))
    # whole numbers are added as such, and doubles are made of the sums: what these round is what is
    # published
    noisy = (drawn + sums).astype(np.float64)
    if query.grid != 1.0:
        noisy *= query.grid
    published = query.decode_run(state.tick + 1, noisy)
    published, highest = postprocessed(parameters.postprocess, published, state.highest)
    if state.hidden:
        published = published.copy()
        published[:, list(state.hidden)] = np.nan
    after = replace(state, tick=state.tick + len(increments), totals=totals, highest=highest)
    if query.publishing.kept is None:
        return PublishedRows(published, None), after
    return PublishedRows(published, noisy), after


def _running_sums(
    state: StreamState, increments: IntArray, lags: int
) -> tuple[RunningSums, RunningSums]:
    """Exact running sums, and the last of them; with lags, those of each of the last days.

    **Guarantee.** They are exact whatever their size. So noise in whole grid units is added to an
    exact sum, and what is published is a function of that number alone: neither an overflow nor a
    rounding of the sum before the noise can widen the difference of two neighbours. Test:
    tests/engine/test_large_sums.py::test_sums_beyond_64_bits_are_published_as_they_are.
    """
    if (
        state.totals.dtype != object
        and _size(state.totals) + len(increments) * _size(increments) < NARROW_SUM
    ):
        return _add_up(state.totals, increments, lags)
    sums, totals = _add_up(state.totals.astype(object), increments.astype(object), lags)
    if _size(totals) < NARROW_SUM:
        totals = totals.astype(np.int64)
    return sums, totals


def _size(numbers: RunningSums) -> int:
    """The largest of some numbers, in size; 0 of none."""
    if numbers.size:
        return max(int(numbers.max()), -int(numbers.min()))
    return 0


def _add_up(
    before: RunningSums, increments: RunningSums, lags: int
) -> tuple[RunningSums, RunningSums]:
    """The running sums of the next ticks, and the last of them; `before` are the sums so far. With
    lags, each day's sums move on by one lag at every tick: the oldest day leaves, and a new one
    begins with 0."""
    if lags > 1:
        sums = increments.copy()
        cells = len(before) // lags
        for row in sums:
            row[cells:] += before[:-cells]
            before = row
        return sums, before.copy()
    sums = np.cumsum(increments, axis=0)
    sums += before
    if not len(sums):
        return sums, before
    return sums, sums[-1].copy()


def postprocessed(
    names: tuple[str, ...], published: FloatArray, highest: FloatArray | None
) -> tuple[FloatArray, FloatArray | None]:
    """The declared post-processing, in the order nonnegative, integer, monotone, and the largest
    numbers so far."""
    if "nonnegative" in names:
        published = np.maximum(published, 0.0)
    if "integer" in names:
        published = np.rint(published)
    if "monotone" in names:
        published = np.maximum.accumulate(published, axis=0)
        if highest is not None:
            published = np.maximum(published, highest)
        if len(published):
            highest = published[-1].copy()
    return published, highest


def choose_counting(
    budget: Budget, before: Counting | None, named: bool, capped: Capped, query: Query
) -> Counting:
    """How a tick accounts for users; ParameterError where that does not fit the budget, or the
    ticks `before` it.

    **Guarantee.** A tick of a user-level stream names its users, or the caller has promised the cap
    and every release states that. Test:
    tests/engine/test_user_counting.py::test_a_user_level_tick_names_users_or_promises_the_cap.
    """
    if budget.unit != "user":
        if named or capped:
            raise ParameterError(
                "users are given but the budget protects events; use Budget(..., unit='user')"
            )
        return "events"
    if capped is True and query.lags > 1:
        raise ParameterError(
            "name the users of a revised stream, lag by lag: it keeps their caps day by day"
        )
    if query.people is not None:
        if named or capped:
            raise ParameterError("the events of this query are their users: omit users and capped")
        return "by query"
    if named and capped:
        raise ParameterError(
            "give users, and the stream caps their events, or capped=True if you have; not both"
        )
    if before is not None and named != (before == "named"):
        habit = "names users" if before == "named" else "does not name users"
        raise ParameterError(
            f"this stream {habit} from its first tick on, so every tick must do the same: the caps "
            "look at earlier ticks"
        )
    if named:
        return "named"
    if capped:
        if capped == "by door" and before != "capped":
            return "by door"
        return "capped"
    raise ParameterError(
        "the budget protects users, so every tick names them: step(events, users=...), run(ticks, "
        "users=...). Or count no more of each user than the budget's caps yourself and say so with "
        "capped=True; the guarantee will say that you promised it"
    )


def enforced_by(query: Query, counting: Counting | None) -> Enforced:
    """Who keeps to the cap of users: evercount, unless the caller has promised it or the query
    needs none. It means nothing where events are protected."""
    if query.lags > 1:
        return "revised"
    if counting != "events" and query.people is not None:
        return "query"
    if counting == "capped":
        return "caller"
    return "evercount"


@lru_cache(maxsize=256)
def guarantee_sentence(budget: Budget, enforced: Enforced, replay: bool, tick: str = MANUAL) -> str:
    """What all releases of a stream promise, and whether they may be published at all."""
    sentence = guarantee_text(budget, enforced, tick).sentence
    if replay:
        return f"{sentence} This is a replay of another stream's noise: do not publish."
    return sentence
