"""Terraces: matrices, errors, fits, and what is refused."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest

from evercount.errors import ParameterError
from evercount.factorizations.fit_terrace import _Search, fit_terrace, longest_block, whole_shares
from evercount.factorizations.laplace_trees import node_variance
from evercount.factorizations.terrace import (
    BITS,
    LONGEST_BLOCK,
    SHARES,
    Levels,
    Terrace,
    least_squares,
    rounding_variance,
)

SHAPES = [((4,), (800, 224)), ((3, 12), (600, 200, 224)), ((2, 6, 24), (500, 100, 200, 224))]
ODD = Levels((3, 6), (700, 100, 200), (12345, 54321))  # weights that are not those of least squares
TERRACES = [
    Terrace(50, least_squares(*shape, rate), rate) for shape in SHAPES for rate in (0.1, 1.0, 4.0)
]
TERRACES += [Terrace(50, ODD, 1.0), Terrace(50, Levels((5,), (1000, 24), (0,)), 1.0)]
PAIRS = np.asarray(
    [(0, 1), (0, 50), (3, 9), (7, 12), (11, 33), (0, 24), (49, 50), (23, 24), (12, 36)]
)


@pytest.mark.parametrize("terrace", TERRACES, ids=[str(number) for number in range(len(TERRACES))])
def test_left_times_right_is_the_count(terrace: Terrace) -> None:
    left, right, _ = terrace.node_matrices(50)
    whole = np.tril(np.ones((50, right.shape[1])))
    np.testing.assert_allclose(left @ right, whole, atol=1e-12)


def test_left_times_right_is_the_count_in_integers() -> None:
    # two levels, weights of 16 bits: rows of 3·L·2^32 are whole, and L·R = M without rounding
    one = 1 << BITS
    low, high = (Fraction(weight, one) for weight in ODD.weights)
    ticks, right, left = 6, [], []
    nodes = [(tick, tick + 1) for tick in range(6)] + [(0, 3), (3, 6)] + [(0, 6)]
    for first, last in nodes:
        right.append([int(first <= tick < last) for tick in range(ticks)])
    unit = [[Fraction(int(i == j)) for j in range(len(nodes))] for i in range(len(nodes))]

    def add(*terms: tuple[Fraction, list[Fraction]]) -> list[Fraction]:
        return [
            sum((factor * row[k] for factor, row in terms), Fraction(0)) for k in range(len(nodes))
        ]

    plus, minus = Fraction(1), Fraction(-1)
    sums = [add(*((plus, unit[3 * block + k]) for k in range(3))) for block in range(2)]
    gains = [add((low, unit[6 + block]), (-low, sums[block])) for block in range(2)]
    means = add(*((plus, row) for row in (*sums, *gains)))
    top = add((high, unit[8]), (minus * high, means))
    noise = []
    for tick in range(ticks):
        noise.append(
            add((plus, unit[tick]), (Fraction(1, 3), gains[tick // 3]), (Fraction(1, 6), top))
        )
        left.append(add(*((plus, row) for row in noise)))
    product = [
        [sum(row[k] * right[k][j] for k in range(len(nodes))) for j in range(ticks)] for row in left
    ]
    assert product == [[int(j <= i) for j in range(ticks)] for i in range(ticks)]
    dense, _, _ = Terrace(6, ODD, 1.0).node_matrices(6)
    np.testing.assert_allclose(np.asarray(left, float), dense, atol=1e-12)


@pytest.mark.parametrize("terrace", TERRACES, ids=[str(number) for number in range(len(TERRACES))])
def test_errors_are_those_of_the_matrices(terrace: Terrace) -> None:
    left, _, shares = terrace.node_matrices(50)
    rates, rows = shares * terrace.rate, np.vstack([np.zeros(left.shape[1]), left])
    noise = rows[PAIRS[:, 1]] - rows[PAIRS[:, 0]]
    exact, plain, largest = terrace.span_errors(*PAIRS.T, terrace.rate)
    np.testing.assert_allclose(exact, noise**2 @ node_variance(rates), rtol=1e-12)
    np.testing.assert_allclose(plain, noise**2 @ (2 / rates**2), rtol=1e-12)
    assert (np.abs(noise) / rates <= largest[:, np.newaxis] * (1 + 1e-12)).all()
    assert ((np.abs(noise) / rates).max(axis=1) > largest / 2).all()
    correction = noise.copy()
    for number, (earlier, later) in enumerate(PAIRS):
        correction[number, earlier:later] -= 1
    np.testing.assert_allclose(
        terrace.correction_variance(*PAIRS.T),
        correction**2 @ node_variance(rates),
        rtol=1e-9,
        atol=1e-12,
    )
    np.testing.assert_allclose(
        terrace.difference_norms(*PAIRS.T) ** 2, (noise**2 @ shares**-2.0), rtol=1e-12
    )


@pytest.mark.parametrize(("blocks", "shares"), SHAPES)
def test_weights_are_those_of_least_squares(
    blocks: tuple[int, ...], shares: tuple[int, ...]
) -> None:
    terrace = Terrace(50, least_squares(blocks, shares, 1.0), 1.0)
    _, right, part = terrace.node_matrices(48)
    precision = np.diag(1 / node_variance(part))
    # covariance of the best estimate of each tick
    least = np.linalg.inv(right.T @ precision @ right)
    for earlier, later in PAIRS[PAIRS[:, 1] <= 48]:
        inside = np.zeros(right.shape[1])
        inside[earlier:later] = 1
        variance, _, _ = terrace.span_errors(np.asarray([earlier]), np.asarray([later]), 1.0)
        assert variance[0] == pytest.approx(inside @ least @ inside, rel=1e-7)


def test_rounding_adds_at_most_what_is_stated() -> None:
    draws = np.random.default_rng(4).standard_normal(400_000)
    for std in (0.001, 0.02, 0.049, 0.051, 0.2, 0.5, 2.0):
        fraction = np.abs(std * draws) % 1
        assert rounding_variance(np.asarray(std)) == pytest.approx(
            (fraction * (1 - fraction)).mean(), rel=0.02
        )
    laplace = np.random.default_rng(5).laplace(size=400_000) * 0.3 / math.sqrt(2)
    fraction = np.abs(laplace) % 1
    assert (fraction * (1 - fraction)).mean() < rounding_variance(np.asarray(0.3))


@pytest.mark.parametrize(
    ("horizon", "widths", "epsilon", "bars"),
    [
        (365, (1, 7, None), 1.0, (1.80, 4.75, 13.6)),
        (1000, (1, 7, None), 1.0, (1.95, 5.1, 17.4)),
        (8760, (1, 24, None), 1.0, (2.05, 9.7, 26.0)),
        (65536, (1, 24, None), 1.0, (2.2, 10.3, 36.0)),
        (365, (1, 7, None), 0.1, (18.8, 49.0, 137.0)),
        (10**5, (168,), 1.0, (11.2,)),
        (10**5, (720,), 1.0, (16.2,)),
        (365, (30,), 1.0, (7.2,)),
    ],
)
def test_fits_keep_to_their_bars(
    horizon: int, widths: tuple[int | None, ...], epsilon: float, bars: tuple[float, ...]
) -> None:
    terrace = fit_terrace(horizon, widths, epsilon)
    assert sum(terrace.design.shares) <= SHARES
    for width, bar in zip(widths, bars, strict=True):
        assert terrace.worst_std(width) <= bar


@pytest.mark.parametrize("terrace", TERRACES, ids=[str(number) for number in range(len(TERRACES))])
def test_stds_have_the_same_digits_in_every_run(terrace: Terrace) -> None:
    later = np.arange(1, 51)
    earlier = np.maximum(later - 7, 0)
    for first in (np.zeros_like(later), earlier):
        together = terrace.difference_errors(first, later, 0.7)
        for tick in range(50):
            alone = terrace.difference_errors(first[tick : tick + 1], later[tick : tick + 1], 0.7)
            assert [side[0] for side in alone] == [side[tick] for side in together]


def test_no_tick_has_more_than_the_worst() -> None:
    terrace = fit_terrace(700, (1, 7, None), 1.0)
    later = np.arange(1, 701)
    for width in (1, 7, 100, None):
        earlier = np.zeros_like(later) if width is None else np.maximum(later - width, 0)
        variance, _ = terrace.difference_errors(earlier, later, 1.0)
        assert terrace.worst_std(width) == pytest.approx(math.sqrt(variance.max()), rel=1e-12)


def test_many_cells_have_short_blocks() -> None:
    assert longest_block(8760, 10**4) == 2500
    assert longest_block(None, 1) == LONGEST_BLOCK
    assert fit_terrace(8760, (1, 24, None), 1.0, 10**4).lengths[-1] <= 2500
    with pytest.raises(ParameterError, match="cells"):
        fit_terrace(3, (1, None), 1.0)


def test_shares_are_whole_and_use_all_of_epsilon() -> None:
    for shares in ((0.7, 0.3), (0.99999, 1e-9), (1 / 3, 1 / 3, 1 / 3)):
        whole = whole_shares(np.asarray(shares))
        assert sum(whole) == SHARES
        assert min(whole) >= 1


@pytest.mark.parametrize(
    ("blocks", "shares", "weights", "words"),
    [
        ((), (1024,), (), "1 to 4 levels"),
        ((5, 12), (500, 200, 200), (1, 1), "some of the blocks below"),
        ((1,), (500, 200), (1,), "some of the blocks below"),
        ((5,), (1000, 25), (1,), "add up to at most"),
        ((5,), (1024, 0), (1,), "at least 1"),
        ((5,), (500, 200), (65536,), "weights"),
        ((5,), (500, 200), (-1,), "weights"),
        ((5,), (500, 200, 3), (1,), "one share more"),
        ((5.0,), (500, 200), (1,), "whole numbers"),
        ((True,), (500, 200), (1,), "whole numbers"),
        ((LONGEST_BLOCK * 2,), (500, 200), (1,), "at most 16384 ticks"),
    ],
)
def test_what_is_no_terrace_is_refused(
    blocks: tuple[int, ...], shares: tuple[int, ...], weights: tuple[int, ...], words: str
) -> None:
    with pytest.raises(ParameterError, match=words):
        Levels(blocks, shares, weights)


def test_stored_numbers_come_back() -> None:
    terrace = TERRACES[4]
    numbers = {key: value for key, value in terrace.spec.items() if key != "name"}
    assert Levels.from_dict(numbers) == terrace.design
    for damaged in ({}, {**numbers, "more": 1}, {**numbers, "blocks": 5}):
        with pytest.raises(ParameterError, match="stored"):
            Levels.from_dict(damaged)
    for rate in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(ParameterError, match="rate"):
            Terrace(5, terrace.design, rate)


FITS = {
    (365, (1, 7, None), 1.0): ((122,), (798, 226)),
    (None, (1, 24, None), 1.0): ((64, 1024, 16384), (708, 1, 74, 241)),
    (700, (1, 2, 3, 4, 5, 6, 30, None), 1.7): ((11, 176), (784, 1, 239)),
    (12345, (7,), 0.9): ((772,), (1023, 1)),
    (500, (None,), 2.0): ((44,), (511, 513)),
    (5, (1, None), 1.0): ((4,), (1023, 1)),
}


@pytest.mark.parametrize("asked", FITS, ids=str)
def test_fits_stay_what_they_are(asked):
    """A declaration that is fitted again has the noise that it had before."""
    levels = fit_terrace(*asked).design
    assert (levels.blocks, levels.shares) == FITS[asked]


def test_sets_of_blocks_are_searched_together_as_if_each_were_alone():
    """The scores of all sets of one number of levels are one product: one after the other takes
    five times as long."""
    sets = [(8, 48), (11, 44), (16, 64), (45, 270)]
    search = _Search(sets, 365, (1, 7, None), (1.3, 3.6, 5.9), 1.0)
    scores, shares = search.best_shares(rounds=3)
    for number, blocks in enumerate(sets):
        alone = _Search([blocks], 365, (1, 7, None), (1.3, 3.6, 5.9), 1.0)
        assert search.only(np.asarray([number])).blocks == [blocks]
        score, share = alone.best_shares(rounds=3)
        assert score[0] == pytest.approx(scores[number], rel=1e-12)
        assert share[0] == pytest.approx(shares[number], rel=1e-12)
    assert len(set(scores.tolist())) == len(sets)


@pytest.mark.parametrize("width", [1, 7, 40, None])
@pytest.mark.parametrize("rate", [0.01, 1.0, 4.0, 20.0])
def test_the_worst_tick_is_that_of_all_ticks(width, rate):
    """Rounding decides among the ticks with nearly the largest variance."""
    terrace = Terrace(300, least_squares((9, 36), (700, 124, 200), rate), rate)
    later = np.arange(1, 301)
    earlier = np.zeros_like(later) if width is None else np.maximum(later - width, 0)
    variance = terrace.difference_errors(earlier, later, rate)[0]
    assert terrace.worst_std(width) == pytest.approx(np.sqrt(variance.max()), rel=1e-12)
