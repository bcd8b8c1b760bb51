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
    if isinstance(events, np.ndarray):
        texts = events.ndim == 2 and events.dtype.kind in "UO"
        if texts:
            return [tuple(row) for row in events.tolist()]
        return events
    kind = type(events)
    if not _foreign(kind):
        return events
    if hasattr(kind, "itertuples"):  # pandas, whose missing values have several names
        rows = list(
            events.astype(object).where(events.notna(), None).itertuples(index=False, name=None)
        )
    elif hasattr(kind, "notna"):  # a column of pandas
        numbers = isinstance(events.dtype, np.dtype) and events.dtype.kind != "O"
        if numbers:
            return events
        return events.astype(object).where(events.notna(), None).tolist()
    elif hasattr(kind, "iter_rows"):  # Polars
        rows = events.rows()
    elif hasattr(kind, "itercolumns"):  # a table of Arrow
        rows = list(zip(*(column.to_pylist() for column in events.itercolumns()), strict=True))
    else:
        return events.to_pylist()
    if rows and len(rows[0]) == 1:
        return [row[0] for row in rows]
    return rows


def plain_ticks(ticks: Iterable[Any]) -> Iterable[Any]:
    kind = type(ticks)
    if _foreign(kind) and (hasattr(kind, "itertuples") or hasattr(kind, "iter_rows")):
        raise InputError(
            "a run is a sequence of ticks, and this is one data frame: give one for each tick. "
            "Which tick a row belongs to must follow from public times, as in "
            "evercount.release(frame, time=…, every=…, epsilon=…)"
        )
    listed = plain_events(ticks)
    if isinstance(listed, list | tuple) and any(
        _foreign(kind) or kind is np.ndarray for kind in set(map(type, listed))
    ):
        return [plain_events(tick) for tick in listed]
    if isinstance(listed, Iterable):
        return listed
    return ticks


def _foreign(kind: type[Any]) -> bool:
    pandas = hasattr(kind, "itertuples") or hasattr(kind, "notna")
    return pandas or hasattr(kind, "to_pylist") or hasattr(kind, "iter_rows")
