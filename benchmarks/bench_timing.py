"""What the time of a step or of a closing tells about the data and about the noise.

Two kinds of tick alternate in random order. The value is the chance that a tick of the second kind
takes longer than one of the first (0.5: time tells nothing); the ratio is that of the median times.
Only times that somebody outside can see matter: a service closes ticks on its public clock, so a
reader sees when a release comes, not how long it took.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from evercount import Budget, Count, Histogram, Stream
from evercount.declarations.declaration import StreamDeclaration
from evercount.store import Batch, Store
from evercount.store.open_stream import encode_events

TICKS = 3000
CLOSINGS = 300
KEYS = 100


def compare(actions: list[Callable[[], Any]], ticks: int) -> tuple[float, float]:
    """(chance that the second kind takes longer, ratio of medians) over `ticks` of each kind, in
    random order."""
    order = np.random.default_rng(1).permutation(np.repeat([0, 1], ticks))
    times: list[list[float]] = [[], []]
    for kind in order.tolist():
        start = time.perf_counter_ns()
        actions[kind]()
        times[kind].append(time.perf_counter_ns() - start)
    return _told(times)


def _told(times: list[list[float]]) -> tuple[float, float]:
    """(chance that a time of the second kind is the longer one, ratio of medians)."""
    first, second = (np.sort(np.asarray(side, dtype=np.float64)) for side in times)
    below = np.searchsorted(first, second, "left") + np.searchsorted(first, second, "right")
    return float(below.mean() / 2 / len(first)), float(np.median(second) / np.median(first))


def _row(name: str, found: tuple[float, float], note: str) -> dict[str, Any]:
    chance, ratio = found
    return {
        "name": name,
        "value": chance,
        "unit": "chance",
        "ratio": ratio,
        "target": None,
        "note": note,
    }


def _stepping(query: Any, delta: float, one: Any, other: Any) -> list[Callable[[], Any]]:
    stream = Stream(query, Budget(1.0, delta), 2**20)
    return [lambda: stream.step(one), lambda: stream.step(other)]


def _noise(delta: float) -> float:
    """Correlation by rank of the time of a step with the size of the noise that it released."""
    from scipy.stats import spearmanr

    stream = Stream(Count(), Budget(1.0, delta), 2**20)
    times, sizes, before = [], [], 0.0
    for _ in range(2 * TICKS):
        start = time.perf_counter_ns()
        release = stream.step(0)
        times.append(time.perf_counter_ns() - start)
        sizes.append(abs(release.value - before))
        before = release.value
    return float(spearmanr(times, sizes)[0])


def _closing(events: tuple[int, int]) -> tuple[float, float]:
    """Closings of a store on SQLite after one or another number of events."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder, "timing.db"))
        declaration = StreamDeclaration("timed", Count(), Budget(1.0, 1e-6), horizon=2**16)
        store.declare(declaration, 1e9)
        times: list[list[float]] = [[], []]
        for kind in np.random.default_rng(2).permutation(np.repeat([0, 1], CLOSINGS)).tolist():
            payloads: list[Any] = [events[kind]]
            store.accept([Batch("timed", payloads, encode_events(declaration, payloads))], 1e9)
            start = time.perf_counter_ns()
            store.close_ticks(store.streams["timed"], 1, 1e9)
            times[kind].append(time.perf_counter_ns() - start)
        store.close()
    return _told(times)


def run() -> list[dict[str, Any]]:
    """One row per measurement."""
    rows = []
    for kind, delta in (("Gaussian", 1e-6), ("pure", 0.0)):
        rows.append(
            _row(
                f"{kind} count, 0 or 1 event",
                compare(_stepping(Count(), delta, 0, 1), TICKS),
                "step",
            )
        )
        rows.append(
            _row(
                f"{kind} count, 0 or 10^6",
                compare(_stepping(Count(), delta, 0, 10**6), TICKS),
                "step",
            )
        )
    histogram = Histogram(KEYS)
    none, one = np.zeros(KEYS, np.int64), np.eye(1, KEYS, dtype=np.int64)[0]
    stream = Stream(histogram, Budget(1.0, 1e-6), 2**20)
    both: list[Callable[[], Any]] = [
        lambda: stream.run_totals([none])[0],
        lambda: stream.run_totals([one])[0],
    ]
    rows.append(
        _row(
            "histogram, totals differ in one event",
            compare(both, TICKS),
            f"run_totals, {KEYS} cells",
        )
    )
    keys = [number % KEYS for number in range(1000)]
    rows.append(
        _row(
            "histogram, 1000 events of other keys",
            compare(_stepping(histogram, 1e-6, keys, [7] * 1000), 500),
            "step",
        )
    )
    rows.append(
        _row(
            "histogram, 1000 or 1001 events",
            compare(_stepping(histogram, 1e-6, keys, [*keys, 7]), 500),
            "step",
        )
    )
    rows.append(
        _row(
            "histogram, 1000 or 2000 events",
            compare(_stepping(histogram, 1e-6, keys, keys * 2), 500),
            "step",
        )
    )
    rows.append(
        _row(
            "closing of a store, 0 or 0 events",
            _closing((0, 0)),
            "SQLite, one count: the measure itself",
        )
    )
    rows.append(_row("closing of a store, 0 or 1 event", _closing((0, 1)), "SQLite, one count"))
    rows.append(
        _row("closing of a store, 0 or 10^6 events", _closing((0, 10**6)), "SQLite, one count")
    )
    for kind, delta in (("Gaussian", 1e-6), ("pure", 0.0)):
        value = _noise(delta)
        rows.append(
            {"name": f"{kind} noise and time", "value": value, "unit": "rank correlation",
             "ratio": None,
             "target": None, "note": "size of a tick's noise increment, time of its step"}
        )  # fmt: skip
    return rows


if __name__ == "__main__":
    for row in run():
        ratio = "" if row["ratio"] is None else f"{row['ratio']:.3f}"
        print(f"{row['name']:44}{row['value']:8.3f} {row['unit']:18}{ratio:>8}  {row['note']}")
