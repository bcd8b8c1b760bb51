"""Real kill -9 of a real driver, JVM and all, and of executors: nothing lost, doubled or released
otherwise."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from evercount.files.lake_table import open_lake
from kill_doors import TICKS, published
from spark_driver import burn, require_spark


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["unlisted keys", "person-days"])
def test_a_driver_that_is_killed_loses_nothing(tmp_path: Path, kind: str) -> None:
    """Killed between the store's commit and Spark's own, which is where a batch comes twice.

    In CI a round ends there: test_stream_release.py,
    `test_a_batch_that_comes_again_is_counted_once`.
    """
    require_spark()
    assert burn(tmp_path, [("batch stored", 2)], kind=kind) == 1


@pytest.mark.soak
def test_an_iceberg_table_gets_every_tick_once_over_kills_of_the_driver(tmp_path: Path) -> None:
    """Killed between the release and the table, and between the table and the next round."""
    require_spark()
    pytest.importorskip(
        "pyiceberg", reason="pyiceberg is not installed: pip install 'evercount[lake]'"
    )
    place = f"iceberg:{tmp_path}/lake/public.visits"
    assert burn(tmp_path, [("released", 1), ("table written", 1)], lake=place) == 2
    lake: Any = open_lake(place)
    rows = lake._table.scan().to_arrow().to_pylist()
    assert len(rows) == len({(row["tick"], row["cell"]) for row in rows})
    rows.sort(key=lambda row: row["tick"])
    ticks = itertools.groupby(rows, key=lambda row: row["tick"])
    assert [{row["cell"]: row["value"] for row in tick} for _, tick in ticks] == published(
        tmp_path, "spark"
    )


@pytest.mark.soak
@pytest.mark.parametrize("shards", [3, 7])
def test_a_cluster_whose_executors_and_driver_are_killed_publishes_the_same_table(
    tmp_path: Path, shards: int
) -> None:
    """Executors are processes of their own here. One dies before a shard's commit, one after it;
    then the driver."""
    require_spark()
    assert burn(tmp_path, [(f"round {TICKS}", 1)], shards, "local-cluster[2,1,1024]") == 1
    assert (tmp_path / "shard 0 was killed").exists()
    assert (tmp_path / "shard 1 was killed").exists()
