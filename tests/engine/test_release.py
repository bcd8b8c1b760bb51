"""Release and Releases: intervals that hold, bounds, differences, exports, plots."""

from __future__ import annotations

import csv
import io
import json

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from evercount import Average, Budget, Count, Histogram, Stream, Sum
from evercount.errors import EvercountError, ParameterError
from evercount.factorizations import FACTORIZATIONS
from evercount.graphs import Components, Matching
from evercount.plotting import band_plot
from independent_streams import least_share, noise_of, published, smooth_stream
from product_internals import error_model, limits

BUDGET = Budget(1.0, 1e-6)


def test_intervals_and_bounds_hold_as_often_as_they_say():
    """8,000 streams; a bound for all ticks may fail in 10 % of them."""
    streams, ticks = 8_000, 60
    stream = smooth_stream(Count(), BUDGET, ticks, seed=0)
    releases = stream.run([1] * ticks)
    off = np.abs(noise_of(stream, streams, ticks)[..., 0])
    for level in (0.5, 0.95):
        low, high = releases.interval(level)
        assert np.allclose(high - releases.values, releases.values - low)
        covered = np.mean(off <= (high - releases.values)[:, np.newaxis], axis=1)
        assert np.abs(covered - level).max() < 5 * np.sqrt(level * (1 - level) / streams)
    narrow = np.mean(off <= 0.9 * (high - releases.values)[:, np.newaxis], axis=1)
    assert np.all(narrow < 0.94), "planted: intervals that are 10 % too narrow"
    union, simulated = releases.bound(0.9), releases.bound(0.9, "simulate")
    assert np.all(simulated < union)

    def held(bound):
        return np.mean(np.all(off <= bound[:, np.newaxis], axis=0))

    assert held(union) >= 0.9
    assert held(simulated) >= least_share(0.9, streams)
    assert held(0.9 * simulated) < least_share(0.9, streams), (
        "planted: a bound that is 10 % too small"
    )


@pytest.mark.parametrize("name", FACTORIZATIONS)
def test_between_has_its_own_exact_error(name):
    """4,000 keys of one tick each are as many streams; planted: an error that is 10 % larger."""
    streams, ticks = 4_000, 40
    stream = smooth_stream(Histogram(streams), BUDGET, ticks, name, seed=1)
    releases = stream.run_totals(np.ones((ticks, streams), np.int64))
    for earlier, later in ((0, 40), (10, 11), (8, 31), (31, 32)):
        values, std = releases.between(earlier + 1, later + 1)
        assert len(set(std.tolist())) == 1
        assert values.std() / std[0] == pytest.approx(1, abs=5 / np.sqrt(2 * streams))
        assert values.std() / (1.1 * std[0]) != pytest.approx(1, abs=5 / np.sqrt(2 * streams))
        assert values.mean() == pytest.approx(later - earlier, abs=5 * std[0] / np.sqrt(streams))
    one = smooth_stream(Count(), BUDGET, ticks, name, seed=1).run([1] * ticks)
    assert one.between(9, 32)[1] == pytest.approx(releases.between(9, 32)[1][0])
    assert one.between(7, 7) == (0.0, 0.0)


def test_between_refuses_what_it_cannot_do():
    r = Stream(Count(), BUDGET, 10).run([1] * 10)
    for bad in ((0, 3), (5, 4), (3, 12)):
        with pytest.raises(ParameterError):
            r.between(*bad)
    with pytest.raises(ParameterError, match="number of events"):
        Stream(Average(per="event"), BUDGET, 10).run([[1]] * 10).between(1, 4)


def test_between_of_averages_and_graphs():
    """4,000 streams each: the mean is what came between, and the stated std is that of the
    numbers."""
    streams = 4_000
    ticks = [[1.0]] * 4 + [[0.5]] * 6
    edges = [[(0, i)] for i in range(1, 11)]
    cases = [
        (Average(0, 1, 0.5), ticks, (4, 10), 0.5),
        (Average(0, 1, 0.5), ticks, (0, 4), 1.0),
        (Components(12), edges, (2, 7), -5.0),
        (Components(12), edges, (0, 10), -10.0),
        (Matching(12), edges, (0, 10), 1.0),
    ]
    for query, data, span, expected in cases:
        stream = smooth_stream(query, Budget(8.0, 1e-6), 10, "balanced", seed=1)
        releases = stream.run(data)
        sums = np.cumsum(query.encode_run(query.initial_state(), data)[0], axis=0) * query.grid
        rows = published(query, sums[:, np.newaxis] + noise_of(stream, streams, 10))
        before = query.decode_run(1, np.zeros((1, query.cells)))[0]  # the public start
        low, high = (rows[tick - 1, :, 0] if tick else np.full(streams, before[0]) for tick in span)
        values, weights = query.publishing.between(*span, low, high)
        value, std = releases.between(span[0] + 1, span[1] + 1)
        ends = [releases.rows[tick - 1] if tick else before for tick in span]
        assert value == query.publishing.between(*span, *ends)[0][0]
        apart, _ = error_model(releases).difference_errors(
            np.asarray(span[:1]), np.asarray(span[1:])
        )
        assert std == pytest.approx(apart[0, 0] * weights[0])
        assert values.mean() == pytest.approx(expected, abs=5 * std / np.sqrt(streams))
        assert values.std() / std == pytest.approx(1, abs=5 / np.sqrt(2 * streams))
        assert values.std() / (1.1 * std) != pytest.approx(1, abs=5 / np.sqrt(2 * streams))


def test_release_of_one_and_of_many_outputs():
    one = Stream(Count(), BUDGET, 10).step(3)
    assert isinstance(one.value, float)
    assert isinstance(one.std, float)
    assert one.interval(0.9)[0] < one.value < one.interval(0.9)[1]
    stream = Stream(Histogram(["a", "b", "c"]), BUDGET, 10)
    several = stream.step(["a"] * 10**6)
    assert several.value.shape == several.std.shape == (3,)
    assert several.top(1)[0][0] == "a"
    assert "a" in str(several)
    runs = stream.run([["b"]] * 5)
    assert runs.values.shape == (5, 3)
    assert [r.tick for r in runs] == [2, 3, 4, 5, 6]
    assert runs[-1].tick == 6
    with pytest.raises(IndexError):
        runs[5]


@pytest.mark.parametrize("level", [0, 1, -0.5, 2, "x"])
def test_bad_levels(level):
    release = Stream(Count(), BUDGET, 10).step(3)
    with pytest.raises(ParameterError, match="level"):
        release.interval(level)


def test_exports_agree(tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    r = Stream(Histogram(["north", "süd"]), BUDGET, 10).run([["north"], [], ["süd"]])
    text = io.StringIO()
    r.to_csv(text)
    rows = list(csv.DictReader(io.StringIO(text.getvalue())))
    assert len(rows) == 6
    assert rows[5]["cell"] == "süd"
    r.to_csv(tmp_path / "r.csv")
    assert (tmp_path / "r.csv").read_text(
        encoding="utf-8"
    ).splitlines() == text.getvalue().splitlines()
    r.to_jsonl(tmp_path / "r.jsonl")
    lines = [json.loads(line) for line in (tmp_path / "r.jsonl").read_text().splitlines()]
    r.to_parquet(tmp_path / "r.parquet")
    table = pq.read_table(tmp_path / "r.parquet")
    assert b"protect" in table.schema.metadata[b"evercount.guarantee"]
    columns = r.table().columns()
    for name in ("tick", "value", "std", "low", "high"):
        assert [float(row[name]) for row in rows] == [float(x) for x in columns[name]]
        assert [line[name] for line in lines] == columns[name].tolist() == table[name].to_pylist()
    assert np.array_equal(np.asarray(r), r.values)


def test_plots_are_written(tmp_path):
    r = Stream(Sum(0, 1, 0.5), BUDGET, 50).run([0.5] * 50)
    for suffix in ("png", "svg"):
        r.plot(tmp_path / f"chart.{suffix}")
        assert (tmp_path / f"chart.{suffix}").stat().st_size > 5000
    axes = r.plot()
    assert axes.get_title(loc="left").startswith("shaded: interval")
    numbers = r.rows, *limits(r, 0.95)
    assert (
        band_plot(r.ticks, *numbers, r.labels, title="of a file").get_title(loc="left")
        == "of a file"
    )


def test_rounding_is_part_of_the_error():
    exact = Stream(Count(), Budget(50.0, 0.1), 4, "balanced")
    loose = smooth_stream(Count(), Budget(50.0, 0.1), 4, "balanced")
    assert exact.std([1])[0, 0] ** 2 == pytest.approx(loose.std([1])[0, 0] ** 2 + 1 / 12, rel=1e-6)


def test_releases_behave_as_python_sequences():
    stream = Stream(Histogram(["a", "b"]), BUDGET, 10)
    with stream:
        run = stream.run([["a"] * 3, ["b"], [], ["a"]])
    with pytest.raises(EvercountError, match="closed"):
        stream.step([])
    part = run[1:3]
    assert [release.tick for release in part] == [2, 3]
    assert part[0].tick == 2
    assert np.array_equal(part.rows, run.rows[1:3])
    assert np.array_equal(part.interval(0.9)[0], run.interval(0.9)[0][1:3])
    assert part.between(3, 4)[0].tolist() == run.between(3, 4)[0].tolist()
    assert np.array_equal(np.asarray(run), run.values)
    assert len(run[4:]) == len(run[3:1]) == 0
    with pytest.raises(ParameterError, match=r"releases\.values\[::7\]"):
        run[::2]
    with pytest.raises(IndexError, match="4 ticks"):
        run[4]
    value, (low, high) = run[0].values[0], run[0].interval()
    assert f"a={value:,.6g} ± {run[0].stds[0]:.3g} [{low[0]:,.6g}, {high[0]:,.6g}]" in repr(run[0])
    counts = [smooth_stream(Count(), BUDGET, 4, seed=1) for _ in range(2)]
    assert counts[0].step([1, 1, 1]).value == counts[1].step(3).value
    assert counts[0].run([[2, 1], []]).values.tolist() == counts[1].run([3, 0]).values.tolist()


def test_a_table_behaves_as_its_rows():
    table = Stream(Histogram(["a", "b"]), BUDGET, 10).run([["a"] * 3, ["b"], []]).table()
    frame = table.to_pandas()
    rows = list(table)
    assert len(table) == len(rows) == len(frame) == 6
    assert pd.DataFrame(table).equals(frame)
    assert pl.DataFrame(table).equals(table.to_polars())
    assert pa.table(table).equals(table.to_arrow())
    assert [tuple(row) for row in table[1:4]] == [tuple(row) for row in rows[1:4]]
    assert table[-1] == rows[-1]
    assert table[2].cell == "a"
    assert np.asarray(table).tolist() == frame[["value", "std", "low", "high"]].to_numpy().tolist()
    assert len(table[6:]) == 0
    with pytest.raises(IndexError, match="6 rows"):
        table[6]
    assert "[6 rows]" in repr(table)
    assert repr(table).count("\n") == 8
