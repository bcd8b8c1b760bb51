"""Work that requests have computed, in few threads and with few places for each client."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar

from evercount.errors import HttpProblem

T = TypeVar("T")

RETRY_SECONDS = 2.0


def busy(
    message: str = "the service is stopping",
    remedy: str = "Send it again when the service is back.",
) -> HttpProblem:
    return HttpProblem(503, "Busy", message, remedy, retry=RETRY_SECONDS)


class ComputationQueue:
    """Computations in the order of their requests. A cancelled future gives its place back at once.
    The threads are daemons, so that a long computation does not keep a service that stops. `what`
    is what clients call the work."""

    def __init__(self, threads: int, most: int, most_per_client: int, what: str = "plans") -> None:
        self.most = most
        self.most_per_client = most_per_client
        self._what = what
        self._idle = threads  # threads that may be started
        self._lock = threading.Lock()
        self._waiting: OrderedDict[Future[Any], Callable[[], Any]] = OrderedDict()
        self._places: dict[Future[Any], str] = {}
        self._closed = False

    def submit(self, client: str, work: Callable[[], T]) -> Future[T]:
        """Compute something for a client; HttpProblem 429 if it has too much under way, 503 if all
        together have."""
        future: Future[T] = Future()
        with self._lock:
            if self._closed:
                raise busy()
            if list(self._places.values()).count(client) >= self.most_per_client:
                raise HttpProblem(
                    429,
                    "TooManyRequests",
                    f"{self.most_per_client} {self._what} of this client are being computed or "
                    "waiting",
                    "Wait for one of them, or cancel its request.",
                    retry=RETRY_SECONDS,
                )
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
        """Give the place of a computation back."""
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
            except Exception as failure:  # noqa: BLE001 - it belongs to the client
                answer = partial(future.set_exception, failure)
            with suppress(InvalidStateError):  # it was refused meanwhile
                answer()
