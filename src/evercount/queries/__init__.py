"""What is asked of a stream: each query is an encoder, a declared sensitivity and a decoder."""

from __future__ import annotations

from typing import Any

from evercount.errors import ParameterError, UnknownName
from evercount.queries.base import Adjacency, Query
from evercount.queries.counts import Average, Count, Sum
from evercount.queries.cuts.cut_query import Cuts
from evercount.queries.episodes import Episodes
from evercount.queries.graphs.degrees import DegreeHistogram, DegreeSequence, HighDegree, MinDegree
from evercount.queries.graphs.forests import Components, Matching, SpanningForest
from evercount.queries.graphs.min_cut import MinCut
from evercount.queries.graphs.subgraph_counts import Edges, KStars, Triangles
from evercount.queries.histogram import Histogram, TopK
from evercount.queries.prefix import PrefixQuery
from evercount.queries.substrings import Substrings
from evercount.queries.window import Window, WindowOf

QUERIES: dict[str, type[Query]] = {
    kind.name: kind
    for kind in (
        Count,
        Sum,
        Average,
        Window,
        WindowOf,
        Histogram,
        TopK,
        Substrings,
        Episodes,
        Cuts,
        Edges,
        Triangles,
        KStars,
        DegreeHistogram,
        DegreeSequence,
        HighDegree,
        MinCut,
        MinDegree,
        SpanningForest,
        Components,
        Matching,
        PrefixQuery,
    )
}
"""Every query that can be built from its name and parameters (snapshots, services, commands)."""

NOT_QUERIES = {
    "sparse-count": (
        "'sparse-count' is a mechanism of its own and not a query of a stream: what it releases is not linear in the "
        "data, so a stream's noise, error bars and state do not fit it. Use evercount.SparseCount in Python (step, "
        "run, snapshot, restore); `evercount plan --query sparse-count` shows its error. Here use 'count'"
    )
}
"""Names that users know from the documents and that are not queries, with what to do instead."""


def check_is_query(name: str) -> None:
    """Refuse a name that is known but is not a query, and say where it is offered."""
    if isinstance(name, str) and name in NOT_QUERIES:
        raise ParameterError(NOT_QUERIES[name])


def build_query(name: str, parameters: dict[str, Any]) -> Query:
    """The query of that name; wrong parameters are a ParameterError that names them."""
    check_is_query(name)
    if name not in QUERIES:
        raise UnknownName("query", name, (*QUERIES, *NOT_QUERIES))
    try:
        return QUERIES[name](**parameters)
    except TypeError as error:
        raise ParameterError(f"parameters of {name!r}: {error}") from error


__all__ = [
    "NOT_QUERIES",
    "QUERIES",
    "Adjacency",
    "Average",
    "Components",
    "Count",
    "Cuts",
    "DegreeHistogram",
    "DegreeSequence",
    "Edges",
    "Episodes",
    "HighDegree",
    "Histogram",
    "KStars",
    "Matching",
    "MinCut",
    "MinDegree",
    "PrefixQuery",
    "Query",
    "SpanningForest",
    "Substrings",
    "Sum",
    "TopK",
    "Triangles",
    "Window",
    "WindowOf",
    "build_query",
    "check_is_query",
]
