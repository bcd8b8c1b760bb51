"""Names of views: which are legal for which stream, and which ticks make a day or a week."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from evercount import Budget, Count, Histogram, Quantiles, Stream
from evercount.declare.declaration import StreamDeclaration, read_declarations
from evercount.declare.schedule import Schedule
from evercount.declare.view_names import check_views, periods, show_view
from evercount.errors import ParameterError, UnknownName

HOURLY = Schedule.of("1h", "2026-03-27T20:00", "Europe/Vienna")
BUDGET = Budget(1.0, 1e-6)


@pytest.mark.parametrize("days", [1, 7])
@pytest.mark.parametrize(
    ("tick", "start", "zone"),
    [
        ("1h", "2026-03-27T20:00", "Europe/Vienna"),  # the day of the change has 23 hours
        ("15m", "2026-10-24T07:00", "America/New_York"),
        ("7h", "2026-01-01T00:00", "UTC"),  # ticks that straddle midnight belong to the day in which they begin
        ("1d", "2026-03-20", "Europe/Vienna"),
    ],
)
def test_days_and_weeks_follow_the_calendar(tick: str, start: str, zone: str, days: int) -> None:
    """Against plain Python: the wall date at which every tick begins."""
    schedule, ticks = Schedule.of(tick, start, zone), 700
    dates = []
    for number in range(1, ticks + 2):
        instant = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(microseconds=schedule.start_of(number))
        day = instant.astimezone(ZoneInfo(zone)).date()
        dates.append(day if days == 1 else day - timedelta(days=day.weekday()))
    wanted = [i for i in range(1, ticks + 1) if dates[i] != dates[i - 1]]
    after, until = periods(schedule, ticks, days)
    assert until.tolist() == wanted
    assert after.tolist() == [0, *wanted[:-1]]
    shorter = periods(schedule, ticks // 2, days)[1].tolist()
    assert shorter == wanted[: len(shorter)]  # later ticks change no earlier day
    assert periods(schedule, 0, days)[1].tolist() == []


def test_tables_of_views() -> None:
    query = Histogram(["north", "south"])
    releases = Stream(query, BUDGET, 100).run([["north"] * 3 + ["south"]] * 60)
    table = show_view(releases, "per-day", HOURLY)
    assert table.columns["first"][::2] == [1, 5, 29]  # 4 hours of Friday, 24 of Saturday, 23 of Sunday
    assert table.columns["last"][::2] == [4, 28, 51]
    assert table.columns["start"][2] == "2026-03-28T00:00:00+01:00"
    assert table.columns["cell"] == ["north", "south"] * 3
    assert table.columns["value"][:2] == releases.rows[3].tolist()
    assert len(show_view(releases, "last-24", HOURLY)) == 2 * 37
    assert len(show_view(releases, "per-week", HOURLY)) == 2
    assert np.allclose(
        np.reshape(show_view(releases, "per-tick", HOURLY).columns["value"], (-1, 2)).sum(axis=0), releases.rows[-1]
    )
    half = np.subtract(table.columns["high"], table.columns["value"])
    assert np.allclose(half, 1.96 * np.asarray(table.columns["std"]) + 0.5, rtol=1e-3)


def test_quantiles_have_no_std() -> None:
    releases = Stream(Quantiles(0, 10, 8), BUDGET, 100).run([[4.0] * 2000] * 3)
    table = show_view(releases, "quantile-0.5", HOURLY)
    assert table.columns["cell"] == ["0.5"] * 3
    assert table.columns["std"] == [None] * 3
    assert all(a <= 4 <= b for a, b in zip(table.columns["low"], table.columns["high"], strict=True))


@pytest.mark.parametrize("name", ["daily", "last-0", "last-", "last-x", "quantile-1", "quantile-0.", 7, "per-day "])
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
    plain = {"name": "x", "query": "count", "budget": {"epsilon": 1, "delta": 1e-6}, "tick": "1h", "zone": "UTC"}
    without = StreamDeclaration.from_dict(plain)
    viewed = StreamDeclaration.from_dict({**plain, "views": ["per-day", "last-24"]})
    assert without.to_dict()["views"] == []
    assert viewed.views == ("per-day", "last-24")
    assert without.differences(viewed) == []
    assert without.same_as(viewed)
    path = tmp_path / "streams.toml"
    path.write_text(viewed.to_toml(), "utf-8")
    assert read_declarations(path) == [viewed]
    with pytest.raises(UnknownName, match="view"):
        StreamDeclaration.from_dict({**plain, "views": ["hourly"]})
    with pytest.raises(ParameterError, match="list"):
        StreamDeclaration.from_dict({**plain, "views": "per-day"})
