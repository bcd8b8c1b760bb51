"""Counting files: every format against plain Python, bad rows with their lines, users, late
rows."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pytest

from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.fields import Columns
from evercount.declarations.schedule import Schedule, microseconds, parse_instant
from evercount.engine.arrivals import Arrivals
from evercount.engine.close_ticks import TickEvents
from evercount.errors import InputError, ParameterError
from evercount.files.bad_rows import find_rejects, split_new, write_rejects
from evercount.files.count_rows import count
from evercount.files.event_sql import FRACTION, REASONS, placed
from evercount.files.source import connect, open_source
from evercount.privacy import Budget
from evercount.queries import Sum, build_query

pytest.importorskip("duckdb")
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

KEYS = ("north", "south", "süd, 'west'", "never seen")
CLOCK = Schedule.of("1h", "2026-01-01T00:00")


def declared(
    schedule: Schedule,
    time: str,
    query: str = "count",
    key: str | None = None,
    keys: tuple[str, ...] = (),
    unknown: str = "refuse",
    value: str | None = None,
    user: str | None = None,
    max_events: int = 1,
    late: Any = "drop",
    **ranged: float,
) -> StreamDeclaration:
    """A declaration of a table of events."""
    parameters: dict[str, Any] = (
        {"keys": list(keys), "unknown": unknown} if query == "histogram" else ranged
    )
    unit: dict[str, Any] = {} if user is None else {"unit": "user", "max_events": max_events}
    return StreamDeclaration(
        "events",
        build_query(query, parameters),
        Budget(1.0, 1e-6, **unit),
        columns=Columns(time, key, value, user),
        late=late,
    ).with_schedule(schedule)


HISTOGRAM = declared(CLOCK, "ts", "histogram", "region", KEYS)
FORMATS = ["csv", "csv.gz", "csv.zst", "jsonl", "jsonl.gz", "jsonl.zst", "parquet"]


def rows_of(number: int = 400, seed: int = 3) -> list[dict[str, Any]]:
    generator = np.random.default_rng(seed)
    seconds = generator.integers(0, 10 * 3600, number)
    return [
        {
            "ts": f"2026-01-01T{s // 3600:02d}:{s // 60 % 60:02d}:{s % 60:02d}",
            "region": KEYS[int(generator.integers(0, 3))],
            "user": f"u{int(generator.integers(0, 40))}",
            "score": float(generator.integers(-8, 9)) / 8,
            "note": 'a "quoted", text',
        }
        for s in seconds.tolist()
    ]


def write(folder: Path, rows: list[dict[str, Any]], form: str, delimiter: str = ",") -> str:
    path = folder / f"events.{form}"
    if form == "parquet":
        typed = [{**row, "ts": datetime.fromisoformat(row["ts"])} for row in rows]
        pq.write_table(pa.Table.from_pylist(typed), path)
        return str(path)
    text = io.StringIO(newline="")
    if form.startswith("csv"):
        writer = csv.DictWriter(text, list(rows[0]), delimiter=delimiter, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    else:
        text.write("".join(json.dumps(row) + "\n" for row in rows))
    data = text.getvalue().encode()
    if form.endswith(".zst"):
        data = pa.Codec("zstd").compress(data, asbytes=True)
    path.write_bytes(gzip.compress(data) if form.endswith(".gz") else data)
    return str(path)


def counted(
    path: str, spec: StreamDeclaration, scratch: Path, first: int = 1, stop: int = 11, **more: Any
) -> Arrivals:
    scratch.mkdir(exist_ok=True)
    (scratch / "input").unlink(missing_ok=True)
    return count((open_source(path, scratch),), spec, first, stop, scratch, **more)


def dense(counts: Arrivals, ticks: int, cells: int) -> np.ndarray:
    assert counts.totals.cells == cells
    return counts.totals.rows(1, ticks + 1)


def text_file(folder: Path, text: str, name: str = "events.csv") -> str:
    path = folder / name
    path.write_text(text, "utf-8")
    return str(path)


@pytest.mark.parametrize("form", FORMATS)
def test_histogram_of_every_format(tmp_path: Path, form: str) -> None:
    rows = rows_of()
    expected = np.zeros((10, 4), np.int64)
    for row in rows:
        expected[int(row["ts"][11:13]), KEYS.index(row["region"])] += 1
    got = counted(write(tmp_path, rows, form), HISTOGRAM, tmp_path / "scratch")
    assert got.bad == 0
    np.testing.assert_array_equal(dense(got, 10, 4), expected)
    # a key of the public list that no row has is a cell all the same
    assert expected[:, 3].sum() == 0


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_sum_rounds_as_the_query_does(tmp_path: Path, form: str) -> None:
    rows = rows_of()
    spec = declared(CLOCK, "ts", "sum", value="score", low=-1.0, high=1.0, grid=0.25)
    query = Sum(-1.0, 1.0, 0.25)  # scores are eighths, so that halves of a grid unit are rounded
    expected = np.zeros(10, np.int64)
    for row in rows:
        expected[int(row["ts"][11:13])] += query.encode(None, [row["score"]])[0][0]
    got = counted(write(tmp_path, rows, form), spec, tmp_path / "scratch")
    np.testing.assert_array_equal(dense(got, 10, 1)[:, 0], expected)


@pytest.mark.parametrize("form", ["csv.gz", "jsonl.zst", "parquet"])
def test_users_keep_their_first_events(tmp_path: Path, form: str) -> None:
    rows = rows_of()
    spec = declared(CLOCK, "ts", "histogram", "region", KEYS, user="user", max_events=3)
    order = sorted(range(len(rows)), key=lambda i: (rows[i]["ts"], i))
    seen: Counter[str] = Counter()
    expected = np.zeros((10, 4), np.int64)
    for i in order:
        row = rows[i]
        if seen[row["user"]] < 3:
            seen[row["user"]] += 1
            expected[int(row["ts"][11:13]), KEYS.index(row["region"])] += 1
    path = write(tmp_path, rows, form)
    got = counted(path, spec, tmp_path / "scratch")
    np.testing.assert_array_equal(dense(got, 10, 4), expected)
    assert dict(got.caps_used) == {user: (events, 0) for user, events in seen.items()}
    # in two runs, with what the first one has seen
    one = counted(path, spec, tmp_path / "scratch", 1, 5)
    two = counted(path, spec, tmp_path / "scratch", 5, 11, users=one.caps_used)
    np.testing.assert_array_equal(dense(one, 10, 4) + dense(two, 10, 4), expected)
    assert dict(two.caps_used) == dict(got.caps_used)


def test_a_cap_that_cuts_through_events_of_one_moment(tmp_path: Path) -> None:
    """Five rows of one user at one time, two of them count: the first two rows, whatever they
    say."""
    keys = ["south", "north", "north", "south", "north"]
    rows = [{"ts": "2026-01-01T01:00:00", "region": key, "user": "u"} for key in keys]
    spec = declared(CLOCK, "ts", "histogram", "region", KEYS, user="user", max_events=2)
    got = counted(write(tmp_path, rows, "csv"), spec, tmp_path / "s")
    assert got.totals.rows(2, 3).tolist() == [[1, 1, 0, 0]]
    assert dict(got.caps_used) == {"u": (2, 0)}


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_a_declared_order_counts_and_not_that_of_the_rows(tmp_path: Path, form: str) -> None:
    """Two of the events at one time count; where two have one order too, neither is first, so both
    are beyond."""
    events = [(5, "north"), (-3, "south"), (7, "north"), (5, KEYS[2])]
    rows = [
        {"ts": "2026-01-01T01:00:00", "region": key, "user": "u", "seq": order}
        for order, key in events
    ]
    plain = declared(CLOCK, "ts", "histogram", "region", KEYS, user="user", max_events=2)
    for most, kept in (
        (1, {"south"}),
        (2, {"south"}),
        (3, {"south", "north", KEYS[2]}),
        (4, {key for _, key in events}),
    ):
        budget = replace(plain.budget, max_events=most)
        spec = replace(
            plain, budget=budget, columns=Columns("ts", "region", user="user", order="seq")
        )
        got = counted(write(tmp_path, rows, form), spec, tmp_path / "s")
        expected = [int(key in kept) + int(key == "north" and most == 4) for key in KEYS]
        assert got.totals.rows(2, 3).tolist() == [expected]
        assert dict(got.caps_used) == {"u": (most, 0)}


def test_users_that_are_counted_come_in_the_declared_order(tmp_path: Path) -> None:
    events = [("ann", 5), ("bob", -3), ("ann", 7), ("cid", 5), ("bob", 4)]
    rows = [{"ts": "2026-01-01T01:00:00", "user": user, "seq": order} for user, order in events]
    path = write(tmp_path, rows, "jsonl")
    for order, expected in ((None, ["ann", "bob", "cid"]), ("seq", ["bob", "ann", "cid"])):
        query, columns = build_query("active-users", {}), Columns("ts", user="user", order=order)
        spec = StreamDeclaration("events", query, Budget(1.0, 1e-6), columns=columns).with_schedule(
            CLOCK
        )
        totals = counted(path, spec, tmp_path / "s").totals
        assert isinstance(totals, TickEvents)
        assert totals.ticks[1] == expected


def test_an_order_that_is_no_whole_number_is_bad(tmp_path: Path) -> None:
    rows = [
        {"ts": "2026-01-01T01:00:00", "user": "u", "seq": text}
        for text in ("1", "1.0", "", "x", "1" * 19)
    ]
    plain = declared(CLOCK, "ts", user="user", max_events=9)
    spec = replace(plain, columns=Columns("ts", user="user", order="seq"))
    path = write(tmp_path, rows, "csv")
    got = counted(path, spec, tmp_path / "s")
    assert (got.bad, int(got.totals.total.sum())) == (4, 1)


def test_neighbouring_files(tmp_path: Path) -> None:
    """Without one row: one cell of one tick differs by one. Without one user: at most max_events
    units differ."""
    rows = rows_of(120)
    whole = dense(counted(write(tmp_path, rows, "csv"), HISTOGRAM, tmp_path / "s"), 10, 4)
    for i in range(0, 120, 17):
        less = dense(
            counted(write(tmp_path, rows[:i] + rows[i + 1 :], "csv"), HISTOGRAM, tmp_path / "s"),
            10,
            4,
        )
        assert sorted((whole - less).ravel().tolist())[-2:] == [0, 1]
        assert (whole - less).min() == 0
    spec = declared(CLOCK, "ts", "histogram", "region", KEYS, user="user", max_events=2)
    whole = dense(counted(write(tmp_path, rows, "csv"), spec, tmp_path / "s"), 10, 4)
    busiest = Counter(row["user"] for row in rows).most_common(4)
    assert busiest[-1][1] > 2
    for user, _ in busiest:
        others = [row for row in rows if row["user"] != user]
        less = dense(counted(write(tmp_path, others, "csv"), spec, tmp_path / "s"), 10, 4)
        assert (whole - less).min() >= 0
        assert (whole - less).sum() == 2


def test_ties_of_a_user_go_by_the_order_of_rows(tmp_path: Path) -> None:
    rows = "".join(f"2026-01-01T00:00:00,{KEYS[i % 2]},u{i // 2}\n" for i in range(4000))
    path = text_file(tmp_path, "ts,region,user\n" + rows)
    spec = declared(CLOCK, "ts", "histogram", "region", KEYS, user="user", max_events=1)
    np.testing.assert_array_equal(
        counted(path, spec, tmp_path / "s").totals.rows(1, 2)[0], [2000, 0, 0, 0]
    )


def test_row_numbers_follow_the_file_when_it_is_read_in_parallel(tmp_path: Path) -> None:
    """A file of many buffers: the bad rows are found on their lines."""
    wanted = {7, 150_001, 300_000, 450_123, 599_999}
    lines = [
        f"2026-01-01T00:00:00,{'stranger' if n in wanted else 'north'},{'x' * 60}"
        for n in range(2, 600_002)
    ]
    path = text_file(tmp_path, "ts,region,note\n" + "\n".join(lines))
    scratch = tmp_path / "s"
    assert counted(path, HISTOGRAM, scratch).bad == len(wanted)
    source = open_source(path, _fresh(tmp_path))
    found = list(find_rejects((source,), HISTOGRAM, scratch))
    assert {reject.line for reject in found} == wanted
    assert all(reject.exact for reject in found)


def _fresh(folder: Path) -> Path:
    path = folder / f"fresh{len(list(folder.iterdir()))}"
    path.mkdir()
    return path


TIMES = [
    ("2026-01-01T01:30:00", 1),
    ("2026-01-01 01:30:00", 1),
    ("2026-01-01T01:30", 1),
    ("2026-01-01", 0),
    ("2026-01-01T01:30:00.250", 1),
    ("2026-01-01T01:30:00Z", 1),
    ("2026-01-01T01:30:00+01:00", 0),
    ("2026-01-01T01:30-02:00", 3),
    ("2026-01-01T01:30+01", 0),  # as long as a time with seconds
    ("2026-01-01T01:30:00.999999-0330", 5),
    ("1767231000", 1),  # seconds since 1970
    ("1767231000.25", 1),
    ("2026-01-01 01:30:00 UTC", 1),
    ("2026-01-01T23:30:00", None),  # after the last tick of the run: an event, but not now
    ("9999-12-31T00:00:00", None),
    ("2025-12-31T23:59:59", 4),
    ("", 1),
    ("soon", 2),
    ("infinity", 2),
    ("epoch", 2),
    ("2026-02-30T00:00:00", 2),
    ("1767225", 2),
    ("1767225600000", 2),
    ("12/31/2026", 2),
    ("2026-01-01T01:30:00 Europe/Vienna", 2),
    ("2026-01-01T25:00:00", 2),
]


def test_one_rule_for_times(tmp_path: Path) -> None:
    """Texts that are almost times: the file interface takes those of `parse_instant`, as the same
    instants."""
    generator = np.random.default_rng(11)
    letters = [*"0123456789-:.TZ+ U/\t", "24", "23:59", "+24", "00"]
    seeds = [
        *(text for text, _ in TIMES if text),
        "2026-01-01T24:00:00",
        "2026-01-01T24:00:00Z",
        "2026-01-01 24:00 UTC",
        "2026-01-01T23:59:60",
        "2026-01-01T00:00:00+24:00",
        "2026-01-01T00:00:00+01:60",
        "12026-1-01T00:00:00",
        "2026-1-1T00:00:00  ",
        " 2026-1-01T00:00:00",
        "2026-01-01T00:00:1 ",
        "2026-1-01  00:00:00",
        "2026-01-1  00:00:00",
        "2026-1-01  00:00:00Z",
        "20260101T000000Z",
        "2026-W01-1",
        "2026-01-01T01",
        "2026-01-01x01:00",
        "2026-01-01T01:30:00,5",
        "2026-01-01T01:30:00.1234569",
        "0000-01-01T00:00:00",
    ]
    texts = list(seeds)
    for _ in range(6000):
        text = list(seeds[int(generator.integers(len(seeds)))])
        for _ in range(int(generator.integers(1, 3))):
            at = int(generator.integers(len(text)))
            text[at : at + int(generator.integers(0, 2))] = letters[
                int(generator.integers(len(letters)))
            ]
        texts.append("".join(text))
    texts = list(dict.fromkeys(texts))
    # parameters may stand in spaces, columns may not
    spaced = [text for text in texts if text != text.strip()]
    assert sum(len(text) in (19, 20) for text in spaced) > 20
    clock = Schedule.of("1h", "1000-01-05")
    expected = []
    for text in set(texts).difference(spaced):
        with contextlib.suppress(ParameterError):
            expected.append((text, parse_instant(text, UTC, "time")))
    expected = [(text, us) for text, us in expected if us >= clock.begin]
    assert len(expected) > 200
    path = text_file(tmp_path, "ts\n" + "".join(f'"{text}"\n' for text in texts))
    scratch = tmp_path / "s"
    scratch.mkdir()
    with connect(scratch) as connection:
        rows = placed((open_source(path, scratch),), declared(clock, "ts"), 1, 100_000_000, "t")
        got = connection.execute(f"SELECT t, us FROM ({rows}) WHERE place > 0").fetchall()
    assert sorted(got) == sorted(expected)


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_forms_of_time(tmp_path: Path, form: str) -> None:
    """Legal ones by their tick, each with a key of its own; the last ten (and one before the start)
    are bad."""
    if form == "csv":
        path = text_file(
            tmp_path, "ts,key\n" + "".join(f'"{text}",{i}\n' for i, (text, _) in enumerate(TIMES))
        )
    else:
        lines = [
            json.dumps({"ts": text or None, "key": str(i)}) for i, (text, _) in enumerate(TIMES)
        ]
        path = text_file(tmp_path, "\n".join(lines) + "\n", "events.jsonl")
    spec = declared(CLOCK, "ts", "histogram", "key", tuple(map(str, range(len(TIMES)))))
    got = counted(path, spec, tmp_path / "s")
    assert got.bad == len(TIMES[15:])
    first = 2 if form == "csv" else 1
    rejects = find_rejects((open_source(path, _fresh(tmp_path)),), spec, tmp_path / "s")
    assert [reject.line - first for reject in rejects] == [*range(15, len(TIMES))]
    expected = np.zeros((10, len(TIMES)), np.int64)
    for i, (_, tick) in enumerate(TIMES[:15]):
        if tick is not None:
            expected[tick, i] = 1
    np.testing.assert_array_equal(dense(got, 10, len(TIMES)), expected)


@pytest.mark.parametrize("form", ["csv", "jsonl", "parquet"])
def test_wall_times_of_a_zone(tmp_path: Path, form: str) -> None:
    """Vienna, the day of each change: wall times, and the same instants with their offsets."""
    zone = ZoneInfo("Europe/Vienna")
    clock = Schedule.of("1h", "2026-03-29", "Europe/Vienna")
    walls = [
        "2026-03-29T01:59:59",
        "2026-03-29T03:00:00",
        "2026-10-25T02:30:00",
        "2026-10-25T03:30:00",
    ]
    ticks = [
        clock.tick_of(microseconds(datetime.fromisoformat(w).replace(tzinfo=zone))) for w in walls
    ]
    assert ticks[:2] == [2, 3]
    spec = declared(clock, "ts")
    path = write(tmp_path, [{"ts": wall} for wall in walls], form)
    got = counted(path, spec, tmp_path / "s", 1, 10_001)
    assert got.totals.tick.tolist() == ticks
    missing = write(tmp_path, [{"ts": "2026-03-29T02:30:00"}], form)
    assert counted(missing, spec, tmp_path / "s", 1, 10_001).bad == 1
    if form != "parquet":
        aware = write(tmp_path, [{"ts": "2026-10-25T02:30:00+01:00"}], form)
        assert counted(aware, spec, tmp_path / "s", 1, 10_001).totals.tick.tolist() == [
            ticks[2] + 1
        ]


def test_local_days_of_a_run_that_ends_at_a_change_of_the_clock(tmp_path: Path) -> None:
    """Vienna, days of 23 and 25 hours as the last, a middle and the first tick of a run, minute by
    minute around them.

    A run looks up the clock changes before its end alone; a schedule in Python knows all of them.
    """
    clock = Schedule.of("1d", "2026-03-27", "Europe/Vienna")
    spring, autumn = 3, 213  # the ticks of the two days
    hour, minute = 3600 * 10**6, 60 * 10**6
    edges = [
        clock.start_of(tick)
        for day in (spring, autumn)
        for tick in (day - 1, day, day + 1, day + 2)
    ]
    instants = [
        edge + shift
        for edge in edges
        for shift in (-hour - minute, -minute, 0, minute, hour + minute)
    ]
    path = text_file(tmp_path, "ts\n" + "".join(f"{clock.show(instant)}\n" for instant in instants))
    runs = [
        (day + first, day + stop)
        for day in (spring, autumn)
        for first, stop in ((-2, 1), (-1, 2), (0, 1), (1, 2))
    ]
    for first, stop in [*runs, (1, autumn + 1)]:
        got = counted(path, declared(clock, "ts"), tmp_path / "s", first, stop).totals
        expected = Counter(tick for tick in map(clock.tick_of, instants) if first <= tick < stop)
        assert dict(zip(got.tick.tolist(), got.total.tolist(), strict=True)) == expected


def test_aware_parquet_and_types_that_are_no_time(tmp_path: Path) -> None:
    zone = ZoneInfo("America/New_York")
    moment = datetime(2025, 12, 31, 20, 30, tzinfo=zone)
    pq.write_table(
        pa.table({"ts": pa.array([moment], pa.timestamp("ns", "America/New_York"))}),
        tmp_path / "a.parquet",
    )
    spec = declared(Schedule.of("1h", "2026-01-01", "UTC"), "ts")
    assert counted(str(tmp_path / "a.parquet"), spec, tmp_path / "s").totals.tick.tolist() == [2]
    pq.write_table(pa.table({"ts": [1767225600]}), tmp_path / "b.parquet")
    assert counted(str(tmp_path / "b.parquet"), spec, tmp_path / "s").totals.tick.tolist() == [1]
    pq.write_table(pa.table({"ts": [True]}), tmp_path / "c.parquet")
    with pytest.raises(InputError, match="BOOLEAN"):
        counted(str(tmp_path / "c.parquet"), spec, tmp_path / "s")


def test_columns_named_like_the_program_s_own(tmp_path: Path) -> None:
    names = ["t", "k", "n", "us", "cell", "place", "TS", "ts", "who", "line", "f"]
    header, row = (
        ",".join(names),
        ",".join("2026-01-01T00:00:00" if n == "ts" else "north" for n in names),
    )
    spec = declared(CLOCK, "ts", "histogram", "k", KEYS, user="n", max_events=2)
    got = counted(text_file(tmp_path, f"{header}\n{row}\n"), spec, tmp_path / "s")
    assert (got.bad, got.totals.total.tolist()) == (0, [1])
    table = {n: ["2026-01-01T00:00:00" if n == "ts" else "north"] for n in names if n != "TS"}
    pq.write_table(pa.table(table), tmp_path / "x.parquet")
    assert counted(str(tmp_path / "x.parquet"), spec, tmp_path / "s").totals.total.tolist() == [1]


def test_bad_rows_of_a_csv(tmp_path: Path) -> None:
    text = (
        "ts,region\n"
        "2026-01-01T00:00:00,north\n"
        "never,north\n"
        "2026-01-01T00:00:00,north,more\n"
        "2026-01-01T00:00:00,stranger\n"
        "2026-01-01T00:00:00\n"
        "2025-01-01T00:00:00,north\n"
        ",north\n"
        "2026-01-01T00:00:00,\n"
        "2026-01-01T00:00:00,\"süd, 'west'\"\n"
    )
    path, scratch = text_file(tmp_path, text), tmp_path / "s"
    got = counted(path, HISTOGRAM, scratch)
    assert (got.bad, got.totals.total.tolist()) == (7, [1, 1])
    source = open_source(path, _fresh(tmp_path))
    found = {reject.line: reject for reject in find_rejects((source,), HISTOGRAM, scratch)}
    assert sorted(found) == [3, 4, 5, 6, 7, 8, 9]
    assert "ISO 8601" in found[3].reason
    assert "Columns" in found[4].reason
    assert "list of keys" in found[5].reason
    assert "start" in found[7].reason
    assert found[8].reason == "no time"
    assert found[5].text == "2026-01-01T00:00:00,stranger"
    write_rejects(
        tmp_path / "rejects.csv", find_rejects((source,), HISTOGRAM, scratch), several=False
    )
    assert (tmp_path / "rejects.csv").stat().st_mode & 0o777 == 0o600
    with (tmp_path / "rejects.csv").open(newline="") as file:
        assert {int(row["line"]) for row in csv.DictReader(file)} == set(found)


def test_bad_rows_of_a_jsonl(tmp_path: Path) -> None:
    good = '{"ts": "2026-01-01T00:00:00", "region": "north"}'
    lines = [
        good,
        "",
        '{"ts": "2026-01-',
        f"{good} x",
        "[1, 2]",
        '{"region": "north"}',
        good.replace("north", "x"),
        good,
    ]
    path, scratch = text_file(tmp_path, "\n".join(lines), "e.jsonl"), tmp_path / "s"
    got = counted(path, HISTOGRAM, scratch)
    assert (got.bad, got.totals.total.tolist()) == (5, [2])
    found = list(find_rejects((open_source(path, _fresh(tmp_path)),), HISTOGRAM, scratch))
    assert [reject.line for reject in found] == [3, 4, 5, 6, 7]
    assert found[0].text == lines[2]


@pytest.mark.parametrize(
    "bad",
    [
        '{"ts": "2026-01-01T00:00:00", "ts": "2026-01-01T05:00:00", "user": "u", "v": 1}',
        '{"ts": "2026-01-01T00:00:00", "user": "u", "\\u0075ser": "u", "v": 1}',
        '{"ts": "2026-01-01T00:00:00", "user": "u", "v": 1, "note": 1, "note": 2}',
        '{"ts": "2026-01-01T00:00:00", "user": "u", "v": 1',
        "nonsense",
    ],
)
def test_a_field_twice_or_no_json_is_a_bad_row(tmp_path: Path, bad: str) -> None:
    """Also where the types of fields are looked at, which DuckDB cannot do in what is not JSON."""
    good = '{"ts": "2026-01-01T00:00:00", "user": "u", "v": 1, "note": {"a": 1}}'
    path = text_file(tmp_path, f"{good}\n{bad}\n{good}\n", "e.jsonl")
    capped = declared(CLOCK, "ts", user="user", max_events=9)
    summed = declared(CLOCK, "ts", "sum", value="v", low=0.0, high=1.0, grid=0.5)
    for spec in (declared(CLOCK, "ts"), capped, summed):
        got = counted(path, spec, tmp_path / "s")
        assert (got.bad, got.totals.rows(1, 2).sum()) == (1, 4 if spec is summed else 2)
    (reject,) = find_rejects((open_source(path, _fresh(tmp_path)),), summed, tmp_path / "s")
    assert (reject.line, reject.text) == (2, bad)
    assert "repeats a field" in reject.reason


def test_values_out_of_range_are_bad(tmp_path: Path) -> None:
    values = ["0", "1", "1.0001", "-0.1", "nan", "inf", "", "x", "0.5"]
    text = "ts,v\n" + "".join(f"2026-01-01T00:00:00,{value}\n" for value in values)
    spec = declared(CLOCK, "ts", "sum", value="v", low=0.0, high=1.0, grid=0.5)
    got = counted(text_file(tmp_path, text), spec, tmp_path / "s")
    assert (got.bad, got.totals.total.tolist()) == (6, [3])


@pytest.mark.parametrize("query", ["sum", "average"])
def test_fractions_are_bad_where_the_grid_is_one(tmp_path: Path, query: str) -> None:
    """The reason says what to do. Quantiles whose bins have width 1 take any number."""
    values = ["0", "3", "3.0", "5e0", "0.3", "2.999999999", "5.5"]
    path = text_file(
        tmp_path, "ts,v\n" + "".join(f"2026-01-01T00:00:00,{value}\n" for value in values)
    )
    spec = declared(CLOCK, "ts", query, value="v", low=0.0, high=5.0)
    got = counted(path, spec, tmp_path / "s")
    assert (got.bad, got.totals.total.tolist()) == (3, [11])
    rejects = list(find_rejects((open_source(path, _fresh(tmp_path)),), spec, tmp_path / "s"))
    assert [one.line for one in rejects] == [6, 7, 8]
    assert [one.reason for one in rejects[1:]] == [REASONS[FRACTION], REASONS[7]]
    assert "such as grid=0.01" in rejects[0].reason
    quantiles = declared(CLOCK, "ts", "quantiles", value="v", low=0.0, high=8.0, bins=8)
    assert counted(path, quantiles, tmp_path / "s").bad == 0


def test_unknown_keys_have_a_cell_of_their_own(tmp_path: Path) -> None:
    spec = declared(CLOCK, "ts", "histogram", "region", KEYS, unknown="other")
    text = (
        "ts,region\n2026-01-01T00:00:00,stranger\n2026-01-01T00:00:00,\n2026-01-01T00:00:00,south\n"
    )
    got = counted(text_file(tmp_path, text), spec, tmp_path / "s")
    np.testing.assert_array_equal(got.totals.rows(1, 2)[0], [0, 1, 0, 0, 2])
    assert got.bad == 0


def test_a_quote_that_is_never_closed_cannot_be_skipped(tmp_path: Path) -> None:
    text = 'ts,region\n2026-01-01T00:00:00,"north\n' + "2026-01-01T00:00:00,north\n" * 5
    with pytest.raises(InputError, match="never closed"):
        counted(text_file(tmp_path, text), HISTOGRAM, tmp_path / "s")


def test_a_very_long_line_is_called_long(tmp_path: Path) -> None:
    text = f"ts,region\n2026-01-01T00:00:00,{'x' * 3_000_000}\n2026-01-01T00:00:00,north\n"
    with pytest.raises(InputError, match="about line 2 a row is longer than 2,000,000 bytes"):
        counted(text_file(tmp_path, text), HISTOGRAM, tmp_path / "s")
    long = json.dumps({"ts": "2026-01-01T00:00:00", "region": "x" * 3_000_000})
    path = text_file(
        tmp_path, long + '\n{"ts": "2026-01-01T00:00:00", "region": "north"}\n', "e.jsonl"
    )
    got = counted(path, HISTOGRAM, tmp_path / "s")
    assert (got.bad, got.totals.total.tolist()) == (1, [1])


def test_line_ends_inside_quotes(tmp_path: Path) -> None:
    text = 'ts,note,region\n2026-01-01T00:00:00,"two\nlines",north\n2026-01-01T00:00:00,,stranger\n'
    path = text_file(tmp_path, text)
    assert counted(path, HISTOGRAM, tmp_path / "s").totals.total.tolist() == [1]
    (found,) = find_rejects((open_source(path, _fresh(tmp_path)),), HISTOGRAM, tmp_path / "s")
    assert not found.exact
    assert str(found).startswith("about line")


def test_other_delimiters_byte_order_marks_and_line_ends(tmp_path: Path) -> None:
    path = tmp_path / "weird [1]*.csv"
    path.write_bytes("\ufeffts;region\r\n2026-01-01T00:00:00;north\r\n".encode())
    source = open_source(str(path), _fresh(tmp_path), ";")
    assert source.columns == ("ts", "region")
    assert count((source,), HISTOGRAM, 1, 2, tmp_path).totals.total.tolist() == [1]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\n\nts,region\n", "header"),
        (b"when,region\n2026-01-01,a\n", r"no column 'ts'; its columns: 'when', 'region'"),
        (b"ts,ts,region\n", "more than one column 'ts'"),
        (b'{"when": 1}\n', "no column 'ts'"),
        (b"PAR1 and nothing else", "Parquet"),
        (b"\x1f\x8b and nothing else", "gzip"),
        (b"\x28\xb5\x2f\xfd zstandard", "damaged zstd"),
        (b"BZh91AY", "gzip or zstd"),
        (b"\xff\xfet\x00s\x00\n", "UTF-8"),
    ],
)
def test_files_that_are_none(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "bad"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        counted(str(path), HISTOGRAM, tmp_path / "s")


@pytest.mark.parametrize("place", [-8, -4, 120])
def test_gzip_with_another_checksum_or_length_is_damaged(tmp_path: Path, place: int) -> None:
    """One wrong byte in the checksum, in the length, or in bytes that are stored as they are (good
    rows)."""
    rows = "ts,region\n" + "2026-01-01T00:00:00Z,a\n" * 20
    packed = bytearray(gzip.compress(rows.encode(), compresslevel=0, mtime=0))
    path = tmp_path / "events.csv.gz"
    path.write_bytes(packed)
    assert open_source(str(path), _fresh(tmp_path)).columns == ("ts", "region")
    packed[place] ^= 1
    path.write_bytes(packed)
    with pytest.raises(InputError, match=r"events.csv.gz is a damaged gzip file"):
        open_source(str(path), _fresh(tmp_path))


def test_places_that_are_no_file(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="directory"):
        open_source(str(tmp_path), _fresh(tmp_path))
    with pytest.raises(InputError, match="No such file"):
        open_source(str(tmp_path / "absent.csv"), _fresh(tmp_path))
    with pytest.raises(ParameterError, match="delimiter"):
        open_source(str(tmp_path), _fresh(tmp_path), "ab")


def test_bytes_that_are_no_text_are_bad_rows(tmp_path: Path) -> None:
    path = tmp_path / "latin.csv"
    path.write_bytes(
        "ts,region\n2026-01-01T00:00:00,süd\n2026-01-01T00:00:00,north\n".encode("latin-1")
    )
    got = counted(str(path), HISTOGRAM, tmp_path / "s")
    assert (got.bad, got.totals.total.tolist()) == (1, [1])


def test_late_rows_go_to_the_first_open_tick(tmp_path: Path) -> None:
    before = "ts,region,user\n2026-01-01T00:00:00,north,a\n2026-01-01T03:00:00,north,a\n"
    after = (
        "2026-01-01T00:30:00,south,a\n2026-01-01T02:30:00,south,b\n2026-01-01T08:00:00,south,b\n"
    )
    path = Path(text_file(tmp_path, before))
    *_, known = split_new([open_source(str(path), _fresh(tmp_path))], _fresh(tmp_path), None)
    path.write_text(before + after)
    whole, tail, _ = split_new([open_source(str(path), _fresh(tmp_path))], _fresh(tmp_path), known)
    got = count(whole, HISTOGRAM, 3, 5, tmp_path, late=tail)
    np.testing.assert_array_equal(dense(got, 5, 4)[2:4], [[0, 2, 0, 0], [1, 0, 0, 0]])
    # the late row counts as the event of its user, after those that were counted before
    spec = declared(
        CLOCK, "ts", "histogram", "region", KEYS, user="user", max_events=2, late="next"
    )
    got = count(whole, spec, 3, 5, tmp_path, late=tail, users={"a": (1, 0)})
    np.testing.assert_array_equal(dense(got, 5, 4)[2:4], [[0, 2, 0, 0], [0, 0, 0, 0]])
    assert dict(got.caps_used) == {"a": (2, 0), "b": (1, 0)}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"query": "histogram", "keys": ("a",)}, "needs the column `key`"),
        ({"query": "sum"}, "needs the column `value`"),
        ({"query": "median"}, "unknown query"),
        ({"late": "never"}, "late"),
        ({"query": "sum", "value": "v", "low": 0.0, "high": 1e300, "grid": 1e-3}, "2\\^20"),
        ({"query": "histogram", "key": "k", "keys": ("a", "a")}, "distinct"),
    ],
)
def test_specs_that_are_none(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        declared(CLOCK, "ts", **changes)
