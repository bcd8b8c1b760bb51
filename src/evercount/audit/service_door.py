"""The HTTP service as a program under audit: its application, its writer and a real store, asked
over HTTP in process.

The store is a SQLite file in a temporary folder that is removed with everything in it when the run
ends.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

from fastapi import FastAPI

from evercount.audit.doors import DoorProgram, parts_of, published_table
from evercount.audit.replay import Data, Published
from evercount.audit.universes import universe
from evercount.declarations.declaration import StreamDeclaration
from evercount.errors import InputError, ParameterError
from evercount.noise import Secret
from evercount.service.access import Limits
from evercount.service.catch_up import Clock
from evercount.service.http_app import create_app
from evercount.service.runtime import Service
from evercount.store import Store

ADMIN = "token of an audit in a temporary store"
NAME = "audited"
MOMENT = 1_767_225_600.0


class StoppedClock(Clock):
    """Always the same moment: ticks are closed by request."""

    def now(self) -> float:
        return MOMENT


class ServiceProgram(DoorProgram):
    """The service door: events are posted, ticks are closed by request, and releases are read as a
    reader would."""

    door = "service"

    def __init__(self, *declared: Any, **rest: Any) -> None:
        super().__init__(*declared, **rest)
        if self.factorization is not None:
            raise ParameterError("the service chooses the factorization itself: omit it")
        self.parts = parts_of(self.query, self.budget.pure)
        self.universe = universe(self.query)
        self.declaration = StreamDeclaration(
            NAME, self.query, self.budget, horizon=self.horizon, public=True
        )

    def run(self, data: Data, secret: Secret) -> Published:
        with tempfile.TemporaryDirectory(prefix="evercount-audit-") as folder:
            return asyncio.run(self._serve(Path(folder, "store.db"), data, secret))

    async def _serve(self, place: Path, data: Data, secret: Secret) -> Published:
        service = self._start_service(place)
        try:
            service.store.declare(self.declaration, MOMENT, secret)
            service.start()
            app = create_app(service)
            for tick, events in enumerate(data, 1):
                await self._tick(app, tick, events)
                if tick in self.restarts:
                    service.stop()
                    service = self._start_service(place)
                    service.start()
                    app = create_app(service)
            return await self._read(app)
        finally:
            service.stop()

    def _start_service(self, place: Path) -> Service:
        return Service(Store(place), clock=StoppedClock(), admin=ADMIN, limits=Limits())

    async def _ask(
        self, app: FastAPI, method: str, path: str, body: Any = None, token: bool = False
    ) -> Any:
        import httpx

        headers = {}
        if token:
            headers["Authorization"] = f"Bearer {ADMIN}"
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://audit") as client:
            answer = await client.request(method, path, json=body, headers=headers)
        if answer.is_error:
            raise InputError(
                f"the service answered {answer.status_code} to {method} {path}: {answer.text:.200}"
            )
        return answer.json()

    async def _tick(self, app: FastAPI, tick: int, events: tuple[Any, ...]) -> None:
        if self.names_users:
            body = [{"user": user, "event": self._payload(event)} for user, event in events]
        else:
            body = [self._payload(event) for event in events]
        if body:
            await self._ask(app, "POST", f"/v1/streams/{NAME}/events", body, token=True)
        await self._ask(app, "POST", f"/v1/streams/{NAME}/close-tick?tick={tick}", token=True)

    def _payload(self, event: Any) -> Any:
        """Write an event as the JSON that a client would send; where a tick is read as a sum, the
        event itself."""
        batch = self.universe.tick([event])
        if isinstance(batch, list):
            event = batch[0]
        if isinstance(event, tuple):
            return list(event)
        return event

    async def _read(self, app: FastAPI) -> Published:
        """Read what a reader without a token sees."""
        facts = await self._ask(app, "GET", f"/v1/streams/{NAME}")
        releases = (await self._ask(app, "GET", f"/v1/streams/{NAME}/releases?limit=1000"))[
            "releases"
        ]
        names = facts["labels"]
        rows = [dict(zip(names, release["values"], strict=False)) for release in releases]
        labels, values = published_table(self.query, self.parts, rows)
        # the hash, and the ends of the intervals, follow from the numbers
        rest = [
            {k: v for k, v in r.items() if k not in ("values", "low", "high", "hash")}
            for r in releases
        ]
        numbers = tuple(int(release["tick"]) for release in releases)
        public_facts = json.dumps([facts, rest, names, [len(row) for row in rows]], sort_keys=True)
        return Published(numbers, labels, values, public_facts)
