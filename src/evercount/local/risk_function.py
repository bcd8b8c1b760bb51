"""The estimated risk as a function of θ, from its slope at the ends of the buckets: post-processing of any estimate."""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import cached_property
from typing import Any

import numpy as np

from evercount._arrays import FloatArray
from evercount._validate import chance_outside, check_probability
from evercount.bounds import simultaneous_quantile
from evercount.errors import ParameterError


def read_points(theta: Any) -> FloatArray:
    """θ, one or many, as floats in [0, 1]; texts and booleans are refused."""
    try:
        points = np.asarray(theta)
    except ValueError:  # lists of unequal lengths
        points = np.asarray("")
    if points.dtype.kind not in "iuf":
        raise ParameterError(f"theta must be a number in [0, 1] or an array of them, got {theta!r}")
    points = points.astype(np.float64)
    if not ((points >= 0) & (points <= 1)).all():
        raise ParameterError(f"theta must lie in [0, 1], got {theta!r}")
    return points


class RiskFunction(ABC):
    """What every estimate of a collection answers about the risk E|θ − d| of its points, or of the loss behind them."""

    @property
    @abstractmethod
    def raw_slopes(self) -> FloatArray:
        """2F̂ − 1 at the ends 0, 1/w, …, 1 of the buckets, as it was estimated: the slope of the risk."""

    std: FloatArray  # std of each entry of the estimate

    def band(self, level: float = 0.95) -> FloatArray:
        """Half widths: with probability `level` all entries of the estimate lie within them, by the normal law.

        Args:
            level: The probability that all entries lie inside.

        Returns:
            One half width for each entry of the estimate.

        Raises:
            ParameterError: the level is not between 0 and 1.
        """
        return self._band(chance_outside(level))

    def _band(self, beta: float) -> FloatArray:
        return np.asarray(simultaneous_quantile(len(self.raw_slopes) - 1, beta) * self.std)

    @cached_property
    def slopes(self) -> FloatArray:
        """The same, made nondecreasing in [−1, 1], as the slope of a convex risk is."""
        from scipy.optimize import isotonic_regression

        return np.asarray(np.clip(isotonic_regression(self.raw_slopes).x, -1.0, 1.0))

    def quantile(self, tau: float) -> float:
        """The estimated τ-quantile of the collected points: where F̂ passes τ, linear inside a bucket.

        Args:
            tau: Which quantile, between 0 and 1; 0.5 is the median.

        Returns:
            A number in [0, 1].

        Raises:
            ParameterError: tau is not between 0 and 1.
        """
        check_probability("tau", tau)
        share = (1 + self.slopes) / 2
        w, at = len(share) - 1, int(np.searchsorted(share, tau))
        if not 0 < at <= w:
            return float(at > w)
        step = share[at] - share[at - 1]
        return float((at - 1 + (tau - share[at - 1]) / step) / w)

    @property
    def median(self) -> float:
        """The estimated median."""
        return self.quantile(0.5)

    @cached_property
    def knots(self) -> FloatArray:
        """0, the middles of the buckets, 1: between two of them one end of a bucket is the nearest."""
        w = len(self.raw_slopes) - 1
        return np.concatenate([[0.0], (np.arange(w) + 0.5) / w, [1.0]])

    def f(self, theta: Any, raw: bool = False) -> Any:
        """The paper's f(x̂, θ) = ∫₀^θ x̂[nearest end]: estimated risk at θ minus that at 0.

        Args:
            theta: One number in [0, 1], or an array of them.
            raw: Whether x̂ is used as it is; by default its monotone form, which makes f convex.

        Returns:
            One number, or an array of the shape of theta.

        Raises:
            ParameterError: If theta is not a number in [0, 1].
        """
        points = read_points(theta)
        result = np.interp(points, self.knots, self._values(self.raw_slopes if raw else self.slopes))
        return float(result) if points.ndim == 0 else result

    def _values(self, slopes: FloatArray) -> FloatArray:
        """f at the knots; it is linear in between."""
        return np.concatenate([[0.0], np.cumsum(np.diff(self.knots) * slopes)])

    def risk(self, theta: Any) -> Any:
        """f plus the estimated risk at 0, E|0 − d|: for the absolute loss the risk itself; else up to a constant.

        Args:
            theta: One number in [0, 1], or an array of them.

        Returns:
            One number, or an array of the shape of theta.

        Raises:
            ParameterError: If theta is not a number in [0, 1].
        """
        return self.f(theta) + (1 - float(self._values(self.slopes)[-1])) / 2

    @cached_property
    def minimiser(self) -> float:
        """θ with the least estimated risk; the middle where f is flat."""
        values = self._values(self.slopes)
        least = np.flatnonzero(values <= values.min() + 1e-15)
        return float((self.knots[least[0]] + self.knots[least[-1]]) / 2)
