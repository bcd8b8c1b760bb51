"""The routes of the HTTP API.

First those that declare, describe and feed streams, and the operator's: ledger, tokens, health and
metrics. Then those that read: releases, exports, the live feed and the planner.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Header, Query, Request
from fastapi import Path as PathParameter
from fastapi.responses import FileResponse, PlainTextResponse, StreamingResponse
from pydantic import BaseModel, Field
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from evercount._validate import check_public_text
from evercount.declarations.cautions import declared_text, public_facts
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.settle import settle
from evercount.engine.build import LAST
from evercount.engine.release_table import LEVEL, ReleaseTable
from evercount.engine.write_table import MEDIA_TYPES, Kind, describe_csv, round_table, write_tables
from evercount.errors import Problem
from evercount.factorizations.interruption import check_wanted
from evercount.privacy import Budget
from evercount.service import openapi
from evercount.service.access import NewToken, read_body
from evercount.service.answers import Asked, all_plans, describe_view, own_plan, read_view
from evercount.service.catch_up import CELLS_PER_PAGE
from evercount.service.every_request import Json
from evercount.service.read_events import read_batch
from evercount.service.runtime import Service
from evercount.service.sse import LiveResponse
from evercount.store import Reading, StoredStream
from evercount.store.sealing import add_token, read_tokens, remove_token

log = logging.getLogger("evercount.service")

LARGEST_TICK = 2**53  # ticks travel as JSON numbers; beyond this many readers would round them

Name = Annotated[str, PathParameter(min_length=1, max_length=64)]


def visible(service: Service, request: Request, name: str) -> StoredStream:
    role = service.access.role(request)
    live = service.look_up(name)
    if live is None or not live.declaration.public:
        if role is None:  # the same answer whether the stream exists or not
            service.check_recovered()
            raise Problem(
                401,
                "Unauthorized",
                "this stream is not public or does not exist: reading needs a token",
            )
        if live is None:
            raise Problem(404, "NotFound", "there is no such stream")
    return live


def add_administration(app: FastAPI, service: Service) -> None:
    @app.get("/v1/ledger", tags=["administration"])
    async def get_ledger(request: Request) -> Response:
        """What each stream spends, and what streams about the same unit spend together (read)."""
        service.access.require(request, "read", "write")
        return Json(await service.read(service.store.ledger))

    @app.get("/v1/tokens", tags=["administration"])
    async def list_tokens(request: Request) -> Response:
        """The ids, roles and labels of the tokens, not the tokens themselves (admin)."""
        service.access.require(request)
        tokens = await service.read(read_tokens, service.store)
        return Json(
            {
                "tokens": [
                    {"id": t.id, "role": t.role, "label": t.label, "created": t.created}
                    for t in tokens
                ]
            }
        )

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
        gone = await service.write(lambda: remove_token(service.store, number))
        await service.read(service.access.reload)
        if not gone:
            raise Problem(
                404,
                "NotFound",
                "there is no such token",
                "GET /v1/tokens lists them with their ids.",
            )
        return Json({"removed": number})

    @app.get("/healthz", tags=["administration"])
    async def health() -> Response:
        """200 while the service can write, 503 otherwise."""
        failing = not service.writer.is_alive() or service.writer.failing is not None
        return Json({"status": "failing" if failing else "ok"}, status_code=503 if failing else 200)

    @app.get("/readyz", tags=["administration"])
    async def ready(request: Request) -> Response:
        """200 when every stream is up to date; 503 while missed ticks are being closed, or the
        clock is in doubt.

        With a token it says how many ticks each stream has to close.
        """
        status, left = service.readiness()
        detail = {} if service.access.role(request) is None else {"ticks_left": left}
        code, headers = (200, {}) if status == "ready" else (503, {"Retry-After": "5"})
        return Json({"status": status, **detail}, status_code=code, headers=headers)

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


# bytes of a body that is read where it arrives: quicker than waking a thread twice
READ_AT_ONCE = 1 << 15


def read_declaration(known: Collection[str], table: dict[str, Any]) -> StreamDeclaration:
    """The declaration of a table; of a new stream with its noise settled, and all that it needs
    computed once."""
    declaration = StreamDeclaration.from_dict(table)
    if declaration.name in known:  # which has its noise
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
        known: list[StoredStream] = [*service.store.streams.values(), *service.store.ended.values()]
        seen = [live for live in known if role or live.declaration.public]
        ledger = await service.read(service.store.ledger, role is None)
        return Json({"streams": service.each(seen, service.facts), "ledger": ledger})

    @app.post("/v1/streams", tags=["streams"], status_code=201, openapi_extra=openapi.DECLARATION)
    async def declare_stream(request: Request) -> Response:
        """Declare a stream (admin). The same declaration again changes nothing; another one is
        refused."""
        service.access.require(request)
        table = await service.read_json(request)
        # what is heavy is done, and kept ready, outside the writer
        streams = service.store.streams
        declaration = await service.compute(
            request, service.declarations, read_declaration, set(streams), table
        )
        known = declaration.name in streams
        return Json(
            await service.write(lambda: service.declare_one(declaration)),
            status_code=200 if known else 201,
        )

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
        kind = (
            request.headers.get("content-type", "application/json")
            .partition(";")[0]
            .strip()
            .lower()
        )
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
        batch = read() if small else await service.prepare(read)
        accepted = await service.write(batch)
        dropped = accepted.late if live.declaration.late == "drop" else 0
        late = {"late": accepted.late, "dropped": dropped} if accepted.late else {}
        repeated = {"repeated": True} if accepted.repeated else {}
        return Json({"accepted": accepted.accepted, "tick": accepted.tick, **late, **repeated})

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


class PageAsked(Asked):
    """A page of releases, or a view."""

    limit: int = Field(
        200, ge=1, le=1000, description="how many releases, or spans of a view, at most"
    )
    after: int = Field(0, ge=0, le=LARGEST_TICK, description="releases of later ticks only")
    first_cell: int = Field(
        0, ge=0, le=2**31 - 1, description="the first cell that is shown, from 0"
    )
    cells: int = Field(CELLS_PER_PAGE, ge=1, le=10_000, description="how many cells are shown")


class ExportAsked(Asked):
    """A file of all releases, or of a view."""

    full_digits: bool = Field(
        False, description="all digits, instead of as many as the error allows"
    )


class PlanAsked(BaseModel):
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


def add_releases(app: FastAPI, service: Service) -> None:
    @app.get("/v1/streams/{name}/releases", tags=["releases"])
    async def get_releases(
        request: Request, name: Name, asked: Annotated[PageAsked, Query()]
    ) -> Response:
        """What the stream shows (`shown`) after a tick, in order; at most `cells` cells of each,
        from `first_cell` on.

        With `view` the newest spans of that view instead, of all cells or of those that `cell`
        names.
        """
        live = visible(service, request, name)
        if asked.view is not None:
            return Json(describe_view(live, asked.view, await read_asked(request, live, asked)))
        if asked.cell or asked.minus is not None or asked.minus_stream is not None:
            raise Problem(
                422,
                "ParameterError",
                "cell and minus need a view",
                "Add view=running, for example.",
            )
        first, stop = asked.first_cell, asked.first_cell + asked.cells
        releases = await service.read(
            service.read_page, live, asked.after, asked.limit, first, asked.cells
        )
        part = {
            "labels": list(live.labels[first:stop]),
            "first_cell": first,
            "cells": len(live.labels),
        }
        return Json(
            {"stream": live.name, **part, "view": live.declaration.main_view, "releases": releases}
        )

    @app.get("/v1/streams/{name}/releases.{kind}", tags=["releases"], response_class=FileResponse)
    async def export_releases(
        request: Request,
        name: Name,
        kind: Kind | Literal["csv-metadata.json"],
        asked: Annotated[ExportAsked, Query()],
    ) -> Response:
        """Every release as a file, one row per tick and cell: csv, json, jsonl or parquet; or the
        newest of a view.

        `csv-metadata.json` describes the CSV, as CSV on the Web has it: its columns, ε, δ, and what
        they protect.
        """
        live = visible(service, request, name)
        service.check_readable(live)
        tables: Iterable[ReleaseTable] = (
            service.store.release_tables(live, live.closed)
            if asked.view is None
            else [await read_asked(request, live, asked)]
        )
        url = f"?{request.url.query}" if request.url.query else ""
        if kind == "csv-metadata.json":
            said = await service.read(
                describe_export,
                service.store,
                live,
                tables,
                asked.full_digits,
                f"releases.csv{url}",
            )
            return Response(json.dumps(said), media_type="application/csvm+json")
        rounded = tables if asked.full_digits else map(round_table, tables)
        file = await service.export(request, write_export, live, rounded, kind)
        return ExportResponse(
            file, live.name if asked.view is None else f"{live.name}.{asked.view}", kind, url
        )

    async def read_asked(request: Request, live: StoredStream, asked: Asked) -> ReleaseTable:
        other = (
            None if asked.minus_stream is None else visible(service, request, asked.minus_stream)
        )
        for one in (live, other):
            if one is not None:
                # a difference would show the history that must stay hidden
                service.check_readable(one)
        return await service.read(
            read_view, service.store, live, asked, service.limits.numbers, other
        )

    @app.get("/v1/streams/{name}/live", tags=["releases"], response_class=StreamingResponse)
    async def get_live(
        request: Request,
        name: Name,
        after: int | None = Query(None, ge=0, le=LARGEST_TICK, description="start after this tick"),
        last_event_id: int | None = Header(None, ge=0, le=LARGEST_TICK),
    ) -> Response:
        """New releases as server-sent events. Without `after` or Last-Event-ID, from now on."""
        live = visible(service, request, name)
        begin = next((tick for tick in (last_event_id, after) if tick is not None), live.closed)

        async def read(behind: int, limit: int) -> list[dict[str, Any]]:
            known = service.look_up(name)
            if known is None or known.closed <= behind:
                return []
            return await service.read(service.read_page, known, behind, limit)

        def allowed() -> bool:
            return live.declaration.public or service.access.still_allowed(request)

        client = service.access.client(request.scope)
        events = service.hub.events(name, begin, read, allowed)
        return LiveResponse(service.hub, client, service.access.has_token(client), events)

    @app.get("/v1/streams/{name}/plan", tags=["releases"])
    async def get_plan(
        request: Request, name: Name, points: int = Query(100, ge=2, le=500)
    ) -> Response:
        """The stream's own error over its ticks."""
        live = visible(service, request, name)
        return Json(await service.compute(request, service.plans, own_plan, live, points))

    @app.get("/v1/plan", tags=["releases"])
    async def get_free_plan(request: Request, asked: Annotated[PlanAsked, Query()]) -> Response:
        """The errors of all mechanisms for a budget and a horizon: what a new stream would give.

        With `view` the worst std of each view, with every noise that a stream could run on; the
        first is chosen.
        """
        budget = Budget(**asked.model_dump(exclude={"horizon", "view"}))
        if any(int(last[1]) > WIDEST for last in map(LAST.fullmatch, asked.view) if last):
            message = f"plans over HTTP are for views of at most {WIDEST} ticks"
            raise Problem(
                422, "ParameterError", message, "Run `evercount plan --view NAME` for wider ones."
            )
        views = tuple(asked.view)
        return Json(
            await service.compute(request, service.plans, all_plans, budget, asked.horizon, views)
        )


def write_export(live: StoredStream, tables: Iterable[ReleaseTable], kind: Kind) -> Path:
    """Write tables of a stream into a new temporary file of its owner only; `ExportResponse`
    removes it."""
    handle, name = tempfile.mkstemp(prefix="evercount-export-")
    try:
        with os.fdopen(handle, "wb") as file:
            wanted = while_wanted(tables)
            write_tables(
                kind,
                file,
                wanted,
                live.declaration.schedule,
                {"evercount.guarantee": live.guarantee},
            )
    except OSError as error:
        Path(name).unlink(missing_ok=True)
        log.error("an export cannot be written to %s: %s", tempfile.gettempdir(), error.strerror)
        message = "the file cannot be written at the moment"
        raise Problem(
            503, "Busy", message, "Try again later, or read /releases page by page.", retry=60
        ) from None
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return Path(name)


def while_wanted(tables: Iterable[ReleaseTable]) -> Iterator[ReleaseTable]:
    """The tables, for as long as somebody waits for their file."""
    for table in tables:
        check_wanted()
        yield table


def describe_export(
    store: Reading, live: StoredStream, tables: Iterable[ReleaseTable], full_digits: bool, url: str
) -> dict[str, Any]:
    """What readers of a CSV of these tables must know: the same as next to a CSV of
    `evercount release`."""
    marks, carried = store.marks(live.id), store.carried(live.id)
    facts = public_facts(
        live.declaration, live.guarantee, marks, full_digits=full_digits, carried=carried
    )
    return describe_csv(url, list(next(iter(tables)).columns()), facts, LEVEL)


class ExportResponse(FileResponse):
    """A file that is removed when it was sent, or when its reader went away. A CSV says where its
    description is."""

    def __init__(self, file: Path, name: str, kind: Kind, query: str) -> None:
        link = (
            f'<releases.csv-metadata.json{query}>; rel="describedby"; type="application/csvm+json"'
        )
        headers = {"Link": link} if kind == "csv" else None
        super().__init__(
            file, media_type=MEDIA_TYPES[kind], filename=f"{name}.{kind}", headers=headers
        )
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._file.unlink(missing_ok=True)
