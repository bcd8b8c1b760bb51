"""A declaration over HTTP or in streams.toml names a registered encoder or is refused: no code
comes from a request."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from evercount.declarations.streams_file import read_declarations
from evercount.errors import ParameterError
from evercount.queries import prefix, register_encoder
from evercount.service.runtime import Service
from evercount.store import Store

sys.path.insert(0, str(Path(__file__).parents[1]))
from served_service import ADMIN, HEADERS, served


def declaration(encode: str) -> dict[str, Any]:
    parameters = {"encode": encode, "cells": 1, "sensitivity": {"add-remove": 1.0}}
    return {
        "name": "own",
        "query": {"name": "prefix", "parameters": parameters},
        "budget": {"epsilon": 1.0, "delta": 1e-9},
        "horizon": 100,
    }


def length(events: Any) -> list[int]:
    return [len(events)]


def test_only_registered_encoders_are_declared_over_http(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix, "_ENCODERS", {})
    touched = tmp_path / "touched"
    with served(Service(Store(tmp_path / "a.db"), admin=ADMIN)) as client:
        for name in ("subprocess:getoutput", "os:system", "test_service_encoders:length"):
            answer = client.post("/v1/streams", headers=HEADERS, json=declaration(name))
            assert answer.status_code == 422, answer.text
            assert "no encoder is registered" in answer.text
        client.post("/v1/streams/own/events", headers=HEADERS, json=[f"touch {touched}"])
        register_encoder("length")(length)
        assert (
            client.post("/v1/streams", headers=HEADERS, json=declaration("length")).status_code
            == 201
        )
    assert not touched.exists()


def test_only_registered_encoders_are_declared_in_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefix, "_ENCODERS", {})
    file = tmp_path / "streams.toml"
    file.write_text(
        "[[stream]]\n"
        'name = "own"\n'
        'query = {name = "prefix", parameters = {encode = "os:system", cells = 1, '
        "sensitivity = {add-remove = 1.0}}}\n"
        "budget = {epsilon = 1.0, delta = 1e-9}\n"
    )
    with pytest.raises(ParameterError, match="no encoder is registered"):
        read_declarations(file)
