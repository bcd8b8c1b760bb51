"""Mechanisms whose releases are not linear in their noise: their exact law on neighbours, and draws of the program.

`SparseCount` closes segments depending on the data, and clients of the local model send one of finitely many messages.
For small cases the probability of every outcome is a finite sum. Two questions are asked. Does the law keep the
promise? And does the running program follow the law?
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from evercount._arrays import FloatArray
from evercount.audit.program import Claim
from evercount.factorizations.laplace_choice import pure_factorization
from evercount.noise import Secret
from evercount.privacy import Budget
from evercount.sparse.budget_split import plan_sparse
from evercount.sparse.sparse_count import SparseCount
from evercount.sparse.sparse_plan import SparsePlan

TOLERANCE = 1e-7  # of log-ratios: they come from sums of doubles
LEAST_P = 1e-6  # a program whose draws have a smaller p-value does not follow its law
LOST = 1e-13  # probability of threshold noise that is left out, on either side
COMMON = 1e-9  # rarer outcomes are left out: what is cut off could matter for them

Law = Mapping[Hashable, float]


@dataclass(frozen=True)
class LawReport:
    program: str
    claimed: float
    spent: float
    pair: tuple[str, str]
    outcome: str
    p_value: float
    draws: int

    @property
    def reason(self) -> str:
        """Why the promise is broken; empty where it is not."""
        if self.spent > self.claimed + TOLERANCE:
            return f"the exact law spends {self.spent:.6g}: outcome {self.outcome} of {self.pair[0]} and {self.pair[1]}"
        if self.p_value < LEAST_P:
            return f"the program does not follow its law (p-value {self.p_value:.2g} of {self.draws} draws)"
        return ""

    @property
    def holds(self) -> bool:
        return not self.reason

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"holds": self.holds, "reason": self.reason}

    def summary(self) -> str:
        line = (
            f"{self.program}: claimed epsilon {self.claimed:.6g}, exact law {self.spent:.6g} (ratio "
            f"{self.spent / self.claimed:.4f}); {self.draws} draws of the program, p-value {self.p_value:.2g}"
        )
        return line if self.holds else f"{line}\n  THE PROMISE IS BROKEN: {self.reason}"


def _log_ratio(p: float, q: float) -> float:
    return abs(math.log(p / q)) if min(p, q) > 0 else math.inf


def largest_ratio(laws: Mapping[str, Law]) -> tuple[float, tuple[str, str], str]:
    """(log-ratio, pair, outcome): the largest |log-ratio| of an outcome over all pairs of named inputs.

    >>> apart, pair, outcome = largest_ratio({"x": {0: 0.25, 1: 0.75}, "y": {0: 0.5, 1: 0.5}})
    >>> round(apart, 3), pair, outcome
    (0.693, ('x', 'y'), '0')
    """
    ratios = [(0.0, ("", ""), "")]
    for outcome in {outcome for law in laws.values() for outcome in law}:
        chances = [(law.get(outcome, 0.0), name) for name, law in laws.items()]
        (least, one), (most, other) = min(chances), max(chances)
        if most > COMMON:
            ratios.append((_log_ratio(least, most), (one, other), str(outcome)))
    return max(ratios)


def drawn_p_value(law: Law, draw: Callable[[Secret], Hashable], draws: int, secret: Secret | None) -> float:
    """`draws_p_value` of a program that is run with a secret of its own for each draw."""
    root = Secret.generate() if secret is None else secret
    return draws_p_value(law, lambda number: draw(root.derive(f"law {number}")), draws)


def draws_p_value(law: Law, draw: Callable[[int], Hashable], draws: int) -> float:
    """The p-value of the χ² test of draws 0, 1, … of a program against a law; rare outcomes make one class.

    >>> round(draws_p_value({0: 0.5, 1: 0.5}, lambda number: number % 2, 100), 2)
    1.0
    """
    from scipy.stats import chi2

    seen = Counter(map(draw, range(draws)))
    common = [outcome for outcome, p in law.items() if p * draws >= 5]
    expected = [law[outcome] * draws for outcome in common]
    counted = [seen[outcome] for outcome in common]
    rest, others = draws - sum(expected), draws - sum(counted)
    statistic = sum((count - mean) ** 2 / mean for count, mean in zip(counted, expected, strict=True))
    freedom = len(common) - 1
    if rest >= 1:
        statistic, freedom = statistic + (others - rest) ** 2 / rest, freedom + 1
    elif others > 10:
        return 0.0  # outcomes that the law does not have
    return float(chi2.sf(statistic, max(1, freedom)))


def closing_law(plan: SparsePlan, counts: Sequence[int]) -> dict[Hashable, float]:
    """P(every pattern of closings) of a partition over its first ticks, summed over the noise of thresholds."""
    a, b = plan.threshold_epsilon, plan.tick_epsilon
    far = math.ceil(-math.log(LOST) / a)
    level = np.arange(-far, far + 1)
    weight = np.exp(-a * np.abs(level)) * math.tanh(a / 2)
    most = math.inf if plan.segments is None else plan.segments

    def extended(tick: int, held: int, segments: int, density: FloatArray) -> Iterator[tuple[tuple[bool, ...], float]]:
        if tick == len(counts):
            yield (), float(density.sum())
            return
        held += counts[tick]
        gap = plan.threshold_at(tick + 1) + level - held
        reached = _tail(b, gap) if segments < most else np.zeros(len(level))
        for pattern, p in extended(tick + 1, held, segments, density * (1 - reached)):
            yield (False, *pattern), p
        if segments < most:
            closed = float((density * reached).sum())
            for pattern, p in extended(tick + 1, 0, segments + 1, weight):
                yield (True, *pattern), closed * p

    return dict(extended(0, 0, 0, weight))


def _tail(rate: float, gap: Any) -> FloatArray:
    """P(ν ≥ gap) for discrete Laplace ν of this rate."""
    q = math.exp(-rate)
    up, down = np.exp(-rate * np.maximum(gap, 0)), np.exp(rate * np.minimum(gap - 1, 0))
    return np.asarray(np.where(gap > 0, up / (1 + q), 1 - down / (1 + q)))


def audit_sparse(
    epsilon: float = 1.0,
    horizon: int = 64,
    max_ones: int = 60,
    ticks: int = 4,
    draws: int = 1000,
    secret: Secret | None = None,
    plan: SparsePlan | None = None,
    program: Callable[[Secret], SparseCount] | None = None,
) -> LawReport:
    """Audit a pure `SparseCount` by partition: the exact law of its closings, and the counter behind them.

    Streams have counts around the threshold, where the law moves most. Neighbours have one event more at one tick. A
    pattern in which the segment of that event is closed also spends the counter's part, by the least-cost shift.

    **Guarantee.** Up to 1e-7, `spent` is the largest log-ratio of the joint law of (closings, counter) over these
    neighbours, where the counter's part is an upper bound (`Claim.spent`). Test:
    tests/audit/test_exact_laws.py::test_the_sparse_counter_keeps_its_promise.
    """
    split = plan_sparse(epsilon, horizon, 0.0, max_ones, method="partition") if plan is None else plan
    near, gap = split.threshold, split.gap
    bases = ([near, 0, 0, 0], [near - gap, gap // 2, 0, near], [0, near, near, 0], [0] * 4, [near + gap] * 4)
    counter = _counter_costs(split)
    ratios: list[tuple[float, tuple[str, str], str]] = []
    for base in bases:
        counts = (base * ticks)[:ticks]
        law = closing_law(split, counts)
        for tick in range(ticks):
            more = [count + (number == tick) for number, count in enumerate(counts)]
            other = closing_law(split, more)
            for pattern, p in law.items():
                if max(p, other[pattern]) > COMMON:
                    apart = _log_ratio(p, other[pattern]) + counter[_segment(pattern, tick)]
                    ratios.append((apart, (str(counts), str(more)), str(pattern)))
    apart, pair, outcome = max(ratios)
    opened = program or (lambda key: SparseCount(epsilon, horizon, 0.0, max_ones, method="partition", secret=key))
    start = (bases[0] * ticks)[:ticks]

    def closings(key: Secret) -> Hashable:
        with closing(opened(key)) as counter:
            return tuple(release.closed for release in counter.run(start))

    p_value = drawn_p_value(closing_law(split, start), closings, draws, secret)
    return LawReport("sparse count", epsilon, apart, pair, outcome, p_value, draws)


def _segment(pattern: Any, tick: int) -> int:
    """The number, from 1, of the closed segment that holds a tick; 0 where it stays open."""
    return sum(pattern[:tick]) + 1 if any(pattern[tick:]) else 0


def _counter_costs(plan: SparsePlan) -> list[float]:
    """What the counter spends where the total of its segment 1, 2, … changes by one event; 0 for no segment."""
    assert plan.segments is not None
    left = pure_factorization(plan.counter, plan.segments).dense(plan.segments)[0]  # in units of each number's ε
    claim = Claim(Budget(plan.counter_epsilon, 0.0), np.asarray(left), cost=plan.counter_epsilon)
    ticks = np.arange(1, plan.segments + 1)
    steps = (ticks[:, np.newaxis] >= ticks).astype(np.float64)
    return [0.0, *(claim.spent(tuple(ticks.tolist()), step[:, np.newaxis]) for step in steps.T)]
