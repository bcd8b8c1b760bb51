"""Fit the shares of bridges and print the table of `factorizations/bridge_table.json`.

    # all ranges: an hour or two on one core
    python benchmarks/fit_bridge.py
    # some: longest horizon, branching at the top, levels
    python benchmarks/fit_bridge.py 1024,4,3 65536,8,4
    # the epochs of the endless bridge: a quarter of an hour
    python benchmarks/fit_bridge.py endless

Minimises the p-norm of the variances over ticks, p = 10, 40, 150, by L-BFGS with numerical
gradients; shares and α are not rounded here. On long horizons 1200 blocks of a level, drawn once,
stand for all, and trees of 7 and more levels have two numbers per level from the third on (deep
levels hardly depend on the block, and are symmetric). Then the worst and the root mean square std
at ε = 1 of the rounded design are printed with those of the best digit tree, and how far the worst
std of the table's design is above (below: −) that of the fit. A rerun of all ranges gave designs
whose worst stds are within 0.5 % of the table's (0.9 % at 2^20; from 2^28 to 2^40 the table is 0.26
% below to 0.03 % above); the last digits of the numbers differ with the rounding of another
computer, so the table is frozen and not printed anew.

The epochs of the endless bridge are fitted one after the other: the p-norm of the variances over
those of the bridge told T = t, and of its last variance over a part of that (`END_PARTS`), so that
later epochs begin with little noise. A rerun stayed within 1.441 (epoch 1) to 1.268 (epoch 9) of
the bridge told t in every epoch.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import minimize

from evercount.factorizations.laplace_bridge import (
    LEAST,
    MOST,
    PLACES,
    TABLE,
    Bridge,
    Design,
    branching,
)
from evercount.factorizations.laplace_choice import ENDS, EndlessBridge, epoch_bridge
from evercount.factorizations.laplace_trees import DigitTree, best_base

FloatArray = npt.NDArray[np.float64]
RANGES = (
    "8,2,2 12,2,2 16,2,2 24,2,2 32,3,2 48,3,2 64,4,2 100,4,2 128,4,2 181,3,3 256,4,3 512,4,3 "
    "724,4,3 1024,4,3 1448,4,3 2048,5,3 2896,4,4 4096,4,4 5792,4,4 8192,4,4 11585,5,4 16384,5,4 "
    "23170,5,4 32768,6,4 65536,8,4 131072,5,5 262144,5,5 524288,5,5 1048576,5,5 4194304,5,6 "
    "16777216,5,7 67108864,5,7 268435456,5,7 1073741824,5,8 4294967296,5,8 17179869184,5,9 "
    "68719476736,5,9 274877906944,5,10 1099511627776,5,10"
)
STAGES = ((10, 60), (40, 100), (150, 150))
"""(p, iterations)."""
FULL = 1200
"""Blocks of a level that are looked at; of longer levels, so many at random."""
DEEP = 7
"""Trees of this many levels have few numbers for each deep level."""


FIRST = 40
"""In an epoch of the endless bridge, blocks at its start that are always looked at."""
END_PARTS = (0.55, 0.47, 0.43, 0.40, 0.40, 0.40, 0.40, 0.40, 0.40, 0.40)
"""The last variance of each epoch weighs as if it was larger by one over this."""


def variances(
    shape: tuple[int, ...], parameters: FloatArray, horizon: int, first: int = 0, full: int = FULL
) -> tuple[FloatArray, FloatArray]:
    """(ticks, variances) of the boundaries of blocks, without any rounding."""
    found, ticks, size = [], [], math.prod(shape)
    index: Any = np.zeros(1, np.int64)
    left: Any = np.ones(1)
    start: Any
    end: Any
    both: Any
    start, end, both = np.zeros((3, 1))
    blocks = 1
    for level, (k, c) in enumerate(zip(shape, [*split(parameters, len(shape)), None], strict=True)):
        part = np.ones((len(index), k))
        if c is not None:
            x = (2 * np.arange(k) + 1) / k - 1
            z = np.broadcast_to(c[0] + x * (c[1] + x * (c[2] + x * c[3])), part.shape)
            if level:
                y = (2 * (index * PLACES // blocks) + 1) / PLACES - 1
                z = z + (y * (c[4] + y * (c[5] + y * c[6])))[:, None]
            part = LEAST + (MOST - LEAST) * (0.5 + 0.5 * z / (1 + np.abs(z)))
        w = left[:, None] * part
        s = 2 / (w * w)
        sums = np.concatenate([np.zeros((len(s), 1)), np.cumsum(s, axis=1)], axis=1)
        ahead, behind = start[:, None] + sums, end[:, None] + (sums[:, -1:] - sums)
        c0 = both[:, None]
        alpha = np.ones_like(sums) if level == 0 else (behind - c0) / (ahead + behind - 2 * c0)
        if level:
            alpha[:, 0], alpha[:, -1] = 1, 0
        beta = 1 - alpha
        variance = alpha * alpha * ahead + beta * beta * behind + 2 * alpha * beta * c0
        a, b, p, q = alpha[:, :-1], alpha[:, 1:], beta[:, :-1], beta[:, 1:]
        cov = a * b * ahead[:, :-1] + p * q * behind[:, 1:] + a * q * c0 + p * b * (c0 - s)
        size //= k
        inner = index[:, None] * k + np.arange(k)
        inside = (inner + 1) * size <= horizon
        found.append(variance[:, 1:][inside])
        ticks.append(((inner + 1) * size)[inside])
        keep = inner * size < horizon
        if keep.sum() > full:
            all_of_them = np.flatnonzero(keep)
            some = np.random.default_rng(level).permutation(len(all_of_them))[:full]
            keep[:] = False
            keep.flat[all_of_them[some]] = True
            keep.flat[:first] = True
        index, left, start, end, both = (
            values[keep]
            for values in (inner, left[:, None] - w, variance[:, :-1], variance[:, 1:], cov)
        )
        blocks *= k
    return np.concatenate(ticks).astype(np.float64), np.concatenate(found)


def split(parameters: FloatArray, levels: int) -> list[FloatArray]:
    """Coefficients of each level but the last."""
    if levels >= DEEP:
        zero = np.zeros(1)
        deep = [parameters[11 + 2 * level : 13 + 2 * level] for level in range(levels - 3)]
        few = [np.concatenate([c[:1], zero, c[1:], zero, zero, zero, zero]) for c in deep]
        return [parameters[:4], parameters[4:11], *few]
    ends = [0, *(4 + 7 * level for level in range(levels - 1))]
    return [parameters[a:b] for a, b in pairwise(ends)]


def even(levels: int) -> FloatArray:
    """Where a search starts: equal shares for all levels."""
    parameters: list[float] = []
    for level in range(levels - 1):
        u = 2 / (levels - level) - 1
        parameters += [
            u / (1 - abs(u)),
            *[0.0] * (3 if level == 0 else 1 if level > 1 and levels >= DEEP else 6),
        ]
    return np.asarray(parameters)


def fit(horizon: int, shape: tuple[int, ...], parameters: FloatArray) -> FloatArray:
    """The shares of least p-norm."""

    def cost(point: FloatArray, power: int) -> float:
        v = variances(shape, point, horizon)[1]
        top = v.max()
        return float(
            np.log(top) + np.log(np.mean((v / top) ** power)) / power + 1e-5 * float(point @ point)
        )

    return minimum(cost, parameters)


def fit_epoch(epoch: int, before: float, parameters: FloatArray) -> FloatArray:
    """The shares of an epoch of the endless bridge; `before` is the variance of all totals before
    it."""
    shape, start = epoch_bridge(epoch, False).branching, int(ENDS[epoch])
    size = math.prod(shape)
    ticks, _ = variances(shape, parameters, size, FIRST, EPOCH_BLOCKS)
    told, last = (
        told_variance(start + ticks),
        float(told_variance(np.asarray([float(start + size)]))[0]),
    )
    weight = np.append(np.full(len(ticks), 1 / (len(ticks) + 1)), 0.1)

    def cost(point: FloatArray, power: int) -> float:
        v = variances(shape, point, size, FIRST, EPOCH_BLOCKS)[1]
        # the first one is the total
        ratio = (before + np.append(v, v[0])) / np.append(told, last * END_PARTS[epoch])
        top = ratio.max()
        return float(
            np.log(top)
            + np.log(weight @ (ratio / top) ** power) / power
            + 1e-5 * float(point @ point)
        )

    return minimum(cost, parameters)


def told_variance(ticks: FloatArray) -> FloatArray:
    """The worst variance of the bridge told T = t, between powers of 2^(1/4)."""
    if not TOLD:
        horizons = sorted({round(2 ** (power / 4)) for power in range(161)})
        TOLD.append(np.log(horizons))
        TOLD.append(
            np.log(np.maximum.accumulate([2 * Bridge(T).worst_row()[1] ** 2 for T in horizons]))
        )
    return np.asarray(np.exp(np.interp(np.log(ticks), TOLD[0], TOLD[1])))


TOLD: list[FloatArray] = []
EPOCH_BLOCKS = 800
"""As FULL, for epochs."""


def minimum(cost: Callable[[FloatArray, int], float], parameters: FloatArray) -> FloatArray:
    """The parameters of least cost, for growing p."""
    for power, iterations in STAGES:
        args = (power,)
        options: Any = {"maxiter": iterations, "maxfun": 10**6}
        found: Any = minimize(
            cost, parameters.ravel(), args=args, method="L-BFGS-B", options=options
        )
        parameters = found.x
    return parameters


def endless() -> None:
    """Print the table of the endless bridge."""
    before = 0.0
    last: dict[int, FloatArray] = {}
    for epoch in range(len(ENDS) - 1):
        levels = len(epoch_bridge(epoch, False).branching)
        parameters = fit_epoch(epoch, before, last.get(levels, even(levels)))
        if levels >= DEEP:
            last[levels + 1] = np.concatenate([parameters, parameters[-2:]])
        numbers = tuple(
            tuple(round(float(x), 4) for x in part) for part in split(parameters, levels)
        )
        ticks, v = variances(
            epoch_bridge(epoch, False).branching, parameters, int(ENDS[epoch + 1] - ENDS[epoch])
        )
        worst = math.sqrt(float(((before + v) / told_variance(ENDS[epoch] + ticks)).max()))
        before += float(v[0])
        tree = EndlessBridge()
        told = math.sqrt(2) * Bridge(int(ENDS[epoch + 1])).worst_row()[1]
        table = math.sqrt(2) * float(tree.row_norms(tree.suspects(int(ENDS[epoch + 1]))).max())
        print(f"    {numbers!r},")
        print(
            f"    # fit: at most {worst:.3f} of the bridge told t; table: {table:.2f} against "
            f"{told:.2f}",
            flush=True,
        )


def main() -> None:
    """Print the table."""
    if sys.argv[1:] == ["endless"]:
        endless()
        return
    last: dict[int, FloatArray] = {}
    for word in sys.argv[1:] or RANGES.split():
        horizon, top, levels = map(int, word.split(","))
        shape = branching(horizon, levels, top)
        last[levels] = fit(horizon, shape, last.get(levels, even(levels)))
        numbers = tuple(
            tuple(round(float(x), 4) for x in part) for part in split(last[levels], levels)
        )
        bridge = Bridge(horizon, Design(shape, numbers))
        worst = math.sqrt(2) * bridge.worst_row()[1]
        some = np.unique(np.linspace(1, horizon, 1 << 16).astype(np.int64))
        mean = math.sqrt(2 * float(np.mean(bridge.row_norms(some) ** 2)))
        tree = DigitTree(horizon, best_base(horizon))
        other = math.sqrt(2) * tree.levels * tree.worst_row()[1]
        print(f"    ({horizon}, {top}, {numbers!r}),")
        print(
            f"    # worst {worst:.3f}, rms {mean:.3f}; {worst / other:.3f} of the worst of "
            f"{tree.name}",
            end="",
        )
        table = math.sqrt(2) * Bridge(horizon).worst_row()[1] / worst - 1
        print(
            f"; the table's worst is {table:+.2%} of this"
            if horizon in (row[0] for row in TABLE)
            else "",
            flush=True,
        )


if __name__ == "__main__":
    main()
