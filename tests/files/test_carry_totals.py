"""`--renew --carry-totals`: running totals go on in the next year, the same through files, stores
and the library."""

from __future__ import annotations

import csv
import json
import shlex
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import evercount
from evercount import Secret
from evercount.cli import app
from evercount.store import Reading
from soak_cases import soak_except

pytest.importorskip("duckdb")
RULES = "--time ts --every 1d --zone UTC --start 2026-01-01 --horizon 5"
KEYS = "--key region --keys keys.txt"
GAUSS = "--epsilon 1 --delta 1e-6 --factorization balanced"
VIEWS = "--view running --view per-tick --view last-2"
CARRY = "--renew --carry-totals"
STORE, STATE = "--db s.db --name flu", "--state f.state"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    days = [datetime(2026, 1, 1, 9) + timedelta(days=day) for day in range(14)]
    lines = [
        f"{day.isoformat()}Z,{key}\n"
        for day in days
        for key in ("north", "south", "islands")
        for _ in range(20)
    ]
    Path("events.csv").write_text("ts,region\n" + "".join(lines))
    Path("keys.txt").write_text("north\nsouth\nislands\n")


def run(day: int, more: str, keys: str = KEYS) -> tuple[int, str]:
    words = f"release events.csv {RULES} {keys} {more} --now 2026-01-{day:02d}T01:00"
    done = CliRunner().invoke(app, shlex.split(words))
    return done.exit_code, done.stderr


def rows(path: str) -> list[dict[str, Any]]:
    with Path(path).open() as file:
        return [{name: float(row[name]) for name in ("tick", "value", "std", "low",
                                                     "high")} | {"cell": row["cell"]}
                for row in csv.DictReader(file)]  # fmt: skip


def check_goes_on(earlier: str, path: str, cells: int = 3) -> None:
    """The totals of a file are the last ones of the earlier file and its own days; so are its
    errors."""
    before = {row["cell"]: row for row in rows(f"{earlier}.csv")[-cells:]}
    total = {name: row["value"] for name, row in before.items()}
    for row, day in zip(rows(f"{path}.csv"), rows(f"{path}.per-tick.csv"), strict=True):
        total[row["cell"]] = total.get(row["cell"], 0.0) + day["value"]
        assert row["value"] == pytest.approx(total[row["cell"]], abs=1e-6)
        old = before.get(row["cell"], {"std": 0.0, "low": 0.0, "high": 0.0})
        if row["tick"] == 1:
            assert row["std"] == pytest.approx(np.hypot(old["std"], day["std"]))
            assert row["high"] - row["low"] > max(
                old["high"] - old["low"], day["high"] - day["low"]
            )


@pytest.mark.parametrize(
    "noise", soak_except([GAUSS], [GAUSS, "--epsilon 1"]), ids=["normal", "laplace"]
)
def test_the_same_totals_through_every_way(noise: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three horizons, one secret: files, stores and the library write the same table, and the
    errors add up."""
    monkeypatch.setattr(Secret, "generate", lambda: Secret.from_hex("44" * 32))
    for day in (3, 6, 9, 12, 15):
        for more in (f"{STORE} --out d.csv", f"{STATE} --out f.csv"):
            code, said = run(day, f"{noise} {VIEWS} {CARRY} --full-digits {more}")
            assert code == 0, said
    assert (
        "Running totals count from 2026-01-01T00:00:00+00:00 on: the last published ones go on"
        in said
    )
    for name in (
        "1.csv",
        "2.csv",
        "csv",
        "1.per-tick.csv",
        "per-tick.csv",
        "2.last-2.csv",
        "last-2.csv",
    ):
        assert Path(f"f.{name}").read_text() == Path(f"d.{name}").read_text()
    check_goes_on("f.1", "f.2")
    check_goes_on("f.2", "f")
    assert len(rows("f.last-2.csv")) == 3 * 3  # windows lie within a year, as ever
    options: Any = {
        "time": "ts",
        "every": "1d",
        "zone": "UTC",
        "start": "2026-01-01",
        "horizon": 5,
        "epsilon": 1,
    }
    options |= {"delta": 1e-6, "factorization": "balanced"} if noise == GAUSS else {}
    options |= {
        "key": "region",
        "keys": "keys.txt",
        "views": ["running", "per-tick", "last-2"],
        "full_digits": True,
    }
    options |= {"state": "l.state", "now": "2026-01-15T01:00", "renew": True, "carry_totals": True}
    # a call ends where a horizon ends
    table = [evercount.release("events.csv", **options) for _ in range(3)][-1]
    assert table.to_csv() == Path("f.csv").read_text()
    reading = Reading.open("s.db")
    _, tables = reading.tables_of("flu-3")
    assert [value for one in tables for value in one.columns()["high"]] == [
        row["high"] for row in rows("d.csv")
    ]
    assert reading.verify() == []
    reading.close()
    for name in ("f.csv", "d.csv", "f.1.csv", "d.2.csv", "f.2.per-tick.csv"):
        said = json.loads(Path(f"{name}.meta.json").read_text())
        assert said["url"] == name
        assert ("running totals" in said["notes"][0]) == (".1." not in name)


@pytest.mark.parametrize("home", soak_except([STORE], [STORE, STATE]), ids=["store", "state file"])
def test_keys_join_and_leave(home: str) -> None:
    """A key that joins starts at zero with no error before; one that was not shown at the end has
    no total."""
    Path("keys.txt").write_text("north\nsouth\n")
    Path("new.txt").write_text("islands\n")
    Path("gone.txt").write_text("south\n")
    more = f"{GAUSS} {VIEWS} {CARRY} --unknown other --full-digits {home} --out f.csv"
    for day, extra in ((4, ""), (6, "--remove-keys gone.txt"), (8, ""), (9, "--add-keys new.txt")):
        code, said = run(day, f"{more} {extra}")
        assert code == 0, said
    totals, days = rows("f.csv"), rows("f.per-tick.csv")
    assert [row["cell"] for row in totals if row["tick"] == 3] == ["north", "other", "islands"]
    assert "south" in {row["cell"] for row in days}  # its days are shown again
    joined = [next(row for row in table if row["cell"] == "islands") for table in (totals, days)]
    assert [joined[0][name] for name in ("value", "std")] == [
        joined[1][name] for name in ("value", "std")
    ]
    assert [run(12, more)[0] for _ in range(2)] == [0, 0]
    assert [row["cell"] for row in rows("f.csv")] == ["north", "other", "islands"]


@pytest.mark.parametrize("home", [STORE, STATE], ids=["store", "state file"])
def test_a_key_that_was_removed_has_no_total_in_the_next_year(home: str) -> None:
    Path("less.txt").write_text("south\n")
    for day, more in ((3, ""), (6, "--remove-keys less.txt"), (8, ""), (9, "")):
        assert run(day, f"{GAUSS} {VIEWS} {CARRY} {home} --out o.csv {more}")[0] == 0
        assert day < 8 or {row["cell"] for row in rows("o.csv")} == {"north", "islands"}


@pytest.mark.parametrize("home", soak_except([STATE], [STORE, STATE]), ids=["store", "state file"])
def test_it_may_be_asked_for_later(home: str) -> None:
    """Before the end of a year it is a choice about the next one; what is published does not
    change."""
    more = f"{GAUSS} {VIEWS} --renew --full-digits {home} --out f.csv"
    assert [run(7, more)[0] for _ in range(2)] == [0, 0]
    before = Path("f.csv").read_text()
    assert run(7, f"{more} --carry-totals")[0] == 0
    assert Path("f.csv").read_text() == before
    assert [run(12, f"{more} --carry-totals")[0] for _ in range(2)] == [0, 0]
    assert Path("f.2.csv").read_text().startswith(before)
    check_goes_on("f.2", "f")
    assert run(15, more)[0] == 0  # now it is about the third year only
    check_goes_on("f.2", "f")
    assert [run(17, more)[0] for _ in range(2)] == [0, 0]
    assert rows("f.csv")[0]["value"] == rows("f.per-tick.csv")[0]["value"]


@pytest.mark.parametrize("home", [STORE, STATE], ids=["store", "state file"])
def test_refused_before_anything_is_spent(home: str) -> None:
    people = "--query distinct-users --user region --ledger l --total 2,2e-6"
    for keys, more, why in (
        (KEYS, "--carry-totals", "--carry-totals needs --renew"),
        (KEYS, f"{CARRY} --late revise --revise-for 3", "revised"),
        ("--key region --query discovered-keys", CARRY, "not unlisted keys"),
        (people, CARRY, "queries that remember events"),
    ):
        code, said = run(
            7,
            f"{GAUSS if keys == KEYS else '--epsilon 1 --delta 1e-6'} {more} {home} --out f.csv",
            keys,
        )
        assert (code, why in said) == (2, True), said
    assert not Path("f.csv").exists()
    assert not Path("l").exists()
