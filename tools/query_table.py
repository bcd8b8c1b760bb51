"""One small example of every query: what is true, what is published, and how large the noise is.
Synthetic data.

`python tools/queries_page.py` prints it for docs/queries.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np

from evercount import Budget, Secret, Stream, queries
from evercount.queries.base import Query

TICKS = 50
FEW = 5
"""Ticks where the same data is cut more coarsely, for queries that then put noise on the values
themselves."""
VERTICES = 400
BUDGET = Budget(epsilon=1.0, delta=1e-6)
ALPHABET = "abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True)
class Example:
    """A query, its ticks, and which output is shown (the largest true one where none is named)."""

    code: str
    query: Query
    ticks: Sequence[Any]
    output: int | None = None


@dataclass(frozen=True)
class Shown:
    """A row of the table: the last tick of an example."""

    code: str
    ticks: int
    mechanism: str
    label: str
    true: float
    published: float
    std: float

    def line(self) -> str:
        """The row in Markdown."""
        numbers = " | ".join(
            map(_short, (self.true, self.published, self.std, abs(self.true) / self.std))
        )
        return f"| `{self.code}` | {self.ticks} | {self.label} | {numbers} | {self.mechanism} |"


HEADER = (
    "| query | ticks | number | true | published | std | true/std | noise |\n"
    "|---|---|---|---|---|---|---|---|"
)


def count_squares(events: Any) -> list[int]:
    """An encoder of a user's own: how many of the tick's whole numbers are squares."""
    return [sum(round(event**0.5) ** 2 == event for event in events)]


@cache
def examples() -> list[Example]:
    """Every query with data of a plausible size; the same data at every call."""
    squares = queries.register_encoder("evercount.examples.query_table:count_squares")(
        count_squares
    )
    rng = np.random.default_rng(2026)
    counts = rng.poisson(200, TICKS).tolist()
    values = [np.round(4 * rng.beta(2, 5, 60)).tolist() for _ in range(TICKS)]
    keys = [rng.zipf(1.6, 300) for _ in range(TICKS)]
    keys = [np.minimum(tick, 50) - 1 for tick in keys]
    letters = [
        "".join(rng.choice(list("abcd"), 2000, p=(0.4, 0.3, 0.2, 0.1))) for _ in range(TICKS)
    ]
    sparse = spread_edges(rng, VERTICES, 3 * VERTICES)
    dense = spread_edges(rng, 80, 2800)
    group = 30
    inside = [(u, v) for u, v in spread_edges(rng, 2 * group, 10**9) if (u < group) == (v < group)]
    across = [(u, v) for u, v in spread_edges(rng, 2 * group, 10**9) if (u < group) != (v < group)][
        :40
    ]
    traffic = [inside[i] for i in rng.integers(0, len(inside), 40_000)] + across
    cut_events = [[(u, v, 1.0) for u, v in part] for part in split(traffic)]
    mixed = _signed(split(dense, FEW))
    few = split(sparse, FEW)
    edges = split(sparse)
    weighted = [[(u, v, 1 + (u + v) % 4) for u, v in part] for part in edges]
    return [
        Example("Count()", queries.Count(), counts),
        Example("Sum(0, 4)", queries.Sum(0, 4), values),
        Example("Average(0, 4)", queries.Average(0, 4), values),
        Example('Average(0, 4, per="event")', queries.Average(0, 4, per="event"), values),
        Example("Histogram(50)", queries.Histogram(50), keys),
        Example("TopK(50, k=5)", queries.TopK(50, k=5), keys, 4),
        Example(
            "DiscoveredKeys()",
            queries.DiscoveredKeys(),
            [[f"key {key}" for key in tick] for tick in keys],
            0,
        ),
        *_people(),
        Example('Substrings("abcd", 3)', queries.Substrings("abcd", 3), letters, 4 + 16),
        Example(
            'Substrings("abcd", 3, weights=(1, 1, 8))',
            queries.Substrings("abcd", 3, weights=(1, 1, 8)),
            letters,
            4 + 16,
        ),
        Example('Episodes("abcd", 2)', queries.Episodes("abcd", 2), letters, 4),
        Example("Cuts(60)", queries.Cuts(60), cut_events),
        Example("Edges(400)", queries.Edges(VERTICES), edges),
        Example(
            "Triangles(400, max_per_edge=3)",
            queries.Triangles(VERTICES, max_per_edge=3),
            _few_triangles(rng),
        ),
        Example(
            "KStars(400, k=2, max_degree=20)", queries.KStars(VERTICES, k=2, max_degree=20), edges
        ),
        Example(
            "KStars(400, k=2, max_per_edge=24)",
            queries.KStars(VERTICES, k=2, max_per_edge=24),
            edges,
        ),
        Example(
            "DegreeHistogram(400, max_degree=20)",
            queries.DegreeHistogram(VERTICES, max_degree=20),
            few,
        ),
        Example(
            'DegreeSequence(400, "mixed")',
            queries.DegreeSequence(VERTICES, "mixed"),
            _signed(few),
            0,
        ),
        Example("HighDegree(400, tau=4)", queries.HighDegree(VERTICES, tau=4), edges),
        Example('MinDegree(80, "mixed")', queries.MinDegree(80, "mixed"), mixed),
        Example('MinCut(80, "mixed")', queries.MinCut(80, "mixed"), mixed),
        Example(
            "SpanningForest(400, max_weight=4)",
            queries.SpanningForest(VERTICES, max_weight=4),
            weighted,
        ),
        Example("Components(400)", queries.Components(VERTICES), split(sparse[:250])),
        Example("Matching(400)", queries.Matching(VERTICES), edges),
        Example(
            "PrefixQuery(count_squares, …)",
            queries.PrefixQuery(squares, 1, {"add-remove": 1.0}),
            [rng.integers(0, 100, 400).tolist() for _ in range(TICKS)],
        ),
    ]


def _people() -> list[Example]:
    """Trees, tables, values and users, from data of their own."""
    rng = np.random.default_rng(2027)
    places = [
        (f"state {state}", f"county {state}-{county}") for state in range(8) for county in range(25)
    ]
    visits = [[places[i] for i in rng.integers(0, len(places), 400)] for _ in range(TICKS)]
    ages = ["0-19", "20-59", "60+"]
    states = [f"state {state}" for state in range(8)]
    pairs = [
        [(path[0], ages[i]) for path, i in zip(tick, rng.integers(0, 3, 400), strict=True)]
        for tick in visits
    ]
    waits = [np.minimum(rng.gamma(2.0, 12.0, 100), 127).tolist() for _ in range(TICKS)]
    users = [[f"user {i}" for i in rng.zipf(1.2, 400) % 5000] for _ in range(TICKS)]
    return [
        Example("Rollup(200 counties in 8 states)", queries.Rollup(places), visits, 0),
        Example("Marginals([8 states, 3 ages])", queries.Marginals([states, ages]), pairs, 1),
        Example("Quantiles(0, 128, bins=64)", queries.Quantiles(0, 128, bins=64), waits, 11),
        Example("DistinctUsers()", queries.DistinctUsers(), users),
        Example("ActiveUsers()", queries.ActiveUsers(), users),
        Example("Occupancy()", queries.Occupancy(), _stays()),
    ]


def _stays() -> list[list[tuple[str, str]]]:
    """120 people come in every tick, and each stays for eight ticks on average."""
    rng = np.random.default_rng(2028)
    ticks: list[list[tuple[str, str]]] = [[] for _ in range(TICKS)]
    for number, length in enumerate(rng.geometric(1 / 8, 120 * TICKS).tolist()):
        came = number // 120
        ticks[came].append((f"user {number}", "in"))
        if came + length < TICKS:
            ticks[came + length].append((f"user {number}", "out"))
    return ticks


def show(example: Example) -> Shown:
    """Run an example with exact noise from a fixed secret (which nobody may do with real data)."""
    ticks = len(example.ticks)
    stream = Stream(example.query, BUDGET, ticks, secret=Secret.from_hex("2026" * 16))
    release = stream.run(example.ticks)[-1]
    query = stream.query
    rows, _ = query.encode_run(query.initial_state(), example.ticks)
    true = query.decode_run(1, np.asarray(np.cumsum(rows, axis=0) * query.grid, np.float64))[
        -1
    ]  # where keys are discovered, the total
    at = int(np.argmax(true)) if example.output is None else example.output
    return Shown(
        example.code,
        ticks,
        stream.factorization.name,
        query.labels[at],
        float(true[at]),
        float(release.values[at]),
        float(release.stds[at]),
    )


def table() -> str:
    """The table of docs/queries.md."""
    return "\n".join([HEADER, *(show(example).line() for example in examples())])


def spread_edges(rng: np.random.Generator, vertices: int, most: int) -> list[tuple[int, int]]:
    """Distinct edges in random order; no vertex in more than 20 of them where fewer than all are
    asked for."""
    u, v = np.triu_indices(vertices, 1)
    order = rng.permutation(len(u))
    if most >= len(u):
        return list(zip(u[order].tolist(), v[order].tolist(), strict=True))
    degree = np.zeros(vertices, np.int64)
    edges: list[tuple[int, int]] = []
    limit = 20 if vertices > 100 else vertices
    for a, b in zip(u[order].tolist(), v[order].tolist(), strict=True):
        if len(edges) < most and degree[a] < limit and degree[b] < limit:
            edges.append((a, b))
            degree[[a, b]] += 1
    return edges


def _few_triangles(rng: np.random.Generator) -> list[list[tuple[int, int]]]:
    """Groups of four that know each other: every edge lies in at most two triangles."""
    groups = rng.permutation(VERTICES).reshape(-1, 4)
    edges = [
        (int(min(group[i], group[j])), int(max(group[i], group[j])))
        for group in groups
        for i, j in ((0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3))
    ]
    return split(edges)


def split(events: list[Any], ticks: int = TICKS) -> list[list[Any]]:
    """Events over all ticks: their public number is spread evenly, and an event's place in the list
    is its time."""
    bounds = np.linspace(0, len(events), ticks + 1).astype(int)
    return [events[a:b] for a, b in pairwise(bounds.tolist())]


def _short(number: float) -> str:
    """Four digits, or all digits before the point."""
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.4g}"


def _signed(ticks: list[list[Any]]) -> list[list[Any]]:
    return [[(*edge, 1) for edge in tick] for tick in ticks]
