"""One contract for every factorization: L·R = M, norms, streaming = block = dense, a nonnegative
Gram matrix."""

from __future__ import annotations

import numpy as np
import pytest

from evercount.errors import HorizonReached, ParameterError, TooLarge, UnknownName
from evercount.factorizations import FACTORIZATIONS, Anytime, Unbounded, factorization, optimal
from evercount.factorizations.blas_threads import blas_threads

EVERY = list(FACTORIZATIONS.values())


@pytest.mark.parametrize("kind", EVERY, ids=lambda k: k.name)
def test_product_is_the_counting_matrix(kind):
    most = 34 if kind.name == "optimal" else 67  # each optimum is solved anew
    with blas_threads(1):
        for T in (*range(1, most), 100, 101, 127, 128, 129, 199, 200):
            L, R = kind(T).dense(T)
            assert np.abs(L @ R - np.tril(np.ones((T, T)))).max() < 1e-12, T


def test_optimum_is_certified_and_depends_on_the_horizon_only():
    horizons = (1, 2, 3, 20, 50, 101, 200)
    first = {T: optimal.dual_maximiser(T) for T in horizons}
    for T in reversed(horizons):
        p, values, vectors = first[T]
        # squared row norms of L, and those of the columns of R reversed, next to the lower bound
        assert np.max(vectors**2 @ values / p) <= values.sum() * (1 + 1.001e-5)
        assert np.array_equal(p, optimal.dual_maximiser(T)[0])


def test_optimum_that_is_not_reached_is_refused(monkeypatch):
    monkeypatch.setattr(optimal, "MOST_ITERATIONS", 5)
    with pytest.raises(ParameterError, match="not found in 5 steps"):
        optimal.dual_maximiser(50)


@pytest.mark.parametrize("kind", EVERY, ids=lambda k: k.name)
def test_norms_and_gram_matrix(kind):
    for T in (1, 2, 3, 33, 200):
        f = kind(T)
        L, R = f.dense(T)
        columns = np.linalg.norm(R, axis=0).max()
        assert columns <= f.column_norm, T
        # an endless factorization is calibrated to a future that the first T ticks do not show
        if kind not in (Anytime, Unbounded):
            assert columns >= f.column_norm * (1 - 1e-8), T
        assert (R.T @ R).min() >= 0, T
        assert np.allclose(
            f.row_norms(np.arange(1, T + 1)), np.linalg.norm(L, axis=1), rtol=1e-11
        ), T


@pytest.mark.parametrize("kind", EVERY, ids=lambda k: k.name)
def test_difference_norms(kind):
    for T in (1, 2, 33, 130):
        f = kind(T)
        L, _ = f.dense(T)
        L = np.vstack([np.zeros(L.shape[1]), L])
        rng = np.random.default_rng(T)
        for _ in range(40 if T > 2 else 4):
            s, t = sorted(int(x) for x in rng.integers(0, T + 1, 2))
            if t:
                assert f.difference_norm(s, t) == pytest.approx(
                    np.linalg.norm(L[t] - L[s]), rel=1e-9, abs=1e-12
                ), T


@pytest.mark.parametrize("kind", EVERY, ids=lambda k: k.name)
def test_streaming_equals_block_equals_dense(kind):
    for T in (1, 2, 31, 32, 33, 200):
        f = kind(T)
        L, _ = f.dense(T)
        for cells in (1, 3, 40):
            check_streaming(f, L, cells)


def check_streaming(f, L, cells):
    T = len(L)
    rng = np.random.default_rng(7)
    z = rng.standard_normal((f.draws(0, T), cells))
    expected = L @ z
    tolerance = 1e-10 * np.abs(expected).max()
    at_once, after = f.block(f.initial(cells), z, T)
    assert np.abs(at_once - expected).max() <= tolerance
    assert after.tick == T
    state, at, pieces = f.initial(cells), 0, []
    while state.tick < T:
        ticks = min(int(rng.integers(1, 40)), T - state.tick)
        draws = f.draws(state.tick, state.tick + ticks)
        before = [array.copy() for array in state.arrays]
        noise, following = f.block(state, z[at : at + draws], ticks)
        assert all(np.array_equal(a, b) for a, b in zip(before, state.arrays, strict=True)), (
            "block must be pure"
        )
        pieces.append(noise)
        state, at = following, at + draws
    assert np.abs(np.concatenate(pieces) - expected).max() <= tolerance
    state, at = f.initial(cells), 0
    for t in range(min(T, 40)):
        draws = f.draws(t, t + 1)
        noise, state = f.next(state, z[at : at + draws])
        at += draws
        assert np.abs(noise - expected[t]).max() <= tolerance


@pytest.mark.parametrize("kind", EVERY, ids=lambda k: k.name)
def test_long_scalar_blocks_equal_short_ones(kind):
    T = 200 if kind.name == "optimal" else 70_000
    f = kind(T)
    z = np.random.default_rng(1).standard_normal((f.draws(0, T), 1))
    at_once, _ = f.block(f.initial(1), z, T)
    first, state = f.block(f.initial(1), z[: f.draws(0, T // 3)], T // 3)
    second, _ = f.block(state, z[f.draws(0, T // 3) :], T - T // 3)
    assert np.allclose(
        np.concatenate([first, second]), at_once, rtol=0, atol=1e-9 * np.abs(at_once).max()
    )


@pytest.mark.parametrize("kind", EVERY, ids=lambda k: k.name)
def test_ticks_outside_the_horizon_and_wrong_shapes_are_refused(kind):
    f = kind(5)
    state = f.initial(2)
    z = np.zeros((f.draws(0, 5), 2))
    _, end = f.block(state, z, 5)
    with pytest.raises(HorizonReached, match="refuses tick 6"):
        f.block(end, np.zeros((f.draws(5, 6), 2)), 1)
    with pytest.raises(ParameterError, match="need z of shape"):
        f.block(state, np.zeros((1, 2)), 3)
    for bad in (0, -1, 6):
        with pytest.raises(ParameterError):
            f.row_norms([bad])
    with pytest.raises(ParameterError, match="after the later"):
        f.difference_norm(4, 2)


@pytest.mark.parametrize("kind", EVERY, ids=lambda k: k.name)
def test_bad_horizons_are_refused(kind):
    for horizon in (0, -3, 2.5, True, "8", 2**51, float("nan")):
        with pytest.raises(ParameterError, match="horizon"):
            kind(horizon)


def test_factorizations_by_name():
    assert factorization(None, 8).name == "balanced"
    assert factorization(None, None).name == "anytime"
    with pytest.raises(UnknownName, match="Did you mean 'balanced'") as caught:
        factorization("ballanced", 8)
    assert caught.value.known == tuple(FACTORIZATIONS)
    with pytest.raises(ParameterError, match="needs a known horizon"):
        factorization("square-root", None)
    with pytest.raises(TooLarge, match="1024"):
        factorization("optimal", 1025)
    with pytest.raises(TooLarge, match="dense"):
        factorization("balanced", 10**6).dense()
