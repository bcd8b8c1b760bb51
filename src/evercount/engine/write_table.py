"""ReleaseTables as others read them: one writer for each format, for files, the service, the
library and Spark.

Also here: the ticks of a table one by one, as stores and the service need them, and what makes a
table fit for readers (post-processing, no more digits than the error allows, a description of the
columns).
"""

from __future__ import annotations

import csv
import importlib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import IO, Any, Literal, Protocol

import numpy as np

from evercount._validate import FloatArray, IntArray, csv_text
from evercount.engine.release_table import NUMBERS, ReleaseTable
from evercount.errors import MissingExtra, StoreError
from evercount.privacy.guarantee_text import tick_word

Kind = Literal["csv", "json", "jsonl", "parquet"]
MEDIA_TYPES: dict[str, str] = {
    "csv": "text/csv; charset=utf-8",
    "json": "application/json",
    "jsonl": "application/x-ndjson",
    "parquet": "application/vnd.apache.parquet",
}


class ZoneClock(Protocol):
    """What shows the starts of ticks: a `Schedule`."""

    @property
    def arrow_zone(self) -> str: ...

    def show(self, instant: int) -> str: ...


def table_texts(
    kind: Kind,
    tables: Iterable[ReleaseTable],
    clock: ZoneClock | None = None,
    *,
    header: bool = True,
) -> Iterator[str]:
    """CSV, JSON lines or one array of JSON, piece by piece. Starts are texts with the offset of the
    clock's zone. A CSV begins with its header, unless an earlier piece has it; labels of cells and
    notes are as `csv_text` has them."""
    before = "[\n" if kind == "json" else ""
    show = None if clock is None else clock.show
    for table in tables:
        columns = {name: column.tolist() for name, column in table.columns(show).items()}
        columns["std"] = [None if std != std else std for std in columns["std"]]
        if kind == "csv":
            for name in ("cell", "note"):
                if name in columns:
                    columns[name] = list(map(csv_text, columns[name]))
        rows = zip(*columns.values(), strict=True)
        if kind == "csv":
            text = io.StringIO(newline="")
            writer = csv.writer(text, lineterminator="\n")
            if header:
                writer.writerow(columns)
                header = False
            writer.writerows(rows)
            yield text.getvalue()
            continue
        lines = (
            json.dumps(dict(zip(columns, row, strict=True)), ensure_ascii=False) for row in rows
        )
        if kind == "jsonl":
            yield "".join(f"{line}\n" for line in lines)
        elif joined := ",\n".join(lines):
            yield before + joined
            before = ",\n"
    if kind == "json":
        yield "\n]\n" if before == ",\n" else "[]\n"


def write_tables(
    kind: Kind,
    file: IO[bytes],
    tables: Iterable[ReleaseTable],
    clock: ZoneClock | None,
    metadata: Mapping[str, str],
    *,
    header: bool = True,
    old: Path | None = None,
) -> None:
    """Write tables into an open file; `old` is a Parquet file whose rows come first, unchanged."""
    if kind == "parquet":
        write_parquet(file, tables, clock, metadata, old)
    else:
        for text in table_texts(kind, tables, clock, header=header):
            file.write(text.encode())


def write_parquet(
    file: IO[bytes] | str,
    tables: Iterable[ReleaseTable],
    clock: ZoneClock | None,
    metadata: Mapping[str, str],
    old: Path | None = None,
) -> None:
    """One row group for each table; starts are instants, which readers show in the clock's zone."""
    pa, pq = parquet_modules()
    following = iter(tables)
    table = next(following)
    schema = arrow_schema(table, clock, metadata)
    with pq.ParquetWriter(file, schema) as writer:
        if old is not None:
            try:
                with pq.ParquetFile(old) as earlier:
                    for number in range(earlier.num_row_groups):
                        writer.write_table(
                            earlier.read_row_group(number).replace_schema_metadata(schema.metadata)
                        )
            except (pa.ArrowException, OSError) as error:
                raise StoreError(f"{old} cannot be read back: {error}") from error
        for each in chain([table], following):
            writer.write_table(arrow_table(each, schema))


def arrow_schema(
    table: ReleaseTable,
    clock: ZoneClock | None,
    metadata: Mapping[str, str],
    *,
    texts: bool = False,
) -> Any:
    """The types of a table's columns; without a clock its starts are whole numbers, or `texts`."""
    pa, _ = parquet_modules()
    whole = ["tick", "first", "as_of", "revisions_left"]
    if not texts:
        whole.append("start")
    types = {name: pa.float64() for name in NUMBERS} | {name: pa.int64() for name in whole}
    if clock is not None:
        types["start"] = pa.timestamp("us", tz=clock.arrow_zone)
    return pa.schema(
        [(name, types.get(name, pa.string())) for name in table.columns()], metadata=dict(metadata)
    )


def arrow_table(table: ReleaseTable, schema: Any, show: Callable[[int], str] | None = None) -> Any:
    pa, _ = parquet_modules()
    columns: dict[str, Any] = dict(table.columns(show))
    columns["std"] = pa.array(columns["std"], mask=np.isnan(columns["std"]))
    return pa.table(columns, schema=schema)


def parquet_modules() -> tuple[Any, Any]:
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise MissingExtra("Arrow, for Parquet files and data frames,", "files") from error


def frame_module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise MissingExtra(f"a table of {name}", name, package=True) from error


def each_tick(table: ReleaseTable) -> Iterator[tuple[int, IntArray, FloatArray]]:
    """(tick, places of published cells, their numbers of shape (4, cells)) of each tick."""
    for tick, numbers in zip(table.ticks.tolist(), table.numbers, strict=True):
        places = np.flatnonzero(~np.isnan(numbers[0]))
        yield tick, places, numbers[:, places]


def among(table: ReleaseTable, cells: Sequence[str]) -> ReleaseTable:
    """The same numbers under these cells, which may be more and in another order."""
    place = {cell: number for number, cell in enumerate(cells)}
    width = table.numbers.shape[2]
    numbers = np.full((len(table.ticks), len(NUMBERS), len(cells)), np.nan)
    numbers[:, :, [place[cell] for cell in table.cells[:width]]] = table.numbers
    return replace(table, cells=cells, numbers=numbers)


def described(
    table: ReleaseTable, show: Callable[[int], str], hashes: Mapping[int, bytes] | None = None
) -> list[dict[str, Any]]:
    """Each tick as readers of a service get it. With the hashes of the release chain the lists end
    with the last key that the tick shows; without, null stands for keys that are not public."""
    ticks = []
    for place, (tick, numbers) in enumerate(zip(table.ticks.tolist(), table.numbers, strict=True)):
        one: dict[str, Any] = {"tick": tick}
        released = tick
        if table.as_of is not None and table.left is not None:
            released = int(table.as_of[place])
            one |= {"as_of": released, "revisions_left": int(table.left[place])}
        if table.first is not None:
            one["first"] = int(table.first[place])
        one["start"] = None if table.starts is None else show(table.starts[place])
        if hashes is not None:
            numbers = numbers[:, : 1 + np.flatnonzero(~np.isnan(numbers[0])).max(initial=-1)]
        one |= zip(("values", *NUMBERS[1:]), map(_plain, numbers), strict=True)
        if hashes is not None:
            one["hash"] = hashes.get(released, b"").hex()
        if table.notes is not None and table.notes[place]:
            one["note"] = table.notes[place]
        ticks.append(one)
    return ticks


def _plain(numbers: FloatArray) -> list[float | None]:
    """Write numbers as JSON has them, null for NaN."""
    return [None if number != number else number for number in numbers.tolist()]


# numbers beyond this, in size, keep their digits: ten times them is not a whole double
SHORT = 1e15

TITLES = {
    "tick": ("Number of the tick", "integer", "the last one that the number counts, from 1"),
    "start": ("Start", "datetime", "when the time that the number counts begins"),
    "first": ("First tick", "integer", "the first one that the number counts"),
    "as_of": ("As of tick", "integer", "the tick after which the number was published"),
    "revisions_left": (
        "Revisions to come",
        "integer",
        "how often it will still be published again; 0: final",
    ),
    "note": ("Note", "string", "what the publisher says about the time that the number counts"),
    "cell": ("Key", "string", "what is counted: a region, a group, or the total"),
    "value": (
        "Number, with noise",
        "number",
        "the published number: the true one plus random noise",
    ),
    "std": (
        "Standard error",
        "number",
        "the standard deviation of the noise, before post-processing",
    ),
    "low": ("Interval from", "number", "the lower end of the interval"),
    "high": ("Interval to", "number", "the upper end of the interval"),
}
"""Title, data type and description of each column."""


def postprocess_table(table: ReleaseTable, names: Sequence[str], *, counts: bool) -> ReleaseTable:
    """The numbers of a view made nonnegative or whole. `counts`: the true numbers cannot be below
    zero.

    **Guarantee.** Post-processing. An interval holds its true number at least as often as before:
    it is cut at zero only where no true number lies below, and else only widened. Test:
    tests/engine/test_press_table.py::test_postprocessed_intervals_hold_as_often.
    """
    if not names:
        return table
    value, std, low, high = (table.numbers[:, part] for part in range(4))
    if "nonnegative" in names:
        value = np.maximum(value, 0.0)
        if counts:
            low = np.maximum(low, 0.0)
            high = np.maximum(high, 0.0)
    if "integer" in names:
        value = np.rint(value)
        low = np.floor(low)
        high = np.ceil(high)
    numbers = np.stack([value, std, np.minimum(low, value), np.maximum(high, value)], axis=1)
    return replace(table, numbers=numbers + 0.0)


def round_table(table: ReleaseTable) -> ReleaseTable:
    """The table with two digits of each std, and as many decimals of the number next to it; whole
    places stay. Ends of intervals are rounded outwards and stds upwards, so that they hold as
    stated. A number is a function of its own value, std and ends, so every way to a table gives the
    same one."""
    value, std, low, high = (table.numbers[:, part] for part in range(4))
    scale = _scale(np.where(np.isnan(std), (high - low) / 4, std))
    sides = [(value, np.rint), (std, np.ceil), (low, np.floor), (high, np.ceil)]
    rounded = [
        np.where(np.abs(side) < SHORT, way(side * scale) / scale, side) for side, way in sides
    ]
    return replace(table, numbers=np.stack(rounded, axis=1) + 0.0)


def _scale(std: FloatArray) -> FloatArray:
    """10 to the number of decimals: one where the std has one digit before the point, none where it
    has more."""
    noisy = np.isfinite(std) & (std > 0)
    size = np.floor(np.log10(np.where(noisy, std, 1.0)))
    return np.where(noisy, 10.0 ** np.clip(1 - size, 0, 15), 1e15)


def describe_csv(
    url: str, columns: Sequence[str], facts: Mapping[str, Any], level: float
) -> dict[str, Any]:
    """What a reader of a CSV must know, as CSV on the Web has it: titles of the columns, and the
    promise."""
    described = []
    word = tick_word(facts["tick"])
    for name in columns:
        title, kind, text = TITLES.get(name, (name, "string", ""))
        title = title.replace("tick", word)
        if name in ("low", "high"):
            text += f": it holds the true number with probability {level:g} or more"
        described.append({"name": name, "titles": title, "datatype": kind, "dc:description": text})
    interval = (
        f"Each interval holds the true number of counted events with probability {level:g} or "
        "more. It is about the noise that protects people, not about events that never reached the "
        "data."
    )
    return {
        "@context": ["http://www.w3.org/ns/csvw", {"@language": "en"}],
        "url": url,
        "dc:description": facts["guarantee"],
        "tableSchema": {"columns": described},
        "notes": [{**facts, "interval": interval}],
    }
