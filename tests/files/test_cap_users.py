"""The cap per user in pieces, with and without a declared order, against plain Python."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from evercount.files.cap_users import first_events

pa = pytest.importorskip("pyarrow")

Event = tuple[str, int, int, int]
"""User, time, order and the number of the row."""


def random_events(number: int, seed: int) -> list[Event]:
    """Few users, few times and few orders: many users are beyond the cap, and many events stand at one place."""
    draw = np.random.default_rng(seed).integers
    return [(f"u{draw(0, 9)}", int(draw(0, 4)), int(draw(-2, 3)), row) for row in range(number)]


def in_pieces(events: list[Event], users: dict[str, int], most: int, rows: int, *, ordered: bool) -> Any:
    who, us, order, cell = zip(*events, strict=True)
    columns = {"who": who, "us": us, **({"o": order} if ordered else {}), "cell": cell}
    found = first_events(pa.table(columns).to_batches(rows), users, most, rows)
    assert found is not None
    kept, known = found
    return sorted(kept["cell"].to_pylist()), known


def known_by_hand(events: list[Event], users: dict[str, int], most: int) -> dict[str, int]:
    """All events take up room, also those that do not count; users at the cap are not told again."""
    number = Counter(event[0] for event in events)
    return {who: min(most, users.get(who, 0) + n) for who, n in number.items() if users.get(who, 0) < most}


@pytest.mark.parametrize("rows", [1, 3, 10, 1000])
@pytest.mark.parametrize("most", [1, 2, 3, 7, 20])
def test_a_declared_order_in_pieces_is_that_of_plain_python(most: int, rows: int) -> None:
    """Of the user's events those at or before its (time, order) are, with earlier ones, at most the cap."""
    partly = 0
    for seed in range(6):
        events = random_events(70, seed)
        users = {"u0": most, "u1": most + 1, "u2": most - 1, "u3": 1, "absent": 1}
        expected = [
            row
            for who, us, order, row in events
            if users.get(who, 0) + sum(e[0] == who and e[1:3] <= (us, order) for e in events) <= most
        ]
        assert in_pieces(events, users, most, rows, ordered=True) == (expected, known_by_hand(events, users, most))
        partly += 0 < len(expected) < len(events)
        backwards = in_pieces(events[::-1], users, most, rows, ordered=True)
        assert backwards == (expected, known_by_hand(events, users, most)), "the order of rows is no matter"
    assert partly, "some count and some do not"


@pytest.mark.parametrize("rows", [1, 10, 1000])
def test_without_a_declared_order_rows_of_one_time_go_by_their_number(rows: int) -> None:
    for most in (1, 3, 7):
        events = random_events(70, 1)
        users = {"u0": most, "u2": most - 1}
        expected = [
            row
            for who, us, _, row in events
            if users.get(who, 0) + sum(e[0] == who and (e[1], e[3]) <= (us, row) for e in events) <= most
        ]
        assert in_pieces(events, users, most, rows, ordered=False) == (expected, known_by_hand(events, users, most))


def test_many_events_at_one_place_are_not_all_held() -> None:
    """One user, one time, one order: none counts, and the room is used up."""
    events = [("u", 5, 1, row) for row in range(500)]
    assert in_pieces(events, {}, 3, 10, ordered=True) == ([], {"u": 3})


def test_neighbours_differ_in_the_events_of_one_user_alone() -> None:
    """Without one user, the events of all others that count are the same, and at most the cap of them are gone."""
    events = random_events(120, 4)
    kept, _ = in_pieces(events, {}, 4, 7, ordered=True)
    for user in {event[0] for event in events}:
        others, _ = in_pieces([event for event in events if event[0] != user], {}, 4, 7, ordered=True)
        gone = set(kept) - set(others)
        assert set(others) <= set(kept)
        assert len(gone) <= 4
        assert {events[row][0] for row in gone} <= {user}
