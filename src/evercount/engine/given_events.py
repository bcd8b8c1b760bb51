"""What a step is given: events of data frames as the queries take them, and fingerprints that tell a retry of the last
tick from an attempt to change the past.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from evercount.errors import AlreadyReleased, InputError


def plain_events(events: Any) -> Any:
    """The events of a tick as the queries take them; only data frames, Arrow arrays and tables of texts are changed. A
    frame with one column is that column; one with more is a tuple for each row, in the order of its columns. The
    libraries are known by the methods of their classes: none is imported."""
    if isinstance(events, np.ndarray):
        texts = events.ndim == 2 and events.dtype.kind in "UO"
        return [tuple(row) for row in events.tolist()] if texts else events
    kind = type(events)
    if not _foreign(kind):
        return events
    if hasattr(kind, "itertuples"):  # pandas, whose missing values have several names
        rows = list(events.astype(object).where(events.notna(), None).itertuples(index=False, name=None))
    elif hasattr(kind, "notna"):  # a column of pandas
        numbers = isinstance(events.dtype, np.dtype) and events.dtype.kind != "O"
        return events if numbers else events.astype(object).where(events.notna(), None).tolist()
    elif hasattr(kind, "iter_rows"):  # Polars
        rows = events.rows()
    elif hasattr(kind, "itercolumns"):  # a table of Arrow
        rows = list(zip(*(column.to_pylist() for column in events.itercolumns()), strict=True))
    else:
        return events.to_pylist()
    return [row[0] for row in rows] if rows and len(rows[0]) == 1 else rows


def plain_ticks(ticks: Iterable[Any]) -> Iterable[Any]:
    kind = type(ticks)
    if _foreign(kind) and (hasattr(kind, "itertuples") or hasattr(kind, "iter_rows")):
        raise InputError(
            "a run is a sequence of ticks, and this is one data frame: give one for each tick. Which tick a row "
            "belongs to must follow from public times, as in evercount.release(frame, time=…, every=…, epsilon=…)"
        )
    listed = plain_events(ticks)
    if isinstance(listed, list | tuple) and any(
        _foreign(kind) or kind is np.ndarray for kind in set(map(type, listed))
    ):
        return [plain_events(tick) for tick in listed]
    return listed if isinstance(listed, Iterable) else ticks


def _foreign(kind: type[Any]) -> bool:
    pandas = hasattr(kind, "itertuples") or hasattr(kind, "notna")
    return pandas or hasattr(kind, "to_pylist") or hasattr(kind, "iter_rows")


R = TypeVar("R")  # what a step releases

SCALARS = frozenset({int, float, str, bool, type(None)})


class Seen:
    """The events of the last tick, as far as a retry needs them. What cannot change is kept, and hashed on demand."""

    def __init__(self, events: Any = None, *, digest: str | None = None) -> None:
        if digest is not None:
            self.digest = digest
        elif _plain(events):
            self._kept = events.copy()
        elif type(events) in SCALARS:
            self._kept = events
        elif _lasting(events):
            self._kept = tuple(events)
        else:
            self.digest = fingerprint(events)  # its owner may change it later

    @cached_property
    def digest(self) -> str:
        return fingerprint(self._kept)


def check_tick(tick: object) -> None:
    if isinstance(tick, bool) or not isinstance(tick, int | np.integer) or tick < 1:
        raise InputError(f"tick must be a whole number of at least 1, got {tick!r}")


def read_again(last_tick: int, last: tuple[Seen, R] | None, tick: int, seen: Seen) -> R:
    """What the last step released, where it is asked again for the same tick with the same events."""
    if tick == last_tick and last is not None and last[0].digest == seen.digest:
        return last[1]
    if tick > last_tick:
        raise InputError(f"tick {tick} is out of turn: the next tick is {last_tick + 1}")
    raise AlreadyReleased(
        f"tick {tick} is already released and cannot be released again with other events: the difference of two "
        "releases with the same noise would reveal them. Late events belong to the next tick."
    )


def _plain(events: Any) -> bool:
    return isinstance(events, np.ndarray) and events.dtype.kind in "biuf"


def _lasting(events: Any) -> bool:
    """Whether a copy of the list will not change: its items are scalars, or tuples of scalars."""
    if type(events) is not list and type(events) is not tuple:
        return False
    kinds = set(map(type, events)) - SCALARS
    return not kinds or (kinds == {tuple} and all(SCALARS.issuperset(map(type, e)) for e in events if type(e) is tuple))


def fingerprint(events: Any) -> str:
    """A digest of a tick's events, to tell a retry from an attempt to change the past. It stays inside the stream."""
    digest = hashlib.sha256()
    if _plain(events):
        digest.update(f"{events.dtype.str}{events.shape}".encode())
        digest.update(np.ascontiguousarray(events).data)
    else:
        digest.update(json.dumps(_canonical(events)).encode())
    return digest.hexdigest()


def _canonical(value: Any) -> Any:
    """The same JSON for the same events, in any process."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return _canonical(value.tolist())
    if isinstance(value, Mapping):
        return ["mapping", sorted(([_canonical(k), _canonical(v)] for k, v in value.items()), key=repr)]
    if isinstance(value, set | frozenset):
        return ["set", sorted((_canonical(item) for item in value), key=repr)]
    if isinstance(value, Iterable):
        return [_canonical(item) for item in value]
    return repr(value)
