"""An attack on discovered keys: can it be told from everything that is published whether one
person's key was there?

What such streams publish is not linear in the data, because the set of cells is part of it. So the
attack looks at events of the joint release: which keys are public, when, and with which numbers.
Half of the runs choose the event, the other half judge it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

import numpy as np

from evercount._validate import BoolArray
from evercount.audit.attack import check_runs, clopper_pearson
from evercount.audit.replay import Progress, no_progress
from evercount.engine.stream import Stream
from evercount.noise import Secret
from evercount.privacy import Budget
from evercount.queries.base import Query

Ticks = Sequence[Sequence[str]]
Seen = list[dict[str, float]]  # what each tick publishes, by label
Program = Callable[[Ticks, Secret], Seen]
PERSON = "the key of one person"


@dataclass(frozen=True)
class DiscoveryReport:
    """What the attack proved: a lower bound of the δ that is needed at the promised ε."""

    epsilon: float
    delta: float
    proved: float
    event: str
    listed: int
    runs: int
    confidence: float

    @property
    def holds(self) -> bool:
        return self.proved <= self.delta

    def to_dict(self) -> dict[str, Any]:
        return asdict(self) | {"holds": self.holds}

    def summary(self) -> str:
        line = (
            f"claimed delta {self.delta:.4g} at epsilon {self.epsilon:g}; the attack proves at "
            f"least {self.proved:.4g} ({self.event}); the key of one person was public in "
            f"{self.listed} of {self.runs} runs"
        )
        return line if self.holds else f"{line}\n  THE PROMISE IS BROKEN"


def library_program(
    query: Query,
    budget: Budget,
    horizon: int | None,
    factorization: str | None = None,
    views: Sequence[str] = (),
) -> Program:
    """A stream of the library as a black box; each run has a secret of its own."""

    def run(ticks: Ticks, secret: Secret) -> Seen:
        stream = Stream(
            query, budget, horizon, factorization, secret=secret, replay=True, views=views
        )
        releases = stream.run(ticks, capped=budget.unit == "user")
        return [
            dict(zip(release.labels, release.values.tolist(), strict=True)) for release in releases
        ]

    return run


def neighbours(ticks: int, most: int = 1, minimum: int = 1) -> tuple[Ticks, Ticks]:
    """Some public-looking background, and the same with one person's events, which bring their key
    to the minimum."""
    plain = [["everybody"] * 200, *([] for _ in range(ticks - 1))]
    plain[0] += [PERSON] * (minimum - 1)
    return [[*plain[0], *[PERSON] * most], *plain[1:]], plain


def attack_discovery(
    program: Program,
    budget: Budget,
    pair: tuple[Ticks, Ticks],
    runs: int = 400,
    secret: Secret | None = None,
    confidence: float = 1 - 1e-4,
    progress: Progress = no_progress,
) -> DiscoveryReport:
    """Run both streams of a pair many times and look for an event that breaks the promise.

    **Guarantee.** If the promise is true, `proved` exceeds δ with probability at most 1 −
    confidence: the event is chosen on other runs than those that judge it. Proof:
    `attack.proof.md`. Test:
    tests/audit/test_discovery_attack.py::test_streams_keep_their_promise_and_planted_bugs_do_not.
    """
    check_runs(runs)
    root = secret or Secret.generate()
    sides: list[list[Seen]] = [[], []]
    for side, number in product((0, 1), range(runs)):
        sides[side].append(program(pair[side], root.derive(f"discovery attack {side} {number}")))
        progress(side * runs + number + 1)
    listed = sum(any(PERSON in tick for tick in run) for run in sides[0])
    half = runs // 2
    best = max(_events(sides), key=lambda one: _advantage(one, slice(half), budget.epsilon))
    judged = slice(half, None)
    rest, shared = runs - half, 1 - (1 - confidence) / 2
    (low, _), (_, high) = (
        clopper_pearson(int(event[judged].sum()), rest, shared) for event in best[1]
    )
    proved = max(0.0, low - math.exp(budget.epsilon) * high)
    return DiscoveryReport(budget.epsilon, budget.delta, proved, best[0], listed, runs, confidence)


Event = tuple[str, tuple[BoolArray, BoolArray]]
"""What it is, and whether it happened: in the runs of the side that it should be likely on, and of
the other."""


def _events(sides: list[list[Seen]]) -> Iterator[Event]:
    """Candidates: the key is public at a tick, or hidden; and either of them with a total that is
    high or low."""
    last = len(sides[0][0]) - 1
    totals = [np.asarray([run[0]["total"] for run in side]) for side in sides]
    for tick in sorted({0, last}):
        public = [np.asarray([PERSON in run[tick] for run in side]) for side in sides]
        for name, state in (("public", public), ("hidden", [~one for one in public])):
            yield f"the key is {name} at tick {tick + 1}", (state[0], state[1])
            yield f"the key is {name} at tick {tick + 1}, reversed", (state[1], state[0])
            for cut in np.quantile(np.concatenate(totals), [0.1, 0.25, 0.5, 0.75, 0.9]):
                high = [state[side] & (totals[side] > cut) for side in (0, 1)]
                low = [state[side] & (totals[side] <= cut) for side in (0, 1)]
                yield f"{name} at tick {tick + 1} and a total above {cut:g}", (high[0], high[1])
                yield (
                    f"{name} at tick {tick + 1} and a total up to {cut:g}, reversed",
                    (low[1], low[0]),
                )


def _advantage(event: Event, part: slice, epsilon: float) -> float:
    likely, other = (float(one[part].mean()) for one in event[1])
    return likely - math.exp(epsilon) * other
