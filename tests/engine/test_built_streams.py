"""Does the engine ask for the right number? Streams as they are built, in every way in, against
brute force.

`guaranteed_neighbours` enumerates what a budget protects, from the words of its guarantee. Here a
stream is built in each way, and what its noise hides is compared with the neighbours that lie
furthest apart: σ·L of Gaussian noise, the rate of Laplace noise. Then such a pair goes through the
same way, with one secret: the releases differ by what was enumerated, so the caps are those that
were enumerated, too.

What is covered: every query of the registry × `UNITS` × both adjacencies × δ = 0 and δ > 0 ×
`WAYS`. `ACCEPTED` and `why_refused` say which of them are refused, and that is tested too; a new
query fails here until it has a row.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import replace
from itertools import permutations, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evercount import ActiveUsers, Budget, DistinctUsers, Histogram, Quantiles, Stream, Sum
from evercount._validate import FloatArray
from evercount.declarations.declaration import StreamDeclaration
from evercount.engine import build
from evercount.errors import ParameterError
from evercount.factorizations.base import counting_matrix
from evercount.files.release_job import Job
from evercount.files.release_run import release_file
from evercount.noise import Secret
from evercount.privacy import Adjacency, gaussian
from evercount.queries import QUERIES, Occupancy, build_query
from evercount.queries.base import Query
from evercount.queries.graphs.graph_query import GraphQuery
from evercount.service.read_events import read_batch
from evercount.store import Accepted, Store, spending
from guaranteed_neighbours import Rows, T, increments, reach_of, ticks_of
from small_queries import SMALL, small
from state_reading import read_state
from stored import close_and_read

# -- what is covered -------------------------------------------------------------------------------

UNITS: dict[str, dict[str, Any]] = {
    "event": {},
    "id": {"unit": "user"},
    "id, 2 ticks": {"unit": "user", "max_ticks": 2},
    "id, period": {"unit": "user", "period": 2},
    "id, 1 tick of a period": {"unit": "user", "max_ticks": 1, "period": 3},
    "2 events": {"unit": "user", "max_events": 2},
    "1 event in each of 2 ticks": {"unit": "user", "max_per_tick": 1, "max_ticks": 2},
    "1 event in each tick of a period": {"unit": "user", "max_per_tick": 1, "period": 2},
    "2 events in 1 tick of a period": {
        "unit": "user",
        "max_per_tick": 2,
        "max_ticks": 1,
        "period": 3,
    },
}
OF_EVENTS = ("event", *(name for name in UNITS if "event" in name and name != "event"))
ACCEPTED: dict[str, tuple[str, ...]] = dict.fromkeys(QUERIES, OF_EVENTS) | {
    "distinct-users": ("event", "id", "id, period"),
    "active-users": ("event", "id", "id, 2 ticks", "id, period", "id, 1 tick of a period"),
    "occupancy": ("event", "id", "id, period"),
}
"""The units that each query accepts; all others are refused."""
BUDGETS = [*product(("add-remove", "replace"), (1e-6, 0.0))]

AB = ["a", "b"]
VARIANTS: dict[str, list[Query]] = {
    "sum": [Sum(-1, 2)],
    "histogram": [Histogram(AB), Histogram(AB, weights={"b": 3})],
    "quantiles": [Quantiles(0, 4, 4)],
    "distinct-users": [DistinctUsers(), DistinctUsers(AB)],
    "active-users": [ActiveUsers(), ActiveUsers(AB)],
    "occupancy": [
        Occupancy(max_events=1),
        Occupancy(max_events=2),
        Occupancy(AB, max_events=1),
        Occupancy(AB),
    ],
}
"""Queries with few events; of all others one with few vertices or letters."""
FEWER = {
    "vertices": 4,
    "alphabet": "ab",
    "max_length": 2,
    "max_weight": 2,
    "max_degree": 3,
    "tau": 2,
}


def variants(name: str) -> list[Query]:
    known = {**SMALL[name], **{key: FEWER[key] for key in FEWER if key in SMALL[name]}}
    return VARIANTS.get(name) or [build_query(name, known)]


# -- the ways in -----------------------------------------------------------------------------------

START = 1_767_225_600  # 2026-01-01T00:00:00Z
HOUR = 3600
SECRET = Secret.from_hex("5a" * 32)


def declared(query: Query, budget: Budget, name: str) -> StreamDeclaration:
    """A declaration of hours whose running totals are published."""
    rows, user = query.rows, budget.unit == "user" and query.people is None
    assert rows is not None
    columns: dict[str, Any] = {
        "time": "at",
        **{one: one for one in rows.columns if one != "levels"},
    }
    if rows.levels:
        columns["levels"] = [f"level {number}" for number in range(rows.levels)]
    if user:
        columns["user"] = "user"
    table = {
        "name": name,
        "query": {"name": query.name, "parameters": query.parameters()},
        "budget": {
            field: value for field, value in budget.to_dict().items() if field != "period_ticks"
        },
        "tick": "1h",
        "start": START,
        "zone": "UTC",
        "horizon": T,
        "columns": columns,
    }
    running = query.publishing.why_no_views is None
    return StreamDeclaration.from_dict({**table, **({"noise_for": ["running"]} if running else {})})


Way = Callable[[Query, Budget, Rows, Path], tuple[Stream, FloatArray]]
"""From rows to the stream that was built for them, and what it has published, shape (T,
outputs)."""


def in_python(
    query: Query, budget: Budget, rows: Rows, folder: Path, factorization: str | None = None
) -> Any:
    stream = Stream(query, budget, T, factorization, secret=SECRET, replay=True)
    users = [[user for user, _ in tick] for tick in rows]
    ticks = [ticks_of(query, tick) for tick in rows]
    if query.event_number is not None and budget.unit == "user":
        ticks = [None] * T
    named = {"users": users} if budget.unit == "user" and query.people is None else {}
    values = stream.run(ticks, **named).values.reshape(T, -1)
    stream.close()
    return stream, values


def fields_of(query: Query, user: str, event: Any) -> dict[str, Any]:
    """A row as a table has it, without its time."""
    rows = query.rows
    assert rows is not None
    if rows.levels:
        return {"user": user, **{f"level {number}": one for number, one in enumerate(event)}}
    key = event[0] if isinstance(event, tuple) else event
    return {"user": user, **{name: key for name in rows.columns if name != "user"}}


def in_files(query: Query, budget: Budget, rows: Rows, folder: Path) -> Any:
    declaration = declared(query, budget, "x")
    folder.mkdir(parents=True)
    assert declaration.columns is not None
    path, out = folder / "events.csv", folder / "out.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, declaration.columns.used, extrasaction="ignore")
        table.writeheader()
        for number, tick in enumerate(rows):
            for second, (user, event) in enumerate(tick):
                table.writerow(
                    {"at": START + number * HOUR + second, **fields_of(query, user, event)}
                )
    end = declaration.schedule.start_of(T + 1)
    release_file(Job(str(path), declaration, str(out), end, secret=SECRET))
    state = read_state(f"{out}.state")
    assert state is not None
    stream = Stream.load(state.stream, declaration.period_of)
    stream.close()
    return stream, state.numbers


def in_store(query: Query, budget: Budget, rows: Rows, folder: Path) -> Any:
    declaration = declared(query, budget, "x")
    folder.mkdir(parents=True)
    store = Store(folder / "a.db")
    try:
        live = store.declare(declaration, START, SECRET)
        published = []
        for number, tick in enumerate(rows):
            now = START + number * HOUR
            events = []
            for user, event in tick:
                fields = fields_of(query, user, event)
                named = budget.unit == "user" or query.people is not None
                who = {"user": fields.pop("user")} if named else {}
                fields.pop("user", None)
                path = [value for name, value in fields.items() if name.startswith("level ")]
                events.append({"time": now, **who, **({"path": path} if path else fields)})
            (answer,) = store.accept([read_batch(declaration, json.dumps(events).encode())], now)
            assert isinstance(answer, Accepted), answer
            published += close_and_read(store, live, 1)
        return live.stream, np.asarray([one["values"] for one in published])
    finally:
        store.close()


WAYS: dict[str, Way] = {"python": in_python, "files": in_files, "store": in_store}


def ways_of(query: Query) -> list[str]:
    """Events that are no rows of a table come from Python or over HTTP, which builds them as in
    Python."""
    return [*WAYS] if query.rows is not None else ["python"]


# -- what noise hides ------------------------------------------------------------------------------


def spent(stream: Stream) -> float:
    """What the budget's neighbours that lie furthest apart cost, over what the stream promises: δ,
    or ε where δ = 0."""
    reach, budget = reach_of(stream.query, stream.budget), stream.budget
    if budget.pure:
        rate = stream._errors.full_rate  # of one grid unit
        return rate * reach.l1 / stream.query.grid / budget.epsilon
    left = stream.factorization.dense(T)[0]
    triangular = np.linalg.cholesky(left @ left.T)  # noise of the same law
    apart = reach.norm(np.linalg.solve(triangular, counting_matrix(T))) ** 0.5
    if not apart:
        return 0.0
    return gaussian.delta_of(apart / stream.sigma * (1 - 1e-9), budget.epsilon) / budget.delta


def check(way: str, query: Query, budget: Budget, folder: Path, *factorization: str | None) -> None:
    """One combination: the noise hides all neighbours, and two of them are released as they were
    enumerated."""
    rows = ((),) * T
    reach = reach_of(query, budget)
    one, other = reach.pair or (rows, rows)
    stream, published = WAYS[way](query, budget, one, folder / "one", *factorization)
    assert spent(stream) <= 1 + 1e-9
    if reach.pair is None or not query.publishing.as_they_are or query.discovery is not None:
        return
    _, changed = WAYS[way](query, budget, other, folder / "other", *factorization)
    apart = increments(query, budget, one) - increments(query, budget, other)
    assert published.shape == changed.shape == apart.shape
    assert np.allclose(published - changed, apart.cumsum(axis=0), rtol=0, atol=1e-9)


PEOPLE = ("distinct-users", "active-users", "occupancy")


def combinations() -> Iterator[Any]:
    for name in QUERIES:
        for unit in ACCEPTED[name]:
            for way in ways_of(small(name)):
                slow = way != "python" and name not in PEOPLE
                yield pytest.param(
                    way, name, unit, id=f"{way}-{name}-{unit}", marks=[pytest.mark.slow] * slow
                )


def why_refused(query: Query, unit: str, adjacency: Adjacency, delta: float) -> str | None:
    """What the refusal of a combination says; None where a stream is built."""
    graph = query.parameters().get("stream") if isinstance(query, GraphQuery) else None
    if graph not in (None, "mixed") and unit != "event" and adjacency == "replace":
        return "protect users under adjacency='add-remove' only"
    if graph == "mixed" and not delta:
        return "no l1 sensitivity"
    if query.name == "discovered-keys" and not delta:
        return "declares no l1 sensitivity"
    if (
        isinstance(query, Occupancy)
        and query.parameters()["max_events"] is None
        and unit != "event"
        and not delta
    ):
        return "any number of times"
    return None


@pytest.mark.parametrize(("way", "name", "unit"), [*combinations()])
def test_noise_hides_every_neighbour(way: str, name: str, unit: str, tmp_path: Path) -> None:
    for number, query in enumerate(variants(name)):
        for adjacency, delta in BUDGETS:
            budget, folder = (
                Budget(1.0, delta, adjacency, **UNITS[unit]),
                tmp_path / f"{number} {adjacency} {delta}",
            )
            refused = why_refused(query, unit, adjacency, delta)
            if refused is None:
                check(way, query, budget, folder)
                continue
            with pytest.raises(ParameterError, match=refused):
                WAYS[way](query, budget, ((),) * T, folder)


@pytest.mark.parametrize("name", QUERIES)
def test_other_units_are_refused(name: str) -> None:
    """A query without a row in `ACCEPTED`, or a unit that nobody has enumerated, fails here."""
    for query, (unit, fields), (adjacency, delta) in product(
        variants(name), UNITS.items(), BUDGETS
    ):
        if unit not in ACCEPTED[name]:
            with pytest.raises(ParameterError):
                Stream(query, Budget(1.0, delta, adjacency, **fields), T)


@pytest.mark.parametrize(
    "unit", [unit for unit in UNITS if any(unit in ACCEPTED[name] for name in PEOPLE)]
)
@pytest.mark.parametrize("name", PEOPLE)
@pytest.mark.parametrize("noise", ["fresh", "balanced", "binary-tree", "direct"])
def test_noise_by_name_hides_every_neighbour(
    noise: str, name: str, unit: str, tmp_path: Path
) -> None:
    """What is claimed of a person differs between kinds of noise; few ticks have `direct` by
    default."""
    if unit not in ACCEPTED[name]:
        return
    for query, (adjacency, delta) in product(variants(name), BUDGETS):
        uncapped = (
            isinstance(query, Occupancy)
            and query.parameters()["max_events"] is None
            and unit != "event"
        )
        if (uncapped and noise != "direct") or (not delta and noise != "fresh"):
            continue
        if why_refused(query, unit, adjacency, delta) is None:
            check("python", query, Budget(1.0, delta, adjacency, **UNITS[unit]), tmp_path, noise)


# -- planted: the engine asks for another number ---------------------------------------------------


def plant_no_period(kind: type[Query]) -> Callable[[pytest.MonkeyPatch], None]:
    """The engine drops `period` where it asks for what a person changes."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        asked, asked_l1 = build.sensitivity_on, build.protected_l1

        def sensitivity_on(
            engine: Any, query: Query, adjacency: Any, unit: Any = "event", period: bool = False
        ) -> Any:
            return asked(engine, query, adjacency, unit, period and not isinstance(query, kind))

        def protected_l1(query: Query, budget: Budget, horizon: int | None) -> float:
            if isinstance(query, kind):
                budget = replace(budget, period=None, period_ticks=None)
            return asked_l1(query, budget, horizon)

        patch.setattr(build, "sensitivity_on", sensitivity_on)
        patch.setattr(build, "protected_l1", protected_l1)

    return plant


def plant_no_ticks(patch: pytest.MonkeyPatch) -> None:
    """Δ₁ of a person who counts in every tick is that of one tick."""
    asked = build.protected_l1

    def protected_l1(query: Query, budget: Budget, horizon: int | None) -> float:
        own = query.people
        return (
            asked(query, budget, horizon)
            if own is None
            else own.user_l1_sensitivity(budget.adjacency)
        )

    patch.setattr(build, "protected_l1", protected_l1)


PLANTED: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Query, str, tuple[float, ...]]] = {
    "distinct users without their period": (
        plant_no_period(DistinctUsers),
        DistinctUsers(),
        "id, period",
        (1e-6, 0.0),
    ),
    "occupancy without its period": (
        plant_no_period(Occupancy),
        Occupancy(max_events=1),
        "id, period",
        (1e-6, 0.0),
    ),
    "active users without their ticks": (plant_no_ticks, ActiveUsers(), "id, 2 ticks", (0.0,)),
    "active users without the ticks of their period": (
        plant_no_ticks,
        ActiveUsers(AB),
        "id, period",
        (0.0,),
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", PLANTED)
def test_planted_questions_are_caught(
    name: str, way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant, query, unit, deltas = PLANTED[name]
    plant(monkeypatch)
    for adjacency, delta in BUDGETS:
        if delta in deltas:
            budget = Budget(1.0, delta, adjacency, **UNITS[unit])
            stream, _ = WAYS[way](query, budget, ((),) * T, tmp_path / f"{adjacency} {delta}")
            assert spent(stream) > 1.01


# -- what the ledger of a store says of several streams together -----------------------------------

DAY = 24 * HOUR
STARTS = {"a": 0, "shifted": 1, "next": 4}
"""The first days of streams of four days with periods of two: one is shifted by a day, one follows
the first."""
DAYS = 8


def declare_three(store: Store) -> dict[str, Stream]:
    streams = {}
    for name, start in STARTS.items():
        budget = {
            "epsilon": 1,
            "delta": 0,
            "unit": "user",
            "max_per_tick": 1,
            "max_ticks": 1,
            "period": 2,
        }
        table = {"name": name, "query": "count", "budget": budget, "tick": "24h", "horizon": 4}
        declaration = StreamDeclaration.from_dict(
            {**table, "start": START + start * DAY, "zone": "UTC"}
        )
        streams[name] = store.declare(declaration, START).stream
    return streams


def counted_days(start: int, days: frozenset[int]) -> set[int]:
    """The days on which a person counts: the first one of each period."""
    periods = [range(begin, begin + 2) for begin in range(start, start + 4, 2)]
    return {min(inside) for period in periods if (inside := days & set(period))}


def true_epsilon(streams: Mapping[str, Stream], members: Collection[str]) -> float:
    """What the neighbours of any of these streams, which differ in one of its periods of one
    person, cost together."""
    found = 0.0
    for first in members:
        for begin in range(STARTS[first], STARTS[first] + 4, 2):
            for chosen in product((False, True), repeat=DAYS):
                days = frozenset(day for day in range(DAYS) if chosen[day])
                rest = days - {begin, begin + 1}
                apart = {
                    name: counted_days(STARTS[name], days) ^ counted_days(STARTS[name], rest)
                    for name in members
                }
                found = max(
                    found,
                    sum(streams[name]._errors.full_rate * len(apart[name]) for name in members),
                )
    return found


def check_ledger(store: Store, streams: Mapping[str, Stream]) -> None:
    """The streams can be given to the rows of the ledger so that each row states at least what its
    streams cost."""
    rows = store.ledger()["totals"]
    assert sum(row["streams"] for row in rows) == len(STARTS)
    ways = []
    for order in permutations(STARTS):
        rest = iter(order)
        members = [[next(rest) for _ in range(row["streams"])] for row in rows]
        pairs = zip(rows, members, strict=True)
        ways.append(
            all(true_epsilon(streams, names) <= row["epsilon"] * (1 + 1e-9) for row, names in pairs)
        )
    assert any(ways)


def test_the_ledger_of_a_store_states_what_streams_cost_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Planted: groups that forget in which periods persons are protected."""
    store = Store(tmp_path / "a.db")
    try:
        streams = declare_three(store)
        assert true_epsilon(streams, ["a", "next"]) == pytest.approx(1)
        assert true_epsilon(streams, [*STARTS]) > 2 * (1 + 1e-9), (
            "at any time only two of them count"
        )
        check_ledger(store, streams)
        monkeypatch.setattr(spending, "groups_of", lambda lines: [list(lines)])
        with pytest.raises((AssertionError, ParameterError)):
            check_ledger(store, streams)
    finally:
        store.close()
