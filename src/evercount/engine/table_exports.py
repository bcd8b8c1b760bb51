"""What every table of published numbers offers: files, frames of Arrow, pandas and Polars, a chart for notebooks."""

from __future__ import annotations

import importlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np

from evercount._arrays import BoolArray, FloatArray
from evercount.bounds import simultaneous_quantile
from evercount.engine.release_table import LEVEL, ReleaseTable
from evercount.engine.write_table import arrow_schema, arrow_table, table_texts, write_parquet
from evercount.errors import MissingExtra

TextTarget = str | Path | IO[str]
"""A path, or an open text file."""
CHARTED_CELLS = 4
CHARTED_POINTS = 400
LISTED_CELLS = 8
WIDTH, HEIGHT, MARGIN = 640, 180, 44
COLOURS = ("#3366aa", "#cc6633", "#338855", "#885599")


class TableExports(ABC):
    """Exports of a class with `table`, `guarantee` and `noise`."""

    guarantee: str
    noise: str

    @abstractmethod
    def table(self, level: float = LEVEL, starts: Sequence[int] | None = None) -> ReleaseTable:
        """The numbers as a table: `table().columns()` has tick, cell, value, std, low and high, one row per number.

        Views have `first`, too: the first tick that a row counts. Releases have a column `noise` where it is not exact,
        and `postprocessed` where the numbers are.

        Args:
            level: The probability of the intervals.
            starts: When what each number counts begins, in microseconds since 1970: a column of its own.

        Returns:
            The table.
        """

    @abstractmethod
    def _chart(self, level: float) -> tuple[str, Sequence[str], FloatArray, FloatArray, FloatArray]:
        """(title, cells, values, low, high), the numbers with the shape (points, cells)."""

    def to_csv(self, target: TextTarget, level: float = LEVEL) -> None:
        """Write `table` as CSV to a path or an open text file.

        Args:
            target: A path or an open text file.
            level: The probability of the intervals.
        """
        self._write("csv", target, level)

    def to_jsonl(self, target: TextTarget, level: float = LEVEL) -> None:
        """Write `table` as one JSON object per line.

        Args:
            target: A path or an open text file.
            level: The probability of the intervals.
        """
        self._write("jsonl", target, level)

    def _write(self, kind: Literal["csv", "jsonl"], target: TextTarget, level: float) -> None:
        texts = table_texts(kind, [self.table(level)])
        if isinstance(target, str | Path):
            Path(target).write_text("".join(texts), encoding="utf-8", newline="")
        else:
            target.writelines(texts)

    def to_parquet(self, target: str | Path, level: float = LEVEL) -> None:
        """Write `table` as Parquet, with the guarantee in the file's metadata.

        Args:
            target: The path of the file.
            level: The probability of the intervals.

        Raises:
            MissingExtra: pyarrow is not installed.
        """
        write_parquet(str(target), [self.table(level)], None, self._metadata)

    def to_arrow(self, level: float = LEVEL) -> Any:
        """`table` as a `pyarrow.Table`, with the guarantee and the kind of noise in its metadata.

        Args:
            level: The probability of the intervals.

        Returns:
            The table.

        Raises:
            MissingExtra: pyarrow is not installed.
        """
        table = self.table(level)
        return arrow_table(table, arrow_schema(table, None, self._metadata))

    @property
    def _metadata(self) -> dict[str, str]:
        return {"evercount.guarantee": self.guarantee, "evercount.noise": self.noise}

    def to_pandas(self, level: float = LEVEL) -> Any:
        """`table` as a `pandas.DataFrame`, with the guarantee and the kind of noise in its `attrs`.

        Args:
            level: The probability of the intervals.

        Returns:
            The data frame.

        Raises:
            MissingExtra: pandas is not installed.
        """
        frame = _module("pandas").DataFrame(self.table(level).columns())
        frame.attrs.update(self._metadata)
        return frame

    def to_polars(self, level: float = LEVEL) -> Any:
        """`table` as a `polars.DataFrame`. It has no place for the guarantee: state it beside the numbers.

        Args:
            level: The probability of the intervals.

        Returns:
            The data frame.

        Raises:
            MissingExtra: polars is not installed.
        """
        columns = self.table(level).columns().items()
        return _module("polars").DataFrame(
            {name: list(column) if column.dtype == object else column for name, column in columns}
        )

    def _repr_html_(self) -> str:
        """A small chart and the newest numbers, for notebooks."""
        title, cells, values, low, high = self._chart(0.95)
        if not len(values):
            return f"<p>{escape(title)}: nothing is released yet.</p>"
        rows = "".join(
            f"<tr><td>{escape(cell)}</td><td>{_shown(value)}</td><td>{_shown(a)} … {_shown(b)}</td></tr>"
            for cell, value, a, b in list(zip(cells, values[-1], low[-1], high[-1], strict=True))[:LISTED_CELLS]
            if np.isfinite(value)
        )
        more = f"<p>and {len(cells) - LISTED_CELLS} more cells</p>" if len(cells) > LISTED_CELLS else ""
        warning = "" if self.noise == "exact" else f"<p><b>Noise: {escape(self.noise)}. Do not publish.</b></p>"
        return (
            f"<div><p><b>{escape(title[0].upper() + title[1:])}</b></p>"
            f"{svg_chart(cells, values, low, high)}{_no_trend_note(values, low, high)}"
            f"<table><tr><th>cell</th><th>newest value</th><th>95 % interval</th></tr>{rows}</table>{more}{warning}"
            f"<p>{escape(self.guarantee)}</p></div>"
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

    Where a number is NaN (a key that was not public), its band is left out.
    """
    if not len(values):
        return np.zeros(values.shape[1], dtype=bool)
    wider = float(simultaneous_quantile(len(values), 0.05) / simultaneous_quantile(1, 0.05))
    bottom, top = values - (values - low) * wider, values + (high - values) * wider
    highest = np.max(bottom, axis=0, initial=-np.inf, where=~np.isnan(bottom))
    return np.asarray(highest <= np.min(top, axis=0, initial=np.inf, where=~np.isnan(top)))


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra(f"a table of {name}", name, package=True) from error
