"""What a stream has published, and what is written of it: views, descriptions, charts and tables of
a lake.

All of it follows from the published numbers, which the state keeps. `hourly.csv` has its view
per-day in `hourly.per-day.csv`, written anew by every run: it can be lost, deleted and made again
at any time.

A release is committed in its state or store first, and is then public and final; a Delta or Iceberg
table follows. `append_new` adds the ticks after the last one that the table has, and the table's
own commit says which that is, with the rows (Delta: a transaction of our application; Iceberg: a
property of the table). So a crash before that commit leaves rows that nobody sees, and the next
call adds them; after it, the next call finds the tick there. Nothing else remembers the table.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evercount._safe_files import disk_errors, new_mode, replaced
from evercount._validate import FloatArray, stated
from evercount.declarations.cautions import public_facts
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.schedule import Schedule, zone_named
from evercount.declarations.tick_marks import TickMark, with_marks
from evercount.declarations.view_names import all_of_view
from evercount.engine.build import RUNNING
from evercount.engine.release import Releases
from evercount.engine.release_table import LEVEL, ReleaseTable
from evercount.engine.revisions import by_day
from evercount.engine.stream import Stream
from evercount.engine.write_table import (
    among,
    arrow_schema,
    arrow_table,
    describe_csv,
    parquet_modules,
    round_table,
    write_tables,
)
from evercount.errors import Conflict, EvercountError, ParameterError, StoreError
from evercount.files.release_job import Job, output_kind
from evercount.files.source import library
from evercount.privacy import counted_text
from evercount.queries.base import Query

if TYPE_CHECKING:
    from evercount.files.store_home import StoreHome

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


CHARTS = (".png", ".svg", ".pdf")
MOST_CELLS_DRAWN = 8  # more lines could not be told apart; these are the first of the public list


@dataclass(frozen=True)
class Published:
    job: Job
    guarantee: str
    releases: Releases  # all ticks; none where each tick has keys of its own
    own: tuple[dict[str, Any], ...]  # the tables as they were released, where `keeps_tables`
    marks: tuple[TickMark, ...]  # what the operator says about ticks

    @classmethod
    def of(
        cls,
        job: Job,
        stream: Stream,
        numbers: FloatArray,
        tables: tuple[dict[str, Any], ...],
        marks: tuple[TickMark, ...],
    ) -> Published:
        """What a stream has published, from its numbers as a state keeps them."""
        labels = stream.query.labels if stream.query.publishing.own_ticks else None
        releases = stream.read_back(numbers, labels=labels)
        return cls(job, stream.guarantee_by(job.declaration.tick), releases, tables, marks)

    @property
    def main(self) -> ReleaseTable:
        return self.view(self.job.declaration.main_view)

    def view(self, name: str) -> ReleaseTable:
        declaration, carried = self.job.declaration, self.job.carried
        schedule = declaration.schedule
        table = all_of_view(self.releases, name, schedule, declaration.view_postprocess)
        if carried is not None and name == RUNNING:
            table = carried.add_to(table, self.releases._errors)
        if self.own:
            first = declaration.query.labels
            found = sorted({cell for part in self.own for cell in part["cells"]} - set(first))
            parts = [
                ReleaseTable(part["ticks"], None, part["cells"], part["numbers"])
                for part in self.own
            ]
            numbers = np.concatenate([among(part, [*first, *found]).numbers for part in parts])
            ticks = np.concatenate([part.ticks for part in parts])
            starts = [schedule.start_of(tick) for tick in ticks.tolist()]
            table = ReleaseTable(ticks, starts, [*first, *found], numbers)
        return replace(
            with_marks(table, self.marks, name), clock=schedule, guarantee=self.guarantee
        )

    def output(self) -> ReleaseTable:
        """What the main output has: one view; of a stream whose ticks are revised, all that was
        ever published."""
        declaration = self.job.declaration
        if declaration.revise_for is None:
            return self.main
        starts = declaration.schedule.starts_of
        released = self.releases.table(starts=starts(1, len(self.releases)))
        table = by_day(released, self.releases.query, starts)
        return replace(
            with_marks(table, self.marks, declaration.main_view), clock=declaration.schedule
        )

    def table(self) -> ReleaseTable:
        return replace(self.main, views={name: self.view(name) for name in self.job.all_views})


def fill_lake(published: Published, home: StoreHome | None) -> None:
    """Append to the table of a lake what is committed and not there."""
    job, one = published.job, published.job.declaration
    # a store names what it renews anew
    name = one.name if home is None or home.live is None else home.live.name
    if job.lake is not None and not job.check:
        append_new(job.lake, name, [published.main], one.schedule, published.guarantee)


def keeps_tables(query: Query) -> bool:
    """Whether released tables do not follow from their values: each tick has keys of its own, or
    errors follow from sums that are not published."""
    return query.publishing.own_ticks or (
        query.publishing.kept is not None and query.discovery is None
    )


def own_tables(tables: Iterable[ReleaseTable]) -> tuple[dict[str, Any], ...]:
    return tuple(
        {"ticks": one.ticks, "cells": list(one.cells), "numbers": one.numbers} for one in tables
    )


def view_path(output: Path, name: str) -> Path:
    return output.with_name(f"{output.stem}.{name}{output.suffix}")


def write_views(output: Path, published: Published, *, main: bool = False) -> list[Path]:
    """Write the further views next to the output, with `main` also that itself, and what readers of
    a CSV must know. Each file is complete or as it was before."""
    job, metadata = published.job, {"evercount.guarantee": published.guarantee}
    views = {view_path(output, name): published.view(name) for name in job.all_views}
    for path, table in (({output: published.output()} if main else {}) | views).items():
        shown = table if job.full_digits else round_table(table)
        with (
            disk_errors(f"{output} is published; {path} cannot be written"),
            replaced(path, new_mode(path)) as file,
        ):
            write_tables(
                output_kind(output.name), file, [shown], job.declaration.schedule, metadata
            )
    digits = job.full_digits
    facts = public_facts(
        job.declaration,
        published.guarantee,
        published.marks,
        full_digits=digits,
        carried=job.carried,
    )
    for path in (output, *views) if job.kind == "csv" else ():
        describe_file(path, facts)
    return list(views)


def description_path(table: Path) -> Path:
    """Of a CSV: `flu.csv.meta.json`."""
    return table.with_name(f"{table.name}.meta.json")


def describe_file(path: Path, facts: Mapping[str, Any]) -> None:
    """Write next to a CSV what readers must know (`public_facts`), as CSV on the Web."""
    target = description_path(path)
    with disk_errors(f"{path} is published; {target} cannot be written"):
        with path.open("rb") as file:
            columns = file.readline().decode().strip().split(",")
        with replaced(target, new_mode(target)) as file:
            file.write(_as_json(describe_csv(path.name, columns, facts, LEVEL)))


def _as_json(said: Mapping[str, Any]) -> bytes:
    return json.dumps(said, indent=1, ensure_ascii=False).encode() + b"\n"


def renamed_description(description: bytes, path: Path) -> bytes:
    """Return the description that a copy at `path` holds: it names the copy of its table."""
    return _as_json(json.loads(description) | {"url": path.name.removesuffix(".meta.json")})


def draw_releases(published: Published, target: Path, scratch: Path) -> None:
    """Draw the first cells of what is published, with a title that states the promise, over the
    starts of the ticks."""
    from evercount.plotting import band_plot

    declaration, table = published.job.declaration, published.main
    schedule = declaration.schedule
    labels = table.cells[:MOST_CELLS_DRAWN]
    values, _, low, high = (table.numbers[:, part, : len(labels)] for part in range(4))
    starts = np.asarray(
        [schedule.start_of(tick) for tick in table.ticks.tolist()], "datetime64[us]"
    )
    drawn = scratch / target.name
    zone = None if zone_named(schedule.zone) is UTC else zone_named(schedule.zone)
    title = chart_title(declaration, len(labels), len(table.cells))
    try:
        shown = (table.ticks, values, low, high, labels)
        band_plot(
            *shown, drawn, title=title, times=starts, zone=zone, left=table.left, notes=table.notes
        )
        with replaced(target, new_mode(target)) as file:
            file.write(drawn.read_bytes())
    except (OSError, ValueError) as error:
        raise EvercountError(
            f"the ticks are published; their chart could not be written: {error}"
        ) from error


def chart_title(declaration: StreamDeclaration, drawn: int, cells: int) -> str:
    """What the chart shows, what it promises, and which cells are left out.

    >>> flu = StreamDeclaration.from_dict({"name": "flu", "query": "count", "tick": "1h",
    ...     "budget": {"epsilon": 1, "delta": 0}})
    >>> print(chart_title(flu, 1, 1))
    flu: count, per-tick, ticks of 1h; ε = 1, δ = 0 per event for all ticks together
    band: 95% interval per number
    """
    budget = declaration.budget
    name = f"{declaration.name}: " if declaration.name != "release" else ""
    whom = budget.unit if budget.period is None else f"{budget.unit} and {budget.period}"
    promise = (
        f"ε = {stated(budget.epsilon)}, δ = {stated(budget.delta)} per {whom} for all ticks "
        "together"
    )
    some = f"the first {drawn} of {cells} cells; " if drawn < cells else ""
    what = (
        f"{name}{declaration.query.name}, {declaration.main_view}, ticks of "
        f"{declaration.schedule.tick}; {promise}"
    )
    counted = " of counted events" if counted_text(budget) else ""
    return f"{what}\n{some}band: {LEVEL:.0%} interval per number{counted}"
