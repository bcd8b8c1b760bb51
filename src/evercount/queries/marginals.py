"""Marginals: two-way (and k-way) tables with row and column sums that add up, each with its exact
error."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import combinations, pairwise, product
from math import prod
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from evercount._validate import FloatArray, IntArray, check_count, require_fits
from evercount.errors import EventRefused, ParameterError
from evercount.queries.base import TOTAL, check_distinct, public_names
from evercount.queries.publishing import Publishing, check_weights
from evercount.queries.rollup import SEPARATOR, TableQuery, path_key
from evercount.queries.sensitivities import RowFormat

EVERY = "*"
MOST_COLUMNS = 6
Part = tuple[int, ...]  # some columns, by their numbers from 0, rising


class Marginals(TableQuery):
    """Running counts of all tables that some columns span: the total, each column, each pair of
    columns, and so on.

    An event has one value in each column, such as ("north", "60+"). A table of a part of the
    columns counts the events for each combination of their values. Tables that are measured have
    noise of their own; published are the least-squares estimates from all of them, so that the
    numbers of a larger table add up to those of a smaller one at every tick. A number is labelled
    by its values, "*" where a column is summed over.

    Args:
        columns: for each column, the public list of its values.
        tables: which tables are measured, each as the numbers of its columns from 0 (default: all
            of them, the total () included). What they span is published: with [0, 1] also [0], [1]
            and ().
        weights: one whole number from 1 to 1000 for each measured table (default: 1 each); see
            `Rollup`.

    Raises:
        ParameterError: only one cell, two numbers with one label, or tables or weights outside
            their domain.

    Guarantee. One event adds w to one cell of each measured table. So S = Σ w² for add-remove.
    Under replace a table changes in two cells by w or not at all, and tables of one cell never
    change: S = 2·Σ w² over tables with more than one cell. Proof: `marginals.proof.md`. Tests:
    tests/queries/test_queries_marginals.py::test_sensitivity_is_the_exact_maximum and
    tests/queries/test_queries_marginals.py::test_closed_forms_are_the_dense_least_squares.

    >>> query = Marginals([["north", "south"], ["young", "old"]])
    >>> query.labels[:5]
    ('total', 'north / *', 'south / *', '* / young', '* / old')
    >>> query.encode(None, [("north", "old")])[0].tolist()
    [1, 1, 0, 0, 1, 0, 1, 0, 0]
    """

    name: ClassVar[str] = "marginals"
    cells = 0
    labels: tuple[str, ...] = ()

    def __init__(
        self,
        columns: Sequence[Sequence[str]],
        tables: Sequence[Sequence[int]] | None = None,
        weights: Sequence[int] | None = None,
    ) -> None:
        self._columns = _checked_columns(columns)
        self.depth = len(self._columns)
        self._sizes = tuple(map(len, self._columns))
        every = [
            part
            for length in range(self.depth + 1)
            for part in combinations(range(self.depth), length)
        ]
        if tables is None:
            self._tables = tuple(every)
        else:
            self._tables = _checked_tables(tables, self.depth)
        self._weights = check_weights(weights, len(self._tables), "table")
        self._parts = tuple(
            part for part in every if any(set(part) <= set(table) for table in self._tables)
        )
        numbers = sum(self._number(part) for part in (*self._tables, *self._parts)) + prod(
            self._sizes
        )
        require_fits(numbers, "these marginals", "Use fewer values, or tables of fewer columns.")
        if prod(self._sizes) < 2:
            raise ParameterError(
                "marginals need a column of at least two values; for one number use Count"
            )
        self._index = [
            {value: place for place, value in enumerate(column)} for column in self._columns
        ]
        self.cells = sum(map(self._number, self._tables))
        self.labels = tuple(label for part in self._parts for label in self._labelled(part))
        if len(set(self.labels)) < len(self.labels):
            raise ParameterError(
                f"two numbers would have one label: rename values such as {EVERY!r} or {TOTAL!r}"
            )

    def _number(self, part: Iterable[int]) -> int:
        return prod(self._sizes[column] for column in part)

    def _labelled(self, part: Part) -> Iterable[str]:
        if not part:
            return (TOTAL,)
        values = [self._columns[i] if i in part else (EVERY,) for i in range(self.depth)]
        return map(SEPARATOR.join, product(*values))

    @property
    def _tables_of_events(self) -> Iterable[tuple[int, int]]:
        return zip(self._weights, map(self._number, self._tables), strict=True)

    # -- from events to increments -----------------------------------------------------------------

    def leaves_of(self, events: list[Any]) -> npt.NDArray[np.intp]:
        places = np.empty((len(events), self.depth), np.intp)
        for number, event in enumerate(events):
            if not isinstance(event, list | tuple) or len(event) != self.depth:
                raise EventRefused(number, f"must have {self.depth} values, one for each column")
            for column, (index, value) in enumerate(zip(self._index, event, strict=True)):
                if not isinstance(value, str) or value not in index:
                    raise EventRefused(
                        number, f"has the value {value!r:.80}, which is not in the public list"
                    )
                places[number, column] = index[value]
        return np.asarray(np.ravel_multi_index(tuple(places.T), self._sizes), np.intp)

    def _cells_of(self, leaves: IntArray) -> tuple[IntArray, IntArray]:
        places = np.unravel_index(leaves, self._sizes)
        first = 0
        cells = []
        for table in self._tables:
            sizes = [self._sizes[i] for i in table]
            if table:
                inside = np.ravel_multi_index([places[i] for i in table], sizes)
            else:
                inside = np.zeros(len(leaves), int)
            cells.append(first + np.asarray(inside, dtype=np.int64))
            first += self._number(table)
        table_cells = np.stack(cells, axis=1)
        return table_cells, np.broadcast_to(np.asarray(self._weights), table_cells.shape)

    @property
    def rows(self) -> RowFormat:
        return RowFormat(("levels",), self.depth, self._row_keys, totals=self._totals_of_rows)

    def _row_keys(self) -> tuple[Sequence[str], bool]:
        """List all combinations of values as texts of `path_key`."""
        return [path_key(values) for values in product(*self._columns)], False

    # -- from noisy cells to estimates -------------------------------------------------------------

    @cached_property
    def _precisions(self) -> dict[Part, dict[int, float]]:
        """For each part B, how precisely each measured table that holds B knows its effect:
        weight²/N of the rest."""
        precisions = {}
        for part in self._parts:
            inside = [place for place, table in enumerate(self._tables) if set(part) <= set(table)]
            others = {place: self._number(set(self._tables[place]) - set(part)) for place in inside}
            precisions[part] = {
                place: self._weights[place] ** 2 / others[place] for place in inside
            }
        return precisions

    @cached_property
    def publishing(self) -> Publishing:
        return Publishing(self._decode, lambda: self._norms, self._rounding, self._covariance)

    def _decode(self, first_tick: int, noisy: FloatArray) -> FloatArray:
        """Estimate the effects of all parts, each the average over the tables that know it, put
        together again."""
        tables = []
        first = 0
        for table, weight in zip(self._tables, self._weights, strict=True):
            stop = first + self._number(table)
            full = [self._sizes[i] if i in table else 1 for i in range(self.depth)]
            tables.append(noisy[:, first:stop].reshape(len(noisy), *full) / weight)
            first = stop
        effects: dict[Part, FloatArray] = {}
        for part, precisions in self._precisions.items():
            total: Any = 0.0
            for place, precision in precisions.items():
                others = tuple(i + 1 for i in self._tables[place] if i not in part)
                effect = tables[place].sum(axis=others, keepdims=True)
                for column in part:
                    effect = effect - effect.mean(axis=column + 1, keepdims=True)
                total = total + precision * effect
            effects[part] = total / sum(precisions.values())
        out = []
        for part in self._parts:
            shape = (len(noisy), *(self._sizes[i] if i in part else 1 for i in range(self.depth)))
            estimate = np.zeros(shape)
            for inner in self._inside(part):
                estimate = estimate + effects[inner] / self._number(set(part) - set(inner))
            out.append(estimate.reshape(len(noisy), self._number(part)))
        return np.concatenate(out, axis=1)

    def _inside(self, part: Part) -> list[Part]:
        return [inner for inner in self._parts if set(inner) <= set(part)]

    @cached_property
    def _norms(self) -> FloatArray:
        def variance(inner: Part) -> float:
            return prod(1 - 1 / self._sizes[i] for i in inner) / sum(
                self._precisions[inner].values()
            )

        return np.sqrt(self._added_up(variance, 2))

    def _rounding(self) -> FloatArray:
        def rounding(inner: Part) -> float:
            precisions = self._precisions[inner]
            deviation = prod(2 * (1 - 1 / self._sizes[i]) for i in inner)
            weights = sum(self._weights[place] for place in precisions)
            return weights * deviation / sum(precisions.values())

        return self._added_up(rounding, 1)

    def _added_up(self, own: Callable[[Part], float], power: int) -> FloatArray:
        """Add up for each output `own` of all effects in it, each over the number of combinations
        that share it."""
        each = [
            sum(
                own(inner) / self._number(set(part) - set(inner)) ** power
                for inner in self._inside(part)
            )
            for part in self._parts
        ]
        return np.repeat(each, [self._number(part) for part in self._parts])

    def _leaves_in(self, output: int) -> tuple[IntArray, int]:
        values = self._values_of[output]
        places = np.unravel_index(np.arange(prod(self._sizes)), self._sizes)
        inside = np.all([places[i] == value for i, value in values.items()], axis=0)
        table = next(
            number for number, table in enumerate(self._tables) if set(values) <= set(table)
        )
        return np.flatnonzero(np.broadcast_to(inside, len(places[0]))), table

    @cached_property
    def _values_of(self) -> list[dict[int, int]]:
        """For each output, the value of each column of its table, by their numbers."""
        inside = [(part, product(*(range(self._sizes[i]) for i in part))) for part in self._parts]
        return [dict(zip(part, values, strict=True)) for part, rows in inside for values in rows]

    def parameters(self) -> dict[str, Any]:
        return {
            "columns": [list(column) for column in self._columns],
            "tables": [list(table) for table in self._tables],
            "weights": list(self._weights),
        }


def _checked_columns(columns: Any) -> tuple[tuple[str, ...], ...]:
    if isinstance(columns, str | bytes | Mapping) or not isinstance(columns, Iterable):
        raise ParameterError(
            'columns must be a list of lists such as [["north", "south"], ["young", "old"]]'
        )
    checked_columns = tuple(public_names("value", column) for column in columns)
    if not 1 <= len(checked_columns) <= MOST_COLUMNS:
        raise ParameterError(
            f"marginals have 1 to {MOST_COLUMNS} columns, got {len(checked_columns)}"
        )
    return checked_columns


def _checked_tables(tables: Any, depth: int) -> tuple[Part, ...]:
    if isinstance(tables, str | bytes | Mapping) or not isinstance(tables, Iterable):
        raise ParameterError(
            f"tables must be lists of column numbers such as [[], [0], [0, 1]], got {tables!r:.80}"
        )
    parts = []
    for table in tables:
        if not isinstance(table, list | tuple):
            raise ParameterError(f"a table is a list of column numbers from 0, got {table!r:.80}")
        parts.append(
            tuple(check_count("the number of a column", column, least=0) for column in table)
        )
        if any(column >= following for column, following in pairwise((*parts[-1], depth))):
            raise ParameterError(
                f"the columns of a table are rising numbers below {depth}, got {table!r:.80}"
            )
    if not parts:
        raise ParameterError("there must be at least one table")
    check_distinct("tables", parts)
    return tuple(parts)
