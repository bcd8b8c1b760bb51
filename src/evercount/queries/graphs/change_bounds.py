"""How much one update of an edge stream changes: increments over all ticks, and the values of one tick."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

from evercount.queries.base import Adjacency


@dataclass(frozen=True)
class ProjectedChange:
    """What one update changes in a cell where the stable projection runs: rises and falls for add-remove. For replace
    both sums are at most `either`."""

    rises: int
    falls: int
    either: int


@dataclass(frozen=True)
class ChangeBound:
    """What one update changes in each of `cells` cells: rises sum to ≤ up, falls to ≤ down (or vice versa). `swap`
    bounds P² + N² when one update is replaced by another or by none; None stands for the general 2(up + down)².
    `ceiling` is the range of a function that only rises or only falls: then P, N ≤ ceiling. `kept` holds where the
    stable projection runs; None stands for its general rule, which reads a `swap` of 2M² as P, N ≤ M."""

    up: int
    down: int
    cells: int = 1
    swap: int | None = None
    ceiling: int | None = None
    kept: ProjectedChange | None = None

    def squared(self, replaced: bool, projected: ChangeBound | None = None) -> int:
        """Bound on Σ (P² + N²) over these cells; see ``graphs.proof.md``, sections 2 to 4. `projected` is the bound of
        an inserted edge where the stable projection runs."""
        if projected is not None:
            rises, falls = self._project(replaced, projected)
            bound = rises**2 + falls**2
        elif not replaced:
            bound = self.up**2 + self.down**2
        else:
            bound = 2 * (self.up + self.down) ** 2 if self.swap is None else self.swap
        if self.ceiling is not None:
            bound = min(bound, 2 * self.ceiling**2)
        return self.cells * bound

    def absolute(self, replaced: bool, projected: ChangeBound | None = None) -> int:
        """Bound on Σ (P + N) over these cells; see ``graphs.proof.md``, section 13."""
        if projected is not None:
            bound = sum(self._project(replaced, projected))
        elif not replaced:
            bound = self.up + self.down
        else:
            bound = 2 * (self.up + self.down)
            if self.swap is not None:
                bound = min(bound, isqrt(2 * self.swap))
        if self.ceiling is not None:
            bound = min(bound, 2 * self.ceiling)
        return self.cells * bound

    def _project(self, replaced: bool, edge: ChangeBound) -> tuple[int, int]:
        """Bounds of rises and falls under projection: of one arrival less, one kept edge goes and two may come."""
        if not replaced:
            if self.kept is not None:
                return self.kept.rises, self.kept.falls
            return self.up + 2 * edge.down, self.down + 2 * edge.up
        if self.kept is not None:
            return self.kept.either, self.kept.either
        own = self.up + self.down if self.swap is None else isqrt(self.swap // 2)
        return (own + 2 * (edge.up + edge.down),) * 2


@dataclass(frozen=True)
class ValueChangeBound:
    """How far values of graphs that differ in one or two edges are apart: squared, summed over cells. `one`: Y and Y +
    e. `exchanged`: Y + e and Y + f. `both`: Y − f and Y + e, with e and f different edges."""

    one: int
    exchanged: int
    both: int

    @classmethod
    def rising(cls, step: int) -> ValueChangeBound:
        """Of one number that every further edge raises (or lowers) by 0 to `step`."""
        return cls(step**2, step**2, (2 * step) ** 2)


def alternating_bound(most: int, cells: int = 1) -> ChangeBound:
    """Of numbers that only rise, or only fall, between 0 and `most`, and that one edge may change at any time."""
    return ChangeBound(most, most, cells, swap=2 * most**2, ceiling=most)


def alternating_sensitivity(most: int, adjacency: Adjacency) -> float:
    """`Query.falling_sensitivity` of such a number, if one edge changes it by at most 1 and always in one direction.

    **Guarantee.** 2·most for add-remove, 4·most − 2 for replace. Proof: ``graphs.proof.md``, sections 8 and 11. Test:
    tests/queries/test_queries_values.py::test_new_queries_keep_their_claims_for_increments.
    """
    return float(2 * most if adjacency == "add-remove" else max(2 * most, 4 * most - 2))
