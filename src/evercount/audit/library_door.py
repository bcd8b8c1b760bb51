"""A `Stream` as a program under audit: its noisy sums before anything is computed from them."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import replace
from functools import cache
from typing import Any, ClassVar

import numpy as np

from evercount._arrays import FloatArray
from evercount.audit.program import Claim, Data, Published
from evercount.audit.universes import Universe, universe
from evercount.engine.stream import Stream
from evercount.errors import ParameterError
from evercount.factorizations.endless_bridge import EndlessBridge
from evercount.factorizations.laplace_bridge import Bridge
from evercount.factorizations.laplace_trees import DigitTree, HybridTree
from evercount.mechanisms.laplace_rates import node_rate
from evercount.noise import Secret
from evercount.privacy import Budget
from evercount.queries.base import Query


class DoorProgram(ABC):
    """What the programs of all doors share: a query, a budget, ticks after which they stop and go on, and the claim."""

    door: ClassVar[str]
    universe: Universe

    def __init__(
        self,
        query: Query,
        budget: Budget,
        horizon: int | None = None,
        factorization: Any = None,
        *,
        restarts: tuple[int, ...] = (),
    ) -> None:
        self.query, self.budget, self.horizon, self.factorization = query, budget, horizon, factorization
        self.restarts = restarts
        self.name = f"{self.door}: {query.name}"
        self.names_users = budget.unit == "user" and query.people is None
        self.claim = cache(lambda ticks: stream_claim(self.open(Secret.generate()), ticks))

    @abstractmethod
    def open(self, secret: Secret) -> Stream:
        """The stream behind the program."""

    @abstractmethod
    def run(self, data: Data, secret: Secret) -> Published:
        """As `Program.run`."""


class LibraryProgram(DoorProgram):
    """The library door: `Stream.step`, tick by tick."""

    # Two streams with one secret reveal how their data differ: what an audit measures, on synthetic data. They are no
    # replays, so that snapshots are audited too; each is closed before the next is opened.

    door = "library"

    def __init__(self, *declared: Any, events: Universe | None = None, **rest: Any) -> None:
        super().__init__(*declared, **rest)
        self.universe = universe(self.query) if events is None else events

    def open(self, secret: Secret) -> Stream:
        return Stream(self.query, self.budget, self.horizon, self.factorization, secret=secret)

    def run(self, data: Data, secret: Secret) -> Published:
        stream, rows = self.open(secret), list[FloatArray]()
        _tap(stream, rows)
        facts = []
        for tick, events in enumerate(data, 1):
            if self.names_users:
                listed = [event for _, event in events]
                read = self.universe.tick(listed)  # the sum of a count's events forgets whose they are
                release = stream.step(read if isinstance(read, list) else listed, tick, users=[u for u, _ in events])
            else:
                release = stream.step(self.universe.tick(events), tick)
            # the error of a ratio is computed from the published numbers and differs with them
            facts.append((release.tick, tuple(release.labels)))
            if tick in self.restarts:
                blob = stream.snapshot()
                stream.close()
                stream = Stream.restore(blob)
                _tap(stream, rows)
        values = np.concatenate(rows) if rows else np.empty((0, self.query.cells))
        labels = tuple(f"cell {cell}" for cell in range(self.query.cells))
        told = (tuple(facts), stream.guarantee)
        stream.close()
        return Published(tuple(range(1, len(data) + 1)), labels, values, told)


def _tap(stream: Stream, rows: list[FloatArray]) -> None:
    """Keep a copy of every noisy row: a stream shows them to `Query.decode_run` before post-processing."""
    query = copy.copy(stream.query)

    def keep(first_tick: int, noisy: FloatArray) -> Any:
        rows.append(noisy.copy())
        return type(query).decode_run(query, first_tick, noisy)

    vars(query)["decode_run"] = keep
    stream._parameters = replace(stream._parameters, query=query)


def stream_claim(stream: Stream, ticks: int) -> Claim:
    """The claim of a stream about its first ticks: L, and σ or the cost of a unit of Laplace noise."""
    query, budget, factorization = stream.query, stream.budget, stream.factorization
    if factorization.horizon is not None and ticks > factorization.horizon:
        raise ParameterError(f"{ticks} ticks are more than the horizon of {factorization.horizon}")
    left = factorization.dense(ticks)[0]
    if not budget.pure:
        return Claim(budget, left, sigma=stream.sigma)
    l1 = query.protected_l1(budget, stream.horizon)
    if isinstance(factorization, DigitTree):
        return Claim(budget, left, cost=node_rate(budget.epsilon, l1, query.grid, factorization.levels) / query.grid)
    if isinstance(factorization, HybridTree | Bridge | EndlessBridge):  # L is in units of each node's share of ε
        return Claim(budget, left, cost=budget.epsilon / l1)
    raise ParameterError(f"the audit does not know how {factorization.name!r} shares ε among its nodes")
