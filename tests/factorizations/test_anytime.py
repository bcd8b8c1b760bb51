"""`anytime`: the default without a horizon, its ratios to `balanced` told the horizon, and
`unbounded` next to it."""

from __future__ import annotations

import pytest

from evercount import Budget, Count, Stream
from evercount.errors import ParameterError
from evercount.factorizations import factorization
from evercount.factorizations.optimal import Optimal, anytime_lower_bound


@pytest.mark.parametrize(
    ("exponent", "ratio", "old"),
    [(4, 1.2728, 1.2837), (8, 1.2472, 1.2608), (12, 1.2238, 1.2320), (16, 1.2058, 1.2110)],
)
def test_ratios_to_balanced(exponent: int, ratio: float, old: float) -> None:
    told = factorization("balanced", 2**exponent)
    best = told.column_norm * told.worst_row()[1]
    for name, expected in (("anytime", ratio), ("unbounded", old)):
        engine = factorization(name, None)
        found = engine.column_norm * float(engine.row_norms([2**exponent])[0]) / best
        assert found == pytest.approx(expected, abs=1e-4)


def test_less_error_from_the_ninth_tick_on_and_more_before() -> None:
    new, old = (factorization(name, None) for name in ("anytime", "unbounded"))
    ticks = [1, 8, 9, 10, 100, 10**4, 10**6]
    less = new.row_norms(ticks) < old.row_norms(ticks)
    assert less.tolist() == [False, False, True, True, True, True, True]
    assert new.row_norms([1])[0] / old.row_norms([1])[0] == pytest.approx(1.111, abs=1e-3)


def test_new_streams_take_it_and_old_ones_keep_theirs() -> None:
    assert Stream(Count(), Budget(1.0, 1e-6)).factorization.name == "anytime"
    old = Stream(Count(), Budget(1.0, 1e-6), factorization="unbounded")
    old.run([1] * 5)
    blob = old.snapshot()
    expected = old.step(2).value
    again = Stream.restore(blob)
    assert again.factorization.name == "unbounded"
    assert again.step(2).value == expected


def test_no_endless_factorization_comes_closer() -> None:
    """The certified ratio is below that of each endless factorization, and grows with the horizon.

    A bound that is too large is caught: with `optimal` told T = 64, which is not endless, the ratio
    is 1 at 64 and far above it at early ticks, and its largest ratio must not be below the bound
    either.
    """
    bounds = [anytime_lower_bound(ticks) for ticks in (2, 16, 64)]
    assert bounds == sorted(bounds)
    assert bounds[-1] == pytest.approx(1.2195, abs=1e-4)
    for engine in (factorization("anytime", None), factorization("unbounded", None), Optimal(64)):
        ratios = [
            engine.column_norm * float(engine.row_norms([t])[0]) / Optimal(t).lower_bound
            for t in (1, 2, 4, 8, 16, 32, 64)
        ]
        assert max(ratios) > bounds[-1]
    for ticks in (1, 1025):
        with pytest.raises(ParameterError):
            anytime_lower_bound(ticks)


@pytest.mark.parametrize(("t", "ratio"), [(1, 1.365), (16, 1.292), (128, 1.263)])
def test_ratio_to_the_optimum_of_the_page(t: int, ratio: float) -> None:
    """docs/theory.md, "How far from the best possible"."""
    endless, best = factorization("anytime", None), factorization("optimal", t)
    std = float(endless.row_norms([t])[0]) * endless.column_norm
    assert std / (best.worst_row()[1] * best.column_norm) == pytest.approx(ratio, abs=6e-4)
