"""What the paper proves, run: attacks on four mechanisms as it states them and on ours, and its
reductions.

An attack is the best possible test between two neighbouring streams: the likelihood ratio of all
releases together. If a mechanism is (ε, δ)-DP, then for every test P[accept | x] ≤ e^ε·P[accept |
x′] + δ. Each row runs the test on many simulated releases of both streams and reports P[accept | x]
− e^ε·P[accept | x′], which must not exceed δ.

A reduction turns neighbouring inputs of an easier problem into neighbouring inputs of a harder one,
and reads the easier answer off the harder answer, with the same error. So a lower bound for the
easier problem is one for the harder problem.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from evercount import bounds
from evercount._validate import FloatArray, IntArray
from evercount.engine.stream import Stream
from evercount.factorizations import Factorization, factorization
from evercount.noise.secret import insecure_generator
from evercount.plotting import panels
from evercount.privacy import Budget
from evercount.privacy.gaussian import delta_of
from evercount.queries import Count, Cuts, HighDegree, MinCut, Query, Substrings
from evercount.reproduce.item import (
    Context,
    Figure,
    Parameters,
    Result,
    Row,
    finish,
    item,
    plain_marks,
)
from evercount.reproduce.simulator import batch_seed, batches, one_batch

TRIALS_PER_BATCH = 512
OURS = "ours"  # in the column "what": a mechanism of this package, not a claim of the paper


@dataclass(frozen=True, eq=False)
class Attack:
    """A pair of neighbours and the attacker's statistic, as seen through a mechanism's noise."""

    # `draw(n, seed)` runs the mechanism's noise n times and gives weights·noise, the statistic of a
    # stream whose exact running sums are those of x′. Under x the statistic is larger by `shift` =
    # weights·(change of the running sums). The log-likelihood ratio is the statistic less shift/2,
    # so `shift` is also its variance.

    name: str
    claim: str
    shift: float
    draw: Callable[[int, int], FloatArray]

    @property
    def mu(self) -> float:
        """Distance of the two streams in standard deviations: the exact Gaussian-DP parameter of
        this pair."""
        return float(np.sqrt(self.shift))

    def run(self, epsilon: float, delta: float, repetitions: int, seed: int) -> Row:
        """Accept when the log-likelihood ratio exceeds ε. Both streams get the same noise: a
        smaller standard error."""
        wrong = right = 0
        for start, count in batches(repetitions, TRIALS_PER_BATCH):
            ratio = self.draw(count, batch_seed(seed, self.name, start)) - self.shift / 2
            wrong += int(np.count_nonzero(ratio > epsilon))
            right += int(np.count_nonzero(ratio + self.shift > epsilon))
        r0 = wrong / repetitions
        r1 = right / repetitions
        factor = float(np.exp(epsilon))
        # Noise that is accepted under x′ is accepted under x too: the covariance is r0·(1 − r1).
        variance = r1 * (1 - r1) + factor**2 * r0 * (1 - r0) - 2 * factor * r0 * (1 - r1)
        reached = r1 - factor * r0
        error = float(np.sqrt(variance / repetitions))
        return {
            "mechanism": self.name,
            "accepted under x": r1,
            "accepted under x′": r0,
            "delta reached": reached,
            "standard error": error,
            "delta, exact for this pair": delta_of(self.mu, epsilon),
            "attack in standard deviations": self.mu,
            "trials": repetitions,
            "what": self.claim,
            "delta promised": delta,
            "excess in standard errors": (reached - delta) / error,
            "broken": reached - delta > 4 * error,
        }


def linear_attack(
    name: str, claim: str, engine: Factorization, difference: IntArray, std: float
) -> Attack:
    """The best test against noise c·std·L·z. `difference` is the change of the increments, (ticks,
    cells)."""
    ticks, cells = difference.shape
    sigma = std * engine.column_norm
    left, right = engine.dense(ticks)
    weights = np.linalg.solve(left.T, right @ difference) / sigma**2
    flat = weights.ravel() * sigma

    def draw(count: int, seed: int) -> FloatArray:
        return np.asarray(
            flat @ one_batch(engine, cells * count, seed).reshape(ticks * cells, count)
        )

    return Attack(name, claim, float(np.sum(weights * np.cumsum(difference, axis=0))), draw)


def changed_cells(query: Query, one: Any, other: Any) -> IntArray:
    """The difference of the increments of two streams, by the query's own encoder, in the cells
    that differ."""
    first, second = (query.encode_run(query.initial_state(), stream)[0] for stream in (one, other))
    difference = first - second
    return difference[:, difference.any(axis=0)]


def fresh_noise(ticks: int, budget: Budget) -> list[Attack]:
    """A stream of zeros and one whose first bit is 1; the paper's proof draws new noise in every
    round."""
    multiplier = budget.noise_multiplier()
    std = multiplier * np.asarray(bounds.landau(np.arange(1, ticks + 1)))

    def draw(count: int, seed: int) -> FloatArray:
        # new noise L_t·z_t in every round
        released = insecure_generator(seed).standard_normal((count, ticks)) * std
        return np.asarray(released @ std**-2.0)

    bits = np.eye(ticks, 1, dtype=np.int64)  # one cell, and a 1 at the first tick
    ours = multiplier * float(np.sqrt(Count().squared_sensitivity("replace")))
    engines = [factorization(name, ticks) for name in ("square-root", "balanced")]
    return [
        Attack(
            "fresh noise per round",
            "the paper's proof of Theorem 2",
            float(np.sum(std**-2.0)),
            draw,
        ),
        *(
            linear_attack(f"one noise vector, {engine.name}", OURS, engine, bits, ours)
            for engine in engines
        ),
    ]


def substring_sensitivity(ticks: int, longest: int, budget: Budget) -> list[Attack]:
    """One letter of a text replaced. The paper calibrates to S = ℓ²; the true S is
    ℓ(ℓ+1)(ℓ+2)/3."""
    query = Substrings(["a", "b"], longest)
    one = ["b"] * ticks
    other = ["b"] * longest + ["a"] + ["b"] * (ticks - longest - 1)
    difference = changed_cells(query, one, other)
    engine = factorization("square-root", ticks)
    multiplier = budget.noise_multiplier()
    true_sensitivity = float(np.sqrt(query.squared_sensitivity("replace")))
    claim = "the paper's corollary on substrings"
    return [
        linear_attack("substrings, S = ℓ²", claim, engine, difference, multiplier * longest),
        linear_attack(
            "substrings, true S", OURS, engine, difference, multiplier * true_sensitivity
        ),
    ]


def cut_sensitivity(ticks: int, budget: Budget) -> list[Attack]:
    """The last weight of an edge replaced, in a graph without negative weights at any time. The
    paper has S = 1."""
    query = Cuts(4, "signed", swap="same edge")
    one, other = ([[(0, 1, 1.0)], [(0, 1, last)], *[[]] * (ticks - 2)] for last in (1.0, -1.0))
    difference = np.rint(changed_cells(query, one, other) * query.grid).astype(np.int64)
    engine = factorization("square-root", ticks)
    multiplier = budget.noise_multiplier()
    true_sensitivity = float(np.sqrt(query.squared_sensitivity("replace")))
    claim = "the paper's remark on cuts with weights in [−1, 1]"
    return [
        linear_attack("cuts, weights in [−1, 1], S = 1", claim, engine, difference, multiplier),
        linear_attack(
            "cuts, weights in [−1, 1], S = 4",
            OURS,
            engine,
            difference,
            multiplier * true_sensitivity,
        ),
    ]


def graph_sensitivity(ticks: int, name: str, budget: Budget) -> list[Attack]:
    """One edge absent. With it two nodes get degree 2 at once; without it later, at two
    neighbouring ticks."""
    query = HighDegree(ticks, tau=2)
    engine = factorization(name, ticks)
    early, late = worst_ticks(engine, ticks)
    # without the edge (0, 1) of tick `early`, nodes 0 and 1 get degree 2 at the last two ticks
    edges = {0: (0, 2), 1: (1, 3), early: (0, 1), late: (0, 4), late + 1: (1, 5)}
    stream = [[edges[tick]] if tick in edges else [] for tick in range(ticks)]
    without = [[] if t == early else tick for t, tick in enumerate(stream)]
    difference = changed_cells(query, stream, without)
    multiplier = budget.noise_multiplier()
    l2 = float(np.linalg.norm(difference))
    true_sensitivity = float(np.sqrt(query.squared_sensitivity("add-remove")))
    claim = "the paper's corollary on graph functions"
    return [
        linear_attack(
            f"nodes of degree ≥ 2, l2 = √6, {name}", claim, engine, difference, multiplier * l2
        ),
        linear_attack(
            f"nodes of degree ≥ 2, S = 8, {name}",
            OURS,
            engine,
            difference,
            multiplier * true_sensitivity,
        ),
    ]


def worst_ticks(engine: Factorization, ticks: int) -> tuple[int, int]:
    """The 0-based ticks where a change of +2, followed by −1 and −1 at two later ticks in a row,
    reveals most."""
    _, right = engine.dense(ticks)
    gram = right.T @ right
    own = np.diag(gram)
    both = own[:-1] + own[1:] + 2 * np.diag(gram, 1)  # of two ticks in a row
    size = 4 * own[2:64, np.newaxis] + both - 4 * (gram[2:64, :-1] + gram[2:64, 1:])
    early, late = divmod(int(np.triu(size, 3).argmax()), ticks - 1)
    return early + 2, late


@item(
    "privacy-failures",
    "Attacks on four of the paper's statements",
    "Theorem 2 (fresh noise per round), the corollaries on substrings (S = ℓ²) and on graph "
    "functions (l2-sensitivity), and the remark on cuts with weights in [−1, 1] (S = 1).",
    {
        "epsilon": 0.5,
        "delta": 0.05,
        "ticks": 1024,
        "text": 64,
        "repetitions": 100000,
        "graphs": [["square-root", 1024], ["balanced", 256]],
        "graph repetitions": 400000,
    },
    {
        "ticks": 256,
        "text": 16,
        "repetitions": 10000,
        "graphs": [["balanced", 256]],
        "graph repetitions": 40000,
    },
)
def failures(parameters: Parameters, context: Context) -> Result:
    """Run all attacks at one (ε, δ). δ is large, so that simulation can count how far it is
    exceeded."""
    epsilon = parameters["epsilon"]
    delta = parameters["delta"]
    budget = Budget(epsilon, delta)
    few = [
        *fresh_noise(parameters["ticks"], budget),
        *substring_sensitivity(parameters["text"], 4, budget),
        *cut_sensitivity(parameters["text"], budget),
    ]
    graphs = [
        attack
        for name, ticks in parameters["graphs"]
        for attack in graph_sensitivity(ticks, name, budget)
    ]
    jobs = [(attack, parameters["repetitions"]) for attack in few]
    jobs += [(attack, parameters["graph repetitions"]) for attack in graphs]
    rows = [
        attack.run(epsilon, delta, trials, context.seed) for attack, trials in context.steps(jobs)
    ]
    tight = Budget(0.5, 1e-10).mu / budget.mu
    mu = "attack in standard deviations"
    tight_delta = "delta at ε = 0.5, tight calibration"
    small_delta = [
        {
            "mechanism": row["mechanism"],
            "claimed": "(0.5, 1e-10)",
            tight_delta: delta_of(row[mu] * tight, 0.5),
        }
        for row in rows
    ]
    return Result(
        {"attacks": rows, "the same pairs at (0.5, 1e-10)": small_delta},
        "the paper's four statements are not private as they stand; ours withstand the same "
        "attacks",
        {
            "claim": (
                "Theorem 2, its corollaries and the remark on cuts: (ε, δ)-differentially private"
            )
        },
        {"attacks": lambda: _draw(rows, delta)},
    )


def _draw(rows: list[Row], delta: float) -> Figure:
    """The δ that each attack reaches: squares for the paper's mechanisms, dots for ours."""
    figure, axes = panels(1, 1, 9.0, 3.8)
    y = np.arange(len(rows))[::-1]
    for place, row in zip(y, rows, strict=True):  # a log axis has no zero: points, not bars
        colour, marker = ("#14647f", "o") if row["what"] == OURS else ("#d55e00", "s")
        reached = max(row["delta reached"], 0.0)
        error = 2 * row["standard error"]
        low = max(reached - error, delta / 50)
        axes[0].plot(
            [low, reached + error],
            [place, place],
            color=colour,
            linewidth=2.5,
            solid_capstyle="butt",
        )
        axes[0].plot([max(reached, delta / 50)], [place], marker, color=colour, markersize=7)
    axes[0].set_xscale("log")
    plain_marks(axes[0].xaxis, (0.03, 0.05, 0.1, 0.2, 0.5, 1))
    axes[0].set_xlim(
        left=min(max(row["delta reached"] - 2 * row["standard error"], delta / 50) for row in rows)
        / 1.5
    )
    axes[0].axvline(delta, color="black", linestyle="--", linewidth=1)
    axes[0].annotate(f" promised δ = {delta:g}", (delta, -0.62), fontsize=8)
    axes[0].set_ylim(-0.8, len(rows) - 0.4)
    axes[0].set_yticks(y, [row["mechanism"] for row in rows])
    title = "squares: the paper's, dots: ours"
    finish(axes[0], "δ reached by the attack, ± 2 standard errors", "", title, legend=False)
    return figure


@dataclass(frozen=True)
class Reduction:
    """An easier problem solved by a harder one."""

    easier: str
    harder: str
    query: Callable[[int], Query]
    stream: Callable[[IntArray], list[Any]]
    """Bits (or, for thresholds, numbers of values) of each tick → ticks of the harder problem,
    whose first output is their running count."""


def _clique_and_one(ticks: int) -> MinCut:
    """A public clique of ticks + 1 vertices next to one vertex without edges."""
    return MinCut(ticks + 2, "mixed", initial_edges=tuple(combinations(range(ticks + 1), 2)))


def _edges_of_one_vertex(bits: IntArray) -> list[Any]:
    """A one joins the lonely vertex to the next vertex of the clique: its edges become the smallest
    cut."""
    last = len(bits) + 1
    return [[(t, last, 1)] if bit else [] for t, bit in enumerate(bits.tolist())]


REDUCTIONS = (
    Reduction(
        "thresholds of a set of values", "counting", lambda _: Count(), lambda bits: bits.tolist()
    ),
    Reduction(
        "counting",
        "substrings",
        lambda _: Substrings("ab", 2),
        lambda bits: np.where(bits, "a", "b").tolist(),
    ),
    Reduction("counting", "smallest cut", _clique_and_one, _edges_of_one_vertex),
)


def true_answers(reduction: Reduction, bits: IntArray) -> FloatArray:
    """The harder problem's answers without noise, read as running counts."""
    query = reduction.query(len(bits))
    rows, _ = query.encode_run(query.initial_state(), reduction.stream(bits))
    sums = np.cumsum(rows, axis=0).astype(np.float64) * query.grid
    return np.asarray(query.decode_run(1, sums)[:, 0])


@item(
    "reductions",
    "Reductions between problems, run",
    "Lower bounds: thresholds to counting, counting to substrings, counting to smallest cuts.",
    {"epsilon": 1.0, "delta": 1e-6, "ticks": 32, "streams": 50},
    {"ticks": 12, "streams": 10},
)
def reductions(parameters: Parameters, context: Context) -> Result:
    ticks = int(parameters["ticks"])
    tries = parameters["streams"]
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
            pairs = zip(reduction.stream(bits), reduction.stream(flipped), strict=True)
            neighbours += sum(one != other for one, other in pairs) == 1
        query = reduction.query(ticks)
        noise_name = None
        if query.squared_value_sensitivity(budget.adjacency) is None:
            noise_name = "balanced"
        stream = Stream(query, budget, ticks, noise_name)  # the bound is for Gaussian noise
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
        row["answers that are the running counts"]
        == row["neighbours that stay neighbours"]
        == tries
        for row in rows
    )
    verdict = (
        f"the reductions {'hold' if all_hold else 'DO NOT HOLD'} as programs; the bounds are those "
        "of counting"
    )
    paper = {"claim": "lower bounds for counting carry over to substrings and to smallest cuts"}
    return Result({"reductions": rows}, verdict, paper)
