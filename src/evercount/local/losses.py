"""Any convex 1-Lipschitz loss on [0, 1] as a median problem: the randomised reduction (Smith,
Thakurta, Upadhyay 2017).

For a loss ℓ(θ, d) with right derivative ℓ′ in [−1, 1], let Z(d) have the distribution function (1 +
ℓ′(θ, d))/2 on [0, 1). Then d/dθ E|θ − Z| = 2·P(Z ≤ θ) − 1 = ℓ′(θ, d), so E|θ − Z(d)| = ℓ(θ, d) plus
a constant in θ, and the median problem over the points Z(d) has the same minimiser and the same
differences of risk. Z uses a client's own randomness and is drawn before the private message, so it
cannot harm privacy.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from evercount._validate import FloatArray, check_number, check_probability
from evercount.errors import InputError, ParameterError


def is_number(value: object) -> bool:
    """Whether this is a Python or NumPy number; booleans are none."""
    return isinstance(value, float | int | np.floating | np.integer) and not isinstance(value, bool)


def check_point(value: Any) -> float:
    """A value in [0, 1] as a float, or an InputError that does not show it."""
    if not is_number(value):
        raise InputError(f"a value must be a number in [0, 1], got {type(value).__name__}")
    if not 0 <= value <= 1:  # before it becomes a float, which not every int fits
        raise InputError("the value lies outside [0, 1]: scale it before it is sent")
    return float(value)


def check_points(values: Any) -> FloatArray:
    """Many values in [0, 1], or an InputError."""
    points = np.atleast_1d(np.asarray(values, np.float64))
    if points.ndim != 1 or not ((points >= 0) & (points <= 1)).all():
        raise InputError("points must be a sequence of numbers in [0, 1]")
    return points


def labelled_point(data: Any) -> tuple[float, int]:
    """A pair (x, y), x in [0, 1] and y = ±1, or an InputError that does not show it."""
    try:
        x, y = data
    except (TypeError, ValueError):
        raise InputError("a data point of this loss is a pair (x, y)") from None
    if not is_number(y) or y not in (-1, 1):
        raise InputError("the label y must be -1 or 1")
    return check_point(x), int(y)


class Loss(ABC):
    """A convex 1-Lipschitz loss in θ ∈ [0, 1]."""

    @abstractmethod
    def derivative(self, theta: float, data: Any) -> float:
        """The right derivative in θ, in [−1, 1] and nondecreasing.

        Args:
            theta: θ, in [0, 1].
            data: The data point d.

        Returns:
            The slope.

        Raises:
            InputError: the data point is outside the domain of the loss.
        """

    def sample(self, data: Any, u: float) -> float:
        """Z(d) from a uniform u in [0, 1): the smallest double θ in [0, 1] with (1 + ℓ′(θ, d))/2 >
        u; 1 without one.

        Args:
            data: The data point d.
            u: The random number, in [0, 1).

        Returns:
            A point in [0, 1].

        Raises:
            ParameterError: u lies outside [0, 1).
            InputError: The loss is not 1-Lipschitz.
        """
        if not 0 <= u < 1:
            raise ParameterError(f"u must lie in [0, 1), got {u!r}")

        def reached(theta: float) -> bool:
            slope = self.derivative(theta, data)
            if not -1 <= slope <= 1:
                raise InputError(
                    f"the loss is not 1-Lipschitz: its derivative at {theta:g} is outside [-1, 1]"
                )
            return (1 + slope) / 2 > u

        if reached(0.0):
            return 0.0
        low, high = 0.0, 1.0
        while low < (middle := (low + high) / 2) < high:
            if reached(middle):
                high = middle
            else:
                low = middle
        return high


@dataclass(frozen=True)
class Absolute(Loss):
    """|θ − d|: the median. Z(d) = d, so no randomness is used.

    >>> loss = Absolute()
    >>> loss.derivative(0.5, 0.25), loss.sample(0.25, 0.9)
    (1.0, 0.25)
    """

    def derivative(self, theta: float, data: Any) -> float:
        return 1.0 if theta >= check_point(data) else -1.0

    def sample(self, data: Any, u: float) -> float:
        return check_point(data)


@dataclass(frozen=True)
class Quantile(Loss):
    """The pinball loss: τ(d − θ) below d and (1 − τ)(θ − d) above it; its minimiser is the
    τ-quantile.

    One collection with `Absolute` answers every quantile (`LocalEstimate.quantile`) with less
    noise; this loss is for a server that minimises.

    Args:
        tau: τ, between 0 and 1; 0.5 is the median.

    Raises:
        ParameterError: tau is not between 0 and 1.

    >>> loss = Quantile(0.75)
    >>> loss.derivative(0.5, 1.0), loss.sample(0.5, 0.1)
    (-0.75, 0.0)
    """

    tau: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "tau", check_probability("tau", self.tau))

    def derivative(self, theta: float, data: Any) -> float:
        if theta >= check_point(data):
            return 1 - self.tau
        return -self.tau


@dataclass(frozen=True)
class Hinge(Loss):
    """Threshold classification: data (x, y) with y = ±1, ℓ = max(0, margin − y·(θ − x)), x and θ in
    [0, 1].

    Args:
        margin: How far θ must lie on the right side of x for no loss, from 0 to 1.

    Raises:
        ParameterError: margin lies outside [0, 1].

    >>> loss = Hinge(0.25)
    >>> loss.derivative(0.5, (0.5, 1)), loss.sample((0.5, 1), 0.25)
    (-1.0, 0.75)
    """

    margin: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "margin", check_number("margin", self.margin))
        if not 0 <= self.margin <= 1:
            raise ParameterError(f"margin must lie in [0, 1], got {self.margin!r}")

    def derivative(self, theta: float, data: Any) -> float:
        x, y = labelled_point(data)
        if y == 1:
            return 0.0 if theta >= x + self.margin else -1.0
        return 1.0 if theta >= x - self.margin else 0.0


@dataclass(frozen=True)
class Logistic(Loss):
    """Threshold classification with a smooth loss: data (x, y) with y = ±1, ℓ = s·ln(1 + exp(−y·(θ
    − x)/s)).

    y = 1 means that the threshold θ should lie above x.

    Args:
        scale: s, at most 10; the smaller, the nearer to `Hinge(0)`.

    Raises:
        ParameterError: If the scale is out of range.

    >>> loss = Logistic(0.25)
    >>> loss.derivative(0.5, (0.5, 1)), loss.sample((0.5, 1), 0.25), loss.sample((0.5, -1), 0.25)
    (-0.5, 0.5, 0.0)
    """

    scale: float = 0.1

    def __post_init__(self) -> None:
        object.__setattr__(self, "scale", check_number("scale", self.scale))
        if not 0 < self.scale <= 10:
            raise ParameterError(f"scale must lie between 0 and 10, got {self.scale!r}")

    def derivative(self, theta: float, data: Any) -> float:
        x, y = labelled_point(data)
        return float(-y * np.exp(-np.logaddexp(0.0, y * (theta - x) / self.scale)))

    def sample(self, data: Any, u: float) -> float:
        """The end of [0, 1] towards which y points with probability 1/2, else a logistic number
        around x, clipped."""
        x, y = labelled_point(data)
        if y == 1:
            odds = (2 * u, 1 - 2 * u)
        else:
            odds = (2 * u - 1, 2 - 2 * u)
        if odds[0] <= 0:
            return 0.0
        if odds[1] <= 0:
            return 1.0
        return float(min(max(x + self.scale * math.log(odds[0] / odds[1]), 0.0), 1.0))


@dataclass(frozen=True)
class ConvexLoss(Loss):
    """Your own loss, given by its right derivative in θ: a function of (θ, d) with values in [−1,
    1].

    Args:
        slope: The right derivative.

    Raises:
        ParameterError: It cannot be called.

    >>> loss = ConvexLoss(lambda theta, d: theta - d)  # of (θ − d)²/2
    >>> loss.derivative(1.0, 0.5), round(loss.sample(0.5, 0.5), 6)
    (0.5, 0.5)
    """

    slope: Callable[[float, Any], float]

    def __post_init__(self) -> None:
        if not callable(self.slope):
            raise ParameterError(f"slope must be a function of (theta, data), got {self.slope!r}")

    def derivative(self, theta: float, data: Any) -> float:
        value: Any = self.slope(theta, data)
        try:
            if isinstance(value, str | bytes):  # float would read them
                raise TypeError
            return float(value)
        except (TypeError, ValueError, OverflowError):
            # the message does not show the value: it follows from the data
            raise InputError(
                f"the function slope must return a number, got {type(value).__name__}"
            ) from None
