"""Blocks and shares of a terrace for the views that a stream publishes.

The largest std of a view, each in units of the least that the view can have alone, is made small.
Lengths of blocks are tried from a short list, and the shares of each are found by a search that
needs no derivative. All numbers are public and are stored with the stream: privacy does not depend
on them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from copy import copy
from functools import lru_cache

import numpy as np

from evercount._validate import FloatArray, IntArray
from evercount.errors import ParameterError
from evercount.factorizations.interruption import check_wanted
from evercount.factorizations.laplace_bridge import Bridge
from evercount.factorizations.laplace_choice import EndlessBridge
from evercount.factorizations.laplace_trees import node_variance
from evercount.factorizations.terrace import (
    LONGEST_BLOCK,
    SHARES,
    Terrace,
    interval_parts,
    least_squares,
)

ENDLESS_TICKS = 1 << 20
"""Ticks that a stream without a horizon is fitted to."""
NUMBERS_AT_A_TICK = 25 * 10**6
"""Numbers that the first tick of a block may draw, in all cells: less than a second."""
SOME_TICKS = 96  # positions in a block at which an error is looked at while shares are searched
REFINED = 3  # sets of blocks whose shares are searched again, with more care
RATIOS = (3, 4, 6, 8, 12, 16, 24)
TIE = 1.005
"""Within this factor of the smallest ratio, fewer levels are taken: their draws are fewer."""


def longest_block(horizon: int | None, cells: int) -> int:
    """The longest block whose first tick draws at most NUMBERS_AT_A_TICK numbers."""
    within = LONGEST_BLOCK if horizon is None else min(LONGEST_BLOCK, horizon)
    return max(1, min(within, NUMBERS_AT_A_TICK // max(cells, 1)))


@lru_cache(maxsize=64)
def fit_terrace(
    horizon: int | None, widths: tuple[int | None, ...], rate: float, cells: int = 1
) -> Terrace:
    """The terrace with the smallest largest ratio of a view's std to the least that the view can
    have alone.

    Args:
        horizon: The number of ticks, or None.
        widths: The ticks that each view adds up; None for all so far.
        rate: The rate, per grid unit, of noise that has all of ε.
        cells: The number of cells, which bounds the length of a block.

    Raises:
        ParameterError: There is no room for a block: few ticks, or too many cells.
    """
    ticks = horizon or ENDLESS_TICKS
    if len(widths) == 1:
        least: tuple[float, ...] = (1.0,)
    else:
        least = tuple(least_std(horizon, width, rate, cells) for width in widths)
    longest = longest_block(horizon, cells)
    sets = list(_sets_of_blocks(ticks, longest, widths))
    if not sets:
        raise ParameterError(
            "a terrace needs at least four ticks, and few enough cells for one block"
        )
    fitted = []
    for levels in sorted({len(blocks) for blocks in sets}):
        check_wanted()
        search = _Search(
            [blocks for blocks in sets if len(blocks) == levels], ticks, widths, least, rate
        )
        scores, screened = search.best_shares(rounds=2)
        chosen = np.argsort(scores, kind="stable")[:REFINED]
        refined = search.only(chosen)
        _, best_shares = refined.best_shares(rounds=7, start=screened[chosen])
        for blocks, shares in zip(refined.blocks, best_shares, strict=True):
            terrace = Terrace(horizon, least_squares(blocks, whole_shares(shares), rate), rate)
            stds = [terrace.worst_std(width, ticks) for width in widths]
            fitted.append((max(std / one for std, one in zip(stds, least, strict=True)), terrace))
    best = min(score for score, _ in fitted)
    good = [one for one in fitted if one[0] <= TIE * best]
    return min(good, key=lambda one: (one[1].levels, one[0]))[1]


def least_std(horizon: int | None, width: int | None, rate: float, cells: int) -> float:
    """The least worst std, in grid units, that one view alone has with Laplace noise."""
    if width is not None:
        fresh = math.sqrt(width * float(node_variance(np.asarray(rate))))
        if width == 1:
            return fresh
        return min(fresh, _alone(horizon, width, rate, cells))
    if horizon is None:
        endless = EndlessBridge().for_rate(rate)
        ticks = np.asarray(endless.suspects(ENDLESS_TICKS))
        return math.sqrt(float(endless.laplace_errors(ticks, rate)[0].max()))
    bridge = Bridge(horizon).for_rate(rate)
    variance = bridge.laplace_errors(bridge.stated_suspects(horizon), rate)[0]
    return min(math.sqrt(float(variance.max())), _alone(horizon, width, rate, cells))


def _alone(horizon: int | None, width: int | None, rate: float, cells: int) -> float:
    """The worst std of a terrace that serves one view."""
    try:
        return fit_terrace(horizon, (width,), rate, cells).worst_std(
            width, horizon or ENDLESS_TICKS
        )
    except ParameterError:
        return math.inf


def _sets_of_blocks(
    ticks: int, longest: int, widths: Sequence[int | None]
) -> Iterator[tuple[int, ...]]:
    """Lengths of blocks to try: one level, two, and geometric ones of three."""
    largest = min(longest, ticks)
    ends = {round(ticks / part) for part in (2, 3, 4, 5, 6, 8)}
    powers = {round(largest / 2 ** (step / 2)) for step in range(28)}
    spans = {width for width in widths if width}
    singles = sorted(size for size in {*ends, *powers, *spans} if 4 <= size <= largest)
    for size in singles:
        yield (size,)
    if ticks < 64:
        return
    shorts = sorted({*(round(2 ** (step / 2)) for step in range(5, 20)), *spans})
    shorts = [short for short in shorts if short >= 4]
    for short in shorts:
        for ratio in RATIOS:
            if short * ratio <= largest and ticks >= 512:
                yield (short, short * ratio)
    for short in shorts[::2]:
        for ratio in (6, 8, 12, 16):
            if ticks >= 4096 and short * ratio**2 <= largest:
                yield (short, short * ratio, short * ratio**2)


class _Search:
    """The shares of many sets of blocks, all of one number of levels: each is searched as if it
    were alone."""

    def __init__(
        self,
        blocks: list[tuple[int, ...]],
        ticks: int,
        widths: tuple[int | None, ...],
        least: tuple[float, ...],
        rate: float,
    ) -> None:
        self.blocks = blocks
        self.rate = rate
        self.least = least
        lengths = np.asarray([(1, *one) for one in blocks])
        self._lengths = lengths.astype(np.float64)
        self._parts = []
        for width in widths:
            earlier, later = _worst_spans(width, ticks, lengths[:, -1])
            self._parts.append(interval_parts(lengths.T[:, :, np.newaxis], earlier, later))

    def only(self, chosen: IntArray) -> _Search:
        """The search of some of the sets."""
        some = copy(self)
        some.blocks = [self.blocks[number] for number in chosen.tolist()]
        some._lengths = self._lengths[chosen]
        some._parts = [parts[chosen] for parts in self._parts]
        return some

    def scores(self, chosen: IntArray, shares: FloatArray) -> FloatArray:
        """The largest ratio, without rounding, of each of these sets with these shares."""
        variances = node_variance(shares * self.rate)
        constants = (1 / np.cumsum(self._lengths[chosen] / variances, axis=1))[:, :, np.newaxis]
        ratios = [
            np.sqrt((parts[chosen] @ constants).max(axis=(1, 2))) / one
            for parts, one in zip(self._parts, self.least, strict=True)
        ]
        return np.asarray(np.max(ratios, axis=0))

    def best_shares(
        self, rounds: int, start: FloatArray | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """(scores, shares) of a search that halves its steps each round."""
        count = self._lengths.shape[1]
        every = np.arange(len(self.blocks))
        if start is None:
            start = np.full((len(every), count), 0.25 / (count - 1))
            start[:, 0] = 0.75
        shares = start.copy()
        scores = self.scores(every, shares)
        size = 0.5 if rounds < 4 else 0.2
        for _ in range(rounds):
            moving = every
            while len(moving):
                moved = np.zeros(len(every), bool)
                for level in range(count):
                    for factor in (1 + size, 1 / (1 + size)):
                        tried = shares[moving]
                        tried[:, level] *= factor
                        tried /= tried.sum(axis=1, keepdims=True)
                        allowed = tried.min(axis=1) * SHARES >= 1
                        chosen = moving[allowed]
                        new = self.scores(chosen, tried[allowed])
                        better = new < scores[chosen] * (1 - 1e-6)
                        shares[chosen[better]] = tried[allowed][better]
                        scores[chosen[better]] = new[better]
                        moved[chosen[better]] = True
                moving = np.flatnonzero(moved)
            size /= 2
        return scores, shares


def _worst_spans(width: int | None, ticks: int, blocks: IntArray) -> tuple[IntArray, IntArray]:
    """Some spans of a view, the worst one nearly among them, for each longest block: (blocks,
    spans)."""
    if width is None or width >= ticks:
        first = np.maximum(1, ticks - 2 * blocks)
        later = np.linspace(first, ticks, 2 * SOME_TICKS, axis=1).astype(np.int64)
        return np.zeros_like(later), later
    last = np.minimum(ticks, width + blocks)
    later = np.linspace(np.minimum(width, last), last, SOME_TICKS, axis=1).astype(np.int64)
    return np.maximum(later - width, 0), later


def whole_shares(shares: FloatArray) -> tuple[int, ...]:
    """Shares in ε/SHARES that add up to all of it; each is at least one."""
    below = np.maximum(np.floor(shares / shares.sum() * SHARES).astype(int), 1)
    below[0] += SHARES - below.sum()
    return tuple(below.tolist())
