"""Renewal: the same declaration goes on where the horizon of a stream ends."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from evercount.cli import app
from evercount.declarations.declaration import StreamDeclaration
from evercount.errors import BudgetExceeded, Conflict, ParameterError
from evercount.service.runtime import Service
from evercount.store import BudgetCap, Reading, Store, retire_stream, set_cap
from evercount.store.stream_life import last_of_renewals, renew_stream
from evercount.store.writer import WatchedStore
from served_service import ADMIN, HEADERS, HandClock, served
from store_reading import all_releases

DAY = 86400.0
EVENTS = {"epsilon": 1.0, "delta": 1e-6}


def declared(**more: Any) -> StreamDeclaration:
    table = {
        "name": "flu",
        "query": "count",
        "budget": EVENTS,
        "tick": "1d",
        "zone": "UTC",
        "start": "2026-01-01",
    }
    return StreamDeclaration.from_dict(
        {**table, "horizon": 10, "views": ["per-tick", "running"], **more}
    )


START = declared().schedule.begin / 1e6


def test_ten_years_keep_one_budget(tmp_path: Path) -> None:
    store = Store(tmp_path / "a.db")
    set_cap(store.database, BudgetCap(1.0, 1e-6))
    live = store.declare(declared(), START)
    endless = store.declare(
        declared(name="endless", horizon=None, start="2030-01-01", factorization="anytime"), START
    )
    with pytest.raises(ParameterError, match="nothing to renew"):
        renew_stream(store, endless.name, START)
    for number in range(2, 11):
        successor = renew_stream(store, live.name, START, horizon=20 if number == 2 else None)
        assert (successor.name, successor.declaration.schedule.begin) == (
            f"flu-{number}",
            live.declaration.schedule.start_of((live.declaration.horizon or 0) + 1),
        )
        assert successor.secret.hex() != live.secret.hex()
        assert (
            renew_stream(store, live.name, START) is successor
        )  # again: nothing is declared twice
        live = successor
    with pytest.raises(Conflict, match="already renewed"):
        renew_stream(store, "flu", START, horizon=7)
    (total,) = store.ledger()["totals"]
    assert (round(total["epsilon"], 9), total["delta"]) == (1.0, 1e-6)
    store.close()
    store = Store(tmp_path / "a.db")
    assert last_of_renewals(store, "flu").name == "flu-10"
    assert store.find("flu-2").follows
    store.close()


def test_persons_without_periods_add_up_and_a_cap_refuses(tmp_path: Path) -> None:
    store = Store(tmp_path / "a.db")
    set_cap(store.database, BudgetCap(1.0, 2e-6))
    store.declare(declared(budget={**EVENTS, "unit": "user", "max_events": 3}), START)
    with pytest.raises(BudgetExceeded):
        renew_stream(store, "flu", START)
    assert list(store.streams) == ["flu"]
    store.close()
    done = CliRunner().invoke(
        app, ["store", "renew", "flu", "--db", str(tmp_path / "a.db"), "--yes"]
    )
    assert (done.exit_code, "keep epsilon=2, delta=0" in done.output) == (6, True), done.output


def test_events_sent_to_the_old_name_go_on(tmp_path: Path) -> None:
    """At midnight the old stream closes; what is sent to it counts in the new one, what is older is
    late."""
    store, clock = Store(tmp_path / "a.db"), HandClock(START)
    service = Service(store, clock=clock, admin=ADMIN)
    service.declare([declared(horizon=2)])
    renew_stream(store, "flu", START)
    with served(service) as client:
        clock.moment = START + 2 * DAY + 60
        service.writer.submit(service.writer.close_due).result()
        events = [{"event": 1, "time": f"2026-01-{day:02d}T00:00:30Z"} for day in (2, 3, 3)]
        sent = client.post("/v1/streams/flu/events", headers=HEADERS, json=events)
        assert sent.json() == {"accepted": 3, "tick": 1, "late": 1, "dropped": 1}
        assert store.find("flu-2").totals.tolist() == [2]
        assert client.get("/v1/streams/flu", headers=HEADERS).json()["successor"] == "flu-2"


def totals(store: Reading, name: str) -> list[float | None]:
    return [(one["values"] or [None])[0] for one in all_releases(store, name)]


def test_a_service_shows_totals_that_go_on(tmp_path: Path) -> None:
    """Renewed while it counts: pages, views, exports, the live feed and a read-only service show
    the same totals."""
    store, clock = Store(tmp_path / "a.db"), HandClock(START)
    service = Service(store, clock=clock, admin=ADMIN)
    service.declare([declared(horizon=3, views=["running", "per-tick", "last-2"])])
    renew_stream(store, "flu", START, carry_totals=True)
    renew_stream(store, "flu-2", START, carry_totals=True)
    with served(service) as client:
        client.headers.update(HEADERS)
        for day in range(8):
            clock.moment = START + day * DAY + 60
            service.writer.submit(service.writer.close_due).result()
            assert client.post("/v1/streams/flu/events", json=[5 * day + 1]).status_code == 200
        shown = [
            client.get(f"/v1/streams/{name}/releases").json()["releases"]
            for name in ("flu", "flu-2", "flu-3")
        ]
        days = [
            client.get(f"/v1/streams/{name}/releases?view=per-tick").json()["releases"]
            for name in ("flu-2", "flu-3")
        ]
        assert [len(one) for one in shown] == [3, 3, 1]
        for before, year, its in zip(shown, shown[1:], days, strict=False):
            expected = before[-1]["values"][0] + np.cumsum([one["values"][0] for one in its])
            assert [one["values"][0] for one in year] == expected.tolist()
            assert year[0]["std"][0] == pytest.approx(
                np.hypot(before[-1]["std"][0], its[0]["std"][0])
            )
        for path in ("flu-2/releases?view=running", "flu-3/releases?view=running&cell=count"):
            named = client.get(f"/v1/streams/{path}").json()["releases"]
            year = shown[int(path[4]) - 1]
            assert [(one["values"], one["high"]) for one in named] == [
                (one["values"], one["high"]) for one in year
            ]
        lines = client.get("/v1/streams/flu-3/releases.jsonl?full_digits=true").text.splitlines()
        assert [line for line in lines if str(shown[2][0]["high"][0]) in line] == lines
        said = client.get("/v1/streams/flu-3/releases.csv-metadata.json").json()
        assert said["notes"][0]["running totals"].startswith("since 2026-01-01")
        ask = "view=running&cell=count&minus=count&minus_stream=flu"
        assert (
            "compare another view"
            in client.get(f"/v1/streams/flu-3/releases?{ask}").json()["error"]["message"]
        )
        assert client.get(f"/v1/streams/flu/releases?{ask}").status_code == 200
        assert len(client.get("/v1/streams/flu-2/releases?view=last-2").json()["releases"]) == 2
    store.close()
    mark = ["store", "note", "flu-2", "1", "1", "a holiday", "--db", str(tmp_path / "a.db")]
    assert CliRunner().invoke(app, mark).exit_code == 0
    watched = WatchedStore(tmp_path / "a.db")
    with served(Service(watched, admin=ADMIN)) as client:
        client.headers.update(HEADERS)
        assert [one["text"] for one in client.get("/v1/streams/flu-2").json()["notes"]] == [
            "a holiday"
        ]
        assert client.get("/v1/streams/flu-3/releases").json()["releases"] == shown[2]
        export = client.get("/v1/streams/flu-3/releases.csv?full_digits=true").text
        assert str(shown[2][0]["values"][0]) in export
    watched.close()


def test_totals_wait_for_the_end_of_the_stream_before(tmp_path: Path) -> None:
    """While the old stream has ticks to close there is no total to go on from, and none is
    shown."""
    store = Store(tmp_path / "a.db")
    live = store.declare(declared(horizon=3, views=["running"]), START)
    successor = renew_stream(store, "flu", START, carry_totals=True)
    assert renew_stream(store, "flu", START, carry_totals=True) is successor
    with pytest.raises(Conflict, match="already renewed"):
        renew_stream(store, "flu", START)
    store.close_ticks(live, 2, START)
    store.close_ticks(successor, 1, START)
    assert totals(store, "flu-2") == [None]
    reading = Reading.open(tmp_path / "a.db")
    assert totals(reading, "flu-2") == [None]
    store.close_ticks(live, 1, START)
    raw = store.values_at(successor.id, [1], [0])[1][0]
    assert totals(store, "flu-2") == totals(reading, "flu-2") == [totals(store, "flu")[-1] + raw]
    assert reading.verify() == []
    reading.close()
    store.close()


def test_totals_of_a_retired_stream_go_on_and_hidden_ones_do_not(tmp_path: Path) -> None:
    store = Store(tmp_path / "a.db")
    live = store.declare(declared(horizon=3, views=["running"]), START)
    successor = renew_stream(store, "flu", START, carry_totals=True)
    store.close_ticks(live, 2, START)
    store.close_ticks(successor, 1, START)
    old = totals(store, "flu")[-1]
    retire_stream(store, "flu", START)
    raw = store.values_at(successor.id, [1], [0])[1][0]
    assert totals(store, "flu-2") == [old + raw]
    store.ended["flu"] = replace(store.ended["flu"], readable=False)  # as after a quarantine
    assert totals(store, "flu-2") == [None]
    store.close()


def test_what_does_not_add_up_is_refused_and_nothing_is_declared(tmp_path: Path) -> None:
    store = Store(tmp_path / "a.db")
    for more in (
        {"query": "discovered-keys", "views": []},
        {"late": "revise", "revise_for": 2, "views": ["per-tick"]},
    ):
        store.declare(declared(name=f"s{len(store.streams)}", **more), START)
    for name in list(store.streams):
        with pytest.raises(ParameterError, match="running totals are not carried over"):
            renew_stream(store, name, START, carry_totals=True)
    assert sorted(store.streams) == ["s0", "s1"]
    store.declare(declared(), START)
    store.close()
    words = ["store", "renew", "flu", "--db", str(tmp_path / "a.db"), "--carry-totals", "--yes"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
