"""Caps that are handed on from one stream to the next: what parts of them cost, and who may hand
them on."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pytest

from evercount import ActiveUsers, Budget, Count, DiscoveredKeys, DistinctUsers
from evercount.engine.build import choose_engine, squared_norm
from evercount.engine.carried_caps import check_hands_on
from evercount.errors import ParameterError
from evercount.factorizations import Dense, factorization
from evercount.factorizations.independent import Direct
from evercount.factorizations.participation import participation
from evercount.queries.base import Query
from evercount.words import Substrings

T, K = 8, 4
PERSON = Budget(1.0, 1e-6, unit="user", max_per_tick=2, max_ticks=K)


@pytest.mark.parametrize("name", ["fresh", "balanced", "square-root", "normalized", "blend"])
def test_parts_of_the_caps_cost_parts_of_the_promise(name: str) -> None:
    """All sets of ticks of two years: μ² of both together is at most that of one; with fresh caps
    it is more."""
    engine = choose_engine(Count(), PERSON, T, name, ("per-tick", "running"))
    check_hands_on(engine, Count(), PERSON, T)
    R, norm = engine.dense()[1], squared_norm(engine, Count(), PERSON, T)

    def cost(size: int) -> float:
        rows = [np.isin(np.arange(T), J) for J in combinations(range(T), size)]
        return max(4 * float(np.sum(R[:, row].sum(axis=1) ** 2)) for row in rows) / norm

    costs = [0.0, *(cost(size) for size in range(1, K + 1))]
    assert max(costs[q] + costs[K - q] for q in range(K + 1)) <= 1 + 1e-12
    assert 2 * costs[K] > 1.5, "planted: caps that begin anew"


def test_noise_whose_parts_cost_more_is_refused() -> None:
    """`direct`, 8 ticks: 6 ticks of a person cost 163 and 7 cost 189, which is less than 7/6 of
    it."""
    direct, seven = Direct(T), Budget(1.0, 1e-6, unit="user", max_per_tick=1, max_ticks=7)
    assert participation(direct, 6) * 7 > participation(direct, 7) * 6
    with pytest.raises(ParameterError, match="more than their share"):
        check_hands_on(direct, Count(), seven, T)


def test_persons_whose_ticks_repel_those_of_others_are_refused() -> None:
    """Each of the two may have used another part of its caps, and only both together cost more than
    their shares."""
    right = np.eye(T) - 0.5 * np.eye(T, k=-1)
    own = Dense(np.tri(T) @ np.linalg.inv(right), right)
    budget = Budget(1.0, 1e-6, unit="user", max_ticks=2)
    check_hands_on(own, ActiveUsers(), budget, T)
    with pytest.raises(ParameterError, match="in the place of another"):
        check_hands_on(own, ActiveUsers(), replace(budget, adjacency="replace"), T)


@pytest.mark.parametrize(
    ("query", "unit", "why"),
    [
        (Count(), {}, "persons without a period"),
        (Count(), {"unit": "user", "max_per_tick": 1, "period": 7}, "persons without a period"),
        (Count(), {"unit": "user", "max_per_tick": 1, "max_ticks": 9}, "caps nothing"),
        (
            Count(),
            {"unit": "user", "max_per_tick": 2, "max_ticks": 3, "max_events": 5},
            "max_events alone",
        ),
        (Substrings("ab", 2), {"unit": "user", "max_events": 2}, "remembers more"),
        (DistinctUsers(), {"unit": "user"}, "remembers more"),
        (DiscoveredKeys(), {"unit": "user", "max_events": 2}, "remembers more"),
    ],
)
def test_who_may_not_hand_on(query: Query, unit: dict[str, Any], why: str) -> None:
    with pytest.raises(ParameterError, match=why):
        check_hands_on(factorization("balanced", T), query, Budget(1.0, 1e-6, **unit), T)


def test_who_may() -> None:
    for query, caps in ((Count(), {"max_events": 3}), (ActiveUsers(), {"max_ticks": 3})):
        for budget in (
            Budget(1.0, 1e-6, unit="user", **caps),
            Budget(1.0, 0.0, unit="user", **caps),
        ):
            check_hands_on(choose_engine(query, budget, T, None), query, budget, T)
