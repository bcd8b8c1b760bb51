"""`blend`: the row-weighted family with a filter that is fitted to the views that will be published.

R = Toep(f)·diag(1/n): η = 1, and f is any rational filter whose zeros lie strictly between its poles. Zeros next to
their poles give fresh noise (best per tick), Zolotarev's points the square root (best for running totals); views that
are published together need something in between. Blends for persons with running totals also have weights of rows and
columns. `fit_blend.py` finds the numbers; `blend.proof.md` says why any are safe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from evercount._arrays import FloatArray, IntArray
from evercount.errors import ParameterError
from evercount.factorizations.base import check_horizon
from evercount.factorizations.piecewise_linear import PiecewiseLinear, dyadic_knots
from evercount.factorizations.row_weighted import Weighted, Weights, bounded_columns
from evercount.factorizations.square_root_filter import Rational, round_bits

ROOT_BITS = 16
"""Significant bits of what a root lacks to 1: few enough to be read, far more than errors of noise can show."""
LEAST_LACK = 2.0**-52
"""No root is closer to 1: a part of the longest horizon."""
LEAST_GAP = 2.0**-12
"""Neighbouring roots differ by at least this part of their u-values, so that residues lose few bits."""
MOST_ROOTS = 32
"""More poles than any fit has."""
WEIGHT_BITS, WEIGHT_SHAPES = 12, 5
"""Weights have five numbers for rows and five for columns, multiples of 2^−12 between −1 and 1."""


@dataclass(frozen=True)
class BlendFilter:
    """The public numbers of a blend: what poles and zeros lack to 1, as dyadic numbers of at most 16 bits.

    Args:
        poles: 1 − λ_i, rising.
        zeros: 1 − μ_i, each between its pole and the next one, the last below 1.
        weights: None, or what ln e_t and then ln c_t are made of: ln(t+1+T/18), ln(T−t+1) and cos(kπt/T) for k = 1,
            2, 3, each times a multiple of 2^−12 between −1 and 1. Without them e = c = 1.

    Raises:
        ParameterError: The numbers do not interlace, or one has more than 16 bits.

    >>> BlendFilter((0.25,), (0.5,)).to_dict()
    {'poles': [0.25], 'zeros': [0.5]}
    """

    poles: tuple[float, ...]
    zeros: tuple[float, ...]
    weights: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        roots = [root for pair in zip(self.poles, self.zeros, strict=False) for root in pair]
        if len(self.poles) != len(self.zeros) or len(self.poles) > MOST_ROOTS:
            raise ParameterError(f"a blend has as many zeros as poles, at most {MOST_ROOTS}")
        if not all(isinstance(root, float) for root in roots):
            raise ParameterError("poles and zeros of a blend are numbers such as 0.25")
        if not all(LEAST_LACK <= root < 1 and root == round_root(root) for root in roots):
            raise ParameterError(
                f"poles and zeros of a blend lie between 2^-52 and 1 and have at most {ROOT_BITS} bits"
            )
        u = [root / (1 - root) for root in roots]
        if not all(low * (1 + LEAST_GAP) <= high for low, high in pairwise(u)):
            raise ParameterError("poles and zeros of a blend must take turns, rising, each a little after the other")
        if not (len(self.weights) in (0, 2 * WEIGHT_SHAPES) and all(map(_is_weight, self.weights))):
            raise ParameterError("weights of a blend are ten multiples of 2^-12 between -1 and 1")

    def rational(self) -> Rational:
        """The filter F."""
        return Rational(np.asarray(self.poles), np.asarray(self.zeros))

    def to_dict(self) -> dict[str, list[float]]:
        """The numbers for JSON: `from_dict` gives the same filter bit for bit."""
        weights = {"weights": list(self.weights)} if self.weights else {}
        return {"poles": list(self.poles), "zeros": list(self.zeros), **weights}

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> BlendFilter:
        """The filter that `to_dict` described, or a ParameterError."""
        names = ("poles", "zeros", "weights") if "weights" in stored else ("poles", "zeros")
        parts = [stored.get(name) for name in names]
        if set(stored) != set(names) or not all(isinstance(part, Sequence) for part in parts):
            raise ParameterError("a blend is stored as {'poles': [...], 'zeros': [...]}, with or without 'weights'")
        return cls(*(tuple(part) for part in parts if part is not None))


def round_root(lack: float) -> float:
    """A number rounded to 16 significant bits."""
    mantissa, exponent = np.frexp(lack)
    return float(np.ldexp(np.rint(mantissa * 2.0**ROOT_BITS), int(exponent) - ROOT_BITS))


def _is_weight(value: object) -> bool:
    return isinstance(value, float) and abs(value) <= 1 and (value * 2**WEIGHT_BITS).is_integer()


class Blend(Weighted):
    """One noise for several views: a fitted filter, with its columns scaled to norm 1.

    Args:
        horizon: The number of ticks. None: without end, private for ever; its errors are those of the fit as long as
            that was made for.
        filter: The public numbers, from `fit_blend`.

    Raises:
        ParameterError: The horizon is neither None nor a whole number from 1 to 2^50, or it is None and the filter has
            weights.

    **Guarantee.** L·R = M and every column of R has norm at most 1, for every filter that `BlendFilter` accepts. Proof:
    `blend.proof.md`. Tests in tests/factorizations/test_blend.py:
    test_any_filter_gives_factors_with_columns_of_at_most_one, test_weights_give_factors_with_columns_of_at_most_one and
    test_zeros_that_do_not_interlace_are_refused.

    >>> Blend(365, BlendFilter((0.25,), (0.5,))).row_norms([1, 365]).round(3).tolist()
    [1.069, 10.278]
    """

    name = "blend"

    def __init__(self, horizon: int | None, filter: BlendFilter) -> None:  # noqa: A002 - what it is called
        T = check_horizon(horizon, unbounded=True)
        self.filter = filter
        super().__init__(_weights(T, filter), T)

    @property
    def spec(self) -> str | dict[str, Any]:
        return {"name": self.name, **self.filter.to_dict()}


def _weights(T: int | None, filter_: BlendFilter) -> Weights:
    knots = np.zeros(1, dtype=np.int64) if T is None else dyadic_knots(T - 1, mirrored=True)
    rational = filter_.rational()
    if not filter_.weights:
        eta = PiecewiseLinear(knots, np.ones(len(knots)))
        return Weights(rational, eta, bounded_columns(rational, eta, endless=T is None))
    if T is None:
        raise ParameterError("a blend with weights needs a horizon")
    log_e, log_c = np.reshape(filter_.weights, (2, WEIGHT_SHAPES)) @ weight_shapes(T, knots)
    eta = PiecewiseLinear(knots, round_bits(np.exp(log_e.max() - log_e)))
    n = bounded_columns(rational, eta, endless=False).values
    return Weights(rational, eta, PiecewiseLinear(knots, round_bits(n * np.exp(log_c.max() - log_c), up=True)))


def weight_shapes(T: int, ticks: IntArray) -> FloatArray:
    """What logarithms of weights are made of, at 0-based ticks, (5, ticks): two powers and three slow waves."""
    waves = np.cos(np.pi * np.multiply.outer(np.arange(1, WEIGHT_SHAPES - 1), ticks / T))
    return np.stack([np.log(ticks + 1 + T / 18), np.log(T - ticks + 1), *waves])
