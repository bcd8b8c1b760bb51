"""Versioned, checksummed snapshots: JSON for the small things, raw bytes for arrays.

b"evercount snapshot\\n" · version (2 bytes) · blake2b-256 of the body · body (zlib of JSON)
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import zlib
from typing import Any

import numpy as np
import numpy.typing as npt

from evercount.errors import SnapshotError

MAGIC = b"evercount snapshot\n"
VERSION = 1
DIGEST = 32

Arrays = dict[str, npt.NDArray[Any] | None]


def pack(data: dict[str, Any], arrays: Arrays) -> bytes:
    """One blob that `unpack` takes apart again."""
    packed = {
        name: None
        if array is None
        else {
            "dtype": array.dtype.str,
            "shape": list(array.shape),
            "bytes": base64.b85encode(np.ascontiguousarray(array).tobytes()).decode(),
        }
        for name, array in arrays.items()
    }
    # most of a snapshot is the noise's state, random bits: looking for repetitions in it takes time and finds none
    squeeze = zlib.compressobj(1, strategy=zlib.Z_HUFFMAN_ONLY)
    body = squeeze.compress(json.dumps({"data": data, "arrays": packed}).encode()) + squeeze.flush()
    return MAGIC + VERSION.to_bytes(2, "big") + hashlib.blake2b(body, digest_size=DIGEST).digest() + body


def unpack(blob: bytes) -> tuple[dict[str, Any], dict[str, Any]]:
    """(data, arrays) of `pack`, or SnapshotError with the reason."""
    if not isinstance(blob, bytes | bytearray | memoryview):
        raise SnapshotError(f"a snapshot is bytes, got {type(blob).__name__}")
    blob = bytes(blob)
    if not blob.startswith(MAGIC):
        raise SnapshotError("this is not an evercount snapshot")
    head, rest = len(MAGIC) + 2, blob[len(MAGIC) + 2 + DIGEST :]
    if len(blob) < head + DIGEST:
        raise SnapshotError("the snapshot is truncated")
    version = int.from_bytes(blob[len(MAGIC) : head], "big")
    if version != VERSION:
        raise SnapshotError(
            f"the snapshot has format {version} and this program reads format {VERSION}: "
            + ("it is newer; update evercount" if version > VERSION else "it is no longer supported")
        )
    if not hmac.compare_digest(hashlib.blake2b(rest, digest_size=DIGEST).digest(), blob[head : head + DIGEST]):
        raise SnapshotError("the snapshot is corrupt or truncated: its checksum does not match")
    try:
        content = json.loads(zlib.decompress(rest))
        arrays = {
            name: None
            if item is None
            else np.frombuffer(base64.b85decode(item["bytes"]), dtype=item["dtype"]).reshape(item["shape"]).copy()
            for name, item in content["arrays"].items()
        }
        return content["data"], arrays
    except (zlib.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise SnapshotError(f"the snapshot holds something else than it should ({type(error).__name__})") from error
