"""The state of exact noise as text for snapshots: doubles of today, and the integers that older snapshots hold."""

from __future__ import annotations

import base64
import math
from fractions import Fraction
from typing import Any

import numpy as np

from evercount._arrays import AnyArray, FloatArray, ObjectArray
from evercount.errors import SnapshotError

PIECE = 1 << 18
"""Numbers that become text at a time."""


def pack(state: FloatArray, narrow: int) -> str:
    """A state (2, rows, cells) in base 64; the low parts of the first `narrow` rows are cut to 24 bits."""
    return _text((state[0], "<f8"), (state[1, :narrow], "<f4"), (state[1, narrow:], "<f8"))


def unpack(packed: object, shape: tuple[int, int], narrow: int) -> FloatArray:
    """The state that `pack` wrote, or a SnapshotError if it is not of that shape."""
    rows, cells = shape
    data = _bytes(packed, (16 * rows - 4 * narrow) * cells)
    state, start = np.empty((2, rows, cells)), 0
    for part, kind in ((state[0], "<f8"), (state[1, :narrow], "<f4"), (state[1, narrow:], "<f8")):
        part[:] = np.frombuffer(data, kind, part.size, start).reshape(part.shape)
        start += part.size * np.dtype(kind).itemsize
    if not np.isfinite(state).all():
        raise SnapshotError("the state of the noise is damaged: it holds numbers that are not finite")
    return state


def pack_rows(rows: AnyArray) -> str:
    """Rows of noise in base 64: whole numbers of 32 bits, or doubles where some are larger."""
    return _text((rows, "<i4" if rows.dtype == np.int32 else "<f8"))


def unpack_rows(packed: object, ticks: int, cells: int) -> AnyArray:
    """The rows that `pack_rows` wrote, or a SnapshotError if they are not of that shape or not whole numbers."""
    short = isinstance(packed, str) and len(packed) < 8 * ticks * cells
    data = _bytes(packed, (4 if short else 8) * ticks * cells)
    rows = np.frombuffer(data, "<i4" if short else "<f8").reshape(ticks, cells)
    if not (np.isfinite(rows) & (rows == np.rint(rows))).all():
        raise SnapshotError("the rows of the noise are damaged: they are not whole numbers")
    return rows.astype(np.int32 if short else np.float64)


def unpack_integers(packed: Any, shape: tuple[int, int]) -> ObjectArray:
    """The integers of a snapshot of format 1: bytes per number, and the numbers in base 64."""
    try:
        width, same = int(packed["bytes"]), tuple(packed["shape"]) == shape
        text = packed["data"]
    except (KeyError, TypeError, ValueError):
        width, same, text = 0, False, ""
    if not same or width < 1:
        raise SnapshotError(f"the state of the noise is damaged: numbers of shape {shape} were expected")
    data = _bytes(text, width * shape[0] * shape[1])
    out = np.empty(shape[0] * shape[1], dtype=object)
    out[:] = [int.from_bytes(data[i : i + width], "little", signed=True) for i in range(0, len(data), width)]
    return out.reshape(shape)


def _text(*arrays: tuple[AnyArray, str]) -> str:
    """Arrays, each with the type of its numbers, one after the other in base 64; piece by piece, as it may be long."""
    text, rest = "", b""
    for array, kind in arrays:
        flat = array.reshape(-1)
        for start in range(0, len(flat), PIECE):
            data = rest + flat[start : start + PIECE].astype(kind, copy=False).tobytes()
            end = len(data) // 3 * 3
            text += base64.b64encode(data[:end]).decode("ascii")
            rest = data[end:]
    text += base64.b64encode(rest).decode("ascii")
    return text


def _bytes(packed: object, size: int) -> bytes:
    try:
        data = base64.b64decode(packed, validate=True) if isinstance(packed, str) else b""
    except ValueError:
        data = b""
    if len(data) != size or not isinstance(packed, str):
        raise SnapshotError(f"the state of the noise is damaged: {size} bytes were expected")
    return data


def to_pairs(values: ObjectArray, bits: int) -> FloatArray:
    """Integers / 2^bits as two doubles each, (2, …): the nearest double, and what is left of it rounded."""
    out = np.empty((2, *values.shape))
    for place, value in np.ndenumerate(values):
        number = Fraction(value, 1 << bits)
        out[(0, *place)] = float(number)
        out[(1, *place)] = float(number - Fraction(out[(0, *place)]))
    return out


def of_pairs(pairs: FloatArray, bits: int) -> ObjectArray:
    """Two doubles each as integers / 2^bits, rounded downwards."""
    out = np.empty(pairs.shape[1:], dtype=object)
    for place in np.ndindex(out.shape):
        out[place] = math.floor((Fraction(pairs[(0, *place)]) + Fraction(pairs[(1, *place)])) * (1 << bits))
    return out
