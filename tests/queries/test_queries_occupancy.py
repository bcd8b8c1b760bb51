"""Occupancy: who is inside, exact event- and user-level sensitivity by enumeration, the unit,
restarts, files."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evercount import Budget, Count, Stream
from evercount.audit.sensitivity import audit_sensitivity, gram_falls
from evercount.declarations.declaration import StreamDeclaration
from evercount.engine.build import choose_engine, sensitivity_on
from evercount.errors import InputError, ParameterError
from evercount.factorizations import Direct, factorization
from evercount.factorizations.optimal import Optimal
from evercount.files.release_job import Job
from evercount.files.release_run import release_file
from evercount.noise import Secret
from evercount.planning.compare import plan
from evercount.privacy import Adjacency
from evercount.queries import Occupancy
from evercount.queries.base import Query
from independent_streams import smooth_stream
from neighbouring_streams import change_norm

USERS = Budget(1.0, 1e-6, unit="user")
AB = ["a", "b"]
FALLING = ("balanced", "normalized", "unbounded", "square-root", "binary-tree", "fresh", "direct")
RIGHT = {(name, T): factorization(name, T).dense(T)[1] for name in FALLING for T in range(1, 8)}


def places(query: Occupancy) -> list[str]:
    return [*(query.parameters()["keys"] or ["in"]), "out"]


def encoded(query: Query, ticks: Any) -> Any:
    return query.encode_run(query.initial_state(), ticks)[0]


# -- who is inside ---------------------------------------------------------------------------------


def test_the_last_event_wins() -> None:
    query = Occupancy(["a", "b", "c"])
    events = [
        [("ann", "a"), ("bob", "out"), ("cyd", "b"), ("cyd", "b")],
        [("ann", "b"), ("ann", "c"), ("ann", "b"), ("cyd", "out"), ("cyd", "out")],
        [("bob", "a"), ("ann", "out"), ("ann", "a")],
    ]
    assert encoded(query, events).cumsum(axis=0).tolist() == [[1, 1, 0], [0, 1, 0], [2, 0, 0]]
    plain = Occupancy()
    assert plain.labels == ("inside",)
    assert encoded(
        plain, [[("u", "in"), ("u", "in"), ("v", "in")], [("u", "out")]]
    ).ravel().tolist() == [2, -1]
    assert not plain.monotone


def test_events_beyond_the_cap_are_ignored_also_those_that_change_nothing() -> None:
    query = Occupancy(max_events=2)
    rows = encoded(
        query,
        [[("u", "in"), ("u", "in")], [("u", "out"), ("v", "out"), ("v", "in")], [("v", "out")]],
    )
    assert rows.ravel().tolist() == [1, 1, 0]


@pytest.mark.parametrize(
    "event",
    [
        "ann",
        ("ann", "z"),
        ("", "a"),
        (1, "a"),
        ("x" * 257, "a"),
        ("ann", ["a"]),
        ("ann", None),
        ("ann", "in"),
    ],
)
def test_bad_events_change_nothing(event: Any) -> None:
    query = Occupancy(AB, max_events=3)
    state = query.initial_state()
    with pytest.raises(InputError, match="event 1 "):
        query.encode(state, [("bob", "a"), event])
    assert state == query.initial_state()
    with pytest.raises(InputError, match="event 0 "):
        query.check_events([event])


@pytest.mark.parametrize(
    "bad",
    [{"keys": 3}, {"keys": []}, {"keys": ["a", "out"]}, {"max_events": 0}, {"max_events": 10**7}],
)
def test_bad_parameters(bad: dict[str, Any]) -> None:
    with pytest.raises(ParameterError):
        Occupancy(**bad)


# -- one event -------------------------------------------------------------------------------------


class Door(Occupancy):
    """The naive rule: "in" while inside is ignored, and so is "out of b" for somebody in a. Events
    are (user, "+a")."""

    def encode(self, state: Any, events: Any) -> Any:
        kept = []
        for user, (sign, *key) in events:
            inside = state["inside"].get(user)
            if inside is None and sign == "+":
                kept.append((user, "".join(key)))
            elif inside == "".join(key) and sign == "-":
                kept.append((user, "out"))
        return super().encode(state, kept)


@pytest.mark.parametrize("turns", [1, 8, 64])
def test_wards_under_the_rule_of_a_door_are_not_bounded(turns: int) -> None:
    """One "in c" that nobody ends, before all other moves. By the last event it changes nothing
    after the next one."""
    moves = [f"{sign}{key}" for _ in range(turns) for key in "ab" for sign in "+-"]
    keys = ["a", "b", "c"]
    naive = [
        encoded(Door(keys), [[("u", move)] for move in stream])
        for stream in (["+c", *moves], ["-c", *moves])
    ]
    assert change_norm(*naive) == 1 + 4 * turns**2
    assert np.abs(naive[0] - naive[1]).sum() == 1 + 4 * turns
    query = Occupancy(keys)
    ticks = [[("u", move[1:] if move[0] == "+" else "out")] for move in moves]
    last = [encoded(query, stream) for stream in ([[("u", "c")], *ticks], [[], *ticks])]
    assert change_norm(*last) == 2 <= query.squared_sensitivity("add-remove")


@pytest.mark.parametrize(("query", "adjacency", "less"), [
    (Occupancy(), "add-remove", 1),
    (Occupancy(AB), "add-remove", 2),  # moves are two changes
    (Occupancy(), "replace", 2),  # what one person costs
    (Occupancy(AB), "replace", 8),
    (Occupancy(max_events=2), "add-remove", 2),  # the event after the last one counts now
])  # fmt: skip
def test_planted_claims_are_caught(query: Occupancy, adjacency: Adjacency, less: float) -> None:
    report = audit_sensitivity(query, np.eye(4), adjacency, 4, budget=60_000, claimed=less)
    assert report.norm > less
    assert not report.holds
    assert audit_sensitivity(query, np.eye(4), adjacency, 4, budget=60_000).holds


def test_one_person_in_place_of_themselves_costs_less() -> None:
    """Replaced by another event of the same person: 2, with keys 4. The claim covers other people
    in their place."""
    for query, most in ((Occupancy(), 2), (Occupancy(AB), 4), (Occupancy(max_events=2), 2)):
        found = 0.0
        for stream in product(places(query), repeat=4):
            for at, other in product(range(4), places(query)):
                changed = [*stream[:at], other, *stream[at + 1 :]]
                rows = [
                    encoded(query, [[("u", where)] for where in one]) for one in (stream, changed)
                ]
                found = max(found, change_norm(*rows))
        assert found == most


# -- one user --------------------------------------------------------------------------------------


def histories(query: Occupancy, ticks: int, person: str) -> Iterator[list[Any]]:
    """What one person may do: nothing, one event or two in each tick, as many as there are ticks
    and the cap in all."""
    quiet: list[Any] = [()]
    steps = quiet + [(one,) for one in places(query)] + list(product(places(query), repeat=2))
    most = query.parameters()["max_events"]
    for stream in product(steps, repeat=ticks):
        if sum(map(len, stream)) <= (most or ticks) + 1:
            yield [[(person, where) for where in step] for step in stream]


def unique_rows(query: Occupancy, ticks: int) -> list[Any]:
    """Every different change that one person can make."""
    return [
        np.asarray(rows) for rows in {repr(r.tolist()): r for r in _rows(query, ticks)}.values()
    ]


def _rows(query: Occupancy, ticks: int) -> Iterator[Any]:
    for history in histories(query, ticks, "u"):
        yield encoded(query, history)


CAPPED = [Occupancy(max_events=k) for k in (1, 2, 3, 4)] + [
    Occupancy(AB, max_events=k) for k in (1, 2, 3)
]
CAPPED += [Occupancy(["a"], max_events=2), Occupancy(["a", "b", "c"], max_events=2)]


@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
@pytest.mark.parametrize("query", CAPPED, ids=repr)
def test_user_sensitivity_by_enumeration(query: Occupancy, adjacency: Adjacency) -> None:
    """Everything that one person can do, against nothing or everything that another can do, on
    every factorization.

    Claims for Gram matrices that fall are reached on `fresh`; all others hold.
    """
    most, plain = query.parameters()["max_events"], query.cells == 1
    ticks = 5 if plain else 4 if adjacency == "add-remove" or query.cells == 2 else 3
    own = unique_rows(query, ticks)
    others = own if adjacency == "replace" else [np.zeros((ticks, query.cells), np.int64)]
    changes = np.unique([one - other for one, other in product(own, others)], axis=0)
    positive, negative = (np.clip(sign * changes, 0, None).sum(axis=1) for sign in (1, -1))
    assert (positive**2 + negative**2).sum(axis=1).max() <= query.user_sensitivity(adjacency)
    assert np.abs(changes).sum(axis=(1, 2)).max() <= query.user_l1_sensitivity(adjacency)
    values = np.square(changes.cumsum(axis=1)).sum(axis=2).max()
    assert (
        values
        == query.user_sensitivity(adjacency, values=True)
        == (1 if plain or adjacency == "add-remove" else 2)
    )
    claim = query.user_sensitivity(adjacency, falling=True)
    n = most if plain else 2 * most - 1
    assert claim == (n if adjacency == "add-remove" else 4 * n - 2)
    for name in FALLING:
        R = RIGHT[name, ticks]
        assert gram_falls(R)
        worst = float(np.square(np.einsum("st,ptc->psc", R, changes)).sum(axis=(1, 2)).max())
        c2 = float(np.square(R).sum(axis=0).max())
        assert worst <= c2 * claim * (1 + 1e-9), name
        if name == "fresh" and (
            adjacency == "add-remove" or most % 2 == 0 or not plain or most == 1
        ):
            assert worst == pytest.approx(claim)  # a claim that is smaller by one is beaten
        if name == "direct":
            assert worst <= ticks * values * (1 + 1e-9)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
@pytest.mark.parametrize("keys", [None, AB], ids=["one place", "moves"])
def test_user_claims_are_reached(keys: Any, adjacency: Adjacency) -> None:
    """Twenty events: the general claim by turns of one person, and the sum of changes; twice as
    much under replace."""
    query = Occupancy(keys, max_events=20)
    here, there = ("in", "out") if keys is None else ("a", "b")
    turns = [[("u", where)] for where in [here, there] * 10]
    one = encoded(query, [*turns, []])
    if adjacency == "add-remove":
        other = np.zeros_like(one)
    else:  # the other person does the same, one tick later or in the other place
        later = [[], *([("w", where)] for where in [here, there] * 10)]
        other = encoded(
            query, later if keys is None else [*[[("w", w)] for w in [there, here] * 10], []]
        )
    n = 20 if keys is None else 39
    assert np.square(one - other).sum() == (n if adjacency == "add-remove" else 4 * n - 2)
    assert query.user_sensitivity(adjacency, falling=True) == np.square(one - other).sum()
    assert np.abs(one - other).sum() == query.user_l1_sensitivity(adjacency)
    if adjacency == "add-remove":
        assert (
            change_norm(one, other)
            == query.user_sensitivity(adjacency)
            == (200 if keys is None else 381)
        )


@pytest.mark.parametrize("keys", [None, AB], ids=["one place", "moves"])
def test_one_period_under_a_cap_of_the_whole_stream(keys: Any) -> None:
    """Whoever loses the events of a period has later ones counted in their place: more than a user
    who is absent."""
    query = Occupancy(keys, max_events=3)
    found = 0.0
    for events in product([(), *((one,) for one in places(query))], repeat=6):
        ticks = [[("u", where) for where in step] for step in events]
        rows = [encoded(query, stream) for stream in (ticks, [ticks[0], [], [], *ticks[3:]])]
        found = max(found, float(np.square(rows[0] - rows[1]).sum()))
    assert query.user_sensitivity("add-remove", falling=True) < found
    assert found <= query.user_sensitivity("add-remove", True, falling=True)


def one_period(query: Occupancy, ticks: int, period: int, adjacency: Adjacency) -> Any:
    """The changes of all neighbours that differ in one period of `u`: absent, or anything there
    under a new id.

    The streams have no other events, which would cancel.
    """
    own = list(histories(query, ticks, "u"))
    found = []
    for begin in range(0, ticks, period):
        inside = range(begin, min(begin + period, ticks))
        theirs = [np.zeros((ticks, query.cells), np.int64)]
        if adjacency == "replace":
            new = [
                one
                for one in histories(query, ticks, "w")
                if not any(one[:begin] + one[inside.stop :])
            ]
            theirs = list(np.unique([encoded(query, one) for one in new], axis=0))
        changes = []
        for one in own:
            without = [[] if tick in inside else events for tick, events in enumerate(one)]
            changes.append(encoded(query, one) - encoded(query, without))
        changes = list(np.unique(changes, axis=0))
        found.append(np.asarray([one - other for one, other in product(changes, theirs)]))
    return np.unique(np.concatenate(found), axis=0)


OF_PERIODS = [Occupancy(max_events=k) for k in (1, 2, 3)] + [
    Occupancy(AB, max_events=k) for k in (1, 2)
]


@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
@pytest.mark.parametrize("query", OF_PERIODS, ids=repr)
def test_one_period_by_enumeration(query: Occupancy, adjacency: Adjacency) -> None:
    """T = 4: under replace three histories are involved, and the claims of two are beaten."""
    ticks = 4
    changes = np.concatenate([one_period(query, ticks, period, adjacency) for period in (1, 2, 3)])
    claim = query.user_sensitivity(adjacency, True, falling=True)
    norms = {}
    for name in FALLING:
        R = RIGHT[name, ticks]
        worst = float(np.square(np.einsum("st,ptc->psc", R, changes)).sum(axis=(1, 2)).max())
        norms[name] = worst / float(np.square(R).sum(axis=0).max())
        assert norms[name] <= claim * (1 + 1e-9), name
    apart = np.abs(changes).sum(axis=(1, 2)).max()
    assert apart <= query.user_l1_sensitivity(adjacency, True)
    values = np.square(changes.cumsum(axis=1)).sum(axis=2).max()
    assert values <= query.user_sensitivity(adjacency, True, values=True)
    positive, negative = (np.clip(sign * changes, 0, None).sum(axis=1) for sign in (1, -1))
    assert (positive**2 + negative**2).sum(axis=1).max() <= query.user_sensitivity(adjacency, True)
    if adjacency == "add-remove":
        return
    assert values > query.user_sensitivity("replace", values=True), (
        "planted: the claim of two histories"
    )
    if query.parameters()["max_events"] == 1:  # four ticks are enough for the other claims
        assert apart > query.user_l1_sensitivity("replace")
        for name in ("fresh", "balanced", "binary-tree"):
            assert norms[name] > query.user_sensitivity("replace", falling=True)


def test_the_change_of_a_period_is_reached() -> None:
    """All three histories change as often as they may, and the numbers inside differ by as much as
    they may."""
    for keys, v2 in ((None, 4), (AB, 5)):
        query = Occupancy(keys, max_events=3)
        here, there = ("in", "out") if keys is None else ("a", "b")
        turns = [here, there, here]
        rows = np.zeros((9, query.cells), np.int64)
        # with the period, the new id in it, without it
        for sign, begin in ((1, 0), (-1, 3), (-1, 6)):
            ticks: list[Any] = [[] for _ in range(9)]
            ticks[begin : begin + 3] = [[("u", where)] for where in turns]
            rows += sign * encoded(query, ticks)
        assert np.abs(rows).sum() == query.user_l1_sensitivity("replace", True)
        free = Occupancy(keys)
        before = [[("u", "in" if keys is None else "b")], [("u", "out" if keys is None else "a")]]
        other = [before[0], [("w", before[0][0][1])]]
        inside = (encoded(free, before) - encoded(free, other)).cumsum(axis=0)
        assert (
            np.square(inside).sum(axis=1).max()
            == v2
            == free.user_sensitivity("replace", True, values=True)
        )


class HalfTheMoves(Occupancy):
    """Planted: moves between keys counted as one change, which is the claim without keys."""

    def user_sensitivity(self, adjacency: Adjacency, *more: Any, **kinds: Any) -> float:
        return Occupancy(max_events=self._most).user_sensitivity(adjacency, *more, **kinds)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
def test_the_claim_without_keys_is_beaten_by_moves(adjacency: Adjacency) -> None:
    query = HalfTheMoves(AB, max_events=3)
    own = unique_rows(query, 4)
    others = own if adjacency == "replace" else [np.zeros_like(own[0])]
    worst = max(np.square(one - other).sum() for one, other in product(own, others))
    assert worst > query.user_sensitivity(adjacency, falling=True)
    assert worst == Occupancy(AB, max_events=3).user_sensitivity(adjacency, falling=True)


class Unproved(Optimal):
    """A factorization of which nobody knows whether its Gram matrix falls."""

    def __init__(self, horizon: int) -> None:
        super().__init__(horizon)
        self.falling_gram = False


def test_smaller_claims_are_used_only_where_they_are_proved() -> None:
    query, free = Occupancy(max_events=20), Occupancy()
    balanced = factorization("balanced", 8)
    assert sensitivity_on(Unproved(8), query, "add-remove", "user") == 200
    assert sensitivity_on(balanced, query, "add-remove", "user") == 20
    assert sensitivity_on(balanced, query, "replace", "user") == 78
    assert sensitivity_on(Direct(8), query, "add-remove", "user") == 1
    assert sensitivity_on(Direct(8), Occupancy(AB), "replace", "user") == 2
    assert sensitivity_on(balanced, query, "add-remove") == 5
    assert sensitivity_on(Direct(8), free, "add-remove", "user") == 1
    for engine in (balanced, Unproved(8)):
        with pytest.raises(ParameterError, match="one user can change"):
            sensitivity_on(engine, free, "add-remove", "user")
    with pytest.raises(ParameterError, match="one user can change"):
        Stream(free, USERS, 8, "balanced")
    with pytest.raises(ParameterError, match="one user can change"):
        Stream(free, USERS, None)
    with pytest.raises(ParameterError, match="max_events"):
        Stream(free, Budget(1.0, 0.0, unit="user"), 8)


def test_noise_is_calibrated_to_the_unit() -> None:
    c = Stream(Count(), Budget(1.0, 1e-6), 16, "balanced").sigma
    for query, budget, S in [
        (Occupancy(), Budget(1.0, 1e-6), 2),
        (Occupancy(AB), Budget(1.0, 1e-6), 4),
        (Occupancy(AB), Budget(1.0, 1e-6, adjacency="replace"), 16),
        (Occupancy(max_events=3), USERS, 3),
        (Occupancy(AB, max_events=3), USERS, 5),
        (Occupancy(AB, max_events=3), Budget(1.0, 1e-6, adjacency="replace", unit="user"), 18),
    ]:
        assert Stream(query, budget, 16, "balanced").sigma == pytest.approx(
            c * np.sqrt(S), rel=1e-9
        )
    with pytest.raises(ParameterError, match="any number of events"):
        Stream(Occupancy(max_events=3), Budget(1.0, 1e-6, unit="user", max_events=3), 16)


def test_pure_noise_is_calibrated_to_the_unit() -> None:
    tree = "pure-binary"
    one = Stream(Count(), Budget(0.1, 0.0), 16, tree).sigma
    for query, unit, l1 in [
        (Occupancy(), "event", 2),
        (Occupancy(max_events=7), "user", 7),
        (Occupancy(AB), "event", 4),
    ]:
        assert Stream(query, Budget(0.1, 0.0, unit=unit), 16, tree).sigma == pytest.approx(
            l1 * one, rel=0.01
        )  # type: ignore[arg-type]


def test_twenty_changes_in_a_year_cost_a_fifth_of_the_square_rule() -> None:
    found = plan(USERS, 365, Occupancy(max_events=20), names=("balanced", "direct"))
    best = {row.name: row.worst_std for row in found.rows}
    assert found.squared_sensitivity == 20
    assert best["balanced"] <= 50.5
    square = (
        plan(Budget(1.0, 1e-6, unit="user", max_events=20), 365, Count(), names=("balanced",))
        .rows[0]
        .worst_std
    )
    assert square > 4.4 * best["balanced"]
    assert Stream(Occupancy(max_events=20), USERS, 365).std([240])[0, 0] == pytest.approx(
        best["balanced"]
    )
    # few ticks: noise on the numbers themselves
    few = choose_engine(Occupancy(max_events=20), USERS, 24, None)
    assert few.name == "direct"
    free = plan(USERS, 365, Occupancy())
    assert [row.name for row in free.rows] == ["direct"]
    assert Stream(Occupancy(), USERS, 365).std([1])[0, 0] == pytest.approx(free.rows[0].worst_std)


# -- streams ---------------------------------------------------------------------------------------


def test_a_stream_goes_on_after_a_restart() -> None:
    query = Occupancy(AB, max_events=3)
    stream = Stream(query, USERS, 16)
    release = stream.step([("ann", "a")] * 2 + [("bob", "b")])
    assert (
        "everything under the id of any person (however many events that is)" in release.guarantee
    )
    blob = stream.snapshot()
    rest = [[("ann", "b"), ("bob", "out")], [("ann", "a"), ("cyd", "b")]]
    before = stream.run(rest)
    assert before.between(3, 4)[0].shape == (2,)
    with pytest.raises(ParameterError, match="not a sum over ticks"):
        before.per_tick()
    stream.close()
    again = Stream.restore(blob)
    assert np.array_equal(again.run(rest).rows, before.rows)
    state = query.encode(query.initial_state(), [("ann", "a"), ("bob", "b"), ("bob", "out")])[1]
    dumped = query.dump_state(state)
    assert (
        query.load_state(dumped)
        == state
        == {"inside": {"ann": "a"}, "events": {"ann": 1, "bob": 2}}
    )
    query.encode(state, [("bob", "a")])
    assert dumped == {"inside": {"ann": "a"}, "events": {"ann": 1, "bob": 2}}


def test_a_refused_run_leaves_nobody_inside() -> None:
    streams = [smooth_stream(Occupancy(), USERS, 16, "direct", seed=1) for _ in range(2)]
    with pytest.raises(InputError):
        streams[0].run([[("ann", "in")], [7]])
    one, other = (stream.step([("bob", "in")]).values for stream in streams)
    assert np.array_equal(one, other)


def test_many_events_of_one_user_beyond_the_cap_are_ignored() -> None:
    ticks = [[("ann", "in"), ("ann", "out")] * 500 + [("ann", "in")]] * 4
    once = [[("ann", "in"), ("ann", "out"), ("ann", "in")], [], [], []]
    rows = [
        smooth_stream(Occupancy(max_events=3), USERS, 4, seed=1).run(run).rows
        for run in (ticks, once)
    ]
    assert np.array_equal(rows[0], rows[1])


@pytest.mark.parametrize("order", [False, True])
def test_every_row_of_a_file_counts_in_its_order(order: bool, tmp_path: Path) -> None:
    """A person comes, leaves and comes again within one tick: no row is a repetition that may be
    left out."""
    rows = [
        ("ann", "a"),
        ("ann", "out"),
        ("ann", "a"),
        ("bob", "b"),
        ("bob", "b"),
        ("bob", "out"),
        ("bob", "b"),
    ]
    lines = [
        f"2026-01-01T00:{minute:02d}:00Z,{who},{key},{minute}"
        for minute, (who, key) in enumerate(rows)
    ]
    if order:  # one time for all, in another order of lines
        lines = [line[:14] + "00" + line[16:] for line in lines][::-1]
    path, out = tmp_path / "events.csv", tmp_path / "out.csv"
    path.write_text("\n".join(["ts,who,ward,n", *lines]) + "\n", "utf-8")
    columns = {"time": "ts", "user": "who", "key": "ward", **({"order": "n"} if order else {})}
    table = {
        "name": "wards",
        "query": {"name": "occupancy", "parameters": {"keys": AB, "max_events": 3}},
        "budget": {"epsilon": 1, "delta": 1e-6, "unit": "user"},
        "tick": "1h",
        "start": "2026-01-01T00:00:00Z",
        "zone": "UTC",
        "horizon": 4,
        "columns": columns,
    }
    declaration = StreamDeclaration.from_dict(table)
    secret = Secret.from_hex("5a" * 32)
    release_file(
        Job(str(path), declaration, str(out), declaration.schedule.start_of(2), secret=secret)
    )
    found = [float(line.split(",")[3]) for line in out.read_text("utf-8").splitlines()[1:3]]
    expected = declaration.build(secret=secret, replay=True).step(rows).values
    assert found == expected.tolist()
    once = declaration.build(secret=secret, replay=True).step(list(dict.fromkeys(rows))).values
    assert (expected - once).tolist() == [1, 0]
    with pytest.raises(ParameterError, match="needs the column `key`"):
        StreamDeclaration.from_dict({**table, "columns": {"time": "ts", "user": "who"}})
