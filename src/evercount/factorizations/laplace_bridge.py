"""The bridge: tree noise for pure privacy that reaches each tick from both sides of its block.

A tree over the ticks 1 … N, N ≥ T, with branching k_1 … k_H from the top. Every node has a share of
ε, and the shares on each path from the top to a leaf add up to all of it. Between two boundaries of
a block with known noise e_a (start) and e_b (end), and children with noise ζ_1 … ζ_k, the noise at
inner boundary i is

    E_i = α_i·(e_a + ζ_1 + … + ζ_i) + (1 − α_i)·(e_b − ζ_{i+1} − … − ζ_k)

Both brackets are unbiased, so every α_i is allowed; it is the one of least variance, rounded to a
multiple of 1/64 (of 1/16 in trees of 6 and more levels). All numbers are therefore whole multiples
of 2^(−6·(H−1)) (2^(−4·(H−1))), and are computed as integers. At the top there is no e_b: α = 1.

Shares vary with the position of a node: few numbers for each range of horizons, printed by
`benchmarks/fit_bridge.py`, are in `bridge_table.json`. The table is frozen: `bridge` means these
numbers, and streams in the world depend on them. A better table gets a new name. Shares and
coefficients use additions, multiplications and divisions of doubles only, in a fixed order: they
are the same on every computer.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from evercount._validate import FloatArray, IntArray
from evercount.errors import ParameterError
from evercount.factorizations.laplace_trees import (
    PureFactorization,
    Square,
    TreeRows,
    check_pure_horizon,
    node_variance,
)

UNITS = 1 << 24  # shares are whole multiples of ε/UNITS
FINE = 6
"""α is a multiple of 2^−FINE, so that 64 bits hold the noise."""
COARSE = 4
"""In deep trees α is a multiple of 2^−COARSE, for the same reason."""
DEEP = 6
"""Levels of a deep tree, at least."""
PLACES = 64  # a node's share depends on the position of its block in 64 steps
# a node takes at least and at most this part of what its ancestors left
LEAST = 1 / 64
MOST = 63 / 64
ALL_TICKS = 1 << 21  # the worst tick is looked for among all ticks of horizons up to this
# noise whose std at the first tick is below this many grid units has whole coefficients
NARROW = 0.75
# blocks of a level that the search for the worst tick of longer horizons goes on with
_KEPT_BLOCKS = 2048
_TICKS_AT_ONCE = 1 << 15  # ticks whose errors are computed at a time
_PAIRS_AT_ONCE = 1 << 13  # pairs of ticks whose nodes are looked at together


PLAIN = 7  # up to this horizon one level is best: every tick has all of ε


@dataclass(frozen=True)
class Design:
    """A tree: its branching from the top, and for each level but the last the coefficients of its
    shares."""

    # A child at x in (−1, 1) of a block at y in (−1, 1) takes a part of what is left that grows
    # with the polynomial c_0 + c_1·x + c_2·x² + c_3·x³ + c_4·y + c_5·y² + c_6·y³ (the first four at
    # the top, where there is one block).

    branching: tuple[int, ...]
    coefficients: tuple[tuple[float, ...], ...]


def design_for(horizon: int) -> Design:
    """The design of the shortest range of the table that holds the horizon."""
    if horizon <= PLAIN:
        return Design((horizon,), ())
    for longest, top, coefficients in TABLE:
        if horizon <= longest:
            return Design(branching(horizon, len(coefficients) + 1, top), coefficients)
    raise ValueError(horizon)  # LARGEST_TICKS is in the table


def branching(horizon: int, levels: int, top: int) -> tuple[int, ...]:
    """`top` blocks, and below them levels whose branching is as equal as it can be, with at least
    `horizon` leaves."""
    shape = [top]
    rest = -(-horizon // top)
    for below in range(levels - 1, 0, -1):
        k = 1
        while k**below < rest:
            k += 1
        shape.append(max(k, 2))
        rest = -(-rest // max(k, 2))
    return tuple(shape)


Coefficients = tuple[tuple[float, ...], ...]


_NUMBERS = json.loads(Path(__file__).with_name("bridge_table.json").read_text(encoding="utf-8"))

TABLE: tuple[tuple[int, int, Coefficients], ...] = tuple(
    (longest, top, tuple(map(tuple, levels))) for longest, top, levels in _NUMBERS["horizons"]
)
"""(longest horizon, branching at the top, coefficients of each level but the last)."""

ENDLESS: tuple[Coefficients, ...] = tuple(
    tuple(map(tuple, levels)) for levels in _NUMBERS["endless"]
)
"""Coefficients of the epochs of the endless bridge, as in `Design`; printed by
`fit_bridge.py endless`. Frozen too."""


@dataclass(frozen=True, eq=False)
class Blocks:
    """Blocks of one level: number, share of ε that is left (in UNITS), and the moments of the noise
    at both ends."""

    index: IntArray
    left: IntArray
    start: FloatArray
    end: FloatArray
    both: FloatArray

    def at(self, places: IntArray) -> Blocks:
        """The blocks at these places."""
        return Blocks(
            index=self.index[places],
            left=self.left[places],
            start=self.start[places],
            end=self.end[places],
            both=self.both[places],
        )


class Level(NamedTuple):
    """The blocks of a level that hold some ticks, as `Bridge.levels_of` describes them."""

    nodes: IntArray
    """Of each block its children, (blocks, k)."""
    shares: IntArray
    alpha: IntArray
    """Of each boundary, times 2^step, (blocks, k + 1)."""
    row: IntArray
    """The block of each block of the next level, and of each tick in the last level."""
    child: IntArray


class Split(NamedTuple):
    """Children of n blocks: shares (n, k); α, variances (n, k+1) and covariances (n, k) of
    neighbouring boundaries."""

    shares: IntArray
    alpha: IntArray
    variance: FloatArray
    cov: FloatArray


def boundary_moments(
    s: FloatArray, alpha: FloatArray, start: FloatArray, end: FloatArray, both: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Variances at the k + 1 boundaries and covariances of neighbours, for children of variances s
    (n, k)."""
    sums = np.concatenate([np.zeros((len(s), 1)), np.cumsum(s, axis=1)], axis=1)
    left = start[:, None] + sums
    right = end[:, None] + (sums[:, -1:] - sums)
    c = both[:, None]
    beta = 1 - alpha
    variance = alpha * alpha * left + beta * beta * right + 2 * (alpha * beta * c)
    a = alpha[:, :-1]
    b = alpha[:, 1:]
    p = beta[:, :-1]
    q = beta[:, 1:]
    cov = a * b * left[:, :-1] + p * q * right[:, 1:] + a * q * c + p * b * (c - s)
    return variance, cov


def largest_scales(
    scale: FloatArray, alpha: FloatArray, start: FloatArray, end: FloatArray
) -> FloatArray:
    """A bound on |coefficient|·scale of every number in the noise of each boundary, shape (n, k +
    1)."""
    zero = np.zeros((len(scale), 1))
    passed = np.maximum.accumulate(np.concatenate([zero, scale], axis=1), axis=1)
    ahead = np.maximum.accumulate(np.concatenate([zero, scale[:, ::-1]], axis=1), axis=1)[:, ::-1]
    old = alpha * start[:, None] + (1 - alpha) * end[:, None]
    return np.maximum(old, np.maximum(alpha * passed, (1 - alpha) * ahead))


def _distinct(numbers: IntArray) -> tuple[IntArray, IntArray]:
    """(each number once, rising; the first place of each); ticks mostly rise, and need no sorting
    then."""
    if len(numbers) and (numbers[1:] < numbers[:-1]).any():
        return np.unique(numbers, return_index=True)
    first = np.flatnonzero(np.append(True, numbers[1:] != numbers[:-1])[: len(numbers)])
    return numbers[first], first


class Bridge(PureFactorization):
    """The bridge for one horizon; the least error of the pure mechanisms.

    **Guarantee.** For every path from the top to a leaf the shares add up to UNITS exactly, and
    L·R = M in exact arithmetic, so that M·x + L·z with discrete Laplace z of rate
    ε·share/(UNITS·Δ₁) per node is ε-DP with δ = 0, for adaptive inputs. `integers=True` has every α
    0 or 1: noise in whole numbers, for noise narrower than the grid, where fractions would only be
    rounded away. Proof: `laplace_bridge.proof.md`. Tests:
    tests/factorizations/test_laplace_bridge.py::test_left_times_right_is_the_count_in_integers,
    tests/factorizations/test_laplace_bridge.py::test_shares_of_every_leaf_add_up_exactly,
    tests/mechanisms/test_bridge_stream.py::test_attack_on_the_joint_release.

    >>> bridge = Bridge(1024)
    >>> bridge.branching, round(2**0.5 * bridge.worst_row()[1], 1)  # and the worst std at ε = 1
    ((4, 16, 16), 12.3)
    """

    name = "bridge"
    column_norm = math.inf
    units = UNITS

    def __init__(self, horizon: int, design: Design | None = None, integers: bool = False) -> None:
        T = check_pure_horizon(horizon)
        self.horizon: int = T
        self._design = design_for(T) if design is None else design
        self.branching = self._design.branching
        self.levels = len(self.branching)
        if math.prod(self.branching) < T:
            raise ParameterError(
                f"a tree of branching {self.branching} has fewer leaves than the horizon {T}"
            )
        # ticks of a node
        self._size = [math.prod(self.branching[level + 1 :]) for level in range(self.levels)]
        self._blocks = [math.prod(self.branching[:level]) for level in range(self.levels)]
        # first node of a level
        self._offset = [sum(self._blocks[1 : level + 1]) for level in range(self.levels)]
        self._step = FINE if self.levels < DEEP else COARSE
        if integers:
            self._step = 0
        self._one = 1 << self._step
        self.bits = self._step * (self.levels - 1)

    def for_rate(self, rate: float) -> Bridge:
        """This bridge, or its form in whole numbers where the noise of the first tick is narrow;
        `rate`: all of ε."""
        narrow = math.sqrt(2) / rate * float(self.row_norms([1])[0]) < NARROW
        if narrow:
            return Bridge(self.horizon, self._design, integers=True)
        return self

    def _parts(self, level: int, index: IntArray) -> FloatArray:
        """The part of what is left that each child of these blocks takes, shape (blocks, k)."""
        k = self.branching[level]
        if level == self.levels - 1:
            return np.ones((len(index), k))
        c = self._design.coefficients[level]
        x = (2 * np.arange(k) + 1) / k - 1
        z = np.broadcast_to(c[0] + x * (c[1] + x * (c[2] + x * c[3])), (len(index), k))
        if level:
            y = (2 * (index * PLACES // self._blocks[level]) + 1) / PLACES - 1
            z = z + (y * (c[4] + y * (c[5] + y * c[6])))[:, None]
        return np.asarray(LEAST + (MOST - LEAST) * (0.5 + 0.5 * (z / (1 + np.abs(z)))))

    def _split(self, level: int, blocks: Blocks, moments: bool = True) -> Split:
        """The children of these blocks; without the moments of the noise at their boundaries where
        nobody asks."""
        left = blocks.left[:, None]
        shares = np.floor(self._parts(level, blocks.index) * left).astype(np.int64)
        w = shares / UNITS
        s = 2 / (w * w)
        if level == 0:
            alpha = np.full((1, self.branching[0] + 1), self._one)
        else:
            sums = np.concatenate([np.zeros((len(s), 1)), np.cumsum(s, axis=1)], axis=1)
            c = blocks.both[:, None]
            ahead = blocks.start[:, None] + sums - c
            behind = blocks.end[:, None] + (sums[:, -1:] - sums) - c
            alpha = np.clip(np.rint(self._one * (behind / (ahead + behind))), 0, self._one).astype(
                np.int64
            )
            alpha[:, 0] = self._one
            alpha[:, -1] = 0
        if not moments:
            return Split(shares, alpha, np.empty((0, 0)), np.empty((0, 0)))
        variance, cov = boundary_moments(
            s, alpha / self._one, blocks.start, blocks.end, blocks.both
        )
        return Split(shares, alpha, variance, cov)

    @staticmethod
    def _top() -> Blocks:
        """Make the one block that holds all ticks."""
        zero = np.zeros(1)
        return Blocks(np.zeros(1, np.int64), np.full(1, UNITS), zero, zero, zero)

    @staticmethod
    def _inside(
        blocks: Blocks, split: Split, row: IntArray, child: IntArray, index: IntArray
    ) -> Blocks:
        """Children of these blocks, as blocks of the next level."""
        left = blocks.left[row] - split.shares[row, child]
        start = split.variance[row, child]
        end = split.variance[row, child + 1]
        return Blocks(index, left, start, end, split.cov[row, child])

    def _descend(
        self, ticks: IntArray, moments: bool = True
    ) -> Iterator[tuple[int, Blocks, Split, IntArray, IntArray]]:
        """Per level: the distinct blocks that hold these ticks, their children, and each tick's
        (block, child).

        The last level has moments only where they are asked for.
        """
        blocks = self._top()
        for level, k in enumerate(self.branching):
            split = self._split(level, blocks, moments or level + 1 < self.levels)
            node = (ticks - 1) // self._size[level]
            row = np.searchsorted(blocks.index, node // k)
            yield level, blocks, split, row, node % k
            if level + 1 < self.levels:
                index, _ = _distinct(node)
                blocks = self._inside(
                    blocks, split, np.searchsorted(blocks.index, index // k), index % k, index
                )

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the shares and coefficients of the first, the last and some other ticks."""
        # A snapshot holds it: noise of other shares would not continue a stream.
        ticks = np.unique(np.linspace(1, self.horizon, 64).astype(np.int64))
        parts = [self.branching.__repr__().encode()]
        for _, blocks, split, _, _ in self._descend(ticks):
            parts += [
                array.astype("<i8").tobytes() for array in (blocks.index, split.shares, split.alpha)
            ]
        return hashlib.sha256(b"".join(parts)).hexdigest()[:16]

    def public_parameters(self) -> tuple[FloatArray, ...]:
        """The tree, the precision of α and the numbers that fix the shares."""
        coefficients = (np.asarray(level, np.float64) for level in self._design.coefficients)
        return (
            np.asarray(self.branching, np.float64),
            np.asarray([self._step], np.float64),
            *coefficients,
        )

    @cached_property
    def least_share(self) -> int:
        """A lower bound on the share of every node, in UNITS."""
        low = UNITS
        least = UNITS
        for level in range(self.levels):
            steps = min(PLACES, self._blocks[level])
            first = -(-np.arange(steps) * self._blocks[level] // steps)  # a block of each step
            parts = self._parts(level, first)
            least = min(least, math.floor(low * float(parts.min())) - (level < self.levels - 1))
            low = math.floor(low * (1 - float(parts.max()))) - 1
        return least

    @property
    def top_shares(self) -> IntArray:
        """Shares of the nodes of the highest level, in UNITS."""
        return np.asarray(self._split(0, self._top()).shares[0])

    def row_norms(self, ticks: npt.ArrayLike) -> FloatArray:
        at = self._check_ticks(ticks)
        out = np.empty(at.size)
        flat = at.ravel()
        for start in range(0, at.size, _TICKS_AT_ONCE):
            *_, (_, _, split, row, child) = self._descend(flat[start : start + _TICKS_AT_ONCE])
            out[start : start + _TICKS_AT_ONCE] = split.variance[row, child + 1]
        return np.sqrt(out / 2).reshape(at.shape)

    def worst_row(self) -> tuple[int, float]:
        """(tick, norm) of the worst tick; above 2^21 ticks, of the blocks whose ends have the
        largest variances."""
        return self._worst_row

    @cached_property
    def _worst_row(self) -> tuple[int, float]:
        return self._worst_of(self.stated_suspects(self.horizon))

    def stated_suspects(self, ticks: int) -> IntArray:
        """All ticks; above 2^21 of them, those of the blocks whose ends have the largest
        variances."""
        if self.horizon <= ALL_TICKS:
            return np.arange(1, self.horizon + 1)
        return self._likely_ticks

    @cached_property
    def _likely_ticks(self) -> IntArray:
        """Ends of blocks; of each level only the likeliest blocks are divided further."""
        blocks = self._top()
        likely = [np.ones(1, np.int64)]
        for level, k in enumerate(self.branching):
            split = self._split(level, blocks)
            ends = (blocks.index[:, None] * k + np.arange(1, k + 1)) * self._size[level]
            likely.append(ends[ends <= self.horizon])
            if level + 1 < self.levels:
                index = (blocks.index[:, None] * k + np.arange(k)).ravel()
                keep = np.flatnonzero(index * self._size[level] < self.horizon)
                inner = self._inside(blocks, split, keep // k, keep % k, index[keep])
                order = np.sort(
                    np.argsort(-np.maximum(inner.start, inner.end), kind="stable")[:_KEPT_BLOCKS]
                )
                blocks = inner.at(order)
        return np.unique(np.concatenate(likely))

    def laplace_errors(
        self, ticks: npt.ArrayLike, rate: float
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        at = self._check_ticks(ticks).ravel()
        out = np.empty((3, at.size))
        for start in range(0, at.size, _TICKS_AT_ONCE):
            part = at[start : start + _TICKS_AT_ONCE]
            # exact variances and covariance, largest scales, of the blocks' ends
            ends = np.zeros((5, 1))
            for level, _, split, row, child in self._descend(part):
                own = split.shares / UNITS * rate
                alpha = split.alpha / self._one
                exact, cov = boundary_moments(node_variance(own), alpha, *ends[:3])
                scale = largest_scales(1 / own, alpha, *ends[3:])
                if level + 1 < self.levels:
                    _, first = _distinct((part - 1) // self._size[level])
                    r = row[first]
                    c = child[first]
                    ends = np.stack(
                        [exact[r, c], exact[r, c + 1], cov[r, c], scale[r, c], scale[r, c + 1]]
                    )
                else:
                    plain = split.variance[row, child + 1] / (rate * rate)
                    out[:, start : start + _TICKS_AT_ONCE] = (
                        exact[row, child + 1],
                        plain,
                        scale[row, child + 1],
                    )
        return out[0], out[1], out[2]

    def coefficients(self, ticks: npt.ArrayLike) -> tuple[IntArray, IntArray, IntArray]:
        """(nodes, coefficients·2^bits, shares), each (ticks, k_1 + … + k_H): `rows` with the nodes
        of each tick."""
        nodes, shares, place, weights = self.rows(np.asarray(ticks))
        return nodes[place], weights, shares[place]

    def rows(self, ticks: IntArray) -> TreeRows:
        at = self._check_ticks(ticks).ravel()
        width = sum(self.branching)
        nodes: list[IntArray] = []
        shares: list[IntArray] = []
        place, start, end = np.zeros((3, len(at), width), np.int64)
        done = count = 0
        for level, blocks, split, row, child in self._descend(at, moments=False):
            k = self.branching[level]
            here = slice(done, done + k)
            nodes.append((self._offset[level] + blocks.index[:, None] * k + np.arange(k)).ravel())
            shares.append(split.shares.ravel())
            place[:, here] = count + row[:, None] * k + np.arange(k)
            # rows of L at a boundary: α·(start + children passed) + (1 − α)·(end − the others),
            # times `_one`
            ends = []
            for i in (child, child + 1):
                a = split.alpha[row, i][:, None]
                passed = np.arange(k) < i[:, None]
                line = a * start + (self._one - a) * end
                if level:
                    line[:, here] = np.where(passed, a, a - self._one) << self._step * (level - 1)
                else:
                    line[:, here] = passed
                ends.append(line)
            start, end = ends
            done += k
            count += len(nodes[-1])
        return TreeRows(np.concatenate(nodes), np.concatenate(shares), place, end)

    def levels_of(self, ticks: IntArray) -> list[Level]:
        """From the top, what the noise at rising ticks is made of; `TreeNoise` follows the formula
        of this module."""
        levels = []
        for level, blocks, split, row, child in self._descend(
            self._check_ticks(ticks), moments=False
        ):
            k = self.branching[level]
            nodes = self._offset[level] + blocks.index[:, None] * k + np.arange(k)
            if level + 1 < self.levels:
                _, first = _distinct((ticks - 1) // self._size[level])
                row = row[first]
                child = child[first]
            levels.append(Level(nodes, split.shares, split.alpha, row, child))
        return levels

    def noise(self, levels: list[Level], numbers: IntArray) -> IntArray:
        """The noise at the ticks of `levels`, in units of 2^−bits, from the numbers of their nodes,
        (nodes, cells).

        **Guarantee.** It is `rows` times the numbers: with e_b − (all ζ of the block) = r, both
        brackets together are 2^step·(ζ_1 + … + ζ_i + r) + α_i·(e_a − r). No number in it is above
        2·2^bits·Σk_h times the largest of the numbers: `fits` says whether 64 bits hold that. Test:
        tests/mechanisms/test_bridge_stream.py::test_noise_is_the_rows_times_the_numbers.
        """
        cells = numbers.shape[1]
        noise = start = end = np.zeros((0, 1, cells), np.int64)
        done = 0
        for level, (nodes, _, alpha, row, child) in enumerate(levels):
            blocks, k = nodes.shape
            noise = np.zeros((blocks, k + 1, cells), np.int64)
            np.cumsum(
                numbers[done : done + nodes.size].reshape(blocks, k, cells),
                axis=1,
                out=noise[:, 1:],
            )
            done += nodes.size
            if level:
                noise <<= self._step * (level - 1)
                rest = end - noise[:, -1:]
                noise += rest
                noise <<= self._step
                noise += alpha[:, :, None] * (start - rest)
            if level + 1 < self.levels:
                start = noise[row, child][:, None]
                end = noise[row, child + 1][:, None]
        return np.asarray(noise[row, child + 1])

    def fits(self, largest: int) -> bool:
        """Whether 64 bits hold the noise of numbers up to this size, and all that `noise` computes
        on the way."""
        return (2 * sum(self.branching) * largest) << self.bits < 1 << 63

    def rounding_variance(self, earlier: IntArray, later: IntArray) -> FloatArray:
        """As `Factorization.rounding_variance`: exact for each tick, but for terms that vanish for
        wide noise.

        What is cut off is a multiple of 2^−p, p the binary places of the tick's coefficients:
        nothing for p = 0, and else a uniform one between −1/2 and 1/2, of variance 1/12 + 4^−p/6,
        as both ends are equally likely.
        """
        return self._rounding_at(later) + np.where(
            earlier > 0, self._rounding_at(np.maximum(earlier, 1)), 0.0
        )

    def _rounding_at(self, ticks: IntArray) -> FloatArray:
        flat = ticks.ravel()
        out = np.zeros(ticks.size)
        for start in range(0, flat.size if self.bits else 0, _TICKS_AT_ONCE):
            here = slice(start, start + _TICKS_AT_ONCE)
            places = self._places(flat[here])
            out[here] = np.where(places > 0, 1 / 12 + 0.25**places / 6, 0.0)
        return out.reshape(ticks.shape)

    def _places(self, ticks: IntArray) -> IntArray:
        """The binary places of each tick's row of L, or a few more where there are many."""
        ends: IntArray = np.zeros((2, 1), np.int64)
        for level, _, split, row, child in self._descend(ticks):
            alpha = split.alpha
            # behind the last binary one
            zeros = np.log2(np.maximum(alpha & -alpha, 1)).astype(np.int64)
            own = ends.max(axis=0)[:, None] + self._step - zeros
            places = np.where(
                alpha == 0, ends[1][:, None], np.where(alpha == self._one, ends[0][:, None], own)
            )
            if level + 1 < self.levels:
                _, first = _distinct((ticks - 1) // self._size[level])
                r = row[first]
                c = child[first]
                ends = np.stack([places[r, c], places[r, c + 1]])
        return np.asarray(places[row, child + 1])

    def difference_norms(self, earlier: IntArray, later: IntArray) -> FloatArray:
        return np.sqrt(self._apart(earlier, later, lambda share: 1 / np.square(share)))

    def _apart(self, earlier: IntArray, later: IntArray, square: Square) -> FloatArray:
        out = np.empty(len(later))
        for start in range(0, len(later), _PAIRS_AT_ONCE):
            here = slice(start, start + _PAIRS_AT_ONCE)
            out[here] = self._few_apart(earlier[here], later[here], square)
        return out

    def _few_apart(self, earlier: IntArray, later: IntArray, square: Square) -> FloatArray:
        """As `_apart`, for few pairs; `earlier` may be 0."""
        pairs = len(later)
        nodes, weights, shares = self.coefficients(np.maximum(np.concatenate([later, earlier]), 1))
        weights[np.concatenate([later, earlier]) == 0] = 0
        weights[pairs:] *= -1
        nodes, weights, shares = (
            np.hstack([part[:pairs], part[pairs:]]) for part in (nodes, weights, shares)
        )
        order = np.argsort(nodes, axis=1)
        nodes, weights, shares = (
            np.take_along_axis(part, order, axis=1) for part in (nodes, weights, shares)
        )
        new = np.diff(nodes, axis=1, prepend=-1) != 0  # each node of a pair once
        total = np.bincount(np.cumsum(new.ravel()) - 1, weights.ravel() / float(1 << self.bits))
        squares = np.square(total) * square(shares[new] / UNITS)
        return np.asarray(np.bincount(np.nonzero(new)[0], squares, pairs))

    def interval(self, node: int) -> tuple[int, int]:
        level = max(level for level in range(self.levels) if self._offset[level] <= node)
        size = self._size[level]
        start = (node - self._offset[level]) * size
        return start + 1, start + size
