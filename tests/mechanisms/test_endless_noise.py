"""Noise of the endless bridge end to end: an attack on joint releases, coefficients, random access,
dumps, stds."""

from __future__ import annotations

import json
import math
from fractions import Fraction

import numpy as np
import pytest

from bridge_likelihood import log_likelihood, noise_of, rates_of
from evercount import Budget, Stream
from evercount.errors import ParameterError, SnapshotError
from evercount.factorizations.laplace_bridge import UNITS
from evercount.factorizations.laplace_choice import ENDS, EndlessBridge
from evercount.mechanisms.laplace_noise import (
    NUMBERS_AHEAD,
    EndlessBridgeNoise,
    PureStream,
    bridge_noise,
    round_to_grid,
)
from evercount.noise import Secret
from evercount.queries.counts import Count
from evercount.queries.histogram import Histogram
from product_internals import noise_source, rounding_coins, splits

SECRET = Secret.from_hex("9" * 64)
TREE = EndlessBridge()


def joint_likelihood(
    rates: list[list[np.ndarray]], released: list[np.ndarray], counts: np.ndarray
) -> float:
    """ln P(release of the ticks of epochs 0 and 1), up to a constant; `released` in units of
    2^−bits, per epoch.

    At the end of an epoch the noise is that of its total alone, so an epoch's release less the last
    release of the epoch before depends on the epoch's own events and nodes only: the likelihood is
    a product over epochs.
    """
    return sum(
        log_likelihood(TREE.tree(epoch), rates[epoch], released[epoch], np.cumsum(part))
        for epoch, part in enumerate((counts[:16], counts[16:]))
    )


def test_attack_on_the_joint_release() -> None:
    """The exact likelihood ratio of the first 256 releases, before rounding, for neighbours at many
    ticks.

    None exceeds e^ε, and some come within 10 % of ε. With a total that has a quarter more than its
    rate, in either epoch, the same attack finds more than ε.
    """
    epsilon = 1.0
    honest = [
        rates_of(TREE.tree(e), bridge_noise(TREE.tree(e), epsilon, 1.0, 1.0, 1, SECRET))
        for e in (0, 1)
    ]
    planted = [
        [rate * (2.0 if level == 0 else 1.0) for level, rate in enumerate(epoch)]
        for epoch in honest
    ]
    worst = {"honest": [0.0, 0.0], "planted": [0.0, 0.0]}
    rng = np.random.default_rng(4)
    for trial in range(3):
        released = []
        for epoch, rates in enumerate(honest):
            shift = np.abs(rng.integers(-60, 61, size=sum(map(len, rates)))) + 30 * (trial % 2)
            released.append(noise_of(TREE.tree(epoch), shift))
        for name, chosen in (("honest", honest), ("planted", planted)):
            zero = joint_likelihood(chosen, released, np.zeros(256, np.int64))
            assert math.isfinite(zero)
            for tick in (0, 5, 15, 16, 100, 255):
                for sign in (1, -1):
                    counts = np.zeros(256, np.int64)
                    counts[tick] = sign
                    ratio = abs(joint_likelihood(chosen, released, counts) - zero)
                    worst[name][tick > 15] = max(worst[name][tick > 15], ratio)
    assert max(worst["honest"]) <= epsilon + 1e-9
    assert min(worst["honest"]) >= 0.9 * epsilon
    assert min(worst["planted"]) > 1.02 * epsilon


def endless(cells: int = 2, epsilon: float = 1.0, integers: bool = False) -> PureStream:
    return PureStream(EndlessBridge(integers), epsilon, 1.0, 1.0, cells, SECRET)


@pytest.mark.parametrize("integers", [False, True])
def test_rows_are_the_coefficients_times_the_numbers_drawn(integers: bool) -> None:
    """Rows of L in whole numbers times each epoch's own draws, rounded; and the totals of earlier
    epochs."""
    tree = EndlessBridge(integers)
    rows = EndlessBridgeNoise(tree, 1.0, 1.0, 1.0, 3, SECRET).rows(1, 400)
    before = np.zeros(3, np.int64)
    for epoch in range(3):
        bridge = tree.tree(epoch)
        inside = bridge_noise(bridge, 1.0, 1.0, 1.0, 3, SECRET)
        ticks = np.arange(1, min(int(ENDS[epoch + 1]), 400) - int(ENDS[epoch]) + 1)
        nodes, weights, shares = bridge.coefficients(ticks)
        drawn = inside.draw(nodes.ravel(), shares.ravel()).reshape(*nodes.shape, 3)
        want = before + round_to_grid(
            np.einsum("tn,tnc->tc", weights, drawn), bridge.bits, rounding_coins(inside)
        )
        assert (rows[ENDS[epoch] : ENDS[epoch] + len(ticks)] == want).all()
        before = before + inside.draw(np.zeros(1, np.int64), bridge.top_shares)[0]
        if len(ticks) == ENDS[epoch + 1] - ENDS[epoch]:
            assert (want[-1] == before).all()  # an epoch ends at the noise of the totals


def test_any_split_any_tick_alone_and_any_restore_give_the_same_noise() -> None:
    whole = endless().take(5000)
    assert (whole == np.rint(whole)).all()
    single = endless()
    assert (np.concatenate([single.take(1) for _ in range(600)]) == whole[:600]).all()
    for tick in (1, 16, 17, 255, 256, 257, 4096, 4097, 5000):
        alone = EndlessBridgeNoise(TREE, 1.0, 1.0, 1.0, 2, SECRET).rows(tick, 1)
        assert (alone[0] == whole[tick - 1]).all()
    back = EndlessBridgeNoise(TREE, 1.0, 1.0, 1.0, 2, SECRET)
    for tick in (4500, 10, 4500, 300):  # an interrupted call may go back
        assert (back.rows(tick, 2) == whole[tick - 1 : tick + 1]).all()
    paused = endless()
    paused.take(300)
    dumped = json.loads(json.dumps(paused.dump()))
    assert (endless().resume(dumped).take(4700) == whole[300:]).all()
    for other in (endless(epsilon=2.0), endless(integers=True), endless(cells=3)):
        with pytest.raises(SnapshotError):
            other.resume(dumped)
    many = endless(cells=NUMBERS_AHEAD // 20)
    assert (np.concatenate([many.take(k) for k in (1, 20, 0, 300)])[:, :2] == whole[:321]).all()
    part = EndlessBridgeNoise(TREE, 1.0, 1.0, 1.0, 1, SECRET, first_cell=1)
    assert (part.rows(1, 300)[:, 0] == whole[:300, 1]).all()
    far = EndlessBridgeNoise(TREE, 1.0, 1.0, 1.0, 1, SECRET).rows(2**36 - 1, 3)
    assert far.shape == (3, 1)


def test_rates_that_are_drawn_add_up_to_at_most_epsilon() -> None:
    """Fractions of the doubles that go to the sampler, along paths of every epoch, its total
    included."""
    for epsilon, l1, grid in ((1.0, 1.0, 1.0), (0.1, 0.7, 0.1), (20.0, 1.0, 1.0)):
        units = round(l1 / grid)
        for epoch in range(len(ENDS) - 1):
            noise = bridge_noise(TREE.tree(epoch), epsilon, l1, grid, 1, SECRET)
            assert Fraction(noise.unit) * UNITS * units <= Fraction(epsilon)
            ticks = np.unique(
                np.linspace(1, int(ENDS[epoch + 1] - ENDS[epoch]), 40).astype(np.int64)
            )
            paths: list[list[float]] = [[] for _ in ticks]
            for _, _, split, row, child in splits(TREE.tree(epoch), ticks):
                for path, rate in zip(
                    paths, noise.rates(split.shares[row, child]).tolist(), strict=True
                ):
                    path.append(rate)
            assert all(sum(map(Fraction, path)) * units <= Fraction(epsilon) for path in paths)
    with pytest.raises(ParameterError, match="coarser grid"):
        endless(epsilon=1e-12)


@pytest.mark.parametrize("epsilon", [0.5, 6.0])
def test_std_is_the_measured_one(epsilon: float) -> None:
    """20,000 cells as independent streams of 40 ticks, within 6 standard errors of the sample's own
    fourth moment."""
    run = Stream(Histogram(20_000), Budget(epsilon, 0.0), None, secret=SECRET)
    assert run.factorization.name == "endless-bridge"
    assert noise_source(run).rounded == (epsilon < 4)
    stated = run.std(np.arange(1, 41))[:, 0]
    rows = noise_source(run).take(40)
    spread = 6 * np.sqrt((rows**4).mean(axis=1) / stated**4 / 20_000)
    assert (np.abs(rows.var(axis=1) / stated**2 - 1) < spread).all()


def test_a_new_endless_stream_restores_and_an_old_hybrid_stays_one() -> None:
    events = [1, 0, 3] * 100
    whole = Stream(Count(), Budget(1.0, 0.0), None, secret=SECRET, replay=True).run(events)
    steps = Stream(Count(), Budget(1.0, 0.0), None, secret=SECRET)
    for number, count in enumerate(events):
        if number in (10, 17, 256):
            blob = steps.snapshot()
            steps.close()
            steps = Stream.restore(blob)
        assert steps.step(count).value == whole.values[number]
    assert steps.numeric_delta == 0
    hybrid = Stream(Count(), Budget(1.0, 0.0), None, factorization="pure-hybrid", secret=SECRET)
    restored = Stream.restore(hybrid.snapshot())
    assert restored.factorization.name == "pure-hybrid"
