"""PrefixQuery, the generators of neighbours, and the audit that refutes a sensitivity that is too
small."""

from __future__ import annotations

import itertools
import json
import sys
from typing import Any

import numpy as np
import pytest

from evercount import Budget, Stream
from evercount.audit.sensitivity import SensitivityReport, Universe, audit_sensitivity, whole_ticks
from evercount.declarations.declaration import StreamDeclaration
from evercount.engine.snapshot_format import pack, unpack
from evercount.errors import InputError, ParameterError, SnapshotError, TooLarge
from evercount.queries import prefix, register_encoder
from evercount.queries.histogram import Histogram
from evercount.queries.prefix import PrefixQuery
from evercount.queries.words import Substrings
from neighbouring_streams import (
    all_neighbours,
    all_streams,
    change_norm,
    count_pairs,
    factored_norm,
    neighbours_of,
    random_neighbours,
    worst_pair,
)


def parity(events: Any) -> list[int]:
    """Even and odd events."""
    return [sum(e % 2 == 0 for e in events), sum(e % 2 for e in events)]


def ups_and_downs(state: dict[str, int], events: Any) -> tuple[list[int], dict[str, int]]:
    """Ticks at which the value rose: one event can change two of them, in opposite directions."""
    rises = 0
    for event in events:
        if not isinstance(event, int):
            raise InputError("not a number")
        rises += event > state["last"]
        state["last"] = event  # in place, on purpose: the query must protect the old state
    return [rises], state


class Holder:
    @staticmethod
    def encode(events: Any) -> list[int]:
        return [len(events)]


EVENS = PrefixQuery(parity, 2, {"add-remove": 1, "replace": 2})
RISES = PrefixQuery(ups_and_downs, 1, {"replace": 4}, state={"last": 0})


# -- the query -------------------------------------------------------------------------------------


def test_encoder_without_state() -> None:
    row, state = EVENS.encode(None, [1, 2, 4])
    assert row.tolist() == [2, 1]
    assert row.dtype == np.int64
    assert state is None
    assert EVENS.labels == ("0", "1")
    assert PrefixQuery(parity, 2, {"replace": 2}, labels=["even", "odd"]).labels == ("even", "odd")


def test_encoder_with_state_cannot_spoil_the_old_state() -> None:
    old = RISES.initial_state()
    row, new = RISES.encode(old, [3, 1, 2])
    assert row.tolist() == [2]
    assert (old, new) == ({"last": 0}, {"last": 2})
    with pytest.raises(InputError):
        RISES.encode(new, [9, "x"])
    assert new == {"last": 2}
    assert RISES.initial_state() == {"last": 0}


@pytest.mark.parametrize(
    "wrong", [[1], [[1, 2]], [0.5, 1], [float("nan"), 0], ["a", "b"], [2**60, 0], [1j, 0]]
)
def test_what_the_encoder_returns_is_checked(wrong: Any) -> None:
    with pytest.raises(InputError, match="the encoder returned"):
        PrefixQuery(lambda events: wrong, 2, {"replace": 1}).encode(None, [])


def test_an_encoder_of_fractions_is_told_what_to_do() -> None:
    with pytest.raises(InputError, match="choose a finer grid and round"):
        PrefixQuery(lambda events: [0.5], 1, {"replace": 1}).encode(None, [])


def test_whole_floats_and_booleans_are_taken() -> None:
    for vector in ([1.0, -2.0], np.array([True, False])):
        assert (
            PrefixQuery(lambda events, v=vector: v, 2, {"replace": 1}).encode(None, [])[0].dtype
            == np.int64
        )
    with pytest.raises(InputError, match="next state"):
        PrefixQuery(lambda state, events: [1], 1, {"replace": 1}, state=0).encode(0, [])


def test_bad_parameters() -> None:
    bad: list[dict[str, Any]] = [
        {"encode": 3},
        {"cells": 0},
        {"sensitivity": {}},
        {"sensitivity": 2},
        {"sensitivity": {"swap": 1}},
        {"sensitivity": {"replace": 0}},
        {"sensitivity": {"replace": float("inf")}},
        {"grid": 0},
        {"state": {1, 2}},
        {"labels": ["one"]},
        {"labels": "ab"},
    ]
    for arguments in bad:
        with pytest.raises(ParameterError):
            PrefixQuery(
                **{"encode": parity, "cells": 2, "sensitivity": {"replace": 2}, **arguments}
            )
    with pytest.raises(TooLarge):
        PrefixQuery(parity, 10**13, {"replace": 2})
    with pytest.raises(ParameterError, match="no sensitivity for 'add-remove'"):
        RISES.squared_sensitivity("add-remove")


@pytest.fixture
def encoders(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The registry, empty; what a test registers is forgotten after it."""
    empty: dict[str, Any] = {}
    monkeypatch.setattr(prefix, "_ENCODERS", empty)
    return empty


def test_identity_by_registered_name(encoders: dict[str, Any]) -> None:
    register_encoder("parity")(parity)
    register_encoder("rises")(ups_and_downs)
    register_encoder("of a class")(Holder.encode)
    for query in (EVENS, RISES, PrefixQuery(Holder.encode, 1, {"add-remove": 1}, grid=0.5)):
        assert PrefixQuery(**json.loads(json.dumps(query.parameters()))) == query
    assert EVENS.parameters()["encode"] == "parity"
    local = PrefixQuery(lambda events: [1], 1, {"replace": 1})
    same_name = PrefixQuery(lambda events: [2], 1, {"replace": 1})
    assert local.parameters() == same_name.parameters()
    assert local != same_name
    with pytest.raises(ParameterError, match="no encoder is registered"):
        PrefixQuery(**local.parameters())


def test_a_name_stands_for_one_encoder(encoders: dict[str, Any]) -> None:
    register_encoder("sums")(parity)
    assert register_encoder("sums")(parity) is parity, "a module may be imported again"
    with pytest.raises(ParameterError, match="is taken"):
        register_encoder("sums")(ups_and_downs)
    register_encoder("lambda")(lambda events: [1])
    with pytest.raises(ParameterError, match="is taken"):
        register_encoder("lambda")(lambda events: [2])
    for name in ("", "\u202eevil", 3):
        with pytest.raises(ParameterError):
            register_encoder(name)(parity)  # type: ignore[call-overload]
    with pytest.raises(ParameterError, match="a function"):
        register_encoder("number")(3)  # type: ignore[type-var]


NAMES = [
    "subprocess:getoutput",
    "os:system",
    "builtins:eval",
    "this:s",
    "os:system.__call__",
    "nowhere:f",
    "nocolon",
    "json:decoder",
    "test_queries_prefix:parity",
    "test_queries_prefix:Holder.encode",
    "",
    ":",
]


@pytest.mark.parametrize("name", NAMES)
def test_no_name_is_resolved_but_those_of_registered_encoders(
    encoders: dict[str, Any], name: str
) -> None:
    """By the constructor, by a declaration (HTTP, streams.toml), by a snapshot: loaded or not, the
    name is refused."""
    assert "this" not in sys.modules
    parameters = {"encode": name, "cells": 1, "sensitivity": {"add-remove": 1}}
    with pytest.raises(ParameterError, match="no encoder is registered"):
        PrefixQuery(**parameters)  # type: ignore[arg-type]
    table = {"name": "x", "query": {"name": "prefix", "parameters": parameters}}
    with pytest.raises(ParameterError, match="no encoder is registered"):
        StreamDeclaration.from_dict({**table, "budget": {"epsilon": 1, "delta": 1e-9}})
    data = unpack(
        Stream(PrefixQuery(Holder.encode, 1, {"add-remove": 1}), Budget(1.0, 1e-9), 8).snapshot()
    )
    data["query"]["parameters"]["encode"] = name
    with pytest.raises(SnapshotError, match="no encoder is registered"):
        Stream.restore(pack(data))
    assert "this" not in sys.modules


def test_snapshots_that_name_a_path_are_restored_once_that_path_is_registered(
    encoders: dict[str, Any],
) -> None:
    stream = Stream(EVENS, Budget(1.0, 1e-9), 8)
    stream.step([1, 2])
    blob = stream.snapshot()
    assert unpack(blob)["query"]["parameters"]["encode"] == "test_queries_prefix:parity"
    with pytest.raises(SnapshotError, match="register_encoder"):
        Stream.restore(blob)
    register_encoder("test_queries_prefix:parity")(parity)
    expected = stream.step([3]).values
    assert np.array_equal(Stream.restore(blob).step([3]).values, expected)


# -- neighbours and norms --------------------------------------------------------------------------


def test_all_neighbours_are_all() -> None:
    for adjacency, ways in (("add-remove", 1), ("replace", 2)):
        pairs = list(all_neighbours("abc", 3, adjacency))
        assert len(pairs) == len(set(pairs)) == count_pairs("abc", 3, adjacency) == 3**3 * 3 * ways
        crowded = list(all_neighbours("abc", 2, adjacency, per_tick=2))
        assert len(crowded) == count_pairs("abc", 2, adjacency, per_tick=2) == 3**4 * 4 * ways
    assert len(list(all_streams("ab", 3))) == 8
    assert set(neighbours_of((("a",), ("b",)), "ab", "replace")) == {
        (("b",), ("b",)),
        (("a",), ("a",)),
    }
    assert set(neighbours_of((("a",), ("b",)), "ab", "add-remove")) == {((), ("b",)), (("a",), ())}
    assert set(neighbours_of((("a",),), "ab", "add-remove", noop=None)) == {((None,),)}
    assert set(neighbours_of((("a", "b"),), "ab", "add-remove", changed=2)) == {((),)}


def test_random_neighbours_are_neighbours() -> None:
    for adjacency in ("add-remove", "replace"):
        pairs = list(random_neighbours("abc", 5, adjacency, 200, per_tick=2, seed=1))
        assert len(pairs) == 200
        for one, other in pairs:
            assert other in set(neighbours_of(one, "abc", adjacency))
        assert pairs == list(random_neighbours("abc", 5, adjacency, 200, per_tick=2, seed=1))


def test_change_norm() -> None:
    one, other = np.array([[0, 1], [0, 1], [0, 0]]), np.array([[2, 0], [-1, 0], [1, 0]])
    assert change_norm(one, other) == 3**2 + 1**2 + 2**2
    assert change_norm(other, one) == change_norm(one, other)
    assert change_norm(one, other, grid=0.5) == 14 / 4
    R = np.tril(np.ones((3, 3)))
    assert factored_norm(R, one, other) == 4 + 1 + 4 + 1 + 4 + 4
    with pytest.raises(ParameterError):
        change_norm(one, other[:2])


def test_change_norm_bounds_the_factored_norm() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        R = np.abs(rng.normal(size=(6, 6)))
        X, Y = rng.integers(-2, 3, (2, 6, 4))
        c2 = (R**2).sum(axis=0).max()
        assert factored_norm(R, X, Y) <= c2 * change_norm(X, Y) * (1 + 1e-12)


def test_illegal_streams_are_no_neighbours() -> None:
    pairs = iter([(((0,),), ((7,),)), (((0,),), ((1,),))])
    worst = worst_pair(Histogram(2), pairs)
    assert (worst.value, worst.pair, worst.tried) == (2.0, (((0,),), ((1,),)), 2)


# -- attacks on declared sensitivities -------------------------------------------------------------


def audited(
    query: PrefixQuery | Substrings, events: Any, ticks: int, adjacency: Any, **rest: Any
) -> SensitivityReport:
    return audit_sensitivity(
        query, rest.pop("R", {}), adjacency, ticks, Universe(tuple(events), merge=False), **rest
    )


def test_the_audit_accepts_what_is_true_and_is_exhaustive() -> None:
    for adjacency in ("add-remove", "replace"):
        report = audited(EVENS, [1, 2, 3], 3, adjacency)
        assert report.exhaustive
        assert report.holds
        assert report.norm == report.S == EVENS.squared_sensitivity(adjacency)
        # a replaced event makes each pair in two orders
        once = 1 if adjacency == "add-remove" else 2
        assert report.pairs == count_pairs([1, 2, 3], 3, adjacency) // once
    assert audited(RISES, [1, 2, 3], 4, "replace").holds


def test_the_audit_catches_a_sensitivity_that_is_too_small() -> None:
    small = PrefixQuery(parity, 2, {"replace": 1})
    report = audited(small, [1, 2], 2, "replace")
    assert not report.holds
    assert report.norm == 2
    assert report.pair is not None
    one, other = (small.encode_run(None, stream)[0] for stream in report.pair)
    assert change_norm(one, other) == report.norm
    stateful = PrefixQuery(ups_and_downs, 1, {"replace": 1.9}, state={"last": 0})
    assert not audited(stateful, [1, 2, 3], 4, "replace").holds


@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
@pytest.mark.parametrize(("ticks", "per_tick"), [(3, 1), (2, 2), (1, 3)])
def test_whole_ticks_are_searched_as_plain_loops_search_them(
    adjacency: Any, ticks: int, per_tick: int
) -> None:
    """Two events of one tick are not two ticks: an encoder that looks at the whole tick tells them
    apart."""
    events = [1, 2, 4]

    def looks_at_all(tick: Any) -> list[int]:
        return [sum((-1) ** place * event for place, event in enumerate(tick)), len(set(tick)) ** 2]

    query = PrefixQuery(looks_at_all, 2, {"add-remove": 1, "replace": 1})
    report = audit_sensitivity(query, {}, adjacency, ticks, whole_ticks(events, per_tick))
    tick = [made for size in range(per_tick + 1) for made in itertools.product(events, repeat=size)]
    streams = itertools.product(tick, repeat=ticks)
    pairs = (
        (stream, other) for stream in streams for other in neighbours_of(stream, events, adjacency)
    )
    assert report.exhaustive
    assert report.norm == worst_pair(query, pairs).value > 1
    assert report.pair is not None
    one, other = (query.encode_run(None, stream)[0] for stream in report.pair)
    assert change_norm(one, other) == report.norm


def test_events_that_look_alike_or_have_no_hash_are_told_apart() -> None:
    """Long arrays print the same; dicts and arrays are not hashable."""
    query = PrefixQuery(
        lambda events: [int(sum(event["n"].sum() for event in events))], 1, {"replace": 1.0}
    )
    spike = np.zeros(5000, int)
    spike[2500] = 50
    report = audit_sensitivity(
        query, {}, "replace", 2, whole_ticks([{"n": np.zeros(5000, int)}, {"n": spike}])
    )
    assert not report.holds
    assert report.norm == 2500


def test_whole_ticks_need_events_and_are_not_too_many() -> None:
    for events, per_tick, error in (
        ([], 2, ParameterError),
        ([1], 0, ParameterError),
        (range(10), 20, TooLarge),
    ):
        with pytest.raises(error):
            whole_ticks(events, per_tick)


def test_random_search_finds_the_papers_mistake() -> None:
    """ℓ² for substrings of length 3, on streams that are too many to enumerate."""
    text = Substrings("abcd", 3)

    class Paper(Substrings):
        def squared_sensitivity(self, adjacency: Any) -> float:
            return 9.0

    report = audited(Paper("abcd", 3), "abcd", 12, "replace", budget=300)
    assert not report.exhaustive
    assert not report.holds
    assert report.norm == text.squared_sensitivity("replace"), "and nothing beats the right claim"


def test_the_audit_with_a_factorization() -> None:
    f = np.cumprod([1.0] + [(2 * k - 1) / (2 * k) for k in range(1, 6)])
    R = np.array([[f[i - j] if i >= j else 0.0 for j in range(6)] for i in range(6)])
    (finding,) = audited(EVENS, [1, 2], 6, "replace", R=R).findings
    assert (
        finding.found
        == pytest.approx(finding.claimed)
        == pytest.approx(2 * float(np.linalg.norm(R[:, 0])) ** 2)
    )
    wrong = PrefixQuery(parity, 2, {"replace": 1.9})
    assert not audited(wrong, [1, 2], 6, "replace", R=R).findings[0].holds


def test_the_audit_refuses_nonsense() -> None:
    for events, ticks, adjacency in (([], 3, "replace"), ([1], 0, "replace"), ([1], 3, "swap")):
        with pytest.raises(ParameterError):
            audited(EVENS, events, ticks, adjacency)


@pytest.mark.parametrize(
    "state", [{1: 2}, {"a": (1, 2)}, {"a": float("nan")}, {"a": np.int64(1)}, {"a": {3}}, object()]
)
def test_a_state_that_a_snapshot_would_change_is_refused(state: Any) -> None:
    query = PrefixQuery(lambda old, events: ([0], state), 1, {"add-remove": 1.0}, state={"a": 1})
    with pytest.raises(InputError, match="JSON"):
        query.encode(query.initial_state(), [])
    fine = PrefixQuery(
        lambda old, events: ([0], {"a": [1, 2.5, None, True]}),
        1,
        {"add-remove": 1.0},
        state={"a": 1},
    )
    assert fine.encode(fine.initial_state(), [])[1] == {"a": [1, 2.5, None, True]}
    nothing = PrefixQuery(
        lambda old, events: ([int(old is None)], None), 1, {"add-remove": 1.0}, state="new"
    )
    row, state = nothing.encode("new", [])
    assert (row.tolist(), state) == ([0], None)
    assert nothing.encode(state, [])[0].tolist() == [1], (
        "null is a JSON value, and the encoder still has a state"
    )
