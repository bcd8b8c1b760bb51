"""`evercount reproduce`: compute the paper's figures and tables again, with our numbers beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
from typer import Argument, Option

from evercount.cli.options import progress_bar


def reproduce(
    items: list[str] | None = Argument(None, help="Items to run (figure-1 … constants); none or 'all' runs all."),
    out: Path = Option(Path("reproduction"), help="Folder for the results."),
    repetitions: int | None = Option(None, help="Simulated streams per mechanism; default: each item's own.", min=2),
    quick: bool = Option(False, "--quick", help="Small sizes: all items in about a minute."),
    seed: int = Option(0, help="The same seed gives the same numbers.", min=0),
    again: bool = Option(False, "--again", help="Run finished items again."),
    list_items: bool = Option(False, "--list", help="Only print the names of the items."),
) -> None:
    """Compute the paper's figures and tables again and put our numbers next to the paper's.

    Writes CSV, JSON, PNG and SVG per item and an index README.md. An item that was finished with the same parameters
    is skipped.
    """
    from evercount.reproduce.item import Item
    from evercount.reproduce.registry import ITEMS
    from evercount.reproduce.runner import Options, run_items

    if list_items:
        for item in ITEMS.values():
            typer.echo(f"{item.name:22} {item.title}")
        return
    with progress_bar("") as show:

        def progress(item: Item, done: int, total: int) -> None:
            show(description=item.name, completed=done, total=max(total, 1))

        def finished(item: Item, record: Mapping[str, Any], skipped: bool) -> None:
            state = "was finished already" if skipped else f"{record['seconds']} s"
            typer.echo(f"{item.name}: {record['verdict']} ({state})", err=True)

        run_items(items or [], Options(out, quick, repetitions, seed, again), progress, finished)
    typer.echo(str(out / "README.md"))
