"""release_stream: files in any order, in rounds and after restarts, publish the table of one
stream."""

from __future__ import annotations

import json
import os
import shutil
import signal
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evercount.declarations.declaration import StreamDeclaration
from evercount.errors import Conflict, InputError, ParameterError, StoreError
from evercount.files.lake_table import open_lake
from evercount.noise import Secret
from evercount.store import Store
from serving import Postgres
from stored import all_releases
from tiers import soak_but

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("pyspark")

from evercount.spark import release_batch, release_stream  # noqa: E402
from evercount.spark.session import EVERY_AGE, SKIPPING  # noqa: E402
from evercount.spark.stream_release import _Round  # noqa: E402

SECRET = Secret.from_hex("8e" * 32)
KEYS = ["north", "south", "west"]
TICKS = 12
HOUR = 3600 * 10**6
DECLARATION = StreamDeclaration.from_dict(
    {
        "name": "live",
        "query": {"name": "histogram", "parameters": {"keys": KEYS}},
        "budget": {"epsilon": 1.0, "delta": 1e-6},
        "tick": "1h",
        "start": "2026-01-01T00:00:00Z",
        "horizon": TICKS,
        "columns": {"time": "ts", "key": "key"},
        "views": ["running"],
    }
)
SCHEMA = "ts timestamp, key string"


def end_of(tick: int) -> int:
    return DECLARATION.schedule.start_of(tick + 1)


class Feed:
    """A folder of event files, and what the events add up to."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.files = folder / "events", 0
        self.folder.mkdir()
        self.totals = np.zeros((TICKS, len(KEYS)), np.int64)
        self._generator = np.random.default_rng(11)

    def write(
        self, *ticks: int, events: int = 40, keys: list[str] = KEYS, count: bool = True
    ) -> None:
        """One file with events of these ticks."""
        tick = self._generator.choice(np.asarray(ticks), events)
        cell = self._generator.integers(0, len(keys), events)
        micros = (
            DECLARATION.schedule.begin
            + (tick - 1) * HOUR
            + self._generator.integers(0, HOUR, events)
        )
        if count:
            np.add.at(self.totals, (tick - 1, cell), 1)
        path = self.folder / f".{self.files}.parquet"
        pq.write_table(
            pa.table(
                {"ts": pa.array(micros, pa.timestamp("us", "UTC")), "key": [keys[c] for c in cell]}
            ),
            path,
        )
        path.rename(self.folder / f"{self.files}.parquet")
        self.files += 1

    def stream(self, spark: Any, files_per_batch: int = 1) -> Any:
        reader = spark.readStream.schema(SCHEMA).options(
            maxFilesPerTrigger=files_per_batch, maxFileAge=EVERY_AGE
        )
        return reader.parquet(str(self.folder))


@pytest.fixture
def feed(tmp_path: Path) -> Feed:
    return Feed(tmp_path)


def new_store(place: Any, declaration: StreamDeclaration = DECLARATION, **rest: Any) -> Store:
    store = Store(place, **rest)
    store.declare(declaration, declaration.schedule.begin / 1e6, SECRET)
    return store


def released(store: Store) -> list[list[float]]:
    return [one["values"] for one in all_releases(store, "live")]


def expected(totals: Any, declaration: StreamDeclaration = DECLARATION) -> list[list[float]]:
    return (
        declaration.build(secret=SECRET, replay=True).run_totals(np.asarray(totals)).rows.tolist()
    )


def test_rounds_and_restarts_in_any_order_are_one_stream(
    spark: Any, feed: Feed, tmp_path: Path
) -> None:
    """Each round has a store and a query of its own, as after a restart; ticks 5 and 6 are
    quiet."""
    place, checkpoint = tmp_path / "store.db", str(tmp_path / "checkpoint")
    lines: list[str] = []
    for files, closed in (
        ([(3, 1), (2,), (9, 2)], 3),
        ([(4,), (12, 7)], 6),
        ([], 7),
        ([(8, 11), (10, 8)], 12),
    ):
        for ticks in files:
            feed.write(*ticks)
        store = new_store(place)
        before = store.find("live").closed
        outcome = release_stream(
            feed.stream(spark), DECLARATION, store, checkpoint,
            clock=lambda at=closed: end_of(at) + 5, say=lines.append,
        )  # fmt: skip
        assert outcome.ticks == range(before + 1, closed + 1)
        assert outcome.batches == len(files)
        assert outcome.finished == (closed == TICKS)
        found = released(store)
        store.close()
    assert found == expected(feed.totals)
    assert "ticks 1 to 3 released; 0 behind the clock" in lines
    assert [line.split(",")[0] for line in lines if "rows" in line] == [
        f"micro-batch {number}: 40 rows" for number in range(7)
    ]
    # a stream that is over reads no more
    feed.write(1, count=False)
    store = new_store(place)
    assert release_stream(feed.stream(spark), DECLARATION, store, checkpoint).ticks == range(13, 13)
    store.close()


@pytest.mark.soak
def test_any_streaming_source_will_do(spark: Any, tmp_path: Path) -> None:
    """A source that is not a folder: 30 rows in each batch, an hour apart."""
    from pyspark.sql import functions as sf

    source = spark.readStream.format("rate-micro-batch").options(
        rowsPerBatch=30, numPartitions=2, advanceMillisPerBatch=HOUR // 1000,
        startTimestamp=DECLARATION.schedule.begin // 1000,
    )  # fmt: skip
    key = sf.element_at(sf.array(*map(sf.lit, KEYS)), (sf.col("value") % 3 + 1).cast("int"))
    events = source.load().select(sf.col("timestamp").alias("ts"), key.alias("key"))
    store = new_store(tmp_path / "store.db")
    for closed in (1, 2, 3):
        outcome = release_stream(
            events,
            DECLARATION,
            store,
            str(tmp_path / "checkpoint"),
            clock=lambda at=closed: end_of(at) + 5,
        )
        assert outcome.ticks == range(closed, closed + 1)
    found = released(store)
    store.close()
    assert found == expected([[10, 10, 10]] * 3)


def test_a_batch_that_comes_again_is_counted_once(
    spark: Any, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The round ends after the store's commit and before Spark's: the next round gets the same
    batch."""
    store, checkpoint = new_store(tmp_path / "store.db"), str(tmp_path / "checkpoint")
    feed.write(1, 2)
    real = _Round._count

    def count(self: Any, batch: Any, number: int) -> None:
        real(self, batch, number)
        raise StoreError("the driver is gone")

    with monkeypatch.context() as patch:
        patch.setattr(_Round, "_count", count)
        with pytest.raises(StoreError, match="is gone"):
            release_stream(
                feed.stream(spark), DECLARATION, store, checkpoint, clock=lambda: end_of(2)
            )
    outcome = release_stream(
        feed.stream(spark), DECLARATION, store, checkpoint, clock=lambda: end_of(2)
    )
    assert (outcome.batches, outcome.ticks) == (0, range(1, 3))
    assert released(store) == expected(feed.totals[:2])
    store.close()


@pytest.mark.parametrize("late", soak_but(["next"], ["drop", "next"]))
def test_late_events_and_the_wait(spark: Any, feed: Feed, tmp_path: Path, late: Any) -> None:
    declaration = replace(DECLARATION, late=late, wait="10m")
    store, checkpoint = new_store(tmp_path / "store.db", declaration), str(tmp_path / "checkpoint")
    feed.write(1, 2)
    wait = 10 * 60 * 10**6
    first = release_stream(
        feed.stream(spark), declaration, store, checkpoint, clock=lambda: end_of(2) + wait - 1
    )
    assert first.ticks == range(1, 2)
    open_before = feed.totals.copy()
    feed.write(1)
    extra = feed.totals - open_before
    release_stream(
        feed.stream(spark), declaration, store, checkpoint, clock=lambda: end_of(2) + wait
    )
    rows = open_before[:2]
    if late == "next":
        rows[1] += extra[0]
    assert released(store) == expected(rows, declaration)
    store.close()


def test_a_deleted_checkpoint_is_refused_and_can_be_replaced(
    spark: Any, feed: Feed, tmp_path: Path
) -> None:
    store, checkpoint = new_store(tmp_path / "store.db"), tmp_path / "checkpoint"
    feed.write(1, 2)
    release_stream(feed.stream(spark), DECLARATION, store, str(checkpoint), clock=lambda: end_of(1))
    shutil.move(checkpoint, tmp_path / "kept")
    with pytest.raises(StoreError, match="the source would give all its events again"):
        release_stream(
            feed.stream(spark), DECLARATION, store, str(checkpoint), clock=lambda: end_of(2)
        )
    assert not checkpoint.exists()
    # the old checkpoint goes on
    shutil.copytree(tmp_path / "kept", checkpoint)
    release_stream(feed.stream(spark), DECLARATION, store, str(checkpoint), clock=lambda: end_of(2))
    assert released(store) == expected(feed.totals[:2])
    # an older copy of it, whose next batch has other files, is refused
    feed.write(3)
    release_stream(feed.stream(spark), DECLARATION, store, str(checkpoint), clock=lambda: end_of(2))
    shutil.rmtree(checkpoint)
    shutil.copytree(tmp_path / "kept", checkpoint)
    feed.write(4, count=False)
    with pytest.raises(Conflict, match="counted before with other events"):
        release_stream(
            feed.stream(spark, 9), DECLARATION, store, str(checkpoint), clock=lambda: end_of(4)
        )
    # a new checkpoint over new events only
    shutil.rmtree(feed.folder)
    feed.folder.mkdir()
    feed.write(4)
    release_stream(
        feed.stream(spark),
        DECLARATION,
        store,
        str(tmp_path / "new"),
        clock=lambda: end_of(4),
        new_checkpoint=True,
    )
    assert released(store) == expected(feed.totals[:4])
    store.close()


def test_a_checkpoint_of_another_stream_or_store_is_refused(
    spark: Any, feed: Feed, tmp_path: Path
) -> None:
    store, checkpoint = new_store(tmp_path / "store.db"), str(tmp_path / "checkpoint")
    feed.write(1)
    release_stream(feed.stream(spark), DECLARATION, store, checkpoint, clock=lambda: end_of(1))
    feed.write(2)
    other = replace(DECLARATION, name="other")
    with pytest.raises(Conflict, match="stream 'other' has counted none of its batches"):
        release_stream(feed.stream(spark), other, store, checkpoint, clock=lambda: end_of(1))
    changed = StreamDeclaration.from_dict(
        {**DECLARATION.to_dict(), "budget": {"epsilon": 2.0, "delta": 1e-6}}
    )
    with pytest.raises(Conflict, match="was declared differently"):
        release_stream(feed.stream(spark), changed, store, checkpoint, clock=lambda: end_of(1))
    store.close()
    empty = new_store(tmp_path / "empty.db")
    with pytest.raises(Conflict, match="ahead of the store"):
        release_stream(feed.stream(spark), DECLARATION, empty, checkpoint, clock=lambda: end_of(1))
    assert empty.find("live").closed == 0
    empty.close()


def test_a_checkpoint_ahead_of_the_store_is_refused_before_a_tick_closes(
    spark: Any, feed: Feed, tmp_path: Path
) -> None:
    """No new batch comes in the last round, so only the checkpoint itself tells that events would
    be lost."""
    checkpoint = tmp_path / "checkpoint"

    def go(
        place: str, closed: int, declaration: StreamDeclaration = DECLARATION, **rest: Any
    ) -> list[list[float]]:
        store = new_store(tmp_path / place)
        folder = rest.pop("folder", checkpoint)
        try:
            release_stream(
                feed.stream(spark),
                declaration,
                store,
                str(folder),
                clock=lambda: end_of(closed),
                **rest,
            )
            return released(store)
        finally:
            assert store.find("live").closed in (0, closed)
            store.close()

    for number in range(3):
        feed.write(1)
        go("store.db", 0)
        if number == 0:
            for path in tmp_path.glob("store.db*"):
                shutil.copy(path, tmp_path / path.name.replace("store", "backup"))
    with pytest.raises(
        Conflict,
        match=r"ahead of the store: Spark continues with batch 3, .* has counted 1 batches of it",
    ):
        go("backup.db", 1)
    without_commits = tmp_path / "without commits"
    shutil.copytree(checkpoint, without_commits, ignore=shutil.ignore_patterns("commits"))
    with pytest.raises(Conflict, match="ahead of the store: Spark continues with batch 2, "):
        go("backup.db", 1, folder=without_commits)
    with pytest.raises(Conflict, match=r"ahead of the store: .* has counted none of its batches"):
        go("lost.db", 1)
    with pytest.raises(Conflict, match="ahead of the store"):
        go("lost.db", 1, new_checkpoint=True)
    with pytest.raises(Conflict, match="stream 'other' has counted none of its batches"):
        go("store.db", 1, replace(DECLARATION, name="other"))
    assert go("store.db", 1) == expected(feed.totals[:1])


def test_an_interrupted_round_stops_its_query(
    spark: Any, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C after the second of six batches: none is counted afterwards, and the next round takes
    the rest."""
    store, checkpoint = new_store(tmp_path / "store.db"), str(tmp_path / "checkpoint")
    for _ in range(6):
        feed.write(1, events=5)
    real = _Round._count

    def count(self: Any, batch: Any, number: int) -> None:
        real(self, batch, number)
        if number == 1:
            os.kill(os.getpid(), signal.SIGINT)

    def go() -> Any:
        return release_stream(
            feed.stream(spark), DECLARATION, store, checkpoint, clock=lambda: end_of(1)
        )

    with monkeypatch.context() as patch:
        patch.setattr(_Round, "_count", count)
        with pytest.raises(KeyboardInterrupt):
            go()
    assert not spark.streams.active
    assert store.find("live").closed == 0
    rest = go()
    assert 0 < rest.batches <= 4
    assert released(store) == expected(feed.totals[:1])
    store.close()


VIENNA = StreamDeclaration.from_dict(
    {**DECLARATION.to_dict(), "zone": "Europe/Vienna", "start": "2026-01-01T00:00:00"}
)


@pytest.mark.soak
def test_times_without_an_offset_are_those_of_the_declared_zone(spark: Any, tmp_path: Path) -> None:
    """Spark would read JSON in the session's zone (6 ticks away) and naive Parquet in UTC (1 tick
    away)."""
    rows = [{"ts": "2026-01-01T01:30:00", "key": "north"}] * 30
    folders = {name: tmp_path / name for name in ("json", "naive", "utc")}
    for folder in folders.values():
        folder.mkdir()
    (folders["json"] / "x.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, zone, hour in (("naive", None, 1), ("utc", "UTC", 0)):
        times = pa.array([datetime(2026, 1, 1, hour, 30)] * 30, pa.timestamp("us", zone))
        pq.write_table(pa.table({"ts": times, "key": ["north"] * 30}), folders[name] / "x.parquet")

    def go(folder: str, kind: str, run: int) -> list[list[float]]:
        form, schema = "json" if folder == "json" else "parquet", f"ts {kind}, key string"
        reader = spark.readStream.format(form).schema(schema).option("maxFileAge", EVERY_AGE)
        store = new_store(tmp_path / f"{run}.db", VIENNA)
        try:
            release_stream(
                reader.load(str(folders[folder])), VIENNA, store, str(tmp_path / f"c{run}"),
                clock=lambda: VIENNA.schedule.start_of(4),
            )  # fmt: skip
            return released(store)
        finally:
            store.close()

    right = expected([[0, 0, 0], [30, 0, 0], [0, 0, 0]], VIENNA)
    for run, (folder, kind) in enumerate(
        (("json", "string"), ("naive", "timestamp_ntz"), ("utc", "timestamp"))
    ):
        assert go(folder, kind, run) == right
    with pytest.raises(ParameterError, match="give the time as string in the schema"):
        go("json", "timestamp", 3)
    for run, (folder, kind) in enumerate((("naive", "timestamp"), ("utc", "timestamp_ntz")), 4):
        with pytest.raises(InputError, match="Spark would shift the times"):
            go(folder, kind, run)
    (folders["naive"] / "y.parquet").write_bytes((folders["utc"] / "x.parquet").read_bytes())
    with pytest.raises(InputError, match=r"cannot be read together.*read them separately"):
        go("naive", "timestamp_ntz", 6)
    for form, folder, error in (("json", "json", ParameterError), ("parquet", "naive", InputError)):
        table = (
            spark.read.format(form).schema("ts timestamp, key string").load(str(folders[folder]))
        )
        with pytest.raises(error, match="Spark"):
            release_batch(table, VIENNA, str(tmp_path / "out"))


@pytest.mark.soak
def test_old_files_that_come_late_are_counted(spark: Any, feed: Feed, tmp_path: Path) -> None:
    """Spark skips a file 8 days older than the newest; it must be told not to, or is refused."""
    store, checkpoint = new_store(tmp_path / "store.db"), str(tmp_path / "checkpoint")
    for old in (False, True):
        feed.write(1)
        if old:
            path = feed.folder / "1.parquet"
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 8 * 86_400))
        release_stream(feed.stream(spark), DECLARATION, store, checkpoint, clock=lambda: end_of(0))
    release_stream(feed.stream(spark), DECLARATION, store, checkpoint, clock=lambda: end_of(1))
    assert released(store) == expected(feed.totals[:1])
    with pytest.raises(ParameterError, match="skips files that are more than 7 days older"):
        release_stream(
            spark.readStream.schema(SCHEMA).parquet(str(feed.folder)),
            DECLARATION,
            store,
            checkpoint,
        )
    store.close()


def test_rows_of_users_are_said_once(spark: Any, tmp_path: Path) -> None:
    declaration = StreamDeclaration.from_dict({
        **DECLARATION.to_dict(),
        "budget": {"epsilon": 1.0, "delta": 1e-6, "unit": "user", "max_events": 2},
        "columns": {"time": "ts", "key": "key", "user": "who", "order": "n"},
    })  # fmt: skip
    rows = "'2026-01-01T00:30:00Z' AS ts, 'north' AS key, CAST(id % 7 AS string) AS who, id AS n"
    spark.sql(f"SELECT {rows} FROM range(100)").coalesce(1).write.parquet(str(tmp_path / "in"))
    reader = spark.readStream.schema("ts string, key string, who string, n long").option(
        "maxFileAge", EVERY_AGE
    )
    lines: list[str] = []
    release_stream(
        reader.parquet(str(tmp_path / "in")), declaration, tmp_path / "store.db",
        str(tmp_path / "checkpoint"), clock=lambda: end_of(1), say=lines.append,
    )  # fmt: skip
    assert [line.split(",")[0] for line in lines] == [
        "micro-batch 0: 100 rows",
        "ticks 1 to 1 released; 0 behind the clock",
    ]


@pytest.mark.parametrize(
    "place", soak_but(["iceberg:{}/public.live"], ["delta:{}/table", "iceberg:{}/public.live"])
)
def test_a_lake_gets_every_tick_once(
    place: str, spark: Any, feed: Feed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also those of a round that ended after the release and before the table."""
    for name in ("deltalake", "pyiceberg"):
        pytest.importorskip(name, reason=f"{name} is not installed: pip install 'evercount[lake]'")
    store, lake = new_store(tmp_path / "store.db"), place.format(tmp_path)

    def go(closed: int) -> Any:
        feed.write(closed)
        checkpoint = str(tmp_path / "checkpoint")
        return release_stream(
            feed.stream(spark),
            DECLARATION,
            store,
            checkpoint,
            clock=lambda: end_of(closed),
            lake=lake,
        )

    go(2)
    with monkeypatch.context() as broken:
        broken.setattr("evercount.spark.stream_release.append_released", None)
        with pytest.raises(TypeError):
            go(4)
    assert store.find("live").closed == 4
    go(4)
    go(5)
    table = open_lake(lake)._table  # type: ignore[attr-defined]
    rows = (
        table.to_pyarrow_table() if lake.startswith("delta") else table.scan().to_arrow()
    ).to_pylist()
    found = {(row["tick"], row["cell"]): row["value"] for row in rows}
    assert len(rows) == len(found) == 5 * len(KEYS)
    assert [[found[tick, key] for key in KEYS] for tick in range(1, 6)] == released(store)
    store.close()


def test_bad_rows_stop_the_stream_until_they_may_be_skipped(
    spark: Any, feed: Feed, tmp_path: Path
) -> None:
    store, checkpoint = new_store(tmp_path / "store.db"), str(tmp_path / "checkpoint")
    feed.write(1)
    feed.write(1, keys=["stranger"], events=4, count=False)
    feed.write(2)

    def go(**rest: Any) -> Any:
        return release_stream(
            feed.stream(spark), DECLARATION, store, checkpoint, clock=lambda: end_of(2), **rest
        )

    with pytest.raises(InputError, match="4 × a key that is not in the list of keys"):
        go()
    assert store.find("live").closed == 0
    assert go(skip_bad=True).bad == {"a key that is not in the list of keys": 4}
    assert released(store) == expected(feed.totals[:2])
    store.close()


def test_a_file_that_cannot_be_read_stops_the_round_and_loses_nothing(
    spark: Any, feed: Feed, tmp_path: Path
) -> None:
    """Truncated, with a column of another type or name, with times of the next century: said,
    nothing is counted."""
    endless = StreamDeclaration.from_dict({**DECLARATION.to_dict(), "horizon": None})
    store = new_store(tmp_path / "store.db", endless)
    feed.write(1)
    file = feed.folder / "0.parquet"
    good = file.read_bytes()

    def go(**rest: Any) -> Any:
        checkpoint = str(tmp_path / "checkpoint")
        return release_stream(
            feed.stream(spark), endless, store, checkpoint, clock=lambda: end_of(1), **rest
        )

    def table(year: int, key: Any, name: str = "key") -> Any:
        return pa.table(
            {"ts": pa.array([datetime(year, 1, 1)], pa.timestamp("us", "UTC")), name: [key]}
        )

    for bad, said in (
        (None, "the source cannot be read"),
        (table(2026, 7.5), "the source cannot be read"),
        (table(2026, "north", "region"), "1 × a key that is not in the list"),
        (table(2126, "north"), "1 × a time too many ticks ahead"),
    ):
        file.write_bytes(good[:-40]) if bad is None else pq.write_table(bad, file)
        with pytest.raises(InputError, match=said):
            go()
        assert store.find("live").closed == 0
    file.write_bytes(good)
    assert go().ticks == range(1, 2)
    assert released(store) == expected(feed.totals[:1], endless)
    store.close()


def test_rows_that_cannot_be_parsed_are_said_and_readers_that_drop_them_refused(
    spark: Any, tmp_path: Path
) -> None:
    (tmp_path / "in").mkdir()
    rows = [
        {"ts": "2026-01-01T00:10:00Z", "key": "north"},
        {"ts": "2026-01-01T00:20:00Z", "key": "west"},
    ]
    # a line is cut off
    (tmp_path / "in" / "0.json").write_text("\n".join(json.dumps(row) for row in rows)[:-9])
    store = new_store(tmp_path / "store.db")

    def go(**rest: Any) -> Any:
        reader = spark.readStream.schema("ts string, key string").options(
            maxFileAge=EVERY_AGE, **rest
        )
        source = reader.json(str(tmp_path / "in"))
        place = str(tmp_path / "checkpoint")
        return release_stream(
            source, DECLARATION, store, place, clock=lambda: end_of(1), skip_bad=bool(rest)
        )

    with pytest.raises(ParameterError, match="DROPMALFORMED"):
        go(mode="dropMalformed")
    for name in SKIPPING:
        with pytest.raises(ParameterError, match=name):
            go(**{name: "true"})
        spark.conf.set(f"spark.sql.files.{name}", "true")
        try:
            with pytest.raises(ParameterError, match=name):
                release_batch(spark.createDataFrame([], SCHEMA), DECLARATION, until=end_of(1))
        finally:
            spark.conf.unset(f"spark.sql.files.{name}")
    with pytest.raises(InputError, match="1 × no"):
        go()
    assert sum(go(mode="PERMISSIVE").bad.values()) == 1
    assert released(store) == expected([[1, 0, 0]])
    store.close()


@pytest.mark.soak
@pytest.mark.parametrize("shards", [1, 3])
def test_executors_close_shards(spark: Any, feed: Feed, tmp_path: Path, shards: int) -> None:
    """Two rounds, the second with the number of shards that the store knows; another number is
    refused.

    In CI: two shards in PostgreSQL, below, and by the command, test_spark_command.py.
    """
    store, checkpoint = Store(tmp_path / "store.db"), str(tmp_path / "checkpoint")
    store.declare(DECLARATION, end_of(0) / 1e6, SECRET, shards=shards)
    feed.write(1, 2, 3)
    for last, given in ((2, shards), (4, None)):
        release_stream(
            feed.stream(spark),
            DECLARATION,
            store,
            checkpoint,
            clock=lambda at=last: end_of(at),
            shards=given,
        )
    assert released(store) == expected(feed.totals[:4])
    assert store.verify(store.head) == []
    with pytest.raises(Conflict, match=f"is kept in {shards} shards"):
        release_stream(feed.stream(spark), DECLARATION, store, checkpoint, shards=2)
    store.close()


def test_executors_without_the_key_close_nothing(spark: Any, feed: Feed, tmp_path: Path) -> None:
    """The key that the driver was given does not travel: the executors have none in their
    environment."""
    store = Store(tmp_path / "store.db", bytes(range(32)))
    store.declare(DECLARATION, end_of(0) / 1e6, SECRET, shards=2)
    feed.write(1)
    with pytest.raises(
        StoreError, match="a shard could not be closed: the store is encrypted: give its key in"
    ):
        release_stream(
            feed.stream(spark), DECLARATION, store, str(tmp_path / "c"), clock=lambda: end_of(1)
        )
    assert released(store) == []
    store.close()


def test_a_password_does_not_travel_to_executors(
    spark: Any, feed: Feed, tmp_path: Path, postgres: Postgres
) -> None:
    from sqlalchemy import make_url

    place = make_url(postgres.fresh()).set(password="hush").render_as_string(hide_password=False)
    store = Store(place, head=tmp_path / "head")
    store.declare(DECLARATION, end_of(0) / 1e6, SECRET, shards=2)
    with pytest.raises(ParameterError, match="must not travel with a job"):
        release_stream(feed.stream(spark), DECLARATION, store, str(tmp_path / "c"))
    store.close()
    store = Store(
        make_url(place)._replace(password=None).render_as_string(), head=tmp_path / "head"
    )
    feed.write(1, 2, 3)
    release_stream(
        feed.stream(spark), DECLARATION, store, str(tmp_path / "c"), clock=lambda: end_of(3)
    )
    assert released(store) == expected(feed.totals[:3])
    store.close()


def test_what_is_refused(spark: Any, feed: Feed, tmp_path: Path) -> None:
    feed.write(1)
    checkpoint = str(tmp_path / "checkpoint")
    with pytest.raises(ParameterError, match="takes a streaming DataFrame"):
        release_stream(
            spark.read.parquet(str(feed.folder)), DECLARATION, tmp_path / "store.db", checkpoint
        )
    with pytest.raises(StoreError, match="does not exist"):
        release_stream(feed.stream(spark), DECLARATION, tmp_path / "no" / "store.db", checkpoint)
    held = new_store(tmp_path / "store.db")
    with pytest.raises(StoreError, match="another process writes"):
        release_stream(feed.stream(spark), DECLARATION, tmp_path / "store.db", checkpoint)
    held.close()
    assert not os.path.exists(checkpoint)  # noqa: PTH110 - as Spark sees it
