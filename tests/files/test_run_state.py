"""The commit of a run: killed at every step, nothing is lost and nothing is released twice."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from evercount.declarations.tick_marks import TickMark
from evercount.engine.snapshot_format import pack
from evercount.errors import SnapshotError, StoreError
from evercount.files.keeper import Closed, RunState
from evercount.files.output_file import OutputFile
from evercount.files.source import Prefix, SeenRows
from evercount.files.state_file import FORMAT, StateFile, locked, parse_state
from evercount.store import Reading
from killed_runs import CHANGES, Runner, write_events
from store_reading import all_releases

pytest.importorskip("duckdb")

pytestmark = pytest.mark.slow

OF_THE_RUNNER = {".stdout", ".stderr", CHANGES}
UNPUBLISHED = (".out.csv.new", ".out.csv.state.new")


@pytest.fixture(scope="module")
def run() -> Iterator[Runner]:
    runner = Runner()
    yield runner
    runner.close()


def test_killed_at_every_step(tmp_path: Path, run: Runner) -> None:
    """After every kill: the old output or the new one; then rows come late, and the next run must
    not show them."""
    first = tmp_path / "first"
    first.mkdir()
    write_events(first / "events.csv", 6)
    assert run(first, 3).returncode == 0
    start, state = (first / "out.csv").read_bytes(), (first / "out.csv.state").read_bytes()
    assert run(first, 6).returncode == 0
    whole = (first / "out.csv").read_text()
    outcomes = set()
    for step in range(1, 40):
        folder = tmp_path / f"step{step}"
        folder.mkdir()
        write_events(folder / "events.csv", 6)
        (folder / "out.csv").write_bytes(start)
        (folder / "out.csv.state").write_bytes(state)
        died = run(folder, 6, step)
        if died.returncode == 0:
            assert step > 5
            break
        assert died.returncode == -signal.SIGKILL
        seen = (folder / "out.csv").read_text()
        assert seen in (start.decode(), whole)
        committed = (folder / "out.csv.state").read_bytes() != state
        outcomes.add((seen == whole, committed))
        assert committed or seen != whole  # never a visible tick that the state does not know
        # more rows for ticks that may be closed
        write_events(folder / "events.csv", 6, per_hour=50)
        again = run(folder, 6)
        assert again.returncode == 0, again.stderr
        if committed:
            assert (folder / "out.csv").read_text() == whole
        assert len((folder / "out.csv").read_text().splitlines()) == 7
        left = {path.name for path in folder.iterdir()} - OF_THE_RUNNER
        assert left <= {
            "events.csv",
            "out.csv",
            "out.csv.meta.json",
            "out.csv.state",
            ".out.csv.state.lock",
            *UNPUBLISHED,
        }
        assert committed is False or not left & set(UNPUBLISHED)
    else:
        pytest.fail("the run has more steps than this test kills at")
    assert {(False, False), (False, True), (True, True)} <= outcomes


INTO_STORE = "--db s.db --name flu --keys keys.txt --key k"


def released_into_store(folder: Path, run: Runner) -> Path:
    """A folder with a store that has released two ticks; returns the events."""
    folder.mkdir()
    (folder / "keys.txt").write_text("a\nb\n")
    events = folder / "events.csv"
    events.write_text(
        "ts,k\n" + "".join(f"2026-01-01T{hour:02d}:30:00Z,{'ab'[hour % 2]}\n" for hour in range(7))
    )
    first = run(folder, 2, more=INTO_STORE)
    assert first.returncode == 0, first.stderr
    return events


def number_of(names: list[str], name: str, after: str = "") -> int:
    """The number of the first change of this name, from 1 on; after the last one of another, which
    it follows."""
    if not after:
        return names.index(name) + 1
    last = len(names) - names[::-1].index(name)  # what comes later only reads
    begin = max(number for number, one in enumerate(names[: last - 1], 1) if one == after)
    return names.index(name, begin) + 1


def test_a_kill_comes_right_before_the_change_of_its_number(tmp_path: Path, run: Runner) -> None:
    """Of a file, of the state and of a store: nothing is changed before that number, and with the
    next one it is."""
    first = tmp_path / "first"
    first.mkdir()
    write_events(first / "events.csv", 6)
    assert run(first, 3).returncode == 0
    names = run.changes(shutil.copytree(first, tmp_path / "whole"), 6)
    for name in ("out.csv.state", "out.csv"):
        number = number_of(names, f"rename {name}")
        folders = [shutil.copytree(first, tmp_path / f"{name} {step}") for step in (0, 1)]
        codes = [run(folder, 6, number + step).returncode for step, folder in enumerate(folders)]
        assert codes == [-signal.SIGKILL] * 2
        same = [(folder / name).read_bytes() == (first / name).read_bytes() for folder in folders]
        assert same == [True, False]
    store = tmp_path / "store"
    released_into_store(store, run)
    names = run.changes(shutil.copytree(store, tmp_path / "whole store"), 4, INTO_STORE)
    commit = number_of(names, "commit", after="executemany")
    for step, ticks in ((0, 2), (1, 4)):
        folder = shutil.copytree(store, tmp_path / f"store {step}")
        assert run(folder, 4, commit + step, INTO_STORE).returncode == -signal.SIGKILL
        reading = Reading.open(folder / "s.db")
        assert len(list(all_releases(reading, "flu"))) == ticks
        reading.close()


def killed_into_store(tmp_path: Path, run: Runner, step: int) -> bool:
    """A run that is killed at a step, late rows, and the next run; whether it was killed."""
    folder = tmp_path / str(step)
    events = released_into_store(folder, run)
    died = run(folder, 4, step, more=INTO_STORE)
    before = (folder / "out.csv").read_text()
    with events.open("a") as file:  # for hours that may be closed, and one that is not
        file.writelines(f"2026-01-01T{hour:02d}:40:00Z,a\n" * 5 for hour in (1, 3, 4))
    reading = Reading.open(folder / "s.db")
    assert reading.verify() == []
    kept = [(one["tick"], one["values"]) for one in all_releases(reading, "flu")]
    reading.close()
    after = run(folder, 6, more=INTO_STORE)
    assert after.returncode == 0, after.stderr
    assert (folder / "out.csv").read_text().startswith(before), "a published row changed"
    reading = Reading.open(folder / "s.db")
    found = [(one["tick"], one["values"]) for one in all_releases(reading, "flu")]
    _, tables = reading.tables_of("flu")
    exported = [row for table in tables for row in table.columns()["value"].tolist()]
    reading.close()
    assert found[: len(kept)] == kept, "a released tick changed"
    assert [tick for tick, _ in found] == list(range(1, 7))
    written = [
        float(line.split(",")[3]) for line in (folder / "out.csv").read_text().splitlines()[1:]
    ]
    assert written == exported
    return died.returncode == -signal.SIGKILL


def test_killed_while_it_writes_into_a_store(tmp_path: Path, run: Runner) -> None:
    """The store decides whether a tick is released; the files follow it."""
    whole = tmp_path / "whole"
    released_into_store(whole, run)
    names = run.changes(whole, 4, INTO_STORE)
    commit = number_of(names, "commit", after="executemany")
    output = number_of(names, "rename out.csv")
    steps = {1, commit // 2, commit - 1, commit, commit + 1, output, output + 1}
    assert all(killed_into_store(tmp_path, run, step) for step in sorted(steps))


def killed_in_the_first_run_into_a_store(folder: Path, run: Runner, step: int) -> bool:
    """The next run goes on, and a stream of another store is refused as soon as there is an
    output."""
    folder.mkdir()
    write_events(folder / "events.csv", 5)
    died = run(folder, 3, step, more="--db s.db")
    marked = (folder / ".out.csv.stream").exists()
    assert marked or not (folder / "out.csv").exists(), "an output that nobody can be asked about"
    if (folder / "out.csv").exists():
        assert run(folder, 3, more="--db other.db").returncode == 5
    after = run(folder, 4, more="--db s.db")
    assert after.returncode == 0, after.stderr
    assert run(folder, 5, more="--db other.db").returncode == 5
    assert len((folder / "out.csv").read_text().splitlines()) == 5
    return died.returncode == -signal.SIGKILL


def test_killed_in_the_first_run_into_a_store(tmp_path: Path, run: Runner) -> None:
    """At some steps from the first to the last; `make soak` kills at all of them."""
    step, killed = 1, 0
    while killed_in_the_first_run_into_a_store(tmp_path / str(step), run, step):
        step, killed = step + 16, killed + 1
    assert killed > 5


@pytest.mark.soak
def test_killed_at_every_step_of_the_first_run_into_a_store(tmp_path: Path, run: Runner) -> None:
    step = 1
    while killed_in_the_first_run_into_a_store(tmp_path / str(step), run, step):
        step += 1
    assert step > 60


@pytest.mark.soak
def test_killed_at_every_step_into_a_store(tmp_path: Path, run: Runner) -> None:
    steps = 1
    while killed_into_store(tmp_path, run, steps):
        steps += 1
    assert steps > 40


YEARS = "--horizon 3 --view running --view per-tick --full-digits"


def killed_in_a_renewal(folder: Path, run: Runner, step: int, more: str) -> bool:
    """A year ends, a run begins the next one and is killed at a step, then late rows come; whether
    it was killed."""
    folder.mkdir()
    write_events(folder / "events.csv", 5)
    assert run(folder, 3, more=f"{YEARS} {more}").returncode == 0
    year, renewing = (folder / "out.csv").read_text(), f"{YEARS} {more} --renew --carry-totals"
    died = run(folder, 4, step, renewing)
    seen = (folder / "out.csv").read_text()
    write_events(folder / "events.csv", 5, per_hour=50)
    after = run(folder, 5, more=renewing)
    assert after.returncode == 0, after.stderr
    assert [path.name for path in sorted(folder.glob("out.[0-9].csv"))] == ["out.1.csv"], (
        "one year, one archive"
    )
    assert (folder / "out.1.csv").read_text() == year
    written = (folder / "out.csv").read_text()
    assert written.startswith(seen) or seen == year
    days = [
        float(line.split(",")[3])
        for line in (folder / "out.per-tick.csv").read_text().splitlines()[1:]
    ]
    totals = [
        float(line.split(",")[3]) for line in (year + written).splitlines() if line[:1].isdigit()
    ]
    assert totals[3:] == [totals[2] + sum(days[:number]) for number in (1, 2)]
    stds = [
        float(line.split(",")[4]) for line in (year + written).splitlines() if line[:1].isdigit()
    ]
    assert stds[3:] == pytest.approx([(stds[2] ** 2 + std**2) ** 0.5 for std in stds[:2]])
    return died.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("more", "archive", "commit"),
    [
        ("", "rename out.1.csv", "rename out.csv.state"),
        ("--db s.db --name flu", "rename out.1.per-tick.csv", "commit"),
    ],
)
def test_killed_in_a_renewal_that_carries_totals(
    tmp_path: Path, run: Runner, more: str, archive: str, commit: str
) -> None:
    """The totals go on from the very numbers that were published, whenever the run dies."""
    whole = tmp_path / "whole"
    whole.mkdir()
    write_events(whole / "events.csv", 5)
    assert run(whole, 3, more=f"{YEARS} {more}").returncode == 0
    names = run.changes(whole, 4, f"{YEARS} {more} --renew --carry-totals")
    committed = number_of(names, commit, after=archive)
    output = number_of(names, "rename out.csv", after=commit)
    steps = [number_of(names, archive), committed, committed + 1, output, output + 1]
    killed = [killed_in_a_renewal(tmp_path / str(step), run, step, more) for step in steps]
    assert all(killed)


@pytest.mark.soak
@pytest.mark.parametrize("more", ["", "--db s.db --name flu"])
def test_killed_at_every_step_of_a_renewal(tmp_path: Path, run: Runner, more: str) -> None:
    """Into a store there are some 170 of them."""
    step = 1
    while killed_in_a_renewal(tmp_path / str(step), run, step, more):
        step += 1
    assert step > 20


def test_a_year_is_archived_once(tmp_path: Path, run: Runner) -> None:
    """Killed twice in a renewal, at every step from the first copy to the commit: one set of
    copies, each whole."""
    year = tmp_path / "year"
    year.mkdir()
    write_events(year / "events.csv", 5)
    more = "--horizon 3 --view running --view per-tick"
    assert run(year, 3, more=more).returncode == 0
    published = {
        path.name: path.read_bytes() for path in year.iterdir() if path.name.startswith("out.")
    }
    killed = 0
    for step in range(1, 80, 3):
        folder = tmp_path / str(step)
        shutil.copytree(year, folder)
        codes = [run(folder, 4, last, f"{more} --renew").returncode for last in (step, step + 3, 0)]
        copies = {path.name for path in folder.glob("out.*1*")}
        assert codes[2] == 0
        assert copies == {"out.1.csv", "out.1.csv.meta.json", "out.1.per-tick.csv",
                          "out.1.per-tick.csv.meta.json",
                          "out.csv.state.1"}  # fmt: skip
        assert not list(folder.glob("out.*2*"))
        assert (folder / "out.1.csv").read_bytes() == published["out.csv"]
        assert (folder / "out.1.per-tick.csv").read_bytes() == published["out.per-tick.csv"]
        assert (folder / "out.csv.state.1").read_bytes() == published["out.csv.state"]
        assert json.loads((folder / "out.1.csv.meta.json").read_text())["url"] == "out.1.csv"
        assert len((folder / "out.csv").read_text().splitlines()) == 2
        killed += codes[0] == -signal.SIGKILL
        if codes[0] == 0:
            break
    assert killed > 7


def test_an_archive_overwrites_nothing(tmp_path: Path, run: Runner) -> None:
    """What lies under the name of a copy and is none of this year stays; the copies get the next
    number."""
    write_events(tmp_path / "events.csv", 5)
    assert run(tmp_path, 3, more="--horizon 3").returncode == 0
    year = (tmp_path / "out.csv").read_text()
    (tmp_path / "out.1.csv").write_text("mine")
    assert run(tmp_path, 4, more="--horizon 3 --renew").returncode == 0
    assert (tmp_path / "out.1.csv").read_text() == "mine"
    assert (tmp_path / "out.2.csv").read_text() == year
    assert (tmp_path / "out.csv.state.2").exists()
    assert not (tmp_path / "out.csv.state.1").exists()


def test_killed_with_keys_that_nobody_listed(tmp_path: Path, run: Runner) -> None:
    """After a kill the next run gives the very rows of a run that was never killed, new keys
    included."""
    more = "--query discovered-keys --key region --minimum 5"

    def write_keys(path: Path) -> None:
        rows = [
            f"2026-01-01T{hour:02d}:{minute:02d}:00,{region}"
            for hour in range(6)
            for minute in range(50)
            for region in ("north", "north", "south" if hour > 2 else f"village {minute}")
        ]
        path.write_text("\n".join(["ts,region", *rows]) + "\n")

    first = tmp_path / "first"
    first.mkdir()
    write_keys(first / "events.csv")
    assert run(first, 3, 0, more).returncode == 0
    start, state = (first / "out.csv").read_bytes(), (first / "out.csv.state").read_bytes()
    committed = number_of(run.changes(first, 6, more), "rename out.csv.state")
    whole = (first / "out.csv").read_text()
    assert "north" in start.decode()
    assert "south" in whole
    assert "village" not in whole
    killed = 0
    for step in (committed, committed + 1):  # `test_killed_at_every_step` tries them all
        folder = tmp_path / f"step{step}"
        folder.mkdir()
        write_keys(folder / "events.csv")
        (folder / "out.csv").write_bytes(start)
        (folder / "out.csv.state").write_bytes(state)
        died = run(folder, 6, step, more)
        assert (folder / "out.csv").read_text() in (start.decode(), whole)
        killed += died.returncode == -signal.SIGKILL
        if died.returncode:
            assert run(folder, 6, 0, more).returncode == 0
        assert (folder / "out.csv").read_text() == whole
    assert killed >= 2


@pytest.mark.parametrize("every", [pytest.param(1, marks=pytest.mark.soak), 3])
def test_killed_in_the_first_run(tmp_path: Path, run: Runner, every: int) -> None:
    for step in range(1, 40, every):
        folder = tmp_path / f"step{step}"
        folder.mkdir()
        write_events(folder / "events.csv", 3)
        if run(folder, 3, step).returncode == 0:
            break
        committed = (folder / "out.csv.state").exists()
        assert committed or not (folder / "out.csv").exists()
        assert run(folder, 3).returncode == 0
        assert len((folder / "out.csv").read_text().splitlines()) == 4
    assert step > 5


def test_a_state_survives_and_damage_is_noticed() -> None:
    state = RunState(
        {"a": 1},
        {"out format": "csv"},
        Closed(5, [[0, 3600]]),
        output=("out.csv", "digest"),
        earlier=({"leak": 0.0},),
        entry="flu",
        users={"u": (2, 0)},
        consumed={"one.csv": Prefix(7, "d")},
        seen={"$file": SeenRows(3, "e")},
        joined=((3, ["east", ["a", "b"]]),),
        marks=(TickMark(1, 2, "late"), TickMark(4, 9, "", None, "east")),
    )
    tree = {"format": FORMAT, **state.to_dict()}
    blob = pack(tree)
    assert RunState.from_dict(parse_state(blob)) == state
    for broken in (blob[:-1], blob[:40] + b"?" + blob[41:], b"", b"other"):
        with pytest.raises(SnapshotError):
            parse_state(broken)
    for change in (
        {"format": "evercount release state 1"},
        {"seen": None},
        {"closed": [1]},
        {"more": 1},
    ):
        with pytest.raises(SnapshotError, match="state"):
            RunState.from_dict(parse_state(pack({**tree, **change})))


def test_two_runs_at_once_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.csv.state"
    with locked(path), pytest.raises(StoreError, match="another run"), locked(path):
        pass
    with StateFile(path, OutputFile(tmp_path / "out.csv")) as keeper:
        assert keeper.load() is None


def test_an_output_without_its_state_and_a_changed_output(tmp_path: Path, run: Runner) -> None:
    write_events(tmp_path / "events.csv", 3)
    assert run(tmp_path, 3).returncode == 0
    state, out = tmp_path / "out.csv.state", tmp_path / "out.csv"
    assert state.stat().st_mode & 0o777 == 0o600
    kept = state.read_bytes()
    state.unlink()
    refused = run(tmp_path, 3)
    assert refused.returncode == 5
    assert "Restore the state" in refused.stderr
    state.write_bytes(kept)
    published = out.read_bytes()
    out.write_bytes(published + b"9,more,count,0,0,0,0\n")
    refused = run(tmp_path, 6)
    assert refused.returncode == 5
    assert "is not what the last run has written" in refused.stderr
    out.unlink()
    assert "is missing" in run(tmp_path, 6).stderr
    out.write_bytes(published)
    assert run(tmp_path, 6).returncode == 0
    assert out.read_bytes().startswith(published)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written(tmp_path: Path, run: Runner) -> None:
    write_events(tmp_path / "events.csv", 3)
    locked_up = tmp_path / "locked"
    locked_up.mkdir(mode=0o500)
    refused = run(tmp_path, 3, 0, "--out locked/out.csv")
    assert refused.returncode == 5
    assert "cannot be written" in refused.stderr
