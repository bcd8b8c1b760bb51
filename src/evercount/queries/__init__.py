"""What is asked of a stream: each query is an encoder, a declared sensitivity and a decoder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from inspect import Parameter, signature
from typing import Any

from evercount.errors import ParameterError, UnknownName
from evercount.queries.base import Query
from evercount.queries.counts import Average, Count, Sum
from evercount.queries.cuts.cut_query import Cuts
from evercount.queries.discovered_keys import DiscoveredKeys
from evercount.queries.graphs.degrees import DegreeHistogram, DegreeSequence, HighDegree, MinDegree
from evercount.queries.graphs.forests import Components, Matching, MinCut, SpanningForest
from evercount.queries.graphs.subgraph_counts import Edges, KStars, Triangles
from evercount.queries.histogram import Histogram, TopK
from evercount.queries.marginals import Marginals
from evercount.queries.people import ActiveUsers, DistinctUsers, Occupancy
from evercount.queries.prefix import PrefixQuery, register_encoder
from evercount.queries.quantiles import Quantiles
from evercount.queries.rollup import Rollup
from evercount.queries.words import Episodes, Substrings

_ALL: list[type[Query]] = [
    Count,
    Sum,
    Average,
    Histogram,
    TopK,
    DiscoveredKeys,
    Rollup,
    Marginals,
    Quantiles,
]
_ALL += [
    DistinctUsers,
    ActiveUsers,
    Occupancy,
    Substrings,
    Episodes,
    Cuts,
    Edges,
    Triangles,
    KStars,
    DegreeHistogram,
]
_ALL += [
    DegreeSequence,
    HighDegree,
    MinCut,
    MinDegree,
    SpanningForest,
    Components,
    Matching,
    PrefixQuery,
]
QUERIES: dict[str, type[Query]] = {kind.name: kind for kind in _ALL}
"""Every query that can be built from its name and parameters (snapshots, services, commands)."""

EXAMPLE_PARAMETERS: dict[str, dict[str, Any]] = {
    "histogram": {"keys": ["north", "south"]},
    "top-k": {"keys": ["north", "south", "east"], "k": 2},
    "rollup": {"paths": [["Tyrol", "Innsbruck"], ["Tyrol", "Kufstein"], ["Styria", "Graz"]]},
    "marginals": {"columns": [["north", "south"], ["young", "old"]]},
    "occupancy": {"max_events": 20},
    "quantiles": {"low": 0, "high": 100, "bins": 64},
    "substrings": {"alphabet": "abc", "max_length": 3},
    "episodes": {"alphabet": "abc", "max_length": 3},
    "k-stars": {"vertices": 50, "k": 2, "max_degree": 5},
    "high-degree": {"vertices": 50, "tau": 3},
    "spanning-forest": {"vertices": 50, "max_weight": 10},
    "prefix": {"encode": "a registered encoder", "cells": 2, "sensitivity": {"add-remove": 1}},
    **{name: {"vertices": 50} for name in ("cuts", "edges", "components", "matching")},
    **{
        name: {"vertices": 50, "stream": "mixed"}
        for name in ("degree-sequence", "min-degree", "min-cut")
    },
    **{name: {"vertices": 50, "max_degree": 5} for name in ("triangles", "degree-histogram")},
}
"""For error messages: parameters that a query without defaults could have."""


def query_parameters(name: str) -> Mapping[str, Parameter]:
    """The arguments of the class of a query.

    >>> list(query_parameters("sum"))
    ['low', 'high', 'grid']
    """
    if name == "sparse-count":
        raise ParameterError(
            "'sparse-count' is a separate mechanism and not a query of a stream: what it releases "
            "is not linear in the data, so a stream's noise, error bars and state do not fit it. "
            "Use evercount.sparse.SparseCount in Python (step, run, snapshot, restore); `evercount "
            "plan --query sparse-count` shows its error. Here use 'count'"
        )
    if name not in QUERIES:
        raise UnknownName("query", name, (*QUERIES, "sparse-count"))
    return signature(QUERIES[name]).parameters


def build_query(name: str, parameters: dict[str, Any]) -> Query:
    """The query of that name.

    Args:
        name: a key of `QUERIES`.
        parameters: the arguments of its class.

    Returns:
        The query, checked.

    Raises:
        ParameterError: the name is not known, a parameter is missing or unknown (the message has an
            example), or one is outside its domain.

    >>> build_query("histogram", {"keys": ["north", "south"]}).cells
    2
    """
    legal_parameters = query_parameters(name)
    for given in parameters:
        if given not in legal_parameters:
            raise UnknownName(f"parameter of {name!r}", given, legal_parameters)
    missing = [
        one.name
        for one in legal_parameters.values()
        if one.default is one.empty and one.name not in parameters
    ]
    if missing:
        example = EXAMPLE_PARAMETERS.get(name, {})
        typed = " ".join(f"-p {key}='{json.dumps(value)}'" for key, value in example.items())
        raise ParameterError(
            f"the query {name!r} needs {' and '.join(missing)}; for example parameters = "
            f"{json.dumps(example)}, on the command line {typed}"
        )
    try:
        return QUERIES[name](**parameters)
    except TypeError as error:
        raise ParameterError(f"parameters of {name!r}: {error}") from error


__all__ = [
    "QUERIES",
    "ActiveUsers",
    "Average",
    "Components",
    "Count",
    "Cuts",
    "DegreeHistogram",
    "DegreeSequence",
    "DiscoveredKeys",
    "DistinctUsers",
    "Edges",
    "Episodes",
    "HighDegree",
    "Histogram",
    "KStars",
    "Marginals",
    "Matching",
    "MinCut",
    "MinDegree",
    "Occupancy",
    "PrefixQuery",
    "Quantiles",
    "Query",
    "Rollup",
    "SpanningForest",
    "Substrings",
    "Sum",
    "TopK",
    "Triangles",
    "build_query",
    "register_encoder",
]
