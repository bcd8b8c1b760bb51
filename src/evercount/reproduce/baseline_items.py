"""The baselines beside the Gaussian factorisations: pure ε-DP trees over time, and where the sparse counter wins."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from evercount.engine.stream import Stream
from evercount.privacy import Budget
from evercount.queries import Count
from evercount.reproduce.figures import finish, panels, thin
from evercount.reproduce.item import Context, Item, Result, Row
from evercount.sparse.budget_split import sparse_against_plain

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PURE = ("bridge", "pure-binary", "pure-tree", "pure-hybrid-binary", "pure-hybrid")


def _std(name: str, epsilon: float, delta: float, ticks: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Std of a count at every tick."""
    endless = name.startswith("pure-hybrid")
    stream = Stream(Count(), Budget(epsilon, delta), None if endless else ticks, name)
    return stream.std(np.arange(1, ticks + 1))[:, 0]


def smoothness(parameters: Mapping[str, Any], context: Context) -> Result:
    """Std over time of pure and Gaussian mechanisms: its level and how much it jumps."""
    epsilon, delta = parameters["epsilon"], parameters["delta"]
    rows: list[Row] = []
    curves: dict[str, Any] = {}
    exponents = parameters["exponents"]
    for place, exponent in enumerate(exponents):
        context.progress(place, len(exponents))
        T = 2**exponent
        for name in (*PURE, "binary-tree", "square-root", "balanced"):
            std = _std(name, epsilon, 0.0 if name in PURE else delta, T)
            if exponent == exponents[-1]:
                curves[name] = std
            kept = std[T // 2 :] if name.startswith("pure-hybrid") else std  # a hybrid is compared at its latest
            rows.append(
                {
                    "T": f"2^{exponent}",
                    "mechanism": name,
                    "delta": 0.0 if name in PURE else delta,
                    "root mean square std": float(np.sqrt(np.mean(kept**2))),
                    "smallest": float(kept.min()),
                    "largest": float(kept.max()),
                    "largest jump between ticks": float(np.abs(np.diff(kept)).max()),
                }
            )
    last = {row["mechanism"]: row for row in rows[-8:]}
    jumps = "largest jump between ticks"
    findings = [
        f"At {rows[-1]['T']}, epsilon {epsilon:g}: pure trees jump by up to {last['pure-binary'][jumps]:.1f} "
        f"(binary) and {last['pure-tree'][jumps]:.1f} (best base) from one tick to the next; after the first ticks "
        f"`square-root` and `balanced` are smooth.",
        f"Root mean square std: bridge {last['bridge']['root mean square std']:.1f}, pure binary "
        f"{last['pure-binary']['root mean square std']:.1f}, best pure tree "
        f"{last['pure-tree']['root mean square std']:.1f}, Gaussian binary tree "
        f"{last['binary-tree']['root mean square std']:.1f}, balanced {last['balanced']['root mean square std']:.1f}.",
    ]

    def figure() -> Figure:
        drawn, (axes,) = panels()
        for name, std in curves.items():
            keep = thin(len(std))
            axes.plot(keep + 1, std[keep], linewidth=0.8, label=name)
        finish(axes, "tick", "std of the count", f"error over time, ε = {epsilon:g}; δ = 0 or {delta:g}")
        return drawn

    verdict = "as the paper says: trees are not smooth, its factorisation is"
    paper = {"claim": "the binary mechanism's error is non-smooth and non-monotonic, the factorisation's is smooth"}
    return Result({"smoothness": rows}, findings, verdict, paper, figures={"smoothness": figure})


def sparse(parameters: Mapping[str, Any], context: Context) -> Result:
    """The 95 % bound for all ticks of SparseCount beside that of the plain counter."""
    rows: list[Row] = []
    for place, delta in enumerate((0.0, parameters["delta"])):
        context.progress(place, 2)
        found = sparse_against_plain(
            parameters["epsilon"], tuple(2**e for e in parameters["exponents"]), parameters["ones"], delta
        )
        rows += [{"delta": delta, **row} for row in found]
    wins = {delta: sum(row["wins"] for row in rows if row["delta"] == delta) for delta in (0.0, parameters["delta"])}
    findings = [
        f"With delta 0 the sparse counter has the smaller bound in {wins[0.0]} of {len(rows) // 2} cases, "
        f"with delta {parameters['delta']:g} in {wins[parameters['delta']]}."
    ]

    def figure() -> Figure:
        drawn, axes = panels(1, 2, 11.0)
        for delta, one in zip((0.0, parameters["delta"]), axes, strict=True):
            part = [row for row in rows if row["delta"] == delta]
            horizons = sorted({row["horizon"] for row in part})
            one.plot(
                horizons, [next(r["plain"] for r in part if r["horizon"] == T) for T in horizons], "k-", label="plain"
            )
            for ones in parameters["ones"]:
                line = [(r["horizon"], r["sparse"]) for r in part if r["ones"] == ones]
                one.plot(*zip(*line, strict=True), label=f"sparse, {ones} events")
            one.set_xscale("log", base=2)
            finish(one, "ticks", "bound for all ticks, 95 %", f"ε = {parameters['epsilon']:g}, δ = {delta:g}")
        return drawn

    verdict = "wins for rare events with delta 0; with Gaussian noise the plain counter is mostly better"
    paper = {"claim": "C(5 log T + Psi(n) sqrt(ln 6n)) on streams with n ones"}
    return Result({"sparse": rows}, findings, verdict, paper, figures={"sparse-against-plain": figure})


SMOOTHNESS = Item(
    "smoothness",
    "Error over time of pure and Gaussian mechanisms",
    "The error of the binary mechanism jumps from tick to tick; that of the factorisation does not.",
    smoothness,
    full={"epsilon": 1.0, "delta": 1e-10, "exponents": (10, 16, 20)},
    quick={"exponents": (10, 12)},
)
SPARSE = Item(
    "sparse-counter",
    "Sparse streams: where private partitioning beats the plain counter",
    "On streams with few ones the error can depend on their number (Dwork, Naor, Reingold and Rothblum).",
    sparse,
    full={"epsilon": 1.0, "delta": 1e-10, "exponents": (10, 14, 20, 26), "ones": (100, 1000, 10000)},
    quick={"exponents": (10, 14), "ones": (100, 1000)},
)
