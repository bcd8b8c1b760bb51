"""Rates of Laplace noise: from ε, an l1 sensitivity and a grid to doubles that never spend more than ε."""

from __future__ import annotations

import math
from fractions import Fraction

from evercount.errors import ParameterError
from evercount.noise.laplace_sampler import LARGEST_RATE, LEAST_RATE


def grid_units(l1: float, grid: float) -> int:
    """l1/grid, a whole number up to the rounding of both: increments are whole numbers of grid units."""
    if not (l1 > 0 and math.isfinite(l1)):
        raise ParameterError(f"the l1 sensitivity must be positive and finite, got {l1!r}")
    ratio = Fraction(l1) / Fraction(grid)
    return round(ratio) if abs(ratio - round(ratio)) <= ratio / 10**12 else math.ceil(ratio)


def node_rate(epsilon: float, l1: float, grid: float, share: int | Fraction) -> float:
    """The largest double r with r·share·units ≤ ε: the rate of a node that has the part 1/share of ε.

    **Guarantee.** The inequality holds in exact arithmetic. Test:
    tests/mechanisms/test_laplace_stream.py::test_rates_round_down.
    """
    exact = Fraction(epsilon) / (grid_units(l1, grid) * share)
    rate = float(exact)
    if Fraction(rate) > exact:
        rate = math.nextafter(rate, 0.0)
    return min(check_rate(rate, epsilon), LARGEST_RATE)


def unit_rate(epsilon: float, l1: float, grid: float, parts: int) -> float:
    """A double r of 27 bits with r·parts·units ≤ ε: a node with the share n/parts of ε has the rate n·r, exactly.

    **Guarantee.** The inequality holds in exact arithmetic, and n·r is a double for every whole n ≤ 2^26: so rates of
    nodes whose n add up to `parts` add up to at most ε/units, without rounding. Test:
    tests/mechanisms/test_bridge_stream.py::test_rates_that_are_drawn_add_up_to_at_most_epsilon.
    """
    exact = Fraction(epsilon) / (grid_units(l1, grid) * parts)
    mantissa, exponent = math.frexp(float(exact))
    rate = math.ldexp(math.floor(mantissa * 2**27) - 1, exponent - 27)
    assert Fraction(rate) <= exact
    return rate


def check_rate(rate: float, epsilon: float) -> float:
    if rate < LEAST_RATE:
        raise ParameterError(f"epsilon={epsilon:g} needs Laplace noise above 2^36 grid units; use a coarser grid")
    return rate
