"""A bound for all ticks of an endless bridge: ticks of an epoch share the noise of few totals.

In epoch e the noise of a tick is S + c·Z + rest: S the totals of earlier epochs, Z the epoch's own
total with a weight c between 0 and 1, and a rest that is independent of both. Given S and Z, a
union over the ticks adds up the tails of the rests, and no probability exceeds 1:

    P(some tick of the epoch beyond ±h) ≤ E[min(1, Σ_ticks P(|S + c·Z + rest| > h | S, Z))].

A union over ticks alone counts an epoch with a large S or Z once for each of its ticks: 1.49 times
the simulated quantile, where this is at most 1.3 times. The mean is taken over a grid of rectangles
of (S, Z) with Z ≥ 0; the other half is the mirror image. In a rectangle S + c·Z is largest at the
upper corner and smallest at the lower one, so tails at the corners bound those inside. Outside the
grid the chance counts as 1. Every number is rounded to the larger side.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from evercount._validate import FloatArray, IntArray
from evercount.bounds.tails import heaviest_tail, laplace_tail
from evercount.factorizations.laplace_choice import ENDS, EndlessBridge

STEPS = 256  # steps from 0 to h, of S and of Z
FAR = 24  # steps of Z beyond h, up to a value that it hardly ever exceeds
WEIGHTS = 64  # classes of the weight c
# classes of stds per factor e, in the epochs up to 4096 ticks and in later ones
STD_CLASSES = (100, 40)
# tails of sums are computed at these steps, in stds, up to this one
TABLE_STEP = 1 / 256
TABLE_END = 24.0
NUMBERS = np.asarray([*np.arange(1, 5, 0.25), *np.arange(5, 8, 0.5), 8, 10, 12, 16, 20, 40])
"""V/2m² of a rest, V its variance and m its largest scale, counts as the next of these below:
heavier tails.

4.25 stands for four numbers of scale m and one of variance m²/2: the most unequal scales that V and
m allow.
"""
_TICKS_AT_ONCE = 1 << 16
LEAST_VARIANCE = 1e-6  # at the end of an epoch there is no rest: it then counts as a small one
ROOM = 1 + 1e-9
"""Far more than the relative rounding errors of doubles."""
ABSOLUTE = 1e-11
"""Far more than the absolute ones, where tails are subtracted."""


@lru_cache(maxsize=256)
def endless_radius(integers: bool, beta: float, ticks: int) -> float:
    """h with P(|noise| > h at any of the first `ticks` ticks) ≤ beta, for continuous noise of rate
    1, to 0.2 %.

    **Guarantee.** An upper bound, by the argument of the module's docstring; tails of the rests as
    in `tails.py`. Tests:
    tests/bounds/test_endless_tails.py::test_the_chance_is_not_below_the_simulated_one,
    tests/bounds/test_laplace_tails.py::test_bounds_for_all_ticks_hold_and_are_close.
    """
    tree = EndlessBridge(integers)
    std = math.sqrt(2) * float(tree.row_norms(tree.suspects(ticks)).max())

    def excess(h: float) -> float:
        return math.log(max(endless_chance(tree, ticks, h), 1e-300) / beta)

    # the logarithm is close to a straight line: secants find the place, and the last look decides
    before, h = (part * std * math.sqrt(2 * math.log(ticks / beta) + 1) for part in (0.9, 0.88))
    e = excess(before)
    f = excess(h)
    for _ in range(20):
        if f != e:
            guess = h - f * (h - before) / (f - e)
        else:
            guess = h * (1.2 if f > 0 else 0.8)
        before = h
        e = f
        h = min(max(guess, 0.7 * h), 1.4 * h)
        if abs(h - before) < 5e-4 * h:
            break
        f = excess(h)
    h *= 1 + 5e-4
    while excess(h) > 0:
        h *= 1 + 5e-4
    return h


def endless_chance(tree: EndlessBridge, ticks: int, h: float) -> float:
    """An upper bound of P(|noise| > h at any of the first ticks), for rate 1."""
    return sum(
        _epoch_chance(tree.integers, epoch, min(ticks, int(ENDS[epoch + 1])) - int(ENDS[epoch]), h)
        for epoch in range(int(tree.epochs([ticks])[0]) + 1)
    )


def _epoch_chance(integers: bool, epoch: int, inside: int, h: float) -> float:
    """The bound for the first ticks of one epoch. S is a multiple of a step, from −h to h; so is
    c·Z, rounded."""
    step = h / STEPS
    low, high, sums = _tail_sums(integers, epoch, inside, step)
    scales = 1 / EndlessBridge(integers).total_parts[: epoch + 1]
    own = float(scales[-1])
    before = scales[:-1]
    far = max(2 * h, 16 * own)
    z = np.concatenate([np.linspace(0.0, h, STEPS + 1), np.geomspace(h, far, FAR + 1)[1:]])
    z_chance = np.exp(-z[:-1] / own) - np.exp(-z[1:] / own)  # of |Z|: with the mirror image
    s = np.arange(-STEPS, STEPS + 1) if epoch else np.zeros(1, np.int64)
    outside = math.exp(-far / own) + (
        2 * float(_cdf(before, np.asarray([-h]))[0]) if epoch else 0.0
    )
    if epoch:
        s_chance = np.diff(_cdf(before, np.asarray(s * step, np.float64)))
    else:
        s_chance = np.ones(1)
    # m = S + c·Z in steps: rows of `sums` begin at m = −3·STEPS, and beyond 3·STEPS nothing is
    # asked
    width = len(s_chance)
    total = np.zeros((len(z_chance), width))
    upper = int(s[-width])
    lower = int(s[0])
    for c_low, c_high, row in zip(low, high, sums, strict=True):
        up = np.minimum(np.ceil(c_high * z[1:] / step * ROOM), 2 * STEPS).astype(np.int64)
        down = np.minimum(np.floor(c_low * z[:-1] / step / ROOM), 2 * STEPS).astype(np.int64)
        windows = np.lib.stride_tricks.sliding_window_view(row, width)
        total += windows[upper + up + 3 * STEPS]
        # entry i: m = 3·STEPS − i
        backwards = np.lib.stride_tricks.sliding_window_view(row[::-1], width)
        total += backwards[lower + down + 3 * STEPS]
    return (outside + float(z_chance @ np.minimum(total, 1.0) @ s_chance)) * ROOM


def _tail_sums(
    integers: bool, epoch: int, inside: int, step: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """For classes of ticks: least and largest weight of the total, and Σ P(rest > h − m), m = −3h …
    3h by steps."""
    low, high, place, std, numbers, count = _classes(integers, epoch, inside)
    # h − m from 2h down to a step. Below that a tail counts as 1, and above as at 2h: there the
    # other side is likely
    at = np.arange(2 * STEPS, 0, -1) * step
    near = slice(2 * STEPS, 4 * STEPS)
    sums = np.zeros((len(low), 6 * STEPS + 1))
    sums[:, 4 * STEPS :] = np.bincount(place, count)[:, np.newaxis]
    for number in np.unique(numbers):
        table = _upper_tails(float(number))
        here = np.flatnonzero(numbers == number)
        index = np.multiply.outer(1 / (std[here] * (TABLE_STEP * ROOM)), at)
        tails = table[np.minimum(index, len(table) - 1, out=index).astype(np.intp)]
        tails *= count[here, np.newaxis]
        rows, first = np.unique(place[here], return_index=True)  # places are sorted
        sums[rows, near] += np.add.reduceat(tails, first, axis=0)
    sums[:, : 2 * STEPS] = sums[:, 2 * STEPS, np.newaxis]
    return low, high, sums


@lru_cache(maxsize=32)
def _classes(
    integers: bool, epoch: int, inside: int
) -> tuple[FloatArray, FloatArray, IntArray, FloatArray, IntArray, FloatArray]:
    """Classes of ticks by the weight of the total: (least, largest weight), and their parts."""
    # Parts: (class, std of the rest rounded up, equal Laplace numbers, number of ticks).
    bridge = EndlessBridge(integers).tree(epoch)
    classes = STD_CLASSES[epoch > 2]
    low = np.full(WEIGHTS, 2.0)
    high = np.zeros(WEIGHTS)
    keys = []
    counts = []
    least = math.ceil(math.log(LEAST_VARIANCE) * (classes / 2))
    for start in range(1, inside + 1, _TICKS_AT_ONCE):
        weight, variance, largest = bridge.apart_from_total(
            np.arange(start, min(start + _TICKS_AT_ONCE, inside + 1))
        )
        bins = np.minimum((weight * WEIGHTS).astype(np.int64), WEIGHTS - 1)
        np.minimum.at(low, bins, weight)
        np.maximum.at(high, bins, weight)
        none = variance <= LEAST_VARIANCE
        variance = np.where(none, LEAST_VARIANCE, variance)
        largest = np.where(none, LEAST_VARIANCE, largest)
        ratio = np.where(none, 1.0, variance / (2 * largest**2) * ROOM)
        numbers = np.maximum(np.searchsorted(NUMBERS, ratio, side="right") - 1, 0)
        size = np.ceil(np.log(variance) * (classes / 2)).astype(np.int64) - least
        key, count = np.unique((bins << 40) + (size << 8) + numbers, return_counts=True)
        keys.append(key)
        counts.append(count)
    key, where = np.unique(np.concatenate(keys), return_inverse=True)
    used, place = np.unique(key >> 40, return_inverse=True)
    number = np.bincount(where, np.concatenate(counts)).astype(np.float64)
    std = np.exp(((key >> 8 & (1 << 32) - 1) + least) / classes)
    return low[used], high[used], place, std, NUMBERS[key & 255], number


@lru_cache(maxsize=len(NUMBERS))
def _upper_tails(numbers: float) -> FloatArray:
    """A bound of P(S > x) at x = 0, TABLE_STEP, … stds, for sums S of Laplace numbers whose V/2m²
    is at least this.

    The larger of two tails: that of ⌊numbers⌋ equal numbers and a smaller one, and that of
    `heaviest_tail` for the next whole number (`laplace_tails.proof.md`). With ρ the scale of the
    smaller one, 1/((1+θ²)(1+ρ²θ²)) = (1/(1+θ²) − ρ²/(1+ρ²θ²))/(1 − ρ²): so the tail of n numbers
    and the smaller one follows from those of n numbers, and of n − 1 and the smaller one.
    """
    stds = np.arange(round(TABLE_END / TABLE_STEP) + 1) * TABLE_STEP
    count = math.floor(numbers)
    square = numbers % 1
    equal = heaviest_tail(math.ceil(numbers), stds) / 2 * ROOM
    equal[0] = 1.0  # closer to 0 than one step
    if not square:
        return np.asarray(equal)
    x = stds * math.sqrt(2 * numbers)
    tail = np.exp(-x / math.sqrt(square))
    for n in range(1, count + 1):
        tail = (laplace_tail(n, x) - square * tail) / (1 - square)
    # far out the subtraction leaves nothing but its rounding: there fewer numbers bound the tail
    return np.asarray(
        np.maximum(
            equal, np.minimum(tail / 2 * ROOM + ABSOLUTE, heaviest_tail(count, stds) / 2 * ROOM)
        )
    )


def _cdf(scales: FloatArray, x: FloatArray) -> FloatArray:
    """P(S ≤ x) for a sum of Laplace numbers of different scales: a mixture of them, by partial
    fractions."""
    squares = scales**2
    upper = np.zeros(len(x))
    for j, scale in enumerate(scales):
        share = np.prod(squares[j] / (squares[j] - np.delete(squares, j)))
        upper += share * np.exp(-np.abs(x) / scale) / 2
    return np.where(x > 0, 1 - upper, upper)
