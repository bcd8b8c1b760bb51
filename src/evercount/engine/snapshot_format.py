"""The format of a snapshot: pack a tree into bytes, and unpack it with every check.

A snapshot is versioned and checksummed, a tree of JSON values with arrays and bytes as raw blocks:

b"evercount snapshot\n" · version (2 bytes) · blake2b-256 of the body · body

The body is zlib of: length of the JSON (8 bytes, big-endian) · JSON · raw blocks, one after the
other. In the JSON an array is {"$array": [dtype, shape, offset]} and bytes are {"$bytes": [length,
offset]}.
"""

from __future__ import annotations

import hashlib
import hmac
import io
import json
import zlib
from collections.abc import Mapping
from typing import IO, Any

import numpy as np

from evercount._validate import AnyArray
from evercount.engine.retries import SCALARS
from evercount.errors import SnapshotError

# The format is frozen: every snapshot that was ever written begins with MAGIC and has this layout.
# A change needs a new VERSION, and a reader for the one before.
MAGIC = b"evercount snapshot\n"
VERSION = 1
DIGEST_BYTES = 32
# bytes of an unpacked snapshot: a crafted small file must not fill the memory
LARGEST_BODY = 1 << 34
# bytes that are squeezed at a time, so that a large snapshot is never copied as one
PIECE = 1 << 20
SMALL_BODY = 1 << 20
"""Bodies of files below this many bytes are kept as they are inside the zlib format: squeezing them
takes longer than a tick."""
SMALL_BLOB = 1 << 26
"""The same for blobs, which a store writes at every tick: squeezing saves a third of the disk, and
takes three times as long as the rest."""
# the kinds of numbers that a snapshot holds; no other is read
DTYPES = ("<i8", "<f8", ">i8", ">f8", "|u1")


def pack(tree: Mapping[str, Any]) -> bytes:
    """Pack a tree into one blob, which `unpack` takes apart again."""
    file = io.BytesIO()
    write(tree, file, SMALL_BLOB)
    return file.getvalue()


def write(tree: Mapping[str, Any], file: IO[bytes], small: int = SMALL_BODY) -> None:
    """Write a tree as `pack` does, but into a file that can seek, from its position on, piece by
    piece. A body of at least `small` bytes is squeezed."""
    head = MAGIC + VERSION.to_bytes(2, "big")
    place = file.tell() + len(head)
    file.write(head + bytes(DIGEST_BYTES))
    blocks: list[bytes | memoryview] = []
    text = json.dumps(_without_blocks(tree, blocks)).encode()
    parts = [len(text).to_bytes(8, "big"), text, *blocks]
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    # most of a snapshot is the noise's state, random bits: looking for repetitions in it takes time
    # and finds none
    level = 1
    if sum(map(len, parts)) < small:
        level = 0
    squeeze = zlib.compressobj(level, strategy=zlib.Z_HUFFMAN_ONLY)

    def put(piece: bytes) -> None:
        digest.update(piece)
        file.write(piece)

    for part in parts:
        for start in range(0, len(part), PIECE):
            put(squeeze.compress(part[start : start + PIECE]))
    put(squeeze.flush())
    end = file.tell()
    file.seek(place)
    file.write(digest.digest())
    file.seek(end)


def unpack(blob: bytes) -> dict[str, Any]:
    """Take a blob of `pack` apart; refuse one that is foreign, corrupt, truncated or too large."""
    if not isinstance(blob, bytes | bytearray | memoryview):
        raise SnapshotError(f"a snapshot is bytes, got {type(blob).__name__}")
    blob = bytes(blob)
    if not blob.startswith(MAGIC):
        raise SnapshotError("this is not an evercount snapshot")
    head = len(MAGIC) + 2
    if len(blob) < head + DIGEST_BYTES:
        raise SnapshotError("the snapshot is truncated")
    version = int.from_bytes(blob[len(MAGIC) : head], "big")
    if version != VERSION:
        raise SnapshotError(
            f"the snapshot has format {version} and this program reads format {VERSION} only"
        )
    stated = blob[head : head + DIGEST_BYTES]
    body = blob[head + DIGEST_BYTES :]
    if not hmac.compare_digest(hashlib.blake2b(body, digest_size=DIGEST_BYTES).digest(), stated):
        raise SnapshotError("the snapshot is corrupt or truncated: its checksum does not match")
    try:
        inflater = zlib.decompressobj()
        content = inflater.decompress(body, LARGEST_BODY)
        if inflater.unconsumed_tail:
            raise SnapshotError("the snapshot is larger than any that evercount writes")
        size = int.from_bytes(content[:8], "big")
        tree = _with_blocks(json.loads(content[8 : 8 + size]), content, 8 + size)
    except (zlib.error, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SnapshotError(f"malformed snapshot ({type(error).__name__})") from error
    if not isinstance(tree, dict):
        raise SnapshotError("malformed snapshot")
    return tree


def _without_blocks(value: Any, blocks: list[bytes | memoryview]) -> Any:
    """Turn a tree into JSON; append its arrays and bytes to `blocks`."""
    if isinstance(value, Mapping):
        packed = {key: _without_blocks(item, blocks) for key, item in value.items()}
        if any(str(key).startswith("$") for key in value):
            return {"$map": packed}
        return packed
    if isinstance(value, list | tuple) and _has_blocks(value):
        return [_without_blocks(item, blocks) for item in value]
    if isinstance(value, np.ndarray | bytes):
        return _to_block(value, blocks)
    return value


def _to_block(value: AnyArray | bytes, blocks: list[bytes | memoryview]) -> dict[str, Any]:
    """Append an array or bytes to the blocks, and say in JSON where they are."""
    offset = sum(map(len, blocks))
    if isinstance(value, bytes):
        blocks.append(value)
        return {"$bytes": [len(value), offset]}
    blocks.append(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)
    return {"$array": [value.dtype.str, list(value.shape), offset]}


def _has_blocks(items: list[Any] | tuple[Any, ...]) -> bool:
    """Whether a list may hold arrays or bytes. Long lists of numbers and texts are passed on as
    they are."""
    return not SCALARS.issuperset(map(type, items))


def _with_blocks(value: Any, content: bytes, start: int) -> Any:
    """Turn JSON into a tree, with the arrays and bytes of the blocks, which begin at `start`."""
    if isinstance(value, list) and _has_blocks(value):
        return [_with_blocks(item, content, start) for item in value]
    if not isinstance(value, dict):
        return value
    if "$array" in value:
        dtype, shape, offset = value["$array"]
        if dtype not in DTYPES:
            raise SnapshotError("the snapshot holds an array of an unknown kind")
        count = int(np.prod(shape, dtype=np.int64))
        return np.frombuffer(content, dtype, count, start + offset).reshape(shape).copy()
    if "$bytes" in value:
        size, offset = value["$bytes"]
        return content[start + offset : start + offset + size]
    return {
        key: _with_blocks(item, content, start) for key, item in value.get("$map", value).items()
    }
