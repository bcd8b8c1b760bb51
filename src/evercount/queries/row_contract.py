"""RowContract: how rows of a table become the events of a query. Every door that reads rows asks for this."""

from __future__ import annotations

from collections.abc import Sequence

from evercount._arrays import IntArray
from evercount.errors import ParameterError


class RowContract:
    """What a query says of events that are rows with a time, a key, a value or levels. The default: no rows."""

    event_columns: tuple[str, ...] | None = None
    """Which columns an event needs beside its time, where events are rows of a table.

    (), ("key",), ("value",) or ("levels",): one column for each level of a `Rollup`; ("user",) or ("user", "key") where
    users are counted. None: no rows.
    """

    @property
    def event_levels(self) -> int:
        """For queries of rows with levels: how many columns name an event."""
        return 0

    @property
    def row_keys(self) -> tuple[Sequence[str], bool]:
        """For queries of rows with a key: the keys in the order of their cells, and whether others go to one more."""
        raise ParameterError(f"the events of {type(self).__name__} have no key")

    @property
    def row_values(self) -> tuple[float, float, float]:
        """For queries of rows with a value: lowest and highest legal value, and the grid that it is rounded to."""
        raise ParameterError(f"the events of {type(self).__name__} have no value")

    @property
    def row_bins(self) -> tuple[float, float, int] | None:
        """Where the value of a row chooses its cell: (lowest value, width of a bin, number of bins); else None."""
        return None

    def totals_of_rows(
        self, tick: IntArray, cell: IntArray, events: IntArray, units: IntArray
    ) -> tuple[IntArray, IntArray, IntArray]:
        """(tick, cell, total) from rows that were counted elsewhere.

        Args:
            tick: the tick of each group of rows, in order.
            cell: the cell of their key (0 without keys).
            events: the number of rows.
            units: the sum of their values in grid units (0 without values).

        Returns:
            The tick, the cell and the total of each group, in grid units.
        """
        return tick, cell, events
