"""How the API answers to errors, and what the types of its handlers cannot say of it.

Every error has one shape: {"error": {"type", "message", "remedy"}}.
"""

from __future__ import annotations

import json
import logging
import shlex
import traceback
from importlib import resources
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import TypeAdapter
from pydantic_core import PydanticSerializationError, to_json
from starlette.exceptions import HTTPException
from starlette.responses import Response

from evercount import errors
from evercount.declarations.declaration import MODEL
from evercount.declarations.fields import COMPUTED, budget_fields
from evercount.declarations.view_names import NewMark
from evercount.errors import CatchingUp, StoreError
from evercount.service.access import NewToken
from evercount.service.read_events import PAYLOADS

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


def install(app: FastAPI) -> None:
    app.add_exception_handler(RequestValidationError, _answer_to_bad_request)
    app.add_exception_handler(HTTPException, _answer_to_http_error)
    app.add_exception_handler(errors.EvercountError, lambda _, error: describe(error))


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _body(content: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": content}}


TEXT, NUMBER = {"type": "string"}, {"type": "number"}
_SAID = dict.fromkeys(("type", "message", "remedy"), TEXT)
_ERROR = {"type": "object", "required": [*_SAID], "properties": _SAID}
ERRORS: dict[int | str, dict[str, Any]] = {
    "default": {
        "description": "the request is refused, or failed",
        "content": _json({"type": "object", "required": ["error"], "properties": {"error": _ERROR}}),
    }
}

_PARTS: dict[str, Any] = {name: {} for name in PAYLOADS} | {"user": TEXT, "time": {"anyOf": [TEXT, NUMBER]}}
_EVENT: dict[str, Any] = {
    "description": "a key, a list of keys, a number, or an object that holds one of these and may hold user and time",
    "anyOf": [
        TEXT,
        NUMBER,
        {"type": "array"},
        {"type": "object", "properties": _PARTS, "additionalProperties": False},
    ],
}

EVENTS = _body({**_json({"type": "array", "items": _EVENT}), "application/x-ndjson": {"schema": TEXT}})
DECLARATION = _body(_json({"$ref": "#/components/schemas/StreamDeclaration"}))
TOKEN, NOTE = (_body(_json(TypeAdapter(table).json_schema())) for table in (NewToken, NewMark))


def examples() -> dict[str, dict[str, Any]]:
    """For each operation, by "METHOD path": a `command`, and the `answer` of the service, with long lists cut, or None.
    `EVERCOUNT_WRITE_ANSWERS=1 pytest tests/service/test_service_examples.py` runs the commands and writes the
    answers."""
    return dict(json.loads(resources.files("evercount.service").joinpath("examples.json").read_text("utf-8")))


def sent_body(command: str) -> Any:
    words = shlex.split(command.replace("\\\n", ""))
    return json.loads(words[words.index("-d") + 1]) if "-d" in words else None


def complete(described: dict[str, Any]) -> None:
    """Add the schema of a declaration, and for each operation its command and the bodies of request and answer."""
    schema = declaration_schema()
    schemas = described.setdefault("components", {}).setdefault("schemas", {})
    schemas |= {**schema.pop("$defs"), "StreamDeclaration": schema}
    for name, example in examples().items():
        method, path = name.lower().split()
        operation = described["paths"][path][method]
        operation["x-codeSamples"] = [{"lang": "Shell", "label": "curl", "source": example["command"]}]
        if "requestBody" in operation:
            operation["requestBody"]["content"]["application/json"]["example"] = sent_body(example["command"])
        for status, answer in operation["responses"].items():
            if status.startswith("2") and example["answer"] is not None:
                answer["content"] = {"application/json": {"schema": {}, "example": example["answer"]}}


def declaration_schema() -> dict[str, Any]:
    """The JSON schema of a declaration, its tables under `$defs`, with references as OpenAPI has them."""
    schema = MODEL.json_schema(ref_template="#/components/schemas/{model}")
    fields = schema["$defs"]["Budget"]["properties"]
    del fields[COMPUTED]
    for name, field_schema in fields.items():
        field_schema["description"] = budget_fields()[name]
    return schema
