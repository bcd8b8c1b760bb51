"""The exact normals as arrays: sign, integer part and 128 fractional bits, and their exact conversions."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from typing import Any, SupportsIndex

import numpy as np
import numpy.typing as npt

from evercount._arrays import FloatArray, UIntArray
from evercount.errors import ParameterError, TooLarge

FRACTION_BITS = 128
"""Every exact normal is an integer multiple of 2^−FRACTION_BITS."""

INTEGER_BITS = 7
"""Room for the integer part when limbs are counted; larger integer parts stay exact in the top limb."""

MOST_NUMBERS = 2**31
"""A request for more numbers at once is refused: about 50 GB would be written."""


def whole(name: str, value: SupportsIndex) -> int:
    """An argument as a Python integer, or a ParameterError which names it."""
    try:
        return operator.index(value)
    except TypeError:
        raise ParameterError(f"{name} must be an integer, not {value!r}") from None


def fits(draws: int, cells: int) -> None:
    """Refuse a block of numbers that is too large to be made at once."""
    if draws * cells > MOST_NUMBERS:
        raise TooLarge(
            f"{draws} draws × {cells} cells are more than 2^31 numbers: ask for fewer draws or cells at a time"
        )


@dataclass(frozen=True, eq=False)
class Normals:
    """Numbers z = sign · (integer + (fraction_hi · 2^64 + fraction_lo) / 2^128), in arrays of one shape."""

    sign: npt.NDArray[np.int8]
    """+1 or −1."""
    integer: npt.NDArray[np.int64]
    """⌊|z|⌋."""
    fraction_hi: UIntArray
    """The upper 64 fractional bits."""
    fraction_lo: UIntArray
    """The lower 64 fractional bits."""

    @property
    def shape(self) -> tuple[int, ...]:
        """``(draws, cells)``."""
        return self.integer.shape

    def __getitem__(self, index: Any) -> Normals:
        """The same numbers, indexed as an array: views where numpy gives views."""
        return Normals(
            np.asarray(self.sign[index]),
            np.asarray(self.integer[index]),
            np.asarray(self.fraction_hi[index]),
            np.asarray(self.fraction_lo[index]),
        )

    def to_float(self) -> FloatArray:
        """The numbers as doubles, relative error ≤ 2^−51. For display and tests, never for a release."""
        magnitude = self.fraction_lo * 2.0**-128
        magnitude += self.fraction_hi * 2.0**-64
        magnitude += self.integer
        magnitude *= self.sign
        return np.asarray(magnitude, dtype=np.float64)

    def to_ints(self) -> npt.NDArray[np.object_]:
        """The exact values z · 2^128 as Python integers."""
        magnitude = (self.integer.astype(object) << 64) + self.fraction_hi.astype(object)
        magnitude = (magnitude << 64) + self.fraction_lo.astype(object)
        return np.asarray(magnitude * self.sign.astype(object), dtype=object)

    def limbs(self, width: int) -> FloatArray:
        """Signed limbs, little-endian, shape ``(limbs, *shape)``: exactly z · 2^128 = Σ limb_i · 2^(width·i).

        Every limb but the top one is below 2^width in magnitude; the top one too while |z| < 2^7, and else it
        takes what is left. All limbs of a number carry its sign.
        """
        width = whole("width", width)
        if not 8 <= width <= 48:
            raise ParameterError(f"limbs may be 8 to 48 bits wide, not {width}")
        count = -(-(FRACTION_BITS + INTEGER_BITS) // width)
        words = (self.fraction_lo, self.fraction_hi, self.integer.view(np.uint64))
        limbs = np.empty((count, *self.shape))
        mask = np.uint64(2**width - 1)
        piece = np.empty(self.shape, dtype=np.uint64)
        for number in range(count):
            word, offset = divmod(width * number, 64)
            np.right_shift(words[word], np.uint64(offset), out=piece)
            if word < 2 and offset + width > 64:
                piece |= words[word + 1] << np.uint64(64 - offset)
            if number < count - 1:
                piece &= mask
            elif word < 2 and offset + width <= 64:
                # The top limb takes all of the integer part, whatever its size.
                piece |= words[word + 1] << np.uint64(64 - offset)
            # Pieces are below 2^63, and numpy converts signed integers faster than unsigned ones.
            np.multiply(piece.view(np.int64), self.sign, out=limbs[number], casting="unsafe")
        return limbs
