"""The paper's reductions, run: an answer to the harder problem is also one to the easier problem, with the same error.

A reduction turns neighbouring inputs of the easier problem into neighbouring inputs of the harder one, and reads the
easier answer off the harder answer. So a lower bound for the easier problem is one for the harder problem.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from evercount import bounds
from evercount._arrays import FloatArray, IntArray
from evercount.engine.stream import Stream
from evercount.plotting import panels
from evercount.privacy import Budget
from evercount.queries import Count, MinCut, Query, Substrings
from evercount.reproduce.item import COLOURS, Context, Figure, Parameters, Result, Row, finish, item


@dataclass(frozen=True)
class Reduction:
    """An easier problem solved by a harder one."""

    easier: str
    harder: str
    query: Callable[[int], Query]
    stream: Callable[[IntArray], list[Any]]
    """Bits (or, for thresholds, numbers of values) of each tick → ticks of the harder problem, whose first output is
    their running count."""


def _clique_and_one(ticks: int) -> MinCut:
    """A public clique of ticks + 1 vertices beside one vertex without edges."""
    return MinCut(ticks + 2, "mixed", initial_edges=tuple(combinations(range(ticks + 1), 2)))


def _edges_of_one_vertex(bits: IntArray) -> list[Any]:
    """A one joins the lonely vertex to the next vertex of the clique: its edges become the smallest cut."""
    last = len(bits) + 1
    return [[(t, last, 1)] if bit else [] for t, bit in enumerate(bits.tolist())]


REDUCTIONS = (
    Reduction("thresholds of a set of values", "counting", lambda _: Count(), lambda bits: bits.tolist()),
    Reduction("counting", "substrings", lambda _: Substrings("ab", 2), lambda bits: np.where(bits, "a", "b").tolist()),
    Reduction("counting", "smallest cut", _clique_and_one, _edges_of_one_vertex),
)


def true_answers(reduction: Reduction, bits: IntArray) -> FloatArray:
    """The harder problem's answers without noise, read as running counts."""
    query = reduction.query(len(bits))
    rows, _ = query.encode_run(query.initial_state(), reduction.stream(bits))
    sums = np.cumsum(rows, axis=0).astype(np.float64) * query.grid
    return np.asarray(query.decode_run(1, sums)[:, 0])


def apart(reduction: Reduction, bits: IntArray, other: IntArray) -> int:
    """In how many updates the harder streams of two easier inputs differ."""
    pairs = zip(reduction.stream(bits), reduction.stream(other), strict=True)
    return sum(mine != theirs for mine, theirs in pairs)


@item(
    "reductions",
    "Reductions between problems, run",
    "Lower bounds: thresholds to counting, counting to substrings, counting to smallest cuts.",
    {"epsilon": 1.0, "delta": 1e-6, "ticks": 32, "streams": 50},
    {"ticks": 12, "streams": 10},
)
def reductions(parameters: Parameters, context: Context) -> Result:
    ticks, tries = int(parameters["ticks"]), parameters["streams"]
    budget = Budget(parameters["epsilon"], parameters["delta"])
    floor = budget.noise_multiplier() * float(bounds.nuclear_lower(ticks))
    rng = np.random.default_rng(context.seed)
    rows: list[Row] = []
    for reduction in context.steps(REDUCTIONS):
        exact, neighbours = 0, 0
        for _ in range(tries):
            bits = (rng.random(ticks) < 0.6).astype(np.int64)
            exact += bool(np.array_equal(true_answers(reduction, bits), np.cumsum(bits)))
            flipped = bits.copy()
            flipped[rng.integers(ticks)] ^= 1
            neighbours += apart(reduction, bits, flipped) == 1
        stream = Stream(reduction.query(ticks), budget, ticks)
        worst = float(stream.std(np.arange(1, ticks + 1)).max())
        rows.append(
            {
                "easier problem": reduction.easier,
                "harder problem": reduction.harder,
                "inputs": tries,
                "answers that are the running counts": exact,
                "neighbours that stay neighbours": neighbours,
                "our worst std for the harder problem": worst,
                "lower bound for the easier problem": floor,
                "ratio": worst / floor,
            }
        )
    all_hold = all(
        row["answers that are the running counts"] == row["neighbours that stay neighbours"] == tries for row in rows
    )
    findings = [
        f"All {len(rows)} reductions {'give' if all_hold else 'DO NOT GIVE'} the running counts on all {tries} random "
        f"inputs of {ticks} ticks, and turn neighbours into neighbours.",
        f"So no factorization mechanism for the harder problems has a worst std below {floor:.2f} here; ours have "
        + ", ".join(f"{row['our worst std for the harder problem']:.2f} ({row['harder problem']})" for row in rows)
        + ".",
    ]
    verdict = "the reductions hold as programs; the bounds are those of counting"
    paper = {"claim": "lower bounds for counting carry over to substrings and to smallest cuts"}
    return Result({"reductions": rows}, findings, verdict, paper, {"reductions": lambda: _draw(rows)})


def _draw(rows: Sequence[Row]) -> Figure:
    figure, axes = panels(1, 1, 8.0, 3.0)
    y = np.arange(len(rows))[::-1]
    ours = [row["our worst std for the harder problem"] for row in rows]
    axes[0].plot(ours, y, "o", color=COLOURS["balanced"], markersize=7, label="our mechanism, harder problem")
    axes[0].axvline(rows[0]["lower bound for the easier problem"], color="black", linestyle="--", label="lower bound")
    axes[0].set_yticks(y, [f"{row['easier problem']} → {row['harder problem']}" for row in rows])
    axes[0].set_ylim(-0.6, len(rows) - 0.4)
    axes[0].set_xlim(left=0)
    place = {"ncols": 2, "loc": "upper center", "bbox_to_anchor": (0.4, -0.25)}
    finish(axes[0], "worst std over all ticks", "", "a lower bound that travels along reductions", place)
    return figure
