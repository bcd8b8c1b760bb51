"""The attack has power where the promise is spent, never exceeds it beyond confidence, and its
bounds hold."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from planted import Coin
from typer.testing import CliRunner

from evercount import Budget, Count, Histogram, Secret, Sum
from evercount._validate import FloatArray
from evercount.audit.attack import _repeats, attack, clopper_pearson, lowest_bits
from evercount.audit.doors import LibraryProgram
from evercount.audit.mechanism_grid import (
    TICKS,
    all_cases,
    chart,
    hardest_pair,
    run_case,
)
from evercount.audit.replay import Claim
from evercount.cli import app
from evercount.errors import ParameterError
from evercount.factorizations import FACTORIZATIONS
from evercount.mechanisms.terrace_noise import TerraceNoise
from evercount.noise.laplace_sampler import ExactLaplace
from evercount.queries.base import Query
from laplace_law import exact_epsilon, first_law
from soak_cases import soak_except

pytestmark = pytest.mark.slow

SECRET = Secret.from_hex("0c" * 32)
FINE = Sum(0, 1, 2.0**-6)
"""A count on a fine grid: rounding of the noise to the grid takes nothing from the attack."""


def attacked(query: Query, budget: Budget, name: str | None, runs: int) -> Any:
    horizon = None if name in ("unbounded", "pure-hybrid", "endless-bridge") else TICKS
    program = LibraryProgram(query, budget, horizon, name)
    pair = hardest_pair(program, query, TICKS, SECRET)
    return attack(program, pair, runs, SECRET)


@pytest.mark.soak
@pytest.mark.parametrize("name", ["balanced", "binary-tree", "fresh", "blend"])
def test_attack_comes_within_a_tenth_of_the_promise(name: str) -> None:
    """S is attained, so a good attack reaches the claim, and no attack gets beyond it."""
    report = attacked(FINE, Budget(3.0, 0.01), name, 1500)
    assert report.holds, report.summary()
    assert report.possible == pytest.approx(report.claimed, rel=1e-6)
    assert abs(report.attacked / report.claimed - 1) < 0.1, report.summary()
    assert report.low <= report.claimed <= report.high


@pytest.mark.soak
def test_attack_on_pure_noise_comes_within_a_tenth() -> None:
    report = attacked(Count(), Budget(1.0, 0.0), "pure-binary", 8000)
    assert report.holds, report.summary()
    assert report.measure == "epsilon"
    assert report.possible == pytest.approx(1.0, rel=1e-6)
    assert abs(report.attacked - 1) < 0.1, report.summary()
    assert 0.5 < report.proved <= 1


def test_terraces_are_attacked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The table has them; one keeps its promise, and one with numbers of a third of their scale is
    caught."""
    cases = [case for case in all_cases(Count()) if case.factorization == "terrace"]
    assert [case.adjacency for case in cases] == ["add-remove", "replace"]
    report = run_case(cases[0], 800, SECRET)
    assert report.holds, report.summary()
    assert report.possible == pytest.approx(1.0, rel=1e-6)
    numbers = TerraceNoise.__init__

    def planted(self: TerraceNoise, *given: Any, **rest: Any) -> None:
        numbers(self, *given, **rest)
        self.rates = [3 * rate for rate in self.rates]

    monkeypatch.setattr(TerraceNoise, "__init__", planted)
    report = run_case(cases[0], 800, SECRET)
    assert not report.holds, report.summary()


@pytest.mark.parametrize("name", soak_except(["balanced"], FACTORIZATIONS))
def test_no_factorization_is_beaten(name: str) -> None:
    report = attacked(Histogram(2), Budget(3.0, 0.01, adjacency="replace"), name, 200)
    assert report.holds, report.summary()


def test_bounds_cover_at_their_confidence() -> None:
    """Of 100 attacks at confidence 0.9 on a mechanism that spends its promise exactly, few prove
    more than it."""
    pair, attacks = (((1,),), ((),)), 100
    beaten = interval = 0
    for number in range(attacks):
        report = attack(Coin(1.0, 1.0), pair, 100, SECRET.derive(f"coverage {number}"), 0.9)
        beaten += report.proved > report.claimed
        interval += not report.low <= 1.0 <= report.high
    assert beaten <= attacks * 0.1 + 3 * math.sqrt(attacks * 0.09)
    assert interval <= attacks * 0.2 + 4 * math.sqrt(attacks * 0.16)
    # and the negative control: noise 2.5 times too small is proved in nearly all of them
    caught = sum(
        attack(Coin(0.4, 1.0), pair, 100, SECRET.derive(f"control {n}"), 0.9).proved > 1.0
        for n in range(20)
    )
    assert caught >= 19


def test_clopper_pearson_is_what_the_binomial_says() -> None:
    from scipy.stats import binom

    for hits, runs in ((0, 50), (3, 50), (25, 50), (50, 50)):
        low, high = clopper_pearson(hits, runs, 0.99)
        assert low == 0 or binom.sf(hits - 1, runs, low) == pytest.approx(0.01)
        assert high == 1 or binom.cdf(hits, runs, high) == pytest.approx(0.01)


def test_lowest_bits() -> None:
    values = np.array([1.0, 0.1, -6.0, 2.0**-1000, 2.0**60 + 2.0**10, 0.0])
    assert lowest_bits(values).tolist() == [0, -55, 1, -1000, 10, 1024]


def test_exact_law_of_the_first_ticks() -> None:
    """By enumeration of nodes: the first tick of a tree of two levels spends one level, two ticks
    both."""
    program = LibraryProgram(Count(), Budget(1.0, 0.0), 2, "pure-binary")
    claim = program.claim(2)
    law, radius = first_law(claim, 1)
    assert law.sum() == pytest.approx(1, abs=1e-10)
    q = math.exp(-claim.cost)
    assert law[radius + 3] == pytest.approx((1 - q) / (1 + q) * q**3)
    assert exact_epsilon(claim, 1, np.array([1.0])) == pytest.approx(0.5, rel=1e-6)
    assert exact_epsilon(claim, 2, np.array([1.0, 1.0])) == pytest.approx(1.0, rel=1e-6)
    assert exact_epsilon(claim, 2, np.array([0.0, 1.0])) == pytest.approx(0.5, rel=1e-6)
    with pytest.raises(ParameterError, match="whole numbers"):
        first_law(LibraryProgram(Count(), Budget(1.0, 1e-6), 2, "balanced").claim(2), 1)


def law_distance(claim: Claim, noise: FloatArray, grid: float = 1.0) -> tuple[float, float]:
    """(χ² statistic over its degrees of freedom, p-value) of noise, shape (runs, ticks), against
    the exact law.

    Points with an expected number below 5 are put together in one class.
    """
    from scipy.stats import chi2

    runs, ticks = noise.shape
    law, radius = first_law(claim, ticks, grid)
    expected = law * runs
    observed = np.zeros_like(law)
    places = np.rint(noise / grid).astype(np.int64) + radius
    inside = np.all((places >= 0) & (places < 2 * radius + 1), axis=1)
    np.add.at(observed, tuple(places[inside].T), 1.0)
    common = expected >= 5
    classes = np.append(expected[common], runs - expected[common].sum())
    counts = np.append(observed[common], runs - observed[common].sum())
    used = classes > 1e-9
    statistic = float(((counts[used] - classes[used]) ** 2 / classes[used]).sum())
    freedom = max(int(used.sum()) - 1, 1)
    return statistic / freedom, float(chi2.sf(statistic, freedom))


@pytest.mark.parametrize("name", soak_except(["pure-binary"], ["pure-tree", "pure-binary"]))
def test_pure_streams_follow_the_exact_law(name: str) -> None:
    program = LibraryProgram(Count(), Budget(2.0, 0.0), TICKS, name)
    data = ((),) * TICKS
    noise = np.stack(
        [program.run(data, SECRET.derive(f"law {n}")).values[:2, 0] for n in range(1500)]
    )
    distance, p = law_distance(program.claim(TICKS), noise)
    assert p > 1e-4, distance
    # negative controls: noise of another size, and noise of the right size that is not Laplace
    assert law_distance(program.claim(TICKS), np.rint(noise * 1.4))[1] < 1e-6
    normal = np.random.default_rng(3).normal(size=noise.shape) * noise.std(axis=0)
    assert law_distance(program.claim(TICKS), np.rint(normal))[1] < 1e-6


def test_table_and_chart(tmp_path: Any) -> None:
    cases = [case for case in all_cases(Count()) if case.factorization in ("fresh", "pure-binary")][
        :2
    ]
    reports = [run_case(case, 40, SECRET) for case in cases]
    assert all(report.holds for report in reports)
    chart(reports, tmp_path / "chart.png")
    assert (tmp_path / "chart.png").stat().st_size > 5000


def test_command() -> None:
    runner = CliRunner()
    done = runner.invoke(
        app, ["audit", "mechanism", "count", "-f", "fresh", "--runs", "60", "--json"]
    )
    assert done.exit_code == 0, done.output
    report = json.loads(done.stdout.splitlines()[-1])
    assert report["holds"]
    assert report["claimed"] == pytest.approx(Budget(3.0, 0.01).mu)
    done = runner.invoke(
        app,
        ["audit", "mechanism", "count", "--all", "-f", "honaker-full", "--runs", "40", "--json"],
    )
    assert done.exit_code == 0
    programs = [json.loads(line)["program"] for line in done.stdout.splitlines()]
    assert programs == [
        f"count · honaker-full · exact · {adjacency}" for adjacency in ("add-remove", "replace")
    ]
    done = runner.invoke(app, ["audit", "mechanism", "count", "--all", "-f", "honaker-ful"])
    assert done.exit_code == 2
    done = runner.invoke(app, ["audit", "replay", "histogram", "-p", "keys=2", "--examples", "5"])
    assert done.exit_code == 0, done.output
    assert "the promise holds" in done.stdout
    done = runner.invoke(
        app, ["audit", "replay", "--program", "planted:TwoVersionsOfATick", "--ticks", "4"]
    )
    assert done.exit_code == 1, done.output
    assert "THE PROMISE IS BROKEN" in done.stdout


def test_narrow_laplace_noise_repeats_itself_and_is_no_alarm() -> None:
    """Rate 1 over four ticks: 0.2803⁴ of all pairs of runs are equal; a planted seed of 8 bits
    still is an alarm."""
    draws = ExactLaplace(Secret.from_hex("51" * 32)).draw(np.arange(400), 1.0, 4).astype(np.float64)
    claim = Claim(Budget(1.0, 0.0), np.tril(np.ones((4, 4))), cost=1.0)
    repeated, expected = _repeats(np.cumsum(draws, axis=1), claim, (1, 2, 3, 4), 1)
    assert expected == pytest.approx(400**2 / 2 * 0.2803**4, rel=1e-2)
    assert 0.3 * expected < repeated < 3 + 3 * expected
    seeded = np.cumsum(draws[np.random.default_rng(1).integers(0, 16, 400)], axis=1)
    assert _repeats(seeded, claim, (1, 2, 3, 4), 1)[0] > 3 + 8 * expected
