"""`--renew` of persons in periods: free after whole periods; else refused, or charged, through
every way in."""

from __future__ import annotations

import shlex
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import evercount
from evercount.cli import app
from evercount.declarations.declaration import StreamDeclaration
from evercount.errors import ParameterError
from evercount.files import resume_run
from evercount.privacy import Ledger
from evercount.store import BudgetCap, Store, set_cap

pytest.importorskip("duckdb")
PERSON = "--user who --max-events 1 --period 1w"
RULES = (
    "--time ts --every 1d --zone UTC --start 2026-01-05 --epsilon 1 --delta 0 --view per-tick "
    f"{PERSON}"
)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One person, every day of three weeks."""
    monkeypatch.chdir(tmp_path)
    days = (datetime(2026, 1, 5, 9) + timedelta(days=day) for day in range(21))
    Path("events.csv").write_text("ts,who\n" + "".join(f"{day.isoformat()}Z,ann\n" for day in days))


def run(now: int, more: str) -> tuple[int, str]:
    done = CliRunner().invoke(
        app, shlex.split(f"release events.csv {RULES} {more} --now 2026-01-{now}")
    )
    return done.exit_code, " ".join(f"{done.stderr} {done.stdout}".split())


def written() -> list[str]:
    return [path.name for path in Path().glob("[fp]*")]


@pytest.mark.parametrize(
    "more", ["--out f.csv", "--out f.csv --db s.db --name flu"], ids=["files", "store"]
)
def test_a_horizon_that_cuts_a_period_is_not_renewed_for_free(more: str) -> None:
    """A person who comes every day would count twice in the week that the horizon cuts: nothing is
    published."""
    code, said = run(20, f"--horizon 10 --renew {more}")
    assert code == 2
    assert "the horizon of 10 ticks ends in the middle of a period of 1w" in said
    assert "such as 14" in said
    assert written() == []
    assert run(20, f"--horizon 14 --renew {more}")[0] == 0
    code, said = run(26, f"--horizon 14 --renew {more}")
    assert code == 0, said
    together = (
        "Together with 1 earlier noise stream over the same data: epsilon=1, delta=0 (adjacency "
        "add-remove, unit"
    )
    assert f"{together} person, period 1w)." in said


def test_python_refuses_it_in_the_same_words() -> None:
    options: dict[str, Any] = {
        "time": "ts",
        "every": "1d",
        "zone": "UTC",
        "start": "2026-01-05",
        "epsilon": 1.0,
    }
    options |= {
        "delta": 0,
        "user": "who",
        "max_events": 1,
        "period": "1w",
        "out": "p.csv",
        "now": "2026-01-20",
    }
    with pytest.raises(ParameterError, match=r"middle of a period of 1w.*such as 14"):
        evercount.release("events.csv", renew=True, horizon=10, **options)
    assert written() == []
    evercount.release("events.csv", renew=True, horizon=14, **options)


def test_a_stream_that_has_begun_goes_on_until_its_end_and_is_then_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nothing is lost: what it has is published, and the run at its end changes no file."""
    with monkeypatch.context() as before:  # declared when nothing checked it
        before.setattr(StreamDeclaration, "renews_for_free", True)
        assert run(10, "--horizon 10 --renew --out f.csv")[0] == 0
    assert run(15, "--horizon 10 --renew --out f.csv")[0] == 0
    kept = Path("f.csv").read_bytes()
    code, said = run(20, "--horizon 10 --renew --out f.csv")
    assert code == 2
    assert "declare its successor" in said
    assert Path("f.csv").read_bytes() == kept
    with monkeypatch.context() as planted:
        planted.setattr(resume_run, "check_renewal", lambda *given, **named: None)
        code, said = run(20, "--horizon 10 --renew --out f.csv")
        assert (code, "a part of one" in said) == (2, True), "no sum can be stated"
        assert Path("f.csv").read_bytes() == kept


def test_with_a_ledger_a_week_that_is_cut_is_refused_and_whole_weeks_cost_nothing_more() -> None:
    more = "--horizon 10 --renew --out cut.csv --ledger cut.ledger"
    assert run(15, f"{more} --total 9,0")[0] == 0
    kept = Path("cut.csv").read_bytes()
    code, said = run(20, more)
    assert (code, "a part of one" in said) == (2, True), said
    assert Path("cut.csv").read_bytes() == kept
    with Ledger(path="cut.ledger") as ledger:
        assert len(ledger.entries) == 1
    more = "--horizon 14 --renew --out whole.csv --ledger whole.ledger"
    assert run(15, f"{more} --total 1,0")[0] == 0
    code, said = run(20, more)
    assert code == 0, said
    assert "middle of a period" in run(26, "--horizon 10 --out l3.csv")[1]


def test_with_a_cap_a_week_that_is_cut_is_refused() -> None:
    more = "--horizon 10 --renew --out f.csv --db s.db --name flu"
    store = Store("s.db")
    set_cap(store.database, BudgetCap(1.0, 0.0))
    store.close()
    assert run(15, more)[0] == 0
    code, said = run(20, more)
    assert (code, "a part of one" in said) == (2, True), said
    store = Store("s.db")
    assert list(store.streams) == ["flu"]
    set_cap(store.database, BudgetCap(9.0, 0.0))
    store.close()
    assert run(20, more)[0] == 2, "no cap can say what both cost"


@pytest.mark.parametrize(
    ("change", "free"),
    [
        ({}, False),
        ({"horizon": 14}, True),
        ({"horizon": None}, True),
        (
            {"budget": {"epsilon": 1, "delta": 0, "unit": "user", "max_events": 1, "period": 5}},
            True,
        ),
        (
            {"budget": {"epsilon": 1, "delta": 0, "unit": "user", "max_events": 1, "period": 4}},
            False,
        ),
        ({"budget": {"epsilon": 1, "delta": 0, "unit": "user", "max_events": 1}}, False),
        ({"budget": {"epsilon": 1, "delta": 0}}, True),
        ({"tick": "24h", "zone": "UTC", "horizon": 7}, True),
        # a week of spring
        ({"tick": "1h", "zone": "Europe/Vienna", "start": "2026-03-23", "horizon": 167}, True),
        ({"tick": "1h", "zone": "Europe/Vienna", "start": "2026-03-23", "horizon": 168}, False),
    ],
    ids=repr,
)
def test_what_is_renewed_for_free(change: dict[str, Any], free: bool) -> None:
    budget = {"epsilon": 1, "delta": 0, "unit": "user", "max_events": 1, "period": "1w"}
    table = {
        "name": "flu",
        "query": "count",
        "budget": budget,
        "tick": "1d",
        "zone": "UTC",
        "start": "2026-01-05",
    }
    declared = StreamDeclaration.from_dict(
        {**table, "horizon": 10, "views": ["per-tick"], **change}
    )
    assert declared.renews_for_free == free
