"""Views of a stored stream: the newest spans of what was published.

Cases of each day, the last 24 ticks, two cells or two streams compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from pydantic import BaseModel, Field

from evercount._validate import IntArray
from evercount.declarations.tick_marks import with_marks
from evercount.declarations.view_names import (
    QUANTILE,
    check_views,
    newest_spans,
    view_table,
)
from evercount.engine.build import PER_TICK, RUNNING
from evercount.engine.key_views import needed_columns
from evercount.engine.release_table import LEVEL, ReleaseTable, table_of
from evercount.engine.views import Difference, View
from evercount.engine.write_table import described
from evercount.errors import ParameterError
from evercount.plotting import without_trend
from evercount.store import Reading, StoredStream


class ViewRequest(BaseModel):
    """The newest spans of a view, of all cells or of some, or of one cell less another."""

    view: str | None = Field(
        None,
        max_length=40,
        description="running, per-tick, last-24, per-day, per-week or quantile-0.5",
    )
    cell: list[str] = Field([], max_length=50, description="labels of cells (default: all)")
    minus: str | None = Field(
        None, max_length=1000, description="the label of a cell to subtract from `cell`"
    )
    minus_stream: str | None = Field(
        None, max_length=64, description="the stream of `minus`, if it is another one"
    )
    limit: int = Field(1000, ge=1, le=1000, description="how many spans at most")


def read_view(
    store: Reading,
    live: StoredStream,
    request: ViewRequest,
    numbers: int,
    other: StoredStream | None = None,
) -> ReleaseTable:
    """Read a view of a stream from its stored releases, with the notes on its ticks; at most about
    `numbers` of them. `other` is the stream that `minus_stream` names.

    **Guarantee.** Post-processing of published numbers; which spans there are depends on the
    released ticks alone. Test:
    tests/service/test_service_views.py::test_views_are_those_of_the_library.
    """
    assert request.view is not None
    table = _read_table(store, live, request, request.view, numbers, other)
    return with_marks(table, store.marks(live.id), request.view)


def _read_table(
    store: Reading,
    live: StoredStream,
    request: ViewRequest,
    name: str,
    numbers: int,
    other: StoredStream | None,
) -> ReleaseTable:
    """Read the view, or the comparison, that a request names."""
    declaration = live.declaration
    outputs = _outputs(live, request.cell)
    own_ticks = declaration.query.publishing.own_ticks
    if own_ticks and name not in (RUNNING, PER_TICK):
        check_views([name], declaration.query, declaration.schedule, declaration.stream_postprocess)
    as_released = (name == RUNNING or own_ticks) and declaration.revise_for is None
    if as_released and request.minus is None:
        ticks = min(request.limit, numbers // len(outputs))
        return _released_table(store, live, outputs, ticks)
    if QUANTILE.fullmatch(name) and (request.cell or request.minus is not None):
        raise ParameterError(
            f"the view {name!r} is read from all cells at once: omit cell and minus"
        )
    if request.minus is None:
        view = _view(store, live, name, outputs, request.limit, numbers)
        return view_table(
            view, name, declaration.schedule, postprocess=declaration.view_postprocess
        )
    if len(request.cell) != 1:
        raise ParameterError("a comparison needs one cell and one minus")
    _refuse_carried_totals(store, name, live, other)
    if other is None:
        return _compare_cells(store, live, request, name, numbers)
    return _compare_streams(store, live, request, name, numbers, other)


def _refuse_carried_totals(
    store: Reading, name: str, live: StoredStream, other: StoredStream | None
) -> None:
    """Refuse to compare running totals of which some include those of an earlier stream."""
    if name != RUNNING:
        return
    for stream in (live, other):
        if stream is not None and store.carried(stream.id):
            raise ParameterError(
                "running totals that go on from another stream cannot be compared: "
                "compare another view"
            )


def _compare_cells(
    store: Reading, live: StoredStream, request: ViewRequest, name: str, numbers: int
) -> ReleaseTable:
    """Subtract one cell of a stream from another."""
    assert request.minus is not None
    cell = request.cell[0]
    both = _outputs(live, (cell, request.minus))
    view = _view(store, live, name, both, request.limit, numbers)
    return view_table(view.compare(cell, request.minus), name, live.declaration.schedule)


def _compare_streams(
    store: Reading,
    live: StoredStream,
    request: ViewRequest,
    name: str,
    numbers: int,
    other: StoredStream,
) -> ReleaseTable:
    """Subtract a cell of another stream from a cell of this one, over the spans of both."""
    assert request.minus is not None
    cell = request.cell[0]
    outputs = _outputs(live, [cell])
    view = _view(store, live, name, outputs, request.limit, numbers)
    other_outputs = _outputs(other, [request.minus])
    other_view = _view(store, other, name, other_outputs, request.limit, numbers)
    here, there = _aligned(live, view, other, other_view)
    difference = Difference(view, other_view, here, there)
    table = view_table(view, name, live.declaration.schedule)
    parts = [difference.values, difference.std, *difference.interval(LEVEL)]
    starts = None
    if table.starts is not None:
        starts = [table.starts[place] for place in here.tolist()]
    first = None
    if table.first is not None:
        first = table.first[here]
    return table_of(table.ticks[here], starts, (f"{cell} − {request.minus}",), parts, first)


def describe_view(live: StoredStream, name: str, table: ReleaseTable) -> dict[str, Any]:
    """A view as JSON; `flat` says for each cell whether the noise is wider than all ups and
    downs."""
    values, _, low, high = table.numbers.transpose(1, 0, 2)
    flat = [False] * len(table.cells)
    if len(table.ticks) > 1:
        flat = without_trend(values, low, high).tolist()
    return {
        "stream": live.name,
        "view": name,
        "labels": list(table.cells),
        "level": LEVEL,
        "guarantee": live.guarantee,
        "flat": flat,
        "releases": described(table, live.declaration.schedule.show),
    }


def _released_table(
    store: Reading, live: StoredStream, outputs: list[int], ticks: int
) -> ReleaseTable:
    """Read the newest released numbers as they are. If the stream declares numbers below zero
    impossible, intervals do not go below it either: they lose no truth."""
    cells = range(min(outputs), max(outputs) + 1)
    table = store.published(live, max(0, live.closed - max(1, ticks)), live.closed, cells)
    table = store.adder(live)(table)
    numbers = table.numbers[:, :, [output - cells.start for output in outputs]]
    if "nonnegative" in live.declaration.stream_postprocess:
        numbers[:, 2] = np.maximum(numbers[:, 2], 0.0)
    summed = live.declaration.has_views and not live.declaration.query.publishing.own_ticks
    first = np.ones_like(table.ticks) if summed else table.ticks
    labels = [live.labels[output] for output in outputs]
    return ReleaseTable(table.ticks, table.starts, labels, numbers, first)


def _outputs(live: StoredStream, cells: Sequence[str]) -> list[int]:
    """Find the numbers of the named cells, each once; of all cells if none is named."""
    labels = list(live.labels)
    for cell in cells:
        if cell not in labels:
            raise ParameterError(f"the stream {live.name!r} has no cell {cell!r:.80}")
    if not cells:
        return list(range(len(labels)))
    return [labels.index(cell) for cell in dict.fromkeys(cells)]


def _view(
    store: Reading, live: StoredStream, name: str, outputs: list[int], limit: int, numbers: int
) -> View:
    """Read the newest spans of a view; fewer of them if one span needs many numbers."""
    declaration = live.declaration
    if name == RUNNING and declaration.query.publishing.own_ticks:
        name = PER_TICK
    check_views([name], declaration.query, declaration.schedule, declaration.stream_postprocess)
    columns = outputs
    if declaration.query.discovery is not None:
        columns = needed_columns(outputs, len(live.labels))
    most = max(1, min(limit, numbers // len(columns)))
    spans = newest_spans(name, declaration.schedule, live.closed, most)
    return store.view(live, name, spans, live.labels, outputs)


def _aligned(
    live: StoredStream, view: View, other: StoredStream, theirs: View
) -> tuple[IntArray, IntArray]:
    """Find the places of the spans that begin and end together in the views of two streams."""
    places = {moment: place for place, moment in enumerate(_moments(other, theirs))}
    both = [
        (i, places[moment]) for i, moment in enumerate(_moments(live, view)) if moment in places
    ]
    if not both:
        raise ParameterError(
            f"{live.name!r} and {other.name!r} have no span of this view in common"
        )
    here, there = np.asarray(both, np.int64).T
    return here, there


def _moments(live: StoredStream, view: View) -> list[tuple[int, int]]:
    """Find when each span begins and ends; for manual clocks its ticks."""
    schedule = live.declaration.schedule
    spans = list(zip(view.first.tolist(), view.last.tolist(), strict=True))
    if schedule.manual:
        return spans
    return [(schedule.start_of(first), schedule.start_of(last + 1)) for first, last in spans]
