"""DiscoveredKeys: how many events named each key, for keys that nobody listed beforehand."""

from __future__ import annotations

import math
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import lru_cache
from itertools import count
from typing import Any, ClassVar, Self

import numpy as np

from evercount._validate import FloatArray, IntArray, check_count, check_probability, escaped, fault
from evercount.errors import EventRefused, InputError, ParameterError
from evercount.privacy import Adjacency, Budget
from evercount.queries.base import LARGEST_TOTAL, OTHER, TOTAL, Query, is_replace, listed_events
from evercount.queries.key_counts import CountedKeys, KeyCounts, Reach, Thresholds
from evercount.queries.publishing import (
    CellErrors,
    Change,
    ErrorsFromSums,
    Limits,
    Publishing,
    TopKey,
)
from evercount.queries.sensitivities import RowFormat, bounded

RESERVED = (TOTAL, OTHER)
"""Labels of the first two cells. Events may name them as keys: they count in the total and are
never listed."""
PER_TICK = "per-tick"  # the only view of a stream of keys of the day
LONGEST_KEY = 200  # characters of a key
CLEAR = 2.0
"""A key is clearly above its threshold when its noisy count exceeds it by this many stds plus half
an interval."""
CHANCE_BELOW_CLEAR = 0.5 * math.erfc(-CLEAR / math.sqrt(2))


class DiscoveredKeys(Query[FloatArray]):
    """Running counts of keys that nobody listed. A key becomes public when its noisy count passes a
    public threshold.

    A tick is a sequence of keys, one for each event, or a mapping from key to number of events.
    Published are `total` (all events), `other` (the total less the counts of public keys) and one
    count for each public key, in the order in which they became public. A key that is public stays
    so, and is published from that tick on.

    A stream with views=["per-tick"] publishes the **keys of the day** instead: at each tick the
    keys whose count of this tick alone passes the threshold, sorted, with that count; `total` and
    `other` are those of the tick, too. It remembers no key and needs no horizon, and a key that
    does not pass is not in the release of that tick.

    Keys are compared in Unicode's composed form (NFC), have 1 to 200 characters and obey
    `text_rules`. An event whose key does not is refused.

    Args:
        every: discovery ticks are the multiples of this: at no other tick does a key become public.
        minimum: the true count below which a key is never tested. A larger one raises every
            threshold by as much and saves time and memory: only keys that have reached it need
            noise.
        share: the part of the budget's δ that pays for discovery.

    Raises:
        ParameterError: a parameter is outside its domain.

    Guarantee. All releases together are (ε, δ)-DP: with S = 2 for the counts of all possible keys
    and the total, for which the noise has (1 − share)·δ, and with share·δ = (1 + e^ε)·δ₂ for the
    chance δ₂ that a key is listed because of one unit alone. Proof: `discovered_keys.proof.md`.
    Assumption: one event names one key. Tests:
    tests/queries/test_discovered_law.py::test_exact_law_of_one_tick_keeps_epsilon_and_delta and
    tests/queries/test_discovered_law.py::test_a_key_of_one_person_is_listed_with_at_most_delta_2.
    For keys of the day these ε and δ are those of the ticks that a unit touches, however many ticks
    there are: Theorem 9, tests/queries/test_keys_of_the_day.py::test_exact_delta_of_two_ticks.

    >>> from evercount import Budget, DiscoveredKeys, Stream
    >>> stream = Stream(DiscoveredKeys(), Budget(epsilon=1.0, delta=1e-6), horizon=10)
    >>> release = stream.step(["oslo"] * 1000 + ["one person's village"])
    >>> list(release.labels)
    ['total', 'other', 'oslo']
    """

    name: ClassVar[str] = "discovered-keys"
    cells = 1
    outputs = len(RESERVED)
    labels = RESERVED
    refuses_by_itself: ClassVar[bool] = True
    # the total's noise has the empty name, which no key has
    first_names: ClassVar[tuple[str, ...]] = ("",)
    _own_ticks: bool = False

    def __init__(self, every: int = 1, minimum: int = 1, share: float = 0.5) -> None:
        self.every = check_count("every", every)
        self.minimum = check_count("minimum", minimum)
        self.share = check_probability("share", share)

    def for_views(self, views: tuple[str, ...]) -> Self:
        own = views == (PER_TICK,)
        if own and self.every > 1:
            raise ParameterError(
                f"every={self.every} is for keys that stay public: omit it for keys of the day"
            )
        query = copy(self)
        query._own_ticks = own
        return query

    # -- what is counted ---------------------------------------------------------------------------

    @property
    def memoryless(self) -> bool:
        """The state says which keys are public; an event adds to the counts of its own tick."""
        return True

    @property
    def discovery(self) -> Self:
        return self

    def labels_now(self, state: KeyCounts) -> Sequence[str]:
        """One label per number that a tick publishes now; public."""
        return (*RESERVED, *state.public)

    def squared_sensitivity(self, adjacency: Adjacency) -> float:
        """S = 2 over the total and the counts of all possible keys: `discovered_keys.proof.md`,
        Lemma 1."""
        is_replace(adjacency)  # refuses anything else
        return 2.0

    def touched_cells(self, budget: Budget, horizon: int | None) -> int:
        """How many cells one unit can change: the keys of its events, of both streams under
        replace, and the total."""
        keys = bounded("events", budget, horizon)
        if budget.adjacency == "replace":
            keys *= 2
        return 1 + keys

    def own_delta(self, budget: Budget) -> float:
        """The part of δ that discovery costs besides the noise."""
        return self.share * budget.delta

    def thresholds(
        self, budget: Budget, horizon: int | None, std: Callable[[IntArray], FloatArray]
    ) -> Thresholds:
        """When a key becomes public: δ₂ = share·δ/(1 + e^ε)."""
        delta = self.own_delta(budget) / (1 + float(np.exp(min(budget.epsilon, 700.0))))
        own = self._own_ticks
        return Thresholds(
            self.minimum, self.every, horizon, Reach.of(budget, horizon, own), delta, std, own
        )

    def with_known_keys(self, events: Iterable[Any]) -> Query:
        """A query whose increments are those that S speaks of, over the keys of these events; for
        audits."""
        return KnownKeys(self, sorted({normal_key(0, event) for event in events}))

    # -- from events to increments -----------------------------------------------------------------

    def initial_state(self) -> KeyCounts:
        return KeyCounts()

    def encode(self, state: KeyCounts, events: Any) -> tuple[IntArray, KeyCounts]:
        keys: Mapping[str, int]
        if isinstance(events, CountedKeys):
            number = events.total()
            keys = events.without(RESERVED)
        else:
            more = count_keys(events)
            number = sum(more.values())
            keys = {key: events for key, events in more.items() if key not in RESERVED}
        if number > LARGEST_TOTAL:
            raise InputError("a tick has more than 2^53 events, which cannot come from real ones")
        return np.asarray([number], np.int64), replace(state, pending=(*state.pending, keys))

    def check_events(self, events: Iterable[Any]) -> None:
        for number, key in enumerate(events):
            normal_key(number, key)

    @property
    def rows(self) -> RowFormat:
        return RowFormat(("key",), list_keys=lambda: ((), False))

    def check_keys(self, keys: Sequence[Any]) -> list[str | None]:
        """The keys of rows as they are counted; None for those that are not legal."""
        normal_keys: list[str | None] = []
        for key in keys:
            normal = None
            if isinstance(key, str):
                composed, wrong = _composed(key)
                if wrong is None:
                    normal = composed
            normal_keys.append(normal)
        return normal_keys

    def expected_names(self, state: KeyCounts, events: Any = ()) -> Iterable[str]:
        """Keys that have three quarters of the minimum; none where noise belongs to one tick and is
        quickly drawn."""
        if self._own_ticks:
            return ()
        least = self.minimum - self.minimum // 4
        more = {key: number for key, number in count_keys(events).items() if key not in RESERVED}
        return state.nearly(more, least)

    def dump_state(self, state: KeyCounts) -> Any:
        return state.dump()

    def load_state(self, data: Any) -> KeyCounts:
        return KeyCounts.load(data)

    # -- errors ------------------------------------------------------------------------------------

    @property
    def publishing(self) -> Publishing:
        return Publishing(
            change=self._between,
            kept=ErrorsFromSums(self._scale, self.interval),
            own_ticks=self._own_ticks,
        )

    def _scale(self, sums: FloatArray, values: FloatArray) -> FloatArray:
        """`other` adds up the noise of the total and of all public keys."""
        scale = np.where(np.isnan(values), np.nan, 1.0)
        scale[:, 1] = np.sqrt(np.count_nonzero(~np.isnan(values), axis=1) - 1)
        return scale

    def interval(
        self, values: FloatArray, sums: FloatArray, errors: CellErrors, level: float
    ) -> Limits:
        """Intervals that hold given which keys are public: `discovered_keys.proof.md`, "Intervals".

        **Guarantee.** Given that a key is public, its count lies inside with probability at least
        `level`; so does the total, and so does what `other` stands for, given the set of public
        keys. Test: tests/queries/test_discovered_intervals.py::test_intervals_hold_given_discovery.
        """
        miss = 1 - level
        half = errors.half(level)
        low = values - half
        high = values + half
        for number, row in enumerate(values):
            part = np.flatnonzero(~np.isnan(row))[len(RESERVED) :]
            keys = len(part)
            here = errors.at(slice(number, number + 1))
            low[number, part] = self._least(row[part], sums[number, part], here, miss / 2)
            clear = sums[number, part] >= CLEAR + CLEAR
            clear_keys = float(np.count_nonzero(clear))
            slack = here.slack_of(clear_keys**0.5, clear_keys)
            noise = sum_of_clear(keys, miss / 4) * here.spread + slack
            # keys that are not clear have at least the minimum
            certain = self.minimum * np.count_nonzero(~clear)
            all_keys = row[part][clear].sum() - float(noise[0, 0]) + certain
            norm = np.sqrt(keys + 1.0)
            side = here.factor(level) * norm * here.spread + here.slack_of(norm, keys + 1)
            low[number, 1] = max(0.0, row[1] - float(side[0, 0]))
            high[number, 1] = max(0.0, row[0] + float(here.half(1 - miss / 2)[0, 0]) - all_keys)
        # the published number itself may be impossible
        return np.minimum(low, values), np.maximum(high, values)

    def _least(
        self, noisy: FloatArray, evidence: FloatArray, errors: CellErrors, miss: float
    ) -> FloatArray:
        """Bound the true counts of public keys from below; each bound fails with probability at
        most `miss`."""
        level = 1 - 2 * miss * CHANCE_BELOW_CLEAR
        low = noisy - float(errors.half(level)[0, 0])
        clear = evidence >= CLEAR + errors.factor(level)
        return np.where(clear, np.maximum(low, self.minimum), float(self.minimum))

    def _between(self, earlier: int, later: int, low: FloatArray, high: FloatArray) -> Change:
        """Compute the changes of the total and of keys that were public at both ticks, NaN for all
        others. `other` is the change of the total less those of the keys that are shown."""
        self.publishing.check_views("between: ", None)
        change = high - low
        weight = np.where(np.isnan(change), np.nan, 1.0)
        public = ~np.isnan(change[2:])
        change[1] = change[0] - change[2:][public].sum()
        weight[1] = np.sqrt(1 + np.count_nonzero(public))
        return change, weight


class KnownKeys(Query[FloatArray]):
    """The cells that S of a `DiscoveredKeys` speaks of, over a few keys: for the audit of its
    sensitivity."""

    name: ClassVar[str] = "discovered-keys"
    cells = 0

    def __init__(self, of: DiscoveredKeys, keys: Sequence[str]) -> None:
        self._of = of
        self._keys = tuple(keys)
        self.cells = 1 + len(keys)

    def squared_sensitivity(self, adjacency: Adjacency) -> float:
        return self._of.squared_sensitivity(adjacency)

    def encode(self, state: Any, events: Any) -> tuple[IntArray, Any]:
        more = count_keys(events)
        return np.asarray(
            [sum(more.values()), *(more.get(key, 0) for key in self._keys)], np.int64
        ), state

    def parameters(self) -> dict[str, Any]:
        return self._of.parameters()

    def __repr__(self) -> str:
        return f"{self._of!r} over {len(self._keys)} keys"


def count_keys(events: Any) -> Counter[str]:
    """How many events name each key, in composed form; InputError where an event is not legal."""
    if isinstance(events, CountedKeys):
        return Counter(events.to_dict())
    if not isinstance(events, Mapping):
        return Counter(map(normal_key, count(), listed_events(events)))
    more: Counter[str] = Counter()
    for place, (key, number) in enumerate(events.items()):
        if (
            isinstance(number, bool)
            or not isinstance(number, int | np.integer)
            or not 0 <= number <= LARGEST_TOTAL
        ):
            raise EventRefused(
                place, f"must have a whole number of events from 0 to 2^53, got {number!r:.80}"
            )
        if number:
            more[normal_key(place, key)] += int(number)
    return more


def normal_key(number: int, key: Any) -> str:
    """The key of event `number` in composed form, or EventRefused."""
    if not isinstance(key, str):
        raise EventRefused(number, f"is not a key: a key is a string, got {type(key).__name__}")
    normal, wrong = _composed(key)
    if wrong is not None:
        raise EventRefused(number, f"has a key that {wrong}")
    return normal


def _composed(key: str) -> tuple[str, str | None]:
    """Write a key in composed form, and say what is wrong with it, if anything."""
    if len(key) > LONGEST_KEY:
        begin = escaped(key[:20], quote=True)
        return key, f"is longer than {LONGEST_KEY} characters: shorten it ({begin}…)"
    normal = unicodedata.normalize("NFC", key)
    return normal, fault(normal)


@lru_cache(maxsize=4096)
def sum_of_clear(keys: int, miss: float) -> float:
    """What the noise of all clear keys together exceeds with probability at most `miss`, in stds of
    one cell.

    **Guarantee.** Given which `keys` keys are public, whatever their counts are. Proof:
    `discovered_keys.proof.md`, Lemma 6. Test:
    tests/queries/test_discovered_intervals.py::test_the_noise_of_clear_keys_stays_below_its_bound.
    """
    from scipy.special import ndtr

    if not keys:
        return 0.0
    rate = np.linspace(0.01, 3.0, 300)
    growth = np.log(0.5 + np.exp(rate**2 / 2) * ndtr(rate)) - np.log(CHANCE_BELOW_CLEAR)
    return float(np.min((keys * growth - np.log(miss)) / rate))


def top_discovered(
    query: DiscoveredKeys,
    labels: Sequence[str],
    values: FloatArray,
    evidence: FloatArray,
    errors: CellErrors,
    k: int,
    level: float,
) -> list[TopKey]:
    """The k public keys with the largest noisy counts, largest first; ties go to the key that
    became public earlier.

    **Guarantee.** Given which keys are public: all intervals hold at once with probability at least
    `level`, and for every c, with probability at least c all keys whose confidence is at least c
    belong to the k largest of the public keys. Keys that are not public are not compared. Proof:
    `discovered_keys.proof.md`, "The largest keys". Test:
    tests/queries/test_top_discovered.py::test_intervals_and_confidences_hold_given_discovery.
    """
    k = check_count("k", k)
    miss = 1 - check_probability("level", level)
    first = len(RESERVED)
    noisy = values[first:]
    number = len(values) - first
    if not number:
        return []
    order = np.argsort(-noisy, kind="stable")
    low, high = query.interval(values[np.newaxis], evidence[np.newaxis], errors, 1 - miss / number)
    best_of_rest = None
    if k < number:
        best_of_rest = float(noisy[order[k:]].max())
    keys = []
    for place in order[:k].tolist():
        value = float(noisy[place])
        column = first + place
        confidence = _confidence(value, best_of_rest, float(evidence[column]), errors, number)
        keys.append(
            TopKey(labels[column], value, float(low[0, column]), float(high[0, column]), confidence)
        )
    return keys


def _confidence(
    noisy: float, rest: float | None, evidence: float, errors: CellErrors, number: int
) -> float:
    """Compute the largest c for which the lower end of the key and the upper ends of the rest are
    apart."""
    from scipy.special import ndtr

    if rest is None:
        return 1.0
    spread = float(errors.spread[0, 0])
    slack = float(errors.slack_of(1.0, 1.0)[0, 0])
    apart = min((noisy - rest - 2 * slack) / (2 * spread), evidence - CLEAR)
    return max(0.0, 1 - number * float(ndtr(-apart) / CHANCE_BELOW_CLEAR))
