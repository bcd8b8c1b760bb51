"""The Spark door's only way into the store: totals in, due ticks out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from evercount.declare.declaration import StreamDeclaration
from evercount.declare.schedule import SECOND
from evercount.errors import ParameterError
from evercount.files.lake_table import append_new
from evercount.spark.close_on_executors import executors_of
from evercount.store import Store, key_from_environment
from evercount.store.accept_totals import CountedBatch, last_batches, last_tick


def open_store(place: str | Path, key_file: Path | None = None, head: Path | None = None) -> Store:
    """The store at a place, with the key of the file or the environment."""
    return Store(place, key_from_environment(key_file), head)


def append_released(store: Store, name: str, lake: str) -> int:
    """Append what a stream shows to a Delta or Iceberg table that lacks it: `files/lake_table.py`."""
    declaration, tables = store.tables_of(name)
    return append_new(lake, name, tables, declaration.schedule, store.streams[name].guarantee)


class StoreDoor:
    """One declared stream of a store."""

    def __init__(
        self,
        store: Store | str | Path,
        declaration: StreamDeclaration,
        now: int,
        shards: int | None,
        session: SparkSession,
    ) -> None:
        self._own = not isinstance(store, Store)
        self.store = store if isinstance(store, Store) else open_store(store)
        try:
            self._live = self.store.declare(declaration, now / SECOND, shards=shards)
            self._run = None if self._live.cut is None else executors_of(session, self.store)
        except BaseException:
            self.close()
            raise
        self.declaration = self._live.declaration
        """With the start that the store knows."""

    @property
    def closed(self) -> int:
        """How many ticks are released."""
        return self._live.closed

    @property
    def last_tick(self) -> int:
        """The last tick that may have events now."""
        return last_tick(self._live)

    @property
    def finished(self) -> bool:
        """Whether the horizon is reached."""
        return self._live.finished

    @property
    def queries(self) -> dict[str, int]:
        """The last batch of each streaming query that fed this stream."""
        with self.store.database.reading() as connection:
            return last_batches(connection, self._live.id)

    def accept(self, batch: CountedBatch) -> bool:
        """Commit what a batch holds; False if it was committed before. See `store.accept_totals`."""
        return self.store.accept_totals(self._live.name, batch)

    def due(self, now: int) -> int:
        """How many ticks have ended by an instant and are not released."""
        if self._live.stopped:
            raise ParameterError(f"stream {self._live.name!r} is stopped: {self._live.stopped}")
        return self._live.due(now / SECOND)

    def close_due(self, now: int) -> range:
        """Release the ticks that have ended by an instant; returns them."""
        first = self.closed + 1
        while (count := self.due(now)) > 0:
            if self._run is None:
                self.store.close_ticks(self._live, count, now / SECOND, describe=0)
            else:
                self.store.close_shards(self._live, count, now / SECOND, self._run, describe=0)
        return range(first, self.closed + 1)

    def close(self) -> None:
        """Close the store if it was opened here."""
        if self._own:
            self.store.close()

    def __enter__(self) -> StoreDoor:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()
