"""Write what follows from the code: the reference pages of commands, HTTP API, exit codes and
metrics, and the signatures of `declare`, `plan` and `release`.

python tools/reference.py            writes docs/reference/*.md and the signatures
python tools/reference.py --check    fails if a page or a signature is not what the code says
"""

from __future__ import annotations

import inspect
import re
import sys
from pathlib import Path
from typing import Any

import typer
import typer.main
from fastapi import FastAPI
from fastapi.routing import APIRoute

import evercount.errors
import signatures
from evercount.cli import app

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
WRITTEN = "<!-- written by `make reference`; change the code, not this page -->"


def one_line(text: str) -> str:
    """Text for a cell of a Markdown table."""
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())


def commands_page() -> str:
    """Every command with all its arguments and options."""
    parts = [
        (
            "# Commands\n"
            "\n"
            f"{WRITTEN}\n"
            "\n"
            "`evercount --install-completion` sets up completion in your shell.\n"
        )
    ]
    root = typer.main.get_command(app)
    context = typer.Context(root, info_name="evercount")
    for path, command in sorted(walk(root, context, "evercount")):
        parts.append(command_section(path, command))
    return "\n".join(parts)


def walk(command: Any, context: Any, path: str) -> list[tuple[str, Any]]:
    """The commands below this one, with their full names."""
    if not hasattr(command, "list_commands"):
        return [(path, command)]
    listed = []
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        if not inner.hidden:
            listed += walk(inner, context, f"{path} {name}")
    return listed


def command_section(path: str, command: Any) -> str:
    """One command: its help and a table of its parameters."""
    lines = [f"## {path}", "", inspect.cleandoc(command.help or ""), ""]
    rows = []
    for parameter in command.params:
        if getattr(parameter, "hidden", False):
            continue
        name = f"`{parameter.name.upper()}`"
        if parameter.param_type_name != "argument":
            options = [*parameter.opts, *parameter.secondary_opts]
            name = ", ".join(f"`{option}`" for option in options)
        shown = "required" if parameter.required else ""
        if parameter.default not in (None, False, "", ()) and not callable(parameter.default):
            shown = f"`{parameter.default}`"
        rows.append(
            f"| {name} | {one_line(getattr(parameter, 'help', None) or '')} | {one_line(shown)} |"
        )
    if rows:
        lines += ["| option | meaning | default |", "|---|---|---|", *rows, ""]
    return "\n".join(lines)


def http_page() -> str:
    """Every route with its parameters and its answer."""
    described = described_api().openapi()
    lines = [
        "# HTTP API",
        "",
        WRITTEN,
        "",
        "Tokens are sent as `Authorization: Bearer TOKEN`. Every error has one shape:",
        (
            '`{"error": {"type", "message", "remedy"}}`. A running service shows the same list at '
            "`/docs`,"
        ),
        "and a description for tools at `/openapi.json`.",
        "",
    ]
    for path, operations in sorted(described["paths"].items()):
        for method, operation in operations.items():
            lines += [
                f"## {method.upper()} {path}",
                "",
                inspect.cleandoc(operation.get("description", "")),
                "",
            ]
            rows = []
            for parameter in operation.get("parameters", []):
                kind = {"path": "in the path", "query": "query", "header": "header"}[
                    parameter["in"]
                ]
                meaning = parameter.get(
                    "description", parameter.get("schema", {}).get("description", "")
                )
                rows.append(f"| `{parameter['name']}` | {kind} | {one_line(meaning)} |")
            if rows:
                lines += ["| parameter | where | meaning |", "|---|---|---|", *rows, ""]
    return "\n".join(lines)


def described_api() -> FastAPI:
    """The application of a service with an empty store, for its description only."""
    import tempfile

    from evercount.service.http_app import create_app
    from evercount.service.runtime import Service
    from evercount.store import Store

    with tempfile.TemporaryDirectory() as folder:
        service = Service(Store(Path(folder) / "reference.db"))
        try:
            api = create_app(service)
            assert any(isinstance(route, APIRoute) for route in api.routes)
            api.openapi()  # kept by the application
            return api
        finally:
            service.stop()


def exit_codes_page() -> str:
    """The exit code of each kind of error."""
    rows = {
        "0": ["done, even when there was nothing to do"],
        "130": ["stopped by Ctrl-C; no file is half-written"],
    }
    for _, kind in inspect.getmembers(evercount.errors, inspect.isclass):
        if issubclass(kind, evercount.errors.EvercountError) and "exit_code" in vars(kind):
            meaning = one_line((kind.__doc__ or "").split("\n\n")[0])
            rows.setdefault(str(kind.exit_code), []).append(f"`{kind.__name__}`: {meaning}")
    table = [
        f"| {code} | {'<br>'.join(texts)} |"
        for code, texts in sorted(rows.items(), key=lambda row: int(row[0]))
    ]
    head = (
        "One code for each kind of error; an error that is not listed has the code of its base in "
        "the tree below."
    )
    tree = inspect.cleandoc(evercount.errors.__doc__ or "")
    return "\n".join(
        [
            "# Exit codes",
            "",
            WRITTEN,
            "",
            head,
            "",
            "| code | meaning |",
            "|---|---|",
            *table,
            "",
            "```text",
            tree,
            "```",
            "",
        ]
    )


def metrics_page() -> str:
    """Every metric of the service with its type, its labels, its meaning and who may read it."""
    from evercount.service.every_request import RECENT_BATCHES, Requests
    from evercount.service.metrics import admin_metrics, exposition, public_metrics
    from evercount.service.runtime import MOST_GAUGES

    stream = ("flu", 1, 0.0, 0, [("north", 1.0, 1.0)])
    requests = Requests()
    requests.record("GET", "/v1/streams", 200, 0.001)
    requests.record("POST", "/v1/streams/{name}/events", 202, 0.001)
    readers = {
        "every token": exposition(public_metrics("", 0.0, True, True, 0.0, 1, [stream])),
        "admin": exposition(admin_metrics(requests, 0, 0)),
    }
    rows = [row for who, lines in readers.items() for row in metric_rows(lines.splitlines(), who)]
    return "\n".join(
        [
            "# Metrics",
            "",
            WRITTEN,
            "",
            (
                "`GET /metrics` of a service answers in the text format of Prometheus. It needs a "
                "token of any role; the"
            ),
            "metrics that only an `admin` token gets change with single events or requests.",
            "",
            "| metric | type | labels | meaning | for |",
            "|---|---|---|---|---|",
            *rows,
            "",
            (
                "A metric that has no sample yet shows its type and meaning only. "
                "`evercount_released_value` and"
            ),
            (
                f"`evercount_released_std` are there for public streams of at most {MOST_GAUGES} "
                "cells."
            ),
            (
                "`evercount_accept_seconds` has quantiles of the last "
                f"{RECENT_BATCHES} accepted batches."
            ),
            (
                "How the service hides single events from its metrics is described in "
                "[Security](../security.md)."
            ),
            "",
        ]
    )


def metric_rows(lines: list[str], who: str) -> list[str]:
    """A row of a Markdown table for each metric of an exposition text."""
    rows = []
    for place, line in enumerate(lines):
        if not line.startswith("# HELP "):
            continue
        name, meaning = line.removeprefix("# HELP ").split(" ", 1)
        kind = lines[place + 1].removeprefix(f"# TYPE {name} ")
        labels: dict[str, None] = {}  # in their order
        for sample in lines[place + 2 :]:
            if sample.startswith("# "):
                break
            labels.update(dict.fromkeys(re.findall(r'[{,](\w+)="', sample)))
        shown = ", ".join(f"`{label}`" for label in labels)
        rows.append(f"| `{name}` | {kind} | {shown} | {one_line(meaning)} | {who} |")
    return rows


PAGES = {
    "commands.md": commands_page,
    "http-api.md": http_page,
    "exit-codes.md": exit_codes_page,
    "metrics.md": metrics_page,
}


def main(arguments: list[str]) -> int:
    """Write the signatures and the pages, or compare them with what lies there."""
    check = "--check" in arguments
    stale = signatures.update(write=not check)
    for name, page in PAGES.items():
        text = page().rstrip() + "\n"
        path = FOLDER / name
        if check:
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                stale.append(name)
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if not check or not stale:
        return 0
    sys.stderr.write(f"not what the code says: {', '.join(stale)}; run `make reference`\n")
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
