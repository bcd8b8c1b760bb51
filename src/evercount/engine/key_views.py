"""Views of keys that nobody listed: shown over spans at both ends of which a key was public."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np

from evercount._validate import BoolArray, FloatArray, IntArray, check_probability
from evercount.engine.error_model import ErrorModel, Part
from evercount.engine.views import Ends, Spans, View
from evercount.errors import ParameterError
from evercount.queries.base import OTHER, TOTAL
from evercount.queries.discovered_keys import RESERVED
from evercount.queries.key_counts import Thresholds
from evercount.queries.publishing import CellErrors, Limits

# a cell of a view as labels with signs: one label, or one minus another
Parts = tuple[tuple[str, int], ...]


@dataclass(frozen=True, eq=False)
class KeyView(View):
    """A view of discovered keys. Its numbers are NaN where a key was not public at both ends of a
    span.

    Before the first tick every count is zero, so a span that begins with tick 1 shows every key
    that is public at its end. `other` is the total less the keys that the same span shows: shown
    numbers add up to the total.

    **Guarantee.** A function of published numbers and public parameters; no past of a key is
    computed from its noise. Test:
    tests/engine/test_key_views.py::test_numbers_are_differences_of_what_was_published.
    """

    changes: KeyChanges
    columns: dict[str, int]
    parts: tuple[Parts, ...]
    _symmetric: ClassVar[bool] = False

    def interval(self, level: float = 0.95) -> tuple[FloatArray, FloatArray]:
        """(low, high): each holds its true number with probability at least `level`, given which
        keys are public."""
        over = self._cell_errors[1]
        end = self._errors.cell_errors(self.last)[1]
        low = np.empty_like(self.values)
        high = np.empty_like(self.values)
        for place, parts in enumerate(self.parts):
            changes, weights = combination(self.changes, self.columns, parts)
            low[:, place], high[:, place] = changes.limits(weights, over, end, level)
        opening = np.flatnonzero(self.changes.opening)
        plain = [place for place, parts in enumerate(self.parts) if len(parts) == 1]
        # running totals have the intervals with which they were released
        if len(opening) and plain:
            discovery = self._errors.query.discovery
            assert discovery is not None
            released = discovery.interval(*self.changes.released(opening), end.at(opening), level)
            for place in plain:
                label = self.parts[place][0][0]
                if label in RESERVED:
                    column = RESERVED.index(label)
                else:
                    column = 1 + self.columns[label]
                low[opening, place], high[opening, place] = (side[:, column] for side in released)
        return low, high

    def _half_widths(self, level: float = 0.95) -> FloatArray:
        """How far each number's interval reaches on the longer side, shape (spans, cells)."""
        low, high = self.interval(level)
        return np.maximum(self.values - low, high - self.values)

    def only(self, *cells: str) -> Self:
        chosen = self._places(cells)
        return replace(super().only(*cells), parts=tuple(self.parts[place] for place in chosen))

    def compare(self, one: str, other: str) -> Self:
        """`one` minus `other` over the spans that show both, with the exact error of the
        difference."""
        parts = [self.parts[place] for place in self._places((one, other))]
        if max(map(len, parts)) > 1:
            raise ParameterError(
                "a comparison cannot be compared again: compare cells of the view itself"
            )
        both: Parts = ((one, 1), (other, -1))
        values, part = _numbers(self.changes, self.columns, (both,))
        return replace(
            self,
            name=f"{self.name}, compared",
            cells=(f"{one} − {other}",),
            parts=(both,),
            values=values,
            _parts=(part,),
        )


def key_view(
    name: str,
    spans: Spans,
    ends: Ends,
    evidence: FloatArray,
    labels: Sequence[str],
    outputs: Sequence[int],
    errors: ErrorModel,
    guarantee: str,
) -> KeyView:
    """A view from what was published at the ends of spans: `total`, `other` and keys in the order
    of their cells. A key has NaN at a tick at which it was not public; before the first tick all
    numbers are zero. Where ticks publish their own numbers, every span is one tick, and all is zero
    before it. `evidence` is that of `evidence_at`."""
    after, until = spans
    low, high = ends
    keep = [0, *range(len(RESERVED), len(labels))]
    change = (high - low)[:, keep]
    assert errors.query.discovery is not None
    least = errors.query.discovery.minimum
    opening = after == 0
    if errors.query.publishing.own_ticks:
        opening = np.ones(len(after), bool)
    changes = KeyChanges(change, high[:, keep], evidence[:, keep[1:]], opening, least)
    columns = {
        TOTAL: 0,
        OTHER: 0,
        **{labels[place]: column for column, place in enumerate(keep) if place},
    }
    cells = tuple(labels[output] for output in outputs)
    parts: tuple[Parts, ...] = tuple(((cell, 1),) for cell in cells)
    values, part = _numbers(changes, columns, parts)
    return KeyView(
        name, after + 1, until, cells, values, (part,), errors, guarantee, changes, columns, parts
    )


def needed_columns(outputs: Sequence[int], width: int) -> list[int]:
    """The published numbers from which a view of some outputs is computed: all of them for
    `other`."""
    if RESERVED.index(OTHER) in outputs:
        return list(range(width))
    return sorted({*range(len(RESERVED)), *outputs})


def evidence_ticks(after: IntArray, until: IntArray) -> IntArray:
    """The ticks at which each span's keys must be public: where it begins, or its end where all is
    zero before it."""
    return np.where(after > 0, after, until)


def discovery_ticks(ticks: IntArray, thresholds: Thresholds) -> IntArray:
    """The last discovery tick up to each tick; 0 where there is none."""
    return ticks // thresholds.every * thresholds.every


def evidence_at(
    ticks: IntArray, values: FloatArray, thresholds: Thresholds, errors: ErrorModel
) -> FloatArray:
    """How many stds published numbers of discovery ticks are above their thresholds; NaN at tick
    0."""
    later = ticks > 0
    least = np.asarray([thresholds.at(tick) if tick else 0 for tick in ticks.tolist()], np.float64)
    std = np.full(len(ticks), np.nan)
    std[later] = errors.std(ticks[later])[:, 0]
    return np.asarray((values - least[:, np.newaxis] - 1) / std[:, np.newaxis])


def combination(
    changes: KeyChanges, columns: dict[str, int], parts: Parts
) -> tuple[KeyChanges, FloatArray]:
    """The changes that a cell is made of, and their weights."""
    labels = [label for label, _ in parts]
    used = sorted({0, *(columns[label] for label in labels)})
    if OTHER in labels:
        used = sorted(set(columns.values()))
    weights = np.zeros((len(changes.change), len(used)))
    for label, sign in parts:
        if label == OTHER:
            weights += sign * changes.other()
        else:
            weights[:, used.index(columns[label])] += sign
    return changes.only(used), weights


def _numbers(
    changes: KeyChanges, columns: dict[str, int], cells: tuple[Parts, ...]
) -> tuple[FloatArray, Part]:
    """Compute the values of cells, and what they are made of, each (spans, cells)."""
    values, norms, rounding = (np.empty((len(changes.change), len(cells))) for _ in range(3))
    for place, parts in enumerate(cells):
        used, weights = combination(changes, columns, parts)
        values[:, place] = used.combine(weights)
        norms[:, place] = np.sqrt((weights**2).sum(axis=1))
        rounding[:, place] = np.abs(weights).sum(axis=1)
    unknown = np.isnan(values)
    return values, Part(0, np.where(unknown, np.nan, norms), np.where(unknown, np.nan, rounding))


SPARE = 0.05
"""The part of the miss probability for keys that seem sure and are not, and as much for the upper
ends of others."""
NOISE = 0.85  # the part for the noise: NOISE/(1 − SPARE) + SPARE/(1 − SPARE) + SPARE ≤ 1


@dataclass(frozen=True, eq=False)
class KeyChanges:
    """Differences of published numbers over spans; column 0 is the total, then keys in the order of
    their cells."""

    # what each column gained, shape (spans, 1 + keys); NaN where a key was not public at both ends
    change: FloatArray
    until: FloatArray  # the published numbers of the last tick of each span, in the same shape
    # how many stds each key was above its threshold at the last discovery tick before the span
    # began (at its end, where it begins with the first tick), shape (spans, keys)
    evidence: FloatArray
    # whether a span begins with the first tick, before which everything was zero; shape (spans,)
    opening: BoolArray
    minimum: int  # the true count that every public key has

    def only(self, columns: list[int]) -> KeyChanges:
        """The same spans of the total and some keys; `columns` begin with 0."""
        keys = [column - 1 for column in columns[1:]]
        return replace(
            self,
            change=self.change[:, columns],
            until=self.until[:, columns],
            evidence=self.evidence[:, keys],
        )

    def other(self) -> FloatArray:
        """The weights that give the events of keys that are not shown: the total less every key
        that is."""
        weights = np.where(np.isnan(self.change), 0.0, -1.0)
        weights[:, 0] = 1.0
        return weights

    def combine(self, weights: FloatArray) -> FloatArray:
        """Σ weight × change of each span; NaN where a change that is asked for is not known."""
        return np.asarray(np.where(weights == 0, 0.0, weights * self.change).sum(axis=1))

    def released(self, spans: IntArray) -> tuple[FloatArray, FloatArray]:
        """The numbers with which the last ticks of some spans were released, `total`, `other`, then
        keys, and their evidence."""
        rows = self.until[spans]
        evidence = self.evidence[spans]
        other = rows[:, :1] - np.nansum(rows[:, 1:], axis=1, keepdims=True)
        values = np.concatenate([rows[:, :1], other, rows[:, 1:]], axis=1)
        sums = np.concatenate([np.zeros((len(rows), 2)), evidence], axis=1)
        return values, sums

    def limits(
        self, weights: FloatArray, over: CellErrors, end: CellErrors, level: float
    ) -> Limits:
        """(low, high) of `combine(weights)`, each (spans,).

        **Guarantee.** Given which keys were public when the span began, the true number lies inside
        with probability at least `level`. Proof: `discovered_keys.proof.md`, Lemma 7. Assumption:
        as for Lemma 5. Test:
        tests/engine/test_key_views.py::test_intervals_of_changes_hold_given_discovery.
        """
        from scipy.special import ndtri

        miss = 1 - check_probability("level", level)
        keys = weights[:, 1:]
        used = np.count_nonzero(keys, axis=1)[:, np.newaxis]
        quantile = -ndtri(np.where(used > 0, NOISE * miss, miss) / 2)
        away = -ndtri(SPARE * miss / np.maximum(used, 1))
        size = np.sqrt((weights**2).sum(axis=1, keepdims=True))
        half = quantile * size * over.spread + over.slack_of(
            size, np.abs(weights).sum(axis=1, keepdims=True)
        )
        middle = np.where(keys == 0, 0.0, keys * self.change[:, 1:])
        least = np.where(self.opening, self.minimum, 0)[:, np.newaxis]
        reached = self.until[:, 1:] + away * end.spread + end.slack + end.step
        most = reached - np.where(self.opening, 0, self.minimum)[:, np.newaxis]
        ends = np.stack(
            [middle, keys * least, np.where(keys == 0, 0.0, keys * np.maximum(most, least))]
        )
        unsure = (keys != 0) & (self.evidence < 2 * away)
        first = self.combine(weights)
        below = np.where(unsure, ends.min(axis=0) - middle, 0.0).sum(axis=1)
        above = np.where(unsure, ends.max(axis=0) - middle, 0.0).sum(axis=1)
        return first + below - half[:, 0], first + above + half[:, 0]
