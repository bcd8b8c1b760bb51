"""Noise is whole numbers of 64 bits from the draw to the sum with the data: beyond 2^53 doubles
lose the last bit.

A double that is too large for its last bit is rounded to even before the data come, and then an odd
number says that one event more was counted. Streams are put at the place where noise has grown that
far: late ticks, by their snapshots.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from evercount import Budget, DiscoveredKeys, Histogram, Secret, Stream
from evercount._validate import AnyArray
from evercount.errors import ParameterError, SnapshotError, TooLarge
from evercount.factorizations import Anytime, Balanced, Dense, Fresh, Periods
from evercount.mechanisms.calibrate import build_noise
from evercount.mechanisms.composed_noise import FreshStream, PeriodicStream
from evercount.mechanisms.laplace_noise import PureStream
from evercount.mechanisms.noise_stream import NoiseStream, whole_noise
from product_internals import noise_source, secret_of

SECRET = Secret.from_hex("2b" * 32)
CELLS = 40
FAR = 2**54 + 1
"""Noise that a late tick may have: no double is as exact as this."""


def stream_of(name: str | None, delta: float, **rest: Any) -> Stream:
    horizon = rest.pop("horizon", 60)
    return Stream(
        Histogram(CELLS), Budget(1.0, delta), horizon, name, secret=SECRET, replay=True, **rest
    )


def far_out(state: dict[str, Any]) -> dict[str, Any]:
    """The state of noise that has grown far: that of a late tick."""
    grown = "before" if "before" in state else "sum"
    return {**state, grown: state[grown] + FAR}


LATE = [("fresh", 1e-6), ("periods-7", 1e-6), ("fresh", 0.0), ("pure-window-7", 0.0)]


def released_far_out(name: str, delta: float, events: int) -> tuple[AnyArray, AnyArray]:
    """(what ticks 15 to 40 publish where noise is large, the exact whole numbers)."""
    totals = np.zeros((40, CELLS), np.int64)
    totals[14] = events
    stream = Stream(Histogram(CELLS), Budget(1.0, delta), 60, name, secret=SECRET)
    stream.run_totals(totals[:14])
    data = stream.dump()
    small = stream.run_totals(totals[14:]).rows
    stream.close()
    data["noise"]["state"] = far_out(data["noise"]["state"])
    far = Stream.load(data)
    found = far.run_totals(totals[14:]).rows
    far.close()
    return found, small.astype(np.int64) + FAR


@pytest.mark.parametrize("events", [0, 1])
@pytest.mark.parametrize(("name", "delta"), LATE)
def test_what_is_published_is_the_double_of_an_exact_sum(
    name: str, delta: float, events: int
) -> None:
    """For both neighbours: a function of the exact sum, so rounding it says nothing that the sum
    does not say."""
    found, exact = released_far_out(name, delta, events)
    assert np.array_equal(found, exact.astype(np.float64))


def in_doubles(taken: Callable[[Any, int], AnyArray]) -> Callable[[Any, int], AnyArray]:
    """Planted: noise that has passed through doubles."""
    return lambda self, ticks: taken(self, ticks).astype(np.float64).astype(np.int64)


@pytest.mark.parametrize(("name", "delta"), LATE)
def test_noise_in_doubles_is_caught(
    name: str, delta: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    for kind in (FreshStream, PeriodicStream, PureStream):
        monkeypatch.setattr(kind, "take", in_doubles(kind.take))
    found, exact = released_far_out(name, delta, 1)
    assert not np.array_equal(found, exact.astype(np.float64))


JOINING = [("fresh", 1e-6), ("fresh", 0.0), ("pure-window-7", 0.0)]


@pytest.mark.parametrize(("name", "delta"), JOINING)
def test_cells_that_join_late_have_exact_noise(name: str, delta: float) -> None:
    """n(t) − n(a) is the noise of the ticks since, however large both numbers are."""
    keys = [f"k{number}" for number in range(CELLS)]
    stream = Stream(Histogram(keys), Budget(1.0, delta), 60, name, secret=SECRET)
    stream.run_totals(np.zeros((10, CELLS), np.int64))
    stream.add_keys(["new", "newer"])
    late, zeros = stream.dump(), np.zeros((20, CELLS + 2), np.int64)
    near = stream.run_totals(zeros).rows
    stream.close()
    cohort = late["noise"]["state"]["joined"][1]
    cohort["base"] = cohort["base"] + FAR
    cohort["state"] = far_out(cohort["state"])
    assert np.array_equal(Stream.load(late).run_totals(zeros).rows, near)


def noise_of(name: str | None, delta: float, **rest: Any) -> NoiseStream:
    return noise_source(stream_of(name, delta, **rest))


def named() -> NoiseStream:
    stream = Stream(DiscoveredKeys(), Budget(1.0, 1e-6), 60, secret=SECRET, replay=True)
    return noise_source(stream)


def joined() -> NoiseStream:
    stream = Stream(Histogram(["a", "b"]), Budget(1.0, 1e-6), 60, secret=SECRET, replay=True)
    stream.run_totals(np.zeros((5, 2), np.int64))
    stream.add_keys(["c"])
    return noise_source(stream)


KINDS: dict[str, Callable[[], NoiseStream]] = {
    "balanced": lambda: noise_of("balanced", 1e-6),
    "binary-tree": lambda: noise_of("binary-tree", 1e-6),
    "dense": lambda: noise_of(Dense.of_noise(Balanced(60).dense()[0]), 1e-6),  # type: ignore[arg-type]
    "fresh": lambda: noise_of("fresh", 1e-6),
    "periods-7": lambda: noise_of("periods-7", 1e-6),
    "bridge": lambda: noise_of("bridge", 0.0),
    "endless-bridge": lambda: noise_of("endless-bridge", 0.0, horizon=None),
    "pure-hybrid": lambda: noise_of("pure-hybrid", 0.0, horizon=None),
    "pure-window-7": lambda: noise_of("pure-window-7", 0.0),
    "revised": lambda: noise_of(None, 0.0, horizon=None, revise_for=4),
    "revised, delta": lambda: noise_of("balanced", 1e-6, horizon=None, revise_for=4),
    "named": named,
    "joined": joined,
}


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_noise_comes_as_64_bit_integers(kind: str) -> None:
    noise = KINDS[kind]()
    first = noise.tick + 1
    assert noise.rows(first, 3).dtype == noise.rows(first, 5).dtype == np.int64
    assert noise.take(0).dtype == np.int64


def test_snapshots_hold_whole_numbers_and_others_are_refused() -> None:
    stream = stream_of("fresh", 1e-6)
    stream.run_totals(np.ones((7, CELLS), np.int64))
    noise = noise_source(stream)
    assert isinstance(noise, FreshStream)
    dumped = noise.dump()
    assert dumped["before"].dtype == np.int64
    args = (noise._each.scale, CELLS, secret_of(noise), 0, 0.0, 60)
    assert np.array_equal(FreshStream(*args, dumped).take(9), noise.take(9))
    for wrong in (
        dumped["before"].astype(np.float64),
        np.full(CELLS, 0.5),
        np.full(CELLS, np.nan),
        np.full(CELLS, 2**61),
        np.zeros(3),
        np.full(CELLS, "1"),
    ):
        with pytest.raises(SnapshotError):
            whole_noise(wrong, CELLS)


def test_noise_without_room_is_refused_before_it_is_drawn() -> None:
    """Where noise could pass what doubles decide, or 64 bits hold, nothing is built: not in the
    middle of a stream."""

    def build(engine: Any, horizon: int | None, grid: float) -> Any:
        budget = Budget(1.0, 1e-6)
        of_data: dict[str, Any] = {"cells": 1, "grid": grid, "sensitivity": 1.0, "budget": budget}
        return build_noise(engine, **of_data, horizon=horizon, secret=SECRET, touched=1)

    wide = 2.0**-42  # σ is 4.2 real units, 2^44 of the grid
    assert build(Fresh(2**10), 2**10, wide).limit == 2**10
    with pytest.raises(TooLarge, match="coarser grid"):
        build(Fresh(2**40), 2**40, wide)
    assert build(Fresh(), None, wide).limit < 2**40
    assert build(Periods(7, None), None, wide).limit < 2**40
    tall = Dense.of_noise(np.tri(8) * 100.0)
    with pytest.raises(TooLarge, match="coarser grid"):
        build_noise(
            tall,
            cells=1,
            grid=wide,
            sensitivity=1.0,
            budget=Budget(1.0, 1e-6),
            horizon=8,
            secret=SECRET,
        )
    assert build(Anytime(), None, 1.0).limit > 2**20


def test_sums_that_pass_their_room_are_refused() -> None:
    stream = stream_of("fresh", 1e-6)
    noise = noise_source(stream)
    assert isinstance(noise, FreshStream)
    noise._before += 2**61 - 2
    with pytest.raises(ParameterError, match="2\\^61"):
        noise.take(40)
