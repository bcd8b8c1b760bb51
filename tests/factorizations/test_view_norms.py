"""Errors of views: where the worst tick is, against the dense matrices."""

from __future__ import annotations

import numpy as np
import pytest

from evercount import Budget, Count, Stream
from evercount.errors import ParameterError
from evercount.factorizations import (
    FACTORIZATIONS,
    Anytime,
    Balanced,
    Normalized,
    Periods,
    Unbounded,
    factorization,
    view_norms,
)
from evercount.factorizations.blend import Blend, BlendFilter
from evercount.factorizations.laplace_bridge import Bridge, Design
from evercount.factorizations.laplace_choice import EndlessBridge, pure_factorization
from evercount.factorizations.view_norms import worst_view


def dense_norms(L, width):
    T = len(L)
    L = np.vstack([np.zeros(L.shape[1]), L])
    t = np.arange(1, T + 1)
    return np.linalg.norm(L[t] - L[np.maximum(t - (width or T), 0)], axis=1)


@pytest.mark.parametrize("name", list(FACTORIZATIONS))
def test_the_worst_norm_is_that_of_the_dense_matrix(name):
    for T, widths in ((1, (1, 400, None)), (5, (1, 30, 400, None)), (200, (1, 30, None))):
        engine = factorization(name, T)
        L = engine.dense(T)[0]
        for width in widths:
            exact = dense_norms(L, width)
            tick, norm = worst_view(engine, width)
            assert norm == pytest.approx(exact[tick - 1], rel=1e-9)
            if name not in ("binary-tree", "honaker", "honaker-full") or T <= 5:
                assert norm >= exact.max() * (1 - 1e-9)


def test_without_a_horizon():
    assert worst_view(Anytime(), 1, last=300)[1] == pytest.approx(
        max(Anytime().difference_norm(t - 1, t) for t in range(1, 301)), rel=1e-9
    )
    with pytest.raises(ParameterError, match="last tick"):
        worst_view(Anytime(), 1)


@pytest.mark.parametrize("width", [1, 7])
def test_a_search_that_is_kept_is_that_of_the_same_tree(width):
    """Trees and weights that differ in one public parameter: none gets what was found for
    another."""
    design = Design((2, 4, 4), ((0.3, -0.2, 0.1, 0.0), (-0.1, 0.4, 0.0, 0.1, 0.2, -0.1, 0.0)))
    kinds = (
        Bridge(32),
        Bridge(32, integers=True),
        Bridge(31),
        Bridge(32, design),
        EndlessBridge(),
        EndlessBridge(True),
        Balanced(32),
        Balanced(31),
        Normalized(32),
        Anytime(),
        Unbounded(),
        Blend(32, BlendFilter((0.25,), (0.5,))),
        Blend(32, BlendFilter((0.25,), (0.375,))),
    )
    found = [worst_view(kind, width, 31) for kind in kinds]
    assert found == [view_norms._search(kind, width, 31) for kind in kinds]
    assert len({norm for _, norm in found}) >= 10
    assert worst_view(Bridge(32), width, 30) == view_norms._search(Bridge(32), width, 30)


def test_a_search_survives_that_others_are_forgotten(monkeypatch):
    """Another thread may forget all searches between two lines of this one."""

    class Forgotten(dict):
        def __contains__(self, known):
            found = super().__contains__(known)
            self.clear()
            return found

        def __setitem__(self, known, found):
            pass

    monkeypatch.setattr(view_norms, "_worst", Forgotten())
    assert worst_view(Balanced(32), 1) == view_norms._search(Balanced(32), 1, None)


@pytest.mark.parametrize("width", [None, 1, 3])
def test_no_view_has_ticks_beyond_the_horizon(width):
    engines = [factorization(name, 10) for name in FACTORIZATIONS if name != "fresh"]
    engines += [
        pure_factorization(name, 10)
        for name in ("pure-tree", "pure-binary", "fresh", "pure-window-7", "bridge")
    ]
    for engine in engines:
        with pytest.raises(ParameterError):
            worst_view(engine, width, 40)


@pytest.mark.parametrize(
    ("engine", "ticks"),
    [
        *((factorization(name, 700), 700) for name in FACTORIZATIONS if name != "optimal"),
        (Anytime(), 2**20),
        (Unbounded(), 2**49),
        (Balanced(1), 1),
        (Balanced(2**30), 2**30),
        (Blend(300, BlendFilter((0.25,), (0.5,))), 300),
        (Blend(100, BlendFilter((), ())), 100),
        (Periods(24), 2**30),
        (Periods(7, 100), 100),
        (pure_factorization("fresh", 5000), 5000),
        (pure_factorization("pure-tree", 5000), 5000),
        (pure_factorization("pure-hybrid", None), 2**20),
    ],
    ids=lambda one: getattr(one, "name", one),
)
def test_norms_of_many_pairs_are_those_of_each_alone(engine, ticks):
    """Bit for bit: published errors must not depend on how many ticks are asked for together."""
    source = np.random.default_rng(3)
    later = source.integers(1, ticks + 1, 300)
    earlier = (source.random(300) * (later + 1)).astype(np.int64)
    earlier[:30] = later[:30] - 1
    earlier[30:40] = 0
    later[-1] = ticks
    earlier[-1] = 0
    alone = [
        engine.difference_norm(*pair) for pair in zip(earlier.tolist(), later.tolist(), strict=True)
    ]
    assert engine.pair_norms(earlier, later).tolist() == alone
    for wrong in ((np.asarray([0, 3]), np.asarray([1, 2])), (np.asarray([-1]), np.asarray([1]))):
        with pytest.raises(ParameterError):
            engine.pair_norms(*wrong)


@pytest.mark.parametrize(("delta", "name"), [(1e-6, "balanced"), (1e-6, "blend"), (0.0, "fresh")])
def test_errors_of_a_view_are_computed_together(monkeypatch, delta, name):
    """One tick after the other takes a hundred times as long: seconds for an hourly year."""
    releases = Stream(Count(), Budget(1.0, delta), 400, factorization=name).run([1] * 400)
    engine, alone = type(releases._errors.factorization), []
    monkeypatch.setattr(engine, "difference_norm", lambda *pair: alone.append(pair))
    assert np.all(releases.per_tick().std > 0)
    assert not alone
