"""kill -9 of `serve` with a stream of every query in the registry, events and users protected: as
in one life."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from test_service_fire import SECRET, Forge, Supervisor, insist, opened_forge, send

from evercount.audit.universes import universe
from evercount.errors import ParameterError
from evercount.noise import Secret
from evercount.queries import QUERIES
from evercount.service.read_events import read_batch
from evercount.store import Accepted, Store, StreamDeclaration
from small_queries import SMALL, TICKS, events_of
from store_reading import all_releases

pytestmark = pytest.mark.slow

ELSEWHERE = {
    "prefix": "its encoder is code of the operator: tests/store/test_store_open_encoder.py"
}
EVENTS = {"epsilon": 1.0, "delta": 1e-6}
UNITS: dict[str, dict[str, Any]] = {
    "events": EVENTS,
    "users": {**EVENTS, "unit": "user", "max_events": 1},
}


def declarations() -> list[StreamDeclaration]:
    """Every query, and its user-level form where it has one."""
    found = []
    for query in sorted(set(QUERIES) - set(ELSEWHERE)):
        for unit, budget in UNITS.items():
            table = {
                "query": {"name": query, "parameters": SMALL[query]},
                "budget": budget,
                "horizon": TICKS,
            }
            try:
                named = {**table, "name": f"{query}-{unit}", "start": "2026-01-01T00:00:00Z"}
                found.append(StreamDeclaration.from_dict(named))
            except ParameterError:
                assert unit == "users", query  # it has no form that protects users
    return found


def bodies(one: StreamDeclaration) -> list[list[Any]]:
    """The events of each tick as a client sends them; each user has two events, of which the cap
    takes one."""
    read, ticks = universe(one.query).tick, []
    for number, events in enumerate(events_of(one.query)):
        tick = [read([event])[0] if isinstance(read([event]), list) else event for event in events]
        if one.budget.unit == "user" and one.query.people is None:
            tick = [
                {"user": f"u{(number + place) // 2}", "event": event}
                for place, event in enumerate(tick)
            ]
        ticks.append(tick)
    return ticks


def one_life(
    place: Path, streams: list[StreamDeclaration], ticks: int
) -> dict[str, list[dict[str, Any]]]:
    """What a store releases that nobody disturbs, with the same secret and events."""
    store, found = Store(place), {}
    for one in streams:
        live = store.declare(one, 0.0, Secret.from_hex(SECRET))
        for tick in bodies(one)[:ticks]:
            if tick:
                (answer,) = store.accept([read_batch(one, json.dumps(tick).encode())], 0.0)
                assert isinstance(answer, Accepted), (one.name, answer)
            store.close_ticks(live, 1, 0.0)
        found[one.name] = list(all_releases(store, one.name))
    store.close()
    return found


@pytest.fixture(scope="module")
def forge() -> Iterator[Forge]:
    with opened_forge() as found:
        yield found


def under_fire(
    forge: Forge, folder: Path, place: str, kills: int, seed: int, ticks: int = TICKS
) -> None:
    streams = declarations()
    assert {one.query.name for one in streams} | set(ELSEWHERE) == set(QUERIES)
    supervisor = Supervisor(forge, place, folder / "head", kills, seed)
    supervisor.streams = [one.to_dict() for one in streams]
    # a start takes about 600: some servers die while they start, most while they serve
    supervisor.steps = 2500
    supervisor.start()
    answers: dict[str, list[dict[str, Any]]] = {one.name: [] for one in streams}
    told = {one.name: bodies(one)[:ticks] for one in streams}
    try:
        with httpx.Client(timeout=300) as client:
            for tick in range(1, ticks + 1):
                for one in streams:
                    events = told[one.name][tick - 1]
                    for _ in range(2 if events else 0):  # the second is a retry
                        assert (
                            send(supervisor, client, f"{one.name} {tick}", events, one.name) == tick
                        )
                    path = f"/v1/streams/{one.name}/close-tick?tick={tick}"
                    answers[one.name].append(insist(supervisor, client, path))
    finally:
        supervisor.stop()
    assert supervisor.killed > 0, "no server was killed"
    store = Store(place, head=folder / "head")
    try:
        assert store.verify(store.head) == []
        released = {name: list(all_releases(store, name)) for name in answers}
    finally:
        store.close()
    assert released == answers
    wanted = one_life(folder / "quiet.db", streams, ticks)
    for name, releases in wanted.items():
        assert [one["values"] for one in released[name]] == [one["values"] for one in releases], (
            name
        )


def test_every_query_survives_kills(tmp_path: Path, forge: Forge) -> None:
    under_fire(forge, tmp_path, str(tmp_path / "fire.db"), kills=2, seed=31, ticks=2)


@pytest.mark.soak
def test_every_query_survives_many_kills(tmp_path: Path, forge: Forge) -> None:
    for seed in range(3):
        folder = tmp_path / f"{seed}"
        folder.mkdir()
        under_fire(forge, folder, str(folder / "fire.db"), kills=12, seed=seed)
