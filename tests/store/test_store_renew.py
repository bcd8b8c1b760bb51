"""Renewal: the same declaration goes on where the horizon of a stream ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from evercount.cli import app
from evercount.declarations.declaration import StreamDeclaration
from evercount.errors import BudgetExceeded, Conflict, ParameterError
from evercount.service.runtime import Service
from evercount.store import Cap, Store, set_cap
from evercount.store.renew import last_of_renewals, renew_stream
from serving import ADMIN, HEADERS, HandClock, served

DAY = 86400.0
EVENTS = {"epsilon": 1.0, "delta": 1e-6}


def declared(**more: Any) -> StreamDeclaration:
    table = {"name": "flu", "query": "count", "budget": EVENTS, "tick": "1d", "zone": "UTC", "start": "2026-01-01"}
    return StreamDeclaration.from_dict({**table, "horizon": 10, "views": ["per-tick", "running"], **more})


START = declared().schedule.begin / 1e6


def test_ten_years_keep_one_budget(tmp_path: Path) -> None:
    store = Store(tmp_path / "a.db")
    set_cap(store.database, Cap(1.0, 1e-6))
    live = store.declare(declared(), START)
    with pytest.raises(ParameterError, match="nothing to renew"):
        renew_stream(
            store, store.declare(declared(name="endless", horizon=None, start="2030-01-01"), START).name, START
        )
    for number in range(2, 11):
        heir = renew_stream(store, live.name, START, horizon=20 if number == 2 else None)
        assert (heir.name, heir.declaration.schedule.begin) == (
            f"flu-{number}",
            live.declaration.schedule.start_of((live.declaration.horizon or 0) + 1),
        )
        assert heir.secret.hex() != live.secret.hex()
        assert renew_stream(store, live.name, START) is heir  # again: nothing is declared twice
        live = heir
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
    set_cap(store.database, Cap(1.0, 2e-6))
    store.declare(declared(budget={**EVENTS, "unit": "user", "max_events": 3}), START)
    with pytest.raises(BudgetExceeded):
        renew_stream(store, "flu", START)
    assert list(store.streams) == ["flu"]
    store.close()
    done = CliRunner().invoke(app, ["store", "renew", "flu", "--db", str(tmp_path / "a.db"), "--yes"])
    assert (done.exit_code, "keep epsilon=2, delta=0" in done.output) == (6, True), done.output


def test_events_sent_to_the_old_name_go_on(tmp_path: Path) -> None:
    """At midnight the old stream closes; what is sent to it counts in the new one, what is older is late."""
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
