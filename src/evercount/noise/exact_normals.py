"""The exact normals as arrays: sign, integer part and 128 fractional bits, and their exact conversions."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from evercount._arrays import FloatArray, UIntArray
from evercount.errors import ParameterError, TooLarge

FRACTION_BITS = 128  # every exact normal is an integer multiple of 2^−FRACTION_BITS

MOST_NUMBERS = 2**31  # a request for more numbers at once is refused: about 50 GB would be written


def as_integer(name: str, value: SupportsIndex) -> int:
    """An argument as a Python integer, or a ParameterError which names it."""
    try:
        return operator.index(value)
    except TypeError:
        raise ParameterError(f"{name} must be an integer, not {value!r}") from None


def check_block_size(draws: int, cells: int) -> None:
    """Refuse a block of numbers that is too large to be made at once."""
    if draws * cells > MOST_NUMBERS:
        raise TooLarge(
            f"{draws} draws × {cells} cells are more than 2^31 numbers: ask for fewer draws or cells at once"
        )


@dataclass(frozen=True, eq=False)
class Normals:
    """Numbers z = sign · (integer + (fraction_hi · 2^64 + fraction_lo) / 2^128), in arrays of one shape.

    Args:
        sign: the parts; `ExactNoise.normals` gives them.
        integer: the parts; `ExactNoise.normals` gives them.
        fraction_hi: the parts; `ExactNoise.normals` gives them.
        fraction_lo: the parts; `ExactNoise.normals` gives them.

    >>> one = np.ones((1, 1))
    >>> Normals(-one.astype(np.int8), one.astype(int), (one * 2**63).astype("u8"), 0 * one.astype("u8")).to_float()
    array([[-1.5]])
    """

    sign: npt.NDArray[np.int8]  # +1 or −1
    integer: npt.NDArray[np.int64]  # ⌊|z|⌋
    fraction_hi: UIntArray  # the upper 64 fractional bits
    fraction_lo: UIntArray  # the lower 64 fractional bits

    @property
    def shape(self) -> tuple[int, ...]:
        """``(draws, cells)``."""
        return self.integer.shape

    def __getitem__(self, index: Any) -> Normals:
        """The same numbers, indexed as an array: views where numpy gives views."""
        return Normals(*(np.asarray(part[index]) for part in vars(self).values()))

    def to_float(self) -> FloatArray:
        """The numbers as doubles, relative error ≤ 2^−51. For display and tests, never for a release.

        Returns:
            An array of the same shape.
        """
        magnitude = self.fraction_lo * 2.0**-128
        magnitude += self.fraction_hi * 2.0**-64
        magnitude += self.integer
        magnitude *= self.sign
        return np.asarray(magnitude, dtype=np.float64)

    def to_ints(self) -> npt.NDArray[np.object_]:
        """The exact values z · 2^128 as Python integers.

        Returns:
            An array of the same shape.
        """
        magnitude = (self.integer.astype(object) << 64) + self.fraction_hi.astype(object)
        magnitude = (magnitude << 64) + self.fraction_lo.astype(object)
        return np.asarray(magnitude * self.sign.astype(object), dtype=object)

    def slices(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Three doubles each: multiples of 2^−20, multiples of 2^−40 below 2^−20, and the rest below 2^−40.

        All have the sign of z. The first two are exact, the third is rounded: the sum is within 2^−92 of z.

        Returns:
            Three arrays of the same shape.
        """
        sign = self.sign.astype(np.float64)
        high = self.fraction_hi
        first = _doubles(high >> np.uint64(44), 2.0**-20)
        first += self.integer
        first *= sign
        second = _doubles((high >> np.uint64(24)) & np.uint64(2**20 - 1), 2.0**-40)
        second *= sign
        third = _doubles(self.fraction_lo >> np.uint64(1), 2.0**-127)
        third += _doubles(high & np.uint64(2**24 - 1), 2.0**-64)
        third *= sign
        return first, second, third


def _doubles(words: UIntArray, unit: float) -> FloatArray:
    """Words below 2^63 times a unit; numpy converts signed integers faster than unsigned ones."""
    return np.asarray(words.view(np.int64) * unit, dtype=np.float64)
