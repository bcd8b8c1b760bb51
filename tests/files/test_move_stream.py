"""A stream moves from a state file into a store and back: it goes on as if it had stayed, it is in
one place at any moment, and what cannot move is refused before anything has changed."""

from __future__ import annotations

import random
import shlex
import shutil
import signal
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from typer.testing import CliRunner

import evercount
from evercount import Secret
from evercount.cli import app
from evercount.declarations.tick_marks import TickMark
from evercount.errors import Conflict, ParameterError, StoreError
from evercount.files.state_file import read_state_file, write_state_file
from evercount.store import Reading, Store
from evercount.store.schema import secrets, states
from evercount.store.spending import BudgetCap, describe_ledger, read_spendings, set_cap
from evercount.store.stream_life import mark_ticks
from killed_runs import Runner, write_events
from store_reading import all_releases

if TYPE_CHECKING:
    from postgres_cluster import Postgres

pytest.importorskip("duckdb")
SECRET = Secret.from_hex("55" * 32)
OPEN: dict[str, Any] = {"time": "ts", "every": "1d", "zone": "UTC", "start": "2026-01-01"}
NO_NOISE = 200.0
"""An epsilon whose noise is 0 but for a chance of e^-30, for lives in which secrets are drawn."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def write_days(path: Path, until: int, late: bool = False) -> None:
    """Events of the days before `until`; with `late`, some of each day came one to three days
    later."""
    draw, arrivals = random.Random(7), list[tuple[int, str]]()
    for day in range(1, 15):
        for _ in range(12):
            row = f"2026-01-{day:02d}T{draw.randrange(24):02d}:00:00Z,u{draw.randrange(9)}"
            row += f",{draw.choice('abcd')},{draw.randrange(4)}"
            waited = draw.choice((0, 0, 1, 3)) if late else 0
            arrivals.append((day + waited, row))
    arrivals.sort(key=lambda arrival: arrival[0])
    rows = [row for day, row in arrivals if day < until]
    path.write_text("\n".join(["ts,who,key,value", *rows]) + "\n")


LIVES: dict[str, dict[str, Any]] = {
    "count": {"horizon": 12, "epsilon": 1},
    "without end": {"epsilon": 1},
    "histogram": {
        "horizon": 12,
        "epsilon": 1,
        "key": "key",
        "keys": ["a", "b"],
        "views": ["per-tick", "last-3"],
        "steps": {
            2: {"add_keys": ["c"], "notes": "2026-01-02,2026-01-02,holiday"},
            4: {"remove_keys": ["a"]},
            6: {"add_keys": ["d"], "notes": "2026-01-05,2026-01-05,sensor"},
            10: {"add_keys": ["a"]},
        },
    },
    "sum": {"horizon": 12, "epsilon": 1, "query": "sum", "value": "value", "low": 0, "high": 3},
    "discovered keys": {
        "horizon": 12,
        "epsilon": 4,
        "delta": 1e-2,
        "key": "key",
        "query": "discovered-keys",
        "views": ["per-tick"],
    },
    "active": {
        "horizon": 12,
        "epsilon": 1,
        "query": "active-users",
        "user": "who",
        "max_ticks": 3,
    },
    "distinct": {"horizon": 12, "epsilon": 1, "query": "distinct-users", "user": "who"},
    "persons": {
        "horizon": 12,
        "epsilon": 1,
        "user": "who",
        "key": "key",
        "keys": ["a", "b", "c", "d"],
        "max_events": 5,
    },
    "late next": {"horizon": 12, "epsilon": 1, "late": "next"},
    "late revise": {"horizon": 12, "epsilon": 1, "late": "revise", "revise_for": 2},
    "blended": {"horizon": 12, "epsilon": 1, "views": ["per-tick", "running", "last-7"]},
    "jsonl": {"horizon": 12, "epsilon": 1, "suffix": ".jsonl", "views": ["per-tick"]},
    "parquet": {"horizon": 12, "epsilon": 1, "suffix": ".parquet", "views": ["per-tick"]},
    "few digits": {"horizon": 12, "epsilon": 1, "steps": {}, "full_digits": False},
    "renewed": {"horizon": 3, "epsilon": NO_NOISE, "runs": {"renew": True}},
    "renewed, totals": {
        "horizon": 3,
        "epsilon": NO_NOISE,
        "key": "key",
        "keys": ["a", "b"],
        "views": ["running", "per-tick"],
        "runs": {"renew": True, "carry_totals": True},
        "steps": {4: {"add_keys": ["c"]}, 8: {"remove_keys": ["a"]}},
    },
    "renewed, caps": {
        "horizon": 3,
        "epsilon": NO_NOISE,
        "user": "who",
        "max_events": 9,
        "carry_caps": True,
        "runs": {"renew": True, "ledger": "years.ledger", "total": (NO_NOISE, 1e-6)},
    },
    "renewed, active": {
        "horizon": 3,
        "epsilon": NO_NOISE,
        "query": "active-users",
        "user": "who",
        "max_ticks": 3,
        "carry_caps": True,
        "runs": {"renew": True, "ledger": "years.ledger", "total": (NO_NOISE, 1e-6)},
    },
}
PLACES: dict[int, dict[str, str]] = {
    2: {},
    4: {},
    5: {"db": "s.db"},
    6: {"db": "s.db"},
    8: {"db": "s.db"},
    9: {"state": "back.state"},
    10: {"state": "back.state"},
    11: {"state": "back.state", "db": "t.db"},
    12: {"state": "back.state", "db": "t.db"},
}
"""Where a moving stream is kept on each of its days."""


def release(folder: Path, life: dict[str, Any], day: int, place: dict[str, str]) -> Any:
    """One run on a day: what is published is what ended before."""
    declared = {k: v for k, v in life.items() if k not in ("runs", "steps", "suffix")}
    more = {**life.get("runs", {}), **life.get("steps", {}).get(day, {})}
    if day > 2:
        more.pop("total", None)
    if "full_digits" in declared:
        more["full_digits"] = declared.pop("full_digits")
    write_days(folder / "events.csv", day, late="late" in life)
    declaration = evercount.declare(**{**OPEN, "delta": 1e-6, **declared})
    return evercount.release(
        "events.csv",
        declaration,
        out=f"out{life.get('suffix', '.csv')}",
        now=f"2026-01-{day:02d}T01:00",
        secret=SECRET,
        skip_bad="keys" in life,
        **place,
        **more,
    )


def outputs(folder: Path) -> dict[str, bytes]:
    """All that readers see: outputs, views and descriptions, also those of earlier years."""
    return {path.name: path.read_bytes() for path in sorted(folder.glob("out*")) if _public(path)}


def _public(path: Path) -> bool:
    return ".state" not in path.name


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", LIVES)
def test_a_moved_stream_goes_on_as_if_it_had_stayed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Out of its state file into a store, into another state file and into another store: the same
    bytes on every day, and the same numbers in the stores."""
    life, folders = LIVES[name], (tmp_path / "stays", tmp_path / "moves")
    for one in folders:
        one.mkdir()
    for day, place in PLACES.items():
        tables = []
        for one, where in zip(folders, ({}, place), strict=True):
            monkeypatch.chdir(one)
            tables.append(release(one, life, day, where).columns())
        stays, moves = map(outputs, folders)
        assert stays == moves, (day, place)
        assert {k: list(map(str, v)) for k, v in tables[0].items()} == {
            k: list(map(str, v)) for k, v in tables[1].items()
        }
        if "db" in place:
            check_store(folders[1] / place["db"], tables[1], life)
    left = read_state_file(folders[1] / "out.csv.state") or {}
    if "suffix" not in life:
        assert "moved" in left
        assert "stream" not in left
    assert not secrets_of("s.db"), "what could release is not left behind"


def check_store(place: Path, table: dict[str, Any], life: dict[str, Any]) -> None:
    """The chain of a store is whole, its pages show what the output has, and its ledger states what
    all streams of the chain spend together."""
    reading = Reading.open(place)
    try:
        assert reading.verify() == []
        (total,) = describe_ledger(reading.database.read(read_spendings))["totals"]
        assert total["epsilon"] == pytest.approx(life["epsilon"], rel=1e-6)
        _, parts = reading.tables_of(reading.names()[-1])
        values = [str(value) for part in parts for value in part.columns()["value"].tolist()]
    finally:
        reading.close()
    if life.get("late") != "revise":
        shown = list(map(str, table["value"]))
        assert values == shown or sorted(values) == sorted(shown)


def secrets_of(place: str) -> list[Any]:
    """The streams of a store whose secret is there and whose horizon is not over."""
    store = Store(place)
    live = {one.id for one in store.streams.values() if not one.finished}
    with store.database.reading() as connection:
        rows = [
            row.stream
            for table in (secrets, states)
            for row in connection.execute(table.select())
            if row.stream in live
        ]
    store.close()
    return rows


# -- kills ---------------------------------------------------------------------------------------

INTO = "--db s.db --name flu"
BACK = {"back": "--state back.state", "back beside": "--state out.csv.state"}
PLANTED = {
    "into": "from evercount.files.state_file import StateFile as place",
    "back": "import evercount.files.move_stream as place",
}
STAY = "; place.begin_to_leave = lambda *_: None"


@pytest.fixture(scope="module")
def run() -> Iterator[Runner]:
    runner = Runner()
    yield runner
    runner.close()


def published(folder: Path) -> dict[str, dict[str, str]]:
    """What readers see of each tick: in the output and in the store."""
    places: dict[str, dict[str, str]] = {"output": {}, "store": {}}
    for line in (folder / "out.csv").read_text().splitlines()[1:]:
        tick, _, _, value = line.split(",")[:4]
        assert tick not in places["output"], "a tick is there twice"
        places["output"][tick] = value
    if (folder / "s.db").exists():
        with suppress(StoreError):  # a run was killed before it had made its tables
            reading = Reading.open(folder / "s.db")
            assert reading.verify() == []
            for one in all_releases(reading, "flu"):
                (value,) = one["values"]
                places["store"][str(one["tick"])] = str(value)
            reading.close()
    return places


class Witness:
    """Remembers what was ever published of each tick."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.seen: dict[str, str] = {}

    def look(self) -> None:
        for place, ticks in published(self.folder).items():
            for tick, value in ticks.items():
                first = self.seen.setdefault(tick, value)
                assert first == value, f"tick {tick} was published twice, now in the {place}"


def killed_in_a_move(folder: Path, run: Runner, step: int, way: str) -> bool:
    """A stream moves and is killed at a step; rows come late, the old place is run, then the same
    move again. Returns whether it was killed."""
    folder.mkdir()
    witness = Witness(folder)
    write_events(folder / "events.csv", 7)
    assert run(folder, 2).returncode == 0
    here, there = "", INTO
    if way != "into":
        assert run(folder, 3, more=INTO).returncode == 0
        here, there = INTO, BACK[way]
    witness.look()
    died = run(folder, 4, step, there)
    witness.look()
    write_events(folder / "events.csv", 7, per_hour=50)
    between = run(folder, 5, more=here)
    assert between.returncode in (0, 5), between.stderr
    witness.look()
    write_events(folder / "events.csv", 7, per_hour=59)
    again = run(folder, 6, more=there)
    assert again.returncode == 0, again.stderr
    witness.look()
    refused = run(folder, 7, more=here)
    assert (refused.returncode, "Traceback" in refused.stderr) == (5, False), refused.stderr
    witness.look()
    assert run(folder, 7, more=there).returncode == 0
    witness.look()
    assert list(published(folder)["output"]) == [str(tick) for tick in range(1, 8)]
    check_only_place(folder, way)
    return died.returncode == -signal.SIGKILL


def check_only_place(folder: Path, way: str) -> None:
    """Nothing in the old place could release."""
    if way == "into":
        assert "moved" in (read_state_file(folder / "out.csv.state") or {})
        return
    store = Store(folder / "s.db")
    assert list(store.ended) == ["flu"]
    with store.database.reading() as connection:
        for table in (secrets, states):
            assert not connection.execute(table.select()).all()
    store.close()
    content = read_state_file(folder / BACK[way].split()[1]) or {}
    assert "origin" not in content


WAYS = ["into", "back", "back beside"]


@pytest.mark.parametrize("way", WAYS)
def test_killed_in_a_move(tmp_path: Path, run: Runner, way: str) -> None:
    """At some steps; `make soak` kills at all of them."""
    step, killed = 1, 0
    while killed_in_a_move(tmp_path / str(step), run, step, way):
        step, killed = step + 19, killed + 1
    assert killed > 3


@pytest.mark.soak
@pytest.mark.parametrize("way", WAYS)
def test_killed_at_every_step_of_a_move(tmp_path: Path, run: Runner, way: str) -> None:
    step = 1
    while killed_in_a_move(tmp_path / str(step), run, step, way):
        step += 1
    assert step > 70


@pytest.mark.parametrize("way", ["into", "back"])
def test_a_planted_bug_is_caught(tmp_path: Path, way: str) -> None:
    """A place that does not say that it is being left releases ticks that the other has."""
    runner, caught = Runner(PLANTED[way] + STAY), 0
    try:
        for step in range(1, 200, 9):
            try:
                if not killed_in_a_move(tmp_path / str(step), runner, step, way):
                    break
            except AssertionError:
                caught += 1
    finally:
        runner.close()
    assert caught


# -- refusals --------------------------------------------------------------------------------------

OPTIONS = (
    "--time ts --every 1d --zone UTC --start 2026-01-01 --epsilon 1 --delta 1e-6 --horizon 20 "
    "--view per-tick --out out.csv"
)


def command(day: int, more: str = "") -> tuple[int, str]:
    """Run the command on a day; return its exit code and what it says, on one line."""
    write_days(Path("events.csv"), 15)
    words = shlex.split(f"release events.csv {OPTIONS} {more} --now 2026-01-{day:02d}T01:00")
    done = CliRunner().invoke(app, words)
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return done.exit_code, " ".join(done.stderr.split())


def go(day: int, more: str = "") -> None:
    code, said = command(day, more)
    assert code == 0, said


def spent(place: str) -> list[str]:
    if not Path(place).exists():
        return []
    reading = Reading.open(place)
    try:
        return [f"{line.stream} {line.cost}" for line in reading.database.read(read_spendings)]
    finally:
        reading.close()


def world() -> dict[str, Any]:
    """All that a refused run leaves as it was."""
    files = {
        str(path): path.read_bytes()
        for path in Path().rglob("*")
        if path.is_file()
        and not path.name.startswith(("s.db", "t.db", "events"))
        and not path.name.endswith(".lock")
    }
    return files | {place: spent(place) for place in ("s.db", "t.db")}


def refuses(day: int, more: str, *words: str, code: int = 5) -> None:
    """A run and its check are refused with these words, and change nothing."""
    before = world()
    for check in ("--check", ""):
        exit_code, said = command(day, f"{more} {check}")
        assert exit_code == code, said
        for word in words:
            assert word in said, said
        assert world() == before


def keep_copy(*names: str) -> None:
    for name in names:
        Path("copies").mkdir(exist_ok=True)
        shutil.copy2(name, Path("copies") / name)


def restore(*names: str) -> None:
    for name in names:
        shutil.copy2(Path("copies") / name, name)


def test_a_tombstone_says_where_the_stream_is() -> None:
    go(3)
    go(4, INTO)
    refuses(5, "", "was moved to the store", "s.db: go on there with its --db and --name")
    refuses(5, "--db t.db --name flu", "was moved to the store", "s.db")
    refuses(5, "--db s.db --name other", "is 'flu' in the store, and not 'other': give --name flu")
    go(5, INTO)


def test_a_state_from_a_backup_is_refused() -> None:
    """Also with the output of that day, and also in another store."""
    go(3)
    keep_copy("out.csv", "out.csv.state")
    go(4, INTO)
    for names in (["out.csv.state"], ["out.csv.state", "out.csv"]):
        restore(*names)
        refuses(6, "", "is a copy from before its stream was moved to the store", "s.db")
        refuses(6, INTO, "both claim it", "The store is the stream; move out.csv.state away")
        refuses(6, "--db t.db", "is a copy from before its stream was moved to the store", "s.db")


def test_a_store_from_a_backup_is_refused() -> None:
    """With its head file of today, which knows that the stream is over, or of that day."""
    go(3, INTO)
    keep_copy("s.db", "s.db.head")
    go(4, "--state back.state")
    restore("s.db")
    refuses(6, INTO, "retired")
    restore("s.db", "s.db.head")
    refuses(6, INTO, "this store is a copy from before stream 'flu' was moved to the state file")
    go(6, "--state back.state")


def interrupt(monkeypatch: pytest.MonkeyPatch, where: str, day: int, more: str) -> None:
    """A run that dies when it calls this function of `move_stream`."""

    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(f"evercount.files.move_stream.{where}", die)
        assert command(day, more)[0] != 0


def test_an_unfinished_move_is_finished_where_it_began(monkeypatch: pytest.MonkeyPatch) -> None:
    """From each side of the one transaction; every other place is refused."""
    go(3)
    for where in ("adopt_stream", "StateFile.bury"):
        interrupt(monkeypatch, where, 4, INTO)
        refuses(5, "", "is moving to the store", "Nothing is released from here meanwhile")
        refuses(5, "--db t.db --name flu", "is moving to the store", "s.db: finish that")
    go(5, INTO)
    for where in ("StateFile.receive", "finish_leaving"):
        interrupt(monkeypatch, where, 6, "--state back.state")
        refuses(6, INTO, "is moving to the state file", "back.state: finish that with --state")
    refuses(6, "--state back.state --db s.db --name flu", "is moving to the state file")
    go(6, "--state back.state")
    refuses(7, INTO, "(it goes on in the state file", "go on where it is")
    refuses(7, f"--state back.state {INTO}", "the store had the stream of back.state before")


def test_a_move_back_beside_the_output_is_finished_by_any_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without `state`, too: the secret does not stay in the store."""
    go(3, INTO)
    interrupt(monkeypatch, "finish_leaving", 4, "--state out.csv.state")
    refuses(5, INTO, "is moving to the state file")
    go(5)
    check_only_place(Path(), "back beside")
    go(6, "--db t.db")
    refuses(7, "", "was moved to the store", "t.db")


def test_names_and_twins() -> None:
    """A name that another stream has, or had, is not taken; nor is a stream that was there."""
    go(3, "--out other.csv --db s.db --name flu")
    go(3)
    refuses(4, INTO, "the store has another stream 'flu'")
    go(4, "--out other.csv --state other.state")
    refuses(4, INTO, "stream 'flu' of the store is over")
    go(4, "--db s.db --name second")
    go(5, "--state back.state")
    refuses(6, "--state back.state --db s.db --name third", "had the stream of back.state before")
    go(6, "--state back.state --db t.db --name third")
    refuses(6, "--state back.state --db t.db --name fourth", "is 'third' in the store")


def test_a_stream_that_a_service_feeds_cannot_move() -> None:
    declaration = evercount.declare(**OPEN, epsilon=1, name="flu")
    store = Store("s.db")
    store.declare(declaration, 1.77e9)
    store.close()
    go(3)
    refuses(4, INTO, "the store has another stream 'flu'")
    Path("out.csv.state").unlink()
    Path("out.csv").unlink()
    refuses(4, INTO, "takes events through a service")


def test_a_check_moves_nothing() -> None:
    go(3)
    before = world()
    go(4, f"{INTO} --check")
    assert world() == before
    go(4, INTO)
    before = world()
    go(5, "--state back.state --check")
    assert world() == before
    assert not Path("back.state").exists()
    go(5, INTO)
    go(6, "--state back.state")


def test_states_that_cannot_be_read() -> None:
    go(3)
    content = Path("out.csv.state").read_bytes()
    state = read_state_file(Path("out.csv.state")) or {}
    Path("out.csv.state").write_bytes(content[:-7] + b"changed")
    refuses(4, INTO, "restore it from a backup")
    Path("out.csv.state").write_bytes(content.replace(b"release state 2", b"release state 1"))
    refuses(4, INTO, "restore it from a backup")
    write_state_file(Path("out.csv.state"), state | {"numbers": None, "closed": None})
    refuses(4, INTO, "restore it from a backup")
    Path("out.csv.state").write_bytes(content)
    go(4, INTO)


def test_a_store_that_is_gone_or_lost_the_stream() -> None:
    go(3, INTO)
    for path in Path().glob("s.db*"):
        path.rename(f"away.{path.name}")
    refuses(4, "--state back.state", "s.db, which has this stream, is not there: put it back")
    Store("s.db").close()
    refuses(4, "--state back.state", "is said to have this stream, and has not")
    for path in Path().glob("s.db*"):
        path.unlink()
    for path in Path().glob("away.*"):
        path.rename(path.name.removeprefix("away."))
    go(4, "--state back.state")


def test_a_state_that_is_not_there_or_is_another_stream() -> None:
    go(3)
    refuses(4, "--state no.state --db s.db", "there is no state at no.state", code=2)
    refuses(4, f"{INTO} --epsilon 2", "epsilon was 1.0 and is now 2.0", code=2)
    go(4, INTO)
    refuses(5, "--state back.state --epsilon 2", "epsilon was 1.0 and is now 2.0", code=2)
    go(5, INTO)


def test_an_output_that_is_behind_is_not_taken_back() -> None:
    """A state file adds rows to its output: it would lack the days that only the store has."""
    go(3, INTO)
    go(4, f"{INTO} --out elsewhere.csv")
    refuses(5, "--state back.state", "run once more with --db, this --name and this --out")
    go(5, INTO)
    go(6, "--state back.state")
    lines = Path("out.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines[1:]] == ["1", "2", "3", "4", "5"]


def test_missing_ticks_stay_in_the_store() -> None:
    """A state file knows notes, and nothing of ticks whose events are dropped or moved."""
    go(3, INTO)
    store = Store("s.db")
    mark_ticks(store, "flu", TickMark(4, 4, "sensor", "next"))
    store.close()
    for day in (4, 5):
        refuses(day, "--state back.state", "are declared missing, which a state file does not know")
        go(day, INTO)
    refuses(5, "--state back.state", "are declared missing")
    go(6, INTO)
    go(7, "--state back.state")


def test_a_cap_counts_what_earlier_streams_have_spent() -> None:
    """A stream with a predecessor does not fit under a cap that one of the two would keep."""
    go(3)
    go(4, "--new-noise-stream")
    store = Store("s.db")
    set_cap(store.database, BudgetCap(1.5, 1e-5))
    store.close()
    refuses(5, INTO, "would spend epsilon 2", code=6)
    go(5)
    store = Store("s.db")
    set_cap(store.database, BudgetCap(2.5, 1e-5))
    store.close()
    go(6, INTO)
    assert len(spent("s.db")) == 2
    go(7, INTO)
    code, said = command(7, "--out b.csv --db s.db --name second")
    assert (code, "would spend epsilon 3" in said) == (6, True), said
    store = Store("s.db")
    set_cap(store.database, None)
    store.close()
    go(7, "--out b.csv --db s.db --name second")


def test_a_store_from_before_a_move_still_charges_what_was_before() -> None:
    """The head file knows what the streams before the one that moved in have spent."""
    go(3)
    go(4, "--new-noise-stream")
    Store("s.db").close()
    keep_copy("s.db")
    go(6, INTO)
    before = sorted(line.partition(" ")[2] for line in spent("s.db"))
    assert len(before) == 2
    for log in Path().glob("s.db-*"):
        log.unlink()
    restore("s.db")
    Store("s.db").close()
    assert sorted(line.partition(" ")[2] for line in spent("s.db")) == before
    Store("s.db").close()
    assert sorted(line.partition(" ")[2] for line in spent("s.db")) == before


def test_postgresql_takes_a_stream_over_and_gives_it_back(postgres: Postgres) -> None:
    url = postgres.fresh()
    go(3)
    first = Path("out.csv").read_text()
    go(5, f"--db {url} --name flu")
    refuses(6, "", "was moved to the store")
    go(7, "--state back.state")
    assert Path("out.csv").read_text().startswith(first)
    assert len(Path("out.csv").read_text().splitlines()) == 7
    reading = Reading.open(url)
    try:
        assert reading.verify() == []
    finally:
        reading.close()
    refuses(8, f"--db {url} --name flu", "back.state")


def test_errors_have_types() -> None:
    declaration = evercount.declare(**OPEN, epsilon=1)
    write_days(Path("events.csv"), 15)

    def once(day: int, **more: Any) -> object:
        now = f"2026-01-{day:02d}T01:00"
        return evercount.release("events.csv", declaration, out="out.csv", now=now, **more)

    once(3)
    with pytest.raises(ParameterError, match="no state at"):
        once(4, db="s.db", state="no.state")
    once(4, db="s.db")
    with pytest.raises(StoreError, match="was moved to"):
        once(5)
    once(5, state="back.state")
    with pytest.raises(Conflict, match="had the stream of"):
        once(6, db="s.db", state="back.state")
    once(6, state="back.state")
