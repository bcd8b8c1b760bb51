"""The same replay through the file interface and through the HTTP service, restarts included."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evercount import (
    ActiveUsers,
    Average,
    Budget,
    Count,
    DiscoveredKeys,
    DistinctUsers,
    Histogram,
    Quantiles,
    Rollup,
    Secret,
    Sum,
    TopK,
)
from evercount.audit import replay
from evercount.audit.doors import FilesProgram, LibraryProgram, parts_of
from evercount.audit.neighbour_pairs import worst_pairs
from evercount.audit.replay import compare
from evercount.audit.service_door import MOMENT, ServiceProgram
from evercount.declarations.schedule import instant_of
from evercount.errors import ParameterError
from evercount.graphs import Edges
from evercount.queries import QUERIES as REGISTRY
from evercount.queries import Marginals, Occupancy, Query
from small_queries import small
from soak_cases import soak_except
from wrapped_functions import wrap

pytestmark = pytest.mark.slow

SECRET = Secret.from_hex("0a" * 32)
T = 4
QUERIES: list[Query] = [Count(), Sum(-2, 1), Histogram(("north", "south", "west"))]
UNITS: list[dict[str, Any]] = [{}, {"unit": "user", "max_events": 2}]


def report_of(program: Any) -> Any:
    return replay(program, worst_pairs(program, program.query, T, 500), SECRET)


@pytest.mark.parametrize(
    ("query", "adjacency", "unit"),
    soak_except(
        [(QUERIES[1], "replace", UNITS[0]), (QUERIES[2], "replace", UNITS[1])],
        [
            (QUERIES[0], "add-remove", UNITS[0]),
            (QUERIES[0], "replace", UNITS[1]),
            (QUERIES[1], "replace", UNITS[0]),
            (QUERIES[1], "add-remove", UNITS[1]),
            (QUERIES[2], "add-remove", UNITS[0]),
            (QUERIES[2], "replace", UNITS[1]),
        ],
    ),
)
def test_files_keep_the_promise(query: Query, adjacency: Any, unit: dict[str, Any]) -> None:
    budget = Budget(1.0, 1e-6, adjacency=adjacency, **unit)
    report = report_of(FilesProgram(query, budget, T, restarts=(2,)))
    assert report.holds, report.summary()
    # a row always counts: there is nothing to replace it by
    if query.name == "count" and adjacency == "replace":
        assert report.worst is None
    else:
        assert report.worst.ratio == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize(
    ("query", "unit"),
    soak_except(
        [(QUERIES[2], UNITS[1]), (Edges(3), UNITS[0])],
        [(Count(), UNITS[0]), (Sum(-2, 1), UNITS[1]), (QUERIES[2], UNITS[1]), (Edges(3), UNITS[0])],
    ),
    ids=lambda value: getattr(value, "name", None),
)
def test_service_keeps_the_promise(query: Query, unit: dict[str, Any]) -> None:
    budget = Budget(1.0, 1e-6, **unit)
    program = ServiceProgram(query, budget, T, restarts=(2,))
    report = report_of(program)
    assert report.holds, report.summary()
    if query.name != "edges":
        assert report.worst.ratio == pytest.approx(1, rel=1e-6)


def test_pure_streams_through_both_interfaces() -> None:
    budget = Budget(1.0, 0.0)
    for program in (
        FilesProgram(Count(), budget, T, restarts=(1, 3)),
        ServiceProgram(Count(), budget, T),
    ):
        report = report_of(program)
        assert report.holds, report.summary()
        assert report.measure == "epsilon"
        assert report.worst.ratio == pytest.approx(1, rel=1e-6)


def test_all_interfaces_publish_the_same_numbers() -> None:
    """One secret, one declaration, one set of events: the library, the files and the service agree
    bit for bit."""
    budget = Budget(1.0, 1e-6)
    query = Histogram(("north", "south"))
    data = ((("north",), ("south",)), (), (("south",),), (("north",),))
    files, service = FilesProgram(query, budget, T), ServiceProgram(query, budget, T)
    by_hand = service.declaration
    started = by_hand.started(
        by_hand.schedule.with_start(instant_of(MOMENT)).begin
    )  # the start is part of the noise's key
    for interface, declaration in ((files, files.declaration), (service, started)):
        library = declaration.build(secret=SECRET, replay=True).run(
            [[key for (key,) in tick] for tick in data]
        )
        assert np.array_equal(interface.run(data, SECRET).values, library.rows)


def test_spark_keeps_the_promise_and_a_lost_cap_is_seen(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Histograms of users, at most 2 events each. Planted: a batch that counts all events of a
    user."""
    from evercount.audit.doors import SparkProgram
    from evercount.spark import count_events
    from evercount.spark.session import run_secret

    query, budget = Histogram(("north", "south")), Budget(1.0, 1e-6, unit="user", max_events=2)
    program = SparkProgram(query, budget, T)
    published, run = {}, program.run
    monkeypatch.setattr(
        program, "run", lambda data, secret: published.setdefault(data, run(data, secret))
    )
    quiet = ((), ())
    pair = (
        (4 * (("ann", "north"),), (("bob", "south"),), *quiet),
        ((), (("bob", "south"),), *quiet),
    )
    found = compare(program, pair, SECRET)
    assert found.holds, found
    assert found.ratio == pytest.approx(1, rel=1e-6)
    same = run_secret(program.run_name(SECRET))
    # the noise is a function of the secret
    for data, counted in zip(pair, (["north"] * 2, []), strict=True):
        library = program.declaration.build(secret=same, replay=True)
        capped = library.run([counted, ["south"], [], []], capped=True)
        assert np.array_equal(published[data].values, capped.rows)
    published.clear()
    monkeypatch.setattr(count_events, "capped_groups", count_events.group_events)
    broken = compare(program, pair, SECRET)
    assert not broken.holds
    assert broken.ratio == pytest.approx(2, rel=1e-6)


def test_a_leak_of_the_file_interface_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the command tells how many rows were late or bad in its public output."""
    from evercount.audit import doors as files_interface

    program = FilesProgram(Count(), Budget(1.0, 1e-6), T)
    honest = files_interface.published_rows

    def leaking(query: Any, parts: Any, rows: Any, told: Any) -> Any:
        return honest(query, parts, rows, [*told, len(Path.cwd().name), counted[0]])

    counted = [0]

    def counting(rows_of: Any, data: Any) -> Any:
        counted[0] = sum(map(len, data))
        return rows_of(data)

    wrap(monkeypatch, program, "_rows", counting)
    monkeypatch.setattr(files_interface, "published_rows", leaking)
    found = replay(program, [(((1,),) * T, ((1,),) * (T - 1) + ((),))], SECRET)
    assert not found.holds
    assert "more than noisy numbers" in found.summary()


TREES: dict[str, Query] = {
    "rollup": Rollup([("a", "x"), ("a", "y"), ("b", "x")], [1, 2, 1]),
    "marginals": Marginals([("a", "b"), ("x", "y")]),
    "quantiles": Quantiles(0, 4, 4),
    "distinct-users": DistinctUsers(["a", "b"], max_keys=2, total=True),
    "active-users": ActiveUsers(keys=["a", "b"]),
    "occupancy": Occupancy(["a", "b"], max_events=2),
    "top-k": TopK(("north", "south", "west"), 2),
    "discovered-keys": DiscoveredKeys(),
}
"""With QUERIES, one of each query of the registry that rows can feed and that publishes maps of its
noisy sums."""
BY_LIBRARY = {
    "average": "publishes a ratio, or a sum over a number of ticks",
}
"""The others whose events can be rows: `tests/audit/test_replay.py` replays them by the library
interface."""


def test_no_query_is_forgotten() -> None:
    rows = {name for name in REGISTRY if small(name).rows is not None}
    assert set(TREES) | {query.name for query in QUERIES} | set(BY_LIBRARY) == rows


@pytest.mark.parametrize(
    ("name", "unit"),
    soak_except(
        [
            ("rollup", "event"),
            ("distinct-users", "user"),
            ("occupancy", "user"),
            ("discovered-keys", "user"),
        ],
        product(TREES, ["event", "user"]),
    ),
)
def test_every_query_keeps_the_promise_through_all_interfaces(name: str, unit: Any) -> None:
    """Restarts included. User level: twice as many events as the cap allows, or users that come
    under every key."""
    query = TREES[name]
    budget = Budget(1.0, 1e-6, unit=unit)
    if unit == "user" and query.people is None:
        budget = replace(budget, max_events=2)
    elif unit == "user" and name == "active-users":
        budget = replace(budget, max_ticks=2)
    interfaces = [
        LibraryProgram(query, budget, T, restarts=(2,)),
        FilesProgram(query, budget, T, restarts=(2,)),
        ServiceProgram(query, budget, T, restarts=(2,)),
    ]
    if query.discovery is not None:
        interfaces = interfaces[1:]  # the library interface shows the noisy total only
    for interface in interfaces:
        if query.discovery is not None:  # a key that is public in both
            crowd = tuple((f"u{i}", "a") if unit == "user" else "a" for i in range(4000))
            own = (("changed", "a"),) * (2 * (budget.max_events or 1)) if unit == "user" else ("a",)
            pairs: list[Any] = [
                ((crowd, own, (), ()), (crowd, (), (), ())),
                ((crowd + own, (), (), ()), (crowd, (), (), ())),
            ]
        else:
            pairs = worst_pairs(interface, query, T, 500)[:1]
        report = replay(interface, pairs, SECRET)
        assert report.holds, (interface.name, report.summary())
        assert report.worst is not None
        assert report.worst.ratio > 0.45, (interface.name, report.summary())


def test_parts_hold_all_that_is_published() -> None:
    """Independent noise of one cell each: the product of map and parts has orthonormal columns and
    the same rank."""
    for name in ("rollup", "marginals", "quantiles"):
        query = TREES[name]
        parts = parts_of(query, pure=False)
        assert parts is not None
        outputs = query.decode_run(1, np.eye(query.cells))
        cells = outputs @ parts
        assert np.allclose(cells.T @ cells, np.eye(parts.shape[1]))
        assert np.linalg.matrix_rank(outputs) == parts.shape[1]
        with pytest.raises(ParameterError, match="--interface library"):
            parts_of(query, pure=True)


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state files and stores of an audit hold its secret: they are gone afterwards."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    data = ((1,), (), (1,), ())
    FilesProgram(Count(), Budget(1.0, 1e-6), T).run(data, SECRET)
    ServiceProgram(Count(), Budget(1.0, 1e-6), T).run(data, SECRET)
    assert list(tmp_path.iterdir()) == []


def test_what_an_interface_cannot_serve_is_refused() -> None:
    with pytest.raises(ParameterError, match="--interface library"):
        ServiceProgram(Average(), Budget(1.0, 1e-6))
    with pytest.raises(ParameterError, match="names"):
        FilesProgram(Histogram(3), Budget(1.0, 1e-6))
    with pytest.raises(ParameterError, match="one key"):
        FilesProgram(Histogram(("a", "b"), max_keys_per_event=2), Budget(1.0, 1e-6))
