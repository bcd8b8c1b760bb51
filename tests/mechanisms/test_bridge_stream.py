"""Noise of a bridge end to end: an exact attack on joint releases, rates, wide integers, stds,
splits and dumps."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from bridge_likelihood import log_likelihood, noise_of, rates_of
from evercount import Budget, Stream
from evercount.engine.snapshot_format import unpack
from evercount.errors import HorizonReached, ParameterError, SnapshotError
from evercount.factorizations.laplace_bridge import UNITS, Bridge, Design, design_for
from evercount.factorizations.laplace_choice import EndlessBridge
from evercount.mechanisms import laplace_noise
from evercount.mechanisms.laplace_noise import (
    PureStream,
    TreeNoise,
    bridge_noise,
    build_pure,
    fair_bits,
    round_to_grid,
    unit_rate,
)
from evercount.mechanisms.noise_stream import declaration_fingerprint
from evercount.noise import Secret
from evercount.queries.counts import Count
from evercount.queries.histogram import Histogram

SECRET = Secret.from_hex("8" * 64)
DEEP = Design((2, 2, 2), ((0.3, -0.2, 0.1, 0.0), (-0.1, 0.4, 0.0, 0.1, 0.2, -0.1, 0.0)))
WIDE = Design((3, 4), ((0.1, -0.3, 0.2, -0.4),))


@pytest.mark.parametrize(
    "design",
    [DEEP, pytest.param(WIDE, marks=pytest.mark.soak), None],
    ids=["2,2,2", "3,4", "table"],
)
def test_attack_on_the_joint_release(design: Design | None) -> None:
    """The exact likelihood ratio of whole releases, before rounding, for neighbours at every tick.

    Releases are made from rare noise (wider than what is drawn), where ratios are the largest. None
    exceeds e^ε, and some come within 10 % of ε. With a level whose rates are a quarter too large
    the same attack finds more than ε.
    """
    T = 8 if design is None else math.prod(design.branching)
    bridge, epsilon = Bridge(T, design), 1.0
    noise = bridge_noise(bridge, epsilon, 1.0, 1.0, 1, SECRET)
    honest = rates_of(bridge, noise)
    planted = [rate * (1.25 if level == 0 else 1.0) for level, rate in enumerate(honest)]
    worst = {"honest": 0.0, "planted": 0.0}
    rng = np.random.default_rng(3)
    count = np.tril(np.ones((T, T), np.int64))
    for trial in range(8):
        shift = rng.integers(-60, 61, size=sum(map(len, honest)))
        if trial % 2:
            shift = np.abs(shift) + 30
        released = noise_of(bridge, shift)
        for name, rates in (("honest", honest), ("planted", planted)):
            zero = log_likelihood(bridge, rates, released, np.zeros(T, np.int64))
            assert math.isfinite(zero)
            for tick, sign in product(range(T), (1, -1)):
                other = log_likelihood(bridge, rates, released, sign * count[:, tick])
                assert math.isfinite(other)
                worst[name] = max(worst[name], abs(zero - other))
    assert worst["honest"] <= epsilon + 1e-9
    assert worst["honest"] >= 0.9 * epsilon
    assert worst["planted"] > 1.05 * epsilon


def test_the_likelihood_of_the_attack_is_the_right_one() -> None:
    """Summed over all releases that round to the same whole numbers, it is the frequency of
    simulated ones."""
    bridge = Bridge(4, Design((2, 2), ((0.3, -0.2, 0.1, 0.0),)))
    noise = bridge_noise(bridge, 6.0, 1.0, 1.0, 60_000, SECRET)
    rates = rates_of(bridge, noise)
    nodes, weights, shares = bridge.matrix(np.arange(1, 5))
    rows = weights @ noise.draw(nodes, shares)
    distinct, seen = np.unique(rows, axis=1, return_counts=True)
    top = np.argsort(-seen)[:6]
    zero = np.zeros(4, np.int64)
    found = [log_likelihood(bridge, rates, distinct[:, i], zero) for i in top]
    for i, value in zip(top, found, strict=True):
        expected = seen[top[0]] * math.exp(value - found[0])
        assert seen[i] == pytest.approx(
            expected, abs=6 * math.sqrt(expected) + 6 * math.sqrt(seen[top[0]]) * 0.1
        )


@pytest.mark.parametrize("horizon", [5, 24, 365, 5000])
def test_rates_that_are_drawn_add_up_to_at_most_epsilon(horizon: int) -> None:
    """Fractions of the doubles that go to the sampler, along the path of every leaf."""
    bridge = Bridge(horizon)
    for epsilon, l1, grid in (
        (1.0, 1.0, 1.0),
        (0.1, 0.7, 0.1),
        (1 / 3, 3.0, 0.01),
        (20.0, 1.0, 1.0),
    ):
        noise = bridge_noise(bridge, epsilon, l1, grid, 1, SECRET)
        units = round(l1 / grid)
        assert Fraction(noise.unit) * UNITS * units <= Fraction(epsilon)
        assert noise.unit * UNITS * units >= epsilon * (1 - 2.0**-25)
        ticks = np.arange(1, horizon + 1) if horizon < 1000 else np.arange(1, horizon + 1, 97)
        paths: list[list[float]] = [[] for _ in ticks]
        for _, _, split, row, child in bridge._descend(ticks):
            for path, rate in zip(
                paths, noise.rates(split.shares[row, child]).tolist(), strict=True
            ):
                path.append(rate)
        assert all(sum(map(Fraction, path)) * units <= Fraction(epsilon) for path in paths)
    for shares in (1, 3, 2**24 - 1):
        assert Fraction(shares * unit_rate(1.0, 3.0, 1.0, UNITS)) == shares * Fraction(
            unit_rate(1.0, 3.0, 1.0, UNITS)
        )


def stream(tree: Bridge, cells: int = 2, epsilon: float = 1.0) -> PureStream:
    return PureStream(tree, epsilon, 1.0, 1.0, cells, SECRET)


@pytest.mark.parametrize("horizon", [5, 100, 700])
def test_any_split_any_tick_alone_and_any_restore_give_the_same_noise(horizon: int) -> None:
    tree = Bridge(horizon)
    whole = stream(tree).take(horizon)
    assert (whole == np.rint(whole)).all()
    single = stream(tree)
    assert (np.concatenate([single.take(1) for _ in range(horizon)]) == whole).all()
    for tick in (1, horizon // 3 + 1, horizon):
        alone = bridge_noise(tree, 1.0, 1.0, 1.0, 2, SECRET).rows(tick, 1)
        assert (alone[0] == whole[tick - 1]).all()
    paused = stream(tree)
    paused.take(horizon // 2)
    dumped = json.loads(json.dumps(paused.dump()))
    assert (stream(tree).resume(dumped).take(horizon - horizon // 2) == whole[horizon // 2 :]).all()
    with pytest.raises(SnapshotError):
        stream(tree, epsilon=2.0).resume(dumped)
    with pytest.raises(SnapshotError):
        stream(Bridge(horizon, Design((horizon,), ())) if horizon > 6 else Bridge(6)).resume(dumped)
    with pytest.raises(HorizonReached):
        paused.take(horizon)
    many = stream(tree, cells=laplace_noise.NUMBERS_AHEAD // 20)
    parts = np.concatenate([many.take(k) for k in (1, 3, 0, horizon - 4)])
    assert (parts[:, :2] == whole).all()


def test_wide_integers_give_the_same_numbers() -> None:
    """64 bits are enough for the noise of a year; the same numbers times 2^44 need more, and give
    the same."""
    tree = Bridge(365)
    plain = bridge_noise(tree, 1.0, 1.0, 1.0, 3, SECRET)
    want = plain.rows(1, 365)

    class Wide(TreeNoise):
        def draw(
            self, nodes: np.ndarray, shares: np.ndarray, cells: slice = slice(None)
        ) -> np.ndarray:
            return super().draw(nodes, shares, cells) << self.more

    for more in (20, 44):
        wide = bridge_noise(tree, 1.0, 1.0, 1.0, 3, SECRET)
        wide.__class__, wide.more = Wide, more  # type: ignore[attr-defined]
        nodes, weights, shares = tree.matrix(np.arange(1, 366))
        whole = np.asarray(
            weights.astype(object) @ plain.draw(nodes, shares).astype(object) << more
        )
        assert (wide.rows(1, 365) == round_to_grid(whole, tree.bits, wide._up)).all()
    assert (np.concatenate([plain.rows(t, 1) for t in range(1, 366)]) == want).all()
    assert (
        abs(int(bridge_noise(Bridge(2**36), 1e-6, 1.0, 1.0, 1, SECRET).rows(2**35, 1)[0, 0])) > 1e6
    )
    with pytest.raises(ParameterError, match="coarser grid"):
        bridge_noise(Bridge(2**20), 1e-11, 1.0, 1.0, 1, SECRET)


@pytest.mark.parametrize(
    ("tree", "first", "count"),
    [
        (Bridge(1), 1, 1),
        (Bridge(7), 1, 7),
        (Bridge(60), 5, 31),
        (Bridge(365), 1, 365),
        (Bridge(365, integers=True), 100, 50),
        (Bridge(10**6), 65_530, 40),
        (Bridge(2**30), 2**29, 100),
        (EndlessBridge().tree(3), 1, 300),
        (EndlessBridge(True).tree(2), 3, 20),
    ],
    ids=lambda one: one.name if isinstance(one, Bridge) else str(one),
)
def test_noise_is_the_rows_times_the_numbers(tree: Bridge, first: int, count: int) -> None:
    """In whole numbers, also at the largest that 64 bits are said to hold; `rows` is what the proof
    is about."""
    ticks = np.arange(first, first + count)
    nodes, weights, shares = tree.matrix(ticks)
    levels = tree.levels_of(ticks)
    own = np.concatenate([level.nodes.ravel() for level in levels])
    assert own.tolist() == nodes.tolist()
    assert np.concatenate([level.shares.ravel() for level in levels]).tolist() == shares.tolist()
    most = 1
    while tree.fits(2 * most):
        most *= 2
    source = np.random.default_rng(first)
    for size in (10, most):
        numbers = source.integers(-size, size, (len(nodes), 5), endpoint=True)
        numbers[:, 0], numbers[:, 1] = size, np.where(np.arange(len(nodes)) % 2, size, -size)
        assert (
            tree.noise(levels, numbers) == weights.astype(object) @ numbers.astype(object)
        ).all()


def test_a_row_of_a_bridge_takes_a_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise comes from both ends of a block; a product with each of its nodes takes ten times as
    long."""
    noise = bridge_noise(Bridge(10_000), 1.0, 1.0, 1.0, 2, SECRET)
    want = noise.sums(noise.tree.rows(np.arange(1, 501)))
    monkeypatch.setattr(Bridge, "rows", None)
    assert (noise.rows(1, 500) == want).all()


def test_rounding_commutes_with_whole_numbers() -> None:
    """Halves go up or down as the cell's coin says, never as the number itself says; also at the
    ends of 64 bits."""
    x, half = np.arange(-4096, 4097), Fraction(1, 2)
    up, down = np.ones(len(x), np.int8), np.zeros(len(x), np.int8)
    for numbers in (x, x.astype(object)):
        assert round_to_grid(numbers, 6, up).tolist() == [
            math.floor(Fraction(int(v), 64) + half) for v in x
        ]
        assert round_to_grid(numbers, 6, down).tolist() == [
            math.ceil(Fraction(int(v), 64) - half) for v in x
        ]
    for whole in (1, -3, 2**40 + 1):
        for coin in (up, down):
            assert (
                round_to_grid(x + (whole << 6), 6, coin) == whole + round_to_grid(x, 6, coin)
            ).all()
    assert (round_to_grid(-x, 6, up) == -round_to_grid(x, 6, down)).all()
    ends = np.asarray([2**63 - 1, -(2**63)])
    assert round_to_grid(ends, 6, up[:2]).tolist() == [2**57, -(2**57)]
    assert round_to_grid(x, 0, up) is x


def test_coins_are_fair_and_belong_to_cells() -> None:
    """40,000 coins within 5 standard deviations; the same in any slice of the cells, others under
    another key."""
    coins = fair_bits(SECRET, range(40_000))
    assert set(coins.tolist()) == {0, 1}
    assert abs(int(coins.sum()) - 20_000) < 5 * 100
    assert (fair_bits(SECRET, range(700, 70_000))[: 40_000 - 700] == coins[700:]).all()
    other = fair_bits(SECRET.derive("other"), range(40_000))
    assert abs(int((coins ^ other).sum()) - 20_000) < 5 * 100
    numbers = bridge_noise(Bridge(8), 0.1, 1.0, 1.0, 40_000, SECRET).draw(
        np.arange(2), np.full(2, UNITS // 2)
    )
    for row in numbers:
        assert abs(int(((row & 1) ^ fair_bits(SECRET, range(40_000))).sum()) - 20_000) < 5 * 100


@pytest.mark.parametrize("horizon", [24, 365])
def test_rounded_noise_has_mean_zero(horizon: int) -> None:
    """Over 20,000 cells, within 5 standard errors, at the ticks where half of all numbers are
    halves.

    If these all went up, the mean would be a quarter: the numbers of both ways lie half a unit
    apart.
    """
    tree = Bridge(horizon)
    noise = bridge_noise(tree, 1.0, 1.0, 1.0, 20_000, SECRET)
    coins, ticks = noise._up, np.flatnonzero(tree._places(np.arange(1, horizon + 1)) == 1) + 1
    assert len(ticks)
    for tick in ticks.tolist():
        row = noise.rows(tick, 1)[0]
        assert abs(row.mean()) < 5 * row.std() / math.sqrt(len(row))
        noise._up = np.ones_like(coins)
        above = noise.rows(tick, 1)[0]
        noise._up = np.zeros_like(coins)
        assert (above - noise.rows(tick, 1)[0]).mean() == pytest.approx(0.5, abs=0.02)
        noise._up = coins


@pytest.mark.parametrize("epsilon", [0.5, 3.0, 20.0])
def test_std_is_the_measured_one(epsilon: float) -> None:
    """20,000 cells as independent streams of 40 ticks, within 6 standard errors of the sample's own
    fourth moment.

    Near the width of the grid (ε = 3) the rounding is not independent of the noise, and the stated
    std an upper one. Fractions of narrower noise (ε = 20) would be rounded away, and stds be off by
    a factor of up to 7: so it has none.
    """
    query = Histogram(20_000)
    run = Stream(query, Budget(epsilon, 0.0), 40, "bridge", secret=SECRET)
    stated = run.std(np.arange(1, 41))[:, 0]
    assert run.factorization.name == "bridge"
    assert run._parameters.noise.stream.rounded == (epsilon < 4)
    rows = run._parameters.noise.stream.take(40)
    spread = 6 * np.sqrt((rows**4).mean(axis=1) / stated**4 / 20_000)
    ratio = rows.var(axis=1) / stated**2
    assert (ratio - 1 < spread).all()
    assert (1 - ratio < (0.2 if epsilon == 3 else spread)).all()
    rough = PureStream(Bridge(40), 20.0, 1.0, 1.0, 20_000, SECRET).take(40).var(axis=1)
    plain = Bridge(40).laplace_errors(np.arange(1, 41), 20.0)[0]
    assert rough.min() / plain[rough.argmin()] < 0.5


def test_a_new_pure_stream_runs_on_the_bridge_and_restores() -> None:
    whole = Stream(Count(), Budget(1.0, 0.0), 50, secret=SECRET, replay=True).run([1, 0, 3] * 16)
    steps = Stream(Count(), Budget(1.0, 0.0), 50, secret=SECRET)
    assert steps.factorization.name == "bridge"
    for number, events in enumerate([1, 0, 3] * 16):
        if number == 17:
            blob = steps.snapshot()
            steps.close()
            steps = Stream.restore(blob)
        assert steps.step(events).value == whole.values[number]
    assert "delta=0" in whole.guarantee
    assert steps.numeric_delta == 0
    key = steps._parameters.noise.key
    other = build_pure(Bridge(50), cells=1, grid=1.0, l1=1.0, epsilon=1.0, secret=key)
    assert (other.stream.take(48)[:, 0] + np.cumsum([1, 0, 3] * 16) == whole.values).all()


def test_the_key_of_a_bridge_belongs_to_its_declaration() -> None:
    """Other declarations on one secret have other noise, and a second live stream of the same one
    is refused."""
    secret = SECRET.derive("declared")
    stream = Stream(Count(), Budget(1.0, 0.0), 50, secret=secret)
    data = unpack(stream.snapshot())
    assert secret.hex() not in str(data)
    with pytest.raises(ParameterError, match="another stream with this secret"):
        Stream(Count(), Budget(1.0, 0.0), 50, secret=secret)
    other = Stream(Count(), Budget(1.0, 0.0), 51, secret=secret)
    assert other._parameters.noise.key != stream._parameters.noise.key
    forms = [Bridge(50), Bridge(50, integers=True), Bridge(50, design_for(64)), Bridge(51)]
    assert len({declaration_fingerprint({}, form, 1.0) for form in forms}) == len(forms)
