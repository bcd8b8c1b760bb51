"""The best factorization for some linear queries and a unit, with a certificate that no other has
much less error.

Rows w of a workload are sums of increments; with G = RᵀR the variance of a row is w·G⁻¹·wᵀ, for a
noise multiplier of 1 and units that cost at most 1. For weights p on the rows, A = Σ p·wᵀw, and a
mean U of d·dᵀ over changes d that a unit can make, every G has an error of at least F² with

    F = tr((U^½·A·U^½)^½),

and the p and U of the largest F are a fixed point of p ← p·error/F, u ← u·cost/F (`dense.proof.md`,
6). So every step has a certificate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from evercount._validate import FloatArray, IntArray
from evercount.errors import ParameterError, TooLarge
from evercount.factorizations.blas_threads import blas_threads
from evercount.factorizations.optimal import LARGEST_OPTIMAL_HORIZON
from evercount.factorizations.participation import gram_sum, signed_sum

GAP = 4e-3
"""Relative gap between a squared error and its certified least, at which the search ends."""
MOST_STEPS = 400
PATIENCE = 60
"""It also ends when the bound has not risen by a thousandth in so many steps."""
OVER_RELAXATION = 1.6
FLOOR = 1e-10
"""Share of A that is added to it, so that ticks that no query reads get noise of a finite size."""
NEW_CHANGES = 5
"""Every so many steps the changes that cost most are searched."""
STRIDE = 3
"""The search begins at every third tick."""
EXCHANGES = 10
"""The most exchanges of one search."""
MEAN_OF = 4
"""The mean over all steps gives step i a weight that grows as i³."""


@dataclass(frozen=True)
class Certificate:
    """What is known about the best factorization, for a noise multiplier of 1.

    Args:
        errors: of each workload, in the factorization that was found.
        alone: no factorization has less for this workload, even alone.
        least_score: no factorization has a smaller largest ratio of `errors` to `alone`.
        gram: G = RᵀR of the factorization; units cost at most 1.
    """

    errors: tuple[float, ...]
    alone: tuple[float, ...]
    least_score: float
    gram: FloatArray = field(repr=False, compare=False)

    @property
    def score(self) -> float:
        """The largest ratio of an error to the least that the workload can have alone."""
        return max(own / least for own, least in zip(self.errors, self.alone, strict=True))

    @property
    def gap(self) -> float:
        """By what part the score is above the least that any factorization can have, at most."""
        return self.score / self.least_score - 1


def best_gram(
    workloads: Sequence[FloatArray], q: int = 1, period: int | None = None, worst: bool = False
) -> Certificate:
    """The best G for some workloads together: `Dense.optimal` explains the arguments.

    **Guarantee.** No factorization has a score below `least_score`, or an error below `alone`.
    Proof: `dense.proof.md`, 6. Tests:
    tests/factorizations/test_best_dense.py::test_no_factorization_beats_the_certificate and
    tests/factorizations/test_best_dense.py::test_the_bound_of_units_is_one_of_legal_changes.
    """
    T = workloads[0].shape[1]
    with blas_threads(1):
        unit = _Unit.of(T, q, period)
        alone = [_alone(one.tobytes(), unit, worst) for one in workloads]
        if len(workloads) == 1:
            return Certificate((alone[0].errors[0],), (alone[0].least,), 1.0, alone[0].gram)
        scaled = [rows / one.least for rows, one in zip(workloads, alone, strict=True)]
        found = _solve(scaled, unit, worst, alone)
    least = [one.least for one in alone]
    errors = tuple(error * size for error, size in zip(found.errors, least, strict=True))
    return Certificate(errors, tuple(least), max(1.0, found.least), found.gram)


def check_workloads(workload: object) -> list[FloatArray]:
    """One matrix or several, each with a column for every tick, as finite doubles."""
    if not isinstance(workload, Sequence) or (workload and np.ndim(workload[0]) < 2):
        workload = (workload,)
    try:
        found = [np.array(one, np.float64) for one in workload]
    except (TypeError, ValueError):
        raise ParameterError(
            "a workload is a matrix of real numbers: a row for each query, a column per tick"
        ) from None
    if (
        not found
        or any(one.ndim != 2 or not one.size for one in found)
        or len({one.shape[1] for one in found}) > 1
    ):
        shapes = ", ".join(str(one.shape) for one in found)
        raise ParameterError(
            f"workloads are matrices with a column for every tick; these have the shapes {shapes}"
        )
    if not all(np.isfinite(one).all() and one.any() for one in found):
        raise ParameterError("a workload has a number that is not finite, or nothing but zeros")
    if found[0].shape[1] > LARGEST_OPTIMAL_HORIZON:
        raise TooLarge(
            f"the optimum is computed for at most {LARGEST_OPTIMAL_HORIZON} ticks, "
            f"{found[0].shape[1]} were asked for"
        )
    return found


@dataclass(frozen=True)
class _Unit:
    """Changes that a unit can make: at most q entries of ±1 within `span` consecutive ticks.

    Those with equal chances of both signs at each of q consecutive ticks, whose mean d·dᵀ is
    diagonal, are known by their first tick.
    """

    ticks: int
    q: int
    span: int

    @classmethod
    def of(cls, T: int, q: int, period: int | None) -> _Unit:
        span = T if period is None else min(period, T)
        return cls(T, min(q, span), span)

    def start(self) -> _Weighted:
        """Equal weights on all intervals of q ticks, with one sign and with random ones."""
        size = self.ticks - self.q + 1
        signs = np.full(size, 1.0 / size)
        if self.q == 1:
            return _Weighted(np.empty((0, self.ticks)), np.empty(0), signs)
        rows = np.tri(self.ticks) - np.tri(self.ticks, k=-self.q)
        return _Weighted(rows[self.q - 1 :], 0.9 * signs, 0.1 * signs)

    def mean(self, changes: _Weighted) -> FloatArray:
        """U = Σ u·E[d·dᵀ]."""
        U = (changes.rows * changes.u[:, None]).T @ changes.rows
        U[np.diag_indices(self.ticks)] += np.convolve(changes.signs, np.ones(self.q))
        return np.asarray(U)

    def costs(self, G: FloatArray, changes: _Weighted) -> tuple[FloatArray, FloatArray]:
        """E[d·G·dᵀ] of every change."""
        each = ((changes.rows @ G) * changes.rows).sum(axis=1)
        return each, np.convolve(np.diagonal(G), np.ones(self.q), "valid")

    def bound(self, G: FloatArray) -> float:
        """What noise must be calibrated to: no unit costs more."""
        if self.q == 1:
            return float(np.diagonal(G).max())
        span = self.span if self.span < self.ticks else None
        return min(gram_sum(np.abs(G), self.q, span), signed_sum(G, self.q, span))

    def costly(self, G: FloatArray) -> FloatArray:
        """Changes that cost much, one from every few ticks on: entries are added one by one, then
        exchanged."""
        if self.span < self.ticks:
            first = np.arange(0, self.ticks - self.span + 1, STRIDE)
            begin = first
        else:
            first = np.zeros(1, np.int64)
            begin = np.arange(0, self.ticks, STRIDE)
        at = np.arange(len(begin))
        own = np.diagonal(G)
        near = np.arange(self.ticks) - np.broadcast_to(first, len(begin))[:, None]
        legal = (near >= 0) & (near < self.span)
        D = np.zeros((len(begin), self.ticks))
        D[at, begin] = 1.0
        S = G[begin].copy()  # D·G

        def add() -> None:
            place = np.where(legal & (D == 0), own + 2 * np.abs(S), -np.inf).argmax(axis=1)
            sign = np.where(S[at, place] < 0, -1.0, 1.0)
            D[at, place] = sign
            S[...] += sign[:, None] * G[place]

        for _ in range(self.q - 1):
            add()
        for _ in range(EXCHANGES):
            place = np.where(D != 0, 2 * D * S - own, np.inf).argmin(axis=1)
            S -= D[at, place][:, None] * G[place]
            D[at, place] = 0.0
            add()
        return np.unique(D * np.sign(D[at, np.abs(D).argmax(axis=1)])[:, None], axis=0)


@dataclass(frozen=True, eq=False)
class _Weighted:
    """Changes `rows` with weights u, and weights of intervals with random signs; all add up to
    1."""

    rows: FloatArray
    u: FloatArray
    signs: FloatArray

    def scaled(self, by_u: FloatArray, by_signs: FloatArray) -> _Weighted:
        total = float((self.u * by_u).sum() + (self.signs * by_signs).sum())
        return _Weighted(self.rows, self.u * by_u / total, self.signs * by_signs / total)

    def joined(self, rows: FloatArray, share: float) -> _Weighted:
        """Without what has hardly any weight, and with new rows of this share in all."""
        used = self.u > 1e-7 / max(1, len(self.u))
        known = {row.tobytes() for row in self.rows[used]}
        new = [row for row in rows if row.tobytes() not in known]
        u = np.concatenate([self.u[used], np.full(len(new), share / max(1, len(new)))])
        kept = _Weighted(np.vstack([self.rows[used], *new]), u, self.signs)
        return kept.scaled(np.ones(len(u)), np.ones(len(self.signs)))

    @classmethod
    def mixed(cls, parts: Sequence[_Weighted]) -> _Weighted:
        rows = np.vstack([part.rows for part in parts])
        u = np.concatenate([part.u for part in parts]) / len(parts)
        rows, places = np.unique(rows, axis=0, return_inverse=True)
        signs = np.mean([part.signs for part in parts], axis=0)
        return cls(rows, np.asarray(np.bincount(places.ravel(), u, len(rows)), np.float64), signs)


class _Solved(NamedTuple):
    errors: tuple[float, ...]
    least: float
    gram: FloatArray
    p: FloatArray
    changes: _Weighted


@lru_cache(maxsize=16)
def _alone(rows: bytes, unit: _Unit, worst: bool) -> _Solved:
    """One workload by itself: several calls share it."""
    return _solve([np.frombuffer(rows).reshape(-1, unit.ticks)], unit, worst)


def _solve(
    workloads: Sequence[FloatArray], unit: _Unit, worst: bool, parts: Sequence[_Solved] = ()
) -> _Solved:
    """The fixed point, from equal weights or from those of the workloads alone."""
    from scipy.linalg import solve_triangular

    W = np.vstack(workloads)
    T = unit.ticks
    sizes = [len(rows) for rows in workloads]
    group, share = _groups(sizes, worst)
    groups = int(group[-1]) + 1
    p = np.full(groups, 1.0 / groups)
    changes = unit.start()
    if parts:
        p = 0.9 * np.concatenate([part.p for part in parts]) / len(parts) + 0.1 * p
        changes = _Weighted.mixed([unit.start(), *(part.changes for part in parts)])
    identity = np.eye(T)
    rows = (W**2).sum(axis=1) * unit.q
    least = 0.0
    upper = float(_grouped(rows, group, share).max())
    gram = identity / unit.q
    risen = 0
    mean = identity
    for step in range(MOST_STEPS):
        A = (W * (p[group] * share)[:, None]).T @ W
        U = unit.mean(changes)
        floor = FLOOR * float(np.trace(A)) / T
        K = np.linalg.cholesky(A + floor * identity).T
        H = np.linalg.cholesky(U + FLOOR**1.4 * float(np.trace(U)) / T * identity)
        N = K @ H
        values, vectors = np.linalg.eigh(N.T @ N)
        roots = np.sqrt(np.maximum(values, float(values[-1]) * 1e-30))
        F = float(roots.sum())
        # less what the floors and the rounding of small roots can add: `dense.proof.md`, 6
        sure = (
            F
            - np.sqrt(FLOOR * 1.1 * float(np.trace(A) * np.trace(U)))
            - T * 2.0**-21 * float(roots[-1])
        )
        if sure**2 > least * (1 + 1e-3):
            risen = step
        least = max(least, max(sure, 0.0) ** 2)
        X = solve_triangular(H, vectors, lower=True, trans="T")
        G = (X * roots) @ X.T
        variances = (((W @ (H @ vectors)) ** 2) / roots).sum(axis=1)
        errors = _grouped(variances, group, share)
        mean = mean + (G - mean) * min(1.0, MEAN_OF / (step + 1))
        if unit.q == 1:
            candidates = [(G, variances)]
        elif step % NEW_CHANGES == 0:
            # steps swing around the optimum, and both sides are convex in G
            inverse = solve_triangular(np.linalg.cholesky(mean), W.T, lower=True)
            candidates = [(mean, (inverse**2).sum(axis=0))]
        else:
            candidates = []
        for candidate, of_rows in candidates:
            bound = unit.bound(candidate)
            error = float(_grouped(of_rows, group, share).max()) * bound
            if error < upper:
                upper = error
                gram = candidate / bound
                rows = of_rows * bound
        if upper <= least * (1 + GAP) or step - risen > PATIENCE:
            break
        p = p * (errors / F) ** OVER_RELAXATION
        p /= p.sum()
        changes = changes.scaled(
            *((cost / F) ** OVER_RELAXATION for cost in unit.costs(G, changes))
        )
        if unit.q > 1 and step % NEW_CHANGES == NEW_CHANGES - 1:
            changes = changes.joined(unit.costly(G), 0.02)
    variances_of_each = np.split(rows, np.cumsum(sizes)[:-1])
    combined = np.max if worst else np.mean
    stds = tuple(float(np.sqrt(combined(one))) for one in variances_of_each)
    return _Solved(stds, float(np.sqrt(least)), gram, p, changes)


def _groups(sizes: Sequence[int], worst: bool) -> tuple[IntArray, FloatArray]:
    """Number the group of each row, which is one row or one workload, and divide it into shares."""
    if worst:
        return np.arange(sum(sizes)), np.ones(sum(sizes))
    return np.repeat(np.arange(len(sizes)), sizes), np.repeat(1.0 / np.asarray(sizes), sizes)


def _grouped(variances: FloatArray, group: IntArray, share: FloatArray) -> FloatArray:
    """Add up the variances of each group, each times its share."""
    return np.asarray(np.bincount(group, variances * share), np.float64)
