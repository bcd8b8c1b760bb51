"""Bridges: L·R = M in integers, shares of every leaf, exact variances, stated bars, and the frozen
table."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest

from evercount.errors import ParameterError
from evercount.factorizations.laplace_bridge import (
    PLAIN,
    TABLE,
    UNITS,
    Bridge,
    Design,
    branching,
    design_for,
)
from evercount.factorizations.laplace_choice import pure_factorization
from evercount.factorizations.laplace_trees import LARGEST_TICKS, DigitTree, best_base
from evercount.noise.laplace_sampler import variance
from product_internals import splits
from soak_cases import soak_except

HORIZONS = [1, 2, 5, 7, 8, 24, 64, 100, 181, 365, 1000]


def whole_matrices(bridge: Bridge) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(L·2^bits, R, shares) in whole numbers, a column of L and a row of R for each node that some
    tick uses."""
    T = bridge.horizon
    nodes, weights, shares = bridge.coefficients(np.arange(1, T + 1))
    distinct, first, place = np.unique(nodes.ravel(), return_index=True, return_inverse=True)
    left = np.zeros((T, len(distinct)), np.int64)
    left[np.repeat(np.arange(T), nodes.shape[1]), place.ravel()] = weights.ravel()
    right = np.zeros((len(distinct), T), np.int64)
    for row, node in enumerate(distinct.tolist()):
        start, stop = bridge.interval(node)
        right[row, start - 1 : stop] = 1
    return left, right, shares.ravel()[first]


@pytest.mark.parametrize("horizon", [*HORIZONS, pytest.param(2000, marks=pytest.mark.soak)])
def test_left_times_right_is_the_count_in_integers(horizon: int) -> None:
    """Doubles multiply whole numbers below 2^53 exactly, and faster. A coefficient that is off by
    one unit shows."""
    bridge = Bridge(horizon)
    left, right, _ = whole_matrices(bridge)
    left, right = left.astype(float), right.astype(float)
    assert np.abs(left).sum(axis=1).max() < 2**53
    count = np.tril(np.full((horizon, horizon), float(1 << bridge.bits)))
    assert (left @ right == count).all()
    if bridge.levels > 1:
        left[horizon // 2, 0] += 1
        assert (left @ right != count).any()


@pytest.mark.parametrize("horizon", [*HORIZONS, 5000, 70_000])
def test_shares_of_every_leaf_add_up_exactly(horizon: int) -> None:
    bridge = Bridge(horizon)
    ticks = np.arange(1, horizon + 1)
    total = np.zeros(horizon, np.int64)
    for _, blocks, split, row, child in splits(bridge, ticks):
        total += split.shares[row, child]
        assert split.shares.min() >= bridge.least_share > 0
        assert (blocks.left > 0).all()
    assert (total == UNITS).all()


def test_every_range_of_the_table_has_shares_that_can_be_drawn() -> None:
    for longest, _, coefficients in TABLE:
        bridge = Bridge(longest)
        assert bridge.levels == len(coefficients) + 1
        assert bridge.least_share > UNITS / 2**9
        assert math.prod(bridge.branching) >= longest
    assert TABLE[-1][0] == LARGEST_TICKS
    assert [row[0] for row in TABLE] == sorted({row[0] for row in TABLE})


def test_the_table_is_frozen() -> None:
    """Streams in the world depend on these numbers: a better table gets a new name, and this hash
    stays."""
    found = hashlib.sha256(repr((PLAIN, TABLE)).encode()).hexdigest()
    assert found[:16] == "5ab284e6b0676e22"
    prints = {T: Bridge(T).fingerprint for T in (6, 24, 1000, 2**16, 2**30)}
    assert prints == FINGERPRINTS


FINGERPRINTS = {
    6: "7a9919914ce93181",
    24: "4c4e5eaa766a703c",
    1000: "8307180c79ed0e8c",
    65536: "4831159ea77af07d",
    1073741824: "ce807f8a5c5c2f7d",
}


@pytest.mark.parametrize("horizon", [7, 100, 365])
def test_stated_variances_are_those_of_the_coefficients(horizon: int) -> None:
    bridge = Bridge(horizon)
    ticks = np.arange(1, horizon + 1)
    nodes, weights, shares = bridge.coefficients(ticks)
    scale = weights / 2.0**bridge.bits
    for rate in (0.03, 2.0, 20.0):
        exact, plain, largest = bridge.laplace_errors(ticks, rate)
        each = np.vectorize(variance)(shares / UNITS * rate)
        assert exact == pytest.approx((scale**2 * each).sum(axis=1), rel=1e-9)
        assert plain == pytest.approx(
            (scale**2 * 2 / (shares / UNITS * rate) ** 2).sum(axis=1), rel=1e-9
        )
        true = (np.abs(scale) / (shares / UNITS * rate)).max(axis=1)
        assert (largest >= true * (1 - 1e-12)).all()
        assert (largest <= 1.5 * true).all()
    left, right = bridge.dense()
    assert np.allclose(left @ right, np.tril(np.ones((horizon, horizon))))
    assert np.allclose(np.linalg.norm(left, axis=1), bridge.row_norms(ticks))
    for a, b in ((0, 5), (3, 3), (3, horizon), (horizon // 2, horizon // 2 + 1)):
        first = left[a - 1] if a else 0 * left[0]
        assert bridge.difference_norm(a, b) == pytest.approx(
            np.linalg.norm(left[b - 1] - first), abs=1e-9
        )
    assert nodes.shape == (horizon, sum(bridge.branching))


@pytest.mark.parametrize("horizon", [6, 24, 100, 1000, 5000])
def test_rows_of_some_ticks_are_rows_of_all(horizon: int) -> None:
    bridge = Bridge(horizon)
    table = np.random.default_rng(horizon).integers(-50, 50, size=(2 * horizon + 200, 2))
    nodes, weights, _ = bridge.coefficients(np.arange(1, horizon + 1))
    want = np.einsum("tn,tnc->tc", weights, table[nodes])
    for first, last in (
        (1, horizon),
        (1, 1),
        (horizon, horizon),
        (horizon // 3 + 1, horizon // 2 + 1),
    ):
        some, coefficients, _ = bridge.matrix(np.arange(first, last + 1))
        assert len(set(some.tolist())) == len(some)
        assert (coefficients @ table[some] == want[first - 1 : last]).all()


def stds(bridge: Bridge) -> tuple[float, float]:
    """(worst, root mean square) at ε = 1."""
    squares = 2 * bridge.row_norms(np.arange(1, bridge.horizon + 1)) ** 2
    return math.sqrt(squares.max()), math.sqrt(squares.mean())


@pytest.mark.parametrize(("horizon", "worst", "mean"), [(2**10, 12.3, 11.0), (2**16, 23.1, 20.6)])
def test_stated_bars(horizon: int, worst: float, mean: float) -> None:
    found = stds(Bridge(horizon))
    assert found[0] <= worst
    assert found[1] <= mean


@pytest.mark.parametrize(
    ("horizon", "part"),
    [
        (24, 0.75),
        (100, 0.72),
        (365, 0.72),
        (1000, 0.72),
        (8760, 0.72),
        (2**14, 0.72),
        (2**20, 0.72),
    ],
)
def test_worst_error_against_the_digit_tree(horizon: int, part: float) -> None:
    tree = DigitTree(horizon, best_base(horizon))
    bridge = Bridge(horizon)
    tick, norm = bridge.worst_row()
    assert norm <= part * tree.levels * tree.worst_row()[1]
    assert bridge.row_norms([tick])[0] == norm


@pytest.mark.parametrize("step", soak_except([7], [1, 7]))
def test_never_worse_than_the_digit_tree(step: int) -> None:
    """Every horizon up to 40, every one or 49th up to 700, and some up to 2^40."""
    some = np.unique(np.geomspace(700, 2**22, 25).astype(np.int64)).tolist()[::step]
    for horizon in [
        *range(1, 40),
        *range(40, 700, step * step),
        *some,
        2**24 + 1,
        10**9,
        2**34 - 5,
        2**40,
    ]:
        tree = DigitTree(horizon, best_base(horizon))
        assert Bridge(horizon).worst_row()[1] <= tree.levels * tree.worst_row()[1] * (1 + 1e-9), (
            horizon
        )


def test_below_gaussian_noise_and_its_lower_bound() -> None:
    """At ε = 0.5, δ = 1e-10 and 2^16 ticks no Gaussian factorization is below 48.40; the bridge
    with δ = 0 is."""
    from evercount.bounds import nuclear_lower
    from evercount.privacy import Budget

    floor = Budget(0.5, 1e-10).noise_multiplier() * float(nuclear_lower(2**16))
    worst = math.sqrt(2) / 0.5 * Bridge(2**16).worst_row()[1]
    assert floor == pytest.approx(48.40, abs=0.01)
    assert worst < 46.3


def test_names_and_refusals() -> None:
    assert isinstance(pure_factorization(None, 1000), Bridge)
    assert isinstance(pure_factorization("bridge", 1000), Bridge)
    assert pure_factorization("pure-tree", 1000).name == "pure-tree-13"
    with pytest.raises(ParameterError, match="known horizon"):
        pure_factorization("bridge", None)
    with pytest.raises(ParameterError, match="fewer leaves"):
        Bridge(100, Design((4, 4), ((0.0, 0.0, 0.0, 0.0),)))
    with pytest.raises(ParameterError, match="2\\^40"):
        Bridge(2**41)
    with pytest.raises(ParameterError, match="Laplace"):
        Bridge(9).initial()
    assert branching(1000, 3, 4) == (4, 16, 16)
    assert design_for(PLAIN).branching == (PLAIN,)
    assert Bridge(2**40).state_bytes == 0
