"""Service: the store, its writer, the clock, the listeners and the rules, joined."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request

import evercount
from evercount.declarations.cautions import published_line
from evercount.declarations.fields import declared_budget
from evercount.declarations.schedule import format_utc, instant_of
from evercount.declarations.settle import with_noise_of
from evercount.declarations.tick_marks import NewMark
from evercount.declarations.view_names import offered_views
from evercount.engine.release_table import Exports
from evercount.engine.state import enforced_by
from evercount.errors import HttpProblem, ParameterError, StoreError
from evercount.factorizations.interruption import interrupted_by
from evercount.privacy import counted_text
from evercount.queries import Query
from evercount.service.access import Access, Buckets, Limits, read_body
from evercount.service.catch_up import CELLS_PER_PAGE, Clock, ticks_left
from evercount.service.commit_loop import Watcher, Writer
from evercount.service.computations import ComputationQueue, busy
from evercount.service.every_request import Requests
from evercount.service.log_keeper import LogKeeper
from evercount.service.metrics import StreamMetrics, admin_metrics, exposition, public_metrics
from evercount.service.read_events import load_json
from evercount.service.sse import Hub
from evercount.store import (
    LiveStream,
    Store,
    StoredStream,
    StreamDeclaration,
    retire_stream,
)
from evercount.store.open_stream import HISTORY
from evercount.store.stream_life import mark_ticks
from evercount.store.writer import WatchedStore

T = TypeVar("T")
S = TypeVar("S", bound=StoredStream)

log = logging.getLogger("evercount.service")

# threads
READERS = 8
PLANNERS = 2
DECLARERS = 2
PREPARERS = 4
# facts as declared
DECLARED = ("description", "tick", "horizon", "late", "wait", "revise_for", "public")
# a stream with several ticks to close is called catching up once the oldest is this late
BEHIND_SECONDS = 0.5
# cells of a public stream whose released numbers are metrics; wider streams have an API of their
# own
MOST_GAUGES = 100


class Service:
    """Everything behind the HTTP handlers. `start` and `stop` own the writer thread and the
    store."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock | None = None,
        limits: Limits | None = None,
        admin: str | None = None,
        clock_jump: float | None = None,
    ) -> None:
        self.store = store
        self.clock = clock or Clock()
        self.limits = limits or Limits()
        self.hub = Hub(
            self.limits.listeners, self.limits.listeners_per_client, self.limits.listeners_kept
        )
        self.requests = Requests()
        self.began = time.monotonic()
        self.access = Access(store, admin)
        self.buckets = Buckets(self.limits.rate, self.limits.burst)
        self.writer: Writer
        if isinstance(store, WatchedStore):
            self.writer = Watcher(store, self.clock, self.hub.publish)
        else:
            self.writer = Writer(store, self.clock, self.hub.publish, clock_jump)
        self._log_keeper = LogKeeper(store.database)
        # threads of their own: many requests for plans or pages delay no declaration and no events
        self._readers = ThreadPoolExecutor(READERS, "evercount-read")
        self._preparers = ThreadPoolExecutor(PREPARERS, "evercount-prepare")
        most = self.limits.plans
        most_per_client = self.limits.plans_per_client
        self.plans = ComputationQueue(PLANNERS, most, most_per_client)
        self.declarations = ComputationQueue(DECLARERS, most, most_per_client, what="declarations")
        self._stopping = False

    def declare(self, declarations: list[StreamDeclaration]) -> None:
        for declaration in declarations:
            ended = self.store.ended.get(declaration.name)
            if ended is not None and ended.ending == "quarantined":
                # the store has logged what the operator can do; the other streams continue
                continue
            self.declare_one(declaration)
            if self.store.streams[declaration.name].waiting == HISTORY:
                log.warning(
                    "stream %s starts in the past and closes no tick yet. Send its history with "
                    "`evercount push --history`, or say that there is none with `evercount streams "
                    "open`",
                    declaration.name,
                )

    def declare_one(self, declaration: StreamDeclaration) -> dict[str, Any]:
        """Declare a stream; return its facts, which are made before anything is committed."""
        live = self.store.declare(
            declaration,
            self.clock.now(),
            before_commit=lambda _, live: self.facts(live),
            waits_for=HISTORY,
        )
        return {
            **self.facts(live),
            "published": published_line(with_noise_of(declaration, live.declaration)),
        }

    def start(self) -> None:
        """Start the writer. It closes the ticks that were missed, slice by slice, and then each
        when it ends."""
        self.writer.start()
        if not isinstance(self.store, WatchedStore):
            self._log_keeper.start()

    def end_waiting(self) -> None:
        """End live connections and computations, so that stopping need not wait for them; from any
        thread."""
        self._stopping = True
        self.hub.close()
        for queue in (self.plans, self.declarations):
            self.hub.in_loop(queue.close)

    def stop(self) -> None:
        """Finish what was accepted and let the store go."""
        self._stopping = True
        if self.writer.is_alive():
            self.writer.stop()
        self._log_keeper.stop()
        for queue in (self.plans, self.declarations):
            queue.close()
        for pool in (self._readers, self._preparers):
            pool.shutdown(wait=False, cancel_futures=True)
        self.store.close()

    async def write(self, work: Any) -> Any:
        return await asyncio.wrap_future(self.writer.submit(work))

    async def finish_noise(self, name: str) -> None:
        """Wait for the noise of a stream outside the writer, which serves others meanwhile."""
        live = self.find(name)
        if live.declaration.query.discovery is None and (live.ahead is None or live.ahead.done()):
            return  # no event brings new noise: the writer need not be asked
        for _ in range(2):  # the noise being drawn, and then that of events since it began
            noise = await self.write(lambda: self.store.noise_ahead.pending_noise(self.find(name)))
            if noise is None:
                return
            # an error there is raised again when the tick closes
            await asyncio.gather(asyncio.wrap_future(noise), return_exceptions=True)

    async def read(self, function: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(
            self._readers, partial(function, *arguments)
        )

    async def prepare(self, function: Callable[..., T], *arguments: Any) -> T:
        """Have a thread read a large body or declaration, so that other requests do not wait."""
        return await asyncio.get_running_loop().run_in_executor(
            self._preparers, partial(function, *arguments)
        )

    async def read_json(self, request: Request) -> dict[str, Any]:
        data = await self.prepare(load_json, await read_body(request, self.limits.body), "the body")
        if not isinstance(data, dict):
            raise ParameterError("the body must be a JSON object")
        return data

    async def compute(
        self, request: Request, queue: ComputationQueue, function: Callable[..., T], *arguments: Any
    ) -> T:
        """Have a thread compute something when its turn comes; see `_while_client_waits`."""
        submit = partial(queue.submit, self.access.client(request.scope))
        work = partial(function, *arguments)
        return await self._while_client_waits(request, submit, work, self.limits.compute_seconds)

    async def export(self, request: Request, function: Callable[..., T], *arguments: Any) -> T:
        """Have a thread write a file; see `_while_client_waits`."""
        work = partial(function, *arguments)
        return await self._while_client_waits(
            request, self._readers.submit, work, self.limits.export_seconds
        )

    async def _while_client_waits(
        self,
        request: Request,
        submit: Callable[[Callable[[], T]], Future[T]],
        work: Callable[[], T],
        seconds: float,
    ) -> T:
        """Have a thread do some work in at most so many seconds; return its result.

        **Guarantee.** The work ends, at its next `check_wanted`, once its client has gone, its time
        is over, or the service stops. The client's answer, and the end of the process, wait for
        none of these. Tests: tests/service/test_service_computations.py.
        """
        unwanted = threading.Event()

        def check() -> None:
            if unwanted.is_set() or self._stopping:
                raise busy()

        def interruptible() -> T:
            with interrupted_by(check):
                return work()

        thread = submit(interruptible)
        result: asyncio.Future[T] = asyncio.wrap_future(thread)
        disconnect = asyncio.ensure_future(_disconnect(request))
        both: list[asyncio.Future[Any]] = [result, disconnect]
        try:
            await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
            if result.done():
                return await result
            if disconnect.done():
                raise ClientDisconnect
            if thread.running():
                raise _too_long(seconds)
            raise busy("others' requests have been computed for too long", "Try again.")
        finally:
            unwanted.set()
            disconnect.cancel()
            result.cancel()  # the next request gets its place

    # -- what readers may learn --------------------------------------------------------------------

    def look_up(self, name: str) -> StoredStream | None:
        """The stream, or None; HttpProblem 503 while it is not certain which streams exist."""
        stream = self.store.streams.get(name) or self.store.ended.get(name)
        if stream is None:
            self.check_recovered()
        return stream

    def check_recovered(self) -> None:
        """HttpProblem 503 while the store is loaded again, when it is uncertain which streams
        exist."""
        if self.writer.failing is not None:
            raise HttpProblem(
                503,
                "Recovering",
                "the store is being loaded again",
                "Try again in a moment.",
                retry=2,
            )

    def find_any(self, name: str) -> StoredStream:
        stream = self.look_up(name)
        if stream is None:
            raise HttpProblem(404, "NotFound", "there is no such stream")
        return stream

    def find(self, name: str) -> LiveStream:
        """The stream that takes events; HttpProblem 404 if there is none, 410 if it is over."""
        stream = self.find_any(name)
        live = stream.live
        if live is None:
            message = f"the stream is {stream.ending}: {stream.reason}."
            if stream.successor:
                message += f" Send events to {stream.successor!r}."
            raise HttpProblem(410, "StreamEnded", message)
        if live.finished and live.successor is not None:
            return self.find(live.successor)  # it was renewed: the new stream takes its events
        return live

    def retire(self, name: str, reason: str, successor: str | None) -> dict[str, Any]:
        """Retire a stream; called in the writer's thread."""
        ended, new_stream = retire_stream(
            self.store, name, self.clock.now(), reason=reason, successor=successor
        )
        retired = self.facts(ended)
        if new_stream is None:
            return {"retired": retired, "successor": None}
        return {"retired": retired, "successor": self.facts(new_stream)}

    def mark(self, name: str, data: Any) -> dict[str, Any]:
        """Keep a note on ticks, or declare them missing; called in the writer's thread."""
        schedule = self.find_any(name).declaration.schedule
        return mark_ticks(self.store, name, NewMark(**data).on(schedule)).facts(schedule)

    def accept_clock(self) -> dict[str, Any]:
        """The operator agrees with the time as it is; called in the writer's thread."""
        now = self.clock.now()
        skew = self.writer.guard.skew(now)
        self.writer.guard.accept(now)
        return {"now": format_utc(instant_of(now)), "jump_seconds": round(skew)}

    def readiness(self) -> tuple[str, dict[str, int]]:
        """What the service is doing, and for each stream that is behind the clock how many ticks it
        has to close.

        The word is one of ready, starting, failing, clock-jump and catching-up. Nothing of it
        depends on events: streams whose keys nobody listed are never called behind. New keys decide
        how long their ticks take to close, and they refuse no batch meanwhile.
        """
        now = self.clock.now()
        left = ticks_left(self.store.streams.values(), now)
        if not self.writer.is_alive():
            if self.writer.ident is None:
                return "starting", left
            return "failing", left
        if self.writer.failing is not None:
            return "failing", left
        if self.writer.guard.holding:
            return "clock-jump", left
        if self._seconds_behind(now, left) >= BEHIND_SECONDS:
            return "catching-up", left
        return "ready", left

    def _seconds_behind(self, now: float, left: dict[str, int]) -> float:
        """How long the oldest tick has been over of the streams that have several to close.

        A tick that has just ended is closed at once, and so are some of a few milliseconds: that is
        not catching up. Streams whose keys nobody listed are left out.
        """
        ends = [
            live.next_end()
            for live in list(self.store.streams.values())
            if live.declaration.query.discovery is None and left.get(live.name, 0) > 1
        ]
        return max((now - end for end in ends if end is not None), default=0.0)

    def metrics_page(self, admin: bool) -> str:
        """The exposition text: public facts, and for an admin what the requests were like and how
        large things are."""
        now = self.clock.now()
        streams = list(self.store.streams.values())
        page = public_metrics(
            evercount.__version__,
            time.monotonic() - self.began,
            self.writer.failing is None,
            self.readiness()[0] == "ready",
            self.writer.guard.drift(now),
            sum(not (live.finished or live.stopped) for live in streams),
            self.each(streams, lambda live: self._metrics_of(live, now)),
        )
        if not admin:
            return exposition(page)
        return exposition(
            page, admin_metrics(self.requests, self.hub.listeners, self.store.database.size())
        )

    def _metrics_of(self, live: LiveStream, now: float) -> StreamMetrics:
        closed = live.closed
        end = live.next_end()
        late = 0.0 if end is None else max(0.0, now - end)
        latest: list[tuple[str, float, float]] = []
        if live.declaration.public and closed and len(live.labels) <= MOST_GAUGES:
            for last in self.store.read_releases(live, closed - 1, 1):
                # a key may be missing at a tick
                cells = zip(live.labels, last["values"], last["std"], strict=False)
                latest = [cell for cell in cells if cell[1] is not None]
        return live.name, closed, late, live.due(now), latest

    @staticmethod
    def each(streams: Iterable[S], describe: Callable[[S], T]) -> list[T]:
        """Describe each stream. One that cannot be described is left out and logged."""
        descriptions = []
        for live in streams:
            try:
                descriptions.append(describe(live))
            except StoreError:
                raise  # that is not about this stream
            except Exception as error:  # noqa: BLE001 - one bad stream must not hide the others
                log.error("stream %s cannot be described: %s", live.name, type(error).__name__)
        return descriptions

    def facts(self, stream: StoredStream) -> dict[str, Any]:
        """The public facts of a stream. Nothing of them depends on the events, but for keys that
        were released."""
        declaration = stream.declaration
        schedule = declaration.schedule
        horizon = declaration.horizon
        closed = stream.closed
        facts = {
            "name": stream.name,
            "query": query_facts(declaration.query),
            "cells": len(stream.labels),
            "labels": list(stream.labels[:CELLS_PER_PAGE]),
            "budget": declared_budget(declaration.budget),
            "guarantee": stream.guarantee,
            "counted": counted_text(
                declaration.budget, enforced_by(declaration.released_query, None), declaration.tick
            ),
            **{name: getattr(declaration, name) for name in DECLARED},
            "shown": declaration.main_view,
            "start": format_utc(schedule.begin),
            "zone": schedule.zone,
            "postprocess": list(declaration.postprocess),
            "views": list(
                offered_views(declaration.query, schedule, declaration.stream_postprocess)
            ),
            "released": closed,
            "ticks_left": None if horizon is None else horizon - closed,
            "open_tick": None,
            "open_since": None,
            "closes": None,
            "successor": stream.successor,
            "level": 0.95,
            "notes": [mark.facts(schedule) for mark in stream.marks if mark.hides is None],
            "noise": Exports.noise,
        }
        live = stream.live
        if live is None:
            return facts | {"state": stream.ending, "reason": stream.reason, "ticks_left": 0}
        if not live.finished:
            facts["open_tick"] = closed + 1
            if not schedule.manual:
                facts["open_since"] = format_utc(schedule.start_of(closed + 1))
        end = live.next_end()
        if end is not None:
            facts["closes"] = format_utc(instant_of(end))
        return facts | {"state": self._state(live)}

    def _state(self, live: LiveStream) -> str:
        """Name what a stream does, in one word."""
        if live.stopped:
            return "stopped"
        if live.finished:
            return "finished"
        if live.waiting == HISTORY:
            return "waiting"
        schedule = live.declaration.schedule
        if not schedule.manual and instant_of(self.clock.now()) < schedule.begin:
            return "scheduled"
        return "open"

    def read_page(
        self,
        live: StoredStream,
        after: int,
        limit: int,
        first_cell: int = 0,
        cells: int = CELLS_PER_PAGE,
    ) -> list[dict[str, Any]]:
        """Releases after a tick: at most `limit`, `cells` of each, and not more numbers than one
        answer may hold."""
        self.check_readable(live)
        outputs = len(live.labels)
        shown = range(first_cell, min(first_cell + cells, outputs))
        limit = max(1, min(limit, self.limits.page, self.limits.numbers // max(1, len(shown))))
        selection = None if len(shown) == outputs else shown
        return self.store.read_releases(live, after, limit, live.closed, selection)

    @staticmethod
    def check_readable(live: StoredStream) -> None:
        """Refuse to show a history that is not the published one."""
        if not live.readable:
            raise HttpProblem(
                410, "StreamEnded", "the history in this database is not the one that was published"
            )


def query_facts(query: Query) -> dict[str, Any]:
    """The public facts of a query."""
    facts = {"name": query.name, **short_parameters(query.parameters())}
    if query.publishing.own_ticks:
        facts["own_ticks"] = True
    return facts


def short_parameters(parameters: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a query without lists that are longer than a page; their names are listed
    instead.

    >>> short_parameters({"keys": ["a"] * 5000, "grid": 1})
    {'parameters': {'grid': 1}, 'left_out': ['keys']}
    """
    long = [
        name
        for name, value in parameters.items()
        if hasattr(value, "__len__") and len(value) > CELLS_PER_PAGE
    ]
    short = {name: value for name, value in parameters.items() if name not in long}
    if not long:
        return {"parameters": short}
    return {"parameters": short, "left_out": long}


def _too_long(seconds: float) -> HttpProblem:
    """Refuse a request that takes too long to compute."""
    return HttpProblem(
        422,
        "TooLarge",
        f"this takes longer than the {seconds:g} seconds that a request may compute",
        "Ask for less: fewer views, or a shorter horizon. The command line has no such limit: "
        "declare the stream in the file of `evercount serve --streams`, or run `evercount plan`.",
    )


async def _disconnect(request: Request) -> None:
    """Wait until the client of a request disconnects."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
