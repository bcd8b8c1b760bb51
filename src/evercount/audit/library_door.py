"""A `Stream` as a program under audit: its noisy sums before anything is computed from them."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np

from evercount._arrays import FloatArray
from evercount.audit.program import Claim, Data, Published
from evercount.audit.replay_stream import open_for_replay
from evercount.audit.universes import Universe, universe
from evercount.engine.stream import Stream
from evercount.errors import ParameterError
from evercount.factorizations import Factorization
from evercount.factorizations.endless_bridge import EndlessBridge
from evercount.factorizations.laplace_bridge import Bridge
from evercount.factorizations.laplace_trees import DigitTree, HybridTree
from evercount.mechanisms.laplace_rates import node_rate
from evercount.noise import Secret
from evercount.privacy import Budget
from evercount.queries.base import Query


class LibraryProgram:
    """The library door: `Stream.step`, tick by tick."""

    def __init__(
        self,
        query: Query,
        budget: Budget,
        horizon: int | None = None,
        factorization: str | Factorization | None = None,
        *,
        noise: str = "exact",
        restore_at: tuple[int, ...] = (),
        events: Universe | None = None,
    ) -> None:
        self.query, self.budget, self.horizon, self.factorization = query, budget, horizon, factorization
        self.noise, self.restore_at = noise, restore_at
        self.universe = universe(query) if events is None else events
        self.name = f"library: {query.name}"
        self.claim = cache(self._claim)

    def open(self, secret: Secret) -> Stream:
        return open_for_replay(
            self.query, self.budget, self.horizon, self.factorization, secret=secret, noise=self.noise
        )

    def _claim(self, ticks: int) -> Claim:
        return stream_claim(self.open(Secret.generate()), ticks)

    def run(self, data: Data, secret: Secret) -> Published:
        stream, rows = self.open(secret), list[FloatArray]()
        _tap(stream, rows)
        facts = []
        for tick, events in enumerate(data, 1):
            if self.budget.unit == "user" and self.query.people is None:
                listed = [event for _, event in events]
                read = self.universe.tick(listed)  # the sum of a count's events forgets whose they are
                release = stream.step(read if isinstance(read, list) else listed, tick, users=[u for u, _ in events])
            else:
                release = stream.step(self.universe.tick(events), tick)
            # the error of a ratio is computed from the published numbers and differs with them
            facts.append((release.tick, tuple(release.labels)))
            if tick in self.restore_at:
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
    if isinstance(
        factorization, HybridTree | Bridge | EndlessBridge
    ):  # their L is already in units of each node's share of ε
        return Claim(budget, left, cost=budget.epsilon / l1)
    raise ParameterError(f"the audit does not know how {factorization.name!r} shares ε among its nodes")
