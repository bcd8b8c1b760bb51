"""Helpers for the figures of all items: colours, labels, thinned curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from evercount.plotting import COLOURS as PALETTE
from evercount.plotting import MOST_PLOTTED_TICKS, label_lines, panels

__all__ = ["COLOURS", "finish", "panels", "plain_marks", "powers", "thin"]

_DRAWN = ("balanced", "binary-tree", "normalized", "unbounded", "honaker-full", "square-root", "honaker", "true")
COLOURS: Mapping[str, str] = dict(zip(_DRAWN, PALETTE, strict=True), optimal="#000000")
"""One colour per mechanism, the same in every figure."""


def finish(
    axes: Any, x: str, y: str, title: str, legend: bool | dict[str, Any] = True, bottom: float | None = None
) -> None:
    """Titles, where the y axis begins, and the names of the curves: at their ends, or in a legend that has a place."""
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.set_title(title, fontsize=9, loc="left")
    axes.tick_params(labelsize=8)
    if bottom is not None:
        axes.set_ylim(bottom=bottom)
    if isinstance(legend, dict):
        axes.legend(frameon=False, fontsize=8, **legend)
    elif legend:
        label_lines(axes)


def powers(axes: Any, lowest: int, highest: int, step: int = 4) -> None:
    marks = list(range(lowest, highest + 1, step))
    axes.set_xticks(marks, [f"$2^{{{mark}}}$" for mark in marks])


def plain_marks(axis: Any, marks: Sequence[float]) -> None:
    """Label these places of a logarithmic axis with plain numbers, and no others."""
    axis.set_ticks(marks, [f"{mark:g}" for mark in marks])
    axis.set_ticks([], minor=True)


def thin(count: int, points: int = MOST_PLOTTED_TICKS) -> Any:
    """Indices of at most `points` of `count` points, evenly spaced, with the first and the last."""
    return np.unique(np.linspace(0, count - 1, min(count, points)).astype(np.int64))
