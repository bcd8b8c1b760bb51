"""Noise of running sums that is drawn afresh in every period, on top of the noise with which earlier ones ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from evercount._arrays import FloatArray
from evercount.errors import SnapshotError
from evercount.mechanisms.noise_stream import NoiseStream
from evercount.noise import Secret


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
        self.name = self._inner.name
        self.rounded = self._inner.rounded
        self.whole_units = self._inner.whole_units
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
