"""An output belongs to one stream: no other writes over it, wherever that is kept and whatever
became of its state."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from typer.testing import CliRunner

from evercount.cli import app
from evercount.files.output_file import OutputFile
from evercount.store import Reading

pytest.importorskip("duckdb")
OPTIONS = (
    "--time ts --every 1d --zone UTC --start 2026-01-01 --epsilon 1 --delta 1e-6 --horizon 5 "
    "--view per-tick"
)
OPTIONS += " --view last-2"
SECOND = "A second stream over the same events would publish the same days with new noise"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    days = [
        datetime(2026, 1, 1, 9) + timedelta(days=day) for day in range(14) for _ in range(90 + day)
    ]
    Path("events.csv").write_text("ts\n" + "".join(f"{day.isoformat()}Z\n" for day in days))


def run(day: int, more: str) -> tuple[int, str]:
    done = CliRunner().invoke(
        app, shlex.split(f"release events.csv {OPTIONS} {more} --now 2026-01-{day:02d}T01:00")
    )
    return done.exit_code, " ".join(done.stderr.split())


def streams_of(store: str) -> list[str]:
    """The streams that a store has, which is what it has spent for."""
    if not Path(store).exists():
        return []
    reading = Reading.open(store)
    try:
        return list(reading.names())
    finally:
        reading.close()


FIRST = {
    "state": "",
    "other state": "--state f.state",
    "store": "--db s.db",
    "store, name": "--db s.db --name flu",
}
"""Where the stream is kept that publishes first."""
SECONDS = {
    "state": "",
    "other state": "--state g.state",
    "store": "--db s.db --name patients",
    "other store": "--db t.db",
    "other store, same name": "--db t.db --name flu",
}
"""And the stream that comes after it, to the same output."""
LOSSES: dict[str, Callable[[], object]] = {
    "nothing": lambda: None,
    "states moved": lambda: [shutil.move(path, f"{path}.old") for path in Path().glob("*.state")],
    "states and descriptions deleted": lambda: [
        path.unlink() for path in (*Path().glob("*.state"), *Path().glob("*.json"))
    ],
}
"""What becomes of the state in between."""


def moves(first: str, second: str, lost: str) -> bool:
    """Whether the second run takes the stream over: `test_move_stream.py` is about these."""
    into_store = first == "state" and lost == "nothing" and second not in ("state", "other state")
    return into_store or (first.startswith("store") and second == "other state")


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("lost", LOSSES)
@pytest.mark.parametrize("first", FIRST)
def test_what_is_published_is_not_published_again_with_new_noise(
    first: str, lost: str, kind: str
) -> None:
    """Nothing is written, declared or spent, in a first run of the second stream and in a check."""
    code, said = run(4, f"--out p.{kind} {FIRST[first]}")
    assert code == 0, said
    LOSSES[lost]()
    published, before = Path(f"p.{kind}").read_bytes(), streams_of("s.db")
    for second, where in SECONDS.items():
        if (second == first and lost == "nothing") or moves(first, second, lost):
            continue
        for more in ("", "--check"):
            code, said = run(6, f"--out p.{kind} {where} {more}")
            assert code == 5, (second, said)
            assert SECOND in said or "would spend its budget a second time" in said
            assert "--out" in said or "Restore the state" in said
            assert Path(f"p.{kind}").read_bytes() == published
    assert streams_of("s.db") == before
    assert streams_of("t.db") == []
    assert not Path("g.state").exists()


@pytest.mark.parametrize("kind", ["csv", "jsonl", "parquet"])
def test_a_stream_that_has_released_elsewhere_does_not_take_an_output(kind: str) -> None:
    """Two streams of one store, or of two, and a third with a state file: each goes on with its own
    output alone."""
    own = {"--db s.db --name a": "a", "--db s.db --name b": "b", "--db t.db --name a": "c", "": "d"}
    for where, out in own.items():
        code, said = run(4, f"--out {out}.{kind} {where}")
        assert code == 0, said
    for where, mine in own.items():
        for out in own.values():
            published = Path(f"{out}.{kind}").read_bytes()
            code, said = run(5, f"--out {out}.{kind} {where}")
            assert code == (0 if out == mine else 5), (where, out, said)
            assert (Path(f"{out}.{kind}").read_bytes() == published) == (out != mine)
    OutputFile(Path(f"a.{kind}")).marker_path.unlink()
    code, said = run(6, f"--out a.{kind} --db s.db --name a")
    assert (code, "move it away: the run writes it anew" in said) == (5, True)
    Path(f"a.{kind}").rename(f"old.{kind}")
    assert run(6, f"--out a.{kind} --db s.db --name a")[0] == 0
    assert run(7, f"--out a.{kind} --db s.db --name a --renew")[0] == 0


def test_one_stream_may_have_several_outputs_and_take_them_elsewhere() -> None:
    """Also where the chain of renewals goes on: its outputs are its own, and exports are made
    anew."""
    store = "--db s.db --name flu --renew"
    for day, out in (
        (4, "p.csv"),
        (5, "q.csv"),
        (7, "p.csv"),
        (7, "p.csv"),
        (9, "q.csv"),
        (13, "p.csv"),
        (13, "p.csv"),
    ):
        code, said = run(day, f"--out {out} {store}")
        assert code == 0, said
    Path("away").mkdir()
    for path in (Path("p.csv"), OutputFile(Path("p.csv")).marker_path):
        shutil.move(path, Path("away") / path)
    assert run(14, f"--out away/p.csv {store}")[0] == 0
    Path("q.csv").unlink()
    assert run(14, f"--out q.csv {store}")[0] == 0


def test_a_new_stream_says_what_it_adds() -> None:
    """A second output over the same rows cannot be known; the first run of every stream says what
    two cost."""
    for out in ("p.csv", "q.csv", "r.csv --db s.db", "r2.csv --db s.db --name flu"):
        code, said = run(3, f"--out {out}")
        assert (
            code,
            "Two like it keep epsilon=2, delta=0 together; --ledger FILE keeps account" in said,
        ) == (0, True)
        assert "Two like it" not in run(4, f"--out {out}")[1]
    assert "Two like it" not in run(3, "--out kept.csv --ledger l --total 3,0")[1]
