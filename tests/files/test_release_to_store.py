"""`evercount release --db`, and `--renew`: one spending, two faces; the next year without a
hand."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from evercount import Secret
from evercount.cli import app
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.tick_marks import TickMark
from evercount.store import Reading, Store
from evercount.store.stream_life import mark_ticks
from stored import all_releases, stored_labels

pytest.importorskip("duckdb")
OPTIONS = (
    "--time ts --every 1d --zone UTC --start 2026-01-01 --epsilon 1 --delta 1e-6 --horizon 5 "
    "--view per-tick"
)
STORE = "--db s.db --name flu"
SECRET = Secret.from_hex("44" * 32)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    days = [
        datetime(2026, 1, 1, 9) + timedelta(days=day) for day in range(14) for _ in range(1 + day)
    ]
    Path("events.csv").write_text(
        "ts,who\n" + "".join(f"{day.isoformat()}Z,u{n}\n" for n, day in enumerate(days))
    )


def run(day: int, more: str = STORE, options: str = OPTIONS) -> tuple[int, str]:
    words = shlex.split(f"release events.csv {options} {more} --now 2026-01-{day:02d}T01:00")
    done = CliRunner().invoke(app, words)
    return done.exit_code, done.stderr


def rows(path: str) -> list[str]:
    return [
        line.split(",")[1][:10]
        for line in Path(path).read_text().splitlines()
        if line[:1].isdigit()
    ]


@pytest.mark.parametrize("home", [STORE, "--state f.state"], ids=["store", "state file"])
def test_cron_goes_on_into_the_next_horizon(home: str) -> None:
    """The same line on many days: three horizons of five days, each in a file; earlier rows are not
    bad rows."""
    for day in (3, 6, 7, 12, 15):
        code, said = run(day, f"{home} --out flu.csv --renew --view last-2")
        assert code == 0, said
    kept = [rows(path) for path in ("flu.1.csv", "flu.2.csv", "flu.csv")]
    assert [len(one) for one in kept] == [5, 5, 4]
    assert [day for one in kept for day in one] == [f"2026-01-{day:02d}" for day in range(1, 15)]
    assert len(rows("flu.1.last-2.csv")) == 4
    assert "Together with 2 earlier noise streams over the same data: epsilon=1, delta=" in said
    Path("events.csv").write_text("ts\n2025-12-31T09:00:00Z\n")
    assert (
        "before the start of the stream"
        in run(17, f"{home} --out flu.csv --renew --view last-2")[1]
    )


@pytest.mark.parametrize("home", [STORE, "--state f.state"], ids=["store", "state file"])
def test_an_end_at_the_end_of_the_horizon_is_no_fault(home: str) -> None:
    """The year is published, nothing of the next one is due, and the same line may be given
    again."""
    line = f"{home} --out flu.csv --renew --end 2026-01-06"
    code, said = run(10, line)
    assert (code, "Released ticks 1 to 5" in said) == (0, True), said
    published = Path("flu.csv").read_bytes()
    for _ in range(2):
        code, said = run(10, line)
        assert code == 0, said
        assert Path("flu.csv").read_bytes() == published
    assert run(10, line.replace("--end 2026-01-06", ""))[0] == 0
    assert [rows("flu.1.csv"), rows("flu.csv")] == [
        [f"2026-01-{day:02d}" for day in days] for days in (range(1, 6), range(6, 10))
    ]
    assert run(10, line)[0] == 0, "an end that has passed: nothing is due"
    code, said = run(10, line.replace("01-06", "01-01"))
    assert (code, "is not after" in said) == (2, True), said


def test_gaps_are_those_of_the_store() -> None:
    """A tick that moves to the next, also across two runs; the numbers are those of the library on
    what is counted."""
    declaration = StreamDeclaration.from_dict(
        {"name": "flu", "query": "count", "budget": {"epsilon": 1.0, "delta": 1e-6}, "tick": "1d",
         "zone": "UTC",
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
    store.declare(
        StreamDeclaration.from_dict({**store.find("flu").declaration.to_dict(), "name": "live"}),
        1e9,
    )
    assert run(4)[0] == 5  # its lock is held
    store.close()
    assert "evercount push" in run(4, "--db s.db --name live --out live.csv")[1]


def test_persons_are_not_renewed_without_a_ledger() -> None:
    persons = f"{OPTIONS} --user who --max-events 2"
    assert run(7, "--out flu.csv --renew", persons)[0] == 2
    assert not Path("flu.csv").exists()
    ledger = "--out flu.csv --renew --ledger l --total 3,3e-6"
    assert run(7, ledger, persons)[0] == 0
    code, said = run(7, ledger, persons)
    assert (code, "2 streams, together" in said) == (0, True), said


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def test_a_service_shows_what_runs_write(kind: str, request: pytest.FixtureRequest) -> None:
    """`serve --read-only`: pages of the dashboard, views, exports and the live feed, also of runs
    that come later."""
    from evercount import release
    from evercount.service.runtime import Service
    from evercount.store.writer import WatchedStore
    from serving import ADMIN, HEADERS, served

    place = "s.db" if kind == "sqlite" else request.getfixturevalue("postgres").fresh()
    options: Any = {
        "time": "ts",
        "every": "1d",
        "zone": "UTC",
        "start": "2026-01-01",
        "epsilon": 1,
        "key": "region",
    }
    options |= {
        "keys": ["north", "south"],
        "views": ["per-day", "per-week"],
        "name": "flu",
        "db": place,
        "out": "f.csv",
    }
    Path("events.csv").write_text(
        "ts,region\n"
        + "".join(
            f"2026-01-{day:02d}T09:00Z,{key}\n"
            for day in range(1, 15)
            for key in ("north", "south") * day
        )
    )
    release("events.csv", now="2026-01-13", **options)
    service = Service(WatchedStore(place), admin=ADMIN)
    with served(service) as client:
        client.headers.update(HEADERS)
        assert client.get("/").status_code == 200  # the page; it asks what follows
        assert [one["name"] for one in client.get("/v1/streams").json()["streams"]] == ["flu"]
        facts = client.get("/v1/streams/flu").json()
        assert (facts["released"], facts["labels"]) == (12, ["north", "south"])
        assert client.get("/v1/streams/flu/releases.csv").text == Path("f.csv").read_text()
        answer = client.get("/v1/streams/flu/releases.csv")
        where, kind, _ = answer.headers["link"].split("; ")
        described = client.get(f"/v1/streams/flu/{where.strip('<>')}")
        assert (kind, described.headers["content-type"]) == (
            'rel="describedby"',
            "application/csvm+json",
        )
        of_file = json.loads(Path("f.csv.meta.json").read_text())
        assert described.json() == {**of_file, "url": "releases.csv"}
        weeks = client.get("/v1/streams/flu/releases.csv?view=per-week").text.splitlines()
        assert [line.split(",")[0] for line in weeks[1:]] == ["11", "11"]
        with client.stream("GET", "/v1/streams/flu/live?after=11") as stream:
            lines = stream.iter_lines()
            # the service has no lock
            release("events.csv", now="2026-01-15", add_keys=["east"], **options)
            shown = [
                next(json.loads(line[6:]) for line in lines if line.startswith("data: "))
                for _ in range(3)
            ]
            stream.close()
        assert [one["tick"] for one in shown] == [12, 13, 14]
        reader = Reading.open(place)
        assert shown == list(all_releases(reader, "flu"))[-3:]
        assert stored_labels(reader, "flu") == ["north", "south", "east"]
        reader.close()
        assert client.get("/v1/streams/flu").json()["labels"] == ["north", "south", "east"]
        assert client.get("/v1/streams/flu/releases.csv").text == Path("f.csv").read_text()
        release("events.csv", now="2026-01-16", remove_keys=["south"], **options)
        assert [line.split(",")[2] for line in Path("f.csv").read_text().splitlines()[-2:]] == [
            "north",
            "east",
        ]
        page = client.get("/v1/streams/flu/releases?view=per-day&cell=east").json()["releases"]
        assert [one["tick"] for one in page if one["values"][0] is not None][:2] == [13, 14]


@pytest.mark.parametrize(
    "home", ["--db s.db --name flu", "--state f.state"], ids=["store", "state file"]
)
def test_notes_are_shown_next_to_the_numbers(home: str) -> None:
    """In the output, in views and in the description, also of days that were published before, and
    for good."""
    more = f"{home} --out flu.csv --view last-2"
    assert run(3, more)[0] == 0
    plain = [line.split(",")[:4] for line in Path("flu.csv").read_text().splitlines()]
    noted = f"{more} --note '2026-01-01,2026-01-02,reporting system down' --note '3,3,a holiday'"
    code, said = run(3, noted)
    assert (code, "give them again" in said) == (0, True), said
    assert run(4, noted)[0] == 0
    assert run(5, more)[0] == 0
    lines = [line.split(",") for line in Path("flu.csv").read_text().splitlines()]
    assert [line[-1] for line in lines] == [
        "note",
        "reporting system down",
        "reporting system down",
        "a holiday",
        "",
    ]
    assert [line[:4] for line in lines[:3]] == plain
    assert "reporting system down; a holiday" in Path("flu.last-2.csv").read_text()
    (facts,) = json.loads(Path("flu.csv.meta.json").read_text())["notes"]
    assert [(one["first"], one["last"], one["text"]) for one in facts["remarks"]] == [
        (1, 2, "reporting system down"),
        (3, 3, "a holiday"),
    ]
    for bad in ("1,2", "4,2,from last to first", "9,9,beyond the horizon", "1,1,"):
        assert run(6, f"{more} --note '{bad}'")[0] == 2
    assert len(Path("flu.csv").read_text().splitlines()) == 5


def test_a_ledger_that_is_used_up_ends_the_year_and_not_the_run() -> None:
    """The last ticks are published; the next run is refused."""
    persons = f"{OPTIONS} --user who --max-events 2"
    ledger = "--out flu.csv --renew --ledger l"
    assert run(4, f"{ledger} --total 1,1e-6", persons)[0] == 0
    code, said = run(7, ledger, persons)
    assert (code, "The horizon of 5 ticks is complete" in said) == (0, True), said
    assert len(rows("flu.csv")) == 5
    assert run(8, ledger, persons)[0] == 6
    assert len(rows("flu.csv")) == 5


def test_a_renewed_stream_of_a_store_keeps_the_keys_that_joined() -> None:
    keyed = OPTIONS + " --key region --keys keys.txt --unknown other"
    lines = [
        f"2026-01-{day:02d}T09:00Z,{key}\n" for day in range(1, 12) for key in ("north", "islands")
    ]
    Path("events.csv").write_text("ts,region\n" + "".join(lines))
    Path("keys.txt").write_text("north\n")
    Path("new.txt").write_text("islands\n")
    assert run(3, f"{STORE} --renew --out flu.csv", keyed)[0] == 0
    assert run(5, f"{STORE} --renew --out flu.csv --add-keys new.txt", keyed)[0] == 0
    for day in (8, 10):
        code, said = run(day, f"{STORE} --renew --out flu.csv", keyed)
        assert code == 0, said
    cells = [line.split(",")[2] for line in Path("flu.csv").read_text().splitlines()[1:]]
    assert cells == ["north", "other", "islands"] * 4 or cells == ["north", "islands", "other"] * 4
    reader = Reading.open("s.db")
    assert reader.names() == ["flu", "flu-2"]
    assert sorted(stored_labels(reader, "flu-2")) == ["islands", "north", "other"]
    assert reader.verify() == []
    reader.close()


@pytest.mark.slow
@pytest.mark.parametrize("home", [STORE, "--state f.state"], ids=["store", "state file"])
def test_a_run_on_another_processor_goes_on(home: str) -> None:
    """The noise of these views is fitted in floating point: the run there keeps the numbers that
    the stream has."""
    persons = "--user who --max-per-tick 1 --max-ticks 3 --view running"
    line = f"{OPTIONS} {home} --out flu.csv {persons} --factorization blend".replace(
        "--horizon 5", "--horizon 40"
    )
    for core, day in (("Haswell", 5), ("Nehalem", 9)):
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "evercount",
                *shlex.split(f"release events.csv {line} --now 2026-01-{day:02d}T01:00"),
            ],
            env={**os.environ, "OPENBLAS_CORETYPE": core},
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        assert "Noise: blend" in done.stderr
    assert rows("flu.csv") == [f"2026-01-{day:02d}" for day in range(1, 9)]


def test_an_export_may_have_any_name() -> None:
    assert run(3)[0] == 0
    done = CliRunner().invoke(
        app, shlex.split("store export-releases flu --db s.db --output visits.txt")
    )
    assert done.exit_code == 0, done.stderr
    assert json.loads(Path("visits.txt.meta.json").read_text())["url"] == "visits.txt"


def test_descriptions_say_the_rule_for_late_events_that_holds_now() -> None:
    """In the file, and in an export of the store; the rule only, with and without rows that came
    late."""
    dropped = "an event that arrives after its day was published is not counted"
    following = (
        "an event that arrives after its day was published is counted in the day that is published "
        "next, whose number is then higher"
    )
    for day, rule, text, late in (
        (3, "drop", dropped, False),
        (4, "next", following, False),
        (5, "next", following, True),
    ):
        if late:
            with Path("events.csv").open("a") as file:
                file.write("2026-01-01T09:00:00Z,u9\n" * 40)
        assert run(day, f"{STORE} --out flu.csv --late {rule}")[0] == 0
        done = CliRunner().invoke(
            app, shlex.split("store export-releases flu --db s.db --output x.csv")
        )
        assert done.exit_code == 0, done.stderr
        said = [
            json.loads(Path(f"{name}.csv.meta.json").read_text())["notes"][0]
            for name in ("flu", "x")
        ]
        assert [one["late events"] for one in said] == [text] * 2
    # the late rows are in the last day
    assert float(Path("flu.csv").read_text().splitlines()[-1].split(",")[3]) > 30
