"""Views over spans of ticks: of a run of releases, or from the numbers that a store has at the ends
of spans.

A key that joined is shown over spans that lie behind its joining as a whole (`joined_within`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from evercount._validate import BoolArray, FloatArray, IntArray
from evercount.engine.build import RUNNING
from evercount.engine.error_model import ErrorModel, Part
from evercount.engine.key_views import (
    discovery_ticks,
    evidence_at,
    evidence_ticks,
    key_view,
    needed_columns,
)
from evercount.engine.views import Ends, Spans, View
from evercount.errors import ParameterError

if TYPE_CHECKING:
    from evercount.engine.release import Releases
    from evercount.engine.stream_facts import StreamFacts

ValuesAt = Callable[[Iterable[int], Sequence[int]], dict[int, FloatArray]]
"""From ticks and cells to what these cells published at each tick; NaN where a key was not
public."""
VIEWS = "views are sums over ticks, and "


def spans(
    releases: Releases,
    name: str,
    after: npt.ArrayLike,
    until: npt.ArrayLike,
    *,
    totals: bool = False,
) -> View:
    """The numbers of ticks after+1 … until of each span, from running sums. `totals`: a key that
    joined is shown with all that it has counted, however long before that a span begins."""
    own = releases.query.publishing.own_ticks
    start, stop = (np.atleast_1d(np.asarray(ticks, dtype=np.int64)) for ticks in (after, until))
    first = releases.first_tick
    last = releases.first_tick + len(releases) - 1
    earliest = first - 1 if own or first == 1 else first
    if len(start) and (np.any(start >= stop) or stop.max() > last or start.min() < earliest):
        raise ParameterError(
            f"a view needs released ticks: spans of at least one within ticks {first} to {last}"
        )
    if releases.query.lags > 1:
        from evercount.engine.revisions import newest_spans  # it needs the views of this module

        return newest_spans(releases, name, (start, stop))
    releases.query.publishing.check_views(VIEWS)
    if releases.postprocessed:
        raise ParameterError(
            f"these numbers were post-processed ({', '.join(releases.postprocessed)}), so the "
            "error of their differences is unknown; release without post-processing and "
            "post-process the view"
        )
    if own:
        releases.query.publishing.check_views("", 1 if np.all(stop - start == 1) else None)
        start = np.zeros_like(stop)
    sums = np.concatenate([np.zeros((1, releases.rows.shape[1])), releases.rows])
    ends = sums[np.where(start > 0, start + 1 - first, 0)], sums[stop + 1 - first]
    outputs = range(len(releases.labels))
    stated = (releases._errors, releases.guarantee)
    if releases.query.discovery is None:
        return view_of(name, (start, stop), ends, outputs, *stated, totals=totals)
    assert releases._sums is not None
    evidence = releases._sums[evidence_ticks(start, stop) - first]
    span = (stop - 1 if own else start, stop)
    return key_view(name, span, ends, evidence, releases.labels, outputs, *stated)


def view_of(
    name: str,
    spans: Spans,
    ends: Ends,
    outputs: Sequence[int],
    errors: ErrorModel,
    guarantee: str,
    *,
    totals: bool = False,
) -> View:
    """A view of some outputs from its numbers. A cell counts nothing before it joined; with
    `totals`, a span that began before shows what it counted since."""
    query = errors.query
    after, until = spans
    low, high = ends
    query.publishing.check_views(VIEWS)
    ones = np.ones(query.outputs)
    chosen = list(outputs)
    labels = query.labels
    for joined in errors.joined:
        new = np.asarray(chosen) >= joined.outputs
        low = np.where(new & (after <= joined.after)[:, np.newaxis], 0.0, low)
        if not totals:
            high = np.where(
                new & joined_within(joined.after, after, until)[:, np.newaxis], np.nan, high
            )
    parts = tuple(
        Part(
            part.after,
            norms=np.asarray(ones * part.norms)[chosen],
            rounding=np.asarray(ones * part.rounding)[chosen],
        )
        for part in errors.parts
    )
    cells = tuple(labels[output] for output in chosen)
    return View(name, after + 1, until, cells, high - low, parts, errors, guarantee)


def joined_within(joined: int, after: IntArray, until: IntArray) -> BoolArray:
    """In which spans of ticks after+1 … until a key that joined after a tick was there for a part
    only. A sum over a part must not pass for one over the span."""
    return (after < joined) & (joined < until)


def view_at(
    facts: StreamFacts,
    labels: Sequence[str],
    name: str,
    spans: Spans,
    outputs: Sequence[int],
    values_at: ValuesAt,
) -> View:
    """A view of some outputs from what was published at the ends of spans alone."""
    after, until = spans
    stated = (facts._errors, facts.guarantee)
    columns = outputs
    if facts.thresholds is not None:
        columns = needed_columns(outputs, len(labels))
    ticks = [np.zeros_like(after) if facts.query.publishing.own_ticks else after, until]
    if facts.thresholds is not None:
        ticks.append(discovery_ticks(evidence_ticks(*ticks), facts.thresholds))
    # before the first tick all is zero
    values = {
        0: np.zeros(len(columns)),
        **values_at(np.unique(np.concatenate(ticks)).tolist(), columns),
    }
    low, high, *tested = (
        np.asarray([values[tick] for tick in at.tolist()]).reshape(-1, len(columns)) for at in ticks
    )
    if facts.thresholds is None:
        return view_of(name, spans, (low, high), outputs, *stated, totals=name == RUNNING)
    evidence = evidence_at(ticks[2], tested[0], facts.thresholds, facts._errors)
    shown = [columns.index(output) for output in outputs]
    names = [labels[column] for column in columns]
    return key_view(name, spans, (low, high), evidence, names, shown, *stated)
