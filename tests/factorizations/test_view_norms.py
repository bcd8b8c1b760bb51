"""Errors of views: where the worst tick is, against the dense matrices."""

from __future__ import annotations

import numpy as np
import pytest

from evercount.errors import ParameterError
from evercount.factorizations import FACTORIZATIONS, Anytime, Balanced, Normalized, SquareRoot, factorization
from evercount.factorizations.view_norms import worst_view


def dense_norms(engine, T, width):
    L = engine.dense(T)[0]
    L = np.vstack([np.zeros(L.shape[1]), L])
    t = np.arange(1, T + 1)
    return np.linalg.norm(L[t] - L[np.maximum(t - (width or T), 0)], axis=1)


@pytest.mark.parametrize("width", [1, 30, 400, None])
@pytest.mark.parametrize("name", list(FACTORIZATIONS))
def test_the_worst_norm_is_that_of_the_dense_matrix(name, width):
    for T in (1, 5, 365):
        engine = factorization(name, T)
        exact = dense_norms(engine, T, width)
        tick, norm = worst_view(engine, width)
        assert norm == pytest.approx(exact[tick - 1], rel=1e-9)
        if name not in ("binary-tree", "honaker", "honaker-full") or T <= 5:
            assert norm >= exact.max() * (1 - 1e-9)


@pytest.mark.parametrize("kind", [Balanced, Normalized, SquareRoot, Anytime])
@pytest.mark.parametrize("width", [1, 24, 400, None])
def test_the_worst_tick_is_found(kind, width):
    T = 600
    engine = kind(T)
    exact = dense_norms(engine, T, width)
    tick, norm = worst_view(engine, width)
    assert norm == pytest.approx(exact.max(), rel=1e-9)
    assert exact[tick - 1] == pytest.approx(norm, rel=1e-9)


def test_without_a_horizon():
    assert worst_view(Anytime(), 1, last=1000)[1] == pytest.approx(
        max(Anytime().difference_norm(t - 1, t) for t in range(1, 1001)), rel=1e-9
    )
    with pytest.raises(ParameterError, match="last tick"):
        worst_view(Anytime(), 1)
