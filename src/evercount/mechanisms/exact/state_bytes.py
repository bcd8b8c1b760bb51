"""The state of exact noise as text for snapshots: doubles of today, and the integers that older snapshots hold."""

from __future__ import annotations

import base64
from fractions import Fraction
from typing import Any

import numpy as np

from evercount._arrays import AnyArray, FloatArray, ObjectArray
from evercount.errors import SnapshotError


def pack(state: FloatArray, narrow: int) -> str:
    """A state (2, rows, cells) in base 64; the low parts of the first `narrow` rows are cut to 24 bits."""
    return to_text(state[0], state[1, :narrow].astype("<f4"), state[1, narrow:])


def unpack(packed: object, shape: tuple[int, int], narrow: int) -> FloatArray:
    """The state that `pack` wrote, or a SnapshotError if it is not of that shape."""
    rows, cells = shape
    high, low, rest = of_text(packed, ("<f8", shape), ("<f4", (narrow, cells)), ("<f8", (rows - narrow, cells)))
    return np.stack([high, np.concatenate([low, rest])])


def to_text(*arrays: AnyArray) -> str:
    """Arrays one after the other in base 64."""
    return base64.b64encode(
        b"".join(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes() for array in arrays)
    ).decode("ascii")


def of_text(packed: object, *layout: tuple[str, tuple[int, int]]) -> list[AnyArray]:
    """The arrays that `to_text` wrote, of these types and shapes, or a SnapshotError if they are not finite numbers."""
    sizes = [np.dtype(kind).itemsize * shape[0] * shape[1] for kind, shape in layout]
    try:
        data = base64.b64decode(packed, validate=True) if isinstance(packed, str) else b""
    except ValueError:
        data = b""
    if len(data) != sum(sizes) or not isinstance(packed, str):
        raise SnapshotError(f"the state of the noise is damaged: {sum(sizes)} bytes were expected")
    starts = np.cumsum([0, *sizes])
    arrays = [
        np.frombuffer(data[start : start + size], kind).reshape(shape)
        for (kind, shape), start, size in zip(layout, starts[:-1], sizes, strict=True)
    ]
    if not all(np.isfinite(array).all() for array in arrays):
        raise SnapshotError("the state of the noise is damaged: it holds numbers that are not finite")
    return arrays


def unpack_integers(packed: Any, shape: tuple[int, int], bits: int) -> FloatArray:
    """A state of a snapshot of format 1, as pairs: integers / 2^bits, in base 64, with their length in bytes."""
    try:
        width, same = int(packed["bytes"]), tuple(packed["shape"]) == shape
        (raw,) = of_text(packed["data"], ("u1", (shape[0] * shape[1], width)))
    except (KeyError, TypeError, ValueError):
        same = False
    if not same:
        raise SnapshotError(f"the state of the noise is damaged: numbers of shape {shape} were expected")
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
