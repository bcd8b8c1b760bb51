"""The threads that touch the store: the writer, which closes ticks and commits batches, and the
keeper of SQLite's log.

In a service that only shows a store, a watcher takes the writer's place.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from itertools import groupby
from typing import Any

from evercount import errors
from evercount.declarations.schedule import instant_of
from evercount.errors import Busy, CatchingUp, EvercountError, InputError, Problem, StoreError
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
from evercount.store.database import Database
from evercount.store.writer import WatchedStore

PAUSE_SECONDS = 0.5
"""Between two moves. SQLite itself moves the log within a commit once it has 1,000 pages. There is
little left to move then, and the log starts again from its beginning."""


class LogKeeper(threading.Thread):
    """A thread that moves the log now and then. PostgreSQL does this by itself: the thread then
    ends at once. What is committed is durable before and after: the log and the file together are
    the database, and SQLite's own locks keep the mover, the writer and readers apart. Test:
    `tests/service/test_log_keeper.py`."""

    def __init__(self, database: Database) -> None:
        self._over = threading.Event()
        over = partial(self._over.wait, PAUSE_SECONDS)
        super().__init__(target=database.move_log, args=(over,), name="evercount-log", daemon=True)

    def stop(self) -> None:
        self._over.set()
        if self.is_alive():
            self.join()


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
    return (
        f"{type(error).__name__}: {error}"
        if isinstance(error, StoreError)
        else type(error).__name__
    )


class Writer(threading.Thread):
    """Everything that changes the store happens in this thread, in the order in which it was asked
    for.

    No event is counted in a tick that is over: the ticks of a stream that have ended are closed
    before its batches are counted, and a stream that has missed more ticks than one slice holds
    refuses its batches until it has caught up (`CatchingUp`). Closing happens in slices
    (`catch_up.py`), between which requests are served and a stop is obeyed. A store that fails is
    tried again; what was not committed is reported as failed and did not happen. `publish` is told
    about every release after its commit.

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
        self.store, self.clock, self.publish = store, clock, publish
        self.guard = ClockGuard(
            clock, clock_jump, store.last_release() if clock_jump is not None else None
        )
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

    # -- asked from other threads ------------------------------------------------------------------

    def submit(self, work: Batch | Callable[[], Any]) -> Future[Any]:
        """A batch to be committed, or a function to be called in the writer's thread."""
        future: Future[Any] = Future()
        if self._stopping or not self.is_alive():
            future.set_exception(Busy(STOPPING))
        elif self._queue.qsize() + sum(map(len, list(self._waiting.values()))) >= MOST_WAITING:
            future.set_exception(
                Busy("too many requests are waiting for the store: send fewer and larger batches")
            )
        else:
            self._queue.put((work, future))
        return future

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
        """Finish what was asked for, then end. Missed ticks that are not closed yet are closed
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
            now = self.clock.now() if self._stopping else self.close_due()
            asked = [item for item in work if item is not None and not self._must_wait(*item, now)]
            # requests whose client went away are left out; from here on nobody can withdraw
            self._serve(
                [(one, future) for one, future in asked if future.set_running_or_notify_cancel()],
                now,
            )
        self._refuse_waiting(Busy(STOPPING))

    def _wait(self) -> float:
        if self.failing:
            return max(self._retry_at - time.monotonic(), 0.05)
        if self.guard.holding:
            return RETRY_SECONDS
        if self._waiting:
            return 0.0
        moments = [
            moment
            for live in list(self.store.streams.values())
            if (moment := live.next_end()) is not None
        ]
        return min([self.clock.seconds_until(moment) for moment in moments] + [LONGEST_WAIT])

    def _must_wait(self, batch: Any, future: Future[Any], now: float) -> bool:
        """Whether a batch waits for a tick that has ended and whose new keys may need time; then it
        is kept."""
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
        kept, ready = [], []
        for tick, batch, future in self._waiting.pop(name, []):
            if live is not None and live.due(now) and tick > live.open_tick:
                kept.append((tick, batch, future))
            elif future.set_running_or_notify_cancel():
                ready.append((batch, future))
        if kept:
            self._waiting[name] = kept
        self._accept(ready, now)

    def _refuse_waiting(self, refusal: EvercountError) -> None:
        waiting, self._waiting = self._waiting, {}
        for _, _, future in (one for batches in waiting.values() for one in batches):
            if future.set_running_or_notify_cancel():
                future.set_exception(refusal)

    def _serve(self, work: list[tuple[Any, Future[Any]]], now: float) -> None:
        """Do what was asked for, in its order; batches that follow each other are committed
        together."""
        for batches, group in groupby(work, lambda item: isinstance(item[0], Batch)):
            if batches:
                self._commit(list(group), now)
                continue
            for call, future in group:
                self._call(call, future)

    def _call(self, work: Callable[[], Any], future: Future[Any]) -> None:
        try:
            self._recover()
            future.set_result(work())
        except Exception as error:  # noqa: BLE001 - it belongs to the caller
            if not isinstance(error, EvercountError) or (
                isinstance(error, StoreError) and not isinstance(error, errors.Conflict)
            ):
                self._failed(error)
            future.set_exception(error)

    def _commit(self, batches: list[tuple[Batch, Future[Any]]], now: float) -> None:
        behind = {name: self._behind(name, now) for name in {batch.stream for batch, _ in batches}}
        for batch, future in batches:
            if (refusal := behind[batch.stream]) is not None:
                future.set_exception(refusal)
        self._accept(
            [(batch, future) for batch, future in batches if behind[batch.stream] is None], now
        )

    def _accept(self, batches: list[tuple[Batch, Future[Any]]], now: float) -> None:
        if not batches:
            return
        try:
            self._recover()
            answers: list[Accepted | EvercountError] = self.store.accept(
                [b for b, _ in batches], now
            )
        except Exception as error:  # noqa: BLE001
            # nothing was committed, and everybody waiting is told
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
        """Close one slice of the ticks that a stream missed; returns the refusal of its batches if
        more are left. The refusal names the number of ticks left, which the clock decides, and
        never how long they take, which the data might decide."""
        live = self.store.streams.get(name)
        if live is None or not live.due(now):
            return None
        if self._stopping and live.declaration.query.discovery is not None:
            return Busy(STOPPING)
        if not self.guard.holding:
            self._close(name, now)
            live = self.store.streams.get(name)
        left = 0 if live is None else live.due(now)
        if not left or self.failing:
            return None  # a failing store has its own refusal
        if self.guard.holding:
            return CatchingUp(JUMPED, 60.0)
        return CatchingUp(
            f"stream {name!r} closes {left} ticks that it missed", BEHIND_RETRY_SECONDS
        )

    def close_due(self) -> float:
        """Close ticks that have ended; returns the time that was looked at. Streams that have one
        tick to close close it. Those that missed more take turns for about the time of one slice;
        what is left is closed by the next calls, which follow at once."""
        now = self.clock.now()
        if self.failing and time.monotonic() < self._retry_at:
            self._refuse_waiting(Busy("the store cannot be written now: send the same batch again"))
            return now
        left = ticks_left(self.store.streams.values(), now)
        held = self.guard.holding
        if not self.guard.allows(now, max(left.values(), default=0)):
            if not held:
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
        # it is over, or the clock went back
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
                most = min(
                    (tick - live.open_tick for tick, _, _ in self._waiting.get(name, [])),
                    default=None,
                )
                self.catch_up.close_slice(live, now, most)
                self.failing = None
        except Exception as error:  # noqa: BLE001 - one stream's failure must not stop the others
            if live is not None and live.stopped:
                log.error("stream %s is stopped: %s", name, loggable(error))
            else:
                self._failed(error)
        self._admit_waiting(name, now)

    def _recover(self) -> None:
        """Load the store again after a failed commit: nobody knows what of it is committed."""
        if self._needs_reload or self.store.database.lost:
            self.store.recover()
            self._needs_reload, self.failing = False, None
            log.warning("the store was loaded again after a failure")

    def _failed(self, error: Exception) -> None:
        reason = loggable(error)
        if reason != self.failing:
            log.error(
                "the store fails: %s",
                error.for_operator() if isinstance(error, StoreError) else reason,
            )
        self.failing = reason
        self._needs_reload = True
        self._retry_at = time.monotonic() + RETRY_SECONDS


class Watcher(Writer):
    """In the place of the writer, for a store of another process: it looks for releases and refuses
    all changes."""

    def submit(self, work: Any) -> Future[Any]:
        future: Future[Any] = Future()
        remedy = "Send it to the process that writes to the store."
        future.set_exception(
            Problem(403, "ReadOnly", "this service shows a store and changes nothing", remedy)
        )
        return future

    def _wait(self) -> float:
        return LOOK_SECONDS

    def close_due(self) -> float:
        """Publish what was released since the last look; the process that writes to the store
        closes the ticks."""
        assert isinstance(self.store, WatchedStore)
        try:
            for name in self.store.look():
                self.publish(name)
            self.failing = None
        except StoreError as error:
            self._failed(error)
        return self.clock.now()
