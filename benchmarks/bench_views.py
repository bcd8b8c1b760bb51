"""Errors of what people read: worst std of each view at ε = 1, δ = 1e-6, of `blend` and of the
others.

    python benchmarks/bench_views.py

A bar is what a figure must not exceed; the script ends with 1 where one does. `q` is on how many
ticks a person counts, once on each.
"""

from __future__ import annotations

import sys
import time

from evercount.factorizations import Balanced
from evercount.factorizations.base import Factorization
from evercount.factorizations.blend import Blend
from evercount.factorizations.fit_blend import View, fit_blend
from evercount.factorizations.participation import participation
from evercount.factorizations.view_norms import worst_view
from evercount.privacy import Budget

CASES: tuple[tuple[int, int, tuple[View, ...], tuple[float, ...]], ...] = (
    (365, 1, (1, 7, "running"), (5.45, 9.75, 14.7)),
    (365, 1, (7,), (8.2,)),
    (8760, 1, (1, 24, "running"), (5.7, 13.8, 22.0)),
    (365, 30, (1,), (23.6,)),
    (365, 30, (1, 7, "running"), (27.5, 72.0, 295.0)),
    (365, 365, (1,), (81.0,)),
    (365, 7, (1, 7, "running"), (13.8, 35.0, 87.0)),
    (10**6, 1, (1, 7, "running"), ()),
    (10**6, 30, (1, 7, 1440, "running"), ()),
)


def stds(engine: Factorization, views: tuple[View, ...], q: int) -> list[float]:
    """The worst std of each view."""
    sigma = Budget(1.0, 1e-6).noise_multiplier() * participation(engine, q) ** 0.5
    return [
        sigma * worst_view(engine, view if isinstance(view, int) else None)[1] for view in views
    ]


def main() -> int:
    """Print the table; 1 where a bar is missed."""
    missed = 0
    print(f"{'ticks':>8} {'q':>4}  {'views':22} {'blend':>28} {'bar':>20} {'balanced':>28}  fit")
    for ticks, q, views, bars in CASES:
        start = time.process_time()
        filter_ = fit_blend(views, ticks, q)
        seconds = time.process_time() - start
        found = stds(Blend(ticks, filter_), views, q)
        missed += any(value > bar for value, bar in zip(found, bars, strict=False))
        columns = [
            " / ".join(f"{value:.2f}" for value in values)
            for values in (found, bars, stds(Balanced(ticks), views, q))
        ]
        names = ", ".join(map(str, views))
        print(
            f"{ticks:>8} {q:>4}  {names:22} {columns[0]:>28} {columns[1]:>20} {columns[2]:>28}  "
            f"{seconds:.2f} s",
            flush=True,
        )
    print("every bar is met" if not missed else f"{missed} bars are missed")
    return min(missed, 1)


if __name__ == "__main__":
    sys.exit(main())
