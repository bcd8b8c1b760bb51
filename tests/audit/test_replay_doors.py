"""The same replay through the file door and through the HTTP service, restarts included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evercount import Average, Budget, Count, Edges, Histogram, Secret, Sum
from evercount.audit import replay
from evercount.audit.files_door import FilesProgram
from evercount.audit.library_door import LibraryProgram
from evercount.audit.neighbour_pairs import worst_pairs
from evercount.audit.service_door import ServiceProgram
from evercount.errors import ParameterError
from evercount.queries.base import Query

SECRET = Secret.from_hex("0a" * 32)
T = 4
QUERIES: list[Query] = [Count(), Sum(-2, 1), Histogram(("north", "south", "west"))]
UNITS: list[dict[str, Any]] = [{}, {"unit": "user", "max_events": 2}]


def report_of(program: Any, budget: Budget) -> Any:
    library = LibraryProgram(program.query, budget, T)
    R = library.open(SECRET).factorization.dense(T)[1]
    return replay(program, worst_pairs(program.query, budget, T, R, program.universe, 500), SECRET)


@pytest.mark.parametrize("unit", UNITS, ids=["event", "user"])
@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.name)
@pytest.mark.parametrize("adjacency", ["add-remove", "replace"])
def test_files_keep_the_promise(query: Query, adjacency: Any, unit: dict[str, Any]) -> None:
    budget = Budget(1.0, 1e-6, adjacency=adjacency, **unit)
    report = report_of(FilesProgram(query, budget, T, runs_at=(2,)), budget)
    assert report.holds, report.summary()
    if query.name == "count" and adjacency == "replace":  # a row always counts: there is nothing to replace it by
        assert report.worst is None
    else:
        assert report.worst.ratio == pytest.approx(1, rel=1e-6)


@pytest.mark.parametrize("unit", UNITS, ids=["event", "user"])
@pytest.mark.parametrize("query", [*QUERIES, Edges(3)], ids=lambda query: query.name)
def test_service_keeps_the_promise(query: Query, unit: dict[str, Any]) -> None:
    if query.name == "edges" and unit:
        unit = {"unit": "user", "max_events": 1}
    budget = Budget(1.0, 1e-6, **unit)
    program = ServiceProgram(query, budget, T, restart_at=(2,))
    report = report_of(program, budget)
    assert report.holds, report.summary()
    if query.name != "edges":
        assert report.worst.ratio == pytest.approx(1, rel=1e-6)


def test_pure_streams_through_both_doors() -> None:
    budget = Budget(1.0, 0.0)
    for program in (FilesProgram(Count(), budget, T, runs_at=(1, 3)), ServiceProgram(Count(), budget, T)):
        report = report_of(program, budget)
        assert report.holds, report.summary()
        assert report.measure == "epsilon"
        assert report.worst.ratio == pytest.approx(1, rel=1e-6)


def test_all_doors_publish_the_same_numbers() -> None:
    """One secret, one declaration, one set of events: the library, the files and the service agree bit for bit."""
    budget = Budget(1.0, 1e-6)
    query = Histogram(("north", "south"))
    data = ((("north",), ("south",)), (), (("south",),), (("north",),))
    doors = (LibraryProgram(query, budget, T), FilesProgram(query, budget, T), ServiceProgram(query, budget, T))
    tables = [door.run(data, SECRET).values for door in doors]
    assert np.array_equal(tables[0], tables[1])
    assert np.array_equal(tables[0], tables[2])


def test_spark_keeps_the_promise_and_a_lost_cap_is_seen(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Histograms of users, at most 2 events each. Planted: a batch that counts all events of a user."""
    from evercount.audit.spark_door import SparkProgram
    from evercount.spark import batch_release
    from evercount.spark.run_secret import run_secret

    query, budget = Histogram(("north", "south")), Budget(1.0, 1e-6, unit="user", max_events=2)
    program = SparkProgram(query, budget, T)
    quiet = ((), ())
    pair = ((4 * (("ann", "north"),), (("bob", "south"),), *quiet), ((), (("bob", "south"),), *quiet))
    found = replay(program, [pair], SECRET)
    assert found.holds, found.summary()
    assert found.worst.ratio == pytest.approx(1, rel=1e-6)
    library = LibraryProgram(query, budget, T)
    capped = ((("ann", ("north",)),) * 2, (("bob", ("south",)),), *quiet)
    same = run_secret(program.run_name(SECRET))
    assert np.array_equal(program.run(pair[0], SECRET).values, library.run(capped, same).values)
    monkeypatch.setattr(batch_release, "capped_groups", batch_release.group_events)
    broken = replay(program, [pair], SECRET)
    assert not broken.holds
    assert broken.worst.ratio == pytest.approx(2, rel=1e-6)


def test_a_leak_of_the_file_door_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Planted: the command tells how many rows were late or bad in its public output."""
    from evercount.audit import files_door

    program = FilesProgram(Count(), Budget(1.0, 1e-6), T)
    honest = files_door.published_rows

    def leaking(rows: Any, labels: Any, told: Any) -> Any:
        return honest(rows, labels, [*told, len(Path.cwd().name), counted[0]])

    counted = [0]
    write = program._write

    def counting(path: Path, data: Any) -> None:
        counted[0] = sum(map(len, data))
        write(path, data)

    monkeypatch.setattr(program, "_write", counting)
    monkeypatch.setattr(files_door, "published_rows", leaking)
    found = replay(program, [(((1,),) * T, ((1,),) * (T - 1) + ((),))], SECRET)
    assert not found.holds
    assert "more than noisy numbers" in found.summary()


def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state files and stores of an audit hold its secret: they are gone afterwards."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    data = ((1,), (), (1,), ())
    FilesProgram(Count(), Budget(1.0, 1e-6), T).run(data, SECRET)
    ServiceProgram(Count(), Budget(1.0, 1e-6), T).run(data, SECRET)
    assert list(tmp_path.iterdir()) == []


def test_what_a_door_cannot_serve_is_refused() -> None:
    with pytest.raises(ParameterError, match="library door"):
        ServiceProgram(Average(), Budget(1.0, 1e-6))
    with pytest.raises(ParameterError, match="names"):
        FilesProgram(Histogram(3), Budget(1.0, 1e-6))
    with pytest.raises(ParameterError, match="one key"):
        FilesProgram(Histogram(("a", "b"), max_keys_per_event=2), Budget(1.0, 1e-6))
