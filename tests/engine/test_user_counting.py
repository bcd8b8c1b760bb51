"""User-level streams: every tick names its users, or the caller promises the cap and every release
says so."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from evercount import Budget, Count, Histogram, Secret, Stream, Sum
from evercount.errors import InputError, ParameterError
from evercount.graphs import Edges
from evercount.queries import ActiveUsers
from evercount.queries.user_cap import Used
from product_internals import inner_state, true_totals

USERS = Budget(1.0, 1e-9, unit="user", max_events=2)
PROMISE = "the caller promised to count at most its first 2 events of the whole stream"


def made(query: Any = None, **more: Any) -> Stream:
    return Stream(query or Count(), USERS, 20, **more)


def test_a_user_level_tick_names_users_or_promises_the_cap() -> None:
    """500 events of one unnamed user used to pass, and the guarantee was printed."""
    stream = made()
    attempts = [
        lambda: stream.step(500),
        lambda: stream.run([500]),
        lambda: stream.run_totals([[500]]),
    ]
    for attempt in attempts:
        with pytest.raises(ParameterError, match="capped=True"):
            attempt()
    assert stream.tick == 0
    with pytest.raises(ParameterError, match="or capped=True"):
        stream.step(None, users=["a"], capped=True)
    assert PROMISE not in stream.step(None, users=["a"] * 500).guarantee


@pytest.mark.parametrize(
    "release",
    [
        lambda stream: stream.step(3, capped=True),
        lambda stream: stream.run([3], capped=True),
        lambda stream: stream.run_totals([[3]], capped=True),
    ],
)
def test_a_promise_is_part_of_every_release(release: Any) -> None:
    stream = made()
    assert PROMISE in release(stream).guarantee
    assert PROMISE in Stream.restore(stream.snapshot()).step(1, capped=True).guarantee
    with pytest.raises(ParameterError, match="every tick must do the same"):
        stream.step(None, users=["a"])
    with pytest.raises(ParameterError, match="capped=True"):
        stream.step(3)


def test_event_level_streams_take_no_promise() -> None:
    stream = Stream(Count(), Budget(1.0, 1e-9), 20)
    for attempt in (lambda: stream.step(1, capped=True), lambda: stream.run([1], users=[["a"]])):
        with pytest.raises(ParameterError, match="protects events"):
            attempt()


TICKS = [["a", "a", "b"], [], ["b"], ["a", "b"]]
PEOPLE = [["u", "u", "v"], [], ["u"], ["v", "v"]]


@pytest.mark.parametrize("split", [0, 1, 2, 4])
def test_a_run_that_names_users_is_its_steps(split: int) -> None:
    """Also where a user's events lie in several ticks of one run, and where the run continues
    steps."""
    secret = Secret.generate()
    steps, run = (made(Histogram(["a", "b"]), secret=secret, replay=True) for _ in range(2))
    expected = [
        steps.step(tick, users=people).values for tick, people in zip(TICKS, PEOPLE, strict=True)
    ]
    parts = [
        run.run(TICKS[:split], users=PEOPLE[:split]),
        run.run(iter(TICKS[split:]), users=iter(PEOPLE[split:])),
    ]
    assert np.array_equal(np.concatenate([part.values for part in parts]), np.stack(expected))
    plain = made(Histogram(["a", "b"]), secret=secret, replay=True)
    kept = [["a", "a", "b"], [], [], ["a"]]
    assert np.array_equal(plain.run(kept, capped=True).values, np.stack(expected))


def test_a_refused_run_uses_up_no_cap() -> None:
    stream = made(Histogram(["a"]))
    for ticks, people in (
        ([["a"], ["x"]], [["u"], ["u"]]),
        ([["a"]], [["u"], ["v"]]),
        ([["a"]], ["u"]),
        ([["a"]], [["u", "v"]]),
        ([["a"]], [[3]]),
    ):
        with pytest.raises(InputError):
            stream.run(ticks, users=people)  # type: ignore[arg-type]
    assert inner_state(stream).with_users().users == {}
    assert stream.tick == 0
    stream.run([["a"]], users=[["u"]])
    assert inner_state(stream).with_users().users == {"u": Used(events=1)}


@pytest.mark.parametrize(("query", "tick"), [(Edges(5), [(0, 1)]), (Sum(0, 1), [1.0])])
def test_other_queries_too(query: Any, tick: Any) -> None:
    stream = made(query)
    with pytest.raises(ParameterError, match="capped=True"):
        stream.run([tick])
    assert stream.run([tick], users=[["u"]]).guarantee == stream.budget.sentence()


CAPS = [
    {"max_events": 3},
    {"max_per_tick": 1, "max_ticks": 2},
    {"max_per_tick": 2, "period": 1},
    {"max_events": 3, "max_per_tick": 2, "max_ticks": 2, "period": 3},
]


def plainly_kept(places: list[tuple[int, int]], caps: dict[str, int]) -> set[int]:
    """Which of one user's events count, told in words: `places` are their ticks and their turns in
    them."""
    kept: list[int] = []
    length = caps.get("period", 10**9)
    for number, (tick, turn) in enumerate(places):
        period = (tick - 1) // length
        mine = [place for place in places if (place[0] - 1) // length == period]
        ticks = sorted({place[0] for place in mine})
        before = [one for one in kept if (places[one][0] - 1) // length == period]
        if (
            ticks.index(tick) < caps.get("max_ticks", 10**9)
            and turn < caps.get("max_per_tick", 10**9)
            and len(before) < caps.get("max_events", 10**9)
        ):
            kept.append(number)
    return set(kept)


@pytest.mark.parametrize("caps", CAPS, ids=repr)
def test_caps_are_those_of_plain_python(caps: dict[str, int]) -> None:
    """Random users; in runs and steps of any lengths, with a restart in the middle."""
    draw = random.Random(7)
    for _ in range(25):
        ticks = [[draw.choice("uvw") for _ in range(draw.randint(0, 4))] for _ in range(8)]
        wanted = np.zeros(8)
        for user in "uvw":
            places = [
                (t + 1, sum(x == user for x in tick[:i]))
                for t, tick in enumerate(ticks)
                for i, name in enumerate(tick)
                if name == user
            ]
            for number in plainly_kept(places, caps):
                wanted[places[number][0] - 1] += 1
        stream = Stream(Count(), Budget(1.0, 1e-9, unit="user", **caps), 8)  # type: ignore[arg-type]
        cut = draw.randint(0, 8)
        stream.run([None] * cut, users=ticks[:cut])
        first = true_totals(stream).copy()
        again = Stream.restore(stream.snapshot())
        totals = [0, *([first[0]] if cut else [])]
        for tick in ticks[cut:]:
            again.step(None, users=tick)
            totals.append(true_totals(again)[0])
        assert totals[-1] == wanted.sum()
        assert np.array_equal(np.diff(totals[1 if cut else 0 :]), wanted[cut:])


def test_people_are_forgotten_when_their_period_is_over() -> None:
    """A snapshot holds nobody after the last tick of a period, and nobody at all where caps look at
    one tick only."""
    week = Stream(Count(), Budget(1.0, 1e-9, unit="user", max_events=2, period=7), 28)
    sizes = []
    for tick in range(1, 22):
        week.step(None, users=[f"{tick} {number}" for number in range(200)])
        sizes.append(len(week.snapshot()))
    assert sizes[5] > sizes[0] + 5 * 200 * 4
    assert sizes[6] == pytest.approx(sizes[13], abs=64)
    assert sizes[20] < sizes[5] / 4
    daily = Stream(Count(), Budget(1.0, 1e-9, unit="user", max_per_tick=2), 28)
    daily.step(None, users=[f"u{number}" for number in range(200)])
    assert inner_state(daily).with_users().users == {}


def test_active_users_are_capped_by_the_budget() -> None:
    """The events name the users; the budget says in how many ticks of a period each counts."""
    stream = Stream(
        ActiveUsers(["a", "b"]), Budget(1.0, 1e-9, unit="user", max_ticks=2, period=4), 8
    )
    ticks = [
        [("u", "a"), ("u", "a")],
        [("u", "b"), ("v", "a")],
        [("u", "a"), ("v", "a")],
        [("v", "b")],
        [("u", "a")],
    ]
    stream.run(ticks[:2])
    again = Stream.restore(stream.snapshot())
    again.run(ticks[2:])
    # u: ticks 1, 2 and 5; v: ticks 2 and 3
    assert true_totals(again).tolist() == [1 + 1 + 1 + 1, 1]
    with pytest.raises(ParameterError, match="omit users and capped"):
        again.step(ticks[0], users=["u", "u"])


def test_a_calendar_is_for_streams_with_a_schedule() -> None:
    with pytest.raises(ParameterError, match="number of ticks"):
        Stream(Count(), Budget(1.0, 1e-9, unit="user", max_events=2, period="1d"), 8)
    for lacking in ({}, {"max_ticks": 3}, {"period": 4}):
        with pytest.raises(ParameterError, match=r"max_events=\.\.\., or max_per_tick"):
            Stream(Count(), Budget(1.0, 1e-9, unit="user", **lacking), 8)  # type: ignore[arg-type]
    for query in (ActiveUsers(), Count()):
        caps = {} if query.people else {"max_per_tick": 2}
        with pytest.raises(ParameterError, match="nothing bounds"):
            Stream(query, Budget(1.0, 1e-9, unit="user", **caps))  # type: ignore[arg-type]
