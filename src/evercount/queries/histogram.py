"""Running histograms over a known public set of keys."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import chain
from numbers import Integral
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from evercount._arrays import FloatArray, IntArray
from evercount._validate import check_count, check_name, require_fits
from evercount.errors import EventRefused, InputError, ParameterError
from evercount.queries.base import LARGEST_TOTAL, Adjacency, Query, check_distinct, is_replace, listed_events
from evercount.queries.capabilities import Groups, Rows
from evercount.queries.key_weights import KeyWeights
from evercount.queries.publishing import SUMS, Publishing
from evercount.queries.top_keys import RankErrors, TopKey, top_keys
from evercount.text_rules import check_public_text

OTHER = "other"


class Histogram(Query[FloatArray]):
    """How many events named each key, for every key of a public list.

    A tick is a sequence of events. An event is one key, or a collection of at most `max_keys_per_event` distinct
    keys (possibly empty). With ``removals=True`` it may also be a mapping from key to +1 or −1. Keys are the strings
    of the list, or 0 … n−1 when `keys` is a number n. A tick may be a NumPy array of keys. The keys of the list obey
    `text_rules`; an event's key is compared as it is, so the decomposed twin of a listed key is an unknown key.

    A key that is not in the list is refused (``unknown="refuse"``) or goes to one more cell, labelled ``other``
    (``unknown="other"``). One event changes that cell by at most one: by the sum over its unknown keys, clipped to
    [−1, 1].

    Guarantee. One event changes at most b = max_keys_per_event of the u cells, at one tick, each by at most one. With
    u cells (`other` included) and m = min(b, u): S = m (add-remove) and min(2b, u) (replace); with removals S = m
    and 4m. With weights the heaviest cells count weight² each: S is the largest weight² where b = 1 (add-remove).
    Proof: `histogram.proof.md`. Assumption: an event is what one person contributes (see `user_cap.py` for several).
    Test: tests/queries/test_queries_histogram.py::test_sensitivity_is_the_exact_maximum.

    Args:
        keys: the public list of keys, or their number.
        max_keys_per_event: the largest number of keys that one event names.
        removals: whether events may take back (−1).
        unknown: what happens to a key that is not in the list.
        weights: from keys (and `other`) to whole numbers from 1 to 1000; 1 where a key is missing. A key of weight w
            has 1/w of the noise of a key of weight 1. The noise is calibrated to the largest weight, so keys of less
            weight have more noise and more privacy: a key at half the largest weight has at most half of ε.
        added: keys that joined later (`Stream.add_keys`). Their cells come last, after `other`.

    Raises:
        ParameterError: keys that are not distinct texts, or another parameter that is not legal.
        TooLarge: the keys do not fit the memory.

    >>> query = Histogram(["north", "south"])
    >>> query.encode(None, ["north", "south", "north"])[0].tolist()
    [2, 1]
    """

    name: ClassVar[str] = "histogram"
    cells = 0
    single = False
    k = 1  # how many keys `top` returns by default

    def __init__(
        self,
        keys: Sequence[str] | int,
        max_keys_per_event: int = 1,
        removals: bool = False,
        unknown: Literal["refuse", "other"] = "refuse",
        weights: Mapping[str, int] | None = None,
        added: Sequence[str] = (),
    ) -> None:
        check_name("rule for unknown keys", unknown, ("refuse", OTHER))
        if not isinstance(removals, bool):
            raise ParameterError(f"removals must be True or False, not {removals!r}.")
        self._unknown = unknown
        self._removals = removals
        self._keys: tuple[str, ...] | None
        if isinstance(keys, Integral):
            self._keys, known = None, check_count("the number of keys", keys)
        else:
            self._keys = _checked_keys(keys, unknown == OTHER)
            known = len(self._keys)
        if len(added) and self._keys is None:
            raise ParameterError("keys that are numbers cannot be joined by others: list them by name")
        self._added = _checked_keys([*(self._keys or ()), *added], unknown == OTHER)[known:] if len(added) else ()
        self._known = known
        self._other = known if unknown == OTHER else -1
        self.cells = known + (unknown == OTHER) + len(self._added)
        require_fits(self.cells, "this histogram", "Use fewer keys, or group rare keys under one.")
        self._most = check_count("max_keys_per_event", max_keys_per_event)
        if self._most > self.cells:
            raise ParameterError(f"max_keys_per_event={self._most} is more than the {self.cells} cells: use fewer")
        self._weights = None if weights is None else KeyWeights.of(weights, self.labels)

    @cached_property
    def labels(self) -> Sequence[str]:
        known = tuple(map(str, range(self._known)) if self._keys is None else self._keys)
        return (*known, OTHER, *self._added) if self._unknown == OTHER else (*known, *self._added)

    def squared_sensitivity(self, adjacency: Adjacency) -> float:
        """S of `histogram.proof.md`: exact, not only an upper bound."""
        return self._sensitivity(adjacency, 2)

    def l1_sensitivity(self, adjacency: Adjacency) -> float:
        return self._sensitivity(adjacency, 1)

    def _sensitivity(self, adjacency: Adjacency, power: int) -> float:
        touched, factor = min(self._most, self.cells), 1
        if is_replace(adjacency):
            touched, factor = (touched, 2**power) if self._removals else (min(2 * self._most, self.cells), 1)
        return factor * (float(touched) if self._weights is None else self._weights.largest(touched, power))

    @property
    def publishing(self) -> Publishing:
        return SUMS if self._weights is None else self._weights.publishing

    def parameters(self) -> dict[str, Any]:
        more: dict[str, Any] = {} if self._weights is None else {"weights": self._weights.table(self.labels)}
        if self._added:
            more["added"] = list(self._added)
        return {
            "keys": self._known if self._keys is None else list(self._keys),
            "max_keys_per_event": self._most,
            "removals": self._removals,
            "unknown": self._unknown,
            **more,
        }

    def top(self, values: FloatArray, errors: RankErrors, k: int | None = None, level: float = 0.95) -> list[TopKey]:
        k = self._checked_k(self.k if k is None else k)
        known = np.flatnonzero(np.arange(self.cells) != self._other)
        cells = errors.cells.at((slice(None), known))
        labels = [self.labels[cell] for cell in known.tolist()]
        return top_keys(labels, values[known], replace(errors, cells=cells), k, level)

    def _checked_k(self, k: int) -> int:
        if check_count("k", k) > self._known:
            raise ParameterError(f"k={k} is more than the {self._known} keys.")
        return int(k)

    @property
    def rows(self) -> Rows:
        plain = self._weights is None and not self._added
        rows = Rows(("key",), list_keys=self._row_keys)
        return rows if plain else replace(rows, totals=self._totals_of_rows)

    def _totals_of_rows(self, tick: IntArray, cell: IntArray, events: IntArray, units: IntArray) -> Groups:
        """Here the cell `other` comes last."""
        if self._added and self._unknown == OTHER:
            place = np.asarray([*range(self._known), *range(self._known + 1, self.cells), self._known])
            cell = place[cell]
        return tick, cell, events if self._weights is None else events * self._weights.cells[cell]

    def _row_keys(self) -> tuple[Sequence[str], bool]:
        keys = tuple(map(str, range(self._known))) if self._keys is None else (*self._keys, *self._added)
        return keys, self._unknown == OTHER

    def with_keys(self, keys: Sequence[Any]) -> Histogram:
        return type(self)(**{**self.parameters(), "added": [*self._added, *keys]})

    def encode(self, state: Any, events: Any) -> tuple[IntArray, Any]:
        counts = self._counts(events)
        return counts if self._weights is None else counts * self._weights.cells, state

    def _counts(self, events: Any) -> IntArray:
        if isinstance(events, np.ndarray) and self._keys is None and events.ndim == 1 and events.dtype.kind in "iu":
            return self._count(self._integer_cells(events))
        listed = listed_events(events)
        cells = self._plain_cells(listed)
        if cells is None:
            cells = self._collected_cells(listed)
        if cells is not None:
            return self._count(cells)
        return self._encode_one_by_one(listed)

    @property
    def monotone(self) -> bool:
        return not self._removals

    def encode_totals(self, state: Any, totals: npt.ArrayLike) -> tuple[IntArray, Any]:
        """The caller promises that each event changed at most `max_keys_per_event` cells by at most one (its weight).

        Nothing in the array can confirm it, and privacy depends on it. Without removals a negative entry is refused.
        """
        array, state = super().encode_totals(state, totals)
        least, most = int(array.min()), int(array.max())
        if not self._removals and least < 0:
            raise InputError("counts have a negative entry; build the histogram with removals=True to allow it")
        if max(most, -least) > LARGEST_TOTAL:
            raise InputError("counts have an entry beyond 2^53 in size, which a double cannot hold exactly")
        if self._weights is not None:
            self._weights.check_totals(array)
        return array, state

    def _count(self, cells: npt.NDArray[np.intp]) -> IntArray:
        return np.bincount(cells, minlength=self.cells).astype(np.int64, copy=False)

    def _integer_cells(self, keys: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
        if keys.dtype != np.int64:  # narrow types could not hold the number of the cell `other`
            keys = np.minimum(keys, np.asarray(2**62, keys.dtype) if keys.dtype == np.uint64 else keys.max(initial=0))
            keys = keys.astype(np.int64)
        if keys.size and (keys.min() < 0 or keys.max() >= self._known):
            outside = (keys < 0) | (keys >= self._known)
            if self._unknown != OTHER:
                first = int(np.argmax(outside))
                raise self._unknown_key(first, int(keys[first]))
            keys = np.where(outside, self._known, keys)
        return keys.astype(np.intp, copy=False)

    def _plain_cells(self, events: list[Any]) -> npt.NDArray[np.intp] | None:
        """Cells of a tick in which every event is one key; None when some event is not."""
        if self._keys is None:
            with suppress(OverflowError):
                return self._integer_cells(np.asarray(events, np.int64)) if set(map(type, events)) <= {int} else None
            return None
        if not set(map(type, events)) <= {str}:
            return None
        if self._unknown == OTHER:
            codes = [self._index.get(key, self._other) for key in events]
        else:
            try:
                codes = list(map(self._index.__getitem__, events))
            except KeyError:
                first = next(number for number, key in enumerate(events) if key not in self._index)
                raise self._unknown_key(first, events[first]) from None
        return np.asarray(codes, dtype=np.intp)

    def _collected_cells(self, events: list[Any]) -> npt.NDArray[np.intp] | None:
        """Cells of a tick in which every event is a collection of known distinct keys; None when some event is not."""
        if not set(map(type, events)) <= {tuple, list, set, frozenset}:
            return None
        sizes = list(map(len, events))
        if max(sizes, default=0) > self._most:
            return None
        try:
            cells = self._plain_cells(list(chain.from_iterable(events)))
        except InputError:
            return None  # the reading one by one then names the event
        if cells is None:
            return None
        owners = np.repeat(np.arange(len(events)), sizes)
        # a key twice, or several unknown keys, in one event
        return cells if len(np.unique(owners * self.cells + cells)) == len(cells) else None

    @cached_property
    def _index(self) -> dict[str, int]:
        assert self._keys is not None  # asked for named keys only
        return {key: cell for cell, key in enumerate(self.labels) if cell != self._other}

    def _encode_one_by_one(self, events: list[Any]) -> IntArray:
        row = np.zeros(self.cells, np.int64)
        for number, event in enumerate(events):
            for cell, sign in self._change(number, event).items():
                row[cell] += sign
        return row

    def _change(self, number: int, event: Any) -> dict[int, int]:
        """The cells that one event changes, each by −1 or +1 (or by 0, for `other`)."""
        named = self._signs_by_key(number, event)
        if len(named) > self._most:
            raise EventRefused(
                number,
                f"names more than {self._most} keys; split it, or raise max_keys_per_event (the noise grows with its "
                "square root)",
            )
        change: dict[int, int] = {}
        strangers = 0
        for key, sign in named.items():
            cell = self._cell(number, key)
            if cell == self._other:
                strangers += sign
            else:
                change[cell] = sign
        if strangers:
            change[self._other] = max(-1, min(1, strangers))
        return change

    def _signs_by_key(self, number: int, event: Any) -> dict[Any, int]:
        if isinstance(event, Mapping):
            if not self._removals:
                raise EventRefused(number, "maps keys to signs; that needs removals=True")
            for sign in event.values():
                if isinstance(sign, bool) or not isinstance(sign, Integral) or sign not in (-1, 1):
                    raise EventRefused(number, f"has the sign {sign!r:.80}; it must be +1 or -1")
            return {key: int(sign) for key, sign in event.items()}
        if isinstance(event, set | frozenset | list | tuple | np.ndarray):
            keys = event.tolist() if isinstance(event, np.ndarray) else list(event)
            try:
                named = dict.fromkeys(keys, 1)
            except TypeError:
                raise EventRefused(number, "holds something that is not a key") from None
            if len(named) < len(keys):
                raise EventRefused(number, "names a key twice; keys must be distinct")
            return named
        return {event: 1} if isinstance(event, str | Integral) else self._no_key(number, event)

    def _cell(self, number: int, key: Any) -> int:
        if isinstance(key, bool) or not isinstance(key, Integral if self._keys is None else str):
            self._no_key(number, key)
        if self._keys is not None:
            cell = self._index.get(key, self._other)
        else:
            cell = int(key) if 0 <= key < self._known else self._other
        if cell < 0:
            raise self._unknown_key(number, key)
        return cell

    def _no_key(self, number: int, key: Any) -> dict[Any, int]:
        wanted = "a whole number" if self._keys is None else "a string"
        raise EventRefused(number, f"is not a key: a key is {wanted}, not {key!r:.80} ({type(key).__name__})")

    def _unknown_key(self, number: int, key: Any) -> EventRefused:
        return EventRefused(
            number,
            f"names the key {key!r:.80}, which is not in the public list; add it to the list, or build the histogram "
            "with unknown='other'",
        )


def _checked_keys(keys: Any, other: bool) -> tuple[str, ...]:
    if isinstance(keys, str | bytes) or not isinstance(keys, Iterable):
        raise ParameterError(f"keys must be a list of strings or a number, not {keys!r:.80}.")
    named = tuple(keys)
    wrong = next((key for key in named if not isinstance(key, str)), None)
    if not named or wrong is not None:
        raise ParameterError(f"keys must be at least one string (or a number of keys), got {wrong!r:.80}.")
    check_distinct("keys", named)
    if other and OTHER in named:
        raise ParameterError(f"the key {OTHER!r} is taken by the cell for unknown keys; rename the key.")
    for key in named:
        check_public_text("the key", key)
    return named


class TopK(Histogram):
    """The k keys with the largest noisy counts; k = 1 is the paper's top-1.

    The stream releases the whole noisy histogram; `Release.top` picks from it. That is post-processing, so it costs
    nothing.

    Guarantee. Privacy: as Histogram. Error: `TopKey`. If every cell of the tick is within a of its true count, then
    the i-th published value is within a of the true i-th largest count. Proof: `histogram.proof.md`. Test:
    tests/queries/test_queries_top.py::test_top_values_obey_the_simultaneous_bound.

    Args:
        k: how many keys `Release.top` gives by default.

    Raises:
        ParameterError: as `Histogram`, or k is not between 1 and the number of keys.

    >>> TopK(["north", "south", "east"], k=2).k
    2
    """

    name: ClassVar[str] = "top-k"

    def __init__(
        self,
        keys: Sequence[str] | int,
        k: int = 1,
        max_keys_per_event: int = 1,
        removals: bool = False,
        unknown: Literal["refuse", "other"] = "refuse",
    ) -> None:
        super().__init__(keys, max_keys_per_event, removals, unknown)
        self.k = self._checked_k(k)

    def with_keys(self, keys: Sequence[Any]) -> Histogram:
        raise ParameterError("'top-k' keeps its keys: declare a histogram, whose largest keys `Release.top` gives, too")

    def parameters(self) -> dict[str, Any]:
        return {**super().parameters(), "k": self.k}
