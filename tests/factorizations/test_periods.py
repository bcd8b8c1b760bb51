"""Periods: against dense matrices, exact noise with the stated covariance, an error that does not
grow, attacks."""

from __future__ import annotations

import numpy as np
import pytest

from evercount import Budget, Count, Histogram, Secret, Stream
from evercount.errors import ParameterError, UnknownName
from evercount.factorizations import Balanced, Factorization, Periods, factorization
from evercount.graphs import Edges
from evercount.planning.output_errors import largest
from tiers import soak_but

SECRET = Secret.from_hex("3b" * 32)


@pytest.mark.parametrize("width", soak_but([1, 3, 16], [1, 2, 3, 7, 16, 40]))
def test_blocks_multiply_to_the_running_count(width: int) -> None:
    engine = Periods(width, 40)
    left, right = engine.dense()
    assert np.allclose(left @ right, np.tril(np.ones((40, 40))), atol=1e-12)
    assert np.linalg.norm(right, axis=0).max() <= engine.column_norm * (1 + 1e-12)
    assert np.all(right.T @ right >= 0)
    rows = np.vstack([np.zeros(40), left])
    assert engine.row_norms(np.arange(1, 41)) == pytest.approx(
        np.linalg.norm(left, axis=1), rel=1e-6
    )
    for a in range(41):
        for b in range(max(a, 1), 41):
            want = np.linalg.norm(rows[b] - rows[a])
            assert engine.difference_norm(a, b) == pytest.approx(want, rel=1e-6, abs=1e-9)


def test_a_sum_over_the_last_ticks_costs_the_same_for_ever() -> None:
    engine = Periods(30)
    norms = [engine.difference_norm(t - 30, t) for t in range(30, 120)]
    late = [engine.difference_norm(10**9 + t - 30, 10**9 + t) for t in range(30, 120)]
    assert max(late) == pytest.approx(max(norms[30:]))
    assert max(late) < factorization("anytime", None).difference_norm(10**9, 10**9 + 30)


def test_exact_noise_has_the_stated_covariance() -> None:
    """4,000 cells as independent streams; noise that forgets the end of a period is caught."""
    cells, ticks = 4000, 12
    stream = Stream(Histogram(cells), Budget(1.0, 1e-6), ticks, "periods-5", secret=SECRET)
    noise = stream.run_totals(np.zeros((ticks, cells), np.int64)).values
    left, _ = stream.factorization.dense(ticks)
    # one rounding for each period so far
    ends = np.asarray([(t + 5) // 5 for t in range(ticks)], dtype=float)
    expected = (
        stream.sigma**2 * left @ left.T
        + np.minimum.outer(ends - 1, ends - 1) / 12
        + np.eye(ticks) / 12
    )
    sample = noise @ noise.T / cells
    error = np.sqrt((expected**2 + np.outer(np.diag(expected), np.diag(expected))) / cells)
    assert np.all(np.abs(sample - expected) < 5 * error)
    apart = np.kron(np.eye(3), Balanced(5).dense()[0])[:ticks, :ticks]
    assert np.any(np.abs(sample - stream.sigma**2 * apart @ apart.T) > 5 * error)


def test_only_the_periods_that_a_unit_touches_cost_anything() -> None:
    """Finite arithmetic of other periods has one law for both neighbours: years cost nothing
    more."""
    one = Stream(Count(), Budget(1.0, 1e-6), 30, "periods-30", secret=SECRET).numeric_delta
    years = Stream(Count(), Budget(1.0, 1e-6), None, "periods-30", secret=SECRET).numeric_delta
    users = Stream(
        Count(), Budget(1.0, 1e-6, unit="user", max_events=4), None, "periods-30", secret=SECRET
    )
    assert years == one
    assert users.numeric_delta > 3 * one
    graph = Stream(Edges(4), Budget(1.0, 1e-6), 3000, "periods-30", secret=SECRET)
    assert graph.numeric_delta > 90 * one, "one edge may move the increments of every later period"


def test_roundings_are_counted() -> None:
    """Noise so narrow that only rounding is left: every period that a span meets rounds once
    more."""
    engine = Periods(5, 40)
    pairs = [(a, b) for a in range(41) for b in range(a + 1, 41)]
    counted = engine.roundings(*(np.asarray(part) for part in zip(*pairs, strict=True)))
    for (a, b), number in zip(pairs, counted.tolist(), strict=True):
        # the ticks whose rounding is in a sum
        ends = lambda t: {*range(5, t, 5), t} if t else set()  # noqa: E731
        assert number == len(ends(a) ^ ends(b)), (a, b)


def test_names() -> None:
    assert factorization("periods-7", None).name == "periods-7"
    for wrong in ("periods", "periods-0", "periods-x"):
        with pytest.raises(UnknownName):
            factorization(wrong, 10)
    with pytest.raises(ParameterError, match="width"):
        Periods(2**25)


@pytest.mark.parametrize("name", ["balanced", "unbounded", "square-root", "periods-600"])
def test_differences_to_one_tick_are_those_of_pairs(name: str) -> None:
    engine: Factorization = factorization(name, None if name == "unbounded" else 5000)
    earlier = np.asarray([0, 4999, 1, 17, 17, 2500, 5000, 4096])
    want = [engine.difference_norm(k, 5000) for k in earlier.tolist()]
    assert engine.difference_norms(earlier, np.full_like(earlier, 5000)) == pytest.approx(
        want, rel=1e-9, abs=1e-9
    )


@pytest.mark.parametrize("peak", [1, 3, 17, 400, 99_000, 100_000])
def test_the_search_finds_a_hill_anywhere(peak: int) -> None:
    places = np.unique(np.geomspace(1, 100_000, 40).astype(np.int64))

    def values(ticks: np.ndarray) -> np.ndarray:
        return -np.abs(np.log(ticks / peak))

    place, value = largest(values, places, values(places))
    assert abs(place - peak) <= max(4, peak // 100)
    assert value <= 0
