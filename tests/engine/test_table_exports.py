"""Arrow, pandas and Polars tables of releases and views, and the chart of notebooks."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from base64 import b64decode
from dataclasses import replace
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from evercount import (
    ActiveUsers,
    Average,
    Budget,
    Count,
    DiscoveredKeys,
    DistinctUsers,
    Histogram,
    Quantiles,
    Rollup,
    Stream,
)
from evercount.declarations.schedule import Schedule
from evercount.errors import MissingExtra
from evercount.plotting import without_trend
from evercount.queries import Marginals
from independent_streams import smooth_stream
from product_internals import limits

BUDGET = Budget(1.0, 1e-6)
STREAM = Stream(Histogram(["north", "<b>&south"]), BUDGET, 40)
RELEASES = STREAM.run([["north"] * 100 + ["<b>&south"]] * 30)
BOTH = pytest.mark.parametrize("shown", [RELEASES, RELEASES.last(7)], ids=["releases", "view"])


@BOTH
@pytest.mark.parametrize("kind", ["arrow", "pandas", "polars"])
def test_frames_hold_the_table(shown, kind: str) -> None:
    pytest.importorskip("pyarrow" if kind == "arrow" else kind, reason=f"{kind} is not installed")
    frame = getattr(shown, f"to_{kind}")()
    wanted = shown.table().columns()
    assert list(frame.column_names if kind == "arrow" else frame.columns) == list(wanted)
    for name, column in wanted.items():
        found = frame[name].to_pylist() if kind == "arrow" else frame[name].to_list()
        assert found == column.tolist()
    if kind == "arrow":
        assert frame.schema.metadata[b"evercount.guarantee"].decode() == STREAM.guarantee
    if kind == "pandas":
        assert frame.attrs["evercount.noise"] == "exact"


@BOTH
def test_starts_without_a_schedule_are_whole_numbers(shown) -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    starts = [1_000_000 * tick for tick in range(len(shown))]
    table = shown.table(starts=starts)
    wanted = table.columns()["start"].tolist()
    assert table.to_pandas()["start"].tolist() == table.to_arrow()["start"].to_pylist() == wanted


@pytest.mark.parametrize("name", ["pandas", "polars", "pyarrow"])
def test_a_missing_package_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, name, None)
    ways = ("to_arrow", "to_pandas", "to_polars") if name == "pyarrow" else (f"to_{name}",)
    said = (
        "Arrow, for Parquet files and data frames, needs .* pip install"
        if name == "pyarrow"
        else "pip install"
    )
    for way in ways:
        with pytest.raises(MissingExtra, match=said):
            getattr(RELEASES, way)()


@BOTH
def test_the_chart_is_well_formed_and_escapes_labels(shown) -> None:
    text = shown._repr_html_()
    root = ElementTree.fromstring(text)  # well-formed, so that no label can break out
    assert "<b>&south" not in text
    assert "<b>&south" in "".join(root.itertext())
    assert STREAM.guarantee in "".join(root.itertext())
    (picture,) = root.findall(".//img")
    assert b64decode(picture.get("src", "").partition(",")[2]).startswith(b"\x89PNG")


def test_without_matplotlib_a_notebook_shows_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    text = RELEASES._repr_html_()
    assert "<img" not in text
    assert text.count("<tr>") == 3


def trendless(seed: int, events: int) -> bool:
    numbers = smooth_stream(Count(), BUDGET, 40, seed=seed).run([events] * 30).table().numbers
    return bool(without_trend(numbers[:, 0], numbers[:, 2], numbers[:, 3]).all())


def test_noise_that_hides_everything_is_said() -> None:
    assert np.mean([trendless(seed, 0) for seed in range(100)]) >= 0.95
    assert not any(trendless(seed, 5) for seed in range(20))
    assert (
        "no trend can be read"
        in smooth_stream(Count(), BUDGET, 40, seed=1).run([0] * 30)._repr_html_()
    )
    assert "no trend can be read" not in RELEASES._repr_html_()
    assert "nothing is released" in Stream(Count(), BUDGET, 40).run([])._repr_html_()


def test_release_files_can_be_queried_by_duckdb(tmp_path: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    pytest.importorskip("pyarrow")
    RELEASES.to_parquet(tmp_path / "r.parquet")
    RELEASES.to_csv(tmp_path / "r.csv")
    for name in ("r.parquet", "r.csv"):
        found = duckdb.sql(
            f"SELECT max(value) FROM '{tmp_path / name}' WHERE cell = 'north' AND tick <= 30"
        ).fetchall()
        assert found == [(RELEASES.rows[:, 0].max(),)]


PLACES = [("at", "graz"), ("at", "wien"), ("de", "ulm")]
SHOWN = {
    "discovered keys": (DiscoveredKeys(minimum=3), ["oslo"] * 90 + ["bergen"] * 60 + ["hut"]),
    "rollup": (Rollup(PLACES), PLACES * 20),
    "marginals": (Marginals([["f", "m"], ["old", "young"]]), [("f", "old"), ("m", "young")] * 20),
    "distinct users": (DistinctUsers(), [f"u{number}" for number in range(50)]),
    "active users": (ActiveUsers(), [f"u{number}" for number in range(50)]),
    "quantiles": (Quantiles(0, 100, 16), [number % 100 for number in range(500)]),
    "average": (Average(0, 100, per="event"), [40.0, 60.0] * 9),
}


@pytest.mark.parametrize("kind", ["arrow", "pandas", "polars"])
@pytest.mark.parametrize("name", SHOWN)
def test_columns_have_the_types_that_people_expect(name: str, kind: str) -> None:
    pytest.importorskip("pyarrow" if kind == "arrow" else kind, reason=f"{kind} is not installed")
    query, tick = SHOWN[name]
    releases = Stream(query, BUDGET, 40).run([tick] * 12)
    for shown in (
        (releases, releases.per_tick()) if query.publishing.why_no_views is None else (releases,)
    ):
        frame = getattr(shown, f"to_{kind}")()
        names, types = (
            (frame.column_names, frame.schema.types)
            if kind == "arrow"
            else (frame.columns, frame.dtypes)
        )
        found = dict(zip(names, types, strict=True))
        for column in found:
            whole, text = column in ("tick", "first"), column == "cell"
            wanted = (
                ("int64",)
                if whole
                else ("string", "str", "object")
                if text
                else ("double", "float64")
            )
            assert str(found[column]).lower() in wanted, column
        low, high = (
            np.asarray(frame[side].to_pylist() if kind == "arrow" else frame[side])
            for side in ("low", "high")
        )
        assert np.all(low <= high)


@pytest.mark.parametrize("name", SHOWN)
def test_the_chart_shows_the_intervals_of_the_table(name: str) -> None:
    """Also where they reach further on one side."""
    query, tick = SHOWN[name]
    releases = Stream(query, BUDGET, 40).run([tick] * 12)
    root = ElementTree.fromstring(releases._repr_html_())
    rows = [["".join(cell.itertext()) for cell in row] for row in root.findall(".//tr")[1:]]
    low, high = limits(releases, 0.95)
    wanted = list(zip(releases.rows[-1], low[-1], high[-1], strict=True))[: len(rows)]
    for (_, value, ends), numbers in zip(rows, wanted, strict=True):
        found = [float(text.replace(",", "")) for text in (value, *ends.split(" … "))]
        assert found == pytest.approx(numbers, rel=1e-3, abs=0.5), name


def test_large_numbers_have_no_exponents() -> None:
    text = Stream(Count(), BUDGET, 40).run([10_000_000] * 3)._repr_html_().partition("<table>")[2]
    assert "e+" not in text
    assert "30,000," in text or "29,999," in text


@pytest.mark.parametrize(
    ("zone", "start"),
    [
        ("Europe/Vienna", "2026-07-01"),  # +02:00, and +01:00 in 1970
        ("Europe/London", "2026-01-01"),  # +00:00, and +01:00 in 1970
        ("America/New_York", "2026-03-07"),  # the clock changes on the second day
        ("Europe/Vienna", "2026-10-24"),
    ],
)
def test_charts_show_the_time_of_their_zone(zone: str, start: str) -> None:
    dates = pytest.importorskip("matplotlib.dates")
    schedule = Schedule.of("1h", start, zone)
    numbers = Stream(Count(), BUDGET, 96).run([5] * 96).per_tick()
    table = replace(numbers.table(starts=schedule.starts_of(1, 96)), clock=schedule)
    axes = table.plot()
    axes.get_figure().canvas.draw()
    shown = [label.get_text() for label in axes.get_xticklabels()]
    moments = [dates.num2date(place, ZoneInfo(zone)) for place in axes.get_xticks()]
    wanted = [moment.strftime("%H:%M" if moment.hour else "%b-%d") for moment in moments]
    assert shown == wanted
    # days begin where the zone's days begin
    assert len([moment for moment in moments if moment.hour == 0]) > 2
    assert zone in axes.get_xlabel()


def test_charts_mark_what_has_a_note() -> None:
    table = RELEASES.table()
    noted = replace(
        table, notes=["missing" if tick in (4, 9) else "" for tick in table.ticks.tolist()]
    )
    axes = noted.plot()
    dotted = [line.get_xdata()[0] for line in axes.get_lines() if line.get_linestyle() == ":"]
    assert dotted == [4, 9]
    assert "dotted: has a note" in axes.get_title(loc="left")
    plain = table.plot()
    assert len(plain.get_lines()) == len(axes.get_lines()) - 2
    assert "dotted" not in plain.get_title(loc="left")


def test_a_chart_of_one_number_shows_it() -> None:
    axes = RELEASES[:1].plot()
    assert [line.get_marker() for line in axes.get_lines()] == ["o", "o"]
    assert len(axes.collections) == 4  # two bands, and two bars where a band has no width
    assert {line.get_marker() for line in RELEASES.plot().get_lines()} == {"None"}


@pytest.mark.parametrize(
    "part", [slice(None, None, -1), slice(7, 2, -1), slice(None, None, -3), slice(2, 9, 2)]
)
def test_tables_are_sliced_as_lists_are(part: slice) -> None:
    schedule = Schedule.of("1d", "2026-03-27", "Europe/Vienna")
    whole = replace(RELEASES.table(starts=schedule.starts_of(1, 30)), clock=schedule)
    numbers = whole.numbers.copy()
    numbers[:4, :, 1] = np.nan  # a key that joined
    table = replace(
        whole,
        numbers=numbers,
        cells=[*whole.cells, "later"],
        notes=[f"day {tick}" for tick in range(30)],
    )
    some = table[part]
    assert list(map(tuple, some)) == list(map(tuple, table))[part]
    assert len(some) == len(list(table)[part])
    assert some.to_csv() is not None
    assert [tuple(row) for row in reversed(table)] == [tuple(row) for row in table][::-1]


def test_a_reversed_table_has_the_chart_of_the_table() -> None:
    table = RELEASES.table()
    assert table[::-1]._repr_html_() == table._repr_html_()
