"""Local learning: the forms of the local model beside the baseline of the paper's comparison, and a logistic loss."""

from __future__ import annotations

import math

import numpy as np

from evercount._arrays import FloatArray
from evercount.local import HierarchyPlan, LocalPlan, LocalServer, Logistic, simulate, simulate_hierarchy
from evercount.plotting import panels
from evercount.reproduce.item import Context, Figure, Parameters, Result, Row, finish, item, plain_marks
from evercount.reproduce.simulate import secret_of

BUCKETS = 64
SHADES = ("#14647f", "#4a6fe3", "#d55e00", "#882255")
FORMS = ("hierarchical", "one-counter", "two-counter (the paper's)", "one point per client (baseline)")


def one_point_per_client(points: FloatArray, buckets: int, epsilon: float, rng: np.random.Generator) -> FloatArray:
    """F̂ at the ends of the buckets, by the baseline: randomised response about one random end per client."""
    # In the manner of Smith, Thakurta and Upadhyay (2017) without interaction: a client takes one end t of a bucket at
    # random and tells the slope of its loss there, ±1, by the randomiser of Duchi, Jordan and Wainwright (2013), which
    # keeps the sign with probability e^ε/(1 + e^ε). Pure ε-LDP. The server averages the answers about each end.
    end = rng.integers(1, buckets + 1, len(points))
    below = points <= end / buckets
    kept = rng.random(len(points)) < math.exp(epsilon) / (1 + math.exp(epsilon))
    answer = np.where(below == kept, 1.0, -1.0) / math.tanh(epsilon / 2)
    number = np.bincount(end, minlength=buckets + 1)[1:]
    total = np.bincount(end, answer, buckets + 1)[1:]
    return np.asarray((1 + total / np.maximum(number, 1)) / 2)


def nearest_rising(cdf: FloatArray) -> FloatArray:
    """The nearest rising function in [0, 1]: the same post-processing for every form."""
    from scipy.optimize import isotonic_regression

    return np.asarray(np.clip(isotonic_regression(cdf).x, 0.0, 1.0))


def estimated_cdf(form: str, points: FloatArray, epsilon: float, delta: float, label: str) -> FloatArray:
    """F̂ of one simulated collection, made monotone, at the ends of 64 buckets."""
    secret = secret_of(label)
    if form == FORMS[0]:
        return simulate_hierarchy(HierarchyPlan(epsilon, BUCKETS), points, secret).estimate().monotone
    if form == FORMS[3]:
        rng = np.random.default_rng(int(secret.hex()[:12], 16))
        return nearest_rising(one_point_per_client(points, BUCKETS, epsilon, rng))
    kind = "one-counter" if form == FORMS[1] else "two-counter"
    plan = LocalPlan(epsilon, delta, len(points), kind, BUCKETS)  # type: ignore[arg-type]
    server = LocalServer(epsilon, delta, len(points), plan.form, buckets=BUCKETS)
    for start in range(0, len(points), 10_000):
        server.add_entries(simulate(plan, points[start : start + 10_000], secret, start))
    return np.asarray((1 + server.estimate().monotone[1:]) / 2)


def logistic_data(n: int, rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """x uniform, and y = 1 with a probability that falls around 0.6: the best threshold lies near there."""
    x = rng.random(n)
    y = np.where(rng.random(n) < 1 / (1 + np.exp((x - 0.6) / 0.1)), 1.0, -1.0)
    return x, y


def best_threshold(x: FloatArray, y: FloatArray, scale: float) -> float:
    """θ*: where the slope of the empirical logistic risk changes its sign."""
    from scipy.optimize import brentq

    return float(brentq(lambda t: float(np.mean(-y * np.exp(-np.logaddexp(0.0, y * (t - x) / scale)))), 0.0, 1.0))


def logistic_error(n: int, epsilon: float, scale: float, label: str) -> float:
    """|θ̂ − θ*|/θ* of one simulated collection in the default form, with the randomised reduction of `Logistic`."""
    rng = np.random.default_rng(int(secret_of(label).hex()[:12], 16))
    x, y = logistic_data(n, rng)
    loss = Logistic(scale)
    drawn = zip(x.tolist(), y.astype(int).tolist(), rng.random(n).tolist(), strict=True)
    points = np.asarray([loss.sample((a, b), u) for a, b, u in drawn])
    estimate = simulate_hierarchy(HierarchyPlan(epsilon, BUCKETS), points, secret_of(label + " secret")).estimate()
    star = best_threshold(x, y, scale)
    return abs(estimate.median - star) / star


@item(
    "local-learning",
    "Local learning: forms and baseline",
    "Table 1 and section on learning in the local model: less error than the baseline, which is only stated there.",
    {"clients": 100_000, "delta": 1e-6, "epsilons": [0.5, 1.0, 2.0], "repetitions": 11},
    {"clients": 4_000, "epsilons": [1.0], "repetitions": 3},
)
def compare_forms(parameters: Parameters, context: Context) -> Result:
    n, delta, repetitions = int(parameters["clients"]), parameters["delta"], parameters["repetitions"]
    points = np.random.default_rng(context.seed).beta(2, 5, n)
    true = np.searchsorted(np.sort(points), np.arange(1, BUCKETS + 1) / BUCKETS, side="right") / n
    rows: list[Row] = []
    for epsilon, form in context.steps([(e, form) for e in parameters["epsilons"] for form in FORMS]):
        labels = [f"{form} {epsilon} {i} {context.seed}" for i in range(repetitions)]
        errors = [np.abs(estimated_cdf(form, points, epsilon, delta, label) - true).max() for label in labels]
        rows.append(
            {
                "epsilon": epsilon,
                "form": form,
                "delta": 0.0 if form in (FORMS[0], FORMS[3]) else delta,
                "clients": n,
                "largest error of F, median of runs": float(np.median(errors)),
                "largest error of F, largest of runs": float(np.max(errors)),
                "runs": repetitions,
            }
        )
    logistic_errors = [logistic_error(n, 1.0, 0.1, f"logistic {i} {context.seed}") for i in range(repetitions)]
    logistic: Row = {
        "loss": "logistic, scale 0.1",
        "epsilon": 1.0,
        "clients": n,
        "relative error of the minimiser, median of runs": float(np.median(logistic_errors)),
        "relative error of the minimiser, largest of runs": float(np.max(logistic_errors)),
        "runs": repetitions,
    }
    errors_of = {(row["epsilon"], row["form"]): row["largest error of F, median of runs"] for row in rows}
    ratios = {form: [errors_of[e, form] / errors_of[e, FORMS[0]] for e in parameters["epsilons"]] for form in FORMS[1:]}
    better = all(min(ratio) > 1 for ratio in ratios.values())
    findings = [
        f"{form}: {min(ratio):.2f} to {max(ratio):.2f} times the largest error of the hierarchical form."
        for form, ratio in ratios.items()
    ]
    findings.append(
        f"Logistic loss, {n} clients, epsilon 1: the minimiser is off by {logistic[LOGISTIC]:.1%} of θ* in the median."
    )
    return Result(
        {"forms": rows, "logistic": [logistic]},
        findings,
        f"the hierarchical form has {'the least error of all' if better else 'not always the least error'}",
        {"statement": "better than the baseline by a constant and a logarithm; no measured errors"},
        {"local-learning": lambda: _draw(rows)},
    )


LOGISTIC = "relative error of the minimiser, median of runs"


def _draw(rows: list[Row]) -> Figure:
    figure, axes = panels(1, 1, 7.5, 4.2)
    for number, form in enumerate(FORMS):
        mine = [row for row in rows if row["form"] == form]
        epsilon = [row["epsilon"] for row in mine]
        error = [row["largest error of F, median of runs"] for row in mine]
        axes[0].plot(epsilon, error, "osD^"[number] + "-", color=SHADES[number], label=form)
    axes[0].set_xscale("log")
    axes[0].set_yscale("log")
    plain_marks(axes[0].xaxis, sorted({row["epsilon"] for row in rows}))
    plain_marks(axes[0].yaxis, (0.01, 0.02, 0.05, 0.1, 0.2, 0.5))
    finish(axes[0], "epsilon of a client", "largest error of F (median of runs)", f"{rows[0]['clients']:,} clients")
    return figure
