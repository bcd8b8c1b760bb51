"""The adapter between the audit and any program that publishes noisy sums: events and a secret in, releases out.

An adapter says three things: how to run the program on given events with a given secret, what the program promises,
and what its noise looks like according to its own public documents. The audit trusts the first, and tests the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from evercount._arrays import FloatArray
from evercount.errors import ParameterError
from evercount.noise import Secret
from evercount.privacy import Budget
from evercount.queries.base import Query
from evercount.queries.histogram import OTHER

Data = tuple[tuple[Any, ...], ...]  # ticks of events. Where users are protected, an event is a pair (user, event).

RANGE_TOLERANCE = 1e-7
"""Relative: a difference of releases farther than this from the range of L cannot be hidden by any noise."""


@dataclass(frozen=True, eq=False)
class Published:
    ticks: tuple[int, ...]
    labels: tuple[str, ...]
    values: FloatArray
    facts: Any = ()

    def __post_init__(self) -> None:
        if self.values.shape != (len(self.ticks), len(self.labels)):
            there = f"there are {len(self.ticks)} rows and {len(self.labels)} labels"
            raise ParameterError(f"published values have the shape {self.values.shape}, but {there}")

    def same_structure(self, other: Published) -> bool:
        """Whether the two differ in nothing but the noisy numbers."""
        return (self.ticks, self.labels, self.facts) == (other.ticks, other.labels, other.facts)


@dataclass(frozen=True, eq=False)
class Claim:
    """What a program promises, in public numbers.

    Noise of tick t is row t of `left` times independent numbers: normals of std `sigma`, or, for pure privacy, Laplace
    numbers of which a change by one unit costs `cost` of ε. `limit` is the promised μ (Gaussian) or ε (pure).

    >>> import numpy as np
    >>> claim = Claim(Budget(1.0, 1e-6), np.eye(2), sigma=5.0)
    >>> round(claim.spent((1, 2), np.array([[0.0], [1.0]])), 3)
    0.2
    """

    budget: Budget
    left: FloatArray
    sigma: float | None = None
    cost: float | None = None

    def __post_init__(self) -> None:
        if (self.sigma is None) == (self.cost is None):
            raise ParameterError("a claim has either sigma (Gaussian noise) or cost (Laplace noise), not both")
        if self.budget.pure != (self.sigma is None):
            raise ParameterError("a budget with delta=0 goes with Laplace noise, any other with Gaussian noise")

    @property
    def pure(self) -> bool:
        return self.sigma is None

    @property
    def limit(self) -> float:
        """The most that two neighbours may be apart: ε for pure promises, else μ."""
        return self.budget.epsilon if self.pure else self.budget.mu

    def spent(self, ticks: tuple[int, ...], difference: FloatArray) -> float:
        """What releases spend whose noisy numbers differ by `difference` (rows × labels) under the same noise.

        Gaussian noise: μ = √(Dᵀ(LLᵀ)⁻¹D)/σ, added up over labels as squares. Laplace noise: min Σ cost·|u| over
        L·u = D, added up over labels. Infinite where no noise can explain the difference.

        **Guarantee.** For Gaussian noise the two laws of the joint release are exactly μ-Gaussian-DP apart; for Laplace
        noise no log-ratio of their probabilities exceeds the result (on a lattice: where the cheapest shift is a
        lattice vector). Proof: `replay.proof.md`. Test:
        tests/audit/test_replay.py::test_spent_is_what_dense_formulas_say.
        """
        rows = self.left[np.asarray(ticks, dtype=np.int64) - 1]
        price = self._least_cost if self.pure else self._least_norm
        parts = [price(rows, column) for column in np.asarray(difference, dtype=np.float64).T if np.any(column)]
        return float(np.sum(parts) if self.pure else np.linalg.norm(parts))

    def _least_norm(self, rows: FloatArray, column: FloatArray) -> float:
        """Length of the shortest shift of the normals that makes the difference, over σ."""
        assert self.sigma is not None
        shift = np.linalg.lstsq(rows, column, rcond=1e-12)[0]
        if np.linalg.norm(rows @ shift - column) > RANGE_TOLERANCE * np.linalg.norm(column):
            return float("inf")
        return float(np.linalg.norm(shift)) / self.sigma

    def _least_cost(self, rows: FloatArray, column: FloatArray) -> float:
        """The cheapest shift of the Laplace numbers that makes the difference, by linear programming."""
        from scipy.optimize import linprog

        assert self.cost is not None
        solution = linprog(np.full(2 * rows.shape[1], self.cost), A_eq=np.hstack([rows, -rows]), b_eq=column)
        return float(solution.fun) if solution.success and solution.fun is not None else float("inf")


class Program(Protocol):
    """A program under audit. `run` must be a function of its two arguments."""

    name: str

    def claim(self, ticks: int) -> Claim:
        """What the program promises about its first `ticks` ticks."""

    def run(self, data: Data, secret: Secret) -> Published:
        """What the program publishes for these events; InputError where it refuses them."""


def parts_of(query: Query, pure: bool) -> FloatArray | None:
    """The matrix that turns published numbers into parts with the noise of one cell each; None for cells themselves.

    Consistent trees and tables publish more numbers than they have independent ones, and a replay prices a difference
    by the covariance of the noise.

    **Guarantee.** With A the map from noisy sums to outputs and A = U·S·Vᵀ, published·V·S⁻¹ = sums·U: orthonormal
    combinations of cells, which hold all that is published. Test:
    tests/audit/test_replay_doors.py::test_parts_hold_all_that_is_published.
    """
    if query.discovery is not None:
        return None
    why = "publishes other numbers than linear maps of its noisy sums: audit it with --door library"
    refused = ParameterError(f"{query!r} {why}")
    cells = np.eye(query.cells)
    zero = query.decode_run(1, 0 * cells[:1])
    outputs = query.decode_run(1, cells) - zero
    probe = np.arange(1.0, 1 + 3 * query.cells).reshape(3, query.cells)
    known = query.publishing.no_views is None or query.outputs == query.cells
    if not known or not np.allclose(query.decode_run(5, probe) - zero, probe @ outputs):
        raise refused
    if outputs.shape == cells.shape and np.allclose(outputs, cells):
        return None
    if pure:
        raise refused
    _, size, right = np.linalg.svd(outputs)
    kept = size > 1e-9 * size.max()
    return np.asarray(right[: len(size)][kept].T / size[kept])


def published_table(
    query: Query, parts: FloatArray | None, releases: list[dict[str, float]]
) -> tuple[tuple[str, ...], FloatArray]:
    """(labels, numbers) with independent noise in every column; 0 where a tick lacks a label."""
    # Where keys are discovered, `other` follows from the other numbers and is left out.
    if query.discovery is not None:
        releases = [{label: number for label, number in row.items() if label != OTHER} for row in releases]
    labels = tuple(dict.fromkeys(label for row in releases for label in row))
    values = np.asarray([[row.get(label, 0.0) for label in labels] for row in releases]).reshape(-1, len(labels))
    if parts is None:
        return labels, values
    return tuple(f"part {number}" for number in range(parts.shape[1])), values @ parts
