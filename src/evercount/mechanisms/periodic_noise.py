"""Noise that starts again with every period, for running sums that start again from zero."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from evercount._arrays import FloatArray
from evercount.mechanisms.noise_stream import NoiseStream


class PeriodicStream(NoiseStream):
    """A fresh inner stream for every `period` ticks, so that running sums can start again from zero.

    `make(number)` builds the inner stream of a period, `extra()` goes into dumps.
    """

    name = "periodic"
    rounded = False

    def __init__(
        self, period: int, make: Callable[[int], NoiseStream], extra: Callable[[], dict[str, Any]] = dict
    ) -> None:
        self.period = period
        self._extra = extra
        self._make = make
        self._inner = make(0)
        self._done = 0
        self.name = self._inner.name
        self.rounded = self._inner.rounded
        self.whole_units = self._inner.whole_units
        self.numeric_delta = self._inner.numeric_delta

    @property
    def tick(self) -> int:
        return self._done * self.period + self._inner.tick

    def take(self, ticks: int) -> FloatArray:
        if not ticks:
            return self._inner.take(0)
        parts = []
        while ticks:
            if self._inner.tick == self.period:
                self._done += 1
                self._inner = self._make(self._done)
            count = min(ticks, self.period - self._inner.tick)
            parts.append(self._inner.take(count))
            ticks -= count
        return np.concatenate(parts)

    def dump(self) -> dict[str, Any]:
        return {**self._extra(), "done": self._done, "inner": self._inner.dump()}

    def resume(self, dumped: dict[str, Any], load: Callable[[int, dict[str, Any]], NoiseStream]) -> None:
        self._done = int(dumped["done"])
        self._inner = load(self._done, dumped["inner"])
