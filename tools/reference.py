"""Write the reference pages that follow from the code: commands, HTTP API, exit codes.

python tools/reference.py            writes docs/reference/*.md
python tools/reference.py --check    fails if a page is not what the code says
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

import typer
import typer.main
from fastapi import FastAPI
from fastapi.routing import APIRoute

import evercount.errors
from evercount.cli import app

FOLDER = Path(__file__).parents[1] / "docs" / "reference"
WRITTEN = "<!-- written by `make reference`; change the code, not this page -->"


def one_line(text: str) -> str:
    """Text for a cell of a Markdown table."""
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())


def commands_page() -> str:
    """Every command with all its arguments and options."""
    parts = [f"# Commands\n\n{WRITTEN}\n\n`evercount --install-completion` sets up completion in your shell.\n"]
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
        if parameter.param_type_name == "argument":
            name = f"`{parameter.name.upper()}`"
        else:
            name = ", ".join(f"`{option}`" for option in [*parameter.opts, *parameter.secondary_opts])
        default = "" if parameter.default in (None, False, ()) or callable(parameter.default) else parameter.default
        shown = f"`{default}`" if default != "" else ("required" if parameter.required else "")
        rows.append(f"| {name} | {one_line(getattr(parameter, 'help', None) or '')} | {one_line(shown)} |")
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
        '`{"error": {"type", "message", "remedy"}}`. A running service shows the same list at `/docs`,',
        "and a description for tools at `/openapi.json`.",
        "",
    ]
    for path, operations in sorted(described["paths"].items()):
        for method, operation in operations.items():
            lines += [f"## {method.upper()} {path}", "", inspect.cleandoc(operation.get("description", "")), ""]
            rows = []
            for parameter in operation.get("parameters", []):
                kind = {"path": "in the path", "query": "query", "header": "header"}[parameter["in"]]
                meaning = parameter.get("description", parameter.get("schema", {}).get("description", ""))
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
    rows = {"0": ["done, also when there was nothing to do"], "130": ["stopped by Ctrl-C; nothing is half written"]}
    for _, kind in inspect.getmembers(evercount.errors, inspect.isclass):
        if issubclass(kind, evercount.errors.EvercountError) and "exit_code" in vars(kind):
            meaning = one_line((kind.__doc__ or "").split("\n\n")[0])
            rows.setdefault(str(kind.exit_code), []).append(f"`{kind.__name__}`: {meaning}")
    table = [f"| {code} | {'<br>'.join(texts)} |" for code, texts in sorted(rows.items(), key=lambda row: int(row[0]))]
    head = "One code for each kind of error; an error without a line of its own exits as its base in the tree below."
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


PAGES = {"commands.md": commands_page, "http-api.md": http_page, "exit-codes.md": exit_codes_page}


def main(arguments: list[str]) -> int:
    """Write the pages, or compare them with what lies there."""
    stale = []
    for name, page in PAGES.items():
        text, path = page().rstrip() + "\n", FOLDER / name
        if "--check" in arguments:
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                stale.append(name)
        else:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
    if stale:
        sys.stderr.write(f"not what the code says: {', '.join(stale)}; run `make reference`\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
