"""Baselines: the error over time of pure ε-DP trees, and where the sparse counter beats the plain one."""

from __future__ import annotations

from typing import Any

import numpy as np

from evercount._arrays import FloatArray
from evercount.engine.stream import Stream
from evercount.factorizations.laplace_choice import PURE_ENDLESS
from evercount.privacy import Budget
from evercount.queries import Count
from evercount.reproduce.figures import finish, panels
from evercount.reproduce.item import Context, Figure, Item, Parameters, Result, Row
from evercount.sparse.budget_split import sparse_against_plain

PURE_TREES = ("bridge", "pure-binary", "pure-tree", "pure-hybrid-binary", "pure-hybrid", "endless-bridge")
GAUSSIAN = ("binary-tree", "square-root", "balanced")
COLUMNS = ("#d55e00", "#4a6fe3", "#14647f")
"""Binary trees, the next better mechanisms, the best ones."""


def _band(axes: Any, std: np.ndarray[Any, np.dtype[np.float64]], colour: str, bins: int = 160) -> None:
    """A curve that jumps from tick to tick as the band from its least to its largest value in bins of ticks."""
    edges = np.unique(np.linspace(0, len(std), min(bins, len(std)) + 1).astype(np.int64))
    least, most = np.minimum.reduceat(std, edges[:-1]), np.maximum.reduceat(std, edges[:-1])
    middle = (edges[:-1] + edges[1:] + 1) / 2
    axes.fill_between(middle, least, most, color=colour, alpha=0.25, linewidth=0)
    axes.plot(middle, most, color=colour, linewidth=1.3)
    axes.plot(middle, least, color=colour, linewidth=0.5)


def _std(name: str, epsilon: float, delta: float, ticks: int) -> FloatArray:
    stream = Stream(Count(), Budget(epsilon, delta), None if name in PURE_ENDLESS else ticks, name)
    return stream.std(np.arange(1, ticks + 1))[:, 0]


def smoothness(parameters: Parameters, context: Context) -> Result:
    """Std over time of pure and Gaussian mechanisms: its level and how much it jumps."""
    epsilon, delta = parameters["epsilon"], parameters["delta"]
    rows: list[Row] = []
    curves: dict[str, Any] = {}
    exponents = parameters["exponents"]
    for exponent in context.steps(exponents):
        T = 2**exponent
        for name in (*PURE_TREES, *GAUSSIAN):
            std = _std(name, epsilon, 0.0 if name in PURE_TREES else delta, T)
            if exponent == exponents[-1]:
                curves[name] = std
            kept = std[T // 2 :] if name in PURE_ENDLESS else std  # without a horizon: the second half of the ticks
            rows.append(
                {
                    "T": f"2^{exponent}",
                    "mechanism": name,
                    "delta": 0.0 if name in PURE_TREES else delta,
                    "root mean square std": float(np.sqrt(np.mean(kept**2))),
                    "smallest": float(kept.min()),
                    "largest": float(kept.max()),
                    "largest jump between ticks": float(np.abs(np.diff(kept)).max()),
                }
            )
    last = {row["mechanism"]: row for row in rows[-len(PURE_TREES) - len(GAUSSIAN) :]}
    jumps = {name: row["largest jump between ticks"] for name, row in last.items()}
    size = {name: row["root mean square std"] for name, row in last.items()}
    findings = [
        f"At {rows[-1]['T']}, epsilon {epsilon:g}: pure trees jump by up to {jumps['pure-binary']:.1f} (binary) and "
        f"{jumps['pure-tree']:.1f} (best base) from one tick to the next; after the first ticks `square-root` and "
        "`balanced` are smooth.",
        f"Root mean square std: bridge {size['bridge']:.1f}, pure binary {size['pure-binary']:.1f}, best pure tree "
        f"{size['pure-tree']:.1f}, Gaussian binary tree {size['binary-tree']:.1f}, balanced {size['balanced']:.1f}.",
        f"Without a horizon, in the second half of the ticks: endless bridge {size['endless-bridge']:.1f}, pure hybrid "
        f"{size['pure-hybrid']:.1f}.",
    ]

    def figure() -> Figure:
        drawn, axes = panels(3, 3, 11.0, 8.0)
        parts = {
            f"δ = 0, horizon 2^{exponents[-1]}": ("pure-binary", "pure-tree", "bridge"),
            "δ = 0, no horizon": ("pure-hybrid-binary", "pure-hybrid", "endless-bridge"),
            f"δ = {delta:g}, horizon 2^{exponents[-1]}": GAUSSIAN,
        }
        for number, (title, names) in enumerate(parts.items()):
            highest = max(float(curves[name].max()) for name in names)
            for name, colour, one in zip(names, COLUMNS, axes[3 * number :], strict=False):
                _band(one, curves[name], colour)
                finish(one, "tick, in thousands", "std of the count", f"{name}: {title}", legend=False)
                one.set_ylim(0, 1.05 * highest)
                one.xaxis.set_major_formatter(lambda tick, _: f"{tick / 1000:,.4g}")
        return drawn

    verdict = "as the paper says: trees are not smooth, its factorization is"
    paper = {"claim": "the binary mechanism's error is non-smooth and non-monotonic, the factorization's is smooth"}
    return Result({"smoothness": rows}, findings, verdict, paper, figures={"smoothness": figure})


def sparse(parameters: Parameters, context: Context) -> Result:
    """The 95 % bounds for all ticks of `SparseCount` and of the plain counter."""
    rows: list[Row] = []
    for delta in context.steps((0.0, parameters["delta"])):
        horizons = tuple(2**e for e in parameters["exponents"])
        bounds = sparse_against_plain(parameters["epsilon"], horizons, parameters["ones"], delta)
        rows += [{"delta": delta, **row} for row in bounds]
    wins = {delta: sum(row["wins"] for row in rows if row["delta"] == delta) for delta in (0.0, parameters["delta"])}
    findings = [
        f"With delta 0 the partition has the smaller bound in {wins[0.0]} of {len(rows) // 2} cases, with delta "
        f"{parameters['delta']:g} in {wins[parameters['delta']]}."
    ]

    def figure() -> Figure:
        drawn, axes = panels(1, 2, 11.0, 4.6)
        for delta, one in zip((0.0, parameters["delta"]), axes, strict=True):
            part = [row for row in rows if row["delta"] == delta]
            horizons = sorted({row["horizon"] for row in part})
            plain = [next(row["plain"] for row in part if row["horizon"] == T) for T in horizons]
            one.plot(horizons, plain, "k-", label="plain")
            for shade, ones in zip(("#4a6fe3", "#009e73", "#14647f"), parameters["ones"], strict=False):
                line = [(r["horizon"], r["sparse"]) for r in part if r["ones"] == ones]
                one.plot(*zip(*line, strict=True), "-o", markersize=3, color=shade, label=f"sparse, {ones:,} events")
            one.set_xscale("log", base=2)
            title = f"ε = {parameters['epsilon']:g}, δ = {delta:g}"
            finish(one, "ticks", "bound for all ticks, 95 %", title, bottom=0)
        return drawn

    verdict = "wins for rare events with delta 0; with Gaussian noise the plain counter is mostly better"
    paper = {"claim": "C(5 log T + Psi(n) sqrt(ln 6n)) on streams with n ones"}
    return Result({"sparse": rows}, findings, verdict, paper, figures={"sparse-against-plain": figure})


SMOOTHNESS = Item(
    "smoothness",
    "Error over time of pure and Gaussian mechanisms",
    "The error of the binary mechanism jumps from tick to tick; that of the factorization does not.",
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
