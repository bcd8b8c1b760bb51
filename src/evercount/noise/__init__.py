"""The only room where randomness is drawn: exact normals from a secret, or insecure ones for simulation."""

from __future__ import annotations

from evercount.noise.exact_normals import FRACTION_BITS, Normals
from evercount.noise.float_normals import FloatNoise
from evercount.noise.noise_owner import NoiseOwner
from evercount.noise.normal_sampler import ExactNoise
from evercount.noise.secret import Secret, random_bytes, random_token

__all__ = [
    "FRACTION_BITS",
    "ExactNoise",
    "FloatNoise",
    "NoiseOwner",
    "Normals",
    "Secret",
    "random_bytes",
    "random_token",
]
