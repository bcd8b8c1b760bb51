"""`evercount example`: release the bundled flu stream and show it as a table and a chart."""

from __future__ import annotations

import textwrap
from pathlib import Path

import typer
from typer import Option

from evercount import Budget, Histogram, Stream
from evercount.errors import MissingExtra, ParameterError
from evercount.text_rules import aligned


def example(
    out: Path = Option(Path("out/example"), help="Folder for releases.csv and releases.png."),
    hours: int = Option(24 * 28, help="Length of the stream in hours."),
    epsilon: float = Option(1.0, help="Privacy parameter ε."),
    delta: float = Option(1e-9, help="Privacy parameter δ."),
) -> None:
    """Release a bundled example: hourly reports of a flu self-assessment site, by region. SYNTHETIC data."""
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
    typer.echo("\n".join(["Reports so far, per region (synthetic data)", "", *aligned(rows, left=1), ""]))
    out.mkdir(parents=True, exist_ok=True)
    releases.to_csv(out / "releases.csv")
    typer.echo(textwrap.fill(stream.guarantee, 80))
    typer.echo(f"all {hours} ticks: {out / 'releases.csv'}")
    try:
        releases.plot(out / "releases.png")
        typer.echo(f"chart: {out / 'releases.png'}")
    except MissingExtra as error:
        typer.echo(f"no chart: {error}", err=True)
