"""`evercount release --ledger`: every stream over the same events is entered before it publishes,
or refused."""

from __future__ import annotations

import json
import re
import shlex
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner

from evercount.cli import app
from evercount.privacy import Budget, Ledger, compose
from evercount.store import Store, StreamDeclaration

pytest.importorskip("duckdb")
EVENT = "--time ts --every 1d --zone UTC --epsilon 1 --delta 1e-6 --horizon 365 --view running"
PERSON = f"{EVENT} --user who --max-events 2"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for year in range(2025, 2028):
        days = (datetime(year, 1, 1, 12) + timedelta(days=n) for n in range(0, 365, 5))
        rows = "".join(f"{day.isoformat()}Z,u{n % 7}\n" for n, day in enumerate(days))
        Path(f"{year}.csv").write_text(f"ts,who\n{rows}", "utf-8")


def run(year: int, more: str = "", options: str = EVENT, out: str | None = None) -> tuple[int, str]:
    command = (
        f"release {year}.csv {options} --start {year}-01-01 --out {out or f'out-{year}.csv'} {more}"
    )
    done = CliRunner().invoke(app, [*shlex.split(command), "--now", "2030-01-01"])
    return done.exit_code, " ".join(f"{done.stderr} {done.stdout}".split())


def entries() -> list[str]:
    with Ledger(path="flu.ledger") as ledger:
        return [entry.name for entry in ledger.entries]


def test_caps_that_are_carried_over_cost_one_year() -> None:
    """Seven persons with two days each: the second year counts none of them again, and costs
    nothing more."""
    caps = "--user who --max-per-tick 1 --max-ticks 2 --start 2025-01-01"
    person = (
        EVENT.replace("running", "per-tick").replace("--epsilon 1", "--epsilon 60") + f" {caps}"
    )

    def renew(more: str, out: str) -> tuple[int, str]:
        command = (
            f"release 2025.csv 2026.csv {person} --out {out}.csv --renew --ledger {out}.ledger "
            f"{more}"
        )
        done = CliRunner().invoke(app, [*shlex.split(command), "--now", "2026-12-01"])
        return done.exit_code, " ".join(f"{done.stderr} {done.stdout}".split())

    assert renew("--total 60,1e-6", "anew")[0] == 0
    assert renew("", "anew")[0] == 6  # a second year of the same persons
    for _ in range(2):
        code, told = renew("--total 120,1e-6", "sum")
        assert code == 0, told
        code, told = renew("--carry-caps --total 60,1e-6", "carried")
        assert code == 0, told
    assert "2 streams, together epsilon=60, delta=0, of a total of epsilon=60, delta=1e-06." in told
    second = {name: pd.read_csv(f"{name}.csv")["value"].sum() for name in ("sum", "carried")}
    assert second == {"sum": 14, "carried": 0}
    code, told = renew("--carry-caps --new-noise-stream", "carried")
    assert (code, "would restart the caps" in told) == (2, True)
    code, told = run(
        2025,
        "--ledger carried.ledger --carry-caps",
        person.replace("--start 2025-01-01", ""),
        "other.csv",
    )
    assert (code, "continue it" in told) == (2, True)


def test_three_years_of_events_cost_one() -> None:
    code, told = run(2025, "--ledger flu.ledger --total 1,1e-6")
    assert code == 0, told
    assert (
        "1 stream, together epsilon=1, delta=1e-06, of a total of epsilon=1, delta=1e-06." in told
    )
    assert "costs nothing more: each event is in only one of the two" in told, (
        "the horizon is complete"
    )
    for year in (2026, 2027):
        code, told = run(year, "--ledger flu.ledger")
        assert code == 0, told
    assert (
        "3 streams, together epsilon=1, delta=1e-06, of a total of epsilon=1, delta=1e-06." in told
    )
    assert entries() == [f"out-{year}.csv" for year in (2025, 2026, 2027)]
    code, told = run(2026, "--ledger flu.ledger", out="again.csv")
    assert code == 6, told
    assert "Nothing is left" in told
    assert [path.name for path in Path().glob("*again*")] == [".again.csv.state.lock"]
    assert len(entries()) == 3


def test_the_same_persons_cost_the_sum() -> None:
    code, told = run(2025, "--ledger flu.ledger --total 1.5,3e-6", PERSON)
    assert code == 0, told
    assert "counts the same persons again: both together keep epsilon=1.40326, delta=2e-06." in told
    code, told = run(2026, "--ledger flu.ledger", PERSON)
    assert code == 0, told
    assert (
        "2 streams, together epsilon=1.40326, delta=2e-06, of a total of epsilon=1.5, delta=3e-06."
        in told
    )
    code, told = run(2027, "--ledger flu.ledger", PERSON)
    assert (code, "exceeds the parts" in told) == (6, True), told


def test_what_is_refused_is_refused_before_anything_is_counted() -> None:
    """The second file is not even readable: nothing looks at it before the ledger has room."""
    assert run(2025, "--ledger flu.ledger --total 1,1e-6")[0] == 0
    Path("2025.csv").write_text("nothing that could be counted", "utf-8")
    code, told = run(2025, "--ledger flu.ledger", out="again.csv")
    assert (code, "Nothing is left" in told) == (6, True), told


def test_a_run_that_publishes_nothing_spends_nothing() -> None:
    code, told = run(2025, "--ledger flu.ledger --total 1,1e-6 --check")
    assert code == 0, told
    assert "1 stream, together epsilon=1" in told
    code, told = run(2025, "--ledger flu.ledger --total 1,1e-6 --end 2025-01-01T12:00")
    assert code == 0, told
    assert not Path("flu.ledger").exists()
    Path("2025.csv").write_text("ts,who\nnot a time,u1\n", "utf-8")
    assert run(2025, "--ledger flu.ledger --total 1,1e-6")[0] != 0
    assert entries() == []


def test_later_runs_find_their_stream() -> None:
    code, told = run(2025, "--ledger flu.ledger --total 1,1e-6 --end 2025-03-01")
    assert code == 0, told
    code, told = run(2025, "--ledger flu.ledger --end 2025-05-01 --json")
    assert code == 0, told
    assert entries() == ["out-2025.csv"]
    code, told = run(2025, "--ledger flu.ledger --total 2,1e-6 --end 2025-06-01")
    assert (code, "fixed when it started" in told) == (2, True), told
    code, told = run(2025, "--end 2025-06-01 --new-noise-stream")
    assert (code, "the stream is in a ledger" in told) == (2, True), told
    code, told = run(2025, "--end 2025-06-01 --new-noise-stream --ledger flu.ledger")
    assert code == 6, told
    assert run(2025, "--end 2025-06-01")[0] == 0, "who continues needs no ledger"
    assert run(2026, "--end 2026-06-01")[0] == 0
    code, told = run(2026, "--ledger flu.ledger")
    assert (code, "is not in the ledger" in told) == (2, True), told


@pytest.mark.parametrize(
    "more", ["--ledger flu.ledger", "--total 1,1e-6", "--ledger flu.ledger --total 1"]
)
def test_a_ledger_starts_with_its_total(more: str) -> None:
    code, told = run(2025, more)
    assert (code, "total" in told) == (2, True), told


def test_a_run_that_dies_before_the_commit_has_spent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry is on the disk before the first number is: the safe side."""
    spend = Ledger.spend

    def dying(*entry: Any) -> None:
        spend(*entry)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Ledger, "spend", dying)
        assert run(2025, "--ledger flu.ledger --total 1,1e-6")[0] == 130
    assert not Path("out-2025.csv").exists()
    assert entries() == ["out-2025.csv"]
    assert run(2025, "--ledger flu.ledger")[0] == 6


def declared(year: int, **change: Any) -> StreamDeclaration:
    table = {
        "name": f"y{year}",
        "query": "count",
        "budget": {"epsilon": 1.0, "delta": 1e-6},
        "tick": "1d",
        "zone": "UTC",
        "start": f"{year}-01-01",
        "horizon": 365,
        "columns": {"time": "ts"},
        "views": ["running"],
    }
    return StreamDeclaration.from_dict({**table, **change})


@pytest.mark.parametrize("starts", [(2025, 2026, 2027), (2025, 2025, 2027)])
def test_every_way_in_states_the_same_total(starts: tuple[int, ...], tmp_path: Path) -> None:
    """Library, ledger file, files and store: one function, one answer."""
    with Ledger(Budget(4.0, 1e-5), "library.ledger") as ledger:
        costs = [declared(year).build(ledger=ledger).cost for year in starts]
        said = ledger.sentence()
    whole = compose(costs)
    with Ledger(path="library.ledger") as ledger:
        assert [entry.cost for entry in ledger.entries] == costs
        assert ledger.sentence() == said
    store = Store(tmp_path / "a.db")
    for number, year in enumerate(starts):
        store.declare(declared(year, name=f"s{number}"), datetime(year, 1, 1).timestamp())
    (total,) = store.ledger()["totals"]
    assert (total["epsilon"], total["delta"]) == (whole.epsilon, whole.delta)
    assert store.ledger()["entries"][0]["during"] == [
        "2025-01-01T00:00:00Z",
        "2026-01-01T00:00:00Z",
    ]
    store.close()
    for number, year in enumerate(starts):
        code, told = run(year, "--ledger files.ledger --total 4,1e-5", out=f"o{number}.csv")
        assert code == 0, told
    numbers = re.compile(r"3 streams, together epsilon=\S+ delta=\S+ of a total")
    assert numbers.search(told) is not None
    assert numbers.search(told)[0] == numbers.search(said)[0]  # type: ignore[index]
    assert json.loads(json.dumps(costs[0].to_dict())) == costs[0].to_dict()
