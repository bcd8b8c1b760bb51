"""Running totals that a stream hands to its successor, which adds its own to them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from evercount._validate import FloatArray, IntArray
from evercount.bounds.tails import equal_numbers
from evercount.engine.error_model import ErrorModel, interval_factors
from evercount.engine.release_table import LEVEL, ReleaseTable, table_of
from evercount.errors import ParameterError
from evercount.queries.base import Query


@dataclass(frozen=True, eq=False)
class CarriedTotals:
    """The last published running totals of the streams before, by cell. Public.

    **Guarantee.** A function of releases and public parameters, so adding it costs nothing:
    `composition.proof.md`, section 8, "Totals that are carried over". An interval of a sum holds as
    often as stated: `cell_errors.proof.md`, "Totals that go on from another stream". Test:
    tests/engine/test_carried_totals.py::test_intervals_hold.
    """

    since: int  # the instant from which on they count, in microseconds since 1970
    labels: tuple[str, ...]
    # value, std², spread², slack and largest part (`_errors_at`) of each cell, shape (5, cells)
    numbers: FloatArray

    @classmethod
    def after(
        cls, errors: ErrorModel, tick: int, values: FloatArray, since: int, before: Self | None
    ) -> Self:
        """The totals that a stream has published at a tick, with those that it goes on from itself;
        0: at its start."""
        labels = tuple(errors.query.labels)
        own = np.zeros((5, len(labels)))
        if tick:
            own = np.vstack([values, _errors_at(errors, np.asarray([tick]))[:, 0]])
        if before is None:
            return cls(since, labels, own)
        return cls(before.since, labels, _add(own, before.among(labels)))

    @classmethod
    def load(cls, data: dict[str, Any] | None) -> Self | None:
        if data is None:
            return None
        return cls(data["since"], tuple(data["labels"]), data["numbers"])

    def to_dict(self) -> dict[str, Any]:
        return {"since": self.since, "labels": list(self.labels), "numbers": self.numbers}

    def among(self, labels: tuple[str, ...]) -> FloatArray:
        """The numbers of these cells; zero for those that have joined since."""
        place = {label: number for number, label in enumerate(self.labels)}
        wide = np.hstack([self.numbers, np.zeros((5, 1))])
        return np.asarray(wide[:, [place.get(label, -1) for label in labels]])

    @property
    def std(self) -> float:
        return float(np.sqrt(self.numbers[1].max(initial=0.0)))

    def add_to(self, table: ReleaseTable, errors: ErrorModel, level: float = LEVEL) -> ReleaseTable:
        """Running totals of the stream with these on top of them. A total that was not published
        makes none."""
        if not len(table.ticks):
            return table
        place = {label: number for number, label in enumerate(errors.query.labels)}
        cells = tuple(table.cells[: table.numbers.shape[2]])
        own = _errors_at(errors, table.ticks)[:, :, [place[cell] for cell in cells]]
        published = np.concatenate([table.numbers[np.newaxis, :, 0], own])
        value, variance, square, slack, part = _add(published, self.among(cells)[:, np.newaxis])
        # 0: normal
        weights = np.where(
            part > 0, equal_numbers(square, np.sqrt(np.where(part > 0, part, 1.0) / 2)), 0
        )
        half = interval_factors(level, weights) * np.sqrt(square) + slack
        std = np.where(np.isnan(value), np.nan, np.sqrt(variance))
        stated = table_of(table.ticks, None, cells, [value, std, value - half, value + half])
        return replace(table, cells=cells, numbers=stated.numbers)


def _errors_at(errors: ErrorModel, ticks: IntArray) -> FloatArray:
    """std², spread², slack and largest part at each tick, shape (4, ticks, outputs). Laplace noise
    is a sum of numbers, none of which has more of the variance spread² than the largest part, so
    that `equal_numbers` is spread² over it. The largest part of normal noise is 0."""
    std, spread, slack = errors.errors(ticks)
    weights = errors.equal_numbers(ticks)
    if errors.joined:
        weights = np.minimum(weights, 1)
    part = spread**2 * np.where(weights > 0, 1 / np.maximum(weights, 1), 0.0)
    shape = (len(ticks), errors.query.outputs)
    return np.stack([np.broadcast_to(side, shape) for side in (std**2, spread**2, slack, part)])


def _add(one: FloatArray, other: FloatArray) -> FloatArray:
    """Add up numbers and errors of independent numbers."""
    return np.concatenate([one[:4] + other[:4], np.maximum(one[4:], other[4:])])


def check_carries(query: Query, postprocess: tuple[str, ...], revise_for: int | None) -> None:
    begin = "running totals are not carried over: "
    published = query.publishing
    unfit = query.discovery or query.quantiles or not query.memoryless or published.kept is not None
    if unfit or postprocess or revise_for is not None:
        raise ParameterError(
            f"{begin}only sums of listed keys go on, not unlisted keys (list them), quantiles (add "
            "up histograms of published counts), averages per event (publish the sum and the "
            "count), queries that remember events, days that are revised or post-processed totals "
            "(declare views, which are post-processed instead)"
        )
    published.check_views(begin, None)
