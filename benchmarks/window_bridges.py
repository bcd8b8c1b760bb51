"""Would bridges serve sums of the last ticks (δ = 0) better than the digit trees of `Window`? Worst
stds at ε = 1.

    python benchmarks/window_bridges.py

Blocks of equal length, each with a noisy total, and a bridge inside: a window is the difference of
two boundaries, so it does not grow with the stream. Shares of the levels are fitted (Nelder-Mead),
for a few shapes of each width.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.optimize import minimize

from evercount.factorizations.laplace_bridge import UNITS, Bridge, Design
from evercount.factorizations.laplace_choice import window_tree

SHAPES: dict[int, tuple[tuple[int, ...], ...]] = {
    7: ((2,), (3,), (4,), (7,)),
    24: ((4,), (6,), (8,), (12,)),
    48: ((8,), (12,), (16,), (24,), (4, 6)),
    168: ((12,), (21,), (28,), (6, 7), (4, 14)),
    365: ((20,), (36,), (6, 10), (8, 12), (6, 20)),
    1000: ((25,), (10, 10), (10, 20), (8, 32), (6, 8, 8)),
    8760: ((20, 20), (20, 36), (12, 12, 12), (8, 16, 16)),
}
"""Branching inside a block, for each width."""
WINDOWS = 60
"""About how many windows of a period are looked at."""


def worst_std(
    width: int, shape: tuple[int, ...], coefficients: tuple[tuple[float, ...], ...]
) -> float:
    """The largest std of a window far from the start, over one block."""
    block = math.prod(shape)
    tops = -(-width // block) + 3
    bridge = Bridge(tops * block, Design((tops, *shape), coefficients))
    last = (tops - 1) * block
    ends = np.unique(
        np.append(np.arange(last - block + 1, last + 1, max(1, block // WINDOWS)), last)
    )
    later, earlier = bridge.coefficients(ends), bridge.coefficients(ends - width)
    worst = 0.0
    for i in range(len(ends)):
        nodes = np.concatenate([later[0][i], earlier[0][i]])
        weights = np.concatenate([later[1][i], -earlier[1][i]]) / float(1 << bridge.bits)
        shares = np.concatenate([later[2][i], earlier[2][i]]) / UNITS
        distinct, first, place = np.unique(nodes, return_index=True, return_inverse=True)
        total = np.zeros(len(distinct))
        np.add.at(total, place, weights)
        worst = max(worst, float((2 * (total / shares[first]) ** 2).sum()))
    return math.sqrt(worst)


def fitted_std(width: int, shape: tuple[int, ...]) -> float:
    """`worst_std` for the best shares: a number per level, and a square of the child's position
    below the top."""
    levels = len(shape)

    def coefficients(point: Any) -> tuple[tuple[float, ...], ...]:
        deep = ((point[2 * i - 1], 0.0, point[2 * i], 0.0, 0.0, 0.0, 0.0) for i in range(1, levels))
        return ((point[0], 0.0, 0.0, 0.0), *deep)

    even = [2 / (levels + 1 - level) - 1 for level in range(levels)]
    start = [u / (1 - abs(u)) for u in even]
    point = np.asarray([start[0], *(x for value in start[1:] for x in (value, 0.0))])
    options: Any = {"maxfev": 60, "xatol": 0.02, "fatol": 0.01}

    def cost(point: Any) -> float:
        return worst_std(width, shape, coefficients(point))

    found: Any = minimize(cost, point, method="Nelder-Mead", options=options)
    return float(found.fun)


def main() -> None:
    """Print a row for each width."""
    for width, shapes in SHAPES.items():
        tree = window_tree(width, None)
        digits = math.sqrt(2) * tree.levels * tree.worst_row()[1]
        best, shape = min((fitted_std(width, shape), shape) for shape in shapes)
        print(
            f"width {width}: {tree.name} {digits:.2f}, bridge {best:.2f} (blocks {shape}), ratio "
            f"{best / digits:.3f}"
        )


if __name__ == "__main__":
    main()
