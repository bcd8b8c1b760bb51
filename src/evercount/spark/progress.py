"""Progress of a stream for its operator: rows per second from Spark, ticks closed and lag from the store."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark.sql.streaming.listener import StreamingQueryListener

Say = Callable[[str], None]


class Progress(StreamingQueryListener):
    """Says what a round does. Row counts are raw: the lines are for the operator, not for publication.

    Args:
        say: takes one line.
    """

    def __init__(self, say: Say) -> None:
        self._say = say

    def closed(self, ticks: range, behind: int) -> None:
        """Say which ticks were released, and how many more have ended since."""
        released = f"ticks {ticks[0]} to {ticks[-1]} released" if ticks else "no tick had ended"
        self._say(f"{released}; {behind} behind the clock")

    def onQueryStarted(self, event: Any) -> None:  # noqa: N802
        """See Spark."""

    def onQueryProgress(self, event: Any) -> None:  # noqa: N802
        """See Spark."""
        progress = event.progress
        speed = progress.processedRowsPerSecond or 0.0
        self._say(f"micro-batch {progress.batchId}: {progress.numInputRows} rows, {speed:.0f} rows/s")

    def onQueryIdle(self, event: Any) -> None:  # noqa: N802
        """See Spark."""

    def onQueryTerminated(self, event: Any) -> None:  # noqa: N802
        """See Spark."""
