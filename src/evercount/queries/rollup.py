"""Rollup: running counts of all nodes of a public tree (nation, states, counties) that add up at
every tick.

`TableQuery` is what it shares with `Marginals`, `TreeQuery` what it shares with `Quantiles`.
"""

from __future__ import annotations

from abc import abstractmethod
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from evercount._validate import FloatArray, IntArray, check_name, check_public_text, require_fits
from evercount.errors import EventRefused, InputError, ParameterError
from evercount.privacy import Adjacency
from evercount.queries.base import (
    LARGEST_TOTAL,
    OTHER,
    TOTAL,
    PowerQuery,
    check_distinct,
    is_replace,
    listed_events,
)
from evercount.queries.consistent_tree import ConsistentTree, Forest
from evercount.queries.publishing import Publishing, check_weights
from evercount.queries.sensitivities import Groups, RowFormat, other_last

SEPARATOR = " / "


class TableQuery(PowerQuery):
    """What queries share whose events add to one cell each of several tables, such as the levels of
    a tree.

    Guarantee. One event adds w to one cell of each table, at one tick, w the table's weight. So S =
    Σ w² and Δ₁ = Σ w for add-remove. Under replace a table changes in two cells by w or not at all,
    and tables with one cell never change: S = 2·Σ w² and Δ₁ = 2·Σ w over the tables with more than
    one cell. Proofs: `rollup.proof.md` and `marginals.proof.md`. Assumption: an event is what one
    person contributes. Tests: tests/queries/test_every_sensitivity.py::test_claims_by_enumeration
    and tests/queries/test_queries_rollup.py::test_sensitivity_is_the_exact_maximum.
    """

    monotone = True

    @property
    def outputs(self) -> int:
        return len(self.labels)

    @property
    @abstractmethod
    def _tables_of_events(self) -> Iterable[tuple[int, int]]:
        """(weight, number of cells) of each table."""

    @abstractmethod
    def leaves_of(self, events: list[Any]) -> npt.NDArray[np.intp]:
        """The kind of each event, which every table counts, or InputError."""

    @abstractmethod
    def _cells_of(self, leaves: IntArray) -> tuple[IntArray, IntArray]:
        """Give (cells, weights) that an event of each kind changes, shape (kinds, tables)."""

    @abstractmethod
    def _leaves_in(self, output: int) -> tuple[IntArray, int]:
        """List the kinds of events that a published number counts, and a table whose cells tell
        them from all others."""

    def _covariance(self, outputs: Sequence[int]) -> FloatArray:
        """Of some published numbers, which are least-squares estimates, in units of a cell's
        variance.

        **Guarantee.** What is published of 1/w in the cells of weight w that a number counts is its
        covariance with all numbers. Proof: `rollup.proof.md`, "Covariances". Test:
        tests/queries/test_capabilities.py::test_what_is_said_of_published_numbers_is_true.
        """
        cells = np.zeros((len(outputs), self.cells))
        for row, output in zip(cells, outputs, strict=True):
            leaves, table = self._leaves_in(output)
            changed, weights = self._cells_of(leaves)
            row[changed[:, table]] = 1 / weights[0, table]
        return self.decode_run(1, cells)[:, outputs]

    def encode(self, state: Any, events: Any) -> tuple[IntArray, Any]:
        cells, weights = self._cells_of(self.leaves_of(listed_events(events)))
        row = np.zeros(self.cells, np.int64)
        np.add.at(row, cells, weights)
        return row, state

    def _sensitivity(self, adjacency: Adjacency, power: int) -> float:
        if is_replace(adjacency):
            return float(
                2 * sum(weight**power for weight, cells in self._tables_of_events if cells > 1)
            )
        return float(sum(weight**power for weight, _ in self._tables_of_events))

    def check_totals(self, totals: IntArray) -> None:
        if int(totals.min()) < 0 or int(totals.max()) > LARGEST_TOTAL:
            raise InputError("totals must lie between 0 and 2^53")

    def _totals_of_rows(
        self, tick: IntArray, cell: IntArray, events: IntArray, units: IntArray
    ) -> Groups:
        """Here `cell` is the kind of event, which every table counts."""
        cells, weights = self._cells_of(cell)
        return (
            np.repeat(tick, cells.shape[1]),
            cells.ravel(),
            (weights * events[:, np.newaxis]).ravel(),
        )


class TreeQuery(TableQuery):
    """Queries whose cells are the nodes of a public tree, and whose events fall into one leaf each;
    see `TableQuery`. A table is a level of the tree."""

    tree: ConsistentTree | Forest

    @property
    def cells(self) -> int:
        return self.tree.cells

    @property
    def _tables_of_events(self) -> Iterable[tuple[int, int]]:
        return zip(self.tree.weights, self.tree.sizes, strict=True)

    def _cells_of(self, leaves: IntArray) -> tuple[IntArray, IntArray]:
        return self.tree.cells_of_leaves(leaves)


class Rollup(TreeQuery):
    """How many events fell into each node of a public tree, for every level of it, in numbers that
    add up.

    An event is the path of a leaf: one name for each level below the total, such as ("Tyrol",
    "Innsbruck"). Published are the total, then the nodes level by level, in the order of their
    first path. Every node has noise of its own, and what is published is the least-squares estimate
    from all of them: children add up to their parent at every tick (up to rounding of the last
    digit), and large totals have far less noise than the sum of their leaves would have.

    Args:
        paths: all leaves, each as the names of its nodes from the top; all of one length.
        weights: one whole number from 0 to 1000 for the total and for each level below it (default:
            1 each). A level of twice the weight has half the noise before the estimate, and the
            others pay for it. Weight 0: the level has no noise of its own and is published as the
            sum of its children; the last level needs at least 1.
        unknown: a path that is not in the list is refused ("refuse") or counted in a leaf of its
            own under the total, whose names are all "other" ("other").
        added: lists of paths that joined later, one list for each joining (`Stream.add_keys`). Each
            is a tree of its own, whose numbers are added to those of the nodes above: their noise
            adds up, too.

    Raises:
        ParameterError: fewer than two leaves, paths of different lengths, or weights outside their
            domain.

    Guarantee. See `TreeQuery`: S = Σ weight² for add-remove. The estimate is post-processing. Its
    std is exact, and every node's is at most that of its own cell. Proof: `rollup.proof.md`. Tests:
    tests/queries/test_queries_rollup.py::test_sensitivity_is_the_exact_maximum and
    tests/queries/test_queries_rollup.py::test_published_noise_has_the_stated_covariance.

    >>> query = Rollup([("Tyrol", "Innsbruck"), ("Tyrol", "Kufstein"), ("Styria", "Graz")])
    >>> query.labels
    ('total', 'Tyrol', 'Styria', 'Tyrol / Innsbruck', 'Tyrol / Kufstein', 'Styria / Graz')
    >>> query.encode(None, [("Styria", "Graz"), ("Tyrol", "Kufstein")])[0].tolist()
    [2, 1, 1, 0, 1, 1]
    """

    name: ClassVar[str] = "rollup"
    labels: tuple[str, ...] = ()

    def __init__(
        self,
        paths: Sequence[Sequence[str]],
        weights: Sequence[int] | None = None,
        unknown: Literal["refuse", "other"] = "refuse",
        added: Sequence[Sequence[Sequence[str]]] = (),
    ) -> None:
        check_name("rule for unknown paths", unknown, ("refuse", OTHER))
        self._unknown = unknown
        self._paths = _checked_paths(paths)
        self.depth = len(self._paths[0])
        everything = list(self._paths)
        if unknown == OTHER:
            everything.append((OTHER,) * self.depth)
        require_fits(
            len(everything) * (self.depth + 1), "this rollup", "Use fewer leaves, or fewer levels."
        )
        level_weights = check_weights(weights, self.depth + 1, "level, the total included", least=0)
        self._added = tuple(
            _checked_paths([*self._paths, *paths])[len(self._paths) :] for paths in added
        )
        if unknown == OTHER and any(
            path[0] == OTHER for path in (*self._paths, *chain.from_iterable(self._added))
        ):
            raise ParameterError(
                f"the name {OTHER!r} of the first level is taken by unknown paths; rename it"
            )
        trees = []
        places = []
        nodes_by_label = dict[str, tuple[str, ...]]()
        self._leaf: dict[tuple[str, ...], int] = {}
        for number, paths_of_tree in enumerate([everything, *self._added]):
            nodes = _nodes(paths_of_tree)
            labels = [
                SEPARATOR.join(path) if path else TOTAL for path in chain.from_iterable(nodes)
            ]
            for label, path in zip(labels, chain.from_iterable(nodes), strict=True):
                if nodes_by_label.setdefault(label, path) != path:
                    raise ParameterError(
                        f"two nodes would be labelled {label!r:.80}: rename one (the total is "
                        f"{TOTAL!r})"
                    )
            if number and not set(nodes[-1]).isdisjoint(self._leaf):
                raise ParameterError("a path that joins already exists; name new paths only")
            self._leaf |= {path: len(self._leaf) + leaf for leaf, path in enumerate(nodes[-1])}
            trees.append(ConsistentTree(_children(nodes), level_weights))
            place = {label: output for output, label in enumerate(nodes_by_label)}
            places.append(np.asarray([place[label] for label in labels]))
        self.labels = tuple(nodes_by_label)
        self._outputs = list(nodes_by_label.values())
        if len(trees) == 1:
            self.tree = trees[0]
        else:
            self.tree = Forest(tuple(trees), tuple(places))
        if trees[0].leaves < 2:
            raise ParameterError("a rollup needs at least two leaves; for one number use Count")

    @cached_property
    def publishing(self) -> Publishing:
        part = self.tree.part if isinstance(self.tree, Forest) else None
        return Publishing(
            decode=lambda first_tick, noisy: self.tree.estimate(noisy),
            norms=lambda: np.sqrt(self.tree.variances),
            rounding=lambda: self.tree.rounding,
            covariance=self._covariance,
            part=part,
        )

    def _leaves_in(self, output: int) -> tuple[IntArray, int]:
        node = self._outputs[output]
        return np.flatnonzero([path[: len(node)] == node for path in self._leaf]), -1

    def leaves_of(self, events: list[Any]) -> npt.NDArray[np.intp]:
        other = None
        if self._other is not None:
            other = self._leaf[self._other]
        leaves = []
        for number, event in enumerate(events):
            is_path = isinstance(event, list | tuple) and all(
                isinstance(name, str) for name in event
            )
            if not is_path or len(event) != self.depth:
                raise EventRefused(
                    number, f"must be a path of {self.depth} names, one for each level"
                )
            leaf = self._leaf.get(tuple(event), other)
            if leaf is None:
                wrong = f"has the path {event!r:.120}, which is not in the public list"
                raise EventRefused(
                    number, f"{wrong}; add it there, or build the rollup with unknown='other'"
                )
            leaves.append(leaf)
        return np.asarray(leaves, dtype=np.intp)

    @property
    def rows(self) -> RowFormat:
        return RowFormat(("levels",), self.depth, self._row_keys, totals=self._totals_of_rows)

    def _row_keys(self) -> tuple[Sequence[str], bool]:
        """List the paths as texts of `path_key`, in the order of the leaves."""
        return [
            path_key(path) for path in self._leaf if path != self._other
        ], self._unknown == OTHER

    @property
    def _other(self) -> tuple[str, ...] | None:
        if self._unknown == OTHER:
            return (OTHER,) * self.depth
        return None

    def _totals_of_rows(
        self, tick: IntArray, cell: IntArray, events: IntArray, units: IntArray
    ) -> Groups:
        if self._other is not None:  # comes last here
            other = self._leaf[self._other]
            cell = other_last(len(self._leaf), other)[cell]
        return super()._totals_of_rows(tick, cell, events, units)

    def with_keys(self, keys: Sequence[Any]) -> Rollup:
        return Rollup(**{**self.parameters(), "added": [*self._added, keys]})

    def parameters(self) -> dict[str, Any]:
        return {
            "paths": [list(path) for path in self._paths],
            "weights": list(self.tree.weights),
            "unknown": self._unknown,
            **(
                {"added": [[list(path) for path in paths] for paths in self._added]}
                if self._added
                else {}
            ),
        }


def path_key(path: Sequence[str]) -> str:
    """One text for one path: each name after its length in bytes, so that no two paths share a
    text."""
    return "".join(f"{len(name.encode())}:{name}" for name in path)


def _checked_paths(paths: Any) -> tuple[tuple[str, ...], ...]:
    if isinstance(paths, str | bytes | Mapping) or not isinstance(paths, Iterable):
        raise ParameterError(
            'paths must be a list of paths such as [["Tyrol", "Innsbruck"], ["Tyrol", "Kufstein"]]'
        )
    checked_paths = []
    for path in paths:
        if not isinstance(path, list | tuple) or not path:
            raise ParameterError(f"a path is a list of names, one for each level, got {path!r:.80}")
        checked_paths.append(tuple(check_public_text("the name", name) for name in path))
    lengths = sorted(set(map(len, checked_paths)))
    if len(lengths) != 1:
        raise ParameterError(
            f"paths must be at least one, and all of one length; their lengths are {lengths}"
        )
    check_distinct("paths", checked_paths)
    return tuple(checked_paths)


def _nodes(paths: Sequence[tuple[str, ...]]) -> list[list[tuple[str, ...]]]:
    """List the nodes of each level as paths: those with one parent side by side, all in the order
    of first appearance."""
    lengths = range(len(paths[0]) + 1)
    prefixes = dict.fromkeys(path[:length] for path in paths for length in lengths)
    place = {prefix: number for number, prefix in enumerate(prefixes)}
    ordered = sorted(paths, key=lambda path: [place[path[:length]] for length in lengths])
    return [list(dict.fromkeys(path[:length] for path in ordered)) for length in lengths]


def _children(nodes: Sequence[Sequence[tuple[str, ...]]]) -> tuple[tuple[int, ...], ...]:
    """Count the children of each node, level by level."""
    numbers = Counter(node[:-1] for node in chain.from_iterable(nodes[1:]))
    return tuple(tuple(numbers[node] for node in level) for level in nodes[:-1])
