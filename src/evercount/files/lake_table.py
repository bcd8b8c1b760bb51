"""A Delta or Iceberg table that gets each released tick of a stream once.

A release is committed by its keeper first, and is then public and final; the table follows.
`append_new` adds the ticks after the last one that the table has, and the table's own commit says
which that is, with the rows (Delta: a transaction of our application; Iceberg: a property of the
table). So a crash before that commit leaves rows that nobody sees, and the next call adds them;
after it, the next call finds the tick there. Nothing else remembers the table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from evercount.declarations.schedule import Schedule
from evercount.engine.release_table import ReleaseTable
from evercount.engine.write_table import arrow_schema, arrow_table, parquet_modules
from evercount.errors import Conflict, ParameterError, StoreError
from evercount.files.source import library

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
EXAMPLE = "write delta:FOLDER or iceberg:FOLDER/namespace.table"


def append_new(
    place: str, stream: str, tables: Iterable[ReleaseTable], clock: Schedule, guarantee: str
) -> int:
    """Append the ticks that the table at `place` lacks; returns how many rows were added.

    `tables` are all releases of a stream in one view, in order. Streams that go on for others share
    their table: ticks count from 1 in each, so a writer is known by the name and the start of its
    stream.

    **Guarantee.** Every tick is in the table once, wherever a call is killed and however often it
    is repeated; of two calls at once one fails. A table that holds another stream's numbers for the
    last common tick is refused. Tests: tests/files/test_lake_table.py.
    """
    pa, _ = parquet_modules()
    lake, writer = open_lake(place), _writer(stream, clock)
    last = lake.last(writer)
    parts = []
    for table in tables:
        if table.as_of is not None:
            raise ParameterError(
                "a table of a lake gets each tick once, but this stream publishes ticks again: use "
                "files"
            )
        if len(table.ticks) and table.ticks[-1] >= last:
            # a note may be about a tick that is in the table already
            table = replace(table, notes=None)
            parts.append(_in_utc(arrow_table(table, arrow_schema(table, clock, {}))))
    if not parts:
        if last:
            raise Conflict(
                f"{place} has ticks up to {last}, more than the stream: it belongs to another "
                "stream"
            )
        return 0
    rows = pa.concat_tables(parts)
    ticks = rows.column("tick").to_numpy()
    own = _sorted(rows.filter(pa.array(ticks == last)), rows)
    starts = {row.get("start") for row in own}
    if (
        last
        and [row for row in _sorted(lake.rows(last), rows) if row.get("start") in starts] != own
    ):
        raise Conflict(
            f"{place} holds other numbers for tick {last}: it belongs to another stream. Name "
            "another"
        )
    if not last:
        _check_new_writer(lake, place, clock)
    fresh = rows.filter(pa.array(ticks > last))
    if fresh.num_rows:
        lake.append(writer, int(ticks.max()), fresh, guarantee)
    return int(fresh.num_rows)


def check_new_writer(place: str, stream: str, clock: Schedule) -> None:
    """Refuse a table in which a stream that has released nothing has ticks already, or another one
    has its ticks.

    **Guarantee.** What a table has of some days is never added again by a stream with other noise.
    Test:
    tests/files/test_lake_table.py::test_days_of_another_stream_are_refused_before_anything_is_spent.
    """
    lake = open_lake(place)
    if lake.last(_writer(stream, clock)):
        raise Conflict(
            f"{place} has ticks of a stream {stream!r} with this start, and this one has released "
            "none: go on with the state or the store that it came from. A second stream over the "
            "same events adds to the spent budget; if that is wanted, name another table"
        )
    _check_new_writer(lake, place, clock)


def _writer(stream: str, clock: Schedule) -> str:
    """Name a writer of a table: streams that go on for others share it, and their ticks count from
    1 again."""
    begins = "" if clock.start is None else f" from {clock.show(clock.start)}"
    return f"evercount {stream}{begins}"


def _check_new_writer(lake: _Delta | _Iceberg, place: str, clock: Schedule) -> None:
    """Refuse a new writer where the table has rows from the start of its stream on: those of
    another stream."""
    if clock.start is not None and lake.has_rows_from(EPOCH + timedelta(microseconds=clock.start)):
        raise Conflict(
            f"{place} has numbers of another stream from {clock.show(clock.start)} on: name "
            "another table. Both streams would publish the same days, and readers could not tell "
            "them apart"
        )


def open_lake(place: str) -> _Delta | _Iceberg:
    """The table at delta:FOLDER or iceberg:FOLDER/namespace.table; ParameterError for other
    texts."""
    kind, colon, rest = place.partition(":")
    if kind not in ("delta", "iceberg") or not colon or not rest:
        raise ParameterError(f"{place!r:.80} does not name a table of a lake: {EXAMPLE}")
    return _Delta(rest) if kind == "delta" else _Iceberg(rest)


def _in_utc(rows: Any) -> Any:
    """Starts as instants of UTC: Iceberg knows no other zone."""
    pa, _ = parquet_modules()
    at = rows.schema.get_field_index("start")
    if at >= 0 and pa.types.is_timestamp(rows.schema.field(at).type):
        rows = rows.set_column(at, "start", rows.column(at).cast(pa.timestamp("us", tz="UTC")))
    return rows.replace_schema_metadata(None)


def _sorted(rows: Any, like: Any) -> list[dict[str, Any]]:
    names = [name for name in like.column_names if name in rows.column_names]
    found: list[dict[str, Any]] = rows.select(names).to_pylist()
    return sorted(found, key=lambda row: str(row["cell"]))


@contextmanager
def _explained(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        raise StoreError(
            f"{what}: {(str(error).splitlines() or [type(error).__name__])[0][:200]}"
        ) from error


class _Delta:
    def __init__(self, place: str) -> None:
        self._place, self._delta = place, library("deltalake", "Delta tables", "lake")
        with _explained(f"the Delta table {place} cannot be read"):
            table = self._delta.DeltaTable
            self._table = table(place) if table.is_deltatable(place) else None

    def last(self, writer: str) -> int:
        """The last tick that this writer has committed; 0 where it has none."""
        return 0 if self._table is None else (self._table.transaction_version(writer) or 0)

    def rows(self, tick: int) -> Any:
        assert self._table is not None
        return self._table.to_pyarrow_table(filters=[("tick", "=", tick)])

    def has_rows_from(self, instant: datetime) -> bool:
        """Whether a row starts at an instant or later."""
        if self._table is None or "start" not in [one.name for one in self._table.schema().fields]:
            return False
        return bool(
            self._table.to_pyarrow_table(
                filters=[("start", ">=", instant)], columns=["tick"]
            ).num_rows
        )

    def append(self, writer: str, last: int, rows: Any, note: str) -> None:
        """Commit rows together with their last tick; fails if another commit of this writer came in
        between."""
        mark = self._delta.CommitProperties(
            app_transactions=[self._delta.Transaction(writer, last)]
        )
        with _explained(f"the Delta table {self._place} cannot be written"):
            if self._table is not None:
                self._delta.write_deltalake(
                    self._table, rows, mode="append", commit_properties=mark
                )
                return
            said: Any = {
                "name": writer.removeprefix("evercount ").partition(" from ")[0],
                "description": note,
            }
            self._delta.write_deltalake(
                self._place, rows, mode="error", commit_properties=mark, **said
            )


class _Iceberg:
    def __init__(self, place: str) -> None:
        catalog = library("pyiceberg.catalog.sql", "Iceberg tables", "lake").SqlCatalog
        folder, _, self._name = place.rpartition("/")
        if not folder or self._name.count(".") != 1 or not all(self._name.split(".")):
            raise ParameterError(f"{place!r:.80} does not name an Iceberg table: {EXAMPLE}")
        self._place, root = place, Path(folder).absolute()
        with _explained(f"the Iceberg table {place} cannot be read"):
            root.mkdir(parents=True, exist_ok=True)
            self._catalog = catalog(
                "evercount", uri=f"sqlite:///{root}/catalog.db", warehouse=root.as_uri()
            )
            self._table = (
                self._catalog.load_table(self._name)
                if self._catalog.table_exists(self._name)
                else None
            )

    def last(self, writer: str) -> int:
        return (
            0 if self._table is None else int(self._table.properties.get(f"{writer} last tick", 0))
        )

    def rows(self, tick: int) -> Any:
        assert self._table is not None
        return self._table.scan(row_filter=f"tick = {tick}").to_arrow()

    def has_rows_from(self, instant: datetime) -> bool:
        if self._table is None or "start" not in self._table.schema().column_names:
            return False
        chosen = self._table.scan(
            row_filter=f"start >= '{instant.isoformat()}'", selected_fields=("tick",), limit=1
        )
        return bool(chosen.to_arrow().num_rows)

    def append(self, writer: str, last: int, rows: Any, note: str) -> None:
        with _explained(f"the Iceberg table {self._place} cannot be written"):
            table = self._table
            if table is None:
                self._catalog.create_namespace_if_not_exists(self._name.split(".")[0])
                # a commit that meets another one must fail: it may be this one, made by a second
                # run
                properties = {"comment": note, "commit.retry.num-retries": "0"}
                table = self._catalog.create_table(
                    self._name, schema=rows.schema, properties=properties
                )
            with table.transaction() as transaction:
                transaction.append(rows)
                transaction.set_properties({f"{writer} last tick": str(last)})
