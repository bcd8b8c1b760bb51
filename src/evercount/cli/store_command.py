"""`evercount store`: look after the durable store."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

store = typer.Typer(help="Verify, copy and export the durable store of `evercount serve`.", no_args_is_help=True)

Db = Annotated[str, typer.Option(help="SQLite file or PostgreSQL URL.")]
Head = Annotated[Path | None, typer.Option(help="The head file, where it is not in its usual place.")]


@store.command()
def verify(
    db: Db = "evercount.db",
    head: Head = None,
    adopt: Annotated[
        bool,
        typer.Option("--adopt", help="Accept this copy as the newest one. Only if no later release was ever made."),
    ] = False,
) -> None:
    """Recompute every release chain and compare it with the head file."""
    from evercount.store import Reading
    from evercount.store.database import Database
    from evercount.store.rollback_guard import HeadFile, default_path

    reading = Reading.open(db)
    lock = None
    try:
        file = HeadFile(head or default_path(reading.database))
        lock = Database(db) if adopt else None  # nobody may write between the check and the new head
        wrong = reading.verify(None if adopt else file)
        if adopt and not wrong:
            file.write(*reading.current_heads())
        names = reading.names()
    finally:
        if lock is not None:
            lock.close()
        reading.close()
    for line in wrong:
        typer.echo(f"WRONG  {line}")
    if wrong:
        raise typer.Exit(1)
    typer.echo(f"all is well: {len(names)} stream{'' if len(names) == 1 else 's'}, every release chain is whole")
    if adopt:
        typer.echo(f"the head {file.path} now names this copy as the newest")


@store.command()
def backup(
    target: Annotated[Path, typer.Argument(help="File to write.")],
    db: Annotated[str, typer.Option(help="SQLite file.")] = "evercount.db",
) -> None:
    """Copy an SQLite store, also while the service runs. The copy holds raw sums and secrets: guard it.

    A copy that is put back later than the last release is refused by the service: it would use the same noise again.
    """
    from evercount.store import Reading

    reading = Reading.open(db)
    try:
        reading.backup(target)
    finally:
        reading.close()
    typer.echo(f"copied to {target}")


@store.command("export-releases")
def export_releases(
    stream: Annotated[str, typer.Argument(help="Name of the stream.")],
    db: Db = "evercount.db",
    output: Annotated[Path | None, typer.Option(help="File to write; otherwise standard output.")] = None,
    form: Annotated[str, typer.Option("--format", help="csv or jsonl.")] = "csv",
) -> None:
    """Write all releases of a stream: tick, start, cell, value, std, low, high. Published numbers only."""
    import csv

    from evercount._safe_files import refuse_link
    from evercount.errors import UnknownName
    from evercount.store import Reading

    if form not in ("csv", "jsonl"):
        raise UnknownName("format", form, ("csv", "jsonl"))
    reading = Reading.open(db)
    try:
        labels = reading.labels(stream)
        columns = ("tick", "start", "cell", "value", "std", "low", "high")
        if output:
            refuse_link("--output", output)
        file = output.open("w", newline="", encoding="utf-8") if output else sys.stdout
        try:
            writer = csv.writer(file)
            if form == "csv":
                writer.writerow(columns)
            for release in reading.all_releases(stream):
                named = labels[: len(release["values"])]  # keys may have become public later
                numbers = zip(named, release["values"], release["std"], release["low"], release["high"], strict=True)
                for row in numbers:
                    full = (release["tick"], release["start"], *row)
                    if form == "csv":
                        writer.writerow(full)
                    else:
                        file.write(json.dumps(dict(zip(columns, full, strict=True))) + "\n")
        finally:
            if output:
                file.close()
    finally:
        reading.close()
