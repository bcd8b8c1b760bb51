"""Known numbers of the factorizations: constants c, filter loss, column bounds at large horizons,
unbounded streams."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from mpmath import mp

from evercount._validate import FloatArray
from evercount.factorizations import (
    Balanced,
    Honaker,
    HonakerFull,
    Normalized,
    Optimal,
    SquareRoot,
    Unbounded,
    covariance,
    factorization,
    row_weighted,
)
from evercount.factorizations.base import counting_matrix
from evercount.factorizations.filter_numbers import (
    FILTER_LOSS,
    PiecewiseLinear,
    design,
    dyadic_knots,
    landau,
    norm_product,
    zolotarev,
)
from evercount.factorizations.row_weighted import Weighted, bounded_columns


def c(f):
    return f.worst_row()[1] * f.column_norm - np.log(f.horizon) / np.pi


# Computed with the exact square root; the filter here may be a little better.
@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (SquareRoot, {256: 1.0660, 1024: 1.0662, 4096: 1.0663, 2**14: 1.0663}),
        (Normalized, {256: 0.8799, 1024: 0.8744, 4096: 0.8704, 2**14: 0.8674}),
        (Balanced, {256: 0.7839, 1024: 0.7708, 4096: 0.7624, 2**14: 0.7565}),
        (Optimal, {256: 0.7677}),
    ],
)
def test_table_of_constants(kind, values):
    for T, expected in values.items():
        assert c(kind(T)) == pytest.approx(expected, abs=1.2e-4), T


def test_optimal_is_certified_and_balanced_is_close():
    for T in (16, 64, 200):
        best = Optimal(T)
        norm = best.worst_row()[1] * best.column_norm
        assert best.lower_bound <= norm <= best.lower_bound * (1 + 2e-5)
        ours = Balanced(T).worst_row()[1]
        assert best.lower_bound < ours < best.lower_bound * 1.03


@pytest.mark.parametrize("T", [1, 2, 3, 10, 257, 2**16, 10**6, 10**8, 2**40])
def test_filter_loss_and_residues(T):
    f = design(T)
    assert norm_product(f, T) <= landau(T) * (1 + FILTER_LOSS)
    assert np.all(f.forward().weights > 0)
    assert np.all(f.summed_inverse().weights > 0)
    assert np.all(f.inverse().weights < 0)
    roots = np.empty(2 * f.order)
    roots[0::2], roots[1::2] = f.pole_lack, f.zero_lack
    assert np.all(np.diff(roots) > 0), "poles and zeros interlace"
    if f.order > 1:
        assert norm_product(zolotarev(T, f.order - 1), T) > landau(T) * (1 + FILTER_LOSS), (
            "one pole fewer would have been enough"
        )


@pytest.mark.parametrize(("T", "order"), [(2**16, 10), (10**6, 12), (10**8, 16)])
def test_number_of_poles(T, order):
    assert design(T).order == order


@pytest.mark.parametrize("T", [1, 2, 63, 64, 65, 100, 1000, 20_000])
def test_landau_against_fifty_digits(T):
    with mp.workdps(50):
        total, f = mp.mpf(0), mp.mpf(1)
        for k in range(T):
            total += f * f
            f *= mp.mpf(2 * k + 1) / (2 * k + 2)
        assert abs(landau(T) / total - 1) < 5e-16


def true_columns(f, T):
    """Exact ‖R[:, j]‖ for all j of a long horizon, by one FFT correlation of e² with f²."""
    e2 = f.weights.eta.at(0, T) ** -2.0
    f2 = f.weights.filter.forward().values(T) ** 2
    size = 1 << (2 * T - 1).bit_length()
    spectrum = np.fft.rfft(e2, size) * np.conj(np.fft.rfft(f2, size))
    return np.sqrt(np.fft.irfft(spectrum, size)[:T]) / f.weights.n.at(0, T)


@pytest.mark.parametrize("kind", [Balanced, Normalized])
@pytest.mark.parametrize("T", [300, 5000, 2**17 + 13])
def test_columns_never_exceed_one(kind, T):
    columns = true_columns(kind(T), T)
    assert columns.max() <= 1
    assert columns.min() >= 1 - 5e-6, "the bound is tight everywhere, not only at the worst column"


def test_planted_bound_is_caught():
    """The check above can fail: column norms that are two parts in a million too small break it."""
    f = Balanced(5000)
    assert (true_columns(f, 5000) * (1 + 2e-6)).max() > 1
    # and a bound that forgets the bow between knots is too small, which the check sees as well
    eta = PiecewiseLinear(np.asarray([0, 64, 128, 192, 256]), np.asarray([1.0, 0.5, 0.2, 0.5, 1.0]))
    n = bounded_columns(design(257), eta, endless=False)
    e2 = eta.at(0, 257) ** -2.0
    f2 = design(257).forward().values(257) ** 2
    true = np.asarray([np.sqrt(np.sum(e2[j:] * f2[: 257 - j])) for j in range(257)])
    assert np.all(true <= n.at(0, 257)), (
        "the bound holds for any weights, also for wild ones with few knots"
    )
    bare = PiecewiseLinear(eta.knots, true[eta.knots])
    assert np.any(true > bare.at(0, 257)), "without the proved slack it would not"


def test_norms_do_not_depend_on_the_sign_of_what_rounding_hides(monkeypatch):
    """Both signs are tried where rounding hides one, and the margin of 1e-9 is enough: norms are
    what they were."""

    def columns(T, endless=False):
        knots = dyadic_knots(T - 1, mirrored=not endless)
        t = knots.astype(np.float64)
        values = (4 + t) ** 0.3 if endless else (t + 1 + T / 18) ** -0.27 * (T - t + 1) ** -0.28
        return bounded_columns(design(T), PiecewiseLinear(knots, values), endless).values

    cases = [*((T, False) for T in (2, 3, 17, 300, 1025, 2**17 + 13, 2**31)), (2**40, True)]
    safe = [columns(*case) for case in cases]
    monkeypatch.setattr(row_weighted, "EVALUATION_ERROR", 0.0)
    assert all(
        np.array_equal(columns(*case), values) for case, values in zip(cases, safe, strict=True)
    )
    # a larger error is answered by larger norms
    monkeypatch.setattr(row_weighted, "EVALUATION_ERROR", 1e-6)
    assert all(np.all(columns(*case) > values) for case, values in zip(cases, safe, strict=True))


@pytest.mark.parametrize("T", [300, 5000, 10**6, 2**50])
def test_rounding_of_sums_is_below_its_bound(T):
    """Against arithmetic with mantissas of 64 bits, and a planted error of the size of the bound is
    seen."""
    knots = dyadic_knots(T - 1, mirrored=True)
    assert len(knots) < 30_000
    # the recursion runs backwards, and the last ticks have the shortest blocks
    knots = knots[-2000:]
    lengths, eta = np.diff(knots), (knots + 1.0 + T / 18) ** -0.27 * (T - knots + 1.0) ** -0.28
    lack = design(T).pole_lack
    i, j = np.triu_indices(len(lack))
    found = []
    for kind in (np.float64, np.longdouble):
        rate = np.log1p(lack.astype(kind) / (1 - lack.astype(kind)))
        rates, phi = rate[i] + rate[j], eta.astype(kind) ** -2
        S = row_weighted.knot_sums(rates, phi, lengths, False)
        found.append((S, *row_weighted.bow_terms(rates, phi, lengths, S)))
    (S, D, size), (true_S, true_D, _) = found
    allowed = row_weighted.EVALUATION_ERROR / 50
    assert np.finfo(np.longdouble).eps < 2.0**-60
    assert np.all(np.abs(S - true_S) <= allowed * S)
    assert np.all(np.abs(D - true_D) <= allowed * size)
    assert np.any(np.abs(D + row_weighted.EVALUATION_ERROR * size - true_D) > allowed * size)


def test_knots_are_few_and_dyadic():
    for last in (0, 1, 5, 1000, 10**8 - 1):
        knots = dyadic_knots(last, mirrored=True)
        assert knots[0] == 0
        assert knots[-1] == last
        steps = np.diff(knots)
        assert np.all(steps & (steps - 1) == 0)
    assert len(dyadic_knots(10**8 - 1, mirrored=True)) < 12_000


def test_weights_do_not_depend_on_the_split():
    f = Balanced(10_000)
    at_once = f.weights.eta.at(0, 10_000)
    pieces = np.concatenate(
        [f.weights.eta.at(a, min(a + 777, 10_000)) for a in range(0, 10_000, 777)]
    )
    assert np.array_equal(at_once, pieces)


def test_state_of_a_hundred_million_ticks_is_small():
    large, small = Balanced(10**8), Balanced(2**16)
    assert large.state_bytes <= 2 * small.state_bytes < 512
    z = np.random.default_rng(0).standard_normal((64, 1))
    noise, state = large.block(large.initial(1), z, 64)
    assert np.all(np.isfinite(noise))
    assert sum(array.nbytes for array in state.arrays) == large.state_bytes
    ticks = np.asarray([1, 1000, 10**6, 10**8])
    assert np.all(np.diff(large.row_norms(ticks[:3])) > 0)


def test_optimal_says_how_large_its_state_becomes():
    """It holds all normals so far: nothing at first, 8 bytes for each tick at the end."""
    for ticks in (1, 7, 64):
        f = Optimal(ticks)
        _, state = f.block(f.initial(1), np.zeros((ticks, 1)), ticks)
        assert f.state_bytes == sum(array.nbytes for array in state.arrays) == 8 * ticks


def test_interpolated_row_norms_are_accurate():
    f = Balanced(60_000)
    everything = f.row_norms(np.arange(1, 60_001))
    some = np.random.default_rng(3).integers(1, 60_001, 300)
    assert np.allclose(everything[some - 1], f.row_norms(some), rtol=1e-6)


# error(t) of `unbounded` divided by that of the paper's mechanism with horizon T = t
@pytest.mark.parametrize(
    ("power", "ratio"), [(4, 1.142), (8, 1.135), (12, 1.131), (16, 1.128), (20, 1.126), (24, 1.124)]
)
def test_unbounded_against_known_horizon(power, ratio):
    f = Unbounded()
    t = 2**power
    assert f.row_norms([t])[0] * f.column_norm / landau(t) == pytest.approx(ratio, abs=6e-4)


def test_unbounded_never_ends_and_its_columns_never_exceed_one():
    f = Unbounded()
    assert f.horizon is None
    for start in (0, 10**6, 2**40, 2**48 - 50, 2**49):
        # the column that starts here stays below 1 over the next 4000 ticks
        e = 1 / f.weights.eta.at(start, start + 4000)
        column = e * f.weights.filter.forward().values(4000) / f.weights.n.at(start, start + 1)[0]
        assert np.linalg.norm(column) < 1
    # exact: Σ over the endless future of a column, in closed form where the weights have become
    # constant
    forward = f.weights.filter.forward()
    total = forward.squared_sums(np.asarray(1e18)) / f.weights.eta.at(2**49, 2**49 + 1)[0] ** 2
    assert np.sqrt(total) <= f.weights.n.at(2**49, 2**49 + 1)[0] <= np.sqrt(total) * (1 + 1e-5)
    state = f.initial(1)
    for _ in range(5):
        noise, state = f.block(state, np.ones((1000, 1)), 1000)
    assert state.tick == 5000
    assert np.all(np.isfinite(noise))


@pytest.mark.parametrize(
    ("name", "horizon"),
    [("balanced", 2**16), ("balanced", 10**6), ("unbounded", None), ("normalized", 8760)],
)
def test_variances_between_knots_are_exact_enough(name: str, horizon: int | None) -> None:
    """Each std is a function of its tick alone, and within 1e-7 of the exact recursion."""
    engine = factorization(name, horizon)
    assert isinstance(engine, Weighted)
    last = min(horizon or 10**6, 10**6)
    ticks = np.unique(np.random.default_rng(3).integers(1, last + 1, 200))
    together = engine.row_norms(np.arange(1, min(last, 10**5) + 1))
    alone = np.asarray([engine.row_norms(np.asarray([tick]))[0] for tick in ticks])
    inside = ticks <= len(together)
    assert (alone[inside] == together[ticks[inside] - 1]).all()
    exact = np.sqrt([engine.weights.covariance._after(int(tick))[-1, -1] for tick in ticks])
    assert np.abs(alone / exact - 1).max() < 1e-7


def complete_tree(height: int, ticks: int) -> FloatArray:
    """All nodes of the tree over 2^height ticks, restricted to the first `ticks`."""
    rows = [
        np.repeat(np.eye(2 ** (height - level)), 2**level, axis=1) for level in range(height + 1)
    ]
    return np.asarray(np.concatenate(rows)[:, :ticks])


@pytest.mark.parametrize("T", [1, 2, 3, 8, 33, 64, 100])
def test_honaker_full_streams_the_best_estimate(T: int) -> None:
    """The noise has the covariance of the best linear estimate from all nodes, and RᵀR is that of
    the tree."""
    engine = HonakerFull(T)
    left, right = engine.dense()
    size = 2**engine.height
    tree, count = complete_tree(engine.height, size), counting_matrix(size)
    best = (count @ np.linalg.inv(tree.T @ tree) @ count.T)[:T, :T]
    assert np.allclose(left @ left.T, best, rtol=0, atol=1e-12)
    assert np.allclose(right.T @ right, (tree.T @ tree)[:T, :T], rtol=0, atol=1e-11)
    if T in (8, 64):
        assert np.linalg.norm(left, axis=1).max() < 0.9 * Honaker(T).worst_row()[1]


@pytest.mark.parametrize("T", [1, 2, 6, 8, 33, 100])
def test_honaker_full_has_triangular_factors_of_no_larger_sensitivity(T: int) -> None:
    """The same law of noise with factors that read no future: what adaptive inputs need."""
    left, right = HonakerFull(T).dense()
    triangular = np.linalg.cholesky(left @ left.T)
    past = np.linalg.solve(triangular, counting_matrix(T))
    assert np.abs(np.triu(past, 1)).max() < 1e-12
    spare = np.linalg.eigvalsh(right.T @ right - past.T @ past)
    assert spare.min() > -1e-11
    # between powers of two some nodes stay hidden
    assert (spare.max() < 1e-11) == (T & (T - 1) == 0)


def test_worst_tick_of_honaker_full() -> None:
    for height in range(1, 13):
        norms = HonakerFull(2**height).row_norms(np.arange(1, 2**height + 1))
        worst = np.maximum.accumulate(norms)
        for T in range(2 ** (height - 1) + 1, 2**height + 1, 1 + 2**height // 256):
            assert HonakerFull(T).worst_row()[1] == pytest.approx(worst[T - 1], rel=1e-12), T
    for T in (2**16 - 77, 2**16, 50_001, 40_000):
        engine = HonakerFull(T)
        tick, norm = engine.worst_row()
        assert norm == pytest.approx(engine.row_norms(np.arange(1, T + 1)).max(), rel=1e-12)
        assert norm == engine.row_norms([tick])[0]


def test_honaker_full_over_long_horizons() -> None:
    """Covariances of far ticks against noise that is streamed with one normal at a time."""
    T = 2**40 - 12345
    engine = HonakerFull(T)
    assert engine.difference_norm(0, T) == engine.row_norms([T])[0]
    assert engine.difference_norm(T, T) == 0.0
    ticks = [1, 3, 64, 100]
    left, _ = engine.block(engine.initial(engine.draws(0, 100)), np.eye(engine.draws(0, 100)), 100)
    for s, t in pairwise(ticks):
        assert engine.difference_norm(s, t) == pytest.approx(
            np.linalg.norm(left[t - 1] - left[s - 1]), rel=1e-12
        )
        assert engine.row_norms([t])[0] == pytest.approx(np.linalg.norm(left[t - 1]), rel=1e-12)
    earlier = np.asarray([0, 1, 2**39, T - 1, T])
    each = [engine.difference_norm(tick, T) for tick in earlier.tolist()]
    assert engine.difference_norms(earlier, np.full_like(earlier, T)).tolist() == each


def test_moments_of_dropped_runs_come_back_the_same() -> None:
    """Few runs of blocks are kept; a difference is the same number before and after its run was
    dropped."""
    engine = factorization("balanced", 10**6)
    assert isinstance(engine, Weighted)
    pairs = [(7, 900), (5000, 5003), (70_000, 130_001), (999_000, 10**6)]
    first = [engine.difference_norm(*pair) for pair in pairs]
    runs = len(engine.weights.covariance.knots) // covariance.RUN
    for tick in np.linspace(1, 10**6, 3 * runs).astype(int).tolist():
        engine.difference_norm(tick - 1, tick)
    assert len(engine.weights.covariance._kept) <= covariance.KEPT_RUNS < runs
    assert [engine.difference_norm(*pair) for pair in pairs] == first
