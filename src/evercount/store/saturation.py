"""The sums of an open tick: added exactly, and cut once, at a public number, when the tick closes.

Proof: `saturation.proof.md`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from evercount._validate import IntArray
from evercount.errors import InputError
from evercount.queries import Query

MOST_PER_REQUEST = 2**40  # grid units that one request may add to a cell
MOST_PER_TICK = 2**52  # grid units of a cell, in size, that a tick releases at most
NARROW = 2**61  # sums below this, in size, stay int64: adding a request or another such sum cannot overflow
WIDE_BYTES = 16

Totals = npt.NDArray[Any]  # int64, or Python integers (dtype object) where int64 would not hold the sum


def tick_limit(query: Query) -> int:
    """The public number at which the sum of a tick is cut: 2^52, or the declared `most_per_tick`."""
    number = query.event_number
    return MOST_PER_TICK if number is None or number.most is None else min(number.most, MOST_PER_TICK)


def check_request(query: Query, row: IntArray) -> None:
    """Refuse a request that alone adds more to a cell than any request may; only this request is looked at."""
    most = min(tick_limit(query), MOST_PER_REQUEST)
    if row.size and (int(row.max()) > most or int(row.min()) < -most):
        raise InputError(f"one request adds at most {most} grid units to a cell: split it, if the events are real")


def add_exactly(totals: Totals, row: IntArray) -> Totals:
    if totals.dtype != object and totals.size:
        if int(totals.max()) < NARROW and int(totals.min()) > -NARROW:
            return np.asarray(totals + row)
        totals = totals.astype(object)
    return np.asarray(totals + row.astype(object))


def cut_total(query: Query, totals: Totals) -> IntArray:
    """What a closing tick releases of its exact sums.

    **Guarantee.** Per cell 1-Lipschitz and monotone in the exact sum, and independent of the order and grouping of the
    requests; so S, the l1 sensitivity and the user-level factor of the query stay true. Proof: `saturation.proof.md`.
    Tests: tests/store/test_store_saturation.py::test_the_cut_never_widens_a_change,
    tests/store/test_store_saturation.py::test_order_and_grouping_do_not_matter.
    """
    most = tick_limit(query)
    return np.clip(totals, -most, most).astype(np.int64)  # arrays of Python integers are cut one by one


def pack_totals(totals: Totals) -> bytes:
    """8 bytes per cell, or 16 where int64 would not do."""
    if totals.dtype != object:
        return totals.astype("<i8").tobytes()
    return b"".join(int(number).to_bytes(WIDE_BYTES, "little", signed=True) for number in totals)


def unpack_totals(data: bytes, cells: int) -> Totals:
    """The inverse of `pack_totals`; the length tells which form it is."""
    if len(data) != WIDE_BYTES * cells:
        return np.frombuffer(data, dtype="<i8").astype(np.int64)
    parts = (data[at : at + WIDE_BYTES] for at in range(0, len(data), WIDE_BYTES))
    return np.asarray([int.from_bytes(part, "little", signed=True) for part in parts], dtype=object)
