"""Running sums beyond 64 bits, and whole numbers published of fractional truths."""

from __future__ import annotations

import numpy as np
import pytest

from evercount import Average, Budget, Count, Secret, Stream, Sum
from evercount.engine.state import postprocessed
from evercount.queries.base import Query
from independent_streams import least_share, noise_of, published, smooth_stream
from product_internals import symmetric_half_widths, true_totals

BUDGET = Budget(1.0, 1e-6)
LARGEST_TICK = 2**53


@pytest.mark.parametrize("budget", [BUDGET, Budget(1.0, 0.0)])
def test_sums_beyond_64_bits_are_published_as_they_are(budget: Budget) -> None:
    """The truth passes 2^63 at tick 1024; the noise is far below the spacing of doubles there."""
    ticks = 1500
    values = Stream(Count(), budget, ticks).run([LARGEST_TICK] * ticks).values
    truth = LARGEST_TICK * np.arange(1.0, ticks + 1)
    assert values == pytest.approx(truth, rel=1e-13)


def test_steps_runs_and_snapshots_agree_beyond_64_bits() -> None:
    ticks, secret = 40, Secret.from_hex("ab" * 32)
    rows = np.full((ticks, 1), -(2**59))
    rows[30:] *= -1  # the sums come back into 64 bits
    whole = Stream(Sum(-1, 1), BUDGET, ticks, secret=secret)
    values = whole.run_totals(rows).rows
    assert values[29, 0] < -(2**63)
    assert true_totals(whole).tolist() == rows.astype(object).sum(axis=0).tolist()
    whole.close()
    stream = Stream(Sum(-1, 1), BUDGET, ticks, secret=secret)
    for tick in range(ticks):
        if tick in (10, 25, 39):
            blob = stream.snapshot()
            stream.close()
            stream = Stream.restore(blob)
        assert stream.run_totals([rows[tick]])[0].values.tolist() == values[tick].tolist()
    assert true_totals(stream).dtype == true_totals(whole).dtype


def test_periods_of_large_sums() -> None:
    values = Stream(Count(), BUDGET, 1200, "periods-300").run([LARGEST_TICK] * 1200).values
    assert values[-1] == pytest.approx(1200 * LARGEST_TICK, rel=1e-9)


@pytest.mark.parametrize("query", [Sum(0, 4, 0.25), Average(0, 4, 0.25)])
def test_intervals_hold_where_whole_numbers_are_published_of_fractional_truths(
    query: Query,
) -> None:
    """With little noise, 1.75 becomes 2: an interval that ignored the rounding would never hold
    it."""
    budget = Budget(50.0, 1e-6)
    given = [[0.75, 1.0] if number % 2 else [0.75] for number in range(6)]
    truth = np.cumsum([sum(tick) for tick in given])
    if isinstance(query, Average):
        truth = truth / np.arange(1, 7)
    streams = 4_000
    stream = smooth_stream(query, budget, 6, seed=1, postprocess=["integer"])
    releases = stream.run(given)
    assert np.all(releases.bound(0.9) >= 0.5)
    sums = np.cumsum(query.encode_run(None, given)[0], axis=0) * query.grid
    rows = published(query, sums[:, np.newaxis] + noise_of(stream, streams, 6))
    off = np.abs(postprocessed(("integer",), rows[..., 0], None)[0] - truth[:, np.newaxis])
    half, least = symmetric_half_widths(releases, 0.9), least_share(0.9, streams)
    assert np.all(np.mean(off <= half, axis=1) >= least)
    assert np.any(np.mean(off <= half - 0.5, axis=1) < least), (
        "planted: an interval that ignores the rounding"
    )


def test_exact_counts_need_no_wider_interval() -> None:
    """Exact noise is whole, so rounding changes nothing."""
    plain, rounded = (
        Stream(Count(), BUDGET, 5, postprocess=names).run([1] * 5) for names in ([], ["integer"])
    )
    assert np.ptp(rounded.interval(), axis=0) == pytest.approx(np.ptp(plain.interval(), axis=0))
