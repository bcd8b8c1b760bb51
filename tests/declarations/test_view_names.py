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
from evercount.declarations.streams_file import read_declarations
from evercount.declarations.view_names import check_views, newest_spans, next_spans, view_spans, view_table
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
    name = "per-day" if days == 1 else "per-week"
    after, until = view_spans(name, schedule, 0, ticks)
    assert until.tolist() == wanted
    assert after.tolist() == [0, *wanted[:-1]]
    shorter = view_spans(name, schedule, 0, ticks // 2)[1].tolist()
    assert shorter == wanted[: len(shorter)]  # later ticks change no earlier day
    assert view_spans(name, schedule, 0, 0)[1].tolist() == []
    for behind in (0, 30, 100, ticks):  # pages of any size join without a gap
        assert view_spans(name, schedule, behind, ticks)[1].tolist() == [tick for tick in wanted if tick > behind]
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
    assert (until - after).tolist() == {"per-tick": [1] * 20, "last-7": [7] * 14, "running": list(range(1, 21))}[name]
    found: list[int] = []
    while (page := next_spans(name, HOURLY, found[-1] if found else 0, 20, 3)[1]).size:
        assert len(page) <= 3
        found += page.tolist()
    assert found == until.tolist()
    assert newest_spans(name, HOURLY, 20, 5)[1].tolist() == [16, 17, 18, 19, 20]


def columns_of(releases: Releases, name: str) -> dict[str, list[Any]]:
    spans = view_spans(name, HOURLY, 0, len(releases))
    table = view_table(releases.spans(name, *(ticks + 1 for ticks in spans)), name, HOURLY)
    return {column: found.tolist() for column, found in table.columns(HOURLY.show).items()}


def test_tables_of_views() -> None:
    query = Histogram(["north", "south"])
    releases = Stream(query, BUDGET, 100).run([["north"] * 3 + ["south"]] * 60)
    table = columns_of(releases, "per-day")
    assert table["tick"][::2] == [4, 28, 51]  # 4 hours of Friday, 24 of Saturday, 23 of Sunday
    assert table["start"][0] == "2026-03-27T20:00:00+01:00"
    assert table["start"][2] == "2026-03-28T00:00:00+01:00"
    assert table["cell"] == ["north", "south"] * 3
    assert table["value"][:2] == releases.rows[3].tolist()
    assert len(columns_of(releases, "last-24")["value"]) == 2 * 37
    assert len(columns_of(releases, "per-week")["value"]) == 2
    assert np.allclose(np.reshape(columns_of(releases, "per-tick")["value"], (-1, 2)).sum(axis=0), releases.rows[-1])
    half = np.subtract(table["high"], table["value"])
    assert np.allclose(half, 1.96 * np.asarray(table["std"]) + 0.5, rtol=1e-3)


def test_quantiles_have_no_std() -> None:
    releases = Stream(Quantiles(0, 10, 8), BUDGET, 100).run([[4.0] * 2000] * 3)
    table = columns_of(releases, "quantile-0.5")
    assert table["cell"] == ["0.5"] * 3
    assert np.isnan(table["std"]).all()
    assert all(a <= 4 <= b for a, b in zip(table["low"], table["high"], strict=True))


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
    plain["horizon"] = 240
    without = StreamDeclaration.from_dict(plain)
    viewed = StreamDeclaration.from_dict({**plain, "views": ["per-day", "last-24"]})
    assert without.to_dict()["views"] == []
    assert viewed.views == ("per-day", "last-24")
    assert differences(without, viewed) == []
    assert declares_again(without, viewed)
    path = tmp_path / "streams.toml"
    path.write_text(viewed.to_toml(), "utf-8")
    assert read_declarations(path) == [viewed]
    with pytest.raises(UnknownName, match="view"):
        StreamDeclaration.from_dict({**plain, "views": ["hourly"]})
    with pytest.raises(ParameterError, match="list"):
        StreamDeclaration.from_dict({**plain, "views": "per-day"})
