"""How much one event, or one user, can change the increments of a query: what its noise is
calibrated to.

Guarantee. For every pair of neighbouring streams under `adjacency`, and every cell, let P and N be
the sums over all ticks of the positive and of the negative parts of the change of that cell's
increments (in real units: increment × grid). Then Σ_cells (P² + N²) ≤
squared_sensitivity(adjacency). With a factorization whose R has a nonnegative Gram matrix and
column norm c this implies ‖R(X−X′)‖_F ≤ c·√S: see `factorizations/sensitivity.proof.md`. Each
subclass proves its S next to its code; `evercount audit sensitivity` attacks the claim by
enumeration or random search.

`RowFormat` says how rows of a table become the events that the claims are about.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from evercount._validate import IntArray
from evercount.errors import ParameterError
from evercount.privacy import Adjacency, Budget

if TYPE_CHECKING:
    from evercount.queries.base import Query

Groups = tuple[IntArray, IntArray, IntArray]


def other_last(cells: int, other: int) -> IntArray:
    """The cells in the order in which rows name them: that of all other keys comes last."""
    return np.append(np.delete(np.arange(cells), other), other)


@dataclass(frozen=True)
class EventNumber:
    """A tick is its number of events, and no sequence of them: events have nothing but their
    time."""

    # the declared largest number of events of a tick; None where nothing is declared
    most: int | None


def _events(tick: IntArray, cell: IntArray, events: IntArray, units: IntArray) -> Groups:
    return tick, cell, events


@dataclass(frozen=True, eq=False)
class RowFormat:
    """How rows of a table become events. Every interface that reads rows asks for this."""

    columns: tuple[str, ...] = ()
    """Which columns an event needs besides its time: "key", "value", "user", or "levels" (one for
    each level)."""
    levels: int = 0  # how many columns name an event
    list_keys: Callable[[], tuple[Sequence[str], bool]] | None = None
    """Gives the keys in the order of their cells, and whether others go to one more cell."""
    range: tuple[float, float, float] | None = None
    """Lowest and highest legal value, and the grid that it is rounded to."""
    whole: bool = False  # whether values are whole numbers: others are refused, and not rounded
    bins: tuple[float, float, int] | None = None
    """Where the value of a row chooses its cell: (lowest value, width of a bin, number of bins)."""
    # where rows name users: whether a second row of the same user and key in a tick matters
    repeats: bool = False
    totals: Callable[[IntArray, IntArray, IntArray, IntArray], Groups] = _events
    """From groups of rows, (tick, cell of the key or 0, number of rows, sum of values in grid
    units), to (tick, cell, total in grid units)."""

    @property
    def keyed(self) -> bool:
        return self.list_keys is not None

    @property
    def keys(self) -> tuple[Sequence[str], bool]:
        """See `list_keys`; ParameterError without a key."""
        if self.list_keys is None:
            raise ParameterError("these rows have no key")
        return self.list_keys()

    @property
    def values(self) -> tuple[float, float, float]:
        """See `range`; ParameterError without a value."""
        if self.range is None:
            raise ParameterError("these rows have no value")
        return self.range


def rows_of(query: Query) -> RowFormat:
    """How rows become events of this query; ParameterError where its events are no rows."""
    if query.rows is None:
        raise ParameterError(f"the events of {query.name!r} are not rows of a table")
    return query.rows


class Sensitivities(ABC):
    """The claims of a query about its neighbours."""

    @abstractmethod
    def squared_sensitivity(self, adjacency: Adjacency) -> float:
        """S of the guarantee at the top of this module, in real units squared.

        Args:
            adjacency: "add-remove" or "replace".

        Returns:
            S.

        Raises:
            UnknownName: there is no such adjacency.
            ParameterError: the query declares no S for it.
        """

    def falling_sensitivity(self, adjacency: Adjacency) -> float | None:
        """A smaller S for factorizations whose Gram matrix falls away from the diagonal; None where
        there is none.

        Args:
            adjacency: "add-remove" or "replace".

        Returns:
            The smaller S, or None.

        **Guarantee.** For every pair of neighbours and every R with `Factorization.falling_gram`,
        ‖R(X−X′)‖_F² is at most c² times this. Proof: `factorizations/sensitivity.proof.md`,
        "Changes that take turns". Test:
        tests/queries/test_queries_matching.py::test_no_neighbours_beat_the_smaller_claim.
        """
        return None

    def squared_value_sensitivity(self, adjacency: Adjacency) -> float | None:
        """v²: the most that one event changes the values of a tick, Σ_cells (change of the running
        sum)².

        None where nothing better than the increments' S is known. It is what the factorization
        `direct` needs.

        Args:
            adjacency: "add-remove" or "replace".

        Returns:
            v², or None.

        Raises:
            UnknownName: there is no such adjacency.

        **Guarantee.** For every pair of neighbours and every tick, Σ over cells of the squared
        difference of their running sums is at most this, in real units. Then ‖M(X−X′)‖_F² ≤ T·v², M
        the running-count matrix. Proof: `factorizations/sensitivity.proof.md`, "Values". Tests:
        tests/queries/test_queries_values.py.
        """
        return None

    def l1_sensitivity(self, adjacency: Adjacency) -> float:
        """The most that one event changes all increments together, Σ_cells (P + N), in real units:
        what δ = 0 needs.

        Args:
            adjacency: "add-remove" or "replace".

        Returns:
            Δ₁.

        Raises:
            ParameterError: The query does not declare it.

        **Guarantee.** For every pair of neighbours Σ over cells and ticks of |change of
        increment|·grid is at most this. Proof: `mechanisms/laplace_noise.proof.md`, lemma 3.
        Queries that do not declare it are refused under δ = 0. Test:
        tests/mechanisms/test_laplace_stream.py::test_l1_sensitivity_by_enumeration.
        """
        raise ParameterError(
            f"{type(self).__name__} declares no l1 sensitivity, which delta=0 needs: use delta > 0"
        )


def bounded(what: Literal["ticks", "events"], budget: Budget, horizon: int | None) -> int:
    """How many ticks or events one protected unit touches at most; refused where nothing bounds
    that."""
    touched = budget.touched(horizon)
    if what == "ticks":
        most = touched.ticks
        remedy = "max_ticks=... or a period"
    else:
        most = touched.events
        remedy = "max_events=..., or max_per_tick=... and max_ticks"
    if most is None:
        raise ParameterError(
            f"nothing bounds how many {what} of one user are counted: give the budget {remedy}"
        )
    return int(most)


def protected_l1(query: Query[Any], budget: Budget, horizon: int | None) -> float:
    """Δ₁ for what the budget protects: one event, or what is counted of a user.

    **Guarantee.** The change of a user's events is a sum of single changes, so ‖D‖₁ is at most
    their number times that of one event. A query's own user-level Δ₁ is taken only where the budget
    protects users. Tests:
    tests/queries/test_queries_distinct_users.py::test_pure_noise_is_calibrated_to_the_unit and
    tests/engine/test_unit_noise.py::test_laplace_noise_covers_every_unit.
    """
    people = query.people if budget.unit == "user" else None
    if people is None:
        return query.l1_sensitivity(budget.adjacency) * bounded("events", budget, horizon)
    own = people.user_l1_sensitivity(budget.adjacency, budget.period is not None)
    return own * (bounded("ticks", budget, horizon) if people.each_tick else 1)
