"""`blend`: any interlaced filter is a factorization, fits reach their bars, and parameters are
rebuilt bit for bit."""

from __future__ import annotations

import hashlib
import json
from fractions import Fraction
from itertools import accumulate

import numpy as np
import pytest

from evercount import Count
from evercount.engine.carried_caps import check_hands_on
from evercount.errors import ParameterError
from evercount.factorizations import participation as module
from evercount.factorizations.base import counting_matrix
from evercount.factorizations.blend import (
    LEAST_GAP,
    WEIGHT_BITS,
    Blend,
    BlendFilter,
    TappedBlend,
    make_blend,
    round_root,
)
from evercount.factorizations.filter_numbers import PiecewiseLinear, Rational, dyadic_knots
from evercount.factorizations.fit_blend import _Model, _WeightedSearch, fit_blend
from evercount.factorizations.participation import participation
from evercount.factorizations.row_weighted import Weighted, Weights, bounded_columns
from evercount.factorizations.view_norms import worst_view
from evercount.planning import dense_optimum
from evercount.privacy import Budget
from tiers import soak_but

TAPPED_DOUBLES = "5ab494e37bfe629a3db09b728c297a336d5a987c5930e2da4527cc5228bc4801"
MULTIPLIER = Budget(1.0, 1e-6).noise_multiplier()
FITTED_1000 = BlendFilter.from_dict(
    {
        "poles": [
            0.0004997551441192627,
            0.0017462372779846191,
            0.006082773208618164,
            0.020962238311767578,
            0.06968879699707031,
            0.20765304565429688,
            0.4783172607421875,
            0.7623443603515625,
        ],
        "zeros": [
            0.001483827829360962,
            0.002642810344696045,
            0.011837482452392578,
            0.043791770935058594,
            0.07039260864257812,
            0.32599639892578125,
            0.559722900390625,
            0.7626800537109375,
        ],
    }
)
"""What `fit_blend((1, 7, "running"), 1000)` found on one machine."""


def random_filter(rng, order):
    """Roots of all time scales, some as close as they may be."""
    while True:
        gaps = np.where(
            rng.random(2 * order) < 0.3, LEAST_GAP * 1.5, rng.exponential(1.0, 2 * order)
        )
        u = np.exp(np.log(rng.choice([1e-6, 1e-3, 0.1])) + np.cumsum(gaps))
        roots = [round_root(x / (1 + x)) for x in u]
        try:
            return BlendFilter(tuple(roots[0::2]), tuple(roots[1::2]))
        except ParameterError:
            continue


def random_weights(rng):
    return tuple(
        (
            np.rint(rng.uniform(-1, 1, 10) * rng.choice([0.1, 1]) * 2**WEIGHT_BITS) / 2**WEIGHT_BITS
        ).tolist()
    )


def with_weights(filter_, weights):
    return BlendFilter(filter_.poles, filter_.zeros, weights)


def with_taps(filter_, taps, weights=(0.0,) * 10):
    return BlendFilter(filter_.poles, filter_.zeros, weights, taps)


def random_taps(rng, number):
    return tuple(
        (np.sort(rng.integers(0, 2**WEIGHT_BITS + 1, number))[::-1] / 2**WEIGHT_BITS).tolist()
    )


def gram_falls(G):
    T = len(G)
    rows = all(np.all(np.diff(G[i, i:]) <= 1e-12) for i in range(T))
    return rows or all(np.all(np.diff(G[: k + 1, k]) >= -1e-12) for k in range(T))


def test_any_filter_gives_factors_with_columns_of_at_most_one():
    rng = np.random.default_rng(4)
    falling = set()
    for T in [*range(1, 30), 47, 64, 100, 133, 200]:
        for order in (0, 1, 3, 8):
            engine = Blend(T, random_filter(rng, order))
            L, R = engine.dense()
            assert np.abs(L @ R - counting_matrix(T)).max() < 1e-11
            columns = np.linalg.norm(R, axis=0)
            assert columns.max() <= 1
            assert columns.min() >= 1 - 1e-4
            assert R.min() >= 0
            assert np.allclose(
                engine.row_norms(np.arange(1, T + 1)), np.linalg.norm(L, axis=1), rtol=1e-9
            )
            if engine.falling_gram:
                assert gram_falls(R.T @ R)
            falling.add(engine.falling_gram)
    assert True in falling


def test_weights_give_factors_with_columns_of_at_most_one():
    """Weights of rows and columns are public numbers: what is proved of the filter holds with
    any."""
    rng = np.random.default_rng(5)
    falling = set()
    for T in [*range(1, 20), 64, 133, 200]:
        for order in (0, 1, 3, 8):
            engine = Blend(T, with_weights(random_filter(rng, order), random_weights(rng)))
            L, R = engine.dense()
            assert np.abs(L @ R - counting_matrix(T)).max() < 1e-9
            columns = np.linalg.norm(R, axis=0)
            assert 1 - 1e-2 <= columns.max() <= 1
            assert R.min() >= 0
            assert np.allclose(
                engine.row_norms(np.arange(1, T + 1)), np.linalg.norm(L, axis=1), rtol=1e-9
            )
            falls = gram_falls(R.T @ R)
            assert falls or not engine.falling_gram
            falling.add(falls)
    assert falling == {True, False}


@pytest.mark.parametrize("T", [5, 12])
def test_persons_cost_no_more_than_claimed_with_weights(T):
    """All sets of ticks, whatever the weights are. Planted: entries far from the diagonal that
    nobody looks at."""
    rng, caught = np.random.default_rng(6), 0
    masks = (np.arange(1 << T)[:, None] >> np.arange(T)) & 1
    sizes = masks.sum(axis=1)
    for order in (0, 1, 3, 8) * 4:
        engine = Blend(T, with_weights(random_filter(rng, order), random_weights(rng)))
        G = engine.dense()[1].T @ engine.dense()[1]
        sums = np.einsum("st,st->s", masks @ G, masks)
        for q in (1, 2, 3, T - 1, T):
            worst = sums[sizes <= q].max()
            assert worst * (1 - 1e-12) <= participation(engine, q) <= 1.6 * worst
            caught += module.gram_sum(np.triu(np.tril(G, q - 1), -q + 1), q) < worst * (1 - 1e-9)
    assert caught


def test_taps_give_factors_of_the_counting_matrix():
    rng = np.random.default_rng(7)
    for T in [1, 2, 5, 8, 13, 64, 200]:
        for order, taps in ((0, 1), (1, 6), (3, 2), (8, 13)):
            filter_ = with_taps(
                random_filter(rng, order), random_taps(rng, taps), random_weights(rng)
            )
            engine = TappedBlend(T, filter_)
            L, R = engine.dense()
            assert np.abs(L @ R - counting_matrix(T)).max() < 1e-9
            assert np.allclose(
                engine.row_norms(np.arange(1, T + 1)), np.linalg.norm(L, axis=1), rtol=1e-9
            )
            assert engine.column_norm >= np.linalg.norm(R, axis=0).max()
            assert not engine.falling_gram or gram_falls(R.T @ R)


def test_taps_multiply_the_response_of_the_filter():
    """Without weights of rows, increments of L are n_t times the response of A/F, here in
    fractions."""
    T, filter_ = 40, with_taps(BlendFilter((0.0625, 0.25), (0.125, 0.75)), (0.5, 0.375, 0.25))
    series = [Fraction(1), *map(Fraction, filter_.taps), *[Fraction(0)] * T][:T]
    for pole, zero in zip(filter_.poles, filter_.zeros, strict=True):
        series = [
            own - (1 - Fraction(pole)) * before
            for own, before in zip(series, [0, *series], strict=False)
        ]
        series = list(
            accumulate(series, lambda before, own, zero=zero: own + (1 - Fraction(zero)) * before)
        )
    increments = np.diff(TappedBlend(T, filter_).dense()[0], axis=0, prepend=0.0)
    for t in range(T):
        assert np.allclose(
            increments[t, : t + 1] / increments[t, t], [float(x) for x in series[t::-1]], atol=1e-12
        )


def test_taps_are_the_same_doubles_everywhere():
    """A stream is continued on another machine with the same noise: L is made without matrix
    products."""
    filter_ = with_taps(
        BlendFilter((0.001953125, 0.25), (0.03125, 0.75)), (0.5, 0.375, 0.25, 0.125)
    )
    left = TappedBlend(60, filter_).dense()[0]
    assert hashlib.sha256(left.astype("<f8").tobytes()).hexdigest() == TAPPED_DOUBLES


@pytest.mark.parametrize(("T", "p"), [(6, 2), (9, 4), (11, 7), (7, 7)])
def test_periods_cost_no_more_than_claimed_with_taps(T, p):
    """All changes of ±1 within p ticks, and vectors. Planted: negative entries for free, and for
    one tick less."""
    rng, free, less = np.random.default_rng(p), 0, 0
    signs = 1 - 2 * ((np.arange(1 << (p - 1))[:, None] >> np.arange(p)) & 1)
    for order in (0, 1, 3, 8) * 3:
        engine = TappedBlend(
            T, with_taps(random_filter(rng, order), random_taps(rng, p - 1), random_weights(rng))
        )
        R = engine.dense()[1]
        claimed = participation(engine, p, p)
        for first in range(T - p + 1):
            columns = R[:, first : first + p]
            worst = float(np.square(signs @ columns.T).sum(axis=1).max())
            # unit vectors over three cells, improved one by one: each towards what it helps most
            for _ in range(20):
                D = rng.normal(size=(p, 3))
                for i in list(range(p)) * 8:
                    D[i] = 0.0
                    pull = columns[:, i] @ (columns @ D)
                    D[i] = pull / max(float(np.linalg.norm(pull)), 1e-300)
                worst = max(worst, float(np.square(columns @ D).sum()))
            assert worst <= claimed * (1 + 1e-12)
            block = columns.T @ columns
            positive, top = np.maximum(block, 0).sum(), np.linalg.eigvalsh(np.minimum(block, 0))[-1]
            free += worst > positive * (1 + 1e-9)
            less += worst > (positive + (p - 1) * top) * (1 + 1e-9)
    assert free
    assert less


def test_negative_entries_cost_less_than_their_size():
    """Seven ticks whose entries are all −c: magnitudes would cost 42·c, and no unit can have more
    than 7·c."""
    G = np.eye(7) * 1.1 - 0.1
    assert module.gram_sum(np.abs(G), 7, 7) == pytest.approx(7 + 4.2)
    assert module.signed_sum(G, 7, 7) == pytest.approx(7 + 0.7)


def test_long_columns_never_exceed_one():
    T = 2**14 + 13
    engine = Blend(T, fit_blend((1, 7, "running"), T))
    f2 = engine.weights.filter.forward().values(T) ** 2
    columns = np.sqrt(np.cumsum(f2)[::-1]) / engine.weights.n.at(0, T)
    assert 1 - 1e-5 < columns.min() <= columns.max() <= 1
    assert (columns * (1 + 2e-5)).max() > 1


def test_zeros_that_do_not_interlace_are_refused():
    """And rightly: a planted filter of this kind has a negative Gram entry."""
    for poles, zeros in [
        ((0.1, 0.2), (0.3, 0.4)),
        ((0.25,), (0.125,)),
        ((0.25,), (0.25,)),
        ((0.5,), (0.50005,)),
    ]:
        with pytest.raises(ParameterError):
            BlendFilter(tuple(map(round_root, poles)), tuple(map(round_root, zeros)))
    filter_ = Rational(np.asarray([0.5]), np.asarray([0.25]))
    knots = dyadic_knots(63, mirrored=True)
    eta = PiecewiseLinear(knots, np.ones(64))
    R = Weighted(Weights(filter_, eta, bounded_columns(filter_, eta, endless=False)), 64).dense()[1]
    assert (R.T @ R).min() < 0, "the sensitivity rule needs a Gram matrix without negative entries"


@pytest.mark.parametrize(
    "stored",
    [
        {"poles": [0.25], "zeros": []},
        {"poles": [0.25], "zeros": [1.0]},
        {"poles": [0.25], "zeros": [0.3]},  # not a dyadic number of 16 bits
        {"poles": [0.0], "zeros": [0.5]},
        {"poles": ["0.25"], "zeros": [0.5]},
        {"poles": [True], "zeros": [0.5]},
        {"poles": [float("nan")], "zeros": [0.5]},
        {"poles": None, "zeros": [0.5]},
        {"poles": [0.25], "zeros": [0.5], "eta": []},
        {"poles": [0.25], "zeros": [0.5], "weights": [0.5] * 9},
        {"poles": [0.25], "zeros": [0.5], "weights": [0.1, *[0.0] * 9]},  # not a multiple of 2^-12
        {"poles": [0.25], "zeros": [0.5], "weights": [1.5, *[0.0] * 9]},
        {"poles": [0.25], "zeros": [0.5], "weights": [1, *[0] * 9]},
        {"poles": [0.25], "zeros": [0.5], "weights": [float("nan"), *[0.0] * 9]},
        {"poles": [0.25], "zeros": [0.5], "weights": None},
        {"poles": [0.25], "zeros": [0.5], "taps": [0.5]},  # without weights
        {"poles": [0.25], "zeros": [0.5], "weights": [0.0] * 10, "taps": [0.25, 0.5]},
        {"poles": [0.25], "zeros": [0.5], "weights": [0.0] * 10, "taps": [1.5]},
        {"poles": [0.25], "zeros": [0.5], "weights": [0.0] * 10, "taps": [0.1]},
        {"poles": [0.25], "zeros": [0.5], "weights": [0.0] * 10, "taps": [-0.5]},
        {"poles": [0.25], "zeros": [0.5], "weights": [0.0] * 10, "taps": [0.5] * 32},
        {"poles": [0.25], "zeros": [0.5], "weights": [0.0] * 10, "tap": [0.5]},
    ],
)
def test_damaged_parameters_are_refused(stored):
    with pytest.raises(ParameterError, match="blend"):
        BlendFilter.from_dict(stored)


def test_parameters_are_rebuilt_bit_for_bit():
    filter_ = fit_blend((1, 7, "running"), 100)
    again = BlendFilter.from_dict(json.loads(json.dumps(filter_.to_dict())))
    assert again == filter_
    assert fit_blend((1, 7, "running"), 100) == filter_, "one machine finds the same numbers again"
    pairs = zip(
        Blend(100, filter_).public_parameters(), Blend(100, again).public_parameters(), strict=True
    )
    assert all(np.array_equal(a, b) for a, b in pairs)
    weighted = with_weights(filter_, (0.25, 0.125, 0.0625, -(2.0**-WEIGHT_BITS), *[0.0] * 6))
    assert BlendFilter.from_dict(json.loads(json.dumps(weighted.to_dict()))) == weighted != filter_
    with pytest.raises(ParameterError, match="needs a horizon"):
        Blend(None, weighted)


@pytest.mark.parametrize(
    ("views", "q"), [(("running",), 5), ((1, "running"), 5), (("running",), 20)]
)
def test_persons_with_running_totals_are_near_the_optimum(views, q):
    """They are within 5 % of what no factorization can beat, alone and with days; without weights
    it is more."""
    T = 80
    best = dense_optimum(
        tuple(None if view == "running" else view for view in views), T, q, None, True
    ).certificate
    fitted = fit_blend(views, T, q)

    def above(filter_):
        engine = Blend(T, filter_)
        own = [worst_view(engine, None if view == "running" else view)[1] for view in views]
        score = max(one / least for one, least in zip(own, best.alone, strict=True))
        return score * np.sqrt(participation(engine, q)) / best.least_score

    assert fitted.weights
    assert not fitted.taps
    assert above(fitted) < 1.05
    assert above(fitted) < above(with_weights(fitted, ())) - 0.02
    check_hands_on(
        Blend(T, fitted), Count(), Budget(1.0, 1e-6, unit="user", max_per_tick=1, max_ticks=q), T
    )


@pytest.mark.parametrize("period", soak_but([2], [2, 7]))
def test_periods_of_persons_with_running_totals_are_near_the_optimum(period):
    """Days and running totals of a person's week: within 5 % with taps, and not without."""
    T, views = 80, (1, "running")
    best = dense_optimum((1, None), T, period, period, True).certificate

    def above(filter_):
        engine = make_blend(T, filter_)
        own = [worst_view(engine, view)[1] for view in (1, None)]
        score = max(one / least for one, least in zip(own, best.alone, strict=True))
        return score * np.sqrt(participation(engine, period, period)) / best.least_score

    fitted = fit_blend(views, T, period, period)
    assert len(fitted.taps) == period - 1
    assert above(fitted) < 1.05
    assert above(fitted) < above(fit_blend(views, T, period)) - 0.01


@pytest.mark.parametrize(
    ("views", "q", "period"),
    soak_but(
        [((1, "running"), 3, 7)],
        [((1, "running"), 3, 7), ((1, 7, "running"), 7, 7), ((1, "running"), 7, None)],
    ),
)
def test_who_has_no_taps(views, q, period):
    """Who may fill a part of a period only, who publishes weeks, and long periods (also above: near
    the optimum)."""
    fitted = fit_blend(views, 64, q, period)
    assert fitted.weights
    assert not fitted.taps


@pytest.mark.parametrize("taps", [0, 6])
def test_the_search_for_weights_follows_the_slope_of_its_loss(taps):
    T = 64
    search = _WeightedSearch(_Model(T, (1, T), 7), np.asarray([1.0, 5.0]), taps)
    numbers = np.random.default_rng(5)
    point = np.concatenate(
        [numbers.normal(size=search.order), 0.1 * numbers.normal(size=10), np.full(taps, 0.8)]
    )
    _, gradient = search.loss(point, 100.0)
    step = 1e-5
    slopes = [
        (search.loss(point + change, 100.0)[0] - search.loss(point - change, 100.0)[0]) / (2 * step)
        for change in step * np.eye(len(point))
    ]
    np.testing.assert_allclose(gradient, slopes, rtol=1e-3, atol=1e-4)
    wrong = gradient.copy()
    wrong[search.order] *= 1.02
    assert not np.allclose(wrong, slopes, rtol=1e-3, atol=1e-4)


def test_who_has_no_weights():
    """Events, views without running totals, and short or long horizons: their numbers are those of
    1.0."""
    for views, T, q in (
        ((1, "running"), 100, 1),
        ((1, 7), 100, 7),
        ((1, "running"), 63, 7),
        (("running",), 600, 7),
    ):
        assert not fit_blend(views, T, q).weights


@pytest.mark.parametrize(
    ("ticks", "q", "views", "bars"),
    [
        (365, 1, (1, 7, "running"), (5.35, 9.75, 14.2)),
        (365, 1, (7,), (8.0,)),
        pytest.param(8760, 1, (1, 24, "running"), (5.6, 13.2, 20.2), marks=pytest.mark.soak),
        (365, 30, (1,), (23.3,)),
        # the bars of whole streams in tests/engine/test_unit_noise.py::test_errors_for_persons
        pytest.param(365, 30, (1, 7, "running"), (27.5, 72.0, 263.0), marks=pytest.mark.soak),
        # near the optimum at 80 ticks: above
        pytest.param(365, 30, ("running",), (212.0,), marks=pytest.mark.soak),
        (365, 365, (1,), (80.8,)),
        pytest.param(365, 7, (1, 7, "running"), (13.8, 35.0, 79.0), marks=pytest.mark.soak),
        (12, 3, (1, "running"), (8.1, 21.5)),
    ],
)
def test_fits_reach_their_bars(ticks, q, views, bars):
    engine = Blend(ticks, fit_blend(views, ticks, q))
    scale = MULTIPLIER * np.sqrt(participation(engine, q))
    found = [
        scale * worst_view(engine, view if isinstance(view, int) else None)[1] for view in views
    ]
    assert all(value <= bar for value, bar in zip(found, bars, strict=True)), found


LONG_FITS = [(1000, 400, (1, 5, "running")), (10**5, 1, (1, 5, "running"))]


@pytest.mark.parametrize(
    ("T", "q", "views"),
    [
        *[
            (T, q, views)
            for T, q in ((2, 1), (17, 5))
            for views in ((1,), (1, 5, "running"), (10**6,))
        ],
        *[(10**5, 1, views) for views in ((1,), (10**6,))],
        *soak_but([], LONG_FITS),
    ],
)
def test_fits_of_many_kinds_are_accepted(T, q, views):
    """Zeros stay apart from poles after rounding, also where the best place is next to one."""
    assert len(fit_blend(views, T, q).poles) in (0, 8, 10)


@pytest.mark.parametrize("q", [3, 10])
def test_persons_cost_no_more_than_claimed(q):
    """All sets of ticks, for fits to persons, some of which do not fall."""
    T = 12
    masks = (np.arange(1 << T)[:, None] >> np.arange(T)) & 1
    for views in ((1,), (1, 3, "running"), ("running",)):
        engine = Blend(T, fit_blend(views, T, q))
        G = engine.dense()[1].T @ engine.dense()[1]
        sums = np.einsum("st,st->s", masks @ G, masks)[masks.sum(axis=1) <= q]
        assert sums.max() <= participation(engine, q) <= 1.3 * sums.max()


def test_a_fit_costs_what_its_worst_interval_does():
    engine = Blend(63, fit_blend((1, 7, "running"), 63, 10))
    G = engine.dense()[1].T @ engine.dense()[1]
    worst = max(G[a : a + 10, a : a + 10].sum() for a in range(54))
    assert worst <= participation(engine, 10) <= 1.02 * worst
    assert module.dense_sum(G, 10) == pytest.approx(participation(engine, 10), rel=0.02)


def test_without_a_horizon_it_is_private_for_ever():
    filter_ = FITTED_1000
    engine = Blend(None, filter_)
    L, R = engine.dense(600)
    assert np.abs(L @ R - counting_matrix(600)).max() < 1e-10
    assert np.linalg.norm(R, axis=0).max() <= 1
    total = float(np.sum(filter_.rational().forward().values(10**6) ** 2))
    assert total <= engine.weights.n.values[0] ** 2 <= total * (1 + 1e-6)
    known = Blend(1000, filter_)
    for width in (1, 7, None):
        for tick in (1, 10, 300, 1000):
            norm = engine.difference_norm(max(0, tick - (width or tick)), tick)
            assert norm <= 1.1 * worst_view(known, width)[1]
    G = R.T @ R
    assert participation(engine, 30) >= G[100:130, 100:130].sum()


@pytest.mark.parametrize("views", [(), ("weekly",), (0,), (2.5,), (True,)])
def test_bad_views_are_refused(views):
    with pytest.raises(ParameterError):
        fit_blend(views, 100)
