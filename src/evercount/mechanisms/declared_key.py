"""The key of a stream's noise: a function of the secret and of everything public that the stream declares."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from evercount.factorizations import Factorization
from evercount.noise import Secret


def declaration_fingerprint(declaration: Mapping[str, Any], engine: Factorization, sigma: float) -> str:
    """A digest of a whole declaration: what is asked, how noise is correlated, and how much of it there is.

    σ and the numbers of the factorization belong to it: the same normals at two scales would reveal each other.
    """
    public = {**declaration, "factorization": [engine.name, engine.horizon], "sigma": float(sigma).hex()}
    digest = hashlib.blake2b(digest_size=32, person=b"evercount.stream")
    text = json.dumps(public, sort_keys=True, separators=(",", ":"), default=repr).encode()
    digest.update(len(text).to_bytes(8, "little") + text)
    for array in engine.public_parameters():
        digest.update(array.size.to_bytes(8, "little") + np.ascontiguousarray(array).astype("<f8").tobytes())
    return digest.hexdigest()


def noise_key(
    secret: Secret | None,
    dumped: Mapping[str, Any] | None,
    declaration: Mapping[str, Any] | None,
    engine: Factorization,
    sigma: float,
) -> tuple[Secret, str | None]:
    """(key, fingerprint) of noise that goes on from its dumped state, or begins with the secret.

    Without a declaration the secret is the key.
    """
    if dumped is not None and dumped["state"] is not None:
        return Secret.from_hex(dumped["state"]["secret"]), dumped["declaration"]
    key = secret or Secret.generate()
    if declaration is None:
        return key, None
    fingerprint = declaration_fingerprint(declaration, engine, sigma)
    return declared_key(key, fingerprint), fingerprint


def declared_key(secret: Secret, fingerprint: str) -> Secret:
    """The key of the noise of one declaration.

    **Guarantee.** Streams of different declarations on one secret have independent noise, if keyed BLAKE2b is a
    pseudorandom function: their labels differ (up to collisions of 256-bit digests). All shards of one declaration
    have one key, and tell their cells apart by global numbers. Tests:
    tests/engine/test_declared_key.py::test_streams_that_differ_in_anything_have_independent_noise and
    tests/engine/test_declared_key.py::test_shards_share_the_key_and_count_cells_globally.
    """
    return secret.derive(f"evercount/stream/2/{fingerprint}")
