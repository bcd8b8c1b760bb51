"""The finite sets of events from which the sensitivity audit builds its streams, one for each kind
of query."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import singledispatch
from itertools import combinations, islice, product
from operator import itemgetter, ne
from typing import Any

from evercount._validate import check_count
from evercount.errors import ParameterError, TooLarge
from evercount.queries.base import Query
from evercount.queries.counts import Count, Sum
from evercount.queries.cuts.cut_query import Cuts
from evercount.queries.discovered_keys import DiscoveredKeys
from evercount.queries.graphs.graph_query import GraphQuery
from evercount.queries.histogram import Histogram
from evercount.queries.marginals import Marginals
from evercount.queries.people import ActiveUsers, DistinctUsers, Occupancy
from evercount.queries.quantiles import Quantiles
from evercount.queries.rollup import Rollup
from evercount.queries.words import WordQuery

LARGEST_UNIVERSE = 100_000


@dataclass(frozen=True)
class Universe:
    """Events of which streams are made, and what stands where an event is absent.

    A step of a stream is a tuple of events: one event, or one of `absent`. With `merge` several
    steps may share a tick and ticks may be quiet. That is right for queries whose increments of a
    tick are the sums over its steps, and which a quiet tick leaves as they are. Without it every
    step is a tick. With `distinct` no event may come twice in a stream. `tick` turns the events of
    a tick into what the query reads.
    """

    events: tuple[Any, ...]
    absent: tuple[tuple[Any, ...], ...] = ((),)
    merge: bool = True
    replace_by_absent: bool = False
    tick: Callable[[Sequence[Any]], Any] = list
    distinct: bool = False
    # where `replace` changes only a part of an event: the part that stays
    same: Callable[[Any], Any] | None = None
    replaced_ticks: tuple[tuple[tuple[Any, ...], tuple[Any, ...]], ...] = ()
    """Ticks of several events and what they become when one event is replaced, where single events
    show nothing."""

    def alternatives(self, event: Any, adjacency: str) -> list[tuple[Any, ...]]:
        """The steps that may stand where `event` stood."""
        away = list(self.absent)
        if adjacency == "add-remove":
            return away
        others = [
            (other,)
            for other in self.events
            if other != event and (self.same is None or self.same(other) == self.same(event))
        ]
        if self.replace_by_absent:
            return others + away
        return others


class _WholeTicks(Universe):
    """Its events are ticks: the numbers of the events in them."""

    def alternatives(self, event: Any, adjacency: str) -> list[tuple[Any, ...]]:
        """The ticks that differ in one event."""
        if adjacency == "replace":
            return [
                (tick,)
                for tick in self.events
                if len(tick) == len(event) and sum(map(ne, tick, event)) == 1
            ]
        size = len(event)
        longer = [
            (tick,)
            for tick in self.events
            if len(tick) == size + 1 and event in combinations(tick, size)
        ]
        if not event:
            return longer
        shorter = dict.fromkeys(combinations(event, size - 1))
        return [*((tick,) for tick in shorter), *longer]


def whole_ticks(events: Sequence[Any], per_tick: int = 1) -> Universe:
    """Ticks of at most `per_tick` of these events, for encoders that look at a whole tick. Events
    may be of any kind.

    A `Universe` of single events says nothing about ticks of several, unless what a tick adds is
    the sum of what its events add.

    >>> whole_ticks(["a", "b"], 2).events
    ((), (0,), (1,), (0, 0), (0, 1), (1, 0), (1, 1))
    """
    sizes = range(check_count("per_tick", per_tick) + 1)
    if not events:
        raise ParameterError("a universe needs at least one event")
    ticks = (tick for size in sizes for tick in product(range(len(events)), repeat=size))
    known = _bounded(ticks, "take fewer events, or a smaller per_tick")
    return _WholeTicks(
        known, (), merge=False, tick=lambda step: [events[n] for tick in step for n in tick]
    )


@singledispatch
def universe(query: Query) -> Universe:
    """The universe of events of a query: small enough to enumerate, rich enough to reach its S.

    A registry by type: `universe.register(MyQuery)(function)` adds a query of one's own.

    >>> from evercount.queries import Histogram
    >>> universe(Histogram(["a", "b"])).events
    ((), ('a',), ('b',))
    """
    raise ParameterError(
        f"no universe of events is known for {query!r}: pass universe=Universe(events=(…))"
    )


@singledispatch
def universe_of_rows(query: Query) -> Universe:
    """Events that are rows of a table: a row always counts, and has exactly one key."""
    return universe(query)


universe_of_rows.register(Count, lambda query: Universe((1,), tick=sum))


@universe_of_rows.register
def _rows_of_histogram(query: Histogram) -> Universe:
    parameters = query.parameters()
    if isinstance(parameters["keys"], int):
        raise ParameterError("rows have named keys: give the names of the histogram's keys")
    if parameters["max_keys_per_event"] != 1 or parameters["removals"]:
        raise ParameterError(
            "a row of a table names one key: rows have neither max_keys_per_event nor removals"
        )
    return Universe(tuple(parameters["keys"]))


# an event that counts, and one that does not
universe.register(Count, lambda query: Universe((0, 1), tick=sum))


@universe.register
def _of_sum(query: Sum) -> Universe:
    middle = round((query.low + query.high) / 2 / query.grid) * query.grid
    return Universe(
        (query.low, middle, query.high), replace_by_absent=query.parameters().get("per") == "event"
    )


@universe.register
def _of_histogram(query: Histogram) -> Universe:
    parameters = query.parameters()
    keys = parameters["keys"]
    removals = parameters.get("removals")
    if isinstance(keys, int):
        names = range(keys)
    else:
        names = keys
    events: Iterable[Any] = (
        chosen
        for size in range(parameters["max_keys_per_event"] + 1)
        for chosen in combinations(names, size)
    )
    if removals:
        events = (
            tuple(zip(e, signs, strict=True))
            for e in events
            for signs in product((1, -1), repeat=len(e))
        )
    return Universe(
        _bounded(events, "audit it with fewer keys"), tick=_signed if removals else list
    )


@universe.register
def _of_rollup(query: Rollup) -> Universe:
    parameters = query.parameters()
    paths = [*map(tuple, parameters["paths"])]
    if parameters["unknown"] == "other":
        paths.append(("another path",) * query.depth)
    return Universe(_bounded(paths))


universe.register(
    Marginals, lambda query: Universe(_bounded(product(*query.parameters()["columns"])))
)


def _users(query: DistinctUsers) -> tuple[Any, ...]:
    people = ("ann", "bob")
    keys = query.parameters()["keys"]
    return _bounded(people if keys is None else product(people, keys))


universe.register(DistinctUsers, lambda query: Universe(_users(query)))


@universe.register
def _of_active_users(query: ActiveUsers) -> Universe:
    # Users of one tick are counted together, so the increments of a tick are not sums over its
    # events. One user in place of another changes a tick only where the same user has another event
    # in it.
    events = _users(query)
    first = events[0]
    other = events[len(events) // 2]
    return Universe(events, merge=False, replaced_ticks=(((first, first), (first, other)),))


universe.register(
    Occupancy, lambda query: Universe(_bounded(product(("ann", "bob"), query.rows.keys[0])))
)
# a value of each bin
universe.register(Quantiles, lambda query: Universe(_bounded(query.edges.tolist())))
# one of two in two normal forms
universe.register(DiscoveredKeys, lambda query: Universe(("a", "\u00e4", "a\u0308")))


@universe.register
def _of_words(query: WordQuery) -> Universe:
    letters = query.parameters()["alphabet"]
    if isinstance(letters, int):
        letters = range(letters)
    return Universe(_bounded((*letters, None)), absent=((None,), ()))


@universe.register
def _of_cuts(query: Cuts) -> Universe:
    ends = [1.0]
    if query.weights == "signed":
        ends = [-1.0, 1.0]
    events = ((u, v, w) for u, v in combinations(range(query.vertices), 2) for w in ends)
    return Universe(
        _bounded(events),
        replace_by_absent=True,
        same=itemgetter(0, 1) if query.swap == "same edge" else None,
    )


@universe.register
def _of_graph(query: GraphQuery) -> Universe:
    edges = combinations(range(query.vertices), 2)
    limit = query.weight_limit
    if limit is None:
        events: Iterable[Any] = edges
    else:
        events = ((*e, w) for e in edges for w in range(1, limit + 1))
    if query.deletes:
        events = (tuple(edge[:2]) for edge in query.initial_edges)
    elif query.stream == "mixed":
        events = ((*edge, sign) for edge in events for sign in (1, -1))
    updates = _bounded(events, "audit it with fewer vertices")
    return Universe(updates, replace_by_absent=True, distinct=query.stream in ("insert", "delete"))


def _signed(events: Sequence[Any]) -> list[dict[Any, int]]:
    """Write events with signs as the mappings that a histogram reads; kept as tuples elsewhere, to
    be hashable."""
    return list(map(dict, events))


def _bounded(
    events: Iterable[Any], remedy: str = "audit a smaller query of the same kind"
) -> tuple[Any, ...]:
    """List the events of a universe; refuse more than an audit can try."""
    universe_events = tuple(islice(events, LARGEST_UNIVERSE + 1))
    if len(universe_events) > LARGEST_UNIVERSE:
        raise TooLarge(f"more than {LARGEST_UNIVERSE:,} possible events are too many: {remedy}")
    return universe_events
