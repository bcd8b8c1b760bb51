"""The bound for all ticks of an endless bridge: its parts against matrices, its chances against
simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from bounds.test_laplace_tails import mixed_tail
from evercount.bounds import endless_tails
from evercount.bounds.endless_tails import NUMBERS, endless_chance, endless_radius
from evercount.bounds.tails import simultaneous_radius
from evercount.factorizations.laplace_choice import EndlessBridge
from soak_cases import soak_except
from wrapped_functions import wrap


@pytest.mark.parametrize(("epoch", "ticks"), [(0, 16), (1, 240), (2, 700)])
@pytest.mark.parametrize("whole", [False, True])
def test_the_total_and_the_rest_are_those_of_the_matrix(
    epoch: int, ticks: int, whole: bool
) -> None:
    tree = EndlessBridge(whole)
    left, _ = tree.tree(epoch).dense(ticks)
    weight, variance, largest = tree.tree(epoch).apart_from_total(np.arange(1, ticks + 1))
    np.testing.assert_allclose(weight, left[:, 0] * tree.total_parts[epoch], atol=1e-12)
    np.testing.assert_allclose(variance, 2 * (left[:, 1:] ** 2).sum(axis=1), rtol=1e-9, atol=1e-9)
    assert (largest >= np.abs(left[:, 1:]).max(axis=1) * (1 - 1e-12)).all()
    assert 0 <= weight.min() <= weight.max() <= 1


@pytest.mark.parametrize("ticks", soak_except([16, 64], [16, 20, 64, 300]))
def test_the_chance_is_not_below_the_simulated_one(ticks: int) -> None:
    """20,000 runs of continuous noise, for widths that fail often and seldom."""
    left, _ = EndlessBridge().dense(ticks)
    rng = np.random.default_rng(ticks)
    largest = np.concatenate(
        [np.abs(left @ rng.laplace(size=(left.shape[1], 2000))).max(axis=0) for _ in range(10)]
    )
    for share in (0.5, 0.2, 0.05, 0.01):
        h = float(np.quantile(largest, 1 - share))
        assert endless_chance(EndlessBridge(), ticks, h) > share - 4 * math.sqrt(share / 20_000)
        assert share > 0.1 or endless_radius(False, share, ticks) < 1.3 * h


@pytest.mark.parametrize("ticks", [16, 300])
def test_the_bound_is_where_the_chance_is_beta(ticks: int) -> None:
    """The radius that releases state: the chance there is at most β, and half a percent below it is
    more."""
    tree, beta = EndlessBridge(), 0.05
    bound = simultaneous_radius(tree, 1.0, beta, ticks) - 0.5
    assert endless_chance(tree, ticks, bound) <= beta < endless_chance(tree, ticks, 0.995 * bound)


def test_tails_of_the_rest_that_are_too_small_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: with a quarter of every tail, the chance at the simulated 95 % quantile falls below
    5 %."""
    left, _ = EndlessBridge().dense(16)
    largest = np.abs(left @ np.random.default_rng(3).laplace(size=(17, 20_000))).max(axis=0)
    h = float(np.quantile(largest, 0.95))
    honest = endless_chance(EndlessBridge(), 16, h)
    wrap(monkeypatch, endless_tails, "_upper_tails", lambda tails, numbers: tails(numbers) / 4)
    assert honest > 0.05 > endless_chance(EndlessBridge(), 16, h)


def test_tails_of_equal_numbers_and_a_smaller_one() -> None:
    """The closed form is that of the characteristic function, or normal; rows of epochs have
    lighter tails."""
    upper_tails = endless_tails._upper_tails
    for numbers in (1.0, 1.25, 2.75, 4.5, 7.5):
        scales = np.asarray(
            [*[1.0] * int(numbers), *([math.sqrt(numbers % 1)] if numbers % 1 else [])]
        )
        table = upper_tails(numbers)
        for x in (1.0, 2.5, 4.0, 6.0):
            two_sided = max(mixed_tail(scales, x), math.erfc(x / math.sqrt(2)))
            assert table[round(x / endless_tails.TABLE_STEP)] == pytest.approx(
                two_sided / 2, abs=3e-8
            )
    tree = EndlessBridge()
    for epoch, ticks in ((1, (1, 20, 33, 48, 100, 171)), (2, (7, 256, 700))):
        left, _ = tree.tree(epoch).dense(max(ticks))
        for tick in ticks:
            row = np.abs(left[tick - 1, 1:])
            row = row[row > 0]
            ratio = float((row**2).sum() / row.max() ** 2)
            table = upper_tails(float(NUMBERS[np.searchsorted(NUMBERS, ratio, side="right") - 1]))
            for x in (0.5, 1.0, 1.5, 2.0, 3.0, 4.5):
                assert (
                    mixed_tail(row, x) / 2
                    <= table[round(x / endless_tails.TABLE_STEP)] * (1 + 1e-4) + 2e-9
                )


def test_more_outputs_and_ticks_have_wider_bounds() -> None:
    tree = EndlessBridge()
    one, more = (simultaneous_radius(tree, 0.5, 0.05, 100, outputs) for outputs in (1, 5))
    assert one < more < 2 * one
    assert one - 0.5 == pytest.approx(2 * (simultaneous_radius(tree, 1.0, 0.05, 100) - 0.5))


def test_rare_failures_have_bounds() -> None:
    """Very many outputs, or a tiny β: the rounding of far tails was above β, and the search never
    ended."""
    tree, radii = EndlessBridge(), []
    for beta in (1e-3, 1e-6, 1e-9, 1e-12, 1e-30):
        radii.append(simultaneous_radius(tree, 1.0, beta, 300))
    assert all(one < other < 3 * one for one, other in itertools.pairwise(radii))
    assert radii[0] < simultaneous_radius(tree, 1.0, 0.05, 300, 10**9) < radii[3]
