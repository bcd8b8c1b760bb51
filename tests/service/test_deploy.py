"""The files of deploy/ name metrics, options and variables that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from evercount.cli import app
from evercount.service.runtime import Service
from evercount.store import Store, StreamDeclaration
from serving import ADMIN, HEADERS, served

DEPLOY = Path(__file__).parents[2] / "deploy"
TABLE = {"name": "one", "query": "count", "budget": {"epsilon": 1.0, "delta": 1e-9}, "public": True}


def test_the_dashboard_asks_for_metrics_that_the_service_has(tmp_path: Path) -> None:
    board = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    asked = {name for panel in board["panels"] for target in panel["targets"]
             for name in re.findall(r"(?:evercount|process)_[a-z_]+", target["expr"])}  # fmt: skip
    store = Store(tmp_path / "a.db")
    store.close_ticks(store.declare(StreamDeclaration.from_dict(TABLE), 0.0), 1, 0.0)
    with served(Service(store, admin=ADMIN)) as client:
        client.post("/v1/streams/one/events", json=[1], headers=HEADERS).raise_for_status()
        page = client.get("/metrics", headers=HEADERS).text
        assert httpx.get(f"{client.base_url}/readyz").status_code == 200
    assert len(asked) >= 10
    assert asked <= set(re.findall(r"^# TYPE (\S+)", page, re.M))


def test_unit_and_image_use_options_that_exist() -> None:
    known = CliRunner().invoke(app, ["serve", "--help"], env={"COLUMNS": "200", "NO_COLOR": "1"}).output
    for file in ("evercount.service", "Containerfile"):
        text = (DEPLOY / file).read_text()
        command = next(part for part in re.split(r"\n(?=\S)", text) if "ExecStart" in part or "ENTRYPOINT" in part)
        options = re.findall(r"--[a-z-]+", command)
        assert len(options) >= 3
        for option in options:
            assert option in known, (file, option)
        assert "EVERCOUNT_KEY_FILE" in text


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed (Debian: apt-get install systemd)")
    text = (DEPLOY / "evercount.service").read_text()
    unit = tmp_path / "evercount.service"
    installed = text.replace("/opt/evercount/bin/evercount", sys.executable)
    for content, accepted in ((installed, True), (installed.replace("Restart=on-failure", "Restart=sometimes"), False)):
        unit.write_text(content)
        done = subprocess.run([program, "verify", "--man=no", str(unit)], capture_output=True, text=True, timeout=60)
        assert (done.stderr == "") == accepted, done.stderr
