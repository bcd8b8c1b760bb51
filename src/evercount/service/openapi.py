"""The parts of the API's description that the handlers' types cannot say."""

from __future__ import annotations

import json
import shlex
from importlib import resources
from typing import Any

from evercount.declarations.declaration import MODEL
from evercount.declarations.field_types import COMPUTED, budget_fields
from evercount.service.read_events import PAYLOADS


def _object(required: list[str], properties: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": "object", "required": required, **more, "properties": properties}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _body(content: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": content}}


def _json_body(required: str, **properties: Any) -> dict[str, Any]:
    return _body(_json(_object([required], properties, additionalProperties=False)))


TEXT = {"type": "string"}
ERROR = _object(
    ["error"], {"error": _object(["type", "message", "remedy"], dict.fromkeys(("type", "message", "remedy"), TEXT))}
)

MEANINGS = {
    401: "a token is missing or unknown",
    403: "the token's role does not allow it",
    404: "not found",
    409: "it conflicts with something that exists or has ended",
    410: "the stream has ended",
    413: "the body is too long",
    415: "the body has an unsupported type",
    422: "the request is invalid",
    425: "a tick has not begun",
    429: "too many requests",
    501: "an optional part is not installed",
    503: "the store cannot be written now",
}

ERRORS: dict[int | str, dict[str, Any]] = {
    status: {"description": meaning, "content": _json(ERROR)} for status, meaning in MEANINGS.items()
}

_EVENT: dict[str, Any] = {
    "description": "a key, a list of keys, a number, or an object that holds one of these and may hold user and time",
    "anyOf": [
        TEXT,
        {"type": "number"},
        {"type": "array"},
        {
            "type": "object",
            "properties": {
                **{name: {} for name in PAYLOADS},
                "user": TEXT,
                "time": {"anyOf": [TEXT, {"type": "number"}]},
            },
            "additionalProperties": False,
        },
    ],
}

EVENTS = _body({**_json({"type": "array", "items": _EVENT}), "application/x-ndjson": {"schema": TEXT}})
DECLARATION = _body(_json({"$ref": "#/components/schemas/StreamDeclaration"}))
TOKEN = _json_body("role", role={"enum": ["admin", "write", "read"]}, label=TEXT)
NOTE = _json_body(
    "first",
    first={"type": ["integer", "string"]},
    last={"type": ["integer", "string", "null"]},
    text={"type": "string", "maxLength": 500},
    missing={"enum": ["drop", "next", None]},
)

HOST = "http://127.0.0.1:8000"  # whom the commands of the examples ask


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
