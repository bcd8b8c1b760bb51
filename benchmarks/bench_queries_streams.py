"""Whole ticks of queries, encoder and noise together: letters and edges per second."""

from __future__ import annotations

import random
import string
import time
from typing import Any

import numpy as np

from evercount import Budget, Histogram, Stream
from evercount.graphs import Triangles
from evercount.queries.base import Query
from evercount.words import Substrings

Row = dict[str, Any]
BUDGET = Budget(1.0, 1e-9)


def rate(query: Query, ticks: list[Any]) -> float:
    """Ticks per second of single steps, after one block of warm-up: the best of three streams."""
    return max(_rate(query, ticks) for _ in range(3))


def _rate(query: Query, ticks: list[Any]) -> float:
    stream = Stream(query, BUDGET, 2**16)
    for events in ticks[:32]:
        stream.step(events)
    start = time.perf_counter()
    for events in ticks[32:]:
        stream.step(events)
    return (len(ticks) - 32) / (time.perf_counter() - start)


def edges(vertices: int, degree: int, count: int) -> list[list[tuple[int, int]]]:
    """Distinct random edges of a graph whose degrees stay within the bound, one per tick."""
    rng = random.Random(1)
    seen: set[tuple[int, int]] = set()
    degrees = [0] * vertices
    while len(seen) < count:
        u, v = sorted(rng.sample(range(vertices), 2))
        if (u, v) not in seen and max(degrees[u], degrees[v]) < degree:
            seen.add((u, v))
            degrees[u] += 1
            degrees[v] += 1
    return [[edge] for edge in seen]


def run() -> list[Row]:
    """All rows of this group."""
    rng = random.Random(0)
    letters = [rng.choice(string.ascii_lowercase) for _ in range(4128)]
    graph = edges(500, 100, 8224)
    keys = [np.random.default_rng(0).integers(0, 10**5, 10**4)] * 96
    rows = []
    for name, query, ticks, unit in (
        (
            "Substrings(26, 3), one letter a tick",
            Substrings(string.ascii_lowercase, 3),
            letters,
            "letters/s",
        ),
        ("Triangles, D = 100, one edge a tick", Triangles(500, max_degree=100), graph, "edges/s"),
        ("Histogram of 10^5 cells, 10^4 events a tick", Histogram(10**5), keys, "ticks/s"),
    ):
        value = rate(query, ticks if query.cells == 1 else ticks[:96])
        rows.append({"name": name, "value": value, "unit": unit, "target": ""})
    return rows


if __name__ == "__main__":
    for row in run():
        print(row)
