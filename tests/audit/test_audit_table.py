"""The table of all attacks: every query is in it, and the attacks of one factorization together see
small defects."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from planted import Coin

from audit_table import QUERIES, pool, run_cases
from evercount import Count, Secret
from evercount.audit.attack import AttackReport, _likely_side, attack
from evercount.audit.mechanism_grid import GAUSSIAN, TICKS, all_cases, hardest_pair, run_case
from evercount.audit.replay import Claim, compare
from evercount.factorizations import FACTORIZATIONS
from evercount.queries import QUERIES as KNOWN
from evercount.queries.base import Query

SECRET = Secret.from_hex("0c" * 32)
EMPTY = AttackReport(
    "", "epsilon", 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, True, 2000, 0.99, "product event"
)
"""A report of a pure attack, to be filled in."""


class NamedCoin(Coin):
    """A coin with the promise of the table's Gaussian cases and a name of that form."""

    def __init__(self, number: int, less: float) -> None:
        super().__init__(less / GAUSSIAN.mu, 1 / GAUSSIAN.mu)
        self.name = f"query {number} · coin · exact · add-remove"

    def claim(self, ticks: int) -> Claim:
        return Claim(GAUSSIAN, np.eye(1), sigma=self.stated)


def test_pooled_attacks_see_what_one_cannot() -> None:
    """Noise that is 15 % too small: none of 40 attacks with 100 runs proves it, all of them
    together do."""
    for less, broken in ((1.0, False), (0.85, True)):
        reports = [
            attack(NamedCoin(n, less), (((1,),), ((),)), 100, SECRET.derive(f"pool {less} {n}"))
            for n in range(40)
        ]
        assert all(report.holds for report in reports)
        pooled = pool(reports)
        assert len(pooled) == 1
        assert pooled[0].holds != broken, pooled[0].summary()
        assert pooled[0].spent == pytest.approx(1 / less, abs=4 * pooled[0].error)
        assert ("BROKEN" in pooled[0].summary()) == broken


def test_hits_of_pure_attacks_add_up_to_a_bound() -> None:
    """60 pure attacks of 200 runs: together they prove most of ε = 1, and no more than it; with
    half the noise more."""
    for rate, broken in ((1.0, False), (1.6, True)):
        reports = []
        for number in range(60):
            hits = [
                np.random.default_rng([number, side]).random(2000) < p
                for side, p in enumerate((0.3, 0.3 * math.exp(-rate)))
            ]
            counts = _likely_side([hit[:1000] for hit in hits], [hit[1000:] for hit in hits])
            reports.append(
                replace(
                    EMPTY, program=f"{number} · tree · exact · replace", hits=counts, judged=1000
                )
            )
        found = pool(reports)[0]
        assert found.proved == pytest.approx(rate, rel=0.06)
        assert found.proved < rate
        assert found.holds != broken


def test_many_processes_give_the_same_attacks() -> None:
    cases = list(all_cases(Count()))[:2]
    assert list(run_cases(cases, 40, SECRET, 0.99, 2)) == [
        run_case(case, 40, SECRET, 0.99) for case in cases
    ]


def test_every_query_is_in_the_table() -> None:
    # discovered keys are not a linear function of the data: tests/audit/test_discovery_attack.py
    # attacks them
    assert {query.name for query in QUERIES} == set(KNOWN) - {"prefix", "discovered-keys"}
    cases = list(all_cases(Count()))
    assert {case.adjacency for case in cases} == {"add-remove", "replace"}
    assert {case.factorization for case in cases} >= set(FACTORIZATIONS) | {
        "pure-tree",
        "pure-hybrid",
    }


@pytest.mark.parametrize("promises", ["opposite", pytest.param("all", marks=pytest.mark.soak)])
@pytest.mark.parametrize("query", QUERIES, ids=lambda query: query.name)
def test_every_case_has_neighbours_that_differ(query: Query, promises: str) -> None:
    """A table of all cases must not stop at one for which the search finds nothing."""
    cases = list({(case.adjacency, case.pure): case for case in all_cases(query)}.values())
    if promises == "opposite" and len(cases) == 4:  # each adjacency once, and each kind of noise
        cases = cases[::3]
        assert [(case.adjacency, case.pure) for case in cases] == [
            ("add-remove", False),
            ("replace", True),
        ]
    # a search over many cells: one promise of its four
    large = query.name in ("marginals", "quantiles")
    for case in cases[-1:] if large else cases:
        program = case.program()
        pair = hardest_pair(program, query, TICKS, SECRET)
        assert 0 < compare(program, pair, SECRET).ratio <= 1 + 1e-9
