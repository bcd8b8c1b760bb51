"""ConsistentTree: two passes over the tree against dense weighted least squares."""

from __future__ import annotations

import numpy as np
import pytest

from evercount._validate import FloatArray
from evercount.errors import ParameterError
from evercount.queries.consistent_tree import ConsistentTree

TREES = [
    ConsistentTree(((2,),), (1, 1)),
    ConsistentTree(((3,), (1, 4, 2)), (1, 1, 1)),
    ConsistentTree(((3,), (1, 4, 2)), (3, 0, 2)),
    ConsistentTree(((2,), (2, 2), (2, 2, 2, 2)), (0, 2, 1, 5)),
    ConsistentTree(((1,), (5,), (2, 1, 1, 3, 1)), (1, 2, 0, 1)),
    ConsistentTree(((2,), (1, 1)), (0, 0, 1)),
]


def members(tree: ConsistentTree) -> FloatArray:
    """Nodes × leaves: 1 where a leaf lies below a node."""
    rows = [
        np.arange(size)[:, np.newaxis] == above
        for size, above in zip(tree.sizes, tree.ancestors, strict=True)
    ]
    return np.concatenate(rows).astype(np.float64)


def dense(tree: ConsistentTree) -> FloatArray:
    """Nodes × cells: the map of least squares, by a pseudo-inverse."""
    every = members(tree)
    weights = np.repeat(tree.weights, tree.sizes)
    measured = (weights[:, np.newaxis] * every)[weights > 0]
    return np.asarray(every @ np.linalg.pinv(measured))


@pytest.mark.parametrize("tree", TREES)
def test_two_passes_are_the_dense_least_squares(tree: ConsistentTree) -> None:
    wanted = dense(tree)
    found = tree.estimate(np.eye(tree.cells)).T
    assert np.allclose(found, wanted, atol=1e-12)
    assert np.allclose(tree.variances, (wanted**2).sum(axis=1), atol=1e-12)
    assert np.all(tree.rounding >= np.abs(wanted).sum(axis=1) - 1e-12)


@pytest.mark.parametrize("tree", TREES)
def test_counts_come_back_as_they_are_and_estimates_add_up(tree: ConsistentTree) -> None:
    generator = np.random.default_rng(3)
    counts = generator.integers(0, 1000, (4, tree.leaves))
    one, weight = tree.cells_of_leaves(np.arange(tree.leaves))
    by_event = np.zeros((tree.leaves, tree.cells), np.int64)
    np.put_along_axis(by_event, one, weight, axis=1)
    cells = counts @ by_event
    assert np.allclose(tree.estimate(cells.astype(np.float64)), counts @ members(tree).T)
    noisy = tree.estimate(cells + generator.normal(0, 50, cells.shape))
    leaves = noisy[:, -tree.leaves :]
    assert np.allclose(noisy, leaves @ members(tree).T)


def test_a_wrong_weight_is_caught() -> None:
    """The comparison can fail: least squares with other weights is another map with a larger
    variance."""
    tree, wrong = TREES[2], ConsistentTree(TREES[2].children, (1, 0, 1))
    true_map = dense(tree)
    scale = np.concatenate([np.full(size, a / b) for size, a, b in ((1, 1, 3), (7, 1, 2))])
    other_map = wrong.estimate(np.diag(scale)).T  # reads the same cells, believes other weights
    assert not np.allclose(other_map, true_map)
    assert np.all((other_map**2).sum(axis=1) >= (true_map**2).sum(axis=1) - 1e-12)


def test_leaves_without_weight_are_refused() -> None:
    with pytest.raises(ParameterError, match="last level"):
        ConsistentTree(((2,),), (1, 0))
