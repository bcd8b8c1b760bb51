"""Streams on a factorization of one's own: exact noise, keys, snapshots, attacks, and nothing else
breaks."""

from __future__ import annotations

import json
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from evercount import Budget, Count, DiscoveredKeys, Histogram, Secret, Stream
from evercount.audit.attack import attack
from evercount.audit.doors import LibraryProgram
from evercount.audit.mechanism_grid import all_cases, hardest_pair, run_case
from evercount.audit.replay import compare
from evercount.cli import app
from evercount.declarations.declaration import StreamDeclaration
from evercount.engine.build import squared_norm
from evercount.errors import ParameterError, SnapshotError
from evercount.factorizations import (
    BUILT_IN,
    FACTORIZATIONS,
    Balanced,
    BinaryTree,
    Dense,
    Factorization,
    Optimal,
    SquareRoot,
    factorization,
    register_factorization,
)
from evercount.mechanisms.exact.exact_noise import ExactStream
from evercount.mechanisms.noise_stream import declaration_fingerprint
from evercount.noise import ExactNoise
from evercount.planning import plan
from evercount.queries import Occupancy
from evercount.reproduce.runner import ITEMS, run_items
from evercount.reproduce.simulator import simulate
from vectors import norm_vectors

SECRET = Secret.from_hex("5c" * 32)
BUDGET = Budget(1.0, 1e-6)
ODD = np.array([[0.75**0.5, 0.0], [-0.5, 1.0]])
"""Columns of norm 1, and a Gram entry of −½."""


def banded(horizon: int, share: float = 0.5) -> Dense:
    R = np.eye(horizon) + share * np.eye(horizon, k=-1)
    return Dense(np.tril(np.tri(horizon) @ np.linalg.inv(R)), R, "banded")


@pytest.fixture
def registered():
    register_factorization("banded", banded)
    yield
    del FACTORIZATIONS["banded"]


class Claimed(SquareRoot):
    """A class of a user, with a column norm of the user's own."""

    name = "claimed"

    def __init__(self, horizon: int, factor: float) -> None:
        super().__init__(horizon)
        self.column_norm *= factor


class Shrunk(Factorization):
    """Matrices that do not belong together."""

    name = "shrunk"

    def __init__(self, horizon: int) -> None:
        self.horizon, self.column_norm = horizon, 1.0

    def dense(self, ticks: int | None = None) -> Any:
        return np.tri(self.horizon), 0.9 * np.eye(self.horizon)

    def row_norms(self, ticks: Any) -> Any: ...
    def difference_norm(self, earlier: int, later: int) -> Any: ...
    def initial(self, cells: int = 1) -> Any: ...
    def block(self, state: Any, z: Any, ticks: int) -> Any: ...


# -- exact noise -----------------------------------------------------------------------------------


def test_exact_noise_is_the_rounded_product_of_the_matrices():
    """Row t is ⌊scale·(L z)_t + ½⌋ in exact rationals, with the normals of the secret, also over
    several blocks."""
    engine, scale = banded(70), 3.7
    z = [
        Fraction(int(value), 2**128)
        for value in ExactNoise(SECRET).normals(0, 70, 1).to_ints()[:, 0]
    ]
    L = engine.dense()[0]
    want = []
    for t in range(70):
        exact = Fraction(scale) * sum(Fraction(L[t, j]) * z[j] for j in range(t + 1))
        want.append(int((exact + Fraction(1, 2)).__floor__()))
    stream = ExactStream(engine, scale, 3, SECRET)
    found = np.concatenate([stream.take(33), stream.take(37)])
    assert found[:, 0].tolist() == want


def test_tiny_entries_do_not_break_exact_noise(monkeypatch):
    """Integers need one unit for all entries of L: 1e-300 next to 1 has none, and is taken as 0."""
    lags = np.subtract.outer(np.arange(60), np.arange(60))
    engine = Dense(np.where(lags >= 0, 1e-12 ** lags.clip(0).astype(float), 0.0))
    assert 0 < np.count_nonzero(np.tril(engine.dense()[0], -1)) < 60 * 3
    in_doubles = ExactStream(engine, 3.7, 2, SECRET).take(60)
    monkeypatch.setattr(ExactStream, "_doubt", (1.0, 1.0))  # then the integers decide every number
    assert np.array_equal(ExactStream(engine, 3.7, 2, SECRET).take(60), in_doubles)


def test_the_numbers_are_those_of_optimal_where_the_matrices_are():
    given = Optimal(40)
    key = Secret.from_hex("01" * 32)
    own, known = (ExactStream(one, 2.0, 2, key).take(40) for one in (Dense(*given.dense()), given))
    assert np.array_equal(own, known)


def test_the_matrices_enter_the_key():
    """Streams that differ in L alone have independent noise; with one key, that of two fresh ones
    would be the same."""
    prints = {declaration_fingerprint({}, banded(16, share), 1.0) for share in (0.5, 0.5 + 2**-40)}
    assert len(prints) == 2
    one, other = (
        Stream(Count(), BUDGET, 400, banded(400, share), secret=SECRET) for share in (0.5, 0.500001)
    )
    noises = [
        np.diff(stream._parameters.noise.stream.take(400)[:, 0], prepend=0.0)
        for stream in (one, other)
    ]
    assert abs(np.corrcoef(*noises)[0, 1]) < 6 / 20
    for stream in (one, other):
        stream.close()


def test_cells_names_and_parts():
    whole = Stream(Histogram(4), BUDGET, 20, banded(20), secret=SECRET)
    values = whole.run([[0, 1]] * 20).values
    whole.close()
    part = Stream(Histogram(4), BUDGET, 20, banded(20), secret=SECRET, part=range(1, 3))
    assert np.array_equal(part.run_totals([[1, 0]] * 20).values, values[:, 1:3])
    keys = Stream(DiscoveredKeys(), BUDGET, 20, banded(20))
    assert keys.run([["a"] * 500] * 20)[-1].labels[-1] == "a"


# -- what is not trusted ---------------------------------------------------------------------------


def test_claims_are_not_trusted():
    with pytest.raises(ParameterError, match=r"claims a column norm of .* would not be private"):
        Stream(Count(), BUDGET, 50, Claimed(50, 0.9))
    stream = Stream(Count(), BUDGET, 50, Claimed(50, 3.0))
    assert stream.sigma == pytest.approx(Stream(Count(), BUDGET, 50, "square-root").sigma, rel=1e-6)
    assert isinstance(stream.factorization, Dense)
    with pytest.raises(ParameterError, match=r"L·R is 0\.9 at row 1"):
        Stream(Count(), BUDGET, 50, Shrunk(50))
    register_factorization("claimed", lambda horizon: Claimed(horizon, 0.9))
    try:
        with pytest.raises(ParameterError, match="would not be private"):
            Stream(Count(), BUDGET, 50, "claimed")
    finally:
        del FACTORIZATIONS["claimed"]


def test_own_objects_that_are_not_square_or_not_triangular_run_as_their_noise():
    class Tree(BinaryTree):
        name = "my tree"

    own, known = Stream(Count(), BUDGET, 21, Tree(21)), Stream(Count(), BUDGET, 21, "binary-tree")
    assert own.factorization.name == "my tree"
    assert np.all(own.std(range(1, 22)) <= known.std(range(1, 22)) * (1 + 1e-6)), (
        "a projection costs no more"
    )
    assert not np.triu(own.factorization.dense()[1], 1).any()


def test_objects_of_this_package_are_taken_as_they_are():
    engine = Balanced(50)
    assert Stream(Count(), BUDGET, 50, engine).factorization is engine
    assert Stream(Count(), BUDGET, factorization=engine).horizon == 50
    assert np.array_equal(
        Stream(Count(), BUDGET, 50, engine, secret=SECRET).run([1] * 50).values,
        Stream(Count(), BUDGET, 50, "balanced", secret=SECRET, replay=True).run([1] * 50).values,
    )


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "another horizon": ({"horizon": 21, "factorization": banded(20)}, "20 ticks and the stream 21"),
    "another horizon of ours": (
        {"horizon": 21, "factorization": Balanced(20)},
        "20 ticks and the stream 21",
    ),
    "another horizon of a class": (
        {"horizon": 21, "factorization": Claimed(20, 1.0)},
        "20 ticks and the stream 21",
    ),
    "pure": ({"budget": Budget(1.0, 0.0), "factorization": banded(20)}, "needs delta > 0"),
    "matrices": ({"factorization": (np.tri(3), np.eye(3))}, r"e\.g\. .best. or Dense\(L, R\)"),
    "a class": ({"horizon": 20, "factorization": Dense}, r"e\.g\. .best. or Dense\(L, R\)"),
    "half a specification": (
        {"horizon": 2, "factorization": {"name": "x", "left": np.tri(2)}},
        "stored as",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_does_not_fit_is_refused_with_the_reason(case):
    given, reason = REFUSED[case]
    with pytest.raises(ParameterError, match=reason):
        Stream(**{"query": Count(), "budget": BUDGET, **given})


# -- sensitivity: planted bugs ---------------------------------------------------------------------


def test_negative_gram_entries_are_paid_for_where_they_cost():
    """A count of events is changed once, at cost 1; who comes and goes changes an occupancy by +1
    and −1."""
    engine = Dense(np.tril(np.tri(2) @ np.linalg.inv(ODD)), ODD)
    assert squared_norm(engine, Count(), BUDGET, 2) == pytest.approx(1.0)
    query = Occupancy()
    S = query.squared_sensitivity("add-remove")
    paid = squared_norm(engine, query, BUDGET, 2)
    assert paid == pytest.approx(1.5 * S)
    change = float(np.sum((ODD @ [1.0, -1.0]) ** 2))
    assert 2 < change <= paid, "the rule of columns, 2 for two changes, would be broken"


@pytest.mark.parametrize("shrink", [1.0, 0.7])
def test_a_replay_sees_a_norm_that_is_too_small(shrink, monkeypatch):
    """Neighbours on the same secret: what they spend is within the promise, and beyond it where a
    norm is planted."""
    engine = banded(4)
    object.__setattr__(engine, "column_norm", engine.column_norm * shrink)
    if shrink < 1:
        monkeypatch.setattr(engine, "gram", engine.gram * shrink**2)
    program = LibraryProgram(Count(), Budget(3.0, 0.01), 4, engine, restarts=())
    pair = hardest_pair(program, Count(), 4, SECRET)
    finding = compare(program, pair, SECRET)
    assert finding.holds == (shrink == 1.0)
    assert finding.ratio == pytest.approx(1 / shrink, rel=1e-6)


def test_an_attack_comes_close_and_not_beyond():
    program = LibraryProgram(Count(), Budget(3.0, 0.01), 4, banded(4))
    pair = hardest_pair(program, Count(), 4, SECRET)
    report = attack(program, pair, 200, SECRET, 0.9999)
    assert report.holds
    assert report.attacked > 0.8 * report.claimed


# -- snapshots -------------------------------------------------------------------------------------


def test_snapshots_hold_the_matrices():
    stream = Stream(Count(), BUDGET, 60, banded(60))
    first = stream.run([1] * 25).values
    blob = stream.snapshot()
    rest = stream.run([1] * 35).values
    stream.close()
    again = Stream.restore(blob)
    assert again.factorization.name == "banded"
    assert again.sigma == stream.sigma
    assert np.array_equal(again.run([1] * 35).values, rest)
    assert len(first) == 25


def test_snapshots_by_name_need_the_same_matrices(registered):
    stream = Stream(Count(), BUDGET, 60, "banded")
    stream.run([1] * 25)
    blob = stream.snapshot()
    rest = stream.run([1] * 35).values
    stream.close()
    again = Stream.restore(blob)
    assert np.array_equal(again.run([1] * 35).values, rest)
    again.close()
    register_factorization("banded", lambda horizon: banded(horizon, 0.25))
    with pytest.raises(SnapshotError):
        Stream.restore(blob)
    del FACTORIZATIONS["banded"]
    with pytest.raises(SnapshotError, match="banded"):
        Stream.restore(blob)
    register_factorization("banded", banded)


def test_a_declaration_names_it(registered):
    given = {"name": "visits", "query": Count(), "budget": BUDGET, "horizon": 30}
    made = StreamDeclaration(**given, factorization="banded")
    assert made.factorization == "banded"
    assert made.build().factorization.name == "banded"
    with pytest.raises(ParameterError, match="register"):
        StreamDeclaration(**given, factorization=dict(banded(30).spec))


# -- everything that goes by name ------------------------------------------------------------------


def test_plans_list_it_and_are_not_broken_by_it(registered):
    rows = {row.name: row for row in plan(BUDGET, 64).rows}
    stream = Stream(Count(), BUDGET, 64, "banded")
    assert rows["banded"].worst_std == pytest.approx(float(stream.std(range(1, 65)).max()))
    assert set(rows) >= set(BUILT_IN) - {"direct"}
    assert [row.name for row in plan(BUDGET, 32, names=("banded",)).rows] == ["banded"]
    for horizon, ticks in ((3000, None), (None, 3000)):  # too long, and without an end
        assert "banded" not in {row.name for row in plan(BUDGET, horizon, ticks=ticks).rows}
    with pytest.raises(ParameterError, match="at most 2048 ticks"):
        plan(BUDGET, 3000, names=("banded",))
    register_factorization("banded", lambda horizon: 1 / 0)
    assert "balanced" in {row.name for row in plan(BUDGET, 64).rows}


def test_commands_take_it_by_name(registered):
    done = CliRunner().invoke(app, ["plan", "--horizon", "32", "--mechanism", "banded", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["mechanisms"][0]["name"] == "banded"
    asked = [
        "audit",
        "mechanism",
        "count",
        "-f",
        "banded",
        "--runs",
        "100",
        "--secret",
        SECRET.hex(),
        "--json",
    ]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    asked = [
        "audit",
        "replay",
        "count",
        "-f",
        "banded",
        "--examples",
        "5",
        "--secret",
        SECRET.hex(),
    ]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    assert "the promise holds" in done.stdout
    done = CliRunner().invoke(app, ["bench", "--mechanism", "banded", "--json"])
    assert done.exit_code == 0, done.output
    measured = json.loads(done.stdout)
    assert measured["note"] == "banded 1024, 1000 cells"
    assert measured["ratio"] > 0
    assert CliRunner().invoke(app, ["bench", "--mechanism", "baned"]).exit_code == 2


def test_the_reproduction_takes_it_by_name(registered, tmp_path):
    """Beside the constants of our own; errors are those of its own matrices. The yardstick:
    `make soak`, below."""
    assert ITEMS["yardstick"].parameters(quick=True)["registered"] == ["banded"], (
        "so that results without it are redone"
    )
    found = {one["item"]: one["tables"] for one in run_items(["constants"], tmp_path, quick=True)}
    constants = {row["T"]: row["banded"] for row in found["constants"]["constants"]}
    engine = factorization("banded", 64)
    assert constants["2^6"] == pytest.approx(
        engine.worst_row()[1] * engine.column_norm - np.log(64) / np.pi
    )
    assert constants["2^20"] is None, "matrices of so many ticks are refused"
    asked = [
        "plan",
        "-e",
        "1",
        "-d",
        "1e-6",
        "-t",
        "16",
        "--optimal",
        "--view",
        "per-tick",
        "--view",
        "running",
    ]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0, done.output
    assert any(line.split()[:1] == ["banded"] for line in done.output.splitlines())


@pytest.mark.soak
def test_the_yardstick_takes_it_by_name(registered, tmp_path):
    (found,) = run_items(["yardstick"], tmp_path, quick=True)
    for row in found["tables"]["distances"]:
        assert row["banded above the least, %"] > 0
        assert row["Gaussian"] != "banded"


def test_simulations_take_it_by_name(registered):
    found = simulate(["banded"], horizon=64, repetitions=400)["banded"]
    mean, error = found.mean_normalised
    assert abs(mean - (2 / np.pi) ** 0.5) < 5 * error


def test_attacks_on_all_factorizations_include_it(registered):
    cases = [case for case in all_cases(Count()) if case.factorization in ("banded", "fresh")]
    ours = [case for case in cases if case.factorization == "banded"]
    assert {case.adjacency for case in ours} == {"add-remove", "replace"}
    chosen = [ours[0], next(case for case in cases if case.factorization == "fresh")]
    reports = [run_case(case, 60, SECRET, 0.9999) for case in chosen]
    assert ["banded" in report.program for report in reports] == [True, False]
    assert all(report.holds for report in reports)


def test_golden_vectors_do_not_change_with_it(registered):
    assert {one["factorization"] for one in norm_vectors()["norms"]} == set(BUILT_IN)
    assert factorization("banded", 8) is factorization("banded", 8), "built and checked once"
