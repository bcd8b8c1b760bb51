"""The HTTP service as a program under audit: its application, its writer and a real store, asked over HTTP in process.

The store is a SQLite file in a temporary folder that is removed with everything in it when the run ends.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from fastapi import FastAPI

from evercount.audit.library_door import stream_claim
from evercount.audit.program import Claim, Data, Published
from evercount.audit.universes import Universe, universe
from evercount.declare.declaration import StreamDeclaration
from evercount.errors import InputError, MissingExtra, ParameterError
from evercount.noise import Secret
from evercount.privacy import Budget
from evercount.queries.base import Query
from evercount.service.access import Limits
from evercount.service.http_app import create_app
from evercount.service.runtime import Service
from evercount.service.wall_clock import Clock
from evercount.store import Store

ADMIN = "token of an audit in a temporary store"
NAME = "audited"
MOMENT = 1_767_225_600.0
REFUSED = 400


def publishes_sums(query: Query) -> bool:
    """Whether a query publishes its noisy running sums, up to a public constant."""
    if query.memory or query.outputs != query.cells or query.restart is not None:
        return False
    probe = np.arange(1.0, 1 + 3 * query.cells).reshape(3, query.cells)
    return bool(np.allclose(query.decode_run(1, probe) - query.decode_run(1, 0 * probe), probe))


class StoppedClock(Clock):
    """Always the same moment: ticks are closed by request."""

    def now(self) -> float:
        """See `Clock`."""
        return MOMENT


class ServiceProgram:
    """The service door: events are posted, ticks are closed by request, and releases are read as a reader would.

    Args:
        query: what is asked; it must publish its noisy sums as they are (counts, sums, histograms, graph statistics).
        budget: the promise.
        horizon: ticks of the stream, or None.
        restart_at: ticks after which the service is stopped and started again on its store.
        events: the legal events, where the query is not one that `audit.universes` knows.
    """

    def __init__(
        self,
        query: Query,
        budget: Budget,
        horizon: int | None = None,
        *,
        restart_at: tuple[int, ...] = (),
        events: Universe | None = None,
    ) -> None:
        if not publishes_sums(query):
            raise ParameterError(
                f"{query!r} publishes numbers that are computed from its noisy sums: audit it by the library door"
            )
        self.query, self.budget, self.horizon = query, budget, horizon
        self.restart_at = restart_at
        self.universe = universe(query) if events is None else events
        self.name = f"service: {query.name}"
        self.claim = cache(self._claim)

    def _declaration(self) -> StreamDeclaration:
        return StreamDeclaration(NAME, self.query, self.budget, horizon=self.horizon, public=True)

    def _claim(self, ticks: int) -> Claim:
        return stream_claim(self._declaration().build(), ticks)

    def run(self, data: Data, secret: Secret) -> Published:
        """See `Program`."""
        with tempfile.TemporaryDirectory(prefix="evercount-audit-") as folder:
            return asyncio.run(self._serve(Path(folder, "store.db"), data, secret))

    async def _serve(self, place: Path, data: Data, secret: Secret) -> Published:
        service = self._started(place)
        try:
            service.store.declare(self._declaration(), MOMENT, secret)
            service.start()
            app = create_app(service)
            for tick, events in enumerate(data, 1):
                await self._tick(app, tick, events)
                if tick in self.restart_at:
                    service.stop()
                    service = self._started(place)
                    service.start()
                    app = create_app(service)
            return await self._read(app)
        finally:
            service.stop()

    def _started(self, place: Path) -> Service:
        return Service(Store(place), clock=StoppedClock(), admin=ADMIN, limits=Limits())

    async def _ask(self, app: FastAPI, method: str, path: str, body: Any = None, token: bool = False) -> Any:
        try:
            import httpx
        except ImportError as error:
            raise MissingExtra("the audit of the service", "audit") from error
        headers = {"Authorization": f"Bearer {ADMIN}"} if token else {}
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://audit") as client:
            answer = await client.request(method, path, json=body, headers=headers)
        if answer.status_code >= REFUSED:
            raise InputError(f"the service answered {answer.status_code} to {method} {path}: {answer.text:.200}")
        return answer.json()

    async def _tick(self, app: FastAPI, tick: int, events: tuple[Any, ...]) -> None:
        """Post the events of a tick, then close it."""
        if self.budget.unit == "user":
            body = [{"user": user, "event": self._payload(event)} for user, event in events]
        else:
            body = [self._payload(event) for event in events]
        if body:
            await self._ask(app, "POST", f"/v1/streams/{NAME}/events", body, token=True)
        await self._ask(app, "POST", f"/v1/streams/{NAME}/close-tick?tick={tick}", token=True)

    def _payload(self, event: Any) -> Any:
        """An event as the JSON that a client would send; where a tick is read as a sum, the event itself."""
        listed = self.universe.tick([event])
        one = listed[0] if isinstance(listed, list) else event
        return list(one) if isinstance(one, tuple) else one

    async def _read(self, app: FastAPI) -> Published:
        """What a reader without a token sees."""
        facts = await self._ask(app, "GET", f"/v1/streams/{NAME}")
        releases = (await self._ask(app, "GET", f"/v1/streams/{NAME}/releases?limit=1000"))["releases"]
        values = np.asarray([release["values"] for release in releases], dtype=np.float64)
        # the hash, and the ends of the intervals, follow from the numbers
        rest = [{k: v for k, v in r.items() if k not in ("values", "low", "high", "hash")} for r in releases]
        numbers = tuple(int(release["tick"]) for release in releases)
        labels = tuple(self.query.labels)
        told = json.dumps([facts, rest], sort_keys=True)
        return Published(numbers, labels, values.reshape(len(numbers), len(labels)), told)
