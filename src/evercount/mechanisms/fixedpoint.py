"""Fixed-point numbers as limbs: exact integer arithmetic on whole arrays, carried by doubles.

A number is Σ_l digit_l·2^(22·l). After `carry` every digit lies in [0, 2^22) but the top one, which is signed: cutting
low digits off is then the floor. Constants have balanced digits in [−2^21, 2^21]. Every product of digits is an integer
below 2^44 in magnitude, so sums of up to 2^9 of them are exact in doubles, in any order; `CAPACITY` is checked.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from evercount.errors import SnapshotError

FloatArray = npt.NDArray[np.float64]
ObjectArray = npt.NDArray[np.object_]

WIDTH = 22
"""Bits of a limb."""
BASE = 1 << WIDTH
CAPACITY = 2**53 // (BASE * BASE // 2)
"""How many products of a digit and a constant's digit may be summed: each is at most 2^22·2^21."""

_BASE = float(BASE)
_INVERSE = 2.0**-WIDTH


def limbs_for(bits: float) -> int:
    """Limbs that hold every integer of magnitude below 2^bits, with its sign."""
    return int(bits + 1) // WIDTH + 1


def balanced(values: Sequence[int]) -> FloatArray:
    """Constants as balanced digits, shape (limbs, len(values)); as many limbs as the largest needs, at least one."""
    rest = list(values)
    rows = []
    half = BASE >> 1
    while not rows or any(rest):
        digits = [((value + half) & (BASE - 1)) - half for value in rest]
        rows.append(digits)
        rest = [(value - digit) >> WIDTH for value, digit in zip(rest, digits, strict=True)]
    return np.asarray(rows, dtype=np.float64)


def carry(x: FloatArray, drop: int = 0) -> FloatArray:
    """Normalise in place over axis 0 and return all but the `drop` lowest limbs: ⌊number / 2^(22·drop)⌋."""
    up = np.empty(x.shape[1:])
    for limb in range(len(x) - 1):
        digit = x[limb]
        np.multiply(digit, _INVERSE, out=up)
        np.floor(up, out=up)
        x[limb + 1] += up
        if limb >= drop:
            up *= _BASE
            digit -= up
    return x[drop:]


def times(x: FloatArray, constants: FloatArray, drop: int, limbs: int) -> FloatArray:
    """⌊x·constant / 2^(22·drop)⌋ in so many limbs; constants (limbs, …) broadcast against x[l], low limb first."""
    size = max(len(x) + len(constants), drop + limbs)
    total = np.zeros((size, *x.shape[1:]))
    product = np.empty_like(x)
    for place, digits in enumerate(constants):
        if digits.any():
            np.multiply(x, digits, out=product)
            total[place : place + len(x)] += product
    return carry(total[: max(drop + limbs, len(x) + len(constants))], drop)[:limbs]


def convolve(stacked: FloatArray, x: FloatArray, limbs: int, out: FloatArray) -> None:
    """out[m] += Σ_i A_i @ x[m−i] for a matrix A of so many limbs, stacked side by side with its top limb first.

    x has shape (limbs, inner, columns) and is contiguous, so that the limbs which meet in out[m] are one matrix.
    """
    inner, columns = x.shape[1:]
    if not inner:
        return
    for m in range(limbs + len(x) - 1):
        low, high = max(0, m - limbs + 1), min(m, len(x) - 1)  # limbs of x that meet limb m
        first = limbs - 1 - (m - low)  # where A_{m−low} stands in the stack
        window = x[low : high + 1].reshape(-1, columns)
        out[m] += stacked[:, first * inner : (first + high + 1 - low) * inner] @ window


def stack(matrix: Sequence[Sequence[int]], limbs: int) -> FloatArray:
    """A constant matrix in the form that `convolve` reads: shape (rows, limbs·inner)."""
    rows, inner = len(matrix), len(matrix[0]) if matrix else 0
    digits = balanced([entry for row in matrix for entry in row])
    if len(digits) > limbs:
        raise AssertionError("a constant does not fit its limbs")
    padded = np.zeros((limbs, rows, inner))
    padded[: len(digits)] = digits.reshape(-1, rows, inner)
    return np.ascontiguousarray(padded[::-1].transpose(1, 0, 2).reshape(rows, limbs * inner))


def to_ints(x: FloatArray) -> ObjectArray:
    """Limbs (not necessarily carried) as Python integers, shape x.shape[1:]."""
    total = np.zeros(x.shape[1:], dtype=object)
    for digit in x[::-1]:
        total = (total << WIDTH) + digit.astype(np.int64).astype(object)
    return total


def from_ints(values: ObjectArray, limbs: int) -> FloatArray:
    """Python integers as carried limbs."""
    out = np.empty((limbs, *values.shape))
    rest = values
    for limb in range(limbs - 1):
        out[limb] = (rest & (BASE - 1)).astype(np.float64)
        rest = rest >> WIDTH
    out[-1] = rest.astype(np.float64)
    return out


def pack(values: ObjectArray) -> dict[str, object]:
    """An integer array as JSON: its shape, bytes per number, and the numbers in base 64."""
    flat = [int(value) for value in values.ravel()]
    width = max((value.bit_length() for value in flat), default=0) // 8 + 1
    data = b"".join(value.to_bytes(width, "little", signed=True) for value in flat)
    return {"shape": list(values.shape), "bytes": width, "data": base64.b64encode(data).decode("ascii")}


def unpack(packed: object, shape: tuple[int, ...]) -> ObjectArray:
    """What `pack` made, or a SnapshotError if it is not of that shape."""
    try:
        assert isinstance(packed, dict)
        width = int(packed["bytes"])
        data = base64.b64decode(packed["data"], validate=True)
        good = tuple(packed["shape"]) == shape and width > 0 and len(data) == width * int(np.prod(shape))
    except (AssertionError, KeyError, TypeError, ValueError):
        good = False
    if not good:
        raise SnapshotError(f"the state of the noise is damaged: numbers of shape {shape} were expected")
    flat = [int.from_bytes(data[i : i + width], "little", signed=True) for i in range(0, len(data), width)]
    out = np.empty(len(flat), dtype=object)
    out[:] = flat
    return out.reshape(shape)
