"""ClockGuard: a clock that jumps far ahead closes no ticks before the operator has agreed.

Released ticks cannot be taken back, and a clock that is set to the wrong year would end millions of them, empty. The
guard compares the time of day with a clock that nobody sets (time since the machine started, sleep included).
"""

from __future__ import annotations

import threading
import time

from evercount.declarations.schedule import SECOND, parse_tick
from evercount.errors import ParameterError
from evercount.service.wall_clock import Clock


def parse_clock_jump(text: str) -> float | None:
    """The seconds of `--clock-jump` ("24h", "30m", "7d", …), or None for "none": no guard.

    >>> parse_clock_jump("24h"), parse_clock_jump("none")
    (86400.0, None)
    """
    if text == "none":
        return None
    length = parse_tick(text)
    if length is None:
        raise ParameterError(f"--clock-jump is a length of time such as 24h or 7d, or none, got {text!r:.40}")
    return length[0] / SECOND


def steady_seconds() -> float:
    """Seconds of a clock that nobody sets; it goes on while the machine sleeps, where the system has such a clock."""
    boot = getattr(time, "CLOCK_BOOTTIME", None)
    return time.monotonic() if boot is None else time.clock_gettime(boot)


class ClockGuard:
    """Says whether ticks may be closed by the clock as it is now. May be asked from several threads.

    The clock may be `limit` seconds ahead of what was expected (None: it is always believed). `last_seen` is the time
    of the last release before this start. A service that was off for longer than `limit` waits for the operator as
    well, if a stream missed more than one tick: nothing tells a long pause from a wrong clock.
    """

    def __init__(self, clock: Clock, limit: float | None = None, last_seen: float | None = None) -> None:
        self.clock, self.limit = clock, limit
        self._lock = threading.Lock()
        self._believed = clock.now() if last_seen is None else last_seen
        self._steady = steady_seconds()
        self._began = (clock.now(), self._steady)
        self._starting = last_seen is not None
        self.holding = False

    def skew(self, now: float) -> float:
        """By how many seconds the clock is ahead of what was expected; below 0 if it was set back."""
        with self._lock:
            return now - self._expected()

    def drift(self, now: float) -> float:
        """By how many seconds the clock was set ahead since the service started or the operator accepted it."""
        with self._lock:
            wall, steady = self._began
            return now - wall - (steady_seconds() - steady) * self.clock.speed

    def _expected(self) -> float:
        return self._believed + (steady_seconds() - self._steady) * self.clock.speed

    def allows(self, now: float, most_due: int) -> bool:
        """Whether ticks that have ended by `now` may be closed. `most_due`: of the stream that missed the most."""
        with self._lock:
            jumped = self.limit is not None and now - self._expected() > self.limit
            if jumped and not (self._starting and most_due < 2):
                self.holding = True
                return False
            self._believe(now)
            return True

    def accept(self, now: float) -> None:
        with self._lock:
            self._believe(now)
            self._began = (now, self._steady)

    def _believe(self, now: float) -> None:
        self._believed, self._steady = now, steady_seconds()
        self._starting = self.holding = False
