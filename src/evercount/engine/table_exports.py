"""What releases and views offer besides their numbers: files and data frames of their table."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from evercount._arrays import FloatArray
from evercount.engine.notebook_chart import chart_html
from evercount.engine.release_table import LEVEL, ReleaseTable, TextTarget


class TableExports(ABC):
    """Exports of a class with `table`, `guarantee` and `noise`."""

    guarantee: str
    noise: ClassVar[str] = "exact"
    """The kind of noise, as files state it."""

    @abstractmethod
    def table(self, level: float = LEVEL, starts: Sequence[int] | None = None) -> ReleaseTable:
        """The numbers as a table: tick, cell, value, std, low and high, one row per number.

        Views have `first`, too: the first tick that a row counts. Releases have a column `noise` where it is not exact,
        and `postprocessed` where the numbers are.

        Args:
            level: The probability of the intervals.
            starts: When what each number counts begins, in microseconds since 1970: a column of its own.

        Returns:
            The table.
        """

    @abstractmethod
    def _chart(self, level: float) -> tuple[str, Sequence[str], FloatArray, FloatArray, FloatArray]:
        """(title, cells, values, low, high), the numbers with the shape (points, cells)."""

    def to_csv(self, target: TextTarget | None = None, level: float = LEVEL) -> str | None:
        """Write `table` as CSV to a path or an open text file.

        Args:
            target: A path or an open text file; None for the text itself.
            level: The probability of the intervals.

        Returns:
            The text, without a target.
        """
        return self.table(level).to_csv(target)

    def to_jsonl(self, target: TextTarget | None = None, level: float = LEVEL) -> str | None:
        """Write `table` as one JSON object per line.

        Args:
            target: A path or an open text file; None for the text itself.
            level: The probability of the intervals.

        Returns:
            The text, without a target.
        """
        return self.table(level).to_jsonl(target)

    def to_parquet(self, target: str | Path, level: float = LEVEL) -> None:
        """Write `table` as Parquet, with the guarantee in the file's metadata.

        Args:
            target: The path of the file.
            level: The probability of the intervals.
        """
        self.table(level).to_parquet(target)

    def to_arrow(self, level: float = LEVEL) -> Any:
        """`table` as a `pyarrow.Table`, with the guarantee and the kind of noise in its metadata.

        Args:
            level: The probability of the intervals.

        Returns:
            The table.
        """
        return self.table(level).to_arrow()

    def to_pandas(self, level: float = LEVEL) -> Any:
        """`table` as a `pandas.DataFrame`, with the guarantee and the kind of noise in its `attrs`.

        Args:
            level: The probability of the intervals.

        Returns:
            The data frame.
        """
        return self.table(level).to_pandas()

    def to_polars(self, level: float = LEVEL) -> Any:
        """`table` as a `polars.DataFrame`. It has no place for the guarantee: state it beside the numbers.

        Args:
            level: The probability of the intervals.

        Returns:
            The data frame.
        """
        return self.table(level).to_polars()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """For all that reads Arrow: `polars.DataFrame(releases)`, `pyarrow.table(releases)`, DuckDB."""
        return self.table().__arrow_c_stream__(requested_schema)

    def _repr_html_(self) -> str:
        """A small chart and the newest numbers, for notebooks."""
        return chart_html(*self._chart(LEVEL), self.guarantee)
