"""Hub: tells every listener of a stream about its new releases (server-sent events)."""

from __future__ import annotations

import asyncio
import json
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import groupby
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from evercount.errors import Problem
from evercount.service.http_errors import describe

RECENT = 64  # releases of each stream that are kept ready for listeners
CHARACTERS_AT_ONCE = 1 << 16  # of events that are sent in one piece: each piece is a system call and a turn of the loop
HEARTBEAT_SECONDS = 15.0
HEAD_ONLY = "evercount.head"  # in the scope of a HEAD request, which is answered as GET without its body

Read = Callable[[int, int], Awaitable[list[dict[str, Any]]]]  # (after, limit) → releases


def sse(release: dict[str, Any]) -> str:
    """One release as a server-sent event. Of a tick that is published again, only the last event has an id: who is cut
    off before it gets all of them again."""
    mark = f"id: {release['tick']}\n" if release.get("as_of", release["tick"]) == release["tick"] else ""
    return f"{mark}event: release\ndata: {json.dumps(release, separators=(',', ':'))}\n\n"


def by_tick(releases: list[dict[str, Any]]) -> list[tuple[int, str]]:
    """The events of each tick that released them, together."""
    groups = groupby(releases, lambda release: int(release.get("as_of", release["tick"])))
    return [(tick, "".join(map(sse, group))) for tick, group in groups]


class Topic:
    """The latest releases of one stream, and the event that its listeners wait for."""

    def __init__(self) -> None:
        self.recent: deque[tuple[int, str]] = deque(maxlen=RECENT)
        self.news = asyncio.Event()
        self.listeners = 0

    @contextmanager
    def listener(self) -> Iterator[None]:
        self.listeners += 1
        try:
            yield
        finally:
            self.listeners -= 1

    def tell(self, releases: list[dict[str, Any]]) -> None:
        """Keep new releases and wake the listeners. While nobody listens nothing is kept: who comes asks the store."""
        if not self.listeners:
            self.recent.clear()
            return
        self.recent.extend(by_tick(releases))
        self.wake()

    def wake(self) -> None:
        self.news.set()
        self.news = asyncio.Event()


class Hub:
    """All topics. Lives in the event loop; other threads come in by `publish`."""

    def __init__(self, most: int = 256, most_per_client: int = 32) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.closing = False
        self.most, self.most_per_client = most, most_per_client
        self._clients: Counter[str] = Counter()
        self._topics: dict[str, Topic] = {}

    @property
    def listeners(self) -> int:
        return self._clients.total()

    @contextmanager
    def seat(self, client: str) -> Iterator[None]:
        """A live connection of a client, counted from here to the end of the block, or Problem 503. There is no await
        between the check and the count, so that a burst of connections stays within the limit."""
        if self.closing or self.listeners >= self.most or self._clients[client] >= self.most_per_client:
            raise Problem(503, "Busy", "there are too many live connections", "Ask for /releases instead.", retry=5)
        self._clients[client] += 1
        try:
            yield
        finally:
            self._clients[client] -= 1
            if not self._clients[client]:
                del self._clients[client]

    def publish(self, name: str, releases: list[dict[str, Any]]) -> None:
        self.in_loop(lambda: self.topic(name).tell(releases))

    def in_loop(self, work: Callable[[], None]) -> None:
        """Have the event loop do something; from any thread, and from a signal handler."""
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(work)

    def topic(self, name: str) -> Topic:
        return self._topics.setdefault(name, Topic())

    def close(self) -> None:
        """End every open connection; safe to call from a signal handler."""
        self.closing = True
        self.in_loop(self._wake_all)

    def _wake_all(self) -> None:
        for topic in self._topics.values():
            topic.wake()

    async def events(
        self,
        name: str,
        after: int,
        read: Read,
        allowed: Callable[[], bool] = lambda: True,
        heartbeat: float = HEARTBEAT_SECONDS,
    ) -> AsyncIterator[str]:
        """Every release after a tick, as server-sent events with heartbeats between, for as long as it is allowed. The
        store is asked where the kept releases do not continue after the tick, and again at every heartbeat: a release
        that is committed but was never published (the commit's answer was lost) is then sent, too."""
        topic = self.topic(name)
        with topic.listener():
            yield "retry: 2000\n: evercount\n\n"
            ask = True
            while not self.closing and allowed():
                news = topic.news
                ready = [(tick, text) for tick, text in topic.recent if tick > after]
                gap = bool(ready) and ready[0][0] != after + 1
                if gap or (ask and not ready):
                    ready = by_tick(await read(after, RECENT))
                    ask = bool(ready)
                for part in _parts(ready):
                    if not allowed():
                        return
                    yield "".join(text for _, text in part)
                    after = part[-1][0]
                    await asyncio.sleep(0)  # let the loop notice a listener that went away
                if ready:
                    continue
                try:
                    await asyncio.wait_for(news.wait(), heartbeat)
                except TimeoutError:
                    ask = True
                    yield ": heartbeat\n\n"


def _parts(events: list[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """The events in groups that are sent together: about CHARACTERS_AT_ONCE each."""
    part: list[tuple[int, str]] = []
    size = 0
    for tick, text in events:
        part.append((tick, text))
        size += len(text)
        if size >= CHARACTERS_AT_ONCE:
            yield part
            part, size = [], 0
    if part:
        yield part


class LiveResponse(StreamingResponse):
    """Server-sent events that hold a seat of the hub while they are sent, and only then."""

    def __init__(self, hub: Hub, client: str, events: AsyncIterator[str]) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._hub, self._client = hub, client

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with ExitStack() as stack:
            try:
                stack.enter_context(self._hub.seat(self._client))
            except Problem as error:
                await describe(error)(scope, receive, send)
                return
            if scope.get(HEAD_ONLY):
                await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            await super().__call__(scope, receive, send)
