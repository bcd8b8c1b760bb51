"""Routes that read: releases, the live feed and the planner."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from fastapi import FastAPI, Header, Query, Request
from fastapi.responses import FileResponse, StreamingResponse
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from evercount.declarations.cautions import public_facts
from evercount.engine.press_table import describe_csv, round_table
from evercount.engine.release_table import LEVEL, ReleaseTable
from evercount.engine.view_widths import LAST
from evercount.engine.write_table import MEDIA_TYPES, Kind, write_tables
from evercount.errors import Problem
from evercount.privacy import Budget
from evercount.service.catch_up import CELLS_PER_PAGE
from evercount.service.http_errors import Json
from evercount.service.plans import all_plans, own_plan
from evercount.service.read_views import Asked, describe_view, read_view
from evercount.service.routes.stream_path import LARGEST_TICK, After, Cells, FirstCell, Name, cell_page, visible
from evercount.service.runtime import Service
from evercount.service.sse import LiveResponse
from evercount.store import AnyStream, Reading

View = Annotated[
    str | None, Query(max_length=40, description="running, per-tick, last-24, per-day, per-week or quantile-0.5")
]
Labels = Annotated[list[str] | None, Query(max_length=50, description="labels of cells; all without it")]
Label = Annotated[str | None, Query(max_length=1000, description="a cell that is subtracted from the one cell")]
OtherStream = Annotated[str | None, Query(max_length=64, description="the stream of `minus`, where it is another")]

Views = Annotated[
    list[str], Query(max_length=4, description="views that are published: running, per-tick, last-7; one std for each")
]
WIDEST = 366  # ticks of a view that anyone may have planned: the time that takes grows with them
Ticks = Annotated[int | None, Query(ge=1, le=2**30)]


def add_releases(app: FastAPI, service: Service) -> None:
    @app.get("/v1/streams/{name}/releases", tags=["releases"])
    async def get_releases(
        request: Request,
        name: Name,
        after: After = 0,
        limit: int = Query(200, ge=1, le=1000),
        first_cell: FirstCell = 0,
        cells: Cells = CELLS_PER_PAGE,
        view: View = None,
        cell: Labels = None,
        minus: Label = None,
        minus_stream: OtherStream = None,
    ) -> Response:
        """What the stream shows (`shown`) after a tick, in order; at most `cells` cells of each, from `first_cell` on.

        With `view` the newest spans of that view instead, of all cells or of those that `cell` names.
        """
        live = visible(service, request, name)
        if view is not None:
            asked = ask(request, view, cell, minus, minus_stream, limit)
            service.check_readable(live)
            table = await service.read(read_view, service.store, live, asked, service.limits.numbers)
            return Json(describe_view(live, view, table))
        if cell or minus is not None or minus_stream is not None:
            raise Problem(422, "ParameterError", "cell and minus need a view", "Add view=running, for example.")
        releases = await service.read(service.read_page, live, after, limit, first_cell, cells)
        return Json({**cell_page(live, first_cell, cells), "view": live.declaration.shown, "releases": releases})

    @app.get("/v1/streams/{name}/labels", tags=["releases"])
    async def get_labels(
        request: Request, name: Name, first_cell: FirstCell = 0, cells: Cells = CELLS_PER_PAGE
    ) -> Response:
        """What the cells of a stream are called, a page at a time."""
        return Json(cell_page(visible(service, request, name), first_cell, cells))

    @app.get("/v1/streams/{name}/releases.{kind}", tags=["releases"], response_class=FileResponse)
    async def export_releases(
        request: Request,
        name: Name,
        kind: Kind | Literal["csv-metadata.json"],
        limit: int = Query(1000, ge=1, le=1000, description="spans of a view"),
        view: View = None,
        cell: Labels = None,
        minus: Label = None,
        minus_stream: OtherStream = None,
        full_digits: bool = Query(False, description="all digits, instead of as many as the error allows"),
    ) -> Response:
        """Every release as a file, one row per tick and cell: csv, json, jsonl or parquet; or the newest of a view.

        `csv-metadata.json` describes the CSV, as CSV on the Web has it: its columns, ε, δ, and what they protect.
        """
        live = visible(service, request, name)
        service.check_readable(live)
        if view is None:
            tables: Iterable[ReleaseTable] = service.store.release_tables(live, live.closed)
        else:
            asked = ask(request, view, cell, minus, minus_stream, limit)
            tables = [await service.read(read_view, service.store, live, asked, service.limits.numbers)]
        if kind == "csv-metadata.json":
            query = f"?{request.url.query}" * bool(request.url.query)
            said = await service.read(describe_export, service.store, live, tables, full_digits, f"releases.csv{query}")
            return Response(json.dumps(said), media_type="application/csvm+json")
        file = await service.read(write_export, live, tables if full_digits else map(round_table, tables), kind)
        return ExportResponse(file, live.name if view is None else f"{live.name}.{view}", kind, request.url.query)

    @app.get("/v1/streams/{name}/cells", tags=["releases"])
    async def get_cells(request: Request, name: Name) -> Response:
        """What a tick publishes now, cell by cell; for discovered keys also the tick since which each is public."""
        live = visible(service, request, name)
        return Json({"stream": live.name, "cells": await service.read(service.cells, live)})

    def ask(
        request: Request, view: str, cell: list[str] | None, minus: str | None, other: str | None, limit: int
    ) -> Asked:
        beside = None if other is None else visible(service, request, other)
        if beside is not None:
            service.check_readable(beside)  # a difference would show the history that must stay hidden
        return Asked(view, tuple(cell or ()), minus, beside, limit)

    @app.get("/v1/streams/{name}/live", tags=["releases"], response_class=StreamingResponse)
    async def get_live(
        request: Request,
        name: Name,
        after: int | None = Query(None, ge=0, le=LARGEST_TICK, description="start after this tick"),
        last_event_id: str | None = Header(None, max_length=20),
    ) -> Response:
        """New releases as server-sent events. Without `after` or Last-Event-ID, from now on."""
        live = visible(service, request, name)
        if last_event_id is not None:
            if not (last_event_id.isascii() and last_event_id.isdigit()):
                raise Problem(422, "ParameterError", "Last-Event-ID must be the number of a tick", "Omit it.")
            after = min(int(last_event_id), LARGEST_TICK)
        begin = live.closed if after is None else after

        async def read(behind: int, limit: int) -> list[dict[str, Any]]:
            known = service.look_up(name)
            return [] if known is None else await service.read(service.read_page, known, behind, limit)

        def allowed() -> bool:
            return live.declaration.public or service.access.still_allowed(request)

        return LiveResponse(
            service.hub, service.access.client(request.scope), service.hub.events(name, begin, read, allowed)
        )

    @app.get("/v1/streams/{name}/plan", tags=["releases"])
    async def get_plan(
        request: Request,
        name: Name,
        epsilon: float | None = Query(None, gt=0, le=100),
        delta: float | None = Query(None, gt=0, lt=1),
        horizon: Ticks = None,
        points: int = Query(100, ge=2, le=500),
    ) -> Response:
        """The stream's own error over its ticks; with epsilon, delta or horizon also what others would give."""
        live = visible(service, request, name)
        plans = await service.compute(request, own_plan, live, points)
        if epsilon is not None or delta is not None or horizon is not None:
            own = live.declaration
            budget = replace(own.budget, epsilon=epsilon or own.budget.epsilon, delta=delta or own.budget.delta)
            plans["plan"] = await service.compute(request, all_plans, budget, horizon or own.horizon, own.query)
        return Json(plans)

    @app.get("/v1/plan", tags=["releases"])
    async def get_free_plan(
        request: Request,
        epsilon: float = Query(1.0, gt=0, le=100),
        delta: float = Query(1e-9, gt=0, lt=1),
        horizon: Ticks = None,
        view: Views = [],  # noqa: B006 - FastAPI copies it
        unit: Literal["event", "user"] = Query("event", description="what is protected"),
        max_events: int | None = Query(None, ge=1, description="events of a user and period"),
        max_per_tick: int | None = Query(None, ge=1, description="events of a user in one tick"),
        max_ticks: int | None = Query(None, ge=1, description="ticks of a user and period"),
        period: int | None = Query(None, ge=1, description="ticks in which a user is protected"),
    ) -> Response:
        """The errors of all mechanisms for a budget and a horizon: what a new stream would give.

        With `view` the worst std of each view, with every noise that a stream could run on; the first is chosen.
        """
        caps: dict[str, Any] = {"max_events": max_events, "max_per_tick": max_per_tick, "max_ticks": max_ticks}
        budget = Budget(epsilon, delta, unit=unit, period=period, **caps)
        if any(int(last[1]) > WIDEST for last in map(LAST.fullmatch, view) if last):
            message = f"plans over HTTP are for views of at most {WIDEST} ticks"
            raise Problem(422, "ParameterError", message, "Run `evercount plan --view NAME` for wider ones.")
        return Json(await service.compute(request, all_plans, budget, horizon, None, tuple(view)))


def write_export(live: AnyStream, tables: Iterable[ReleaseTable], kind: Kind) -> Path:
    """Write tables of a stream into a new temporary file of its owner only; `ExportResponse` removes it."""
    handle, name = tempfile.mkstemp(prefix="evercount-export-")
    try:
        with os.fdopen(handle, "wb") as file:
            write_tables(kind, file, tables, live.declaration.schedule, {"evercount.guarantee": live.guarantee})
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
    return Path(name)


def describe_export(
    store: Reading, live: AnyStream, tables: Iterable[ReleaseTable], full_digits: bool, url: str
) -> dict[str, Any]:
    """What readers of a CSV of these tables must know: the same as next to a CSV of `evercount release`."""
    marks, carried = store.marks(live.id), store.carried(live.id)
    facts = public_facts(live.declaration, live.guarantee, marks, full_digits=full_digits, carried=carried)
    return describe_csv(url, list(next(iter(tables)).columns()), facts, LEVEL)


class ExportResponse(FileResponse):
    """A file that is removed when it was sent, or when its reader went away. A CSV says where its description is."""

    def __init__(self, file: Path, name: str, kind: Kind, query: str = "") -> None:
        where = f"releases.csv-metadata.json?{query}" if query else "releases.csv-metadata.json"
        link = {"Link": f'<{where}>; rel="describedby"; type="application/csvm+json"'} if kind == "csv" else None
        super().__init__(file, media_type=MEDIA_TYPES[kind], filename=f"{name}.{kind}", headers=link)
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._file.unlink(missing_ok=True)
