"""Every bug of the list is caught by the audit, and the honest program passes the same tests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import planted
import pytest

from evercount import Budget, Secret
from evercount.audit.attack import attack
from evercount.audit.doors import run_replay
from evercount.privacy import Cost, compose
from soak_cases import soak_except

pytestmark = pytest.mark.slow

SECRET = Secret.from_hex("0b" * 32)
RUNS = 2000
WORST = (((1,), (), (), ()), ((), (), (), ()))
"""Neighbours that spend the whole promise of the toys: one event at the first tick, or none."""
PAIRS = [
    (tuple((1,) if t == at else () for t in range(planted.T)), ((),) * planted.T)
    for at in range(planted.T)
]
"""One event at any tick."""

BY_REPLAY: list[Any] = [
    planted.SigmaWithoutColumnNorm,
    planted.paper_substrings,
    planted.paper_graphs,
    planted.replace_as_add_remove,
    planted.level_weights_forgotten,
    planted.value_in_two_bins,
    planted.once_per_key_as_once,
    planted.every_tick_as_once,
    planted.moves_as_one_change,
    planted.TwoVersionsOfATick,
    planted.LateEventInAClosedTick,
    planted.KeyAppearsWithItsFirstEvent,
    planted.CapAfterEncoding,
    planted.RoundingBeforeNoise,
    planted.PerTickCalibration,
    planted.ParallelAdaptiveStreams,
]
BY_ATTACK: list[Any] = [
    planted.FreshNoisePerRound,
    planted.SigmaWithoutColumnNorm,
    planted.SmallerNoiseThanStated,
    planted.NoiseStartsAgainAfterRestore,
    planted.ShortSeed,
    planted.FloatNoise,
    planted.PerTickCalibration,
]


def replayed(program: Any) -> Any:
    ticks = program.horizon if hasattr(program, "horizon") else planted.T
    return run_replay(program, ticks, SECRET, 200)


def attacks(program: Any) -> Iterator[Any]:
    """An attack on each pair, one after the other; they share the chance of a false alarm."""
    return (attack(program, pair, RUNS, SECRET, 1 - 1e-4 / len(PAIRS)) for pair in PAIRS)


def test_the_honest_program_passes_both() -> None:
    program = planted.Honest()
    report = replayed(program)
    assert report.holds, report.summary()
    assert report.worst.ratio == pytest.approx(1, rel=1e-9)
    found = attack(program, WORST, RUNS, SECRET)
    assert found.holds, found.summary()
    assert found.possible == pytest.approx(found.claimed, rel=1e-9)
    assert abs(found.attacked / found.claimed - 1) < 0.1, "the attack has power"
    for everywhere in attacks(program):
        assert everywhere.holds, everywhere.summary()


@pytest.mark.parametrize(
    "bug",
    soak_except([bug for bug in BY_REPLAY if bug is not planted.value_in_two_bins], BY_REPLAY),
    ids=lambda bug: bug.__name__,
)
def test_replay_catches(bug: Any) -> None:
    report = replayed(bug())
    assert not report.holds, report.summary()
    assert report.worst.ratio > 1.01
    assert "THE PROMISE IS BROKEN" in report.summary()


@pytest.mark.parametrize("bug", BY_ATTACK, ids=lambda bug: bug.__name__)
def test_attack_catches(bug: Any) -> None:
    assert any(not report.holds for report in attacks(bug()))


def test_low_bits_and_short_seeds_are_told_by_their_names() -> None:
    """The two bugs that no covariance shows are caught by the tests that are for them."""
    bits = attack(planted.FloatNoise(), WORST, RUNS, SECRET)
    assert bits.statistic == "low bits", bits.summary()
    seeds = attack(planted.ShortSeed(), WORST, RUNS, SECRET)
    assert seeds.repeated > 10
    assert "same noise" in seeds.reason
    assert attack(planted.Honest(), WORST, RUNS, SECRET).repeated == 0


def test_streams_of_one_store_never_count_as_parallel() -> None:
    """Two streams cost more than one, whatever their data: for δ > 0 adaptive streams do not
    compose in parallel."""
    budget = Budget(1.0, 1e-6)
    both = compose([Cost(budget, leak=0.0)] * 2)
    assert both.epsilon > budget.epsilon
