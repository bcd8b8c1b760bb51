"""What a query that is made of another one takes over from it."""

from __future__ import annotations

from evercount.privacy import Adjacency
from evercount.queries.base import Query


class SensitivityOfQuery:
    """The grid and the sensitivities of the query that this one is made of."""

    query: Query

    @property
    def grid(self) -> float:
        return self.query.grid

    def squared_sensitivity(self, adjacency: Adjacency) -> float:
        return self.query.squared_sensitivity(adjacency)

    def l1_sensitivity(self, adjacency: Adjacency) -> float:
        return self.query.l1_sensitivity(adjacency)
