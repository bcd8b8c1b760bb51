"""Least squares on trees of noisy counts: estimates of all nodes in which children add up to their
parents."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from evercount._validate import FloatArray, IntArray
from evercount.errors import ParameterError


@dataclass(frozen=True, eq=False)
class ConsistentTree:
    """A tree of public nodes, level by level from the root; all leaves lie on the last level.

    Every node of a level with a weight w > 0 has a cell, which holds w times the node's count. All
    cells have independent noise of one variance. `estimate` is the least-squares estimate of all
    nodes from all cells.

    **Guarantee.** `estimate` is linear in the cells, leaves counts as they are where there is no
    noise, and adds up; no other such linear map has a smaller variance at any node. `variances` are
    those of its results in units of a cell's variance. Proof: `rollup.proof.md`. Test:
    tests/queries/test_consistent_tree.py::test_two_passes_are_the_dense_least_squares.
    """

    # for each level but the last, the number of children of each node, in order; every node has one
    children: tuple[tuple[int, ...], ...]
    weights: tuple[int, ...]  # one whole number for each level; the last is at least 1

    def __post_init__(self) -> None:
        if self.weights[-1] < 1:
            raise ParameterError("the last level of a tree needs a weight of at least 1")

    # -- the shape ---------------------------------------------------------------------------------

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        return (1, *(sum(numbers) for numbers in self.children))

    @property
    def leaves(self) -> int:
        return self.sizes[-1]

    @property
    def cells(self) -> int:
        """The number of nodes with a cell."""
        return sum(size for size, weight in zip(self.sizes, self.weights, strict=True) if weight)

    @cached_property
    def _first_cell(self) -> IntArray:
        """The number of the first cell of each level; levels of weight 0 have none."""
        counted = [
            size if weight else 0 for size, weight in zip(self.sizes, self.weights, strict=True)
        ]
        return np.cumsum([0, *counted])

    @cached_property
    def _starts(self) -> list[IntArray]:
        """For each level but the last: where the children of each node begin, inside the next
        level."""
        return [np.cumsum([0, *numbers[:-1]]) for numbers in self.children]

    @cached_property
    def _parents(self) -> list[IntArray]:
        """For each level but the first: the parent of each node, inside the level above."""
        return [np.repeat(np.arange(len(numbers)), numbers) for numbers in self.children]

    @cached_property
    def ancestors(self) -> list[IntArray]:
        """For each level: the node of that level above each leaf, counted inside the level."""
        levels = [np.arange(self.leaves)]
        for parents in reversed(self._parents):
            levels.insert(0, parents[levels[0]])
        return levels

    # -- from leaves to cells ----------------------------------------------------------------------

    def cells_of_leaves(self, leaves: IntArray) -> tuple[IntArray, IntArray]:
        """(cells, weights) of each leaf, shape (leaves, levels with a cell): what one event in it
        changes."""
        used = [level for level, weight in enumerate(self.weights) if weight]
        cells = np.stack(
            [self._first_cell[level] + self.ancestors[level][leaves] for level in used], axis=1
        )
        weights = np.asarray([self.weights[level] for level in used])
        return cells, np.broadcast_to(weights, cells.shape)

    # -- from noisy cells to estimates -------------------------------------------------------------

    @cached_property
    def own(self) -> list[FloatArray]:
        """Variance of each node's best estimate from its own subtree, per level, in units of a
        cell's variance."""
        own = [np.full(self.leaves, 1.0 / self.weights[-1] ** 2)]
        for starts, weight in zip(reversed(self._starts), reversed(self.weights[:-1]), strict=True):
            own.insert(0, 1.0 / (weight**2 + 1.0 / np.add.reduceat(own[0], starts)))
        return own

    @cached_property
    def _below(self) -> list[FloatArray]:
        """For each level but the last: variance of the sum of the children's estimates."""
        return [
            np.add.reduceat(self.own[level + 1], starts)
            for level, starts in enumerate(self._starts)
        ]

    @cached_property
    def _share(self) -> list[FloatArray]:
        """For each level but the first: which part of a change of its parent a node takes over;
        siblings' sum to 1."""
        return [
            self.own[level + 1] / self._below[level][parents]
            for level, parents in enumerate(self._parents)
        ]

    def estimate(self, noisy: FloatArray) -> FloatArray:
        """The estimates of all nodes, shape (ticks, nodes), from the noisy cells, shape (ticks,
        cells)."""
        cells = [
            noisy[:, self._first_cell[i] : self._first_cell[i + 1]]
            for i in range(len(self.weights))
        ]
        best = [cells[-1] / self.weights[-1]]
        sums: list[FloatArray] = []
        for level in range(len(self.children) - 1, -1, -1):
            below = np.add.reduceat(best[0], self._starts[level], axis=1)
            sums.insert(0, below)
            weight = self.weights[level]
            if weight:  # precision weight² of the own cell, and 1/below of the children
                own = self.own[level]
                below = own * (weight * cells[level] + below / self._below[level])
            best.insert(0, below)
        final = [best[0]]
        for level, parents in enumerate(self._parents):
            lack = final[level] - sums[level]
            final.append(best[level + 1] + self._share[level] * lack[:, parents])
        return np.concatenate(final, axis=1)

    @cached_property
    def variances(self) -> FloatArray:
        """Variance of each node's final estimate, in units of a cell's variance."""
        final = [self.own[0]]
        for level, parents in enumerate(self._parents):
            share = self._share[level]
            final.append(self.own[level + 1] * (1 - share) + share**2 * final[level][parents])
        return np.concatenate(final)

    @cached_property
    def own_rounding(self) -> list[FloatArray]:
        """Σ|coefficients| of each node's best estimate from its own subtree, per level."""
        own = [np.full(self.leaves, 1.0 / self.weights[-1])]
        for level in range(len(self.children) - 1, -1, -1):
            below = np.add.reduceat(own[0], self._starts[level])
            own.insert(0, self.own[level] * (self.weights[level] + below / self._below[level]))
        return own

    @cached_property
    def rounding(self) -> FloatArray:
        """A bound of Σ|coefficients| of each estimate: what it changes if every cell changes by at
        most 1."""
        final = [self.own_rounding[0]]
        for level, parents in enumerate(self._parents):
            share = self._share[level]
            own = self.own_rounding[level + 1]
            others = np.add.reduceat(own, self._starts[level])[parents] - own
            final.append((1 - share) * own + share * (others + final[level][parents]))
        return np.concatenate(final)


@dataclass(frozen=True, eq=False)
class Forest:
    """Trees that count different leaves of one hierarchy, with the same weights: those of the first
    paths, and for each joining those of the paths that joined. A node that several trees have is
    published as the sum of its estimates. It offers what a query asks of a `ConsistentTree`. An
    event that moves from one tree to another changes every level of both, so no level has one node
    only."""

    trees: tuple[ConsistentTree, ...]
    places: tuple[IntArray, ...]  # for each tree, where each of its nodes is published

    @property
    def weights(self) -> tuple[int, ...]:
        return self.trees[0].weights

    @property
    def sizes(self) -> tuple[int, ...]:
        return (2,) * len(self.weights)

    @cached_property
    def nodes(self) -> int:
        return 1 + max(int(places.max()) for places in self.places)

    @property
    def cells(self) -> int:
        return sum(tree.cells for tree in self.trees)

    @cached_property
    def _firsts(self) -> IntArray:
        """The first cell of each tree, and how many there are."""
        return np.cumsum([0, *(tree.cells for tree in self.trees)])

    def cells_of_leaves(self, leaves: IntArray) -> tuple[IntArray, IntArray]:
        each = [tree.cells_of_leaves(np.arange(tree.leaves)) for tree in self.trees]
        cells = np.concatenate(
            [one[0] + first for one, first in zip(each, self._firsts[:-1], strict=True)]
        )
        return cells[leaves], np.concatenate([one[1] for one in each])[leaves]

    def estimate(self, noisy: FloatArray) -> FloatArray:
        out = np.zeros((len(noisy), self.nodes))
        parts = np.split(noisy, self._firsts[1:-1], axis=1)
        for tree, places, part in zip(self.trees, self.places, parts, strict=True):
            out[:, places] += tree.estimate(part)
        return out

    def part(self, first_cell: int) -> tuple[FloatArray, FloatArray]:
        """(norms, roundings) of the published numbers from the tree whose cells begin here
        alone."""
        number = self._firsts.tolist().index(first_cell)
        norms = np.zeros(self.nodes)
        rounding = np.zeros(self.nodes)
        tree = self.trees[number]
        places = self.places[number]
        norms[places] = np.sqrt(tree.variances)
        rounding[places] = tree.rounding
        return norms, rounding

    @cached_property
    def _parts(self) -> FloatArray:
        return np.asarray([self.part(int(first)) for first in self._firsts[:-1]])

    @property
    def variances(self) -> FloatArray:
        return np.asarray((self._parts[:, 0] ** 2).sum(axis=0))

    @property
    def rounding(self) -> FloatArray:
        return np.asarray(self._parts[:, 1].sum(axis=0))
