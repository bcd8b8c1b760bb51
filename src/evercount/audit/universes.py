"""The finite sets of events from which the sensitivity audit builds its streams, one for each kind of query."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

from evercount.errors import ParameterError, TooLarge
from evercount.queries.base import Query
from evercount.queries.counts import Count, Sum
from evercount.queries.cuts.cut_query import Cuts
from evercount.queries.distinct_users import DistinctUsers
from evercount.queries.graphs import GraphQuery
from evercount.queries.marginals import Marginals
from evercount.queries.quantiles import Quantiles
from evercount.queries.rollup import Rollup
from evercount.queries.window import WindowOf

LARGEST_UNIVERSE = 100_000


@dataclass(frozen=True)
class Universe:
    """Events of which streams are made, and what stands where an event is absent.

    A step of a stream is a tuple of events: one event, or one of `absent`. With `merge` several steps may share a tick
    and ticks may be quiet. That is right for queries whose increments of a tick are the sums over its steps, and
    which a quiet tick leaves as they are. Without it every step is a tick. With `distinct` no event may come twice in
    a stream. `tick` turns the events of a tick into what the query reads.
    """

    events: tuple[Any, ...]
    absent: tuple[tuple[Any, ...], ...] = ((),)
    merge: bool = True
    replace_by_absent: bool = False
    tick: Callable[[Sequence[Any]], Any] = list
    distinct: bool = False

    def alternatives(self, event: Any, adjacency: str) -> list[tuple[Any, ...]]:
        """The steps that may stand where `event` stood."""
        away = list(self.absent)
        if adjacency == "add-remove":
            return away
        others = [(other,) for other in self.events if other != event]
        return others + away if self.replace_by_absent else others


def universe(query: Query) -> Universe:
    """The universe of a known kind of query: small enough to enumerate, rich enough to reach its S."""
    if isinstance(query, GraphQuery):
        return _graph_universe(query)
    if isinstance(query, Cuts):
        ends = (-1.0, 1.0) if query.weights == "signed" else (1.0,)
        events = tuple((u, v, w) for u, v in combinations(range(query.vertices), 2) for w in ends)
        return Universe(_bounded(events), replace_by_absent=True)
    if isinstance(query, WindowOf):
        return universe(query.of)
    if isinstance(query, Count):  # an event that counts, and one that does not
        return Universe((0, 1), tick=sum)
    parameters = query.parameters()
    if isinstance(query, Rollup):
        stranger = ("another path",) * query.depth
        unknown = [stranger] if parameters["unknown"] == "other" else []
        return Universe(_bounded((*map(tuple, parameters["paths"]), *unknown)))
    if isinstance(query, Marginals):
        return Universe(_bounded(tuple(product(*parameters["columns"]))))
    if isinstance(query, DistinctUsers):
        people, keys = ("ann", "bob"), parameters["keys"]
        return Universe(_bounded(people if keys is None else tuple(product(people, keys))))
    if isinstance(query, Quantiles):  # a value of each bin
        return Universe(_bounded(tuple(query.edges.tolist())))
    if isinstance(query, Sum):
        middle = round((query.lo + query.hi) / 2 / query.grid) * query.grid
        return Universe((query.lo, middle, query.hi), replace_by_absent=parameters.get("per") == "event")
    if "alphabet" in parameters and "max_length" in parameters:
        alphabet = parameters["alphabet"]
        letters = tuple(range(alphabet)) if isinstance(alphabet, int) else tuple(alphabet)
        return Universe(_bounded((*letters, None)), absent=((None,), ()))
    if "keys" in parameters and "max_keys_per_event" in parameters:
        return Universe(_bounded(_subsets(parameters)), tick=_signed if parameters.get("removals") else list)
    raise ParameterError(
        f"no universe of events is known for {query!r}: pass universe=Universe(events=(…)) with the legal events"
    )


def _graph_universe(query: GraphQuery) -> Universe:
    if query.deletes:
        events: tuple[Any, ...] = tuple(tuple(edge[:2]) for edge in query.initial_edges)
    else:
        count = query.vertices * (query.vertices - 1) // 2 * (query.weight_limit or 1)
        if count > LARGEST_UNIVERSE:
            raise TooLarge(f"{query!r} has {count:,} possible updates: audit it with fewer vertices")
        edges = combinations(range(query.vertices), 2)
        limit = query.weight_limit
        events = tuple(edges) if limit is None else tuple((*e, w) for e in edges for w in range(1, limit + 1))
        if query.stream == "mixed":
            events = tuple((*edge, sign) for edge in events for sign in (1, -1))
    return Universe(_bounded(events), replace_by_absent=True, distinct=query.stream in ("insert", "delete"))


def _subsets(parameters: dict[str, Any]) -> tuple[Any, ...]:
    """Every event of a histogram: subsets of at most b keys, with signs where removals are allowed."""
    keys = parameters["keys"]
    names = list(range(keys)) if isinstance(keys, int) else list(keys)
    found: list[Any] = []
    for size in range(parameters["max_keys_per_event"] + 1):
        for chosen in combinations(names, size):
            if parameters.get("removals"):
                found.extend(tuple(zip(chosen, signs, strict=True)) for signs in product((1, -1), repeat=size))
            else:
                found.append(chosen)
            if len(found) > LARGEST_UNIVERSE:
                raise TooLarge("this histogram has too many possible events: audit it with fewer keys")
    return tuple(found)


def _signed(events: Sequence[Any]) -> list[dict[Any, int]]:
    """Events with signs as the mappings that a histogram reads; kept as tuples elsewhere, to be hashable."""
    return [dict(event) for event in events]


def _bounded(events: tuple[Any, ...]) -> tuple[Any, ...]:
    if len(events) > LARGEST_UNIVERSE:
        raise TooLarge(f"{len(events):,} possible events are too many: audit a smaller query of the same kind")
    return events
