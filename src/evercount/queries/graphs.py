"""The graph queries, under one name; proofs of their sensitivities: ``graphs.proof.md``."""

from __future__ import annotations

from evercount.queries.graph_counts import Edges, KStars, Triangles
from evercount.queries.graph_degrees import DegreeHistogram, HighDegree
from evercount.queries.graph_forests import Components, Matching, SpanningForest
from evercount.queries.graph_stream import GraphQuery, GraphState, StreamKind

__all__ = [
    "Components",
    "DegreeHistogram",
    "Edges",
    "GraphQuery",
    "GraphState",
    "HighDegree",
    "KStars",
    "Matching",
    "SpanningForest",
    "StreamKind",
    "Triangles",
]
