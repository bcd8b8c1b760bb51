"""What a service answers to Prometheus passes Prometheus's own linter."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from evercount.service.runtime import Service
from evercount.store import Store, StreamDeclaration
from served_service import ADMIN, HEADERS, served

TABLE = {"name": "one", "query": "count", "budget": {"epsilon": 1.0, "delta": 1e-9}, "public": True}


def complaints(page: str) -> str:
    """What `promtool check metrics` says about a page."""
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed: make system")
    done = subprocess.run(
        [program, "check", "metrics"],
        input=page,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    return done.stdout + done.stderr


def test_promtool_accepts_the_metrics_of_every_role(tmp_path: Path) -> None:
    store = Store(tmp_path / "a.db")
    store.close_ticks(store.declare(StreamDeclaration.from_dict(TABLE), 0.0), 1, 0.0)
    with served(Service(store, admin=ADMIN)) as client:
        client.post("/v1/streams/one/events", json=[1], headers=HEADERS).raise_for_status()
        reader = client.post("/v1/tokens", json={"role": "read"}, headers=HEADERS).json()["token"]
        pages = [
            client.get("/metrics", headers=headers).raise_for_status().text
            for headers in (HEADERS, {"Authorization": f"Bearer {reader}"})
        ]
    for page in pages:
        assert 'evercount_ticks_released_total{stream="one"} 1' in page
        assert complaints(page) == ""
        assert complaints(f"{page}evercount_without_help 1\n") != ""
