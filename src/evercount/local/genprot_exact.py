"""The exact privacy of GenProt: probabilities of a message in integers, and the widest clip that keeps a promise.

Proof: `genprot.proof.md`, theorem 1.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

from evercount.errors import ParameterError

BITS = 53
"""Bit probabilities are whole multiples of 2^−53."""


def choice_weights(low: int, high: int, unit: int, count: int) -> list[int]:
    """P(a candidate is sent) at every corner, in units of 1/(unit^count·lcm(1 … count)): exact integers.

    A corner: k of the other bits have probability high/unit and the rest low/unit; the candidate's own bit has
    one of the two.
    """
    shares = math.lcm(*range(1, count + 1))
    weights = []
    for k in range(count):
        law = [1]  # of the number of other bits that are 1, in units of 1/unit^(number of others)
        for p in [high] * k + [low] * (count - 1 - k):
            law = [a * (unit - p) + b * p for a, b in zip([*law, 0], [0, *law], strict=True)]
        sent = sum(value * (shares // (1 + i)) for i, value in enumerate(law))
        weights += [p * sent + (unit - p) * law[0] * (shares // count) for p in (low, high)]
    return weights


def exact_ratio(low: int, high: int, unit: int, count: int) -> Fraction:
    """The largest ratio of the probabilities of a message under two inputs, when all p_t lie in [low, high]/unit.

    **Guarantee.** Exact. The probability of a message is linear in each p_t, so its extremes lie at corners; by
    symmetry a corner is (own p, number of others at `high`). Test:
    tests/local/test_local_genprot.py::test_exact_privacy_by_enumeration.
    """
    weights = choice_weights(low, high, unit, count)
    return Fraction(max(weights), min(weights))


def clip_limits(c: float) -> tuple[int, int]:
    """lo and hi in units of 2^−53, rounded inwards."""
    scale = 2.0 ** (BITS - 1)
    return math.ceil(scale * math.exp(-c) * (1 + 1e-15)), min(2**BITS, math.floor(scale * math.exp(c) * (1 - 1e-15)))


def pure_epsilon(c: float, count: int) -> float:
    """The exact ε of clipping at ½·e^(±c), rounded up."""
    ratio = exact_ratio(*clip_limits(c), 2**BITS, count)
    return math.log(ratio) * (1 + 1e-12) + 1e-15


@lru_cache(maxsize=256)
def widest_clip(epsilon: float, count: int) -> float:
    """The largest c ≤ ln 2 whose exact ε is at most `epsilon`; by bisection, the result checked."""
    low, high = 0.0, math.log(2)
    if pure_epsilon(high, count) <= epsilon:
        return high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if pure_epsilon(middle, count) <= epsilon else (low, middle)
    if not low > 0:
        raise ParameterError(f"epsilon={epsilon!r} is too small for GenProt with {count} candidates")
    return low
