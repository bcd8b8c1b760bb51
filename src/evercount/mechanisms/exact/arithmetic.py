"""Which arithmetic the noise of a factorization has, in integers and in doubles, and its proved price in δ."""

from __future__ import annotations

import math
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from evercount._validate import check_count
from evercount.errors import ParameterError
from evercount.factorizations import BinaryTree, Dense, Direct, Factorization, Honaker, HonakerFull, Optimal, SquareRoot
from evercount.factorizations.row_weighted import Weighted
from evercount.mechanisms.exact.filter_kernel import FilterKernel
from evercount.mechanisms.exact.filter_numbers import DRAW_BITS, MOST_TICKS, SIGMAS
from evercount.mechanisms.exact.tree_kernels import HonakerFullKernel, HonakerKernel, OptimalKernel, TreeKernel

ALLOWED_PRICE = 2.0**-60  # the price in δ that `numeric_horizon` allows by default
ENDLESS_TICKS = 2**40  # the number of ticks for which the precision of a stream without horizon is chosen
LONG_HORIZON = 2**24  # for longer horizons, dumps keep all bits of the state
BITS_STEP = 22  # fractional bits come in multiples of this
FEWEST_BITS, MOST_BITS = 6 * BITS_STEP, 10 * BITS_STEP

Kernel = FilterKernel | TreeKernel  # the arithmetic of one factorization: `FilterKernel` has the contract

_known: WeakKeyDictionary[Factorization, Kernel] = WeakKeyDictionary()
"""Kernels of the factorizations that are in use. A cache that held a factorization would hold its tables, which grow to
megabytes: tests/store/test_store_retire.py::test_a_retired_stream_leaves_the_memory."""


def make_kernel(factorization: Factorization, bits: int) -> Kernel:
    """The arithmetic of a factorization with `bits` fractional bits (ignored where nothing is rounded)."""
    narrow, none = (factorization.horizon or MOST_TICKS) <= LONG_HORIZON, np.empty(0)
    match factorization:
        case Weighted(weights=weights):
            filter_ = weights.filter
            return FilterKernel(filter_.zero_lack, filter_.pole_lack, weights.eta, weights.n, bits, narrow)
        case SquareRoot(filter=filter_):
            return FilterKernel(filter_.pole_lack, filter_.zero_lack, None, None, bits, narrow)
        case Direct():
            return FilterKernel(none, none, None, None, DRAW_BITS)
        case BinaryTree(horizon=int(horizon)):
            return TreeKernel(horizon)
        case Honaker(horizon=int(horizon)):
            return HonakerKernel(horizon, bits)
        case HonakerFull(horizon=int(horizon)):
            return HonakerFullKernel(horizon, bits)
        case Optimal() | Dense():
            return OptimalKernel(factorization.dense()[0])
    raise ParameterError(f"there is no exact arithmetic for the factorization {factorization.name!r}")


def kernel(factorization: Factorization) -> Kernel:
    """The arithmetic of a factorization, with the number of bits that all its streams share.

    It has the fewest bits for which the rounding inside, summed over all ticks, is below 2^−88, or is within a factor
    16 of what the 128 bits of a normal cost anyway. The scale plays no part, so `numeric_delta` grows with it.
    """
    if factorization in _known:
        return _known[factorization]
    ticks = ENDLESS_TICKS if factorization.horizon is None else factorization.horizon
    if ticks > MOST_TICKS:
        raise ParameterError(f"exact noise serves at most 2^47 ticks, the horizon is {ticks}")
    for bits in range(FEWEST_BITS, MOST_BITS + 1, BITS_STEP):
        arithmetic = make_kernel(factorization, bits)
        inside = arithmetic.error(ticks) * 2.0**-arithmetic.bits
        if ticks * inside <= 2.0**-88 or inside <= 16 * _cut(arithmetic, ticks):
            break
    return _known.setdefault(factorization, arithmetic)


def _cut(arithmetic: Kernel, ticks: int) -> float:
    """What cutting the normals to 128 bits adds to the error: lemma 2 of the proof."""
    return SIGMAS * 2.0**-DRAW_BITS * arithmetic.norm(ticks)


def check_scale(scale: Any) -> float:
    value = float(scale)
    if not 2.0**-60 <= value <= 2.0**46:
        raise ParameterError(f"scale (σ over the grid) must lie between 2^-60 and 2^46, got {scale!r}")
    return value


def numeric_delta(
    factorization: Factorization, scale: float, cells: int, epsilon: float, ticks: int | None = None
) -> float:
    """The proved price in δ of finite arithmetic for all releases of `ticks` ticks (default: all of them).

    It grows with the scale, the cells, ε and the ticks; so a price for a larger scale covers a smaller one.

    **Guarantee.** If real Gaussian noise of this factorization and scale, rounded to the grid, is (ε, δ₀)-DP, then a
    release with `ExactStream` is (ε, δ₀ + numeric_delta)-DP against anyone who cannot tell AES-256 and BLAKE2b from
    random functions. Proof: `exact_noise.proof.md`, theorem. Assumption: the data are whole numbers of grid units.
    Tests: `tests/mechanisms/test_exact_error.py` (measured error below the bound; a planted loss of bits is caught).
    """
    scale, cells = check_scale(scale), check_count("cells", cells)
    if not (epsilon >= 0 and math.isfinite(epsilon)):
        raise ParameterError(f"epsilon must be a finite number ≥ 0, got {epsilon!r}")
    arithmetic = kernel(factorization)
    if ticks is None:
        ticks = factorization.horizon or numeric_horizon(factorization, scale, cells, epsilon)
    ticks = check_count("ticks", ticks)
    off = scale * (arithmetic.error(ticks) * 2.0**-arithmetic.bits + _cut(arithmetic, ticks)) * (1 + 1e-6)
    if off > 1e-3 or epsilon > 700:
        return 1.0
    return min(1.0, (1 + math.exp(epsilon)) * ticks * cells * (4 * off + 2.0**-1000) * (1 + 1e-6))


def numeric_horizon(
    factorization: Factorization, scale: float, cells: int, epsilon: float, cap: float = ALLOWED_PRICE
) -> int:
    """The horizon, or the largest power of two (≤ 2^47) of ticks for which `numeric_delta` is at most `cap`."""
    ticks = MOST_TICKS if factorization.horizon is None else factorization.horizon
    while numeric_delta(factorization, scale, cells, epsilon, ticks) > cap:
        if ticks == 1:
            raise ParameterError(
                f"scale {scale:.6g}, epsilon={epsilon:g} and {cells} cells are too much for 128-bit normals: even one "
                f"tick costs more than {cap:.3g} in δ; choose a smaller epsilon or fewer cells, or use a coarser grid "
                "where the query has one"
            )
        ticks = 1 << (ticks - 1).bit_length() - 1
    return ticks
