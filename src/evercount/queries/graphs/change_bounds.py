"""How much one update of an edge stream changes: increments over all ticks, and the values of one tick."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt

from evercount.queries.base import Adjacency


@dataclass(frozen=True)
class ChangeBound:
    """What one update changes in each of `cells` cells: rises sum to ≤ up, falls to ≤ down (or vice versa).

    `swap` bounds P² + N² when one update is replaced by another or by none; None stands for the general
    2(up + down)². `ceiling` is the range of a function that only rises or only falls: then P, N ≤ ceiling.
    """

    up: int
    down: int
    cells: int = 1
    swap: int | None = None
    ceiling: int | None = None

    def squared(self, adjacency: Adjacency, projected: ChangeBound | None = None) -> int:
        """Bound on Σ (P² + N²) over these cells; see ``graphs.proof.md``, sections 2 to 4.

        `projected` is the bound of an inserted edge where the stable projection runs.
        """
        up, down = self.up, self.down
        if projected is not None:  # one arrival less: one kept edge goes, at most two come, for good
            up, down = up + 2 * projected.down, down + 2 * projected.up
        if adjacency == "add-remove":
            bound = up**2 + down**2
        elif self.swap is not None and projected is None:
            bound = self.swap
        else:
            bound = 2 * (up + down) ** 2
        if self.ceiling is not None:
            bound = min(bound, 2 * self.ceiling**2)
        return self.cells * bound

    def absolute(self, adjacency: Adjacency, projected: ChangeBound | None = None) -> int:
        """Bound on Σ (P + N) over these cells; see ``graphs.proof.md``, section 13."""
        bound = self.up + self.down
        if projected is not None:
            bound += 2 * (projected.up + projected.down)
        if adjacency == "replace":
            bound *= 2
            if self.swap is not None and projected is None:
                bound = min(bound, isqrt(2 * self.swap))
        if self.ceiling is not None:
            bound = min(bound, 2 * self.ceiling)
        return self.cells * bound


@dataclass(frozen=True)
class ValueChangeBound:
    """How far values of graphs that differ in one or two edges are apart: squared, summed over cells.

    `one`: Y and Y + e. `exchanged`: Y + e and Y + f. `both`: Y − f and Y + e, with e and f different edges.
    """

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
