"""Float noise streams for simulation, and streams that start again with every period."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from evercount.errors import SnapshotError
from evercount.factorizations import Factorization, State
from evercount.mechanisms.base import FloatArray, NoiseStream
from evercount.noise import FloatNoise

CHUNK = 1 << 16
"""Numbers that are drawn and filtered at a time: they stay in the processor's cache."""


class FloatStream(NoiseStream):
    """scale·L·z in doubles. Not private on a real computer: see `FloatNoise`."""

    name = "insecure-float"
    rounded = False
    numeric_delta = 0.0

    def __init__(self, factorization: Factorization, scale: float, cells: int, source: FloatNoise) -> None:
        self._factorization = factorization
        self._scale = scale
        self._cells = cells
        self._source = source
        self._state = factorization.initial(cells)

    @property
    def tick(self) -> int:  # type: ignore[override]
        """How many ticks have been taken."""
        return self._state.tick

    def take(self, ticks: int) -> FloatArray:
        """See `NoiseStream`."""
        out = np.empty((ticks, self._cells))
        rows = 32 * max(1, CHUNK // (32 * self._cells))
        for start in range(0, ticks, rows):
            count = min(rows, ticks - start)
            draws = self._factorization.draws(self._state.tick, self._state.tick + count)
            at = self._source.position
            z = self._source.normals(at, at + draws, self._cells)
            noise, self._state = self._factorization.block(self._state, z, count)
            np.multiply(noise, self._scale, out=out[start : start + count])
        return out

    def dump(self) -> dict[str, Any]:
        """See `NoiseStream`."""
        return {
            "tick": self._state.tick,
            "arrays": [{"shape": list(array.shape), "hex": array.tobytes().hex()} for array in self._state.arrays],
            "source": self._source.state(),
        }

    @classmethod
    def load(
        cls,
        factorization: Factorization,
        scale: float,
        cells: int,
        dumped: dict[str, Any],
        source: FloatNoise | None = None,
    ) -> FloatStream:
        """The stream that `dump` described; `source` where several streams share one."""
        stream = cls(factorization, scale, cells, source or FloatNoise.from_state(dumped["source"]))
        arrays = tuple(
            np.frombuffer(bytes.fromhex(item["hex"])).reshape(item["shape"]).copy() for item in dumped["arrays"]
        )
        if len(arrays) != len(stream._state.arrays):
            raise SnapshotError("the snapshot's noise state does not belong to this factorisation")
        stream._state = State(int(dumped["tick"]), arrays)
        return stream


class PeriodicStream(NoiseStream):
    """A fresh inner stream for every `period` ticks, so that running sums can start again from zero.

    `make(number)` builds the inner stream of a period, `extra` goes into dumps.
    """

    name = "periodic"
    rounded = False

    def __init__(self, period: int, make: Callable[[int], NoiseStream], extra: dict[str, Any] | None = None) -> None:
        self.period = period
        self._extra = extra or {}
        self._make = make
        self._inner = make(0)
        self._done = 0
        self.name = self._inner.name  # type: ignore[misc]
        self.rounded = self._inner.rounded  # type: ignore[misc]
        self.numeric_delta = self._inner.numeric_delta

    @property
    def tick(self) -> int:  # type: ignore[override]
        """How many ticks have been taken."""
        return self._done * self.period + self._inner.tick

    def take(self, ticks: int) -> FloatArray:
        """See `NoiseStream`."""
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
        """See `NoiseStream`."""
        return {**self._extra, "done": self._done, "inner": self._inner.dump()}

    def resume(self, dumped: dict[str, Any], load: Callable[[int, dict[str, Any]], NoiseStream]) -> None:
        """Continue from `dump`."""
        self._done = int(dumped["done"])
        self._inner = load(self._done, dumped["inner"])
