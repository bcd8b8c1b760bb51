"""The key of the noise is the whole declaration: every field of it is in the key, or is here with
the reason why not.

Two streams of one secret whose keys are the same have the same noise. If they count different
things, the difference of their releases is that of their data, without noise.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from inspect import signature
from itertools import combinations
from typing import Any

import numpy as np
import pandas as pd
import pytest

import evercount
from evercount import Budget, Count, Histogram, Ledger, Secret, Stream
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.fields import Columns
from evercount.errors import ParameterError
from evercount.factorizations import factorization
from evercount.mechanisms.noise_stream import declaration_fingerprint
from evercount.privacy import TimeRange
from evercount.queries import (
    EXAMPLE_PARAMETERS,
    QUERIES,
    DistinctUsers,
    PrefixQuery,
    Query,
    register_encoder,
)
from product_internals import noise_key

SECRET = Secret.from_hex("7d" * 32)

Change = dict[str, Any]


def key_of(stream: Stream) -> str:
    return noise_key(stream).hex()


# -- the fields of a declaration -------------------------------------------------------------------

PERSONS: Change = {
    "name": "visits",
    "query": {"name": "histogram", "parameters": {"keys": ["a", "b"]}},
    "budget": {"epsilon": 0.5, "delta": 1e-6, "unit": "user", "max_per_tick": 2, "period": "1w"},
    "tick": "1h",
    "zone": "Europe/Vienna",
    "start": "2026-01-05T00:00+01:00",
    "horizon": 1000,
    "columns": {"time": "when", "key": "region", "user": "who"},
    "noise_for": ["per-tick"],
}
EVENTS: Change = {
    **PERSONS,
    "budget": {"epsilon": 0.5, "delta": 1e-6},
    "columns": {"time": "when", "key": "region"},
}
CHAIN: Change = {
    **PERSONS,
    "budget": {"epsilon": 0.5, "delta": 1e-6, "unit": "user", "max_per_tick": 2, "max_ticks": 3},
    "factorization": "fresh",
}

IN_THE_KEY: list[tuple[str, Change, Change]] = [
    ("query", PERSONS, {"query": {"name": "histogram", "parameters": {"keys": ["b", "a"]}}}),
    ("query", PERSONS, {"query": {"name": "top-k", "parameters": {"keys": ["a", "b"]}}}),
    ("budget", PERSONS, {"budget": {**PERSONS["budget"], "max_per_tick": 3}}),
    ("tick", EVENTS, {"tick": "2h"}),
    ("tick", {**EVENTS, "tick": "24h"}, {"tick": "1d"}),
    ("start", PERSONS, {"start": "2026-01-05T01:00+01:00"}),
    ("zone", EVENTS, {"zone": "Europe/London"}),
    ("zone", PERSONS, {"zone": "Europe/London"}),
    ("zone", {**EVENTS, "tick": "1d"}, {"zone": "Europe/Berlin"}),
    ("zone", {**EVENTS, "columns": None}, {"zone": "UTC"}),
    ("horizon", PERSONS, {"horizon": 1001}),
    ("factorization", PERSONS, {"factorization": "square-root"}),
    ("columns", PERSONS, {"columns": {"time": "when", "key": "district", "user": "who"}}),
    ("columns", EVENTS, {"columns": None}),
    ("revise_for", EVENTS, {"late": "revise", "revise_for": 2, "noise_for": []}),
    (
        "revise_for",
        {**EVENTS, "late": "revise", "revise_for": 2, "noise_for": []},
        {"revise_for": 3},
    ),
    ("carry_caps", CHAIN, {"carry_caps": True}),
    ("postprocess", EVENTS, {"postprocess": ["nonnegative"]}),
    ("noise_for", PERSONS, {"noise_for": ["running"]}),
]
NOT_IN_THE_KEY: dict[str, tuple[Change, str]] = {
    "name": (
        {"name": "other"},
        (
            "it says nothing about events; the same data published twice under two names are one "
            "release, not two draws"
        ),
    ),
    "description": ({"description": "of all"}, "a text for readers"),
    "late": (
        {"late": "next"},
        "drop and next may change while the stream runs, and the stream goes on",
    ),
    "wait": ({"wait": "2h"}, "it may change while the stream runs"),
    "public": ({"public": True}, "who may read what is released"),
    "views": (
        {"views": ["last-24"]},
        "post-processing, which may change at any time; `noise_for` is in the key",
    ),
}


def built(table: Change) -> str:
    stream = StreamDeclaration.from_dict(table).build(secret=SECRET, replay=True)
    return key_of(stream)


def test_every_field_is_in_the_key_or_has_a_reason() -> None:
    known = {field.name for field in fields(StreamDeclaration) if field.init}
    inside = {name for name, _, _ in IN_THE_KEY}
    assert inside | NOT_IN_THE_KEY.keys() == known
    assert not inside & NOT_IN_THE_KEY.keys()
    for name, before, change in IN_THE_KEY:
        assert name in change
        assert built(before) != built({**before, **change}), (name, change)
    for name, (change, reason) in NOT_IN_THE_KEY.items():
        assert reason
        assert built(PERSONS) == built({**PERSONS, **change}), name


def test_a_manual_stream_has_no_zone_and_is_the_stream_of_the_library() -> None:
    manual = StreamDeclaration.from_dict(
        {"name": "m", "query": "count", "budget": {"epsilon": 1, "delta": 1e-6}, "horizon": 9}
    )
    plain = Stream(Count(), Budget(1, 1e-6), 9, secret=SECRET, replay=True)
    assert key_of(manual.build(secret=SECRET, replay=True)) == key_of(plain)


def test_a_declaration_takes_secrets_only() -> None:
    for table in (PERSONS, {**EVENTS, "columns": None}):
        with pytest.raises(ParameterError, match="secret must be"):
            StreamDeclaration.from_dict(table).build(secret="7d" * 32)  # type: ignore[arg-type]


ALL_COLUMNS = {
    "time": "t",
    "key": "k",
    "value": "v",
    "user": "u",
    "levels": ("a", "b"),
    "order": "o",
}


def test_every_column_is_in_the_key() -> None:
    """Of a declaration that no query fits: only the key is asked."""
    assert set(signature(Columns).parameters) == set(ALL_COLUMNS)
    declaration = StreamDeclaration.from_dict(EVENTS)

    def secret_of(columns: Change) -> str:
        return declaration._changed(columns=Columns(**columns)).noise_secret(SECRET).hex()

    keys = [secret_of(ALL_COLUMNS), secret_of({**ALL_COLUMNS, "key": ("k", "l")})]
    for name in ALL_COLUMNS:
        changed = ("a", "c") if name == "levels" else "other"
        keys.append(secret_of({**ALL_COLUMNS, name: changed}))
        if name not in ("time", "user"):
            keys.append(
                secret_of({one: column for one, column in ALL_COLUMNS.items() if one != name})
            )
    assert len(set(keys)) == len(keys)


# -- budgets, time ranges, arguments of a stream ---------------------------------------------------

BUDGET = Budget(0.5, 1e-6, unit="user", max_events=6, max_per_tick=2, max_ticks=3, period=7)
BUDGETS: Change = {
    "epsilon": 0.5 + 2**-53,
    "delta": 2e-6,
    "adjacency": "replace",
    "calibration": "classic",
    "max_events": 5,
    "max_per_tick": 1,
    "max_ticks": 2,
    "period": 14,
}


def test_every_field_of_a_budget_is_in_the_key() -> None:
    assert {field.name for field in fields(Budget)} == BUDGETS.keys() | {"unit", "period_ticks"}
    declared = {field.name: getattr(BUDGET, field.name) for field in fields(Budget)}
    budgets = [BUDGET, Budget(0.5, 1e-6)]  # its unit alone cannot change: caps are for users
    for name, value in BUDGETS.items():
        without = {"period_ticks": None} if name == "period" else {}
        budgets.append(Budget(**{**declared, **without, name: value}))
    keys = {
        key_of(Stream(Count(), budget, 100, "balanced", secret=SECRET, replay=True))
        for budget in budgets
    }
    assert len(keys) == len(budgets)
    weeks = [
        Budget(0.5, 1e-6, unit="user", max_per_tick=1, period="1w", period_ticks=ticks)
        for ticks in (168, 169)
    ]
    of_weeks = {
        key_of(
            Stream(Count(), week, 400, "balanced", secret=SECRET, replay=True, period_of=one_period)
        )
        for week in weeks
    }
    assert len(of_weeks) == len(weeks)


def one_period(tick: int) -> int:
    return 0


RANGE = TimeRange(0, 1000, "10", "7 UTC 0", "chain")
RANGES: list[TimeRange] = [
    RANGE,
    TimeRange(1, 1000, "10", "7 UTC 0", "chain"),
    TimeRange(0, 1000, "20", "7 UTC 0", "chain"),
    TimeRange(0, 1000, "10", "7 Europe/Vienna 0", "chain"),
    TimeRange(0, 1000, "10", "7 UTC 0", "another"),
    TimeRange(0, 1000, "10", "7 UTC 0"),
    TimeRange(0, 1000, "10", "", "7 UTC 0"),
    TimeRange(0, 1000, "10", "", "chain"),
    TimeRange(0, 1000, "10"),
]


def ranged(during: TimeRange | None) -> Stream:
    return Stream(Count(), Budget(1, 1e-6), 100, secret=SECRET, replay=True, during=during)


def test_every_field_of_a_time_range_but_its_end_is_in_the_key() -> None:
    """The end follows from the start and the horizon, but for changes in the rules of a zone."""
    assert {field.name for field in fields(TimeRange)} == {
        "start",
        "end",
        "ticks",
        "periods",
        "chain",
    }
    keys = {key_of(ranged(during)) for during in (None, *RANGES)}
    assert len(keys) == 1 + len(RANGES)
    assert key_of(ranged(TimeRange(0, 2000, "10", "7 UTC 0", "chain"))) in keys


WEEKS = {"budget": Budget(0.5, 1e-6, unit="user", max_per_tick=1, period="1w", period_ticks=7)}
STREAM_IN_THE_KEY: list[tuple[str, Change, Change]] = [
    ("query", {}, {"query": Histogram(1)}),
    ("budget", {}, {"budget": Budget(1, 2e-6)}),
    ("horizon", {}, {"horizon": 101}),
    ("factorization", {}, {"factorization": "square-root"}),
    ("secret", {}, {"secret": Secret.from_hex("7e" * 32)}),
    ("postprocess", {}, {"postprocess": ["integer"]}),
    ("views", {}, {"views": ["per-tick"]}),
    ("during", {}, {"during": RANGE}),
    ("revise_for", {}, {"revise_for": 3}),
    (
        "period_of",
        {**WEEKS, "period_of": lambda tick: (tick - 1) // 7},
        {"period_of": lambda tick: (tick + 2) // 7},
    ),
]
STREAM_NOT_IN_THE_KEY = {
    "replay": "a replay repeats the noise, and says that it must not be published",
    "ledger": "where the budget is spent",
    "part": (
        "the cells of all parts are numbered together: parts are the whole stream, and those that "
        "overlap refuse"
    ),
}
PLAIN: Change = {"query": Count(), "budget": Budget(1, 1e-6), "horizon": 100, "secret": SECRET}


def test_every_argument_of_a_stream_is_in_the_key_or_has_a_reason(tmp_path: Any) -> None:
    inside = {name for name, _, _ in STREAM_IN_THE_KEY}
    assert inside | STREAM_NOT_IN_THE_KEY.keys() == set(signature(Stream).parameters)
    for name, before, change in STREAM_IN_THE_KEY:
        one = key_of(Stream(**{**PLAIN, **before}, replay=True))
        other = key_of(Stream(**{**PLAIN, **before, **change}, replay=True))
        assert one != other, name
    with Ledger(Budget(1, 1e-6), tmp_path / "all.ledger") as ledger:
        alike = [
            Stream(**PLAIN, replay=True),
            Stream(**PLAIN, ledger=ledger),
            Stream(**PLAIN, part=range(1), replay=True),
        ]
    assert len({key_of(stream) for stream in alike}) == 1


def test_a_stream_that_goes_on_keeps_its_key() -> None:
    """Whatever a later version puts into the key of new streams."""
    stream = StreamDeclaration.from_dict(PERSONS).build(secret=SECRET)
    data, key = stream.dump(), key_of(stream)
    stream.close()
    data["noise"]["declaration"] = "of an earlier version"
    again = Stream.load(data, StreamDeclaration.from_dict(PERSONS).period_of)
    assert key_of(again) == key


# -- queries ---------------------------------------------------------------------------------------

START = [list(edge) for edge in combinations(range(6), 2)]
GRAPH: Change = {
    "vertices": 51,
    "stream": ("ignore-duplicates", {"stream": "insert", "max_degree": 5}),
    "max_degree": 7,
    "enforce_degree": (True, {"stream": "insert", "max_degree": 5}),
    "initial_edges": ([*START, [6, 7]], {"stream": "delete", "initial_edges": START}),
    "max_per_edge": (3, {"stream": "mixed"}),
}
"""Of each argument another value; in a tuple with the arguments that it needs beside it."""
OTHER_VALUES: dict[str, Change] = {
    "active-users": {"keys": ["a"], "max_keys": (2, {"keys": ["a", "b"]})},
    "average": {"low": -1.0, "high": 2.0, "grid": 0.5, "per": "event"},
    "count": {"most_per_tick": 5},
    "cuts": {"vertices": 51, "weights": "signed", "grid": 0.5, "swap": "same edge"},
    "discovered-keys": {"every": 2, "minimum": 2, "share": 0.25},
    "distinct-users": {
        "keys": ["a"],
        "max_keys": (2, {"keys": ["a", "b"]}),
        "total": (True, {"keys": ["a", "b"]}),
    },
    "episodes": {"alphabet": "abd", "max_length": 4, "weights": [1, 2, 3]},
    "substrings": {"alphabet": "abd", "max_length": 4, "weights": [1, 2, 3]},
    "histogram": {
        "keys": ["south", "north"],
        "max_keys_per_event": 2,
        "removals": True,
        "unknown": "other",
        "weights": {"north": 2},
        "added": ["east"],
    },
    "top-k": {
        "keys": ["a", "b", "c"],
        "k": 1,
        "max_keys_per_event": 2,
        "removals": True,
        "unknown": "other",
    },
    "k-stars": {**GRAPH, "k": 3},
    "high-degree": {**GRAPH, "tau": 4},
    "spanning-forest": {
        **GRAPH,
        "max_weight": 11,
        "initial_edges": ([[0, 1, 3]], {"stream": "delete", "initial_edges": [[0, 1, 2]]}),
    },
    "marginals": {"columns": [["a", "b"], ["c", "d"]], "tables": [[0, 1]], "weights": [1, 2, 1, 1]},
    "occupancy": {"keys": ["a"], "max_events": 21},
    "prefix": {
        "encode": "another encoder",
        "cells": 3,
        "sensitivity": {"add-remove": 2},
        "grid": 0.5,
        "state": 0,
        "labels": ["x", "y"],
    },
    "quantiles": {"low": 1.0, "high": 101.0, "bins": 32, "weights": [1, 1, 1, 1, 1, 1, 2]},
    "rollup": {
        "paths": [["a", "b"], ["a", "c"]],
        "weights": [1, 2, 1],
        "unknown": "other",
        "added": [[["x", "y"]]],
    },
    "sum": {"low": -1.0, "high": 2.0, "grid": 0.5},
}


@pytest.fixture
def encoders(monkeypatch: pytest.MonkeyPatch) -> None:
    from evercount.queries import prefix

    monkeypatch.setattr(prefix, "_ENCODERS", {})
    for name in ("a registered encoder", "another encoder"):
        register_encoder(name)(partial(_ones, name))


def _ones(name: str, events: Any) -> list[int]:
    return [len(events), len(name)]


def changed_queries(name: str) -> list[tuple[str, Query, Query]]:
    """The query of each other value of each argument, next to the one that it is compared with."""
    found = []
    for argument in signature(QUERIES[name]).parameters:
        value, more = OTHER_VALUES.get(name, GRAPH)[argument], {}
        if isinstance(value, tuple):
            value, more = value
        base = {**EXAMPLE_PARAMETERS.get(name, {}), **more}
        found.append((argument, QUERIES[name](**base), QUERIES[name](**{**base, argument: value})))
    return found


@pytest.mark.parametrize("name", sorted(QUERIES))
@pytest.mark.usefixtures("encoders")
def test_every_argument_of_a_query_is_in_its_identity(name: str) -> None:
    prints = []
    for argument, before, after in changed_queries(name):
        one, other = (declaration_fingerprint(of(query), ENGINE, 1.0) for query in (before, after))
        assert one != other, argument
        prints.append(other)
    assert len(set(prints)) == len(prints)


ENGINE = factorization("square-root", 8)


def of(query: Query) -> Change:
    return {"query": query.identity()}


def test_queries_of_equal_parameters_differ() -> None:
    """Four queries that count other things, with the same words."""
    same = {"keys": ["a", "b"]}
    names = ("histogram", "distinct-users", "active-users", "occupancy")
    assert (
        len({declaration_fingerprint(of(QUERIES[name](**same)), ENGINE, 1.0) for name in names})
        == 4
    )


def shifted(by: int) -> Callable[[Any], list[int]]:
    return lambda events: [sum(event + by for event in events)]


class Scaled:
    def __init__(self, by: int) -> None:
        self.by = by

    def __call__(self, events: Any) -> list[int]:
        return [self.by * len(events)]

    def method(self, events: Any) -> list[int]:
        return [self.by * len(events)]


def test_own_encoders_of_one_path_have_independent_noise() -> None:
    """Lambdas of one line, closures, defaults and objects have one name; a set has another order in
    every process."""
    adding, doubling = (lambda events: [len(events)]), (lambda events: [2 * len(events)])
    weighted = [lambda events, by=by: [by * len(events)] for by in (1, 2)]
    encoders: list[Callable[..., Any]] = [
        adding,
        doubling,
        *weighted,
        shifted(1),
        shifted(2),
        Scaled(1),
        Scaled(2),
    ]
    encoders += [Scaled(1).method, Scaled(2).method, partial(_ones, "a"), partial(_ones, "b")]
    keys = {
        key_of(
            Stream(
                PrefixQuery(one, 1, {"add-remove": 1}),
                Budget(1, 1e-6),
                9,
                secret=SECRET,
                replay=True,
            )
        )
        for one in encoders
    }
    assert len(keys) == len(encoders)
    again = PrefixQuery(shifted(2), 1, {"add-remove": 1})
    assert key_of(Stream(again, Budget(1, 1e-6), 9, secret=SECRET, replay=True)) in keys, (
        "the same code, the same noise"
    )


def own_query(rest: int, weights: Any = ()) -> Query:
    class Own(Query[float]):
        name, cells = "own", 1

        def __init__(self, weights: Any = ()) -> None:
            self.weights = weights

        def encode(self, state: Any, events: Any) -> Any:
            return np.asarray([sum(event % 2 == rest for event in events)]), state

        def squared_sensitivity(self, adjacency: Any) -> float:
            return 1.0

    return Own(weights)


def test_own_queries_of_one_name_have_independent_noise() -> None:
    def key(query: Query) -> str:
        return key_of(Stream(query, Budget(1, 1e-6), 9, secret=SECRET, replay=True))

    assert key(own_query(0)) == key(own_query(0))
    assert key(own_query(0)) != key(own_query(1))
    long = np.zeros(2000)
    other = long.copy()
    other[1000] = 1  # where its text has dots
    assert repr(long) == repr(other)
    assert key(own_query(0, long)) != key(own_query(0, other))


# -- what is published -----------------------------------------------------------------------------


def rows(hour: int) -> pd.DataFrame:
    times = [f"2026-01-0{day} {hour:02d}:30" for day in range(5, 9) for _ in range(day)]
    place = np.arange(len(times))
    return pd.DataFrame({"t": times, "first": place % 2, "second": place % 3 % 2}).astype(
        {"first": str, "second": str}
    )


def test_two_releases_on_one_secret_do_not_differ_by_their_data() -> None:
    """The hole: two key columns of one file, published with one secret, had the same noise."""
    table = rows(8)
    common: Change = {
        "time": "t",
        "epsilon": 0.1,
        "delta": 1e-6,
        "every": "1d",
        "zone": "Europe/Vienna",
        "start": "2026-01-05",
        "end": "2026-01-09",
        "keys": ["0", "1"],
        "secret": SECRET,
    }
    released = [
        evercount.release(table, key=key, **common).numbers[:, 0] for key in ("first", "second")
    ]
    counts = []
    for key in ("first", "second"):
        counts.append(
            table.groupby([table.t.str[:10], key]).size().unstack(fill_value=0).to_numpy()
        )
    errors = [values - count for values, count in zip(released, counts, strict=True)]
    assert not np.allclose(released[0] - released[1], counts[0] - counts[1])
    assert not np.allclose(errors[0], errors[1])


def test_a_ledger_tells_streams_apart_as_their_noise_does() -> None:
    """The identity by which a store refuses a second stream with the same noise."""
    week = StreamDeclaration.from_dict(PERSONS)
    other = StreamDeclaration.from_dict(
        {**PERSONS, "columns": {**PERSONS["columns"], "key": "district"}}
    )
    prints = [one.build(secret=SECRET, replay=True).identity for one in (week, other, week)]
    assert prints[0] == prints[2] != prints[1]
    assert DistinctUsers().identity() == ["distinct-users", DistinctUsers().parameters()]
