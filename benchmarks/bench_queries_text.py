"""Speed of the encoders over keys and letters, without noise: histograms, substrings, episodes."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from evercount.queries.histogram import Histogram
from evercount.queries.words import Episodes, Substrings

Row = dict[str, Any]


def _seconds(work: Callable[[], object], at_least: float = 0.3) -> float:
    """Best time of one call among the calls that fit into `at_least` seconds, three at the
    fewest."""
    times: list[float] = []
    while len(times) < 3 or sum(times) < at_least:
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def _row(
    name: str,
    value: float,
    unit: str,
    note: str,
    ratio: float | None = None,
    target: float | None = None,
) -> Row:
    return {
        "name": name,
        "value": value,
        "unit": unit,
        "ratio": ratio,
        "target": target,
        "note": note,
    }


def _histogram() -> list[Row]:
    rng = np.random.default_rng(0)
    cells = 10**5
    draw = _seconds(lambda: rng.standard_normal(cells))
    numbers = rng.integers(0, cells, 10_000)
    named = Histogram([f"key-{i}" for i in range(cells)])
    names = [f"key-{i}" for i in numbers]
    pairs = [(f"key-{i}", f"key-{(i + 1) % cells}") for i in numbers]
    two = Histogram([f"key-{i}" for i in range(cells)], max_keys_per_event=2)
    numbered = Histogram(cells)
    counts = np.bincount(numbers, minlength=cells)
    rows = []
    for name, work in {
        "histogram 10^5 cells, 10^4 numbered events": lambda: numbered.encode(None, numbers),
        "histogram 10^5 cells, 10^4 named events": lambda: named.encode(None, names),
        "histogram 10^5 cells, 10^4 events of 2 keys": lambda: two.encode(None, pairs),
        "histogram 10^5 cells, counted tick": lambda: numbered.encode_totals([counts]),
    }.items():
        spent = _seconds(work)
        note = "one tick, encoder only; ratio: to drawing 10^5 float normals"
        rows.append(_row(name, spent * 1e3, "ms/tick", note, ratio=spent / draw))
    return rows


def _letters() -> list[Row]:
    draw = np.random.default_rng(1)
    text = draw.integers(0, 26, 1000).tolist()
    rows = []
    for query, target in ((Substrings(26, 3), 2000.0), (Episodes(26, 3), None)):

        def one_by_one(query: Substrings | Episodes = query) -> None:
            state = query.initial_state()
            for letter in text:
                _, state = query.encode(state, [letter])

        def whole(query: Substrings | Episodes = query) -> None:
            query.encode(query.initial_state(), text)

        label = f"{query.name}(26,3)"
        single, block = len(text) / _seconds(one_by_one), len(text) / _seconds(whole)
        ratio = None if target is None else single / target
        rows.append(
            _row(f"{label} one letter a tick", single, "letters/s", "encoder only", ratio, target)
        )
        rows.append(_row(f"{label} 1000 letters a tick", block, "letters/s", "encoder only"))
    return rows


def run() -> list[Row]:
    """All rows: name, value, unit, ratio, target, note."""
    return [*_histogram(), *_letters()]


if __name__ == "__main__":
    for row in run():
        ratio = "" if row["ratio"] is None else f"ratio {row['ratio']:.2f}"
        target = "" if row["target"] is None else f"target {row['target']:g}"
        print(
            f"{row['name']:46} {row['value']:12.4g} {row['unit']:10} {ratio:12} {target:14} "
            f"{row['note']}"
        )
