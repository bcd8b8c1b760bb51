"""Trees for pure differential privacy: a prefix as a signed sum of few nodes, each tick in at most `levels` nodes.

Write a tick t in base k, with digits 0 … k−1 (`balanced=False`) or −(k−1)/2 … (k−1)/2 (`balanced=True`, k odd). Walking
from t to 0 by moving its lowest digit that is not 0 one step towards 0 visits |d_0| + |d_1| + … numbers; each step
v → parent(v) spans an interval of k^i ticks, the node v. The prefix of t is the sum of the nodes on its walk, those of
negative digits subtracted. Nodes may reach into the future: their true values cancel, and their noise does not depend
on data. So noise is added to the true prefix, tick by tick, with nodes as random numbers with an index.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from evercount._arrays import FloatArray, IntArray
from evercount.errors import ParameterError
from evercount.factorizations.base import check_horizon
from evercount.factorizations.laplace_base import LARGEST_TICKS, Draw, PureFactorization, node_variance

Memory = list[tuple[int, IntArray]]
"""Per level, highest first: where the last tick stood, and the noise of the prefix up to there."""

BASES = range(3, 100, 2)


class DigitTree(PureFactorization):
    """The tree of the module docstring for one base and one horizon.

    **Guarantee.** Every tick lies in at most `levels` nodes (one per digit place), so a change of the increments with
    l1 norm Δ₁ changes all nodes together by at most levels·Δ₁ in l1. Proof: `mechanisms/laplace_noise.proof.md`, lemma
    1. Test: tests/factorizations/test_laplace_trees.py::test_every_tick_lies_in_at_most_levels_nodes.
    """

    def __init__(self, horizon: int, base: int = 2, balanced: bool = False) -> None:
        T = check_horizon(horizon)
        assert T is not None
        if T > LARGEST_TICKS:
            raise ParameterError(f"pure trees serve at most 2^40 ticks, the horizon is {T}")
        if isinstance(base, bool) or not isinstance(base, int) or not 2 <= base <= 1000:
            raise ParameterError(f"the base of a tree must be a whole number from 2 to 1000, got {base!r}")
        if balanced and base % 2 == 0:
            raise ParameterError(f"balanced digits need an odd base, got {base}")
        self.horizon = T
        self.base, self.balanced = base, balanced
        self.low = (base - 1) // 2 if balanced else 0  # digits go from −low to base − 1 − low
        levels, largest = 0, 0
        while largest < T:
            largest += (base - 1 - self.low) * base**levels
            levels += 1
        self.levels = levels
        self.column_norm = math.sqrt(levels) * (1 + 1e-9)
        self.name = f"pure-tree-{base}" if balanced else ("pure-binary" if base == 2 else f"pure-plain-{base}")

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

    def walk(self, tick: int) -> dict[int, int]:
        """The nodes of a prefix with their signs."""
        signs = {}
        for level, digit in enumerate(self.digits([tick])[0].tolist()):
            step = self.base**level
            for _ in range(abs(digit)):
                sign = 1 if digit > 0 else -1
                signs[tick] = sign
                tick -= sign * step
        return signs

    def interval(self, node: int) -> tuple[int, int]:
        """(first, last) tick of a node, 1-based; `last` may lie beyond the horizon."""
        for level, digit in enumerate(self.digits([node])[0].tolist()):
            if digit:
                size = self.base**level
                return (node - size + 1, node) if digit > 0 else (node + 1, node + size)
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

    def laplace_errors(self, ticks: npt.ArrayLike, rate: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        weight = self.weight(self._check_ticks(ticks)).astype(np.float64)
        own = rate / self.levels
        return weight * node_variance(np.asarray(own)), weight * (2 / own**2), np.full(weight.shape, 1 / own)

    def weight_counts(self) -> IntArray:
        """How many ticks of the horizon have weight 0, 1, 2, …, from the digits of the horizon."""
        assert self.horizon is not None
        return self._counts_up_to(self.horizon) - self._counts_up_to(0)

    def _counts_up_to(self, number: int) -> IntArray:
        """How many numbers with `levels` digits, negative ones too, lie below or at this one, by weight."""
        digits = self.digits([number])[0].tolist()
        counts = np.zeros(self.base * self.levels + 1, np.int64)
        counts[sum(map(abs, digits))] = 1
        free = np.ones(1, np.int64)  # by weight, of all choices of the digits below a place
        for place, digit in enumerate(digits):
            smaller = np.convolve(free, np.bincount([abs(d) for d in range(-self.low, digit)], minlength=1))
            above = sum(map(abs, digits[place + 1 :]))
            counts[above : above + len(smaller)] += smaller
            free = np.convolve(free, np.bincount([abs(d) for d in range(-self.low, self.base - self.low)]))
        return counts

    def worst_row(self) -> tuple[int, float]:
        """(tick, √weight) with the largest weight of all ticks, exactly."""
        # A tick below T agrees with T above some place, has a smaller digit there and any digits below: only the two
        # ends of the smaller digits and the largest digits below can be the worst.
        T = self.horizon
        assert T is not None
        digits = self.digits([T])[0].tolist()
        top = self.base - 1 - self.low
        ticks = [T]
        for place, digit in enumerate(digits):
            head = sum(d * self.base**i for i, d in enumerate(digits) if i > place)
            tail = top * ((self.base**place - 1) // (self.base - 1))
            ticks += [head + d * self.base**place + tail for d in (digit - 1, -self.low) if -self.low <= d < digit]
        candidates = np.asarray([t for t in ticks if t >= 1])
        weights = self.weight(candidates)
        at = int(np.argmax(weights))
        return int(candidates[at]), math.sqrt(int(weights[at]))

    def difference_norm(self, earlier: int, later: int) -> float:
        """The nodes that only one of the two prefixes uses."""
        earlier, later = self._check_pair(earlier, later)
        return math.sqrt(int(self.apart([earlier], [later])[0]))

    def apart(self, earlier: npt.ArrayLike, later: npt.ArrayLike) -> IntArray:
        """How many nodes make up the difference of two prefixes."""
        # The walks meet as soon as the highest place in which the two ticks differ has the same digit: below that place
        # every node is used by one of them only, and in it as many as the digits are apart.
        one, two = self.digits(earlier), self.digits(later)
        low, size = np.zeros(one.shape[:-1], np.int64), np.zeros(one.shape[:-1], np.int64)
        for level in range(self.levels):
            a, b = one[..., level], two[..., level]
            size = np.where(a == b, size, low + np.abs(a - b))
            low = low + np.abs(a) + np.abs(b)
        return size

    def dense(self, ticks: int | None = None) -> tuple[FloatArray, FloatArray]:
        """(L, R) with a column of L and a row of R for every node that a prefix of the first `ticks` ticks uses."""
        size = self._check_dense(ticks)
        walks = [self.walk(t) for t in range(1, size + 1)]
        place = {node: i for i, node in enumerate(sorted(set().union(*walks)))}
        left, right = np.zeros((size, len(place))), np.zeros((len(place), size))
        for row, walk in enumerate(walks):
            for node, sign in walk.items():
                left[row, place[node]] = sign
        for node, i in place.items():
            first, last = self.interval(node)
            right[i, first - 1 : last] = 1.0
        return left, right

    def noise(self, first: int, count: int, draw: Draw, top: tuple[int, IntArray] | None = None) -> IntArray:
        """Noise of ticks first … first+count−1 (1-based), shape (count, cells). Each node is drawn at most once."""
        # `top`, where it is known already: the noise of the prefixes of whole nodes of the highest level, from a node
        # on.
        ends = np.asarray([first, first + count - 1])
        span = [self._index(ends, level) for level in range(self.levels + 1)]
        if top is None:  # above the highest level there is one prefix: the empty one
            top = 0, np.zeros((1, draw(np.empty(0, np.int64)).shape[1]), np.int64)
            levels = self.levels
        else:
            levels = self.levels - 1
        low, known = top
        for level in range(levels - 1, -1, -1):
            start = min(int(span[level][0]), low * self.base)
            stop = max(int(span[level][1]), (low + len(known) - 1) * self.base)
            index = np.arange(start, stop + 1)
            parent = self._index(index, 1)
            digit = index - self.base * parent
            values = np.empty((len(index), known.shape[1]), np.int64)
            inner = digit != 0
            values[inner] = draw(index[inner] * self.base**level)
            values[~inner] = known[parent[~inner] - low]
            for d in range(1, self.base - self.low):
                at = np.flatnonzero(digit == d)
                values[at] += values[at - 1]
            for d in range(1, self.low + 1):
                at = np.flatnonzero(digit == -d)
                values[at] = values[at + 1] - values[at]
            low, known = start, values
        return known[first - low : first - low + count]

    def step(self, memory: Memory | None, tick: int, draw: Draw) -> tuple[IntArray, Memory]:
        """Noise of one tick, shape (cells,), and what the next tick can reuse: the prefix noise at every level."""
        # The same numbers as `noise`, with about 1.5 draws a tick when ticks are taken in turn: for very many cells.
        kept: Memory = []
        above = draw(np.empty(0, np.int64)).sum(axis=0)
        parent = 0
        for level in range(self.levels - 1, -1, -1):
            index, size = int(self._index(np.asarray(tick), level)), self.base**level
            old, row = memory[len(kept)] if memory is not None else (None, above)
            if old == index:
                pass
            elif old is not None and old == index - 1 and int(self._index(np.asarray(old), 1)) == parent:
                row = row + draw(np.asarray([(index if old >= parent * self.base else old) * size]))[0]
            else:
                digit = index - parent * self.base
                steps = np.arange(1, abs(digit) + 1) * (1 if digit > 0 else -1)
                nodes = draw((parent * self.base + steps) * size).sum(axis=0)
                row = above + nodes if digit > 0 else above - nodes
            kept.append((index, row))
            above, parent = row, index
        return above, kept


class HybridTree(PureFactorization):
    """The hybrid of Chan, Shi and Song for streams without a horizon.

    Epoch e holds the ticks 2^e … 2^(e+1) − 1. A part of ε pays for one noisy total per epoch, the rest for a tree in
    each epoch. `binary=True` is the published form: one half each, binary trees. The default spends a quarter on
    totals and has the best balanced tree in each epoch: less than half the std.

    **Guarantee.** A tick lies in one epoch's total and in at most `levels` nodes of that epoch's tree, and the shares
    of ε of these add up to at most 1. Proof: `mechanisms/laplace_noise.proof.md`, lemma 2. Test:
    tests/factorizations/test_laplace_trees.py::test_hybrid_budget.
    """

    horizon = None
    column_norm = math.inf
    levels = 2

    def __init__(self, binary: bool = False) -> None:
        self.binary = binary
        self.name = "pure-hybrid-binary" if binary else "pure-hybrid"
        self.total_share = Fraction(2) if binary else Fraction(4)
        """ε over the part of ε that an epoch's total has: the std of a total in units of that of rate ε/Δ₁."""

    def tree(self, epoch: int) -> DigitTree:
        """The tree inside an epoch."""
        return _epoch_tree(epoch, self.binary)

    def node_share(self, epoch: int) -> Fraction:
        """ε over the part of ε that one node of an epoch's tree has."""
        return self.tree(epoch).levels * self.total_share / (self.total_share - 1)

    def suspects(self, ticks: int) -> list[int]:
        worst = []
        for epoch in range(ticks.bit_length()):
            tree, start = self.tree(epoch), 1 << epoch
            part = DigitTree(min(start, ticks - start + 1), tree.base, tree.balanced)
            worst.append(start - 1 + part.worst_row()[0])
        return worst

    def laplace_errors(self, ticks: npt.ArrayLike, rate: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        t = self._check_ticks(ticks)
        epochs = np.frexp(t.astype(np.float64))[1].astype(np.int64) - 1
        total = rate / float(self.total_share)
        exact: FloatArray = epochs * node_variance(np.asarray(total))
        plain: FloatArray = epochs * np.float64(2 / total**2)
        largest: FloatArray = np.where(epochs > 0, 1 / total, 0.0)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            weight = self.tree(int(epoch)).weight(t[here] - (1 << int(epoch)) + 1)
            own = rate / float(self.node_share(int(epoch)))
            exact[here] += weight * node_variance(np.asarray(own))
            plain[here] += weight * (2 / own**2)
            largest[here] = np.where(weight > 0, np.maximum(largest[here], 1 / own), largest[here])
        return exact, plain, largest

    def difference_norm(self, earlier: int, later: int) -> float:
        earlier, later = self._check_pair(earlier, later)
        if earlier == 0:
            return float(self.row_norms([later])[0])
        one, two = earlier.bit_length() - 1, later.bit_length() - 1
        first, second = earlier - (1 << one) + 1, later - (1 << two) + 1
        if one == two:
            return float(self.node_share(one)) * self.tree(one).difference_norm(first, second)
        squared = float(self.total_share) ** 2 * (two - one)
        for epoch, tick in ((one, first), (two, second)):
            squared += float(self.node_share(epoch)) ** 2 * int(self.tree(epoch).weight([tick])[0])
        return math.sqrt(squared)

    def dense(self, ticks: int | None = None) -> tuple[FloatArray, FloatArray]:
        """(L, R) of the first ticks: epochs' totals and trees; rows of R carry the nodes' shares of ε."""
        size = self._check_dense(ticks)
        rows: list[FloatArray] = []
        columns: list[FloatArray] = []
        for epoch in range(size.bit_length()):
            start, stop = (1 << epoch) - 1, min((2 << epoch) - 1, size)
            total, after = np.zeros(size), np.zeros(size)
            total[start:stop], after[stop:] = 1 / float(self.total_share), float(self.total_share)
            rows.append(total[np.newaxis])
            columns.append(after[:, np.newaxis])
            share = 1 / float(self.node_share(epoch))
            left, right = self.tree(epoch).dense(stop - start)
            wide, tall = np.zeros((len(right), size)), np.zeros((size, left.shape[1]))
            wide[:, start:stop], tall[start:stop] = right * share, left / share
            rows.append(wide)
            columns.append(tall)
        return np.hstack(columns), np.vstack(rows)


@lru_cache(maxsize=128)
def _epoch_tree(epoch: int, binary: bool) -> DigitTree:
    return DigitTree(1 << epoch, 2) if binary else DigitTree(1 << epoch, best_base(1 << epoch), True)


@lru_cache(maxsize=256)
def best_base(horizon: int) -> int:
    """The odd base whose balanced tree has the least mean squared error over the horizon."""

    def cost(base: int) -> int:
        tree = DigitTree(horizon, base, True)
        return tree.total_weight() * tree.levels**2

    return min(BASES, key=cost)


def leading_constant(base: int) -> float:
    """Mean squared error of a balanced tree over log₂³T/ε², T large: (k² − 1)/(2k·log₂³k); 0.1236 at k = 19."""
    return (base**2 - 1) / (2 * base * math.log2(base) ** 3)
