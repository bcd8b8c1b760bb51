"""Live releases as server-sent events: the hub that wakes the listeners of a stream, and the events
that each of them gets."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from evercount.errors import HttpProblem

AT_ONCE = 64  # releases that a listener gets from the store at a time
HEARTBEAT_SECONDS = 15.0
# in the scope of a HEAD request, which is answered as GET without its body
HEAD_ONLY = "evercount.head"

Read = Callable[[int, int], Awaitable[list[dict[str, Any]]]]  # (after, limit) → releases


def sse(release: dict[str, Any]) -> str:
    """One release as a server-sent event. Of a tick that is published again, only the last event
    has an id: a listener that is cut off before it gets all of them again."""
    event = f"event: release\ndata: {json.dumps(release, separators=(',', ':'))}\n\n"
    if release.get("as_of", release["tick"]) != release["tick"]:
        return event
    return f"id: {release['tick']}\n{event}"


def by_tick(releases: list[dict[str, Any]]) -> list[tuple[int, str]]:
    """The events of each tick that released them, together."""
    groups = groupby(releases, lambda release: int(release.get("as_of", release["tick"])))
    return [(tick, "".join(map(sse, group))) for tick, group in groups]


class Hub:
    """The listeners of each stream. Lives in the event loop; other threads call `publish`."""

    def __init__(self, most: int, most_per_client: int, reserved: int) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.closing = False
        self.most = most
        self.most_per_client = most_per_client
        self.reserved = reserved  # seats that only clients with a token may take
        self._clients: Counter[str] = Counter()
        self._anonymous = 0
        self._news: dict[str, asyncio.Event] = {}  # of streams whose listeners wait

    @property
    def listeners(self) -> int:
        return self._clients.total()

    @contextmanager
    def seat(self, client: str, has_token: bool) -> Iterator[None]:
        """Count a live connection of a client until the end of the block, or raise HttpProblem 503.

        There is no await between the check and the count, so that a burst of connections stays
        within the limit.

        **Guarantee.** However many addresses ask without a token, `reserved` seats are left to
        clients with one. Test:
        tests/service/test_service_connections.py::test_clients_without_a_token_leave_seats_to_those_with_one.
        """
        full = self.listeners >= self.most or self._clients[client] >= self.most_per_client
        if not has_token:
            full = full or self._anonymous >= self.most - self.reserved
        if self.closing or full:
            raise HttpProblem(
                503,
                "Busy",
                "there are too many live connections",
                "Ask for /releases instead.",
                retry=5,
            )
        self._clients[client] += 1
        self._anonymous += not has_token
        try:
            yield
        finally:
            self._anonymous -= not has_token
            self._clients[client] -= 1
            if not self._clients[client]:
                del self._clients[client]

    def publish(self, name: str) -> None:
        """Wake the listeners of a stream: it has released something."""
        self.in_loop(partial(self._wake, name))

    def in_loop(self, work: Callable[[], None]) -> None:
        """Call a function in the event loop; from any thread, and from a signal handler."""
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(work)

    def close(self) -> None:
        """End every open connection; safe to call from a signal handler."""
        self.closing = True
        self.in_loop(lambda: self._wake(*self._news))

    def _wake(self, *names: str) -> None:
        """Let the listeners of these streams read the store again."""
        for name in names:
            news = self._news.pop(name, None)
            if news is not None:
                news.set()

    async def events(
        self, name: str, after: int, read: Read, allowed: Callable[[], bool]
    ) -> AsyncIterator[str]:
        """Every release after a tick, as server-sent events with heartbeats between, for as long as
        it is allowed.

        The store is read after every waking and every heartbeat: a release that is committed but
        was never published (the commit's answer was lost) is sent, too.
        """
        yield "retry: 2000\n: evercount\n\n"
        while not self.closing and allowed():
            news = self._news.setdefault(name, asyncio.Event())
            releases = await read(after, AT_ONCE)
            for tick, text in by_tick(releases):
                if not allowed():
                    return
                yield text
                after = tick
                await asyncio.sleep(0)  # let the loop notice a listener that went away
            if releases:
                continue
            try:
                await asyncio.wait_for(news.wait(), HEARTBEAT_SECONDS)
            except TimeoutError:
                yield ": heartbeat\n\n"


class LiveResponse(StreamingResponse):
    """Server-sent events that hold a seat of the hub while they are sent, and only then."""

    def __init__(self, hub: Hub, client: str, has_token: bool, events: AsyncIterator[str]) -> None:
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._hub = hub
        self._client = client
        self._has_token = has_token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._hub.seat(self._client, self._has_token):
            if scope.get(HEAD_ONLY):
                await send(
                    {
                        "type": "http.response.start",
                        "status": self.status_code,
                        "headers": self.raw_headers,
                    }
                )
                await send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            await super().__call__(scope, receive, send)
