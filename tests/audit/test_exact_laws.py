"""Exact laws of what is not linear in its noise: the sparse counter and local clients; planted bugs
break them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from exact_laws import (
    LocalProgram,
    attack_local,
    audit_genprot,
    audit_hierarchical,
    audit_sparse,
    closing_law,
    draws_p_value,
)

from evercount import Secret
from evercount.local import LocalClient, LocalPlan
from evercount.local.genprot import GenProtClient
from evercount.local.hierarchical import HierarchyClient, HierarchyPlan, encode
from evercount.noise.laplace_sampler import ExactLaplace
from evercount.sparse.budget_split import plan_sparse
from evercount.sparse.sparse_count import SparseCount

SECRET = Secret.from_hex("0f" * 32)
PLAN = plan_sparse(1.0, 64, 0.0, 60, method="partition")


def test_the_sparse_counter_keeps_its_promise() -> None:
    report = audit_sparse(600, SECRET, PLAN)
    assert report.holds, report.summary()
    assert 0.9 < report.spent <= 1, "the partition and the counter spend nearly all of it"


def test_the_law_of_closings_adds_up_and_moves_by_the_rates() -> None:
    """All patterns together have probability 1; the last tick decides by the tail of the two
    noises."""
    law = closing_law(PLAN, [PLAN.threshold, 0, 3])
    assert sum(law.values()) == pytest.approx(1, abs=1e-10)
    # one tick at the threshold: closed if ν ≥ ρ, both discrete Laplace of one rate: (1 + P(ν =
    # ρ))/2
    q = math.exp(-PLAN.tick_epsilon)
    equal = ((1 - q) / (1 + q)) ** 2 * (1 + q * q) / (1 - q * q)
    assert closing_law(PLAN, [PLAN.threshold])[(True,)] == pytest.approx((1 + equal) / 2, abs=1e-10)


@pytest.mark.parametrize(
    "rates", [{"threshold_epsilon"}, {"tick_epsilon"}, {"threshold_epsilon", "tick_epsilon"}]
)
def test_a_partition_with_half_the_noise_breaks_the_promise(rates: set[str]) -> None:
    """Planted in the plan: one of the two noises of the partition, or both, is half as wide as its
    share of ε asks."""
    planted = replace(PLAN, **{name: 2 * getattr(PLAN, name) for name in rates})
    report = audit_sparse(100, SECRET, planted)
    assert report.spent > 1.4, report.summary()
    assert not report.holds


class Quarter(ExactLaplace):
    """Noise that is four times narrower than it is asked for."""

    def draw(self, draws: Any, rates: Any, cells: int, first_cell: int = 0) -> Any:
        return super().draw(draws, 4 * np.asarray(rates), cells, first_cell)


def test_a_partition_that_draws_less_noise_than_its_plan_says_is_seen() -> None:
    """Planted in the program: the stated rates are right, the drawn noise of ticks is half as
    wide."""

    def planted(key: Secret) -> SparseCount:
        counter = SparseCount(1.0, 64, 0.0, 60, method="partition", secret=key)
        counter._ticks = Quarter(key.derive("planted"))
        counter._level_noise = 0
        return counter

    report = audit_sparse(600, SECRET, PLAN, planted)
    assert report.spent <= 1
    assert not report.holds
    assert "does not follow its law" in report.reason


def test_local_clients_keep_their_promise() -> None:
    reports = [
        audit_hierarchical(1500, SECRET),
        audit_genprot(1500, SECRET),
        audit_genprot(500, SECRET, "paper"),
    ]
    for report in reports:
        assert report.holds, report.summary()
    assert [report.spent > 0.999 for report in reports] == [True, True, False], (
        "nothing is given away, but by the paper"
    )


def wrong_keep(plan: HierarchyPlan, bucket: int, chance: int, row: int, level: int) -> bytes:
    """Keeps the bit with the probability of 2ε."""
    return encode(
        HierarchyPlan(2 * plan.epsilon, plan.buckets, plan.fan_out), bucket, chance, row, level
    )


class TooHonest(HierarchyClient):
    """Sends the message that the randomiser would send if it always kept the bit; its plan says
    otherwise."""

    def _make(self, point: float) -> bytes:
        block = int(self._secret.derive("planted").hex(), 16)
        return encode(self.plan, self.plan.bucket(point), 0, block % 2**32, (block >> 32) % 2**32)


class FirstBit(GenProtClient):
    """Sends the first candidate whose bit is 1 instead of a uniform one: its bits are right, its
    choice is not."""

    def _make(self, point: float) -> int:
        return min(
            super()._make(point),
            int(self._secret.derive("planted").hex(), 16) % self.plan.candidates,
        )


def test_randomisers_with_a_wrong_keep_probability_are_caught() -> None:
    by_law = [
        audit_hierarchical(100, SECRET, encoder=wrong_keep),
        audit_genprot(100, SECRET, clip=math.log(2)),
    ]
    for report in by_law:
        assert report.spent > 1.5, report.summary()
        assert not report.holds
    by_draws = [
        audit_hierarchical(400, SECRET, client=TooHonest),
        audit_genprot(400, SECRET, client=FirstBit),
    ]
    for report in by_draws:
        assert report.spent <= 1 + 1e-7
        assert "does not follow its law" in report.reason, report.summary()


class AThirdOfTheNoise(LocalClient):
    """A third of the noise; header and format are those of the honest plan."""

    def __init__(self, honest: LocalPlan, secret: Secret) -> None:
        super().__init__(honest, secret)
        self.plan = replace(honest)
        vars(self.plan).update(
            scale=honest.scale // 3, shift=honest.shift, radius=honest.radius, header=honest.header
        )


@pytest.mark.parametrize("form", ["one-counter", "two-counter"])
def test_gaussian_clients_are_attacked_as_mechanisms(form: Any) -> None:
    report = attack_local(LocalProgram(6.0, 1e-3, form), 600, SECRET)
    assert report.holds, report.summary()
    assert report.attacked == pytest.approx(report.possible, rel=0.15)
    broken = attack_local(LocalProgram(6.0, 1e-3, form, client=AThirdOfTheNoise), 600, SECRET)
    assert not broken.holds, broken.summary()


def test_draws_that_the_law_does_not_have() -> None:
    assert draws_p_value({0: 1.0}, lambda number: number % 2, 100) == 0
    assert draws_p_value({0: 0.9, 1: 0.1}, lambda number: number % 2, 200) < 1e-6
