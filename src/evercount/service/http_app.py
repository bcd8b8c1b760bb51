"""The HTTP API: routes, and nothing that could not be said in a few lines each."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Annotated, Any

from fastapi import FastAPI, Header, Path, Query, Request
from fastapi.responses import PlainTextResponse, StreamingResponse
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import evercount
from evercount.errors import InputError
from evercount.privacy import Budget
from evercount.service import http_errors, openapi
from evercount.service.access import read_body
from evercount.service.http_errors import Json, Problem, describe
from evercount.service.pages import add_pages
from evercount.service.read_events import load_json, read_batch
from evercount.service.runtime import Service, all_plans
from evercount.service.sse import LiveResponse
from evercount.store import LiveStream, StreamDeclaration
from evercount.store.tokens import add_token, read_tokens, remove_token
from evercount.text_rules import check_public_text

log = logging.getLogger("evercount.service")

LARGEST = 2**53
WENT_AWAY = 499
"""The status under which a client that left before its request was complete is counted; nobody receives it."""
SAFETY = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": (
        "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
}

Name = Annotated[str, Path(min_length=1, max_length=64)]
After = Annotated[int, Query(ge=0, le=LARGEST, description="releases of later ticks only")]


def create_app(service: Service) -> FastAPI:
    """The application of one running service."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.hub.loop = asyncio.get_running_loop()
        yield
        service.hub.close()

    app = FastAPI(
        title="evercount",
        version=evercount.__version__,
        summary="Running statistics of sensitive events under one differential-privacy guarantee",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses=openapi.ERRORS,
        default_response_class=Json,
    )
    http_errors.install(app)
    app.add_middleware(Watch, service=service)
    _add_streams(app, service)
    _add_releases(app, service)
    _add_administration(app, service)
    add_pages(app)
    return app


class Watch:
    """Around every request: the client's rate, the safety headers, the metrics, and the last net for exceptions."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in SAFETY.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            self.service.buckets.take(self.service.access.client(scope))
            await self.app(scope, receive, watched)
        except ClientDisconnect:
            status = WENT_AWAY
            log.warning("a client went away in the middle of its request: %s %s", scope["method"], route_of(scope))
        except Exception as error:  # noqa: BLE001 - the last one to catch it; the answer tells nothing but its kind
            answer = describe(error)  # this also writes unexpected ones to the log
            if not status:
                await answer(scope, receive, watched)
        finally:
            self.service.requests.record(scope["method"], route_of(scope), status, time.perf_counter() - began)


def route_of(scope: Scope) -> str:
    """The route's pattern, without the names that were asked for."""
    return str(getattr(scope.get("route"), "path", "other"))


def _add_streams(app: FastAPI, service: Service) -> None:
    @app.get("/v1/streams", tags=["streams"])
    async def list_streams(request: Request) -> Response:
        """All streams; without a token the public ones. With the ledger: what these spend together."""
        role = service.access.role(request)
        seen = [live for live in service.store.streams.values() if role or live.declaration.public]
        ledger = await service.read(service.store.ledger, role is None)
        return Json({"streams": [service.facts(live) for live in seen], "ledger": ledger})

    @app.post("/v1/streams", tags=["streams"], status_code=201, openapi_extra=openapi.DECLARATION)
    async def declare_stream(request: Request) -> Response:
        """Declare a stream (admin). The same declaration again changes nothing; another one is refused."""
        service.access.require(request)
        body = await read_body(request, service.limits.body)
        data = await service.encode(load_json, body, "the body")
        declaration = await service.compute(StreamDeclaration.from_dict, data)
        await service.compute(declaration.build)  # what is heavy is done, and kept ready, outside the writer
        known = declaration.name in service.store.streams
        live = await service.write(lambda: service.store.declare(declaration, service.clock.now()))
        return Json(service.facts(live), status_code=200 if known else 201)

    @app.get("/v1/streams/{name}", tags=["streams"])
    async def get_stream(request: Request, name: Name) -> Response:
        """The public facts of one stream: its labels, clock, budget and guarantee."""
        return Json(service.facts(visible(service, request, name)))

    @app.post("/v1/streams/{name}/events", tags=["streams"], openapi_extra=openapi.EVENTS)
    async def post_events(
        request: Request,
        name: Name,
        idempotency_key: Annotated[str | None, Header(min_length=1, max_length=200)] = None,
    ) -> Response:
        """Count a batch of events (write). The answer comes when they are durable.

        With an Idempotency-Key the same batch may be sent again, with the same token, without being counted again.
        """
        service.access.require(request, "write")
        live = service.find(name)
        kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        if kind not in ("application/json", "application/x-ndjson"):
            raise Problem(415, "UnsupportedMediaType", "the events must be JSON or NDJSON")
        body = await read_body(request, service.limits.body)
        batch = await service.encode(
            read_batch,
            live.declaration,
            body,
            ndjson=kind == "application/x-ndjson",
            key=idempotency_key,
            most=service.limits.batch,
            sender=service.access.sender(request),
        )
        accepted = await service.write(batch)
        return Json({"accepted": accepted.accepted, "tick": accepted.tick})

    @app.post("/v1/streams/{name}/close-tick", tags=["streams"])
    async def close_tick(
        request: Request,
        name: Name,
        tick: Annotated[
            int | None, Query(ge=1, le=LARGEST, description="the tick to close; makes a retry safe")
        ] = None,
    ) -> Response:
        """Release the open tick of a manually clocked stream (write). With `tick`, a retry reads the release back."""
        service.access.require(request, "write")
        live = service.find(name)
        made = await service.write(lambda: service.writer.close_manually(service.find(live.name), tick))
        return Json(made[0])


def _add_releases(app: FastAPI, service: Service) -> None:
    @app.get("/v1/streams/{name}/releases", tags=["releases"])
    async def get_releases(
        request: Request, name: Name, after: After = 0, limit: Annotated[int, Query(ge=1, le=1000)] = 200
    ) -> Response:
        """Releases in order, from tick after+1 on."""
        live = visible(service, request, name)
        made = await service.read(service.read_page, live, after, limit)
        return Json({"stream": live.name, "labels": list(live.labels), "releases": made})

    @app.get("/v1/streams/{name}/cells", tags=["releases"])
    async def get_cells(request: Request, name: Name) -> Response:
        """What a tick publishes now, cell by cell; for discovered keys also the tick since which each is public."""
        live = visible(service, request, name)
        return Json({"stream": live.name, "cells": await service.read(service.cells, live)})

    @app.get("/v1/streams/{name}/live", tags=["releases"], response_class=StreamingResponse)
    async def get_live(
        request: Request,
        name: Name,
        after: Annotated[int | None, Query(ge=0, le=LARGEST, description="start after this tick")] = None,
        last_event_id: Annotated[str | None, Header(max_length=20)] = None,
    ) -> Response:
        """Releases as they are made: server-sent events. Without `after` or Last-Event-ID, new ones only."""
        live = visible(service, request, name)
        if last_event_id is not None:
            if not (last_event_id.isascii() and last_event_id.isdigit()):
                raise Problem(422, "ParameterError", "Last-Event-ID must be the number of a tick", "Leave it away.")
            after = min(int(last_event_id), LARGEST)
        begin = live.closed if after is None else after

        async def read(behind: int, limit: int) -> list[dict[str, Any]]:
            return await service.read(service.read_page, service.find(name), behind, limit)

        def allowed() -> bool:
            return live.declaration.public or service.access.still_allowed(request)

        return LiveResponse(
            service.hub, service.access.client(request.scope), service.hub.events(name, begin, read, allowed)
        )

    @app.get("/v1/streams/{name}/plan", tags=["releases"])
    async def get_plan(
        request: Request,
        name: Name,
        epsilon: Annotated[float | None, Query(gt=0, le=100)] = None,
        delta: Annotated[float | None, Query(gt=0, lt=1)] = None,
        horizon: Annotated[int | None, Query(ge=1, le=2**30)] = None,
        points: Annotated[int, Query(ge=2, le=500)] = 100,
    ) -> Response:
        """The stream's own error over its ticks; with epsilon, delta or horizon also what others would give."""
        live = visible(service, request, name)
        made = await service.compute(service.plan, live, points)
        if epsilon is not None or delta is not None or horizon is not None:
            own = live.declaration
            budget = replace(own.budget, epsilon=epsilon or own.budget.epsilon, delta=delta or own.budget.delta)
            made["plan"] = await service.compute(all_plans, budget, horizon or own.horizon, own.query)
        return Json(made)

    @app.get("/v1/plan", tags=["releases"])
    async def get_free_plan(
        epsilon: Annotated[float, Query(gt=0, le=100)] = 1.0,
        delta: Annotated[float, Query(gt=0, lt=1)] = 1e-9,
        horizon: Annotated[int | None, Query(ge=1, le=2**30)] = None,
    ) -> Response:
        """The errors of all mechanisms for a budget and a horizon: what a new stream would give."""
        return Json(await service.compute(all_plans, Budget(epsilon, delta), horizon))


def _add_administration(app: FastAPI, service: Service) -> None:
    @app.get("/v1/ledger", tags=["administration"])
    async def get_ledger(request: Request) -> Response:
        """What each stream spends, and what streams about the same unit spend together (read)."""
        service.access.require(request, "read", "write")
        return Json(await service.read(service.store.ledger))

    @app.get("/v1/tokens", tags=["administration"])
    async def list_tokens(request: Request) -> Response:
        """The tokens, without the tokens themselves (admin)."""
        service.access.require(request)
        found = await service.read(read_tokens, service.store)
        return Json({"tokens": [{"id": t.id, "role": t.role, "label": t.label, "created": t.created} for t in found]})

    @app.post("/v1/tokens", tags=["administration"], status_code=201, openapi_extra=openapi.TOKEN)
    async def make_token(request: Request) -> Response:
        """A new token (admin); the answer is the only time that it is shown."""
        service.access.require(request)
        data = load_json(await read_body(request, service.limits.body), "the body")
        if not isinstance(data, dict) or not set(data) <= {"role", "label"} or not isinstance(data.get("role"), str):
            raise InputError("the body must be {role: 'read', 'write' or 'admin', label: text}")
        label = data.get("label", "")
        if label:
            check_public_text("label", label)
        number, token = await service.write(lambda: add_token(service.store, data["role"], label))
        await service.read(service.access.reload)
        return Json({"id": number, "role": data["role"], "token": token}, status_code=201)

    @app.delete("/v1/tokens/{number}", tags=["administration"])
    async def delete_token(request: Request, number: Annotated[int, Path(ge=1, le=2**31 - 1)]) -> Response:
        """Take a token back (admin)."""
        service.access.require(request)
        gone = await service.write(lambda: remove_token(service.store, number))
        await service.read(service.access.reload)
        if not gone:
            raise Problem(404, "NotFound", "there is no such token")
        return Json({"removed": number})

    @app.get("/healthz", tags=["administration"])
    async def health() -> Response:
        """200 while the service can write, 503 otherwise."""
        failing = not service.writer.is_alive() or service.writer.failing is not None
        return Json({"status": "failing" if failing else "ok"}, status_code=503 if failing else 200)

    @app.get("/metrics", tags=["administration"], response_class=PlainTextResponse)
    async def metrics(request: Request) -> Response:
        """Prometheus text (read): ticks, uptime and build. Requests and their durations only for an admin."""
        admin = service.access.require(request, "read", "write") == "admin"
        return PlainTextResponse(service.metrics_page(admin), media_type="text/plain; version=0.0.4; charset=utf-8")


def visible(service: Service, request: Request, name: str) -> LiveStream:
    """The stream if this request may read it."""
    role = service.access.role(request)
    live = service.look_up(name)
    if live is None or not live.declaration.public:
        if role is None:  # the same answer whether the stream exists or not
            raise Problem(401, "Unauthorized", "this stream is not public, or there is none: reading needs a token")
        service.find(name)
        assert live is not None
    return live
