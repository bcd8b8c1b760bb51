"""User-level streams: every tick names its users, or the caller promises the cap and every release says so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from evercount import Budget, Count, Edges, Histogram, Secret, Stream, Sum
from evercount.errors import InputError, ParameterError

USERS = Budget(1.0, 1e-9, unit="user", max_events=2)
PROMISE = "the caller promised that at most 2 of its events are counted in all"


def made(query: Any = None, **more: Any) -> Stream:
    return Stream(query or Count(), USERS, 20, **more)


def test_a_user_level_tick_names_users_or_promises_the_cap() -> None:
    """500 events of one unnamed user used to pass, and the guarantee was printed."""
    stream = made()
    attempts = [
        lambda: stream.step(500),
        lambda: stream.run([500]),
        lambda: stream.step_totals([500]),
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
        lambda stream: stream.step_totals([3], capped=True),
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
    """Also where a user's events lie in several ticks of one run, and where the run continues steps."""
    secret = Secret.generate()
    steps, run = (made(Histogram(["a", "b"]), secret=secret, replay=True) for _ in range(2))
    expected = [steps.step(tick, users=people).values for tick, people in zip(TICKS, PEOPLE, strict=True)]
    parts = [run.run(TICKS[:split], users=PEOPLE[:split]), run.run(iter(TICKS[split:]), users=iter(PEOPLE[split:]))]
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
    assert stream._state.with_users().users == {}
    assert stream.tick == 0
    stream.run([["a"]], users=[["u"]])
    assert stream._state.with_users().users == {"u": 1}


@pytest.mark.parametrize(("query", "tick"), [(Edges(5), [(0, 1)]), (Sum(0, 1), [1.0])])
def test_other_queries_too(query: Any, tick: Any) -> None:
    stream = made(query)
    with pytest.raises(ParameterError, match="capped=True"):
        stream.run([tick])
    assert stream.run([tick], users=[["u"]]).guarantee == USERS.sentence()
