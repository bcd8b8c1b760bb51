"""Views over spans of ticks: of a run of releases, or from the numbers that a store has at the ends of spans."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from evercount._arrays import FloatArray, IntArray
from evercount.engine.error_model import ErrorModel, Part
from evercount.engine.key_views import Ends, discovery_ticks, evidence_at, evidence_ticks, key_view, needed_columns
from evercount.engine.views import View
from evercount.errors import ParameterError

if TYPE_CHECKING:
    from evercount.engine.release import Releases
    from evercount.engine.stream_facts import StreamFacts

ValuesAt = Callable[[Iterable[int], Sequence[int]], dict[int, FloatArray]]
"""From ticks and cells to what these cells published at each tick; NaN where a key was not public."""
VIEWS = "views are sums over ticks, and "


def spans(releases: Releases, name: str, after: npt.ArrayLike, until: npt.ArrayLike) -> View:
    """The numbers of ticks after+1 … until of each span, from running sums."""
    if releases._errors.revised:
        from evercount.engine.revisions import newest_spans  # it needs the views of this module

        return newest_spans(releases, name, after, until)
    releases.query.publishing.check_views(VIEWS)
    if releases.postprocessed:
        raise ParameterError(
            f"these numbers were post-processed ({', '.join(releases.postprocessed)}), so the error of "
            "their differences is unknown; release without post-processing and post-process the view"
        )
    own = releases.query.publishing.own_ticks
    start, stop = (np.atleast_1d(np.asarray(ticks, dtype=np.int64)) for ticks in (after, until))
    first, last = releases.first_tick, releases.first_tick + len(releases) - 1
    earliest = first - 1 if own else first
    if len(start) and (np.any(start >= stop) or stop.max() > last or (start.min() < earliest and first > 1)):
        raise ParameterError(f"a view needs released ticks: spans of at least one within ticks {first} to {last}")
    if len(start) and start.min() < 0:
        raise ParameterError("ticks before the first cannot be counted")
    if own:
        releases.query.publishing.check_views("", 1 if np.all(stop - start == 1) else None)
        start = np.zeros_like(stop)
    sums = np.concatenate([np.zeros((1, releases.rows.shape[1])), releases.rows])
    offset = 1 - first if first > 1 else 0
    low, high = (sums[np.where(ticks > 0, ticks + offset, 0)] for ticks in (start, stop))
    errors, outputs = releases._errors, range(len(releases.labels))
    facts = (errors, releases.guarantee)
    if releases.query.discovery is None:
        return view_of(name, start, stop, low, high, outputs, *facts)
    evidence = releases._evidence(evidence_ticks(start, stop) - first)
    return key_view(name, stop - 1 if own else start, stop, Ends(low, high, evidence), releases.labels, outputs, *facts)


def view_of(
    name: str,
    after: IntArray,
    until: IntArray,
    low: FloatArray,
    high: FloatArray,
    outputs: Sequence[int],
    errors: ErrorModel,
    guarantee: str,
) -> View:
    """A view from its numbers: what some outputs published at `until` minus what they published at `after`.

    A cell counts nothing before it joined.
    """
    query = errors.query
    query.publishing.check_views(VIEWS)
    ones, chosen, labels = np.ones(query.outputs), list(outputs), query.labels
    for joined in errors.joined:
        new = np.asarray(chosen) >= joined.outputs
        low = np.where(new & (after <= joined.after)[:, np.newaxis], 0.0, low)
    first, *later = (Part(part.after, *(np.asarray(ones * side)[chosen] for side in part[1:])) for part in errors.parts)
    cells = tuple(labels[output] for output in chosen)
    numbers = (high - low, first.norms, first.rounding)
    return View(name, after + 1, until, cells, *numbers, errors, guarantee, _later=tuple(later))


def view_at(
    facts: StreamFacts,
    labels: Sequence[str],
    name: str,
    spans: tuple[IntArray, IntArray],
    outputs: Sequence[int],
    values_at: ValuesAt,
) -> View:
    """A view of some outputs over spans (after, until), from what was published at their ends alone."""
    after, until = spans
    stated = (facts._errors, facts.guarantee)
    columns = needed_columns(outputs, len(labels)) if facts.thresholds is not None else outputs
    ticks = [np.zeros_like(after) if facts.query.publishing.own_ticks else after, until]
    if facts.thresholds is not None:
        ticks.append(discovery_ticks(evidence_ticks(*ticks), facts.thresholds))
    values = values_at(np.unique(np.concatenate(ticks)).tolist(), columns)
    low, high, *tested = (_at(values, at, len(columns)) for at in ticks)
    if facts.thresholds is None:
        return view_of(name, after, until, low, high, outputs, *stated)
    evidence = evidence_at(ticks[2], tested[0], facts.thresholds, facts._errors)
    shown = [columns.index(output) for output in outputs]
    names = [labels[column] for column in columns]
    return key_view(name, after, until, Ends(low, high, evidence), names, shown, *stated)


def _at(values: dict[int, FloatArray], ticks: IntArray, width: int) -> FloatArray:
    """The running sums at these ticks; zero before the first."""
    rows = [values[tick] if tick else np.zeros(width) for tick in ticks.tolist()]
    return np.asarray(rows, dtype=np.float64).reshape(len(rows), width)
