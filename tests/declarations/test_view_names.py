"""Names of views: which are legal for which stream, and which ticks make a day or a week."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from evercount import Budget, Count, Histogram, Quantiles, Stream
from evercount.declarations.cautions import declares_again, differences
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.schedule import Schedule
from evercount.declarations.settle import settle
from evercount.declarations.streams_file import read_declarations
from evercount.declarations.view_names import (
    all_of_view,
    check_views,
    newest_spans,
    next_spans,
    stack_rows,
    view_spans,
    view_table,
)
from evercount.engine import take_views
from evercount.engine.release import Releases
from evercount.errors import ParameterError, UnknownName

HOURLY = Schedule.of("1h", "2026-03-27T20:00", "Europe/Vienna")
BUDGET = Budget(1.0, 1e-6)


@pytest.mark.parametrize("days", [1, 7])
@pytest.mark.parametrize(
    ("tick", "start", "zone"),
    [
        ("1h", "2026-03-27T20:00", "Europe/Vienna"),  # the day of the change has 23 hours
        ("15m", "2026-10-24T07:00", "America/New_York"),
        # ticks that straddle midnight belong to the day in which they begin
        ("7h", "2026-01-01T00:00", "UTC"),
        ("1d", "2026-03-20", "Europe/Vienna"),
        ("1d", "2026-03-23", "Europe/Vienna"),  # a Monday: the first week is whole
        ("1d", "2026-03-23T06:00", "Europe/Vienna"),  # and so it is where days begin at six
        ("2d", "2026-03-24", "UTC"),  # no tick of two days would begin on the Monday before
        ("1h", "2026-03-29T03:00", "Europe/Vienna"),
        # the clock skips midnight: the day begins at one
        ("1h", "2018-11-04T01:00", "America/Sao_Paulo"),
    ],
)
def test_days_and_weeks_follow_the_calendar(tick: str, start: str, zone: str, days: int) -> None:
    """Against plain Python: the wall date at which every tick begins."""
    schedule, ticks = Schedule.of(tick, start, zone), 700
    dates = []
    for number in range(ticks + 2):
        if number:
            instant = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
                microseconds=schedule.start_of(number)
            )
            wall = instant.astimezone(ZoneInfo(zone))
        elif schedule.calendar:  # a tick before the first one
            wall = datetime.fromisoformat(start) - timedelta(microseconds=schedule.length)
        else:
            first = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(
                microseconds=schedule.begin - schedule.length
            )
            wall = first.astimezone(ZoneInfo(zone))
        day = wall.date()
        dates.append(day if days == 1 else day - timedelta(days=day.weekday()))
    # ticks after which a day begins
    edges = [i for i in range(ticks + 1) if dates[i + 1] != dates[i]]
    wanted = edges[1:]
    name = "per-day" if days == 1 else "per-week"
    after, until = view_spans(name, schedule, 0, ticks)
    assert until.tolist() == wanted
    assert after.tolist() == edges[:-1]
    shorter = view_spans(name, schedule, 0, ticks // 2)[1].tolist()
    assert shorter == wanted[: len(shorter)]  # later ticks change no earlier day
    assert view_spans(name, schedule, 0, 0)[1].tolist() == []
    for behind in (0, 30, 100, ticks):  # pages of any size join without a gap
        assert view_spans(name, schedule, behind, ticks)[1].tolist() == [
            tick for tick in wanted if tick > behind
        ]
        for most in (1, 3):
            assert (
                next_spans(name, schedule, behind, ticks, most)[1].tolist()
                == [tick for tick in wanted if tick > behind][:most]
            )
    assert newest_spans(name, schedule, ticks, 2)[1].tolist() == wanted[-2:]


@pytest.mark.parametrize("name", ["per-tick", "last-7", "running"])
def test_pages_of_views_join(name: str) -> None:
    after, until = view_spans(name, HOURLY, 0, 20)
    assert until.tolist() == list(range(7 if name == "last-7" else 1, 21))
    assert (until - after).tolist() == {
        "per-tick": [1] * 20,
        "last-7": [7] * 14,
        "running": list(range(1, 21)),
    }[name]
    found: list[int] = []
    while (page := next_spans(name, HOURLY, found[-1] if found else 0, 20, 3)[1]).size:
        assert len(page) <= 3
        found += page.tolist()
    assert found == until.tolist()
    assert newest_spans(name, HOURLY, 20, 5)[1].tolist() == [16, 17, 18, 19, 20]


@pytest.mark.parametrize(
    ("start", "first_week"),
    [
        ("2026-01-05", 7),  # Monday
        ("2026-01-07", 12),  # Wednesday: five days of its week
        ("2026-01-11", 8),  # Sunday
    ],
)
def test_parts_of_weeks_are_left_out(start: str, first_week: int) -> None:
    """What is released: ten events a day are seventy a week, in every row, from the first row on to
    the last."""
    schedule = Schedule.of("1d", start, "UTC")
    releases = Stream(Count(), Budget(1e6, 0.0), 40).run([10] * 33)
    table = all_of_view(releases, "per-week", schedule)
    assert table.ticks[0] == first_week
    assert table.numbers[:, 0].ravel().tolist() == [70.0] * len(table.ticks)
    assert 33 - table.ticks[-1] < 7


def test_a_renewal_in_the_middle_of_a_week_makes_no_part_of_one() -> None:
    """A stream of 30 days from a Monday on and its successor: the week that both have a part of is
    in neither."""
    first = Schedule.of("1d", "2026-01-05", "UTC")
    second = Schedule.of("1d", "2026-02-04", "UTC")
    weeks = []
    for schedule in (first, second):
        releases = Stream(Count(), Budget(1e6, 0.0), 30).run([10] * 30)
        table = all_of_view(releases, "per-week", schedule)
        assert table.starts is not None
        assert table.numbers[:, 0].ravel().tolist() == [70.0] * len(table.ticks)
        weeks += [schedule.show(start)[:10] for start in table.starts]
    assert weeks == [
        f"2026-{day}" for day in ("01-05", "01-12", "01-19", "01-26", "02-09", "02-16", "02-23")
    ]


@pytest.mark.parametrize("name", ["per-tick", "last-7", "per-week", "running"])
def test_a_key_that_joins_has_no_number_of_a_part(name: str) -> None:
    """Ten events a day from the day on which it joins, a Thursday; other keys have all their
    rows."""
    schedule = Schedule.of("1d", "2026-01-05", "UTC")
    stream = Stream(Histogram(["a"]), Budget(1e6, 0.0), 40, replay=True)
    first = stream.run([["a"] * 10] * 3).rows
    stream.add_keys(["b"])
    later = stream.run([["a"] * 10 + ["b"] * 10] * 27).rows
    releases = stream.read_back(stack_rows(first, later))
    table = all_of_view(releases, name, schedule)
    old, new = (
        dict(zip(table.ticks.tolist(), column, strict=True))
        for column in table.numbers[:, 0].T.tolist()
    )
    shown = {tick: value for tick, value in new.items() if not np.isnan(value)}
    wanted = {
        "per-tick": dict.fromkeys(range(4, 31), 10.0),
        "last-7": dict.fromkeys(range(10, 31), 70.0),
        "per-week": dict.fromkeys((14, 21, 28), 70.0),
        "running": {tick: 10.0 * (tick - 3) for tick in range(4, 31)},  # all that it has counted
    }
    assert shown == wanted[name]
    assert not np.isnan(list(old.values())).any()
    rows = [row for row in table if row.cell == "b"]
    assert [row.tick for row in rows] == list(shown)
    view = take_views.view_at(  # as stores read it, from the numbers at the ends of spans alone
        stream,
        stream.labels,
        name,
        view_spans(name, schedule, 0, 30),
        [1],
        lambda at, cells: {tick: releases.rows[tick - 1, list(cells)] for tick in at if tick},
    )
    stored = view_table(view, name, schedule)
    assert [(row.tick, row.value) for row in stored] == list(shown.items())
    # no number, no std
    assert np.array_equal(np.isnan(stored.numbers[:, 1]), np.isnan(stored.numbers[:, 0]))


def columns_of(releases: Releases, name: str) -> dict[str, list[Any]]:
    spans = view_spans(name, HOURLY, 0, len(releases))
    table = view_table(releases.spans(name, *(ticks + 1 for ticks in spans)), name, HOURLY)
    return {column: found.tolist() for column, found in table.columns(HOURLY.show).items()}


def test_tables_of_views() -> None:
    query = Histogram(["north", "south"])
    releases = Stream(query, BUDGET, 100).run([["north"] * 3 + ["south"]] * 60)
    table = columns_of(releases, "per-day")
    # 24 hours of Saturday, 23 of Sunday; the 4 of Friday are no day
    assert table["tick"][::2] == [28, 51]
    assert table["start"][0] == "2026-03-28T00:00:00+01:00"
    assert table["start"][2] == "2026-03-29T00:00:00+01:00"
    assert table["cell"] == ["north", "south"] * 2
    assert table["value"][:2] == (releases.rows[27] - releases.rows[3]).tolist()
    assert len(columns_of(releases, "last-24")["value"]) == 2 * 37
    assert columns_of(releases, "per-week")["value"] == []
    assert np.allclose(
        np.reshape(columns_of(releases, "per-tick")["value"], (-1, 2)).sum(axis=0),
        releases.rows[-1],
    )
    half = np.subtract(table["high"], table["value"])
    assert np.allclose(half, 1.96 * np.asarray(table["std"]) + 0.5, rtol=1e-3)


def test_quantiles_have_no_std() -> None:
    releases = Stream(Quantiles(0, 10, 8), BUDGET, 100).run([[4.0] * 2000] * 3)
    table = columns_of(releases, "quantile-0.5")
    assert table["cell"] == ["0.5"] * 3
    assert np.isnan(table["std"]).all()
    assert all(a <= 4 <= b for a, b in zip(table["low"], table["high"], strict=True))


@pytest.mark.parametrize(
    "name", ["daily", "last-0", "last-", "last-x", "quantile-1", "quantile-0.", 7, "per-day "]
)
def test_unknown_names(name: Any) -> None:
    with pytest.raises(UnknownName):
        check_views([name], Count(), HOURLY)


def test_views_that_do_not_fit() -> None:
    for query, schedule, post, name in [
        (Count(), HOURLY, ("integer",), "per-tick"),
        (Count(), HOURLY, (), "quantile-0.5"),
        (Count(), Schedule(), (), "per-day"),
        (Count(), Schedule.of("2d", "2026-01-01", "UTC"), (), "per-day"),
    ]:
        with pytest.raises(ParameterError, match=r"view|running"):
            check_views([name], query, schedule, post)
    with pytest.raises(ParameterError, match="list"):
        check_views("per-day", Count(), HOURLY)


def test_declared_views_are_kept_and_make_no_other_stream(tmp_path: Any) -> None:
    plain = {
        "name": "x",
        "query": "count",
        "budget": {"epsilon": 1, "delta": 1e-6},
        "tick": "1h",
        "zone": "UTC",
    }
    plain["horizon"] = 240
    without = StreamDeclaration.from_dict(plain)
    viewed = StreamDeclaration.from_dict({**plain, "views": ["per-day", "last-24"]})
    assert without.to_dict()["views"] == []
    assert viewed.views == ("per-day", "last-24")
    assert differences(settle(without), viewed) == []
    assert declares_again(settle(without), viewed)
    path = tmp_path / "streams.toml"
    path.write_text(viewed.to_toml(), "utf-8")
    assert read_declarations(path) == [viewed]
    with pytest.raises(UnknownName, match="view"):
        StreamDeclaration.from_dict({**plain, "views": ["hourly"]})
    with pytest.raises(ParameterError, match="list"):
        StreamDeclaration.from_dict({**plain, "views": "per-day"})
