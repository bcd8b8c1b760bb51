"""Float noise streams for simulation, and streams that start again with every period."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from evercount.errors import HorizonReached, SnapshotError
from evercount.factorizations import Factorization, State
from evercount.mechanisms.base import FloatArray, NoiseStream
from evercount.mechanisms.threads import one_thread
from evercount.noise import FloatNoise

AHEAD = 32
"""Ticks that are made at a time when fewer are asked for."""
WIDE = 24
"""From this many cells on, larger parts are better."""
CHUNK = 1 << 16
"""Numbers that are drawn and filtered at a time: they stay in the processor's cache."""


class FloatStream(NoiseStream):
    """scale·L·z in doubles. Not private on a real computer: see `FloatNoise`.

    Noise does not depend on the data, so single steps are served from blocks of AHEAD ticks made in advance.
    """

    name = "insecure-float"
    rounded = False
    numeric_delta = 0.0

    def __init__(self, factorization: Factorization, scale: float, cells: int, source: FloatNoise) -> None:
        self._factorization = factorization
        self._scale = scale
        self._cells = cells
        self._source = source
        self._state = factorization.initial(cells)
        self._ready = np.empty((0, cells))  # rows made and not yet taken
        self._before: tuple[State, dict[str, Any], int] | None = None  # where their block began, and its length

    @property
    def tick(self) -> int:  # type: ignore[override]
        """How many ticks have been taken."""
        return self._state.tick - len(self._ready)

    def take(self, ticks: int) -> FloatArray:
        """See `NoiseStream`."""
        horizon = self._factorization.horizon
        if horizon is not None and self.tick + ticks > horizon:
            raise HorizonReached(horizon)
        if ticks <= len(self._ready):
            out, self._ready = self._ready[:ticks], self._ready[ticks:]  # rows are handed out once: no copy is needed
            return out
        out = np.empty((ticks, self._cells))
        done = min(ticks, len(self._ready))
        out[:done], self._ready = self._ready[:done], self._ready[done:]
        bulk = (ticks - done) // AHEAD * AHEAD
        self._bulk(out[done : done + bulk])
        done += bulk
        if done < ticks:
            count = AHEAD if horizon is None else min(AHEAD, horizon - self._state.tick)
            self._before = (self._state, self._source.state(), count)
            made = np.empty((count, self._cells))
            self._filter(self._draw(self._state.tick, count, None), made)
            out[done:], self._ready = made[: ticks - done], made[ticks - done :]
        return out

    def _bulk(self, out: FloatArray) -> None:
        """Noise of len(out) ticks: while one part is filtered, the normals of the next are drawn in another thread."""
        rows = AHEAD * max(1, (CHUNK if self._cells < WIDE else 8 * CHUNK) // (AHEAD * self._cells))
        parts = [slice(start, min(start + rows, len(out))) for start in range(0, len(out), rows)]
        if len(parts) < 4:
            for part in parts:
                self._filter(self._draw(self._state.tick, part.stop - part.start, None), out[part])
            return
        first = self._state.tick
        buffers = [np.empty((2 * rows, self._cells)) for _ in range(2)]  # a tree draws up to two normals a tick
        with ThreadPoolExecutor(1) as pool:
            pending = pool.submit(self._draw, first, parts[0].stop, buffers[0])
            for number, part in enumerate(parts):
                z = pending.result()
                if number + 1 < len(parts):
                    following = parts[number + 1]
                    pending = pool.submit(
                        self._draw, first + following.start, following.stop - following.start, buffers[(number + 1) % 2]
                    )
                self._filter(z, out[part])

    def _draw(self, tick: int, ticks: int, buffer: FloatArray | None) -> FloatArray:
        """The normals of so many ticks after `tick`, in the order of the stream."""
        at, draws = self._source.position, self._factorization.draws(tick, tick + ticks)
        return self._source.normals(at, at + draws, self._cells, None if buffer is None else buffer[:draws])

    def _filter(self, z: FloatArray, out: FloatArray) -> None:
        with one_thread():
            self._state = self._factorization.block_into(self._state, z, out, self._scale)

    def dump(self) -> dict[str, Any]:
        """See `NoiseStream`."""
        if len(self._ready) and self._before is not None:
            state, source, made = self._before
            skip = made - len(self._ready)
        else:
            state, source, skip = self._state, self._source.state(), 0
        return {
            "tick": state.tick,
            "skip": skip,
            "arrays": [{"shape": list(array.shape), "hex": array.tobytes().hex()} for array in state.arrays],
            "source": source,
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
        stream.take(int(dumped["skip"]))
        return stream


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
        self.name = self._inner.name  # type: ignore[misc]
        self.rounded = self._inner.rounded  # type: ignore[misc]
        self.whole = self._inner.whole  # type: ignore[misc]
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
        return {**self._extra(), "done": self._done, "inner": self._inner.dump()}

    def resume(self, dumped: dict[str, Any], load: Callable[[int, dict[str, Any]], NoiseStream]) -> None:
        """Continue from `dump`."""
        self._done = int(dumped["done"])
        self._inner = load(self._done, dumped["inner"])
