"""Errors that are known before any event: of a stream over its ticks, and of every mechanism for a budget.

`PlanQueue` computes them for anyone who asks, in few threads, with few places for each client.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, TypeVar

import numpy as np

from evercount.declarations.view_names import noise_views
from evercount.errors import Problem
from evercount.privacy import Budget
from evercount.queries import Query
from evercount.store import AnyStream, EndedStream
from evercount.text_rules import finite

T = TypeVar("T")

RETRY_SECONDS = 2.0
KEPT_PLANS = 32  # plans that are kept, in the service: each has some hundred kilobytes
UNBOUNDED_PLAN = 2**20  # how far ahead the error of a stream without horizon is shown


def own_plan(live: AnyStream, points: int) -> dict[str, Any]:
    """The stream's own error over its ticks, of what it shows."""
    # the errors of an ended stream are those of its declaration; there is no noise left to ask
    stream = live.declaration.build(replay=True) if isinstance(live, EndedStream) else live.stream
    last = live.declaration.horizon or UNBOUNDED_PLAN
    ticks = np.unique(np.rint(np.geomspace(1, last, points)).astype(np.int64))
    std = stream.std(ticks, *noise_views([live.declaration.shown], live.declaration.schedule))
    known = stream.thresholds
    public = {} if known is None else {"thresholds": {t: known.at(t) for t in ticks.tolist() if known.discovers(t)}}
    return {
        **public,
        "stream": live.name,
        "view": live.declaration.shown,
        "ticks": ticks.tolist(),
        "std": np.asarray(std).max(axis=1).tolist(),
        "sigma": stream.sigma,
        "factorization": stream.factorization.name,
    }


@lru_cache(maxsize=2 * KEPT_PLANS)
def all_plans(
    budget: Budget, horizon: int | None, query: Query | None = None, views: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The errors of all mechanisms for a budget and a horizon; with `views` of each, with every noise."""
    from evercount.planning import plan_views
    from evercount.planning.compare import plan

    found = plan_views(budget, horizon, views) if views else plan(budget, horizon, query)
    return dict(finite(found.to_dict()))


def _busy(message: str = "the service is stopping", remedy: str = "Send it again when the service is back.") -> Problem:
    return Problem(503, "Busy", message, remedy, retry=RETRY_SECONDS)


class PlanQueue:
    """Work waits in the order in which it was asked for. A cancelled future gives its place back at once. The threads
    are daemons, so that a long computation does not keep a service that stops."""

    def __init__(self, threads: int, most: int, most_per_client: int) -> None:
        self.most, self.most_per_client = most, most_per_client
        self._threads = threads
        self._started = 0
        self._change = threading.Condition()
        self._waiting: OrderedDict[Future[Any], Callable[[], Any]] = OrderedDict()
        self._places: dict[Future[Any], str] = {}
        self._closed = False

    def submit(self, client: str, work: Callable[[], T]) -> Future[T]:
        """Compute something for a client; Problem 429 if it has too much under way, 503 if all together have."""
        future: Future[T] = Future()
        with self._change:
            if self._closed:
                raise _busy()
            if list(self._places.values()).count(client) >= self.most_per_client:
                message = f"{self.most_per_client} plans of this client are being computed or waiting"
                remedy = "Wait for one of them, or end its request."
                raise Problem(429, "TooManyRequests", message, remedy, retry=RETRY_SECONDS)
            if len(self._places) >= self.most:
                raise _busy("too many plans are waiting to be computed", "Try again.")
            self._waiting[future] = work
            self._places[future] = client
            if self._started < self._threads:
                self._started += 1
                threading.Thread(target=self._run, name="evercount-plan", daemon=True).start()
            self._change.notify()
        future.add_done_callback(self._leave)
        return future

    def close(self) -> None:
        """Refuse everything that waits or is being computed, and whatever comes later."""
        with self._change:
            self._closed = True
            futures = list(self._places)
            self._change.notify_all()
        for future in futures:
            with suppress(InvalidStateError):
                future.set_exception(_busy())

    def _leave(self, future: Future[Any]) -> None:
        with self._change:
            self._waiting.pop(future, None)
            del self._places[future]

    def _run(self) -> None:
        while True:
            with self._change:
                self._change.wait_for(lambda: self._waiting or self._closed)
                if self._closed:
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
