"""The page and the charts of `peers.py`; run with the folder of the page, it draws the charts
again."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np

SIZES = ((1024, 1), (16384, 1), (65536, 1), (1024, 100), (1024, 1000))
"""(ticks, cells) of the runs."""
FEW_TICKS = 256
"""Peers that work tick by tick in Python run this many ticks; their time per tick does not depend
on the number."""


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
        (
            "`benchmarks/peers-requirements.txt`): all programs run one after the other, in one "
            "process on one"
        ),
        (
            "machine. The task is noise for running counts at ε = 1, δ = 1e-6, where one event "
            "adds 1 to one"
        ),
        "count.",
        "",
        "## Error",
        "",
        (
            "The worst standard deviation over all ticks, computed exactly (from norms, not "
            "sampled), with every"
        ),
        "mechanism calibrated tightly to the same (ε, δ).",
        "",
        (
            "| mechanism | noise | T = 1024 | 16384 | 65536 | streaming | no horizon needed | "
            "exact arithmetic |"
        ),
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if row.error:
            cells = " | ".join(_shown(row.error[t]) for t in ("1024", "16384", "65536"))
            lines.append(
                f"| {row.name} | {row.kind} | {cells} | {row.streaming} | {row.endless} | "
                f"{row.exact} |"
            )
    lines += [
        "",
        (
            "OpenDP's tree is a least-squares estimate over all nodes once all data has arrived: "
            "it is not a stream,"
        ),
        (
            "and it may use later ticks. Its noise is calibrated to √levels, the ℓ2 norm of one "
            "event, and not by the"
        ),
        (
            "stability map of its tree, whose ℓ2 rule is wrong (OpenDP issue 2924). `–`: not "
            "computed, because the"
        ),
        (
            "least-squares problem is dense. The bridge promises δ = 0, which is stronger than "
            "what the others"
        ),
        "promise.",
        "",
        "![error](figures/peers-error.png)",
        "",
        "## Time",
        "",
        (
            "Processor time of a run (all threads) per tick and cell, divided by the time that "
            "numpy takes to draw"
        ),
        "one float normal in the same process; the best of up to five runs.",
        "",
        "| mechanism | " + " | ".join(f"{t} × {c}" for t, c in SIZES) + " |",
        "|---|" + "---|" * len(SIZES),
    ]
    for row in rows:
        ratios = " | ".join(_shown(row.ratio[f"{t}x{c}"]) for t, c in SIZES)
        lines.append(f"| {row.name} | {ratios} |")
    lines += [
        "",
        (
            "Columns are ticks × cells. Mechanisms that step in Python (the privatizer, both "
            "TensorFlow trees,"
        ),
        (
            f"diffprivlib) run {FEW_TICKS} ticks of the stream; OpenDP runs at most 4 of the "
            "cells. A run of evercount"
        ),
        (
            "includes building the mechanism (a new stream each time); a run of jax_privacy does "
            "not: its strategies"
        ),
        "are optimized and compiled beforehand.",
        "",
        "![time](figures/peers-time.png)",
        "",
        "## Memory",
        "",
        "Bytes per cell that must be kept between two ticks.",
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


def charts(text: str, folder: Path) -> None:
    """Error over T, and time at two sizes, from the tables of the page."""
    from evercount.plotting import label_lines, line_style, new_axes, save
    from evercount.reproduce.item import plain_marks

    axes: Any = new_axes(9.0, 5.0)
    curves: dict[tuple[tuple[int, float], ...], list[str]] = {}
    for name, row in _table(text, "Error").items():
        found = [(int(t.split()[-1]), _number(row[t])) for t in ("T = 1024", "16384", "65536")]
        curves.setdefault(tuple(point for point in found if math.isfinite(point[1])), []).append(
            name
        )
    ours_first = sorted(curves.items(), key=lambda curve: not curve[1][0].startswith("evercount"))
    # mechanisms of the same error share a line
    for number, (points, names) in enumerate(ours_first):
        peer = not names[0].startswith("evercount")
        style = line_style(number) | {
            "linestyle": (6 * (number % 2), (5, 7)) if peer else "-"
        }  # lines close by alternate
        marker = {
            "marker": "os^D"[number % 4],
            "markersize": 4,
            "markerfacecolor": "none" if peer else None,
        }
        text_of = "\n".join(names)
        if len(points) == 1:  # named where it is, not at the right end
            grey = {"color": "#555555", "fontsize": 7.0}
            above = -5 if number % 2 else 5
            axes.annotate(
                text_of, points[0], (8, above), textcoords="offset points", va="center", **grey
            )
            text_of, style = "_", {"color": "#555555"}
        axes.plot(*zip(*points, strict=True), label=text_of, **style, **marker)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    plain_marks(axes.yaxis, (12, 15, 20, 30, 40, 50, 60, 70))
    axes.set_xlabel("horizon T (dashed: other programs)")
    axes.set_ylabel("worst standard deviation (ε = 1, δ = 1e-6)")
    label_lines(axes, 7.0)
    save(axes, folder / "peers-error.png")
    axes = new_axes(9.0, 5.0)
    times = _table(text, "Time")
    for number, size in enumerate(("65536 × 1", "1024 × 1000")):
        places = np.arange(len(times)) + 0.38 * number
        label = f"{size.replace(' ×', ' ticks ×')} cells"
        axes.barh(places, [_number(row[size]) for row in times.values()], 0.36, label=label)
    axes.set_yticks(np.arange(len(times)) + 0.19, list(times), fontsize=7)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.set_xlabel("time per tick and cell over numpy's float normal")
    axes.legend(frameon=False, fontsize=8)
    save(axes, folder / "peers-time.png")


def _table(text: str, heading: str) -> dict[str, dict[str, str]]:
    """The first table of a section: first column → the other columns of its row."""
    lines = text.partition(f"## {heading}\n")[2].splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("|"))
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in takewhile(_in_table, lines[start:])
    ]
    return {cells[0]: dict(zip(rows[0], cells, strict=True)) for cells in rows[2:]}


def _in_table(line: str) -> bool:
    return line.startswith("|")


def _number(cell: str) -> float:
    return math.nan if cell == "–" else float(cell.replace(",", ""))


if __name__ == "__main__":  # the folder of benchmarks.md: draws the charts again
    docs = Path(sys.argv[1])
    charts((docs / "benchmarks.md").read_text(encoding="utf-8"), docs / "figures")
