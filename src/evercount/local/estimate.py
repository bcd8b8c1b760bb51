"""The risk function f(x̂, θ) of an estimate, its minimiser, quantiles and errors. Post-processing of
sums only."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from evercount._validate import FloatArray, chance_outside, check_number, check_probability
from evercount.bounds import interval_quantile, simultaneous_quantile
from evercount.bounds.counting_error import local_learning_paper, sampling_error
from evercount.errors import ParameterError
from evercount.local.collection_plan import LocalPlan
from evercount.privacy import Budget


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
    """What every estimate of a collection answers about the risk E|θ − d| of its points, or of the
    loss behind them."""

    @property
    @abstractmethod
    def raw_slopes(self) -> FloatArray:
        """2F̂ − 1 at the ends 0, 1/w, …, 1 of the buckets, as it was estimated: the slope of the
        risk."""

    std: FloatArray  # std of each entry of the estimate

    def band(self, level: float = 0.95) -> FloatArray:
        """Half widths: with probability `level` all entries of the estimate lie within them, by the
        normal law.

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
        """The same, made nondecreasing in [−1, 1], as the slope of a convex risk is:
        `local.proof.md`, lemma 3."""
        from scipy.optimize import isotonic_regression

        return np.asarray(np.clip(isotonic_regression(self.raw_slopes).x, -1.0, 1.0))

    def quantile(self, tau: float) -> float:
        """The estimated τ-quantile of the collected points: where F̂ passes τ, linear inside a
        bucket.

        Args:
            tau: Which quantile, between 0 and 1; 0.5 is the median.

        Returns:
            A number in [0, 1].

        Raises:
            ParameterError: tau is not between 0 and 1.
        """
        check_probability("tau", tau)
        share = (1 + self.slopes) / 2
        w = len(share) - 1
        at = int(np.searchsorted(share, tau))
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
        """0, the middles of the buckets, 1: between two of them one end of a bucket is the
        nearest."""
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
        result = np.interp(
            points, self.knots, self._values(self.raw_slopes if raw else self.slopes)
        )
        if points.ndim == 0:
            return float(result)
        return result

    def _values(self, slopes: FloatArray) -> FloatArray:
        """Evaluate f at the knots; it is linear in between."""
        return np.concatenate([[0.0], np.cumsum(np.diff(self.knots) * slopes)])

    @cached_property
    def minimiser(self) -> float:
        """θ with the least estimated risk; the middle where f is flat."""
        values = self._values(self.slopes)
        least = np.flatnonzero(values <= values.min() + 1e-15)
        return float((self.knots[least[0]] + self.knots[least[-1]]) / 2)


def make_estimate(plan: LocalPlan, sums: npt.NDArray[np.int64], accepted: int) -> LocalEstimate:
    """x̂ from the sums of accepted messages.

    One counter: x̂[t] = 2·prefix[t]/n − 1, conditioned on prefix[w] = n, which the server knows. Two
    counters: the paper's x̂[t] = (Σy[t] − Σz[w−t])/n.
    """
    mean = sums.astype(np.float64) * (plan.entry / accepted)
    if plan.counters == 1:
        return conditioned(plan, accepted, mean)
    # entries w−t = w−1 … 1 and 0
    after = np.concatenate([plan.prefix(mean[plan.w :])[-2::-1], [0.0]])
    return LocalEstimate(
        plan, accepted, np.concatenate([[-1.0], plan.prefix(mean[: plan.w]) - after])
    )


def conditioned(
    plan: LocalPlan, accepted: int, mean: FloatArray, client_std: float | None = None
) -> LocalEstimate:
    """x̂ from the mean of one vector for each client, given that all values lie in some bucket."""
    prefix = plan.prefix(mean)
    x = 2 * (prefix - gain(plan) * (prefix[-1] - 1)) - 1
    return LocalEstimate(plan, accepted, np.concatenate([[-1.0], x]), client_std)


def gain(plan: LocalPlan) -> FloatArray:
    """Cov(prefix[t], prefix[w]) / Var(prefix[w]): how much of the known total's error is the error
    at t."""
    left = plan.left
    w = plan.w
    shared = np.asarray([left[:t] @ left[w - t :] for t in range(1, w + 1)])
    return np.asarray(shared / shared[-1])


@dataclass(frozen=True, eq=False)
class LocalEstimate(RiskFunction):
    """The estimate of a collection of `accepted` messages.

    `x` is x̂ at the ends 0, 1/w, …, 1 of the buckets: the share of values up to there minus the
    share beyond, so 2F̂ − 1 and the slope of the risk; x̂[0] = −1 is known.

    Args:
        plan: The public plan of the collection.
        accepted: How many messages were accepted.
        x: x̂ at the w + 1 ends of the buckets.
        client_std: The std of one client's vector, where the plan does not tell it (GenProt).

    **Guarantee.** The errors of x are normal (up to the rounding of entries; of GenProt about
    normal, as sums of many independent terms) with exactly the std `std`, whatever the data. Proof:
    `local.proof.md`, lemma 2. Test:
    tests/local/test_local_end_to_end.py::test_std_is_the_measured_one.

    >>> import numpy as np
    >>> from evercount.local import LocalPlan
    >>> plan = LocalPlan(1.0, 1e-6, 10_000, buckets=4)
    >>> estimate = LocalEstimate(plan, 10_000, np.array([-1.0, -0.5, 0.5, 1.0, 1.0]))
    >>> estimate.median, estimate.minimiser
    (0.375, 0.375)
    """

    plan: LocalPlan
    accepted: int
    x: FloatArray
    client_std: float | None = None

    @cached_property
    def rows(self) -> FloatArray:
        """x̂ as a linear map of one client's noise: shape (w + 1, entries); std = norm of a row ×
        noise std."""
        from scipy.linalg import toeplitz

        plan = self.plan
        w = self.plan.w
        left = np.vstack([np.zeros(w), toeplitz(plan.left, np.zeros(w))])
        if plan.counters == 1:
            left[1:] = 2 * (left[1:] - np.multiply.outer(gain(plan), left[w]))
            return left
        other = np.zeros_like(left)
        other[1:w] = -left[w - 1 : 0 : -1]  # row t reads entry w − t; none at t = w
        return np.hstack([left, other])

    @property
    def _noise(self) -> float:
        own = self.client_std or math.sqrt(self.plan.sigma**2 + self.plan.entry**2 / 12)
        return own / math.sqrt(self.accepted)

    @cached_property
    def std(self) -> FloatArray:  # type: ignore[override]
        """Std of each entry of x."""
        return np.asarray(self._noise * np.linalg.norm(self.rows, axis=1))

    @property
    def raw_slopes(self) -> FloatArray:
        return self.x

    def f_std(self, theta: float) -> float:
        """Std of f(theta, raw=True) at one θ in [0, 1]: f is linear in x̂.

        Args:
            theta: One number in [0, 1].

        Returns:
            The std.

        Raises:
            ParameterError: theta is not one number in [0, 1].
        """
        point = read_points(theta)
        if point.ndim != 0:
            raise ParameterError(f"theta must be one number, got an array of shape {point.shape}")
        lengths = np.diff(np.minimum(self.knots, point))
        return float(self._noise * np.linalg.norm(lengths @ self.rows))

    def f_interval(self, theta: float, level: float = 0.95) -> tuple[float, float]:
        """(low, high) that holds the empirical f(θ) with probability `level`: normal noise plus 1/w
        for the buckets.

        It is wider where f(theta), which is made convex, would lie outside.

        Args:
            theta: One number in [0, 1].
            level: The probability of the interval.

        Returns:
            The lower and the upper end.

        Raises:
            ParameterError: theta or the level is outside its range.
        """
        half = (
            interval_quantile(1 - check_number("level", level)) * self.f_std(theta)
            + 1 / self.plan.w
        )
        middle = self.f(theta, raw=True)
        published = self.f(theta)
        return min(middle - half, published), max(middle + half, published)

    def bound(self, level: float = 2 / 3, population: bool = False, raw: bool = False) -> float:
        """Corrected bound of |f(θ) − (risk at θ − risk at 0)|: it holds for all θ together with
        probability `level`.

        Noise: the largest half width of the band, or with `raw` its mean over [0, 1]. Buckets: 1/w.
        With `population`, half of β = 1 − level pays for the difference between the clients and the
        population they are drawn from: 2·√(ln(2/β′)/2n).

        Args:
            level: The probability that the bound holds.
            population: Whether the risk is that of the population, not that of the clients who
                answered.
            raw: Whether the bound is for `f(theta, raw=True)`.

        Returns:
            The bound.

        Raises:
            ParameterError: the level is not between 0 and 1.

        **Guarantee.** `local.proof.md`, theorem 2. Test:
        tests/local/test_local_end_to_end.py::test_errors_stay_within_the_bound.
        """
        beta = chance_outside(level)
        share = beta / 2 if population else beta
        band = self._band(share)
        if raw:
            noise = float(np.diff(self.knots) @ band)
        else:
            noise = float(band.max())
        extra = 0.0
        if population:
            extra = 2 * sampling_error(self.accepted, beta / 2)
        return noise + 1 / self.plan.w + extra

    def paper_bound(self) -> float:
        """The paper's corollary for probability 2/3, with its own constants: 2β + 2/(ε√n). Not
        relied on.

        Only for ε < 2: the paper gives each of two counters ε/2, and its calibration needs that
        below 1.

        Returns:
            The bound.

        Raises:
            ParameterError: ε is 2 or more, or the protocol is GenProt.
        """
        if self.client_std is not None:
            raise ParameterError("the paper states no bound for the pure protocol")
        if self.plan.epsilon >= 2:
            raise ParameterError(
                "the paper's calibration needs an epsilon below 1, and its two counters get "
                "epsilon/2 each: its bound exists for epsilon < 2 only, got "
                f"epsilon={self.plan.epsilon:g}; bound() holds for every epsilon"
            )
        half = Budget(self.plan.epsilon / 2, self.plan.delta / 2, calibration="paper")
        row = local_learning_paper(self.plan.epsilon, self.accepted, half.noise_multiplier())
        width = 2 / (self.plan.epsilon * math.sqrt(self.accepted))
        return 2 * (row - width) + width

    def __repr__(self) -> str:
        return (
            f"LocalEstimate(accepted={self.accepted}, minimiser={self.minimiser:.4g}, "
            f"bound={self.bound():.3g})"
        )
