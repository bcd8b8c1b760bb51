"""The thread that keeps SQLite's write-ahead log short while the service runs."""

from __future__ import annotations

import threading
from functools import partial

from evercount.store.database import Database

PAUSE_SECONDS = 0.5
"""Between two moves. SQLite itself moves the log within a commit once it has 1,000 pages. There is
little left to move then, and the log starts again from its beginning."""


class LogKeeper(threading.Thread):
    """A thread that moves the log now and then. PostgreSQL does this by itself: the thread then
    ends at once. What is committed is durable before and after: the log and the file together are
    the database, and SQLite's own locks keep the mover, the writer and readers apart. Test:
    `tests/service/test_log_keeper.py`."""

    def __init__(self, database: Database) -> None:
        super().__init__(name="evercount-log", daemon=True)
        self.pause = PAUSE_SECONDS
        self._database = database
        self._stopping = threading.Event()

    def run(self) -> None:
        self._database.move_log(partial(self._stopping.wait, self.pause))

    def stop(self) -> None:
        self._stopping.set()
        if self.is_alive():
            self.join()
