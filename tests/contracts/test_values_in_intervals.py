"""Every published value lies in its own interval: all queries of the registry, their views, and all
estimates."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle, pairwise, product
from typing import Any

import numpy as np
import pytest

from evercount import Budget, DiscoveredKeys, Quantiles, Stream
from evercount.cuts import Cuts
from evercount.engine.close_ticks import TickTotals, close_ticks
from evercount.engine.release import Releases
from evercount.engine.views import Difference, View
from evercount.errors import ParameterError
from evercount.local import LocalPlan, LocalServer, simulate
from evercount.local.collection_plan import Form
from evercount.noise import Secret
from evercount.queries import QUERIES, Average, Histogram, Query
from evercount.queries.cuts.cut_graph import CutGraph
from evercount.sparse import SparseCount
from product_internals import error_model
from small_queries import small, ticks_of
from soak_cases import soak_except

LEVELS = (0.01, 0.95)
TICKS = 12
LITTLE = (Budget(0.1, 1e-6), Budget(0.1, 0.0), Budget(30.0, 1e-6))
"""Noise far above the few events, normal and Laplace noise; and hardly any."""

Ends = tuple[str, Any, Any, Any]
"""What it is, the value, and the ends of its interval."""


def check(found: Iterator[Ends]) -> int:
    """How many values there were; all of them inside."""
    number = 0
    for what, value, low, high in found:
        value, low, high = np.broadcast_arrays(value, low, high)
        known = ~np.isnan(np.asarray(value, float))
        assert (low[known] <= value[known]).all(), (what, value[known], low[known])
        assert (value[known] <= high[known]).all(), (what, value[known], high[known])
        number += int(known.sum())
    return number


def of_releases(releases: Releases, level: float) -> Iterator[Ends]:
    yield ("releases", releases.values, *releases.interval(level))
    table = releases.table(level).columns()
    yield "table", table["value"], table["low"], table["high"]
    for release in releases:
        yield (f"release {release.tick}", release.value, *release.interval(level))
        for name in ("top", "supported"):
            try:
                keys = getattr(release, name)(level=level)
            except ParameterError:  # nothing to select from: a ratio, discovered keys, one number
                continue
            yield from ((f"{name} {key.key}", key.value, key.low, key.high) for key in keys)
    try:
        views = [
            releases.running(),
            releases.per_tick(),
            releases.last(3),
            releases.spans("two", [1, 5], [6, 10]),
        ]
    except ParameterError:  # windows, averages per event and whatever was post-processed
        return
    for view in views:
        yield from of_view(view, level)


def of_view(view: View, level: float) -> Iterator[Ends]:
    yield (view.name, view.values, *view.interval(level))
    if len(view.cells) > 1:
        try:
            yield from of_view(view.compare(*view.cells[:2]), level)
        except ParameterError:
            assert error_model(view).query.name in (
                "degree-sequence",
                "high-degree",
                "degree-histogram",
            ), "no covariance"
        yield from of_view(view.only(view.cells[0]), level)
    elif "compared" not in view.name:
        apart = Difference(view, view)
        yield (f"{view.name}, difference", apart.values, *apart.interval(level))
    if (
        error_model(view).query.quantiles is not None
        and len(view.cells) == error_model(view).query.outputs
    ):
        for q in (0.001, 0.25, 0.5, 0.999):
            yield (f"{view.name}, quantile {q}", *view.quantile(q, level))


def built(query: Query, budget: Budget) -> Stream:
    if budget.pure:
        try:
            query.l1_sensitivity(budget.adjacency)
        except ParameterError as error:
            pytest.skip(str(error))
    return Stream(query, budget, TICKS)


@pytest.mark.parametrize(
    "budget",
    soak_except(LITTLE[:2], LITTLE),
    ids=lambda budget: f"{budget.epsilon:g}-{budget.delta:g}",
)
@pytest.mark.parametrize("name", QUERIES)
def test_values_of_every_query(name: str, budget: Budget) -> None:
    query = small(name)
    stream = built(query, budget)
    releases = stream.run(ticks_of(query, TICKS))
    assert sum(check(of_releases(releases, level)) for level in LEVELS) > 2 * len(LEVELS) * TICKS


@pytest.mark.parametrize(
    "names", [("nonnegative",), ("integer",), ("monotone",), ("nonnegative", "integer", "monotone")]
)
@pytest.mark.parametrize(
    "query", [Histogram(["a", "b"]), Average(-1, 1, per="event"), Average(0, 1), Quantiles(0, 1, 8)]
)
def test_values_after_postprocessing(query: Query, names: tuple[str, ...]) -> None:
    try:
        stream = Stream(query, LITTLE[0], TICKS, postprocess=names)
    except ParameterError:
        assert not query.monotone
        assert {"monotone", "nonnegative"} & set(names)
        return
    for level in LEVELS:
        assert check(of_releases(stream.run([[]] * 3), level))


@pytest.mark.parametrize("epsilon", soak_except([0.2], [0.2, 2.0]))
def test_discovered_keys(epsilon: float) -> None:
    """Keys just above their threshold, others that are clear, and `other` near 0: at all ticks and
    in all views."""
    budget = Budget(epsilon, 0.1)
    found = 0
    for minimum in (1, 20):
        stream = Stream(DiscoveredKeys(minimum=minimum), budget, TICKS)
        assert stream.thresholds is not None
        near = int(stream.thresholds.at(1))
        ticks = [["a"] * 10 * near + [f"k{i}" for i in range(40) for _ in range(near)]] + [[]] * (
            TICKS - 1
        )
        releases = stream.run(ticks)
        assert len(releases.labels) > 12, "many keys are public"
        for level in LEVELS:
            found += check(of_releases(releases, level))
    assert found > 5_000


def test_released_tables() -> None:
    """What files and the service publish."""
    stream = Stream(Histogram(5), LITTLE[0], TICKS)
    (table,) = close_ticks(
        stream, TickTotals.dense(1, np.zeros((TICKS, 5), np.int64)), lambda first, n: [None] * n
    )
    value, _, low, high = np.moveaxis(table.numbers, 1, 0)
    assert check(iter([("table", value, low, high)])) == 5 * TICKS


# -- estimates of graphs, rare events and local answers --------------------------------------------


def released_graph(vertices: int, edges: list[tuple[int, int]], std: float, seed: int) -> CutGraph:
    weights = np.zeros((vertices, vertices))
    for u, v in edges:
        weights[u, v] = 1.0
    true = weights[np.triu_indices(vertices, 1)]
    noisy = true + np.random.default_rng(seed).normal(0, std, len(true))
    return CutGraph(vertices, noisy, std, nonnegative=True)


@pytest.mark.parametrize("vertices", soak_except([2, 16, 17, 40], [2, 3, 8, 16, 17, 40]))
@pytest.mark.parametrize("std", [0.0, 0.3, 20.0])
def test_extreme_cuts(vertices: int, std: float) -> None:
    """The lightest cut of a noisy graph is far below 0, and no true one is: 40 vertices had −637 in
    [0, 103]."""
    for seed in range(3):
        graph = released_graph(vertices, list(pairwise(range(vertices))), std, seed)
        for level in LEVELS:
            for cut in (
                graph.min_cut(level=level),
                graph.max_cut(level=level),
                graph.sparsest_cut(level=level),
            ):
                check(iter([("cut", cut.value, cut.low, cut.high)]))
                assert cut.value >= 0


def test_extreme_cuts_of_a_stream() -> None:
    stream = Stream(Cuts(40), Budget(1.0, 1e-6), 24)
    graph = stream.run([[(u, v, 1.0)] for u, v in pairwise(range(20))])[-1].graph()
    cut = graph.min_cut()
    assert cut.released < -100 < 0 <= cut.low <= cut.value <= cut.high


@pytest.mark.parametrize(
    ("method", "most", "delta"),
    [
        (method, most, delta)
        for (method, most), delta in zip(
            product([None, "partition", "plain", "constant"], [None, 5, 400]),
            cycle([0.0, 1e-6]),
            strict=False,
        )
    ],
)
def test_sparse_counters(method: str | None, most: int | None, delta: float) -> None:
    """With fewer ones than promised, and with many more."""
    for rate in (0, 1, 50):
        try:
            counter = SparseCount(1.0, 200, delta, max_ones=most, method=method)
        except ParameterError:
            assert most is None
            return
        found = counter.run([rate] * 200)
        assert check((f"tick {one.tick}", one.value, one.low, one.high) for one in found) == 200


@pytest.mark.parametrize("form", ["one-counter", "two-counter"])
@pytest.mark.parametrize("seed", range(3))
def test_local_estimates(form: Form, seed: int) -> None:
    """What is published is made monotone, and its interval comes from the numbers before that."""
    server = LocalServer(LocalPlan(0.3, 1e-6, 200, form))
    server.add_entries(simulate(server.plan, np.full(200, 0.6), Secret.from_hex(f"{seed:064x}")))
    estimate = server.estimate()
    found = [
        (f"f({t})", estimate.f(t), *estimate.f_interval(t, level))
        for t in np.linspace(0, 1, 41)
        for level in LEVELS
    ]
    assert check(iter(found)) == 41 * len(LEVELS)
