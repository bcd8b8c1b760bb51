"""The terrace: Laplace noise for every tick and for nested blocks of ticks, put together by least
squares.

Level 0 has a number u_t for each tick, level l a number z_B for each block B of b_l ticks; every
length is a multiple of the one below, and blocks follow each other for ever. Each level has a share
of ε, and all shares together are at most 1. A discrepancy D_B = z_B − (sum of the u_t in B) is
noise alone. The noise of the running sum at tick t is

    u_1 + … + u_t + F_t(D)

where F_t is the correction of least squares, in whole numbers. Days, weeks and running totals all
have little noise: a day has the noise of its own number, and the blocks keep the sum of many days
from drifting.

Of a level only two things matter for the error: the weight α of a block's own number, and how the
correction is spread over its children, which is evenly. With φ_l(t) the part of tick t's block of
level l that an interval I covers, the coefficients of all numbers in the noise of I are sums of
differences of φ (`_constants`), and so is the variance.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from evercount._validate import FloatArray, IntArray
from evercount.errors import ParameterError
from evercount.factorizations.base import check_horizon
from evercount.factorizations.laplace_trees import (
    PureFactorization,
    Square,
    check_pure_horizon,
    node_variance,
)

NAME = "terrace"
SHARES = 1 << 10
"""Shares are whole multiples of ε/SHARES."""
BITS = 16
"""Weights, and corrections before they are rounded to the grid, are whole multiples of 2^−BITS."""
LONGEST_BLOCK = 1 << 14
"""A block's first tick reads the numbers of all its ticks."""
MOST_LEVELS = 4  # of blocks


@dataclass(frozen=True)
class Levels:
    """The public numbers of a terrace.

    `blocks` are the lengths of the blocks, shortest first; `shares` those of a tick's own number
    and of each block's, in ε/SHARES; `weights` the α of each level of blocks, in 2^−BITS.
    """

    blocks: tuple[int, ...]
    shares: tuple[int, ...]
    weights: tuple[int, ...]

    def __post_init__(self) -> None:
        """Refuse numbers that are no terrace."""
        if not 1 <= len(self.blocks) <= MOST_LEVELS:
            raise ParameterError(
                f"a terrace has 1 to {MOST_LEVELS} levels of blocks, got {len(self.blocks)}"
            )
        if len(self.shares) != len(self.blocks) + 1 or len(self.weights) != len(self.blocks):
            raise ParameterError(
                "a terrace has one weight for each level of blocks, and one share more"
            )
        for number in (*self.blocks, *self.shares, *self.weights):
            if isinstance(number, bool) or not isinstance(number, int):
                raise ParameterError(
                    f"the numbers of a terrace are whole numbers, got {number!r:.80}"
                )
        if self.blocks[-1] > LONGEST_BLOCK:
            raise ParameterError(
                f"a block of a terrace has at most {LONGEST_BLOCK} ticks, because its first tick "
                f"reads the noise of all of them; got {self.blocks[-1]}"
            )
        shorter = 1
        for block in self.blocks:
            if block <= shorter or block % shorter:
                raise ParameterError(
                    f"each block of a terrace is some of the blocks below, got {self.blocks}"
                )
            shorter = block
        if min(self.shares) < 1 or sum(self.shares) > SHARES:
            raise ParameterError(
                f"shares of a terrace are at least 1 and add up to at most {SHARES}"
            )
        if not all(0 <= weight < 1 << BITS for weight in self.weights):
            raise ParameterError(
                f"weights of a terrace lie in 0 … 2^{BITS} − 1, got {self.weights}"
            )

    @classmethod
    def from_dict(cls, numbers: dict[str, Any]) -> Levels:
        """The levels that `as_dict` described, or ParameterError."""
        if set(numbers) != {"blocks", "shares", "weights"} or not all(
            isinstance(part, list | tuple) for part in numbers.values()
        ):
            raise ParameterError(
                "a terrace is stored as {name, blocks = [...], shares = [...], weights = [...]}"
            )
        return cls(tuple(numbers["blocks"]), tuple(numbers["shares"]), tuple(numbers["weights"]))

    def as_dict(self) -> dict[str, list[int]]:
        """Plain lists, for files."""
        return {
            "blocks": list(self.blocks),
            "shares": list(self.shares),
            "weights": list(self.weights),
        }


def least_squares(blocks: Sequence[int], shares: Sequence[int], rate: float) -> Levels:
    """The levels with the weights of least squares, where a node with all of ε has this rate."""
    variances = node_variance(np.asarray(shares) / SHARES * rate)
    weights = []
    inside = float(variances[0])
    shorter = 1
    for block, variance in zip(blocks, variances[1:].tolist(), strict=True):
        children = inside * (block // shorter)
        alpha = min(round(children / (children + variance) * 2**BITS), 2**BITS - 1)
        weights.append(alpha)
        inside = children * (1 - alpha / 2**BITS)
        shorter = block
    return Levels(tuple(blocks), tuple(shares), tuple(weights))


def interval_parts(
    lengths: Iterable[int | IntArray], earlier: IntArray, later: IntArray
) -> FloatArray:
    """A_j of each interval (earlier, later] for these lengths of blocks, the tick first, on a new
    last axis.

    Lengths may be arrays, one number for each terrace, that broadcast against the intervals.
    """
    sums = []
    for length in lengths:
        first, start = np.divmod(earlier, length)
        last, end = np.divmod(later, length)
        inner = np.maximum(last - first - 1, 0.0) * length
        apart = (length - start) ** 2 / length + inner + end**2 / length
        sums.append(np.where(first == last, (later - earlier) ** 2 / length, apart))
    sums.append(np.zeros(later.shape))
    return -np.diff(np.stack(sums, axis=-1), axis=-1)


class Terrace(PureFactorization):
    """A terrace for data of one noise scale; with a horizon, and without.

    **Guarantee.** Every tick lies in one block of each level, so the shares on its path add up to
    at most 1, and M·x + u_1 + … + u_t + F_t(D) is ε-DP with δ = 0 for adaptive inputs, whatever the
    weights are. Proof: `terrace.proof.md`. Tests:
    tests/factorizations/test_terrace.py::test_left_times_right_is_the_count_in_integers,
    tests/mechanisms/test_terrace_noise.py::test_a_shift_of_the_data_leaves_all_discrepancies,
    tests/mechanisms/test_terrace_noise.py::test_exact_law_of_released_integers.

    Args:
        horizon: The number of ticks, or None.
        levels: Blocks, shares and weights.
        rate: The rate, per grid unit, of noise that has all of ε; it decides the error of rounding.

    >>> terrace = Terrace(365, least_squares((122,), (788, 236), 1.0), 1.0)
    >>> [round(terrace.worst_std(width), 2) for width in (1, 7, None)]
    [1.81, 4.7, 13.27]
    """

    name = NAME
    column_norm = math.inf
    units = SHARES

    def __init__(self, horizon: int | None, levels: Levels, rate: float) -> None:
        if check_horizon(horizon) is None:
            self.horizon = None
        else:
            self.horizon = check_pure_horizon(horizon)
        if not (rate > 0 and math.isfinite(rate)):
            raise ParameterError(f"the rate of a terrace must be positive and finite, got {rate!r}")
        self.design = levels
        self.rate = rate
        self.levels = len(levels.blocks) + 1
        self.lengths = (1, *levels.blocks)

    @property
    def spec(self) -> dict[str, Any]:
        return {"name": NAME, **self.design.as_dict()}

    @property
    def state_bytes(self) -> int:
        """The sum of ticks' numbers, that of closed blocks' corrections, and the correction of each
        open block."""
        return 8 * (self.levels + 1)

    def public_parameters(self) -> tuple[FloatArray, ...]:
        return tuple(np.asarray(part, np.float64) for part in self.design.as_dict().values())

    # -- errors ------------------------------------------------------------------------------------

    @cached_property
    def _virtual(self) -> tuple[FloatArray, FloatArray]:
        """(v, x) of each level: variances for which these weights are those of least squares, and
        1/Σ_{i≤l} b_i/v_i."""
        virtual = [1.0]
        inside = 1.0
        for length, shorter, weight in zip(
            self.lengths[1:], self.lengths, self.design.weights, strict=False
        ):
            alpha = weight / 2**BITS
            children = inside * (length // shorter)
            virtual.append(children * (1 - alpha) / alpha if weight else math.inf)
            inside = children * (1 - alpha)
        v = np.asarray(virtual)
        return v, 1 / np.cumsum(np.asarray(self.lengths) / v)

    def _constants(self, variances: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(c, d) with Var N = Σ c_j·A_j and Var F = Σ d_j·A_j for these variances of a node of each
        level.

        A_j = Q_j − Q_{j+1} ≥ 0, and Q_j is the sum over blocks of level j of |I ∩ B|²/b_j
        (`terrace.proof.md`, 3).
        """
        v, x = self._virtual
        lengths = np.asarray(self.lengths, np.float64)
        each = np.where(np.isfinite(v), lengths * variances / v**2, 0.0)
        total = x**2 * np.cumsum(each)
        leaf = variances[0] * (x / v[0] - 1) ** 2
        correction = leaf + x**2 * (np.cumsum(each) - each[0])
        return total, correction

    def _parts(self, earlier: IntArray, later: IntArray) -> FloatArray:
        """A_j of each interval (earlier, later], shape (intervals, levels)."""
        return interval_parts(self.lengths, earlier, later)

    def span_errors(
        self, earlier: IntArray, later: IntArray, rate: float
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(variance, continuous variance, largest scale) of the noise of ticks earlier+1 … later,
        before rounding."""
        rates = np.asarray(self.design.shares) / SHARES * rate
        parts = self._parts(earlier, later)
        exact, _ = self._constants(node_variance(rates))
        plain, _ = self._constants(2 / rates**2)
        v, x = self._virtual
        lengths = np.asarray(self.lengths, np.float64)
        most = np.where(np.isfinite(v), lengths * x / v, 0.0) / rates
        covered = np.minimum((later - earlier)[:, np.newaxis] / lengths, 1.0)
        return added_up(parts, exact), added_up(parts, plain), (covered * most).max(axis=1)

    def laplace_errors(
        self, ticks: npt.ArrayLike, rate: float
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """As of all trees, rounding included."""
        at = self._check_ticks(ticks).ravel()
        exact, plain, largest = self.span_errors(np.zeros_like(at), at, rate)
        added = self._rounding(np.zeros_like(at), at, rate)
        return exact + added, plain + added, largest

    def difference_errors(
        self, earlier: IntArray, later: IntArray, rate: float
    ) -> tuple[FloatArray, FloatArray]:
        exact, plain, _ = self.span_errors(earlier, later, rate)
        added = self._rounding(earlier, later, rate)
        return exact + added, plain + added

    def _apart(self, earlier: IntArray, later: IntArray, square: Square) -> FloatArray:
        variances = np.asarray(
            [float(square(np.asarray(share / SHARES))) for share in self.design.shares]
        )
        return added_up(self._parts(earlier, later), self._constants(variances)[0])

    def row_norms(self, ticks: npt.ArrayLike) -> FloatArray:
        at = self._check_ticks(ticks)
        return self.difference_norms(np.zeros_like(at).ravel(), at.ravel()).reshape(at.shape)

    def difference_norms(self, earlier: IntArray, later: IntArray) -> FloatArray:
        plain = self.span_errors(np.asarray(earlier), self._check_ticks(later), math.sqrt(2))[1]
        return np.asarray(np.sqrt(plain))

    def correction_variance(self, earlier: IntArray, later: IntArray) -> FloatArray:
        """Var of F_later − F_earlier."""
        rates = np.asarray(self.design.shares) / SHARES * self.rate
        _, correction = self._constants(node_variance(rates))
        return added_up(self._parts(earlier, later), correction)

    def _rounding(self, earlier: IntArray, later: IntArray, rate: float) -> FloatArray:
        """The variance that rounding F adds to a difference of running sums; of noise of another
        rate, to scale.

        **Guarantee.** It is at least what rounding adds. Proof: `terrace.proof.md`, 4. Test:
        tests/mechanisms/test_terrace_noise.py::test_stated_stds_hold_at_every_tick.
        """
        added = rounding_variance(np.sqrt(self.correction_variance(earlier, later)))
        return np.asarray(added * (self.rate / rate) ** 2)

    def suspects(self, ticks: int) -> list[int]:
        """The noise of a running total grows from block to block, and is largest in one of the
        last."""
        return list(range(max(1, ticks - 2 * self.lengths[-1]), ticks + 1))

    def stated_suspects(self, ticks: int) -> IntArray:
        return np.asarray(self.suspects(ticks))

    def worst_row(self) -> tuple[int, float]:
        assert self.horizon is not None
        return self._worst_of(self.suspects(self.horizon))

    def worst_tick(self, width: int | None, last: int | None = None) -> tuple[int, float]:
        """The tick with the largest std of a sum of the last `width` ticks (None: of all so far),
        and that std."""
        end = last or self.horizon
        assert end is not None
        if width is None or width >= end:
            later = self.stated_suspects(end)
            earlier = np.zeros_like(later)
        else:  # errors repeat with the longest block
            later = np.arange(1, min(end, width + 2 * self.lengths[-1]) + 1)
            earlier = np.maximum(later - width, 0)
        exact, _, _ = self.span_errors(earlier, later, self.rate)
        # rounding decides among these only
        likely = exact + MOST_ROUNDING >= exact.max() * (1 - 1e-12)
        exact = exact[likely]
        earlier = earlier[likely]
        later = later[likely]
        variance = exact + self._rounding(earlier, later, self.rate)
        worst = int(np.argmax(variance))
        return int(later[worst]), math.sqrt(float(variance[worst]))

    def worst_std(self, width: int | None, last: int | None = None) -> float:
        """The largest std of a sum of the last `width` ticks (None: of all so far), in grid
        units."""
        return self.worst_tick(width, last)[1]

    # -- matrices, for tests -----------------------------------------------------------------------

    def node_matrices(self, ticks: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(L, R, share of each row of R) of all nodes that the first `ticks` ticks read, before any
        rounding.

        Rows of R are whole blocks, so both cover the ticks of all open blocks.
        """
        top = self.lengths[-1]
        size = -(-ticks // top) * top
        weights = [weight / 2**BITS for weight in self.design.weights]
        starts = []
        offset = 0
        for length in self.lengths:
            starts.append(offset)
            offset += size // length
        right = np.zeros((offset, size))
        shares = np.empty(offset)
        for level, length in enumerate(self.lengths):
            for number in range(size // length):
                right[starts[level] + number, number * length : (number + 1) * length] = 1.0
            shares[starts[level] : starts[level] + size // length] = (
                self.design.shares[level] / SHARES
            )
        means = np.eye(size, offset)  # of the sum over a block, given all inside it
        gains = []
        for level, length in enumerate(self.lengths[1:], 1):
            count = size // length
            below = means.reshape(count, -1, offset).sum(axis=1)
            own = np.zeros((count, offset))
            own[np.arange(count), starts[level] + np.arange(count)] = 1.0
            gains.append(weights[level - 1] * (own - below))
            means = below + gains[-1]
        spread = gains[-1]
        for level in range(self.levels - 2, 0, -1):
            children = self.lengths[level + 1] // self.lengths[level]
            spread = gains[level - 1] + np.repeat(spread, children, axis=0) / children
        noise = np.eye(size, offset) + np.repeat(spread, self.lengths[1], axis=0) / self.lengths[1]
        return np.cumsum(noise, axis=0)[:ticks], right, shares

    def dense(self, ticks: int | None = None) -> tuple[FloatArray, FloatArray]:
        size = self._check_dense(ticks)
        left, right, shares = self.node_matrices(size)
        return left / shares, right[:, :size] * shares[:, np.newaxis]


def added_up(parts: FloatArray, constants: FloatArray) -> FloatArray:
    """The sum over columns of part × constant, the same to the last bit for one row and for
    many."""
    total = np.zeros(len(parts))
    for column, constant in zip(parts.T, constants.tolist(), strict=True):
        total = total + column * constant
    return total


MOST_ROUNDING = 0.25
"""No rounding of one number up or down with the right mean adds more variance."""
_WAVES = range(1, 13)  # from a tenth of a unit on, the next ones are below 1e-16


def rounding_variance(std: FloatArray) -> FloatArray:
    """E f·(1 − f) of the fraction f of a normal number of this std: what rounding up with chance f
    adds.

    Far below one unit that is E|x| − E x², up to e^(−1/(2·std²)).
    """
    waves = np.zeros_like(std)
    for number in _WAVES:
        waves = waves + np.exp(-2 * (math.pi * number * std) ** 2) / number**2
    wide = 1 / 6 - waves / math.pi**2
    return np.asarray(np.where(std < 0.1, math.sqrt(2 / math.pi) * std - std**2, wide))
