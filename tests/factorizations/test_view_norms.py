"""Errors of views: against the dense matrices, with cubics between exact norms, and where the worst tick is."""

from __future__ import annotations

import numpy as np
import pytest

from evercount.errors import ParameterError
from evercount.factorizations import FACTORIZATIONS, Anytime, Balanced, Normalized, SquareRoot, factorization
from evercount.factorizations.view_norms import view_norms, worst_view


def dense_norms(engine, T, width):
    L = engine.dense(T)[0]
    L = np.vstack([np.zeros(L.shape[1]), L])
    t = np.arange(1, T + 1)
    return np.linalg.norm(L[t] - L[np.maximum(t - (width or T), 0)], axis=1)


@pytest.mark.parametrize("width", [1, 30, 400, None])
@pytest.mark.parametrize("name", list(FACTORIZATIONS))
def test_norms_are_those_of_the_dense_matrix(name, width):
    for T in (1, 5, 365):
        engine = factorization(name, T)
        exact = dense_norms(engine, T, width)
        found = view_norms(engine, width, np.arange(1, T + 1))
        assert np.allclose(found, exact, rtol=1e-6)
        shuffled = np.random.default_rng(1).permutation(T)
        assert np.array_equal(view_norms(engine, width, shuffled + 1), found[shuffled]), "a function of the tick alone"
        tick, norm = worst_view(engine, width)
        assert norm == pytest.approx(exact[tick - 1], rel=1e-9)
        if name not in ("binary-tree", "honaker", "honaker-full") or T <= 5:
            assert norm >= exact.max() * (1 - 1e-9)


@pytest.mark.parametrize("kind", [Balanced, Normalized, SquareRoot, Anytime])
def test_cubics_between_exact_norms_are_accurate(kind):
    """And a planted straight line in their place is not."""
    T, width = 20_000, 24
    engine = kind(T)
    some = np.random.default_rng(2).integers(width + 1, T + 1, 300)
    exact = np.asarray([engine.difference_norm(t - width, t) for t in some.tolist()])
    assert np.abs(view_norms(engine, width, some) / exact - 1).max() < 1e-6
    few = np.unique(np.concatenate([width + np.geomspace(1, T / 2, 40), T - np.geomspace(1, T / 2, 40)]).astype(int))
    line = np.interp(some, few, [engine.difference_norm(t - width, t) for t in few.tolist()])
    assert np.abs(line / exact - 1).max() > 1e-6


@pytest.mark.parametrize("kind", [Balanced, Normalized, SquareRoot, Anytime])
@pytest.mark.parametrize("width", [1, 24, 400, None])
def test_the_worst_tick_is_found(kind, width):
    T = 600
    engine = kind(T)
    exact = dense_norms(engine, T, width)
    tick, norm = worst_view(engine, width)
    assert norm == pytest.approx(exact.max(), rel=1e-9)
    assert exact[tick - 1] == pytest.approx(norm, rel=1e-9)


def test_without_a_horizon_and_bad_arguments():
    assert worst_view(Anytime(), 1, last=1000)[1] == pytest.approx(
        max(Anytime().difference_norm(t - 1, t) for t in range(1, 1001)), rel=1e-9
    )
    with pytest.raises(ParameterError, match="last tick"):
        worst_view(Anytime(), 1)
    with pytest.raises(ParameterError):
        view_norms(Balanced(8), 0, [1])
    with pytest.raises(ParameterError):
        view_norms(Balanced(8), 2, [9])
    assert view_norms(Balanced(8), 2, np.empty(0, dtype=int)).shape == (0,)
