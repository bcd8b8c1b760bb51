"""Charts of published numbers and of planned errors, by matplotlib, without a screen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from evercount.errors import MissingExtra, ParameterError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_POINTS = 4000
"""More ticks than a chart has pixels are thinned evenly before drawing."""


def new_axes(width: float = 9.0, height: float = 4.5) -> Axes:
    """Axes of a new figure that needs no display."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("plots", "plot") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    axes: Axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(alpha=0.25)
    return axes


def save(axes: Axes, target: str | Path) -> None:
    """Write the figure of these axes; the suffix chooses the format. A ParameterError where that is not possible."""
    import matplotlib

    figure: Any = axes.get_figure()
    kinds = sorted(figure.canvas.get_supported_filetypes())
    kind = Path(target).suffix[1:].lower()
    if kind not in kinds:
        raise ParameterError(f"no chart can be written to {str(target)!r}: its name must end in {', '.join(kinds)}")
    try:
        with matplotlib.rc_context({"path.simplify": False}):  # simplification swallows the spikes of a tree's error
            figure.savefig(str(target), dpi=150)
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or str(error).partition("\n")[0]
        raise ParameterError(f"no chart can be written to {str(target)!r}: {reason}") from error


def band_plot(
    ticks: npt.NDArray[np.int64],
    values: npt.NDArray[np.float64],
    low: npt.NDArray[np.float64],
    high: npt.NDArray[np.float64],
    labels: Sequence[str],
    caption: str,
    target: str | Path | Axes | None = None,
) -> Axes:
    """One line with an error band for every output."""
    axes: Axes = new_axes() if target is None or isinstance(target, str | Path) else target
    keep = np.unique(np.linspace(0, max(len(ticks) - 1, 0), min(len(ticks), MOST_POINTS)).astype(np.int64))
    for i, label in enumerate(labels):
        x = ticks[keep]
        (line,) = axes.plot(x, values[keep, i], linewidth=1.4, label=label)
        axes.fill_between(x, low[keep, i], high[keep, i], color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set_xlabel("tick")
    axes.set_ylabel("published number")
    axes.set_title(caption, fontsize=9, loc="left")
    if len(labels) > 1:
        axes.legend(frameon=False, fontsize=8, ncols=2)
    if isinstance(target, str | Path):
        save(axes, target)
    return axes


def error_plot(
    curves: Mapping[str, tuple[Sequence[int], Sequence[float]]],
    title: str,
    target: str | Path | None = None,
    floor: float | None = None,
    bands: Mapping[str, tuple[Sequence[int], Sequence[float], Sequence[float]]] | None = None,
) -> Axes:
    """Std over time of several mechanisms; `floor` is the lower bound for the worst tick.

    `bands` are drawn in place of the lines of the same names, which jump too often for a line: (edges of bins, least
    and largest std in each bin).
    """
    axes = new_axes()
    for i, (name, (ticks, std)) in enumerate(curves.items()):
        if bands is None or name not in bands:
            axes.plot(ticks, std, linewidth=1.5, color=f"C{i % 10}", label=name)
            continue
        edges, least, most = bands[name]
        between = [edge - 0.5 for edge in edges]  # a step has its tick in the middle
        jumps = any(a < b for a, b in zip(least, most, strict=True))
        axes.stairs(most, between, baseline=least, fill=True, color=f"C{i % 10}", alpha=0.25, linewidth=0)
        for side in (least, most) if jumps else (most,):
            label = "" if jumps and side is least else f"{name} (least to largest)" if jumps else name
            axes.stairs(side, between, baseline=None, color=f"C{i % 10}", linewidth=0.8, label=label)
    if floor is not None:
        axes.axhline(floor, color="black", linestyle="--", linewidth=1, label="lower bound, worst tick")
    axes.set_xlabel("tick")
    axes.set_ylabel("standard deviation of the published number")
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_ylim(bottom=0)
    axes.legend(frameon=False, fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    if target is not None:
        save(axes, target)
    return axes
