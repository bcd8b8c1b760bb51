"""Noise of running sums that is drawn afresh in every tick, or in every period, on top of that of earlier ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from evercount._arrays import FloatArray
from evercount.errors import SnapshotError
from evercount.factorizations import Direct
from evercount.mechanisms.exact.exact_noise import ExactStream
from evercount.mechanisms.exact.filter_numbers import MOST_TICKS
from evercount.mechanisms.noise_stream import NoiseStream
from evercount.noise import Secret

ONE_BY_ONE = Direct(MOST_TICKS)
"""Its rows are the normals themselves, each rounded to a whole number of grid units."""


class FreshStream(NoiseStream):
    """The noise of `fresh`: row t is the sum of the first t numbers of an `ExactStream` of independent rows.

    **Guarantee.** Differences of rows are functions of (secret, scale, tick, cell) alone, so the noise of ticks that
    two neighbours share has one law, whatever finite arithmetic makes of it. Test:
    tests/mechanisms/test_fresh_noise.py::test_only_touched_ticks_cost_anything.
    """

    rounded = True

    def __init__(
        self, scale: float, cells: int, secret: Secret, first_cell: int, numeric_delta: float, limit: int
    ) -> None:
        self._each = ExactStream(ONE_BY_ONE, scale, cells, secret, first_cell, limit=limit)
        self._before: FloatArray = np.zeros(cells)
        self.numeric_delta = numeric_delta

    @property
    def tick(self) -> int:
        return self._each.tick

    def take(self, ticks: int) -> FloatArray:
        rows = np.cumsum(self._each.take(ticks), axis=0)
        rows += self._before
        if ticks:
            self._before = rows[-1].copy()
        return rows

    def beside(self, first_cell: int, cells: int) -> FreshStream:
        other = FreshStream.__new__(FreshStream)
        other._each, other._before = self._each.beside(first_cell, cells), np.zeros(cells)
        other.numeric_delta = self.numeric_delta
        return other

    def prepare(self) -> None:
        self._each.prepare()

    def dump(self) -> dict[str, Any]:
        return {**self._each.dump(), "before": self._before}

    def resume(self, dumped: dict[str, Any]) -> FreshStream:
        each = ExactStream.load(ONE_BY_ONE, self._each.scale, self._each.cells, dumped)
        before = np.asarray(dumped["before"], dtype=np.float64)
        if each.first_cell != self._each.first_cell or before.shape != self._before.shape:
            raise SnapshotError("the noise state belongs to other cells")
        self._each, self._before = each, before
        return self


class PeriodicStream(NoiseStream):
    """A new inner stream for every `period` ticks: `make(number)` builds that of a period.

    **Guarantee.** Row t is the noise at the ends of all earlier periods plus that of the tick's own: a function of
    outputs of independent inner streams, one for each period. Test:
    tests/factorizations/test_periods.py::test_exact_noise_has_the_stated_covariance.
    """

    def __init__(self, period: int, make: Callable[[int], NoiseStream], root: Secret) -> None:
        self.period = period
        self._root = root
        self._make = make
        self._done, self._inner = 0, make(0)
        self._before: FloatArray = np.zeros(self._inner.take(0).shape[1])
        self.rounded = self._inner.rounded
        self.numeric_delta = self._inner.numeric_delta

    @property
    def tick(self) -> int:
        return self._done * self.period + self._inner.tick

    def take(self, ticks: int) -> FloatArray:
        parts = [self._inner.take(0)]
        while ticks:
            if self._inner.tick == self.period:
                self._done, self._inner = self._done + 1, self._make(self._done + 1)
            count = min(ticks, self.period - self._inner.tick)
            parts.append(self._inner.take(count) + self._before)
            ticks -= count
            if self._inner.tick == self.period:
                self._before = parts[-1][-1].copy()
        return np.concatenate(parts)

    def dump(self) -> dict[str, Any]:
        inner = {"done": self._done, "before": self._before, "inner": self._inner.dump()}
        return {"secret": self._root.hex(), **inner}

    def resume(self, dumped: dict[str, Any], load: Callable[[dict[str, Any]], NoiseStream]) -> None:
        before = np.asarray(dumped["before"], dtype=np.float64)
        if before.shape != self._before.shape:
            raise SnapshotError("the noise state belongs to other cells")
        self._done, self._before, self._inner = int(dumped["done"]), before, load(dumped["inner"])
