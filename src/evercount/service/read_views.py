"""Views of a stored stream: new cases per tick or day, the last 24 ticks, two cells or two streams compared."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evercount._arrays import FloatArray, IntArray
from evercount.declare.view_names import QUANTILE, check_views, offered_views, view_spans
from evercount.engine.key_views import Ends, discovery_ticks, evidence_at, evidence_ticks, key_view, needed_columns
from evercount.engine.release_table import LEVEL
from evercount.engine.table_exports import without_trend
from evercount.engine.take_views import view_of
from evercount.engine.views import Difference, View
from evercount.errors import ParameterError
from evercount.service.export import Kind
from evercount.store import EndedStream, LiveStream
from evercount.store.reader import Reading
from evercount.text_rules import csv_text

Shown = LiveStream | EndedStream
RUNNING = "running"
"""The running totals, as a view; of streams that publish other numbers, these numbers as they are."""
COLUMNS = ("first", "last", "start", "cell", "value", "std", "low", "high")
MEDIA = {
    "json": "application/json",
    "jsonl": "application/x-ndjson",
    "csv": "text/csv; charset=utf-8",
    "parquet": "application/vnd.apache.parquet",
}


@dataclass(frozen=True)
class Asked:
    """What a request asks to see."""

    view: str
    """Its name, or "running"."""
    cells: tuple[str, ...] = ()
    """Labels; empty for all."""
    minus: str | None = None
    """The cell that is subtracted from the only one of `cells`."""
    minus_stream: Shown | None = None
    """The stream of `minus`, where it is another one."""
    limit: int = 240
    """The most spans, the newest."""


@dataclass(frozen=True)
class ViewAnswer:
    """A view as it is sent: `spans` with one entry per span, numbers of shape (spans, cells)."""

    stream: str
    view: str
    cells: tuple[str, ...]
    first: list[int]
    last: list[int]
    starts: list[str | None]
    numbers: dict[str, list[list[float | None]]]
    guarantee: str
    zone: str = "UTC"

    @property
    def flat(self) -> list[bool]:
        """For each cell whether the noise is wider than all ups and downs, so that no trend can be read."""
        if len(self.first) < 2:
            return [False] * len(self.cells)
        values, low, high = (np.asarray(self.numbers[name], np.float64) for name in ("values", "low", "high"))
        flat: list[bool] = without_trend(values, low, high).tolist()
        return flat

    def to_json(self) -> dict[str, Any]:
        """One object for each span."""
        spans = [
            {
                "first": self.first[i],
                "last": self.last[i],
                "start": self.starts[i],
                **{name: rows[i] for name, rows in self.numbers.items()},
            }
            for i in range(len(self.first))
        ]
        return {
            "stream": self.stream,
            "view": self.view,
            "labels": list(self.cells),
            "level": LEVEL,
            "guarantee": self.guarantee,
            "flat": self.flat,
            "spans": spans,
        }

    def rows(self) -> list[tuple[Any, ...]]:
        """The rows of a table with the columns of COLUMNS; a discovered key has none before it is public."""
        return [
            (self.first[i], self.last[i], self.starts[i], cell, *(rows[i][j] for rows in self.numbers.values()))
            for i in range(len(self.first))
            for j, cell in enumerate(self.cells)
            if self.numbers["values"][i][j] is not None
        ]

    def encoded(self, form: Kind) -> bytes:
        """The view as a file."""
        if form == "json":
            return json.dumps(self.to_json(), separators=(",", ":"), allow_nan=False).encode("ascii")
        if form == "jsonl":
            lines = (json.dumps(dict(zip(COLUMNS, row, strict=True))) + "\n" for row in self.rows())
            return "".join(lines).encode("ascii")
        if form == "csv":
            text = io.StringIO(newline="")
            writer = csv.writer(text, lineterminator="\n")
            writer.writerow(COLUMNS)
            cell = COLUMNS.index("cell")
            writer.writerows((*row[:cell], csv_text(row[cell]), *row[cell + 1 :]) for row in self.rows())
            return text.getvalue().encode()
        from evercount.files.sink import view_parquet

        columns = list(zip(*self.rows(), strict=True)) or [()] * len(COLUMNS)
        return view_parquet(dict(zip(COLUMNS, columns, strict=True)), self.zone, self.guarantee)


def read_view(store: Reading, live: Shown, asked: Asked, numbers: int) -> ViewAnswer:
    """Read a view of a stream from its stored releases; at most about `numbers` of them.

    **Guarantee.** Post-processing of published numbers; which spans there are depends on the released ticks alone.
    Test: tests/service/test_service_views.py::test_views_are_those_of_the_library.
    """
    declaration = live.declaration
    if (
        asked.view == RUNNING
        and asked.minus is None
        and not offered_views(declaration.query, declaration.schedule, declaration.postprocess)
    ):
        return _published(store, live, asked, numbers)
    quantile = QUANTILE.fullmatch(asked.view)
    if quantile and (asked.cells or asked.minus is not None):
        raise ParameterError(f"the view {asked.view!r} is read from all cells at once: leave cell and minus out")
    cells = (*asked.cells, *([asked.minus] if asked.minus is not None and asked.minus_stream is None else []))
    view = _view(store, live, asked.view, cells, asked.limit, numbers)
    level_of: tuple[FloatArray, FloatArray]
    if quantile:
        value, low, high = view.quantile(float(quantile[1]), LEVEL)
        parts: list[FloatArray | None] = [value[:, None], None, low[:, None], high[:, None]]
        labels: tuple[str, ...] = (quantile[1],)
    elif asked.minus is None:
        level_of = view.interval(LEVEL)
        parts, labels = [view.values, view.std, *level_of], view.cells
    else:
        if len(asked.cells) != 1:
            raise ParameterError("a comparison needs one cell and one minus")
        compared: View | Difference
        if asked.minus_stream is None:
            compared = view.compare(asked.cells[0], asked.minus)
        else:
            view, other = _aligned(store, live, view, asked, numbers)
            compared = Difference(view, other)
        level_of = compared.interval(LEVEL)
        parts = [compared.values, compared.std, *level_of]
        labels = (f"{asked.cells[0]} − {asked.minus}",)
    schedule = declaration.schedule
    first = view.last if quantile else view.first
    starts = [None if schedule.manual else schedule.show(schedule.start_of(tick)) for tick in first.tolist()]
    shape = (len(view), len(labels))
    return ViewAnswer(
        live.name,
        asked.view,
        labels,
        first.tolist(),
        view.last.tolist(),
        starts,
        {
            name: np.full(shape, None).tolist() if part is None else _plain(np.asarray(part))
            for name, part in zip(("values", "std", "low", "high"), parts, strict=True)
        },
        live.guarantee,
        schedule.zone,
    )


def _published(store: Reading, live: Shown, asked: Asked, numbers: int) -> ViewAnswer:
    """The released numbers as they are, tick by tick, of a stream whose numbers have no differences to view.

    Where the stream declares numbers below zero impossible, intervals do not go below it either: they lose no truth.
    """
    declaration, labels = live.declaration, list(live.labels)
    outputs = _outputs(live, asked.cells)
    ticks = max(1, min(asked.limit, numbers // max(1, len(outputs))))
    part = range(outputs[0], outputs[0] + 1) if len(outputs) == 1 else None
    rows = store.read_releases(live.id, declaration, max(0, live.closed - ticks), ticks, live.closed, part)
    places = [0] if part else outputs
    lowest = 0.0 if "nonnegative" in declaration.postprocess else -np.inf

    def column(name: str, least: float = -np.inf) -> list[list[float | None]]:
        known = [{i: value for i, value in enumerate(row[name]) if value is not None} for row in rows]
        return [[max(least, row[i]) if i in row else None for i in places] for row in known]

    schedule = declaration.schedule
    at = [row["tick"] for row in rows]
    return ViewAnswer(
        live.name,
        asked.view,
        tuple(labels[i] for i in outputs),
        at,
        at,
        [None if schedule.manual else schedule.show(schedule.start_of(tick)) for tick in at],
        {"values": column("values"), "std": column("std"), "low": column("low", lowest), "high": column("high")},
        live.guarantee,
        schedule.zone,
    )


def _outputs(live: Shown, cells: Sequence[str]) -> list[int]:
    """The numbers of the named cells, each once; of all cells where none is named."""
    labels = list(live.labels)
    for cell in cells:
        if cell not in labels:
            raise ParameterError(f"the stream {live.name!r} has no cell {cell!r:.80}")
    return [labels.index(cell) for cell in dict.fromkeys(cells)] or list(range(len(labels)))


def _view(store: Reading, live: Shown, name: str, cells: Sequence[str], limit: int, numbers: int) -> View:
    declaration = live.declaration
    query = declaration.query
    check_views(["per-tick" if name == RUNNING else name], query, declaration.schedule, declaration.postprocess)
    labels, outputs = list(live.labels), _outputs(live, cells)
    columns = needed_columns(outputs, len(labels)) if query.discovery is not None else outputs
    most = max(1, min(limit, numbers // len(columns)))
    own_ticks = query.publishing.own_ticks
    after, until = view_spans("per-tick" if own_ticks else name, declaration.schedule, live.closed, most)
    # an ended stream has the errors of its declaration; there is no noise left to ask
    stream = declaration.build(replay=True) if isinstance(live, EndedStream) else live.stream
    said = live if isinstance(live, EndedStream) else stream
    facts = (stream.error_model, said.guarantee, said.noise)
    ticks, thresholds = [np.zeros_like(after) if own_ticks else after, until], stream.thresholds
    if thresholds is not None:
        ticks.append(discovery_ticks(evidence_ticks(*ticks), thresholds))
    values = store.values_at(live.id, np.unique(np.concatenate(ticks)), columns)
    low, high, *tested = (_at(values, at, len(columns)) for at in ticks)
    if thresholds is None:
        return view_of(name, after, until, high - low, outputs, *facts)
    evidence = evidence_at(ticks[2], tested[0], thresholds, stream.error_model)
    shown = [columns.index(output) for output in outputs]
    names = [labels[column] for column in columns]
    return key_view(name, after, until, Ends(low, high, evidence), names, shown, *facts)


def _plain(numbers: FloatArray) -> list[list[float | None]]:
    """Numbers as JSON has them: no negative zero, and null where a key was not public."""
    plain: list[list[float | None]] = np.where(np.isnan(numbers), None, numbers + 0.0).tolist()  # type: ignore[call-overload]
    return plain


def _at(values: dict[int, FloatArray], ticks: IntArray, width: int) -> FloatArray:
    """The running sums at these ticks; zero before the first, NaN where a key was not public."""
    rows = [values[tick] if tick else np.zeros(width) for tick in ticks.tolist()]
    return np.asarray(rows, dtype=np.float64).reshape(len(rows), width)


def _aligned(store: Reading, live: Shown, view: View, asked: Asked, numbers: int) -> tuple[View, View]:
    """The view and that of the other stream, over the spans that begin and end together."""
    other = asked.minus_stream
    assert other is not None
    assert asked.minus is not None
    theirs = _view(store, other, asked.view, [asked.minus], asked.limit, numbers)
    mine = _moments(live, view)
    places = {moment: place for place, moment in enumerate(_moments(other, theirs))}
    both = [(i, places[moment]) for i, moment in enumerate(mine) if moment in places]
    if not both:
        raise ParameterError(f"{live.name!r} and {other.name!r} have no span of this view in common")
    here, there = (np.asarray(side, dtype=np.intp) for side in zip(*both, strict=True))
    return view.spans_at(here), theirs.spans_at(there)


def _moments(live: Shown, view: View) -> list[tuple[int, int]]:
    """When each span begins and ends; for manual clocks its ticks."""
    schedule = live.declaration.schedule
    if schedule.manual:
        return list(zip(view.first.tolist(), view.last.tolist(), strict=True))
    return [
        (schedule.start_of(a), schedule.start_of(b + 1))
        for a, b in zip(view.first.tolist(), view.last.tolist(), strict=True)
    ]
