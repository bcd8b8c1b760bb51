"""What evercount shows of itself: `evercount example`, `bench` and `reproduce`."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import typer
from typer import Argument, Option

from evercount import Budget, Histogram, Stream
from evercount._validate import aligned, check_name
from evercount.cli.options import progress_bar
from evercount.errors import MissingExtra, ParameterError


def bench(
    names: list[str] | None = Argument(None, help="Only these groups; default: all."),
    json_output: bool = Option(False, "--json", help="Print JSON lines instead of a table."),
    mechanism: str | None = Option(
        None, help="Only the exact noise of this factorization, built-in or registered."
    ),
) -> None:
    """Measure speed, memory and growth against their targets. Needs the source tree: the groups
    live in benchmarks/."""
    import importlib
    import json

    folder = _benchmarks()
    groups = sorted(path.stem.removeprefix("bench_") for path in folder.glob("bench_*.py"))
    sys.path.insert(0, str(folder))
    if mechanism is not None:
        names = ["exact"]
    for name in names or []:
        check_name("benchmark", name, tuple(groups))
    for name in names or groups:
        module = importlib.import_module(f"bench_{name}")
        if not json_output:
            typer.echo(f"\n{name}")
        rows = module.run() if mechanism is None else module.named(mechanism)
        for row in rows:
            if json_output:
                typer.echo(json.dumps({"group": name, **row}, default=str))
            else:
                typer.echo(_line(row))


def _benchmarks() -> Path:
    """Find the folder with the benchmarks, here or above."""
    for parent in (Path.cwd(), *Path(__file__).resolve().parents):
        folder = parent / "benchmarks"
        if any(folder.glob("bench_*.py")):
            return folder
    raise ParameterError("no benchmarks/ folder here: run this inside a clone of the repository")


def _line(row: Mapping[str, Any]) -> str:
    """Show one measurement: name, value and unit; ratio, target and note if it has them."""
    line = f"  {row['name']}: {row['value']:.4g} {row['unit']}"
    if row.get("ratio") is not None:
        line += f"  ratio {row['ratio']:.2f}"
    if row.get("target"):
        line += f"  (target {row['target']})"
    if row.get("note"):
        line += f"  {row['note']}"
    return line


def example(
    out: Path = Option(Path("out/example"), help="Folder for releases.csv and releases.png."),
    hours: int = Option(24 * 28, help="Length of the stream in hours."),
    epsilon: float = Option(1.0, help="Privacy parameter ε."),
    delta: float = Option(1e-9, help="Privacy parameter δ."),
) -> None:
    """Release a bundled example: hourly reports of a flu self-assessment site, by region. SYNTHETIC
    data."""
    from evercount.examples import flu

    if hours < 4:
        raise ParameterError(f"the example needs at least 4 hours, got {hours}")
    reports = flu.generate(hours, seed=1)
    stream = Stream(Histogram(list(flu.REGIONS)), Budget(epsilon, delta), horizon=hours)
    releases = stream.run_totals(reports)
    hours_shown = [hours * k // 4 for k in (1, 2, 3, 4)]
    low, high = releases[-1].interval(0.95)
    releases_shown = [releases[hour - 1] for hour in hours_shown]
    rows = [["region", *(f"hour {hour}" for hour in hours_shown), "95 %, at the end"]]
    for i, region in enumerate(flu.REGIONS):
        cells = [f"{release.values[i]:,.0f} ± {release.stds[i]:.0f}" for release in releases_shown]
        rows.append([region, *cells, f"{low[i]:,.0f}…{high[i]:,.0f}"])
    typer.echo(
        "\n".join(["Reports so far, per region (synthetic data)", "", *aligned(rows, left=1), ""])
    )
    out.mkdir(parents=True, exist_ok=True)
    releases.to_csv(out / "releases.csv")
    typer.echo(textwrap.fill(stream.guarantee, 80))
    typer.echo(f"all {hours} ticks: {out / 'releases.csv'}")
    try:
        releases.plot(out / "releases.png")
        typer.echo(f"chart: {out / 'releases.png'}")
    except MissingExtra as error:
        typer.echo(f"no chart: {error}", err=True)


def reproduce(
    items: list[str] | None = Argument(
        None, help="Items to run (figure-1 … constants); none or 'all' runs all."
    ),
    out: Path = Option(Path("reproduction"), help="Folder for the results."),
    repetitions: int | None = Option(
        None, help="Simulated streams per mechanism; default: each item's own.", min=2
    ),
    quick: bool = Option(False, "--quick", help="Small sizes: all items in about a minute."),
    seed: int = Option(0, help="The same seed gives the same numbers.", min=0),
    again: bool = Option(False, "--again", help="Run finished items again."),
    device: str | None = Option(
        None, help="Simulate with PyTorch on this device (cpu, cuda); default: NumPy."
    ),
) -> None:
    """Compute the paper's figures and tables again and put our numbers next to the paper's.

    Writes CSV, JSON, PNG and SVG per item and an index README.md. An item that was finished with
    the same parameters is skipped; one that was interrupted goes on.
    """
    from evercount.reproduce.item import Item
    from evercount.reproduce.runner import run_items

    with progress_bar() as show:

        def progress(item: Item, done: int, total: int) -> None:
            show(item.name, done, total)

        def finished(item: Item, record: Mapping[str, Any], skipped: bool) -> None:
            state = "was finished already" if skipped else f"{record['seconds']} s"
            typer.echo(f"{item.name}: {record['verdict']} ({state})", err=True)

        run_items(items or [], out, quick, repetitions, seed, again, progress, finished, device)
    typer.echo(str(out / "README.md"))
