"""The cap per user, with and without a declared order, against plain Python."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest

from evercount.declare.declaration import StreamDeclaration
from evercount.engine.tick_totals import TickTotals
from evercount.errors import InputError
from evercount.files.cap_users import first_events
from evercount.files.count_rows import count
from evercount.files.source import connect, open_source

pa = pytest.importorskip("pyarrow")

Event = tuple[str, int, int, int]
"""User, time, order and the number of the row."""


def random_events(number: int, seed: int) -> list[Event]:
    """Few users, few times and few orders: many users are beyond the cap, and many events stand at one place."""
    draw = np.random.default_rng(seed).integers
    return [(f"u{draw(0, 9)}", int(draw(0, 4)), int(draw(-2, 3)), row) for row in range(number)]


def capped(
    events: list[Event], users: dict[str, int], most: int, *, ordered: bool, scratch: Path, group: int = 1 << 22
) -> tuple[list[int], dict[str, int]]:
    """The rows that count, and the users' new numbers, with the times of about `group` events in order at a time."""
    who, us, order, row = zip(*events, strict=True)
    columns = {"place": [1] * len(events), "who": who, "us": us, "cell": row}
    table = pa.table(columns | ({"o": order} if ordered else {}))
    with connect(scratch) as connection, pytest.MonkeyPatch.context() as patch:
        patch.setattr("evercount.files.cap_users.EVENTS_OF_A_GROUP", group)
        connection.register("events", table)
        connection.execute("CREATE TEMP TABLE event AS SELECT * FROM events")
        connection.execute("INSERT INTO event BY NAME SELECT -3 AS place, 'u1' AS who, 0 AS us, -1 AS cell")
        counted, known = first_events(connection, users, most, ordered=ordered)
        kept = connection.execute(f"SELECT cell FROM ({counted})").fetchall()
    return sorted(cell for (cell,) in kept), known


def known_by_hand(events: list[Event], users: dict[str, int], most: int) -> dict[str, int]:
    """All events take up room, also those that do not count; users at the cap are not told again."""
    number = Counter(event[0] for event in events)
    return {who: min(most, users.get(who, 0) + n) for who, n in number.items() if users.get(who, 0) < most}


@pytest.mark.parametrize("group", [1, 20, 1000])
@pytest.mark.parametrize("most", [1, 2, 7, 20])
def test_a_declared_order_is_that_of_plain_python(most: int, group: int, tmp_path: Path) -> None:
    """Of the user's events those at or before its (time, order) are, with earlier ones, at most the cap."""
    partly = 0
    for seed in range(2):
        events = random_events(70, seed)
        users = {"u0": most, "u1": most + 1, "u2": most - 1, "u3": 1, "absent": 1}
        expected = [
            row
            for who, us, order, row in events
            if users.get(who, 0) + sum(e[0] == who and e[1:3] <= (us, order) for e in events) <= most
        ]
        right = (expected, known_by_hand(events, users, most))
        assert capped(events, users, most, ordered=True, scratch=tmp_path, group=group) == right
        partly += 0 < len(expected) < len(events)
        backwards = capped(events[::-1], users, most, ordered=True, scratch=tmp_path, group=group)
        assert backwards == right, "the order of rows is no matter"
    assert partly, "some count and some do not"


@pytest.mark.parametrize("group", [1, 1000])
def test_without_an_order_it_is_the_row(group: int, tmp_path: Path) -> None:
    for most in (1, 3, 7):
        events = random_events(70, 1)
        users = {"u0": most, "u2": most - 1}
        expected = [
            row
            for who, us, _, row in events
            if users.get(who, 0) + sum(e[0] == who and (e[1], e[3]) <= (us, row) for e in events) <= most
        ]
        right = (expected, known_by_hand(events, users, most))
        assert capped(events, users, most, ordered=False, scratch=tmp_path, group=group) == right


def test_of_too_many_events_at_one_place_none_counts(tmp_path: Path) -> None:
    """One user, one time, one order: none counts, and the room is used up."""
    events = [("u", 5, 1, row) for row in range(500)]
    assert capped(events, {}, 3, ordered=True, scratch=tmp_path) == ([], {"u": 3})


def test_neighbours_differ_in_the_events_of_one_user_alone(tmp_path: Path) -> None:
    """Without one user, the events of all others that count are the same, and at most the cap of them are gone."""
    events = random_events(120, 4)
    kept, _ = capped(events, {}, 4, ordered=True, scratch=tmp_path)
    for user in {event[0] for event in events}:
        without = [event for event in events if event[0] != user]
        others, _ = capped(without, {}, 4, ordered=True, scratch=tmp_path)
        gone = set(kept) - set(others)
        assert set(others) <= set(kept)
        assert len(gone) <= 4
        assert {events[row][0] for row in gone} <= {user}


@pytest.mark.parametrize("kind", ["float64", "decimal"])
def test_a_number_has_one_spelling_as_a_user(tmp_path: Path, kind: str) -> None:
    """Whole numbers that another program made to fractions would be other users, each with events of its own."""
    from pyarrow.parquet import write_table

    times = pa.array([datetime(2026, 1, 1, 1), datetime(2026, 1, 1, 2)])
    users = pa.array([7, 8])
    changed = users.cast(pa.float64() if kind == "float64" else pa.decimal128(24, 2))
    for name, column in (("whole", users), ("changed", changed)):
        write_table(pa.table({"t": times, "u": column}), tmp_path / f"{name}.parquet")
    declaration = StreamDeclaration.from_dict(
        {
            "name": "x",
            "query": "count",
            "budget": {"epsilon": 1.0, "delta": 1e-9, "unit": "user", "max_events": 1},
            "tick": "1h",
            "start": "2026-01-01",
            "columns": {"time": "t", "user": "u"},
        }
    )

    def counted(*names: str) -> tuple[int, int]:
        scratch = Path(mkdtemp(dir=tmp_path))
        sources = [open_source(str(tmp_path / name), scratch, ",", None, number=i) for i, name in enumerate(names)]
        result = count(sources, declaration, 1, 9, scratch)
        assert isinstance(result.totals, TickTotals)
        return int(result.totals.total.sum()), result.bad

    assert counted("whole.parquet", "whole.parquet") == (2, 0)
    with pytest.raises(InputError, match="two users"):
        counted("whole.parquet", "changed.parquet")
    row = '{"t": "2026-01-01T05:00:00Z", "u": %s}\n'
    (tmp_path / "lines.jsonl").write_text("".join(row % user for user in ('"7"', "7", "7.0", "true", "[7]", "-9")))
    assert counted("lines.jsonl", "whole.parquet") == (3, 3)
