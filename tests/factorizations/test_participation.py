"""What a unit costs that touches several ticks: all sets of ticks, intervals of long streams, and
planted bugs."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from evercount.errors import ParameterError
from evercount.factorizations import (
    FACTORIZATIONS,
    Anytime,
    Balanced,
    Normalized,
    SquareRoot,
    Unbounded,
)
from evercount.factorizations import participation as module
from evercount.factorizations.filter_numbers import (
    PiecewiseLinear,
    Rational,
    design,
    dyadic_knots,
    round_bits,
)
from evercount.factorizations.laplace_trees import DigitTree
from evercount.factorizations.participation import Family, dense_sum, participation
from evercount.factorizations.row_weighted import Weighted, Weights, bounded_columns
from evercount.mechanisms.laplace_noise import node_rate
from soak_cases import soak_except


def gram(engine, T):
    R = engine.dense(T)[1]
    return R.T @ R


def worst_sets(G):
    """The largest Σ_{i,j∈J} |G_ij| by the size of J, over all J."""
    T = len(G)
    masks = (np.arange(1 << T)[:, None] >> np.arange(T)) & 1
    sums = np.einsum("st,st->s", masks @ np.abs(G), masks)
    sizes = masks.sum(axis=1)
    return np.asarray([sums[sizes == q].max() for q in range(T + 1)])


def intervals(G, q):
    total = np.zeros((len(G) + 1,) * 2)
    total[1:, 1:] = G.cumsum(axis=0).cumsum(axis=1)
    a = np.arange(len(G) - q + 1)
    return float((total[a + q, a + q] - 2 * total[a, a + q] + total[a, a]).max())


@pytest.mark.parametrize("T", [1, 2, 3, 7, 8, 12])
@pytest.mark.parametrize("kind", list(FACTORIZATIONS.values()), ids=lambda k: k.name)
def test_no_set_of_ticks_costs_more(kind, T):
    engine = kind(T)
    worst = worst_sets(gram(engine, T))
    claims = np.asarray([participation(engine, q) for q in range(1, T + 1)])
    assert np.all(claims >= worst[1:] * (1 - 1e-12))
    # the bound has the nodes that this tree never reads
    loose = 1.65 if kind.name == "binary-tree" else 1.3
    assert np.all(claims <= worst[1:] * loose), "and not much more"
    assert np.any(claims * 0.99 < worst[1:]), "one percent less would be caught"


def test_no_set_of_ticks_costs_more_in_any_matrix():
    """|G| of any shape: ticks are taken in order. Planted: entries far from the diagonal that
    nobody looks at."""
    rng, T, caught = np.random.default_rng(7), 10, 0
    for _ in range(20):
        R = rng.exponential(1.0, (T, T)) ** 3
        G = R.T @ R
        worst = worst_sets(G)
        for q in range(1, T + 1):
            assert module.gram_sum(G, q) >= worst[q] * (1 - 1e-12)
            caught += module.gram_sum(np.triu(np.tril(G, q - 1), 1 - q), q) < worst[q] * (1 - 1e-9)
    assert caught > 20


@pytest.mark.parametrize("kind", list(FACTORIZATIONS.values()), ids=lambda k: k.name)
def test_sets_within_a_period(kind):
    T, p = 12, 5
    engine = kind(T)
    G = gram(engine, T)
    worst = np.max([worst_sets(G[a : a + p, a : a + p]) for a in range(T - p + 1)], axis=0)
    claims = [participation(engine, q, period=p) for q in range(1, p + 1)]
    assert np.all(claims >= worst[1:] * (1 - 1e-12))
    assert participation(engine, 9, period=p) == claims[-1], "no more ticks than the period has"
    assert claims[-1] <= participation(engine, p)


@pytest.mark.parametrize("T", [1, 2, 14, 120])
def test_bounds_between_knots_hold_at_every_tick(T, monkeypatch):
    """The way of long streams, taken for short ones: nothing is below the truth, and little above
    the exact way."""
    endless = (Unbounded, Anytime) if T == 120 else ()  # their blocks are those of all horizons
    for kind in (Balanced, Normalized, SquareRoot, *endless):
        engine, q = kind(T), min(T, 40)
        G = gram(engine, T)
        over = Family.of(engine).over
        for d in range(q):
            here = np.diagonal(G, d).max()
            assert over(d, d) >= here * (1 - 1e-12), (kind.name, d)
            assert over(d, None) >= max(np.diagonal(G, k).max() for k in range(d, T)) * (1 - 1e-12)
            if kind not in endless:  # these have an endless future there
                assert over(d, d) <= here * 1.004
        monkeypatch.setattr(module, "MOST_TICKS", 0)
        claim = participation(engine, q)
        monkeypatch.undo()
        assert claim >= participation(engine, q) * (1 - 1e-7)
        assert claim >= intervals(G, q) * (1 - 1e-12)


def test_long_blocks_are_bounded_inside():
    """Wild weights on few knots: the extremes lie inside blocks, and what knots alone show would be
    too small."""
    knots = np.asarray([0, 64, 128, 192, 256])
    eta = PiecewiseLinear(knots, np.asarray([1.0, 0.5, 0.2, 0.5, 1.0]))
    filter_ = design(257)
    engine = Weighted(Weights(filter_, eta, bounded_columns(filter_, eta, endless=False)), 257)
    G = gram(engine, 257)
    over = Family.of(engine).over
    caught = 0
    for d in range(1, 100):
        entries = np.diagonal(G, d)
        assert over(d, d) >= entries.max() * (1 - 1e-12)
        assert over(d, d + 9) >= max(np.diagonal(G, k).max() for k in range(d, d + 10)) * (
            1 - 1e-12
        )
        caught += entries[knots[knots >= d] - d].max() < entries.max() * (1 - 1e-6)
    assert caught > 10
    assert not any(Family.of(engine).falls), "so that the bound by distances is the one that counts"
    assert participation(engine, 20) >= intervals(G, 20)


@pytest.mark.parametrize("T", [365, 1200])  # single ticks between knots, and two
def test_intervals_come_close(T):
    G = gram(Balanced(T), T)
    for q in (7, 30):
        assert intervals(G, q) <= participation(Balanced(T), q) <= 1.04 * intervals(G, q)
        assert participation(Balanced(T), q, period=q) == pytest.approx(intervals(G, q), rel=1e-6)
    assert participation(Balanced(T), T) == pytest.approx(G.sum(), rel=1e-6)


def test_published_figures():
    assert participation(Balanced(365), 7) == pytest.approx(39.27, abs=0.01)
    assert participation(Balanced(365), 30) == pytest.approx(601.6, abs=0.1)
    assert participation(FACTORIZATIONS["fresh"](), 30) == pytest.approx(30)


@pytest.mark.parametrize("T", soak_except([10**6], [10**5, 10**6, 10**9]))
def test_long_streams_cost_little_more_than_an_interval(T):
    """The last ticks of a long stream are an interval that can be summed up: two ways meet."""
    engine, q = Balanced(T), 30
    claim = participation(engine, q)
    entries = Family.of(engine).over
    diagonal = sum((2 if d else 1) * (q - d) * entries(d, d) for d in range(q))
    assert claim == pytest.approx(diagonal, rel=1e-6)
    assert 0.75 * q**2 < claim < 0.9 * q**2
    assert claim >= participation(Balanced(10**4), q)


@pytest.mark.parametrize("kind", [Unbounded, Anytime])
def test_endless_streams_have_a_supremum(kind):
    suprema = {q: participation(kind(None), q) for q in (2, 30)}
    for T in (50, 1000):
        G = gram(kind(), T)
        for q, supremum in suprema.items():
            assert supremum < 0.98 * q**2
            assert intervals(G, q) <= participation(kind(T), q) <= supremum


def test_rows_are_not_columns():
    """Columns fall, rows do not: a planted use of the form for rows claims 3.8 where three ticks
    cost 4.2."""
    G = np.asarray(
        [
            [0.6, 0.4, 0.0, 0.4, 0.0],
            [0.4, 0.6, 0.2, 0.4, 0.0],
            [0.0, 0.2, 0.6, 0.4, 0.2],
            [0.4, 0.4, 0.4, 0.6, 0.2],
            [0.0, 0.0, 0.2, 0.2, 0.6],
        ]
    )
    assert np.linalg.eigvalsh(G).min() > -1e-12, "a Gram matrix"
    assert all(
        G[i, k] <= G[j, k] for k in range(5) for i, j in itertools.combinations(range(k + 1), 2)
    )
    truth = worst_sets(G)[3]
    assert truth == pytest.approx(4.2)
    assert dense_sum(G, 3, columns=True) >= truth - 1e-12
    assert dense_sum(G, 3) >= truth - 1e-12
    assert dense_sum(G, 3, rows=True) == pytest.approx(3.8)
    # the same matrix read backwards has rows that fall, and then the form for columns is the wrong
    # one
    assert dense_sum(G[::-1, ::-1], 3, rows=True) >= truth - 1e-12
    assert dense_sum(G[::-1, ::-1], 3, columns=True) == pytest.approx(3.8)


def test_nothing_falls_and_distances_still_hold():
    rng = np.random.default_rng(3)
    for _ in range(200):
        R = rng.standard_normal((9, 9)) * rng.random((9, 9))
        G = np.abs(R.T @ R)
        worst = worst_sets(G)
        assert all(dense_sum(G, q) >= worst[q] * (1 - 1e-12) for q in range(1, 10))


def test_members_that_do_not_fall_are_not_taken_for_falling():
    """Random weights and filters: whichever form is used, no set of 12 ticks costs more."""
    rng = np.random.default_rng(11)
    seen = set()
    for _ in range(60):
        T = int(rng.integers(3, 13))
        roots = np.sort(rng.random(6))
        filter_ = Rational(round_bits(roots[0::2]), round_bits(roots[1::2]))
        knots = dyadic_knots(T - 1, mirrored=True)
        eta = PiecewiseLinear(
            knots,
            round_bits(np.exp(rng.choice([0.02, 0.3, 1.0]) * rng.standard_normal(T).cumsum())),
        )
        engine = Weighted(Weights(filter_, eta, bounded_columns(filter_, eta, endless=False)), T)
        worst = worst_sets(gram(engine, T))
        assert all(participation(engine, q) >= worst[q] * (1 - 1e-12) for q in range(1, T + 1))
        seen.add((engine.rows_fall, engine.columns_fall))
    assert {(False, False), (True, False)} <= seen


def test_laplace_nodes_of_several_ticks():
    """ε of all nodes together, for every way in which a unit of q ticks can change them; one tick
    more is caught."""
    q, m, l1, epsilon = 3, 2, 1.0, 0.7
    tree = DigitTree(13, 3)
    R = np.abs(tree.dense()[1])
    rate = node_rate(epsilon, q * m * l1, 1.0, tree.levels)
    worst = [
        max(
            float(R[:, list(J)].sum()) * m * l1 * rate
            for J in itertools.combinations(range(13), size)
        )
        for size in (q, q + 1)
    ]
    assert worst[0] <= epsilon < worst[1]


@pytest.mark.parametrize("bad", [0, -1, 2.5, True])
def test_numbers_of_ticks_are_checked(bad):
    with pytest.raises(ParameterError):
        participation(Balanced(8), bad)
    with pytest.raises(ParameterError):
        participation(Balanced(8), 2, period=bad)
