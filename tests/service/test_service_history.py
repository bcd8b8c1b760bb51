"""A stream with a past start: nothing is released before its history is loaded, then what was sent
for each tick."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from evercount import Secret
from evercount.cli import app
from evercount.declarations.declaration import StreamDeclaration
from evercount.service.runtime import Service
from evercount.store import Store
from served_service import ADMIN, HEADERS, HandClock, served

DAY, START = 86400.0, 1767225600.0  # 2026-01-01
NOW = START + 5.5 * DAY
SECRET = Secret.from_hex("33" * 32)
BUDGET = {"epsilon": 1.0, "delta": 1e-6}
PERSONS = {**BUDGET, "unit": "user", "max_events": 2}
KINDS: dict[str, dict[str, Any]] = {
    "count": {"query": "count", "budget": BUDGET},
    "persons": {"query": "count", "budget": PERSONS},
    "keys": {"query": "discovered-keys", "budget": BUDGET},
}
# day of January, user
ROWS = [(3, "a"), (1, "a"), (4, "b"), (1, "b"), (3, "b"), (1, "a"), (6, "c"), (5, "b"), (3, "a")]


def declared(kind: str) -> StreamDeclaration:
    days = {
        "name": "flu",
        "tick": "1d",
        "zone": "UTC",
        "start": "2026-01-01",
        "horizon": 30,
        "views": ["running"],
    }
    return StreamDeclaration.from_dict({**days, **KINDS[kind]})


def events_of(kind: str, rows: list[tuple[int, str]]) -> list[dict[str, Any]]:
    content: dict[str, Any] = {"key": "oslo"} if kind == "keys" else {"event": 1}
    named = kind == "persons"
    return [
        {"time": f"2026-01-{day:02d}T08:00:00Z", **content, **({"user": user} if named else {})}
        for day, user in rows
    ]


@pytest.fixture
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Secret, "generate", classmethod(lambda _: SECRET))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.usefixtures("secret")
def test_nothing_is_released_before_the_history_is_there(tmp_path: Path, kind: str) -> None:
    """Killed in between; then the ticks have the numbers of a stream that got each event on its
    day."""
    many = 200 if kind == "keys" else 1  # keys become public above a threshold
    rows = [row for row in ROWS for _ in range(many)]
    one = declared(kind)
    service = Service(Store(tmp_path / "a.db"), clock=HandClock(NOW), admin=ADMIN)
    service.declare([one])
    with served(service) as client:
        assert client.get("/v1/streams", headers=HEADERS).json()["streams"][0]["state"] == "waiting"
        first = client.post(
            "/v1/streams/flu/events", headers=HEADERS, json=events_of(kind, rows[: 4 * many])
        )
        assert (first.status_code, "late" in first.json()) == (200, False), first.text
    service = Service(Store(tmp_path / "a.db"), clock=HandClock(NOW), admin=ADMIN)
    with served(service) as client:
        client.post(
            "/v1/streams/flu/events", headers=HEADERS, json=events_of(kind, rows[4 * many :])
        )
        service.writer.submit(service.writer.close_due).result()
        assert client.get("/v1/streams/flu", headers=HEADERS).json()["released"] == 0
        future = client.post(
            "/v1/streams/flu/events", headers=HEADERS, json=events_of(kind, [(7, "a")])
        )
        assert future.status_code == 425
        assert client.post("/v1/streams/flu/open").status_code == 401
        for _ in range(2):
            assert client.post("/v1/streams/flu/open", headers=HEADERS).json()["state"] == "open"
        while client.get("/v1/streams/flu", headers=HEADERS).json()["released"] < 5:
            service.writer.submit(service.writer.close_due).result()
        late = client.post(
            "/v1/streams/flu/events", headers=HEADERS, json=events_of(kind, [(5, "z"), (6, "z")])
        )
        assert late.json() == {"accepted": 2, "tick": 6, "late": 1, "dropped": 1}
        shown = client.get("/v1/streams/flu/releases", headers=HEADERS).json()["releases"]
    stream = one.build(secret=SECRET, replay=True)
    for release in shown:
        users = [user for day, user in rows if day == release["tick"]]
        if kind == "persons":
            expected = stream.step(None, users=users)
        else:
            expected = stream.step(["oslo"] * len(users) if kind == "keys" else len(users))
        np.testing.assert_array_equal(release["values"], expected.values[: len(release["values"])])
    if kind == "keys":
        assert len(shown[-1]["values"]) == 3  # the total, others and oslo: the history did come in


@pytest.mark.usefixtures("secret")
def test_push_sends_history_and_what_a_file_has_grown_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = Service(Store(tmp_path / "a.db"), clock=HandClock(NOW), admin=ADMIN)
    service.declare([declared("count")])
    monkeypatch.setenv("EVERCOUNT_TOKEN", ADMIN)
    file = tmp_path / "flu.csv"

    def push(days: list[int], *more: str) -> tuple[int, str]:
        file.write_text("\n".join(["ts", *(f"2026-01-{day:02d}T08:00:00Z" for day in days)]) + "\n")
        done = CliRunner().invoke(
            app, ["push", "flu", str(file), "--time", "ts", "--url", str(client.base_url), *more]
        )
        return done.exit_code, done.output

    with served(service) as client:
        live = service.store.find("flu")
        assert push([1, 2, 2])[1].startswith(f"{file} to flu: 3 events sent; all of it is durable")
        assert "2 events sent, 3 were sent before" in push([1, 2, 2, 3, 3])[1]
        code, said = push([1, 3, 2, 3, 3, 4])
        assert (code, "rows that were sent before have changed" in said) == (8, True), said
        assert "0 events sent, 5 were sent before" in push([1, 2, 2, 3, 3])[1]
        assert "1 events sent, 5 were sent before" in push([1, 2, 2, 3, 3, 6], "--history")[1]
        service.writer.submit(service.writer.close_due).result()
        assert live.closed == 5
        assert (
            "1 events sent, 6 were sent before, 1 came after their tick had closed: they are "
            "dropped"
        ) in (push([1, 2, 2, 3, 3, 6, 5])[1])
        stream = live.declaration.build(secret=SECRET, replay=True)
        expected = [stream.step(number).values.tolist() for number in (1, 2, 2, 0, 0)]
        shown = client.get("/v1/streams/flu/releases", headers=HEADERS).json()["releases"]
        assert [release["values"] for release in shown] == expected
        note = ["streams", "note", "flu", "2026-01-06", "2026-01-07", "moved", "--missing", "next"]
        done = CliRunner().invoke(app, [*note, "--url", str(client.base_url)])
        assert "noted on ticks 6 to 7 of flu" in done.output
        assert (
            client.get("/v1/streams/flu", headers=HEADERS).json()["notes"][0]["missing"] == "next"
        )
