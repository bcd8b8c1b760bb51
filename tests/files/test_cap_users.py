"""The caps per user and period in SQL, with and without a declared order, against plain Python."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import datetime
from functools import cache
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple

import numpy as np
import pytest

from evercount.declarations.declaration import StreamDeclaration
from evercount.engine.close_ticks import TickTotals
from evercount.engine.user_counting import UserCaps
from evercount.errors import InputError
from evercount.files import cap_users, event_parts
from evercount.files.cap_users import UsedBefore, UserRule
from evercount.files.count_rows import count
from evercount.files.release_job import Job
from evercount.files.release_run import release_file
from evercount.files.source import connect, open_source
from evercount.queries import Count
from evercount.queries.user_cap import NO_USE, Caps, Used, cap_per_user
from soak_cases import soak_except
from state_reading import read_state

pa = pytest.importorskip("pyarrow")


class Event(NamedTuple):
    """One row: its number, and where it is."""

    row: int
    tick: int
    who: str
    time: int
    order: int


State = dict[str, UsedBefore]
KINDS = [
    Caps(events=7),
    Caps(per_tick=2),
    Caps(per_tick=2, ticks=3),
    Caps(5, ticks=2),
    Caps(9, 4),
    Caps(6, 2, 4),
]
CAPS = [
    *KINDS,
    *(Caps(events=most) for most in (1, 20)),
    Caps(per_tick=1, ticks=1),
    Caps(events=4, per_tick=1),
    Caps(4, 3, 2),
]


def random_events(number: int, seed: int, ticks: int = 1) -> list[Event]:
    """Few users, few times and few orders: many users are beyond the caps, and many events are at
    one place."""
    draw = np.random.default_rng(seed).integers
    times = [int(draw(0, 4 * ticks)) for _ in range(number)]
    return [
        Event(row, 1 + time // 4, f"u{draw(0, 9)}", time, int(draw(-2, 3)))
        for row, time in enumerate(times)
    ]


def by_hand(
    events: list[Event],
    caps: Caps,
    state: State,
    period_of: Callable[[int], int],
    ticks: range,
    *,
    ordered: bool,
) -> tuple[list[int], State]:
    """The rows that count, tick by tick with `cap_per_user`, and what users have used in the open
    period."""
    used = {who: Used(had, came, -1) for who, (had, came) in state.items()}
    kept: list[int] = []
    for tick in ticks:
        here = [event for event in events if event.tick == tick]
        if ordered:
            came = Counter(event.who for event in here)
            for event in here:
                own = [other for other in here if other.who == event.who]
                turn = sum((other.time, other.order) <= (event.time, event.order) for other in own)
                room = caps.room(used.get(event.who, NO_USE), tick)
                assert room is not None
                kept += [event.row] * (turn <= room)
            for who, number in came.items():
                before = used.get(who, NO_USE)
                used[who] = caps.after(before, tick, min(number, caps.room(before, tick) or 0))
        else:
            pairs = [
                (event.who, event.row)
                for event in sorted(here, key=lambda event: (event.time, event.row))
            ]
            rows, changes = cap_per_user(pairs, caps, used, tick)
            kept += rows
            used |= changes
        if caps.within_a_tick or period_of(tick) != period_of(tick + 1):
            used = {}
    least = caps.ticks or 0
    return sorted(kept), {who: (one.events, min(one.ticks, least)) for who, one in used.items()}


@cache
def database(scratch: Path) -> Any:
    """One for all runs of a test: temporary tables belong to a cursor."""
    return connect(scratch)


def by_sql(
    events: list[Event],
    caps: Caps,
    state: State,
    period_of: Callable[[int], int],
    ticks: range,
    *,
    ordered: bool,
    scratch: Path,
) -> tuple[list[int], State]:
    """The same with DuckDB."""
    row, place, who, us, order = zip(*events, strict=True)
    table = pa.table(
        {"place": place, "who": who, "us": us, "cell": row} | ({"o": order} if ordered else {})
    )
    with database(scratch).cursor() as connection:
        connection.register("events", table)
        batches = event_parts.read_batches(
            connection,
            f"SELECT *, {event_parts.NUMBER_OF_USER} AS number FROM events WHERE place BETWEEN "
            f"{ticks.start} AND {ticks.stop - 1}",
        )
        (_, cell, number, _), known = UserRule(caps, period_of, ticks, ordered).count(
            connection, batches, state, scratch
        )
    assert set(number.tolist()) <= {1}
    return sorted(cell.tolist()), known


def cut_small(monkeypatch: pytest.MonkeyPatch, most: int | None) -> None:
    """Cut events into parts of at most so many, in two steps, and read few of them at a time."""
    monkeypatch.setattr(event_parts, "EVENTS_OF_A_PART", most or 1 << 20)
    monkeypatch.setattr(event_parts, "MOST_EVENTS", most or 1 << 20)
    monkeypatch.setattr(event_parts, "BATCH_ROWS", 16)
    monkeypatch.setattr(event_parts, "PART_BITS", 2)
    monkeypatch.setattr(cap_users, "MOST_SUMS", 30)
    monkeypatch.setattr(cap_users, "MOST_GROUPS", 50)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("caps", soak_except(KINDS, CAPS), ids=str)
def test_caps_are_those_of_plain_python(
    caps: Caps, ordered: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Random patterns in several runs that continue, in periods of 1, 3 and 4 ticks and without, in
    several steps."""
    partly = 0
    for seed, length in enumerate((None, 1, 3, 4)):
        cut_small(monkeypatch, (None, 20)[seed % 2])
        events = random_events(150, seed, ticks=9)

        def period_of(tick: int, length: int | None = length) -> int:
            return 0 if length is None else (tick - 1) // length

        state: State = {}
        for ticks in (range(1, 3), range(3, 8), range(8, 10)):
            right = by_hand(events, caps, state, period_of, ticks, ordered=ordered)
            # of what has an order, any order will do
            rows = events[::-1] if ordered and ticks.start % 2 else events
            assert (
                by_sql(rows, caps, state, period_of, ticks, ordered=ordered, scratch=tmp_path)
                == right
            )
            partly += 0 < len(right[0]) < len(events)
            state = right[1]
    assert partly, "some count and some do not"


def test_a_shared_number_of_two_users_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Users are cut into parts by a hash of their name, and told apart by the name: here all share
    the hash."""
    for module in (event_parts, cap_users):
        monkeypatch.setattr(module, "NUMBER_OF_USER", "length(who)::USMALLINT")
    events = random_events(150, 3, ticks=9)
    for caps, most in ((Caps(events=3), None), (Caps(per_tick=1), 20), (Caps(5, 2, 3), 20)):
        cut_small(monkeypatch, most)
        right = by_hand(events, caps, {}, lambda tick: 0, range(1, 10), ordered=False)
        assert (
            by_sql(events, caps, {}, lambda tick: 0, range(1, 10), ordered=False, scratch=tmp_path)
            == right
        )


@pytest.mark.parametrize("farthest", [3, 10**6, 2**62], ids=["ties", "few ties", "far apart"])
def test_events_are_in_order_of_visit_time_and_row(farthest: int) -> None:
    """Also where times are so far apart that visit and time do not fit into one number."""
    draw = np.random.default_rng(7)
    visit = draw.integers(0, 20, 3000)
    time = draw.integers(-farthest, farthest, 3000)
    right = sorted(range(3000), key=lambda row: (visit[row], time[row], row))
    assert cap_users.sort_by_time(visit, time).tolist() == right
    assert cap_users.sort_by_time(visit[:0], time[:0]).tolist() == []


def test_of_too_many_events_at_one_place_none_counts(tmp_path: Path) -> None:
    """One user, one time, one order: none counts, and the room is used up."""
    events = [Event(row, 1, "u", 5, 1) for row in range(500)]
    found = by_sql(
        events, Caps(events=3), {}, lambda tick: 0, range(1, 2), ordered=True, scratch=tmp_path
    )
    assert found == ([], {"u": (3, 0)})


@pytest.mark.parametrize(
    "caps", [Caps(events=4), Caps(per_tick=1, ticks=4), Caps(6, 2, 3)], ids=str
)
def test_neighbours_differ_in_the_events_of_one_user_alone(caps: Caps, tmp_path: Path) -> None:
    """Without one user, the events of all others that count are the same, and at most the caps of
    them are gone."""
    events = random_events(120, 4, ticks=5)
    where: dict[str, Any] = {"ordered": True, "scratch": tmp_path}
    kept, _ = by_sql(events, caps, {}, lambda tick: 0, range(1, 6), **where)
    for user in {event.who for event in events}:
        without = [event for event in events if event.who != user]
        others, _ = by_sql(without, caps, {}, lambda tick: 0, range(1, 6), **where)
        gone = [events[row] for row in set(kept) - set(others)]
        assert set(others) <= set(kept)
        assert len(gone) <= (caps.events or 99)
        assert {event.who for event in gone} <= {user}
        ticks = Counter(event.tick for event in gone)
        assert len(ticks) <= (caps.ticks or 99)
        assert max(ticks.values(), default=0) <= (caps.per_tick or 99)


# -- files -----------------------------------------------------------------------------------------


def declared(budget: dict[str, Any], **rest: Any) -> StreamDeclaration:
    table = {
        "name": "x",
        "query": "count",
        "budget": {"epsilon": 1.0, "delta": 1e-9, "unit": "user", **budget},
        "tick": "1h",
        "start": "2026-01-01",
        "columns": {"time": "t", "user": "u"},
    }
    return StreamDeclaration.from_dict({**table, **rest})


PERIODS: dict[str, dict[str, Any]] = {
    "days of 25, 24 and 23 hours": {"start": "2026-10-24", "zone": "Europe/Vienna"},
    "into spring": {"start": "2026-03-27", "zone": "Europe/Vienna"},
    "days of days": {"start": "2026-03-27", "zone": "Europe/Vienna", "tick": "1d"},
    "a day that begins at noon": {"start": "2026-10-24T12:00:00Z", "zone": "UTC", "tick": "6h"},
}


RUNS = [*((name, "drop") for name in PERIODS), ("into spring", "next")]


@pytest.mark.parametrize(
    ("name", "late"), soak_except([("days of days", "drop"), ("into spring", "next")], RUNS)
)
def test_runs_over_a_file_forget_users_with_their_period(
    name: str, late: str, tmp_path: Path
) -> None:
    """Several runs over a file that grows: each day's counts are those of plain Python, and the
    state shrinks."""
    budget = {"max_events": 3, "max_per_tick": 2, "period": "1d"}
    if PERIODS[name].get("tick") == "1d":
        budget = {"max_per_tick": 2, "max_ticks": 2, "period": "3d"}
    declaration = declared(budget, late=late, **PERIODS[name])
    schedule = declaration.schedule
    caps = UserCaps.of(Count(), declaration.budget, declaration.period_of)
    assert caps is not None
    generator = np.random.default_rng(5)
    path, out = tmp_path / "events.csv", tmp_path / "out.csv"
    path.write_text("t,u\n")
    new = [tick for tick in range(2, 100) if caps.period_of(tick) != caps.period_of(tick - 1)]
    stops = sorted(
        {4, 20, 27, 51, *new[:3]} if schedule.tick == "1h" else {2, 3, 6, 11, 13, *new[:2]}
    )
    rows: list[tuple[int, str]] = []
    used: dict[str, Used] = {}
    sizes = []
    first = 1
    for stop in stops:
        low, high = schedule.start_of(1), schedule.start_of(stop)
        fresh = [
            (int(generator.integers(low, high)), f"user {generator.integers(0, 40)}")
            for _ in range(120)
        ]
        with path.open("a") as file:
            file.writelines(f"{schedule.show(instant)},{who}\n" for instant, who in fresh)
        rows += fresh
        at: dict[int, list[tuple[int, str]]] = defaultdict(list)
        for instant, who in fresh if late == "next" else rows:
            tick = schedule.tick_of(instant)
            if tick >= first or late == "next":
                at[max(tick, first)].append((instant, who))
        expected = []
        for tick in range(first, stop):
            pairs = [(who, 1) for _, who in sorted(at[tick], key=lambda row: row[0])]
            kept, changes = cap_per_user(pairs, caps.caps, used, tick)
            used = {} if caps.period_of(tick) != caps.period_of(tick + 1) else {**used, **changes}
            expected.append(len(kept))
        before = read_state(f"{out}.state")
        scratch = Path(mkdtemp(dir=tmp_path))
        known = before.users if before else {}
        source = open_source(str(path), scratch)
        if late == "drop":
            counted = count((source,), declaration, first, stop, scratch, users=known)
            assert isinstance(counted.totals, TickTotals)
            found = np.zeros(stop - first, np.int64)
            np.add.at(found, counted.totals.tick - first, counted.totals.total)
            assert found.tolist() == expected
        release_file(Job(str(path), declaration, str(out), high))
        after = read_state(f"{out}.state")
        assert after is not None
        ticks = caps.caps.ticks or 0
        assert {who: tuple(one) for who, one in after.users.items()} == {
            who: (one.events, min(ticks, one.ticks)) for who, one in used.items()
        }
        sizes.append(len(after.users))
        first = stop
    assert max(sizes) > 20, "users are known while their period is open"
    assert 0 in sizes, "and forgotten at its end"


@pytest.mark.parametrize("kind", ["float64", "decimal"])
def test_a_number_has_one_spelling_as_a_user(tmp_path: Path, kind: str) -> None:
    """Whole numbers that another program made to fractions would be other users, each with events
    of its own."""
    from pyarrow.parquet import write_table

    times = pa.array([datetime(2026, 1, 1, 1), datetime(2026, 1, 1, 2)])
    users = pa.array([7, 8])
    changed = users.cast(pa.float64() if kind == "float64" else pa.decimal128(24, 2))
    for name, column in (("whole", users), ("changed", changed)):
        write_table(pa.table({"t": times, "u": column}), tmp_path / f"{name}.parquet")
    declaration = declared({"max_events": 1})

    def counted(*names: str) -> tuple[int, int]:
        scratch = Path(mkdtemp(dir=tmp_path))
        sources = [
            open_source(str(tmp_path / name), scratch, number=i) for i, name in enumerate(names)
        ]
        result = count(sources, declaration, 1, 9, scratch)
        assert isinstance(result.totals, TickTotals)
        return int(result.totals.total.sum()), result.bad

    assert counted("whole.parquet", "whole.parquet") == (2, 0)
    with pytest.raises(InputError, match="two users"):
        counted("whole.parquet", "changed.parquet")
    row = '{"t": "2026-01-01T05:00:00Z", "u": %s}\n'
    (tmp_path / "lines.jsonl").write_text(
        "".join(row % user for user in ('"7"', "7", "7.0", "true", "[7]", "-9"))
    )
    assert counted("lines.jsonl", "whole.parquet") == (3, 3)
