"""Charts of what a stream has published, for people who read reports."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path

import numpy as np

from evercount._safe_files import new_mode, replaced
from evercount._validate import stated
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.schedule import zone_named
from evercount.engine.release_table import LEVEL
from evercount.errors import EvercountError
from evercount.files.published import Publication
from evercount.privacy import counted_text
from evercount.privacy.guarantee_text import distortion_text

CHARTS = (".png", ".svg", ".pdf")
MOST_CELLS_DRAWN = 8  # more lines could not be told apart; these are the first of the public list


def draw_releases(published: Publication, target: Path, scratch: Path) -> None:
    """Draw the first cells of what is published, with a title that states the promise, over the
    starts of the ticks."""
    from evercount.plotting import band_plot

    declaration, table = published.job.declaration, published.main
    schedule = declaration.schedule
    labels = table.cells[:MOST_CELLS_DRAWN]
    numbers = table.numbers[:, :, : len(labels)]
    starts = [schedule.start_of(tick) for tick in table.ticks.tolist()]
    zone = zone_named(schedule.zone)
    drawn = scratch / target.name
    try:
        band_plot(
            table.ticks,
            numbers[:, 0],
            numbers[:, 2],
            numbers[:, 3],
            labels,
            drawn,
            title=chart_title(declaration, len(labels), len(table.cells)),
            times=np.asarray(starts, "datetime64[us]"),
            zone=None if zone is UTC else zone,
            left=table.left,
            notes=table.notes,
        )
        with replaced(target, new_mode(target)) as file:
            file.write(drawn.read_bytes())
    except (OSError, ValueError) as error:
        raise EvercountError(
            f"the ticks are published; their chart could not be written: {error}"
        ) from error


def chart_title(declaration: StreamDeclaration, drawn: int, cells: int) -> str:
    """What the chart shows, what it promises, and which cells are left out.

    >>> flu = StreamDeclaration.from_dict({"name": "flu", "query": "count", "tick": "1h",
    ...     "budget": {"epsilon": 1, "delta": 0}})
    >>> print(chart_title(flu, 1, 1))
    flu: count, per-tick, ticks of 1h; ε = 1, δ = 0 per event for all ticks together
    shaded: 95% interval
    """
    budget, schedule = declaration.budget, declaration.schedule
    whom = budget.unit if budget.period is None else f"{budget.unit} and {budget.period}"
    what = f"{declaration.query.name}, {declaration.main_view}, ticks of {schedule.tick}"
    if declaration.name != "release":
        what = f"{declaration.name}: {what}"
    promise = f"ε = {stated(budget.epsilon)}, δ = {stated(budget.delta)} per {whom}"
    band = f"shaded: {LEVEL:.0%} interval"
    if counted_text(budget):
        band += " of counted events"
    if drawn < cells:
        band = f"the first {drawn} of {cells} keys; {band}"
    if distortion_text(budget):
        band += "; caps distort totals over time"
    if declaration.late == "next":
        band += "; late events count when they arrive"
    return f"{what}; {promise} for all ticks together\n{band}"
