"""The bytes of a snapshot: what its description says, however large, and written without copies of the whole."""

from __future__ import annotations

import hashlib
import io
import json
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evercount.engine.snapshot_format import DIGEST_BYTES, LONG_TEXT, MAGIC, PIECE, pack, unpack, write

TEXTS = ["QUJD+/==" * 40_000, "é" * LONG_TEXT, 'a"b\\' * LONG_TEXT, "\x1f\x7f" * LONG_TEXT, "A" * (LONG_TEXT - 1), ""]


def described(json_of_tree: dict[str, Any], *blocks: bytes) -> bytes:
    """A snapshot straight from the description of the format."""
    text = json.dumps(json_of_tree).encode()
    squeeze = zlib.compressobj(1, strategy=zlib.Z_HUFFMAN_ONLY)
    body = squeeze.compress(len(text).to_bytes(8, "big") + text + b"".join(blocks)) + squeeze.flush()
    return MAGIC + (2).to_bytes(2, "big") + hashlib.blake2b(body, digest_size=DIGEST_BYTES).digest() + body


def test_bytes_are_those_of_the_description() -> None:
    array, raw = np.arange(PIECE // 4).reshape(2, -1), b"xyz" * PIECE
    tree = {"texts": {str(i): text for i, text in enumerate(TEXTS)}, "n": array, "raw": raw, "more": [1, {"n": array}]}
    place = {"$array": ["<i8", [2, PIECE // 8], 0]}
    again = {"$array": ["<i8", [2, PIECE // 8], array.nbytes + len(raw)]}
    wanted = {**tree, "n": place, "raw": {"$bytes": [len(raw), array.nbytes]}, "more": [1, {"n": again}]}
    blob = pack(tree)
    assert blob == described(wanted, array.tobytes(), raw, array.tobytes())
    file = io.BytesIO()
    file.write(b"before")
    write(tree, file)
    file.write(b"after")
    assert file.getvalue() == b"before" + blob + b"after"
    back = unpack(blob)
    assert back["texts"] == tree["texts"]
    assert back["raw"] == raw
    assert np.array_equal(back["more"][1]["n"], array)


@pytest.mark.parametrize(
    "large", ["A" * (64 * PIECE), np.zeros(8 * PIECE), bytes(64 * PIECE)], ids=["text", "array", "bytes"]
)
def test_writing_takes_no_copy(large: Any) -> None:
    with Path("/dev/null").open("r+b") as file:
        tracemalloc.start()
        write({"large": large}, file)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 8 * PIECE  # of 64
