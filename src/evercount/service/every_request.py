"""What happens around every request: its client's rate, headers for safety, counts, and the answer
to an error.

Every error has one shape: {"error": {"type", "message", "remedy"}}.
"""

from __future__ import annotations

import json
import logging
import time
import traceback
from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from prometheus_client import CollectorRegistry, Counter, Histogram, ProcessCollector
from prometheus_client.core import Metric
from pydantic_core import PydanticSerializationError, to_json
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evercount import errors
from evercount.errors import CatchingUp, StoreError
from evercount.service.log_format import CLIENTS
from evercount.service.sse import HEAD_ONLY

if TYPE_CHECKING:
    from evercount.service.runtime import Service

log = logging.getLogger("evercount.service")
clients = logging.getLogger(CLIENTS)

# counted for a client that left before its request was complete; nobody receives it
WENT_AWAY = 499
SAFETY = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": (
        "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
        "frame-ancestors 'none'"
    ),
    "Cache-Control": "no-store",
}


class Watch:
    """Around every request: the client's rate, the safety headers, the metrics, and exceptions that
    no handler caught."""

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self.app = app
        self.service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began = time.perf_counter()
        status = 0
        routed = scope
        if scope["method"] == "HEAD":
            # the routes know GET only: the server leaves out the body of an answer to HEAD
            routed = {**scope, "method": "GET", HEAD_ONLY: True}

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                for name, value in SAFETY.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            self.service.buckets.take(self.service.access.client(scope))
            await self.app(routed, receive, watched)
        except ClientDisconnect:
            status = WENT_AWAY
            clients.warning(
                "a client disconnected during its request: %s %s", scope["method"], route_of(routed)
            )
        except Exception as error:  # noqa: BLE001
            # the last one to catch it; the answer tells nothing but its kind
            answer = describe(error)  # this also writes unexpected ones to the log
            if not status:
                await answer(routed, receive, watched)
        finally:
            self.service.requests.record(
                scope["method"], route_of(routed), status, time.perf_counter() - began
            )


def route_of(scope: Scope) -> str:
    """The route's pattern, without the names in the request's path."""
    return str(getattr(scope.get("route"), "path", "other"))


BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
RECENT_BATCHES = 2000
EVENTS = "/v1/streams/{name}/events"
QUANTILES = (0.5, 0.99)
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
"""Methods that have a series of their own; clients may send any word."""


class Requests:
    """Requests by route and status, how long they took, and how large things are. For admins
    only."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Counter(
            "evercount_requests",
            "Requests by route and status, except accepted batches.",
            ["method", "route", "status"],
            registry=self._registry,
        )
        self._seconds = Histogram(
            "evercount_request_seconds",
            "Duration of requests, except accepted batches.",
            buckets=BUCKETS,
            registry=self._registry,
        )
        ProcessCollector(registry=self._registry)
        self._latest: deque[float] = deque(maxlen=RECENT_BATCHES)

    def record(self, method: str, route: str, status: int, seconds: float) -> None:
        if route == EVENTS and status < 300:
            self._latest.append(seconds)
            return
        self._requests.labels(method if method in METHODS else "other", route, str(status)).inc()
        if not route.endswith("/live"):
            self._seconds.observe(seconds)

    def collect(self) -> Iterator[Metric]:
        """Accepted batches are not counted here either: of them there are recent durations only."""
        for metric in self._registry.collect():
            metric.samples = [
                sample for sample in metric.samples if not sample.name.endswith("_created")
            ]
            yield metric
        # a summary without its count, which would be that of the batches
        recent = Metric(
            "evercount_accept_seconds", "Recent durations of accepted batches.", "summary"
        )
        ordered = sorted(self._latest)
        if ordered:
            for share in QUANTILES:
                place = min(len(ordered) - 1, int(share * len(ordered)))
                recent.add_sample(recent.name, {"quantile": str(share)}, ordered[place])
        yield recent


LONGEST_MESSAGE = 1000

REMEDIES: tuple[tuple[type[Exception], int, str], ...] = (
    (errors.TooEarly, 425, "Send the same batch again when its tick has begun."),
    (errors.Conflict, 409, "Use another name or another Idempotency-Key."),
    (
        CatchingUp,
        503,
        "Send the same batch again after Retry-After seconds; /readyz says when all is caught up.",
    ),
    (errors.Busy, 503, "Send fewer, larger batches, and try again after a second."),
    (errors.StreamStopped, 503, "The operator can find the reason in the log of the service."),
    (
        StoreError,
        503,
        (
            "Send the same request again; if it keeps failing, the operator can find the reason in "
            "the log."
        ),
    ),
    (errors.HorizonReached, 409, "Declare a new stream for what comes later."),
    (
        errors.BudgetExceeded,
        409,
        "Declare it with a smaller budget; the operator may raise the cap of the store.",
    ),
    (errors.AlreadyReleased, 409, "Read the release; a closed tick does not change."),
    (
        errors.InputError,
        422,
        "Correct the events and send all of the batch again; nothing of it was counted.",
    ),
    (errors.ParameterError, 422, "Correct the request; nothing was changed."),
    (errors.MissingExtra, 501, "Install the optional part on the server."),
    (errors.EvercountError, 422, "Correct the request."),
)

STATUS_REMEDIES = {
    401: "Send a token: Authorization: Bearer TOKEN.",
    403: "Use a token with the right role.",
    404: "The list of streams is at /v1/streams, the description of the API at /docs.",
    405: "The description of the API is at /docs.",
    410: "Read its history; see its successor, if it has one.",
    413: "Send smaller batches.",
    415: "Send application/json or application/x-ndjson.",
    429: "Wait as long as Retry-After says; send fewer, larger batches.",
}


class Json(Response):
    """JSON of any text: strict numbers, plain ASCII."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """See `Response`. The quick writer takes NaN and refuses half a surrogate pair: then the
        strict one decides."""
        try:
            quick = to_json(content, ensure_ascii=True)
        except PydanticSerializationError:
            quick = b"NaN"
        if b"NaN" in quick or b"Infinity" in quick:
            return json.dumps(content, separators=(",", ":"), allow_nan=False).encode("ascii")
        return quick


def remedy_of(status: int) -> str:
    return STATUS_REMEDIES.get(status, "See the description of the API at /docs.")


def answer(
    status: int,
    kind: str,
    message: str,
    remedy: str,
    retry: float | None = None,
    events: int | None = None,
) -> Json:
    headers = {"Cache-Control": "no-store"}
    if retry is not None:
        headers["Retry-After"] = str(max(1, round(retry)))
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    error: dict[str, Any] = {"type": kind, "message": message[:LONGEST_MESSAGE], "remedy": remedy}
    if events is not None:
        error["events"] = events
    return Json({"error": error}, status_code=status, headers=headers)


def describe(error: Exception) -> Json:
    """The answer to any exception; of an unexpected one nothing but its kind leaves the process."""
    if isinstance(error, errors.HttpProblem):
        return answer(
            error.status,
            error.kind,
            error.message,
            error.remedy or remedy_of(error.status),
            error.retry,
        )
    for kind, status, remedy in REMEDIES:
        if isinstance(error, kind):
            retry = None
            if status in (425, 503):
                retry = getattr(error, "retry", 1.0)
            message = str(error)
            if kind is StoreError:
                # its text may name files, hosts and ports of the operator: that is for the log
                message = "the store cannot be used at the moment"
            return answer(
                status, type(error).__name__, message, remedy, retry, getattr(error, "events", None)
            )
    frames = "".join(traceback.format_tb(error.__traceback__))
    # its text could hold data, so it is omitted
    log.error("unexpected %s\n%s", type(error).__name__, frames)
    return answer(
        500,
        "InternalError",
        "the service failed unexpectedly",
        "Try again; the operator can find this in the log.",
    )


async def _answer_to_bad_request(_: Request, error: Exception) -> Response:
    """Name the first part of a request that does not fit its route's types."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first.get("loc", ()))
    return answer(
        422, "ParameterError", f"{where}: {first.get('msg', 'not valid')}", "Correct the request."
    )


async def _answer_to_http_error(_: Request, error: Exception) -> Response:
    """Give the framework's own errors the shape of all others."""
    assert isinstance(error, HTTPException)
    kind = {404: "NotFound", 405: "MethodNotAllowed"}.get(error.status_code, "HttpError")
    response = answer(error.status_code, kind, str(error.detail), remedy_of(error.status_code))
    response.headers.update(error.headers or {})
    return response


def answer_errors(app: FastAPI) -> None:
    app.add_exception_handler(RequestValidationError, _answer_to_bad_request)
    app.add_exception_handler(HTTPException, _answer_to_http_error)
    app.add_exception_handler(errors.EvercountError, lambda _, error: describe(error))
