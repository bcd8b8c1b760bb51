"""The bytes of a snapshot: what its description says, however large, and written without copies of
the whole."""

from __future__ import annotations

import hashlib
import io
import json
import tracemalloc
import zlib
from collections import OrderedDict
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from evercount.engine.snapshot_format import (
    DIGEST_BYTES,
    MAGIC,
    PIECE,
    SMALL_BLOB,
    SMALL_BODY,
    pack,
    unpack,
    write,
)

TEXTS = ["QUJD+/==" * 40_000, "é" * 2**16, 'a"b\\' * 2**16, "\x1f\x7f", ""]


def described(json_of_tree: dict[str, Any], *blocks: bytes, level: int = 1) -> bytes:
    """A snapshot straight from the description of the format."""
    text = json.dumps(json_of_tree).encode()
    squeeze = zlib.compressobj(level, strategy=zlib.Z_HUFFMAN_ONLY)
    body = (
        squeeze.compress(len(text).to_bytes(8, "big") + text + b"".join(blocks)) + squeeze.flush()
    )
    return (
        MAGIC
        + (1).to_bytes(2, "big")
        + hashlib.blake2b(body, digest_size=DIGEST_BYTES).digest()
        + body
    )


def test_bytes_are_those_of_the_description() -> None:
    array, raw = np.arange(PIECE // 4).reshape(2, -1), b"xyz" * PIECE
    tree = {
        "texts": {str(i): text for i, text in enumerate(TEXTS)},
        "n": array,
        "raw": raw,
        "more": [1, {"n": array}],
    }
    place = {"$array": ["<i8", [2, PIECE // 8], 0]}
    again = {"$array": ["<i8", [2, PIECE // 8], array.nbytes + len(raw)]}
    wanted = {
        **tree,
        "n": place,
        "raw": {"$bytes": [len(raw), array.nbytes]},
        "more": [1, {"n": again}],
    }
    blob = pack(tree)
    squeezed = described(wanted, array.tobytes(), raw, array.tobytes())
    head = len(MAGIC) + 2 + DIGEST_BYTES
    # what is not squeezed has no one form in zlib: it depends on the pieces
    assert zlib.decompress(blob[head:]) == zlib.decompress(squeezed[head:])
    file = io.BytesIO()
    file.write(b"before")
    write(tree, file)
    file.write(b"after")
    assert file.getvalue() == b"before" + squeezed + b"after"
    back = unpack(blob)
    assert back["texts"] == tree["texts"]
    assert back["raw"] == raw
    assert np.array_equal(back["more"][1]["n"], array)


@pytest.mark.parametrize("large", [np.zeros(8 * PIECE), bytes(64 * PIECE)], ids=["array", "bytes"])
def test_writing_takes_no_copy(large: Any) -> None:
    with Path("/dev/null").open("r+b") as file:
        tracemalloc.start()
        write({"large": large}, file)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 8 * PIECE  # of 64


def test_small_bodies_are_not_squeezed_and_both_kinds_are_read() -> None:
    array = np.arange(3)
    tree = {"texts": TEXTS[:1], "n": [1.5, array]}
    wanted = {"texts": TEXTS[:1], "n": [1.5, {"$array": ["<i8", [3], 0]}]}
    assert pack(tree) == described(wanted, array.tobytes(), level=0)
    for level in (0, 1):
        back = unpack(described(wanted, array.tobytes(), level=level))
        assert back["texts"] == TEXTS[:1]
        assert np.array_equal(back["n"][1], array)
    large = {"texts": ["A" * SMALL_BODY]}
    file = io.BytesIO()
    write(large, file)
    assert file.tell() < SMALL_BODY // 2
    assert unpack(file.getvalue()) == large
    assert len(pack(large)) > SMALL_BODY, "a store writes it at every tick"
    larger = {"texts": ["A" * SMALL_BLOB]}
    assert len(pack(larger)) < SMALL_BLOB // 2


class Pair(NamedTuple):
    """A tuple of another type."""

    one: Any
    two: Any


@pytest.mark.parametrize(
    "item",
    [
        np.arange(2),
        b"x",
        [b"x"],
        (b"x",),
        Pair(1, b"x"),
        {"a": b"x"},
        OrderedDict(a=[np.arange(2)]),
    ],
)
def test_a_block_is_found_behind_a_thousand_plain_items(item: Any) -> None:
    plain = [1, 2.5, "text", True, None, np.float64(0.5)] * 200
    back = unpack(pack({"items": [*plain, item], "plain": plain}))
    assert back["plain"] == plain
    assert back["items"][:-1] == plain
    assert pack({"last": back["items"][-1]}) == pack({"last": item})
