"""A part of a week is never published as a week, whichever way a stream is read: files, store,
service, frames.

Ten events a day and key from a Wednesday on; a key that joins on a Thursday; a renewal on a Friday.
So each week has seventy events of each key, and whatever shows less shows a part.
"""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from evercount import release
from served_service import HEADERS, served

pytest.importorskip("duckdb")

WEEK = 70.0
START, HORIZON = datetime(2026, 1, 7, tzinfo=UTC), 30
JOINED, RENEWED = datetime(2026, 1, 15, tzinfo=UTC), START + timedelta(days=HORIZON)
RUNS: dict[str, dict[str, Any]] = {
    "2026-01-10": {},
    "2026-01-15": {},
    "2026-01-20": {"add_keys": ["b"]},
    "2026-02-10": {},
    "2026-02-24": {},
}
OPTIONS: dict[str, Any] = {
    "time": "ts",
    "every": "1d",
    "zone": "UTC",
    "start": "2026-01-07",
    "epsilon": 1000.0,
    "key": "region",
    "keys": ["a"],
    "views": ["per-week", "per-tick", "last-7"],
}
MONDAYS = {"first": ["01-12", "01-19", "01-26"], "second": ["02-09", "02-16"]}
"""The whole weeks of the first stream and of its successor; the first week of the new key is that
of January 19."""

pytestmark = pytest.mark.filterwarnings("ignore:epsilon=1000")


def write_events(until: str) -> None:
    """All events before a day, as a file that grows."""
    lines = ["ts,region"]
    day, end = START, datetime.fromisoformat(f"{until}T00:00+00:00")
    while day < end:
        for region in ("a", "b") if day >= JOINED else ("a",):
            lines += [f"{day.date()}T09:00Z,{region}"] * 10
        day += timedelta(days=1)
    Path("events.csv").write_text("\n".join(lines) + "\n")


def run_all(**more: Any) -> Any:
    table = None
    for now, options in RUNS.items():
        write_events(now)
        table = release(
            "events.csv",
            now=now,
            horizon=HORIZON,
            renew=True,
            out="w.csv",
            **OPTIONS,
            **options,
            **more,
        )
    return table


def rows_of(path: str) -> list[tuple[str, str, float]]:
    return rows_in(Path(path).read_text())


def rows_in(text: str) -> list[tuple[str, str, float]]:
    return [
        (row["start"][5:10], row["cell"], float(row["value"]))
        for row in csv.DictReader(io.StringIO(text))
    ]


def weeks_of(number: str) -> list[tuple[str, str, float]]:
    rows = [(day, cell, WEEK) for day in MONDAYS[number] for cell in "ab"]
    return [row for row in rows if row[:2] != ("01-12", "b")]


def last_days(begin: datetime, days: int) -> list[tuple[str, str, float]]:
    """The rows of last-7 of a stream that has seen so many days."""
    rows = []
    for number in range(days - 6):
        first = begin + timedelta(days=number)
        rows += [(f"{first:%m-%d}", cell, WEEK) for cell in "ab" if cell == "a" or first >= JOINED]
    return rows


@pytest.mark.parametrize("home", [{}, {"db": "s.db", "name": "w"}], ids=["state file", "store"])
def test_files_and_answers_show_whole_weeks_only(
    home: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    table = run_all(**home)
    assert rows_of("w.1.csv") == weeks_of("first")
    assert rows_of("w.csv") == weeks_of("second")
    assert rows_of("w.1.last-7.csv") == last_days(START, HORIZON)
    assert rows_of("w.last-7.csv") == last_days(RENEWED, 18)
    assert {value for _, _, value in rows_of("w.1.per-tick.csv")} == {10.0}
    assert [(f"{row.start:%m-%d}", row.cell, row.value) for row in table] == weeks_of("second")
    frame = table.to_pandas()
    assert frame["value"].tolist() == [WEEK] * 4
    if home:
        check_service()


def check_service() -> None:
    from evercount.service.runtime import Service
    from evercount.store.writer import WatchedStore

    service = Service(WatchedStore("s.db"), admin=HEADERS["Authorization"].removeprefix("Bearer "))
    with served(service) as client:
        client.headers.update(HEADERS)
        for name, number, days in (
            ("w", "first", last_days(START, 30)),
            ("w-2", "second", last_days(RENEWED, 18)),
        ):
            address = f"/v1/streams/{name}/releases"
            assert rows_in(client.get(f"{address}.csv").text) == weeks_of(number)
            assert rows_in(client.get(f"{address}.csv?view=per-week").text) == weeks_of(number)
            assert rows_in(client.get(f"{address}.csv?view=last-7").text) == days
            for path in (address, f"{address}?view=per-week&limit=100"):
                answer = client.get(path).json()
                found = [
                    (span["start"][5:10], label, value)
                    for span in answer["releases"]
                    for label, value in zip("ab", span["values"], strict=False)
                    if value is not None
                ]
                assert found == weeks_of(number), path
            one = client.get(f"{address}?view=per-week&limit=1&cell=a").json()["releases"]
            assert [span["start"][5:10] for span in one] == MONDAYS[number][-1:]
        first = client.get("/v1/streams/w/releases?view=per-week&cell=b").json()["releases"][0]
        parts = ("values", "std", "low", "high")
        assert json.dumps([first[part] for part in parts]) == "[[null], [null], [null], [null]]"


def test_frames_show_whole_weeks_only() -> None:
    pd = pytest.importorskip("pandas")
    days = [START + timedelta(days=day, hours=9) for day in range(20) for _ in range(10)]
    frame = pd.DataFrame({"ts": days, "region": "a"})
    table = release(frame, now="2026-01-27", **OPTIONS)
    assert [(f"{row.start:%m-%d}", row.value) for row in table] == [
        ("01-12", WEEK),
        ("01-19", WEEK),
    ]
    assert table.views["last-7"].to_pandas()["value"].tolist() == [WEEK] * 14


def test_a_stream_without_a_whole_week_is_warned_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_events("2026-01-14")
    with pytest.warns(UserWarning, match="view 'per-week' will never have a number"):
        release("events.csv", now="2026-01-15", horizon=7, **OPTIONS)
