"""Clients of the local model under audit: the exact law of one message, and the Gaussian forms as attacked programs.

A hierarchical or GenProt client draws finitely many random numbers and sends one of finitely many messages. The laws
here are computed through the clients' own code (`encode`, `bit_probabilities`), in exact fractions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from contextlib import closing
from fractions import Fraction
from itertools import product
from typing import Any, cast

import numpy as np

from evercount.audit.attack import AttackReport, attack
from evercount.audit.exact_laws import Law, LawReport, drawn_p_value, largest_ratio
from evercount.audit.program import Claim, Data, Published
from evercount.local.collection_plan import Form, shared_plan
from evercount.local.genprot import GenProtClient
from evercount.local.genprot_plan import BITS, GenProtPlan
from evercount.local.hierarchical import HierarchyClient, HierarchyPlan, encode
from evercount.local.local_client import LocalClient
from evercount.local.messages import unpack
from evercount.noise import Secret
from evercount.privacy import Budget

WORD = 2**64  # a client keeps its bit by a uniform number below this
CLIENTS = 40  # GenProt clients, each with candidates of its own, whose laws are computed

Encoder = Callable[[HierarchyPlan, int, int, int, int], Hashable]


def audit_hierarchical(
    epsilon: float = 1.0,
    buckets: int = 16,
    draws: int = 2000,
    secret: Secret | None = None,
    encoder: Encoder = encode,
    client: Callable[[HierarchyPlan, Secret], Any] = HierarchyClient,
) -> LawReport:
    """Audit hierarchical clients: the law of a message for every bucket, and the messages of real clients.

    **Guarantee.** `spent` is the exact ε of a message for a uniform key stream, up to the rounding of a double. Test:
    tests/audit/test_exact_laws.py::test_local_clients_keep_their_promise.
    """
    plan = HierarchyPlan(epsilon, buckets)
    laws: dict[str, Law] = {f"bucket {b}": _message_law(plan, b, encoder) for b in range(buckets)}
    apart, pair, outcome = largest_ratio(laws)
    p_value = drawn_p_value(laws["bucket 5"], lambda key: _send(client(plan, key), 5.5 / buckets), draws, secret)
    return LawReport("hierarchical client", epsilon, apart, pair, outcome, p_value, draws)


def _send(client: Any, value: float) -> Hashable:
    with closing(client):
        return cast(Hashable, client.message(value))


def _message_law(plan: HierarchyPlan, bucket: int, encoder: Encoder) -> Law:
    """Levels and coefficients are uniform; the message changes once as the 64-bit number grows, found by bisection."""
    law: dict[Hashable, Fraction] = defaultdict(Fraction)
    for level in range(plan.levels):
        rows = plan.nodes(level + 1)
        for row in range(rows):
            weight = Fraction(1, plan.levels * rows)
            first, last = (encoder(plan, bucket, chance, row, level) for chance in (0, WORD - 1))
            low, high = 0, WORD - 1
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if encoder(plan, bucket, middle, row, level) == first else (low, middle)
            law[first] += weight * Fraction(high, WORD)
            law[last] += weight * Fraction(WORD - high, WORD)
    return {message: float(p) for message, p in law.items()}


def audit_genprot(
    epsilon: float = 1.0,
    buckets: int = 8,
    rule: Any = "best",
    draws: int = 2000,
    secret: Secret | None = None,
    clip: float | None = None,
    client: Callable[[GenProtPlan, int, Secret], Any] = GenProtClient,
) -> LawReport:
    """Audit GenProt clients: the law of a message for every bucket of several clients, and messages of real clients.

    **Guarantee.** For each of 40 clients' candidates `spent` is at least the exact ε of its message; the worst case
    over all candidates is `GenProtPlan.exact_epsilon`. Test:
    tests/audit/test_exact_laws.py::test_local_clients_keep_their_promise.
    """
    plan = GenProtPlan(epsilon, 1000, "audit", rule=rule, buckets=buckets)
    if clip is not None:
        plan.__dict__["clip"] = clip
    found = [(*largest_ratio(_choice_laws(plan, number)), number) for number in range(CLIENTS)]
    apart, pair, outcome, number = max(found)
    law = _choice_laws(plan, 0)["bucket 1"]
    p_value = drawn_p_value(law, lambda key: _send(client(plan, 0, key), 0.5 / buckets), draws, secret)
    return LawReport(f"genprot client, {rule}", epsilon, apart, pair, f"{outcome} of client {number}", p_value, draws)


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
    """A Gaussian client of the local model as a program: one value in, one message out, a column for each entry."""

    def __init__(
        self, epsilon: float, delta: float, form: Form = "one-counter", buckets: int = 4, client: Any = LocalClient
    ) -> None:
        self.plan = shared_plan(epsilon, delta, 1000, form, buckets)
        self.name = f"local client, {form}"
        self._client = client

    def claim(self, ticks: int) -> Claim:
        """(ε, δ) holds for any two values, and μ is what it stands for."""
        budget = Budget(self.plan.epsilon, self.plan.delta, adjacency="replace")
        return Claim(budget, np.eye(1), sigma=self.plan.sigma)

    def run(self, data: Data, secret: Secret) -> Published:
        plan = self.plan
        client = self._client(plan.epsilon, plan.delta, plan.n, secret, plan.form, buckets=plan.w)
        entries = unpack(plan, client.message(data[0][0]))
        client.close()
        labels = tuple(f"entry {number}" for number in range(plan.entries))
        return Published((1,), labels, entries[np.newaxis] * plan.entry)

    def worst_pair(self) -> tuple[Data, Data]:
        """The two values whose messages are centred farthest from each other."""
        means = [self.plan.mean(bucket) for bucket in range(1, self.plan.w + 1)]
        i, j = max(product(range(len(means)), repeat=2), key=lambda p: float(np.linalg.norm(means[p[0]] - means[p[1]])))
        one, other = (((bucket + 0.5) / self.plan.w,) for bucket in (i, j))
        return (one,), (other,)


def attack_local(program: LocalProgram, runs: int = 1000, secret: Secret | None = None) -> AttackReport:
    """The likelihood-ratio attack on one message of a Gaussian client, on its two values that are farthest apart."""
    return attack(program, program.worst_pair(), runs, secret)
