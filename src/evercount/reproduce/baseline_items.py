"""Baselines: pure ε-DP trees and bridges, where the sparse counter wins, and how far defaults are
from the optimum."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from evercount._validate import FloatArray
from evercount.bounds import nuclear_lower
from evercount.engine.stream import Stream
from evercount.factorizations.laplace_bridge import Bridge
from evercount.factorizations.laplace_choice import PURE_ENDLESS, EndlessBridge
from evercount.factorizations.laplace_trees import DigitTree, HybridTree, best_base
from evercount.planning.distances import any_noise, distances
from evercount.plotting import panels
from evercount.privacy import Budget
from evercount.queries import Count
from evercount.reproduce.item import Context, Figure, Parameters, Result, Row, finish, item
from evercount.reproduce.norm_items import norm
from evercount.reproduce.simulator import secret_of
from evercount.sparse.budget_split import sparse_against_plain
from evercount.sparse.sparse_count import SparseCount

PURE_TREES = (
    "bridge",
    "pure-binary",
    "pure-tree",
    "pure-hybrid-binary",
    "pure-hybrid",
    "endless-bridge",
)
GAUSSIAN = ("binary-tree", "square-root", "balanced")
COLUMNS = ("#d55e00", "#4a6fe3", "#14647f")
"""Binary trees, the next better mechanisms, the best ones."""


def _band(
    axes: Any, std: np.ndarray[Any, np.dtype[np.float64]], colour: str, bins: int = 160
) -> None:
    """A curve that jumps from tick to tick as the band from its least to its largest value in bins
    of ticks."""
    edges = np.unique(np.linspace(0, len(std), min(bins, len(std)) + 1).astype(np.int64))
    least = np.minimum.reduceat(std, edges[:-1])
    most = np.maximum.reduceat(std, edges[:-1])
    middle = (edges[:-1] + edges[1:] + 1) / 2
    axes.fill_between(middle, least, most, color=colour, alpha=0.25, linewidth=0)
    axes.plot(middle, most, color=colour, linewidth=1.3)
    axes.plot(middle, least, color=colour, linewidth=0.5)


@item(
    "smoothness",
    "Error over time of pure and Gaussian mechanisms",
    "The error of the binary mechanism jumps from tick to tick; that of the factorization does "
    "not.",
    {"epsilon": 1.0, "delta": 1e-10, "exponents": (10, 16, 20)},
    {"exponents": (10, 12)},
)
def smoothness(parameters: Parameters, context: Context) -> Result:
    epsilon = parameters["epsilon"]
    delta = parameters["delta"]
    exponents = parameters["exponents"]
    rows: list[Row] = []
    curves: dict[str, FloatArray] = {}  # of the largest T, which is the last one
    for exponent in context.steps(exponents):
        T = 2**exponent
        for name in (*PURE_TREES, *GAUSSIAN):
            budget = Budget(epsilon, 0.0 if name in PURE_TREES else delta)
            stream = Stream(Count(), budget, None if name in PURE_ENDLESS else T, name)
            curves[name] = std = stream.std(np.arange(1, T + 1))[:, 0]
            # without a horizon: the second half of the ticks
            late_std = std[T // 2 :] if name in PURE_ENDLESS else std
            rows.append(
                {
                    "T": f"2^{exponent}",
                    "mechanism": name,
                    "delta": budget.delta,
                    "root mean square std": float(np.sqrt(np.mean(late_std**2))),
                    "smallest": float(late_std.min()),
                    "largest": float(late_std.max()),
                    "largest jump between ticks": float(np.abs(np.diff(late_std)).max()),
                }
            )

    def figure() -> Figure:
        figure, axes = panels(3, 3, 11.0, 8.0)
        parts = {
            f"δ = 0, horizon 2^{exponents[-1]}": ("pure-binary", "pure-tree", "bridge"),
            "δ = 0, no horizon": ("pure-hybrid-binary", "pure-hybrid", "endless-bridge"),
            f"δ = {delta:g}, horizon 2^{exponents[-1]}": GAUSSIAN,
        }
        for number, (title, names) in enumerate(parts.items()):
            highest = max(float(curves[name].max()) for name in names)
            for name, colour, one in zip(names, COLUMNS, axes[3 * number :], strict=False):
                _band(one, curves[name], colour)
                finish(
                    one, "tick, in thousands", "std of the count", f"{name}: {title}", legend=False
                )
                one.set_ylim(0, 1.05 * highest)
                one.xaxis.set_major_formatter(lambda tick, _: f"{tick / 1000:,.4g}")
        return figure

    verdict = "as the paper says: trees are not smooth, its factorization is"
    paper = {
        "claim": (
            "the binary mechanism's error is non-smooth and non-monotonic, the factorization's is "
            "smooth"
        )
    }
    return Result({"smoothness": rows}, verdict, paper, figures={"smoothness": figure})


@item(
    "sparse-counter",
    "Sparse streams: where private partitioning beats the plain counter",
    "On streams with few ones the error can depend on their number (Dwork, Naor, Reingold and "
    "Rothblum).",
    {
        "epsilon": 1.0,
        "delta": 1e-10,
        "exponents": (10, 14, 20, 26),
        "ones": (100, 1000, 10000),
        "simulated": {"exponent": 20, "ones": (1000, 10000), "runs": 3},
    },
    {
        "exponents": (10, 14),
        "ones": (100, 1000),
        "simulated": {"exponent": 12, "ones": (100,), "runs": 3},
    },
)
def sparse(parameters: Parameters, context: Context) -> Result:
    epsilon = parameters["epsilon"]
    deltas = (0.0, parameters["delta"])
    horizons = tuple(2**exponent for exponent in parameters["exponents"])
    rows = [
        {"delta": delta, **row}
        for delta in context.steps(deltas)
        for row in sparse_against_plain(epsilon, horizons, parameters["ones"], delta)
    ]

    sizes = parameters["simulated"]
    simulated = [
        simulated_sparse(epsilon, 2 ** sizes["exponent"], ones, sizes["runs"], context.seed)
        for ones in sizes["ones"]
    ]

    def figure() -> Figure:
        figure, axes = panels(1, 2, 11.0, 4.6)
        for delta, one in zip(deltas, axes, strict=True):
            part = [row for row in rows if row["delta"] == delta]
            plain = {row["horizon"]: row["plain"] for row in part}
            one.plot(list(plain), list(plain.values()), "k-", label="plain")
            for shade, ones in zip(
                ("#4a6fe3", "#009e73", "#14647f"), parameters["ones"], strict=False
            ):
                line = [(r["horizon"], r["sparse"]) for r in part if r["ones"] == ones]
                one.plot(
                    *zip(*line, strict=True),
                    "-o",
                    markersize=3,
                    color=shade,
                    label=f"sparse, {ones:,} events",
                )
            one.set_xscale("log", base=2)
            finish(
                one,
                "ticks",
                "bound for all ticks, 95 %",
                f"ε = {epsilon:g}, δ = {delta:g}",
                bottom=0,
            )
        return figure

    verdict = (
        "wins for rare events with delta 0; with Gaussian noise the plain counter is mostly better"
    )
    paper = {"claim": "C(5 log T + Psi(n) sqrt(ln 6n)) on streams with n ones"}
    tables = {"sparse": rows, "errors of single ticks": simulated}
    return Result(tables, verdict, paper, figures={"sparse-against-plain": figure})


def simulated_sparse(epsilon: float, T: int, ones: int, runs: int, seed: int) -> Row:
    """Errors of a partition with delta 0 over all ticks of some runs, next to the std and the bound
    of the bridge."""
    squares, largest = [], []
    for number in range(runs):
        counts = np.zeros(T, np.int64)
        counts[np.random.default_rng([seed, number]).permutation(T)[:ones]] = 1
        secret = secret_of(f"single ticks {ones} {number} {seed}")
        counter = SparseCount(epsilon, T, max_ones=ones, method="partition", secret=secret)
        errors = np.array([release.value for release in counter.run(counts.tolist())]) - np.cumsum(
            counts
        )
        squares.append(float(np.mean(errors**2)))
        largest.append(float(np.abs(errors).max()))
    plain = math.sqrt(2) / epsilon * Bridge(T).row_norms(np.arange(1, T + 1))
    return {
        "ticks": T,
        "events": ones,
        "partition: root mean square error of a tick": math.sqrt(sum(squares) / runs),
        "bridge: root mean square error of a tick": float(np.sqrt(np.mean(plain**2))),
        "partition: largest error of all runs": max(largest),
        "partition: bound for all ticks": counter.plan.bound(),
        "runs": runs,
    }


PUBLISHED = {"subtraction tree, k = 13, T = 1024": 324.0, "dense optimum, T = 1024": 103.6}
"""Largest variances times ε² of mechanisms with δ = 0, as published."""


def _bridge_row(T: int) -> Row:
    """Largest and mean variance times ε² of the bridge and of the best digit tree."""
    bridge = Bridge(T)
    tree = DigitTree(T, best_base(T))
    variance = 2 * bridge.row_norms(np.arange(1, T + 1)) ** 2
    other = 2 * (tree.levels * tree.worst_row()[1]) ** 2
    return {
        "T": T,
        "branching": " ".join(map(str, bridge.branching)),
        "bridge, worst variance": float(variance.max()),
        "bridge, mean variance": float(variance.mean()),
        "bridge, worst std": math.sqrt(float(variance.max())),
        "pure-tree, worst variance": other,
        "ratio of worst stds": math.sqrt(float(variance.max()) / other),
    }


def _endless_row(T: int) -> Row:
    """The largest std so far without a horizon, next to the worst std of the bridge told T = t."""
    with_horizon = Bridge(T).worst_row()[1]
    tree = EndlessBridge()
    hybrid = HybridTree()
    mine, other = (float(engine.row_norms(engine.suspects(T)).max()) for engine in (tree, hybrid))
    return {
        "t": f"2^{T.bit_length() - 1}",
        "bridge told T = t, worst std": math.sqrt(2) * with_horizon,
        "endless bridge, largest std so far": math.sqrt(2) * mine,
        "endless bridge, std at t": math.sqrt(2) * float(tree.row_norms([T])[0]),
        "endless over told": mine / with_horizon,
        "hybrid over told": other / with_horizon,
    }


def _winner_row(epsilon: float, delta: float, T: int) -> Row:
    """Worst stds of the bridge, of `balanced`, and the lower bound for Gaussian noise."""
    multiplier = Budget(epsilon, delta).noise_multiplier()
    pure = math.sqrt(2) / epsilon * Bridge(T).worst_row()[1]
    gaussian = multiplier * norm("balanced", T)
    floor = multiplier * float(nuclear_lower(T))
    wins = "bridge" if pure < gaussian else "balanced"
    return {
        "delta": delta,
        "T": T,
        "bridge": pure,
        "balanced": gaussian,
        "lower bound": floor,
        "least": wins,
    }


@item(
    "bridges",
    "Pure privacy with less error than Gaussian noise",
    "Tree noise that reaches each tick from both sides, next to published mechanisms with delta 0 "
    "and Gaussian noise.",
    {
        "epsilon": 0.5,
        "deltas": (1e-4, 1e-6, 1e-8, 1e-10, 1e-14),
        "horizons": (24, 100, 365, 1000, 1024, 8760, 2**14, 2**16, 2**20),
        "endless": tuple(2**power for power in range(4, 33, 2)),
    },
    {"deltas": (1e-6, 1e-10), "horizons": (24, 365, 1024), "endless": (2**4, 2**10)},
)
def bridges(parameters: Parameters, context: Context) -> Result:
    horizons = parameters["horizons"]
    epsilon = parameters["epsilon"]
    rows = [_bridge_row(T) for T in context.steps(horizons)]
    winners = [_winner_row(epsilon, delta, T) for delta in parameters["deltas"] for T in horizons]
    endless = [_endless_row(T) for T in parameters["endless"]]

    def figure() -> Figure:
        figure, axes = panels(1, 2, 11.0)
        T = horizons[-1]
        some = np.unique(np.linspace(1, T, 2000).astype(np.int64))
        axes[0].plot(some, math.sqrt(2) * Bridge(T).row_norms(some), linewidth=0.8, label="bridge")
        tree = DigitTree(T, best_base(T))
        axes[0].plot(
            some, math.sqrt(2) * tree.levels * tree.row_norms(some), linewidth=0.4, label=tree.name
        )
        finish(axes[0], "tick", "std at ε = 1", f"δ = 0, {T} ticks")
        for delta in parameters["deltas"]:
            line = [
                (row["T"], row["bridge"] / row["balanced"])
                for row in winners
                if row["delta"] == delta
            ]
            axes[1].plot(*zip(*line, strict=True), marker=".", label=f"δ = {delta:g}")
        axes[1].axhline(1.0, color="k", linewidth=0.6)
        axes[1].set_xscale("log", base=2)
        finish(
            axes[1],
            "ticks",
            "worst std: bridge over balanced",
            f"ε = {epsilon:g}; below 1 the bridge wins",
        )
        return figure

    return Result(
        {"bridges": rows, "endless-bridge": endless, "bridge-against-gaussian": winners},
        "not in the paper: with delta 0 the bridge has less error than published trees, and for "
        "small delta less than every Gaussian factorization",
        {"published": PUBLISHED},
        figures={"bridges": figure},
    )


SPANS = ("per-tick", "last-7", "running")
VIEWS = (*((span,) for span in SPANS), SPANS[:2], SPANS[::2], SPANS)
UNITS: dict[str, dict[str, Any]] = {
    "event": {},
    "person, 7 ticks": {"unit": "user", "max_per_tick": 1, "max_ticks": 7},
    "person, 30 ticks": {"unit": "user", "max_per_tick": 1, "max_ticks": 30},
    "person and week": {"unit": "user", "max_per_tick": 1, "period": 7},
}


def _listed(stds: Iterable[float]) -> str:
    return " / ".join(f"{std:.2f}" for std in stds)


@item(
    "yardstick",
    "Defaults next to the dense optimum",
    "Not in the paper: the least worst std that any factorization has for the same views and unit, "
    "with a certificate.",
    {"horizon": 365, "units": list(UNITS), "registered": []},
    {"horizon": 24, "units": ["event"]},
)
def yardstick(parameters: Parameters, context: Context) -> Result:
    rows: list[Row] = []
    cases = [(unit, views) for unit in parameters["units"] for views in VIEWS]
    T = parameters["horizon"]
    for unit, views in context.steps(cases):
        candidates, best, one = distances(
            Budget(1.0, 1e-6, **UNITS[unit]), T, views, own=parameters["registered"]
        )
        gaussian = next(
            each for each in candidates if each.delta and each.name not in parameters["registered"]
        )
        default = next(each for each in candidates if each.chosen)
        own = [each for each in candidates if each.name in parameters["registered"]]
        anyhow = any_noise(Budget(1.0, 0.0, **UNITS[unit]), T, views)
        rows.append(
            {
                "unit": unit,
                "views": ", ".join(views),
                "Gaussian": gaussian.name,
                "worst std": _listed(gaussian.stds),
                "least alone": _listed(one * least for least in best.alone),
                "above the least, %": round(100 * gaussian.above, 1),
                "best matrices found, %": round(100 * best.gap, 1),
                "least alone, any noise, delta=0": _listed(() if anyhow is None else anyhow.alone),
                "default": f"{default.name}, delta={default.delta:g}",
                "its worst std": _listed(default.stds),
                "default above the least, %": round(100 * default.above, 1),
                **{f"{each.name} above the least, %": round(100 * each.above, 1) for each in own},
            }
        )
    verdict = "ours: how far the Gaussian defaults are from what no factorization can beat"
    return Result({"distances": rows}, verdict)
