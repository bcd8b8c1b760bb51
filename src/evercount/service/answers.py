"""What the service computes when it is asked: planned errors, and views of a stored stream.

Plans are known before any event; `PlanQueue` computes them in few threads, with few places for each
client. A view is the newest spans of what was published: cases of each day, the last 24 ticks, two
cells or two streams compared.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, TypeVar

import numpy as np
from pydantic import BaseModel, Field

from evercount._validate import IntArray, finite
from evercount.declarations.tick_marks import with_marks
from evercount.declarations.view_names import (
    QUANTILE,
    check_views,
    newest_spans,
    noise_views,
    view_table,
)
from evercount.engine.build import PER_TICK, RUNNING
from evercount.engine.release_table import LEVEL, ReleaseTable, table_of
from evercount.engine.take_views import needed_columns
from evercount.engine.views import Difference, View
from evercount.engine.write_table import described
from evercount.errors import ParameterError, Problem
from evercount.plotting import without_trend
from evercount.privacy import Budget
from evercount.store import Reading, StoredStream

T = TypeVar("T")

RETRY_SECONDS = 2.0
KEPT_PLANS = 32  # plans that are kept, in the service: each has some hundred kilobytes
UNBOUNDED_PLAN = 2**20  # how far ahead the error of a stream without horizon is shown


def own_plan(live: StoredStream, points: int) -> dict[str, Any]:
    """The stream's own error over its ticks, of what it shows."""
    # the errors of an ended stream are those of its declaration; there is no noise left to ask
    if live.live is not None:
        stream = live.live.stream
    else:
        stream = live.declaration.build(replay=True)
    last = live.declaration.horizon or UNBOUNDED_PLAN
    ticks = np.unique(np.rint(np.geomspace(1, last, points)).astype(np.int64))
    std = stream.std(ticks, *noise_views([live.declaration.main_view], live.declaration.schedule))
    return {
        "stream": live.name,
        "view": live.declaration.main_view,
        "ticks": ticks.tolist(),
        "std": np.asarray(std).max(axis=1).tolist(),
        "sigma": stream.sigma,
        "factorization": stream.factorization.name,
    }


@lru_cache(maxsize=2 * KEPT_PLANS)
def all_plans(budget: Budget, horizon: int | None, views: tuple[str, ...]) -> dict[str, Any]:
    """The errors of all mechanisms for a budget and a horizon; with `views` of each, with every
    noise."""
    from evercount.planning import plan, plan_views

    return dict(
        finite((plan_views(budget, horizon, views) if views else plan(budget, horizon)).to_dict())
    )


def busy(
    message: str = "the service is stopping",
    remedy: str = "Send it again when the service is back.",
) -> Problem:
    return Problem(503, "Busy", message, remedy, retry=RETRY_SECONDS)


class PlanQueue:
    """Work waits in the order in which it was asked for. A cancelled future gives its place back at
    once. The threads are daemons, so that a long computation does not keep a service that stops.
    `what` is what clients call the work."""

    def __init__(self, threads: int, most: int, most_per_client: int, what: str = "plans") -> None:
        self.most, self.most_per_client = most, most_per_client
        self._what = what
        self._idle = threads  # threads that may be started
        self._lock = threading.Lock()
        self._waiting: OrderedDict[Future[Any], Callable[[], Any]] = OrderedDict()
        self._places: dict[Future[Any], str] = {}
        self._closed = False

    def submit(self, client: str, work: Callable[[], T]) -> Future[T]:
        """Compute something for a client; Problem 429 if it has too much under way, 503 if all
        together have."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise busy()
            if list(self._places.values()).count(client) >= self.most_per_client:
                message = (
                    f"{self.most_per_client} {self._what} of this client are being computed or "
                    "waiting"
                )
                remedy = "Wait for one of them, or cancel its request."
                raise Problem(429, "TooManyRequests", message, remedy, retry=RETRY_SECONDS)
            if len(self._places) >= self.most:
                raise busy(f"too many {self._what} are waiting to be computed", "Try again.")
            self._waiting[future] = work
            self._places[future] = client
            if self._idle:
                self._idle -= 1
                threading.Thread(
                    target=self._run, name=f"evercount-{self._what}", daemon=True
                ).start()
        future.add_done_callback(self._leave)
        return future

    def close(self) -> None:
        """Refuse everything that waits or is being computed, and whatever comes later."""
        with self._lock:
            self._closed = True
            futures = list(self._places)
        for future in futures:
            with suppress(InvalidStateError):
                future.set_exception(busy())

    def _leave(self, future: Future[Any]) -> None:
        with self._lock:
            self._waiting.pop(future, None)
            del self._places[future]

    def _run(self) -> None:
        """Compute until nothing waits any more."""
        while True:
            with self._lock:
                if self._closed or not self._waiting:
                    self._idle += 1
                    return
                future, work = self._waiting.popitem(last=False)
            if not future.set_running_or_notify_cancel():
                continue
            try:
                answer = partial(future.set_result, work())
            except Exception as failure:  # noqa: BLE001 - it belongs to who asked
                answer = partial(future.set_exception, failure)
            with suppress(InvalidStateError):  # it was refused meanwhile
                answer()


class Asked(BaseModel):
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
    asked: Asked,
    numbers: int,
    other: StoredStream | None = None,
) -> ReleaseTable:
    """Read a view of a stream from its stored releases, with the notes on its ticks; at most about
    `numbers` of them. `other` is the stream that `minus_stream` names.

    **Guarantee.** Post-processing of published numbers; which spans there are depends on the
    released ticks alone. Test:
    tests/service/test_service_views.py::test_views_are_those_of_the_library.
    """
    assert asked.view is not None
    return with_marks(
        _read_view(store, live, asked, asked.view, numbers, other), store.marks(live.id), asked.view
    )


def _read_view(
    store: Reading,
    live: StoredStream,
    asked: Asked,
    name: str,
    numbers: int,
    other: StoredStream | None,
) -> ReleaseTable:
    declaration, outputs = live.declaration, _outputs(live, asked.cell)
    own_ticks = declaration.query.publishing.own_ticks
    if own_ticks and name not in (RUNNING, PER_TICK):
        check_views([name], declaration.query, declaration.schedule, declaration.stream_postprocess)
    if (name == RUNNING or own_ticks) and asked.minus is None and declaration.revise_for is None:
        return _published(store, live, outputs, min(asked.limit, numbers // len(outputs)))
    quantile = QUANTILE.fullmatch(name)
    if quantile and (asked.cell or asked.minus is not None):
        raise ParameterError(
            f"the view {name!r} is read from all cells at once: omit cell and minus"
        )
    if asked.minus is None:
        view = _view(store, live, name, outputs, asked.limit, numbers)
        return view_table(
            view, name, declaration.schedule, postprocess=declaration.view_postprocess
        )
    if len(asked.cell) != 1:
        raise ParameterError("a comparison needs one cell and one minus")
    if name == RUNNING and any(store.carried(one.id) for one in (live, other) if one is not None):
        raise ParameterError(
            "running totals that go on from another stream cannot be compared: compare another view"
        )
    if other is None:
        both = _outputs(live, (*asked.cell, asked.minus))
        view = _view(store, live, name, both, asked.limit, numbers).compare(
            asked.cell[0], asked.minus
        )
        return view_table(view, name, declaration.schedule)
    view = _view(store, live, name, outputs, asked.limit, numbers)
    theirs = _outputs(other, [asked.minus])
    less = _view(store, other, name, theirs, asked.limit, numbers)
    here, there = _aligned(live, view, other, less)
    difference, table = (
        Difference(view, less, here, there),
        view_table(view, name, declaration.schedule),
    )
    parts = [difference.values, difference.std, *difference.interval(LEVEL)]
    starts = None if table.starts is None else [table.starts[place] for place in here.tolist()]
    cells, first = (
        (f"{asked.cell[0]} − {asked.minus}",),
        None if table.first is None else table.first[here],
    )
    return table_of(table.ticks[here], starts, cells, parts, first)


def describe_view(live: StoredStream, name: str, table: ReleaseTable) -> dict[str, Any]:
    """A view as JSON; `flat` says for each cell whether the noise is wider than all ups and
    downs."""
    values, _, low, high = table.numbers.transpose(1, 0, 2)
    flat = (
        without_trend(values, low, high).tolist()
        if len(table.ticks) > 1
        else [False] * len(table.cells)
    )
    return {
        "stream": live.name,
        "view": name,
        "labels": list(table.cells),
        "level": LEVEL,
        "guarantee": live.guarantee,
        "flat": flat,
        "releases": described(table, live.declaration.schedule.show),
    }


def _published(store: Reading, live: StoredStream, outputs: list[int], ticks: int) -> ReleaseTable:
    """The newest released numbers as they are. Where the stream declares numbers below zero
    impossible, intervals do not go below it either: they lose no truth."""
    cells = range(min(outputs), max(outputs) + 1)
    table = store.published(live, max(0, live.closed - max(1, ticks)), live.closed, cells)
    table = store.adder(live)(table)
    numbers = table.numbers[:, :, [output - cells.start for output in outputs]]
    if "nonnegative" in live.declaration.stream_postprocess:
        numbers[:, 2] = np.maximum(numbers[:, 2], 0.0)
    summed = live.declaration.has_views and not live.declaration.query.publishing.own_ticks
    first = np.ones_like(table.ticks) if summed else table.ticks
    return ReleaseTable(
        table.ticks, table.starts, [live.labels[output] for output in outputs], numbers, first
    )


def _outputs(live: StoredStream, cells: Sequence[str]) -> list[int]:
    """The numbers of the named cells, each once; of all cells where none is named."""
    labels = list(live.labels)
    for cell in cells:
        if cell not in labels:
            raise ParameterError(f"the stream {live.name!r} has no cell {cell!r:.80}")
    return [labels.index(cell) for cell in dict.fromkeys(cells)] or list(range(len(labels)))


def _view(
    store: Reading, live: StoredStream, name: str, outputs: list[int], limit: int, numbers: int
) -> View:
    """The newest spans of a view; fewer of them where one span reads many numbers."""
    declaration = live.declaration
    own_ticks = declaration.query.publishing.own_ticks
    name = PER_TICK if own_ticks and name == RUNNING else name
    check_views([name], declaration.query, declaration.schedule, declaration.stream_postprocess)
    wide = declaration.query.discovery is not None
    columns = needed_columns(outputs, len(live.labels)) if wide else outputs
    spans = newest_spans(
        name, declaration.schedule, live.closed, max(1, min(limit, numbers // len(columns)))
    )
    return store.view(live, name, spans, live.labels, outputs)


def _aligned(
    live: StoredStream, view: View, other: StoredStream, theirs: View
) -> tuple[IntArray, IntArray]:
    """The places of the spans that begin and end together in the views of two streams."""
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
    """When each span begins and ends; for manual clocks its ticks."""
    schedule, spans = (
        live.declaration.schedule,
        list(zip(view.first.tolist(), view.last.tolist(), strict=True)),
    )
    return (
        spans
        if schedule.manual
        else [(schedule.start_of(a), schedule.start_of(b + 1)) for a, b in spans]
    )
