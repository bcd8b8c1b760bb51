"""The endless bridge: L·R = M in integers, shares of every leaf, exact variances, and its distance
to the bridge."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest

from evercount.bounds.tails import simultaneous_radius
from evercount.errors import ParameterError
from evercount.factorizations.laplace_bridge import ENDLESS, UNITS, Bridge
from evercount.factorizations.laplace_choice import (
    ENDS,
    EndlessBridge,
    epoch_bridge,
    pure_factorization,
)
from evercount.factorizations.laplace_trees import LARGEST_TICKS, HybridTree
from product_internals import splits

TICKS = 700
"""Three epochs, the last one begun."""


def whole_matrices(tree: EndlessBridge, ticks: int) -> tuple[np.ndarray, np.ndarray, int]:
    """(L·2^bits, R, bits) in whole numbers, from the coefficients of each epoch and the totals of
    earlier ones."""
    last = int(tree.epochs([ticks])[0])
    bits = tree.tree(last).bits
    rows, columns = [], []
    for epoch in range(last + 1):
        bridge, start, stop = tree.tree(epoch), int(ENDS[epoch]), min(int(ENDS[epoch + 1]), ticks)
        nodes, weights, _ = bridge.coefficients(np.arange(1, stop - start + 1))
        distinct, place = np.unique(nodes.ravel(), return_inverse=True)
        left = np.zeros((ticks, len(distinct)), np.int64)
        at = np.repeat(np.arange(start, stop), nodes.shape[1])
        left[at, place.ravel()] = weights.ravel() << (bits - bridge.bits)
        left[stop:, 0] = 1 << bits
        right = np.zeros((len(distinct), ticks), np.int64)
        for row, node in enumerate(distinct.tolist()):
            begin, end = bridge.interval(node)
            right[row, start + begin - 1 : start + end] = 1
        columns.append(left)
        rows.append(right)
    return np.hstack(columns), np.vstack(rows), bits


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("ticks", [1, 16, 17, 256, 257, TICKS])
def test_left_times_right_is_the_count_in_integers(ticks: int, whole: bool) -> None:
    """Doubles multiply whole numbers below 2^53 exactly, and faster. A coefficient that is off by
    one unit shows."""
    left, right, bits = whole_matrices(EndlessBridge(whole), ticks)
    left, right = left.astype(float), right.astype(float)
    assert np.abs(left).sum(axis=1).max() < 2**53
    count = np.tril(np.full((ticks, ticks), float(1 << bits)))
    assert (left @ right == count).all()
    left[ticks // 2, 0] += 1
    assert (left @ right != count).any()


@pytest.mark.parametrize("epoch", range(len(ENDLESS)))
def test_shares_of_every_leaf_add_up_exactly(epoch: int) -> None:
    bridge = EndlessBridge().tree(epoch)
    assert bridge.horizon == ENDS[epoch + 1] - ENDS[epoch]
    ticks = np.unique(np.linspace(1, bridge.horizon, 5000).astype(np.int64))
    total = np.zeros(len(ticks), np.int64)
    for _, _, split, row, child in splits(bridge, ticks):
        total += split.shares[row, child]
        assert split.shares.min() >= bridge.least_share > UNITS / 2**9
    assert (total == UNITS).all()


def test_stated_variances_are_those_of_the_matrices() -> None:
    tree = EndlessBridge()
    ticks = np.arange(1, TICKS + 1)
    left, right = tree.dense(TICKS)
    assert np.allclose(left @ right, np.tril(np.ones((TICKS, TICKS))))
    assert np.allclose(np.abs(right).sum(axis=0), 1.0)
    assert np.allclose(np.linalg.norm(left, axis=1), tree.row_norms(ticks))
    for a, b in (
        (0, 5),
        (3, 3),
        (3, 16),
        (16, 17),
        (10, 40),
        (16, 300),
        (5, 600),
        (256, 257),
        (300, TICKS),
    ):
        first = left[a - 1] if a else 0 * left[0]
        assert tree.difference_norm(a, b) == pytest.approx(
            np.linalg.norm(left[b - 1] - first), abs=1e-9
        )
    for rate in (0.03, 2.0):
        exact, plain, largest = tree.laplace_errors(ticks, rate)
        assert plain == pytest.approx(2 / rate**2 * (left**2).sum(axis=1))
        assert (largest >= np.abs(left).max(axis=1) / rate * (1 - 1e-9)).all()
        assert (exact < plain).all()
        # two epochs that are over: every node has ticks, and shows its share
        ended, nodes = tree.dense(256)
        share = np.abs(nodes).max(axis=1)
        one = 0.5 / np.sinh(rate * share / 2) ** 2  # the variance of a node
        assert exact[:256] == pytest.approx(((ended * share) ** 2 @ one), rel=1e-9)


def test_error_is_at_most_half_above_that_of_the_bridge_told_the_tick() -> None:
    """The largest std so far over the worst std of the bridge for T = t, for t = 2^4 … 2^32; the
    hybrid is above 2."""
    tree, hybrid = EndlessBridge(), HybridTree()
    for power in (4, 8, 12, 16, 24, 32):
        told = Bridge(1 << power).worst_row()[1]
        ratio = tree.row_norms(tree.suspects(1 << power)).max() / told
        assert ratio < 1.45
        assert ratio < 0.75 * hybrid.row_norms(hybrid.suspects(1 << power)).max() / told
    for t in [*range(1, 20), 33, 59, 100, 365, 1000, 8760]:
        assert tree.row_norms(np.arange(1, t + 1)).max() < 1.5 * Bridge(t).worst_row()[1]


def test_suspects_hold_the_worst_tick() -> None:
    tree = EndlessBridge()
    for ticks in (1, 9, 16, 17, 200, 256, 300, 4097, 10_000):
        found = tree.suspects(ticks)
        assert max(found) <= ticks
        assert tree.row_norms(found).max() == tree.row_norms(np.arange(1, ticks + 1)).max()


def test_bounds_for_all_ticks_grow_with_the_ticks() -> None:
    """Beyond 2^20 ticks every tick counts as the worst one: never below the bound of fewer
    ticks."""
    tree = EndlessBridge()
    radii = [simultaneous_radius(tree, 1.0, 0.05, ticks) for ticks in (16, 2**10, 2**16, 2**24)]
    assert radii == sorted(radii)
    assert radii[2] < 0.9 * simultaneous_radius(HybridTree(), 1.0, 0.05, 2**16)


def test_the_table_is_frozen() -> None:
    """Streams in the world depend on these numbers: a better table gets a new name, and this hash
    stays."""
    assert hashlib.sha256(repr(ENDLESS).encode()).hexdigest()[:16] == "8f754d806ad080ab"
    assert EndlessBridge().fingerprint == "b992b58f0408f917"
    assert EndlessBridge(integers=True).fingerprint != EndlessBridge().fingerprint


def test_parameters() -> None:
    tree = pure_factorization("endless-bridge", None)
    assert isinstance(tree, EndlessBridge)
    assert tree.epochs([1, 16, 17, LARGEST_TICKS]).tolist() == [0, 0, 1, len(ENDLESS) - 1]
    assert ENDS[-1] == LARGEST_TICKS
    with pytest.raises(ParameterError, match="2\\^40"):
        tree.row_norms([LARGEST_TICKS + 1])
    with pytest.raises(ParameterError, match="horizon=None"):
        pure_factorization("endless-bridge", 10)
    assert tree.for_rate(1.0) is tree
    assert tree.for_rate(20.0).integers
    assert epoch_bridge(0, True).bits == 0
    assert tree.state_bytes == 0
    assert math.isinf(tree.column_norm)
