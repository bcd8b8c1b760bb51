"""Weighted views of a run of releases: decayed sums, changes from week to week, any lower
triangular matrix."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from evercount._validate import FloatArray
from evercount.engine.error_model import Part, SpanErrors, interval_factors
from evercount.engine.views import View
from evercount.engine.weighted_errors import (
    WeightedErrors,
    check_weighted,
    of_sums,
    weighted_errors,
    weights_of,
)
from evercount.errors import ParameterError, UnknownName

if TYPE_CHECKING:
    from evercount.engine.release import Releases


@dataclass(frozen=True, eq=False, repr=False)
class WeightedView(View):
    """A view whose numbers are weighted sums of the ticks up to each tick. `Releases.weighted`
    makes it.

    **Guarantee.** A function of published numbers and public weights. Test:
    tests/engine/test_weighted_views.py::test_stds_are_those_of_the_matrices.
    """

    weights: FloatArray

    @cached_property
    def _weighted(self) -> WeightedErrors:
        return weighted_errors(self._errors, self.weights)

    @cached_property
    def _span_errors(self) -> SpanErrors:
        (part,) = self._parts
        own = self._weighted
        std, spread, slack = (side[:, np.newaxis] for side in own[:3])
        return SpanErrors(
            std * part.norms, spread * part.norms, slack * part.rounding, np.zeros((len(self), 1))
        )

    def _half_widths(self, level: float = 0.95) -> FloatArray:
        factor = interval_factors(level, self._weighted.numbers[:, np.newaxis])
        errors = self._span_errors
        return factor * errors.spread + errors.slack

    def quantile(self, q: float, level: float = 0.95) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Not of weighted sums.

        Raises:
            ParameterError: Always: weights make no distribution of values.
        """
        raise ParameterError("quantiles are of ticks that count alike: use per_tick, last or spans")


def weighted_view(releases: Releases, weights: Any, name: str | None) -> WeightedView:
    """The view of releases from tick 1 on; `Releases.weighted` explains the arguments."""
    errors = releases._errors
    check_weighted(releases.query)
    if releases.first_tick != 1:
        raise ParameterError(
            "a weighted view needs every tick from the first on, and these releases begin with "
            f"tick {releases.first_tick}: run from the start, or use last and spans"
        )
    if releases.postprocessed:
        raise ParameterError(
            f"these numbers were post-processed ({', '.join(releases.postprocessed)}), so the "
            "error of their combinations is unknown; release without post-processing"
        )
    if errors.joined:
        raise ParameterError(
            "weighted views are for streams whose keys were there from the first tick on"
        )
    ticks = len(releases)
    matrix = weights_of(weights, ticks)
    if matrix is None:
        raise UnknownName("weighted view", weights, ("decayed-0.9", "a lower triangular matrix"))
    shown = weights if isinstance(weights, str) else "weighted"
    until = np.arange(1, ticks + 1)
    ones = np.ones(releases.query.outputs)
    parts = tuple(
        Part(part.after, ones * part.norms, ones * part.rounding) for part in errors.parts
    )
    values = of_sums(matrix) @ releases.rows
    return WeightedView(
        name or shown,
        np.ones_like(until),
        until,
        tuple(releases.labels),
        values,
        parts,
        errors,
        releases.guarantee,
        matrix,
    )
