"""Exact laws of what is not linear in its noise: the sparse counter, and one message of a client of
the local model.

`SparseCount` closes segments depending on the data, and a hierarchical or GenProt client sends one
of finitely many messages. For small cases the probability of every outcome is a finite sum,
computed with the programs' own plans and encoders. Two questions are asked. Does the law keep the
promise? And does the running program follow the law? Gaussian clients are attacked like any other
mechanism.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any, cast

import numpy as np

from evercount._validate import FloatArray
from evercount.audit.attack import AttackReport, attack
from evercount.audit.replay import Claim, Data, Published
from evercount.factorizations.laplace_choice import pure_factorization
from evercount.local.client_and_server import LocalClient
from evercount.local.collection_plan import Form, LocalPlan
from evercount.local.genprot import GenProtClient
from evercount.local.genprot_plan import BITS, GenProtPlan
from evercount.local.hierarchical import HierarchyClient, HierarchyPlan, encode
from evercount.local.message_server import unpack
from evercount.noise import Secret
from evercount.privacy import Budget
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
            return (
                f"the exact law spends {self.spent:.6g}: outcome {self.outcome} of {self.pair[0]} "
                f"and {self.pair[1]}"
            )
        if self.p_value < LEAST_P:
            return (
                f"the program does not follow its law (p-value {self.p_value:.2g} of {self.draws} "
                "draws)"
            )
        return ""

    @property
    def holds(self) -> bool:
        return not self.reason

    def summary(self) -> str:
        line = (
            f"{self.program}: claimed epsilon {self.claimed:.6g}, exact law {self.spent:.6g} "
            f"(ratio {self.spent / self.claimed:.4f}); {self.draws} draws of the program, p-value "
            f"{self.p_value:.2g}"
        )
        return line if self.holds else f"{line}\n  THE PROMISE IS BROKEN: {self.reason}"


def _log_ratio(p: float, q: float) -> float:
    return abs(math.log(p / q)) if min(p, q) > 0 else math.inf


def largest_ratio(laws: Mapping[str, Law]) -> tuple[float, tuple[str, str], str]:
    """(log-ratio, pair, outcome): the largest |log-ratio| of an outcome over all pairs of named
    inputs.

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


def drawn_p_value(
    law: Law, draw: Callable[[Secret], Hashable], draws: int, secret: Secret
) -> float:
    """`draws_p_value` of a program that is run with a secret of its own for each draw."""
    return draws_p_value(law, lambda number: draw(secret.derive(f"law {number}")), draws)


def draws_p_value(law: Law, draw: Callable[[int], Hashable], draws: int) -> float:
    """The p-value of the χ² test of draws 0, 1, … of a program against a law; rare outcomes make
    one class.

    >>> round(draws_p_value({0: 0.5, 1: 0.5}, lambda number: number % 2, 100), 2)
    1.0
    """
    from scipy.stats import chi2

    seen = Counter(map(draw, range(draws)))
    common = [outcome for outcome, p in law.items() if p * draws >= 5]
    expected = [law[outcome] * draws for outcome in common]
    counted = [seen[outcome] for outcome in common]
    rest, others = draws - sum(expected), draws - sum(counted)
    statistic = sum(
        (count - mean) ** 2 / mean for count, mean in zip(counted, expected, strict=True)
    )
    freedom = len(common) - 1
    if rest >= 1:
        statistic, freedom = statistic + (others - rest) ** 2 / rest, freedom + 1
    elif others > 10:
        return 0.0  # outcomes that the law does not have
    return float(chi2.sf(statistic, max(1, freedom)))


def closing_law(plan: SparsePlan, counts: Sequence[int]) -> dict[Hashable, float]:
    """P(every pattern of closings) of a partition over its first ticks, summed over the noise of
    thresholds."""
    a, b = plan.threshold_epsilon, plan.tick_epsilon
    far = math.ceil(-math.log(LOST) / a)
    level = np.arange(-far, far + 1)
    weight = np.exp(-a * np.abs(level)) * math.tanh(a / 2)
    most = math.inf if plan.segments is None else plan.segments

    def extended(
        tick: int, held: int, segments: int, density: FloatArray
    ) -> Iterator[tuple[tuple[bool, ...], float]]:
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


def sparse_counter(secret: Secret) -> SparseCount:
    return SparseCount(1.0, 64, 0.0, 60, method="partition", secret=secret)


def audit_sparse(
    draws: int,
    secret: Secret,
    plan: SparsePlan,
    program: Callable[[Secret], SparseCount] = sparse_counter,
) -> LawReport:
    """Audit a pure `SparseCount` of ε = 1 by partition: the exact law of its closings, and the
    counter behind them.

    Streams have counts around the threshold, where the law moves most. Neighbours have one event
    more at one tick. A pattern in which the segment of that event is closed also spends the
    counter's part, by the least-cost shift.

    **Guarantee.** Up to 1e-7, `spent` is the largest log-ratio of the joint law of (closings,
    counter) over these neighbours, where the counter's part is an upper bound (`Claim.spent`).
    Test: tests/audit/test_exact_laws.py::test_the_sparse_counter_keeps_its_promise.
    """
    ticks, near, gap = 4, plan.threshold, plan.gap
    bases = (
        [near, 0, 0, 0],
        [near - gap, gap // 2, 0, near],
        [0, near, near, 0],
        [0] * 4,
        [near + gap] * 4,
    )
    counter = _counter_costs(plan)
    ratios: list[tuple[float, tuple[str, str], str]] = []
    for base in bases:
        counts = (base * ticks)[:ticks]
        law = closing_law(plan, counts)
        for tick in range(ticks):
            more = [count + (number == tick) for number, count in enumerate(counts)]
            other = closing_law(plan, more)
            for pattern, p in law.items():
                if max(p, other[pattern]) > COMMON:
                    apart = _log_ratio(p, other[pattern]) + counter[_segment(pattern, tick)]
                    ratios.append((apart, (str(counts), str(more)), str(pattern)))
    apart, pair, outcome = max(ratios)
    start = (bases[0] * ticks)[:ticks]

    def closings(key: Secret) -> Hashable:
        with closing(program(key)) as counter:
            return tuple(release.closed for release in counter.run(start))

    p_value = drawn_p_value(closing_law(plan, start), closings, draws, secret)
    return LawReport("sparse count", 1.0, apart, pair, outcome, p_value, draws)


def _segment(pattern: Any, tick: int) -> int:
    """The number, from 1, of the closed segment that holds a tick; 0 where it stays open."""
    return sum(pattern[:tick]) + 1 if any(pattern[tick:]) else 0


def _counter_costs(plan: SparsePlan) -> list[float]:
    """What the counter spends where the total of its segment 1, 2, … changes by one event; 0 for no
    segment."""
    assert plan.segments is not None
    # in units of each number's ε
    left = pure_factorization(plan.counter, plan.segments).dense(plan.segments)[0]
    claim = Claim(Budget(plan.counter_epsilon, 0.0), np.asarray(left), cost=plan.counter_epsilon)
    ticks = np.arange(1, plan.segments + 1)
    steps = (ticks[:, np.newaxis] >= ticks).astype(np.float64)
    return [0.0, *(claim.spent(tuple(ticks.tolist()), step[:, np.newaxis]) for step in steps.T)]


WORD = 2**64  # a client keeps its bit by a uniform number below this
CLIENTS = 40  # GenProt clients, each with candidates of its own, whose laws are computed

Encoder = Callable[[HierarchyPlan, int, int, int, int], Hashable]


def audit_hierarchical(
    draws: int,
    secret: Secret,
    encoder: Encoder = encode,
    client: Callable[[HierarchyPlan, Secret], Any] = HierarchyClient,
) -> LawReport:
    """Audit hierarchical clients: the law of a message for every bucket, and the messages of real
    clients.

    **Guarantee.** `spent` is the exact ε of a message for a uniform key stream, up to the rounding
    of a double. Test: tests/audit/test_exact_laws.py::test_local_clients_keep_their_promise.
    """
    plan = HierarchyPlan(1.0, 16)
    laws: dict[str, Law] = {f"bucket {b}": _message_law(plan, b, encoder) for b in range(16)}
    apart, pair, outcome = largest_ratio(laws)
    p_value = drawn_p_value(
        laws["bucket 5"], lambda key: _send(client(plan, key), 5.5 / 16), draws, secret
    )
    return LawReport("hierarchical client", 1.0, apart, pair, outcome, p_value, draws)


def _send(client: Any, value: float) -> Hashable:
    with closing(client):
        return cast(Hashable, client.message(value))


def _message_law(plan: HierarchyPlan, bucket: int, encoder: Encoder) -> Law:
    """Levels and coefficients are uniform; the message changes once as the 64-bit number grows,
    found by bisection."""
    law: dict[Hashable, Fraction] = defaultdict(Fraction)
    for level in range(plan.levels):
        rows = plan.nodes(level + 1)
        for row in range(rows):
            weight = Fraction(1, plan.levels * rows)
            first, last = (encoder(plan, bucket, chance, row, level) for chance in (0, WORD - 1))
            low, high = 0, WORD - 1
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (
                    (middle, high)
                    if encoder(plan, bucket, middle, row, level) == first
                    else (low, middle)
                )
            law[first] += weight * Fraction(high, WORD)
            law[last] += weight * Fraction(WORD - high, WORD)
    return {message: float(p) for message, p in law.items()}


def audit_genprot(
    draws: int,
    secret: Secret,
    rule: Any = "best",
    clip: float | None = None,
    client: Callable[[GenProtPlan, int, Secret], Any] = GenProtClient,
) -> LawReport:
    """Audit GenProt clients: the law of a message for every bucket of several clients, and messages
    of real clients.

    **Guarantee.** For each of 40 clients' candidates `spent` is at least the exact ε of its
    message; the worst case over all candidates is `GenProtPlan.exact_epsilon`. Test:
    tests/audit/test_exact_laws.py::test_local_clients_keep_their_promise.
    """
    plan = GenProtPlan(1.0, 1000, "audit", rule=rule, buckets=8)
    if clip is not None:
        plan.__dict__["clip"] = clip
    found = [(*largest_ratio(_choice_laws(plan, number)), number) for number in range(CLIENTS)]
    apart, pair, outcome, number = max(found)
    law = _choice_laws(plan, 0)["bucket 1"]
    p_value = drawn_p_value(law, lambda key: _send(client(plan, 0, key), 0.5 / 8), draws, secret)
    return LawReport(
        f"genprot client, {rule}", 1.0, apart, pair, f"{outcome} of client {number}", p_value, draws
    )


def _choice_laws(plan: GenProtPlan, number: int) -> Mapping[str, Law]:
    """P(message) for each bucket of a client, from all patterns of its bits."""
    table = np.stack([plan.candidate(number, t) for t in range(plan.candidates)])
    laws: dict[str, Law] = {}
    for bucket in range(1, plan.shape.w + 1):
        chances = plan.bit_probabilities(table @ plan.directions[bucket - 1]).tolist()
        law: dict[Hashable, Fraction] = defaultdict(Fraction)
        for bits in product((False, True), repeat=plan.candidates):
            weight = Fraction(1)
            for bit, chance in zip(bits, chances, strict=True):
                weight *= Fraction(chance if bit else 2**BITS - chance, 2**BITS)
            ones = [t for t, bit in enumerate(bits) if bit] or range(plan.candidates)
            for t in ones:
                law[t] += weight / len(ones)
        laws[f"bucket {bucket}"] = {message: float(p) for message, p in law.items()}
    return laws


class LocalProgram:
    """A Gaussian client of the local model as a program: one value in, one message out, a column
    for each entry."""

    def __init__(self, epsilon: float, delta: float, form: Form, client: Any = LocalClient) -> None:
        self.plan = LocalPlan(epsilon, delta, 1000, form, 4)
        self.name = f"local client, {form}"
        self._client = client

    def claim(self, ticks: int) -> Claim:
        """(ε, δ) holds for any two values, and μ is what it stands for."""
        budget = Budget(self.plan.epsilon, self.plan.delta, adjacency="replace")
        return Claim(budget, np.eye(1), sigma=self.plan.sigma)

    def run(self, data: Data, secret: Secret) -> Published:
        plan = self.plan
        client = self._client(plan, secret)
        entries = unpack(plan, client.message(data[0][0]))
        client.close()
        labels = tuple(f"entry {number}" for number in range(plan.entries))
        return Published((1,), labels, entries[np.newaxis] * plan.entry)

    def worst_pair(self) -> tuple[Data, Data]:
        """The two values whose messages are centred farthest from each other."""
        means = [self.plan.mean(bucket) for bucket in range(1, self.plan.w + 1)]
        i, j = max(
            product(range(len(means)), repeat=2),
            key=lambda p: float(np.linalg.norm(means[p[0]] - means[p[1]])),
        )
        one, other = (((bucket + 0.5) / self.plan.w,) for bucket in (i, j))
        return (one,), (other,)


def attack_local(program: LocalProgram, runs: int, secret: Secret) -> AttackReport:
    """The likelihood-ratio attack on one message of a Gaussian client, on its two values that are
    farthest apart."""
    return attack(program, program.worst_pair(), runs, secret)
