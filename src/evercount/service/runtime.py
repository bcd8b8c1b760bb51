"""Service: the store, its writer, the clock, the listeners and the rules, joined."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from typing import Any, TypeVar

import numpy as np

import evercount
from evercount.declare.schedule import format_utc, instant_of
from evercount.errors import Problem
from evercount.privacy import Budget
from evercount.queries import Query
from evercount.service.access import Access, Buckets, Limits
from evercount.service.commit_loop import Writer
from evercount.service.metrics import Requests, public_lines
from evercount.service.sse import Hub
from evercount.service.wall_clock import Clock
from evercount.service.watch_loop import Watcher
from evercount.store import LiveStream, Store, StreamDeclaration
from evercount.store.watched_store import WatchedStore

T = TypeVar("T")

READERS, PLANNERS, ENCODERS = 8, 2, 2
"""Threads that read the database, compute plans, and read bodies of requests."""
UNBOUNDED_PLAN = 2**20
"""How far ahead the error of a stream without horizon is shown."""


class Service:
    """Everything behind the HTTP handlers. `start` and `stop` own the writer thread and the store."""

    def __init__(
        self,
        store: Store,
        *,
        clock: Clock | None = None,
        limits: Limits | None = None,
        admin: str | None = None,
    ) -> None:
        self.store = store
        self.clock = clock or Clock()
        self.limits = limits or Limits()
        self.hub = Hub(self.limits.listeners, self.limits.listeners_per_client)
        self.requests = Requests()
        self.began = time.monotonic()
        self.access = Access(store, admin)
        self.buckets = Buckets(self.limits.rate, self.limits.burst)
        self.writer = (
            Watcher(store, self.clock, self.hub.publish)
            if isinstance(store, WatchedStore)
            else Writer(store, self.clock, self.hub.publish)
        )
        # threads of their own: whoever asks for many plans or pages keeps nobody from sending events
        self._readers = ThreadPoolExecutor(READERS, "evercount-read")
        self._planners = ThreadPoolExecutor(PLANNERS, "evercount-plan")
        self._encoders = ThreadPoolExecutor(ENCODERS, "evercount-encode")

    def declare(self, declarations: list[StreamDeclaration]) -> None:
        """Declare streams before `start`."""
        for declaration in declarations:
            self.store.declare(declaration, self.clock.now())

    def start(self) -> None:
        """Close the ticks that were missed, then go on by the clock."""
        self.writer.close_due()
        self.writer.start()

    def stop(self) -> None:
        """Finish what was accepted and let the store go."""
        if self.writer.is_alive():
            self.writer.stop()
        for pool in (self._readers, self._planners, self._encoders):
            pool.shutdown(wait=False, cancel_futures=True)
        self.store.close()

    async def write(self, work: Any) -> Any:
        """Have the writer do something, and wait for it."""
        return await asyncio.wrap_future(self.writer.submit(work))

    async def read(self, function: Callable[..., T], *arguments: Any) -> T:
        """Have a thread read something, and wait for it."""
        return await asyncio.get_running_loop().run_in_executor(self._readers, partial(function, *arguments))

    async def encode(self, function: Callable[..., T], *arguments: Any, **named: Any) -> T:
        """Have a thread read a body that was sent, so that a large one keeps nobody else waiting."""
        return await asyncio.get_running_loop().run_in_executor(self._encoders, partial(function, *arguments, **named))

    async def compute(self, function: Callable[..., T], *arguments: Any) -> T:
        """Have a thread compute a plan, after those that others asked for."""
        return await asyncio.get_running_loop().run_in_executor(self._planners, partial(function, *arguments))

    # -- what may be known -------------------------------------------------------------------------------------------

    def look_up(self, name: str) -> LiveStream | None:
        """The stream, or None; Problem 503 while nobody can say whether it exists."""
        found = self.store.streams.get(name)
        if found is None and self.writer.failing is not None:
            raise Problem(503, "Recovering", "the store is being loaded again", "Try again in a moment.", retry=2)
        return found

    def find(self, name: str) -> LiveStream:
        """The stream, or Problem 404."""
        found = self.look_up(name)
        if found is None:
            raise Problem(404, "NotFound", "there is no such stream")
        return found

    def metrics_page(self, admin: bool) -> str:
        """The exposition text: public facts, and for an admin what the requests were like."""
        streams = list(self.store.streams.values())
        lines = public_lines(
            evercount.__version__,
            time.monotonic() - self.began,
            self.writer.failing is None,
            {live.name: live.closed for live in streams},
            sum(not (live.finished or live.stopped) for live in streams),
        )
        return "\n".join([*lines, *(self.requests.lines(self.hub.listeners) if admin else [])]) + "\n"

    def facts(self, live: LiveStream) -> dict[str, Any]:
        """The public facts of a stream. Nothing of them depends on the events."""
        declaration, closed = live.declaration, live.closed
        horizon = declaration.horizon
        schedule = declaration.schedule
        begin, end = schedule.starts_of(closed + 1, 1)[0], live.next_end()
        return {
            "name": live.name,
            "description": declaration.description,
            "query": {"name": declaration.query.name, "parameters": declaration.query.parameters()},
            "labels": list(declaration.query.labels),
            "budget": declaration.budget.to_dict(),
            "guarantee": live.stream.guarantee,
            "noise": live.stream.noise,
            "tick": schedule.tick,
            "start": format_utc(schedule.begin),
            "zone": schedule.zone,
            "horizon": horizon,
            "late": declaration.late,
            "public": declaration.public,
            "postprocess": list(declaration.postprocess),
            "released": closed,
            "ticks_left": None if horizon is None else horizon - closed,
            "open_tick": None if live.finished else closed + 1,
            "open_since": None if begin is None or live.finished else format_utc(begin),
            "closes": None if end is None else format_utc(instant_of(end)),
            "state": "stopped" if live.stopped else "finished" if live.finished else "open",
            "level": 0.95,
        }

    def read_page(self, live: LiveStream, after: int, limit: int) -> list[dict[str, Any]]:
        """Releases after a tick: at most `limit`, and not more numbers than one answer may hold."""
        limit = max(1, min(limit, self.limits.page, self.limits.numbers // live.stream.query.outputs))
        return self.store.read_releases(live.id, live.declaration, after, limit, live.closed)

    def plan(self, live: LiveStream, points: int) -> dict[str, Any]:
        """The stream's own error over its ticks."""
        last = live.declaration.horizon or UNBOUNDED_PLAN
        ticks = np.unique(np.rint(np.geomspace(1, last, points)).astype(np.int64))
        std = live.stream.std(ticks)
        return {
            "stream": live.name,
            "ticks": ticks.tolist(),
            "std": np.asarray(std).max(axis=1).tolist(),
            "sigma": live.stream.sigma,
            "factorization": live.stream.factorization.name,
        }


@lru_cache(maxsize=128)
def all_plans(budget: Budget, horizon: int | None, query: Query | None = None) -> dict[str, Any]:
    """The errors of all mechanisms for a budget and a horizon, from `evercount.planning.compare`."""
    from evercount.planning.compare import plan

    made = finite(plan(budget, horizon, query).to_dict())
    assert isinstance(made, dict)
    return made


def finite(data: Any) -> Any:
    """The same data with None where a number is not finite: JSON has no other."""
    if isinstance(data, dict):
        return {key: finite(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [finite(value) for value in data]
    return None if isinstance(data, float) and not math.isfinite(data) else data
