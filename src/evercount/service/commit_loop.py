"""The thread that changes the store: the writer, which closes ticks and commits batches.

In a service that only shows a store, a watcher takes the writer's place.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from itertools import groupby
from typing import Any

from evercount import errors
from evercount.declarations.schedule import instant_of
from evercount.errors import Busy, CatchingUp, EvercountError, HttpProblem, InputError, StoreError
from evercount.service.catch_up import (
    CELLS_PER_PAGE,
    SLICE_SECONDS,
    CatchUp,
    Clock,
    ClockGuard,
    Publish,
    ticks_left,
)
from evercount.store import Accepted, Batch, LiveStream, Store
from evercount.store.writer import WatchedStore

log = logging.getLogger("evercount.service")

MOST_PER_COMMIT = 256  # batches that are committed together at most
MOST_WAITING = 4096  # commands that may wait before new ones are refused
LONGEST_WAIT = 3600.0
STOPPING = "the service is stopping: send the request again when it is back"
JUMPED = (
    "the clock of the service has jumped ahead, and the operator has not confirmed the time yet"
)
BEHIND_RETRY_SECONDS = 5.0  # Retry-After of a stream that is behind: the same whatever the data are
RETRY_SECONDS = 1.0  # seconds before a failed store is tried again
LOOK_SECONDS = 0.5  # between two looks at a store that another process writes to


def loggable(error: Exception) -> str:
    """What a log may say of an error: its kind, and the text only where that speaks of the store
    itself.

    The texts of refusals quote what they refuse: keys, edges, letters. They go to the sender and
    nowhere else. Statements and their parameters are kept out of a StoreError
    (`store.database.explain`). Test:
    `tests/service/test_service_neighbours.py::test_logs_quote_no_event`.
    """
    kind = type(error).__name__
    if isinstance(error, StoreError):
        return f"{kind}: {error}"
    return kind


class Writer(threading.Thread):
    """Everything that changes the store happens in this thread, in the order of the requests.

    No event is counted in a tick that is over: the ticks of a stream that have ended are closed
    before its batches are counted, and a stream that has missed more ticks than one slice holds
    refuses its batches until it has caught up (`CatchingUp`). Closing happens in slices
    (`catch_up.py`), between which requests are served and a stop is obeyed. A store that fails is
    tried again; what was not committed is reported as failed and did not happen. `publish` is
    called after the commit of every release.

    **Guarantee.** Whether a batch is refused, and which tick counts it, does not depend on the
    events of others. Where nobody listed the keys, a tick closes when its new keys have their
    noise, so how long that takes depends on events. Batches of such a stream are not refused
    meanwhile: they wait, and count in the tick that was open when they came. What remains is a
    matter of time (docs/limits.md). Test:
    tests/service/test_service_new_keys.py::test_new_keys_change_no_answer.
    """

    def __init__(
        self, store: Store, clock: Clock, publish: Publish, clock_jump: float | None = None
    ) -> None:
        super().__init__(name="evercount-writer", daemon=True)
        self.store = store
        self.clock = clock
        self.publish = publish
        last_seen = None
        if clock_jump is not None:
            last_seen = store.last_release()
        self.guard = ClockGuard(clock, clock_jump, last_seen)
        self.catch_up = CatchUp(store, clock, publish)
        self.failing: str | None = None
        self._queue: queue.Queue[tuple[Any, Future[Any]] | None] = queue.Queue()
        self._retry_at = 0.0
        self._stopping = False
        self._needs_reload = False
        self._turns: dict[str, float] = {}  # when each stream had its last turn
        self._waiting: dict[str, list[tuple[int, Batch, Future[Any]]]] = {}
        """Of streams whose keys nobody listed: batches that came after the open tick had ended,
        with their tick."""

    # -- called from other threads -----------------------------------------------------------------

    def submit(self, work: Batch | Callable[[], Any]) -> Future[Any]:
        """A batch to be committed, or a function to be called in the writer's thread."""
        future: Future[Any] = Future()
        if self._stopping or not self.is_alive():
            future.set_exception(Busy(STOPPING))
        elif self._requests_waiting() >= MOST_WAITING:
            future.set_exception(
                Busy("too many requests are waiting for the store: send fewer and larger batches")
            )
        else:
            self._queue.put((work, future))
        return future

    def _requests_waiting(self) -> int:
        """Count the requests that wait for the store, or for a tick."""
        waiting_for_ticks = sum(len(batches) for batches in list(self._waiting.values()))
        return self._queue.qsize() + waiting_for_ticks

    def close_manually(self, live: LiveStream, tick: int | None) -> list[dict[str, Any]]:
        """Release the open tick of a manual stream; called in the writer's thread.

        The answer is what the stream shows at it: the tick alone where that is nothing, as the last
        3 ticks at tick 1.
        """
        if not live.declaration.schedule.manual:
            raise InputError(
                f"stream {live.name!r} closes its ticks by the clock, every "
                f"{live.declaration.schedule.tick}"
            )
        tick = tick or live.open_tick
        if tick > live.open_tick:
            raise InputError(f"tick {tick} is out of turn: the open tick is {live.open_tick}")
        if tick == live.open_tick:
            self.store.close_ticks(live, 1, self.clock.now())
            self.publish(live.name)
        return self.store.read_releases(live, tick - 1, 1, tick, range(CELLS_PER_PAGE)) or [
            {"tick": tick}
        ]

    def stop(self) -> None:
        """Finish the requests that wait, then end. Missed ticks that are not closed yet are closed
        after the next start."""
        self._stopping = True
        self._queue.put(None)
        self.join()

    # -- the thread --------------------------------------------------------------------------------

    def run(self) -> None:
        while not self._stopping or not self._queue.empty():
            try:
                work = [self._queue.get(timeout=self._wait())]
            except queue.Empty:
                self.close_due()
                continue
            while len(work) < MOST_PER_COMMIT and not self._queue.empty():
                work.append(self._queue.get())
            if self._stopping:
                now = self.clock.now()
            else:
                now = self.close_due()
            requests = [
                item for item in work if item is not None and not self._must_wait(*item, now)
            ]
            # requests whose client went away are left out; from here on none can be withdrawn
            self._serve(
                [
                    (request, future)
                    for request, future in requests
                    if future.set_running_or_notify_cancel()
                ],
                now,
            )
        self._refuse_waiting(Busy(STOPPING))

    def _wait(self) -> float:
        """Return for how many seconds the thread may sleep if no request comes."""
        if self.failing:
            return max(self._retry_at - time.monotonic(), 0.05)
        if self.guard.holding:
            return RETRY_SECONDS
        if self._waiting:
            return 0.0
        ends = [live.next_end() for live in list(self.store.streams.values())]
        waits = [self.clock.seconds_until(end) for end in ends if end is not None]
        return min([*waits, LONGEST_WAIT])

    def _must_wait(self, batch: Any, future: Future[Any], now: float) -> bool:
        """Put a batch aside if its stream has ticks to close whose new keys may need time; return
        whether it was put aside."""
        if not isinstance(batch, Batch) or self._stopping or self.failing or self.guard.holding:
            return False
        live = self.store.streams.get(batch.stream)
        if live is None or live.declaration.query.discovery is None or not live.due(now):
            return False
        tick = live.declaration.schedule.tick_of(instant_of(now))
        self._waiting.setdefault(batch.stream, []).append((tick, batch, future))
        return True

    def _admit_waiting(self, name: str, now: float) -> None:
        """Count the batches of a stream that waited for the tick that is open now; all of them if
        none is to close."""
        live = self.store.streams.get(name)
        still_waiting = []
        ready = []
        for tick, batch, future in self._waiting.pop(name, []):
            if live is not None and live.due(now) and tick > live.open_tick:
                still_waiting.append((tick, batch, future))
            elif future.set_running_or_notify_cancel():
                ready.append((batch, future))
        if still_waiting:
            self._waiting[name] = still_waiting
        self._accept(ready, now)

    def _refuse_waiting(self, refusal: EvercountError) -> None:
        """Answer every batch that waits for a tick with a refusal."""
        waiting = self._waiting
        self._waiting = {}
        for batches in waiting.values():
            for _, _, future in batches:
                if future.set_running_or_notify_cancel():
                    future.set_exception(refusal)

    def _serve(self, work: list[tuple[Any, Future[Any]]], now: float) -> None:
        """Do the requests in their order; commit batches that follow each other together."""
        for batches, group in groupby(work, lambda item: isinstance(item[0], Batch)):
            if batches:
                self._commit(list(group), now)
                continue
            for call, future in group:
                self._call(call, future)

    def _call(self, work: Callable[[], Any], future: Future[Any]) -> None:
        """Call a function for another thread, and give it the result or the exception."""
        try:
            self._recover()
            future.set_result(work())
        except Exception as error:  # noqa: BLE001 - it belongs to the caller
            store_failed = isinstance(error, StoreError) and not isinstance(error, errors.Conflict)
            if store_failed or not isinstance(error, EvercountError):
                self._failed(error)
            future.set_exception(error)

    def _commit(self, batches: list[tuple[Batch, Future[Any]]], now: float) -> None:
        """Refuse the batches of streams that are behind the clock; commit the others."""
        names = {batch.stream for batch, _ in batches}
        refusals = {name: self._behind(name, now) for name in names}
        ready = []
        for batch, future in batches:
            refusal = refusals[batch.stream]
            if refusal is None:
                ready.append((batch, future))
            else:
                future.set_exception(refusal)
        self._accept(ready, now)

    def _accept(self, batches: list[tuple[Batch, Future[Any]]], now: float) -> None:
        """Commit batches together, and answer each."""
        if not batches:
            return
        try:
            self._recover()
            answers: list[Accepted | EvercountError] = self.store.accept(
                [batch for batch, _ in batches], now
            )
        except Exception as error:  # noqa: BLE001
            # nothing was committed, and every sender learns it
            self._failed(error)
            if isinstance(error, EvercountError) and not isinstance(error, StoreError):
                # its text may quote one sender's events to another
                error = StoreError(type(error).__name__)
            for _, future in batches:
                future.set_exception(error)
            return
        self.failing = None
        for (_, future), answer in zip(batches, answers, strict=True):
            if isinstance(answer, Accepted):
                future.set_result(answer)
            else:
                future.set_exception(answer)

    def _behind(self, name: str, now: float) -> EvercountError | None:
        """Close one slice of the ticks that a stream missed; return the refusal of its batches if
        more are left.

        The refusal names the number of ticks left, which the clock decides, and never how long they
        take, which the data might decide.
        """
        live = self.store.streams.get(name)
        if live is None or not live.due(now):
            return None
        if self._stopping and live.declaration.query.discovery is not None:
            return Busy(STOPPING)
        if not self.guard.holding:
            self._close(name, now)
            live = self.store.streams.get(name)
        if live is None or self.failing:
            return None  # a failing store has its own refusal
        left = live.due(now)
        if not left:
            return None
        if self.guard.holding:
            return CatchingUp(JUMPED, 60.0)
        return CatchingUp(
            f"stream {name!r} closes {left} ticks that it missed", BEHIND_RETRY_SECONDS
        )

    def close_due(self) -> float:
        """Close ticks that have ended; return the time by which they had.

        Streams that have one tick to close close it. Those that missed more take turns for about
        the time of one slice; what is left is closed by the next calls, which follow at once.
        """
        now = self.clock.now()
        if self.failing and time.monotonic() < self._retry_at:
            self._refuse_waiting(Busy("the store cannot be written now: send the same batch again"))
            return now
        left = ticks_left(self.store.streams.values(), now)
        was_holding = self.guard.holding
        if not self.guard.allows(now, max(left.values(), default=0)):
            if not was_holding:
                log.error(
                    "the clock is %d s ahead of what was expected, so no tick is closed. If the "
                    "time is right, accept it: POST /v1/clock with the admin token, or start with "
                    "--clock-jump none. If it is wrong, set it",
                    round(self.guard.skew(now)),
                )
            self._refuse_waiting(CatchingUp(JUMPED, 60.0))
            return now
        ends = time.monotonic() + SLICE_SECONDS
        for name in sorted(left, key=lambda name: (left[name] > 1, self._turns.get(name, 0))):
            self._close(name, now)
            self._turns[name] = time.monotonic()
            if left[name] > 1 and time.monotonic() >= ends:
                break
        # those with no tick to close: the stream has ended, or the clock was set back
        for name in [name for name in self._waiting if name not in left]:
            self._admit_waiting(name, now)
        return now

    def _close(self, name: str, now: float) -> None:
        """Close one slice of one stream. A failure stops no other stream."""
        live = self.store.streams.get(name)
        try:
            self._recover()
            live = self.store.streams.get(name)  # the repair may have loaded it afresh
            if live is not None and live.due(now):
                waiting = self._waiting.get(name, [])
                most = min((tick - live.open_tick for tick, _, _ in waiting), default=None)
                self.catch_up.close_slice(live, now, most)
                self.failing = None
        except Exception as error:  # noqa: BLE001 - one stream's failure must not stop the others
            if live is not None and live.stopped:
                log.error("stream %s is stopped: %s", name, loggable(error))
            else:
                self._failed(error)
        self._admit_waiting(name, now)

    def _recover(self) -> None:
        """Load the store again after a failed commit: how much of it is committed is uncertain."""
        if self._needs_reload or self.store.database.lost:
            self.store.recover()
            self._needs_reload = False
            self.failing = None
            log.warning("the store was loaded again after a failure")

    def _failed(self, error: Exception) -> None:
        """Log a failure of the store once, and have the store loaded again."""
        reason = loggable(error)
        if reason != self.failing:
            text = reason
            if isinstance(error, StoreError):
                text = error.for_operator()
            log.error("the store fails: %s", text)
        self.failing = reason
        self._needs_reload = True
        self._retry_at = time.monotonic() + RETRY_SECONDS


class Watcher(Writer):
    """Looks for releases in a store that another process writes to, and refuses all changes."""

    def submit(self, work: Any) -> Future[Any]:
        future: Future[Any] = Future()
        remedy = "Send it to the process that writes to the store."
        future.set_exception(
            HttpProblem(403, "ReadOnly", "this service shows a store and changes nothing", remedy)
        )
        return future

    def _wait(self) -> float:
        return LOOK_SECONDS

    def close_due(self) -> float:
        """Publish what was released since the last look; the other process closes the ticks."""
        assert isinstance(self.store, WatchedStore)
        try:
            for name in self.store.look():
                self.publish(name)
            self.failing = None
        except StoreError as error:
            self._failed(error)
        return self.clock.now()
