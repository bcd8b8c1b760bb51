"""KeyView: views of streams whose keys nobody listed. A key is shown over spans at both ends of which it was public."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple, Self

import numpy as np

from evercount._arrays import FloatArray, IntArray
from evercount.engine.error_model import ErrorModel
from evercount.engine.views import View
from evercount.errors import ParameterError
from evercount.queries.discovered_keys import RESERVED, TOTAL
from evercount.queries.discovery_threshold import Thresholds
from evercount.queries.histogram import OTHER
from evercount.queries.key_changes import KeyChanges

Parts = tuple[tuple[str, int], ...]
"""A cell of a view as labels with signs: one label, or one minus another."""


class Ends(NamedTuple):
    """What was published at the ends of spans, columns `total`, `other` and keys in the order of their cells.

    A key has NaN at a tick at which it was not public; before the first tick all numbers are zero. Where ticks publish
    their own numbers, every span is one tick, and all is zero before it.
    """

    low: FloatArray
    high: FloatArray
    evidence: FloatArray
    """Of each column at `evidence_ticks`: see `evidence_at`."""


@dataclass(frozen=True, eq=False)
class KeyView(View):
    """A view of discovered keys. Its numbers are NaN where a key was not public at both ends of a span.

    Before the first tick every count is zero, so a span that begins with tick 1 shows every key that is public at its
    end. `other` is the total less the keys that the same span shows: shown numbers add up to the total.

    **Guarantee.** A function of published numbers and public parameters; no past of a key is computed from its noise.
    Test: tests/engine/test_key_views.py::test_numbers_are_differences_of_what_was_published.
    """

    changes: KeyChanges
    columns: dict[str, int]
    parts: tuple[Parts, ...]
    _symmetric: ClassVar[bool] = False

    def interval(self, level: float = 0.95) -> tuple[FloatArray, FloatArray]:
        """(low, high): each holds its true number with probability at least `level`, given which keys are public."""
        over, end = self._cell_errors[1], self._errors.cell_errors(self.last)[1]
        low, high = np.empty_like(self.values), np.empty_like(self.values)
        for place, parts in enumerate(self.parts):
            changes, weights = combination(self.changes, self.columns, parts)
            low[:, place], high[:, place] = changes.limits(weights, over, end, level)
        opening = np.flatnonzero(self.changes.opening)
        plain = [place for place, parts in enumerate(self.parts) if len(parts) == 1]
        if len(opening) and plain:  # running totals have the intervals with which they were released
            assert self._errors.query.discovery is not None
            released = self.changes.running_limits(self._errors.query.discovery, opening, end, level)
            for place in plain:
                label = self.parts[place][0][0]
                column = RESERVED.index(label) if label in RESERVED else 1 + self.columns[label]
                low[opening, place], high[opening, place] = (side[:, column] for side in released)
        return low, high

    def _half_widths(self, level: float = 0.95) -> FloatArray:
        """How far each number's interval reaches on the longer side, shape (spans, cells)."""
        low, high = self.interval(level)
        return np.maximum(self.values - low, high - self.values)

    def only(self, *cells: str) -> Self:
        chosen = self._places(cells)
        return replace(super().only(*cells), parts=tuple(self.parts[place] for place in chosen))

    def _spans_at(self, places: IntArray) -> Self:
        return replace(
            super()._spans_at(places),
            _norms=self._norms[places],
            _rounding=self._rounding[places],
            changes=self.changes.spans_at(places),
        )

    def compare(self, one: str, other: str) -> Self:
        """`one` minus `other` over the spans that show both, with the exact error of the difference."""
        parts = [self.parts[place] for place in self._places((one, other))]
        if max(map(len, parts)) > 1:
            raise ParameterError("a comparison cannot be compared again: compare cells of the view itself")
        both: Parts = ((one, 1), (other, -1))
        values, norms, rounding = _numbers(self.changes, self.columns, (both,))
        return replace(
            self,
            name=f"{self.name}, compared",
            cells=(f"{one} − {other}",),
            parts=(both,),
            values=values,
            _norms=norms,
            _rounding=rounding,
        )


def key_view(
    name: str,
    after: IntArray,
    until: IntArray,
    ends: Ends,
    labels: Sequence[str],
    outputs: Sequence[int],
    errors: ErrorModel,
    guarantee: str,
) -> KeyView:
    """A view of some `outputs` of a stream, from what was published at the ends of spans."""
    keep = [0, *range(len(RESERVED), len(labels))]
    change = (ends.high - ends.low)[:, keep]
    assert errors.query.discovery is not None
    least = errors.query.discovery.minimum
    opening = np.ones(len(after), bool) if errors.query.publishing.own_ticks else after == 0
    changes = KeyChanges(change, ends.high[:, keep], ends.evidence[:, keep[1:]], opening, least)
    columns = {TOTAL: 0, OTHER: 0, **{labels[place]: column for column, place in enumerate(keep) if place}}
    cells = tuple(labels[output] for output in outputs)
    parts: tuple[Parts, ...] = tuple(((cell, 1),) for cell in cells)
    numbers = _numbers(changes, columns, parts)
    return KeyView(
        name, after + 1, until, cells, *numbers, errors, guarantee, changes=changes, columns=columns, parts=parts
    )


def needed_columns(outputs: Sequence[int], width: int) -> list[int]:
    """The published numbers from which a view of some outputs is computed: all of them for `other`."""
    return list(range(width)) if RESERVED.index(OTHER) in outputs else sorted({*range(len(RESERVED)), *outputs})


def evidence_ticks(after: IntArray, until: IntArray) -> IntArray:
    """The ticks at which each span's keys must be public: where it begins, or its end where all is zero before it."""
    return np.where(after > 0, after, until)


def discovery_ticks(ticks: IntArray, thresholds: Thresholds) -> IntArray:
    """The last discovery tick up to each tick; 0 where there is none."""
    return ticks // thresholds.every * thresholds.every


def evidence_at(ticks: IntArray, values: FloatArray, thresholds: Thresholds, errors: ErrorModel) -> FloatArray:
    """How many stds published numbers of discovery ticks are above their thresholds; NaN at tick 0."""
    known = ticks > 0
    least = np.asarray([thresholds.at(tick) if tick else 0 for tick in ticks.tolist()], np.float64)
    std = np.full(len(ticks), np.nan)
    std[known] = errors.std(ticks[known])[:, 0]
    return np.asarray((values - least[:, np.newaxis] - 1) / std[:, np.newaxis])


def combination(changes: KeyChanges, columns: dict[str, int], parts: Parts) -> tuple[KeyChanges, FloatArray]:
    """The changes that a cell is made of, and their weights."""
    if all(label != OTHER for label, _ in parts):
        used = sorted({0, *(columns[label] for label, _ in parts)})
        weights = np.zeros((len(changes.change), len(used)))
        for label, sign in parts:
            weights[:, used.index(columns[label])] += sign
        return changes.only(used), weights
    weights = np.zeros(changes.change.shape)
    for label, sign in parts:
        if label == OTHER:
            weights += sign * changes.other()
        else:
            weights[:, columns[label]] += sign
    return changes, weights


def _numbers(
    changes: KeyChanges, columns: dict[str, int], cells: tuple[Parts, ...]
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Values, norms and rounding of cells, each (spans, cells)."""
    values, norms, rounding = (np.empty((len(changes.change), len(cells))) for _ in range(3))
    for place, parts in enumerate(cells):
        used, weights = combination(changes, columns, parts)
        values[:, place] = used.combine(weights)
        norms[:, place] = np.sqrt((weights**2).sum(axis=1))
        rounding[:, place] = np.abs(weights).sum(axis=1)
    unknown = np.isnan(values)
    return values, np.where(unknown, np.nan, norms), np.where(unknown, np.nan, rounding)
