"""The wire format of the local model: one version, one header, 16-bit entries.

b"eL" · version (1 byte) · form (1 byte: number of counters) · digest of the plan (4) · entries (int16, little-endian)
"""

from __future__ import annotations

import numpy as np

from evercount._arrays import BoolArray, FloatArray
from evercount.errors import MessageRejected
from evercount.local.collection_plan import MAGIC, VERSION, LocalPlan

HEAD = 8
ENTRY = np.dtype("<i2")


def size(plan: LocalPlan) -> int:
    """Bytes of a message."""
    return HEAD + plan.entries * ENTRY.itemsize


def inside(plan: LocalPlan, entries: FloatArray) -> BoolArray:
    """Which rows lie in the server's ball, each counter by itself; sums of squares below 2^53 are exact in doubles."""
    vectors = entries.reshape(len(entries), plan.counters, plan.w)
    norms = np.einsum("ijk,ijk->ij", vectors, vectors)
    return np.asarray((norms <= plan.radius**2).all(axis=1))


def _bytes(message: object) -> bytes | None:
    """The bytes of a bytes-like message, or None for anything else."""
    if isinstance(message, bytes):
        return message
    try:
        return bytes(message) if isinstance(message, bytearray | memoryview) else None
    except ValueError:  # a view that was released
        return None


def unpack(plan: LocalPlan, message: object) -> FloatArray:
    """The entries of one message (bytes, bytearray or memoryview), or MessageRejected with the reason."""
    data = _bytes(message)
    if data is None:
        raise MessageRejected(f"a message is bytes, got {type(message).__name__}")
    if data[:2] != MAGIC:
        raise MessageRejected("this is not a message of an evercount client")
    if len(data) > 2 and data[2] != VERSION:
        raise MessageRejected(f"the message has format {data[2]}, this server reads format {VERSION}")
    if len(data) != size(plan):
        raise MessageRejected(f"a message of this plan has {size(plan)} bytes, got {len(data)}")
    if data[:HEAD] != plan.header:
        raise MessageRejected("the message was made for other parameters (epsilon, delta, buckets or form)")
    entries = np.frombuffer(data, ENTRY, offset=HEAD).astype(np.float64)
    if not inside(plan, entries[np.newaxis])[0]:
        raise MessageRejected(f"the message lies outside the ball of radius {plan.radius} of honest messages")
    return entries
