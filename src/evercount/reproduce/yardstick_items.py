"""How far every default is from the best that any factorization can do, for its views and unit."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from evercount.planning.dense_optimum import distances
from evercount.privacy import Budget
from evercount.reproduce.item import Context, Parameters, Result, Row, item

SPANS = ("per-tick", "last-7", "running")
VIEWS = (*((span,) for span in SPANS), SPANS[:2], SPANS[::2], SPANS)
UNITS: dict[str, dict[str, Any]] = {
    "event": {},
    "person, 7 ticks": {"unit": "user", "max_per_tick": 1, "max_ticks": 7},
    "person, 30 ticks": {"unit": "user", "max_per_tick": 1, "max_ticks": 30},
    "person and week": {"unit": "user", "max_per_tick": 1, "period": 7},
}
GOAL = 0.05


def _listed(stds: Iterable[float]) -> str:
    return " / ".join(f"{std:.2f}" for std in stds)


@item(
    "yardstick", "Defaults beside the dense optimum",
    "Not in the paper: the least worst std that any factorization has for the same views and unit, with a certificate.",
    {"horizon": 365, "units": list(UNITS), "registered": []}, {"horizon": 24, "units": ["event"]},
)  # fmt: skip
def yardstick(parameters: Parameters, context: Context) -> Result:
    rows: list[Row] = []
    cases = [(unit, views) for unit in parameters["units"] for views in VIEWS]
    T = parameters["horizon"]
    for unit, views in context.steps(cases):
        found, best, one = distances(Budget(1.0, 1e-6, **UNITS[unit]), T, views, own=parameters["registered"])
        gaussian = next(each for each in found if each.delta and each.name not in parameters["registered"])
        chosen = next(each for each in found if each.chosen)
        own = [each for each in found if each.name in parameters["registered"]]
        rows.append({
            "unit": unit, "views": ", ".join(views), "Gaussian": gaussian.name, "worst std": _listed(gaussian.stds),
            "least alone": _listed(one * least for least in best.alone),
            "above the least, %": round(100 * gaussian.above, 1), "best matrices found, %": round(100 * best.gap, 1),
            "default": f"{chosen.name}, delta={chosen.delta:g}", "its worst std": _listed(chosen.stds),
            "default above the least, %": round(100 * chosen.above, 1),
            **{f"{each.name} above the least, %": round(100 * each.above, 1) for each in own},
        })  # fmt: skip
    findings = []
    for kind in ("event", "person"):
        if some := [row for row in rows if row["unit"].startswith(kind)]:
            within = sum(row["above the least, %"] <= 100 * GOAL for row in some)
            worst = max(some, key=lambda row: row["above the least, %"])
            findings.append(
                f"Of {kind}s: {within} of {len(some)} cases are within {GOAL:.0%} of the certified least; the farthest "
                f"is {worst['above the least, %']} % above it ({worst['unit']}: {worst['views']})."
            )
    return Result(
        {"distances": rows}, findings, "ours: how far the Gaussian defaults are from what no factorization can beat"
    )
