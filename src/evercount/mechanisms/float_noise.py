"""Float noise streams for simulation: fast, and not private on a real computer."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from evercount._arrays import FloatArray
from evercount.errors import EvercountError, HorizonReached, SnapshotError
from evercount.factorizations import Factorization, State
from evercount.factorizations.blas_threads import blas_threads
from evercount.mechanisms.noise_stream import NoiseStream, whole_ticks
from evercount.noise import FloatNoise

TICKS_AHEAD = 32
"""Ticks that are made at a time when fewer are asked for."""
WIDE = 24
"""From this many cells on, larger parts are better."""
NUMBERS_AT_ONCE = 3 << 15
"""Numbers that are drawn and filtered at a time: they stay in the processor's cache."""
SLICE_CELLS = 2000
"""With more cells than this, each block of TICKS_AHEAD ticks is drawn and filtered in slices of this many cells."""

PARTS_AHEAD = 2
"""Parts that are drawn ahead of the one that is filtered: then neither thread waits for the other to wake up."""


class FloatStream(NoiseStream):
    """scale·L·z in doubles. Not private on a real computer: see `FloatNoise`.

    Noise does not depend on the data, so single steps are served from blocks of TICKS_AHEAD ticks made in advance.
    """

    name = "insecure-float"
    rounded = False
    numeric_delta = 0.0

    def __init__(self, factorization: Factorization, scale: float, cells: int, source: FloatNoise) -> None:
        self._factorization = factorization
        self._scale = scale
        self._cells = cells
        self._source = source
        self._slices = [slice(left, min(left + SLICE_CELLS, cells)) for left in range(0, cells, SLICE_CELLS)]
        self._states = [factorization.initial(part.stop - part.start) for part in self._slices]
        self._prepared: Any = None
        self._torn = False  # an interruption left some cells behind others
        self._ready = np.empty((0, cells))  # rows made and not yet taken
        self._before: tuple[list[State], dict[str, Any], int] | None = None  # where their block began, and its length

    @property
    def tick(self) -> int:
        return self._states[-1].tick - len(self._ready)

    def take(self, ticks: int) -> FloatArray:
        ticks = whole_ticks(ticks)
        horizon = self._factorization.horizon
        if self._torn:
            raise EvercountError("this noise stream was interrupted while it made noise; load its newest dump")
        if horizon is not None and self.tick + ticks > horizon:
            raise HorizonReached(horizon)
        if ticks <= len(self._ready):
            out, self._ready = self._ready[:ticks], self._ready[ticks:]  # rows are handed out once: no copy is needed
            return out
        out = np.empty((ticks, self._cells))
        done = min(ticks, len(self._ready))
        out[:done], self._ready = self._ready[:done], self._ready[done:]
        bulk = (ticks - done) // TICKS_AHEAD * TICKS_AHEAD
        if bulk:
            self._make(out[done : done + bulk])
        done += bulk
        if done < ticks:
            count = TICKS_AHEAD if horizon is None else min(TICKS_AHEAD, horizon - self._states[-1].tick)
            self._before = (self._states.copy(), self._source.state(), count)
            fresh = np.empty((count, self._cells))
            self._make(fresh)
            out[done:], self._ready = fresh[: ticks - done], fresh[ticks - done :]
        return out

    def _make(self, out: FloatArray) -> None:
        """Noise of len(out) ticks: while one part is filtered, the normals of the next are drawn in another thread."""
        rows = TICKS_AHEAD
        if len(self._slices) == 1:
            rows *= max(
                1, (NUMBERS_AT_ONCE if self._cells < WIDE else 8 * NUMBERS_AT_ONCE) // (TICKS_AHEAD * self._cells)
            )
        first = self._states[-1].tick
        times = [slice(start, min(start + rows, len(out))) for start in range(0, len(out), rows)]
        jobs = [(time, number) for time in times for number in range(len(self._slices))]

        def draw(place: int, buffer: FloatArray | None) -> FloatArray:
            time, number = jobs[place]
            return self._draw(first + time.start, first + time.stop, number, buffer)

        def use(place: int, z: FloatArray) -> None:
            time, number = jobs[place]
            self._filter(number, z, out[time, self._slices[number]])

        self._torn = True
        with blas_threads(1):
            if len(jobs) < 4:
                for place in range(len(jobs)):
                    use(place, draw(place, None))
                self._torn = False
                return
            most = max(self._factorization.draws(first + time.start, first + time.stop) for time in times)
            buffers = [np.empty(most * min(SLICE_CELLS, self._cells)) for _ in range(PARTS_AHEAD + 1)]
            with ThreadPoolExecutor(1) as pool:
                pending = deque(pool.submit(draw, place, buffers[place]) for place in range(PARTS_AHEAD))
                for place in range(len(jobs)):
                    z = pending.popleft().result()
                    if (after := place + PARTS_AHEAD) < len(jobs):
                        pending.append(pool.submit(draw, after, buffers[after % (PARTS_AHEAD + 1)]))
                    use(place, z)
        self._torn = False

    def _draw(self, start: int, stop: int, number: int, buffer: FloatArray | None) -> FloatArray:
        """The normals of a slice of cells for ticks start+1 … stop, in the order of the stream."""
        cells = self._slices[number].stop - self._slices[number].start
        at, draws = self._source.position, self._factorization.draws(start, stop)
        target = None if buffer is None else buffer[: draws * cells].reshape(draws, cells)
        return self._source.normals(at, at + draws, cells, target)

    def _filter(self, number: int, z: FloatArray, out: FloatArray) -> None:
        state, (ticks, cells) = self._states[number], out.shape
        if number == 0:  # all slices of a block share it
            self._prepared = self._factorization.prepare(state.tick, state.tick + ticks, cells, self._scale)
        self._states[number] = self._factorization.block_into(state, z, out, self._scale, self._prepared)

    def dump(self) -> dict[str, Any]:
        if len(self._ready) and self._before is not None:
            states, source, count = self._before
            skip = count - len(self._ready)
        else:
            states, source, skip = self._states, self._source.state(), 0
        return {
            "tick": states[0].tick,
            "skip": skip,
            "scale": self._scale,
            "arrays": [
                {"shape": list(array.shape), "hex": array.tobytes().hex()} for state in states for array in state.arrays
            ],
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
        if dumped["scale"] != scale:
            raise SnapshotError("the snapshot's noise has another size than this stream's budget and query ask for")
        arrays = [np.frombuffer(bytes.fromhex(item["hex"])).reshape(item["shape"]).copy() for item in dumped["arrays"]]
        for number, state in enumerate(stream._states):
            own = tuple(arrays[number * len(state.arrays) : (number + 1) * len(state.arrays)])
            if len(arrays) != len(stream._states) * len(state.arrays):
                raise SnapshotError("the snapshot's noise state does not belong to this factorization")
            stream._states[number] = State(int(dumped["tick"]), own)
        stream.take(int(dumped["skip"]))
        return stream
