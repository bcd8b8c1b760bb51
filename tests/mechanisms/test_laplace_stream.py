"""Pure privacy end to end: exact ratios of joint releases, l1 sensitivities by enumeration, stds,
splits and dumps."""

from __future__ import annotations

import itertools
import json
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from evercount import Budget, Stream
from evercount.engine.build import make_noise
from evercount.errors import HorizonReached, ParameterError, SnapshotError
from evercount.factorizations.laplace_choice import pure_factorization
from evercount.factorizations.laplace_trees import DigitTree, HybridTree
from evercount.mechanisms.laplace_noise import NUMBERS_AHEAD, PureStream, build_pure, node_rate
from evercount.noise import Secret
from evercount.noise.laplace_sampler import variance
from evercount.queries.base import Query
from evercount.queries.counts import Average, Count, Sum
from evercount.queries.histogram import Histogram

SECRET = Secret.from_hex("8" * 64)


def log_probabilities(
    left: np.ndarray, rate: float, released: np.ndarray, increments: np.ndarray
) -> np.ndarray:
    """ln P(release | increments) up to a constant for rows of releases, by solving for the noise of
    the nodes."""
    noise = np.linalg.solve(left, (released - np.cumsum(increments)).T)
    return np.asarray(-rate * np.abs(noise).sum(axis=0))


@pytest.mark.parametrize(("base", "horizon"), [(2, 3), (2, 4), (3, 3), (3, 4)])
def test_exact_ratio_of_the_joint_release(base: int, horizon: int) -> None:
    """All releases on a grid, all neighbours: the ratio never exceeds e^ε and reaches it where a
    tick is in all levels.

    With the rate of one level fewer the same enumeration finds a ratio above e^ε (negative
    control).
    """
    tree = DigitTree(horizon, base)
    left, right = tree.dense()
    assert left.shape == (horizon, horizon)  # one node per tick: the release determines the noise
    epsilon = 0.9
    honest = node_rate(epsilon, 1.0, 1.0, tree.levels)
    planted = node_rate(epsilon, 1.0, 1.0, tree.levels - 1)
    worst = {honest: 0.0, planted: 0.0}
    base_stream = np.zeros(horizon)
    releases = np.asarray(list(itertools.product(range(-2, 3), repeat=horizon)), float)
    for tick in range(horizon):
        other = base_stream.copy()
        other[tick] += 1
        for rate in worst:
            one = log_probabilities(left, rate, releases, base_stream)
            two = log_probabilities(left, rate, releases, other)
            worst[rate] = max(worst[rate], float(np.abs(one - two).max()))
    assert worst[honest] <= epsilon + 1e-9
    assert worst[honest] == pytest.approx(epsilon * right.sum(axis=0).max() / tree.levels)
    assert worst[planted] > epsilon * 1.2


def test_rates_round_down() -> None:
    for epsilon, l1, grid, share in (
        (1.0, 3.0, 1.0, 7),
        (0.1, 0.7, 0.1, 3),
        (1 / 3, 1.0, 0.01, 11),
    ):
        rate = node_rate(epsilon, l1, grid, share)
        assert Fraction(rate) * share * Fraction(l1) / Fraction(grid) <= Fraction(epsilon)
        assert rate == pytest.approx(epsilon * grid / (l1 * share), rel=1e-15)
    for units, grid in itertools.product(range(1, 40), (0.1, 0.01, 0.3, 1 / 3, 0.7)):
        # units·grid is rounded, the change in units is not
        rate = node_rate(1.0, units * grid, grid, 3)
        assert Fraction(rate) * 3 * units <= 1
        assert rate == pytest.approx(1 / (3 * units), rel=1e-15)
    assert node_rate(1e6, 1.0, 1.0, 1) == 64.0
    with pytest.raises(ParameterError):
        node_rate(1e-12, 1.0, 1.0, 10)
    with pytest.raises(ParameterError):
        node_rate(1.0, 0.0, 1.0, 10)


def single_events(query: Any) -> list[Any]:
    if isinstance(query, Count):
        return [0, 1]
    if isinstance(query, Histogram):
        keys = range(query.cells)
        most = query.parameters()["max_keys_per_event"]
        subsets = [c for size in range(most + 1) for c in itertools.combinations(keys, size)]
        if not query.parameters()["removals"]:
            return [[list(s)] for s in subsets]
        return [
            [dict(zip(s, signs, strict=True))]
            for s in subsets
            for signs in itertools.product((-1, 1), repeat=len(s))
        ]
    return [[value] for value in np.arange(query.low, query.high + query.grid / 2, query.grid)]


QUERIES = [
    Count(),
    Sum(-2, 3),
    Sum(-1.0, 0.5, grid=0.25),
    Average(0, 4),
    Average(-2, 5, per="event"),
    Average(0.0, 1.0, grid=0.25, per="event"),
    Histogram(4),
    Histogram(3, max_keys_per_event=2),
    Histogram(4, max_keys_per_event=2, removals=True),
    Histogram(2, max_keys_per_event=2, removals=True),
]


@pytest.mark.parametrize("query", QUERIES, ids=repr)
def test_l1_sensitivity_by_enumeration(query: Any) -> None:
    """Every event against every other one (replace) and against none (add-remove): the declared Δ₁
    is the maximum."""
    vectors = [query.encode(None, event)[0] * query.grid for event in single_events(query)]
    nothing = np.zeros(query.cells)
    absent = max(np.abs(v - nothing).sum() for v in vectors)
    other = max(np.abs(a - b).sum() for a in [*vectors, nothing] for b in vectors)
    assert query.l1_sensitivity("add-remove") == pytest.approx(absent)
    if isinstance(query, Sum) and not (isinstance(query, Average) and query.per == "event"):
        # a sum's replacement is another value, never a missing event
        other = query.high - query.low
    assert query.l1_sensitivity("replace") == pytest.approx(other)


def test_queries_that_declare_no_l1_sensitivity_are_refused() -> None:
    class Silent(Count):
        l1_sensitivity = Query.l1_sensitivity

    with pytest.raises(ParameterError, match="l1 sensitivity"):
        Stream(Silent(), Budget(1.0, 0.0), 8)


@pytest.mark.parametrize("horizon", [50, None])
def test_a_pure_stream_runs_restores_and_says_so(horizon: int | None) -> None:
    budget = Budget(1.0, 0.0)
    whole = Stream(Histogram(["a", "b"]), budget, horizon, secret=SECRET).run(
        [["a"], ["b", "b"], []] * 10
    )
    steps = Stream(Histogram(["a", "b"]), budget, horizon, secret=SECRET)
    for number, events in enumerate([["a"], ["b", "b"], []] * 10):
        if number == 17:
            steps = Stream.restore(steps.snapshot())
        assert np.array_equal(steps.step(events).values, whole.values[number])
    assert "delta=0" in whole.guarantee
    assert np.array_equal(whole.values, np.rint(whole.values))
    assert steps.numeric_delta == 0


def stream(tree: Any, cells: int = 2, epsilon: float = 1.0, secret: Secret = SECRET) -> PureStream:
    return PureStream(tree, epsilon, 1.0, 1.0, cells, secret)


@pytest.mark.parametrize(
    "name", ["pure-tree", "pure-binary", "pure-tree-3", "pure-hybrid", "pure-hybrid-binary"]
)
def test_any_split_and_any_restore_give_the_same_noise(name: str) -> None:
    tree = pure_factorization(name, None if "hybrid" in name else 300)
    whole = stream(tree).take(300)
    assert (whole == np.rint(whole)).all()
    single, mixed = stream(tree), stream(tree)
    assert (np.concatenate([single.take(1) for _ in range(300)]) == whole).all()
    assert (np.concatenate([mixed.take(k) for k in (0, 7, 130, 1, 162)]) == whole).all()
    paused = stream(tree)
    paused.take(111)
    dumped = json.loads(json.dumps(paused.dump()))
    assert (stream(tree).resume(dumped).take(189) == whole[111:]).all()
    with pytest.raises(SnapshotError):
        stream(tree, epsilon=2.0).resume(dumped)
    with pytest.raises(SnapshotError):
        stream(tree).resume({**dumped, "tick": -1})


@pytest.mark.parametrize("name", ["pure-tree", "pure-binary", "pure-hybrid"])
def test_many_cells_go_fewer_ticks_ahead_with_the_same_numbers(name: str) -> None:
    """The first cells are those of a stream with few cells."""
    tree = pure_factorization(name, None if "hybrid" in name else 70)
    few, many = stream(tree, cells=3).take(70), stream(tree, cells=NUMBERS_AHEAD // 20)
    parts = [many.take(k) for k in (1, 30, 0, 2, 37)]
    assert (np.concatenate(parts)[:, :3] == few).all()


def test_past_the_horizon_is_refused() -> None:
    made = stream(DigitTree(10))
    made.take(9)
    with pytest.raises(HorizonReached):
        made.take(2)
    assert made.take(1).shape == (1, 2)


@pytest.mark.parametrize("name", ["pure-tree", "pure-binary", "pure-hybrid", "pure-hybrid-binary"])
def test_std_is_the_measured_one(name: str) -> None:
    """4,000 cells as independent streams of 40 ticks: variances within 5 standard errors of the
    stated ones.

    Laplace sums have a kurtosis of at most 6, so the variance of a sample variance is below
    5·var²/cells. A tree with one level too few would be off by far more.
    """
    tree = pure_factorization(name, None if "hybrid" in name else 40)
    made = build_pure(tree, cells=4000, grid=1.0, l1=1.0, epsilon=0.5, secret=SECRET)
    rows = made.stream.take(40)
    ratio = rows.var(axis=1) / (made.sigma * tree.row_norms(np.arange(1, 41))) ** 2
    spread = 5 * math.sqrt(5 / 4000)
    assert (np.abs(ratio - 1) < spread).all()
    assert made.numeric_delta == 0.0
    assert made.stream.rounded is False


@pytest.mark.parametrize("name", ["pure-hybrid", "pure-hybrid-binary"])
def test_every_epoch_of_a_hybrid_has_noise_of_its_own(name: str) -> None:
    """What the second tick of an epoch changes, in 2,000 cells: one key for all epochs would show a
    correlation."""
    rows = stream(pure_factorization(name, None), cells=2000).take(63)
    steps = [rows[1 << epoch] - rows[(1 << epoch) - 1] for epoch in range(1, 6)]
    assert np.abs(np.corrcoef(steps) - np.eye(5)).max() < 5 / math.sqrt(2000)


def test_hybrid_stds_are_never_too_small() -> None:
    tree = HybridTree()
    made = build_pure(tree, cells=1, grid=1.0, l1=1.0, epsilon=2.0, secret=SECRET)
    for tick in (1, 2, 5, 100):
        epoch = tick.bit_length() - 1
        inner = tree.tree(epoch)
        exact = epoch * variance(node_rate(2.0, 1.0, 1.0, tree.total_share)) + int(
            inner.weight([tick - (1 << epoch) + 1])[0]
        ) * variance(node_rate(2.0, 1.0, 1.0, tree.node_share(epoch)))
        stated = (made.sigma * tree.row_norms([tick])[0]) ** 2
        assert (
            exact
            <= stated
            <= exact + (epoch + int(inner.weight([tick - (1 << epoch) + 1])[0])) / 6 + 1e-9
        )


def test_build_pure() -> None:
    tree = DigitTree(50)
    one = build_pure(tree, cells=3, grid=0.5, l1=2.0, epsilon=1.0, secret=SECRET)
    again = build_pure(
        tree, cells=3, grid=0.5, l1=2.0, epsilon=1.0, dumped=json.loads(json.dumps(one.dump()))
    )
    assert (one.stream.take(50) == again.stream.take(50)).all()
    assert one.sigma == pytest.approx(0.5 * math.sqrt(variance(0.5 / (2 * 6))))
    assert one.limit == 50
    with pytest.raises(ParameterError):
        build_pure(object(), cells=1, grid=1.0, l1=1.0, epsilon=1.0)  # type: ignore[arg-type]


def test_noise_for_a_query() -> None:
    """Adjacency and unit reach the rate: ε·grid/(levels·Δ₁·events)."""
    tree = DigitTree(100)
    query = Sum(-2, 3)

    def rate(**changes: Any) -> float:
        made = make_noise(query, tree, Budget(1.0, 0.0, **changes), 100, secret=SECRET).stream
        assert isinstance(made, PureStream)
        return made.rate

    assert rate() == pytest.approx(1 / (7 * 3))
    assert rate(adjacency="replace") == pytest.approx(1 / (7 * 5))
    assert rate(unit="user", max_events=4) == pytest.approx(1 / (7 * 12))
    assert rate(unit="user", max_per_tick=2, max_ticks=3) == pytest.approx(1 / (7 * 18))
    assert rate(unit="user", max_per_tick=2, period=5) == pytest.approx(1 / (7 * 30))
