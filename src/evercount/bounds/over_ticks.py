"""Apply a formula to one tick or to an array of ticks, after checking them. All bounds do it this way."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from evercount._arrays import FloatArray, IntArray
from evercount.errors import ParameterError

Ticks: TypeAlias = int | npt.ArrayLike
Values: TypeAlias = float | FloatArray


def check_ticks(T: Ticks, what: str = "T") -> IntArray:
    """`T` as an array of whole numbers of at least 1, below 2^53 so that they are exact as doubles."""
    ticks = np.asarray(T)
    if ticks.dtype.kind not in "iu":
        raise ParameterError(f"{what} must hold whole numbers below 2^53, not {T!r}.")
    if ticks.size and (ticks.min() < 1 or ticks.max() >= 2**53):
        raise ParameterError(f"{what} must lie between 1 and 2^53, not {T!r}.")
    return ticks.astype(np.int64)


def over_ticks(T: Ticks, formula: Callable[[IntArray], FloatArray], what: str = "T") -> Values:
    """`formula` of the checked, flattened ticks; a float for a single tick, an array of their shape otherwise."""
    ticks = check_ticks(T, what)
    values = formula(ticks.ravel())
    return float(values[0]) if ticks.ndim == 0 else values.reshape(ticks.shape)
