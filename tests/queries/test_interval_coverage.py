"""Intervals of every query hold as often as they say, of running sums and of the events of the last
two ticks.

δ > 0: 16,000 streams of each, 0.95 stated, within 0.01 at every tick. δ = 0: 8,000 streams of each,
at least 0.95 less 4 standard errors, as the tails of sums of Laplace numbers are bounded from
above. The noise is that of the library's own generators; what is tested is the error of every
published number, and with it what decoding (least squares, weights, differences of cells) makes of
the noise of the cells.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from evercount import Budget, Count, Rollup, Stream
from evercount._validate import FloatArray
from evercount.errors import ParameterError
from evercount.queries import QUERIES, Query, build_query
from independent_streams import least_share, noise_of, published, smooth_stream
from product_internals import half_widths, symmetric_half_widths
from small_queries import SMALL, ticks_of
from soak_cases import soak_except

pytestmark = pytest.mark.slow

STREAMS, TICKS, LEVEL = 16_000, 4, 0.95
PURE_STREAMS = 8_000
BUDGET = Budget(1.0, 1e-6)
ELSEWHERE = ("discovered-keys",)
"""Given discovery: tests/queries/test_discovered_intervals.py."""
MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "rollup, weighted": (
        "rollup",
        {"paths": [["a", "b"], ["a", "c"], ["d", "e"]], "weights": [2, 1, 3]},
    ),
    "marginals, two tables": (
        "marginals",
        {"columns": [["a", "b"], ["c", "d", "e"]], "tables": [[0], [0, 1]]},
    ),
    "distinct users per key": (
        "distinct-users",
        {"keys": ["a", "b"], "max_keys": 2, "total": True},
    ),
    "substrings, weighted": ("substrings", {"alphabet": "ab", "max_length": 2, "weights": [1, 3]}),
    "quantiles": ("quantiles", {"low": 0, "high": 100, "bins": 16}),
    "matching, mixed": ("matching", {"vertices": 6, "stream": "mixed"}),
    "degree histogram, mixed": (
        "degree-histogram",
        {"vertices": 6, "max_degree": 3, "stream": "mixed"},
    ),
}
CASES = {name: (name, SMALL[name]) for name in QUERIES if name not in ELSEWHERE} | MORE
MIXED = ("degree-sequence", "min-cut", "min-degree", "matching, mixed", "degree histogram, mixed")
"""One event can change their increments again and again: there is no l1 sensitivity, and no δ =
0."""
PURE = [name for name in CASES if name not in MIXED]


def errors_and_halves(
    stream: Stream, ticks: list[Any], streams: int
) -> Iterator[tuple[FloatArray, FloatArray]]:
    """How far published numbers of many streams are off, (ticks, streams, outputs), with the
    half-widths stated.

    First the running sums, then the events of the last two ticks, where the query adds up over
    ticks.
    """
    query, releases = stream.query, stream.run(ticks)
    noise = noise_of(stream, streams, len(ticks))
    errors = published(query, noise) - published(query, np.zeros((len(ticks), 1, query.cells)))
    yield np.abs(errors), symmetric_half_widths(releases, LEVEL)
    if query.publishing.why_no_views is None:
        yield np.abs(errors[2:] - errors[:-2]), half_widths(releases.last(2), LEVEL)[1:]


def shares(off: FloatArray, half: FloatArray) -> FloatArray:
    """The share of streams within their half-widths, (ticks, outputs), of the outputs that have
    noise."""
    random = np.max(half, axis=0) > 0  # a number without noise is always right
    assert random.any()
    return np.asarray(np.mean(off <= half[:, np.newaxis], axis=1)[:, random])


KEPT = ["count", "average", "quantiles", "rollup, weighted", "degree histogram, mixed"]
"""One for each way in which noise of cells becomes that of published numbers; `make soak` has every
query."""


@pytest.mark.parametrize("name", soak_except(KEPT, CASES))
def test_intervals_hold_as_often_as_they_say(name: str) -> None:
    query = build_query(*CASES[name])
    # never Laplace noise
    named = "balanced" if query.squared_value_sensitivity(BUDGET.adjacency) is None else None
    stream = smooth_stream(query, BUDGET, TICKS, named, seed=1)
    for off, half in errors_and_halves(stream, ticks_of(query, TICKS), STREAMS):
        covered = shares(off, half)
        assert np.all(np.abs(covered - LEVEL) <= 0.01), (
            stream.factorization.name,
            covered.min(),
            covered.max(),
        )
        wrong = shares(1.06 * off, half).mean(axis=1)
        assert np.all(wrong < LEVEL - 0.01), "planted: noise that is 6 % larger than stated"


@pytest.mark.parametrize(
    ("name", "factorization"),
    soak_except(
        [
            *((name, None) for name in KEPT if name not in MIXED),
            ("rollup, weighted", "pure-binary"),
        ],
        [*((name, None) for name in PURE)]
        + [
            (name, tree)
            for name in ("count", "rollup, weighted")
            for tree in ("pure-tree", "pure-binary")
        ],
    ),
)
def test_intervals_of_pure_noise_hold(name: str, factorization: str | None) -> None:
    """At ε = 0.1 noise is far wider than whole numbers; at ε = 12 it is narrower, and rounding
    counts in every cell."""
    query = build_query(*CASES[name])
    for epsilon in (0.1, 12.0):
        stream = smooth_stream(query, Budget(epsilon, 0.0), TICKS, factorization, seed=1)
        sums, *views = errors_and_halves(stream, ticks_of(query, TICKS), PURE_STREAMS)
        for off, half in (sums, *views):
            covered = shares(off, half)
            assert np.all(covered >= least_share(LEVEL, PURE_STREAMS)), (epsilon, covered.min())
        if epsilon == 0.1:
            wrong = shares(sums[0], 0.9 * sums[1]).mean(axis=1)
            assert wrong.min() < least_share(LEVEL, PURE_STREAMS), (
                "planted: intervals that are 10 % too narrow"
            )


def test_direct_noise_is_among_them() -> None:
    chosen = [
        Stream(build_query(*case), BUDGET, TICKS).factorization.name for case in CASES.values()
    ]
    assert chosen.count("direct") >= 3


@pytest.mark.parametrize("name", MIXED)
def test_mixed_graphs_have_no_pure_noise(name: str) -> None:
    with pytest.raises(ParameterError, match="again and again"):
        Stream(build_query(*CASES[name]), Budget(1.0, 0.0), TICKS)


ENDLESS = [("unbounded", 1e-6), ("anytime", 1e-6), ("endless-bridge", 0.0), ("pure-hybrid", 0.0)]
TREE = Rollup([("a", "b"), ("a", "c"), ("d", "e")])


@pytest.mark.parametrize(
    ("factorization", "delta", "query"),
    soak_except(
        [*((*one, Count()) for one in ENDLESS), ("endless-bridge", 0.0, TREE)],
        [(*one, query) for one in ENDLESS for query in (Count(), TREE)],
    ),
    ids=lambda value: getattr(value, "name", None),
)
def test_intervals_of_streams_without_an_end_hold(
    factorization: str, delta: float, query: Query
) -> None:
    """40 ticks, beyond the first epochs of the trees that grow: as often as with a horizon."""
    stream = smooth_stream(query, Budget(0.1, delta), None, factorization, seed=1)
    streams = STREAMS if delta else PURE_STREAMS
    least = LEVEL - 0.01 if delta else least_share(LEVEL, streams)
    sums, *views = errors_and_halves(stream, ticks_of(query, 40), streams)
    for off, half in (sums, *views):
        covered = shares(off, half)
        assert np.all(covered >= least), covered.min()
        assert not delta or np.all(covered <= LEVEL + 0.01), covered.max()
    assert shares(sums[0], 0.9 * sums[1]).mean(axis=1).min() < least, (
        "planted: intervals that are 10 % too narrow"
    )
