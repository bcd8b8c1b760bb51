"""KeyCounts: the exact counts of keys that nobody listed. Secret, but for the keys that are public already."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from evercount._arrays import FloatArray, IntArray

ARRAYS = ("counts", "listed", "since", "evidence")


@dataclass(frozen=True, eq=False)
class KeyCounts:
    """Counts after some tick, and what was encoded of the ticks after it. What a step does, it does to a copy
    (`opened`), so that the old one stays true if the step fails. Only `rare` is shared, because it is large: it lacks
    the counts in `changed`, which are absolute, so writing them twice does no harm."""

    rare: dict[str, int] = field(default_factory=dict)  # counts below the minimum, without those in `changed`
    changed: dict[str, int] = field(default_factory=dict)  # rare keys that the last ticks changed; 0: no longer rare
    keys: list[str] = field(default_factory=list)
    """Keys that have reached the minimum, in the order in which they did; those of one tick by their names."""
    place: dict[str, int] = field(default_factory=dict)  # where each of `keys` stands
    counts: IntArray = field(default_factory=lambda: np.empty(0, np.int64))  # the counts of `keys`
    listed: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    """The places of public keys, in the order in which they became public."""
    since: IntArray = field(default_factory=lambda: np.empty(0, np.int64))  # the ticks at which they became public
    evidence: FloatArray = field(default_factory=lambda: np.empty(0))
    """How many stds their noisy counts were above the threshold at the last discovery tick."""
    pending: tuple[Mapping[str, int], ...] = ()  # what each tick that was encoded and not released adds to each key

    @classmethod
    def shown(cls, keys: list[str], tick: int) -> KeyCounts:
        """What a stream without memory keeps of its last tick: the keys that were published, and no counts."""
        places = np.arange(len(keys))
        place = dict(zip(keys, range(len(keys)), strict=True))
        return cls({}, {}, keys, place, np.zeros_like(places), places, np.full(len(keys), tick), np.zeros(len(keys)))

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

    def opened(self) -> KeyCounts:
        """A copy that `add` may change, without pending ticks."""
        settled = self.settled()
        return replace(settled, changed={}, keys=[*self.keys], place={**self.place}, pending=())

    def add(self, more: Mapping[str, int], minimum: int) -> KeyCounts:
        """The counts after one more tick. `self`, a copy of `opened`, must not be used again."""
        counts = self.counts.copy()
        frequent: dict[str, int] = {}
        for key, number in more.items():
            place = self.place.get(key)
            if place is not None:
                counts[place] += number
                continue
            before = self.changed.get(key)
            count = (self.rare.get(key, 0) if before is None else before) + number
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
            counts = np.concatenate([counts, np.asarray([frequent[key] for key in fresh], np.int64)])
        return replace(self, counts=counts)

    def list_keys(self, places: IntArray, tick: int) -> KeyCounts:
        """The same counts after the keys at these places became public; those of one tick by their names."""
        order = sorted(places.tolist(), key=lambda place: self.keys[place])
        return replace(
            self,
            listed=np.concatenate([self.listed, np.asarray(order, np.int64)]),
            since=np.concatenate([self.since, np.full(len(order), tick, np.int64)]),
            evidence=np.concatenate([self.evidence, np.zeros(len(order))]),
        )

    def nearly(self, least: int) -> list[str]:
        """Rare keys of the last ticks with at least this count."""
        return [key for key, count in self.changed.items() if count >= least]

    def nearly_with(self, more: Mapping[str, int], least: int) -> list[str]:
        """Keys of `more` without a place that have at least this count once `more` is added; nothing is changed."""
        return [
            key
            for key, number in more.items()
            if key not in self.place and self.changed.get(key, self.rare.get(key, 0)) + number >= least
        ]

    # -- snapshots ------------------------------------------------------------------------------------------------

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
    """Keys as bytes; none of them holds a line break."""
    return np.frombuffer("\n".join(keys).encode(), np.uint8)


def _split(data: Any) -> list[str]:
    text = bytes(data).decode()
    return text.split("\n") if text else []
