"""Views of a run of releases: per tick, the last ticks, any spans, and running totals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from evercount._arrays import FloatArray, IntArray
from evercount._validate import check_count
from evercount.engine.error_model import ErrorModel
from evercount.engine.key_views import Ends, evidence_ticks, key_view
from evercount.engine.views import View
from evercount.errors import ParameterError

if TYPE_CHECKING:
    from evercount.engine.release import Releases

VIEWS = "views are sums over ticks, and "


def spans(releases: Releases, name: str, after: npt.ArrayLike, until: npt.ArrayLike) -> View:
    """The numbers of ticks after+1 … until of each span, from running sums."""
    releases.query.publishing.check_views(VIEWS)
    if releases.postprocessed:
        raise ParameterError(
            f"these numbers were post-processed ({', '.join(releases.postprocessed)}), so that the error of their "
            "differences is not known; release without post-processing and post-process the view"
        )
    own = releases.query.publishing.own_ticks
    start, stop = (np.atleast_1d(np.asarray(ticks, dtype=np.int64)) for ticks in (after, until))
    first, last = releases.first_tick, releases.first_tick + len(releases) - 1
    earliest = first - 1 if own else first
    if len(start) and (np.any(start >= stop) or stop.max() > last or (start.min() < earliest and first > 1)):
        raise ParameterError(
            f"a view needs released ticks: spans lie within ticks {first} to {last} and hold at least one"
        )
    if len(start) and start.min() < 0:
        raise ParameterError("ticks before the first cannot be counted")
    if own:
        releases.query.publishing.check_views("", 1 if np.all(stop - start == 1) else None)
        start = np.zeros_like(stop)
    sums = np.concatenate([np.zeros((1, releases.rows.shape[1])), releases.rows])
    offset = 1 - first if first > 1 else 0
    low, high = (sums[np.where(ticks > 0, ticks + offset, 0)] for ticks in (start, stop))
    errors, outputs = releases.error_model, range(len(releases.labels))
    facts = (errors, releases.guarantee, releases.noise)
    if releases.query.discovery is None:
        return view_of(name, start, stop, high - low, outputs, *facts)
    evidence = releases.evidence(evidence_ticks(start, stop) - first)
    return key_view(name, stop - 1 if own else start, stop, Ends(low, high, evidence), releases.labels, outputs, *facts)


def view_of(
    name: str,
    after: IntArray,
    until: IntArray,
    values: FloatArray,
    outputs: Sequence[int],
    errors: ErrorModel,
    guarantee: str,
    noise: str,
) -> View:
    """A view from its numbers: what some outputs published at `until` minus what they published at `after`."""
    query = errors.query
    published = query.publishing
    published.check_views(VIEWS)
    ones, chosen, labels = np.ones(query.outputs), list(outputs), query.labels
    norms, rounding = (np.asarray(ones * part)[chosen] for part in (published.norms(), published.roundings()))
    cells = tuple(labels[output] for output in chosen)
    return View(name, after + 1, until, cells, values, norms, rounding, errors, guarantee, noise)


def running(releases: Releases) -> View:
    ticks = releases.ticks
    if releases.first_tick > 1:
        raise ParameterError("a view of running totals needs the releases from tick 1 on")
    return spans(releases, "running total", np.zeros_like(ticks), ticks)


def per_tick(releases: Releases) -> View:
    own = releases.query.publishing.own_ticks
    until = releases.ticks if releases.first_tick == 1 or own else releases.ticks[1:]
    return spans(releases, "per tick", until - 1, until)


def last_ticks(releases: Releases, ticks: int) -> View:
    """The events of the last `ticks` ticks, at every tick that has as many before it."""
    ticks = check_count("ticks", ticks)
    lowest = 0 if releases.first_tick == 1 else releases.first_tick
    until = np.arange(lowest + ticks, releases.first_tick + len(releases))
    return spans(releases, f"last {ticks} ticks", until - ticks, until)
