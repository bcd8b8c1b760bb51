"""Theorem 2 and its relatives: how far a private running count is from the truth, per tick and for all ticks.

Everywhere `multiplier` is σ/Δ (the paper's C_{ε,δ}; a Budget's noise_multiplier()), T the horizon, t the
tick. "Corrected" means: one noise vector for all ticks of the stream, so that the std at tick t is
multiplier·√(c_T²·c_t²), with exact norms.
"""

from __future__ import annotations

import math

import numpy as np

from evercount._validate import check_count, check_positive, check_probability
from evercount.bounds.normal_tails import (
    simultaneous_paper_two_thirds,
    simultaneous_quantile,
)
from evercount.bounds.norms import landau, psi_paper
from evercount.bounds.over_ticks import Ticks, Values, check_ticks, over_ticks
from evercount.errors import ParameterError


def theorem2_simultaneous(T: int, t: Ticks, multiplier: float, beta: float) -> Values:
    """C·√(c_T²·c_t²)·a: Theorem 2 corrected, a from a union bound over all ticks with exact normal tails.

    **Guarantee.** With probability at least 1 − β no tick t ≤ T has an error above the value at t, for the
    mechanism M x + L z with one Gaussian z of std multiplier·c_T. Test:
    `tests/bounds/test_counting_error.py::test_simultaneous_bound_covers_simulated_streams`.
    """
    c_T = landau(check_count("T", T))
    if (ticks := check_ticks(t, "t")).size and ticks.max() > T:
        raise ParameterError(f"tick {int(ticks.max())} lies beyond the horizon {T}.")
    factor = check_positive("multiplier", multiplier) * simultaneous_quantile(T, beta)
    return over_ticks(t, lambda n: factor * np.sqrt(c_T * np.asarray(landau(n))), "t")


def average_paper(T: int, t: Ticks, multiplier: float) -> Values:
    """The paper's error of the running average, Ψ(t)·C·√ln(6T)/t (probability 2/3). Ψ is too small, √2 is missing."""
    factor = check_positive("multiplier", multiplier) * simultaneous_paper_two_thirds(T)
    return over_ticks(t, lambda n: factor * np.asarray(psi_paper(n)) / n, "t")


def average(T: int, t: Ticks, multiplier: float, beta: float = 1 / 3) -> Values:
    """The running average's error for all ticks together with probability 1 − β: that of the count, divided by t."""
    radius = theorem2_simultaneous(T, t, multiplier, beta)
    return over_ticks(t, lambda n: np.ravel(radius) / n, "t")


def sparse_paper(T: int, ones: int, multiplier: float) -> float:
    """The paper's error for a stream with at most s ones, C·(5 ln T + Ψ(s)·√ln(6s)).

    The paper writes Ψ(n)√ln(6n) and does not define n; only n = s makes sense. It quotes an analysis for pure
    privacy without repeating it for Gaussian noise, so this is a claim and not a proven bound. Ψ(1) is below 1.
    """
    ones = check_count("ones", ones)
    check_count("T", T, least=ones)
    inner = float(psi_paper(ones)) * math.sqrt(math.log(6 * ones))
    return check_positive("multiplier", multiplier) * (5 * math.log(T) + inner)


def fresh_noise_overspend(T: int) -> float:
    """How many times the claimed sensitivity the paper's proof of Theorem 2 really has: √Σ_{t≤T} 1/c_t⁴.

    The proof draws a fresh vector in every round. Round t then shows a change of one in the first bit at std
    C·c_t², independently of the other rounds, so the rounds add up in squares: 11.1 at T=1024, 60.5 at
    T=65536. Not private.
    """
    if check_count("T", T) > 2**26:
        raise ParameterError(f"fresh_noise_overspend adds T terms; T={T} is above 2^26.")
    return float(math.sqrt(np.sum(1 / np.asarray(landau(np.arange(1, T + 1))) ** 2)))


def sampling_error(n: int, beta: float) -> float:
    """√(ln(2/β)/2n): how far the distribution of n samples is from the true one (Dvoretzky, Kiefer and Wolfowitz)."""
    return math.sqrt(math.log(2 / check_probability("beta", beta)) / (2 * check_count("n", n)))
