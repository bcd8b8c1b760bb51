"""DistinctUsers: counting, exact event- and user-level sensitivity by enumeration, the budget's
unit, restarts."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest

from evercount import ActiveUsers, Budget, DistinctUsers, Stream
from evercount.audit.sensitivity import audit_sensitivity
from evercount.declarations.declaration import StreamDeclaration
from evercount.errors import InputError, ParameterError, TooLarge
from evercount.factorizations import factorization
from evercount.planning.compare import plan
from evercount.privacy import Adjacency
from evercount.queries import Occupancy, Query
from independent_streams import smooth_stream
from neighbouring_streams import all_neighbours, all_streams, change_norm, worst_pair
from soak_cases import soak_except

USERS = Budget(1.0, 1e-6, unit="user")
AB, ABC = ["a", "b"], ["a", "b", "c"]
SHAPES = [DistinctUsers(), DistinctUsers(AB), DistinctUsers(AB, 2), DistinctUsers(ABC, 2)]
TOTALS = [DistinctUsers(AB, 1, total=True), DistinctUsers(AB, 2, total=True)]
ACTIVE = [ActiveUsers(), ActiveUsers(AB), ActiveUsers(AB, 2), ActiveUsers(ABC, 2)]


def universe(query: DistinctUsers, people: str = "uv") -> list[Any]:
    keys = query.parameters()["keys"]
    return list(people) if keys is None else list(product(people, keys))


def test_counting() -> None:
    query = DistinctUsers(AB)
    row, state = query.encode({}, [("ann", "b"), ("ann", "a"), ("bob", "a"), ("bob", "a")])
    assert row.tolist() == [1, 1]
    assert query.encode(state, [("ann", "a"), ("cyd", "a")])[0].tolist() == [1, 0]
    assert state == {"ann": ["b"], "bob": ["a"], "cyd": ["a"]}


@pytest.mark.parametrize(
    "event", ["ann", ("ann", "z"), ("", "a"), (1, "a"), ("x" * 257, "a"), ("ann", ["a"]), None]
)
def test_bad_events_change_nothing(event: Any) -> None:
    state: dict[str, list[str]] = {}
    with pytest.raises(InputError, match="event 1 "):
        DistinctUsers(AB).encode(state, [("bob", "a"), event])
    assert state == {}


@pytest.mark.parametrize(
    "bad", [{"keys": 3}, {"keys": []}, {"keys": AB, "max_keys": 3}, {"max_keys": 2}]
)
def test_bad_parameters(bad: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        DistinctUsers(**bad)


@pytest.mark.parametrize("query", [DistinctUsers, ActiveUsers, Occupancy])
def test_keys_that_do_not_fit_the_memory_are_refused(
    query: type[Query], monkeypatch: pytest.MonkeyPatch
) -> None:
    # a machine with room for four cells
    monkeypatch.setattr("evercount._validate.os.sysconf", lambda name: 64)
    query(["a", "b", "c", "d"])  # type: ignore[call-arg]
    with pytest.raises(TooLarge, match="5 cells"):
        query(["a", "b", "c", "d", "e"])  # type: ignore[call-arg]


@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
@pytest.mark.parametrize("query", soak_except(ACTIVE, [*SHAPES[:3], *TOTALS, *ACTIVE]), ids=repr)
def test_event_sensitivity_by_enumeration(query: DistinctUsers, adjacency: Adjacency) -> None:
    """All streams of up to four ticks of one event: no change beats S, and most claims are reached.

    tests/queries/test_every_sensitivity.py has the same streams of distinct users.
    """
    worst = worst_pair(query, all_neighbours(universe(query), 4, adjacency), exhaustive=True)
    claim = query.squared_sensitivity(adjacency)
    if query in (*TOTALS, *ACTIVE):  # the sum of two bounds, or more than one event in a tick
        assert worst.value <= claim
    else:
        assert worst.value == claim


@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
@pytest.mark.parametrize("query", ACTIVE, ids=repr)
def test_active_users_with_several_events_in_a_tick(
    query: ActiveUsers, adjacency: Adjacency
) -> None:
    """All pairs of up to four events of one tick: no change beats S and Δ₁, and both are
    reached."""
    events = universe(query)
    found, apart = 0.0, 0.0
    number = 4 if query.cells < 3 else 3
    for chosen in product(events, repeat=number):
        for places in ((0,) * number,):
            for at in range(number):
                others = (
                    [None]
                    if adjacency == "add-remove"
                    else [event for event in events if event != chosen[at]]
                )
                for other in others:
                    changed = [*chosen[:at], other, *chosen[at + 1 :]]
                    rows = []
                    for stream in (chosen, changed):
                        ticks: list[list[Any]] = [[], []]
                        for event, place in zip(stream, places, strict=True):
                            ticks[place] += [] if event is None else [event]
                        rows.append(query.encode_run(query.initial_state(), ticks)[0])
                    found = max(found, change_norm(*rows))
                    apart = max(apart, np.abs(rows[0] - rows[1]).sum())
    assert found <= query.squared_sensitivity(adjacency)
    assert apart <= query.l1_sensitivity(adjacency)
    if query.cells < 3:
        assert (found, apart) == (
            query.squared_sensitivity(adjacency),
            query.l1_sensitivity(adjacency),
        )


def test_totals_are_reached_together() -> None:
    """Planted: the S without the cell of all users is too small."""
    for query in TOTALS:
        plain = DistinctUsers(AB, query.parameters()["max_keys"]).squared_sensitivity("add-remove")
        assert not audit_sensitivity(query, np.eye(3), "add-remove", 3, claimed=plain).holds
        assert audit_sensitivity(query, np.eye(3), "add-remove", 3).reached


def test_active_users_count_once_in_a_tick() -> None:
    query = ActiveUsers(AB)
    row, state = query.encode(None, [("ann", "b"), ("ann", "a"), ("bob", "a"), ("ann", "b")])
    assert (row.tolist(), state) == ([1, 1], None)
    assert query.encode(state, [("ann", "a")])[0].tolist() == [1, 0]


def test_four_is_too_little_for_replace_with_a_cap() -> None:
    """Planted: 4, the value without a cap. A displaced key makes it 8, and the audit finds that."""
    report = audit_sensitivity(DistinctUsers(AB), np.eye(4), "replace", 4, claimed=4)
    assert not report.holds
    assert report.norm == 8
    assert audit_sensitivity(
        DistinctUsers(AB), factorization("balanced", 4).dense(4)[1], "replace", 4
    ).holds
    assert not audit_sensitivity(DistinctUsers(), np.eye(3), "add-remove", 3, claimed=1).holds


def user_neighbours(
    query: DistinctUsers, ticks: int, adjacency: Adjacency
) -> Iterator[tuple[Any, Any]]:
    """Streams that differ in all events of user u: absent, or those of a third user w at any
    ticks."""
    events = [None, *universe(query)]
    for stream in all_streams(events, ticks):
        others = [
            tick for tick, (event,) in enumerate(stream) if event is not None and event[0] == "u"
        ]
        without = [
            [event for event in tick if event is not None and event[0] != "u"] for tick in stream
        ]
        full = [[event for event in tick if event is not None] for tick in stream]
        if not others:
            continue
        if adjacency == "add-remove":
            yield full, without
            continue
        for extra in product([None, *universe(query, "w")], repeat=ticks):
            yield (
                full,
                [
                    rest + ([] if new is None else [new])
                    for rest, new in zip(without, extra, strict=True)
                ],
            )


@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
@pytest.mark.parametrize("query", [*SHAPES, TOTALS[0], *ACTIVE], ids=repr)
def test_user_sensitivity_by_enumeration(query: DistinctUsers, adjacency: Adjacency) -> None:
    """A user has as many events as there are ticks, and the largest change is still exactly the
    user-level S."""
    ticks = 4 if query.cells < 3 and adjacency == "add-remove" else 3 if query.cells < 3 else 2
    if isinstance(query, ActiveUsers):
        # the claim is about one tick; tests/engine/test_unit_noise.py puts ticks together
        ticks = 1
    elif adjacency == "replace" and query.cells == 2:
        ticks = 3
    found = 0.0
    for one, other in user_neighbours(query, ticks, adjacency):
        rows = [query.encode_run(query.initial_state(), stream)[0] for stream in (one, other)]
        found = max(found, change_norm(*rows))
        assert np.abs(rows[0] - rows[1]).sum() <= query.user_l1_sensitivity(adjacency)
    wanted = query.user_sensitivity(adjacency)
    assert found <= wanted
    if not isinstance(query, ActiveUsers) and (
        adjacency == "add-remove" or ticks > 2 * len(query.labels) - 2
    ):
        assert found == wanted


@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
@pytest.mark.parametrize("query", [*SHAPES[:3], TOTALS[0]], ids=repr)
def test_one_period_of_a_user_by_enumeration(query: DistinctUsers, adjacency: Adjacency) -> None:
    """Who is gone in the first period may count for the first time in the second: S = 2c, and 5c
    under replace.

    Planted: the S of a whole life is beaten.
    """
    found, apart = 0.0, 0.0
    later = [
        [],
        [
            ("u", key) if query.parameters()["keys"] else "u"
            for key in (AB if query.cells > 1 else "x")
        ],
    ]
    own = [[event] for event in universe(query, "u")] + [universe(query, "u")]
    new = (
        [[]]
        if adjacency == "add-remove"
        else [[], *([event] for event in universe(query, "w")), universe(query, "w")]
    )
    for mine, first, others, after in product(own, new, (0, 1), later):
        full = [mine, [], after]
        changed = [[], first, after] if others else [first, [], after]
        rows = [query.encode_run(query.initial_state(), stream)[0] for stream in (full, changed)]
        found = max(found, change_norm(*rows))
        apart = max(apart, float(np.abs(rows[0] - rows[1]).sum()))
    assert found <= query.user_sensitivity(adjacency, True)
    assert apart <= query.user_l1_sensitivity(adjacency, True)
    assert found > query.user_sensitivity(adjacency)
    if adjacency == "add-remove":
        assert found == query.user_sensitivity(adjacency, True)


@pytest.mark.parametrize("query", [*SHAPES, *TOTALS, *ACTIVE], ids=repr)
def test_user_claims_are_reached(query: DistinctUsers) -> None:
    """As many keys as count, in as many ticks as count; another user comes later under the same
    keys.

    Both claims are met exactly, so one that is smaller by one is beaten.
    """
    most, ticks = query.parameters()["max_keys"], 1
    keys = query.parameters()["keys"]

    def tick(user: str) -> list[Any]:
        return [user] if keys is None else [(user, key) for key in keys[:most]]

    quiet: list[Any] = [[]] * ticks
    first, later = [[tick("u")] * ticks + quiet, quiet + [tick("w")] * ticks]
    rows = [
        query.encode_run(query.initial_state(), stream)[0]
        for stream in (first, later, quiet + quiet)
    ]
    for adjacency, other in (("replace", rows[1]), ("add-remove", rows[2])):
        if isinstance(query, ActiveUsers) and adjacency == "replace":
            other = other[::-1]  # in the same tick, under other keys where there are some
            assert change_norm(rows[0], other) <= query.user_sensitivity(adjacency)
            continue
        assert change_norm(rows[0], other) == query.user_sensitivity(adjacency)
        assert np.abs(rows[0] - other).sum() == query.user_l1_sensitivity(adjacency)


def test_noise_is_calibrated_to_the_unit() -> None:
    query = DistinctUsers(AB, 2)
    user, event = (
        Stream(query, Budget(1.0, 1e-6, unit=unit), 16, "balanced") for unit in ("user", "event")
    )
    capped = Stream(query, Budget(1.0, 1e-6, adjacency="replace", unit="user"), 16, "balanced")
    assert capped.sigma == pytest.approx(user.sigma * np.sqrt(2), rel=1e-9)
    assert event.sigma == pytest.approx(user.sigma, rel=1e-9)  # 2 and 2
    assert Stream(DistinctUsers(), USERS, 16, "balanced").sigma == pytest.approx(
        user.sigma / np.sqrt(2), rel=1e-9
    )
    assert plan(USERS, 16, DistinctUsers(), names=("balanced",)).squared_sensitivity == 1
    with pytest.raises(ParameterError, match="any number of events"):
        Stream(DistinctUsers(), Budget(1.0, 1e-6, unit="user", max_events=3), 16)


def test_pure_noise_is_calibrated_to_the_unit() -> None:
    query, tree = DistinctUsers(AB, 2), "pure-binary"
    user, event = (
        Stream(query, Budget(1.0, 0.0, unit=unit), 16, tree) for unit in ("user", "event")
    )
    replaced = Stream(query, Budget(1.0, 0.0, adjacency="replace", unit="user"), 16, tree)
    assert user.sigma == pytest.approx(event.sigma, rel=1e-6)  # 2 and 2
    assert replaced.sigma == pytest.approx(2 * user.sigma, rel=0.01)  # 4; the noise is discrete
    assert Stream(DistinctUsers(), Budget(1.0, 0.0, unit="user"), 16, tree).sigma == pytest.approx(
        user.sigma / 2, rel=0.01
    )


def test_a_user_level_stream_says_what_it_promises_and_goes_on_after_a_restart() -> None:
    stream = Stream(DistinctUsers(), USERS, 16)
    release = stream.step(["ann"] * 100 + ["bob"])
    assert (
        "everything under the id of any person (however many events that is)" in release.guarantee
    )
    with pytest.raises(ParameterError, match="omit users"):
        stream.step(["ann"], users=["ann"])
    with pytest.raises(InputError, match="events themselves"):
        stream.run_totals([[1]])[0]
    blob = stream.snapshot()
    before = stream.run([["ann", "cyd"], ["cyd", "dan"]]).rows
    stream.close()
    again = Stream.restore(blob)
    assert np.array_equal(again.run([["ann", "cyd"], ["cyd", "dan"]]).rows, before)
    assert "everything under the id of any person (however many events that is)" in again.guarantee


def test_a_refused_run_leaves_nobody_behind() -> None:
    stream = Stream(DistinctUsers(), USERS, 16)
    with pytest.raises(InputError):
        stream.run([["ann"], [7]])
    truth = Stream(DistinctUsers(), USERS, 16)
    assert stream.query.initial_state() == {}
    assert abs(float(stream.step(["ann"]).value) - 1) < 12 * float(truth.std([1])[0, 0])


def test_many_events_of_one_user_are_one() -> None:
    query = DistinctUsers()
    noisy = smooth_stream(query, USERS, 4, seed=1).run([["ann"] * 1000] * 4).rows
    once = smooth_stream(query, USERS, 4, seed=1).run([["ann"], [], [], []]).rows
    assert np.array_equal(noisy, once)


def test_declarations_name_the_user_and_the_key() -> None:
    table = {
        "name": "x",
        "query": "distinct-users",
        "budget": {"epsilon": 1, "delta": 1e-6},
        "tick": "1h",
        "zone": "UTC",
    }
    declared = StreamDeclaration.from_dict({**table, "columns": {"time": "ts", "user": "who"}})
    assert declared.query == DistinctUsers()
    with pytest.raises(ParameterError, match="the column `user` is required by"):
        StreamDeclaration.from_dict({**table, "columns": {"time": "ts"}})
    keyed = {**table, "query": {"name": "active-users", "parameters": {"keys": AB}}}
    with pytest.raises(ParameterError, match="needs the column `key`"):
        StreamDeclaration.from_dict({**keyed, "columns": {"time": "ts", "user": "who"}})
