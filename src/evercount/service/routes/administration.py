"""Routes of the operator: ledger, tokens, health and metrics."""

from __future__ import annotations

from fastapi import FastAPI, Path, Request
from fastapi.responses import PlainTextResponse
from starlette.responses import Response

from evercount.errors import ParameterError, Problem
from evercount.service import openapi
from evercount.service.http_errors import Json
from evercount.service.runtime import Service
from evercount.store.tokens import add_token, read_tokens, remove_token
from evercount.text_rules import check_public_text


def add_administration(app: FastAPI, service: Service) -> None:
    @app.get("/v1/ledger", tags=["administration"])
    async def get_ledger(request: Request) -> Response:
        """What each stream spends, and what streams about the same unit spend together (read)."""
        service.access.require(request, "read", "write")
        return Json(await service.read(service.store.ledger))

    @app.get("/v1/tokens", tags=["administration"])
    async def list_tokens(request: Request) -> Response:
        """The tokens, without the tokens themselves (admin)."""
        service.access.require(request)
        tokens = await service.read(read_tokens, service.store)
        return Json({"tokens": [{"id": t.id, "role": t.role, "label": t.label, "created": t.created} for t in tokens]})

    @app.post("/v1/tokens", tags=["administration"], status_code=201, openapi_extra=openapi.TOKEN)
    async def make_token(request: Request) -> Response:
        """A new token (admin); the answer is the only time that it is shown."""
        service.access.require(request)
        data = await service.read_json(request)
        if not isinstance(data, dict) or not set(data) <= {"role", "label"} or not isinstance(data.get("role"), str):
            raise ParameterError("the body must be {role: 'read', 'write' or 'admin', label: text}")
        label = data.get("label", "")
        if label:
            check_public_text("label", label)
        number, token = await service.write(lambda: add_token(service.store, data["role"], label))
        await service.read(service.access.reload)
        return Json({"id": number, "role": data["role"], "token": token}, status_code=201)

    @app.delete("/v1/tokens/{number}", tags=["administration"])
    async def delete_token(request: Request, number: int = Path(..., ge=1, le=2**31 - 1)) -> Response:
        """Take a token back (admin)."""
        service.access.require(request)
        gone = await service.write(lambda: remove_token(service.store, number))
        await service.read(service.access.reload)
        if not gone:
            raise Problem(404, "NotFound", "there is no such token", "GET /v1/tokens lists them with their ids.")
        return Json({"removed": number})

    @app.get("/healthz", tags=["administration"])
    async def health() -> Response:
        """200 while the service can write, 503 otherwise."""
        failing = not service.writer.is_alive() or service.writer.failing is not None
        return Json({"status": "failing" if failing else "ok"}, status_code=503 if failing else 200)

    @app.get("/readyz", tags=["administration"])
    async def ready(request: Request) -> Response:
        """200 when every stream is up to date; 503 while ticks that were missed are closed, or the clock is in doubt.

        With a token it says how many ticks each stream has to close.
        """
        status, left = service.readiness()
        detail = {} if service.access.role(request) is None else {"ticks_left": left}
        code, headers = (200, {}) if status == "ready" else (503, {"Retry-After": "5"})
        return Json({"status": status, **detail}, status_code=code, headers=headers)

    @app.post("/v1/clock", tags=["administration"])
    async def accept_clock(request: Request) -> Response:
        """Agree with the time as it is, after the clock jumped ahead (admin). The ticks it ended are then closed."""
        service.access.require(request)
        return Json(await service.write(service.accept_clock))

    @app.get("/metrics", tags=["administration"], response_class=PlainTextResponse)
    async def metrics(request: Request) -> Response:
        """Prometheus text (read): ticks, lag, clock, build, and released numbers of public streams.

        Requests, their durations, and the sizes of the database and the process are for an admin only.
        """
        admin = service.access.require(request, "read", "write") == "admin"
        page = await service.read(service.metrics_page, admin)
        return PlainTextResponse(page, media_type="text/plain; version=0.0.4; charset=utf-8")
