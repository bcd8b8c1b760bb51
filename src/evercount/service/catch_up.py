"""CatchUp: closes the ticks that have ended, in slices that end soon, so that stopping and requests never wait long."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import wait
from typing import Any

from evercount.service.sse import RECENT
from evercount.service.wall_clock import Clock
from evercount.store import LiveStream, Store

log = logging.getLogger("evercount.service")

SLICE_SECONDS = 0.05  # how long one slice is meant to take; a tick of very many cells may take longer
FIRST_SLICE_TICKS = 1024  # more than the hours of a month: they are one slice
LARGEST_SLICE_TICKS = 1 << 15
CELLS_PER_PAGE = 1000  # cells of a release that one answer and one live event hold, unless a reader asks for others
LOG_SECONDS = 10.0  # between two lines of progress about one stream

Publish = Callable[[str, list[dict[str, Any]]], None]


class CatchUp:
    """Closes ticks of the store for its writer thread, one slice of one stream after the other. Only the number of
    ticks in a slice depends on how fast the machine is; the released numbers do not. Test:
    `tests/service/test_service_catch_up.py::test_slices_release_the_same_numbers`."""

    def __init__(self, store: Store, clock: Clock, publish: Publish) -> None:
        self.store, self.clock, self.publish = store, clock, publish
        self._sizes: dict[str, int] = {}
        self._told: dict[str, float] = {}

    def close_slice(self, live: LiveStream, now: float, most: int | None = None) -> int:
        """Close the oldest of the ticks that have ended, at most `most`. Returns how many are left. None is closed
        while the noise of new keys is drawn and takes longer than a slice: others must not wait for it."""
        due = live.due(now)
        if not due:
            return 0
        while (noise := self.store.noise_ahead.under_way(live)) is not None:
            if wait([noise], SLICE_SECONDS).not_done:
                return due
        size = min(due, self._sizes.get(live.name, FIRST_SLICE_TICKS), due if most is None else most)
        before, began = live.closed, time.perf_counter()
        self.publish(live.name, self.store.close_ticks(live, size, now, RECENT, CELLS_PER_PAGE))
        took, closed = time.perf_counter() - began, live.closed - before
        if closed == size < due:  # a short last slice says nothing about the speed
            wanted = round(size * min(4.0, SLICE_SECONDS / max(took, 1e-3)))
            self._sizes[live.name] = min(LARGEST_SLICE_TICKS, max(1, wanted))
        left = due - closed
        self._report(live, left)
        return left

    def _report(self, live: LiveStream, left: int) -> None:
        """Log the progress, unless new keys decide about it: nothing that depends on events goes into a log."""
        if live.declaration.query.discovery is not None:
            return
        told = self._told.get(live.name)
        now = time.monotonic()
        if left and (told is None or now - told >= LOG_SECONDS):
            log.info("stream %s closes missed ticks: %d closed, %d left", live.name, live.closed, left)
            self._told[live.name] = now
        elif not left and told is not None:
            log.info("stream %s has closed all missed ticks, up to tick %d", live.name, live.closed)
            del self._told[live.name]


def ticks_left(streams: Iterable[LiveStream], now: float) -> dict[str, int]:
    """For each stream that is behind the clock, how many ticks it has to close."""
    return {live.name: left for live in list(streams) if (left := live.due(now))}
