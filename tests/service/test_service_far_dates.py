"""Streams at the ends of the calendar, and one bad stream among good ones."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.schedule import Schedule
from evercount.errors import ParameterError
from evercount.service.runtime import Service
from evercount.store import Store
from soak_cases import soak_except

sys.path.insert(0, str(Path(__file__).parents[1]))
from served_service import ADMIN, HEADERS, HandClock, served

COUNT = {
    "name": "open",
    "query": {"name": "count"},
    "budget": {"epsilon": 1.0, "delta": 1e-9},
    "public": True,
}
NOW = 1_790_000_000.0


@pytest.mark.parametrize(
    ("start", "tick", "zone"),
    [
        ("9999-12-31T23:30:00Z", "1h", "UTC"),
        ("9999-12-31T22:30:00Z", "1h", "UTC"),
        ("9999-12-31", "1d", "Pacific/Kiritimati"),
        ("9998-01-01", "3660d", "UTC"),
        ("9999-12-31T23:30:00Z", "manual", "UTC"),
        ("0001-01-01T00:00:00Z", "52w", "America/New_York"),
    ],
)
def test_a_start_at_the_end_of_the_calendar_is_refused(
    tmp_path: Path, start: str, tick: str, zone: str
) -> None:
    service = Service(Store(tmp_path / "a.db"), admin=ADMIN, clock=HandClock(NOW))
    with served(service) as client:
        refused = client.post(
            "/v1/streams",
            json={**COUNT, "start": start, "tick": tick, "zone": zone},
            headers=HEADERS,
        )
        assert refused.status_code == 422
        assert "between the years 1000 and 9000" in refused.json()["error"]["message"]
        assert client.get("/v1/streams").json()["streams"] == []
        # the name is free
        client.post("/v1/streams", json=COUNT, headers=HEADERS).raise_for_status()
        assert [facts["name"] for facts in client.get("/v1/streams").json()["streams"]] == ["open"]


@pytest.mark.parametrize(
    ("zone", "year", "tick"),
    soak_except(
        [
            ("America/New_York", 1000, "3660d"),
            ("Pacific/Kiritimati", 8999, "3660d"),
            ("UTC", 8999, "1h"),
        ],
        [
            (zone, *when)
            for zone in ("UTC", "Pacific/Kiritimati", "America/New_York")
            for when in ((1000, "3660d"), (8999, "3660d"), (8999, "1h"))
        ],
    ),
)
def test_a_legal_start_has_all_its_facts(tmp_path: Path, zone: str, year: int, tick: str) -> None:
    service = Service(Store(tmp_path / "a.db"), admin=ADMIN, clock=HandClock(NOW))
    with served(service) as client:
        table = {**COUNT, "start": f"{year}-06-01", "tick": tick, "zone": zone}
        made = client.post("/v1/streams", json=table, headers=HEADERS)
        assert made.status_code == 201
        facts = client.get("/v1/streams/open").json()
        told = made.json()
        assert told.pop("published").startswith("Published: new events per tick (std ")
        # ticks are closed meanwhile
        assert told == {key: facts[key] for key in told} or year < 2000
        assert client.get("/v1/streams").status_code == 200


def test_facts_are_known_before_the_commit(tmp_path: Path) -> None:
    """A stream whose facts cannot be told is not declared."""
    declaration = StreamDeclaration.from_dict(COUNT)

    def fail(*_: object) -> None:
        raise OverflowError

    store = Store(tmp_path / "a.db")
    with pytest.raises(OverflowError):
        store.declare(declaration, NOW, before_commit=fail)
    assert not store.streams
    store.close()
    store = Store(tmp_path / "a.db")
    assert not store.streams
    assert store.ledger()["totals"] == []
    store.declare(declaration, NOW)
    store.close()


def test_one_bad_stream_breaks_no_list(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    service = Service(Store(tmp_path / "a.db"), admin=ADMIN, clock=HandClock(NOW))
    with served(service) as client:
        for name in ("good", "bad"):
            table = {**COUNT, "name": name, "tick": "1h", "start": "2050-01-01T00:00:00Z"}
            client.post("/v1/streams", json=table, headers=HEADERS).raise_for_status()
        schedule = service.store.streams["bad"].declaration.schedule
        object.__setattr__(schedule, "start", 2**62)  # no date can say this
        listed = client.get("/v1/streams")
        assert [facts["name"] for facts in listed.json()["streams"]] == ["good"]
        assert client.get("/metrics", headers=HEADERS).status_code == 200
        assert client.get("/v1/streams/good").status_code == 200
    assert "stream bad cannot be described: OverflowError" in caplog.text


def test_the_rule_holds_for_every_schedule() -> None:
    with pytest.raises(ParameterError, match="between the years"):
        Schedule.of("1h", "9999-12-31T23:30:00Z")
    assert Schedule.of("1h", "8999-12-31T23:30:00Z").show(
        Schedule.of("1h", "8999-12-31T23:30:00Z").start_of(10**6)
    )
