"""kill -9 in the middle of `evercount release` of every query whose events are rows: the next run
has one truth."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import tomli_w

from evercount.declarations.declaration import StreamDeclaration
from evercount.examples import flu
from evercount.queries import QUERIES, build_query
from small_queries import SMALL

pytest.importorskip("duckdb")

pytestmark = pytest.mark.slow
SCORES = [str(score) for score in range(11)]
PARAMETERS: dict[str, dict[str, Any]] = {
    "rollup": {"paths": [[r, s] for r in flu.REGIONS for s in SCORES]},
    "marginals": {"columns": [list(flu.REGIONS), SCORES]},
    "distinct-users": {"keys": list(flu.REGIONS), "total": True},
    "active-users": {},
    "occupancy": {"keys": list(flu.REGIONS), "max_events": 3},
    "quantiles": {"low": 0, "high": 10, "bins": 8},
    "sum": {"low": 0, "high": 10},
    "average": {"low": 0, "high": 10},
    "histogram": {"keys": list(flu.REGIONS)},
    "top-k": {"keys": list(flu.REGIONS), "k": 2},
    "discovered-keys": {"minimum": 2},
}
COLUMNS: dict[str, Any] = {
    "key": "region",
    "value": "score",
    "user": "score",
    "levels": ["region", "score"],
}
EVENTS = {"epsilon": 4.0, "delta": 1e-3}
BUDGETS: dict[str, dict[str, Any]] = {
    "events": EVENTS,
    "users": {**EVENTS, "unit": "user", "max_events": 1},
}
CAPS = {"active-users": {"max_ticks": 2}}
REVISED = {"late": "revise", "revise_for": 3, "factorization": "balanced"}


def cases() -> list[Any]:
    """Every query of the registry whose events can be rows, with events and with users protected;
    CI has one more.

    Keys that nobody listed: tests/files/test_run_state.py, which kills at more places.
    """
    found = []
    for name in QUERIES:
        query = build_query(name, PARAMETERS.get(name, SMALL[name]))
        for unit in BUDGETS if query.rows is not None else ():
            found.append(pytest.param(name, unit, marks=pytest.mark.soak))
    return [*found, pytest.param("histogram", "revised", marks=pytest.mark.slow)]


KILLED = """
    import os, signal, sys
    from evercount.cli import app
    from evercount.engine import stream
    from evercount.files.state_file import StateFile

    places = {"noise": (stream, "advance"), "keys": (stream, "advance_keys"), "commit": (StateFile, "commit")}
    where, name = places[sys.argv[1]]
    real = getattr(where, name)

    def killed(*args, **options):
        if sys.argv[1] == "commit":
            real(*args, **options)  # published, and killed before anyone was told
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(where, name, killed)
    app(sys.argv[2:])
"""  # noqa: E501


def release(folder: Path, end: str, kill: str | None = None) -> int:
    arguments = [
        "release",
        "events.csv",
        "--streams",
        "streams.toml",
        "--out",
        "out.csv",
        "--end",
        end,
    ]
    program = (
        textwrap.dedent(KILLED)
        if kill
        else "import sys; from evercount.cli import app; app(sys.argv[1:])"
    )
    words = [sys.executable, "-c", program, *([kill] if kill else []), *arguments]
    return subprocess.run(
        words, cwd=folder, capture_output=True, timeout=300, check=False
    ).returncode


@pytest.mark.parametrize(("name", "unit"), cases())
def test_killed_runs_release_what_an_undisturbed_one_does(
    name: str, unit: str, tmp_path: Path
) -> None:
    query = build_query(name, parameters := PARAMETERS.get(name, {}))
    columns = {column: COLUMNS[column] for column in query.rows.columns}
    if unit == "users":
        columns["user"] = COLUMNS["user"]
    budget = dict(BUDGETS.get(unit, EVENTS))
    if query.people is not None:  # it protects users of any number of events
        budget.pop("max_events", None)
        budget |= CAPS.get(name, {}) if unit == "users" else {}
    views = ["per-tick", "per-day"] if query.publishing.why_no_views is None else []
    quiet, killed = tmp_path / "quiet", tmp_path / "killed"
    quiet.mkdir()
    flu.write_csv(quiet / "events.csv", 30)
    stream = {
        "name": "x",
        "query": {"name": name, "parameters": parameters},
        "budget": budget,
        "late": "next",
        "tick": "1h",
        "start": "2025-10-06T00:00:00Z",
        "columns": {"time": "ts", **columns},
        "views": views,
        # named, so that not every process searches for it; its noise has a memory
        "factorization": "anytime",
    } | (REVISED if unit == "revised" else {})
    (quiet / "streams.toml").write_text(tomli_w.dumps({"stream": [stream]}), "utf-8")
    assert release(quiet, "2025-10-06T05:00Z") == 0
    if unit == "revised":  # rows of ticks that are closed: some count, for their own tick
        lines = (quiet / "events.csv").read_text().splitlines(keepends=True)
        with (quiet / "events.csv").open("a") as file:
            file.writelines(lines[1:100])
    shutil.copytree(quiet, killed)  # one state, two fates: never outside a test
    assert release(quiet, "2025-10-07T02:00Z") == 0
    before = (killed / "out.csv").read_bytes()
    assert (
        release(killed, "2025-10-07T02:00Z", "keys" if query.discovery is not None else "noise")
        == -signal.SIGKILL
    )
    assert (killed / "out.csv").read_bytes() == before
    # published, and killed before anyone was told: the views are missing, and nothing is due any
    # more
    assert release(killed, "2025-10-07T02:00Z", "commit") == -signal.SIGKILL
    assert (killed / "out.csv").read_bytes() == (quiet / "out.csv").read_bytes()
    assert release(killed, "2025-10-07T02:00Z") == 0
    shown = StreamDeclaration.from_dict(stream).main_view
    for file in ("out.csv", *(f"out.{view}.csv" for view in views if view != shown)):
        assert (killed / file).read_bytes() == (quiet / file).read_bytes(), file
