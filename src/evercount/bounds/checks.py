"""Checks of the arguments of bounds, and the one way in which they are vectorised over ticks."""

from __future__ import annotations

import math
from collections.abc import Callable
from numbers import Integral, Real
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from evercount.errors import ParameterError

FloatArray: TypeAlias = npt.NDArray[np.float64]
Ticks: TypeAlias = int | npt.ArrayLike
Values: TypeAlias = float | FloatArray


def check_ticks(T: Ticks, what: str = "T") -> npt.NDArray[np.int64]:
    """`T` as an array of whole numbers of at least 1, below 2^53 so that they are exact as doubles."""
    ticks = np.asarray(T)
    if ticks.dtype.kind not in "iu":
        raise ParameterError(f"{what} must hold whole numbers below 2^53, not {T!r}.")
    if ticks.size and (ticks.min() < 1 or ticks.max() >= 2**53):
        raise ParameterError(f"{what} must lie between 1 and 2^53, not {T!r}.")
    return ticks.astype(np.int64)


def over_ticks(T: Ticks, formula: Callable[[npt.NDArray[np.int64]], FloatArray], what: str = "T") -> Values:
    """`formula` of the checked, flattened ticks; a float for a single tick, an array of their shape otherwise."""
    ticks = check_ticks(T, what)
    values = formula(ticks.ravel())
    return float(values[0]) if ticks.ndim == 0 else values.reshape(ticks.shape)


def check_whole(what: str, value: object, least: int = 1) -> int:
    """`value` as an int of at least `least`."""
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < least:
        raise ParameterError(f"{what} must be a whole number of at least {least}, not {value!r}.")
    return int(value)


def check_positive(what: str, value: object) -> float:
    """`value` as a finite float above zero."""
    if isinstance(value, bool) or not isinstance(value, Real) or not 0 < float(value) < math.inf:
        raise ParameterError(f"{what} must be a finite number above 0, not {value!r}.")
    return float(value)


def check_probability(what: str, value: object) -> float:
    """`value` as a float strictly between 0 and 1."""
    number = check_positive(what, value)
    if number >= 1:
        raise ParameterError(f"{what} must lie between 0 and 1, both excluded, not {value!r}.")
    return number
