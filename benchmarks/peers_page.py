"""The page and the charts of `peers.py`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SIZES = ((1024, 1), (16384, 1), (65536, 1), (1024, 100), (1024, 1000))
"""(ticks, cells) of the runs."""
FEW_TICKS = 256
"""Peers that work tick by tick in Python run this many ticks; their time per tick does not depend on the number."""


@dataclass(frozen=True)
class Row:
    """What was measured of one peer."""

    name: str
    kind: str
    streaming: str
    endless: str
    exact: str
    error: dict[str, float]
    ratio: dict[str, float]
    state: dict[str, float]
    note: str = ""


def page(rows: list[Row], missing: list[str]) -> str:
    """docs/benchmarks.md."""
    lines = [
        "# Compared with other programs",
        "",
        "Printed by `make peers` (`benchmarks/peers.py --write docs` in the environment of",
        "`benchmarks/peers-requirements.txt`): one process, one machine, one after the other. Work: noise for running",
        "counts at ε = 1, δ = 1e-6, where one event changes one count by 1.",
        "",
        "## Error",
        "",
        "Worst standard deviation over all ticks, exact (from norms, not sampled), each calibrated tightly to the same",
        "(ε, δ).",
        "",
        "| mechanism | noise | T = 1024 | 16384 | 65536 | streaming | no horizon needed | exact arithmetic |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row.error:
            cells = " | ".join(_shown(row.error[t]) for t in ("1024", "16384", "65536"))
            lines.append(f"| {row.name} | {row.kind} | {cells} | {row.streaming} | {row.endless} | {row.exact} |")
    lines += [
        "",
        "OpenDP's tree is least squares over all nodes once all data is there: it is not a stream, and it may look at",
        "later ticks. Its noise is calibrated to √levels, the ℓ2 norm of one event, and not by the stability map of",
        "its tree, whose ℓ2 rule is wrong (its issue 2924). `–`: not computed, the least-squares problem is dense.",
        "The bridge promises δ = 0, which is more than the others do.",
        "",
        "![error](figures/peers-error.png)",
        "",
        "## Time",
        "",
        "Processor time of a run, of all its threads, for each tick and cell, over the time that numpy takes to draw",
        "one float normal for each, in the same process; the best of up to five runs.",
        "",
        "| mechanism | " + " | ".join(f"{t} × {c}" for t, c in SIZES) + " |",
        "|---|" + "---|" * len(SIZES),
    ]
    for row in rows:
        ratios = " | ".join(_shown(row.ratio[f"{t}x{c}"]) for t, c in SIZES)
        lines.append(f"| {row.name} | {ratios} |")
    lines += [
        "",
        "Ticks × cells. Mechanisms that step in Python (the privatizer, both TensorFlow trees, diffprivlib) run",
        f"{FEW_TICKS} ticks of the stream; OpenDP runs at most 4 of the cells. Building the mechanism is part of a run",
        "of evercount (a new stream each time) and is not part of the runs of jax_privacy, whose strategies are",
        "optimised and compiled before.",
        "",
        "![time](figures/peers-time.png)",
        "",
        "## Memory",
        "",
        "Bytes that must be kept between two ticks for each cell.",
        "",
        "| mechanism | T = 1024 | 65536 |",
        "|---|---|---|",
    ]
    for row in rows:
        if row.state:
            lines.append(f"| {row.name} | {row.state['1024']:.0f} | {row.state['65536']:.0f} |")
    if missing:
        lines += ["", "Not measured in this run:", "", *(f"- {line}" for line in missing)]
    return "\n".join(lines) + "\n"


def _shown(number: float) -> str:
    if not math.isfinite(number):
        return "–"
    return f"{number:.2f}" if number < 100 else f"{number:,.0f}"


def charts(rows: list[Row], folder: Path) -> None:
    """Error over T, and time at two sizes."""
    from evercount.plotting import new_axes, save

    axes: Any = new_axes()
    curves: dict[tuple[tuple[int, float], ...], list[str]] = {}
    for row in rows:
        points = tuple((int(t), e) for t, e in row.error.items() if math.isfinite(e))
        if points:
            curves.setdefault(points, []).append(row.name)
    for points, names in curves.items():  # mechanisms of the same error share a line
        style = "-" if names[0].startswith("evercount") else "--"
        axes.plot(*zip(*points, strict=True), style, marker="o", markersize=3, label="\n".join(names))
    axes.set_xscale("log", base=2)
    axes.set_xlabel("horizon T")
    axes.set_ylabel("worst standard deviation (ε = 1, δ = 1e-6)")
    axes.legend(frameon=False, fontsize=7, loc="center left", bbox_to_anchor=(1.01, 0.5))
    save(axes, folder / "peers-error.png")
    axes = new_axes(9.0, 5.0)
    names = [row.name for row in rows]
    for number, (ticks, cells) in enumerate(((65536, 1), (1024, 1000))):
        places = np.arange(len(rows)) + 0.38 * number
        axes.barh(places, [row.ratio[f"{ticks}x{cells}"] for row in rows], 0.36, label=f"{ticks} ticks × {cells} cells")
    axes.set_yticks(np.arange(len(rows)) + 0.19, names, fontsize=7)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("time per tick and cell over numpy's float normal")
    axes.legend(frameon=False, fontsize=8)
    save(axes, folder / "peers-time.png")
