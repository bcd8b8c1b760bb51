"""The HTTP application: its routes and pages together.

The pages are the dashboard's files, the chart library of an installed package, and a list of the
API.
"""

from __future__ import annotations

import asyncio
import html
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from fastapi.responses import FileResponse, HTMLResponse
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

import evercount
from evercount.service import openapi
from evercount.service.every_request import Json, Watch, answer_errors
from evercount.service.openapi import examples
from evercount.service.routes import (
    add_administration,
    add_events,
    add_exports,
    add_live,
    add_planner,
    add_releases,
    add_streams,
)
from evercount.service.runtime import Service


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
    answer_errors(app)
    app.add_middleware(Watch, service=service)
    add_streams(app, service)
    add_events(app, service)
    add_releases(app, service)
    add_exports(app, service)
    add_live(app, service)
    add_planner(app, service)
    add_administration(app, service)
    add_pages(app)
    return app


class _App(FastAPI):
    """Makes its description, which takes longer than a service to start, at the first request."""

    def openapi(self) -> dict[str, Any]:
        if self.openapi_schema is None:
            openapi.complete(super().openapi())
        return super().openapi()


EMBED_POLICY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors *"
)
DOCS_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>evercount API</title>
<link rel="icon" type="image/svg+xml" href="static/icon.svg">
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}}
:root{{color-scheme:light dark}}
code{{font-weight:600}}dt{{margin-top:1rem}}pre{{overflow-x:auto;margin:.3rem 0}}</style>
<h1>The API of evercount {version}</h1>
<p>Tokens are sent as <code>Authorization: Bearer TOKEN</code>. Every error has one shape:
<code>{{"error": {{"type", "message", "remedy"}}}}</code>. The full description for tools is
<a href="openapi.json">openapi.json</a>.</p><dl>{items}</dl></html>"""


STATIC = Path(__file__).with_name("static")


class Files(StaticFiles):
    """Files that a browser keeps, and asks about before it shows them again."""

    def file_response(self, *arguments: Any, **named: Any) -> Response:
        answer = super().file_response(*arguments, **named)
        answer.headers["Cache-Control"] = "no-cache"
        return answer


def add_pages(app: FastAPI) -> None:
    app.mount("/static", Files(directory=STATIC))
    # the chart library, of its own package
    app.mount("/vendor/uplot", Files(packages=[("uplot", "static")]))

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return FileResponse(STATIC / "index.html", headers={"Cache-Control": "no-cache"})

    @app.get("/embed", include_in_schema=False)
    async def embed() -> Response:
        """One chart of a public stream, which any site may show in a frame: it sends no token and
        has no controls."""
        headers = {"Cache-Control": "no-cache", "Content-Security-Policy": EMBED_POLICY}
        return FileResponse(STATIC / "embed.html", headers=headers)

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        of_operation = examples()
        items = []
        for path, operations in app.openapi()["paths"].items():
            for method, operation in operations.items():
                name = f"{method.upper()} {path}"
                items.append(docs_item(name, operation, of_operation[name]))
        return HTMLResponse(
            DOCS_PAGE.format(version=html.escape(app.version), items="".join(items))
        )


def docs_item(name: str, operation: dict[str, Any], example: dict[str, Any]) -> str:
    """The HTML of one operation in the list of the API, with its example."""
    text = html.escape(operation.get("description", operation.get("summary", "")))
    command = html.escape(example["command"])
    answer = ""
    if example["answer"] is not None:
        shown = html.escape(json.dumps(example["answer"], indent=1, ensure_ascii=False))
        answer = f"<details><summary>answer</summary><pre>{shown}</pre></details>"
    return f"<dt><code>{html.escape(name)}</code></dt><dd>{text}<pre>{command}</pre>{answer}</dd>"
