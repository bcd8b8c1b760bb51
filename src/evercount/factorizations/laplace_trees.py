"""Pure differential privacy: what all its trees share, digit trees, and the hybrid of these for
endless streams.

Nodes have Laplace noise, each with a share of ε, and a prefix is a sum of few nodes with whole
coefficients. In a digit tree these are 1 and −1, and each tick lies in at most `levels` nodes.

Write a tick t in base k, with digits −(k−1)/2 … (k−1)/2 for an odd k, and 0 and 1 for k = 2.
Walking from t to 0 by moving its lowest digit that is not 0 one step towards 0 visits |d_0| +
|d_1| + … numbers; each step v → parent(v) spans an interval of k^i ticks, the node v. The prefix of
t is the sum of the nodes on its walk, those of negative digits subtracted. Nodes may reach into the
future: their true values cancel, and their noise does not depend on data. So noise is added to the
true prefix, tick by tick, with nodes as random numbers with an index.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from evercount._validate import FloatArray, IntArray
from evercount.errors import ParameterError
from evercount.factorizations.base import Factorization, check_known_horizon

LARGEST_TICKS = 2**40


def check_pure_horizon(horizon: Any) -> int:
    """`check_known_horizon` for noise whose nodes are numbered."""
    if (ticks := check_known_horizon(horizon)) > LARGEST_TICKS:
        raise ParameterError(f"pure trees serve at most 2^40 ticks, the horizon is {ticks}")
    return ticks


# the variance of a node with this share of ε, in some unit
Square = Callable[[FloatArray], FloatArray]


class TreeRows(NamedTuple):
    """Rows of L: noise at tick t is the sum over j of weights[t, j]·2^−bits times the number of
    nodes[place[t, j]]."""

    nodes: IntArray
    shares: IntArray
    """Of each node, times `units`."""
    place: IntArray
    weights: IntArray


class PureFactorization(Factorization):
    """What a stream needs to know of a pure tree: nodes per tick, and exact stds of discrete
    Laplace noise."""

    levels: int  # the most nodes that hold one tick: the l1 norm of a column of R
    bits: int = 0
    """Binary places of coefficients, and so of the noise before it is rounded to the grid."""
    units: int = 1
    """Shares of ε are whole multiples of 1/units."""

    @property
    def state_bytes(self) -> int:
        """Nothing: noise is drawn again, a few ticks at a time."""
        return 0

    def full_rate(self, sigma: float) -> float:
        """The rate, per grid unit, of a node that has all of ε, for the σ (in grid units) that a
        stream states."""
        return math.sqrt(2) / sigma

    def row_norms(self, ticks: npt.ArrayLike) -> FloatArray:
        """Std over that of continuous Laplace noise of rate ε/Δ₁."""
        return np.sqrt(self.laplace_errors(ticks, math.sqrt(2))[1])

    @abstractmethod
    def laplace_errors(
        self, ticks: npt.ArrayLike, rate: float
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(variance, continuous variance, largest scale) of the noise at each tick, in grid units.

        `rate` is that of a node that has all of ε. The first is exact for discrete noise, the
        second is that of continuous Laplace numbers of the same rates, and the third is a bound on
        |coefficient|·(1/rate) of every single number: tails follow from the last two
        (`bounds/tails.py`).
        """

    def difference_norm(self, earlier: int, later: int) -> float:
        earlier, later = self._check_pair(earlier, later)
        return float(self.difference_norms(np.asarray([earlier]), np.asarray([later]))[0])

    def difference_errors(
        self, earlier: IntArray, later: IntArray, rate: float
    ) -> tuple[FloatArray, FloatArray]:
        """(variance, continuous variance) of the noise at `later` less that at `earlier`, as
        `laplace_errors` has them.

        Tick 0 is before the first and has no noise: there it is `laplace_errors`.
        """
        both = np.zeros((2, len(later)))
        first = (earlier == 0) & (later > 0)
        rest = (earlier > 0) & (later > earlier)
        if first.any():
            both[:, first] = self.laplace_errors(later[first], rate)[:2]
        if rest.any():
            both[0, rest] = self._apart(
                earlier[rest], later[rest], lambda share: node_variance(rate * share)
            )
            both[1, rest] = self._apart(
                earlier[rest], later[rest], lambda share: 2 / np.square(rate * share)
            )
        return both[0], both[1]

    @abstractmethod
    def _apart(self, earlier: IntArray, later: IntArray, square: Square) -> FloatArray:
        """Σ coefficient²·square(share of ε) over the nodes in the difference of the rows of two
        ticks, 1 ≤ earlier."""

    def suspects(self, ticks: int) -> list[int]:
        """Ticks, none above `ticks`, one of which has the largest std of the first `ticks`."""
        # Empty where none are known; with a horizon, `ticks` must be that.
        if self.horizon is None:
            return []
        return [self.worst_row()[0]]

    def stated_suspects(self, ticks: int) -> IntArray:
        """As `suspects`, of the std that a stream states: of discrete numbers, rounded, whatever
        their rate."""
        return np.asarray(self.suspects(ticks), np.int64)

    def rows(self, ticks: IntArray) -> TreeRows:
        """The noise at ticks that lie close together."""
        raise NotImplementedError  # of streams without a horizon the trees of epochs have it

    def matrix(self, ticks: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """(nodes, coefficients·2^bits (ticks, nodes), shares·units): `rows` with all zeros."""
        nodes, shares, place, weights = self.rows(ticks)
        coefficients = np.zeros((len(place), len(nodes)), np.int64)
        np.add.at(coefficients, (np.arange(len(place))[:, None], place), weights)
        return nodes, coefficients, shares

    def interval(self, node: int) -> tuple[int, int]:
        """(first, last) tick of a node, 1-based; `last` may lie beyond the horizon."""
        raise NotImplementedError

    def dense(self, ticks: int | None = None) -> tuple[FloatArray, FloatArray]:
        """(L, R) with a column of L and a row of R for each node; rows of R carry the nodes' shares
        of ε."""
        size = self._check_dense(ticks)
        nodes, weights, shares = self.matrix(np.arange(1, size + 1))
        right = np.zeros((len(nodes), size))
        for row, node in enumerate(nodes.tolist()):
            first, last = self.interval(node)
            right[row, first - 1 : last] = 1.0
        part = shares / self.units
        return weights / float(1 << self.bits) / part, right * part[:, None]


def node_variance(rate: FloatArray) -> FloatArray:
    """Variance of discrete Laplace noise of these rates: 1/(2·sinh²(rate/2))."""
    return np.asarray(0.5 / np.sinh(np.minimum(rate, 700.0) / 2) ** 2)


BASES = range(3, 100, 2)


class DigitTree(PureFactorization):
    """The tree of the module docstring for one base and one horizon.

    **Guarantee.** Every tick lies in at most `levels` nodes (one per digit place), so a change of
    the increments with l1 norm Δ₁ changes all nodes together by at most levels·Δ₁ in l1. Proof:
    `mechanisms/laplace_noise.proof.md`, lemma 1. Test:
    tests/factorizations/test_laplace_trees.py::test_every_tick_lies_in_at_most_levels_nodes.
    """

    def __init__(self, horizon: int, base: int = 2) -> None:
        T = self.horizon = check_pure_horizon(horizon)
        if not isinstance(base, int) or base not in (2, *range(3, 1000, 2)):
            raise ParameterError(
                f"the base of a tree must be 2 or an odd number from 3 to 999, got {base!r}"
            )
        self.base = base
        self.low = (base - 1) // 2  # digits go from −low to base − 1 − low
        levels = 0
        largest = 0
        while largest < T:
            largest += (base - 1 - self.low) * base**levels
            levels += 1
        self.levels = levels
        self.column_norm = math.sqrt(levels) * (1 + 1e-9)
        self.name = "pure-binary" if base == 2 else f"pure-tree-{base}"

    def _index(self, ticks: IntArray, level: int) -> IntArray:
        """t / k^level with its lower digits cut off."""
        size = self.base**level
        return np.asarray((ticks + self.low * ((size - 1) // (self.base - 1))) // size)

    def digits(self, ticks: npt.ArrayLike) -> IntArray:
        """The digits of each tick, lowest first, shape (ticks, levels)."""
        t = np.asarray(ticks, dtype=np.int64)
        index = [self._index(t, level) for level in range(self.levels + 1)]
        return np.stack([index[i] - self.base * index[i + 1] for i in range(self.levels)], axis=-1)

    def weight(self, ticks: npt.ArrayLike) -> IntArray:
        """How many nodes make up each prefix."""
        return np.asarray(np.abs(self.digits(ticks)).sum(axis=-1))

    def interval(self, node: int) -> tuple[int, int]:
        for level, digit in enumerate(self.digits([node])[0].tolist()):
            if digit:
                size = self.base**level
                if digit > 0:
                    return node - size + 1, node
                return node + 1, node + size
        raise ParameterError(f"0 is not a node, got {node}")

    def total_weight(self) -> int:
        """Σ of `weight` over all ticks of the horizon: the exact mean squared error follows."""
        counts = self.weight_counts()
        return int(np.arange(len(counts)) @ counts)

    def row_norms(self, ticks: npt.ArrayLike) -> FloatArray:
        """√weight: the std at t is that of a node times this."""
        return np.sqrt(self.weight(self._check_ticks(ticks)).astype(np.float64))

    def full_rate(self, sigma: float) -> float:
        """σ is the std of a node, and cosh(rate) = 1 + 1/σ²."""
        above = 1 / sigma**2
        return self.levels * math.log1p(above + math.sqrt(above * (above + 2)))

    def laplace_errors(
        self, ticks: npt.ArrayLike, rate: float
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        weight = self.weight(self._check_ticks(ticks)).astype(np.float64)
        own = rate / self.levels
        return (
            weight * node_variance(np.asarray(own)),
            weight * (2 / own**2),
            np.full(weight.shape, 1 / own),
        )

    def weight_counts(self) -> IntArray:
        """How many ticks of the horizon have weight 0, 1, 2, …, from the digits of the horizon."""
        assert self.horizon is not None
        return self._counts_up_to(self.horizon) - self._counts_up_to(0)

    def _counts_up_to(self, number: int) -> IntArray:
        """How many numbers with `levels` digits, negative ones too, lie below or at this one, by
        weight."""
        digits = self.digits([number])[0].tolist()
        counts = np.zeros(self.base * self.levels + 1, np.int64)
        counts[sum(map(abs, digits))] = 1
        free = np.ones(1, np.int64)  # by weight, of all choices of the digits below a place
        for place, digit in enumerate(digits):
            smaller = np.convolve(
                free, np.bincount([abs(d) for d in range(-self.low, digit)], minlength=1)
            )
            above = sum(map(abs, digits[place + 1 :]))
            counts[above : above + len(smaller)] += smaller
            free = np.convolve(
                free, np.bincount([abs(d) for d in range(-self.low, self.base - self.low)])
            )
        return counts

    def worst_row(self) -> tuple[int, float]:
        """(tick, √weight) with the largest weight of all ticks, exactly."""
        # A tick below T agrees with T above some place, has a smaller digit there and any digits
        # below: only the two ends of the smaller digits and the largest digits below can be the
        # worst.
        T = self.horizon
        assert T is not None
        digits = self.digits([T])[0].tolist()
        top = self.base - 1 - self.low
        ticks = [T]
        for place, digit in enumerate(digits):
            head = sum(d * self.base**i for i, d in enumerate(digits) if i > place)
            tail = top * ((self.base**place - 1) // (self.base - 1))
            ticks += [
                head + d * self.base**place + tail
                for d in (digit - 1, -self.low)
                if -self.low <= d < digit
            ]
        return self._worst_of([t for t in ticks if t >= 1])

    def difference_norms(self, earlier: IntArray, later: IntArray) -> FloatArray:
        """The nodes that only one of the two prefixes uses."""
        return np.sqrt(self.apart(earlier, self._check_ticks(later)).astype(np.float64))

    def pair_norms(self, earlier: IntArray, later: IntArray) -> FloatArray:
        return self.difference_norms(*self._check_pairs(earlier, later))

    def _apart(self, earlier: IntArray, later: IntArray, square: Square) -> FloatArray:
        return np.asarray(self.apart(earlier, later) * square(np.asarray(1 / self.levels)))

    def apart(self, earlier: npt.ArrayLike, later: npt.ArrayLike) -> IntArray:
        """How many nodes make up the difference of two prefixes."""
        # The walks meet as soon as the highest place in which the two ticks differ has the same
        # digit: below that place every node is used by one of them only, and in it as many as the
        # digits are apart.
        one = self.digits(earlier)
        two = self.digits(later)
        low = np.zeros(one.shape[:-1], np.int64)
        size = np.zeros(one.shape[:-1], np.int64)
        for level in range(self.levels):
            a = one[..., level]
            b = two[..., level]
            size = np.where(a == b, size, low + np.abs(a - b))
            low = low + np.abs(a) + np.abs(b)
        return size

    def rows(self, ticks: IntArray) -> TreeRows:
        return self.below(self.levels, ticks)

    def below(self, levels: int, ticks: IntArray) -> TreeRows:
        """`rows` without the nodes of this level and of higher ones."""
        nothing = np.empty((len(ticks), 0), np.int64)
        nodes = [nothing[0]]
        places = [nothing]
        weights = [nothing]
        count = 0
        for level in range(levels):
            index = self._index(ticks, level)
            parent = self.base * self._index(ticks, level + 1)
            digit = index - parent
            numbers = np.arange(min(index.min(), parent.min()), max(index.max(), parent.max()) + 1)
            size = self.base**level
            # others are of higher levels
            proper = numbers != self.base * self._index(numbers * size, level + 1)
            nodes.append(numbers[proper] * size)
            steps = np.arange(np.abs(digit).max())
            at = np.where(digit > 0, parent + 1, index)[:, None] + steps - numbers[0]
            taken = steps < np.abs(digit)[:, None]
            places.append(np.where(taken, count - 1 + np.cumsum(proper)[np.where(taken, at, 0)], 0))
            weights.append(np.sign(digit)[:, None] * taken)
            count += len(nodes[-1])
        return TreeRows(
            np.concatenate(nodes), np.ones(count, np.int64), np.hstack(places), np.hstack(weights)
        )


class EndlessTree(PureFactorization):
    """A tree for each epoch of a stream without a horizon, and the total of each epoch for all
    later ones."""

    horizon = None
    column_norm = math.inf
    ends: IntArray
    """Epoch e holds the ticks ends[e] + 1 … ends[e + 1]."""

    @abstractmethod
    def tree(self, epoch: int, ticks: int | None = None) -> PureFactorization:
        """The tree inside an epoch, or that of its first ticks."""

    @abstractmethod
    def before(self, rate: float) -> FloatArray:
        """`laplace_errors` of the totals before each epoch, (3, epochs)."""

    @abstractmethod
    def inside(
        self, epoch: int, ticks: IntArray, rate: float
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """`laplace_errors` of the tree of an epoch."""

    @abstractmethod
    def factors(self, epoch: int, ticks: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(L, R, the row of L at later ticks) of the nodes of an epoch's first ticks."""

    def epochs(self, ticks: npt.ArrayLike) -> IntArray:
        """The epoch that holds each tick."""
        at = self._check_ticks(ticks)
        if at.size and int(at.max()) > LARGEST_TICKS:
            raise ParameterError(f"pure trees serve at most 2^40 ticks, got tick {int(at.max())}")
        return np.asarray(np.searchsorted(self.ends, at, side="left") - 1)

    def suspects(self, ticks: int) -> list[int]:
        worst = []
        for epoch in range(int(self.epochs([ticks])[0]) + 1):
            start = int(self.ends[epoch])
            stop = min(ticks, int(self.ends[epoch + 1]))
            worst.append(start + self.tree(epoch, stop - start).worst_row()[0])
        return worst

    def laplace_errors(
        self, ticks: npt.ArrayLike, rate: float
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The totals of earlier epochs, and the tree of the tick's own epoch."""
        at = np.asarray(ticks)
        epochs = self.epochs(ticks)
        exact, plain, largest = self.before(rate)[:, epochs]
        for epoch in np.unique(epochs).tolist():
            here = epochs == epoch
            own = self.inside(epoch, at[here] - self.ends[epoch], rate)
            exact[here] += own[0]
            plain[here] += own[1]
            largest[here] = np.maximum(largest[here], own[2])
        return exact, plain, largest

    def dense(self, ticks: int | None = None) -> tuple[FloatArray, FloatArray]:
        size = self._check_dense(ticks)
        rows = []
        columns = []
        for epoch in range(int(self.epochs([size])[0]) + 1):
            start = int(self.ends[epoch])
            stop = min(size, int(self.ends[epoch + 1]))
            left, right, later = self.factors(epoch, stop - start)
            tall = np.zeros((size, left.shape[1]))
            wide = np.zeros((len(right), size))
            tall[start:stop] = left
            tall[stop:] = later
            wide[:, start:stop] = right
            columns.append(tall)
            rows.append(wide)
        return np.hstack(columns), np.vstack(rows)


class HybridTree(EndlessTree):
    """The hybrid of Chan, Shi and Song for streams without a horizon.

    Epoch e holds the ticks 2^e … 2^(e+1) − 1. A part of ε pays for one noisy total per epoch, the
    rest for a tree in each epoch. `binary=True` is the published form: one half each, binary trees.
    The default spends a quarter on totals and has the best balanced tree in each epoch: less than
    half the std.

    **Guarantee.** A tick lies in one epoch's total and in at most `levels` nodes of that epoch's
    tree, and the shares of ε of these add up to at most 1. Proof:
    `mechanisms/laplace_noise.proof.md`, lemma 2. Test:
    tests/factorizations/test_laplace_trees.py::test_hybrid_budget.
    """

    levels = 2
    ends = (1 << np.arange(42)) - 1

    def __init__(self, binary: bool = False) -> None:
        self.binary = binary
        self.name = "pure-hybrid-binary" if binary else "pure-hybrid"
        self.total_share = Fraction(2) if binary else Fraction(4)
        """ε over the part of ε that an epoch's total has: the std of a total in units of that of
        rate ε/Δ₁."""

    def tree(self, epoch: int, ticks: int | None = None) -> DigitTree:
        whole = _epoch_tree(epoch, self.binary)
        if ticks is None:
            return whole
        return DigitTree(ticks, whole.base)

    def node_share(self, epoch: int) -> Fraction:
        """ε over the part of ε that one node of an epoch's tree has."""
        return self.tree(epoch).levels * self.total_share / (self.total_share - 1)

    def before(self, rate: float) -> FloatArray:
        total = rate / float(self.total_share)
        epochs = np.arange(len(self.ends))
        variance = node_variance(np.asarray(total))
        return np.stack([epochs * variance, epochs * (2 / total**2), np.minimum(epochs, 1) / total])

    def inside(
        self, epoch: int, ticks: IntArray, rate: float
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        own = rate / float(self.node_share(epoch))
        weight = self.tree(epoch).weight(ticks)
        return (
            weight * node_variance(np.asarray(own)),
            weight * np.float64(2 / own**2),
            np.minimum(weight, 1) / own,
        )

    def factors(self, epoch: int, ticks: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The total is the first node."""
        total = float(self.total_share)
        node = float(self.node_share(epoch))
        left, right = self.tree(epoch).dense(ticks)
        later = np.zeros(left.shape[1] + 1)
        later[0] = total
        rows = np.vstack([np.full(ticks, 1 / total), right / node])
        return np.hstack([np.zeros((ticks, 1)), left * node]), rows, later

    def difference_norm(self, earlier: int, later: int) -> float:
        earlier, later = self._check_pair(earlier, later)
        if earlier == 0:
            return float(self.row_norms([later])[0])
        return math.sqrt(
            self._apart(np.asarray([earlier]), np.asarray([later]), lambda share: 1 / share**2)[0]
        )

    def pair_norms(self, earlier: IntArray, later: IntArray) -> FloatArray:
        earlier, later = self._check_pairs(earlier, later)
        norms = np.empty(len(later))
        norms[earlier == 0] = self.row_norms(later[earlier == 0])
        rest = earlier > 0
        norms[rest] = np.sqrt(self._apart(earlier[rest], later[rest], lambda share: 1 / share**2))
        return norms

    def _apart(self, earlier: IntArray, later: IntArray, square: Square) -> FloatArray:
        first = self.epochs(earlier)
        last = self.epochs(later)
        out = np.empty(len(later))
        total = square(np.asarray(1 / float(self.total_share)))
        for a, b in set(zip(first.tolist(), last.tolist(), strict=True)):
            here = (first == a) & (last == b)
            start = earlier[here] - (1 << a) + 1
            stop = later[here] - (1 << b) + 1
            one, two = (square(np.asarray(1 / float(self.node_share(epoch)))) for epoch in (a, b))
            if a == b:
                out[here] = self.tree(a).apart(start, stop) * one
            else:
                out[here] = (
                    (b - a) * total
                    + self.tree(a).weight(start) * one
                    + self.tree(b).weight(stop) * two
                )
        return out


@lru_cache(maxsize=128)
def _epoch_tree(epoch: int, binary: bool) -> DigitTree:
    return DigitTree(1 << epoch, 2 if binary else best_base(1 << epoch))


@lru_cache(maxsize=256)
def best_base(horizon: int) -> int:
    """The odd base whose balanced tree has the least mean squared error over the horizon."""

    trees = (DigitTree(horizon, base) for base in BASES)
    return min(trees, key=lambda tree: tree.total_weight() * tree.levels**2).base
