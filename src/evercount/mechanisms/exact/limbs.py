"""Fixed-point numbers as limbs: exact integer arithmetic on whole arrays, carried by doubles.

A number is Σ_l digit_l·2^(22·l). After `carry` every digit lies in [0, 2^22) but the top one, which is signed: cutting
low digits off is then the floor. Products of digits are integers and their sums stay below 2^53 (`check_capacity`), so
doubles carry them exactly, in any order: matrix products run at full speed.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from evercount._arrays import FloatArray, ObjectArray
from evercount.errors import SnapshotError

WIDTH = 22
"""Bits of a limb."""
BASE = 1 << WIDTH
_BASE = float(BASE)
_INVERSE = 2.0**-WIDTH


def limbs_for(bits: float) -> int:
    """Limbs that hold every integer of magnitude below 2^bits, with its sign."""
    return int(bits + 1) // WIDTH + 1


def digits(values: npt.NDArray[Any], pad: int = 0) -> FloatArray:
    """Weights value·2^pad as digits in [0, 2^22), shape (limbs, len(values)); values ≥ 0, int64 or Python integers."""
    longest = max(1, int(values.max()).bit_length() + pad)
    rows = []
    for limb in range(-(-longest // WIDTH)):
        by = WIDTH * limb - pad
        if by >= 64 and values.dtype != object:
            rows.append(np.zeros(len(values)))
        else:  # int64 may wrap on the way left; its lowest digit is right all the same
            rows.append(((values >> by if by >= 0 else values << -by) & (BASE - 1)).astype(np.float64))
    return np.asarray(rows)


def aligned(values: npt.NDArray[Any], shift: int) -> tuple[FloatArray, int]:
    """(digits, drop): value·x >> shift is `times(x, digits, drop)`, whole limbs being dropped."""
    drop = max(0, -(-shift // WIDTH))
    return digits(values, drop * WIDTH - shift), drop


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


def times(x: FloatArray, constants: FloatArray, drop: int, limbs: int, half: bool = False) -> FloatArray:
    """⌊x·constant / 2^(22·drop)⌋ (+ ½ inside the floor with `half`) in so many limbs; the top one takes what is left.

    With limbs = 0 all limbs are returned. Constants are non-negative digits of shape (limbs, …), low limb first, which
    broadcast against x[l].
    """
    size = max(len(x) + len(constants), drop + 1)
    total = np.zeros((size, *np.broadcast_shapes(x.shape[1:], constants.shape[1:])))
    product = np.empty((len(x), *total.shape[1:]))
    for place, digit in enumerate(constants):
        if digit.any():
            np.multiply(x, digit, out=product)
            total[place : place + len(x)] += product
    if half:
        total[drop - 1] += BASE >> 1
    kept = carry(total, drop)
    return fit(kept, limbs) if limbs else kept


def fit(x: FloatArray, limbs: int) -> FloatArray:
    """The same carried numbers in so many limbs: the top one takes the limbs above it, or zeros are added."""
    if len(x) < limbs:
        return np.concatenate([x, np.zeros((limbs - len(x), *x.shape[1:]))])
    for limb in range(len(x) - 1, limbs - 1, -1):
        x[limb - 1] += x[limb] * _BASE
    return x[:limbs]


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
    """A constant matrix as `convolve` reads it: balanced digits (the top one takes all), shape (rows, limbs·inner)."""
    rows, inner = len(matrix), len(matrix[0]) if matrix else 0
    half = BASE >> 1
    out = np.empty((limbs, rows, inner))
    rest = np.empty((rows, inner), dtype=object)
    for row, entries in enumerate(matrix):
        rest[row] = entries
    for limb in range(limbs - 1):
        digit = ((rest + half) & (BASE - 1)) - half
        out[limb] = digit.astype(np.float64)
        rest = (rest - digit) >> WIDTH
    out[-1] = rest.astype(np.float64)
    return np.ascontiguousarray(out[::-1].transpose(1, 0, 2).reshape(rows, limbs * inner))


def check_capacity(*stacks: FloatArray) -> None:
    """That the sums of `convolve` over all these stacks are exact for digits up to 2^22 in magnitude."""
    worst = np.sum([np.abs(stacked).sum(axis=1) for stacked in stacks], axis=0).max(initial=0.0)
    if worst * BASE > 2**53:
        raise AssertionError("sums of products of digits would pass 2^53")
    for stacked in stacks:
        # a matrix library that is not exact on such integers (other algorithms than sums of products) must not be used
        digit = BASE - 1 - np.arange(stacked.shape[1] * 8).reshape(-1, 8)
        if not np.array_equal(stacked @ digit.astype(np.float64), stacked.astype(np.int64) @ digit):
            raise AssertionError("the matrix product of this installation is not exact on integers below 2^53")


def to_ints(x: npt.NDArray[Any]) -> ObjectArray:
    """Limbs (digits below 2^30 in magnitude) as Python integers, shape x.shape[1:]."""
    x = x.astype(np.int64)
    total = np.zeros(x.shape[1:], dtype=object)
    for limb in range((len(x) - 1) // 2 * 2, -1, -2):
        pair = x[limb] + (x[limb + 1] << WIDTH) if limb + 1 < len(x) else x[limb]
        total = (total << 2 * WIDTH) + pair.astype(object)
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
