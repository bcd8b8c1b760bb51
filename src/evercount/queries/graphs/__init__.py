"""The graph queries, under one name; proofs of their sensitivities: ``graphs.proof.md``."""

from __future__ import annotations

from evercount.queries.graphs.degrees import DegreeHistogram, DegreeSequence, HighDegree, MinDegree
from evercount.queries.graphs.edge_rules import GraphState, StreamKind
from evercount.queries.graphs.forests import Components, Matching, MinCut, SpanningForest
from evercount.queries.graphs.graph_query import GraphQuery
from evercount.queries.graphs.subgraph_counts import Edges, KStars, Triangles

__all__ = [
    "Components",
    "DegreeHistogram",
    "DegreeSequence",
    "Edges",
    "GraphQuery",
    "GraphState",
    "HighDegree",
    "KStars",
    "Matching",
    "MinCut",
    "MinDegree",
    "SpanningForest",
    "StreamKind",
    "Triangles",
]
