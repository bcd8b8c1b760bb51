"""Plans for rare events, for keys that nobody listed, and of what a stream costs a machine.

Rare events: the sparse counter next to plain counters. Keys: which count makes a key public, and
how likely a count is seen. Costs: time per tick and state on disk are measured here and now, on a
stream of at most `MEASURED_CELLS` cells with the same noise, and scaled to all cells; memory of
`evercount release` is a formula, which `benchmarks/bench_release_memory.py` compares with the
resident memory of real runs.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from evercount.bounds.tails import simultaneous_radius
from evercount.engine.noise_choice import check_noise_for, choose_noise
from evercount.engine.snapshot_format import pack
from evercount.engine.stream import Stream
from evercount.engine.worst_errors import REFERENCE_TICKS, planned_errors
from evercount.errors import ParameterError
from evercount.factorizations.laplace_choice import PURE, PURE_ENDLESS, pure_factorization
from evercount.planning.compare import BETA, compared_ticks, plan
from evercount.privacy import Budget
from evercount.queries import Count, Histogram, Query
from evercount.sparse.budget_split import plan_sparse
from evercount.sparse.sparse_plan import SparsePlan, named_radius

ONES = tuple(digit * 10**power for power in range(6) for digit in (1, 3))
"""Numbers of events at which a sparse counter is compared."""


@dataclass(frozen=True)
class SparseComparison:
    """A sparse counter next to the plain ones. Every bound holds for all ticks together with
    probability 95 %."""

    split: SparsePlan  # how a counter by partition shares ε, with its thresholds and segments
    # over how many ticks bounds are compared: the horizon, or those that were asked for where there
    # is none
    ticks: int
    method: str  # what a `SparseCount` of these parameters does: it takes the least of the bounds
    # of the partition into segments with at most `max_ones` events; None where that is unknown
    bound: float | None
    plain: dict[str, float]  # bounds of plain counters by mechanism, least first
    ones: list[int]
    bounds: list[float]
    """Of the sparse counter, for each of `ones`: promised as max_ones, or (max_ones unknown) come
    so far."""
    wins: tuple[int, int] | None
    """The first and the last of `ones` for which the sparse counter has the least bound; None: for
    none of them."""

    @property
    def best_plain(self) -> float:
        """The bound that a sparse counter must beat."""
        return min(self.plain.values())

    def to_dict(self) -> dict[str, Any]:
        return {"query": "sparse-count", "guarantee": self.split.sentence(), **asdict(self)}


def plan_sparse_count(
    budget: Budget,
    horizon: int | None,
    max_ones: int | None = None,
    *,
    names: tuple[str, ...] | None = None,
    ticks: int | None = None,
) -> SparseComparison:
    """`SparseCount` next to the plain counters for this budget and horizon: proved simultaneous
    bounds of all of them.

    Without a horizon all are compared over `ticks` ticks, 2^20 by default; thresholds are then
    those of tick 1.

    Plain counters: as `plan` states them, for δ = 0 by the tails of each tick's own coefficients,
    as the sparse counter's own (`bounds/tails.py`).
    """
    if budget.adjacency != "add-remove" or budget.unit != "event":
        raise ParameterError(
            "sparse-count protects one event more or less: adjacency add-remove and unit event"
        )
    if budget.calibration != "tight":
        raise ParameterError(
            f"sparse-count has tight noise only, got calibration {budget.calibration!r}"
        )
    span = compared_ticks(horizon, ticks)
    split = plan_sparse(budget.epsilon, horizon, budget.delta, max_ones, BETA, "partition")
    plain = _plain_counters(budget, horizon, span, names)

    def sparse(ones: int) -> float:
        if max_ones is None:
            return split.bound(ones, span)
        promised = plan_sparse(budget.epsilon, horizon, budget.delta, ones, BETA, "partition")
        return promised.bound_without_promise(ticks=span)

    bounds = [sparse(ones) for ones in ONES]
    rivals = [min(*plain.values(), math.inf if max_ones is None else ones / 2) for ones in ONES]
    least = [ones for ones, bound, rival in zip(ONES, bounds, rivals, strict=True) if bound < rival]
    return SparseComparison(
        split,
        ticks=span,
        method=plan_sparse(budget.epsilon, horizon, budget.delta, max_ones, BETA).method,
        bound=None if max_ones is None else split.bound_without_promise(ticks=span),
        plain=dict(sorted(plain.items(), key=lambda item: item[1])),
        ones=list(ONES),
        bounds=bounds,
        wins=(least[0], least[-1]) if least else None,
    )


def _plain_counters(
    budget: Budget, horizon: int | None, ticks: int, names: tuple[str, ...] | None
) -> dict[str, float]:
    """Bound the errors of the counters without partition, over these ticks together."""
    if not budget.pure:
        compared = plan(budget, horizon, names=names, ticks=ticks if horizon is None else None)
        return {row.name: row.simultaneous for row in compared.rows}
    if horizon is not None:
        return {name: named_radius(name, horizon, budget.epsilon, BETA) for name in names or PURE}
    return {
        name: simultaneous_radius(pure_factorization(name, None), budget.epsilon, BETA, ticks)
        for name in names or PURE_ENDLESS
    }


# about how many discovery ticks are looked at; one for keys of the day, whose ticks are alike
POINTS = 6
CHANCES = (0.5, 0.95, 0.999)  # chances for which the needed count is stated


@dataclass(frozen=True)
class DiscoveryTick:
    """One discovery tick: its threshold, the counts that are seen with `CHANCES`, and the chances
    of given counts. A key that passed at an earlier tick stays public, so chances are at least
    these."""

    tick: int
    threshold: int
    std: float
    needed: tuple[int, ...]
    visible: tuple[float, ...]


@dataclass(frozen=True)
class DiscoveryPlan:
    """What discovery will list, computed from public parameters only."""

    factorization: str
    delta_1: float
    delta_2: float
    minimum: int
    counts: tuple[int, ...]
    ticks: tuple[DiscoveryTick, ...]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def plan_discovery(
    budget: Budget,
    horizon: int | None,
    query: Query,
    counts: Sequence[int] = (),
    views: Sequence[str] = (),
) -> DiscoveryPlan | None:
    """The thresholds of a stream before it starts; None for queries whose keys are listed."""
    names = check_noise_for(query, views)
    query = query.for_views(names)
    if query.discovery is None:
        return None
    budget, engine = choose_noise(query, budget, horizon, None, names)
    errors, _ = planned_errors(query, budget, horizon, engine)
    thresholds = query.discovery.thresholds(budget, horizon, errors.unrounded_std)
    last = 1
    if not query.publishing.own_ticks:
        last = (horizon or REFERENCE_TICKS) // thresholds.every
    numbers = np.unique(np.rint(np.geomspace(1, last, POINTS)).astype(np.int64)) * thresholds.every
    ticks = tuple(
        DiscoveryTick(
            tick,
            thresholds.at(tick),
            float(thresholds.std(np.asarray([tick]))[0]),
            tuple(thresholds.needed(chance, tick) for chance in CHANCES),
            tuple(thresholds.visible(count, tick) for count in counts),
        )
        for tick in numbers.tolist()
    )
    delta_1 = budget.delta - query.discovery.own_delta(budget)
    return DiscoveryPlan(
        engine.name, delta_1, thresholds.delta, thresholds.minimum, tuple(counts), ticks
    )


MEASURED_CELLS = 20_000
MEASURED_TICKS = 65  # more than the ticks of the longest block of noise
MEMORY_OF_THE_PROGRAM = 190_000_000
"""Bytes that `release` takes for a small file and few cells: Python, numpy, DuckDB. Large files
take up to 600 MB."""
# bytes per cell besides the noise: its key in every form, a released row, its text
MEMORY_PER_CELL = 880
# how often the noise's state per cell is in memory at once, at most, while it is written
COPIES_OF_NORMAL_STATE = 2.5
MEMORY_PER_REDRAWN_CELL = 70  # bytes per cell of Laplace noise: it is drawn again, not kept
LEAST_ENDLESS_MEMORY = 295_000_000
"""Bytes while the tables of normal noise without a horizon are built; they do not depend on the
cells."""
MORE_FOR_ENDLESS = 25_000_000
BYTES = {"GB": 1e9, "MB": 1e6, "KB": 1e3, "B": 1.0}
SECONDS = {"s": 1.0, "ms": 1e-3, "µs": 1e-6}


@dataclass(frozen=True)
class Resources:
    """What a stream costs: resident bytes of `evercount release`, bytes of the state on disk at its
    largest in the first ticks, without users, and the time to close a tick on this machine."""

    cells: int
    memory: int
    state: int
    seconds_per_tick: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        cells = "1 cell" if self.cells == 1 else f"{self.cells:,} cells"
        memory = _format(self.memory, BYTES)
        state = _format(self.state, BYTES)
        return (
            f"For {cells}, about: memory of release {memory}, "
            f"state on disk {state}, time per tick {_format(self.seconds_per_tick, SECONDS)} on "
            "this machine."
        )


def release_memory(cells: int, state_bytes: int, pure: bool = False, endless: bool = False) -> int:
    """Resident bytes of `evercount release`. Test:
    `tests/planning/test_resources.py::test_a_plan_states_what_is_used`.

    >>> release_memory(10**6, 72)
    1250000000
    """
    if pure:
        return round(MEMORY_OF_THE_PROGRAM + cells * (MEMORY_PER_CELL + MEMORY_PER_REDRAWN_CELL))
    needed = round(
        MEMORY_OF_THE_PROGRAM + cells * (MEMORY_PER_CELL + COPIES_OF_NORMAL_STATE * state_bytes)
    )
    if endless:
        return max(LEAST_ENDLESS_MEMORY, needed + MORE_FOR_ENDLESS)
    return needed


def measure_resources(query: Query, budget: Budget, horizon: int | None) -> Resources:
    """Measure a stream with the default mechanism; only the number of cells of the query
    matters."""
    sample = min(query.cells, MEASURED_CELLS)
    plain = Budget(budget.epsilon, budget.delta, calibration=budget.calibration)
    rows = np.zeros((1, sample), np.int64)
    ticks = MEASURED_TICKS if horizon is None else min(MEASURED_TICKS, horizon)
    seconds = 0.0
    with Stream(Count() if sample == 1 else Histogram(sample), plain, horizon) as stream:
        for tick in range(ticks):
            began = time.perf_counter()
            stream.run_totals(rows)
            seconds += time.perf_counter() - began
            if not tick:  # noise for the next ticks was drawn ahead: the state is never larger
                state = len(pack(stream.dump()))
        per_cell = stream.factorization.state_bytes
    scale = query.cells / sample
    texts = 2 * len(pack({"query": query.parameters()}))  # in the declaration and in the stream
    memory = release_memory(query.cells, per_cell, budget.delta == 0, horizon is None)
    return Resources(query.cells, memory, round(state * scale) + texts, seconds / ticks * scale)


def _format(number: float, units: dict[str, float]) -> str:
    """A number in the first unit that is not larger than it, else in the last, with two digits or
    more.

    >>> _format(900, BYTES), _format(1.43e9, BYTES)
    ('900 B', '1.4 GB')
    >>> _format(0.0000154, SECONDS), _format(2.5, SECONDS)
    ('15 µs', '2.5 s')
    """
    unit = next((unit for unit, size in units.items() if number >= size), list(units)[-1])
    scaled = number / units[unit]
    if 1 <= scaled < 10 and unit not in ("B", "µs"):
        return f"{scaled:.1f} {unit}"
    return f"{scaled:.0f} {unit}"
