"""The yardstick: the least root-mean-square error that any factorization has for some views together.

With G = RᵀR, a view W (its rows are sums of increments) and columns of R of norm at most 1, the mean squared error of
the view is tr(W·G⁻¹·Wᵀ)/T in units of the noise multiplier. For weights w on the views, A = Σ w_v·W_vᵀW_v/T, the least
of tr(A·G⁻¹) over diag(G) ≤ 1 is at least

    2·tr((D^½·A·D^½)^½) − Σu   for every u ≥ 0, D = diag(u),

with equality for the best u, which is a fixed point of u ← diag((D^½·A·D^½)^½): Lagrange's dual, whose inner minimum is
at G = D^-½·(D^½·A·D^½)^½·D^-½. So every u is a certificate.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np

from evercount._arrays import FloatArray
from evercount.engine.error_model import ErrorModel
from evercount.engine.noise_choice import candidates
from evercount.engine.view_widths import view_width
from evercount.errors import ParameterError, TooLarge
from evercount.factorizations import Dense
from evercount.factorizations.base import counting_matrix
from evercount.factorizations.blas_threads import blas_threads
from evercount.factorizations.optimal import LARGEST_OPTIMAL_HORIZON
from evercount.privacy import Budget
from evercount.queries import Query

GAP = 2e-3
"""Relative gap between an error and its certified least, at which the search ends."""
MOST_STEPS, MOST_ROUNDS = 400, 40


@dataclass(frozen=True)
class DenseOptimum:
    """The best factorization for some views of T ticks, event level, for a noise multiplier of 1.

    Args:
        rms: the root-mean-square error of each view over all ticks.
        alone: the least that each view can have in a factorization of its own.
        least_score: no factorization has a smaller largest ratio rms/alone over the views. Certified.
        gram: G = RᵀR of the factorization.
    """

    rms: tuple[float, ...]
    alone: tuple[float, ...]
    least_score: float
    gram: FloatArray = field(repr=False, compare=False)

    @cached_property
    def factorization(self) -> Dense:
        """The factorization itself, for `Stream(factorization=…)`; its norms are checked as those of any matrices."""
        from scipy.linalg import solve_triangular

        # RᵀR = G with R lower triangular: Cholesky of the matrix read backwards
        right = np.tril(np.linalg.cholesky(self.gram[::-1, ::-1])[::-1, ::-1].T)
        left = solve_triangular(right, counting_matrix(len(right)).T, lower=True, trans="T").T
        return Dense(np.tril(left), right, "dense-optimum")

    @property
    def score(self) -> float:
        """The largest ratio of a view's error to the least that it can have alone."""
        return max(own / best for own, best in zip(self.rms, self.alone, strict=True))


@lru_cache(maxsize=16)
def dense_optimum(widths: tuple[int | None, ...], ticks: int) -> DenseOptimum:
    """The optimum for views of these widths (1: per tick, 7: the last seven, None: running).

    Args:
        widths: One for each view.
        ticks: The horizon, at most 1024.

    Returns:
        The optimum, with a certificate.

    Raises:
        TooLarge: There are more ticks.

    **Guarantee.** `score` is at least `least_score`, which no factorization beats, and within 1 % of it. Test:
    tests/planning/test_dense_optimum.py::test_no_factorization_beats_the_certificate.

    >>> best = dense_optimum((1, None), 16)
    >>> best.least_score <= best.score <= 1.01 * best.least_score
    True
    >>> from evercount import Budget, Count, Stream
    >>> Stream(Count(), Budget(1.0, 1e-6), factorization=best.factorization).horizon
    16
    """
    if ticks > LARGEST_OPTIMAL_HORIZON:
        raise TooLarge(f"the optimum is computed for at most {LARGEST_OPTIMAL_HORIZON} ticks, {ticks} were asked for")
    with blas_threads(2):
        views = [_gram_of_view(width, ticks) for width in widths]
        alone = [_solve([view], np.ones(1), None) for view in views]
        least = np.sqrt([float(one.errors[0]) for one in alone])
        scaled = [view / best**2 for view, best in zip(views, least, strict=True)]
        weights, bound, u = np.full(len(views), 1.0 / len(views)), 0.0, None
        for _ in range(MOST_ROUNDS):
            found = _solve(scaled, weights, u)
            u, bound = found.u, max(bound, found.lower)
            if found.errors.max() <= bound * (1 + 2 * GAP):
                break
            weights = weights * found.errors**2
            weights /= weights.sum()
    certified = [np.sqrt(one.lower) for one in alone]
    slack = min(low / best for low, best in zip(certified, least.tolist(), strict=True))
    return DenseOptimum(
        tuple(float(best * np.sqrt(error)) for best, error in zip(least, found.errors, strict=True)),
        tuple(map(float, certified)),
        float(np.sqrt(bound) * slack),
        found.gram,
    )


def _gram_of_view(width: int | None, ticks: int) -> FloatArray:
    """WᵀW/T of the view whose row t adds up the last `width` ticks."""
    rows = counting_matrix(ticks)
    if width is not None:
        rows = rows - np.vstack([np.zeros((min(width, ticks), ticks)), rows])[:ticks]
    return np.asarray(rows.T @ rows / ticks)


@dataclass(frozen=True, eq=False)
class _Solved:
    errors: FloatArray
    """Mean squared error of each view."""
    lower: float
    """No G has a smaller weighted mean of them."""
    u: FloatArray
    gram: FloatArray


def _solve(views: Sequence[FloatArray], weights: FloatArray, u: FloatArray | None) -> _Solved:
    A = np.einsum("v,vij->ij", weights, np.stack(views))
    u = np.sqrt(np.diagonal(A)).copy() if u is None else u
    for _ in range(MOST_STEPS):
        root = np.sqrt(u)
        values, vectors = np.linalg.eigh(root[:, None] * A * root)
        halves = np.sqrt(np.maximum(values, 0.0))
        diagonal = (vectors**2) @ halves
        lower = 2 * float(halves.sum()) - float(u.sum())
        # G scaled to the largest diagonal entry: a factorization that exists, with its exact error
        upper = float(halves.sum()) * float((diagonal / u).max())
        if upper <= lower * (1 + GAP):
            break
        u = u * (diagonal / u) ** 1.8
    root = np.sqrt(u)
    scale = float((diagonal / u).max())
    inverse = root[:, None] * (vectors / halves) @ vectors.T * root * scale
    gram = (vectors * halves) @ vectors.T / np.multiply.outer(root, root) / scale
    return _Solved(np.asarray([float(np.sum(view * inverse)) for view in views]), lower, u, gram)


def optimum_table(budget: Budget, horizon: int | None, views: Sequence[str], query: Query) -> str:
    """How far each Gaussian mechanism that may be chosen is from the best that any factorization can do, in words.

    Args:
        budget: the promise; it protects events.
        horizon: the number of ticks, at most 1024.
        views: "running", "per-tick", "last-7".
        query: what is asked.

    Returns:
        A table: rms errors over all ticks, and how much larger the largest ratio to the least of a view alone is than
        the certified least.

    Raises:
        ParameterError: the budget does not protect events with δ > 0, or there is no horizon.
        TooLarge: there are more than 1024 ticks.
    """
    names = tuple(views)
    if budget.pure or budget.unit != "event" or horizon is None:
        raise ParameterError("the optimum is known for events, delta above 0 and a horizon: leave --optimal out")
    widths = tuple(map(view_width, names))
    best = dense_optimum(widths, horizon)
    one = budget.noise_multiplier() * math.sqrt(query.squared_sensitivity(budget.adjacency))
    rows = [["rms over all ticks", *names, "from the optimum"]]
    rows.append(["optimum of any factorization", *(f"{one * rms:.2f}" for rms in best.rms), "0.0%"])
    for found in candidates(query, budget, horizon, names, margin=math.inf):
        if found.budget.pure:
            continue
        model = ErrorModel(query, found.engine, one * found.engine.column_norm, False)
        ticks = np.arange(1, horizon + 1)
        rms = [float(np.sqrt(np.mean(model.std(ticks, width) ** 2))) for width in widths]
        score = max(own / (one * least) for own, least in zip(rms, best.alone, strict=True))
        away = f"{score / best.least_score - 1:.1%}"
        rows.append([found.engine.name, *(f"{number:.2f}" for number in rms), away])
    wide = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join("  ".join(text.rjust(width) for text, width in zip(row, wide, strict=True)) for row in rows)
