"""The routes of the HTTP API.

First the operator's: ledger, tokens, health and metrics. Then those that declare, describe and feed
streams, and those that read: releases, exports, the live feed and the planner.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterable
from dataclasses import asdict
from functools import partial
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Header, Query, Request
from fastapi import Path as PathParameter
from fastapi.responses import FileResponse, PlainTextResponse, StreamingResponse
from pydantic import BaseModel, Field
from starlette.responses import Response

from evercount._validate import check_public_text
from evercount.declarations.cautions import declared_text
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.settle import settle
from evercount.engine.build import LAST
from evercount.engine.release_table import ReleaseTable
from evercount.engine.write_table import Kind, round_table
from evercount.errors import HttpProblem
from evercount.privacy import Budget
from evercount.service import openapi
from evercount.service.access import NewToken, read_body
from evercount.service.catch_up import CELLS_PER_PAGE
from evercount.service.every_request import Json
from evercount.service.exports import ExportResponse, describe_export, write_export
from evercount.service.plans import all_plans, own_plan
from evercount.service.read_events import read_batch
from evercount.service.runtime import Service
from evercount.service.sse import LiveResponse
from evercount.service.views import ViewRequest, describe_view, read_view
from evercount.store import Accepted, StoredStream
from evercount.store.sealing import add_token, read_tokens, remove_token

log = logging.getLogger("evercount.service")

LARGEST_TICK = 2**53  # ticks travel as JSON numbers; beyond this many readers would round them

Name = Annotated[str, PathParameter(min_length=1, max_length=64)]


def visible(service: Service, request: Request, name: str) -> StoredStream:
    """The stream of that name; HttpProblem if there is none, or the request may not read it."""
    role = service.access.role(request)
    live = service.look_up(name)
    if live is None or not live.declaration.public:
        if role is None:  # the same answer whether the stream exists or not
            service.check_recovered()
            raise HttpProblem(
                401,
                "Unauthorized",
                "this stream is not public or does not exist: reading needs a token",
            )
        if live is None:
            raise HttpProblem(404, "NotFound", "there is no such stream")
    return live


def add_administration(app: FastAPI, service: Service) -> None:
    add_tokens(app, service)
    add_health(app, service)


def add_tokens(app: FastAPI, service: Service) -> None:
    @app.get("/v1/ledger", tags=["administration"])
    async def get_ledger(request: Request) -> Response:
        """What each stream spends, and what streams about the same unit spend together (read)."""
        service.access.require(request, "read", "write")
        return Json(await service.read(service.store.ledger))

    @app.get("/v1/tokens", tags=["administration"])
    async def list_tokens(request: Request) -> Response:
        """The ids, roles and labels of the tokens, not the tokens themselves (admin)."""
        service.access.require(request)
        tokens = [
            {"id": token.id, "role": token.role, "label": token.label, "created": token.created}
            for token in await service.read(read_tokens, service.store)
        ]
        return Json({"tokens": tokens})

    @app.post("/v1/tokens", tags=["administration"], status_code=201, openapi_extra=openapi.TOKEN)
    async def make_token(request: Request) -> Response:
        """Make a token (admin). It is shown only once, in this answer."""
        service.access.require(request)
        new = NewToken(**await service.read_json(request))
        if new.label:
            check_public_text("label", new.label)
        number, token = await service.write(lambda: add_token(service.store, new.role, new.label))
        await service.read(service.access.reload)
        return Json({"id": number, "role": new.role, "token": token}, status_code=201)

    @app.delete("/v1/tokens/{number}", tags=["administration"])
    async def delete_token(
        request: Request, number: int = PathParameter(..., ge=1, le=2**31 - 1)
    ) -> Response:
        """Revoke a token (admin)."""
        service.access.require(request)
        existed = await service.write(lambda: remove_token(service.store, number))
        await service.read(service.access.reload)
        if not existed:
            raise HttpProblem(
                404,
                "NotFound",
                "there is no such token",
                "GET /v1/tokens lists them with their ids.",
            )
        return Json({"removed": number})


def add_health(app: FastAPI, service: Service) -> None:
    @app.get("/healthz", tags=["administration"])
    async def health() -> Response:
        """200 while the service can write, 503 otherwise."""
        if service.writer.is_alive() and service.writer.failing is None:
            return Json({"status": "ok"})
        return Json({"status": "failing"}, status_code=503)

    @app.get("/readyz", tags=["administration"])
    async def ready(request: Request) -> Response:
        """200 when every stream is up to date; 503 while missed ticks are being closed, or the
        clock is in doubt.

        With a token it says how many ticks each stream has to close.
        """
        status, left = service.readiness()
        answer: dict[str, Any] = {"status": status}
        if service.access.role(request) is not None:
            answer["ticks_left"] = left
        if status == "ready":
            return Json(answer)
        return Json(answer, status_code=503, headers={"Retry-After": "5"})

    @app.post("/v1/clock", tags=["administration"])
    async def accept_clock(request: Request) -> Response:
        """Confirm the present time after the clock jumped ahead (admin). The ticks that have ended
        are then closed."""
        service.access.require(request)
        return Json(await service.write(service.accept_clock))

    @app.get("/metrics", tags=["administration"], response_class=PlainTextResponse)
    async def metrics(request: Request) -> Response:
        """Prometheus text (read): ticks, lag, clock, build, and released numbers of public streams.

        Requests, their durations, and the sizes of the database and the process are for an admin
        only.
        """
        admin = service.access.require(request, "read", "write") == "admin"
        page = await service.read(service.metrics_page, admin)
        return PlainTextResponse(page, media_type="text/plain; version=0.0.4; charset=utf-8")


# bytes of a body that is read in the event loop: quicker than waking a thread twice
READ_AT_ONCE = 1 << 15


def read_declaration(declared: Collection[str], table: dict[str, Any]) -> StreamDeclaration:
    """The declaration of a table; of a new stream with its noise settled, and all that it needs
    computed once."""
    declaration = StreamDeclaration.from_dict(table)
    if declaration.name in declared:  # it has its noise
        return declaration
    settled = settle(declaration)
    settled.build()
    return settled


def add_streams(app: FastAPI, service: Service) -> None:
    @app.get("/v1/streams", tags=["streams"])
    async def list_streams(request: Request) -> Response:
        """All streams; without a token only the public ones. With the ledger: what these spend
        together."""
        role = service.access.role(request)
        streams: list[StoredStream] = [
            *service.store.streams.values(),
            *service.store.ended.values(),
        ]
        if role is None:
            streams = [stream for stream in streams if stream.declaration.public]
        ledger = await service.read(service.store.ledger, role is None)
        return Json({"streams": service.each(streams, service.facts), "ledger": ledger})

    @app.post("/v1/streams", tags=["streams"], status_code=201, openapi_extra=openapi.DECLARATION)
    async def declare_stream(request: Request) -> Response:
        """Declare a stream (admin). The same declaration again changes nothing; another one is
        refused."""
        service.access.require(request)
        table = await service.read_json(request)
        # the noise is fitted and calibrated outside the writer
        streams = service.store.streams
        declaration = await service.compute(
            request, service.declarations, read_declaration, set(streams), table
        )
        status = 200 if declaration.name in streams else 201
        facts = await service.write(lambda: service.declare_one(declaration))
        return Json(facts, status_code=status)

    @app.get("/v1/streams/{name}", tags=["streams"])
    async def get_stream(request: Request, name: Name) -> Response:
        """The public facts of one stream: labels, clock, budget and guarantee, also in plain words
        (`explained`)."""
        live = visible(service, request, name)
        explained = asdict(declared_text(live.declaration))
        del explained["sentence"]  # it is a fact of its own
        return Json({**service.facts(live), "explained": explained})

    @app.delete("/v1/streams/{name}", tags=["streams"])
    async def retire_stream(
        request: Request,
        name: Name,
        successor: str | None = Query(
            None, min_length=1, max_length=64, description="declared in its place"
        ),
        reason: str = Query("", max_length=500, description="shown to readers"),
    ) -> Response:
        """Retire a stream for good (admin).

        Its history stays readable and its budget spent, nothing is released from it again, and its
        secret and sums are deleted. With `successor` the same declaration goes on under that name,
        with a new secret: its budget is added.
        """
        service.access.require(request)
        service.find_any(name)
        return Json(await service.write(lambda: service.retire(name, reason, successor)))


def content_type(request: Request) -> str:
    """The media type of a request's body, without its parameters; JSON if it names none."""
    header = request.headers.get("content-type", "application/json")
    return header.partition(";")[0].strip().lower()


def accepted_facts(accepted: Accepted, drops_late: bool) -> dict[str, Any]:
    """What the sender of a batch learns about it."""
    facts = {"accepted": accepted.accepted, "tick": accepted.tick}
    if accepted.late:
        facts["late"] = accepted.late
        facts["dropped"] = accepted.late if drops_late else 0
    if accepted.repeated:
        facts["repeated"] = True
    return facts


def add_events(app: FastAPI, service: Service) -> None:
    @app.post("/v1/streams/{name}/events", tags=["streams"], openapi_extra=openapi.EVENTS)
    async def post_events(
        request: Request,
        name: Name,
        idempotency_key: str | None = Header(None, min_length=1, max_length=200),
    ) -> Response:
        """Count a batch of events (write). The answer comes when they are durable.

        Where events came after their tick had closed, it says how many (`late`), and how many of
        these are not counted (`dropped`); `repeated` says that the batch was counted before. With
        an Idempotency-Key the same batch may be sent again, with the same token, and is not counted
        again.
        """
        service.access.require(request, "write")
        live = service.find(name)
        kind = content_type(request)
        if kind not in ("application/json", "application/x-ndjson"):
            raise HttpProblem(415, "UnsupportedMediaType", "the events must be JSON or NDJSON")
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
        if len(body) <= READ_AT_ONCE and not live.declaration.remembers:
            batch = read()
        else:
            batch = await service.prepare(read)
        accepted = await service.write(batch)
        return Json(accepted_facts(accepted, live.declaration.late == "drop"))

    @app.post("/v1/streams/{name}/open", tags=["streams"])
    async def open_history(request: Request, name: Name) -> Response:
        """Start the clock of a stream that starts in the past (write): its history has been sent,
        or there is none."""
        service.access.require(request, "write")
        live = service.find(name)
        return Json(
            await service.write(lambda: service.facts(service.store.open_history(live.name)))
        )

    @app.post(
        "/v1/streams/{name}/notes", tags=["streams"], status_code=201, openapi_extra=openapi.NOTE
    )
    async def add_note(request: Request, name: Name) -> Response:
        """Write a public note on ticks, or declare ticks missing before they close (admin)."""
        service.access.require(request)
        data = await service.read_json(request)
        return Json(await service.write(lambda: service.mark(name, data)), status_code=201)

    @app.post("/v1/streams/{name}/close-tick", tags=["streams"])
    async def close_tick(
        request: Request,
        name: Name,
        tick: int | None = Query(
            None, ge=1, le=LARGEST_TICK, description="the tick to close; makes a retry safe"
        ),
    ) -> Response:
        """Release the open tick of a manually clocked stream (write). With `tick`, a retry reads
        the release back."""
        service.access.require(request, "write")
        live = service.find(name)
        await service.finish_noise(live.name)
        releases = await service.write(
            lambda: service.writer.close_manually(service.find(live.name), tick)
        )
        return Json(releases[0])


class PageRequest(ViewRequest):
    """A page of releases, or a view."""

    limit: int = Field(
        200, ge=1, le=1000, description="how many releases, or spans of a view, at most"
    )
    after: int = Field(0, ge=0, le=LARGEST_TICK, description="releases of later ticks only")
    first_cell: int = Field(
        0, ge=0, le=2**31 - 1, description="the first cell that is shown, from 0"
    )
    cells: int = Field(CELLS_PER_PAGE, ge=1, le=10_000, description="how many cells are shown")


class ExportRequest(ViewRequest):
    """A file of all releases, or of a view."""

    full_digits: bool = Field(
        False, description="all digits, instead of as many as the error allows"
    )


class PlanRequest(BaseModel):
    """What a stream would protect and publish, and for how long."""

    epsilon: float = Field(1.0, gt=0, le=100)
    delta: float = Field(1e-9, gt=0, lt=1)
    horizon: int | None = Field(None, ge=1, le=2**30)
    view: list[str] = Field(
        [], max_length=4, description="views that are published, such as per-tick and last-7"
    )
    unit: Literal["event", "user"] = Field("event", description="what is protected")
    max_events: int | None = Field(None, ge=1, description="events of a user and period")
    max_per_tick: int | None = Field(None, ge=1, description="events of a user in one tick")
    max_ticks: int | None = Field(None, ge=1, description="ticks of a user and period")
    period: int | None = Field(None, ge=1, description="ticks in which a user is protected")


WIDEST = 366  # ticks of a view that anyone may have planned: the time that takes grows with them


async def read_requested_view(
    service: Service, request: Request, live: StoredStream, view: ViewRequest
) -> ReleaseTable:
    """Read a view of a stream, or what it is compared with, for a client that may read both."""
    other = None
    if view.minus_stream is not None:
        other = visible(service, request, view.minus_stream)
    for stream in (live, other):
        if stream is not None:
            # a difference would show the history that must stay hidden
            service.check_readable(stream)
    return await service.read(read_view, service.store, live, view, service.limits.numbers, other)


def add_releases(app: FastAPI, service: Service) -> None:
    @app.get("/v1/streams/{name}/releases", tags=["releases"])
    async def get_releases(
        request: Request, name: Name, page: Annotated[PageRequest, Query()]
    ) -> Response:
        """What the stream shows (`shown`) after a tick, in order; at most `cells` cells of each,
        from `first_cell` on.

        With `view` the newest spans of that view instead, of all cells or of those that `cell`
        names.
        """
        live = visible(service, request, name)
        if page.view is not None:
            table = await read_requested_view(service, request, live, page)
            return Json(describe_view(live, page.view, table))
        if page.cell or page.minus is not None or page.minus_stream is not None:
            raise HttpProblem(
                422,
                "ParameterError",
                "cell and minus need a view",
                "Add view=running, for example.",
            )
        first = page.first_cell
        releases = await service.read(
            service.read_page, live, page.after, page.limit, first, page.cells
        )
        return Json(
            {
                "stream": live.name,
                "labels": list(live.labels[first : first + page.cells]),
                "first_cell": first,
                "cells": len(live.labels),
                "view": live.declaration.main_view,
                "releases": releases,
            }
        )


def add_exports(app: FastAPI, service: Service) -> None:
    @app.get("/v1/streams/{name}/releases.{kind}", tags=["releases"], response_class=FileResponse)
    async def export_releases(
        request: Request,
        name: Name,
        kind: Kind | Literal["csv-metadata.json"],
        export: Annotated[ExportRequest, Query()],
    ) -> Response:
        """Every release as a file, one row per tick and cell: csv, json, jsonl or parquet; or the
        newest of a view.

        `csv-metadata.json` describes the CSV, as CSV on the Web has it: its columns, ε, δ, and what
        they protect.
        """
        live = visible(service, request, name)
        service.check_readable(live)
        tables: Iterable[ReleaseTable]
        if export.view is None:
            stem = live.name
            tables = service.store.release_tables(live, live.closed)
        else:
            stem = f"{live.name}.{export.view}"
            tables = [await read_requested_view(service, request, live, export)]
        url = f"?{request.url.query}" if request.url.query else ""
        if kind == "csv-metadata.json":
            csv_url = f"releases.csv{url}"
            description = await service.read(
                describe_export, service.store, live, tables, export.full_digits, csv_url
            )
            return Response(json.dumps(description), media_type="application/csvm+json")
        if not export.full_digits:
            tables = map(round_table, tables)
        file = await service.export(request, write_export, live, tables, kind)
        return ExportResponse(file, stem, kind, url)


def add_live(app: FastAPI, service: Service) -> None:
    @app.get("/v1/streams/{name}/live", tags=["releases"], response_class=StreamingResponse)
    async def get_live(
        request: Request,
        name: Name,
        after: int | None = Query(None, ge=0, le=LARGEST_TICK, description="start after this tick"),
        last_event_id: int | None = Header(None, ge=0, le=LARGEST_TICK),
    ) -> Response:
        """New releases as server-sent events. Without `after` or Last-Event-ID, from now on."""
        live = visible(service, request, name)
        begin = live.closed
        if last_event_id is not None:
            begin = last_event_id
        elif after is not None:
            begin = after

        async def read(behind: int, limit: int) -> list[dict[str, Any]]:
            stream = service.look_up(name)
            if stream is None or stream.closed <= behind:
                return []
            return await service.read(service.read_page, stream, behind, limit)

        def allowed() -> bool:
            return live.declaration.public or service.access.still_allowed(request)

        client = service.access.client(request.scope)
        events = service.hub.events(name, begin, read, allowed)
        return LiveResponse(service.hub, client, service.access.has_token(client), events)


def add_planner(app: FastAPI, service: Service) -> None:
    @app.get("/v1/streams/{name}/plan", tags=["releases"])
    async def get_plan(
        request: Request, name: Name, points: int = Query(100, ge=2, le=500)
    ) -> Response:
        """The stream's own error over its ticks."""
        live = visible(service, request, name)
        return Json(await service.compute(request, service.plans, own_plan, live, points))

    @app.get("/v1/plan", tags=["releases"])
    async def get_free_plan(request: Request, plan: Annotated[PlanRequest, Query()]) -> Response:
        """The errors of all mechanisms for a budget and a horizon: what a new stream would give.

        With `view` the worst std of each view, with every noise that a stream could run on; the
        first is chosen.
        """
        budget = Budget(**plan.model_dump(exclude={"horizon", "view"}))
        if any(int(last[1]) > WIDEST for last in map(LAST.fullmatch, plan.view) if last):
            message = f"plans over HTTP are for views of at most {WIDEST} ticks"
            raise HttpProblem(
                422, "ParameterError", message, "Run `evercount plan --view NAME` for wider ones."
            )
        views = tuple(plan.view)
        return Json(
            await service.compute(request, service.plans, all_plans, budget, plan.horizon, views)
        )
