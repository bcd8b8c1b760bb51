"""What only some queries can do. A query offers a capability by the property of that name; elsewhere it is None.

Nothing outside `queries/` asks which query it is: it asks whether the query has the capability that it needs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from evercount._arrays import FloatArray, IntArray
from evercount.errors import ParameterError

if TYPE_CHECKING:
    from evercount.queries.base import Query
    from evercount.queries.cuts.cut_query import Cuts
    from evercount.queries.discovered_keys import DiscoveredKeys
    from evercount.queries.distinct_users import UserQuery
    from evercount.queries.quantiles import Quantiles

Adjacency = Literal["add-remove", "replace"]

Groups = tuple[IntArray, IntArray, IntArray]


@dataclass(frozen=True)
class EventNumber:
    """A tick is its number of events, and no sequence of them: events have nothing but their time."""

    most: int | None  # the declared largest number of events of a tick; None where nothing is declared


def _events(tick: IntArray, cell: IntArray, events: IntArray, units: IntArray) -> Groups:
    return tick, cell, events


@dataclass(frozen=True, eq=False)
class Rows:
    """How rows of a table become events. Every door that reads rows asks for this."""

    columns: tuple[str, ...] = ()
    """Which columns an event needs besides its time: "key", "value", "user", or "levels" (one for each level)."""
    levels: int = 0  # how many columns name an event
    list_keys: Callable[[], tuple[Sequence[str], bool]] | None = None
    """Gives the keys in the order of their cells, and whether others go to one more cell."""
    range: tuple[float, float, float] | None = None
    """Lowest and highest legal value, and the grid that it is rounded to."""
    bins: tuple[float, float, int] | None = None
    """Where the value of a row chooses its cell: (lowest value, width of a bin, number of bins)."""
    repeats: bool = False  # where rows name users: whether a second row of the same user and key in a tick matters
    totals: Callable[[IntArray, IntArray, IntArray, IntArray], Groups] = _events
    """From groups of rows, (tick, cell of the key or 0, number of rows, sum of values in grid units), to (tick, cell,
    total in grid units)."""

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


class Capabilities:
    """What a query offers besides its running sums; None where it does not."""

    name: ClassVar[str]  # the name by which commands, services and snapshots know the query

    @property
    def discovery(self) -> DiscoveredKeys | None:
        """Keys that nobody lists beforehand: noise belongs to names, and more of them join while the stream runs."""
        return None

    @property
    def quantiles(self) -> Quantiles | None:
        """Quantiles that are read from the published numbers."""
        return None

    @property
    def people(self) -> UserQuery | None:
        """S and Δ₁ of a user with any number of events, where events name their users."""
        return None

    @property
    def rows(self) -> Rows | None:
        """How rows of a table become events."""
        return None

    @property
    def cuts(self) -> Cuts | None:
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
        raise ParameterError(f"{self.name!r} has no consistent form: only degree histograms and sequences have one")


def rows_of(query: Query) -> Rows:
    """How rows become events of this query; ParameterError where its events are no rows."""
    if query.rows is None:
        raise ParameterError(f"the events of {query.name!r} are not rows of a table")
    return query.rows
