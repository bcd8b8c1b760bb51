"""Another version of the time zone data between two runs of `evercount release`."""

from __future__ import annotations

import zoneinfo
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.schedule import UTC, parse_instant
from evercount.errors import StoreError
from evercount.files.release_job import Job, Outcome
from evercount.files.release_run import release_file

Use = Callable[[str], None]


@pytest.fixture
def use(tmp_path: Path) -> Iterator[Use]:
    """Gives Europe/London the rules of another zone, by real files of the time zone database."""

    def change(rules: str) -> None:
        copy = tmp_path / "zones" / rules.replace("/", "-") / "Europe" / "London"
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(files("tzdata").joinpath("zoneinfo", *rules.split("/")).read_bytes())
        zoneinfo.reset_tzpath(to=[str(copy.parent.parent)])
        zoneinfo.ZoneInfo.clear_cache()

    yield change
    zoneinfo.reset_tzpath()
    zoneinfo.ZoneInfo.clear_cache()


def release(folder: Path, tick: str, now: str, start: str = "2026-03-28T00:00Z") -> Outcome:
    declaration = StreamDeclaration.from_dict(
        {
            "name": "x",
            "query": "count",
            "budget": {"epsilon": 1.0, "delta": 1e-9},
            "tick": tick,
            "zone": "Europe/London",
            "start": start,
            "horizon": 90,
            "columns": {"time": "t"},
        }
    )
    job = Job(
        str(folder / "events.csv"),
        declaration,
        str(folder / "out.csv"),
        parse_instant(now, UTC, "now"),
    )
    return release_file(job)


@pytest.mark.parametrize(
    ("tick", "row", "rules", "later_rules"),
    [
        # the end of a closed day moves back
        ("1d", "2026-03-29T23:30:00Z", "Africa/Abidjan", "Europe/London"),
        # the instant of a counted row moves ahead
        ("24h", "2026-03-30T00:30:00", "Europe/London", "Africa/Abidjan"),
    ],
)
def test_other_rules_of_the_zone_count_no_row_twice(
    tmp_path: Path, use: Use, tick: str, row: str, rules: str, later_rules: str
) -> None:
    (tmp_path / "events.csv").write_text("t\n" + f"{row}\n" * 1000)
    use(rules)
    assert release(tmp_path, tick, "2026-03-30T12:00Z").last == 2
    published = (tmp_path / "out.csv").read_text()
    use(later_rules)
    with pytest.raises(StoreError, match="rules of the time zone Europe/London"):
        release(tmp_path, tick, "2026-03-31T12:00Z")
    assert (tmp_path / "out.csv").read_text() == published
    use(rules)
    assert release(tmp_path, tick, "2026-03-31T12:00Z").last == 3


def test_rules_of_later_days_may_change(tmp_path: Path, use: Use) -> None:
    (tmp_path / "events.csv").write_text("t\n2026-03-28T12:00:00Z\n")
    use("Africa/Abidjan")
    assert release(tmp_path, "1d", "2026-03-29T00:30Z").last == 1
    use("Europe/London")
    assert release(tmp_path, "1d", "2026-03-31T12:00Z").last == 3


def test_a_start_with_microseconds_is_kept(tmp_path: Path) -> None:
    (tmp_path / "events.csv").write_text("t\n2026-03-28T12:00:00Z\n")
    for day, last in ((29, 1), (30, 2)):
        assert (
            release(tmp_path, "24h", f"2026-03-{day}T12:00Z", "2026-03-28T00:00:00.000123Z").last
            == last
        )
