"""`evercount where`: which stream a file belongs to, and where that is kept."""

from __future__ import annotations

import json
from typing import Annotated

import typer
from typer import Argument, Option

from evercount.cli.options import Json


def where(
    name: Annotated[
        str, Argument(help="An output, a state file or a store; with --db a stream's name.")
    ],
    db: Annotated[
        str | None, Option(help="Store: an SQLite file or a URL; then NAME is a stream.")
    ] = None,
    json_output: Json = False,
) -> None:
    """Say what a file is: which stream, which ticks, which ledger, and who goes on for it.

    Nothing is locked or changed, and nothing secret is shown. Where a stream has moved from a state
    file into a store, or back, the old place says where it went.
    """
    from evercount.files.locate import locate

    entries = locate(name, db)
    if json_output:
        typer.echo(json.dumps(entries, indent=1))
        return
    for number, facts in enumerate(entries):
        if number:
            typer.echo()
        width = max(map(len, facts), default=0)
        for fact, value in facts.items():
            typer.echo(f"{fact:<{width}}  {value}")
