"""The verdict on a life: what was published in two worlds, priced against what was stated.

The noise of both worlds is the same, so a difference D of released sums holds none. A stream's D
costs μ (Gaussian noise) or ε (Laplace numbers), `Claim.spent`. Streams of one life have noise of
their own: μ² and ε add up, and both kinds together have the profile of a Gaussian mechanism beside
randomised response, which dominates whatever keeps that ε. The result is compared with each (ε, δ)
that was stated about these streams: by one stream, by the sentence about several, by a ledger.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from evercount._validate import FloatArray
from evercount.audit.lives.life import History, Life
from evercount.audit.lives.record import Record, Statement, StreamRecord
from evercount.privacy import gaussian

ROUNDING = 1e-9  # relative: what rounding of the prices can explain
LEAST_DISTANCE = 200.0
"""The std from which on equal noise in two streams is no accident: two ticks of it are equal with a
probability below 1e-5, three below 1e-8."""


@dataclass(frozen=True)
class Find:
    """What two worlds of a life show: kind, words, and what was spent over what was stated."""

    kind: str
    reason: str
    life: Life
    neighbour: History | None = None
    ratio: float = math.inf

    @property
    def holds(self) -> bool:
        """Whether nothing is wrong: what was spent is within what was stated."""
        return self.ratio <= 1 + ROUNDING


def delta_of(mu: float, pure: float, epsilon: float) -> float:
    """δ at ε of Gaussian noise of this μ together with something that keeps `pure` exactly."""
    if mu == 0:
        if pure <= epsilon:
            return 0.0
        # randomised response: P(E) − e^ε·Q(E) of its likely answer
        return (math.exp(pure) - math.exp(epsilon)) / (1 + math.exp(pure))
    share = 1 / (1 + math.exp(-pure))
    near, far = _delta(mu, epsilon - pure), _delta(mu, epsilon + pure)
    return share * near + (1 - share) * far


def _delta(mu: float, epsilon: float) -> float:
    """δ at any ε, also below 0, of two normals that are μ apart."""
    if epsilon >= 0:
        return gaussian.delta_of(mu, epsilon)
    # P − e^ε·Q at −|ε|: 1 − e^ε + e^ε·δ(|ε|) by the symmetry of the pair
    return 1 - math.exp(epsilon) + math.exp(epsilon) * gaussian.delta_of(mu, -epsilon)


def check_spending(
    life: Life, record: Record, other: Record, neighbour: History, concerned: frozenset[int]
) -> Iterator[Find]:
    """What the worlds cost next to each statement that is about a stream whose neighbours they
    are."""
    prices: dict[int, float] = {}
    for statement in record.statements:
        if not concerned & set(statement.streams):
            continue
        for number in statement.streams:
            if number not in prices:
                prices[number] = record.streams[number].spent_on(other.streams[number])
        yield _judge(life, record.streams, statement, prices, neighbour)


def _judge(
    life: Life,
    streams: Sequence[StreamRecord],
    statement: Statement,
    prices: dict[int, float],
    neighbour: History,
) -> Find:
    shrink = 1 - ROUNDING
    mu = math.hypot(*(prices[n] for n in statement.streams if not streams[n].pure)) * shrink
    pure = math.fsum(prices[n] for n in statement.streams if streams[n].pure) * shrink
    if math.isinf(mu) or math.isinf(pure):
        reason = f"no noise hides the difference, of which {statement.source} speaks"
        return Find("spent", reason, life, neighbour)
    true = delta_of(mu, pure, statement.epsilon)
    reason = (
        f"{statement.source} says epsilon={statement.epsilon:.6g}, delta={statement.delta:.6g}; "
        f"delta is {true:.6g} there (mu {mu:.6g}, pure {pure:.6g})"
    )
    ratio = pure / statement.epsilon
    if statement.delta:
        ratio = true / statement.delta
    elif mu:
        ratio = math.inf
    return Find("spent", reason, life, neighbour, ratio)


def check_public(life: Life, record: Record, other: Record, neighbour: History) -> Find | None:
    """A find if the worlds differ in anything but noisy numbers."""
    one, two = record.public_facts(), other.public_facts()
    if one == two:
        return None
    for mine, theirs in zip(one, two, strict=False):
        if mine != theirs:
            reason = f"readers see {mine!r:.300} in one world and {theirs!r:.300} in the other"
            return Find("public", reason, life, neighbour)
    return Find("public", "one world shows more than the other", life, neighbour)


def check_repeats(life: Life, empty: Record) -> Iterator[Find]:
    """Finds where two streams of a life have the same noise; in a world without rows all that they
    release is noise."""
    for number, one in enumerate(empty.streams):
        for later in range(number + 1, len(empty.streams)):
            if _share_noise(one, empty.streams[later]):
                names = f"{one.declared.name!r} and {empty.streams[later].declared.name!r}"
                reason = f"the streams {number + 1} and {later + 1} ({names}) have the same noise"
                yield Find("noise", reason, life)


def _share_noise(one: StreamRecord, other: StreamRecord) -> bool:
    """Whether three equal numbers of a column follow each other in both, where each is improbable
    by itself."""
    for mine in one.values.T:
        for theirs in other.values.T:
            ticks = min(len(mine), len(theirs))
            if ticks < 3:
                continue
            a, b = np.diff(mine[:ticks], prepend=0), np.diff(theirs[:ticks], prepend=0)
            large = min(np.std(a), np.std(b)) > LEAST_DISTANCE
            if large and (np.array_equal(a, b) or _proportional(a, b)):
                return True
    return False


def _proportional(one: FloatArray, other: FloatArray) -> bool:
    """Whether two rows of large numbers are multiples of each other, but for rounding."""
    if len(one) < 4:
        return False
    size = np.linalg.norm(one) * np.linalg.norm(other)
    return bool(abs(one @ other) > size * (1 - 1e-6))


def check_changes(life: Life, record: Record) -> Iterator[Find]:
    """Finds where a number that was published is published again as another one."""
    first: dict[tuple[object, ...], float] = {}
    for key, value in record.shown:
        known = first.setdefault(key, value)
        if known != value and not (math.isnan(known) and math.isnan(value)):
            reason = f"{key} was published as {known!r} and then as {value!r}"
            yield Find("changed", reason, life)


def inside(record: Record, empty: Record) -> list[bool]:
    """Whether the true number is in its interval, for one number of each stream: of independent
    ones."""
    answers = []
    for one, noise in zip(record.streams, empty.streams, strict=False):
        if one.low.size == 0 or one.values.shape != noise.values.shape:
            continue
        tick, cell = len(one.values) - 1, 0
        true = one.values[tick, cell] - noise.values[tick, cell]
        answers.append(bool(one.low[tick, cell] <= true <= one.high[tick, cell]))
    return answers
