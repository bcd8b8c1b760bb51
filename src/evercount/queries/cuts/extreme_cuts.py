"""Search for cuts of small weight in a graph whose weights may be negative (released weights carry
noise).

All functions minimise; `CutGraph` turns signs for maxima. A cut is a row of zeros and ones, one
entry per vertex. Every candidate is judged by its raw weight: clipping negative weights at 0 adds
to a cut the more, the more edges it has, and so hides balanced cuts. Where no weight is negative,
Stoer–Wagner alone is exact.
"""

from __future__ import annotations

import numpy as np

from evercount._validate import FloatArray

EIGENVECTORS = 8  # eigenvectors of the Laplacian whose orders of the vertices are swept

# random combinations of these eigenvectors that are rounded to a cut, as starts of the local search
RANDOM_STARTS = 32

STARTS = 48  # candidates with the smallest objective that the local search starts from


def objective(weights: FloatArray, sides: FloatArray, sparsity: bool) -> FloatArray:
    """Weight of each cut, or weight per pair of vertices across it."""
    values = np.asarray(((sides @ weights) * (1 - sides)).sum(axis=1))
    if not sparsity:
        return values
    sizes = sides.sum(axis=1)
    return np.asarray(values / (sizes * (weights.shape[0] - sizes)))


def candidate_cuts(weights: FloatArray, sparsity: bool) -> FloatArray:
    """Single vertices, Stoer–Wagner, spectral sweeps, and local search from the best: one row for
    each candidate."""
    n = len(weights)
    sides = np.concatenate(
        [np.eye(n), stoer_wagner_cuts(np.maximum(weights, 0.0)), _spectral_cuts(weights)]
    )
    best = np.argsort(objective(weights, sides, sparsity), kind="stable")[:STARTS]
    return np.concatenate([sides, local_search(weights, sides[best], sparsity)])


def stoer_wagner_cuts(weights: FloatArray) -> FloatArray:
    """The n − 1 cuts of the phases of Stoer and Wagner; without negative weights the lightest is a
    minimum cut."""
    n = len(weights)
    merged = weights.copy()
    groups = np.eye(n)
    alive = np.arange(n)
    cuts = np.empty((n - 1, n))
    for phase in range(n - 1):
        remaining = merged[np.ix_(alive, alive)]
        links = remaining[0].copy()
        links[0] = -np.inf  # a vertex that was taken stays there
        last = before = 0
        for _ in range(len(alive) - 1):
            before = last
            last = int(links.argmax())
            links[last] = -np.inf
            links += remaining[last]
        s = alive[before]
        t = alive[last]
        cuts[phase] = groups[t]
        groups[s] += groups[t]
        merged[s] += merged[t]
        merged[:, s] = merged[s]
        merged[s, s] = 0.0
        alive = np.delete(alive, last)
    return cuts


def _spectral_cuts(weights: FloatArray) -> FloatArray:
    """List prefixes of the vertices in the order of each low eigenvector, and rounded random
    combinations of them."""
    n = len(weights)
    _, vectors = low_eigenvectors(weights, EIGENVECTORS)
    prefixes = np.tril(np.ones((n - 1, n)))
    sweeps = np.empty((vectors.shape[1], n - 1, n))
    for sweep, vector in zip(sweeps, vectors.T, strict=True):
        sweep[:, np.argsort(vector, kind="stable")] = prefixes
    mixed = vectors @ np.random.default_rng(0).normal(size=(vectors.shape[1], RANDOM_STARTS))
    rounded = (mixed > np.median(mixed, axis=0)).T.astype(np.float64)
    inside = rounded.sum(axis=1)
    return np.concatenate([sweeps.reshape(-1, n), rounded[(inside > 0) & (inside < n)]])


def low_eigenvectors(weights: FloatArray, number: int) -> tuple[FloatArray, FloatArray]:
    """The smallest eigenvalues of the Laplacian on vectors that sum to 0, and their eigenvectors as
    columns."""
    from scipy.linalg import eigh  # slow to import

    n = len(weights)
    laplacian = np.diag(weights.sum(axis=1)) - weights
    # the vector of ones has eigenvalue 0, which may lie among the negative ones: move it above all
    # others
    lifted = laplacian + (1.0 + 2 * np.abs(laplacian).sum(axis=1).max()) / n
    values, vectors = eigh(lifted, subset_by_index=[0, min(number, n - 1) - 1])
    return np.asarray(values), np.asarray(vectors)


def local_search(weights: FloatArray, sides: FloatArray, sparsity: bool) -> FloatArray:
    """Move single vertices to the other side while that lowers the objective; always the vertex
    that helps most. All cuts, one row each, are searched at once, each by itself."""
    n = len(weights)
    signs = 2.0 * sides - 1.0
    pull = signs @ weights
    cut = objective(weights, sides, False)
    inside = sides.sum(axis=1)
    tolerance = 1e-12 * float(np.abs(weights).sum()) / (n if sparsity else 1)
    active = np.arange(len(sides))
    # each step lowers the objective; the limit only guards against rounding
    for _ in range(20 * n):
        after = cut[active, np.newaxis] + signs[active] * pull[active]
        sizes = inside[active, np.newaxis] - signs[active]
        pairs = sizes * (n - sizes)
        legal = pairs > 0
        after_move = np.full(after.shape, np.inf)
        np.divide(after, pairs if sparsity else 1.0, out=after_move, where=legal)
        best = after_move.argmin(axis=1)
        now = cut[active] / (inside[active] * (n - inside[active]) if sparsity else 1.0)
        helps = after_move[np.arange(len(active)), best] < now - tolerance
        if not helps.any():
            break
        active = active[helps]
        best = best[helps]
        rows = np.flatnonzero(helps)
        cut[active] = after[rows, best]
        inside[active] = sizes[rows, best]
        pull[active] -= 2 * signs[active, best][:, np.newaxis] * weights[best]
        signs[active, best] *= -1
    return np.asarray((signs + 1) / 2)


def least_by_size(weights: FloatArray) -> FloatArray:
    """For each size a = 1..⌊n/2⌋ a number that no cut with a vertices on one side falls below.

    **Guarantee.** ŵ(S) = ¼·xᵀLx for x = ±1 by side. The part of x that is orthogonal to the ones
    has squared norm 4a(n−a)/n, so ŵ(S) ≥ λ·a(n−a)/n with λ the smallest eigenvalue of L on that
    space. Sizes 1 and 2 are exact. Proof: `cuts.proof.md`, "Extreme cuts". Test:
    tests/queries/test_queries_cuts.py::test_no_cut_falls_below_its_size_bound.
    """
    n = len(weights)
    sizes = np.arange(1, n // 2 + 1)
    smallest = float(low_eigenvectors(weights, 1)[0][0])
    # far above the error of the eigenvalue
    smallest -= 1e-9 * float(np.abs(weights).sum() / n + abs(smallest))
    least = smallest * sizes * (n - sizes) / n
    degrees = weights.sum(axis=1)
    least[0] = degrees.min()
    if n >= 4:
        pairs = degrees[:, None] + degrees[None, :] - 2 * weights
        np.fill_diagonal(pairs, np.inf)
        least[1] = pairs.min()
    return np.asarray(least)
