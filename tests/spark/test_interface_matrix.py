"""Library, files, service and Spark: one table, for any shards, on threads and on a cluster, over a
restart.

Run as a program this file is the driver of one round: the next round is another process.
"""

from __future__ import annotations

import json
import os
import random
import sys
from pathlib import Path

import pytest

from contracts.test_same_table import (
    KEYS,
    by_file,
    by_library,
    by_service,
    case,
    events_of,
    in_store,
    secret_of,
    spark_round,
    two_rounds,
    write,
)
from spark_driver import require_spark, run_program

SHARDS = (1, 3, 7)
CASE = case(
    {"name": "histogram", "parameters": {"keys": [*KEYS, *"abcdefgh"], "unknown": "other"}},
    {"key": "region"},
    ticks=8,
)
SECRET = secret_of("matrix")


def driver(folder: Path, closed: int, master: str) -> None:
    """One round of a stream for each number of shards."""
    from evercount.spark import open_session

    session = open_session(master)
    for shards in SHARDS:
        spark_round(session, CASE, SECRET, folder / "in", folder / f"{shards}", closed, shards)


@pytest.mark.soak
@pytest.mark.parametrize("master", ["local[2]", "local-cluster[2,1,1024]"])
def test_all_interfaces_publish_one_table(master: str, tmp_path: Path) -> None:
    """Rows and files come in a random order; between the two rounds every process ends."""
    require_spark()
    rows = events_of(CASE, 300)
    expected = by_library(CASE, rows, SECRET)
    assert by_file("csv")(CASE, rows, SECRET, tmp_path) == expected
    assert by_service(CASE, rows, SECRET, tmp_path) == expected
    for name in ("in", *map(str, SHARDS)):
        (tmp_path / name).mkdir()
    generator = random.Random(os.environ.get("EVERCOUNT_SEED", "matrix"))
    for part, closed in two_rounds(CASE, rows):
        generator.shuffle(part)
        for number, age in enumerate(generator.sample(range(60), 3)):
            path = tmp_path / "in" / f"{closed}-{number}.parquet"
            write(path, "parquet", part[number::3])
            os.utime(path, (1.7e9 - age, 1.7e9 - age))  # Spark takes the oldest file first
        ended = run_program(Path(__file__), tmp_path, [closed, master])
        assert ended == 0, (tmp_path / "log").read_text()[-3000:]
    for shards in SHARDS:
        assert in_store(CASE, tmp_path / f"{shards}") == expected, f"{shards} shards"


if __name__ == "__main__":
    driver(Path(sys.argv[1]), *json.loads(sys.argv[2]))
