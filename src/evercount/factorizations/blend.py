"""`blend`: the row-weighted family with a filter that is fitted to the views that will be
published.

R = Toep(f)·diag(1/n): η = 1, and f is any rational filter whose zeros lie strictly between its
poles. Zeros next to their poles give fresh noise (best per tick), Zolotarev's points the square
root (best for running totals); views that are published together need something in between. Blends
for persons with running totals also have weights of rows and columns, and where their ticks lie
within one short period, taps. `fit_blend.py` finds the numbers; `blend.proof.md` says why any are
safe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from weakref import WeakValueDictionary

import numpy as np

from evercount._validate import FloatArray, IntArray
from evercount.errors import ParameterError
from evercount.factorizations.base import check_horizon, check_known_horizon, lower_toeplitz
from evercount.factorizations.dense import Dense
from evercount.factorizations.filter_numbers import (
    PiecewiseLinear,
    Rational,
    dyadic_knots,
    round_bits,
)
from evercount.factorizations.optimal import LARGEST_OPTIMAL_HORIZON
from evercount.factorizations.row_weighted import Weighted, Weights, bounded_columns

ROOT_BITS = 16
"""Significant bits of what a root lacks to 1: few enough to be read, far more than errors of noise
can show."""
LEAST_LACK = 2.0**-52
"""No root is closer to 1: a part of the longest horizon."""
LEAST_GAP = 2.0**-12
"""Neighbouring roots differ by at least this part of their u-values, so that residues lose few
bits."""
MOST_ROOTS = 32
"""More poles than any fit has."""
WEIGHT_BITS = 12
"""Numbers of weights are multiples of 2^−12 between −1 and 1; so are taps."""
WEIGHT_SHAPES = 5
"""Weights have five numbers for rows and five for columns."""
MOST_TAPS = 31
"""Taps reach less far back than the period of a unit, and longer periods are not fitted."""


@dataclass(frozen=True)
class BlendFilter:
    """The public numbers of a blend: what poles and zeros lack to 1, as dyadic numbers of at most
    16 bits.

    Args:
        poles: 1 − λ_i, rising.
        zeros: 1 − μ_i, each between its pole and the next one, the last below 1.
        weights: None, or what ln e_t and then ln c_t are made of: ln(t+1+T/18), ln(T−t+1) and
            cos(kπt/T) for k = 1, 2, 3, each times a multiple of 2^−12 between −1 and 1. Without
            them e = c = 1.
        taps: a_1 ≥ a_2 ≥ …, multiples of 2^−12 between 0 and 1, only with weights: the filter is
            F/A with A(z) = 1 + a_1·z + a_2·z² + …

    Raises:
        ParameterError: The numbers do not interlace, taps rise, or one has more bits than it may.

    >>> BlendFilter((0.25,), (0.5,)).to_dict()
    {'poles': [0.25], 'zeros': [0.5]}
    """

    poles: tuple[float, ...]
    zeros: tuple[float, ...]
    weights: tuple[float, ...] = ()
    taps: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        roots = [root for pair in zip(self.poles, self.zeros, strict=False) for root in pair]
        if len(self.poles) != len(self.zeros) or len(self.poles) > MOST_ROOTS:
            raise ParameterError(f"a blend has as many zeros as poles, at most {MOST_ROOTS}")
        if not all(isinstance(root, float) for root in roots):
            raise ParameterError("poles and zeros of a blend are numbers such as 0.25")
        if not all(LEAST_LACK <= root < 1 and root == round_root(root) for root in roots):
            raise ParameterError(
                f"poles and zeros of a blend lie between 2^-52 and 1 and have at most {ROOT_BITS} "
                "bits"
            )
        u = [root / (1 - root) for root in roots]
        if not all(low * (1 + LEAST_GAP) <= high for low, high in pairwise(u)):
            raise ParameterError(
                "poles and zeros of a blend must take turns, rising, each a little after the other"
            )
        if not (len(self.weights) in (0, 2 * WEIGHT_SHAPES) and all(map(_is_weight, self.weights))):
            raise ParameterError("weights of a blend are ten multiples of 2^-12 between -1 and 1")
        if not all(map(_is_weight, self.taps)) or any(
            low < high for low, high in pairwise((1.0, *self.taps, 0.0))
        ):
            raise ParameterError(
                "taps of a blend are multiples of 2^-12 between 0 and 1 that never rise"
            )
        if self.taps and (len(self.taps) > MOST_TAPS or not self.weights):
            raise ParameterError(f"a blend has at most {MOST_TAPS} taps, and only with weights")

    def rational(self) -> Rational:
        """The filter F."""
        return Rational(np.asarray(self.poles), np.asarray(self.zeros))

    def to_dict(self) -> dict[str, list[float]]:
        """The numbers for JSON: `from_dict` gives the same filter bit for bit."""
        more = {"weights": list(self.weights), "taps": list(self.taps)}
        return {"poles": list(self.poles), "zeros": list(self.zeros)} | {
            key: more[key] for key in more if more[key]
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> BlendFilter:
        """The filter that `to_dict` described, or a ParameterError."""
        known = {"poles", "zeros"} <= set(stored) <= {"poles", "zeros", "weights", "taps"}
        if not known or not all(isinstance(part, Sequence) for part in stored.values()):
            raise ParameterError(
                "a blend is stored as {'poles': [...], 'zeros': [...]}, with or without 'weights' "
                "and 'taps'"
            )
        return cls(**{name: tuple(part) for name, part in stored.items()})


def round_root(lack: float) -> float:
    """A number rounded to 16 significant bits."""
    return float(_round(np.asarray(lack)))


def _round(values: FloatArray) -> FloatArray:
    """Round to `ROOT_BITS` significant bits."""
    mantissa, exponent = np.frexp(values)
    return np.asarray(np.ldexp(np.rint(mantissa * 2.0**ROOT_BITS), exponent - ROOT_BITS))


def _is_weight(value: object) -> bool:
    """Whether it is a multiple of 2^−12 between −1 and 1."""
    return isinstance(value, float) and abs(value) <= 1 and (value * 2**WEIGHT_BITS).is_integer()


class Blend(Weighted):
    """One noise for several views: a fitted filter, with its columns scaled to norm 1.

    Args:
        horizon: The number of ticks. None: without end, private for ever; its errors are those of
            the fit as long as that was made for.
        filter: The public numbers, from `fit_blend`.

    Raises:
        ParameterError: The horizon is neither None nor a whole number from 1 to 2^50, or it is None
            and the filter has weights.

    **Guarantee.** L·R = M and every column of R has norm at most 1, for every filter that
    `BlendFilter` accepts. Proof: `blend.proof.md`. Tests in tests/factorizations/test_blend.py:
    test_any_filter_gives_factors_with_columns_of_at_most_one,
    test_weights_give_factors_with_columns_of_at_most_one and
    test_zeros_that_do_not_interlace_are_refused.

    >>> Blend(365, BlendFilter((0.25,), (0.5,))).row_norms([1, 365]).round(3).tolist()
    [1.069, 10.278]
    """

    name = "blend"

    # what it is called
    def __init__(self, horizon: int | None, filter: BlendFilter) -> None:  # noqa: A002
        T = check_horizon(horizon)
        if filter.taps:
            raise ParameterError("a blend with taps is a TappedBlend")
        self.filter = filter
        super().__init__(_weights(T, filter), T)

    @property
    def spec(self) -> str | dict[str, Any]:
        return {"name": self.name, **self.filter.to_dict()}


class TappedBlend(Dense):
    """A blend for units within one short period, such as a person's week: R =
    diag(e)·Toep(f/a)·diag(1/n).

    Taps a take days apart that one unit can touch together, so that it pays for each of them alone:
    G is nearly 0 at distances within a period, and jumps after it. The matrices are those of all
    ticks, checked as any `Dense` ones.

    Args:
        horizon: The number of ticks, at most 1024.
        filter: The public numbers, with weights and taps, from `fit_blend`.

    Raises:
        ParameterError: The horizon is not a whole number from 1 to 1024, or there are no weights.

    **Guarantee.** That of `Dense`, for the doubles of L, which sums and products of few bits make
    without matrix products: they are the same on every machine. Proof: `blend.proof.md`, "Taps".
    Tests in tests/factorizations/test_blend.py: test_taps_give_factors_of_the_counting_matrix and
    test_periods_cost_no_more_than_claimed_with_taps.

    >>> filter_ = BlendFilter((0.25,), (0.5,), (0.0,) * 10, (0.5, 0.25))
    >>> TappedBlend(365, filter_).row_norms([1, 365]).round(3).tolist()
    [1.049, 17.604]
    """

    def __init__(self, horizon: int, filter: BlendFilter) -> None:  # noqa: A002 - as of `Blend`
        T = check_known_horizon(horizon)
        if T > LARGEST_OPTIMAL_HORIZON:
            raise ParameterError(
                f"a blend with taps has at most {LARGEST_OPTIMAL_HORIZON} ticks, got {T}"
            )
        self.filter = filter
        log_e, log_c = np.reshape(filter.weights, (2, WEIGHT_SHAPES)) @ weight_shapes(
            T, np.arange(T)
        )
        e = _round(np.exp(log_e - log_e.max()))
        poles, zeros = ([1 - lack for lack in part] for part in (filter.poles, filter.zeros))
        f = lower_toeplitz(_series(T, zeros, poles, (), filter.taps))
        n = _round(np.linalg.norm(e[:, np.newaxis] * f, axis=0) * np.exp(log_c.max() - log_c))
        g = lower_toeplitz(_series(T, poles, zeros, filter.taps, ()))
        super().__init__(
            np.cumsum(n[:, np.newaxis] * g / e, axis=0), e[:, np.newaxis] * f / n, Blend.name
        )

    @property
    def spec(self) -> str | dict[str, Any]:
        return {"name": self.name, **self.filter.to_dict()}


_shared: WeakValueDictionary[tuple[int | None, BlendFilter], Blend] = WeakValueDictionary()
"""Blends that are in use: equal streams share the tables of one."""


def make_blend(horizon: int | None, filter_: BlendFilter) -> Blend | TappedBlend:
    """The blend with these numbers."""
    if not filter_.taps:
        shared = _shared.get((horizon, filter_))
        if shared is None:
            return _shared.setdefault((horizon, filter_), Blend(horizon, filter_))
        return shared
    if horizon is None:
        raise ParameterError("a blend with taps needs a horizon")
    return TappedBlend(horizon, filter_)


def _series(
    T: int,
    tops: Sequence[float],
    roots: Sequence[float],
    above: Sequence[float],
    below: Sequence[float],
) -> FloatArray:
    """The first T coefficients of A(z)·Π(1−top·z)/(1−root·z)/B(z), taps of A above and of B below.

    One operation after the other on doubles: every machine gets the same.
    """
    x = ([1.0, *above] + [0.0] * T)[:T]
    for top, root in zip(tops, roots, strict=True):
        before = after = 0.0
        for t, value in enumerate(x):
            after = value - top * before + root * after
            x[t] = after
            before = value
    for t in range(T if below else 0):
        for lag, tap in enumerate(below[:t], start=1):
            x[t] -= tap * x[t - lag]
    return np.asarray(x)


def _weights(T: int | None, filter_: BlendFilter) -> Weights:
    """Compute the weights of rows and columns of a blend, by its public numbers alone."""
    if T is None:
        knots = np.zeros(1, dtype=np.int64)
    else:
        knots = dyadic_knots(T - 1, mirrored=True)
    rational = filter_.rational()
    if not filter_.weights:
        eta = PiecewiseLinear(knots, np.ones(len(knots)))
        return Weights(rational, eta, bounded_columns(rational, eta, endless=T is None))
    if T is None:
        raise ParameterError("a blend with weights needs a horizon")
    log_e, log_c = np.reshape(filter_.weights, (2, WEIGHT_SHAPES)) @ weight_shapes(T, knots)
    eta = PiecewiseLinear(knots, round_bits(np.exp(log_e.max() - log_e)))
    n = bounded_columns(rational, eta, endless=False).values
    return Weights(
        rational, eta, PiecewiseLinear(knots, round_bits(n * np.exp(log_c.max() - log_c), up=True))
    )


def weight_shapes(T: int, ticks: IntArray) -> FloatArray:
    """What logarithms of weights are made of, at 0-based ticks, (5, ticks): two powers and three
    slow waves."""
    waves = np.cos(np.pi * np.multiply.outer(np.arange(1, WEIGHT_SHAPES - 1), ticks / T))
    return np.stack([np.log(ticks + 1 + T / 18), np.log(T - ticks + 1), *waves])
