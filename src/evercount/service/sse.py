"""Hub: tells every listener of a stream about its new releases (server-sent events)."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

RECENT = 64
"""Releases of each stream that are kept ready for listeners."""
HEARTBEAT = 15.0

Read = Callable[[int, int], Awaitable[list[dict[str, Any]]]]
"""(after, limit) → releases."""


def sse(release: dict[str, Any]) -> str:
    """One release as a server-sent event."""
    return f"id: {release['tick']}\nevent: release\ndata: {json.dumps(release, separators=(',', ':'))}\n\n"


class Topic:
    """One stream's latest releases and those who wait for the next."""

    def __init__(self) -> None:
        self.recent: deque[tuple[int, str]] = deque(maxlen=RECENT)
        self.news = asyncio.Event()

    def tell(self, releases: list[dict[str, Any]]) -> None:
        """Wake everybody up."""
        for release in releases[-RECENT:]:
            self.recent.append((release["tick"], sse(release)))
        self.wake()

    def wake(self) -> None:
        """Let everybody look again."""
        self.news.set()
        self.news = asyncio.Event()


class Hub:
    """All topics. Lives in the event loop; other threads come in by `publish`."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.closing = False
        self.listeners = 0
        self._topics: dict[str, Topic] = {}

    def publish(self, name: str, releases: list[dict[str, Any]]) -> None:
        """Called by the writer after a commit."""
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._tell, name, releases)

    def _tell(self, name: str, releases: list[dict[str, Any]]) -> None:
        self.topic(name).tell(releases)

    def topic(self, name: str) -> Topic:
        """The topic of a stream."""
        return self._topics.setdefault(name, Topic())

    def close(self) -> None:
        """End every open connection; safe to call from a signal handler."""
        self.closing = True
        if self.loop is not None and not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._wake_all)

    def _wake_all(self) -> None:
        for topic in self._topics.values():
            topic.wake()

    async def events(self, name: str, after: int, read: Read, heartbeat: float = HEARTBEAT) -> AsyncIterator[str]:
        """Every release after a tick, for ever, as server-sent events with heartbeats between."""
        topic = self.topic(name)
        self.listeners += 1
        try:
            yield "retry: 2000\n: evercount\n\n"
            while not self.closing:
                news = topic.news
                ready = [(tick, text) for tick, text in topic.recent if tick > after]
                if not ready or ready[0][0] != after + 1:
                    ready = [(release["tick"], sse(release)) for release in await read(after, RECENT)]
                for tick, text in ready:
                    yield text
                    after = tick
                if ready:
                    continue
                try:
                    await asyncio.wait_for(news.wait(), heartbeat)
                except TimeoutError:
                    yield ": heartbeat\n\n"
        finally:
            self.listeners -= 1
