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


TEXT = {"type": "string"}
ERROR = _object(
    ["error"], {"error": _object(["type", "message", "remedy"], dict.fromkeys(("type", "message", "remedy"), TEXT))}
)

MEANINGS = {
    401: "a token is missing or unknown",
    403: "the token's role does not allow it",
    404: "there is no such thing",
    409: "it is in the way of something that exists or is over",
    410: "the stream is over",
    413: "the body is too long",
    415: "the body is of another kind",
    422: "the request is not legal",
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
TOKEN = _body(
    _json(_object(["role"], {"role": {"enum": ["admin", "write", "read"]}, "label": TEXT}, additionalProperties=False))
)
NOTE = _body(
    _json(
        _object(
            ["first"],
            {
                "first": {"type": ["integer", "string"]},
                "last": {"type": ["integer", "string", "null"]},
                "text": {"type": "string", "maxLength": 500},
                "missing": {"enum": ["drop", "next", None]},
            },
            additionalProperties=False,
        )
    )
)

SEND = 'curl -H "Authorization: Bearer $TOKEN"'
HOST = "http://127.0.0.1:8000"
EXAMPLES: dict[tuple[str, str], str] = {
    ("get", "/v1/streams"): f"curl {HOST}/v1/streams",
    ("post", "/v1/streams"): (
        f"{SEND} {HOST}/v1/streams -d '{{\n"
        '  "name": "flu", "public": true,\n'
        '  "query": {"name": "histogram", "parameters": {"keys": ["North", "South"]}},\n'
        '  "budget": {"epsilon": 1.0, "delta": 1e-9},\n'
        '  "tick": "1h", "late": "next"}\''
    ),
    ("get", "/v1/streams/{name}"): f"curl {HOST}/v1/streams/flu",
    ("delete", "/v1/streams/{name}"): f"{SEND} -X DELETE '{HOST}/v1/streams/flu?successor=flu-2&reason=a+new+region'",
    ("post", "/v1/streams/{name}/events"): (
        f'{SEND} -H "Content-Type: application/json" -H "Idempotency-Key: $(uuidgen)" \\\n'
        f'  {HOST}/v1/streams/flu/events -d \'["North", {{"key": "South", "time": "2026-01-01T09:30:00Z"}}]\''
    ),
    ("post", "/v1/streams/{name}/open"): f"{SEND} -X POST {HOST}/v1/streams/flu/open",
    ("post", "/v1/streams/{name}/notes"): (
        f'{SEND} {HOST}/v1/streams/flu/notes -d \'{{"first": 1, "text": "reporting system down"}}\''
    ),
    ("post", "/v1/streams/{name}/close-tick"): f"{SEND} -X POST '{HOST}/v1/streams/minutes-used/close-tick?tick=1'",
    ("get", "/v1/streams/{name}/releases"): f"curl '{HOST}/v1/streams/flu/releases?after=1&limit=24'",
    ("get", "/v1/streams/{name}/cells"): f"curl '{HOST}/v1/streams/flu/cells'",
    ("get", "/v1/streams/{name}/labels"): f"curl '{HOST}/v1/streams/flu/labels?first_cell=0&cells=1000'",
    ("get", "/v1/streams/{name}/releases.{kind}"): f"curl -O {HOST}/v1/streams/flu/releases.csv",
    ("get", "/v1/streams/{name}/live"): f"curl -N -H 'Last-Event-ID: 1' {HOST}/v1/streams/flu/live",
    ("get", "/v1/streams/{name}/plan"): f"curl '{HOST}/v1/streams/flu/plan?epsilon=2'",
    ("get", "/v1/plan"): f"curl '{HOST}/v1/plan?epsilon=1&delta=1e-9&horizon=720'",
    ("get", "/v1/ledger"): f"{SEND} {HOST}/v1/ledger",
    ("get", "/v1/tokens"): f"{SEND} {HOST}/v1/tokens",
    ("post", "/v1/tokens"): f'{SEND} {HOST}/v1/tokens -d \'{{"role": "write", "label": "clinic 7"}}\'',
    ("delete", "/v1/tokens/{number}"): f"{SEND} -X DELETE {HOST}/v1/tokens/1",
    ("post", "/v1/clock"): f"{SEND} -X POST {HOST}/v1/clock",
    ("get", "/healthz"): f"curl {HOST}/healthz",
    ("get", "/readyz"): f"curl {HOST}/readyz",
    ("get", "/metrics"): f"{SEND} {HOST}/metrics",
}
"""One command for each operation, as `/docs` shows it. Test:
`tests/service/test_service_examples.py::test_every_operation_has_an_example_that_the_service_takes`."""


def answers() -> dict[str, Any]:
    """What the service answered to the commands of EXAMPLES, by "METHOD path"; long lists are cut.

    `EVERCOUNT_WRITE_ANSWERS=1 pytest tests/service/test_service_examples.py` writes the file anew.
    """
    text = resources.files("evercount.service").joinpath("example_answers.json").read_text("utf-8")
    recorded: dict[str, Any] = json.loads(text)
    return recorded


def sent_body(command: str) -> Any:
    """The JSON that an example sends, or None."""
    words = shlex.split(command.replace("\\\n", ""))
    return json.loads(words[words.index("-d") + 1]) if "-d" in words else None


def complete(described: dict[str, Any]) -> None:
    """Add the schema of a declaration, and for each operation its command and the bodies of request and answer."""
    schema = declaration_schema()
    schemas = described.setdefault("components", {}).setdefault("schemas", {})
    schemas |= {**schema.pop("$defs"), "StreamDeclaration": schema}
    recorded = answers()
    for (method, path), command in EXAMPLES.items():
        operation = described["paths"][path][method]
        operation["x-codeSamples"] = [{"lang": "Shell", "label": "curl", "source": command}]
        if "requestBody" in operation:
            operation["requestBody"]["content"]["application/json"]["example"] = sent_body(command)
        for status, answer in operation["responses"].items():
            if status.startswith("2") and (example := recorded.get(f"{method.upper()} {path}")) is not None:
                answer["content"] = {"application/json": {"schema": {}, "example": example}}


def declaration_schema() -> dict[str, Any]:
    """The JSON schema of a declaration, its tables under `$defs`, with references as OpenAPI has them."""
    schema = MODEL.json_schema(ref_template="#/components/schemas/{model}")
    fields = schema["$defs"]["Budget"]["properties"]
    del fields[COMPUTED]
    for name, field_schema in fields.items():
        field_schema["description"] = budget_fields()[name]
    return schema
