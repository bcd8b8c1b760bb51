"""The parts of a stream: its way of counting, its noise, and the refusal of what does not fit."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np

from evercount._validate import check_name
from evercount.errors import ParameterError, SnapshotError, UnknownName
from evercount.factorizations import (
    BUILT_IN,
    FACTORIZATIONS,
    Dense,
    Direct,
    Factorization,
    Fresh,
    Periods,
    factorization,
)
from evercount.factorizations.blend import Blend, BlendFilter, TappedBlend, make_blend
from evercount.factorizations.dense import as_dense
from evercount.factorizations.fit_blend import fit_blend
from evercount.factorizations.fit_terrace import fit_terrace
from evercount.factorizations.laplace_bridge import UNITS, Bridge
from evercount.factorizations.laplace_choice import EndlessBridge, pure_factorization
from evercount.factorizations.participation import participation, participation_of_two
from evercount.factorizations.terrace import NAME as TERRACE
from evercount.factorizations.terrace import SHARES, Levels, Terrace
from evercount.mechanisms import Noise, build_noise
from evercount.mechanisms.laplace_noise import build_pure, unit_rate
from evercount.mechanisms.noise_stream import Cohort, JoinedNoise, cohort_states
from evercount.privacy import Adjacency, Budget, TimeRange, Unit
from evercount.queries.base import Query, is_replace
from evercount.queries.sensitivities import bounded, protected_l1

RUNNING, PER_TICK = "running", "per-tick"
Names = tuple[str, ...]  # names of views, or of steps of post-processing
LAST = re.compile(r"last-([1-9][0-9]{0,8})")


@dataclass(frozen=True)
class Decayed:
    """A sum of all ticks so far, in which a tick counts `factor` times what the next one does."""

    factor: float

    @property
    def alike(self) -> int:
        """The ticks of the sum of equal weights that noise is fitted to in its place."""
        return max(1, round(1 / (1 - self.factor)))


DECAYED = re.compile(r"decayed-(0\.[0-9]{1,6})")
Weighting = int | Decayed | None


def view_weighting(name: str) -> Weighting:
    """As `view_width`; or how a decayed sum falls.

    >>> view_weighting("decayed-0.9"), view_weighting("last-7")
    (Decayed(factor=0.9), 7)
    """
    match = DECAYED.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        return view_width(name)
    if float(match[1]) == 0:
        raise ParameterError(f"{name!r} counts the last tick alone: write 'per-tick'")
    return Decayed(float(match[1]))


def fitted_width(name: str) -> int | None:
    """The ticks that noise for this view is fitted to."""
    weighting = view_weighting(name)
    if isinstance(weighting, Decayed):
        return weighting.alike
    return weighting


def view_width(name: str) -> int | None:
    """How many ticks a view adds up; None for all so far.

    >>> view_width("last-7"), view_width("per-tick"), view_width("running")
    (7, 1, None)
    """
    if name == RUNNING:
        return None
    if name == PER_TICK:
        return 1
    match = LAST.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        raise UnknownName("view", name, (RUNNING, PER_TICK, "last-7"))
    return int(match[1])


FITTED_TICKS = 2**30
"""Ticks that a blend without a horizon is fitted to (34 years of seconds). Later it stays private,
with more error."""
POSTPROCESSES = ("nonnegative", "integer", "monotone")


Spec = str | Mapping[str, Any]
"""A factorization by name, or the public numbers of a fitted one or of matrices
(`Factorization.spec`)."""
TRUSTED = (*(FACTORIZATIONS[name] for name in BUILT_IN), Periods, Blend, TappedBlend, Dense)
"""Classes whose norms are proved; instances of others run as the matrices that they claim."""


def choose_engine(
    query: Query,
    budget: Budget,
    horizon: int | None,
    name: Spec | Factorization | None,
    views: Names = (RUNNING,),
) -> Factorization:
    """The factorization that a query runs on.

    Without a name it is `direct` where one event moves values so little that its exact worst error
    is smaller. A bridge whose noise is narrower than the grid gets whole coefficients
    (`Bridge.for_rate`).
    """
    if isinstance(name, Factorization) or (isinstance(name, Mapping) and "left" in name):
        return _own(budget, horizon, name)
    if name == TERRACE or (isinstance(name, Mapping) and name.get("name") == TERRACE):
        return _terrace(query, budget, horizon, name, views)
    if not isinstance(name, str | None) or name == "blend":
        return _blend(query, budget, horizon, name, views)
    engine: Factorization
    if budget.pure:
        engine = pure_factorization(name, horizon)
    else:
        engine = factorization(name, horizon)
    if isinstance(engine, Bridge | EndlessBridge):
        l1 = protected_l1(query, budget, horizon)
        return engine.for_rate(unit_rate(budget.epsilon, l1, query.grid, UNITS) * UNITS)
    if (
        budget.pure
        or name is not None
        or horizon is None
        or query.squared_value_sensitivity(budget.adjacency) is None
    ):
        return engine
    return min(engine, Direct(horizon), key=lambda one: _worst_error(one, query, budget))


def _own(
    budget: Budget, horizon: int | None, given: Factorization | Mapping[str, Any]
) -> Factorization:
    """Check a factorization that is given as an object, or as the matrices of a snapshot.

    **Guarantee.** Nothing but `TRUSTED` classes themselves is taken at its word. Test:
    tests/engine/test_own_factorization.py::test_claims_are_not_trusted.
    """
    if budget.pure:
        raise ParameterError("a factorization of your own has Gaussian noise: it needs delta > 0")
    if isinstance(given, Mapping):
        if set(given) != {"name", "left", "right"}:
            raise ParameterError("matrices are stored as {name = ..., left = ..., right = ...}")
        given = Dense(given["left"], given["right"], given["name"])
    if type(given) not in TRUSTED:
        return as_dense(given, horizon)
    if given.horizon != horizon:
        raise ParameterError(
            f"{given.name!r} has {given.horizon} ticks and the stream {horizon}: they must agree"
        )
    return given


def _blend(
    query: Query, budget: Budget, horizon: int | None, name: Spec, views: Names
) -> Blend | TappedBlend:
    """Make the blend of stored numbers, or fit one to the views and the ticks that a unit fills."""
    check_blend(budget)
    if not isinstance(name, str):
        if name.get("name") != "blend":
            raise ParameterError(
                "a fitted factorization is stored as {name = 'blend', poles = [...], zeros = [...]}"
            )
        return make_blend(
            horizon, BlendFilter.from_dict({key: name[key] for key in name if key != "name"})
        )
    widths = tuple(fitted_width(view) or RUNNING for view in views)
    span = budget.touched(horizon).span
    return make_blend(
        horizon, _fitted(widths, horizon or FITTED_TICKS, full_ticks(query, budget, horizon), span)
    )


_fitted = lru_cache(maxsize=64)(fit_blend)


def check_blend(budget: Budget) -> None:
    if budget.pure:
        raise ParameterError(
            "'blend' is for Gaussian noise; with delta=0 omit it or use 'fresh' or 'bridge'"
        )


def _terrace(
    query: Query, budget: Budget, horizon: int | None, name: Spec, views: Names
) -> Terrace:
    """Make the terrace of stored numbers, or fit one to the views."""
    if not budget.pure:
        raise ParameterError("'terrace' is Laplace noise: it needs delta=0")
    rate = (
        unit_rate(budget.epsilon, protected_l1(query, budget, horizon), query.grid, SHARES) * SHARES
    )
    if not isinstance(name, str):
        numbers = {key: value for key, value in name.items() if key != "name"}
        return Terrace(horizon, Levels.from_dict(numbers), rate)
    widths = tuple(fitted_width(view) for view in views)
    return fit_terrace(horizon, widths, rate, query.cells)


def full_ticks(query: Query, budget: Budget, horizon: int | None) -> int:
    """The ticks that a unit fills in the worst case, for which a blend is fitted; 1 where noise is
    for single ones."""
    if query.memoryless:
        return budget.touched(horizon).full_ticks or 1
    return 1


def _worst_error(engine: Factorization, query: Query, budget: Budget) -> float:
    """The largest std of a cell over all ticks, for a noise multiplier of 1, and users of one
    event."""
    S = _smallest_sensitivity(
        engine, query, budget.adjacency, budget.unit, budget.period is not None
    )
    return float(np.sqrt(S)) * engine.column_norm * engine.worst_row()[1]


def sensitivity_on(
    engine: Factorization,
    query: Query,
    adjacency: Adjacency,
    unit: Unit = "event",
    period: bool = False,
) -> float:
    """S with ‖R(X−X′)‖_F² ≤ c²·S for this query on this factorization: of one event, or of a user
    whom events name.

    **Guarantee.** The query's smaller S is taken only where the Gram matrix is known to fall, and
    its v² only where R is the running-count matrix, whose c² is T. Tests:
    tests/queries/test_queries_matching.py::test_smaller_claim_is_used_only_where_it_is_proved,
    tests/queries/test_queries_values.py::test_values_are_claimed_only_for_direct_noise and
    tests/queries/test_queries_occupancy.py::test_smaller_claims_are_used_only_where_they_are_proved.
    """
    S = _smallest_sensitivity(engine, query, adjacency, unit, period)
    if math.isinf(S):
        capped = ""
        if query.people is not None:
            capped = ", or cap the events of a user that the query counts"
        raise ParameterError(
            f"one {unit} can change {query.name!r} again and again in this kind of stream, so "
            "noise for its increments is not private: give a horizon and omit the factorization "
            f"(or name 'direct'){capped}"
        )
    return S


def _smallest_sensitivity(
    engine: Factorization, query: Query, adjacency: Adjacency, unit: Unit, period: bool
) -> float:
    """The smallest S that is proved for this query on this factorization; infinite where none
    is."""
    if unit == "user" and query.people is not None:
        own = query.people.user_sensitivity
        values = engine.releases_values
        return own(adjacency, period, falling=engine.falling_gram, values=values)
    candidates = [query.squared_sensitivity(adjacency)]
    if engine.falling_gram:
        candidates.append(query.falling_sensitivity(adjacency) or math.inf)
    if engine.releases_values:
        candidates.append(query.squared_value_sensitivity(adjacency) or math.inf)
    return min(candidates)


def squared_norm(engine: Factorization, query: Query, budget: Budget, horizon: int | None) -> float:
    """Δ² with ‖R(X−X′)‖_F² ≤ Δ² for all neighbours of the budget, after the caps.

    **Guarantee.** Let N events of one unit count, at most m in each of q ticks. N single changes
    cost at most c²·S·N². Where an event changes its own tick alone, X−X′ has at most q rows, each
    of norm m·√S, so it costs at most m²·S·B_q (`factorizations/participation.proof.md`), and the
    worst case fills ⌈N/m⌉ of them. Queries that name users have their own S: of all that a user
    does, or of each of its q ticks. Proof: `queries/user_cap.proof.md`, Theorems 3 and 4. Tests:
    tests/engine/test_unit_noise.py::test_no_neighbours_beat_the_norm (all patterns of small
    streams) and tests/engine/test_unit_noise.py::test_planted_norms_are_caught.
    """
    unit = budget.touched(horizon)
    adjacency = budget.adjacency
    people = None
    if budget.unit == "user":
        people = query.people
    if people is not None:
        if not people.each_tick:
            return (
                sensitivity_on(engine, query, adjacency, "user", budget.period is not None)
                * engine.column_norm**2
            )
        ticks = bounded("ticks", budget, horizon)
        return people.user_sensitivity(adjacency) * ticks_of_unit(
            engine, query, budget, ticks, unit.span
        )
    events = bounded("events", budget, horizon)
    whole = sensitivity_on(engine, query, adjacency) * events**2 * engine.column_norm**2
    if not query.memoryless or (events == 1 and not isinstance(engine, Dense)):
        return whole  # for one event B_1 is smaller only where Gram entries are negative
    each = query.squared_sensitivity(adjacency) * (unit.per_tick or events) ** 2
    return min(whole, each * participation(engine, unit.full_ticks or events, unit.span))


def ticks_of_unit(
    engine: Factorization, query: Query, budget: Budget, ticks: int, span: int | None
) -> float:
    """B for a unit of so many ticks. Users whom events name are replaced by another id, whose ticks
    are others."""
    elsewhere = query.people is not None and budget.unit == "user" and is_replace(budget.adjacency)
    cost = participation_of_two if elsewhere else participation
    return cost(engine, ticks, span)


def make_noise(
    query: Query,
    engine: Factorization,
    budget: Budget,
    horizon: int | None,
    *declared: Any,
    **rest: Any,
) -> Noise:
    """The noise of a stream: Laplace on a pure tree where δ = 0, else Gaussian through the
    factorization.

    Its key belongs to the whole declaration (`mechanisms.declared_key`) and to the time range: the
    same declaration for the next year has independent noise. `declared` is what else
    `noise_declaration` takes.
    """
    rest["declaration"] = noise_declaration(query, budget, horizon, *declared)
    if query.discovery is not None and isinstance(engine, Fresh) != query.publishing.own_ticks:
        raise ParameterError(
            "unlisted keys have 'fresh' noise if, and only if, views=['per-tick'] is all that is "
            "published: omit the factorization"
        )
    if budget.pure:
        l1 = protected_l1(query, budget, horizon)
        pure = partial(
            build_pure, engine, cells=query.cells, grid=query.grid, l1=l1, epsilon=budget.epsilon
        )
        return _all_cohorts(pure, **rest)
    own = 0.0
    cells = query.cells
    names = None
    if query.discovery is not None:
        own = query.discovery.own_delta(budget)
        cells = query.discovery.touched_cells(budget, horizon)
        names = query.discovery.first_names
    build = partial(
        build_noise,
        engine,
        cells=cells,
        names=names,
        grid=query.grid,
        sensitivity=math.sqrt(squared_norm(engine, query, budget, horizon)),
        budget=budget.reserve(own) if own else budget,
        horizon=horizon,
        # one event may change several ticks
        touched=bounded("ticks", budget, horizon) if query.memoryless else None,
    )
    noise = _all_cohorts(build, **rest)
    if own:
        return replace(noise, numeric_delta=noise.numeric_delta + own, unseen=own)
    return noise


def noise_declaration(
    query: Query,
    budget: Budget,
    horizon: int | None,
    postprocess: Names = (),
    views: Names = (RUNNING,),
    during: TimeRange | None = None,
    periods: Sequence[int] = (),
) -> dict[str, Any]:
    """What the key of a stream's noise belongs to: all that decides what is counted, and what noise
    that gets.

    `periods` is where the first periods of persons end, where the time range has no name for them.

    **Guarantee.** Whatever of it differs, the noise is independent. Tests:
    tests/declarations/test_noise_key.py, which walks over the arguments of every part of a
    declaration.
    """
    declared: dict[str, Any] = {
        "query": query.identity(),
        "budget": budget.to_dict(),
        "horizon": horizon,
        "noise": "exact",
        "grid": float(query.grid).hex(),
        "postprocess": postprocess,
    }
    # what has its default is not named: keys of streams that were declared before it was there stay
    if views != (RUNNING,):
        declared["views"] = views
    if during is not None:
        declared["range"] = during.key
    if periods:
        declared["periods"] = periods
    return declared


def _all_cohorts(
    build: Callable[..., Noise],
    dumped: dict[str, Any] | None = None,
    part: range | None = None,
    **source: Any,
) -> Noise:
    """The noise, or that of all cohorts of a dump in which cells have joined: each is a part of the
    cells.

    **Guarantee.** All cohorts are calibrated to the query with all cells, or refused: `build`
    compares σ (and Δ₁) with what that needs. Test:
    tests/engine/test_add_keys.py::test_keys_that_need_more_noise_are_refused.
    """
    if dumped is None or "joined" not in (dumped["state"] or ()):
        return build(dumped=dumped, part=part, **source)
    cohorts = []
    noises = []
    for cells, base, state in cohort_states(dumped["state"]):
        noises.append(build(dumped={**dumped, "state": state}, part=cells, **source))
        cohorts.append(Cohort(noises[-1].stream, len(cells), base))
    if len({noise.stream.tick for noise in noises}) > 1:
        raise SnapshotError("the noise state is damaged: its cells are at different ticks")
    limits = [noise.limit for noise in noises if noise.limit is not None]
    return replace(noises[0], stream=JoinedNoise(cohorts), limit=min(limits, default=None))


def check_postprocess(names: Iterable[str]) -> Names:
    """The names in their fixed order, or UnknownName."""
    given = (names,) if isinstance(names, str) else tuple(names)
    for name in given:
        check_name("post-processing", name, POSTPROCESSES)
    return tuple(name for name in POSTPROCESSES if name in given)
