"""The best factorization for some linear queries and a unit, with a certificate that no other has much less error.

Rows w of a workload are sums of increments; with G = RᵀR the variance of a row is w·G⁻¹·wᵀ, for a noise multiplier of
1 and units that cost at most 1. For weights p on the rows, A = Σ p·wᵀw, and a mean U of d·dᵀ over changes d that a unit
can make, every G has an error of at least F² with

    F = tr((U^½·A·U^½)^½),

and the p and U of the largest F are a fixed point of p ← p·error/F, u ← u·cost/F (`dense.proof.md`, 6). So every step
has a certificate.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from evercount._arrays import FloatArray, IntArray
from evercount.errors import ParameterError, TooLarge
from evercount.factorizations.blas_threads import blas_threads
from evercount.factorizations.optimal import LARGEST_OPTIMAL_HORIZON
from evercount.factorizations.participation import gram_sum

GAP = 4e-3
"""Relative gap between a squared error and its certified least, at which the search ends."""
MOST_STEPS, PATIENCE = 400, 60
"""It also ends where the bound has not risen by a thousandth in so many steps."""
OVER_RELAXATION = 1.6
FLOOR = 1e-10
"""Share of A that is added to it, so that ticks that no query reads get noise of a finite size."""
SCALES = 1.25
"""Ratio of the lengths of intervals, beyond q, that a unit's ticks are spread over."""


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

    **Guarantee.** No factorization has a score below `least_score`, or an error below `alone`. Proof: `dense.proof.md`,
    6. Tests: tests/factorizations/test_best_dense.py::test_no_factorization_beats_the_certificate and
    tests/factorizations/test_best_dense.py::test_the_bound_of_units_is_one_of_legal_changes.
    """
    T = workloads[0].shape[1]
    with blas_threads(2):
        unit = _Unit.of(T, q, period)
        alone = [_solve([one], unit, worst) for one in workloads]
        if len(workloads) == 1:
            return Certificate((alone[0].errors[0],), (alone[0].least,), 1.0, alone[0].gram)
        scaled = [rows / one.least for rows, one in zip(workloads, alone, strict=True)]
        found = _solve(scaled, unit, worst)
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
    if not found or any(one.ndim != 2 or not one.size for one in found) or len({one.shape[1] for one in found}) > 1:
        shapes = ", ".join(str(one.shape) for one in found)
        raise ParameterError(f"workloads are matrices with a column for every tick; these have the shapes {shapes}")
    if not all(np.isfinite(one).all() and one.any() for one in found):
        raise ParameterError("a workload has a number that is not finite, or nothing but zeros")
    if found[0].shape[1] > LARGEST_OPTIMAL_HORIZON:
        raise TooLarge(
            f"the optimum is computed for at most {LARGEST_OPTIMAL_HORIZON} ticks, {found[0].shape[1]} were asked for"
        )
    return found


@dataclass(frozen=True, eq=False)
class _Unit:
    """Changes that a unit can make: intervals of ticks, on several scales.

    On a scale ℓ ≤ q a change is ⌊q/ℓ⌋ intervals of ℓ ticks, one after the other, and one of the ticks that are left,
    each with a random sign; beyond q it is q random ticks of an interval of ℓ ticks.
    """

    ticks: int
    q: int
    period: int | None
    scales: tuple[int, ...]

    @classmethod
    def of(cls, T: int, q: int, period: int | None) -> _Unit:
        last = T if period is None else min(period, T)
        q = min(q, last)
        scales = sorted({q // parts for parts in range(1, q + 1)})
        while q > 1 and scales[-1] < last:
            scales.append(min(last, int(np.ceil(SCALES * scales[-1]))))
        return cls(T, q, period, tuple(scales))

    def start(self) -> list[FloatArray]:
        """Equal weights on all changes of each scale."""
        sizes = [self.ticks - max(self.q, scale) + 1 for scale in self.scales]
        return [np.full(size, 1.0 / size / len(sizes)) for size in sizes]

    def _parts(self, scale: int) -> list[tuple[int, int]]:
        """Where the intervals of a change begin, and their lengths."""
        if scale > self.q:
            return [(0, scale)]
        parts = [(at, scale) for at in range(0, self.q - scale + 1, scale)]
        rest = self.q % scale
        return [*parts, (self.q - rest, rest)] if rest else parts

    def mean(self, weights: list[FloatArray]) -> FloatArray:
        """U = Σ u·E[d·dᵀ]."""
        T = self.ticks
        low, high = _corners(T)
        U, diagonal = np.zeros((T, T)), np.zeros(T)
        inside: dict[int, FloatArray] = {}
        for scale, u in zip(self.scales, weights, strict=True):
            for at, length in self._parts(scale):
                inside.setdefault(length, np.zeros(T - length + 1))[at : at + len(u)] += u
        for length, each in inside.items():
            both, one = self._shares(length)
            sums = np.concatenate([np.zeros(length), np.cumsum(each), np.full(length, each.sum())])
            cover = np.maximum(sums[low + length - 1] - sums[high], 0.0)  # intervals that hold both ticks
            U += both * cover
            diagonal += (one - both) * np.diagonal(cover)
        U[np.diag_indices(T)] += diagonal
        return U

    def costs(self, G: FloatArray) -> list[FloatArray]:
        """E[d·G·dᵀ] of every change."""
        T = self.ticks
        C, D = np.zeros((T + 1, T + 1)), np.zeros(T + 1)
        C[1:, 1:], D[1:] = G.cumsum(axis=0).cumsum(axis=1), np.cumsum(np.diagonal(G))
        found = []
        for scale, first in zip(self.scales, self.start(), strict=True):
            total = np.zeros(len(first))
            for begin, length in self._parts(scale):
                at = begin + np.arange(len(first))
                both, one = self._shares(length)
                sums = C[at + length, at + length] - C[at, at + length] - C[at + length, at] + C[at, at]
                total += both * sums + (one - both) * (D[at + length] - D[at])
            found.append(total)
        return found

    def _shares(self, scale: int) -> tuple[float, float]:
        """The chance that both of two ticks, and that one tick, of an interval are changed with the same sign."""
        if scale <= self.q:
            return 1.0, 1.0
        return self.q * (self.q - 1) / (scale * (scale - 1)), self.q / scale


@lru_cache(maxsize=2)
def _corners(T: int) -> tuple[IntArray, IntArray]:
    """The smaller and the larger of two ticks."""
    at = np.arange(T)
    return np.minimum.outer(at, at) + 1, np.maximum.outer(at, at)


@dataclass(frozen=True, eq=False)
class _Solved:
    errors: tuple[float, ...]
    least: float
    gram: FloatArray


def _solve(workloads: Sequence[FloatArray], unit: _Unit, worst: bool) -> _Solved:
    from scipy.linalg import solve_triangular

    W, T = np.vstack(workloads), unit.ticks
    sizes = [len(rows) for rows in workloads]
    group = np.arange(len(W)) if worst else np.repeat(np.arange(len(sizes)), sizes)
    share = np.ones(len(W)) if worst else np.repeat(1.0 / np.asarray(sizes), sizes)
    p, u = np.full(int(group[-1]) + 1, 1.0 / (int(group[-1]) + 1)), unit.start()
    identity = np.eye(T)
    plain = (W**2).sum(axis=1)
    least, upper, gram, rows = (
        0.0,
        unit.q * float(_grouped(plain, group, share).max()),
        identity / unit.q,
        plain * unit.q,
    )
    risen = 0
    for step in range(MOST_STEPS):
        A = (W * (p[group] * share)[:, None]).T @ W
        U = unit.mean(u)
        floor = FLOOR * float(np.trace(A)) / T
        K = np.linalg.cholesky(A + floor * identity).T
        H = np.linalg.cholesky(U + FLOOR**1.4 * float(np.trace(U)) / T * identity)
        values, vectors = np.linalg.eigh(np.linalg.multi_dot([H.T, K.T, K, H]))
        roots = np.sqrt(np.maximum(values, float(values[-1]) * 1e-30))
        F = float(roots.sum())
        # less what the floors and the rounding of small roots can add: `dense.proof.md`, 6
        sure = F - np.sqrt(FLOOR * 1.1 * float(np.trace(A) * np.trace(U))) - T * 2.0**-21 * float(roots[-1])
        if sure**2 > least * (1 + 1e-3):
            risen = step
        least = max(least, max(sure, 0.0) ** 2)
        X = solve_triangular(H, vectors, lower=True, trans="T")
        G = (X * roots) @ X.T
        variances = (((W @ (H @ vectors)) ** 2) / roots).sum(axis=1)
        errors = _grouped(variances, group, share)
        bound = float(np.diagonal(G).max()) if unit.q == 1 else gram_sum(np.abs(G), unit.q, unit.period)
        if float(errors.max()) * bound < upper:
            upper, gram, rows = float(errors.max()) * bound, G / bound, variances * bound
        if upper <= least * (1 + GAP) or step - risen > PATIENCE:
            break
        p = p * (errors / F) ** OVER_RELAXATION
        p /= p.sum()
        u = [own * (cost / F) ** OVER_RELAXATION for own, cost in zip(u, unit.costs(G), strict=True)]
        total = sum(float(own.sum()) for own in u)
        u = [own / total for own in u]
    of_each = np.split(rows, np.cumsum(sizes)[:-1])
    found = tuple(float(np.sqrt(part.max() if worst else part.mean())) for part in of_each)
    return _Solved(found, float(np.sqrt(least)), gram)


def _grouped(variances: FloatArray, group: IntArray, share: FloatArray) -> FloatArray:
    return np.asarray(np.bincount(group, variances * share), np.float64)
