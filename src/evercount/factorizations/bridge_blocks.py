"""Blocks of a bridge: what they carry from level to level, and the moments of the noise at their boundaries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from evercount._arrays import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class Blocks:
    """Blocks of one level: number, share of ε that is left (in UNITS), and the moments of the noise at both ends."""

    index: IntArray
    left: IntArray
    start: FloatArray
    end: FloatArray
    both: FloatArray


@dataclass(frozen=True, eq=False)
class Split:
    """Children of n blocks: shares (n, k); α, variances (n, k+1) and covariances (n, k) of neighbouring boundaries."""

    shares: IntArray
    alpha: IntArray
    variance: FloatArray
    cov: FloatArray


@dataclass(frozen=True, eq=False)
class Boundary:
    """A block that the next tick may need again: its public numbers, and the noise at its k + 1 boundaries."""

    blocks: Blocks
    split: Split
    noise: npt.NDArray[Any]


Memory = list[Boundary]  # one block for each level, highest first


def boundary_moments(
    s: FloatArray, alpha: FloatArray, start: FloatArray, end: FloatArray, both: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Variances at the k + 1 boundaries and covariances of neighbours, for children of variances s (n, k)."""
    sums = np.concatenate([np.zeros((len(s), 1)), np.cumsum(s, axis=1)], axis=1)
    left, right = start[:, None] + sums, end[:, None] + (sums[:, -1:] - sums)
    c, beta = both[:, None], 1 - alpha
    variance = alpha * alpha * left + beta * beta * right + 2 * (alpha * beta * c)
    a, b = alpha[:, :-1], alpha[:, 1:]
    p, q = beta[:, :-1], beta[:, 1:]
    cov = a * b * left[:, :-1] + p * q * right[:, 1:] + a * q * c + p * b * (c - s)
    return variance, cov


def largest_scales(scale: FloatArray, alpha: FloatArray, start: FloatArray, end: FloatArray) -> FloatArray:
    """A bound on |coefficient|·scale of every number in the noise of each boundary, shape (n, k + 1)."""
    zero = np.zeros((len(scale), 1))
    passed = np.maximum.accumulate(np.concatenate([zero, scale], axis=1), axis=1)
    ahead = np.maximum.accumulate(np.concatenate([zero, scale[:, ::-1]], axis=1), axis=1)[:, ::-1]
    old = alpha * start[:, None] + (1 - alpha) * end[:, None]
    return np.maximum(old, np.maximum(alpha * passed, (1 - alpha) * ahead))


def join_blocks(parts: list[Boundary]) -> tuple[Blocks, Split, npt.NDArray[Any]]:
    """Neighbouring blocks as one."""
    if len(parts) == 1:
        return parts[0].blocks, parts[0].split, parts[0].noise
    one, two = parts
    return (
        Blocks(*map(np.concatenate, zip(arrays_of(one.blocks), arrays_of(two.blocks), strict=True))),
        Split(*map(np.concatenate, zip(arrays_of(one.split), arrays_of(two.split), strict=True))),
        np.concatenate([one.noise, two.noise]),
    )


def arrays_of(record: Blocks | Split) -> list[npt.NDArray[Any]]:
    """The fields of a record, in their order."""
    return list(vars(record).values())


def last_block(blocks: Blocks, split: Split, noise: npt.NDArray[Any]) -> Boundary:
    """The last of several blocks; the noise of the others can be freed."""
    return Boundary(
        Blocks(*(part[-1:] for part in arrays_of(blocks))),
        Split(*(part[-1:] for part in arrays_of(split))),
        noise[-1:].copy() if len(noise) > 1 else noise,
    )
