"""`evercount release --db`, and `--renew`: one spending, two faces; the next year without a hand."""

from __future__ import annotations

import shlex
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from evercount import Secret
from evercount.cli import app
from evercount.declare.declaration import StreamDeclaration
from evercount.declare.tick_marks import TickMark
from evercount.store import Reading, Store
from evercount.store.tick_marks import mark_ticks

pytest.importorskip("duckdb")
OPTIONS = "--time ts --every 1d --zone UTC --start 2026-01-01 --epsilon 1 --delta 1e-6 --horizon 5 --view per-tick"
STORE = "--db s.db --name flu"
SECRET = Secret.from_hex("44" * 32)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    days = [datetime(2026, 1, 1, 9) + timedelta(days=day) for day in range(14) for _ in range(1 + day)]
    Path("events.csv").write_text("ts,who\n" + "".join(f"{day.isoformat()}Z,u{n}\n" for n, day in enumerate(days)))


def run(day: int, more: str = STORE, options: str = OPTIONS) -> tuple[int, str]:
    words = shlex.split(f"release events.csv {options} {more} --now 2026-01-{day:02d}T01:00")
    done = CliRunner().invoke(app, words)
    return done.exit_code, done.stderr


def rows(path: str) -> list[str]:
    return [line.split(",")[1][:10] for line in Path(path).read_text().splitlines() if line[:1].isdigit()]


@pytest.mark.parametrize("home", [STORE, "--state f.state"], ids=["store", "state file"])
def test_cron_goes_on_into_the_next_horizon(home: str) -> None:
    """The same line every day: three horizons of five days, each in a file; rows of earlier ones are no bad rows."""
    for day in range(2, 16):
        code, said = run(day, f"{home} --out flu.csv --renew --view last-2")
        assert code == 0, said
    kept = [rows(path) for path in ("flu.1.csv", "flu.2.csv", "flu.csv")]
    assert [len(one) for one in kept] == [5, 5, 4]
    assert [day for one in kept for day in one] == [f"2026-01-{day:02d}" for day in range(1, 15)]
    assert len(rows("flu.1.last-2.csv")) == 4
    assert "Together with 2 earlier noise streams over the same data: epsilon=1, delta=" in said
    Path("events.csv").write_text("ts\n2025-12-31T09:00:00Z\n")
    assert "before the start of the stream" in run(17, f"{home} --out flu.csv --renew --view last-2")[1]


def test_gaps_are_those_of_the_store() -> None:
    """A tick that moves to the next, also across two runs; the numbers are those of the library on what is counted."""
    declaration = StreamDeclaration.from_dict(
        {"name": "flu", "query": "count", "budget": {"epsilon": 1.0, "delta": 1e-6}, "tick": "1d", "zone": "UTC",
         "start": "2026-01-01", "horizon": 5, "views": ["running"], "columns": {"time": "ts"}}
    )  # fmt: skip
    from evercount import release

    release("events.csv", declaration, db="s.db", now="2026-01-02", secret=SECRET)
    store = Store("s.db")
    for mark in (TickMark(2, 2, "", "drop"), TickMark(3, 3, "moved", "next")):
        mark_ticks(store, "flu", mark)
    store.close()
    for day in (4, 6):  # tick 3 is the last of its run
        table = release("events.csv", declaration, db="s.db", now=f"2026-01-0{day}", out="flu.csv")
    plain = declaration.build(secret=SECRET, replay=True)
    expected = [plain.step(number).values[0] for number in (1, 0, 0, 3 + 4, 5)]
    assert table.columns()["value"].tolist() == [expected[tick] for tick in (0, 3, 4)]
    assert len(rows("flu.csv")) == 3


def test_what_does_not_go_together_is_refused_and_spends_nothing() -> None:
    for more, why in (
        (f"{STORE} --state f.state", "the store is the state"),
        (f"{STORE} --new-noise-stream", "another --name"),
        (f"{STORE} --out -", "name a file"),
        ("--db s.db --name 'bad name'", "name must be"),
    ):
        code, said = run(3, more)
        assert (code, why in said) == (2, True), said
    Path("events.csv").write_text("ts\nnonsense\n")
    assert run(3)[0] == 3
    assert not Path("s.db").exists() or Reading.open("s.db").names() == []
    folder = Path("events.csv")
    folder.write_text("ts\n2026-01-01T09:00:00Z\n")
    assert run(3)[0] == 0
    code, said = run(3, "--db s.db --name flu --epsilon 2", OPTIONS.replace("--epsilon 1", ""))
    assert (code, "epsilon was 1.0 and is now 2.0" in said) == (2, True), said
    store = Store("s.db")
    store.declare(StreamDeclaration.from_dict({**store.find("flu").declaration.to_dict(), "name": "live"}), 1e9)
    assert run(4)[0] == 5  # its lock is held
    store.close()
    assert "evercount push" in run(4, "--db s.db --name live --out live.csv")[1]


def test_persons_are_not_renewed_without_a_ledger() -> None:
    persons = f"{OPTIONS} --user who --max-events 2"
    assert run(7, "--out flu.csv --renew", persons)[0] == 2
    assert not Path("flu.csv").exists()
    code, said = run(7, "--out flu.csv --renew --ledger l --total 3,3e-6", persons)
    assert (code, "2 streams, together" in said) == (0, True), said
