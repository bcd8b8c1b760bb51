"""Weights of keys: a key of twice the weight has half the noise, and its events half the protection of ε."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from numbers import Integral
from typing import Any

import numpy as np

from evercount._arrays import IntArray
from evercount._validate import check_count
from evercount.errors import InputError, ParameterError
from evercount.queries.publishing import Publishing, divided

LARGEST_WEIGHT = 1000


def check_weights(
    weights: Any, number: int, what: str, least: int = 1, largest: int = LARGEST_WEIGHT
) -> tuple[int, ...]:
    """One whole number for each of `number` levels, tables or lengths, or ParameterError; by default 1 each."""
    if weights is None:
        return (1,) * number
    given = weights if isinstance(weights, Sequence | np.ndarray) and not isinstance(weights, str | bytes) else ()
    whole = all(isinstance(weight, Integral) and not isinstance(weight, bool) for weight in given)
    if len(given) != number or not whole or not all(least <= weight <= largest for weight in given):
        allowed = f"{number} whole numbers from {least} to {largest}, one for each {what}"
        raise ParameterError(f"weights must be {allowed}, got {weights!r:.80}")
    return tuple(map(int, given))


@dataclass(frozen=True, eq=False)
class KeyWeights:
    """One whole number for each cell: an event adds that to the cell, and what is published is divided by it.

    **Guarantee.** Division is post-processing; S and Δ₁ are sums of the largest weights, squared or not. Proof:
    `histogram.proof.md`, "Weights". Tests: tests/queries/test_every_sensitivity.py::test_claims_by_enumeration and
    tests/queries/test_queries_histogram.py::test_planted_weights_are_caught.
    """

    cells: IntArray

    @classmethod
    def of(cls, given: Any, labels: Sequence[str]) -> KeyWeights | None:
        """The weights of a table from key to weight; None where all are 1."""
        if not isinstance(given, Mapping):
            raise ParameterError(f'weights must be a table such as {{"north": 3}}, got {given!r:.80}')
        cells, place = np.ones(len(labels), np.int64), {label: cell for cell, label in enumerate(labels)}
        for key, weight in given.items():
            if str(key) not in place:
                raise ParameterError(f"weights name {key!r:.80}, which is not a key of the list")
            cells[place[str(key)]] = number = check_count(f"the weight of {key!r:.80}", weight)
            if number > LARGEST_WEIGHT:
                raise ParameterError(f"weights go from 1 to {LARGEST_WEIGHT}; {key!r:.80} has {number}")
        return cls(cells) if np.any(cells > 1) else None

    def table(self, labels: Sequence[str]) -> dict[str, int]:
        """The weights above 1, by key."""
        return {label: weight for label, weight in zip(labels, self.cells.tolist(), strict=True) if weight > 1}

    def largest(self, number: int, power: int) -> float:
        """Σ weight^power over the `number` largest weights."""
        return float((np.sort(self.cells)[::-1][:number] ** power).sum())

    def check_totals(self, totals: IntArray) -> None:
        """Refuse totals that no events add up to: the caller may have forgotten the weights."""
        if np.any(totals % self.cells):
            raise InputError("the total of a key is its number of events times its weight; multiply them first")

    @cached_property
    def publishing(self) -> Publishing:
        return divided(self.cells)
