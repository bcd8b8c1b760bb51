"""Speed of the graph encoders: edges per second, one edge per tick, without noise."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from time import perf_counter
from typing import Any

from evercount.graphs import (
    Components,
    DegreeHistogram,
    HighDegree,
    KStars,
    Matching,
    SpanningForest,
    Triangles,
)
from evercount.queries.graphs.graph_query import GraphQuery

TRIANGLES_PER_SECOND = 20_000
MATCHINGS_PER_SECOND = 2_500


def random_edges(vertices: int, degree: int, count: int, seed: int = 1) -> list[tuple[int, int]]:
    """Distinct edges in random order such that no vertex exceeds the degree."""
    draw = random.Random(seed)
    seen: set[tuple[int, int]] = set()
    degrees = [0] * vertices
    while len(seen) < count:
        u, v = sorted(draw.sample(range(vertices), 2))
        if (u, v) not in seen and degrees[u] < degree and degrees[v] < degree:
            seen.add((u, v))
            degrees[u] += 1
            degrees[v] += 1
    return draw.sample(sorted(seen), count)


def edges_per_second(query: GraphQuery, edges: Sequence[tuple[int, ...]]) -> float:
    """Encode one edge per tick; the best of three runs."""
    best = 0.0
    for _ in range(3):
        state = query.initial_state()
        start = perf_counter()
        for edge in edges:
            _, state = query.encode(state, (edge,))
        best = max(best, len(edges) / (perf_counter() - start))
    return best


def run() -> list[dict[str, Any]]:
    """One row per encoder; `ratio` is value / target where there is a target."""
    n, degree = 2_000, 100
    edges = random_edges(n, degree, 90_000)  # of the 100,000 that degree 100 leaves room for
    few = edges[:3_000]
    draw = random.Random(2)
    cases: list[tuple[str, GraphQuery, Sequence[tuple[int, ...]], int | None, str]] = [
        (
            "triangles",
            Triangles(n, max_degree=degree),
            edges,
            TRIANGLES_PER_SECOND,
            "degrees up to 100",
        ),
        (
            "triangles, degree enforced",
            Triangles(n, max_degree=degree, enforce_degree=True),
            edges,
            TRIANGLES_PER_SECOND,
            "stable projection",
        ),
        ("3-stars", KStars(n, k=3, max_degree=degree), edges, None, ""),
        ("high degree", HighDegree(n, tau=50), edges, None, ""),
        ("degree histogram", DegreeHistogram(n, max_degree=degree), edges, None, "100 cells"),
        ("components", Components(n), edges, None, "union-find"),
        (
            "spanning forest",
            SpanningForest(n, max_weight=8),
            [(u, v, draw.randint(1, 8)) for u, v in few],
            None,
            "3,000 edges; a path search of up to n vertices for each",
        ),
        (
            "matching",
            Matching(n),
            edges[:5_000],
            MATCHINGS_PER_SECOND,
            "5,000 edges; the search forest is kept",
        ),
    ]
    rows = []
    for name, query, stream, target, note in cases:
        value = edges_per_second(query, stream)
        rows.append(
            {
                "name": f"encode {name}",
                "value": value,
                "unit": "edges/s",
                "ratio": None if target is None else value / target,
                "target": target,
                "note": note,
            }
        )
    return rows


if __name__ == "__main__":
    for row in run():
        print(json.dumps(row))
