"""New events first, comparisons, embedded charts and files of views, in a real Chromium against the
real service."""

from __future__ import annotations

# ruff: noqa: F401, F811 - the fixtures of the other file
import csv
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from service.test_dashboard import (
    BUDGET,
    Running,
    artefacts,
    browser,
    complaints,
    keep_picture,
    luminance,
    plain,
    rounded,
    service,
    shown,
    visit,
    wait_state,
)
from soak_cases import soak_except

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def hourly(service: Running) -> Running:
    """A stream of clocked hours with many events per day, which is over."""
    start = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=100)
    service.call(
        "streams",
        {
            "name": "clinic",
            "description": "Reports per hour",
            "query": {"name": "histogram", "parameters": {"keys": ["north", "south"]}},
            "budget": {"epsilon": 2.0, "delta": 1e-6},
            "tick": "1h",
            "zone": "Europe/Vienna",
            "start": start.isoformat(),
            "horizon": 99,
            "public": True,
        },
    )
    service.open("clinic")
    for name in ("wave0", "wave1"):
        service.declare(name, ["a", "b"])
    for tick in range(12):
        service.close("wave0", ["a"] * (400 * tick) + ["b"] * 300)
        service.close("wave1", ["a"] * 200)
    return service


def view(running: Running, name: str, query: str) -> Any:
    return running.call(f"streams/{name}/releases?{query}")


def wait_view(page: Any, name: str) -> None:
    page.wait_for_function("name => evercount.page.spans.answer?.view === name", arg=name)


def test_new_events_come_first_with_their_band(
    hourly: Running, visit: Callable[..., Any], artefacts: Path
) -> None:
    page = visit("#/stream/wave0/a")
    wait_state(page, "live")
    wait_view(page, "per-tick")
    answer = view(hourly, "wave0", "view=per-tick&cell=a&limit=240")
    last = answer["releases"][-1]
    assert shown(page, "#span-value") == rounded(last["values"][0])
    assert f"std {rounded(last['std'][0])}" in shown(page, "#span-error")
    assert "95 % interval" in shown(page, "#span-error")
    data = page.evaluate(
        "evercount.page.spans.chart.chart.data.map((column) => Array.from(column))"
    )
    assert data[1:] == [
        [span[part][0] for span in answer["releases"]] for part in ("high", "low", "values")
    ]
    assert page.locator("#span-note").is_hidden()  # a rise by 400 events a tick is not noise
    above, below = (page.locator(f"#{card}").bounding_box() for card in ("span-card", "focus-card"))
    assert above["y"] <= below["y"]
    assert above["x"] < below["x"]  # the running total stands next to it
    keep_picture(page, artefacts / "views-desktop-light.png")
    made = hourly.close("wave0", ["a"] * 5000)
    page.wait_for_function(
        "tick => evercount.page.spans.answer.releases.at(-1).tick === tick", arg=made["tick"]
    )


def test_noise_is_never_drawn_as_a_trend(
    hourly: Running, visit: Callable[..., Any], artefacts: Path
) -> None:
    page = visit("#/stream/flu/Alsace", color_scheme="dark")
    wait_view(page, "per-tick")
    page.wait_for_selector("#span-note:not([hidden])")
    assert "one constant number would fit" in page.inner_text("#span-note")
    values = page.evaluate("Array.from(evercount.page.spans.chart.chart.data[3])")
    assert values
    assert all(value is None for value in values)  # no line, the bands only
    keep_picture(page, artefacts / "views-flat-dark.png", full_page=True)


def test_views_have_permalinks_and_files(
    hourly: Running, visit: Callable[..., Any], tmp_path: Path
) -> None:
    page = visit("#/stream/wave0/b")
    wait_view(page, "per-tick")
    page.select_option("#span-view", "running")
    wait_view(page, "running")
    assert page.url.endswith("#/stream/wave0/b/running")
    page.reload()
    wait_view(page, "running")
    with page.expect_download() as told:
        page.click("#save-csv")
    assert told.value.suggested_filename == "wave0.running.csv"
    told.value.save_as(tmp_path / "saved.csv")
    rows = list(csv.DictReader((tmp_path / "saved.csv").read_text("utf-8").splitlines()))
    wanted = view(hourly, "wave0", "view=running&cell=b&limit=240")["releases"]
    assert [float(row["value"]) for row in rows] == [span["values"][0] for span in wanted]


def test_a_clocked_stream_shows_days_in_its_own_zone(
    hourly: Running, visit: Callable[..., Any]
) -> None:
    page = visit("#/stream/clinic/north/per-day", timezone_id="Asia/Tokyo")
    wait_view(page, "per-day")
    assert "Europe/Vienna" in page.inner_text("#facts")
    last = view(hourly, "clinic", "view=per-day&cell=north")["releases"][-1]
    assert last["start"].startswith(
        datetime.fromisoformat(last["start"]).strftime("%Y-%m-%dT00:00:00")
    )
    day = datetime.fromisoformat(last["start"])
    assert day.strftime(f"%a, %b {day.day}, %Y") in page.inner_text("#span-eyebrow")


@pytest.fixture(scope="module")
def daily(service: Running) -> Running:
    """Days of Vienna from a Wednesday to the end of a year, counted late events included; all of
    them are over."""
    for name in ("hospital", "practice"):
        service.call(
            "streams",
            {
                "name": name,
                "query": {"name": "histogram", "parameters": {"keys": ["north", "south"]}},
                "budget": {"epsilon": 2.0, "delta": 0},
                "tick": "1d",
                "zone": "Europe/Vienna",
                "start": "2025-12-10",
                "horizon": 22,
                "late": "next",
                "views": ["per-week"],
                "public": True,
            },
        )
        if name == "hospital":
            service.call(
                f"streams/{name}/notes",
                {"first": "2025-12-17", "text": "no file came", "missing": "drop"},
            )
        service.open(name)
    return service


LATE_RULE = (
    "An event that arrives after its day was published is counted in the day that is published "
    "next, whose number is then higher."
)
ZONES = ["America/Los_Angeles", "Europe/Vienna", "Asia/Tokyo"]


@pytest.mark.parametrize("zone", ZONES)
def test_a_comparison_shows_days_in_the_zone_of_its_stream(
    daily: Running, visit: Callable[..., Any], artefacts: Path, zone: str
) -> None:
    page = visit("#/compare/hospital/north/practice/south/per-tick", timezone_id=zone)
    page.wait_for_function(
        "() => document.querySelector('#apart-summary').textContent.includes('difference')"
    )
    last = view(daily, "hospital", "view=per-tick&cell=north&minus=south&minus_stream=practice")[
        "releases"
    ][-1]
    assert last["start"] == "2025-12-31T00:00:00+01:00"
    assert "Wed, Dec 31, 2025" in page.inner_text("#apart-summary")
    assert page.inner_text("#compare-zone") == "Times in Europe/Vienna."
    assert page.inner_text("#compare-late") == LATE_RULE
    for chart in ("both", "apart"):
        splits, labels = page.evaluate(
            "(name) => { const axis = evercount.comparison[name].chart.axes[0]; return "
            "[axis._splits, axis._values]; }",
            chart,
        )
        days = [datetime.fromtimestamp(split, ZoneInfo("Europe/Vienna")) for split in splits]
        assert len(days) > 3
        assert [day.hour for day in days] == [0] * len(days)
        assert labels == [f"{day:%b} {day.day}" for day in days]
    assert page.evaluate("evercount.comparison.apart.noted()") == [7]  # the missing day
    keep_picture(page, artefacts / f"compare-{zone.replace('/', '-')}.png", full_page=True)


@pytest.mark.parametrize("zone", ZONES)
def test_weeks_are_whole_and_the_late_rule_is_stated(
    daily: Running, visit: Callable[..., Any], artefacts: Path, zone: str
) -> None:
    page = visit("#/stream/hospital/north/per-week", timezone_id=zone)
    wait_view(page, "per-week")
    spans = page.evaluate(
        "evercount.page.spans.answer.releases.map((span) => [span.first, span.tick])"
    )
    assert spans == [[6, 12], [13, 19]]  # December 15 and 22; those of December 10 and 29 are parts
    assert "Mon, Dec 22, 2025" in page.inner_text("#span-eyebrow")
    rows = page.evaluate("evercount.page.history.rows.map((row) => row.tick)")
    assert rows == [12, 19]
    for chart in ("spans.chart", "view"):  # the week of the missing day is marked
        assert page.evaluate(f"evercount.page.{chart}.noted()") == [0]
    assert [page.inner_text(f"#{card} .late-rule") for card in ("span-card", "focus-card")] == [
        LATE_RULE
    ] * 2
    assert LATE_RULE in page.inner_text("#guarantee-body")
    assert "whole or not at all" in page.inner_text("#span-help")
    keep_picture(page, artefacts / f"weeks-{zone.replace('/', '-')}.png", full_page=True)


def test_an_embedded_chart_states_the_late_rule(daily: Running, visit: Callable[..., Any]) -> None:
    page = visit("embed#/hospital/north/per-tick", 640, 420, timezone_id="America/Los_Angeles")
    page.wait_for_function(
        "() => document.querySelector('#embed-text').textContent.includes('95 % interval')"
    )
    assert "Wed, Dec 31, 2025" in page.inner_text("#embed-text")
    assert LATE_RULE in page.inner_text("#embed-note")


def test_a_stream_that_drops_late_events_says_so(
    hourly: Running, visit: Callable[..., Any]
) -> None:
    page = visit("#/stream/clinic/north/per-day")
    wait_view(page, "per-day")
    assert page.locator("#span-card .late-rule").is_hidden()
    assert "arrives after its hour was published is not counted" in page.inner_text(
        "#guarantee-body"
    )


COMPARED = [("wave0/b", "a minus b"), ("wave1/a", "wave0: a minus wave1: a")]


@pytest.mark.parametrize(("other", "label"), soak_except(COMPARED[1:], COMPARED))
def test_two_cells_or_two_streams_are_compared(
    hourly: Running,
    visit: Callable[..., Any],
    artefacts: Path,
    other: str,
    label: str,
) -> None:
    name, cell = other.split("/")
    page = visit(f"#/compare/wave0/a/{other}/per-tick")
    page.wait_for_function(
        "label => document.querySelector('#apart-title').textContent === label", arg=label
    )
    extra = "" if name == "wave0" else f"&minus_stream={name}"
    answer = view(hourly, "wave0", f"view=per-tick&cell=a&minus={cell}{extra}&limit=240")
    data = page.evaluate(
        "evercount.comparison.apart.chart.data.map((column) => Array.from(column))"
    )
    assert data[1] == [span["high"][0] for span in answer["releases"]]
    last = answer["releases"][-1]
    assert rounded(last["values"][0]) in plain(page.inner_text("#apart-summary"))
    assert page.locator("#compare-legend li").count() == 2
    keep_picture(page, artefacts / f"compare-{name}.png", full_page=True)
    assert page.url.endswith(f"#/compare/wave0/a/{other}/per-tick")


def test_a_comparison_begins_with_something_to_see(
    hourly: Running, visit: Callable[..., Any]
) -> None:
    """A stream of one cell is compared with another one of the same ticks, in a view that has spans
    already."""
    start = (datetime.now(UTC) - timedelta(hours=1)).isoformat()
    one = {
        "query": "count",
        "budget": BUDGET,
        "public": True,
        "tick": "1m",
        "horizon": 5,
        "start": start,
    }
    for name in ("left-one", "right-one"):
        hourly.call("streams", {**one, "name": name})
        hourly.open(name)
    page = visit("#/compare/left-one")
    page.wait_for_function(
        "() => document.querySelector('#apart-title').textContent.includes('minus')"
    )
    assert page.inner_text("#apart-title") == "left-one: count minus right-one: count"
    assert page.input_value("#compare-view") == "per-tick"


@pytest.mark.soak
def test_a_phone_compares_without_sideways_scroll(
    hourly: Running, visit: Callable[..., Any], artefacts: Path
) -> None:
    page = visit(
        "#/compare/wave0/a/wave0/b",
        390,
        844,
        color_scheme="dark",
        device_scale_factor=2,
        is_mobile=True,
    )
    page.wait_for_selector("#apart-chart canvas")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    keep_picture(page, artefacts / "phone-compare-dark.png", full_page=True)


def test_a_chart_can_be_embedded_and_sends_no_token(
    hourly: Running, visit: Callable[..., Any], artefacts: Path
) -> None:
    page = visit("embed#/wave0/a/per-tick", 640, 420)
    page.wait_for_selector("#embed-chart canvas")
    page.wait_for_function(
        "() => document.querySelector('#embed-text').textContent.includes('95 % interval')"
    )
    assert page.inner_text("#embed-title") == "wave0: a"
    keep_picture(page, artefacts / "embed.png")
    answer = page.request.get(f"{hourly.address}/embed")
    assert "frame-ancestors *" in answer.headers["content-security-policy"]
    assert (
        "frame-ancestors 'none'"
        in page.request.get(f"{hourly.address}/").headers["content-security-policy"]
    )


def test_scheduled_nonnegative_top_and_single_streams(
    hourly: Running,
    visit: Callable[..., Any],
    artefacts: Path,
) -> None:
    one = {"query": "count", "budget": {"epsilon": 0.1, "delta": 1e-9}, "public": True}
    later = {"name": "later", "tick": "1h", "start": "2090-01-01T00:00:00Z"}
    hourly.call("streams", {**one, **later})
    hourly.call("streams", {**one, "name": "tidy", "postprocess": ["nonnegative"]})
    low = [hourly.close("tidy")["low"][0] for _ in range(5)]
    top = {"name": "top-k", "parameters": {"keys": [f"k{i}" for i in range(9)], "k": 3}}
    hourly.call("streams", {**one, "name": "top", "query": top})
    hourly.close("top", ["k4"] * 900)
    page = visit("#/stream/later")
    wait_state(page, "scheduled")
    assert page.inner_text("#connection") == "Scheduled"
    assert "Jan 1, 2090, 12:00 AM" in page.inner_text("#facts")
    keep_picture(page, artefacts / "scheduled.png")
    page.goto(f"{hourly.address}/#/stream/tidy")
    wait_state(page, "live")
    assert page.locator("#cells-card").is_hidden()  # one cell: no tiles and no search
    # differences of post-processed numbers have no known error
    assert page.locator("#span-card").is_hidden()
    assert page.evaluate("evercount.page.history.rows.map((row) => row.low[0])") == [
        max(0, end) for end in low
    ]
    assert min(low) < 0
    with page.expect_download() as told:  # files, link and frame are there without views, too
        page.click("#save-csv")
    assert told.value.suggested_filename == "tidy.running.csv"
    rows = list(csv.DictReader(Path(told.value.path()).read_text("utf-8").splitlines()))
    shown = [float(row["low"]) for row in rows]  # with the digits that its error allows
    assert shown == pytest.approx([max(0, end) for end in low], abs=1)
    assert page.locator("#copy-link").is_visible()
    assert page.locator("#compare-link").is_hidden()
    page.evaluate("() => { navigator.clipboard.writeText = () => Promise.reject(new Error()); }")
    page.click("#copy-embed")
    page.wait_for_function(
        "() => "
        "document.querySelector('#share-note').textContent.includes('embed#/tidy/count/running')"
    )
    page.goto(f"{hourly.address}/embed#/tidy/count/running")
    page.wait_for_function(
        "() => document.querySelector('#embed-text').textContent.startsWith('Running count')"
    )
    page.goto(f"{hourly.address}/#/stream/wave0/a")
    wait_view(page, "per-tick")
    assert page.locator("#span-card #save-csv").is_visible()
    page.goto(f"{hourly.address}/#/stream/top")
    page.wait_for_selector("#cells-title >> text=The 3 largest of 9 keys")
    assert page.locator(".tile").count() == 3
    assert page.locator(".tile-name").first.inner_text() == "k4"


@pytest.mark.parametrize("scheme", soak_except(["dark"], ["light", "dark"]))
def test_borders_of_controls_can_be_seen(visit: Callable[..., Any], scheme: str) -> None:
    page = visit(color_scheme=scheme)
    wait_state(page, "live")
    for selector in ("#find", "#span-view", "#save-csv"):
        pair = page.evaluate(
            "s => { const n = document.querySelector(s); const c = getComputedStyle(n);"
            " return [c.borderTopColor, getComputedStyle(n.closest('.card')).backgroundColor]; }",
            selector,
        )
        low, high = sorted(map(luminance, pair))
        assert (high + 0.05) / (low + 0.05) >= 3, (selector, pair)


def test_revised_hours_show_their_newest_number_and_what_is_not_final(
    service: Running, visit: Callable[..., Any], artefacts: Path
) -> None:
    start = datetime.now(UTC).replace(minute=0, second=0, microsecond=0) - timedelta(hours=7)
    service.call(
        "streams",
        {
            "name": "triangle",
            "query": "count",
            "budget": {"epsilon": 1.0, "delta": 0},
            "tick": "1h",
            "start": start.isoformat(),
            "horizon": 6,
            "late": "revise",
            "revise_for": 2,
            "public": True,
        },
    )
    service.call("streams/triangle/open", {})
    page = visit("#/stream/triangle")
    wait_state(page, "finished")
    rows = page.evaluate(
        "evercount.page.history.rows.map((row) => [row.tick, row.as_of, row.values[0], row.note ?? "
        "''])"
    )
    answer = view(service, "triangle", "view=per-tick")["releases"]
    assert [row[:3] for row in rows] == [
        [one["tick"], one["as_of"], one["values"][0]] for one in answer
    ]
    assert [bool(row[3]) for row in rows] == [False] * 4 + [True] * 2
    assert rows[-1][3] == "not final, revised 2 more times"
    keep_picture(page, artefacts / "views-revised.png", full_page=True)
