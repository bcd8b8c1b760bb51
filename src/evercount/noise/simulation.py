"""Randomness for simulations: anybody can compute it, so nothing that was made with it may be published."""

from __future__ import annotations

import numpy as np

from evercount._validate import check_whole
from evercount.noise.secret import Secret


def insecure_generator(seed: int | None) -> np.random.Generator:
    """NumPy's fastest generator of normals. Its state can be guessed from its outputs, and its doubles have gaps."""
    # Such gaps rule out neighbouring data sets (Mironov 2012, "On significance of the least significant bits for
    # differential privacy"): releases have `ExactNoise`.
    return np.random.Generator(np.random.SFC64(None if seed is None else check_whole("seed", seed, 0, 2**128)))


def insecure_secret(seed: int | None) -> Secret:
    """A secret that follows from a public seed; None for a fresh one.

    >>> insecure_secret(7) == insecure_secret(7)
    True
    """
    return Secret.generate() if seed is None else Secret.from_hex("0" * 64).derive(f"insecure seed {seed}")
