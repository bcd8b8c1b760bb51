"""Speed of the local model, of pure trees and of the sparse counter, each next to its target where
it has one."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from evercount.factorizations.laplace_choice import pure_factorization
from evercount.factorizations.laplace_trees import PureFactorization
from evercount.local import LocalClient, LocalPlan, LocalServer, simulate
from evercount.local.genprot import GenProtClient
from evercount.local.genprot_plan import GenProtPlan
from evercount.local.message_server import ENTRY
from evercount.mechanisms.laplace_noise import PureStream
from evercount.noise import Secret
from evercount.noise.laplace_sampler import ExactLaplace
from evercount.sparse.sparse_count import SparseCount

CLIENT_TARGET = 50.0
"""µs from a value to its message at 128 buckets, the exact draw of its noise included."""
SERVER_TARGET = 200_000.0
"""Messages per second, merged in batches, at 128 buckets."""
BRIDGE_TARGET = 0.5
"""µs for each cell and tick of a bridge with 1000 cells, the draws of its noise included."""

EPSILON, DELTA, CLIENTS = 0.5, 1e-6, 65536  # 128 buckets


def _seconds(action: Callable[[], object], repeats: int) -> float:
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def _row(name: str, value: float, unit: str, target: float | None, note: str) -> dict[str, Any]:
    return {"name": name, "value": value, "unit": unit, "target": target, "note": note}


def _client(batches: int = 20, size: int = 200) -> list[dict[str, Any]]:
    """Medians over the clients of a batch, and the least of them over batches: other work on the
    machine only adds."""
    root, plan = Secret.generate(), LocalPlan(EPSILON, DELTA, CLIENTS)
    medians: dict[str, list[float]] = {"built": [], "message": [], "both": []}
    for batch in range(batches):
        parts: dict[str, list[float]] = {name: [] for name in medians}
        for number in range(size):
            secret = root.derive(f"{batch} {number}")
            start = time.perf_counter()
            client = LocalClient(plan, secret)
            built = time.perf_counter()
            client.message(0.3)
            stop = time.perf_counter()
            times = (built - start, stop - built, stop - start)
            for name, value in zip(parts, times, strict=True):
                parts[name].append(value)
        for name, values in parts.items():
            medians[name].append(statistics.median(values) * 1e6)
    least = {name: min(values) for name, values in medians.items()}
    return [
        _row(
            "client message",
            least["message"],
            "µs",
            CLIENT_TARGET,
            "128 buckets, from value to message, draw included",
        ),
        _row("client built", least["built"], "µs", None, "with a given secret"),
        _row("client in all", least["both"], "µs", None, "built, noise drawn, message"),
    ]


def _pure_run(tree: PureFactorization, secret: Secret) -> None:
    PureStream(tree, 1.0, 1.0, 1.0, 1, secret).take(10**5)


def run() -> list[dict[str, Any]]:
    """One row per measurement: name, value, unit, target, note."""
    rows = _client()
    plan = LocalPlan(EPSILON, DELTA, CLIENTS)
    points = np.random.default_rng(1).random(20_000)
    entries = simulate(plan, points, Secret.generate())
    messages = [plan.header + row.astype(ENTRY).tobytes() for row in entries]

    def merge() -> None:
        total = LocalServer(plan)
        for start in range(0, len(messages), 5000):
            part = LocalServer(plan)
            part.add_many(messages[start : start + 5000])
            total.merge(part)

    merge()
    rate = len(messages) / _seconds(merge, 9)
    rows.append(
        _row("server", rate, "messages/s", SERVER_TARGET, "128 buckets, batches of 5,000 merged")
    )
    secret = Secret.generate()
    rate = len(points) / _seconds(lambda: simulate(plan, points, secret), 3)
    rows.append(_row("simulated clients", rate, "messages/s", None, "exact noise, 128 buckets"))
    genprot = GenProtPlan(EPSILON, CLIENTS, "bench")
    GenProtClient(genprot, 0).message(0.3)
    numbers = iter(range(1, 10**9))
    value = _seconds(lambda: GenProtClient(genprot, next(numbers)).message(0.3), 100) * 1e6
    rows.append(
        _row("GenProt client", value, "µs", None, f"128 buckets, {genprot.bits:g} bits, pure")
    )
    draws = np.arange(10**5)
    value = (
        _seconds(lambda: ExactLaplace(Secret.generate()).draw(draws, 0.1, 1), 5) / len(draws) * 1e9
    )
    rows.append(_row("exact Laplace number", value, "ns", None, "in blocks of 10^5"))
    for name in ("bridge", "pure-binary", "pure-tree", "pure-hybrid"):
        tree = pure_factorization(name, None if name == "pure-hybrid" else 2**20)
        value = _seconds(partial(_pure_run, tree, secret), 3) / 10**5 * 1e9
        rows.append(_row(f"{name} tick", value, "ns", None, "one cell, runs of 10^5"))
    many = PureStream(pure_factorization("bridge", 2**16), 1.0, 1.0, 1.0, 1000, secret)
    value = _seconds(lambda: [many.take(1) for _ in range(512)], 5) / 512 / 1000 * 1e6
    rows.append(
        _row("bridge, 1000 cells", value, "µs", BRIDGE_TARGET, "per cell and tick, tick by tick")
    )
    counts = [0] * 20_000
    value = (
        _seconds(lambda: SparseCount(1.0, 2**20, 0.0, 1000, secret=secret).run(counts), 3)
        / len(counts)
        * 1e6
    )
    rows.append(_row("sparse tick", value, "µs", None, "pure, runs of 20,000"))
    return rows


if __name__ == "__main__":
    for row in run():
        target = "" if row["target"] is None else f"  (target {row['target']:,.0f})"
        print(f"{row['name']:22s} {row['value']:14,.2f} {row['unit']:11s}{target}  {row['note']}")
