"""The description of the API: what the types of its handlers cannot say of it."""

from __future__ import annotations

import json
import logging
import shlex
from importlib import resources
from typing import Any

from pydantic import TypeAdapter

from evercount.declarations.declaration import MODEL
from evercount.declarations.fields import COMPUTED, budget_fields
from evercount.declarations.tick_marks import NewMark
from evercount.service.access import NewToken
from evercount.service.read_events import PAYLOADS

log = logging.getLogger("evercount.service")


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _body(content: dict[str, Any]) -> dict[str, Any]:
    return {"requestBody": {"required": True, "content": content}}


TEXT = {"type": "string"}
NUMBER = {"type": "number"}
_ERROR_PARTS = dict.fromkeys(("type", "message", "remedy"), TEXT)
_ERROR = {"type": "object", "required": [*_ERROR_PARTS], "properties": _ERROR_PARTS}
ERRORS: dict[int | str, dict[str, Any]] = {
    "default": {
        "description": "the request is refused, or failed",
        "content": _json(
            {"type": "object", "required": ["error"], "properties": {"error": _ERROR}}
        ),
    }
}

_EVENT_PARTS: dict[str, Any] = {name: {} for name in PAYLOADS} | {
    "user": TEXT,
    "time": {"anyOf": [TEXT, NUMBER]},
}
_EVENT: dict[str, Any] = {
    "description": (
        "a key, a list of keys, a number, or an object that holds one of these and may hold user "
        "and time"
    ),
    "anyOf": [
        TEXT,
        NUMBER,
        {"type": "array"},
        {"type": "object", "properties": _EVENT_PARTS, "additionalProperties": False},
    ],
}

EVENTS = _body(
    {**_json({"type": "array", "items": _EVENT}), "application/x-ndjson": {"schema": TEXT}}
)
DECLARATION = _body(_json({"$ref": "#/components/schemas/StreamDeclaration"}))
TOKEN = _body(_json(TypeAdapter(NewToken).json_schema()))
NOTE = _body(_json(TypeAdapter(NewMark).json_schema()))


def examples() -> dict[str, dict[str, Any]]:
    """For each operation, by "METHOD path": a `command`, and the `answer` of the service, with long
    lists cut, or None. `EVERCOUNT_WRITE_ANSWERS=1 pytest tests/service/test_service_examples.py`
    runs the commands and writes the answers."""
    return dict(
        json.loads(
            resources.files("evercount.service").joinpath("examples.json").read_text("utf-8")
        )
    )


def sent_body(command: str) -> Any:
    """The JSON that an example's command sends; None if it sends none."""
    words = shlex.split(command.replace("\\\n", ""))
    if "-d" not in words:
        return None
    return json.loads(words[words.index("-d") + 1])


def complete(described: dict[str, Any]) -> None:
    """Add the schema of a declaration, and for each operation its command and the bodies of request
    and answer."""
    schema = declaration_schema()
    schemas = described.setdefault("components", {}).setdefault("schemas", {})
    schemas |= {**schema.pop("$defs"), "StreamDeclaration": schema}
    for name, example in examples().items():
        method, path = name.lower().split()
        operation = described["paths"][path][method]
        operation["x-codeSamples"] = [
            {"lang": "Shell", "label": "curl", "source": example["command"]}
        ]
        if "requestBody" in operation:
            operation["requestBody"]["content"]["application/json"]["example"] = sent_body(
                example["command"]
            )
        for status, answer in operation["responses"].items():
            if status.startswith("2") and example["answer"] is not None:
                answer["content"] = {
                    "application/json": {"schema": {}, "example": example["answer"]}
                }


def declaration_schema() -> dict[str, Any]:
    """The JSON schema of a declaration, its tables under `$defs`, with references as OpenAPI has
    them."""
    schema = MODEL.json_schema(ref_template="#/components/schemas/{model}")
    fields = schema["$defs"]["Budget"]["properties"]
    del fields[COMPUTED]
    for name, field_schema in fields.items():
        field_schema["description"] = budget_fields()[name]
    return schema
