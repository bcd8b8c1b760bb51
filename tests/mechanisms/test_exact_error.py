"""The proved error of exact noise: measured errors stay below it, lost bits are caught, and its
price in δ is tiny."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise
from operator import mul
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm
from test_exact_noise import exact_left

from evercount.errors import ParameterError
from evercount.factorizations import (
    Balanced,
    BinaryTree,
    Direct,
    Factorization,
    Honaker,
    HonakerFull,
    Normalized,
    Optimal,
    SquareRoot,
    Unbounded,
)
from evercount.factorizations.blend import Blend, BlendFilter
from evercount.mechanisms.exact.arithmetic import (
    TreeKernel,
    kernel,
    make_kernel,
    numeric_delta,
    numeric_horizon,
)
from evercount.mechanisms.exact.filter_numbers import BLOCK_TICKS
from evercount.noise import ExactNoise, Secret

SECRET = Secret.from_hex("77" * 32)
TICKS = 70
LONG = 2**12
LONG_MEMORY = BlendFilter((2.0**-17, 2.0**-6, 0.125), (2.0**-7, 1.001953125 * 2.0**-6, 0.875))
"""A slow pole, a zero next to its pole, and a fast one."""
WEIGHTED = BlendFilter(
    LONG_MEMORY.poles,
    LONG_MEMORY.zeros,
    (0.375, 0.125, 0.25, -0.0625, 0.03125, 0.0625, -0.03125, 0.125, 0.03125, -0.0625),
)
ROUNDED = [
    Balanced(TICKS), Normalized(TICKS), Unbounded(), SquareRoot(TICKS), Honaker(TICKS),
    HonakerFull(TICKS), Blend(TICKS, LONG_MEMORY), Blend(None, LONG_MEMORY), Blend(TICKS, WEIGHTED),
]  # fmt: skip
EXACT = [Direct(TICKS), BinaryTree(TICKS), Optimal(TICKS)]


def name(f: Any) -> str:
    return f"{f.name}-{f.horizon}"


def measured(f: Factorization, made: Any) -> Fraction:
    """The largest |Ỹ − (L z)·2^bits| over TICKS ticks of one cell, exactly."""
    state = np.zeros((made.rows, 1), dtype=object)
    rows = []
    for start in range(0, TICKS, BLOCK_TICKS):
        z = ExactNoise(SECRET).normals(*made.window(start, start + BLOCK_TICKS), 1).to_ints()
        y, state = made.step(state, start, z)
        rows += y[:, 0].tolist()
    unit = Fraction(2) ** (made.bits - 128)
    return max(abs(a - b * unit) for a, b in zip(rows[:TICKS], wanted(f), strict=True))


@lru_cache
def wanted(f: Factorization) -> list[Fraction]:
    """(L z)·2^128 in exact rationals."""
    z = ExactNoise(SECRET).normals(0, f.draws(0, TICKS), 1).to_ints()[:, 0].tolist()
    left, below = exact_left(f, TICKS)
    return [Fraction(sum(map(mul, row, z)), below) for row in left]


@pytest.mark.parametrize("f", ROUNDED, ids=name)
def test_error_is_below_its_bound(f: Factorization) -> None:
    made = make_kernel(f, 154)
    found = measured(f, made)
    assert 0 < found <= made.error(TICKS)


@pytest.mark.parametrize("f", EXACT, ids=name)
def test_no_error_where_nothing_is_rounded(f: Factorization) -> None:
    made = make_kernel(f, 154)
    assert measured(f, made) == 0 == made.error(TICKS)


@pytest.mark.parametrize("f", ROUNDED, ids=name)
@pytest.mark.parametrize("where", ["response", "readout", "feed", "decay", "state"])
def test_planted_loss_of_40_bits_is_caught(f: Factorization, where: str) -> None:
    made: Any = make_kernel(f, 154)

    def cut(value: int) -> int:
        return value >> 40 << 40

    if where == "state" and f.name != "honaker":
        step = made.step
        made.step = lambda state, *rest: step(np.vectorize(cut, otypes=[object])(state), *rest)
    elif isinstance(made, TreeKernel):
        made.weights = [cut(v) for v in made.weights]
    else:
        part = {"response": np.s_[:, :BLOCK_TICKS], "readout": np.s_[:, BLOCK_TICKS:]}.get(
            where, np.s_[:]
        )
        field = where if where in ("feed", "decay") else "output"
        new = getattr(made.constants, field).copy()
        new[part] = np.vectorize(cut, otypes=[object])(new[part])
        made.constants = made.constants._replace(**{field: new})
    assert measured(f, made) > made.error(TICKS)


@pytest.mark.parametrize(
    "f", [Balanced(LONG), Unbounded(), SquareRoot(LONG), HonakerFull(LONG)], ids=name
)
def test_error_over_many_ticks(f: Factorization) -> None:
    # against the same recurrence with 66 bits more, whose own error is then nothing
    rows: list[list[int]] = []
    for bits in (132, 198):
        made = make_kernel(f, bits)
        state, found = np.zeros((made.rows, 1), dtype=object), []
        for start in range(0, LONG, BLOCK_TICKS):
            z = ExactNoise(SECRET).normals(*made.window(start, start + BLOCK_TICKS), 1)
            y, state = made.step(state, start, z.to_ints())
            found += y[:, 0].tolist()
        rows.append(found)
    worst = max(abs((coarse << 66) - fine) for coarse, fine in zip(*rows, strict=True))
    bound = make_kernel(f, 132).error(LONG) * 2.0**66
    assert 2**66 < worst <= bound
    assert worst * 2**20 > bound  # and the bound is not absurdly wide


@pytest.mark.parametrize("f", [*ROUNDED, *EXACT], ids=name)
def test_norm_is_an_upper_bound(f: Factorization) -> None:
    made = kernel(f)
    for ticks in (1, 2, 33, 70):
        assert np.linalg.norm(f.dense(ticks)[0], axis=1).max() <= made.norm(ticks) * (1 + 1e-9)


def test_norm_over_long_horizons() -> None:
    for f in (Balanced(2**16), Balanced(10**8), Unbounded(), Normalized(10**6)):
        last = f.horizon or 2**40
        ticks = np.unique(np.geomspace(1, last, 60).astype(np.int64))
        made = kernel(f)
        for t, size in zip(ticks.tolist(), f.row_norms(ticks), strict=True):
            assert size <= made.norm(t)


def test_chance_of_a_rounding_boundary() -> None:
    # lemma 8: at most 4h for every deviation
    for sigma in np.geomspace(0.01, 100, 200):
        for h in (1e-3, 1e-6):
            k = np.arange(0, int(8 * sigma) + 2) + 0.5
            chance = 2 * float(np.sum(norm.cdf((k + h) / sigma) - norm.cdf((k - h) / sigma)))
            assert chance <= 4 * h
    # most of 2h comes from one boundary
    assert 2 * (norm.cdf(0.501 / 0.5) - norm.cdf(0.499 / 0.5)) > 1.9e-3


# -- the price in δ --------------------------------------------------------------------------------


@pytest.mark.parametrize(("horizon", "cells"), [(2**16, 1), (2**16, 1000), (10**8, 1)])
@pytest.mark.parametrize(
    "kind", [Balanced, Normalized, SquareRoot, Direct, BinaryTree, Honaker, HonakerFull]
)
@pytest.mark.parametrize("scale", [0.01, 40.0])
def test_price_is_below_2_to_minus_60(
    kind: type[Any], horizon: int, cells: int, scale: float
) -> None:
    assert 0 < numeric_delta(kind(horizon), scale, cells, 1.0, horizon) <= 2.0**-60


def test_price_grows_with_everything_it_should() -> None:
    for f in (
        Balanced(2**16),
        Unbounded(),
        SquareRoot(2**16),
        Honaker(2**16),
        HonakerFull(2**16),
        Direct(2**16),
    ):
        base = numeric_delta(f, 6.0, 10, 1.0, 1000)
        assert base < numeric_delta(f, 6.0, 11, 1.0, 1000)
        assert base < numeric_delta(f, 6.0, 10, 1.1, 1000)
        assert base < numeric_delta(f, 6.0, 10, 1.0, 1001)
        prices = [numeric_delta(f, 6.0, 1, 1.0, 2**k) for k in range(16)]
        assert prices == sorted(prices)
    assert numeric_delta(Balanced(100), 1.0, 1, 800.0, 100) == 1.0


def test_price_is_the_formula_of_the_proof() -> None:
    f, scale, cells, epsilon = Balanced(1000), 6.0, 7, 0.5
    made = kernel(f)
    off = scale * (made.error(1000) * 2.0**-made.bits + 64 * 2.0**-128 * made.norm(1000))
    want = (1 + math.exp(epsilon)) * 7 * 1000 * 4 * off
    assert want <= numeric_delta(f, scale, cells, epsilon, 1000) <= want * 1.001


def test_bits_depend_on_the_factorization_alone() -> None:
    assert kernel(Balanced(2**16)).bits == kernel(Balanced(2**16)).bits
    assert kernel(Balanced(100)).bits < kernel(Balanced(10**8)).bits
    assert all(kernel(f).bits % 22 == 0 for f in ROUNDED)
    for f in (Balanced(2**16), Unbounded(), Honaker(2**16), HonakerFull(2**16)):
        prices = [numeric_delta(f, 1.05**k, 10, 1.0, 1000) for k in range(-200, 200)]
        # a price for a larger scale covers a smaller one
        assert all(a < b for a, b in pairwise(prices))


def test_horizon_of_an_endless_stream() -> None:
    f, cap = Unbounded(), 2.0**-60
    for cells, least in [(1, 2**32), (1000, 2**26)]:
        ticks = numeric_horizon(f, 6.0, cells, 1.0, cap)
        assert ticks >= least
        assert ticks & (ticks - 1) == 0
        assert (
            numeric_delta(f, 6.0, cells, 1.0, ticks)
            <= cap
            < numeric_delta(f, 6.0, cells, 1.0, 2 * ticks)
        )
    assert numeric_horizon(Balanced(1000), 6.0, 1, 1.0, cap) == 1000
    assert numeric_horizon(f, 6.0, 1, 1.0, 1e-12) > numeric_horizon(f, 6.0, 1, 1.0, cap)
    with pytest.raises(ParameterError, match="coarser grid"):
        numeric_horizon(f, 2.0**46, 2**30, 10.0, cap)
