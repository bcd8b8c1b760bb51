"""`evercount reproduce`: compute the paper's figures and tables again, with our numbers beside the paper's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
from typer import Argument, Option


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
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from evercount.reproduce.item import Item
    from evercount.reproduce.registry import ITEMS
    from evercount.reproduce.runner import Options, choose, run_items

    if list_items:
        for item in ITEMS.values():
            typer.echo(f"{item.name:22} {item.title}")
        return
    console = Console(stderr=True)
    chosen = choose(items or [])
    with Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %"),
        TimeElapsedColumn(),
        console=console,
    ) as bars:
        tasks = {item.name: bars.add_task(item.name, total=1, start=False) for item in chosen}

        def progress(item: Item, done: int, total: int) -> None:
            bars.start_task(tasks[item.name])
            bars.update(tasks[item.name], completed=done, total=max(total, 1))

        def finished(item: Item, record: Mapping[str, Any], skipped: bool) -> None:
            bars.update(tasks[item.name], completed=1, total=1)
            state = "was finished already" if skipped else f"{record['seconds']} s"
            bars.console.print(f"{item.name}: {record['verdict']} ({state})", markup=False, highlight=False)

        options = Options(out, quick, repetitions, seed, again)
        run_items([item.name for item in chosen], options, progress, finished)
    typer.echo(str(out / "README.md"))
