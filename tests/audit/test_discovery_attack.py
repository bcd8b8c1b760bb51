"""The attack on discovered keys: streams keep their promise, planted bugs are caught."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from discovery_attack import PERSON, attack_discovery, library_program, neighbours

from evercount import Budget, DiscoveredKeys, Secret
from evercount.queries.key_counts import Thresholds

pytestmark = pytest.mark.slow

ROOT = Secret.from_hex("4a" * 32)
BUDGET = Budget(1.0, 0.2)


class FirstEvent(DiscoveredKeys):
    """A key that appears with its first event."""

    def thresholds(self, *arguments: Any) -> Thresholds:
        right = super().thresholds(*arguments)
        assert right is not None
        fields = (
            right.minimum,
            right.every,
            right.horizon,
            right.reach,
            right.delta,
            right.std,
            right.own_ticks,
        )
        return AlwaysPassed(*fields)


class AlwaysPassed(Thresholds):
    def at(self, tick: int) -> int:
        return -(10**6)


class NoMinimum(DiscoveredKeys):
    """The thresholds of minimum 1 while keys are tested from a larger minimum on."""

    def thresholds(self, *arguments: Any) -> Thresholds:
        right = super().thresholds(*arguments)
        assert right is not None
        fields = (
            right.minimum,
            right.every,
            right.horizon,
            right.reach,
            right.delta,
            right.std,
            right.own_ticks,
        )
        return Lower(*fields)


class Lower(Thresholds):
    def at(self, tick: int) -> int:
        return super().at(tick) - self.minimum + 1


RIGHT: dict[str, tuple[DiscoveredKeys, Budget]] = {
    "events": (DiscoveredKeys(), BUDGET),
    "a minimum": (DiscoveredKeys(minimum=20), replace(BUDGET, adjacency="replace")),
    "users": (DiscoveredKeys(every=2), Budget(1.0, 0.2, unit="user", max_events=3)),
}
WRONG: dict[str, tuple[DiscoveredKeys, Budget]] = {
    "appears with its first event": (FirstEvent(), BUDGET),
    "no minimum": (NoMinimum(minimum=20), BUDGET),
}


def attacked(query: DiscoveredKeys, budget: Budget, runs: int, views: tuple[str, ...] = ()) -> Any:
    pair = neighbours(4, budget.max_events or 1, query.minimum)
    return attack_discovery(
        library_program(query, budget, 4, views=views), budget, pair, runs, ROOT
    )


def test_streams_keep_their_promise_and_planted_bugs_do_not() -> None:
    for name, (query, budget) in RIGHT.items():
        report = attacked(query, budget, 50)
        assert report.holds, (name, report.summary())
        assert "BROKEN" not in report.summary()
    for name, (query, budget) in WRONG.items():
        report = attacked(query, budget, 120)
        assert not report.holds, (name, report.summary())
        assert report.listed > 0
        assert "BROKEN" in report.summary()


def test_keys_of_the_day_keep_their_promise_and_planted_bugs_do_not() -> None:
    users = Budget(1.0, 0.2, unit="user", max_events=3)
    for query, budget in ((DiscoveredKeys(), BUDGET), (DiscoveredKeys(minimum=5), users)):
        report = attacked(query, budget, 50, ("per-tick",))
        assert report.holds, report.summary()
    for wrong in (FirstEvent(), NoMinimum(minimum=20)):
        report = attacked(wrong, BUDGET, 120, ("per-tick",))
        assert not report.holds, report.summary()


def test_one_secret_and_one_person_less_changes_only_what_is_covered() -> None:
    """A replay: with the same noise, neighbours differ in the total, in `other`, and in the
    person's key if public."""
    query, budget = DiscoveredKeys(), Budget(1.0, 0.01)
    run: Callable[..., Any] = library_program(query, budget, 6)
    with_person, without = neighbours(6)
    changed = 0
    for number in range(20):
        one, other = (
            run(ticks, ROOT.derive(f"replay {number}")) for ticks in (with_person, without)
        )
        for a, b in zip(one, other, strict=True):
            assert list(a) == list(b), (
                "the key of one person appears with probability at most delta_2"
            )
            differences = {label: a[label] - b[label] for label in a}
            assert differences == {label: float(label in ("total", "other")) for label in a}
            changed += 1
    assert changed == 120
    assert PERSON not in one[-1]


def test_too_few_runs_are_refused() -> None:
    with pytest.raises(Exception, match="at least 40 runs"):
        attacked(DiscoveredKeys(), BUDGET, 10)
