"""`settle` fits the noise of a stream once: no home of it fits again, however often it is opened or
declared again."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import evercount
from evercount.consume.consume_log import LogConsumer
from evercount.consume.log_sources import Messages, Positions
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.settle import Settled, settle
from evercount.engine import build, noise_choice
from evercount.engine.snapshot_format import pack, unpack
from evercount.errors import Conflict, ParameterError, StoreError
from evercount.factorizations import fit_blend
from evercount.noise.secret import insecure_secret
from evercount.service.routes import read_declaration
from evercount.service.runtime import Service
from evercount.store import Store
from evercount.store.writer import WatchedStore

DAY = 86_400
START = 1_767_225_600  # 2026-01-01 in UTC
PERSONS: dict[str, Any] = {
    "name": "visits",
    "query": "count",
    "budget": {"epsilon": 1.0, "delta": 1e-6, "unit": "user", "max_per_tick": 1, "period": "1w"},
    "tick": "1d",
    "zone": "UTC",
    "start": "2026-01-01",
    "horizon": 64,
    "columns": {"time": "when", "user": "who"},
    "views": ["per-tick", "running"],
}
EVENTS = {**PERSONS, "budget": {"epsilon": 1.0, "delta": 0.0}, "columns": {"time": "when"}}
TOTALS = {**EVENTS, "views": ["running"]}
WAYS = pytest.mark.parametrize(
    "table", [PERSONS, EVENTS, TOTALS], ids=["persons", "events", "totals"]
)


class Fits:
    """How often noise was chosen or fitted since it was last asked."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*given: Any, **named: Any) -> Any:
            self.calls.append(name)
            return function(*given, **named)

        return call

    def since(self) -> list[str]:
        calls, self.calls = self.calls, []
        for cache in (noise_choice._least_error, noise_choice.candidates, build._fitted):
            getattr(cache, "cache_clear", lambda: None)()
        return calls


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> Fits:
    """Count choices and fits, which remember nothing from one question to the next."""
    for steps in ("STEPS", "WEIGHTED_STEPS"):  # how good the noise is is not asked here
        monkeypatch.setattr(fit_blend, steps, 2)
    fits = Fits()
    fits.since()
    chosen = noise_choice._least_error.__wrapped__
    monkeypatch.setattr(noise_choice, "_least_error", fits.counted("choice", chosen))
    monkeypatch.setattr(build, "_fitted", fits.counted("blend", fit_blend.fit_blend))
    monkeypatch.setattr(build, "fit_terrace", fits.counted("terrace", build.fit_terrace))
    return fits


def events(folder: Path) -> Path:
    file = folder / "visits.csv"
    rows = (f"2026-01-{1 + day:02}T10:00:00Z,p{day % 3}\n" for day in range(20))
    file.write_text("when,who\n" + "".join(rows))
    return file


@WAYS
def test_a_declaration_is_data(table: dict[str, Any], fits: Fits) -> None:
    declared = StreamDeclaration.from_dict(table)
    assert StreamDeclaration.from_toml(declared.to_toml()) == declared
    assert fits.since() == []
    settled = settle(declared)
    assert "choice" in fits.since()
    for same in (
        settled,
        Settled.from_dict(json.loads(settled.canonical())),
        settled.started(START * 10**6),
    ):
        same.build(secret=insecure_secret(1), replay=True)
    assert fits.since() == []


@WAYS
@pytest.mark.parametrize("home", ["state", "out", "db", "db and out"])
def test_a_second_release_fits_nothing(
    table: dict[str, Any], home: str, tmp_path: Path, fits: Fits
) -> None:
    places = {name: str(tmp_path / name) for name in ("state", "db")}
    places["out"] = str(tmp_path / "daily.csv")
    kept = {name: places[name] for name in home.split(" and ")}
    declared, file = StreamDeclaration.from_dict(table), events(tmp_path)
    evercount.release(file, declared, end="2026-01-06", **kept)
    assert fits.since().count("choice") == 1
    for end in ("2026-01-11", "2026-01-21"):
        again = StreamDeclaration.from_toml(declared.to_toml())
        released = evercount.release(file, again, end=end, **kept)
        assert len(released.to_pandas()) >= 10
    other = StreamDeclaration.from_dict({**table, "budget": {**table["budget"], "epsilon": 0.5}})
    with pytest.raises(ParameterError, match=r"epsilon was 1.0 and is now 0\.5"):
        evercount.release(file, other, end="2026-01-21", **kept)
    assert fits.since() == []


def test_a_state_that_names_no_noise_is_refused(tmp_path: Path) -> None:
    """One format: what was written before all noise was named is not read."""
    declared = StreamDeclaration.from_dict(TOTALS)
    file, state = events(tmp_path), tmp_path / "state"
    evercount.release(file, declared, end="2026-01-06", state=str(state))
    kept = unpack(state.read_bytes())
    assert kept["declaration"]["factorization"] == kept["stream"]["factorization"]
    kept["declaration"]["factorization"] = None
    state.write_bytes(pack(kept))
    with pytest.raises(ParameterError, match="names its noise"):
        evercount.release(file, declared, end="2026-01-11", state=str(state))


def test_a_store_that_names_no_noise_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def as_before(settled: Settled) -> str:
        return json.dumps(
            {**settled.to_dict(), "factorization": None}, sort_keys=True, separators=(",", ":")
        )

    with monkeypatch.context() as before, closing(Store(tmp_path / "a.db")) as store:
        before.setattr(Settled, "canonical", as_before)
        store.declare(StreamDeclaration.from_dict(TOTALS), START + 3.5 * DAY)
    with pytest.raises(StoreError, match="did not name its noise"):
        Store(tmp_path / "a.db")


@WAYS
def test_a_service_that_starts_again_fits_nothing(
    table: dict[str, Any], tmp_path: Path, fits: Fits
) -> None:
    now, declared = START + 3.5 * DAY, StreamDeclaration.from_dict(table)
    store = Store(tmp_path / "a.db")
    store.declare(declared, now)
    assert fits.since().count("choice") == 1
    store.close_ticks(store.find("visits"), 3, now)
    store.close()
    service = Service(Store(tmp_path / "a.db"))
    try:
        service.declare([StreamDeclaration.from_toml(declared.to_toml())])
        service.declare_one(read_declaration(set(service.store.streams), table))
        live = service.store.find("visits")
        assert live.closed == 3
        service.store.close_ticks(live, 2, now + 2 * DAY)
        assert service.store.published(live, 0, 5, range(1)).numbers.shape[0] == 5
        other = StreamDeclaration.from_dict(
            {**table, "budget": {**table["budget"], "epsilon": 0.5}}
        )
        with pytest.raises(Conflict):
            service.declare([other])
    finally:
        service.store.close()
    watched = WatchedStore(tmp_path / "a.db")
    assert (
        watched.facts_of(watched.streams["visits"]).factorization.spec
        == live.declaration.factorization
    )
    watched.database.close()
    assert fits.since() == []


class Log:
    """A log of one partition, in memory."""

    identity = "a log"

    def __init__(self, bodies: list[bytes]) -> None:
        self.bodies, self.at = bodies, 0

    def reach(self) -> tuple[dict[str, int], dict[str, int]]:
        return {"0": 0}, {"0": len(self.bodies)}

    def start(self, positions: Positions) -> None:
        self.at = positions["0"]

    def read(self, most: int) -> Messages:
        orders = range(self.at, min(len(self.bodies), self.at + most))
        self.at = orders.stop
        return Messages([self.bodies[order] for order in orders], orders, {"0": self.at})

    def place(self, order: int) -> tuple[str, int]:
        return "0", order

    def close(self) -> None:
        pass


@WAYS
def test_a_consumer_that_starts_again_fits_nothing(
    table: dict[str, Any], tmp_path: Path, fits: Fits
) -> None:
    bodies = [
        json.dumps({"when": f"2026-01-0{day}T10:00:00Z", "who": "p"}).encode()
        for day in range(1, 8)
    ]
    for started, days in enumerate((3, 5, 7)):
        now = int((START + (days + 0.5) * DAY) * 10**6)
        declared = StreamDeclaration.from_dict(table)
        with closing(Store(tmp_path / "a.db")) as store:
            consumer = LogConsumer(Log(bodies[:days]), declared, store, tmp_path, now)
            released, read = consumer.round(now)
            consumer.close()
        assert (released.stop - 1, read) == (days, 3 if not started else 2)
        assert fits.since().count("choice") == (not started)


@WAYS
def test_tasks_of_spark_fit_nothing(table: dict[str, Any], fits: Fits) -> None:
    """A task knows the stream by a text: that of the driver, which has settled the noise."""
    batches = pytest.importorskip("evercount.spark.batch_release")
    settled = settle(StreamDeclaration.from_dict(table))
    fits.since()
    job = batches.ShardJob(settled.canonical(), 3, 1, "a run", "")
    stream = job.declaration.build(secret=insecure_secret(1), task=True)
    assert stream.factorization.spec == settled.factorization
    stream.close()
    assert fits.since() == []
