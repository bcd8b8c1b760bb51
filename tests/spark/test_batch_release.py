"""release_batch: the same numbers for any shards, every run with noise of its own, and the
refusals."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import ROOT_SECRET
from evercount.declarations.declaration import StreamDeclaration
from evercount.engine.close_ticks import TickTotals, close_ticks
from evercount.engine.release_table import COLUMNS
from evercount.errors import BudgetExceeded, InputError, ParameterError, StoreError
from evercount.noise import Secret
from evercount.privacy import Ledger

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("pyspark")

from pyspark.sql.functions import lit  # noqa: E402

from evercount.spark import release_batch  # noqa: E402

pytestmark = pytest.mark.slow

KEYS = [f"k{i:02d}" for i in range(60)]
TICKS = 40
DECLARATION = StreamDeclaration.from_dict(
    {
        "name": "batch",
        "query": {"name": "histogram", "parameters": {"keys": KEYS}},
        "budget": {"epsilon": 1.0, "delta": 1e-6},
        "tick": "1h",
        "start": "2026-01-01T00:00:00Z",
        "horizon": TICKS,
        "columns": {"time": "ts", "key": "key"},
        "views": ["running"],
    }
)
END = DECLARATION.schedule.start_of(TICKS + 1)


def events(spark: Any, number: int = 500) -> tuple[Any, Any]:
    """Events of some keys and ticks only, and their totals."""
    generator = np.random.default_rng(5)
    tick, cell = (
        generator.integers(0, TICKS // 2, number) * 2,
        generator.integers(0, 20, number) * 3,
    )
    micros = (
        DECLARATION.schedule.begin
        + tick * 3600 * 10**6
        + generator.integers(0, 3600 * 10**6, number)
    )
    table = pa.table(
        {"ts": pa.array(micros, pa.timestamp("us", "UTC")), "key": [KEYS[c] for c in cell]}
    )
    totals = np.zeros((TICKS, len(KEYS)), np.int64)
    np.add.at(totals, (tick, cell), 1)
    return spark.createDataFrame(table), totals


def expected(totals: Any, run: str) -> list[tuple[Any, ...]]:
    secret = Secret.from_hex(ROOT_SECRET).derive(f"evercount/spark/run/{run}")
    stream = DECLARATION.build(secret=secret, replay=True)
    rows: list[tuple[Any, ...]] = []
    for table in close_ticks(stream, TickTotals.dense(1, totals), DECLARATION.schedule.starts_of):
        rows += zip(*table.columns().values(), strict=True)
    show = DECLARATION.schedule.show
    return [(tick, show(start), *rest) for tick, start, *rest in rows]


def read(folder: Path) -> list[tuple[Any, ...]]:
    rows = [tuple(row[name] for name in COLUMNS) for row in pq.read_table(folder).to_pylist()]
    return sorted(rows, key=lambda row: (row[0], row[2]))


def test_shards_do_not_change_a_bit(spark: Any, tmp_path: Path) -> None:
    rows, totals = events(spark)
    table = expected(totals, "r1")
    for shards in (1, 7):
        out = tmp_path / f"out{shards}"
        outcome = release_batch(
            rows.repartition(shards), DECLARATION, str(out), until=END, shards=shards, run="r1"
        )
        assert (outcome.ticks, outcome.shards, outcome.bad) == (TICKS, shards, {})
        assert read(out) == table
    assert outcome.guarantee == DECLARATION.build(secret=Secret.generate()).guarantee
    assert outcome.guarantee.encode() in b"".join(
        file.read_bytes() for file in out.glob("*.parquet")
    )


def test_rows_as_a_data_frame(spark: Any, tmp_path: Path) -> None:
    """The DataFrame holds numbers, not a plan: it is the same after the events have changed."""
    rows, totals = events(spark)
    rows.write.parquet(str(tmp_path / "events"))
    source = spark.read.parquet(str(tmp_path / "events"))
    outcome = release_batch(source, DECLARATION, until=END, shards=2, run="r1")
    rows.limit(3).write.mode("append").parquet(str(tmp_path / "events"))
    assert outcome.table is not None
    found = sorted(
        (tuple(row[name] for name in COLUMNS) for row in outcome.table.collect()),
        key=lambda r: (r[0], r[2]),
    )
    assert found == expected(totals, "r1")
    with pytest.raises(ParameterError, match="would spend a budget and write nothing"):
        release_batch(rows, DECLARATION, str(tmp_path / "csv"), until=END, mode="ignore")


@pytest.mark.soak
def test_rows_in_another_format(spark: Any, tmp_path: Path) -> None:
    rows, _ = events(spark)
    for number in (1, 2):
        given = {"format": "csv", "mode": "append", "options": {"header": "true"}}
        release_batch(
            rows, DECLARATION, str(tmp_path / "csv"), until=END, run=f"r{number}", **given
        )
    assert spark.read.csv(str(tmp_path / "csv"), header=True).count() == 2 * TICKS * len(KEYS)


def test_two_runs_are_independent(spark: Any, tmp_path: Path) -> None:
    rows, totals = events(spark)
    found = []
    for number in range(2):
        outcome = release_batch(rows, DECLARATION, str(tmp_path / f"{number}"), until=END)
        found.append(read(tmp_path / f"{number}"))
        assert found[-1] == expected(totals, outcome.run)
    noise = [
        np.asarray([row[3] for row in table]).reshape(TICKS, -1) - totals.cumsum(axis=0)
        for table in found
    ]
    steps = [np.diff(one, axis=0).ravel() for one in noise]
    assert abs(np.corrcoef(steps[0], steps[1])[0, 1]) < 6 / np.sqrt(steps[0].size)


@pytest.mark.soak
def test_bad_rows_are_refused_or_left_out(spark: Any, tmp_path: Path) -> None:
    rows, totals = events(spark)
    bad = (
        rows.limit(3)
        .selectExpr("ts", "'stranger' AS key")
        .union(rows.limit(2).selectExpr("NULL AS ts", "key"))
    )
    with pytest.raises(InputError, match="a key that is not in the list of keys"):
        release_batch(rows.union(bad), DECLARATION, str(tmp_path / "out"), until=END, run="r1")
    assert not (tmp_path / "out").exists()
    outcome = release_batch(
        rows.union(bad),
        DECLARATION,
        str(tmp_path / "out"),
        until=END,
        run="r1",
        skip_bad=True,
        shards=2,
    )
    assert sorted(outcome.bad.values()) == [2, 3]
    assert read(tmp_path / "out") == expected(totals, "r1")


def test_refusals(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, _ = events(spark, 5)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "file").write_text("x")
    with pytest.raises(StoreError, match="cannot be written"):
        release_batch(rows, DECLARATION, str(tmp_path / "there"), until=END)
    with pytest.raises(ParameterError, match="no tick has ended"):
        release_batch(rows, DECLARATION, str(tmp_path / "out"), until=DECLARATION.schedule.begin)
    with pytest.raises(ParameterError, match="shards must be"):
        release_batch(rows, DECLARATION, str(tmp_path / "out"), until=END, shards=0)
    monkeypatch.delenv("EVERCOUNT_SECRET")
    with pytest.raises(ParameterError, match="never travels with a job"):
        release_batch(rows, DECLARATION, str(tmp_path / "out"), until=END)
    monkeypatch.setenv("EVERCOUNT_SECRET", "no secret at all")
    with pytest.raises(ParameterError, match="64 hexadecimal digits") as caught:
        release_batch(rows, DECLARATION, str(tmp_path / "out"), until=END)
    assert "no secret at all" not in str(caught.value)
    monkeypatch.setenv("EVERCOUNT_SECRET", "11" * 32)
    with pytest.raises(InputError, match="this executor and the driver have different secrets"):
        release_batch(rows, DECLARATION, str(tmp_path / "out"), until=END)
    assert not (tmp_path / "out" / "_SUCCESS").exists()


def test_a_run_is_entered_in_a_ledger_or_refused(spark: Any, tmp_path: Path) -> None:
    """The same total as everywhere: a second run over the same hours does not fit, and publishes
    nothing."""
    rows, _ = events(spark)
    budget = DECLARATION.budget
    ledger = Ledger(budget)
    release_batch(rows, DECLARATION, str(tmp_path / "one"), until=END, run="r1", ledger=ledger)
    assert [entry.cost for entry in ledger.entries] == [DECLARATION.build().cost]
    assert ledger.entries[0].cost.during == DECLARATION.during
    with pytest.raises(BudgetExceeded):
        release_batch(rows, DECLARATION, str(tmp_path / "two"), until=END, run="r2", ledger=ledger)
    assert not (tmp_path / "two").exists()
    fresh = Ledger(budget)
    with pytest.raises(StoreError, match="it exists"):
        release_batch(rows, DECLARATION, str(tmp_path / "one"), until=END, run="r3", ledger=fresh)
    assert not fresh.entries


def test_a_run_in_the_middle_of_a_week_is_charged_like_everywhere(
    spark: Any, tmp_path: Path
) -> None:
    """The stream before it ends within a week: a person would count in both. Another weekday beside
    it is refused."""
    rows, _ = events(spark)
    budget = {"epsilon": 1.0, "delta": 0.0, "unit": "user", "max_events": 1, "period": 7}
    columns = {"time": "ts", "user": "key", "order": "nth"}

    def begun(day: int) -> StreamDeclaration:
        table = {
            "name": "weeks",
            "query": "count",
            "budget": budget,
            "tick": "1d",
            "zone": "UTC",
            "columns": columns,
        }
        return StreamDeclaration.from_dict({**table, "horizon": 10, "start": f"2026-01-{day:02d}"})

    rows = rows.withColumn("nth", lit(1))
    ledger = Ledger(begun(5).budget)
    ledger.spend("before", begun(5).build().cost)
    for day in (15, 8):
        last = begun(day).schedule.start_of(11)
        with pytest.raises(ParameterError, match="begin at different times"):
            release_batch(
                rows, begun(day), str(tmp_path / "out"), until=last, run="r", ledger=ledger
            )
        assert not (tmp_path / "out").exists()
    assert len(ledger.entries) == 1
