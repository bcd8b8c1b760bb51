"""Routes that declare streams, describe them and take their events."""

from __future__ import annotations

from functools import partial

from fastapi import FastAPI, Header, Query, Request
from starlette.responses import Response

from evercount.declarations.declaration import StreamDeclaration
from evercount.errors import Problem
from evercount.service import openapi
from evercount.service.access import read_body
from evercount.service.http_errors import Json
from evercount.service.read_events import read_batch
from evercount.service.routes.stream_path import LARGEST_TICK, Name, visible
from evercount.service.runtime import Service
from evercount.store import AnyStream

READ_AT_ONCE = 1 << 15  # bytes of a body that is read where it arrives: quicker than waking a thread twice


def add_streams(app: FastAPI, service: Service) -> None:
    @app.get("/v1/streams", tags=["streams"])
    async def list_streams(request: Request) -> Response:
        """All streams; without a token the public ones. With the ledger: what these spend together."""
        role = service.access.role(request)
        known: list[AnyStream] = [*service.store.streams.values(), *service.store.ended.values()]
        seen = [live for live in known if role or live.declaration.public]
        ledger = await service.read(service.store.ledger, role is None)
        return Json({"streams": service.each(seen, service.facts), "ledger": ledger})

    @app.post("/v1/streams", tags=["streams"], status_code=201, openapi_extra=openapi.DECLARATION)
    async def declare_stream(request: Request) -> Response:
        """Declare a stream (admin). The same declaration again changes nothing; another one is refused."""
        service.access.require(request)
        declaration = await service.build(StreamDeclaration.from_dict, await service.read_json(request))
        await service.build(declaration.build)  # what is heavy is done, and kept ready, outside the writer
        known = declaration.name in service.store.streams
        return Json(await service.write(lambda: service.declare_one(declaration)), status_code=200 if known else 201)

    @app.get("/v1/streams/{name}", tags=["streams"])
    async def get_stream(request: Request, name: Name) -> Response:
        """The public facts of one stream: labels, clock, budget and guarantee, also in plain words (`explained`)."""
        live = visible(service, request, name)
        return Json({**service.facts(live), "explained": service.explained(live)})

    @app.delete("/v1/streams/{name}", tags=["streams"])
    async def retire_stream(
        request: Request,
        name: Name,
        successor: str | None = Query(None, min_length=1, max_length=64, description="declared in its place"),
        reason: str = Query("", max_length=500, description="shown to readers"),
    ) -> Response:
        """Retire a stream for good (admin).

        Its history stays readable and its budget spent, nothing is released from it again, and its secret and sums are
        deleted. With `successor` the same declaration goes on under that name, with a new secret: its budget is added.
        """
        service.access.require(request)
        service.known(name)
        return Json(await service.write(lambda: service.retire(name, reason, successor)))

    @app.post("/v1/streams/{name}/events", tags=["streams"], openapi_extra=openapi.EVENTS)
    async def post_events(
        request: Request, name: Name, idempotency_key: str | None = Header(None, min_length=1, max_length=200)
    ) -> Response:
        """Count a batch of events (write). The answer comes when they are durable.

        Where events came after their tick had closed, it says how many (`late`), and how many of these are not counted
        (`dropped`); `repeated` says that the batch was counted before. With an Idempotency-Key the same batch may be
        sent again, with the same token, and is not counted again.
        """
        service.access.require(request, "write")
        live = service.find(name)
        kind = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
        if kind not in ("application/json", "application/x-ndjson"):
            raise Problem(415, "UnsupportedMediaType", "the events must be JSON or NDJSON")
        body = await read_body(request, service.limits.body)
        read = partial(
            read_batch,
            live.declaration,
            body,
            ndjson=kind == "application/x-ndjson",
            key=idempotency_key,
            most=service.limits.batch,
            sender=service.access.sender(request),
        )
        small = len(body) <= READ_AT_ONCE and not live.declaration.remembers
        batch = read() if small else await service.encode(read)
        accepted = await service.write(batch)
        dropped = accepted.late if live.declaration.late == "drop" else 0
        late = {"late": accepted.late, "dropped": dropped} if accepted.late else {}
        repeated = {"repeated": True} if accepted.repeated else {}
        return Json({"accepted": accepted.accepted, "tick": accepted.tick, **late, **repeated})

    @app.post("/v1/streams/{name}/open", tags=["streams"])
    async def open_history(request: Request, name: Name) -> Response:
        """Close the ticks of a stream with a past start from now on (write): its history is sent, or there is none."""
        service.access.require(request, "write")
        live = service.find(name)
        return Json(await service.write(lambda: service.facts(service.store.open_history(live.name))))

    @app.post("/v1/streams/{name}/notes", tags=["streams"], status_code=201, openapi_extra=openapi.NOTE)
    async def add_note(request: Request, name: Name) -> Response:
        """Write a public note on ticks, or declare ticks missing before they close (admin)."""
        service.access.require(request)
        data = await service.read_json(request)
        return Json(await service.write(lambda: service.mark(name, data)), status_code=201)

    @app.post("/v1/streams/{name}/close-tick", tags=["streams"])
    async def close_tick(
        request: Request,
        name: Name,
        tick: int | None = Query(None, ge=1, le=LARGEST_TICK, description="the tick to close; makes a retry safe"),
    ) -> Response:
        """Release the open tick of a manually clocked stream (write). With `tick`, a retry reads the release back."""
        service.access.require(request, "write")
        live = service.find(name)
        await service.finish_noise(live.name)
        releases = await service.write(lambda: service.writer.close_manually(service.find(live.name), tick))
        return Json(releases[0])
