"""The clock of the service: the time of day, or a faster one for demonstrations."""

from __future__ import annotations

import time


class Clock:
    """Seconds since 1970. With `speed` and `origin` it starts at `origin` and runs `speed` times as fast."""

    def __init__(self, speed: float = 1.0, origin: float | None = None) -> None:
        self.speed = speed
        self._began = time.time()
        self._origin = self._began if origin is None else origin

    def now(self) -> float:
        return self._origin + (time.time() - self._began) * self.speed

    def seconds_until(self, moment: float) -> float:
        return max(0.0, (moment - self.now()) / self.speed)
