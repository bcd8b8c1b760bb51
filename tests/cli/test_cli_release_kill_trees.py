"""kill -9 in the middle of `evercount release` of a rollup, of marginals, of quantiles: the next run has one truth."""

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

from evercount.examples import flu

pytest.importorskip("duckdb")
SCORES = [str(score) for score in range(11)]
QUERIES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "rollup": ({"paths": [[r, s] for r in flu.REGIONS for s in SCORES]}, {"levels": ["region", "score"]}),
    "marginals": ({"columns": [list(flu.REGIONS), SCORES]}, {"levels": ["region", "score"]}),
    "quantiles": ({"lo": 0, "hi": 10, "bins": 8}, {"value": "score"}),
}
KILLED = """
    import os, signal, sys
    from evercount.cli import app
    from evercount.engine import stream
    from evercount.files import release_run

    places = {"noise": (stream, "advance"), "commit": (release_run, "commit")}
    where, name = places[sys.argv[1]]
    real = getattr(where, name)

    def killed(*args, **options):
        if sys.argv[1] == "commit":
            real(*args, **options)  # published, and killed before anyone was told
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(where, name, killed)
    app(sys.argv[2:])
"""


def release(folder: Path, end: str, kill: str | None = None) -> int:
    arguments = ["release", "events.csv", "--streams", "streams.toml", "--out", "out.csv", "--end", end]
    program = textwrap.dedent(KILLED) if kill else "import sys; from evercount.cli import app; app(sys.argv[1:])"
    words = [sys.executable, "-c", program, *([kill] if kill else []), *arguments]
    return subprocess.run(words, cwd=folder, capture_output=True, timeout=120, check=False).returncode


@pytest.mark.parametrize(
    "name", [name if name == "rollup" else pytest.param(name, marks=pytest.mark.soak) for name in QUERIES]
)
def test_killed_runs_release_what_an_undisturbed_one_does(name: str, tmp_path: Path) -> None:
    parameters, columns = QUERIES[name]
    quiet, killed = tmp_path / "quiet", tmp_path / "killed"
    quiet.mkdir()
    flu.write_csv(quiet / "events.csv", 30)
    stream = {
        "name": "x",
        "query": {"name": name, "parameters": parameters},
        "budget": {"epsilon": 1.0, "delta": 1e-6},
        "tick": "1h",
        "start": "2025-10-06T00:00:00Z",
        "columns": {"time": "ts", **columns},
        "views": ["per-tick", "per-day"],
    }
    (quiet / "streams.toml").write_text(tomli_w.dumps({"stream": [stream]}), "utf-8")
    assert release(quiet, "2025-10-06T05:00Z") == 0
    shutil.copytree(quiet, killed)  # one state, two fates: never outside a test
    assert release(quiet, "2025-10-07T02:00Z") == 0
    before = (killed / "out.csv").read_bytes()
    assert release(killed, "2025-10-07T02:00Z", "noise") == -signal.SIGKILL
    assert (killed / "out.csv").read_bytes() == before
    # published, and killed before anyone was told: the views are missing, and nothing is due any more
    assert release(killed, "2025-10-07T02:00Z", "commit") == -signal.SIGKILL
    assert (killed / "out.csv").read_bytes() == (quiet / "out.csv").read_bytes()
    assert release(killed, "2025-10-07T02:00Z") == 0
    for file in ("out.csv", "out.per-tick.csv", "out.per-day.csv"):
        assert (killed / file).read_bytes() == (quiet / file).read_bytes(), file
