"""Retries: a digest of the last tick's events tells a retry of it from an attempt to change the
past.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from copy import deepcopy
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from evercount.errors import AlreadyReleased, InputError

R = TypeVar("R")  # what a step releases


# types of values that cannot change and hold no others
SCALARS = frozenset({int, float, str, bool, type(None)})


class TickDigest:
    """A hash of the events of the last tick, which tells whether a retry has the same ones.

    Their owner may change them later, so what is copied much quicker than it is hashed is copied,
    and hashed on demand.
    """

    def __init__(self, events: Any = None, *, digest: str | None = None) -> None:
        if digest is not None:
            self.digest = digest
        elif type(events) is list and SCALARS.issuperset(map(type, events)):
            self._copy: Any = tuple(events)
        elif isinstance(events, np.ndarray):
            self._copy = deepcopy(events)
        else:
            self.digest = fingerprint(events)

    @cached_property
    def digest(self) -> str:
        return fingerprint(self._copy)


def check_tick(tick: object) -> None:
    """Refuse what is not the number of a tick."""
    if isinstance(tick, bool) or not isinstance(tick, int | np.integer) or tick < 1:
        raise InputError(f"tick must be a whole number of at least 1, got {tick!r}")


def replay_last(
    last_tick: int, last: tuple[TickDigest, R] | None, tick: int, digest: TickDigest
) -> R:
    """Return the last release again if a retry has its tick and its events; refuse any other
    tick."""
    if tick == last_tick and last is not None and last[0].digest == digest.digest:
        return last[1]
    if tick > last_tick:
        raise InputError(f"tick {tick} is out of turn: the next tick is {last_tick + 1}")
    raise AlreadyReleased(
        f"tick {tick} is already released and cannot be released again with other events: the "
        "difference of two releases with the same noise would reveal them. Late events belong to "
        "the next tick."
    )


def fingerprint(events: Any) -> str:
    """A digest of a tick's events, to tell a retry from an attempt to change the past. It stays
    inside the stream."""
    if not isinstance(events, np.ndarray) or events.dtype.kind not in "biuf":
        return hashlib.sha256(json.dumps(_canonical(events)).encode()).hexdigest()
    digest = hashlib.sha256(f"{events.dtype.str}{events.shape}".encode())
    digest.update(np.ascontiguousarray(events).data)
    return digest.hexdigest()


def _canonical(value: Any) -> Any:
    """Make the same JSON of the same events, in any process."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, np.ndarray | np.generic):
        return _canonical(value.tolist())
    if isinstance(value, Mapping):
        return [
            "mapping",
            sorted(([_canonical(k), _canonical(v)] for k, v in value.items()), key=repr),
        ]
    if isinstance(value, set | frozenset):
        return ["set", sorted((_canonical(item) for item in value), key=repr)]
    if isinstance(value, Iterable):
        return [_canonical(item) for item in value]
    return repr(value)
