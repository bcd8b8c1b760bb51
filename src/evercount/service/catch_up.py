"""When ticks close: the clock of the service, the guard that waits where the clock jumps, and the
closing in slices.

A slice ends soon, so that stopping and requests never wait long. Released ticks cannot be taken
back, and a clock that is set to the wrong year would end millions of them, empty: the guard
compares the time of day with a clock that cannot be set (time since the machine started, sleep
included), and the operator must agree to a jump.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from concurrent.futures import wait

from evercount.store import LiveStream, Store


class Clock:
    """Seconds since 1970. With `speed` and `origin` it starts at `origin` and runs `speed` times as
    fast."""

    def __init__(self, speed: float = 1.0, origin: float | None = None) -> None:
        self.speed = speed
        self._began = time.time()
        self._origin = self._began if origin is None else origin

    def now(self) -> float:
        return self._origin + (time.time() - self._began) * self.speed

    def seconds_until(self, moment: float) -> float:
        return max(0.0, (moment - self.now()) / self.speed)


def steady_seconds() -> float:
    """Seconds of a clock that cannot be set; it runs on while the machine sleeps, if the system has
    such a clock."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


class ClockGuard:
    """Says whether ticks may be closed by the clock as it is now. The writer asks; any thread may
    look at `drift` and `holding`.

    The clock may be `limit` seconds ahead of what was expected (None: it is always believed).
    `last_seen` is the time of the last release before this start. A service that was off for longer
    than `limit` waits for the operator as well, if a stream missed more than one tick: nothing
    tells a long pause from a wrong clock.
    """

    def __init__(
        self, clock: Clock, limit: float | None = None, last_seen: float | None = None
    ) -> None:
        self.clock = clock
        self.limit = limit
        self._believed = clock.now() if last_seen is None else last_seen
        self._steady = steady_seconds()
        self._began = (clock.now(), self._steady)
        self._starting = last_seen is not None
        self.holding = False

    def skew(self, now: float) -> float:
        """By how many seconds the clock is ahead of what was expected; below 0 if it was set
        back."""
        return now - self._believed - (steady_seconds() - self._steady) * self.clock.speed

    def drift(self, now: float) -> float:
        """By how many seconds the clock was set ahead since the service started or the operator
        accepted it."""
        wall, steady = self._began
        return now - wall - (steady_seconds() - steady) * self.clock.speed

    def allows(self, now: float, most_due: int) -> bool:
        """Whether ticks that have ended by `now` may be closed. `most_due`: of the stream that
        missed the most."""
        jumped = self.limit is not None and self.skew(now) > self.limit
        if jumped and not (self._starting and most_due < 2):
            self.holding = True
            return False
        self._believe(now)
        return True

    def accept(self, now: float) -> None:
        self._believe(now)
        self._began = (now, self._steady)

    def _believe(self, now: float) -> None:
        """Take the time as right: what follows is expected from here on."""
        self._believed = now
        self._steady = steady_seconds()
        self._starting = self.holding = False


log = logging.getLogger("evercount.service")

# how long one slice is meant to take; a tick of very many cells may take longer
SLICE_SECONDS = 0.05
FIRST_SLICE_TICKS = 1024  # more than the hours of a month: they are one slice
LARGEST_SLICE_TICKS = 1 << 15
# cells of a release that one answer and one live event hold, unless a reader asks for others
CELLS_PER_PAGE = 1000
LOG_SECONDS = 10.0  # between two lines of progress about one stream

Publish = Callable[[str], None]  # called with the name of a stream that has released something


class CatchUp:
    """Closes ticks of the store for its writer thread, one slice of one stream after the other.
    Only the number of ticks in a slice depends on how fast the machine is; the released numbers do
    not. Test: `tests/service/test_service_catch_up.py::test_slices_release_the_same_numbers`."""

    def __init__(self, store: Store, clock: Clock, publish: Publish) -> None:
        self.store = store
        self.clock = clock
        self.publish = publish
        self._sizes: dict[str, int] = {}  # ticks of the next slice, by stream
        self._last_report: dict[str, float] = {}  # when the progress of a stream was last logged

    def close_slice(self, live: LiveStream, now: float, most: int | None = None) -> int:
        """Close the oldest of the ticks that have ended, at most `most`. Return how many are left.

        None is closed while the noise of new keys is drawn and takes longer than a slice: other
        streams must not wait for it.
        """
        due = live.due(now)
        if not due:
            return 0
        while (noise := self.store.noise_ahead.pending_noise(live)) is not None:
            if wait([noise], SLICE_SECONDS).not_done:
                return due
        size = min(due, self._sizes.get(live.name, FIRST_SLICE_TICKS))
        if most is not None:
            size = min(size, most)
        before = live.closed
        began = time.perf_counter()
        self.store.close_ticks(live, size, now)
        self.publish(live.name)
        took = time.perf_counter() - began
        closed = live.closed - before
        if closed == size < due:  # a short last slice says nothing about the speed
            next_size = round(size * min(4.0, SLICE_SECONDS / max(took, 1e-3)))
            self._sizes[live.name] = min(LARGEST_SLICE_TICKS, max(1, next_size))
        left = due - closed
        self._report(live, left)
        return left

    def _report(self, live: LiveStream, left: int) -> None:
        """Log the progress, unless new keys decide about it: nothing that depends on events goes
        into a log."""
        if live.declaration.query.discovery is not None:
            return
        last_report = self._last_report.get(live.name)
        now = time.monotonic()
        if left and (last_report is None or now - last_report >= LOG_SECONDS):
            log.info(
                "stream %s closes missed ticks: %d closed, %d left", live.name, live.closed, left
            )
            self._last_report[live.name] = now
        elif not left and last_report is not None:
            log.info("stream %s has closed all missed ticks, up to tick %d", live.name, live.closed)
            del self._last_report[live.name]


def ticks_left(streams: Iterable[LiveStream], now: float) -> dict[str, int]:
    """For each stream that is behind the clock, how many ticks it has to close."""
    left = {live.name: live.due(now) for live in list(streams)}
    return {name: ticks for name, ticks in left.items() if ticks}
