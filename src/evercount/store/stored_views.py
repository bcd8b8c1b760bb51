"""Views of a stored stream, from the numbers that it published at the ends of spans: no other tick is read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from evercount._arrays import FloatArray, IntArray
from evercount.engine.key_views import Ends, discovery_ticks, evidence_at, evidence_ticks, key_view, needed_columns
from evercount.engine.stream_facts import StreamFacts
from evercount.engine.take_views import view_of
from evercount.engine.views import View

ValuesAt = Callable[[Iterable[int], Sequence[int]], dict[int, FloatArray]]
"""From ticks and cells to what these cells published at each tick; NaN where a key was not public."""


def stored_view(
    facts: StreamFacts,
    labels: Sequence[str],
    name: str,
    spans: tuple[IntArray, IntArray],
    outputs: Sequence[int],
    values_at: ValuesAt,
) -> View:
    """A view of some outputs over spans (after, until)."""
    after, until = spans
    stated = (facts.error_model, facts.guarantee, facts.noise)
    columns = needed_columns(outputs, len(labels)) if facts.thresholds is not None else outputs
    ticks = [np.zeros_like(after) if facts.query.publishing.own_ticks else after, until]
    if facts.thresholds is not None:
        ticks.append(discovery_ticks(evidence_ticks(*ticks), facts.thresholds))
    values = values_at(np.unique(np.concatenate(ticks)).tolist(), columns)
    low, high, *tested = (_at(values, at, len(columns)) for at in ticks)
    if facts.thresholds is None:
        return view_of(name, after, until, high - low, outputs, *stated)
    evidence = evidence_at(ticks[2], tested[0], facts.thresholds, facts.error_model)
    shown = [columns.index(output) for output in outputs]
    names = [labels[column] for column in columns]
    return key_view(name, after, until, Ends(low, high, evidence), names, shown, *stated)


def _at(values: dict[int, FloatArray], ticks: IntArray, width: int) -> FloatArray:
    """The running sums at these ticks; zero before the first."""
    rows = [values[tick] if tick else np.zeros(width) for tick in ticks.tolist()]
    return np.asarray(rows, dtype=np.float64).reshape(len(rows), width)
