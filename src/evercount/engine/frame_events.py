"""Events as the queries take them: data frames, Arrow arrays and tables of texts become lists."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from evercount.errors import InputError


def plain_events(events: Any) -> Any:
    """The events of a tick as the queries take them; only data frames, Arrow arrays and tables of
    texts are changed. A frame with one column is that column; one with more is a tuple for each
    row, in the order of its columns. The libraries are known by the methods of their classes: none
    is imported."""
    kind = type(events)
    if isinstance(events, np.ndarray):
        if events.ndim == 2 and events.dtype.kind in "UO":  # a table of texts
            return [tuple(row) for row in events.tolist()]
        return events
    if not _is_frame_or_column(kind):
        return events
    rows = _rows_of_frame(events, kind)
    if rows is None:
        return _plain_column(events, kind)
    if rows and len(rows[0]) == 1:
        return [row[0] for row in rows]
    return rows


def _rows_of_frame(events: Any, kind: type[Any]) -> list[tuple[Any, ...]] | None:
    """Read the rows of a frame or table; None for a column."""
    if hasattr(kind, "itertuples"):  # pandas, whose missing values have several names
        filled = events.astype(object).where(events.notna(), None)
        return list(filled.itertuples(index=False, name=None))
    if hasattr(kind, "notna"):  # a column of pandas
        return None
    if hasattr(kind, "iter_rows"):  # Polars
        return list(events.rows())
    if hasattr(kind, "itercolumns"):  # a table of Arrow
        return list(zip(*(column.to_pylist() for column in events.itercolumns()), strict=True))
    return None


def _plain_column(events: Any, kind: type[Any]) -> Any:
    """Read a column of pandas, Polars or Arrow; numbers of pandas stay as they are."""
    if not hasattr(kind, "notna"):
        return events.to_pylist()
    if isinstance(events.dtype, np.dtype) and events.dtype.kind != "O":
        return events
    return events.astype(object).where(events.notna(), None).tolist()


def plain_ticks(ticks: Iterable[Any]) -> Iterable[Any]:
    """As `plain_events`, for each of several ticks; refuse a single frame, which is not split into
    ticks."""
    kind = type(ticks)
    if _is_frame_or_column(kind) and (hasattr(kind, "itertuples") or hasattr(kind, "iter_rows")):
        raise InputError(
            "a run is a sequence of ticks, and this is one data frame: give one for each tick. "
            "Which tick a row belongs to must follow from public times, as in "
            "evercount.release(frame, time=…, every=…, epsilon=…)"
        )
    listed = plain_events(ticks)
    if isinstance(listed, list | tuple) and any(
        _is_frame_or_column(kind) or kind is np.ndarray for kind in set(map(type, listed))
    ):
        return [plain_events(tick) for tick in listed]
    if isinstance(listed, Iterable):
        return listed
    return ticks


def _is_frame_or_column(kind: type[Any]) -> bool:
    """Whether a class is that of a frame, table or column of pandas, Polars or Arrow."""
    pandas = hasattr(kind, "itertuples") or hasattr(kind, "notna")
    return pandas or hasattr(kind, "to_pylist") or hasattr(kind, "iter_rows")
