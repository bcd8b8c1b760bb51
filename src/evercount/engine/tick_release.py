"""Release: what one tick publishes, with its exact errors. It is a view of one row of
`Releases`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, cast

import numpy as np
import numpy.typing as npt

from evercount._validate import FloatArray, IntArray, check_number
from evercount.engine.release_table import Exports
from evercount.errors import ParameterError
from evercount.queries.base import Query, V_co
from evercount.queries.cuts.cut_graph import CutGraph, CutNoise, CutValue
from evercount.queries.discovered_keys import top_discovered
from evercount.queries.publishing import TopKey, supported_keys

if TYPE_CHECKING:
    from evercount.engine.release import Releases

LISTED = 8  # numbers that are shown of a release


class Release(Generic[V_co]):
    """What one tick publishes: `values` with one entry per output. Errors are computed when they
    are asked for.

    Args:
        run: the releases of this tick alone; `Stream.step` and `Releases` give single ones.

    >>> from evercount import Budget, Count, Stream
    >>> release = Stream(Count(), Budget(1.0, 1e-6), 24).step(100)
    >>> release.tick, round(release.std, 1)
    (1, 2.7)
    """

    noise: ClassVar[str] = Exports.noise
    """The kind of noise: exact."""

    def __init__(self, run: Releases[V_co]) -> None:
        self._run = run

    @property
    def tick(self) -> int:
        """The 1-based tick."""
        return self._run.first_tick

    @property
    def query(self) -> Query:
        """What was asked."""
        return self._run.query

    @property
    def values(self) -> FloatArray:
        """The published numbers, one per output."""
        return np.asarray(self._run.rows[0][self._published], dtype=np.float64)

    @property
    def _published(self) -> slice | IntArray:
        """The places of the outputs that the tick publishes; the others of its row are NaN."""
        if self._run._labels is None:
            return slice(None)
        return np.flatnonzero(~np.isnan(self._run.rows[0]))

    @property
    def labels(self) -> Sequence[str]:
        """One label per output."""
        places = self._published
        labels = self._run.labels
        if isinstance(places, slice):
            return labels[places]
        return tuple(labels[place] for place in places.tolist())

    @property
    def value(self) -> V_co:
        """The published number, or the array of them where the query has several outputs."""
        return self._single(self.values)

    @property
    def stds(self) -> FloatArray:
        """The exact std of each output (before post-processing)."""
        return np.asarray(self._run.stds[0][self._published], dtype=np.float64)

    @property
    def guarantee(self) -> str:
        """The guarantee of the whole stream in one sentence."""
        return self._run.guarantee

    @property
    def std(self) -> V_co:
        """The std of `value`: a number, or one per output."""
        return self._single(self.stds)

    def _single(self, numbers: FloatArray) -> V_co:
        """Take the number out of its array where the query has only one output."""
        if self.query.single:
            return cast(V_co, float(numbers[0]))
        return cast(V_co, numbers)

    @property
    def postprocessed(self) -> tuple[str, ...]:
        """The post-processing that was applied."""
        return self._run.postprocessed

    def interval(self, level: float = 0.95) -> tuple[V_co, V_co]:
        """(low, high) that holds the true number with probability at least `level`, for each output
        by itself.

        Post-processing to nonnegative numbers keeps that true if the true number is not negative.
        Post-processing to whole numbers changes nothing where exact noise is added to whole
        numbers; elsewhere (a fractional grid, an average) it makes the interval 1/2 wider on either
        side. A monotone release is the largest number so far, so its interval has to hold for all
        ticks at once and is wider. The interval of an average per event is not symmetric.

        Args:
            level: the probability.

        Returns:
            (low, high): numbers, or arrays where `value` is one.

        Raises:
            ParameterError: the level is not between 0 and 1.
        """
        low, high = (side[0][self._published] for side in self._run._limits(level))
        if self.query.single:
            return cast(tuple[V_co, V_co], (float(low[0]), float(high[0])))
        return cast(tuple[V_co, V_co], (low, high))

    def top(self, k: int | None = None, level: float = 0.95) -> list[TopKey]:
        """The k largest published numbers with their labels; k defaults to that of a `TopK`, else
        to 1.

        The intervals of all numbers hold at once with probability at least `level`, and so for
        selected ones; `confidence` is that the key belongs to the true k largest (`TopKey`); where
        keys are discovered, to the k largest of the keys that are public.

        Args:
            k: How many numbers.
            level: The probability that all intervals hold at once.

        Returns:
            The numbers with their labels, the largest first.

        Raises:
            ParameterError: k is not a whole number of at least 1, or the query publishes nothing to
                select from.
        """
        discovery = self.query.discovery
        number = 1 if k is None else k
        if discovery is not None:
            assert self._run._sums is not None
            evidence = self._run._sums[0][self._published]
            return top_discovered(
                discovery, self.labels, self.values, evidence, self._run._cells, number, level
            )
        return self.query.top(self.values, self._run._rank_errors, k, level)

    def supported(self, threshold: float | None = None, level: float = 0.95) -> list[TopKey]:
        """All labels whose published number passes a public threshold: the support filter for words
        and large keys.

        Most words of a large alphabet never occur, and their noise would drown the others. The
        default threshold of a label is half the width of its interval: then with probability at
        least `level` every label that is listed has truly occurred.

        Args:
            threshold: Least noisy number; None for the default.
            level: Probability that all intervals of this tick hold at once.

        Returns:
            The labels that pass, largest number first, with intervals as in `top`.

        Raises:
            ParameterError: the threshold is not a number, or the level is not between 0 and 1.
        """
        if threshold is not None:
            threshold = check_number("threshold", threshold)
        return supported_keys(
            list(self.labels), self.values, self._run._rank_errors, threshold, level
        )

    def consistent(self) -> FloatArray:
        """Published numbers moved to the nearest ones that are possible, for `DegreeHistogram` and
        `DegreeSequence`.

        They are post-processed, so `std` and `interval` do not apply; they are closer to the truth.

        Returns:
            One number for each output.

        Raises:
            ParameterError: The query has no such form.
        """
        return self.query.consistent(self.values)

    def graph(self) -> CutGraph:
        """The released weighted graph of a `Cuts` stream.

        Returns:
            The graph.

        Raises:
            ParameterError: The query is not `Cuts`, or the weights were post-processed.
        """
        if self.query.cuts is None:
            raise ParameterError("only releases of Cuts are graphs")
        if self.postprocessed:
            raise ParameterError(
                f"these weights were post-processed ({', '.join(self.postprocessed)}), so the "
                "error of their sums is unknown; release without post-processing and post-process "
                "the cut"
            )
        errors = self._run._cells
        model = self._run._errors
        spread, slack, step = (
            float(np.max(part)) for part in (errors.spread, errors.slack, errors.step)
        )
        # sums of discrete Laplace numbers need half a unit once, however many
        if model.pure and not model.rounded:
            slack, step = 0.0, slack
        laplace = int(model.equal_numbers(np.asarray([self.tick]))[0, 0]) or None
        return self.query.cuts.graph(
            self.values, float(self.stds[0]), CutNoise(spread, slack, step, laplace)
        )

    def cut(self, S: Collection[int], P: Collection[int] | None = None) -> CutValue:
        """The weight between vertex sets S and P (default: all others) with its exact std, for
        `Cuts`.

        Args:
            S: Vertices, by their numbers.
            P: Vertices that are not in S; None for all others.

        Returns:
            The weight and its std.

        Raises:
            ParameterError: The query is not `Cuts`, or the sets are not legal.
        """
        return self.graph().cut(S, P)

    def __repr__(self) -> str:
        ends = (side[0][self._published] for side in self._run._limits(0.95))
        rows = list(zip(self.labels, self.values, self.stds, *ends, strict=True))
        shown = ", ".join(
            f"{label}={value:,.6g} ± {std:.3g} [{a:,.6g}, {b:,.6g}]"
            for label, value, std, a, b in rows[:LISTED]
        )
        more = f", … {len(rows) - LISTED} more" if len(rows) > LISTED else ""
        return f"Release(tick={self.tick}, {shown}{more})"

    def _repr_html_(self) -> str:
        """The numbers with their intervals, for notebooks."""
        return self._run._repr_html_()

    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]:
        """The published numbers, as `values` has them."""
        return np.array(self.values, dtype=dtype)
