"""What notebooks show of published numbers: a small chart, the newest ones, and the guarantee. No library is needed."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from evercount._arrays import BoolArray, FloatArray
from evercount.bounds import simultaneous_quantile

CHARTED_CELLS = 4
CHARTED_POINTS = 400
LISTED_CELLS = 8
WIDTH, HEIGHT, MARGIN = 640, 180, 44
COLOURS = ("#3366aa", "#cc6633", "#338855", "#885599")


def chart_html(
    title: str, cells: Sequence[str], values: FloatArray, low: FloatArray, high: FloatArray, guarantee: str
) -> str:
    """A small chart and the newest numbers; values, low and high have the shape (points, cells)."""
    if not len(values):
        return f"<p>{escape(title)}: nothing is released yet.</p>"
    rows = "".join(
        f"<tr><td>{escape(cell)}</td><td>{_shown(value)}</td><td>{_shown(a)} … {_shown(b)}</td></tr>"
        for cell, value, a, b in list(zip(cells, values[-1], low[-1], high[-1], strict=True))[:LISTED_CELLS]
        if np.isfinite(value)
    )
    more = f"<p>and {len(cells) - LISTED_CELLS} more cells</p>" if len(cells) > LISTED_CELLS else ""
    return (
        f"<div><p><b>{escape(title[0].upper() + title[1:])}</b></p>"
        f"{svg_chart(cells, values, low, high)}{_no_trend_note(values, low, high)}"
        f"<table><tr><th>cell</th><th>newest value</th><th>95 % interval</th></tr>{rows}</table>{more}"
        f"<p>{escape(guarantee)}</p></div>"
    )


def svg_chart(cells: Sequence[str], values: FloatArray, low: FloatArray, high: FloatArray) -> str:
    """An SVG of the first CHARTED_CELLS cells with error bands, at up to CHARTED_POINTS evenly spaced points."""
    chosen = np.unique(np.linspace(0, len(values) - 1, min(len(values), CHARTED_POINTS)).astype(np.int64))
    count = min(len(cells), CHARTED_CELLS)
    lines, below, above = (part[chosen, :count] for part in (values, low, high))
    known = np.isfinite(lines) & np.isfinite(below) & np.isfinite(above)
    bottom, top = (float(below[known].min()), float(above[known].max())) if known.any() else (0.0, 1.0)
    span = top - bottom or 1.0
    x = MARGIN + (WIDTH - MARGIN - 4) * (np.arange(len(chosen)) / max(len(chosen) - 1, 1))

    def places(numbers: FloatArray, part: slice) -> list[str]:
        y = 4 + (HEIGHT - 24) * (1 - (numbers[part] - bottom) / span)
        return [f"{a:.1f},{b:.1f}" for a, b in zip(x[part], y, strict=True)]

    parts = []
    for cell in range(count):
        colour = COLOURS[cell]
        for part in _runs(known[:, cell]):
            band = " ".join([*places(above[:, cell], part), *places(below[:, cell], part)[::-1]])
            line = " ".join(places(lines[:, cell], part))
            parts.append(f'<polygon points="{band}" fill="{colour}" fill-opacity="0.18"/>')
            parts.append(f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="1.4"/>')
        parts.append(
            f'<text x="{MARGIN + 110 * cell}" y="{HEIGHT - 4}" font-size="11" fill="{colour}">'
            f"{escape(cells[cell][:16])}</text>"
        )
    for number, y in ((top, 12), (bottom, HEIGHT - 20)):
        parts.append(f'<text x="2" y="{y}" font-size="10" fill="#555">{_shown(number)}</text>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" role="img" '
        f'aria-label="published numbers with 95 % intervals">{"".join(parts)}</svg>'
    )


def _shown(number: float) -> str:
    """A number as people write it: no exponents for large ones, four digits for small ones."""
    return f"{number:,.0f}" if 1000 <= abs(number) < 1e15 else f"{number:.4g}"


def _runs(known: BoolArray) -> list[slice]:
    """The stretches of points that have numbers: a discovered key has none before it is public."""
    edges = np.flatnonzero(np.diff(known, prepend=False, append=False))
    return [slice(a, b) for a, b in zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)]


def _no_trend_note(values: FloatArray, low: FloatArray, high: FloatArray) -> str:
    """A warning where a constant lies within all bands, widened to hold at once: then the lines show no trend."""
    flat = without_trend(*(part[:, :CHARTED_CELLS] for part in (values, low, high)))
    return "<p>The noise is wider than the ups and downs: no trend can be read from this.</p>" if flat.all() else ""


def without_trend(values: FloatArray, low: FloatArray, high: FloatArray) -> BoolArray:
    """For each column whether a constant lies within all its bands, widened to hold at once: then no trend is shown.
    Where a number is NaN (a key that was not public), its band is left out."""
    if not len(values):
        return np.zeros(values.shape[1], dtype=bool)
    wider = float(simultaneous_quantile(len(values), 0.05) / simultaneous_quantile(1, 0.05))
    bottom, top = values - (values - low) * wider, values + (high - values) * wider
    highest = np.max(bottom, axis=0, initial=-np.inf, where=~np.isnan(bottom))
    return np.asarray(highest <= np.min(top, axis=0, initial=np.inf, where=~np.isnan(top)))
