"""RevisionNoise: every day has a short noise stream of its own, which lives as long as the day is revised."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from evercount._arrays import FloatArray
from evercount.errors import SnapshotError
from evercount.factorizations import Factorization
from evercount.mechanisms.calibrate import Noise
from evercount.mechanisms.declared_key import declaration_fingerprint, declared_key
from evercount.mechanisms.noise_stream import NoiseStream, whole_ticks
from evercount.noise import Secret

MakeDay = Callable[..., Noise]  # the noise of one day, from its `secret`; `dumped` may say which σ it has


class RevisionNoise(NoiseStream):
    """Row t has for lag ℓ the row ℓ+1 of the noise of day t−ℓ, all cells of lag 0 first; zeros before day 1.

    **Guarantee.** Noise of different days comes from different keys, so it is independent if keyed BLAKE2b is a
    pseudorandom function; that of one day is a function of (key, day) alone, so it is the same after any restart.
    Tests: tests/engine/test_revised_streams.py::test_the_noise_of_a_day_is_that_of_a_stream_of_its_own and
    tests/engine/test_revised_streams.py::test_restarts_change_no_number.
    """

    def __init__(self, lags: int, cells: int, make: MakeDay, key: Secret, tick: int = 0) -> None:
        self._lags, self._cells, self._make, self._key, self._tick = lags, cells, make, key, tick
        first = self._noise_of(0).stream
        self.rounded, self.numeric_delta = first.rounded, first.numeric_delta
        self._days: dict[int, FloatArray] = {}

    def __repr__(self) -> str:
        return f"RevisionNoise(lags={self._lags}, tick={self._tick}, secret=…)"

    @property
    def tick(self) -> int:
        return self._tick

    def _noise_of(self, day: int) -> Noise:
        return self._make(secret=self._key.derive(f"day {day}"))

    def _day(self, day: int) -> FloatArray:
        """All numbers that a day will have, shape (lags, cells)."""
        if day not in self._days:
            self._days[day] = self._noise_of(day).stream.take(self._lags)
        return self._days[day]

    def take(self, ticks: int) -> FloatArray:
        rows = np.zeros((whole_ticks(ticks), self._lags, self._cells))
        for row in rows:
            tick = self._tick + 1
            for lag in range(min(self._lags, tick)):
                row[lag] = self._day(tick - lag)[lag]
            self._days.pop(tick - self._lags + 1, None)  # the last time that it was asked for
            self._tick = tick
        return rows.reshape(len(rows), -1)

    def prepare(self) -> None:
        self._day(self._tick + 1)

    def dump(self) -> dict[str, Any]:
        return {"secret": self._key.hex(), "lags": self._lags, "cells": self._cells, "tick": self._tick}


def build_revisions(
    engine: Factorization,
    lags: int,
    cells: int,
    horizon: int | None,
    make: MakeDay,
    declaration: Mapping[str, Any],
    *,
    secret: Secret | None = None,
    dumped: dict[str, Any] | None = None,
) -> Noise:
    """The noise of all days from that of one, which `make` builds and which lives for `lags` ticks.

    The key belongs to the declaration as in `build_noise`, with the number of lags: a stream that is revised has other
    noise than one that is not, whatever they share.
    """
    if dumped is None:
        one, tick = make(secret=secret), 0
        fingerprint = declaration_fingerprint({**declaration, "revisions": lags}, engine, one.sigma)
        key = declared_key(secret or Secret.generate(), fingerprint)
    else:
        state, fingerprint = dumped["state"], dumped["declaration"]
        if (state["lags"], state["cells"]) != (lags, cells) or state["tick"] < 0:
            raise SnapshotError("the noise state belongs to another number of revisions or of cells")
        key, tick = Secret.from_hex(state["secret"]), state["tick"]
        make = partial(make, dumped={"sigma": dumped["sigma"], "state": None})
        one = make(secret=Secret.from_hex("00" * 32))
    stream = RevisionNoise(lags, cells, make, key, tick)
    return replace(one, stream=stream, limit=horizon, key=key, fingerprint=fingerprint)
