"""Theorem 2 and its relatives: how far a private running count is from the truth, per tick and for all ticks.

Everywhere `multiplier` is σ/Δ (the paper's C_{ε,δ}; a Budget's noise_multiplier()), T the horizon, t the
tick. "Corrected" means: one noise vector for all ticks of the stream, so that the std at tick t is
multiplier·√(c_T²·c_t²), with exact norms.
"""

from __future__ import annotations

import math

import numpy as np

from evercount._arrays import FloatArray
from evercount._validate import check_count, check_positive, check_probability
from evercount.bounds.normal_tails import (
    interval_quantile,
    simultaneous_closed_form,
    simultaneous_paper_proof,
    simultaneous_paper_two_thirds,
    simultaneous_quantile,
)
from evercount.bounds.norms import landau, psi_paper
from evercount.bounds.over_ticks import Ticks, Values, check_ticks, over_ticks
from evercount.errors import ParameterError


def _scaled(factor: float, T: int, t: Ticks) -> Values:
    """factor·√(c_T²·c_t²) for ticks 1 ≤ t ≤ T."""
    c_T = landau(check_count("T", T))
    ticks = check_ticks(t, "t")
    if ticks.size and ticks.max() > T:
        raise ParameterError(f"tick {int(ticks.max())} lies beyond the horizon {T}.")
    return over_ticks(t, lambda n: factor * np.sqrt(c_T * np.asarray(landau(n))), "t")


def theorem2_paper(T: int, t: Ticks, multiplier: float, beta: float) -> Values:
    """The paper's Theorem 2."""
    # C·Ψ(t)·√(2 ln(T/β)). Not a bound: Ψ is too small, and a private std has c_T·c_t, not c_t².
    factor = check_positive("multiplier", multiplier) * simultaneous_closed_form(T, beta)
    return over_ticks(t, lambda n: factor * np.asarray(psi_paper(n)), "t")


def theorem2_paper_proof(T: int, t: Ticks, multiplier: float, beta: float) -> Values:
    """√2·C·Ψ(t)·ln(2T/β): what the paper's proof of Theorem 2 shows, which is larger than what the theorem states."""
    factor = check_positive("multiplier", multiplier) * simultaneous_paper_proof(T, beta)
    return over_ticks(t, lambda n: factor * np.asarray(psi_paper(n)), "t")


def theorem2_std(T: int, t: Ticks, multiplier: float) -> Values:
    """The exact error std of the square-root mechanism at tick t: C·√(c_T²·c_t²)."""
    return _scaled(check_positive("multiplier", multiplier), T, t)


def theorem2_per_tick(T: int, t: Ticks, multiplier: float, beta: float) -> Values:
    """The exact radius at one tick: the error exceeds it with probability β."""
    return _scaled(check_positive("multiplier", multiplier) * interval_quantile(beta), T, t)


def theorem2_simultaneous_closed_form(T: int, t: Ticks, multiplier: float, beta: float) -> Values:
    """C·√(c_T²·c_t²)·√(2 ln(T/β)): Theorem 2 corrected. All ticks hold together with probability 1 − β."""
    return _scaled(check_positive("multiplier", multiplier) * simultaneous_closed_form(T, beta), T, t)


def theorem2_simultaneous(T: int, t: Ticks, multiplier: float, beta: float) -> Values:
    """`theorem2_simultaneous_closed_form` with exact normal tails in its union bound: smaller, same probability.

    **Guarantee.** With probability at least 1 − β no tick t ≤ T has an error above the value at t, for the
    mechanism M x + L z with one Gaussian z of std multiplier·c_T. Test:
    `tests/bounds/test_counting_error.py::test_simultaneous_bound_covers_simulated_streams`.
    """
    return _scaled(check_positive("multiplier", multiplier) * simultaneous_quantile(T, beta), T, t)


def average_paper(T: int, t: Ticks, multiplier: float) -> Values:
    """The paper's error of the running average, Ψ(t)·C·√ln(6T)/t (probability 2/3). Ψ is too small, √2 is missing."""
    factor = check_positive("multiplier", multiplier) * simultaneous_paper_two_thirds(T)
    return over_ticks(t, lambda n: factor * np.asarray(psi_paper(n)) / n, "t")


def average(T: int, t: Ticks, multiplier: float, beta: float = 1 / 3) -> Values:
    """The running average's error for all ticks together with probability 1 − β: that of the count, divided by t."""
    radius = theorem2_simultaneous(T, t, multiplier, beta)
    return over_ticks(t, lambda n: np.ravel(radius) / n, "t")


def sparse_paper(T: int, ones: int, multiplier: float) -> float:
    """The paper's error for a stream with at most s ones, C·(5 ln T + Ψ(s)·√ln(6s))."""
    # The paper writes Ψ(n)√ln(6n) and does not define n; only n = s makes sense. It quotes an analysis for pure privacy
    # without repeating it for Gaussian noise, so this is a claim and not a proven bound. Ψ(1) is below 1.
    ones = check_count("ones", ones)
    check_count("T", T, least=ones)
    inner = float(psi_paper(ones)) * math.sqrt(math.log(6 * ones))
    return check_positive("multiplier", multiplier) * (5 * math.log(T) + inner)


def fresh_noise_overspend(T: int) -> float:
    """How many times the claimed sensitivity the paper's proof of Theorem 2 really has: √Σ_{t≤T} 1/c_t⁴."""
    # The proof draws a fresh vector in every round. Round t then shows a change of one in the first bit at std C·c_t²,
    # independently of the other rounds, so the rounds add up in squares: 11.1 at T=1024, 60.5 at T=65536. Not private.
    if check_count("T", T) > 2**26:
        raise ParameterError(f"fresh_noise_overspend adds T terms; T={T} is above 2^26.")
    return float(math.sqrt(np.sum(1 / np.asarray(landau(np.arange(1, T + 1))) ** 2)))


def rescaled_noise_overspend(T: int) -> float:
    """`fresh_noise_overspend` if the rounds share one vector but rescale it by c_t: still 1.38 at T=1024. Not private.

    A release is M x + C·diag(c_t)·L z, so a change of the first bit has size ‖L^{-1}·(1/c_1, …, 1/c_T)‖ in
    units of C.
    """
    if check_count("T", T) > 2**14:
        raise ParameterError(f"rescaled_noise_overspend takes T² steps; T={T} is above 2^14.")
    k = np.arange(1, T)
    f: FloatArray = np.concatenate(([1.0], np.cumprod((2 * k - 1) / (2 * k))))
    g = np.concatenate(([1.0], np.diff(f)))
    return float(np.linalg.norm(np.convolve(g, 1 / np.sqrt(np.asarray(landau(np.arange(1, T + 1)))))[:T]))


def sampling_error(n: int, beta: float) -> float:
    """√(ln(2/β)/2n): how far the distribution of n samples is from the true one (Dvoretzky, Kiefer and Wolfowitz)."""
    return math.sqrt(math.log(2 / check_probability("beta", beta)) / (2 * check_count("n", n)))
