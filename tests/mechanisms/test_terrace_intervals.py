"""Intervals of terraces against the exact law of what is released: they hold, and how much wider
they are than needed.

A published number is off by N, a sum of discrete Laplace numbers with fractional coefficients,
rounded up with the chance that its fraction says (`factorizations/terrace.proof.md`, 5). Its law
follows from the characteristic function, on a lattice of a small part of the std: the largest
coefficient is a multiple of its step, others are rounded to one.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from evercount._validate import FloatArray
from evercount.bounds.tails import equal_numbers, laplace_factor
from evercount.factorizations.fit_terrace import fit_terrace
from evercount.factorizations.terrace import Levels, Terrace, least_squares
from evercount.mechanisms.terrace_noise import TerraceNoise
from evercount.noise import Secret
from soak_cases import soak_except

REACH = 48.0
"""The lattice reaches this many stds to either side: what lies beyond has a chance below 1e-14."""
BETAS = (0.05, 1e-3, 1e-5)


def released_law(made: Terrace, coefficients: FloatArray, shares: FloatArray) -> FloatArray:
    """P(the error is n) for n = −len//2 … len//2 of a sum of nodes with these coefficients."""
    rates = shares * made.rate
    std = math.sqrt(float((coefficients**2 / (np.cosh(rates) - 1)).sum()))
    points = 1 << (18 if std < 4 else 21)
    largest = float(np.abs(coefficients).max())
    step = largest / math.ceil(largest * points / (2 * REACH * max(std, 0.2)))
    steps = np.rint(np.abs(coefficients) / step).astype(np.int64)
    theta = 2 * math.pi * np.arange(points // 2 + 1) / points
    log = np.zeros(len(theta))
    groups, count = np.unique(
        np.stack([steps, np.rint(shares * 1024).astype(np.int64)]), axis=1, return_counts=True
    )
    for multiple, share, times in zip(*groups, count, strict=True):
        variance = 1 / (math.cosh(share / 1024 * made.rate) - 1)
        log -= times * np.log1p(variance * (1 - np.cos(theta * multiple)))
    law = np.maximum(np.fft.fftshift(np.fft.irfft(np.exp(log), points)), 0.0)
    places = (np.arange(points) - points // 2) * step
    low = np.floor(places + 1e-9).astype(np.int64)
    up = places - low
    least = int(low[0])
    rounded = np.bincount(low - least, law * (1 - up), 2 - 2 * least)
    rounded += np.bincount(low + 1 - least, law * up, 2 - 2 * least)
    middle = min(-least, len(rounded) - 1 + least)
    return np.asarray(rounded[-least - middle : -least + middle + 1])


def tail(law: FloatArray, half: float) -> float:
    """P(|error| > half)."""
    middle = len(law) // 2
    return float(2 * law[middle + math.floor(half) + 1 :].sum())


def exact_half(law: FloatArray, beta: float) -> int:
    """The least whole half width that is left with a chance of at most β."""
    upper = 2 * np.cumsum(law[: len(law) // 2 : 1])  # by symmetry, P(|error| ≥ middle − n)
    return len(law) // 2 - int(np.searchsorted(upper, beta, side="right"))


GRID = [
    (365, (1, 7, None), 1.0),
    (365, (1, 7, None), 0.1),
    (365, (1, 7, None), 4.0),
    (120, (7, None), 0.5),
    (365, (1, 7, None), 0.25),
    (720, (1, 24, None), 2.0),
]


def spans(made: Terrace, horizon: int, width: int | None) -> list[tuple[int, int]]:
    """The worst span of a view, and others: inside a block, over its end, and at the start."""
    block = made.lengths[1]
    ends = {made.worst_tick(width)[0], 1, block // 2 + 1, min(block + 3, horizon), horizon}
    return [(max(end - (width or end), 0), end) for end in sorted(ends)]


@pytest.mark.parametrize(
    ("horizon", "widths", "rate"),
    soak_except([one for one in GRID if one[-1] != 0.25], GRID),
)
def test_intervals_hold_by_the_exact_law(
    horizon: int, widths: tuple[int | None, ...], rate: float
) -> None:
    """For every view, tick and β; and they are at most a fifth and 1.6 wider than they must be.

    Most is lost where a block's number is most of a running total's noise, and at ε = 4, where
    discrete numbers leave less often than the continuous ones that intervals are made for.
    """
    made = fit_terrace(horizon, widths, rate)
    left, _, shares = made.node_matrices(horizon)
    rows = np.vstack([np.zeros(left.shape[1]), left])
    for width in widths:
        for earlier, later in spans(made, horizon, width):
            law = released_law(made, rows[later] - rows[earlier], shares)
            assert law.sum() == pytest.approx(1.0, abs=1e-9)
            span = np.asarray([earlier]), np.asarray([later])
            variance, plain = made.difference_errors(*span, rate)
            places = np.arange(len(law)) - len(law) // 2
            assert law @ places**2 <= float(variance[0]) * 1.004
            for beta in BETAS:
                factor = laplace_factor(
                    beta, int(equal_numbers(*made.span_errors(*span, 1.0)[1:])[0])
                )
                half = factor * math.sqrt(float(plain[0])) + 0.5
                assert tail(law, half) <= beta, (width, later, beta)
                if rate <= 1:
                    assert half <= exact_half(law, beta) * 1.2 + 1.6, (width, later, beta)


def test_the_law_is_that_of_the_program() -> None:
    """40,000 streams: every tail of a tick and of a week is that of the law."""
    made = Terrace(40, least_squares((20,), (800, 224), 0.8), 0.8)
    left, _, shares = made.node_matrices(40)
    rows = TerraceNoise(made, made.rate / 1024, 40_000, Secret.from_hex("5b" * 32)).rows(1, 40)
    for earlier, later in ((0, 33), (20, 27), (11, 12)):
        coefficients = left[later - 1] - (left[earlier - 1] if earlier else 0)
        law = released_law(made, coefficients, shares)
        error = np.abs(rows[later - 1] - (rows[earlier - 1] if earlier else 0))
        for half in (0.5, 1.5, 3.5, 6.5, 10.5):
            chance = tail(law, half)
            assert (error > half).mean() == pytest.approx(
                chance, abs=4.5 * math.sqrt(chance / 40_000)
            )


def test_normal_intervals_would_not_hold() -> None:
    """The same for normal quantiles fails: the law sees it."""
    made = Terrace(40, Levels((20,), (900, 124), (1000,)), 0.1)
    left, _, shares = made.node_matrices(40)
    law = released_law(made, left[4] - left[3], shares)
    std = math.sqrt(float(made.difference_errors(np.asarray([4]), np.asarray([5]), 0.1)[0][0]))
    assert tail(law, 4.417 * std) > 100 * 1e-5
