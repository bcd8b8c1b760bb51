"""Running totals that go on from another stream: values, errors, and intervals that hold as often
as stated."""

from __future__ import annotations

from contextlib import nullcontext
from math import sqrt
from typing import Any

import numpy as np
import pytest

from evercount import Budget, Count, Histogram, Secret, Stream
from evercount._validate import FloatArray
from evercount.engine.carried_totals import CarriedTotals, check_carries
from evercount.engine.release_table import ReleaseTable
from evercount.errors import ParameterError
from evercount.queries import EXAMPLE_PARAMETERS, QUERIES, build_query

CELLS, TICKS, LEVEL = 3000, 6, 0.9
LAWS: dict[str, dict[str, Any]] = {
    "laplace": {"budget": Budget(1.0, 0.0), "views": ("per-tick",)},
    "bridge": {"budget": Budget(1.0, 0.0), "views": ("running",)},
    "normal": {"budget": Budget(1.0, 1e-6), "factorization": "balanced", "views": ("running",)},
    "narrow": {"budget": Budget(40.0, 1e-6), "factorization": "balanced", "views": ("running",)},
}
CHAINS = [
    ("laplace", "laplace"),
    ("bridge", "bridge", "bridge"),
    ("normal", "normal", "normal"),
    ("narrow", "narrow"),
]
CHAINS += [("normal", "laplace"), ("laplace", "normal")]


def chain(
    laws: tuple[str, ...], query: Any = None
) -> tuple[list[Stream[Any]], list[FloatArray], CarriedTotals | None]:
    """Streams one after the other, over nothing, so that each number is its noise; the totals
    before the last one."""
    query = query or Histogram([f"k{number}" for number in range(CELLS)])
    streams, rows, carried = [], [], None
    for number, law in enumerate(laws):
        if streams:
            old = streams[-1]
            carried = CarriedTotals.after(old._errors, old.tick, rows[-1][-1], number, carried)
        streams.append(
            Stream(query, horizon=TICKS, secret=Secret.from_hex(f"{number + 7:064x}"), **LAWS[law])
        )
        rows.append(streams[-1].run_totals(np.zeros((TICKS, query.cells), np.int64)).rows)
    return streams, rows, carried


def shown(stream: Stream[Any], rows: FloatArray, carried: CarriedTotals) -> ReleaseTable:
    return carried.add_to(stream.read_back(rows).table(LEVEL), stream._errors, LEVEL)


def uncovered(table: ReleaseTable) -> float:
    """How many binomial stds the intervals of the worst tick miss more often than stated; the true
    totals are 0."""
    missed = ((table.numbers[:, 2] > 0) | (table.numbers[:, 3] < 0)).mean(axis=1)
    return float(((missed - (1 - LEVEL)) / sqrt(LEVEL * (1 - LEVEL) / CELLS)).max())


@pytest.mark.parametrize("laws", CHAINS, ids="-".join)
def test_intervals_hold(laws: tuple[str, ...]) -> None:
    """Noise of 3000 cells; the limit of 4 is passed by chance in one of 30,000 ticks. Leaving the
    old error out must be noticed."""
    streams, rows, carried = chain(laws)
    assert carried is not None
    table = shown(streams[-1], rows[-1], carried)
    total = rows[-1] + sum(one[-1] for one in rows[:-1])
    assert (table.numbers[:, 0] == total).all()
    stds = np.sqrt(
        sum(one.std([TICKS]).ravel() ** 2 for one in streams[:-1])
        + streams[-1].std(table.ticks).ravel() ** 2
    )
    np.testing.assert_allclose(
        table.numbers[:, 1], np.broadcast_to(stds[:, None], total.shape), rtol=1e-12
    )
    spread = np.sqrt((total**2).mean(axis=1)) / stds
    if laws[0] != "narrow":  # there most of the noise is rounded away
        # Laplace numbers have the kurtosis 6
        assert (np.abs(spread - 1) < 4 * sqrt(5 / 4 / CELLS)).all(), spread
    assert uncovered(table) < 4
    planted = CarriedTotals(
        0, carried.labels, np.vstack([carried.numbers[:1], np.zeros((4, CELLS))])
    )
    if laws[0] != "narrow":  # there half a unit on either side is enough anyway
        assert uncovered(shown(streams[-1], rows[-1], planted)) > 4


def test_intervals_are_no_wider_than_they_must_be() -> None:
    """With nothing to go on from they are those of the stream; normal ones are exact but for half a
    unit a stream."""
    for law in LAWS:
        (stream,), (rows,), _ = chain((law,), Count())
        none = CarriedTotals.after(stream._errors, 0, np.zeros(1), 0, None)
        np.testing.assert_allclose(
            shown(stream, rows, none).numbers, stream.read_back(rows).table(LEVEL).numbers
        )
    streams, rows, carried = chain(("normal", "normal"), Count())
    assert carried is not None
    table = shown(streams[-1], rows[-1], carried)
    half = (table.numbers[:, 3] - table.numbers[:, 2]) / 2
    np.testing.assert_allclose(half, 1.6448536 * table.numbers[:, 1] + 1.0)


def test_keys_that_join_start_at_zero_and_unpublished_totals_make_none() -> None:
    streams, rows, _ = chain(("laplace",), Histogram(["a", "b"]))
    last = np.where([True, False], rows[0][-1], np.nan)  # b was not shown at the end
    carried = CarriedTotals.after(streams[0]._errors, TICKS, last, 0, None)
    new = Stream(
        Histogram(["a", "b"]), horizon=TICKS, secret=Secret.from_hex("99" * 32), **LAWS["laplace"]
    )
    first = new.run_totals([[0, 0]])[0]
    new.add_keys(["c"])
    releases = new.read_back(
        np.vstack([[*first.values, np.nan], new.run_totals(np.zeros((2, 3), np.int64)).rows])
    )
    plain, table = releases.table(), carried.add_to(releases.table(), new._errors)
    assert (table.numbers[1:, 0, 0] == plain.numbers[1:, 0, 0] + last[0]).all()
    assert np.isnan(table.numbers[:, :, 1]).all()
    assert (table.numbers[1:, :2, 2] == plain.numbers[1:, :2, 2]).all()
    assert (table.numbers[1:, 3, 2] >= plain.numbers[1:, 3, 2]).all()
    again = CarriedTotals.load(
        CarriedTotals.after(new._errors, 3, table.numbers[-1, 0], 5, carried).to_dict()
    )
    assert again is not None
    assert (again.since, again.labels) == (0, ("a", "b", "c"))
    assert again.numbers[1, 2] == pytest.approx(releases.stds[-1, 2] ** 2)


def test_what_does_not_add_up_is_refused() -> None:
    carries = {"count", "sum", "histogram", "top-k", "rollup", "marginals", "active-users", "cuts"}
    for name in set(QUERIES) - {"prefix"}:  # a program's own encoder
        query = build_query(name, dict(EXAMPLE_PARAMETERS.get(name, {})))
        with (
            nullcontext()
            if name in carries
            else pytest.raises(ParameterError, match="are not carried over: ")
        ):
            check_carries(query, (), None)
    for postprocess, revise_for in ((("integer",), None), ((), 3)):
        with pytest.raises(
            ParameterError, match=r"unlisted keys .list them.* .add up histograms.* .declare views"
        ):
            check_carries(Count(), postprocess, revise_for)
