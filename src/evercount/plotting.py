"""Charts of published numbers and of planned errors: by matplotlib, without a screen. What
notebooks show."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import tzinfo
from functools import partial
from html import escape
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from evercount._validate import BoolArray, FloatArray, IntArray
from evercount.bounds import simultaneous_quantile
from evercount.errors import MissingExtra, ParameterError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TimeArray = np.ndarray[Any, np.dtype[np.datetime64]]
# a chart of more ticks draws only this many of them, evenly spaced: it has no more pixels
MOST_PLOTTED_TICKS = 4000

COLOURS = ("#14647f", "#d55e00", "#009e73", "#aa4499", "#b8860b", "#4a6fe3", "#882255", "#555555")
"""Told apart by readers who see red and green alike, and in grey; the first is the dashboard's."""
DASHES: tuple[Any, ...] = ("-", (0, (6, 2)), (0, (2, 1.5)), (0, (8, 2, 2, 2)))
"""Where colours come round again, the dash is another."""


def line_style(number: int) -> dict[str, Any]:
    """Colour and dash of the curve with this number."""
    return {
        "color": COLOURS[number % len(COLOURS)],
        "linestyle": DASHES[number // len(COLOURS) % len(DASHES)],
    }


def label_lines(axes: Axes, size: float = 8.0) -> None:
    """Write the name of each line at its right end, in its colour; names that overlap move apart.
    Call it last."""
    from scipy.optimize import isotonic_regression  # slow to import

    lines = [
        line
        for line in axes.get_lines()
        if not str(line.get_label()).startswith("_") and np.size(line.get_xdata())
    ]
    figure: Any = axes.get_figure()
    axes.autoscale_view()
    place: Any = axes.transData + axes.transAxes.inverted()
    ends = [(float(place.transform(line.get_xydata()[-1])[1]), line) for line in lines]  # type: ignore[index]
    names = sorted(ends, key=lambda end: end[0])
    heights = [(1 + str(line.get_label()).count("\n")) * size * 1.35 / 72 for _, line in names]
    whole = figure.get_size_inches()[1] * axes.get_position().height
    tops = np.cumsum([0.0, *heights]) / whole
    if len(names) == 0 or tops[-1] > 1.2:  # more names than fit
        axes.legend(frameon=False, fontsize=size, loc="center left", bbox_to_anchor=(1.01, 0.5))
        return
    wanted = (
        np.asarray([min(max(y, 0.0), 1.0) for y, _ in names])
        - np.asarray(heights) / whole / 2
        - tops[:-1]
    )
    # the nearest places that never fall: names keep their order and their distance
    moved = isotonic_regression(wanted).x + tops[:-1] + np.asarray(heights) / whole / 2
    for y, (_, line) in zip(moved, names, strict=True):
        colour: Any = line.get_color()
        text = str(line.get_label())
        axes.annotate(
            text,
            (1.01, float(y)),
            xycoords="axes fraction",
            va="center",
            fontsize=size,
            color=colour,
        )


def thin(count: int, points: int = MOST_PLOTTED_TICKS) -> Any:
    """Indices of at most `points` of `count` points, evenly spaced, with the first and the last."""
    return np.unique(np.linspace(0, max(count - 1, 0), min(count, points)).astype(np.int64))


def panels(
    rows: int = 1, columns: int = 1, width: float = 8.0, height: float = 4.2
) -> tuple[Figure, list[Any]]:
    """A figure that needs no display, and its axes in reading order."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("plots", "plot") from error
    figure = Figure(figsize=(width, height), layout="constrained")
    axes = np.ravel(figure.subplots(rows, columns, squeeze=False)).tolist()
    for panel in axes:
        panel.spines[["top", "right"]].set_visible(False)
        panel.grid(alpha=0.25)
        panel.set_prop_cycle(color=COLOURS)
    return figure, axes


def new_axes(width: float = 9.0, height: float = 4.5) -> Axes:
    """Axes of a new figure that needs no display."""
    figure, (axes,) = panels(1, 1, width, height)
    for shown in (figure, axes):
        # notebooks draw by themselves only what pyplot has made
        vars(shown)["_repr_png_"] = partial(_png, figure)
    return cast("Axes", axes)


def _png(figure: Any) -> bytes:
    """Draw a figure as a PNG."""
    picture = BytesIO()
    figure.savefig(picture, format="png", dpi=100)
    return picture.getvalue()


def save(axes: Axes, target: str | Path) -> None:
    """Write the figure of these axes to a file."""
    import matplotlib

    figure: Any = axes.get_figure()
    kinds = sorted(figure.canvas.get_supported_filetypes())
    kind = Path(target).suffix[1:].lower()
    if kind not in kinds:
        raise ParameterError(
            f"no chart can be written to {str(target)!r}: its name must end in {', '.join(kinds)}"
        )
    try:
        # simplified paths lose the spikes of a tree's error
        with matplotlib.rc_context({"path.simplify": False}):
            figure.savefig(str(target), dpi=150)
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        if isinstance(error, OSError) and error.strerror:
            reason = error.strerror
        raise ParameterError(f"no chart can be written to {str(target)!r}: {reason}") from error


def band_plot(
    ticks: IntArray,
    values: FloatArray,
    low: FloatArray,
    high: FloatArray,
    labels: Sequence[str],
    target: str | Path | Axes | None = None,
    *,
    title: str = "shaded: interval",
    times: TimeArray | None = None,
    zone: tzinfo | None = None,
    left: IntArray | None = None,
    notes: Sequence[str] | None = None,
) -> Axes:
    """One line with an error band for every output. `left`: how often numbers will be revised,
    which is shaded. Numbers with notes, such as those of a week with a missing day, are marked."""
    if not (target is None or isinstance(target, str | Path) or hasattr(target, "fill_between")):
        raise ParameterError(
            f'draw into a file such as "daily.png" or into axes, got {target!r:.80}'
        )
    if target is None or isinstance(target, str | Path):
        axes: Axes = new_axes()
    else:
        axes = target
    keep = thin(len(ticks))
    x = ticks if times is None else times
    for i, label in enumerate(labels):
        shown = np.isfinite(values[keep, i])
        # a line of one number cannot be seen, nor can its band
        alone = np.count_nonzero(shown) == 1
        (line,) = axes.plot(
            x[keep], values[keep, i], linewidth=1.4, label=label, marker="o" if alone else "None"
        )
        colour = line.get_color()
        axes.fill_between(
            x[keep], low[keep, i], high[keep, i], color=colour, alpha=0.2, linewidth=0
        )
        if alone:
            axes.vlines(
                x[keep][shown],
                low[keep, i][shown],
                high[keep, i][shown],
                color=colour,
                alpha=0.2,
                linewidth=8,
            )
    if left is not None and left.any():
        untyped_axes: Any = axes
        untyped_axes.axvspan(
            x[np.flatnonzero(left)[0]], x[-1], color="grey", alpha=0.15, linewidth=0
        )
        title += "; shaded: will be revised"
    noted = [place for place, note in enumerate(notes or ()) if note]
    for place in noted:
        axes.axvline(x[place], color="grey", linestyle=":", linewidth=1)
    if noted:
        title += "; dotted: has a note"
    if times is None:
        axes.set_xlabel("tick")
    else:
        _set_time_axis(axes, times, zone)
    axes.set_ylabel("published number")
    axes.set_title(title, fontsize=9, loc="left")
    if len(labels) > 1:
        label_lines(axes)
    if isinstance(target, str | Path):
        save(axes, target)
    return axes


def _set_time_axis(axes: Axes, times: TimeArray, zone: tzinfo | None) -> None:
    """Label the x axis with the starts of ticks, by the clock of a zone."""
    from matplotlib import dates

    untyped: Any = dates
    if len(times) == 1:  # else the axis has years on both sides
        day = np.timedelta64(1, "D")
        axes.set_xlim(times[0] - day, times[0] + day)
    locator = untyped.AutoDateLocator(tz=zone)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(untyped.ConciseDateFormatter(locator, tz=zone))
    axes.set_xlabel(f"start of the tick ({zone or 'UTC'})")


def error_plot(
    curves: Mapping[str, tuple[Sequence[int], Sequence[float]]],
    title: str,
    target: str | Path | None = None,
    floor: float | None = None,
    bands: Mapping[str, tuple[Sequence[int], Sequence[float], Sequence[float]]] | None = None,
) -> Axes:
    """Std over time of several mechanisms."""
    axes = new_axes()
    for i, (name, (ticks, std)) in enumerate(curves.items()):
        if bands is None or name not in bands:
            axes.plot(ticks, std, linewidth=1.5, label=name, **line_style(i))
            continue
        edges, least, most = bands[name]
        steps = np.asarray(edges) - 0.5  # the tick is in the middle of its step
        low = [*least, least[-1]]
        high = [*most, most[-1]]
        axes.fill_between(
            steps, low, high, step="post", color=line_style(i)["color"], alpha=0.25, linewidth=0
        )
        axes.step(
            steps,
            high,
            where="post",
            linewidth=0.8,
            label=f"{name} (least to largest)",
            **line_style(i),
        )
    if floor is not None:
        axes.axhline(
            floor, color="black", linestyle="--", linewidth=1, label="lower bound, worst tick"
        )
    axes.set_xlabel("tick")
    axes.set_ylabel("standard deviation of the published number")
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_ylim(bottom=0)
    label_lines(axes)
    if target is not None:
        save(axes, target)
    return axes


CHARTED_CELLS = 4
LISTED_CELLS = 8


def chart_html(
    title: str,
    axes: Axes | None,
    cells: Sequence[str],
    values: FloatArray,
    low: FloatArray,
    high: FloatArray,
) -> str:
    """A chart, where matplotlib has drawn one, and the newest numbers; values, low and high: shape
    (points, cells)."""
    if not len(values):
        return f"<p>{escape(title)}: nothing is released yet.</p>"
    rows = "".join(
        (
            f"<tr><td>{escape(cell)}</td><td>{_format(value)}</td><td>{_format(a)} … "
            f"{_format(b)}</td></tr>"
        )
        for cell, value, a, b in list(zip(cells, values[-1], low[-1], high[-1], strict=True))[
            :LISTED_CELLS
        ]
        if np.isfinite(value)
    )
    flat = without_trend(*(part[:, :CHARTED_CELLS] for part in (values, low, high)))
    if flat.all():
        note = "<p>The noise is wider than the ups and downs: no trend can be read from this.</p>"
    else:
        note = ""
    more = ""
    if len(cells) > LISTED_CELLS:
        more = f"<p>and {len(cells) - LISTED_CELLS} more cells</p>"
    picture = ""
    if axes is not None:
        encoded = b64encode(_png(axes.get_figure())).decode()
        picture = (
            '<img alt="published numbers with their intervals" '
            f'src="data:image/png;base64,{encoded}"/>'
        )
    return (
        f"<p><b>{escape(title[0].upper() + title[1:])}</b></p>{picture}{note}"
        f"<table><tr><th>cell</th><th>newest value</th><th>interval</th></tr>{rows}</table>{more}"
    )


def _format(number: float) -> str:
    """A number as people write it: no exponents for large ones, four digits for small ones."""
    if 1000 <= abs(number) < 1e15:
        return f"{number:,.0f}"
    return f"{number:.4g}"


def without_trend(values: FloatArray, low: FloatArray, high: FloatArray) -> BoolArray:
    """For each column whether a constant lies within all its bands, widened to hold at once: then
    no trend is shown. Where a number is NaN (a key that was not public), its band is left out."""
    if not len(values):
        return np.zeros(values.shape[1], dtype=bool)
    wider = float(simultaneous_quantile(len(values), 0.05) / simultaneous_quantile(1, 0.05))
    bottom = values - (values - low) * wider
    top = values + (high - values) * wider
    highest = np.max(bottom, axis=0, initial=-np.inf, where=~np.isnan(bottom))
    return np.asarray(highest <= np.min(top, axis=0, initial=np.inf, where=~np.isnan(top)))
