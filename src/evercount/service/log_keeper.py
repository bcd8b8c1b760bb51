"""LogKeeper: moves SQLite's log into its file beside the writer, so that no commit has to wait for all of it."""

from __future__ import annotations

import threading

from evercount.store.database import Database

PAUSE_SECONDS = 0.5
"""Between two moves. SQLite itself moves the log within a commit once it has 1,000 pages. There is little left to move
then, and the log starts again from its beginning."""


class LogKeeper(threading.Thread):
    """A thread that moves the log now and then. PostgreSQL does this by itself: the thread then ends at once. What is
    committed is durable before and after: the log and the file together are the database, and SQLite's own locks keep
    the mover, the writer and readers apart. Test: `tests/service/test_log_keeper.py`."""

    def __init__(self, database: Database, pause: float = PAUSE_SECONDS) -> None:
        super().__init__(name="evercount-log", daemon=True)
        self._database, self._pause = database, pause
        self._over = threading.Event()

    def run(self) -> None:
        self._database.move_log(lambda: self._over.wait(self._pause))

    def stop(self) -> None:
        self._over.set()
        if self.is_alive():
            self.join()
