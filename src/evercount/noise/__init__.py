"""The only place where randomness is drawn: exact normals from a secret."""

from __future__ import annotations

from evercount.noise.normal_sampler import ExactNoise
from evercount.noise.prf import FRACTION_BITS, Normals
from evercount.noise.secret import NoiseOwner, Secret, random_bytes, random_token

__all__ = [
    "FRACTION_BITS",
    "ExactNoise",
    "NoiseOwner",
    "Normals",
    "Secret",
    "random_bytes",
    "random_token",
]
