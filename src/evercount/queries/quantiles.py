"""Quantiles: the running distribution of a bounded value over public bins, and any quantile of it
with an interval."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from evercount._validate import FloatArray, IntArray, check_count, check_number
from evercount.errors import ParameterError
from evercount.queries.consistent_tree import ConsistentTree
from evercount.queries.counts import check_range, values_inside
from evercount.queries.publishing import Publishing, check_weights
from evercount.queries.rollup import TreeQuery
from evercount.queries.sensitivities import RowFormat

MOST_BINS = 2**16


class Quantiles(TreeQuery):
    """How many values lay below each edge of public bins so far: a distribution, of which any
    quantile can be read.

    An event is a value in [low, high]. The range is divided into `bins` bins of one width, and all
    nodes of the binary tree over them are counted with noise of their own (`Rollup`). Published
    are, for each bin, the number of values below its upper edge, with exact stds. `View.quantile`
    reads the median or any other quantile with an interval from them, at no further cost:
    `releases.running().quantile(0.5)` of all values so far, `releases.last(24).quantile(0.5)` of
    the last 24 ticks.

    Args:
        low: the range of a value.
        high: the range of a value.
        bins: a power of two from 2 to 65,536. A quantile is known no better than to its bin.
        weights: one whole number for each level of the tree from the top, log2(bins) + 1 of them
            (default: 1 each); see `Rollup`.

    Raises:
        ParameterError: low is not below high, bins is not such a power of two, or the range is too
            narrow for doubles.

    Guarantee. See `TreeQuery`: S = Σ weight² for add-remove, log2(bins) + 1 by default. Intervals
    of quantiles hold at least as often as they say, for one tick and one quantile. Proof:
    `rollup.proof.md`, "Quantiles". Tests:
    tests/queries/test_queries_quantiles.py::test_sensitivity_is_the_exact_maximum and
    tests/queries/test_queries_quantiles.py::test_intervals_hold_as_often_as_they_say.

    >>> query = Quantiles(low=0, high=100, bins=4)
    >>> query.labels
    ('below 25.0', 'below 50.0', 'below 75.0', 'total')
    >>> query.encode(None, [3, 99.5, 100])[0].tolist()
    [3, 1, 2, 1, 0, 0, 2]
    """

    name: ClassVar[str] = "quantiles"
    tree: ConsistentTree

    def __init__(
        self, low: float, high: float, bins: int = 64, weights: Sequence[int] | None = None
    ) -> None:
        self.low = check_number("low", low)
        self.high = check_number("high", high)
        check_range(low, high)
        self.bins = check_count("bins", bins, least=2)
        if self.bins & (self.bins - 1) or self.bins > MOST_BINS:
            raise ParameterError(f"bins must be a power of two from 2 to {MOST_BINS}, got {bins}")
        self.width = (self.high - self.low) / self.bins
        if not max(abs(self.low), abs(self.high)) < self.width * 2**40:
            raise ParameterError(
                f"doubles cannot tell {bins} bins from {low} to {high} apart: move the range "
                "nearer 0"
            )
        self.height = self.bins.bit_length() - 1
        children = tuple((2,) * (1 << level) for level in range(self.height))
        self.tree = ConsistentTree(
            children, check_weights(weights, self.height + 1, "level from the top", least=0)
        )

    @property
    def edges(self) -> FloatArray:
        """The edges of the bins, bins + 1 of them."""
        return np.append(self.low + self.width * np.arange(self.bins), self.high)

    @cached_property
    def labels(self) -> tuple[str, ...]:
        return (*(f"below {edge!r}" for edge in self.edges[1:-1].tolist()), "total")

    def parameters(self) -> dict[str, Any]:
        return {
            "low": self.low,
            "high": self.high,
            "bins": self.bins,
            "weights": list(self.tree.weights),
        }

    # -- from values to leaves ---------------------------------------------------------------------

    def leaves_of(self, events: list[Any]) -> npt.NDArray[np.intp]:
        values = values_inside(events, self.low, self.high)
        return np.minimum(np.floor((values - self.low) / self.width), self.bins - 1).astype(np.intp)

    @property
    def rows(self) -> RowFormat:
        bins = (self.low, self.width, self.bins)
        return RowFormat(
            ("value",),
            range=(self.low, self.high, self.width),
            bins=bins,
            totals=self._totals_of_rows,
        )

    # -- from noisy cells to the distribution ------------------------------------------------------

    @cached_property
    def publishing(self) -> Publishing:
        return Publishing(
            self._decode, lambda: self.norms_against(0.0), self._rounding, self._covariance
        )

    def _decode(self, first_tick: int, noisy: FloatArray) -> FloatArray:
        return np.cumsum(self.tree.estimate(noisy)[:, -self.bins :], axis=1)

    @cached_property
    def _parts(self) -> FloatArray:
        """g of `rollup.proof.md`, shape (levels below the root, bins): the part of each r in the
        number below an edge. Row ℓ−1 belongs to the node of level ℓ that holds the edge: β where it
        is a left child, 1 − β where a right one."""
        edge = np.arange(1, self.bins + 1)
        rows = []
        for level in range(1, self.height + 1):
            size = self.bins >> level
            node = np.minimum(edge // size, (1 << level) - 1)
            # which part of the node's bins lies left of the edge
            inside = (edge - node * size) / size
            rows.append(np.where(node % 2 == 0, inside, 1 - inside))
        return np.stack(rows)

    @property
    def quantiles(self) -> Self:
        return self

    def norms_against(self, q: float) -> FloatArray:
        """Std of (number below each edge) − q·(number of all), in units of a cell's std."""
        left = np.arange(1, self.bins + 1) / self.bins
        # Var r of each level
        below = np.asarray([self.tree.own[level][0] / 2 for level in range(1, self.height + 1)])
        return np.asarray(
            np.sqrt((left - q) ** 2 * float(self.tree.own[0][0]) + below @ self._parts**2)
        )

    def _rounding(self) -> FloatArray:
        left = np.arange(1, self.bins + 1) / self.bins
        below = np.asarray(
            [self.tree.own_rounding[level][0] for level in range(1, self.height + 1)]
        )
        return np.asarray(left * float(self.tree.rounding[0]) + below @ self._parts)

    def _leaves_in(self, output: int) -> tuple[IntArray, int]:
        return np.arange(output + 1), -1

    # -- reading a quantile ------------------------------------------------------------------------

    def read_quantile(
        self, below: FloatArray, half: FloatArray, q: float
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(value, low, high) of the q-quantile. **Guarantee.** See the class."""
        number = below[:, -1:]
        apart = below[:, :-1] - q * number  # at the inner edges 1 … bins−1
        inner = half[:, :-1]
        # bin j is the first whose upper edge may have enough values below it; the last bin always
        # has
        enough = np.concatenate([apart + inner >= 0, np.ones((len(below), 1), bool)], axis=1)
        first = np.argmax(enough, axis=1)
        # bin j is the last whose lower edge may have too few; the first bin always has
        few = np.concatenate([np.ones((len(below), 1), bool), apart - inner < 0], axis=1)
        last = self.bins - 1 - np.argmax(few[:, ::-1], axis=1)
        edges = self.edges
        low = edges[np.minimum(first, last)]
        high = edges[np.maximum(first, last) + 1]
        return np.clip(self._inverse(below, q), low, high), low, high

    def _inverse(self, below: FloatArray, q: float) -> FloatArray:
        """Find where the monotone distribution, straight inside each bin, reaches q; the middle of
        the range without one."""
        from scipy.optimize import isotonic_regression

        out = np.full(len(below), (self.low + self.high) / 2)
        for tick, row in enumerate(below):
            rising = np.clip(np.concatenate([[0.0], isotonic_regression(row).x]), 0.0, None)
            if rising[-1] > 0:
                rank = q * rising[-1]
                j = min(int(np.searchsorted(rising, rank, side="left")), self.bins)
                step = rising[j] - rising[j - 1] if j else 0.0
                inside = 0.0
                if step > 0:
                    inside = (rank - rising[j - 1]) / step
                out[tick] = self.low + self.width * (max(j - 1, 0) + inside)
        return out
