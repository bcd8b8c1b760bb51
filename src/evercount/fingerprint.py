"""Fingerprints of a tick's events: they tell a retry from an attempt to change the past."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Any

import numpy as np


class Seen:
    """The events of the last tick, as far as a retry needs them. Numbers are copied, and hashed only if one comes."""

    def __init__(self, events: Any = None, *, digest: str | None = None) -> None:
        if digest is None and _plain(events):
            self._numbers = events.copy()
        else:
            self.digest = fingerprint(events) if digest is None else digest

    @cached_property
    def digest(self) -> str:
        """The fingerprint."""
        return fingerprint(self._numbers)


def _plain(events: Any) -> bool:
    return isinstance(events, np.ndarray) and events.dtype.kind in "biuf"


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
