"""The dashboard's files, the chart library of an installed package, and a page that lists the API."""

from __future__ import annotations

import html
import importlib.util
import json
import pathlib
from importlib import resources
from typing import Annotated

from fastapi import FastAPI, Path
from fastapi.responses import FileResponse, HTMLResponse
from starlette.responses import Response

from evercount.errors import Problem
from evercount.service.openapi import examples

FileName = Annotated[str, Path(max_length=200)]
MEDIA_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
EMBED_POLICY = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; frame-ancestors *"
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


def static_folder() -> pathlib.Path:
    return pathlib.Path(str(resources.files("evercount.service"))) / "static"


def uplot_folder() -> pathlib.Path | None:
    """The folder in which the installed package `uplot-python` keeps uPlot; the package itself is not imported."""
    package = importlib.util.find_spec("uplot")
    if package is None or not package.submodule_search_locations:
        return None
    return pathlib.Path(next(iter(package.submodule_search_locations))) / "static"


def serve_file(folder: pathlib.Path | None, name: str, kinds: tuple[str, ...] = tuple(MEDIA_TYPES)) -> Response:
    """A file that lies directly in the folder and is of a known kind, or Problem 404."""
    known = {} if folder is None or not folder.is_dir() else {file.name: file for file in folder.iterdir()}
    file = known.get(name)
    if file is None or file.suffix not in kinds or not file.is_file():
        raise Problem(404, "NotFound", "there is no such file")
    return FileResponse(file, media_type=MEDIA_TYPES[file.suffix], headers={"Cache-Control": "no-cache"})


def add_pages(app: FastAPI) -> None:
    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return serve_file(static_folder(), "index.html")

    @app.get("/embed", include_in_schema=False)
    async def embed() -> Response:
        """One chart of a public stream, which any site may show in a frame: it sends no token and has no controls."""
        answer = serve_file(static_folder(), "embed.html")
        answer.headers["Content-Security-Policy"] = EMBED_POLICY
        return answer

    @app.get("/static/{file}", include_in_schema=False)
    async def static(file: FileName) -> Response:
        return serve_file(static_folder(), file)

    @app.get("/vendor/uplot/{file}", include_in_schema=False)
    async def uplot(file: FileName) -> Response:
        return serve_file(uplot_folder(), file, (".js", ".css"))

    @app.get("/docs", include_in_schema=False)
    async def docs() -> Response:
        known, items = examples(), []
        for path, operations in app.openapi()["paths"].items():
            for method, operation in operations.items():
                name = f"{method.upper()} {path}"
                text = html.escape(operation.get("description", operation.get("summary", "")))
                command, answer = html.escape(known[name]["command"]), known[name]["answer"]
                shown = html.escape(json.dumps(answer, indent=1, ensure_ascii=False))
                shown = f"<details><summary>answer</summary><pre>{shown}</pre></details>" * (answer is not None)
                items.append(f"<dt><code>{html.escape(name)}</code></dt><dd>{text}<pre>{command}</pre>{shown}</dd>")
        return HTMLResponse(DOCS_PAGE.format(version=html.escape(app.version), items="".join(items)))
