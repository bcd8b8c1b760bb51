"""ReleaseTable: the one shape in which released numbers and views leave the engine, for files,
stores and readers.

`Exports` is what tables, releases and views offer alike: files, data frames, and charts of their
table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import namedtuple
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from html import escape
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, ClassVar, Literal, overload
from zoneinfo import ZoneInfo

import numpy as np
import numpy.typing as npt

from evercount._validate import FloatArray, IntArray, aligned
from evercount.errors import MissingExtra, ParameterError
from evercount.plotting import CHARTED_CELLS, band_plot, chart_html

if TYPE_CHECKING:
    from matplotlib.axes import Axes

TextTarget = str | Path | IO[str]  # a path, or an open text file
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MOST_SHOWN = 10  # rows that `repr` shows

LEVEL = 0.95  # the level of the intervals that doors publish
NUMBERS = ("value", "std", "low", "high")
COLUMNS = ("tick", "start", "cell", *NUMBERS)
"""Of streams with a schedule. Without one there is no start, and views have `first` instead."""
LARGEST_STATED = 1e300  # stands for an error that has no bound: JSON has no infinity


class Exports(ABC):
    """Files, data frames and charts of published numbers: of a table, and of what has one."""

    guarantee: str
    noise: ClassVar[str] = "exact"
    """The kind of noise, as files state it."""

    @property
    def _title(self) -> str:
        return "published numbers"

    @abstractmethod
    def table(self) -> ReleaseTable:
        """The numbers as a table: tick, cell, value, std, low and high, one row per number.

        Returns:
            The table.
        """

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """For all that reads Arrow: `polars.DataFrame(table)`, `pyarrow.table(table)`, DuckDB."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def _repr_html_(self) -> str:
        """A small chart and the newest numbers, for notebooks."""
        table = _in_time(self.table())
        axes = None
        with suppress(MissingExtra):
            if len(table.ticks):
                axes = table.plot(cells=CHARTED_CELLS)
        values, _, low, high = (table.numbers[:, part] for part in range(len(NUMBERS)))
        chart = chart_html(self._title, axes, table.cells, values, low, high)
        return f"<div>{chart}<p>{escape(self.guarantee)}</p></div>"

    def to_csv(self, target: TextTarget | None = None) -> str | None:
        """Write the numbers as CSV.

        Args:
            target: A path or an open text file; None for the text itself.

        Returns:
            The text, without a target.

        Raises:
            ParameterError: The target is neither a path nor an open file.
        """
        return self._write("csv", target)

    def to_jsonl(self, target: TextTarget | None = None) -> str | None:
        """Write the numbers as one JSON object per line.

        Args:
            target: A path or an open text file; None for the text itself.

        Returns:
            The text, without a target.

        Raises:
            ParameterError: The target is neither a path nor an open file.
        """
        return self._write("jsonl", target)

    def _write(self, kind: Literal["csv", "jsonl"], target: TextTarget | None) -> str | None:
        from evercount.engine.write_table import table_texts

        table = self.table()
        text = "".join(table_texts(kind, [table], table.clock))
        if target is None:
            return text
        if isinstance(target, str | Path):
            Path(target).write_text(text, encoding="utf-8", newline="")
        elif hasattr(target, "write"):
            target.write(text)
        else:
            raise ParameterError(
                f'write to a path such as "daily.{kind}" or to an open file, got {target!r:.80}'
            )
        return None

    def to_parquet(self, target: str | Path) -> None:
        """Write the numbers as Parquet, with the guarantee in the file's metadata.

        Args:
            target: The path of the file.

        Raises:
            MissingExtra: pyarrow is not installed.
        """
        from evercount.engine.write_table import write_parquet

        if not isinstance(target, str | Path):
            raise ParameterError(f'write to a path such as "daily.parquet", got {target!r:.80}')
        table = self.table()
        write_parquet(str(target), [table], table.clock, self._metadata)

    def to_arrow(self) -> Any:
        """The numbers as a `pyarrow.Table`, with the guarantee and the kind of noise in its
        metadata.

        Returns:
            The table.

        Raises:
            MissingExtra: pyarrow is not installed.
        """
        from evercount.engine.write_table import arrow_schema, arrow_table

        table = self.table()
        return arrow_table(table, arrow_schema(table, table.clock, self._metadata))

    @property
    def _metadata(self) -> dict[str, str]:
        return {"evercount.guarantee": self.guarantee, "evercount.noise": self.noise}

    def to_pandas(self) -> Any:
        """The numbers as a `pandas.DataFrame`, with the guarantee and the kind of noise in its
        `attrs`.

        Returns:
            The data frame; starts are timestamps in the stream's zone.

        Raises:
            MissingExtra: pandas or pyarrow is not installed.
        """
        from evercount.engine.write_table import frame_module

        frame_module("pandas")  # or MissingExtra
        frame = self.to_arrow().to_pandas()
        frame.attrs.update(self._metadata)
        return frame

    def to_polars(self) -> Any:
        """The numbers as a `polars.DataFrame`. It has no place for the guarantee: state it next to
        the numbers.

        Returns:
            The data frame; starts are timestamps in the stream's zone.

        Raises:
            MissingExtra: polars or pyarrow is not installed.
        """
        from evercount.engine.write_table import frame_module

        return frame_module("polars").from_arrow(self.to_arrow())

    def plot(self, target: str | Path | Axes | None = None, cells: int = 8) -> Axes:
        """Values with their error band: into a file (PNG, SVG, PDF), given axes, or new axes that
        are returned.

        Args:
            target: A path, axes, or None for new axes.
            cells: How many cells are drawn at most.

        Returns:
            The axes.

        Raises:
            MissingExtra: matplotlib is not installed.
        """
        table = _in_time(self.table())
        values, _, low, high = (table.numbers[:, part, :cells] for part in range(len(NUMBERS)))
        times = None
        if table.starts is not None:
            times = np.asarray(table.starts, "datetime64[us]")
        zone = None
        if table.clock is not None and table.clock.arrow_zone != "UTC":
            zone = ZoneInfo(table.clock.arrow_zone)
        numbers = (values, low, high)
        names = table.cells[:cells]
        more: dict[str, Any] = {
            "times": times,
            "zone": zone,
            "left": table.left,
            "notes": table.notes,
        }
        return band_plot(table.ticks, *numbers, names, target, **more)


@dataclass(frozen=True, eq=False)
class ReleaseTable(Exports, Sequence[Any]):
    """Released numbers as a table: tick, start, cell, value, std, low and high, one row per tick
    and cell.

    Of a view, one row per span of ticks and cell. It behaves as a sequence of rows, and as an Arrow
    table; `to_pandas`, `to_polars` and `to_arrow` make data frames of it.

    Args:
        ticks: The tick that released each number: the last one of its span.
        starts: When what a number counts begins, in microseconds since 1970 (of running totals:
            when the tick begins).
        cells: One label for each cell.
        numbers: value, std, low and high, shape (ticks, 4, cells). Finite, no negative zero: files
            and databases give back the same bits. The value is NaN where a discovered key was not
            public: it has no row in a file or a database. A quantile has no std: it is NaN.
        first: The first tick that each number of a view counts.
        marks: What a reader must know besides: a column for each.
        clock: The schedule that shows starts in its zone.
        guarantee: The guarantee of the whole stream in one sentence.
        views: Other views of the same ticks, by name.
        as_of: Of a stream whose ticks are revised: the tick after which each number was published.
        left: How often each number will still be revised: 0 for final ones.
        notes: What the operator says about the ticks of each row, empty where nothing; None without
            any note.

    >>> from evercount import Budget, Count, Stream
    >>> table = Stream(Count(), Budget(1.0, 1e-6), 24).run([100, 50]).table()
    >>> len(table), table[1].tick, table[1].cell
    (2, 2, 'count')
    """

    ticks: IntArray
    starts: Sequence[int] | None
    cells: Sequence[str]
    numbers: FloatArray
    first: IntArray | None = None
    marks: Mapping[str, str] = field(default_factory=dict)
    clock: Any = field(default=None, repr=False)
    guarantee: str = ""
    views: Mapping[str, ReleaseTable] = field(default_factory=dict, repr=False)
    as_of: IntArray | None = None
    left: IntArray | None = None
    notes: Sequence[str] | None = None

    # -- a sequence of rows ------------------------------------------------------------------------

    def __len__(self) -> int:
        return int(np.count_nonzero(~np.isnan(self.numbers[:, 0])))

    @overload
    def __getitem__(self, index: int) -> Any: ...

    @overload
    def __getitem__(self, index: slice) -> ReleaseTable: ...

    def __getitem__(self, index: int | slice) -> Any:
        """A row, or the table of some rows: in their order, or from the last to the first with a
        negative step."""
        if isinstance(index, slice):
            return self._rows(index)
        if not isinstance(index, int | np.integer):
            raise ParameterError(
                'rows are numbered, as in table[0]; for columns use table.to_pandas()["value"]: '
                f"{index!r:.80}"
            )
        if not -len(self) <= index < len(self):
            raise IndexError(f"the table has {len(self)} rows, and row {index} is not one of them")
        return next(iter(self[index : index + 1 or None]))

    def _rows(self, index: slice) -> ReleaseTable:
        """Make the table of some rows. A negative step turns both ticks and cells around, and with
        them the rows."""
        row, cell = np.nonzero(~np.isnan(self.numbers[:, 0]))
        chosen = np.arange(len(row))[index]
        numbers = np.full_like(self.numbers, np.nan)
        numbers[row[chosen], :, cell[chosen]] = self.numbers[row[chosen], :, cell[chosen]]
        some = np.unique(row[chosen])
        cells = self.cells
        if index.step is not None and index.step < 0:
            some = some[::-1]
            numbers = numbers[:, :, ::-1]
            cells = list(cells[: numbers.shape[2]])[::-1]
        rows: dict[str, Any] = {}
        for name in ("ticks", "starts", "first", "as_of", "left", "notes"):
            column = vars(self)[name]
            if isinstance(column, np.ndarray):
                rows[name] = column[some]
            elif column is not None:
                rows[name] = [column[place] for place in some.tolist()]
        return replace(self, cells=cells, numbers=numbers[some], views={}, **rows)

    def __iter__(self) -> Iterator[Any]:
        columns = self.columns()
        row = row_class(tuple(columns))
        lists = {name: column.tolist() for name, column in columns.items()}
        if "start" in lists:
            lists["start"] = [self._moment(start) for start in lists["start"]]
        return (row(*values) for values in zip(*lists.values(), strict=True))

    def _moment(self, start: int) -> datetime:
        """The start of a tick, by the clock of its zone."""
        if self.clock is not None:
            return datetime.fromisoformat(self.clock.show(start))
        return EPOCH + timedelta(microseconds=start)

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        """value, std, low and high, one row each."""
        columns = self.columns()
        return np.stack([columns[name] for name in NUMBERS], axis=1).astype(dtype or np.float64)

    def __repr__(self) -> str:
        shown = [list(self.columns())]
        rows = len(self)
        listed: Iterable[Any] = self
        if rows > MOST_SHOWN:
            listed = (*self[: MOST_SHOWN // 2], *self[rows - MOST_SHOWN // 2 :])
        for row in listed:
            shown.append([f"{part:.4g}" if isinstance(part, float) else str(part) for part in row])
        lines = aligned(shown)
        if rows > MOST_SHOWN:
            lines.insert(1 + MOST_SHOWN // 2, "…")
        others = ""
        if self.views:
            others = f"; other views: {', '.join(self.views)}"
        lines.append(f"[{rows} rows{others}]")
        if self.guarantee:
            lines.append(self.guarantee)
        return "\n".join(lines)

    @property
    def _title(self) -> str:
        if not self.starts:
            return "published numbers"
        return (
            f"published numbers, {self._moment(min(self.starts))} to "
            f"{self._moment(max(self.starts))}"
        )

    def table(self) -> ReleaseTable:
        """The table itself.

        Returns:
            The table.
        """
        return self

    # -- for writers -------------------------------------------------------------------------------

    def columns(self, show: Callable[[int], str] | None = None) -> dict[str, npt.NDArray[Any]]:
        """The columns by name, one row per tick and published cell.

        Args:
            show: Makes texts of starts.

        Returns:
            The columns, as arrays.
        """
        public = ~np.isnan(self.numbers[:, 0])
        row, cell = np.nonzero(public)
        columns: dict[str, npt.NDArray[Any]] = {"tick": self.ticks[row]}
        if self.as_of is not None and self.left is not None:
            columns |= {"as_of": self.as_of[row], "revisions_left": self.left[row]}
        if self.starts is not None:
            starts: npt.NDArray[Any] = np.asarray(self.starts, np.int64)
            if show is not None:
                starts = np.asarray(list(map(show, self.starts)), object)
            columns["start"] = starts[row]
        elif self.first is not None:
            columns["first"] = self.first[row]
        if len(self.cells):
            columns["cell"] = np.asarray(self.cells, object)[cell]
        else:
            columns["cell"] = np.empty(0, object)
        columns |= {name: self.numbers[:, index][public] for index, name in enumerate(NUMBERS)}
        columns |= {name: np.full(len(row), text, object) for name, text in self.marks.items()}
        if self.notes is None:
            return columns
        return columns | {"note": np.asarray(self.notes, object)[row]}


def _in_time(table: ReleaseTable) -> ReleaseTable:
    """Turn a table into the order that charts read, from the first tick to the last."""
    if len(table.ticks) > 1 and table.ticks[0] > table.ticks[-1]:
        return table[::-1]
    return table


@lru_cache(maxsize=64)
def row_class(names: tuple[str, ...]) -> Any:
    """The class of rows with these columns."""
    columns = namedtuple("Row", names)  # type: ignore[misc]
    # no module has the class
    return type("Row", (columns,), {"__slots__": (), "__reduce__": _pickled_row})


def _pickled_row(row: Any) -> tuple[Any, ...]:
    return _unpickled_row, (row._fields, tuple(row))


def _unpickled_row(names: tuple[str, ...], values: tuple[Any, ...]) -> Any:
    return row_class(names)(*values)


def table_of(
    ticks: IntArray,
    starts: Sequence[int] | None,
    cells: Sequence[str],
    numbers: Sequence[npt.ArrayLike],
    first: IntArray | None = None,
    marks: Mapping[str, str] | None = None,
    guarantee: str = "",
) -> ReleaseTable:
    """The table of value, std, low and high, each (ticks, cells), without infinity and negative
    zero."""
    stated = np.stack([np.asarray(part, np.float64) for part in numbers], axis=1)
    stated = np.clip(stated, -LARGEST_STATED, LARGEST_STATED) + 0.0
    return ReleaseTable(ticks, starts, cells, stated, first, marks or {}, guarantee=guarantee)
