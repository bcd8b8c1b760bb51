"""The chart of a release file: all released ticks over time."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path

import numpy as np

from evercount._safe_files import new_mode, replaced
from evercount._validate import stated
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.schedule import zone_named
from evercount.errors import EvercountError
from evercount.files.published import Published
from evercount.privacy import counted_text

CHARTS = (".png", ".svg", ".pdf")
MOST_CELLS_DRAWN = 8  # more lines could not be told apart; these are the first of the public list


def draw_releases(published: Published, target: Path, scratch: Path) -> tuple[int, int]:
    """Draw the first cells of what is published, with a title that states the promise, over the starts of the ticks.

    Returns how many cells are drawn, and how many there are.
    """
    from evercount.plotting import band_plot

    declaration, level = published.declaration, published.level
    schedule, table = declaration.schedule, published.view(declaration.shown)
    everything = table.cells
    labels = everything[:MOST_CELLS_DRAWN]
    values, _, low, high = (table.numbers[:, part, : len(labels)] for part in range(4))
    starts = np.asarray([schedule.start_of(tick) for tick in table.ticks.tolist()], "datetime64[us]")
    drawn = scratch / target.name
    zone = None if zone_named(schedule.zone) is UTC else zone_named(schedule.zone)
    try:
        title = chart_title(declaration, len(labels), len(everything), level)
        shown = (table.ticks, values, low, high, labels)
        band_plot(*shown, drawn, title=title, times=starts, zone=zone, left=table.left)
        with replaced(target, new_mode(target)) as file:
            file.write(drawn.read_bytes())
    except (OSError, ValueError) as error:
        raise EvercountError(f"the ticks are published; their chart could not be written: {error}") from error
    return len(labels), len(everything)


def chart_title(declaration: StreamDeclaration, drawn: int, cells: int, level: float) -> str:
    """What the chart shows, what it promises, and which cells are left out.

    >>> flu = StreamDeclaration.from_dict({"name": "flu", "query": "count", "tick": "1h",
    ...     "budget": {"epsilon": 1, "delta": 1e-9}})
    >>> print(chart_title(flu, 1, 1, 0.95))
    flu: count, per-tick, ticks of 1h; ε = 1, δ = 0 per event for all ticks together
    band: 95% interval per number
    """
    budget = declaration.budget
    name = f"{declaration.name}: " if declaration.name != "release" else ""
    whom = budget.unit if budget.period is None else f"{budget.unit} and {budget.period}"
    promise = f"ε = {stated(budget.epsilon)}, δ = {stated(budget.delta)} per {whom} for all ticks together"
    some = f"the first {drawn} of {cells} cells; " if drawn < cells else ""
    what = f"{name}{declaration.query.name}, {declaration.shown}, ticks of {declaration.schedule.tick}; {promise}"
    counted = " of counted events" if counted_text(budget) else ""
    return f"{what}\n{some}band: {level:.0%} interval per number{counted}"
