"""Replay: a program run twice with one secret on neighbouring data, and what the difference of its releases spends.

Noise is a function of (secret, declaration, tick, cell). So it cancels in the difference of two runs, and what is left
is exactly what the program reveals about the change: D = y(x) − y(x′). `Claim.spent` turns D into μ or ε.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from evercount.audit.program import Data, Program
from evercount.errors import InputError
from evercount.noise import Secret

TOLERANCE = 1e-9  # relative: a promise counts as broken only beyond what rounding can explain

Pair = tuple[Data, Data]
Progress = Callable[[int], None]


@dataclass(frozen=True)
class Finding:
    """What one pair of neighbours spends beside the promise, both as μ (Gaussian) or as ε (pure)."""

    # `reason` says why where it is not the size of the difference.

    spent: float
    limit: float
    pair: Pair
    reason: str = ""

    @property
    def ratio(self) -> float:
        return self.spent / self.limit

    @property
    def holds(self) -> bool:
        return self.spent <= self.limit * (1 + TOLERANCE)


@dataclass(frozen=True)
class ReplayReport:
    """The worst pair of a replay. `pairs` were compared; others were refused by the program."""

    program: str
    measure: str
    worst: Finding | None
    pairs: int
    refused: int

    @property
    def holds(self) -> bool:
        return self.worst is None or self.worst.holds

    def to_dict(self) -> dict[str, Any]:
        found = {"program": self.program, "measure": self.measure, "holds": self.holds}
        tried = {"pairs": self.pairs, "refused": self.refused}
        if (worst := self.worst) is None:
            return {**found, "spent": None, "claimed": None, "reason": "", "pair": None, **tried}
        spent, pair = worst.spent if np.isfinite(worst.spent) else None, [repr(data) for data in worst.pair]
        return {**found, "spent": spent, "claimed": worst.limit, "reason": worst.reason, "pair": pair, **tried}

    def summary(self) -> str:
        if self.worst is None:
            return f"{self.program}: no pair of neighbours was accepted ({self.refused} were refused)"
        worst = self.worst
        line = (
            f"{self.program}: spent {self.measure} {worst.spent:.6g}, claimed {worst.limit:.6g} "
            f"(ratio {worst.ratio:.4f}; {self.pairs} pairs of neighbours, {self.refused} refused)"
        )
        if self.holds:
            return f"{line}\n  the promise holds for all of them"
        why = f": {worst.reason}" if worst.reason else ""
        return f"{line}\n  THE PROMISE IS BROKEN{why}\n  data     : {worst.pair[0]}\n  neighbour: {worst.pair[1]}"


def compare(program: Program, pair: Pair, secret: Secret) -> Finding:
    one, other = (program.run(data, secret) for data in pair)
    claim = program.claim(max(map(len, pair)))
    if not one.same_structure(other):
        return Finding(float("inf"), claim.limit, pair, "the releases differ in more than noisy numbers")
    spent = claim.spent(one.ticks, one.values - other.values)
    reason = "" if np.isfinite(spent) else "noise of the claimed covariance cannot hide the difference"
    return Finding(spent, claim.limit, pair, reason)


def check_repeats(program: Program, data: Data, secret: Secret) -> Finding | None:
    """A finding if the program publishes something else when it runs again with the same secret on the same data."""
    one, other = (program.run(data, secret) for _ in range(2))
    if one.same_structure(other) and np.array_equal(one.values, other.values):
        return None
    reason = "two runs with one secret on the same data differ: noise is not a function of the secret"
    return Finding(float("inf"), program.claim(len(data)).limit, (data, data), reason)


def replay(program: Program, pairs: Iterable[Pair], secret: Secret, progress: Progress | None = None) -> ReplayReport:
    """Compare all these pairs of neighbours under one secret.

    **Guarantee.** A report that does not hold is a proof: its pair, replayed, breaks the promise as the claim states
    it. One that holds says that no pair *tried* breaks it, provided that the noise has the claimed law (`audit
    mechanism` tests that). Proof: `replay.proof.md`. Test:
    tests/audit/test_replay.py::test_a_broken_promise_is_made_small.
    """
    worst: Finding | None = None
    count = refused = 0
    for pair in pairs:
        try:
            if count == 0:
                worst = check_repeats(program, pair[0], secret)
            finding = compare(program, pair, secret)
        except InputError:
            refused += 1
            continue
        count += 1
        if worst is None or finding.spent > worst.spent:
            worst = finding
        if progress is not None:
            progress(count)
    return _report(program, worst, count, refused)


def search(program: Program, strategy: Any, secret: Secret, examples: int = 100) -> ReplayReport:
    """Compare random neighbours drawn by a hypothesis strategy; a pair that breaks the promise is made small."""
    from hypothesis import HealthCheck, assume, given, settings, target

    found: list[Finding] = []
    refused = 0
    every = list(HealthCheck)

    @settings(max_examples=examples, database=None, deadline=None, derandomize=True, suppress_health_check=every)
    @given(strategy)
    def attack(pair: Pair) -> None:
        nonlocal refused
        try:
            found.append(compare(program, pair, secret))
        except InputError:
            refused += 1
            assume(False)
        assert found[-1].holds
        target(found[-1].ratio)

    try:
        attack()
        worst = max(found, key=lambda finding: finding.spent, default=None)
    except AssertionError:
        worst = found[-1]  # hypothesis ends with the smallest one that it has
    return _report(program, worst, len(found), refused)


def _report(program: Program, worst: Finding | None, pairs: int, refused: int) -> ReplayReport:
    pure = worst is not None and program.claim(max(map(len, worst.pair))).pure
    return ReplayReport(program.name, "epsilon" if pure else "mu", worst, pairs, refused)
