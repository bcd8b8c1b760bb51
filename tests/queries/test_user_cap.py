"""The cap per user, and the sensitivity of users: k²·S for every query, attained."""

from __future__ import annotations

import json
import random
from itertools import product
from typing import Any

import numpy as np
import pytest

from evercount.engine.build import squared_norm
from evercount.errors import InputError
from evercount.factorizations import Balanced
from evercount.privacy import Adjacency, Budget
from evercount.queries.base import Query
from evercount.queries.histogram import Histogram
from evercount.queries.user_cap import Caps, Used, UserState, cap_per_user
from evercount.queries.words import Episodes, Substrings
from neighbouring_streams import all_neighbours, change_norm, random_neighbours, worst_pair


def user_sensitivity(query: Query, adjacency: Adjacency, most: int) -> float:
    """What a stream takes for S when users are protected."""
    budget = Budget(1.0, 1e-9, adjacency, unit="user", max_events=most)
    return squared_norm(Balanced(1), query, budget, None)


def capped(
    ticks: list[list[tuple[str, Any]]], most: int | Caps, period: int | None = None
) -> list[list[Any]]:
    state, out = UserState(), []
    caps = most if isinstance(most, Caps) else Caps(most)
    for tick, events in enumerate(ticks, 1):
        if period is not None and (tick - 1) % period == 0:
            state = {}
        kept, changes = cap_per_user(events, caps, state, tick)
        state.update(changes)
        state = {user: Used(*used) for user, used in json.loads(json.dumps(state)).items()}
        out.append(kept)
    return out


def test_first_events_of_each_user_are_kept_over_the_whole_stream() -> None:
    ticks = [[("u", 1), ("v", 2), ("u", 3)], [("u", 4), ("v", 5)], [("v", 6), ("w", 7)]]
    assert capped(ticks, 2) == [[1, 2, 3], [5], [7]]
    assert capped(ticks, 1) == [[1, 2], [], [7]]
    assert capped(ticks, 9) == [[1, 2, 3], [4, 5], [6, 7]]


def test_state_is_read_only_and_stays_small() -> None:
    state = {"u": Used(1)}
    kept, changes = cap_per_user([("u", "a"), ("u", "b"), ("v", "c")], Caps(2), state, 1)
    assert (kept, changes, state) == (["a", "c"], {"u": Used(2), "v": Used(1)}, {"u": Used(1)})
    assert cap_per_user([("u", "a")] * 50, Caps(2), {"u": Used(2)}, 1) == ([], {})


def test_bad_users_are_named() -> None:
    for bad in ([("u", 1), (7, 1)], [("u", 1), (None, 1)], [("u", 1), ("", 1)]):
        with pytest.raises(InputError, match="event 1"):
            cap_per_user(bad, Caps(2), {}, 1)  # type: ignore[arg-type]


def test_capped_user_neighbours_differ_in_at_most_k_events() -> None:
    draw = random.Random(2)
    for _ in range(300):
        most = draw.randint(1, 3)
        ticks = [
            [(draw.choice("uvw"), (t, i, draw.randint(0, 4))) for i in range(draw.randint(0, 4))]
            for t in range(5)
        ]
        without = [[(user, event) for user, event in events if user != "u"] for events in ticks]
        replaced = [
            [(user, (*e[:2], draw.randint(0, 4)) if user == "u" else e) for user, e in ev]
            for ev in ticks
        ]
        full = [event for events in capped(ticks, most) for event in events]
        fewer = [event for events in capped(without, most) for event in events]
        other = [event for events in capped(replaced, most) for event in events]
        assert [event for event in full if event in fewer] == fewer  # the rest stands, in its order
        assert len(full) - len(fewer) <= most
        assert len(other) == len(full)
        assert sum(a != b for a, b in zip(full, other, strict=True)) <= most
        # each at its own place
        assert all(a[:2] == b[:2] for a, b in zip(full, other, strict=True))


@pytest.mark.parametrize(
    "caps",
    [
        {"max_per_tick": 1, "max_ticks": 2},
        {"max_per_tick": 2, "period": 2},
        {"max_events": 3, "max_per_tick": 2, "period": 3},
        {"max_events": 3, "max_ticks": 2},
    ],
    ids=repr,
)
def test_neighbours_differ_by_what_is_touched(caps: dict[str, int]) -> None:
    """One user's events of one period absent, or others in their places: ticks, events per tick and
    events in all.

    Every bound is reached: a smaller one would be beaten.
    """
    draw = random.Random(5)
    budget = Budget(1.0, 1e-9, unit="user", **caps)  # type: ignore[arg-type]
    touched, rule, period = budget.touched(6), Caps.of(budget), budget.period_ticks
    most = [0, 0, 0]
    for _ in range(400):
        ticks = [
            [(draw.choice("uuv"), (t, i)) for i in range(draw.randint(0, 5))] for t in range(6)
        ]
        at = draw.randrange(6) // (period or 6)
        own = range(at * (period or 6), (at + 1) * (period or 6))
        without = [[e for e in tick if e[0] != "u" or t not in own] for t, tick in enumerate(ticks)]
        replaced = [
            [(user, (*e, "other") if user == "u" and t in own else e) for user, e in tick]
            for t, tick in enumerate(ticks)
        ]
        full, fewer, other = (capped(list(one), rule, period) for one in (ticks, without, replaced))
        for neighbour in (fewer, other):
            gone = [[e for e in a if e not in b] for a, b in zip(full, neighbour, strict=True)]
            came = [[e[:2] for e in b if e not in a] for a, b in zip(full, neighbour, strict=True)]
            assert neighbour is fewer or gone == came  # each at its own place
            where = [t for t, events in enumerate(gone) if events]
            found = [len(where), max(map(len, gone)), sum(map(len, gone))]
            most = list(map(max, most, found))
            assert not where or where[-1] - where[0] < (touched.span or 6)
            stay = [[e for e in a if e not in g] for a, g in zip(full, gone, strict=True)]
            assert neighbour is other or stay == fewer
    assert most == [touched.ticks, touched.per_tick, touched.events]


def test_a_cap_over_all_users_would_not_be_stable() -> None:
    """Negative control: dropping by the total makes one user's events push out another's."""
    ticks = [("u", 1), ("v", 2), ("w", 3)]
    first_two = [event for _, event in ticks[:2]]
    without = [event for _, event in [pair for pair in ticks if pair[0] != "u"][:2]]
    assert set(first_two) ^ set(without) == {1, 3}


@pytest.mark.parametrize(
    "query", [Histogram(2), Histogram(2, 2), Substrings(2, 2), Episodes(2, 2)], ids=repr
)
def test_k_changes_stay_below_k_squared_times_s(query: Query) -> None:
    universe: list[Any] = [(0,), (1,), (0, 1)] if query == Histogram(2, 2) else [0, 1]
    for adjacency in ("add-remove", "replace"):
        for most in (2, 3):
            ticks = 5 if len(universe) == 3 else 6
            pairs = all_neighbours(universe, ticks, adjacency, changed=most)
            if len(universe) == 3:
                pairs = random_neighbours(universe, ticks, adjacency, 1000, changed=most, seed=1)
            found = worst_pair(query, pairs).value
            assert found <= user_sensitivity(query, adjacency, most)
            # k·S would be too small: what events do in one cell adds up before it is squared
            assert found > most * query.squared_sensitivity(adjacency)


def test_k_squared_times_s_is_attained() -> None:
    for most in (1, 2, 3):
        histogram = Histogram(4, 2)
        empty, full = [[]] * 6, [[(0, 1)]] * most + [[]] * (6 - most)
        rows = [histogram.encode_run(None, ticks)[0] for ticks in (empty, full)]
        assert change_norm(*rows) == user_sensitivity(histogram, "add-remove", most) == 2 * most**2
        rows = [histogram.encode_run(None, [[event]] * most)[0] for event in ((0, 1), (2, 3))]
        assert change_norm(*rows) == user_sensitivity(histogram, "replace", most)
        text = Substrings("ab", 3)
        plain = "a" * 5 * most
        for letter, adjacency in ((None, "add-remove"), ("b", "replace")):
            changed = [letter if i % 5 == 2 else "a" for i in range(len(plain))]
            rows = [text.encode_run([], [[a] for a in s])[0] for s in (plain, changed)]
            assert change_norm(*rows) == user_sensitivity(text, adjacency, most)


def test_root_of_the_norm_obeys_the_triangle_inequality() -> None:
    rng = np.random.default_rng(4)
    zero = np.zeros((5, 3))
    for _ in range(500):
        A, B = rng.integers(-3, 4, (2, 5, 3))
        sides = [change_norm(zero, D) ** 0.5 for D in (A + B, A, B)]
        assert sides[0] <= sides[1] + sides[2] + 1e-12


def test_a_vanishing_event_is_outside_the_claim_for_replace() -> None:
    """docs/limits.md: it lets an event beyond the cap in, and k events of a sum then change as much
    as k + 1.

    Totals that no replacement changes are worse off: tests/privacy/test_guarantee_text.py.
    """

    def kept(values: list[int | None], k: int) -> list[int]:
        """What one user's events add at each tick; None for a tick without one."""
        row, state = [], UserState()
        for value in values:
            events, changes = cap_per_user(
                [] if value is None else [("u", value)], Caps(k), state, 1
            )
            state.update(changes)
            row.append(sum(events))
        return row

    def apart(one: list[int | None], other: list[int | None], k: int) -> int:
        return sum(abs(a - b) for a, b in zip(kept(one, k), kept(other, k), strict=True))

    for k in (1, 2, 4):
        streams = list(product((0, 1), repeat=k + 1))
        legal = max(apart(list(one), list(other), k) for one in streams for other in streams)
        vanished = max(
            apart(list(one), [None, *other[1:]], k) for one in streams for other in streams
        )
        assert (legal, vanished) == (k, k + 1)
