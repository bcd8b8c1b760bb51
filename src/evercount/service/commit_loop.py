"""The one writer thread: it closes ticks on the clock and commits batches in groups."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from evercount.errors import AlreadyReleased, Busy, EvercountError, InputError, StoreError
from evercount.service.wall_clock import Clock
from evercount.store import Accepted, Batch, Conflict, LiveStream, Store

log = logging.getLogger("evercount.service")

GROUP = 256
"""Batches that are committed together at most."""
WAITING = 4096
"""Commands that may wait before new ones are refused."""
LONGEST_WAIT = 3600.0
PAUSE = 1.0
"""Seconds before a failed store is tried again."""

Publish = Callable[[str, list[dict[str, Any]]], None]


def loggable(error: Exception) -> str:
    """What a log may say of an error: its kind, and the text only where that speaks of the store itself.

    The texts of refusals quote what they refuse: keys, edges, letters. They go to whoever sent it and nowhere else.
    Statements and their parameters are kept out of a StoreError (`store.database.explain`). Test:
    `tests/service/test_service_neighbours.py::test_logs_quote_no_event`.
    """
    return f"{type(error).__name__}: {error}" if isinstance(error, StoreError) else type(error).__name__


class Writer(threading.Thread):
    """Everything that changes the store happens in this thread, in the order in which it was asked for.

    Ticks that have ended are closed before anything else, so that no event is counted in a tick that is over. A store
    that fails is tried again; what was not committed is reported as failed and did not happen.
    """

    def __init__(self, store: Store, clock: Clock, publish: Publish) -> None:
        super().__init__(name="evercount-writer", daemon=True)
        self.store, self.clock, self.publish = store, clock, publish
        self.failing: str | None = None
        self._queue: queue.Queue[tuple[Any, Future[Any]] | None] = queue.Queue()
        self._retry_at = 0.0
        self._stopping = False
        self._doubtful = False

    # -- asked from other threads --------------------------------------------------------------------------------

    def submit(self, work: Batch | Callable[[], Any]) -> Future[Any]:
        """A batch to be committed, or a function to be called in the writer's thread."""
        future: Future[Any] = Future()
        if self._stopping or not self.is_alive():
            future.set_exception(Busy("the service is stopping: send the request again when it is back"))
        elif self._queue.qsize() >= WAITING:
            future.set_exception(Busy("too many requests are waiting for the store: send fewer and larger batches"))
        else:
            self._queue.put((work, future))
        return future

    def close_manually(self, live: LiveStream, tick: int | None) -> list[dict[str, Any]]:
        """Release the open tick of a manual stream; called in the writer's thread."""
        if not live.declaration.schedule.manual:
            raise InputError(
                f"stream {live.name!r} closes its ticks by the clock, every {live.declaration.schedule.tick}"
            )
        if tick is not None and tick != live.open_tick:
            if tick > live.open_tick:
                raise InputError(f"tick {tick} is out of turn: the open tick is {live.open_tick}")
            found = self.store.read_releases(live.id, live.declaration, tick - 1, 1)
            if not found:
                raise AlreadyReleased(f"tick {tick} is released already")
            return found
        made = self.store.close_ticks(live, 1, self.clock.now())
        self.publish(live.name, made)
        return made

    def stop(self) -> None:
        """Finish what was asked for, then end."""
        self._stopping = True
        self._queue.put(None)
        self.join()

    # -- the thread ----------------------------------------------------------------------------------------------

    def run(self) -> None:
        """Close ticks and serve commands until stopped."""
        while True:
            try:
                first = self._queue.get(timeout=self._wait())
            except queue.Empty:
                self.close_due()
                continue
            work = [first]
            while len(work) < GROUP and not self._queue.empty():
                work.append(self._queue.get())
            now = self.close_due()
            # whoever went away before the work began is left out; from here on nobody can withdraw
            if not self._serve([item for item in work if item is None or item[1].set_running_or_notify_cancel()], now):
                return

    def _wait(self) -> float:
        moments = [moment for live in list(self.store.streams.values()) if (moment := live.next_end()) is not None]
        wait = min((self.clock.seconds_until(moment) for moment in moments), default=LONGEST_WAIT)
        if self.failing:
            wait = max(self._retry_at - time.monotonic(), 0.05)
        return min(wait, LONGEST_WAIT)

    def _serve(self, work: list[tuple[Any, Future[Any]] | None], now: float) -> bool:
        batches: list[tuple[Batch, Future[Any]]] = []
        for item in work:
            if item is not None and isinstance(item[0], Batch):
                batches.append((item[0], item[1]))
                continue
            self._commit(batches, now)
            batches = []
            if item is None:
                return False
            self._call(*item)
        self._commit(batches, now)
        return True

    def _call(self, work: Callable[[], Any], future: Future[Any]) -> None:
        try:
            self._mend()
            future.set_result(work())
        except Exception as error:  # noqa: BLE001 - it belongs to whoever asked
            if not isinstance(error, EvercountError) or (
                isinstance(error, StoreError) and not isinstance(error, Conflict)
            ):
                self._failed(error)
            future.set_exception(error)

    def _commit(self, batches: list[tuple[Batch, Future[Any]]], now: float) -> None:
        if not batches:
            return
        try:
            self._mend()
            answers: list[Accepted | EvercountError] = self.store.accept([b for b, _ in batches], now)
        except Exception as error:  # noqa: BLE001 - nothing was committed, and everybody waiting is told
            self._failed(error)
            if isinstance(error, EvercountError) and not isinstance(error, StoreError):
                error = StoreError(type(error).__name__)  # its text may quote one sender's events to another
            for _, future in batches:
                future.set_exception(error)
            return
        self.failing = None
        for (_, future), answer in zip(batches, answers, strict=True):
            if isinstance(answer, Accepted):
                future.set_result(answer)
            else:
                future.set_exception(answer)

    def close_due(self) -> float:
        """Release every tick that has ended, stream by stream, oldest first; returns the time that this is true for."""
        now = self.clock.now()
        if self.failing and time.monotonic() < self._retry_at:
            return now
        for live in list(self.store.streams.values()):
            try:
                self._mend()
                live = self.store.streams[live.name]  # mending may have loaded it afresh
                while count := live.due(now):
                    self.publish(live.name, self.store.close_ticks(live, count, now))
                    self.failing = None
            except Exception as error:  # noqa: BLE001 - one stream's failure must not stop the others
                if live.stopped:
                    log.error("stream %s is stopped: %s", live.name, loggable(error))
                else:
                    self._failed(error)
        return now

    def _mend(self) -> None:
        """After a failed commit nobody knows what is committed: look."""
        if self._doubtful or self.store.database.lost:
            self.store.recover()
            self._doubtful, self.failing = False, None
            log.warning("the store was loaded again after a failure")

    def _failed(self, error: Exception) -> None:
        reason = loggable(error)
        if reason != self.failing:
            log.error("the store fails: %s", error.for_operator() if isinstance(error, StoreError) else reason)
        self.failing = reason
        self._doubtful = True
        self._retry_at = time.monotonic() + PAUSE
