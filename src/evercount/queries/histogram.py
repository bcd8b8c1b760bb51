"""Running histograms over a known public set of keys, and the keys with the largest counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import repeat
from numbers import Integral
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

from evercount._validate import (
    FloatArray,
    IntArray,
    check_count,
    check_kind,
    check_name,
    require_fits,
)
from evercount.errors import EventRefused, InputError, ParameterError
from evercount.privacy import Adjacency
from evercount.queries.base import (
    LARGEST_TOTAL,
    OTHER,
    PowerQuery,
    is_replace,
    listed_events,
    public_names,
)
from evercount.queries.publishing import (
    LARGEST_WEIGHT,
    SUMS,
    Publishing,
    RankErrors,
    TopKey,
    divided,
    top_keys,
)
from evercount.queries.sensitivities import Groups, RowFormat, other_last


class Histogram(PowerQuery[FloatArray]):
    """How many events named each key, for every key of a public list.

    A tick is a sequence of events. An event is one key, or a collection of at most
    `max_keys_per_event` distinct keys (possibly empty). With ``removals=True`` it may also be a
    mapping from key to +1 or −1. Keys are the strings of the list, or 0 … n−1 when `keys` is a
    number n. A tick may be a NumPy array of keys. The keys of the list obey `text_rules`; an
    event's key is compared as it is, so the decomposed twin of a listed key is an unknown key.

    A key that is not in the list is refused (``unknown="refuse"``) or goes to one more cell,
    labelled ``other`` (``unknown="other"``). One event changes that cell by at most one: by the sum
    over its unknown keys, clipped to [−1, 1].

    Guarantee. One event changes at most b = max_keys_per_event of the u cells, at one tick, each by
    at most one. With u cells (`other` included) and m = min(b, u): S = m (add-remove) and min(2b,
    u) (replace); with removals S = m and 4m. With weights the heaviest cells count weight² each: S
    is the largest weight² where b = 1 (add-remove). Proof: `histogram.proof.md`. Assumption: an
    event is what one person contributes (see `user_cap.py` for several). Test:
    tests/queries/test_queries_histogram.py::test_sensitivity_is_the_exact_maximum.

    Args:
        keys: the public list of keys, or their number.
        max_keys_per_event: the largest number of keys that one event names.
        removals: whether events may take back (−1).
        unknown: what happens to a key that is not in the list.
        weights: from keys (and `other`) to whole numbers from 1 to 1000; 1 where a key is missing.
            A key of weight w has 1/w of the noise of a key of weight 1. The noise is calibrated to
            the largest weight, so keys of less weight have more noise and more privacy: a key at
            half the largest weight has at most half of ε.
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
        check_kind("removals", removals, bool, "True or False")
        self._unknown = unknown
        self._removals = removals
        self._keys: tuple[str, ...] | None
        if isinstance(keys, Integral):
            self._keys = None
            self._key_number = check_count("the number of keys", keys)
        else:
            self._keys = _checked_keys(keys, unknown == OTHER)
            self._key_number = len(self._keys)
        if len(added) and self._keys is None:
            raise ParameterError(
                "other keys cannot join keys that are numbers: list the keys by name"
            )
        self._added: tuple[str, ...] = ()
        if len(added):
            all_keys = _checked_keys([*(self._keys or ()), *added], unknown == OTHER)
            self._added = all_keys[self._key_number :]
        self.cells = self._key_number + len(self._added)
        self._other = -1
        if unknown == OTHER:
            self._other = self._key_number
            self.cells += 1
        require_fits(self.cells, "this histogram", "Use fewer keys, or group rare keys under one.")
        self._most = check_count("max_keys_per_event", max_keys_per_event)
        if self._most > self.cells:
            raise ParameterError(
                f"max_keys_per_event={self._most} is more than the {self.cells} cells: use fewer"
            )
        self._scale = None
        if weights is not None:
            self._scale = _scale_of(weights, self.labels)

    @cached_property
    def labels(self) -> Sequence[str]:
        listed_keys = self._keys
        if listed_keys is None:
            listed_keys = tuple(map(str, range(self._key_number)))
        if self._unknown == OTHER:
            return (*listed_keys, OTHER, *self._added)
        return (*listed_keys, *self._added)

    def _sensitivity(self, adjacency: Adjacency, power: int) -> float:
        """S is that of `histogram.proof.md`: exact, not only an upper bound.

        **Guarantee.** With weights, S and Δ₁ are sums of the largest ones, squared or not. Proof:
        `histogram.proof.md`, "Weights". Tests:
        tests/queries/test_every_sensitivity.py::test_claims_by_enumeration and
        tests/queries/test_queries_histogram.py::test_planted_weights_are_caught.
        """
        changes = self._most  # cells that change at most
        factor = 1
        if is_replace(adjacency):
            if self._removals:
                factor = 2**power
            else:
                changes = 2 * self._most
        changes = min(changes, self.cells)
        if self._scale is None:
            return float(factor * changes)
        return factor * float((np.sort(self._scale)[::-1][:changes] ** power).sum())

    @cached_property
    def publishing(self) -> Publishing:
        if self._scale is None:
            return SUMS
        return divided(self._scale)

    def parameters(self) -> dict[str, Any]:
        more: dict[str, Any] = {}
        if self._scale is not None:
            weighted = zip(self.labels, self._scale.tolist(), strict=True)
            more["weights"] = {label: weight for label, weight in weighted if weight > 1}
        if self._added:
            more["added"] = list(self._added)
        return {
            "keys": self._key_number if self._keys is None else list(self._keys),
            "max_keys_per_event": self._most,
            "removals": self._removals,
            "unknown": self._unknown,
            **more,
        }

    def top(
        self, values: FloatArray, errors: RankErrors, k: int | None = None, level: float = 0.95
    ) -> list[TopKey]:
        k = self._checked_k(self.k if k is None else k)
        places = list(self._cell_of.values())
        own_errors = replace(errors, cells=errors.cells.at((slice(None), places)))
        return top_keys(list(self._cell_of), values[places], own_errors, k, level)

    def _checked_k(self, k: int) -> int:
        if check_count("k", k) > self._key_number:
            raise ParameterError(f"k={k} is more than the {self._key_number} keys.")
        return int(k)

    @property
    def rows(self) -> RowFormat:
        return RowFormat(
            ("key",),
            0,
            lambda: (tuple(self._cell_of), self._unknown == OTHER),
            totals=self._totals_of_rows,
        )

    def _totals_of_rows(
        self, tick: IntArray, cell: IntArray, events: IntArray, units: IntArray
    ) -> Groups:
        """Add up events by cell. In `cell` the cell `other` comes last."""
        if self._added and self._unknown == OTHER:
            cell = other_last(self.cells, self._other)[cell]
        if self._scale is not None:
            events = events * self._scale[cell]
        return tick, cell, events

    def with_keys(self, keys: Sequence[Any]) -> Histogram:
        return type(self)(**{**self.parameters(), "added": [*self._added, *keys]})

    def encode(self, state: Any, events: Any) -> tuple[IntArray, Any]:
        counts = self._counts(events)
        if self._scale is not None:
            counts = counts * self._scale
        return counts, state

    def _counts(self, events: Any) -> IntArray:
        """Count the events of a tick by cell."""
        numbers = isinstance(events, np.ndarray) and events.ndim == 1 and events.dtype.kind in "iu"
        if not numbers or self._keys is not None:
            events = listed_events(events)
        cells = self._plain_cells(events)
        if cells is not None:
            return np.bincount(cells, minlength=self.cells).astype(np.int64, copy=False)
        row = np.zeros(self.cells, np.int64)
        for number, event in enumerate(listed_events(events)):
            for cell, sign in self._change(number, event).items():
                row[cell] += sign
        return row

    def _plain_cells(self, events: Any) -> npt.NDArray[np.intp] | None:
        """Find the cells of a tick in which every event is one legal key; None when some event is
        not."""
        key_type: type = int if self._keys is None else str
        if not isinstance(events, np.ndarray) and not set(map(type, events)) <= {key_type}:
            return None
        if self._keys is not None:
            cells = np.asarray(list(map(self._cell_of.get, events, repeat(self._other))), np.intp)
        else:
            keys = np.asarray(events)
            inside = (keys >= 0) & (keys < self._key_number)
            cells = np.full(len(keys), self._other, np.intp)
            cells[inside] = keys[inside]
        if cells.min(initial=0) < 0:
            return None
        return cells

    @property
    def monotone(self) -> bool:
        return not self._removals

    def check_totals(self, totals: IntArray) -> None:
        least = int(totals.min())
        most = int(totals.max())
        if not self._removals and least < 0:
            raise InputError(
                "counts have a negative entry; build the histogram with removals=True to allow it"
            )
        if max(most, -least) > LARGEST_TOTAL:
            raise InputError(
                "counts have an entry beyond 2^53 in size, which a double cannot hold exactly"
            )
        if self._scale is not None and np.any(totals % self._scale):
            raise InputError(
                "the total of a key is its number of events times its weight; multiply them first"
            )

    @cached_property
    def _cell_of(self) -> dict[Any, int]:
        """The cell of each key, which is a text here also where keys are numbers."""
        return {key: cell for cell, key in enumerate(self.labels) if cell != self._other}

    def _change(self, number: int, event: Any) -> dict[int, int]:
        """Find the cells that one event changes, each by −1 or +1 (or by 0, for `other`)."""
        signs = self._signs_by_key(number, event)
        if len(signs) > self._most:
            raise EventRefused(
                number,
                f"names more than {self._most} keys; split it, or raise max_keys_per_event (the "
                "noise grows with its square root)",
            )
        change: dict[int, int] = {}
        strangers = 0
        for key, sign in signs.items():
            cell = self._cell_of_key(number, key)
            if cell == self._other:
                strangers += sign
            else:
                change[cell] = sign
        if strangers:
            change[self._other] = max(-1, min(1, strangers))
        return change

    def _cell_of_key(self, number: int, key: Any) -> int:
        """Find the cell of a key, or refuse the event `number` that names it."""
        key_type: type[Any] = str
        what = "a string"
        if self._keys is None:
            key_type = Integral
            what = "a whole number"
        if isinstance(key, bool) or not isinstance(key, key_type):
            raise EventRefused(
                number, f"is not a key: a key is {what}, got {key!r:.80} ({type(key).__name__})"
            )
        cell = self._other
        if self._keys is not None:
            cell = self._cell_of.get(key, self._other)
        elif 0 <= int(key) < self._key_number:
            cell = int(key)
        if cell < 0:
            raise EventRefused(
                number,
                f"names the key {key!r:.80}, which is not in the public list; add it to the list, "
                "or build the histogram with unknown='other'",
            )
        return cell

    def _signs_by_key(self, number: int, event: Any) -> dict[Any, int]:
        """Read an event as keys with signs, +1 where it has none."""
        if isinstance(event, Mapping):
            if not self._removals:
                raise EventRefused(number, "maps keys to signs; that needs removals=True")
            for sign in event.values():
                if isinstance(sign, bool) or not isinstance(sign, Integral) or sign not in (-1, 1):
                    raise EventRefused(number, f"has the sign {sign!r:.80}; it must be +1 or -1")
            return {key: int(sign) for key, sign in event.items()}
        keys = event.tolist() if isinstance(event, np.ndarray) else event
        if not isinstance(keys, set | frozenset | list | tuple):
            keys = [keys]
        keys = list(keys)
        try:
            signs = dict.fromkeys(keys, 1)
        except TypeError:
            raise EventRefused(number, "holds something that is not a key") from None
        if len(signs) < len(keys):
            raise EventRefused(number, "names a key twice; keys must be distinct")
        return signs


def _checked_keys(keys: Any, other: bool) -> tuple[str, ...]:
    """Check the names of keys; with `other` none of them may be the label of unknown keys."""
    names = public_names("key", keys)
    if other and OTHER in names:
        raise ParameterError(
            f"the key {OTHER!r} is taken by the cell for unknown keys; rename the key."
        )
    return names


def _scale_of(weights: Any, labels: Sequence[str]) -> IntArray | None:
    """Read what an event adds to each cell from a table from key to weight; None where all are
    1."""
    if not isinstance(weights, Mapping):
        raise ParameterError(f'weights must be a table such as {{"north": 3}}, got {weights!r:.80}')
    scale = np.ones(len(labels), np.int64)
    place = {label: cell for cell, label in enumerate(labels)}
    for key, weight in weights.items():
        if str(key) not in place:
            raise ParameterError(f"weights name {key!r:.80}, which is not a key of the list")
        scale[place[str(key)]] = number = check_count(f"the weight of {key!r:.80}", weight)
        if number > LARGEST_WEIGHT:
            raise ParameterError(f"weights go from 1 to {LARGEST_WEIGHT}; {key!r:.80} has {number}")
    return scale if np.any(scale > 1) else None


class TopK(Histogram):
    """The k keys with the largest noisy counts; k = 1 is the paper's top-1.

    The stream releases the whole noisy histogram; `Release.top` picks from it. That is
    post-processing, so it costs nothing.

    Guarantee. Privacy: as Histogram. Error: `TopKey`. If every cell of the tick is within a of its
    true count, then the i-th published value is within a of the true i-th largest count. Proof:
    `histogram.proof.md`. Test:
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
        raise ParameterError(
            "'top-k' keeps its keys: declare a histogram, whose largest keys `Release.top` gives, "
            "too"
        )

    def parameters(self) -> dict[str, Any]:
        return {**super().parameters(), "k": self.k}
