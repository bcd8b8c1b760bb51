"""What only some queries can do. A query offers a capability by the property of that name; elsewhere it is None.

Nothing outside `queries/` asks which query it is: it asks whether the query has the capability that it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol, Self

from evercount._arrays import FloatArray, IntArray
from evercount.errors import ParameterError
from evercount.privacy import Budget

if TYPE_CHECKING:
    from evercount.queries.base import Query
    from evercount.queries.cell_errors import CellErrors
    from evercount.queries.cuts.cut_graph import CutGraph
    from evercount.queries.cuts.cut_noise import CutNoise
    from evercount.queries.discovery_threshold import Thresholds

Adjacency = Literal["add-remove", "replace"]

Groups = tuple[IntArray, IntArray, IntArray]


class Discovery(Protocol):
    """Keys that nobody lists beforehand: noise belongs to names, and more of them join while the stream runs."""

    first_names: ClassVar[tuple[str, ...]]
    """The names of the cells before the first tick."""

    @property
    def least_listed(self) -> int:
        """The true count that every public key has."""

    def touched_cells(self, budget: Budget, horizon: int | None) -> int:
        """How many cells one protected unit can change at most: what finite arithmetic is priced for."""

    def own_delta(self, budget: Budget) -> float:
        """The part of δ that discovery costs besides the noise."""

    def thresholds(self, budget: Budget, horizon: int | None, std: Callable[[IntArray], FloatArray]) -> Thresholds:
        """When a key becomes public."""

    def labels_now(self, state: Any) -> Sequence[str]:
        """One label per number that a tick publishes now; public."""

    def expected_names(self, state: Any, events: Any = ()) -> Iterable[str]:
        """Names that may join soon, so that their noise can be made ready."""

    def check_keys(self, keys: Sequence[Any]) -> list[str | None]:
        """The keys of rows as they are counted."""

    def interval(
        self, values: FloatArray, sums: FloatArray, errors: CellErrors, level: float
    ) -> tuple[FloatArray, FloatArray]:
        """Intervals that hold given which keys are public."""

    def with_known_keys(self, events: Iterable[Any]) -> Query:
        """A query whose increments are those that S speaks of, over the keys of these events; for audits."""


class QuantileReader(Protocol):
    """Quantiles of a value that are read from published numbers of values below edges."""

    def norms_beside(self, q: float) -> FloatArray:
        """Std of (number below each edge) − q·(number of all), in units of a cell's std."""

    def read_quantile(self, below: FloatArray, half: FloatArray, q: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        """(value, low, high) of the q-quantile."""


class People(Protocol):
    """Events name their users themselves, and one user may have any number of events."""

    each_tick: ClassVar[bool]
    """Whether users count anew in each tick: S and Δ₁ are then those of one tick."""

    @property
    def order_matters(self) -> bool:
        """Whether the order of a user's events within a tick changes what is counted."""

    def users_of(self, events: Iterable[Any]) -> list[str]:
        """Whose events these are."""

    def user_sensitivity(
        self, adjacency: Adjacency, period: bool = False, *, falling: bool = False, values: bool = False
    ) -> float:
        """S for one user with any number of events.

        **Guarantee.** As for S of `Query`, with two streams as neighbours that differ in the events of one user (in one
        period). Tests:
        tests/queries/test_queries_distinct_users.py::test_user_sensitivity_by_enumeration and
        tests/queries/test_queries_occupancy.py::test_user_sensitivity_by_enumeration.
        """

    def user_l1_sensitivity(self, adjacency: Adjacency, period: bool = False) -> float:
        """Δ₁ for one user with any number of events."""


class CutReader(Protocol):
    """Published numbers are the weights of all edges of a graph, which answers every cut."""

    def graph(self, noisy: FloatArray, std: float, noise: CutNoise | None = None) -> CutGraph:
        """The released graph of one tick: `noisy` as published, `std` of one edge."""


@dataclass(frozen=True)
class EventNumber:
    """A tick is its number of events, and no sequence of them: events have nothing but their time."""

    most: int | None
    """The declared largest number of events of a tick; None where nothing is declared."""


def _events(tick: IntArray, cell: IntArray, events: IntArray, units: IntArray) -> Groups:
    return tick, cell, events


@dataclass(frozen=True, eq=False)
class Rows:
    """How rows of a table become events. Every door that reads rows asks for this."""

    columns: tuple[str, ...] = ()
    """Which columns an event needs besides its time: "key", "value", "user", or "levels" (one for each level)."""
    levels: int = 0
    """How many columns name an event."""
    list_keys: Callable[[], tuple[Sequence[str], bool]] | None = None
    """Gives the keys in the order of their cells, and whether others go to one more cell."""
    range: tuple[float, float, float] | None = None
    """Lowest and highest legal value, and the grid that it is rounded to."""
    bins: tuple[float, float, int] | None = None
    """Where the value of a row chooses its cell: (lowest value, width of a bin, number of bins)."""
    repeats: bool = False
    """Where rows name users: whether a second row of the same user and key in a tick matters."""
    totals: Callable[[IntArray, IntArray, IntArray, IntArray], Groups] = _events
    """From groups of rows, (tick, cell of the key or 0, number of rows, sum of values in grid units), to (tick, cell,
    total in grid units)."""

    @property
    def keyed(self) -> bool:
        """Whether a column, or several, name a key."""
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


class Capabilities:
    """What a query offers besides its running sums; None where it does not."""

    name: ClassVar[str]
    """The name by which commands, services and snapshots know the query."""

    @property
    def discovery(self) -> Discovery | None:
        """Keys that nobody lists beforehand."""
        return None

    @property
    def quantiles(self) -> QuantileReader | None:
        """Quantiles that are read from the published numbers."""
        return None

    @property
    def people(self) -> People | None:
        """S and Δ₁ of a user with any number of events, where events name their users."""
        return None

    @property
    def rows(self) -> Rows | None:
        """How rows of a table become events."""
        return None

    @property
    def cuts(self) -> CutReader | None:
        """The graph that the published numbers are."""
        return None

    @property
    def event_number(self) -> EventNumber | None:
        """What is declared of the number of events, where a tick is that number."""
        return None

    def for_views(self, views: tuple[str, ...]) -> Self:
        """The query as a stream asks it whose noise is chosen for these views."""
        return self

    def with_keys(self, keys: Sequence[Any]) -> Query:
        """The query with more keys. Its first cells and its first published numbers are those of this query."""
        raise ParameterError(f"{self.name!r} has no list of keys that others could join")

    def consistent(self, values: FloatArray) -> FloatArray:
        """The nearest values that real data could have at one tick; post-processing."""
        raise ParameterError(
            f"{self.name!r} has no consistent form: only degree histograms and degree sequences have one"
        )


def rows_of(query: Query) -> Rows:
    """How rows become events of this query; ParameterError where its events are no rows."""
    if query.rows is None:
        raise ParameterError(f"the events of {query.name!r} are not rows of a table")
    return query.rows
