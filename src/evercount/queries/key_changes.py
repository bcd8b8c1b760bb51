"""KeyChanges: what the total and public keys gained in spans of ticks, with intervals that hold given discovery."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from evercount._arrays import BoolArray, FloatArray, IntArray
from evercount._validate import check_probability
from evercount.queries.cell_errors import CellErrors, Limits
from evercount.queries.discovered_keys import DiscoveredKeys

SPARE = 0.05
"""The part of the miss probability for keys that seem sure and are not, and as much for the upper ends of others."""
NOISE = 0.85
"""The part for the noise: NOISE/(1 − SPARE) + SPARE/(1 − SPARE) + SPARE ≤ 1."""


@dataclass(frozen=True, eq=False)
class KeyChanges:
    """Differences of published numbers over spans; column 0 is the total, then keys in the order of their cells.

    Args:
        change: what each column gained, shape (spans, 1 + keys); NaN where a key was not public at both ends.
        until: the published numbers of the last tick of each span, in the same shape.
        evidence: how many stds each key was above its threshold at the last discovery tick before the span began
            (at its end, where it begins with the first tick), shape (spans, keys).
        opening: whether a span begins with the first tick, before which everything was zero; shape (spans,).
        minimum: the true count that every public key has.
    """

    change: FloatArray
    until: FloatArray
    evidence: FloatArray
    opening: BoolArray
    minimum: int

    def only(self, columns: list[int]) -> KeyChanges:
        """The same spans of the total and some keys; `columns` begin with 0."""
        keys = [column - 1 for column in columns[1:]]
        return replace(
            self, change=self.change[:, columns], until=self.until[:, columns], evidence=self.evidence[:, keys]
        )

    def spans_at(self, places: IntArray) -> KeyChanges:
        """The same columns of some spans."""
        return replace(
            self,
            change=self.change[places],
            until=self.until[places],
            evidence=self.evidence[places],
            opening=self.opening[places],
        )

    def other(self) -> FloatArray:
        """The weights that give the events of keys that are not shown: the total less every key that is."""
        weights = np.where(np.isnan(self.change), 0.0, -1.0)
        weights[:, 0] = 1.0
        return weights

    def combine(self, weights: FloatArray) -> FloatArray:
        """Σ weight × change of each span; NaN where a change that is asked for is not known."""
        return np.asarray(np.where(weights == 0, 0.0, weights * self.change).sum(axis=1))

    def running_limits(self, keys: DiscoveredKeys, spans: IntArray, end: CellErrors, level: float) -> Limits:
        """The intervals with which the last ticks of some spans were released: `total`, `other`, then keys."""
        rows, evidence = self.until[spans], self.evidence[spans]
        other = rows[:, :1] - np.nansum(rows[:, 1:], axis=1, keepdims=True)
        values = np.concatenate([rows[:, :1], other, rows[:, 1:]], axis=1)
        sums = np.concatenate([np.zeros((len(rows), 2)), evidence], axis=1)
        return keys.interval(values, sums, end.at(spans), level)

    def limits(self, weights: FloatArray, over: CellErrors, end: CellErrors, level: float) -> Limits:
        """(low, high) of `combine(weights)`, each (spans,).

        **Guarantee.** Given which keys were public when the span began, the true number lies inside with probability at
        least `level`. Proof: `discovered_keys.proof.md`, Lemma 7. Assumption: as for Lemma 5. Test:
        tests/engine/test_key_views.py::test_intervals_of_changes_hold_given_discovery.
        """
        from scipy.special import ndtri

        miss = 1 - check_probability("level", level)
        keys = weights[:, 1:]
        used = np.count_nonzero(keys, axis=1)[:, np.newaxis]
        quantile = -ndtri(np.where(used > 0, NOISE * miss, miss) / 2)
        away = -ndtri(SPARE * miss / np.maximum(used, 1))
        size = np.sqrt((weights**2).sum(axis=1, keepdims=True))
        half = quantile * size * over.spread + over.slack_of(size, np.abs(weights).sum(axis=1, keepdims=True))
        middle = np.where(keys == 0, 0.0, keys * self.change[:, 1:])
        least = np.where(self.opening, self.minimum, 0)[:, np.newaxis]
        reached = self.until[:, 1:] + away * end.spread + end.slack + end.step
        most = reached - np.where(self.opening, 0, self.minimum)[:, np.newaxis]
        ends = np.stack([middle, keys * least, np.where(keys == 0, 0.0, keys * np.maximum(most, least))])
        unsure = (keys != 0) & (self.evidence < 2 * away)
        first = self.combine(weights)
        below = np.where(unsure, ends.min(axis=0) - middle, 0.0).sum(axis=1)
        above = np.where(unsure, ends.max(axis=0) - middle, 0.0).sum(axis=1)
        return first + below - half[:, 0], first + above + half[:, 0]
