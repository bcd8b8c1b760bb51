"""The hash chain over all releases of a stream: each tick's hash covers every number before it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from evercount._arrays import FloatArray


def genesis(declaration: str, start: float) -> bytes:
    """The hash before the first tick: it binds the chain to the declaration."""
    return hashlib.blake2b(f"{declaration}|{start.hex()}".encode(), digest_size=32, person=b"evercount.genes").digest()


def link(previous: bytes, tick: int, numbers: FloatArray, fresh: Sequence[str] = ()) -> bytes:
    """The hash of one released tick; `numbers` has the rows value, std, low and high, and a column for each output.

    `fresh` are the keys that became public at this tick, where nobody listed them; of keys of the day, the labels of
    all numbers.

    **Guarantee.** Two chains with the same hash at a tick released the same numbers up to and including it, in the same
    order and under the same keys, if BLAKE2b is collision-resistant. Test:
    `tests/store/test_store_chain.py::test_any_change_changes_the_hash`.
    """
    digest = hashlib.blake2b(previous, digest_size=32, person=b"evercount.link")
    digest.update(tick.to_bytes(8, "big") + numbers.shape[1].to_bytes(8, "big"))
    digest.update(np.ascontiguousarray(numbers, dtype="<f8").tobytes())
    for label in fresh:
        digest.update(len(label.encode()).to_bytes(8, "big") + label.encode())
    return digest.digest()
