"""Views of a stored stream: new cases per tick or day, the last 24 ticks, two cells or two streams compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from evercount.declarations.tick_marks import with_marks
from evercount.declarations.view_names import QUANTILE, check_views, newest_spans, view_table
from evercount.engine.notebook_chart import without_trend
from evercount.engine.release_table import LEVEL, ReleaseTable, table_of
from evercount.engine.table_ticks import described
from evercount.engine.take_views import needed_columns
from evercount.engine.view_widths import PER_TICK, RUNNING
from evercount.engine.views import Difference, View
from evercount.errors import ParameterError
from evercount.store import AnyStream, Reading


@dataclass(frozen=True)
class Asked:
    view: str  # its name, or "running"
    cells: tuple[str, ...] = ()  # Labels; empty for all
    minus: str | None = None  # the cell that is subtracted from the only one of `cells`
    minus_stream: AnyStream | None = None  # the stream of `minus`, where it is another one
    limit: int = 240  # the most spans, the newest


def read_view(store: Reading, live: AnyStream, asked: Asked, numbers: int) -> ReleaseTable:
    """Read a view of a stream from its stored releases, with the notes on its ticks; at most about `numbers` of them.

    **Guarantee.** Post-processing of published numbers; which spans there are depends on the released ticks alone.
    Test: tests/service/test_service_views.py::test_views_are_those_of_the_library.
    """
    return with_marks(_read_view(store, live, asked, numbers), store.marks(live.id), asked.view)


def _read_view(store: Reading, live: AnyStream, asked: Asked, numbers: int) -> ReleaseTable:
    declaration, outputs = live.declaration, _outputs(live, asked.cells)
    own_ticks = declaration.query.publishing.own_ticks
    if own_ticks and asked.view not in (RUNNING, PER_TICK):
        check_views([asked.view], declaration.query, declaration.schedule, declaration.stream_postprocess)
    if (asked.view == RUNNING or own_ticks) and asked.minus is None and declaration.revise_for is None:
        return _published(store, live, outputs, min(asked.limit, numbers // len(outputs)))
    quantile = QUANTILE.fullmatch(asked.view)
    if quantile and (asked.cells or asked.minus is not None):
        raise ParameterError(f"the view {asked.view!r} is read from all cells at once: omit cell and minus")
    if asked.minus is None:
        view = _view(store, live, asked.view, outputs, asked.limit, numbers)
        return view_table(view, asked.view, declaration.schedule, postprocess=declaration.view_postprocess)
    if len(asked.cells) != 1:
        raise ParameterError("a comparison needs one cell and one minus")
    if asked.view == RUNNING and any(store.carried(one.id) for one in (live, asked.minus_stream) if one is not None):
        raise ParameterError("running totals that go on from another stream are not compared: compare another view")
    if asked.minus_stream is None:
        both = _outputs(live, (*asked.cells, asked.minus))
        view = _view(store, live, asked.view, both, asked.limit, numbers).compare(asked.cells[0], asked.minus)
        return view_table(view, asked.view, declaration.schedule)
    view = _view(store, live, asked.view, outputs, asked.limit, numbers)
    theirs = _outputs(asked.minus_stream, [asked.minus])
    other = _view(store, asked.minus_stream, asked.view, theirs, asked.limit, numbers)
    difference = Difference(*_aligned(live, view, asked.minus_stream, other))
    table = view_table(difference.one, asked.view, declaration.schedule)
    parts = [difference.values, difference.std, *difference.interval(LEVEL)]
    return table_of(table.ticks, table.starts, (f"{asked.cells[0]} − {asked.minus}",), parts, table.first)


def describe_view(live: AnyStream, name: str, table: ReleaseTable) -> dict[str, Any]:
    """A view as JSON; `flat` says for each cell whether the noise is wider than all ups and downs."""
    values, _, low, high = table.numbers.transpose(1, 0, 2)
    flat = without_trend(values, low, high).tolist() if len(table.ticks) > 1 else [False] * len(table.cells)
    return {
        "stream": live.name,
        "view": name,
        "labels": list(table.cells),
        "level": LEVEL,
        "guarantee": live.guarantee,
        "flat": flat,
        "releases": described(table, live.declaration.schedule.show),
    }


def _published(store: Reading, live: AnyStream, outputs: list[int], ticks: int) -> ReleaseTable:
    """The newest released numbers as they are. Where the stream declares numbers below zero impossible, intervals do
    not go below it either: they lose no truth."""
    cells = range(min(outputs), max(outputs) + 1)
    table = store.published(live, max(0, live.closed - max(1, ticks)), live.closed, cells)
    table = store.adder(live)(table)
    numbers = table.numbers[:, :, [output - cells.start for output in outputs]]
    if "nonnegative" in live.declaration.stream_postprocess:
        numbers[:, 2] = np.maximum(numbers[:, 2], 0.0)
    summed = live.declaration.has_views and not live.declaration.query.publishing.own_ticks
    first = np.ones_like(table.ticks) if summed else table.ticks
    return ReleaseTable(table.ticks, table.starts, [live.labels[output] for output in outputs], numbers, first)


def _outputs(live: AnyStream, cells: Sequence[str]) -> list[int]:
    """The numbers of the named cells, each once; of all cells where none is named."""
    labels = list(live.labels)
    for cell in cells:
        if cell not in labels:
            raise ParameterError(f"the stream {live.name!r} has no cell {cell!r:.80}")
    return [labels.index(cell) for cell in dict.fromkeys(cells)] or list(range(len(labels)))


def _view(store: Reading, live: AnyStream, name: str, outputs: list[int], limit: int, numbers: int) -> View:
    """The newest spans of a view; fewer of them where one span reads many numbers."""
    declaration = live.declaration
    own_ticks = declaration.query.publishing.own_ticks
    name = PER_TICK if own_ticks and name == RUNNING else name
    check_views([name], declaration.query, declaration.schedule, declaration.stream_postprocess)
    wide = declaration.query.discovery is not None
    columns = needed_columns(outputs, len(live.labels)) if wide else outputs
    spans = newest_spans(name, declaration.schedule, live.closed, max(1, min(limit, numbers // len(columns))))
    return store.view(live, name, spans, live.labels, outputs)


def _aligned(live: AnyStream, view: View, other: AnyStream, theirs: View) -> tuple[View, View]:
    """The views of two streams, over the spans that begin and end together."""
    places = {moment: place for place, moment in enumerate(_moments(other, theirs))}
    both = [(i, places[moment]) for i, moment in enumerate(_moments(live, view)) if moment in places]
    if not both:
        raise ParameterError(f"{live.name!r} and {other.name!r} have no span of this view in common")
    here, there = (np.asarray(side, dtype=np.intp) for side in zip(*both, strict=True))
    return view._spans_at(here), theirs._spans_at(there)


def _moments(live: AnyStream, view: View) -> list[tuple[int, int]]:
    """When each span begins and ends; for manual clocks its ticks."""
    schedule, spans = live.declaration.schedule, list(zip(view.first.tolist(), view.last.tolist(), strict=True))
    return spans if schedule.manual else [(schedule.start_of(a), schedule.start_of(b + 1)) for a, b in spans]
