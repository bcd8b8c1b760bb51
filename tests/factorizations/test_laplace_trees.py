"""Trees for pure privacy: dense oracles, l1 sensitivity by enumeration, exact mean squared
errors."""

from __future__ import annotations

import numpy as np
import pytest

from evercount.errors import ParameterError, UnknownName
from evercount.factorizations.laplace_choice import pure_factorization
from evercount.factorizations.laplace_trees import (
    BASES,
    DigitTree,
    HybridTree,
    best_base,
)

TREES = [
    DigitTree(horizon, base) for base in (2, 3, 5, 19) for horizon in (1, 2, 7, 13, 64, 97, 100)
]
COUNT = np.tril(np.ones((200, 200)))


@pytest.mark.parametrize("tree", TREES, ids=lambda t: f"{t.name}-{t.horizon}")
def test_dense_form_is_a_factorization(tree: DigitTree) -> None:
    T = tree.horizon
    assert T is not None
    left, right = tree.dense()
    assert (left @ right == COUNT[:T, :T]).all()
    ticks = np.arange(1, T + 1)
    assert np.allclose(np.linalg.norm(left, axis=1), tree.row_norms(ticks))
    assert tree.weight(ticks).sum() == tree.total_weight()
    tick, norm = tree.worst_row()
    assert norm == np.sqrt(tree.weight(ticks).max()) == tree.row_norms([tick])[0]
    for a, b in ((0, T), (1, T), (T // 2, T), (T, T)):
        first = left[a - 1] if a else 0 * left[0]
        assert tree.difference_norm(a, b) == pytest.approx(np.linalg.norm(left[b - 1] - first))


@pytest.mark.parametrize("tree", TREES, ids=lambda t: f"{t.name}-{t.horizon}")
def test_every_tick_lies_in_at_most_levels_nodes(tree: DigitTree) -> None:
    """The l1 sensitivity by enumeration of all single ticks; R is 0/1, so sums of changes add."""
    _, right = tree.dense()
    assert set(np.unique(right)) <= {0.0, 1.0}
    assert right.sum(axis=0).max() <= tree.levels
    if tree.horizon == 100:
        assert right.sum(axis=0).max() == tree.levels  # and the bound is attained


def walk(tree: DigitTree, tick: int) -> dict[int, int]:
    """The nodes of a prefix with their signs: the lowest digit that is not 0 moves towards 0, step
    by step."""
    signs = {}
    for level, digit in enumerate(tree.digits([tick])[0].tolist()):
        for _ in range(abs(digit)):
            signs[tick] = 1 if digit > 0 else -1
            tick -= signs[tick] * tree.base**level
    return signs


@pytest.mark.parametrize("tree", TREES, ids=lambda t: f"{t.name}-{t.horizon}")
def test_rows_are_the_walks(tree: DigitTree) -> None:
    assert tree.horizon is not None
    for start in range(0, tree.horizon, 7):
        ticks = np.arange(start + 1, min(start + 9, tree.horizon) + 1)
        nodes, weights, shares = tree.matrix(ticks)
        assert len(set(nodes.tolist())) == len(nodes)
        assert (shares == 1).all()
        for tick, row in zip(ticks.tolist(), weights, strict=True):
            assert {int(nodes[i]): int(row[i]) for i in np.flatnonzero(row)} == walk(tree, tick)


def test_exact_mean_squared_error_at_full_trees() -> None:
    """T = (k^h − 1)/2: mean weight h·(k² − 1)/(4k)·k^h/(k^h − 1), and the leading constant is least
    at k = 19."""
    for k, h in ((3, 5), (19, 2), (19, 4)):
        T = (k**h - 1) // 2
        tree = DigitTree(T, k)
        assert tree.levels == h
        mean = h * (k**2 - 1) / (4 * k) * k**h / (k**h - 1)
        assert tree.total_weight() / T == pytest.approx(mean, rel=1e-12)

    def leading_constant(base: int) -> float:
        """Mean squared error of a balanced tree over log₂³T/ε², T large."""
        return (base**2 - 1) / (2 * base * np.log2(base) ** 3)

    assert min(BASES, key=leading_constant) == 19
    assert leading_constant(19) == pytest.approx(0.1236, abs=1e-4)
    assert leading_constant(19) * np.log2(19) ** 3 == pytest.approx(2 * (19**2 - 1) / (4 * 19))


def test_best_base_beats_binary_by_seven_at_a_million_ticks() -> None:
    T = 2**20
    best, binary = DigitTree(T, best_base(T)), DigitTree(T, 2)
    ratio = (binary.total_weight() * binary.levels**2) / (best.total_weight() * best.levels**2)
    assert best.base == 19
    assert ratio == pytest.approx(7.69, abs=0.01)


@pytest.mark.parametrize("binary", [False, True])
def test_hybrid_budget(binary: bool) -> None:
    """Rows of R carry their share of ε: every tick spends at most 1 of it, and L·R counts."""
    tree = HybridTree(binary)
    left, right = tree.dense(150)
    assert np.allclose(left @ right, COUNT[:150, :150])
    assert right.sum(axis=0).max() <= 1 + 1e-12
    assert np.allclose(np.linalg.norm(left, axis=1), tree.row_norms(np.arange(1, 151)))
    for a, b in ((0, 9), (3, 3), (4, 7), (4, 90), (64, 128)):
        first = left[a - 1] if a else 0 * left[0]
        assert tree.difference_norm(a, b) == pytest.approx(np.linalg.norm(left[b - 1] - first))


@pytest.mark.parametrize(("horizon", "base"), [(1, 3), (50, 3), (100, 2), (777, 13)])
def test_weights_are_counted_without_listing_ticks(horizon: int, base: int) -> None:
    tree = DigitTree(horizon, base)
    counts = tree.weight_counts()
    assert (
        counts == np.bincount(tree.weight(np.arange(1, horizon + 1)), minlength=len(counts))
    ).all()


def test_names() -> None:
    assert pure_factorization(None, None).name == "endless-bridge"
    assert pure_factorization("pure-hybrid-binary", None).name == "pure-hybrid-binary"
    assert pure_factorization("pure-tree", 1000).name == f"pure-tree-{best_base(1000)}"
    assert pure_factorization("pure-tree-19", 1000).name == "pure-tree-19"
    assert pure_factorization("pure-binary", 1000).levels == 10
    with pytest.raises(UnknownName):
        pure_factorization("balanced", 1000)
    with pytest.raises(ParameterError, match="known horizon"):
        pure_factorization("pure-tree", None)
    with pytest.raises(ParameterError):
        pure_factorization("pure-hybrid", 10)
    for horizon, base in ((0, 2), (9, 1), (9, True), (9, 3.0), (9, 4), (9, 1001), (2**41, 2)):
        with pytest.raises(ParameterError):
            DigitTree(horizon, base)
    for name in ("pure-tree-2", "pure-tree-02", "pure-tree-٢", "pure-tree-4"):
        with pytest.raises(ParameterError):
            pure_factorization(name, 9)
    with pytest.raises(ParameterError, match="Laplace"):
        DigitTree(9).initial()
