"""Running totals that go on from those of the stream before: what it published last is added, and its error with it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from evercount._arrays import FloatArray, IntArray
from evercount.bounds.laplace_tails import equal_numbers
from evercount.engine.error_model import ErrorModel, interval_factor
from evercount.engine.release_table import LEVEL, ReleaseTable, table_of
from evercount.errors import ParameterError
from evercount.queries.base import Query


@dataclass(frozen=True, eq=False)
class CarriedTotals:
    """The last published running totals of the streams before, by cell. Public.

    **Guarantee.** A function of releases and public parameters, so adding it costs nothing: `composition.proof.md`,
    section 8, "Totals that are carried over". An interval of a sum holds as often as stated: `cell_errors.proof.md`,
    "Totals that go on from another stream". Test: tests/engine/test_carried_totals.py::test_intervals_hold.
    """

    since: int  # the instant from which on they count, in microseconds since 1970
    labels: tuple[str, ...]
    numbers: FloatArray  # value, std², spread², slack and largest part (`_errors_at`) of each cell, shape (5, cells)

    @classmethod
    def after(cls, errors: ErrorModel, tick: int, values: FloatArray, since: int, before: Self | None) -> Self:
        """The totals that a stream has published at a tick, with those that it goes on from itself; 0: at its start."""
        labels = tuple(errors.query.labels)
        own = np.zeros((5, len(labels)))
        if tick:
            own = np.vstack([values, _errors_at(errors, np.asarray([tick]))[:, 0]])
        return cls(since, labels, own) if before is None else cls(before.since, labels, _add(own, before.among(labels)))

    @classmethod
    def load(cls, data: dict[str, Any] | None) -> Self | None:
        return None if data is None else cls(data["since"], tuple(data["labels"]), data["numbers"])

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
        """Running totals of the stream with these on top of them. A total that was not published makes none."""
        if not len(table.ticks):
            return table
        place = {label: number for number, label in enumerate(errors.query.labels)}
        cells = tuple(table.cells[: table.numbers.shape[2]])
        own = _errors_at(errors, table.ticks)[:, :, [place[cell] for cell in cells]]
        value, variance, square, slack, part = _add(
            np.concatenate([table.numbers[np.newaxis, :, 0], own]), self.among(cells)[:, np.newaxis]
        )
        number = np.where(part > 0, equal_numbers(square, np.sqrt(np.where(part > 0, part, 1.0) / 2)), 0)  # 0: normal
        distinct, where = np.unique(number, return_inverse=True)
        factors = np.asarray([interval_factor(level, (), 1, int(one) or None) for one in distinct])
        half = factors[where.reshape(number.shape)] * np.sqrt(square) + slack
        std = np.where(np.isnan(value), np.nan, np.sqrt(variance))
        stated = table_of(table.ticks, None, cells, [value, std, value - half, value + half])
        return replace(table, cells=cells, numbers=stated.numbers)


def _errors_at(errors: ErrorModel, ticks: IntArray) -> FloatArray:
    """std², spread², slack and largest part at each tick, shape (4, ticks, outputs). Laplace noise is a sum of numbers,
    none of which has more of the variance spread² than the largest part, so that `equal_numbers` is spread² over it.
    The largest part of normal noise is 0."""
    std, spread, slack = errors.errors(ticks)
    weights = [1] * len(ticks) if errors.pure and errors.joined else errors.equal_numbers(ticks)
    part = spread**2 * np.asarray([[0.0 if weight is None else 1 / weight] for weight in weights])
    shape = (len(ticks), errors.query.outputs)
    return np.stack([np.broadcast_to(side, shape) for side in (std**2, spread**2, slack, part)])


def _add(one: FloatArray, other: FloatArray) -> FloatArray:
    """Numbers and errors of sums of independent numbers."""
    return np.concatenate([one[:4] + other[:4], np.maximum(one[4:], other[4:])])


def check_carries(query: Query, postprocess: tuple[str, ...], revise_for: int | None) -> None:
    begin = "running totals are not carried over: "
    why = None
    if revise_for is not None:
        why = "a stream whose days are revised (late = 'revise') has none"
    elif postprocess:
        why = "post-processed ones would add up what was cut off; declare views, which are post-processed instead"
    elif query.discovery is not None:
        why = "the next stream finds its keys anew; list the keys"
    elif query.quantiles is not None:
        why = "quantiles are read from the totals of one stream; add up histograms of the published counts"
    elif not query.memoryless:
        why = f"{query.name!r} remembers events, and the next stream starts without them"
    elif query.publishing.kept is not None:
        why = f"the errors of {query.name!r} follow from sums that are not published"
    if why is not None:
        raise ParameterError(begin + why)
    query.publishing.check_views(begin, None)
