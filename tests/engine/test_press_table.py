"""Tables for people: post-processed views, rounded numbers, and the description next to a CSV."""

from __future__ import annotations

import numpy as np
import pytest

from evercount import Budget, Histogram
from evercount.engine.release_table import ReleaseTable, table_of
from evercount.engine.write_table import describe_csv, postprocess_table, round_table
from independent_streams import smooth_stream


def table(numbers: list[list[float]]) -> ReleaseTable:
    """value, std, low, high of one tick."""
    return table_of(
        np.asarray([1]), None, tuple("abcdef"[: len(numbers[0])]), [[row] for row in numbers]
    )


def test_postprocessed_intervals_hold_as_often() -> None:
    """Against the truth, number by number: nothing that an interval held is lost, and it holds its
    own number."""
    events = [["a"] * (tick % 3) + ["b"] * 40 for tick in range(200)]
    stream = smooth_stream(
        Histogram(["a", "b", "c"]), Budget(0.5, 0.0), 200, seed=1, views=["per-tick"]
    )
    view = stream.run(events).per_tick()
    plain = view.table()
    truth = np.asarray([[tick.count(key) for key in "abc"] for tick in events])
    for names in (["nonnegative"], ["integer"], ["nonnegative", "integer"]):
        made = postprocess_table(plain, names, counts=True)
        for one in (made, round_table(made)):
            value, _, low, high = (one.numbers[:, part] for part in range(4))
            held = (plain.numbers[:, 2] <= truth) & (truth <= plain.numbers[:, 3])
            assert np.all(((low <= truth) & (truth <= high))[held])
            assert np.all((low <= value) & (value <= high))
        assert held.mean() > 0.95
        if "nonnegative" in names:
            assert made.numbers[:, 0].min() == made.numbers[:, 2].min() == 0
        if "integer" in names:
            assert np.array_equal(made.numbers[:, [0, 2, 3]], np.rint(made.numbers[:, [0, 2, 3]]))
        assert np.array_equal(made.numbers[:, 1], plain.numbers[:, 1])


def test_an_interval_of_numbers_that_may_be_negative_is_not_cut() -> None:
    made = postprocess_table(
        table([[-3.2], [1.0], [-5.4], [-1.1]]), ["nonnegative", "integer"], counts=False
    )
    assert made.numbers[0, :, 0].tolist() == [0, 1, -6, 0]


def test_numbers_have_the_digits_that_their_error_allows() -> None:
    given = table(
        [
            [1234.5678, 16.25, 0.123456, -0.04, np.nan, 1e300],
            [123.456, 5.9432, 0.0123, 0.0, 1.0, 1e299],
            [992.6, 4.6, 0.0993, -0.04, np.nan, -1e300],
            [1476.5, 27.9, 0.1476, -0.04, np.nan, 1e300],
        ]
    )
    value, std, low, high = round_table(given).numbers[0]
    assert value[:4].tolist() == [1235, 16.2, 0.123, -0.04]
    assert std[:4].tolist() == [124, 6.0, 0.013, 0]
    assert low[:4].tolist() == [992, 4.6, 0.099, -0.04]
    assert high[:4].tolist() == [1477, 27.9, 0.148, -0.04]
    assert np.isnan(value[4])
    assert (value[5], low[5]) == (1e300, -1e300)
    quantile = round_table(
        table_of(np.asarray([1]), None, ("0.5",), [[[3.14159]], [[np.nan]], [[3.0]], [[3.4]]])
    )
    assert quantile.numbers[0, [0, 2, 3], 0].tolist() == [3.14, 3.0, 3.4]


@pytest.mark.parametrize("seed", range(3))
def test_rounding_moves_no_number_by_more_than_a_twentieth_of_its_std(seed: int) -> None:
    random = np.random.default_rng(seed)
    std = 10.0 ** random.uniform(-6, 6, 500)
    value = std * random.normal(size=500) * 30
    one = round_table(
        table(
            [
                value.tolist()[:6],
                std.tolist()[:6],
                (value - std).tolist()[:6],
                (value + std).tolist()[:6],
            ]
        )
    )
    assert np.all(
        np.abs(one.numbers[0, 0] - value[:6])
        <= np.maximum(std[:6] / 20, 0) + 1e-12 * np.abs(value[:6])
    )
    assert np.all(
        (one.numbers[0, 1] >= std[:6]) & (one.numbers[0, 1] <= std[:6] * 1.1 + 1 * (std[:6] >= 10))
    )


def test_a_csv_is_described_as_the_web_has_it() -> None:
    facts = {
        "epsilon": 1.0,
        "delta": 0.0,
        "unit": "event",
        "guarantee": "All releases …",
        "tick": "1d",
    }
    described = describe_csv(
        "flu.csv", ["tick", "start", "cell", "value", "std", "low", "high"], facts, 0.95
    )
    assert described["@context"][0] == "http://www.w3.org/ns/csvw"
    assert described["url"] == "flu.csv"
    titles = [column["titles"] for column in described["tableSchema"]["columns"]]
    assert titles[0] == "Number of the day"
    assert titles[3:5] == [
        "Number, with noise",
        "Standard error",
    ]
    assert described["notes"][0]["epsilon"] == 1.0
    assert "0.95" in described["notes"][0]["interval"]
