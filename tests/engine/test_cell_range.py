"""Streams of parts of the cells are, together, the whole stream."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from evercount import Average, Budget, Count, Histogram, Secret, Stream, Sum
from evercount.engine.cell_range import CellRange, can_be_cut, cut_cells
from evercount.engine.release_table import ReleaseTable
from evercount.errors import ParameterError, SnapshotError
from tiers import soak_but

SECRET = Secret.from_hex("4b" * 32)
GAUSSIAN = Budget(1.0, 1e-6)


def table(stream: Stream, totals: Any) -> ReleaseTable:
    return stream.run_totals(totals).table()


@pytest.mark.parametrize("shards", soak_but([7], [1, 7, 60]))
@pytest.mark.parametrize(
    ("budget", "horizon", "name", "postprocess"),
    [
        (GAUSSIAN, 50, None, ()),
        (GAUSSIAN, None, None, ("nonnegative", "integer", "monotone")),
        (Budget(1.0, 0.0), 50, None, ("monotone",)),
        (Budget(1.0, 0.0), None, None, ()),
        (Budget(1.0, 0.0), 50, "terrace", ()),
    ],
    ids=["gaussian", "post-processed", "pure", "pure without end", "terrace"],
)
def test_parts_together_are_the_whole_stream(
    budget: Budget, horizon: int | None, name: str | None, postprocess: tuple[str, ...], shards: int
) -> None:
    """60 cells: some parts are wide enough for limbs, others are not."""
    query = Histogram([f"k{i}" for i in range(60)])
    totals = np.random.default_rng(3).integers(0, 9, (50, 60))
    declared: dict[str, Any] = {"secret": SECRET, "postprocess": postprocess}
    whole = table(Stream(query, budget, horizon, name, replay=True, **declared), totals)
    parts = [
        table(Stream(query, budget, horizon, name, part=part, **declared), totals[:, part])
        for part in cut_cells(60, shards)
    ]
    assert np.array_equal(np.concatenate([part.numbers for part in parts], axis=2), whole.numbers)
    assert [label for part in parts for label in part.cells] == list(whole.cells)


def test_another_part_has_other_noise() -> None:
    """The comparison above can fail."""
    streams = [
        Stream(Histogram(60), GAUSSIAN, 50, secret=SECRET, part=part) for part in cut_cells(60, 2)
    ]
    one, other = (stream.run_totals(np.zeros((50, 30), np.int64)).rows for stream in streams)
    assert not np.isin(one.ravel(), other.ravel()).all()


def test_two_live_streams_of_one_part_are_refused() -> None:
    kept = Stream(Histogram(6), GAUSSIAN, 5, secret=SECRET, part=range(3))
    with pytest.raises(ParameterError, match="same noise"):
        Stream(Histogram(6), GAUSSIAN, 5, secret=SECRET, part=range(3))
    assert Stream(Histogram(6), GAUSSIAN, 5, secret=SECRET, part=range(3, 6)).tick == kept.tick


def test_a_part_takes_no_events() -> None:
    stream = Stream(Histogram(6), GAUSSIAN, 5, secret=SECRET, part=range(3))
    with pytest.raises(ValueError, match="takes totals"):
        stream.step([1])


@pytest.mark.parametrize("budget", [GAUSSIAN, Budget(1.0, 0.0)], ids=["gaussian", "pure"])
def test_a_part_goes_on_from_its_snapshot(budget: Budget) -> None:
    """Every tick from a snapshot of the one before it: the same numbers, and no other part can take
    it over."""
    query, part = Histogram(20), range(7, 16)
    totals = np.random.default_rng(4).integers(0, 9, (40, 20))
    whole = table(
        Stream(query, budget, 40, secret=SECRET, replay=True, postprocess=("monotone",)), totals
    )
    stream = Stream(query, budget, 40, secret=SECRET, part=part, postprocess=("monotone",))
    for tick in range(40):
        blob = stream.snapshot()
        stream.close()
        stream = Stream.restore(blob)
        released = table(stream, totals[tick : tick + 1, part])
        assert np.array_equal(released.numbers[0], whole.numbers[tick][:, part])
    data = stream.dump()
    with pytest.raises(SnapshotError, match="other"):
        Stream.load({**data, "part": [6, 15]})


@pytest.mark.parametrize("query", [Average(0, 1), Average(0, 1, per="event")])
def test_what_is_published_from_several_cells_or_ticks_is_not_cut(query: Any) -> None:
    assert not can_be_cut(query)


@pytest.mark.parametrize("query", [Count(), Sum(0, 1), Histogram(4)])
def test_sums_of_single_cells_are_cut(query: Any) -> None:
    assert can_be_cut(query)


@pytest.mark.parametrize("shards", [0, 8, True, 2.0])
def test_a_number_of_shards_that_makes_no_sense(shards: Any) -> None:
    with pytest.raises(ParameterError, match="shards must be"):
        cut_cells(7, shards)


@pytest.mark.parametrize("part", [range(0), range(2, 9), range(0, 4, 2)])
def test_a_range_that_is_none_of_the_cells(part: range) -> None:
    with pytest.raises(ParameterError, match="not a range"):
        CellRange(Histogram(4), part)
