"""The HTTP application: its routes together, and what happens around every request."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI
from starlette.datastructures import MutableHeaders
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import evercount
from evercount.service import http_errors, openapi
from evercount.service.http_errors import Json, describe
from evercount.service.log_format import CLIENTS
from evercount.service.pages import add_pages
from evercount.service.routes.administration import add_administration
from evercount.service.routes.releases import add_releases
from evercount.service.routes.streams import add_streams
from evercount.service.runtime import Service
from evercount.service.sse import HEAD_ONLY

clients = logging.getLogger(CLIENTS)

WENT_AWAY = 499  # counted for a client that left before its request was complete; nobody receives it
SAFETY = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": (
        "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
}


def create_app(service: Service) -> FastAPI:
    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        service.hub.loop = asyncio.get_running_loop()
        yield
        service.hub.close()

    app = _App(
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
    add_streams(app, service)
    add_releases(app, service)
    add_administration(app, service)
    add_pages(app)
    return app


class _App(FastAPI):
    """Its description takes longer than a service to start: it is made for the first who asks, and kept."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            openapi.complete(super().openapi())
        return super().openapi()


class Watch:
    """Around every request: the client's rate, the safety headers, the metrics, and exceptions that nobody caught."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app, self.service = app, service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status, ended = time.perf_counter(), 0, False
        head = scope["method"] == "HEAD"
        # HEAD is GET without the body: the routes know GET only
        routed = {**scope, "method": "GET", HEAD_ONLY: True} if head else scope

        async def watched(message: Message) -> None:
            nonlocal status, ended
            if head and message["type"] == "http.response.body":
                if not ended:
                    ended = True
                    await send({"type": "http.response.body", "body": b"", "more_body": False})
                return
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in SAFETY.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            self.service.buckets.take(self.service.access.client(scope))
            await self.app(routed, receive, watched)
        except ClientDisconnect:
            status = WENT_AWAY
            clients.warning("a client disconnected during its request: %s %s", scope["method"], route_of(routed))
        except Exception as error:  # noqa: BLE001 - the last one to catch it; the answer tells nothing but its kind
            answer = describe(error)  # this also writes unexpected ones to the log
            if not status:
                await answer(routed, receive, watched)
        finally:
            self.service.requests.record(scope["method"], route_of(routed), status, time.perf_counter() - began)


def route_of(scope: Scope) -> str:
    """The route's pattern, without the names that were asked for."""
    return str(getattr(scope.get("route"), "path", "other"))
