"""Record: what the world has seen of a life, and what was stated about it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from evercount._validate import FloatArray
from evercount.audit.replay import Claim
from evercount.declarations.declaration import StreamDeclaration
from evercount.engine.stream import Stream
from evercount.factorizations import Factorization
from evercount.factorizations.laplace_trees import DigitTree
from evercount.privacy import Budget, Cost


@dataclass
class StreamRecord:
    """One stream of a life.

    Args:
        declared: the declaration as it was settled.
        cost: what it says that it costs.
        guarantee: its sentence.
        factorization: how its noise is correlated.
        price: σ of its Gaussian noise, or what a change of a Laplace number by one unit costs.
        pure: which of both.
        values: the noisy sums of each cell after each tick, as they were released.
        low, high: the stated intervals of the same numbers; empty where there are none.
        closings: when it released, and until when: (instant, end of the last tick).
    """

    declared: StreamDeclaration
    cost: Cost
    guarantee: str
    identity: str
    factorization: Factorization
    price: float
    pure: bool
    labels: tuple[str, ...]
    values: FloatArray
    low: FloatArray
    high: FloatArray
    closings: list[tuple[int, int]] = field(default_factory=list)
    joined_after: tuple[int, ...] = ()

    def spent_on(self, other: StreamRecord) -> float:
        """What its numbers give away about which of two worlds is true: μ, or ε if it is pure."""
        difference = self.values - other.values
        if not np.any(difference):
            return 0.0
        left = rows_of_noise(self.factorization, self.declared.revise_for, len(difference))
        if self.pure:
            claim = Claim(Budget(1.0, 0.0), left, cost=self.price)
        else:
            claim = Claim(Budget(1.0, 1e-6), left, sigma=self.price)
        parts = []
        for column in self._with_own_noise(difference):
            there = ~np.isnan(column)
            if np.any(column[there]):
                ticks = tuple((np.flatnonzero(there) + 1).tolist())
                parts.append(claim.spent(ticks, column[there, np.newaxis]))
        if self.pure:
            return float(np.sum(parts))
        return float(np.linalg.norm(parts))

    @property
    def stated_std(self) -> float:
        """The std of a single draw of its noise: a floor of that of each number."""
        if self.pure:
            return 2**0.5 / self.price
        return self.price

    def _with_own_noise(self, difference: FloatArray) -> Iterator[FloatArray]:
        """The differences whose noise is one row after the other of L: those of a cell over the
        ticks, or over the revisions of one day."""
        if self.declared.revise_for is None:
            yield from difference.T
            return
        lags = self.declared.revise_for + 1
        by_lag = difference.reshape(len(difference), lags, -1)
        for day in range(len(difference)):
            ages = range(min(lags, len(difference) - day))
            yield from np.stack([by_lag[day + age, age] for age in ages]).T


@dataclass(frozen=True)
class Statement:
    """(ε, δ) that some streams of a life keep together, and who says so."""

    epsilon: float
    delta: float
    streams: tuple[int, ...]
    source: str


@dataclass
class Record:
    """One world: its streams in the order of their declaration, statements, and all else that
    readers see.

    `shown` has every published number by place, stream, view, tick and label, each time that it
    was published.
    """

    streams: list[StreamRecord] = field(default_factory=list)
    statements: list[Statement] = field(default_factory=list)
    public: list[Any] = field(default_factory=list)
    shown: list[tuple[tuple[Any, ...], float]] = field(default_factory=list)

    def public_facts(self) -> list[Any]:
        """All that must be equal in two worlds."""
        facts: list[Any] = [*self.public]
        for one in self.streams:
            facts.append((one.declared.name, one.guarantee, one.labels, one.values.shape))
            facts.append((one.identity, one.closings, np.isnan(one.values).tolist()))
        facts.append([key for key, _ in self.shown])
        return facts


@lru_cache(maxsize=256)
def _rows(key: str, ticks: int) -> FloatArray:
    left = _FACTORIZATIONS[key].dense(ticks)[0]
    return np.ascontiguousarray(left[:, np.any(left, axis=0)])


_FACTORIZATIONS: dict[str, Factorization] = {}


def rows_of_noise(factorization: Factorization, revise_for: int | None, ticks: int) -> FloatArray:
    """L of the first ticks, or of a day that is revised, without columns that are zero there."""
    if revise_for is not None:
        ticks = revise_for + 1
    key = json.dumps([factorization.name, factorization.horizon, _public(factorization)])
    _FACTORIZATIONS[key] = factorization
    return _rows(key, ticks)


def _public(factorization: Factorization) -> str:
    return " ".join(part.tobytes().hex() for part in factorization.public_parameters())


def price_of(stream: Stream[Any]) -> tuple[float, bool]:
    """σ, or what a change of a Laplace number by one unit costs, and whether it is the second: from
    the noise that a stream draws, and not from what its query claims."""
    if not stream._errors.pure:
        return stream.sigma, False
    rate = stream._errors.full_rate / stream.query.grid
    if isinstance(stream.factorization, DigitTree):
        rate /= stream.factorization.levels
    return rate, True


def record_stream(
    stream: Stream[Any],
    declared: StreamDeclaration,
    values: FloatArray,
    intervals: tuple[FloatArray, FloatArray] | None,
    closings: Sequence[tuple[int, int]],
) -> StreamRecord:
    """The record of a stream that has released these sums, shape (ticks, cells)."""
    price, pure = price_of(stream)
    low = high = np.empty((0, 0))
    if intervals is not None:
        low, high = intervals
    return StreamRecord(
        declared,
        stream.cost,
        stream.guarantee_by(declared.tick),
        stream.identity,
        stream.factorization,
        price,
        pure,
        tuple(stream.labels),
        values,
        low,
        high,
        list(closings),
    )
