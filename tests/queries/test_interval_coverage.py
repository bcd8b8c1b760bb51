"""Intervals of every query hold as often as they say: 16,000 streams of each, 0.95 stated, within 0.01 at every tick.

The noise is that of the library's own generator; what is tested is the std of every published number, and with it what
decoding (least squares, weights, differences of cells) makes of the noise of the cells.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from evercount import Budget, Stream
from evercount._arrays import FloatArray
from evercount.factorizations import Factorization
from evercount.mechanisms.float_noise import FloatStream
from evercount.noise import FloatNoise
from evercount.queries import QUERIES, Query, build_query
from small_queries import SMALL, ticks_of

STREAMS, TICKS, LEVEL = 16_000, 4, 0.95
BUDGET = Budget(1.0, 1e-6)
ELSEWHERE = {
    "discovered-keys": "given discovery: tests/queries/test_discovered_intervals.py",
    "window": "tests/queries/test_queries_window.py",
    "window-of": "tests/queries/test_queries_window.py",
}
MORE: dict[str, tuple[str, dict[str, Any]]] = {
    "rollup, weighted": ("rollup", {"paths": [["a", "b"], ["a", "c"], ["d", "e"]], "weights": [2, 1, 3]}),
    "marginals, two tables": ("marginals", {"columns": [["a", "b"], ["c", "d", "e"]], "tables": [[0], [0, 1]]}),
    "distinct users per key": ("distinct-users", {"keys": ["a", "b"], "max_keys": 2, "total": True}),
    "substrings, weighted": ("substrings", {"alphabet": "ab", "max_length": 2, "weights": [1, 3]}),
    "matching, mixed": ("matching", {"vertices": 6, "stream": "mixed"}),
    "degree histogram, mixed": ("degree-histogram", {"vertices": 6, "max_degree": 3, "stream": "mixed"}),
}
CASES = {name: (name, SMALL[name]) for name in QUERIES if name not in ELSEWHERE} | MORE


def errors_of(query: Query, engine: Factorization, sigma: float) -> FloatArray:
    """What noise does to the published numbers of many streams, shape (ticks, streams, outputs)."""
    noise = FloatStream(engine, sigma, STREAMS * query.cells, FloatNoise(11)).take(TICKS)
    cells = noise.reshape(TICKS, STREAMS, query.cells)
    zero = np.zeros((TICKS, query.cells))
    if query.name == "average":  # it divides by the tick
        runs = [query.decode_run(1, cells[:, number]) for number in range(STREAMS)]
        return np.stack(runs, axis=1) - query.decode_run(1, zero)[:, np.newaxis]
    return np.stack([query.decode_run(1, tick) - query.decode_run(1, zero[:1]) for tick in cells])


@pytest.mark.parametrize("name", CASES)
def test_intervals_hold_as_often_as_they_say(name: str) -> None:
    query = build_query(*CASES[name])
    stream = Stream(query, BUDGET, TICKS, noise="insecure-float", seed=1)
    half = stream.run(ticks_of(query, TICKS)).half_widths(LEVEL)
    off = np.abs(errors_of(query, stream.factorization, stream.sigma))
    covered = np.mean(off <= half[:, np.newaxis], axis=1)
    random = np.max(half, axis=0) > 0  # a number without noise is always right
    assert random.any()
    assert np.all(np.abs(covered[:, random] - LEVEL) <= 0.01), (stream.factorization.name, covered.min(), covered.max())
    wrong = np.mean(1.06 * off <= half[:, np.newaxis], axis=1)
    assert np.all(wrong[:, random].mean(axis=1) < LEVEL - 0.01), "planted: noise that is 6 % larger than stated"


def test_direct_noise_is_among_them() -> None:
    chosen = [Stream(build_query(*case), BUDGET, TICKS).factorization.name for case in CASES.values()]
    assert chosen.count("direct") >= 3
