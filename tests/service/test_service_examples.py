"""The examples of /docs and of the OpenAPI description: each command is run word by word, each
answer is a real one."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

import httpx
import pytest

from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.streams_file import read_declarations
from evercount.service.openapi import declaration_schema, examples, sent_body
from evercount.service.runtime import Service
from evercount.store import Store
from served_service import ADMIN, HEADERS, HandClock, served

jsonschema_rs = pytest.importorskip(
    "jsonschema_rs", reason="jsonschema-rs is not installed: pip install schemathesis"
)

ROOT = Path(__file__).parents[2]
FILE = ROOT / "src" / "evercount" / "service" / "examples.json"
KNOWN = examples()
COMMANDS = {tuple(name.lower().split()): one["command"] for name, one in KNOWN.items()}
NOON = 1_767_260_700.0  # 2026-01-01T09:45Z, in the hour of the example's event
MANUAL = {"name": "minutes-used", "query": "count", "budget": {"epsilon": 0.5, "delta": 1e-10}}


def shape(value: Any) -> Any:
    """The names and kinds of an answer, without its numbers; a list counts by its first item."""
    if isinstance(value, dict):
        return {name: shape(part) for name, part in value.items()}
    if isinstance(value, list):
        return [shape(part) for part in value[:1]]
    return "number" if type(value) in (int, float) else type(value).__name__


def cut(value: Any) -> Any:
    """The answer with lists of at most three items, and without a token."""
    if isinstance(value, dict):
        return {name: "TOKEN" if name == "token" else cut(part) for name, part in value.items()}
    return [cut(part) for part in value[:3]] if isinstance(value, list) else value


def send(client: httpx.Client, method: str, path: str) -> Any:
    """Run an example; its JSON answer, or None where it is no JSON."""
    command = (
        COMMANDS[method, path]
        .replace("$TOKEN", ADMIN)
        .replace("$(uuidgen)", "k")
        .replace("\\\n", "")
    )
    words = shlex.split(command)
    assert words[0] == "curl"
    host = "http://127.0.0.1:8000"
    address = next(word for word in words if word.startswith(host)).removeprefix(host)
    headers = dict(words[i + 1].split(": ", 1) for i, word in enumerate(words) if word == "-H")
    body = next((words[i + 1] for i, word in enumerate(words) if word == "-d"), None)
    stated = next(
        (words[i + 1] for i, word in enumerate(words) if word == "-X"), "POST" if body else "GET"
    )
    assert stated.lower() == method
    with client.stream(stated, address, headers=headers, content=body) as answer:
        assert answer.status_code in (200, 201), (method, path, answer.status_code)
        kind = answer.headers["content-type"]
        return json.loads(answer.read()) if kind == "application/json" else None


def test_every_operation_has_an_example_that_the_service_takes(tmp_path: Path) -> None:
    clock = HandClock(NOON)
    service = Service(Store(tmp_path / "a.db"), clock=clock, admin=ADMIN)
    with served(service) as client:
        api = client.get("/openapi.json").json()
        described = api["paths"]
        assert set(COMMANDS) == {
            (method, path) for path, methods in described.items() for method in methods
        }
        client.post("/v1/streams", json=MANUAL, headers=HEADERS).raise_for_status()
        order = [
            ("post", "/v1/streams"),
            ("post", "/v1/streams/{name}/events"),
            ("post", "/v1/tokens"),
        ]
        got = {one: send(client, *one) for one in order}
        clock.moment += 3 * 3600

        # in the writer's thread: the service itself may have closed some
        def close_three() -> None:
            live = service.store.find("flu")
            if live.closed < 3:
                service.store.close_ticks(live, 3 - live.closed, clock.moment)

        service.writer.submit(close_three).result(300)
        rest = sorted(
            (one for one in COMMANDS if one not in order), key=lambda one: (one[0] == "delete", one)
        )
        got |= {one: send(client, *one) for one in rest}
        page = client.get("/docs").text
    real = {
        f"{method.upper()} {path}": cut(answer)
        for (method, path), answer in got.items()
        if answer is not None
    }
    if os.environ.get("EVERCOUNT_WRITE_ANSWERS"):
        new = {name: {**one, "answer": real.get(name)} for name, one in KNOWN.items()}
        FILE.write_text(
            json.dumps(new, indent=1, ensure_ascii=False, sort_keys=True) + "\n", "utf-8"
        )
    recorded = {
        name: shape(one["answer"]) for name, one in examples().items() if one["answer"] is not None
    }
    assert recorded == {name: shape(answer) for name, answer in real.items()}
    for method, path in COMMANDS:
        operation = described[path][method]
        assert path.split("{")[0] in page
        assert operation["x-codeSamples"][0]["source"] == COMMANDS[method, path]
        if "requestBody" in operation:
            body = operation["requestBody"]["content"]["application/json"]
            assert body["example"] == sent_body(COMMANDS[method, path])
            jsonschema_rs.validate(
                {**body["schema"], "components": api["components"]}, body["example"]
            )
        if f"{method.upper()} {path}" in real:
            good = next(
                answer
                for status, answer in operation["responses"].items()
                if status.startswith("2")
            )
            assert shape(good["content"]["application/json"]["example"]) == shape(
                real[f"{method.upper()} {path}"]
            )


def test_no_secret_is_in_an_example() -> None:
    assert ADMIN not in json.dumps(KNOWN)
    assert set(KNOWN) > {"GET /v1/streams", "POST /v1/tokens", "GET /v1/plan"}


def test_the_description_knows_every_field_of_a_declaration() -> None:
    """What `streams.toml` declares, the description allows; and it allows no other field."""
    schema = declaration_schema()
    schema["components"] = {"schemas": schema["$defs"]}
    validator = jsonschema_rs.validator_for(schema)
    declared = [one.to_dict() for one in read_declarations(ROOT / "examples" / "streams.toml")]
    budget = {"epsilon": 1, "delta": 0}
    pure = {
        "name": "a",
        "query": "count",
        "budget": budget,
        "tick": "2w",
        "zone": "UTC",
        "horizon": 26,
    }
    declared.append(StreamDeclaration.from_dict({**pure, "views": ["last-7"]}).to_dict())
    for table in (*declared, pure):
        validator.validate(table)
    misspelt = {"budget": {"epsilon": 1, "delta": 0, "units": "event"}}
    for wrong in (
        {"tick": 1},
        {"views": "daily"},
        {"secret": 1},
        {"horizon": 0},
        {"horizon": True},
        misspelt,
    ):
        assert not validator.is_valid({**pure, **wrong}), wrong
