"""From a budget, a sensitivity and a factorization to a noise stream with the right σ.

Where days are revised, every day has a short noise stream of its own, which lives as long as the
day is revised.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from evercount._validate import IntArray
from evercount.errors import ParameterError, SnapshotError, TooLarge
from evercount.factorizations import Factorization, Fresh, Periods
from evercount.mechanisms.composed_noise import ONE_BY_ONE, FreshStream, NamedNoise, PeriodicStream
from evercount.mechanisms.exact.arithmetic import kernel, numeric_delta, numeric_horizon
from evercount.mechanisms.exact.exact_noise import LARGEST, ExactStream
from evercount.mechanisms.exact.filter_numbers import MOST_TICKS
from evercount.mechanisms.noise_stream import (
    LARGEST_NOISE,
    Facts,
    Noise,
    NoiseStream,
    declaration_fingerprint,
    declared_key,
    noise_key,
)
from evercount.noise import Secret
from evercount.privacy import Budget

NUMERIC_DELTA = 2.0**-60  # the most that finite arithmetic may take from δ by default
# relative head-room of σ over the rounding of the few products that make it
SIGMA_TOLERANCE = 1e-12


def build_noise(
    factorization: Factorization,
    *,
    cells: int,
    grid: float,
    sensitivity: float,
    budget: Budget,
    horizon: int | None,
    secret: Secret | None = None,
    dumped: dict[str, Any] | None = None,
    declaration: Facts | None = None,
    names: Sequence[str] | None = None,
    part: range | None = None,
    touched: int | None = None,
) -> Noise:
    """Noise that makes the whole stream (ε, δ)-DP.

    With `declaration` the key is derived from the secret and the declaration (`declared_key`);
    without, the secret is the key. With `names` a cell's noise belongs to its name, and further
    names may join (`NamedNoise`); `cells` is then how many cells one protected unit can touch; with
    `fresh`, rows are those of single ticks. Noise that was dumped goes on with its own key and σ;
    without a state it begins anew with that σ. With `part` it is the noise of these cells only, the
    same as all `cells` have there. `touched` is the most ticks whose increments one protected unit
    changes; None where that is not known.

    Guarantee. σ = multiplier(ε, δ − numeric_delta)·Δ with Δ = `sensitivity`. If ‖R(X−X′)‖_F ≤ Δ for
    all neighbours, R·X + z with z ~ N(0, σ²) is (ε, δ − numeric_delta)-DP
    (`privacy/gaussian.proof.md`). Test:
    tests/engine/test_stream_privacy.py::test_sigma_is_what_the_theorem_asks.
    """
    if not sensitivity > 0:
        raise ParameterError(
            f"the query declares a sensitivity of {sensitivity}: it must be positive"
        )
    norm = sensitivity * (1 + SIGMA_TOLERANCE)
    if part is not None and isinstance(factorization, Periods):
        raise ParameterError(
            "a part of the cells cannot have noise of periods: choose another factorization"
        )
    # The price of finite arithmetic grows with σ, and σ with that price: bound both for a σ that is
    # surely larger.
    most = 2 * budget.noise_multiplier() * norm / grid
    reserved, limit = _numeric_price(factorization, most, cells, budget, horizon, touched)
    if reserved > budget.delta / 2:
        raise ParameterError(
            f"delta={budget.delta:g} is too small for exact arithmetic here, which needs "
            f"{reserved:.3g} of it; choose a larger delta, a smaller epsilon, a shorter horizon or "
            "fewer cells"
        )
    sigma = _continued(budget.reserve(reserved).noise_multiplier() * norm, dumped)
    if sigma / grid > most:
        raise ParameterError(
            "the numerical error leaves too little of delta; choose a larger delta"
        )
    scale = sigma / grid
    state = None if dumped is None else dumped["state"]
    key, fingerprint = noise_key(secret, dumped, declaration, factorization, sigma)
    part = range(cells) if part is None else part
    stream: NoiseStream
    if names is not None:
        stream = _named_noise(factorization, scale, key, names, limit, reserved, state)
        limit = min(limit, stream.limit)
    elif isinstance(factorization, Fresh):
        stream = FreshStream(scale, len(part), key, part.start, reserved, limit, state)
    elif isinstance(factorization, Periods):
        stream = PeriodicStream(factorization, scale, cells, key)
        if state is not None:
            stream = stream.resume(state)
    elif state is None:
        stream = ExactStream(
            factorization, scale, len(part), key, part.start, numeric_delta=reserved, limit=limit
        )
    else:
        stream = ExactStream.load(factorization, scale, len(part), state)
        if stream.first_cell != part.start:
            raise SnapshotError("the noise state belongs to other cells")
        limit = min(limit, stream.limit)
    return Noise(stream, sigma, reserved, limit, key, fingerprint)


def _named_noise(
    factorization: Factorization,
    scale: float,
    key: Secret,
    names: Sequence[str],
    limit: int,
    reserved: float,
    state: Facts | None,
) -> NamedNoise:
    """Build or restore noise of cells by name."""
    if isinstance(factorization, Periods):
        raise ParameterError(
            f"unlisted keys cannot have noise of {factorization.name!r}: omit the factorization"
        )
    engine = ONE_BY_ONE if isinstance(factorization, Fresh) else factorization
    if state is None:
        return NamedNoise(engine, scale, key, names, limit, reserved)
    return NamedNoise.load(engine, scale, state)


def _continued(sigma: float, dumped: Facts | None) -> float:
    """The σ that is needed, or that of the dumped stream: another special function may differ in
    the last digits.

    **Guarantee.** The result is at least `sigma`·(1 − SIGMA_TOLERANCE). Test:
    tests/engine/test_stream_hardening.py::test_a_snapshot_cannot_lower_the_noise.
    """
    if dumped is None:
        return sigma
    own = float(dumped["sigma"])
    if not own >= sigma * (1 - SIGMA_TOLERANCE):
        raise SnapshotError(
            f"the stream's noise has std {own!r} where its query and budget need {sigma!r}"
        )
    return own


def _numeric_price(
    factorization: Factorization,
    scale: float,
    cells: int,
    budget: Budget,
    horizon: int | None,
    touched: int | None,
) -> tuple[float, int]:
    """(numeric δ, last tick that it covers).

    **Guarantee.** Ticks of `fresh` and periods have independent noise, and data that agree in one
    have the same law there: only those that a unit touches cost anything. Tests:
    tests/mechanisms/test_fresh_noise.py::test_only_touched_ticks_cost_anything and
    tests/factorizations/test_periods.py::test_only_the_periods_that_a_unit_touches_cost_anything.
    """
    epsilon = budget.epsilon
    cap = min(NUMERIC_DELTA, budget.delta / 16)
    if not isinstance(factorization, Fresh | Periods):
        if horizon is None:
            limit = numeric_horizon(factorization, scale, cells, epsilon, cap)
        else:
            limit = horizon
        _check_rows(factorization, scale, limit)
        return numeric_delta(factorization, scale, cells, epsilon, limit), limit
    engine: Factorization = ONE_BY_ONE
    width = 1
    if isinstance(factorization, Periods):
        engine = factorization.period
        width = factorization.width
    once = numeric_delta(engine, scale, cells, epsilon, width)
    _check_rows(engine, scale, width)
    most = MOST_TICKS if horizon is None else horizon
    last = _last_with_room(most, engine, scale, width)
    if horizon is not None and last < horizon:
        raise TooLarge(
            f"the noise of {horizon} ticks could pass 2^61 grid units: use a coarser grid"
        )
    # a unit may touch them all: as many as the price allows
    if touched is None and horizon is None:
        last = min(last, max(1, int(cap / once)) * width)
    parts = -(-last // width)
    if touched is not None:
        parts = min(parts, touched)
    return once * parts, last


DEVIATIONS = 16.0
"""Noise that passes this many standard deviations is rarer than 2^-183; where that does not fit, it
is refused."""


def _check_rows(factorization: Factorization, scale: float, limit: int) -> None:
    """Refuse noise that could pass 2^53 grid units, beyond which doubles do not decide its
    rounding.

    **Guarantee.** What `ExactStream` refuses while it runs is rarer than 2^-183 for each number: so
    that refusals tell nothing. Proof: `exact_noise.proof.md`, "Room". Test:
    tests/mechanisms/test_whole_noise.py::test_noise_without_room_is_refused_before_it_is_drawn.
    """
    most = LARGEST / (DEVIATIONS * scale)
    if kernel(factorization).norm(limit) < most:
        return
    if factorization.horizon is None:
        ticks = np.unique(np.geomspace(1, limit, 64).astype(np.int64))
        norm = float(factorization.row_norms(ticks).max())
    else:
        norm = factorization.worst_row()[1]
    if norm >= most:
        raise TooLarge(f"noise of scale {scale:.6g} could pass 2^53 grid units: use a coarser grid")


def _last_with_room(last: int, engine: Factorization, scale: float, width: int) -> int:
    """The last tick, up to `last`, until which the sum of the noise of all periods stays below
    `LARGEST_NOISE`."""
    end = DEVIATIONS * scale * float(engine.row_norms([width])[0])
    periods = math.floor(min((LARGEST_NOISE / end) ** 2, 2.0**60)) - 1
    return min(last, periods * width)


# the noise of one day, from its `secret`; `dumped` may say which σ it has
MakeDay = Callable[..., Noise]


class RevisionNoise(NoiseStream):
    """Row t has for lag ℓ the row ℓ+1 of the noise of day t−ℓ, all cells of lag 0 first; zeros
    before day 1.

    **Guarantee.** Noise of different days comes from different keys, so it is independent if keyed
    BLAKE2b is a pseudorandom function; that of one day is a function of (key, day) alone, so it is
    the same after any restart. Tests:
    tests/engine/test_revised_streams.py::test_the_noise_of_a_day_is_that_of_a_stream_of_its_own and
    tests/engine/test_revised_streams.py::test_restarts_change_no_number.
    """

    tick: int = 0

    def __init__(self, lags: int, cells: int, make: MakeDay, key: Secret, tick: int = 0) -> None:
        self._lags = lags
        self._cells = cells
        self._make = make
        self._key = key
        self.tick = tick
        first = self._noise_of(0).stream
        self.rounded = first.rounded
        self.numeric_delta = first.numeric_delta
        self._days: dict[int, IntArray] = {}

    def _noise_of(self, day: int) -> Noise:
        return self._make(secret=self._key.derive(f"day {day}"))

    def _day(self, day: int) -> IntArray:
        """All numbers that a day will have, shape (lags, cells)."""
        if day not in self._days:
            self._days[day] = self._noise_of(day).stream.take(self._lags)
        return self._days[day]

    def take(self, ticks: int) -> IntArray:
        rows = np.zeros((ticks, self._lags, self._cells), np.int64)
        for row in rows:
            tick = self.tick + 1
            for lag in range(min(self._lags, tick)):
                row[lag] = self._day(tick - lag)[lag]
            self._days.pop(tick - self._lags + 1, None)  # the last time that it was asked for
            self.tick = tick
        return rows.reshape(ticks, self._lags * self._cells)

    def prepare(self) -> None:
        self._day(self.tick + 1)

    def dump(self) -> dict[str, Any]:
        return {
            "secret": self._key.hex(),
            "lags": self._lags,
            "cells": self._cells,
            "tick": self.tick,
        }


def build_revisions(
    engine: Factorization,
    lags: int,
    cells: int,
    horizon: int | None,
    make: MakeDay,
    declaration: Facts,
    *,
    secret: Secret | None = None,
    dumped: dict[str, Any] | None = None,
) -> Noise:
    """The noise of all days from that of one, which `make` builds and which lives for `lags` ticks.

    The key belongs to the declaration as in `build_noise`, with the number of lags: a stream that
    is revised has other noise than one that is not, whatever they share.
    """
    if dumped is None:
        one = make(secret=secret)
        tick = 0
        fingerprint = declaration_fingerprint({**declaration, "revisions": lags}, engine, one.sigma)
        key = declared_key(secret or Secret.generate(), fingerprint)
    else:
        state = dumped["state"]
        fingerprint = dumped["declaration"]
        if (state["lags"], state["cells"]) != (lags, cells) or state["tick"] < 0:
            raise SnapshotError(
                "the noise state belongs to another number of revisions or of cells"
            )
        key = Secret.from_hex(state["secret"])
        tick = state["tick"]
        make = partial(make, dumped={"sigma": dumped["sigma"], "state": None})
        one = make(secret=Secret.from_hex("00" * 32))
    stream = RevisionNoise(lags, cells, make, key, tick)
    return replace(one, stream=stream, limit=horizon, key=key, fingerprint=fingerprint)
