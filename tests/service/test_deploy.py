"""The files of deploy/ name metrics, options and variables that exist."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import httpx
import pytest
from packaging.requirements import Requirement
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


INSTRUCTIONS = {"FROM", "WORKDIR", "COPY", "RUN", "USER", "ENV", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK",
                "ENTRYPOINT"}  # fmt: skip


def image_complaints(text: str) -> list[str]:
    """What is wrong with a container file: the rules of this project, and those that every image should keep."""
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    steps = [step.split(None, 1) for step in "\n".join(lines).replace("\\\n", " ").splitlines()]
    found = [f"unknown instruction {name}" for name, _ in steps if name not in INSTRUCTIONS]
    by_name: dict[str, list[str]] = {}
    for name, rest in steps:
        by_name.setdefault(name, []).append(rest)
    if steps[0][0] != "FROM" or not re.fullmatch(r"python:3\.\d+-slim", steps[0][1]):
        found.append("the base is no Python of a fixed version")
    if by_name.get("USER", ["root"])[-1] in ("root", "0"):
        found.append("it runs as root")
    else:
        user = by_name["USER"][-1]
        if f"useradd --system --uid 10001 {user}" not in " ".join(by_name["RUN"]):
            found.append("its user is not made, or has no fixed number")
    for copied in by_name["COPY"]:
        found += [f"{name} does not exist" for name in copied.split()[:-1] if not (DEPLOY.parent / name).exists()]
    extras = tomllib.loads((DEPLOY.parent / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (asked,) = re.findall(r"'\.\[(.*?)\]'", " ".join(by_name["RUN"]))
    found += [f"there is no extra {name}" for name in asked.split(",") if name not in extras]
    command = json.loads(by_name["ENTRYPOINT"][-1])
    volumes = json.loads(by_name["VOLUME"][-1])
    for option in ("--db", "--head"):
        if str(Path(command[command.index(option) + 1]).parent) not in volumes:
            found.append(f"{option} is on no volume")
    port = by_name["EXPOSE"][-1]
    alive = json.loads(by_name["HEALTHCHECK"][-1].split("CMD", 1)[1])
    compile(alive[-1], "HEALTHCHECK", "exec")
    if f"127.0.0.1:{port}/healthz" not in alive[-1] or port != "8000":
        found.append("the health check asks another port")
    return found


@pytest.mark.parametrize(
    ("before", "after", "complaint"),
    [
        ("", "", None),
        ("USER evercount", "USER root", "root"),
        ("3.12-slim", "latest", "base"),
        ("COPY src ./src", "COPY source ./src", "source does not exist"),
        ("service,files", "server,files", "no extra server"),
        ("/head/counts.head", "/tmp/counts.head", "--head"),
        ("EXPOSE 8000", "EXPOSE 80", "port"),
        ("USER", "USR", "USR"),
    ],
)
def test_the_image_keeps_the_rules(before: str, after: str, complaint: str | None) -> None:
    text = (DEPLOY / "Containerfile").read_text()
    assert before in text
    found = image_complaints(text.replace(before, after))
    assert found == [] if complaint is None else any(complaint in one for one in found)


def test_the_image_gets_the_versions_of_the_lock(tmp_path: Path) -> None:
    """The shell line that turns the lock into constraints is run as it stands in the container file."""
    text = (DEPLOY / "Containerfile").read_text()
    (line,) = re.findall(r"^RUN (grep .*?) > pins\.txt", text, re.M)
    shutil.copy(DEPLOY.parent / "requirements.lock", tmp_path)
    done = subprocess.run(["sh", "-c", line], cwd=tmp_path, capture_output=True, text=True, check=True)
    pins = [Requirement(pin) for pin in done.stdout.splitlines()]
    assert {"numpy", "fastapi", "uvicorn", "psycopg", "duckdb", "sqlalchemy"} <= {pin.name for pin in pins}
    assert all(str(pin.specifier).startswith("==") for pin in pins)


def test_the_dashboard_has_room_for_its_panels() -> None:
    board = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    places = [[panel["gridPos"][name] for name in "xywh"] for panel in board["panels"]]
    taken: set[tuple[int, int]] = set()
    for x, y, w, h in places:
        squares = {(x + i, y + j) for i in range(w) for j in range(h)}
        assert not squares & taken
        assert x + w <= 24
        taken |= squares
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])


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
