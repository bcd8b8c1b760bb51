"""Attacks the declared sensitivities of a query: searches neighbouring streams for the largest
changes.

Every legal stream of a few steps is tried if that is affordable, else a random search with hill
climbing runs. A claim that is beaten is wrong, with the two streams as proof. A claim that holds is
proved only for what was enumerated.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import get_args

import numpy as np

from evercount._validate import FloatArray, check_name
from evercount.audit.pair_search import ABSOLUTE, SQUARES, VALUES, Pair, PairSearch
from evercount.audit.universes import Universe, whole_ticks
from evercount.audit.universes import universe as known_universe
from evercount.errors import ParameterError
from evercount.privacy import Adjacency
from evercount.queries.base import Query

__all__ = [
    "ClaimCheck",
    "FactorizationCheck",
    "SensitivityReport",
    "Universe",
    "audit_sensitivity",
    "whole_ticks",
]

Factorizations = FloatArray | Mapping[str, FloatArray]

# relative: a claim counts as beaten only if it is exceeded by more than rounding can explain
TOLERANCE = 1e-9
NEGATIVE = " (Gram matrix has negative entries: no claim can rest on S)"


@dataclass(frozen=True)
class ClaimCheck:
    """A number that a query declares, the largest one found next to it, and the ticks of the two
    streams."""

    found: float
    claimed: float
    pair: Pair | None

    @property
    def holds(self) -> bool:
        return self.found <= self.claimed * (1 + TOLERANCE)

    @property
    def reached(self) -> bool:
        return self.found >= self.claimed * (1 - TOLERANCE)


@dataclass(frozen=True)
class FactorizationCheck(ClaimCheck):
    """The largest ‖R(X−X′)‖² found for one factorization, next to the claim c²·S."""

    factorization: str
    nonnegative_gram: bool


@dataclass(frozen=True)
class SensitivityReport:
    """What an audit found.

    `norm` is the largest Σ(P²+N²) found, which no factorization enters; the claim is `S`. `l1` is
    Σ|change| next to `Query.l1_sensitivity`, `value` the squared difference of the values of a tick
    next to `Query.squared_value_sensitivity`; None where the query declares none. Neighbours differ
    in `changed` events, and all claims are those for a user of that many events.
    """

    query: str
    adjacency: Adjacency
    ticks: int
    steps: int
    S: float
    norm: float
    pair: Pair | None
    findings: tuple[FactorizationCheck, ...]
    l1: ClaimCheck | None
    value: ClaimCheck | None
    pairs: int
    exhaustive: bool
    changed: int = 1

    @property
    def claims(self) -> tuple[ClaimCheck, ...]:
        """Every claim: S, c²·S of each factorization, and those of Σ|change| and of values where
        there are some."""
        others = tuple(claim for claim in (self.l1, self.value) if claim is not None)
        return (ClaimCheck(self.norm, self.S, self.pair), *self.findings, *others)

    @property
    def holds(self) -> bool:
        return all(claim.holds for claim in self.claims)

    @property
    def reached(self) -> bool:
        return self.claims[0].reached

    def summary(self) -> str:
        how = "all" if self.exhaustive else "a random search of"
        changed = ""
        if self.changed != 1:
            changed = f" that differ in {self.changed} events"
        head = (
            f"{self.query}, {self.adjacency}: {how} {self.pairs} pairs of streams of {self.steps} "
            f"steps in {self.ticks} ticks{changed}"
        )
        lines = [_line_of("sum of P^2+N^2", "S = ", self.claims[0])]
        if self.l1 is not None:
            lines.append(_line_of("sum of P+N, for delta = 0", "", self.l1))
        if self.value is not None:
            lines.append(_line_of("values of a tick, squared", "v^2 = ", self.value))
        for finding in self.findings:
            line = _line_of(finding.factorization, "c^2*S = ", finding)
            if not finding.nonnegative_gram:
                line += NEGATIVE
            lines.append(line)
        beaten = next((claim for claim in self.claims if not claim.holds), None)
        if beaten is None:
            lines.append("the claim holds")
        else:
            lines.append("THE CLAIM IS BEATEN")
            if beaten.pair is not None:
                lines += [f"stream   : {beaten.pair[0]}", f"neighbour: {beaten.pair[1]}"]
        return "\n  ".join([head, *lines])


def _line_of(what: str, letter: str, claim: ClaimCheck) -> str:
    """Write a claim next to the largest number that was found."""
    return f"{what}: found {claim.found:.6g}, claimed {letter}{claim.claimed:.6g}"


def audit_sensitivity(
    query: Query,
    factorizations: Factorizations,
    adjacency: Adjacency,
    ticks: int,
    universe: Universe | None = None,
    *,
    steps: int | None = None,
    budget: int = 100_000,
    seed: int = 0,
    claimed: float | None = None,
    progress: Callable[[int, int], None] | None = None,
    changed: int = 1,
) -> SensitivityReport:
    """Search neighbouring streams of `steps` steps (default: `ticks`) spread over `ticks` ticks.

    `factorizations` are dense matrices R by name, or one R, with at least `ticks` columns. All
    pairs are tried if there are at most `budget`, else `budget` pairs of a random search from
    `seed`. `claimed` replaces the query's own S, or where it has one its smaller S for Gram
    matrices that fall (`Query.falling_sensitivity`), which streams use. `progress(done, total)` is
    called now and then. With `changed` = k neighbours differ in k events, and the claims are those
    for users of at most k events: k²·S, k·Δ₁ and k²·v².

        Guarantee. If `holds` is False, the reported pair is a proof that the claim is too small, up
        to the checks of the query itself. If `exhaustive` and `holds`, no legal pair of that size
        over that universe beats it. Tests: ``test_beaten_pair_can_be_replayed``,
        ``test_planted_understatement_is_caught``.
    """
    check_name("adjacency", adjacency, get_args(Adjacency))
    if universe is None:
        universe = known_universe(query)
    if query.discovery is not None:
        query = query.discovery.with_known_keys(universe.events)
    length = ticks if steps is None else steps
    _check_size(universe, ticks, length, budget, changed)
    matrices = _checked_matrices(factorizations, ticks)
    search = PairSearch(
        query, universe, adjacency, ticks, length, matrices, random.Random(seed), changed
    )
    exhaustive = search.enumerate(budget, progress)
    if not exhaustive:
        search.climb(budget, progress)
    if claimed is not None and not (
        isinstance(claimed, int | float) and 0 <= claimed < float("inf")
    ):
        raise ParameterError(f"the claim must be a number of at least 0, got {claimed!r}")
    smaller = query.falling_sensitivity(adjacency)
    if claimed is None:
        S = query.squared_sensitivity(adjacency)
    elif smaller is None:
        S = float(claimed)
    else:  # streams use the smaller claim
        S = query.squared_sensitivity(adjacency)
        smaller = float(claimed)
    more = changed**2
    findings = []
    for number, (name, R) in enumerate(matrices.items()):
        own_claim = S
        if smaller is not None and gram_falls(R):
            own_claim = smaller
        findings.append(
            FactorizationCheck(
                found=search.largest[number],
                claimed=float((R**2).sum(axis=0).max()) * more * own_claim,
                pair=search.worst[number],
                factorization=name,
                nonnegative_gram=bool((R.T @ R >= -1e-12).all()),
            )
        )
    l1 = None
    with suppress(ParameterError):  # a query that declares none is refused under δ = 0
        l1 = query.l1_sensitivity(adjacency) * changed
    value = query.squared_value_sensitivity(adjacency)
    if value is not None:
        value *= more

    def check(judge: int, declared: float | None) -> ClaimCheck | None:
        if declared is None:
            return None
        return ClaimCheck(search.largest[judge], declared, search.worst[judge])

    return SensitivityReport(
        query=repr(query),
        adjacency=adjacency,
        ticks=ticks,
        steps=length,
        S=S * more,
        norm=search.largest[SQUARES],
        pair=search.worst[SQUARES],
        findings=tuple(findings),
        l1=check(ABSOLUTE, l1),
        value=check(VALUES, value),
        pairs=search.pairs,
        exhaustive=exhaustive and search.all_placements,
        changed=changed,
    )


def _check_size(universe: Universe, ticks: int, length: int, budget: int, changed: int) -> None:
    """Refuse numbers with which no pair of streams can be tried."""
    if ticks < 1 or length < 1 or budget < 1 or not 1 <= changed <= length or not universe.events:
        raise ParameterError(
            f"ticks, steps, budget and the number of events must be at least 1, got {ticks}, "
            f"{length}, {budget}, {len(universe.events)}; changed events are from 1 to the number "
            f"of steps, got {changed}"
        )
    if not universe.merge and length != ticks:
        raise ParameterError(
            f"in this universe every step is a tick: steps must be {ticks}, got {length}"
        )


def _checked_matrices(factorizations: Factorizations, ticks: int) -> dict[str, FloatArray]:
    """Give the matrices R by name; check that each has a column for every tick."""
    by_name = factorizations
    if not isinstance(by_name, Mapping):
        by_name = {"R0": by_name}
    matrices = {name: np.asarray(R, np.float64) for name, R in by_name.items()}
    for name, R in matrices.items():
        if R.ndim != 2 or R.shape[1] < ticks:
            raise ParameterError(
                f"{name}: R must be a matrix of at least {ticks} columns, got shape {R.shape}"
            )
    return matrices


def gram_falls(R: FloatArray) -> bool:
    """Whether RᵀR falls away from its diagonal along rows or along columns, up to rounding."""
    gram = R.T @ R
    size = len(gram)
    rows = (gram[:, :-1] - gram[:, 1:])[np.triu_indices(size, 0, size - 1)]
    columns = (gram[1:] - gram[:-1])[np.triu_indices(size - 1, 1, size)]
    return bool(np.all(rows >= -1e-12) or np.all(columns >= -1e-12))
