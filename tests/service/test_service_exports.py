"""Files of releases by suffix, pages of cells, and HEAD."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from evercount.service import catch_up, exports
from evercount.service.runtime import Service
from evercount.store import Store
from serving import ADMIN, HEADERS, served

TABLE: dict[str, Any] = {
    "name": "flu",
    "query": {"name": "histogram", "parameters": {"keys": ["North", 'So"uth,\\ 1']}},
    "budget": {"epsilon": 1.0, "delta": 1e-9},
    "public": True,
}
FORMULAS = ["=1+1", "+43", "-5", "@here", "'quoted", "plain"]
RUN = {
    **TABLE,
    "name": "formulas",
    "query": {"name": "histogram", "parameters": {"keys": FORMULAS}},
}
WIDE = {
    **TABLE,
    "name": "wide",
    "query": {"name": "histogram", "parameters": {"keys": [f"k{i}" for i in range(2500)]}},
}


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    service = Service(Store(tmp_path_factory.mktemp("exports") / "a.db"), admin=ADMIN)
    with served(service) as made:
        for table in (TABLE, WIDE, RUN):
            made.post("/v1/streams", json=table, headers=HEADERS).raise_for_status()
            for _ in range(3):
                made.post(
                    f"/v1/streams/{table['name']}/close-tick", headers=HEADERS
                ).raise_for_status()
        yield made


def test_notes_in_csv_run_nothing_and_can_be_read_back(tmp_path: Path) -> None:
    """A spreadsheet runs a cell that begins with one of these as a formula."""
    service = Service(Store(tmp_path / "a.db"), admin=ADMIN)
    with served(service) as client:
        client.post(
            "/v1/streams", json={**TABLE, "name": "noted"}, headers=HEADERS
        ).raise_for_status()
        for tick, note in enumerate(FORMULAS, 1):
            client.post("/v1/streams/noted/close-tick", headers=HEADERS).raise_for_status()
            made = client.post(
                "/v1/streams/noted/notes", json={"first": tick, "text": note}, headers=HEADERS
            )
            made.raise_for_status()
        rows = list(
            csv.DictReader(
                io.StringIO(client.get("/v1/streams/noted/releases.csv?view=per-tick").text)
            )
        )
        said = client.get("/v1/streams/noted/releases.json?view=per-tick").json()
    assert all(row["note"][0] not in "=+-@" for row in rows)
    assert [row["note"].removeprefix("'") for row in rows[::2]] == FORMULAS
    assert [row["note"] for row in said[::2]] == FORMULAS


def test_every_format_holds_every_release(client: httpx.Client, tmp_path: Path) -> None:
    import pyarrow.parquet as pq

    for name in ("flu", "wide"):
        shown = client.get(f"/v1/streams/{name}/releases", params={"cells": 10_000}).json()
        rows = [
            (release["tick"], label, value, std)
            for release in shown["releases"]
            for label, value, std in zip(
                shown["labels"], release["values"], release["std"], strict=True
            )
        ]
        answers = {
            kind: client.get(f"/v1/streams/{name}/releases.{kind}?full_digits=true")
            for kind in exports.MEDIA_TYPES
        }
        for kind, answer in answers.items():
            assert answer.status_code == 200
            assert answer.headers["content-type"] == exports.MEDIA_TYPES[kind]
            assert f'filename="{name}.{kind}"' in answer.headers["content-disposition"]
        lines = list(csv.DictReader(io.StringIO(answers["csv"].text)))
        assert [
            (int(r["tick"]), r["cell"], float(r["value"]), float(r["std"])) for r in lines
        ] == rows
        for parsed in (
            answers["json"].json(),
            [json.loads(line) for line in answers["jsonl"].text.splitlines()],
            pq.read_table(io.BytesIO(answers["parquet"].content)).to_pylist(),
        ):
            assert [(r["tick"], r["cell"], r["value"], r["std"]) for r in parsed] == rows
        short = list(
            csv.DictReader(io.StringIO(client.get(f"/v1/streams/{name}/releases.csv").text))
        )
        assert [float(r["std"]) for r in short] == [rounded_up(std) for *_, std in rows]
    assert client.get("/v1/streams/flu/releases.xml").status_code == 422


def rounded_up(std: float) -> float:
    """Two digits, and whole from 10 on."""
    places = max(0, 1 - math.floor(math.log10(std)))
    return math.ceil(std * 10**places) / 10**places


def test_no_export_is_left_behind(
    client: httpx.Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports.tempfile, "tempdir", str(tmp_path))
    for kind in exports.MEDIA_TYPES:
        client.get(f"/v1/streams/flu/releases.{kind}").raise_for_status()
    with client.stream("GET", "/v1/streams/wide/releases.csv"):
        pass  # a reader that goes away
    for _ in range(5000):  # the server notices after a few turns of its loop
        client.get("/healthz")
        if not list(tmp_path.iterdir()):
            break
    assert list(tmp_path.iterdir()) == []


def test_cells_come_in_pages(client: httpx.Client) -> None:
    facts = client.get("/v1/streams/wide").json()
    assert (facts["cells"], len(facts["labels"])) == (2500, 1000)
    assert facts["query"]["left_out"] == ["keys"]
    assert "keys" not in facts["query"]["parameters"]
    every = client.get("/v1/streams/wide/releases", params={"cells": 10_000}).json()
    first = client.get("/v1/streams/wide/releases").json()
    assert (first["first_cell"], first["cells"], len(first["labels"])) == (0, 2500, 1000)
    parts: list[Any] = []
    labels: list[str] = []
    for start in range(0, 2500, 1000):
        page = client.get("/v1/streams/wide/releases", params={"first_cell": start}).json()
        labels += page["labels"]
        parts.append(page["releases"])
    assert labels == every["labels"] == [f"k{i}" for i in range(2500)]
    for tick, release in enumerate(every["releases"]):
        assert release["hash"] == parts[0][tick]["hash"]
        for part in ("values", "std", "low", "high"):
            assert [number for page in parts for number in page[tick][part]] == release[part]
    assert (
        client.get("/v1/streams/wide/releases", params={"first_cell": 2500}).json()["releases"]
        == []
    )
    closed = client.post("/v1/streams/wide/close-tick", params={"tick": 3}, headers=HEADERS).json()
    assert closed["values"] == first["releases"][2]["values"]


def test_live_events_hold_the_first_page_of_cells(client: httpx.Client) -> None:
    with client.stream("GET", "/v1/streams/wide/live?after=2") as live:
        data = next(json.loads(line[6:]) for line in live.iter_lines() if line.startswith("data: "))
    assert len(data["values"]) == catch_up.CELLS_PER_PAGE


@pytest.mark.parametrize(
    "path",
    ["/", "/docs", "/healthz", "/readyz", "/v1/streams", "/v1/streams/flu",
     "/v1/streams/flu/releases",
     "/v1/streams/flu/releases.csv", "/v1/streams/flu/live", "/v1/streams/none", "/nothing",
     "/openapi.json"],
)  # fmt: skip
def test_head_is_get_without_a_body(client: httpx.Client, path: str) -> None:
    head = client.head(path)
    assert head.content == b""
    with client.stream("GET", path) as got:
        assert head.status_code == got.status_code
        names = (
            "content-type",
            "content-length",
            "cache-control",
            "content-disposition",
            "content-security-policy",
        )
        assert [head.headers.get(name) for name in names] == [
            got.headers.get(name) for name in names
        ]


def test_released_numbers_of_public_streams_are_metrics(client: httpx.Client) -> None:
    read = client.post("/v1/tokens", json={"role": "read"}, headers=HEADERS).json()["token"]
    page = client.get("/metrics", headers={"Authorization": f"Bearer {read}"}).text
    last = client.get("/v1/streams/flu/releases", params={"after": 2}).json()["releases"][0]
    gauges = re.findall(r'^evercount_released_value{cell="(.*)",stream="flu"} (.*)$', page, re.M)
    assert gauges == [
        ("North", repr(last["values"][0])),
        ('So\\"uth,\\\\ 1', repr(last["values"][1])),
    ]
    assert re.search('cell=.*stream="wide"', page) is None
    assert "evercount_database_bytes" not in page


@pytest.mark.parametrize("view", ["", "?view=running"])
def test_labels_in_csv_are_no_formulas(client: httpx.Client, view: str) -> None:
    text = client.get(f"/v1/streams/formulas/releases.csv{view}").text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [row["cell"] for row in rows[:6]] == [
        "'=1+1",
        "'+43",
        "'-5",
        "'@here",
        "''quoted",
        "plain",
    ]
    parsed = [
        json.loads(line)
        for line in client.get(f"/v1/streams/formulas/releases.jsonl{view}").text.splitlines()
    ]
    assert [row["cell"] for row in parsed[:6]] == FORMULAS
    assert [float(row["low"]) for row in rows] == [row["low"] for row in parsed]
    assert min(row["low"] for row in parsed) < 0  # numbers below zero are as they were


def test_metrics_pass_promtool(client: httpx.Client) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed")
    client.post("/v1/streams/flu/events", json=["North"], headers=HEADERS).raise_for_status()
    page = client.get("/metrics", headers=HEADERS).text
    assert "# TYPE evercount_accept_seconds summary" in page
    checked = subprocess.run(
        [promtool, "check", "metrics"], input=page, capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
