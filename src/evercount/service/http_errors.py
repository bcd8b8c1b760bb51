"""One shape for every error: {"error": {"type", "message", "remedy"}}."""

from __future__ import annotations

import json
import logging
import traceback
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic_core import PydanticSerializationError, to_json
from starlette.exceptions import HTTPException
from starlette.responses import Response

from evercount import errors
from evercount.errors import CatchingUp, StoreError

log = logging.getLogger("evercount.service")

LONGEST_MESSAGE = 1000

REMEDIES: tuple[tuple[type[Exception], int, str], ...] = (
    (errors.TooEarly, 425, "Send the same batch again when its tick has begun."),
    (errors.Conflict, 409, "Use another name or another Idempotency-Key."),
    (CatchingUp, 503, "Send the same batch again after Retry-After seconds; /readyz says when all is caught up."),
    (errors.Busy, 503, "Send fewer, larger batches, and try again after a second."),
    (errors.StreamStopped, 503, "The operator finds the reason in the log of the service."),
    (StoreError, 503, "Send the same request again; if it keeps failing, the operator finds the reason in the log."),
    (errors.HorizonReached, 409, "Declare a new stream for what comes later."),
    (errors.BudgetExceeded, 409, "Declare it with a smaller budget; the operator may raise the cap of the store."),
    (errors.AlreadyReleased, 409, "Read the release; a closed tick does not change."),
    (errors.InputError, 422, "Correct the events and send all of the batch again; nothing of it was counted."),
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
    """JSON that any text fits into: strict numbers, plain ASCII."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """See `Response`. The quick writer takes NaN and refuses half a surrogate pair: then the strict one decides."""
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
    status: int, kind: str, message: str, remedy: str, retry: float | None = None, events: int | None = None
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
    if isinstance(error, errors.Problem):
        return answer(error.status, error.kind, error.message, error.remedy or remedy_of(error.status), error.retry)
    for kind, status, remedy in REMEDIES:
        if isinstance(error, kind):
            retry = getattr(error, "retry", 1.0) if status in (425, 503) else None
            # a StoreError may name files, hosts and ports of the operator: that is for the log
            message = "the store cannot be used at the moment" if kind is StoreError else str(error)
            return answer(status, type(error).__name__, message, remedy, retry, getattr(error, "events", None))
    frames = "".join(traceback.format_tb(error.__traceback__))
    log.error("unexpected %s\n%s", type(error).__name__, frames)  # its text could hold data, so it is omitted
    return answer(
        500, "InternalError", "the service failed unexpectedly", "Try again; the operator finds the place in the log."
    )


async def _answer_to_bad_request(_: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    where = ".".join(str(part) for part in first.get("loc", ()))
    return answer(422, "ParameterError", f"{where}: {first.get('msg', 'not valid')}", "Correct the request.")


async def _answer_to_http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    kind = {404: "NotFound", 405: "MethodNotAllowed"}.get(error.status_code, "HttpError")
    response = answer(error.status_code, kind, str(error.detail), remedy_of(error.status_code))
    response.headers.update(error.headers or {})
    return response


async def _answer_to_our_error(_: Request, error: Exception) -> Response:
    return describe(error)


def install(app: FastAPI) -> None:
    app.add_exception_handler(RequestValidationError, _answer_to_bad_request)
    app.add_exception_handler(HTTPException, _answer_to_http_error)
    app.add_exception_handler(errors.EvercountError, _answer_to_our_error)
