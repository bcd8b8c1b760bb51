"""The state of exact noise as text for snapshots: doubles of today, and the integers that older snapshots hold."""

from __future__ import annotations

import base64
from fractions import Fraction
from typing import Any

import numpy as np

from evercount._arrays import AnyArray, FloatArray, ObjectArray
from evercount.errors import SnapshotError

PIECE = 1 << 18
"""Numbers that become text at a time."""


def pack(state: FloatArray, narrow: int) -> str:
    """A state (2, rows, cells) in base 64; the low parts of the first `narrow` rows are cut to 24 bits."""
    return to_text(state[0], state[1, :narrow].astype("<f4"), state[1, narrow:])


def unpack(packed: object, shape: tuple[int, int], narrow: int) -> FloatArray:
    """The state that `pack` wrote, or a SnapshotError if it is not of that shape."""
    rows, cells = shape
    high, low, rest = of_text(packed, ("<f8", shape), ("<f4", (narrow, cells)), ("<f8", (rows - narrow, cells)))
    return np.stack([high, np.concatenate([low, rest])])


def to_text(*arrays: AnyArray) -> str:
    """Arrays one after the other in base 64; piece by piece, as the text may be long."""
    text, rest = "", b""
    for array in arrays:
        for piece in np.array_split(array.reshape(-1), array.size // PIECE + 1):
            data = rest + piece.astype(array.dtype.newbyteorder("<"), copy=False).tobytes()
            end = len(data) // 3 * 3
            text += base64.b64encode(data[:end]).decode("ascii")
            rest = data[end:]
    text += base64.b64encode(rest).decode("ascii")
    return text


def of_text(packed: Any, *layout: tuple[str, tuple[int, int]]) -> list[AnyArray]:
    """The arrays that `to_text` wrote, of these types and shapes, or a SnapshotError if they are not finite numbers."""
    arrays: list[AnyArray] = []
    try:
        data, start = base64.b64decode(packed, validate=True), 0
        for kind, (rows, columns) in layout:
            arrays.append(np.frombuffer(data, kind, rows * columns, start).reshape(rows, columns))
            start += arrays[-1].nbytes
        damaged = len(data) != start or not all(np.isfinite(array).all() for array in arrays)
    except (TypeError, ValueError):
        damaged = True
    if damaged:
        raise SnapshotError(f"the state of the noise is damaged: numbers of the shapes {layout} were expected")
    return arrays


def unpack_integers(packed: Any, shape: tuple[int, int], bits: int) -> FloatArray:
    """A state of a snapshot of format 1, as pairs: integers / 2^bits, in base 64, with their length in bytes."""
    try:
        width, text = int(packed["bytes"]), packed["data"]
    except (KeyError, TypeError, ValueError):
        raise SnapshotError("the state of the noise is damaged: integers were expected") from None
    (raw,) = of_text(text, ("u1", (shape[0] * shape[1], width)))
    integers = [int.from_bytes(row.tobytes(), "little", signed=True) for row in raw]
    return to_pairs(np.asarray(integers, dtype=object).reshape(shape), bits)


def to_pairs(values: ObjectArray, bits: int) -> FloatArray:
    """Integers / 2^bits as two doubles each, (2, …): the nearest double, and what is left of it rounded."""
    high = (values / (1 << bits)).astype(np.float64)  # one rounding, so high·2^bits is an integer
    low = (values - of_pairs(high[np.newaxis], bits)) / (1 << bits)
    return np.stack([high, low.astype(np.float64)])


def of_pairs(pairs: FloatArray, bits: int) -> ObjectArray:
    """Two doubles each as integers / 2^bits, rounded downwards."""
    exact = np.vectorize(Fraction, otypes=[object])(pairs).sum(axis=0)
    return np.asarray(exact * (1 << bits) // 1, dtype=object)
