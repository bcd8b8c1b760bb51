"""The thread of a service that shows a store of another process: it looks for releases and publishes them."""

from __future__ import annotations

import queue
from concurrent.futures import Future
from typing import Any

from evercount.errors import Problem, StoreError
from evercount.service.catch_up import CELLS_PER_PAGE, Publish
from evercount.service.commit_loop import Writer
from evercount.service.wall_clock import Clock
from evercount.store.watched_store import WatchedStore

PAUSE = 0.5
"""Seconds between two looks."""


class Watcher(Writer):
    """In the place of the writer: it refuses everything that would change the store."""

    def __init__(self, store: WatchedStore, clock: Clock, publish: Publish) -> None:
        super().__init__(store, clock, publish)
        self.watched = store

    def submit(self, work: Any) -> Future[Any]:
        future: Future[Any] = Future()
        remedy = "Send it to the process that writes to the store."
        future.set_exception(Problem(403, "ReadOnly", "this service shows a store and changes nothing", remedy))
        return future

    def run(self) -> None:
        while True:
            try:
                self._queue.get(timeout=PAUSE)
            except queue.Empty:
                self.close_due()
                continue
            return

    def close_due(self) -> float:
        """Publish what was released since the last look; the process that writes to the store closes the ticks."""
        try:
            for name, releases in self.watched.look(range(CELLS_PER_PAGE)):
                self.publish(name, releases)
            self.failing = None
        except StoreError as error:
            self._failed(error)
        return self.clock.now()
