"""Keys that nobody listed: their exact counts, and which noisy count makes a key public at which
tick.

`KeyCounts` is secret, but for the keys that are public already; `Thresholds` are computed from
public numbers only.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from evercount._validate import FloatArray, IntArray
from evercount.errors import ParameterError
from evercount.privacy import Budget
from evercount.queries.sensitivities import bounded

MARGIN = 1e-9  # relative head-room over the rounding of norms and tails


@dataclass(frozen=True)
class Reach:
    """What one protected unit can bring into the counts that are compared with thresholds."""

    events: int  # the most events of one key in one tick
    keys: int  # the most keys in one tick
    ticks: int  # the most ticks
    total: int  # the most events in all of them

    @classmethod
    def of(cls, budget: Budget, horizon: int | None, own_ticks: bool) -> Reach:
        """Of all its events in running totals, or of those of each tick."""
        most = bounded("events", budget, horizon)
        if not own_ticks:
            return cls(most, most, 1, most)
        here = budget.touched(horizon).per_tick or most
        return cls(here, here, bounded("ticks", budget, horizon), most)

    def log_chance(self, log_pass: Callable[[IntArray], FloatArray]) -> float:
        """A bound of log P(some key of the unit passes); `log_pass` is that of one key with so many
        of its events.

        **Guarantee.** It holds however the events are spread over keys and ticks. Proof:
        `discovered_keys.proof.md`, Lemma 2. Test:
        tests/queries/test_discovery_threshold.py::test_chances_hold_for_every_spread.
        """
        events = np.arange(1, self.events + 1)
        logs = log_pass(events)
        return min(
            float(np.max(logs)) + math.log(self.keys * self.ticks),
            float(np.max(logs - np.log(events))) + math.log(self.total),
        )


@dataclass(frozen=True, eq=False)
class Thresholds:
    """The threshold of every discovery tick.

    **Guarantee.** However the events of a unit are spread over keys, the probability that at some
    discovery tick a key reaches its threshold whose count without the unit is below `minimum` is at
    most `delta`. Proof: `discovered_keys.proof.md`, Lemmas 2 and 8. Assumption: noise is normal of
    this std, rounded to the nearest whole number, and the std of own ticks is the same at all of
    them. Tests:
    tests/queries/test_discovery_threshold.py::test_thresholds_keep_their_delta_for_every_split and
    tests/queries/test_discovered_law.py::test_a_key_of_one_person_is_listed_with_at_most_delta_2.
    """

    minimum: int  # the true count from which a key is compared with the threshold at all
    every: int  # discovery ticks are the multiples of this
    horizon: int | None  # the number of ticks, or None
    reach: Reach  # what one protected unit can have
    # δ₂, the probability with which all discovery ticks together may list a key because of one unit
    # alone
    delta: float
    # from ticks to the std of a cell's noise before it is rounded, in events
    std: Callable[[IntArray], FloatArray]
    # whether each tick compares its own counts, of which a unit changes those of `reach.ticks`
    # ticks only, instead of running totals. Then every tick has the same threshold, for ever
    own_ticks: bool = False
    _cache: dict[int, int] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        if self.horizon is not None and self.horizon < self.every:
            raise ParameterError(
                f"every={self.every} is more than the horizon of {self.horizon} ticks: nothing is "
                "listed"
            )

    def discovers(self, tick: int) -> bool:
        """Whether keys can become public at this tick."""
        return tick % self.every == 0

    def share(self, tick: int) -> float:
        """The part of δ₂ that a discovery tick has: equal parts of a horizon, else δ₂/(j(j+1)) for
        the j-th. With own ticks all of it: `reach` counts the ticks."""
        if self.own_ticks:
            return self.delta
        if self.horizon is not None:
            return self.delta / (self.horizon // self.every)
        number = tick // self.every
        return self.delta / (number * (number + 1.0))

    def at(self, tick: int) -> int:
        """The least noisy count that makes a key public at a discovery tick."""
        threshold_tick = 0 if self.own_ticks else tick
        if threshold_tick not in self._cache:
            self._cache[threshold_tick] = self._least(tick)
        return self._cache[threshold_tick]

    def _least(self, tick: int) -> int:
        """Search the least threshold of a tick that keeps its share of δ₂."""
        from scipy.special import ndtri_exp

        log_delta = float(np.log(self.share(tick)))
        std = self._std(tick) * (1 + MARGIN)
        certain = self.minimum - 1 + self.reach.events
        quantile = float(ndtri_exp(log_delta - np.log(self.reach.total) - 1))
        low = certain  # a key of the unit alone would be listed about every second time
        high = certain + 2 + int(np.ceil(-std * quantile))
        while high - low > 1:
            middle = (low + high) // 2
            if self._log_chance(middle, std) <= log_delta - MARGIN:
                high = middle
            else:
                low = middle
        return high

    def _log_chance(self, threshold: int, std: float) -> float:
        return self.reach.log_chance(
            lambda events: _log_pass_chance(self.minimum - 1 + events, threshold, std)
        )

    def _std(self, tick: int) -> float:
        return float(self.std(np.asarray([tick]))[0])

    def visible(self, count: int, tick: int) -> float:
        """The chance that a key with this true count passes the threshold at the last discovery
        tick up to `tick`. A key that passed earlier is public already, so the chance that it is
        public is at least this."""
        last = tick // self.every * self.every
        if last < 1 or count < self.minimum:
            return 0.0
        return float(
            np.exp(_log_pass_chance(np.asarray([count]), self.at(last), self._std(last))[0])
        )

    def needed(self, chance: float, tick: int) -> int:
        """The least count that is visible with this chance at a tick, and at least `minimum`."""
        from scipy.special import ndtri

        last = max(tick // self.every, 1) * self.every
        count = self.at(last) - 0.5 + self._std(last) * float(ndtri(chance))
        return max(self.minimum, int(np.ceil(count)))


def _log_pass_chance(counts: IntArray, threshold: int, std: float) -> FloatArray:
    """Compute log P(count + noise ≥ threshold) for normal noise that is rounded to the nearest
    whole number, halves upwards."""
    from scipy.special import log_ndtr

    return np.asarray(log_ndtr((counts - threshold + 0.5) / std))


class CountedKeys(Mapping[str, int]):
    """How many events of a tick name each key, for legal keys in composed form. It holds places in
    a list that many ticks share, which takes a fifth of the memory of a dictionary.

    Args:
        names: keys, sorted, each once.
        places: where the keys of the tick are in `names`, in order.
        numbers: how many events name them; above 0.
    """

    def __init__(self, names: Sequence[str], places: IntArray, numbers: IntArray) -> None:
        self._names = names
        self._places = places
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._places)

    def __iter__(self) -> Iterator[str]:
        return map(self._names.__getitem__, self._places.tolist())

    def __getitem__(self, key: str) -> int:
        place = bisect_left(self._names, key)
        at = int(np.searchsorted(self._places, place))
        if at == len(self._places) or self._places[at] != place or self._names[place] != key:
            raise KeyError(key)
        return int(self._numbers[at])

    def to_dict(self) -> dict[str, int]:
        """The same as a dictionary."""
        return dict(zip(self, self._numbers.tolist(), strict=True))

    def total(self) -> int:
        """Add up the events of all keys."""
        return int(self._numbers.sum())

    def without(self, keys: Iterable[str]) -> CountedKeys:
        """The other keys."""
        left_out = [bisect_left(self._names, key) for key in keys if key in self]
        remaining = ~np.isin(self._places, left_out)
        return CountedKeys(self._names, self._places[remaining], self._numbers[remaining])

    def at_least(self, minimum: int) -> tuple[list[str], IntArray]:
        """The keys that so many events name, sorted, and their numbers of events."""
        frequent = self._numbers >= minimum
        names = map(self._names.__getitem__, self._places[frequent].tolist())
        return list(names), self._numbers[frequent].astype(np.int64)


def frequent_keys(more: Mapping[str, int], minimum: int) -> tuple[list[str], IntArray]:
    """The keys that so many events name, sorted, and their numbers of events."""
    if isinstance(more, CountedKeys):
        return more.at_least(minimum)
    names = sorted(key for key, number in more.items() if number >= minimum)
    return names, np.asarray([more[key] for key in names], np.int64)


ARRAYS = ("counts", "listed", "since", "evidence")


@dataclass(frozen=True, eq=False)
class KeyCounts:
    """Counts after some tick, and what was encoded of the ticks after it. What a step does, it does
    to a copy (`opened`), so that the old one stays true if the step fails. Only `rare` is shared,
    because it is large: it lacks the counts in `changed`, which are absolute, so writing them twice
    does no harm."""

    # counts below the minimum, without those in `changed`
    rare: dict[str, int] = field(default_factory=dict)
    # rare keys that the last ticks changed; 0: no longer rare
    changed: dict[str, int] = field(default_factory=dict)
    keys: list[str] = field(default_factory=list)
    """Keys that have reached the minimum, in the order in which they did; those of one tick by
    their names."""
    place: dict[str, int] = field(default_factory=dict)  # where each of `keys` stands
    counts: IntArray = field(default_factory=lambda: np.empty(0, np.int64))  # the counts of `keys`
    listed: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    """The places of public keys, in the order in which they became public."""
    # the ticks at which they became public
    since: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    evidence: FloatArray = field(default_factory=lambda: np.empty(0))
    """How many stds their noisy counts were above the threshold at the last discovery tick."""
    # what each tick that was encoded and not released adds to each key
    pending: tuple[Mapping[str, int], ...] = ()

    @classmethod
    def of_published(cls, keys: list[str], tick: int) -> KeyCounts:
        """What a stream without memory keeps of its last tick: the keys that were published, and no
        counts."""
        places = np.arange(len(keys))
        place = dict(zip(keys, range(len(keys)), strict=True))
        return cls(
            keys=keys,
            place=place,
            counts=np.zeros_like(places),
            listed=places,
            since=np.full(len(keys), tick),
            evidence=np.zeros(len(keys)),
        )

    @property
    def public(self) -> list[str]:
        return [self.keys[place] for place in self.listed.tolist()]

    def settled(self) -> KeyCounts:
        """The same counts with `changed` written into `rare`."""
        if not self.changed:
            return self
        for key, count in self.changed.items():
            if count:
                self.rare[key] = count
            else:
                self.rare.pop(key, None)
        return replace(self, changed={})

    def changeable(self) -> KeyCounts:
        """A copy that `add` may change, without pending ticks."""
        settled = self.settled()
        return replace(settled, changed={}, keys=[*self.keys], place={**self.place}, pending=())

    def add(self, more: Mapping[str, int], minimum: int) -> KeyCounts:
        """The counts after one more tick. `self`, a copy of `changeable`, must not be used
        again."""
        counts = self.counts.copy()
        frequent: dict[str, int] = {}
        if isinstance(more, CountedKeys):
            more = more.to_dict()
        for key, number in more.items():
            place = self.place.get(key)
            if place is not None:
                counts[place] += number
                continue
            before = self.changed.get(key)
            count = self.changed.get(key, self.rare.get(key, 0)) + number
            if count < minimum:
                self.changed[key] = count
            else:
                frequent[key] = count
                if before is not None or key in self.rare:
                    self.changed[key] = 0
        if frequent:
            fresh = sorted(frequent)
            self.place.update((key, len(self.keys) + number) for number, key in enumerate(fresh))
            self.keys.extend(fresh)
            counts = np.concatenate(
                [counts, np.asarray([frequent[key] for key in fresh], np.int64)]
            )
        return replace(self, counts=counts)

    def list_keys(self, places: IntArray, tick: int) -> KeyCounts:
        """The same counts after the keys at these places became public; those of one tick by their
        names."""
        order = sorted(places.tolist(), key=lambda place: self.keys[place])
        return replace(
            self,
            listed=np.concatenate([self.listed, np.asarray(order, np.int64)]),
            since=np.concatenate([self.since, np.full(len(order), tick, np.int64)]),
            evidence=np.concatenate([self.evidence, np.zeros(len(order))]),
        )

    def nearly(self, more: Mapping[str, int], least: int) -> list[str]:
        """Rare keys of the last ticks with at least this count, and keys of `more` without a place
        that have it once `more` is added; nothing is changed."""
        return [key for key, count in self.changed.items() if count >= least] + [
            key
            for key, number in more.items()
            if key not in self.place
            and self.changed.get(key, self.rare.get(key, 0)) + number >= least
        ]

    # -- snapshots ---------------------------------------------------------------------------------

    def dump(self) -> dict[str, Any]:
        """As a tree that a snapshot holds; `load` is the inverse."""
        settled = self.settled()
        return {
            "rare": _texts(settled.rare),
            "rare counts": np.fromiter(settled.rare.values(), np.int64, len(settled.rare)),
            "keys": _texts(settled.keys),
            **{name: vars(settled)[name] for name in ARRAYS},
        }

    @classmethod
    def load(cls, data: Mapping[str, Any]) -> KeyCounts:
        keys = _split(data["keys"])
        rare = dict(zip(_split(data["rare"]), data["rare counts"].tolist(), strict=True))
        if len(keys) != len(data["counts"]) or len(data["listed"]) != len(data["since"]):
            raise ValueError("the counts of keys are inconsistent")
        place = {key: number for number, key in enumerate(keys)}
        return cls(rare, {}, keys, place, **{name: data[name] for name in ARRAYS})


def _texts(keys: Iterable[str]) -> Any:
    """Write keys as bytes, a line each; none of them holds a line break."""
    return np.frombuffer("\n".join(keys).encode(), np.uint8)


def _split(data: Any) -> list[str]:
    """Read the keys that `_texts` wrote."""
    text = bytes(data).decode()
    if not text:
        return []
    return text.split("\n")
