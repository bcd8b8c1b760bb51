"""What a round says to its operator: rows per second, ticks closed, and how far it is behind the clock."""

from __future__ import annotations

from collections.abc import Callable

Say = Callable[[str], None]


class Progress:
    """Says what a round does. Row counts are raw: the lines are for the operator, not for publication."""

    def __init__(self, say: Say) -> None:
        self._say = say

    def counted(self, batch: int, rows: int, seconds: float) -> None:
        """Say how many rows a micro-batch had."""
        self._say(f"micro-batch {batch}: {rows} rows, {rows / seconds:.0f} rows/s")

    def closed(self, ticks: range, behind: int) -> None:
        """Say which ticks were released, and how many more have ended since."""
        released = f"ticks {ticks[0]} to {ticks[-1]} released" if ticks else "no tick had ended"
        self._say(f"{released}; {behind} behind the clock")
