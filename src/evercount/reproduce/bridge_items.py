"""Bridges beside the digit tree, the published constants for δ = 0, and Gaussian noise: who wins for which δ and T."""

from __future__ import annotations

import math

import numpy as np

from evercount.bounds import nuclear_lower
from evercount.factorizations import factorization
from evercount.factorizations.endless_bridge import EndlessBridge
from evercount.factorizations.laplace_bridge import Bridge
from evercount.factorizations.laplace_trees import DigitTree, HybridTree, best_base
from evercount.privacy import Budget
from evercount.reproduce.figures import finish, panels
from evercount.reproduce.item import Context, Figure, Item, Parameters, Result, Row

PUBLISHED = {"subtraction tree, k = 13, T = 1024": 324.0, "dense optimum, T = 1024": 103.6}
"""Largest variances times ε² of mechanisms with δ = 0, as published."""


def _bridge_row(T: int) -> Row:
    """Largest and mean variance times ε² of the bridge and of the best digit tree."""
    bridge, tree = Bridge(T), DigitTree(T, best_base(T), True)
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
    """The largest std so far without a horizon, beside the worst std of the bridge told T = t."""
    told = Bridge(T).worst_row()[1]
    tree, hybrid = EndlessBridge(), HybridTree()
    mine, other = (float(engine.row_norms(engine.suspects(T)).max()) for engine in (tree, hybrid))
    return {
        "t": f"2^{T.bit_length() - 1}",
        "bridge told T = t, worst std": math.sqrt(2) * told,
        "endless bridge, largest std so far": math.sqrt(2) * mine,
        "endless bridge, std at t": math.sqrt(2) * float(tree.row_norms([T])[0]),
        "endless over told": mine / told,
        "hybrid over told": other / told,
    }


def _winner_row(epsilon: float, delta: float, T: int) -> Row:
    """Worst stds of the bridge, of `balanced`, and the lower bound for Gaussian noise."""
    multiplier = Budget(epsilon, delta).noise_multiplier()
    engine = factorization(None, T)
    pure = math.sqrt(2) / epsilon * Bridge(T).worst_row()[1]
    gaussian = multiplier * engine.column_norm * engine.worst_row()[1]
    floor = multiplier * float(nuclear_lower(T))
    wins = "bridge" if pure < gaussian else "balanced"
    return {"delta": delta, "T": T, "bridge": pure, "balanced": gaussian, "lower bound": floor, "least": wins}


def bridges(parameters: Parameters, context: Context) -> Result:
    """Exact variances of bridges, and the δ at which Gaussian noise has the same worst std."""
    horizons = parameters["horizons"]
    rows = [_bridge_row(T) for T in context.steps(horizons)]
    epsilon = parameters["epsilon"]
    winners = [_winner_row(epsilon, delta, T) for delta in parameters["deltas"] for T in horizons]
    endless = [_endless_row(T) for T in parameters["endless"]]
    known = next((row for row in rows if row["T"] == 1024), None)
    ratios = [row["endless over told"] for row in endless]
    hybrids = [row["hybrid over told"] for row in endless]
    findings = [
        f"At epsilon {epsilon:g} the bridge has the least worst std in "
        f"{sum(row['least'] == 'bridge' for row in winners)} of {len(winners)} cases (delta, T).",
        f"Without a horizon, largest std so far over the worst std of the bridge told T = t, t = 2^4 to 2^32: "
        f"{min(ratios):.2f} to {max(ratios):.2f} (endless bridge), {min(hybrids):.2f} to {max(hybrids):.2f} (hybrid).",
    ]
    if known is not None:
        findings.append(
            f"T = 1024: largest variance times epsilon squared {known['bridge, worst variance']:.1f} (bridge), "
            f"{known['pure-tree, worst variance']:.1f} (best digit tree here); published: "
            + ", ".join(f"{value:g} ({name})" for name, value in PUBLISHED.items())
            + ". The dense optimum is for T up to 1024 and does not stream in small memory."
        )

    def figure() -> Figure:
        drawn, axes = panels(1, 2, 11.0)
        T = horizons[-1]
        some = np.unique(np.linspace(1, T, 2000).astype(np.int64))
        axes[0].plot(some, math.sqrt(2) * Bridge(T).row_norms(some), linewidth=0.8, label="bridge")
        tree = DigitTree(T, best_base(T), True)
        axes[0].plot(some, math.sqrt(2) * tree.levels * tree.row_norms(some), linewidth=0.4, label=tree.name)
        finish(axes[0], "tick", "std at ε = 1", f"δ = 0, {T} ticks")
        for delta in parameters["deltas"]:
            line = [(row["T"], row["bridge"] / row["balanced"]) for row in winners if row["delta"] == delta]
            axes[1].plot(*zip(*line, strict=True), marker=".", label=f"δ = {delta:g}")
        axes[1].axhline(1.0, color="k", linewidth=0.6)
        axes[1].set_xscale("log", base=2)
        finish(axes[1], "ticks", "worst std: bridge over balanced", f"ε = {epsilon:g}; below 1 the bridge wins")
        return drawn

    return Result(
        {"bridges": rows, "endless-bridge": endless, "bridge-against-gaussian": winners},
        findings,
        "not in the paper: with delta 0 the bridge has less error than published trees, and for small delta less than "
        "every Gaussian factorization",
        {"published": PUBLISHED},
        figures={"bridges": figure},
    )


BRIDGES = Item(
    "bridges",
    "Pure privacy with less error than Gaussian noise",
    "Tree noise that reaches each tick from both sides, beside published mechanisms with delta 0 and Gaussian noise.",
    bridges,
    full={
        "epsilon": 0.5,
        "deltas": (1e-4, 1e-6, 1e-8, 1e-10, 1e-14),
        "horizons": (24, 100, 365, 1000, 1024, 8760, 2**14, 2**16, 2**20),
        "endless": tuple(2**power for power in range(4, 33, 2)),
    },
    quick={"deltas": (1e-6, 1e-10), "horizons": (24, 365, 1024), "endless": (2**4, 2**10)},
)
