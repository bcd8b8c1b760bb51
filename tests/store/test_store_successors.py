"""Successors in a store: what a stream that ends, or is retired, leaves for the next one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evercount.declarations.declaration import StreamDeclaration
from evercount.errors import BudgetExceeded, Conflict, HorizonReached, ParameterError
from evercount.files.release_job import Job
from evercount.files.release_run import release_file
from evercount.store import BudgetCap, Store, retire_stream, set_cap
from evercount.store.stream_life import explain

EVENTS = {"epsilon": 1.0, "delta": 1e-6}
PERSONS = {**EVENTS, "unit": "user", "max_events": 2}
DAY = 86400.0


def declared(name: str, day: int = 1, **change: Any) -> StreamDeclaration:
    table = {
        "name": name,
        "query": "count",
        "budget": EVENTS,
        "tick": "1d",
        "zone": "UTC",
        "start": f"1970-01-{day:02d}",
        "horizon": 10,
        "views": ["running"],
        "factorization": "balanced" if change.get("budget", EVENTS)["delta"] else None,
    }
    return StreamDeclaration.from_dict({**table, **change})


def total(store: Store) -> tuple[float, float]:
    (one,) = store.ledger()["totals"]
    return round(one["epsilon"], 4), one["delta"]


def test_streams_one_after_the_other_keep_the_cap(tmp_path: Path) -> None:
    """A cap of one stream holds for as many as follow each other, and for no second one over the
    same days."""
    store = Store(tmp_path / "a.db")
    set_cap(store.database, BudgetCap(1.0, 1e-6))
    for number in range(3):
        store.declare(declared(f"s{number}", 1 + 10 * number), 0.0)
    assert total(store) == (1.0, 1e-6)
    with pytest.raises(BudgetExceeded):
        store.declare(declared("overlap", 5, budget={"epsilon": 0.1, "delta": 0}), 0.0)
    with pytest.raises(BudgetExceeded):
        store.declare(
            declared("by-hand", tick="manual", start=None, budget={"epsilon": 0.1, "delta": 0}), 0.0
        )
    store.close()


def test_the_end_says_what_comes_next(tmp_path: Path) -> None:
    store = Store(tmp_path / "a.db")
    for name, budget, text in (
        ("events", EVENTS, "costs nothing more: each event is in only one of the two"),
        ("persons", PERSONS, r"both together keep epsilon=1\.40326, delta=2e-06"),
    ):
        live = store.declare(declared(name, horizon=1, budget=budget), 0.0)
        store.close_ticks(live, 1, DAY)
        with pytest.raises(HorizonReached, match=text):
            store.close_ticks(live, 1, DAY)
        with pytest.raises(HorizonReached, match=text):
            live.check_open(DAY)
    store.close()


@pytest.mark.parametrize(("budget", "both"), [(EVENTS, (1.0, 1e-6)), (PERSONS, (1.4033, 2e-6))])
def test_a_retired_stream_ends_at_its_last_tick(
    tmp_path: Path, budget: dict[str, Any], both: Any
) -> None:
    """Its successor begins with the tick that is open: events are in one of the two, persons may be
    in both."""
    store = Store(tmp_path / "a.db")
    live = store.declare(declared("one", budget=budget), 0.0)
    store.close_ticks(live, 3, 3.2 * DAY)
    now = 3.2 * DAY
    shown = f"epsilon={both[0] if both[0] == 1.0 else 1.40326:g}, delta={both[1]:g}"
    assert f"Both together keep {shown}." in explain(store, "one", now, "two")
    _, successor = retire_stream(store, "one", now, successor="two")
    assert successor is not None
    assert successor.declaration.schedule.begin == 3 * 86_400 * 10**6
    assert total(store) == both
    store.close()
    store = Store(tmp_path / "a.db")
    assert total(store) == both
    assert store.verify(store.head) == []
    store.close()


def test_a_cap_lets_a_successor_of_events_in(tmp_path: Path) -> None:
    store = Store(tmp_path / "a.db")
    set_cap(store.database, BudgetCap(1.0, 1e-6))
    live = store.declare(declared("one"), 0.0)
    store.close_ticks(live, 3, 3.2 * DAY)
    retire_stream(store, "one", 3.2 * DAY, successor="two")
    assert total(store) == (1.0, 1e-6)
    store.close()


def test_noise_for_of_a_running_stream_cannot_change(tmp_path: Path) -> None:
    """Both interfaces say so, and what to do: a successor, or a second stream that is charged."""
    pytest.importorskip("duckdb")
    store = Store(tmp_path / "a.db")
    other = declared("one", noise_for=["per-tick"], columns={"time": "ts"})
    plain = declared("one", noise_for=["running"], columns={"time": "ts"})
    store.declare(plain, 0.0)
    with pytest.raises(
        Conflict,
        match=r"noise_for of a running stream cannot change.*charged as a second one.*successor",
    ):
        store.declare(other, 0.0)
    store.close()
    (tmp_path / "events.csv").write_text("ts\n1970-01-01T03:00Z\n", "utf-8")
    files = str(tmp_path / "events.csv"), str(tmp_path / "out.csv")
    release_file(Job(files[0], plain, files[1], 2 * 86_400 * 10**6))
    with pytest.raises(
        ParameterError,
        match=r"noise_for of a running stream cannot change.*successor.*`new_noise_stream`",
    ):
        release_file(Job(files[0], other, files[1], 3 * 86_400 * 10**6))
