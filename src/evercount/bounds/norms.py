"""Norms of factorizations of the counting matrix: Ψ, exact Landau constants, Mathias, nuclear norm,
binary tree.

`norm` means ‖L‖_{2→∞}·‖R‖_{1→2}, the worst error std of a factorization at noise multiplier one and
S = 1. All functions of T take one horizon or an array of them, whole numbers from 1 to 2^53. They
return a float for one horizon and an array of the same shape for an array.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from evercount._validate import FloatArray, IntArray, check_count, check_positive
from evercount.errors import ParameterError
from evercount.factorizations.filter_numbers import landau as exact_landau

Ticks: TypeAlias = int | npt.ArrayLike
Values: TypeAlias = float | FloatArray


def check_ticks(T: Ticks, what: str = "T") -> IntArray:
    """`T` as an array of whole numbers of at least 1, below 2^53 so that they are exact as
    doubles."""
    ticks = np.asarray(T)
    if ticks.dtype.kind not in "iu":
        raise ParameterError(f"{what} must hold whole numbers below 2^53, got {T!r}")
    if ticks.size and (ticks.min() < 1 or ticks.max() >= 2**53):
        raise ParameterError(f"{what} must lie between 1 and 2^53, got {T!r}")
    return ticks.astype(np.int64)


def over_ticks(
    T: Ticks, formula: Callable[[IntArray], FloatArray], what: str = "T", horizon: int | None = None
) -> Values:
    """`formula` of the checked, flattened ticks; a float for a single tick, an array of their shape
    otherwise."""
    ticks = check_ticks(T, what)
    if horizon is not None and ticks.size and ticks.max() > horizon:
        raise ParameterError(f"tick {int(ticks.max())} lies beyond the horizon {horizon}.")
    values = formula(ticks.ravel())
    if ticks.ndim == 0:
        return float(values[0])
    return values.reshape(ticks.shape)


BINARY_FACTOR = math.pi * math.log2(math.e)
"""π·log₂e = 4.53: how much worse than the square root the binary mechanism is, for T → ∞."""

# sums of up to this many terms are added up; for longer ones the expansions are accurate to 1e-15
_SUMMED_TERMS = 128


def _of_horizons(formula: Callable[[IntArray], FloatArray]) -> Callable[[Ticks], Values]:
    """A formula for many horizons as a function of one or many, which are checked; its docstring
    says so."""

    def of_any(T: Ticks) -> Values:
        return over_ticks(T, formula)

    of_any.__name__ = of_any.__qualname__ = formula.__name__
    of_any.__doc__ = f"""{inspect.cleandoc(formula.__doc__ or "")}

Args:
    T: One horizon or an array of them.

Returns:
    The value for each T.

Raises:
    ParameterError: A horizon is not a whole number from 1 to 2^53.
"""
    return of_any


@_of_horizons
def psi_paper(t: IntArray) -> FloatArray:
    """The paper's Ψ(T) = 1 + ln((4T−3)/5)/π. NOT an upper bound of the norm: it is too small for
    every T.

    At T=2 it is 1.00 and the norm is 1.25; at T=65536 it is 4.4591 and the norm is 4.5964. For
    reproduction only.

    >>> round(psi_paper(65536), 4)
    4.4591
    """
    return 1 + np.log((4.0 * t - 3) / 5) / math.pi


@_of_horizons
def psi(t: IntArray) -> FloatArray:
    """Ψ′(T) = 1 + ln((4T−1)/3)/π, a proven closed-form upper bound of `landau`, with equality at
    T = 1.

    **Guarantee.** landau(T) ≤ Ψ′(T) for every T. Proof: `psi.proof.md`. Test:
    `tests/bounds/test_norms.py::test_psi_is_an_upper_bound_and_psi_paper_is_not`. Exact arithmetic
    is assumed: a double may be off by a few units in the last place, which only matters at T = 1.

    >>> round(psi(65536), 4)
    4.6217
    """
    return 1 + np.log((4.0 * t - 1) / 3) / math.pi


@_of_horizons
def landau(t: IntArray) -> FloatArray:
    """c_T² = Σ_{k<T} f(k)², the exact norm of the square-root factorization (a Landau constant), to
    1e-15 relative.

    Term by term up to T = 128; above that by an expansion: `factorizations/filter_numbers.py`.

    >>> landau(2)
    1.25
    >>> landau([4, 65536]).round(4).tolist()
    [1.4883, 4.5964]
    """
    return exact_landau(t)


def _gamma_hat(n: IntArray) -> FloatArray:
    """Compute γ̂(n): by its sum for few terms, else by its series."""
    inverse = 1 / np.maximum(n, _SUMMED_TERMS).astype(np.float64)
    x = (math.pi * inverse) ** 2
    # 2·a_k·ζ(1−2k, ½)·(π/n)^{2k} for k = 1..4, where csc x = 1/x + Σ a_k x^{2k−1}:
    # `gamma_hat.proof.md`.
    series = x * (1 / 72 - x * (49 / 172800 - x * (961 / 60963840 - x * (16129 / 9289728000))))
    values = 2 / math.pi * (np.log(n) + (np.euler_gamma + math.log(8 / math.pi))) + series / math.pi
    for place in np.flatnonzero(n <= _SUMMED_TERMS):
        size = int(n[place])
        values[place] = (
            math.fsum(1 / math.sin((2 * j - 1) * math.pi / (2 * size)) for j in range(1, size + 1))
            / size
        )
    return values


@_of_horizons
def gamma_hat(t: IntArray) -> FloatArray:
    """γ̂(T) = (1/T)·Σ_{j≤T} csc((2j−1)π/2T) of Mathias, to 1e-14: summed for small T, expanded for
    large.

    The expansion is derived in `gamma_hat.proof.md`; its first omitted term is below 1e-20 where it
    is used.

    >>> round(gamma_hat(65536), 4)
    8.0229
    """
    return _gamma_hat(t)


@_of_horizons
def gamma_hat_integral_paper(t: IntArray) -> FloatArray:
    """The paper's (2/π)·ln cot(π/4T), said to bound γ̂(T) from above: false for every T, γ̂ is about
    0.81 larger."""
    return np.asarray(-2 / math.pi * np.log(np.tan(math.pi / (4.0 * t))))


@_of_horizons
def mathias_lower(t: IntArray) -> FloatArray:
    """(½ + 1/2T)·γ̂(T): no factorization of the counting matrix has a smaller norm (Mathias 1993,
    Corollary 3.5).

    >>> round(mathias_lower(65536), 4)
    4.0115
    """
    return (0.5 + 0.5 / t) * _gamma_hat(t)


@_of_horizons
def mathias_upper(t: IntArray) -> FloatArray:
    """γ̂(T)/2 + ½: some factorization, not lower triangular, has at most this norm (Mathias 1993,
    Corollary 3.5).

    >>> round(mathias_upper(65536), 4)
    4.5114
    """
    return 0.5 * _gamma_hat(t) + 0.5


@_of_horizons
def haagerup_upper(t: IntArray) -> FloatArray:
    """1 + ln T/π, the bound of Haagerup and of Kraus on the norm that triangular truncation can be
    factorised with.

    **Guarantee.** It is at least Mathias' upper bound for every T, with equality at T = 1, so some
    factorization, not lower triangular, has at most this norm. Test:
    `tests/bounds/test_norms.py::test_haagerup_is_above_mathias`.

    >>> round(haagerup_upper(65536), 4)
    4.5302
    """
    return 1 + np.log(t) / math.pi


@_of_horizons
def nuclear_lower(t: IntArray) -> FloatArray:
    """(1/T)·Σ_{k≤T} 1/(2 sin((2k−1)π/(4T+2))), nuclear norm over T: a better lower bound for every
    factorization.

    **Guarantee.** Every factorization M = LR has at least this norm: ‖M‖_* ≤ ‖L‖_F·‖R‖_F ≤
    √T·‖L‖_{2→∞}·√T·‖R‖_{1→2}, and the terms of the sum are the singular values of M. Test:
    `tests/bounds/test_norms.py::test_lower_bounds_hold_for_the_square_root_and_for_random_factorizations`.

    >>> round(nuclear_lower(65536), 4)
    4.2321
    """
    # With N = 2T+1 the terms are half of the symmetric sum in γ̂(N) without its middle term
    # csc(π/2) = 1.
    return ((2.0 * t + 1) * _gamma_hat(2 * t + 1) - 1) / (4.0 * t)


@_of_horizons
def binary_norm_paper(t: IntArray) -> FloatArray:
    """The paper's norm of the binary mechanism, log₂T·(log₂T + 1): the square root is missing."""
    return np.asarray(np.log2(t) * (np.log2(t) + 1))


def most_ones(T: int) -> int:
    """The largest number of ones in the binary form of any t ≤ T."""
    T = check_count("T", T)
    # Either t = T, or t agrees with T above one of the set bits of T, has a zero there and ones
    # below it.
    return max(
        [
            T.bit_count(),
            *((T >> (i + 1)).bit_count() + i for i in range(T.bit_length()) if T >> i & 1),
        ]
    )


@_of_horizons
def binary_norm(t: IntArray) -> FloatArray:
    """The exact norm of the binary mechanism: √(largest popcount of a t ≤ T)·√(⌊log₂T⌋ + 1).

    >>> round(binary_norm(65536), 4)
    16.4924
    """
    return np.sqrt([float(most_ones(n) * n.bit_length()) for n in t.tolist()])


def binary_std(T: int, t: Ticks, multiplier: float = 1.0) -> Values:
    """The exact error std of the binary mechanism at tick t: multiplier·√popcount(t)·√(⌊log₂T⌋ +
    1).

    Args:
        T: The horizon.
        t: One tick or an array of them, from 1 to T.
        multiplier: The noise multiplier σ/Δ.

    Returns:
        The std at each tick.

    Raises:
        ParameterError: A tick is not a whole number or lies beyond the horizon, or the multiplier
            is not positive.

    >>> binary_std(8, [7, 8]).round(4).tolist()
    [3.4641, 2.0]
    """
    factor = check_positive("multiplier", multiplier) * math.sqrt(check_count("T", T).bit_length())
    # popcounts come as 8-bit numbers, whose square root would be a half-precision float
    return over_ticks(t, lambda n: factor * np.sqrt(np.bitwise_count(n).astype(np.float64)), "t", T)
