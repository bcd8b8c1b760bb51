"""Replay: a program run twice with one secret on neighbouring data, and what the difference of its
releases spends.

Noise is a function of (secret, declaration, tick, cell). So it cancels in the difference of two
runs, and what is left is exactly what the program reveals about the change: D = y(x) − y(x′).
`Claim.spent` turns D into μ or ε.

A `Program` is the adapter to whatever publishes noisy sums. It says how to run the program on given
events with a given secret, what the program promises, and what its noise looks like according to
its own public documents. The audit trusts the first, and tests the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from evercount._validate import FloatArray
from evercount.errors import InputError, ParameterError
from evercount.noise import Secret
from evercount.privacy import Budget

# ticks of events. Where users are protected, an event is a pair (user, event).
Data = tuple[tuple[Any, ...], ...]

RANGE_TOLERANCE = 1e-7
"""Relative: a difference of releases farther than this from the range of L cannot be hidden by any
noise."""


@dataclass(frozen=True, eq=False)
class Published:
    ticks: tuple[int, ...]
    labels: tuple[str, ...]
    values: FloatArray
    facts: Any = ()

    def __post_init__(self) -> None:
        if self.values.shape != (len(self.ticks), len(self.labels)):
            there = f"there are {len(self.ticks)} rows and {len(self.labels)} labels"
            raise ParameterError(
                f"published values have the shape {self.values.shape}, but {there}"
            )

    def same_structure(self, other: Published) -> bool:
        """Whether the two differ in nothing but the noisy numbers."""
        return (self.ticks, self.labels, self.facts) == (other.ticks, other.labels, other.facts)


@dataclass(frozen=True, eq=False)
class Claim:
    """What a program promises, in public numbers.

    Noise of tick t is row t of `left` times independent numbers: normals of std `sigma`, or, for
    pure privacy, Laplace numbers of which a change by one unit costs `cost` of ε. `limit` is the
    promised μ (Gaussian) or ε (pure).

    >>> import numpy as np
    >>> claim = Claim(Budget(1.0, 1e-6), np.eye(2), sigma=5.0)
    >>> round(claim.spent((1, 2), np.array([[0.0], [1.0]])), 3)
    0.2
    """

    budget: Budget
    left: FloatArray
    sigma: float | None = None
    cost: float | None = None

    def __post_init__(self) -> None:
        if (self.sigma is None) == (self.cost is None):
            raise ParameterError(
                "a claim has either sigma (Gaussian noise) or cost (Laplace noise), not both"
            )
        if self.budget.pure != (self.sigma is None):
            raise ParameterError(
                "a budget with delta=0 goes with Laplace noise, any other with Gaussian noise"
            )

    @property
    def pure(self) -> bool:
        return self.sigma is None

    @property
    def limit(self) -> float:
        """The most that two neighbours may be apart: ε for pure promises, else μ."""
        if self.pure:
            return self.budget.epsilon
        return self.budget.mu

    def spent(self, ticks: tuple[int, ...], difference: FloatArray) -> float:
        """What releases spend whose noisy numbers differ by `difference` (rows × labels) under the
        same noise.

        Gaussian noise: μ = √(Dᵀ(LLᵀ)⁻¹D)/σ, added up over labels as squares. Laplace noise: min Σ
        cost·|u| over L·u = D, added up over labels. Infinite where no noise can explain the
        difference.

        **Guarantee.** For Gaussian noise the two laws of the joint release are exactly
        μ-Gaussian-DP apart; for Laplace noise no log-ratio of their probabilities exceeds the
        result (on a lattice: where the cheapest shift is a lattice vector). Proof:
        `replay.proof.md`. Test: tests/audit/test_replay.py::test_spent_is_what_dense_formulas_say.
        """
        rows = self.left[np.asarray(ticks, dtype=np.int64) - 1]
        columns = [column for column in np.asarray(difference, np.float64).T if np.any(column)]
        if self.pure:
            return float(np.sum([self._least_cost(rows, column) for column in columns]))
        return float(np.linalg.norm([self._least_norm(rows, column) for column in columns]))

    def _least_norm(self, rows: FloatArray, column: FloatArray) -> float:
        """Compute the length of the shortest shift of the normals that makes the difference, over
        σ."""
        assert self.sigma is not None
        shift = np.linalg.lstsq(rows, column, rcond=1e-12)[0]
        if np.linalg.norm(rows @ shift - column) > RANGE_TOLERANCE * np.linalg.norm(column):
            return float("inf")
        return float(np.linalg.norm(shift)) / self.sigma

    def _least_cost(self, rows: FloatArray, column: FloatArray) -> float:
        """Find the cheapest shift of the Laplace numbers that makes the difference, by linear
        programming."""
        from scipy.optimize import linprog

        assert self.cost is not None
        solution = linprog(
            np.full(2 * rows.shape[1], self.cost), A_eq=np.hstack([rows, -rows]), b_eq=column
        )
        if solution.success and solution.fun is not None:
            return float(solution.fun)
        return float("inf")


class Program(Protocol):
    """A program under audit. `run` must be a function of its two arguments."""

    name: str

    def claim(self, ticks: int) -> Claim:
        """What the program promises about its first `ticks` ticks."""

    def run(self, data: Data, secret: Secret) -> Published:
        """What the program publishes for these events; InputError where it refuses them."""


TOLERANCE = 1e-9  # relative: a promise counts as broken only beyond what rounding can explain

Pair = tuple[Data, Data]
Progress = Callable[[int], None]


def no_progress(*done: Any) -> None:
    """Take reports of progress and show none."""


@dataclass(frozen=True)
class Finding:
    """What one pair of neighbours spends next to the promise, both as μ (Gaussian) or as ε
    (pure)."""

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
        report: dict[str, Any] = {
            "program": self.program,
            "measure": self.measure,
            "holds": self.holds,
            "spent": None,
            "claimed": None,
            "reason": "",
            "pair": None,
            "pairs": self.pairs,
            "refused": self.refused,
        }
        if self.worst is not None:
            if np.isfinite(self.worst.spent):
                report["spent"] = self.worst.spent
            report["claimed"] = self.worst.limit
            report["reason"] = self.worst.reason
            report["pair"] = [repr(data) for data in self.worst.pair]
        return report

    def summary(self) -> str:
        if self.worst is None:
            return (
                f"{self.program}: no pair of neighbours was accepted ({self.refused} were refused)"
            )
        worst = self.worst
        line = (
            f"{self.program}: spent {self.measure} {worst.spent:.6g}, claimed {worst.limit:.6g} "
            f"(ratio {worst.ratio:.4f}; {self.pairs} pairs of neighbours, {self.refused} refused)"
        )
        if self.holds:
            return f"{line}\n  the promise holds for all of them"
        why = f": {worst.reason}" if worst.reason else ""
        return (
            f"{line}\n"
            f"  THE PROMISE IS BROKEN{why}\n"
            f"  data     : {worst.pair[0]}\n"
            f"  neighbour: {worst.pair[1]}"
        )


def compare(program: Program, pair: Pair, secret: Secret) -> Finding:
    one, other = (program.run(data, secret) for data in pair)
    claim = program.claim(max(map(len, pair)))
    if not one.same_structure(other):
        return Finding(
            float("inf"), claim.limit, pair, "the releases differ in more than noisy numbers"
        )
    spent = claim.spent(one.ticks, one.values - other.values)
    reason = ""
    if not np.isfinite(spent):
        reason = "noise of the claimed covariance cannot hide the difference"
    return Finding(spent, claim.limit, pair, reason)


def check_repeats(program: Program, data: Data, secret: Secret) -> Finding | None:
    """A finding if the program publishes something else when it runs again with the same secret on
    the same data."""
    one, other = (program.run(data, secret) for _ in range(2))
    if one.same_structure(other) and np.array_equal(one.values, other.values):
        return None
    reason = (
        "two runs with one secret on the same data differ: noise is not a function of the secret"
    )
    return Finding(float("inf"), program.claim(len(data)).limit, (data, data), reason)


def replay(
    program: Program, pairs: Iterable[Pair], secret: Secret, progress: Progress = no_progress
) -> ReplayReport:
    """Compare all these pairs of neighbours under one secret.

    **Guarantee.** A report that does not hold is a proof: its pair, replayed, breaks the promise as
    the claim states it. One that holds says that no pair *tried* breaks it, provided that the noise
    has the claimed law (`audit mechanism` tests that). Proof: `replay.proof.md`. Test:
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
        progress(count)
    return _report(program, worst, count, refused)


def search(program: Program, strategy: Any, secret: Secret, examples: int = 100) -> ReplayReport:
    """Compare random neighbours drawn by a hypothesis strategy; a pair that breaks the promise is
    made small."""
    from hypothesis import HealthCheck, assume, given, settings, target

    findings: list[Finding] = []
    refused = 0
    every = list(HealthCheck)

    @settings(
        max_examples=examples,
        database=None,
        deadline=None,
        derandomize=True,
        suppress_health_check=every,
    )
    @given(strategy)
    def attack(pair: Pair) -> None:
        nonlocal refused
        try:
            findings.append(compare(program, pair, secret))
        except InputError:
            refused += 1
            assume(False)
        assert findings[-1].holds
        target(findings[-1].ratio)

    try:
        attack()
        worst = max(findings, key=lambda finding: finding.spent, default=None)
    except AssertionError:
        worst = findings[-1]  # hypothesis ends with the smallest one that it has
    return _report(program, worst, len(findings), refused)


def _report(program: Program, worst: Finding | None, pairs: int, refused: int) -> ReplayReport:
    measure = "mu"
    if worst is not None and program.claim(max(map(len, worst.pair))).pure:
        measure = "epsilon"
    return ReplayReport(program.name, measure, worst, pairs, refused)
