"""The noise of terraces: the proof's shift, the law of what is released, stds, intervals and
states."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from typing import ClassVar

import numpy as np
import pytest

from evercount._validate import IntArray
from evercount.bounds.tails import equal_numbers, laplace_factor
from evercount.errors import ParameterError, SnapshotError
from evercount.factorizations.terrace import BITS, SHARES, Levels, Terrace, least_squares
from evercount.mechanisms.terrace_noise import (
    OpenBlocks,
    TerraceNoise,
    rounded_product,
    rounded_quotient,
)
from evercount.noise import Secret

SECRET = Secret.from_hex("5a" * 32)
SHAPES = [((4,), (800, 224)), ((3, 12), (600, 200, 224)), ((2, 6, 24), (500, 100, 200, 224))]
RNG = np.random.default_rng(20)


def terrace(shape: int = 1, rate: float = 1.0, horizon: int | None = 60) -> Terrace:
    return Terrace(horizon, least_squares(*SHAPES[shape], rate), rate)


def noise(made: Terrace, cells: int = 3, first_cell: int = 0) -> TerraceNoise:
    return TerraceNoise(made, made.rate / SHARES, cells, SECRET, first_cell)


class Shifted(TerraceNoise):
    """The draws of the proof: those of a tick and of all blocks around it, moved by a change of the
    data."""

    change: IntArray  # (ticks, cells), zeros where the data end

    def _numbers(self, level: int, first: int, count: int, cells: range | None = None) -> IntArray:
        drawn = super()._numbers(level, first, count, cells)
        some = range(self.cells) if cells is None else cells
        length = self.terrace.lengths[level]
        wanted = self.change[
            (first - 1) * length : (first - 1 + count) * length, some.start : some.stop
        ]
        return drawn + wanted.reshape(count, length, len(some)).sum(axis=1)


def shifted_rows(kind: type[Shifted], made: Terrace, change: IntArray, ticks: int) -> IntArray:
    top = made.lengths[-1]
    source = kind(made, made.rate / SHARES, change.shape[1], SECRET)
    source.change = np.zeros((-(-ticks // top) * top + top, change.shape[1]), np.int64)
    source.change[: len(change)] = change
    return source.rows(1, ticks)


class BlockMissesATick(Shifted):
    """A planted bug: the sums of ticks in a block leave out its last tick."""

    _in_block = False

    def _gain_of(self, level: int, tick: int, cells: range) -> IntArray:
        self._in_block = True
        try:
            return super()._gain_of(level, tick, cells)
        finally:
            self._in_block = False

    def _numbers(self, level: int, first: int, count: int, cells: range | None = None) -> IntArray:
        drawn = super()._numbers(level, first, count, cells)
        if self._in_block and level == 0:
            drawn[-1] = 0
        return drawn


class RoundsEverything(Shifted):
    """A planted bug: noise is rounded as a whole, halves to even."""

    def rows(self, first: int, count: int) -> IntArray:
        return np.rint((2 * super().rows(first, count) + 1) / 2).astype(np.int64)


@pytest.mark.parametrize("shape", range(3))
@pytest.mark.parametrize("size", [1, 10**9])
def test_a_shift_of_the_data_leaves_all_discrepancies(shape: int, size: int) -> None:
    made = terrace(shape)
    change = RNG.integers(-size, size + 1, (60, 5))
    rows = noise(made, 5).rows(1, 60)
    np.testing.assert_array_equal(
        shifted_rows(Shifted, made, change, 60), rows + np.cumsum(change, axis=0)
    )


@pytest.mark.parametrize("planted", [BlockMissesATick, RoundsEverything])
def test_planted_shifts_are_caught(planted: type[Shifted]) -> None:
    made, change = terrace(), np.zeros((60, 5), np.int64)
    change[11] = 1
    expected = shifted_rows(planted, made, 0 * change, 60) + np.cumsum(change, axis=0)
    assert (shifted_rows(planted, made, change, 60) != expected).any()


class Enumerated(TerraceNoise):
    """A terrace whose numbers are given: every cell is one outcome of all draws."""

    given: ClassVar[dict[int, IntArray]]

    def _numbers(self, level: int, first: int, count: int, cells: range | None = None) -> IntArray:
        some = range(self.cells) if cells is None else cells
        return self.given[level][first - 1 : first - 1 + count, some.start : some.stop]


def law_of_releases(
    made: Terrace, reach: int, dithers: int, data: list[int], bug: bool
) -> dict[tuple[int, ...], float]:
    """The probability of each released row of integers, from all draws up to `reach`."""
    ticks, blocks = made.lengths[1], 1
    draws = np.asarray(list(itertools.product(range(-reach, reach + 1), repeat=ticks + blocks))).T
    draws = np.repeat(draws, dithers, axis=1)
    source = Enumerated(made, made.rate / SHARES, draws.shape[1], SECRET)
    source.given = {0: draws[:ticks], 1: draws[ticks:]}
    source._dither = np.tile(np.arange(dithers) * (1 << BITS) // dithers, draws.shape[1] // dithers)
    rows = source.rows(1, ticks)
    if bug:  # U and F are rounded together, halves to even
        sums = np.cumsum(draws[:ticks], axis=0)
        into = np.arange(1, ticks + 1)[:, np.newaxis]
        exact = 2 * sums + np.rint(2 * into * source._open.corrections[0] / ticks / (1 << BITS))
        rows = np.rint(exact / 2).astype(np.int64)
    released = rows + np.cumsum(data)[:, np.newaxis]
    rates = np.asarray([source.rates[0]] * ticks + [source.rates[1]])
    weights = np.exp(-(rates[:, np.newaxis] * np.abs(draws)).sum(axis=0))
    chances = weights / weights.sum()
    law: dict[tuple[int, ...], float] = defaultdict(float)
    for row, chance in zip(released.T.tolist(), chances.tolist(), strict=True):
        law[tuple(row)] += chance
    return law


def worst_ratio(epsilon: float, change: list[int], bug: bool = False) -> float:
    """The largest log-ratio of single numbers, differences and whole rows for two neighbours."""
    made = Terrace(3, least_squares((3,), (700, 324), epsilon), epsilon)
    reach = 7
    one = law_of_releases(made, reach, 4, [4, 5, 2], bug)
    two = law_of_releases(made, reach, 4, [4 + change[0], 5 + change[1], 2 + change[2]], bug)
    worst = 0.0
    for look in (
        lambda row: row[0],
        lambda row: row[2],
        lambda row: row[2] % 2,
        lambda row: row[2] - row[0],
        tuple,
    ):
        first: dict[object, float] = defaultdict(float)
        second: dict[object, float] = defaultdict(float)
        for law, side in ((one, first), (two, second)):
            for row, chance in law.items():
                side[look(row)] += chance
        common = [key for key in first if first[key] > 1e-3 and second.get(key, 0) > 1e-3]
        worst = max([worst, *(abs(math.log(first[key] / second[key])) for key in common)])
    return worst


@pytest.mark.parametrize("change", [[1, 0, 0], [0, 1, 0], [0, 0, 1]])
def test_exact_law_of_released_integers(change: list[int]) -> None:
    epsilon = 2.0
    # draws beyond the reach are left out
    assert 0.5 < worst_ratio(epsilon, change) <= epsilon + 0.02


def test_the_law_finds_a_rounded_sum() -> None:
    assert worst_ratio(2.0, [1, 0, 0], bug=True) > 2.1


@pytest.mark.parametrize("shape", range(3))
def test_any_split_gives_the_same_rows(shape: int) -> None:
    made = terrace(shape)
    whole = noise(made).rows(1, 60)
    for steps in ([1] * 60, [7] * 8 + [4], [59, 1], [12, 12, 1, 35]):
        source, first, parts = noise(made), 1, []
        for step in steps:
            parts.append(source.rows(first, step))
            first += step
        np.testing.assert_array_equal(np.concatenate(parts), whole)
    np.testing.assert_array_equal(noise(made, 2, first_cell=1).rows(1, 60), whole[:, 1:])


@pytest.mark.parametrize("shape", range(3))
def test_a_state_goes_on_after_any_tick(shape: int) -> None:
    made = terrace(shape)
    whole = noise(made).rows(1, 60)
    for tick in range(60):
        source = noise(made)
        for first in range(1, tick + 1):
            row = source.rows(first, 1)[0]
        state = source.state(tick, row if tick else np.zeros(3, np.int64))
        again = noise(made)
        last = again.start_at(tick, state)
        assert tick == 0 or last.tolist() == row.tolist()
        if tick % 3:
            again.prepare()
        np.testing.assert_array_equal(again.rows(tick + 1, 60 - tick), whole[tick:])


def test_damaged_states_are_refused() -> None:
    source = noise(terrace())
    state = source.state(0, np.zeros(3, np.int64))
    for damage in ({"sum": np.zeros(2, np.int64)}, {"closed": np.zeros(3)}, {"open": None}):
        with pytest.raises(SnapshotError, match="other cells"):
            noise(terrace()).start_at(0, {**state, **damage})


@pytest.mark.parametrize("shape", range(3))
@pytest.mark.parametrize("rate", [0.1, 1.0, 3.0])
def test_stated_stds_hold_at_every_tick(shape: int, rate: float) -> None:
    made = terrace(shape, rate)
    cells, later = 8_000, np.arange(1, 61)
    rows = noise(made, cells).rows(1, 60).astype(float)
    for width in (1, 7, 60):
        view = rows.copy()
        view[width:] -= rows[: 60 - width]
        variance, _ = made.difference_errors(np.maximum(later - width, 0), later, rate)
        ratio = view.std(axis=1) / np.sqrt(variance)
        assert ratio.max() < 1.08
        assert (ratio.min() if rate < 3 else ratio.mean()) > 0.94
        assert np.abs(view.mean(axis=1) / np.sqrt(variance)).max() < 5 / math.sqrt(cells)


@pytest.mark.parametrize("rate", [0.3, 1.0, 4.0])
def test_one_tick_far_in_a_long_block_keeps_its_std(rate: float) -> None:
    # whole numbers move the correction of most streams past a half at the same tick: the dither
    # spreads that
    made = Terrace(60, least_squares((60,), (900, 124), rate), rate)
    rows = noise(made, 20_000).rows(1, 60).astype(float)
    days = np.diff(rows, axis=0, prepend=0)
    later = np.arange(1, 61)
    variance, _ = made.difference_errors(later - 1, later, rate)
    assert (days.std(axis=1) / np.sqrt(variance)).max() < 1.06


@pytest.mark.parametrize("beta", [0.05, 0.001])
@pytest.mark.parametrize("rate", [0.1, 1.0, 4.0])
def test_intervals_hold(beta: float, rate: float) -> None:
    made = Terrace(120, least_squares((40,), (800, 224), rate), rate)
    cells, later = 8_000, np.arange(1, 121)
    rows = noise(made, cells).rows(1, 120)
    for width in (1, 7, 120):
        view = rows.copy()
        view[width:] -= rows[: 120 - width]
        earlier = np.maximum(later - width, 0)
        _, plain = made.difference_errors(earlier, later, rate)
        numbers = equal_numbers(*made.span_errors(earlier, later, 1.0)[1:])
        factors = np.asarray([laplace_factor(beta, int(n)) for n in numbers])
        half = factors * np.sqrt(plain) + 0.5
        outside = (np.abs(view) > half[:, np.newaxis]).mean()
        assert outside <= beta * 1.02 + 4 * math.sqrt(beta / cells / 12)


def test_quotients_and_products_are_rounded_symmetrically() -> None:
    numbers = np.asarray([-(2**61), -7, -3, -2, -1, 0, 1, 2, 3, 7, 2**61 - 1])
    for by in (1, 2, 3, 240):
        exact = [abs(int(n)) * 2 // by for n in numbers]
        sizes = [(twice + 1) // 2 for twice in exact]
        expected = [
            size if n >= 0 else -size for n, size in zip(numbers.tolist(), sizes, strict=True)
        ]
        assert rounded_quotient(numbers // 2 * 2, by).tolist() == [
            (1 if n >= 0 else -1) * ((2 * abs(n) + by) // (2 * by))
            for n in (numbers // 2 * 2).tolist()
        ]
        assert (
            rounded_quotient(-numbers[1:], by).tolist()
            == (-rounded_quotient(numbers[1:], by)).tolist()
        )
        assert len(expected) == len(numbers)
    for weight in (0, 1, 32768, 65535):
        expected = [
            (1 if n >= 0 else -1) * ((abs(n) * weight + 32768) >> 16) for n in numbers.tolist()
        ]
        assert rounded_product(numbers, weight).tolist() == expected


def test_noise_without_room_is_refused() -> None:
    levels = Levels((16384,), (1, 1), (100,))
    with pytest.raises(ParameterError, match="coarser grid"):
        TerraceNoise(Terrace(None, levels, 2.0**-30), 2.0**-36, 1, SECRET)
    source = noise(terrace())
    source._open = OpenBlocks(-2, np.full(3, 2**61, np.int64), np.zeros((2, 3), np.int64))
    with pytest.raises(ParameterError, match="passed 2"):
        source.rows(1, 1)


def test_other_numbers_have_another_key() -> None:
    base = Terrace(60, Levels((4, 12), (600, 200, 224), (100, 200)), 1.0)
    rows = noise(base, 50).rows(1, 60)
    for levels in (
        Levels((4, 12), (600, 200, 224), (100, 201)),
        Levels((4, 12), (601, 200, 223), (100, 200)),
        Levels((4, 16), (600, 200, 224), (100, 200)),
    ):
        other = noise(Terrace(60, levels, 1.0), 50).rows(1, 60)
        assert abs(np.corrcoef(rows[0], other[0])[0, 1]) < 0.6
        assert (rows[0] != other[0]).any()
