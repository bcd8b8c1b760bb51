"""Statistics of a growing graph: edges arrive and leave, one person's edge or all edges of a person
are protected."""

from evercount.queries import (
    Components,
    DegreeHistogram,
    DegreeSequence,
    Edges,
    HighDegree,
    KStars,
    Matching,
    MinCut,
    MinDegree,
    SpanningForest,
    Triangles,
)

__all__ = [
    "Components",
    "DegreeHistogram",
    "DegreeSequence",
    "Edges",
    "HighDegree",
    "KStars",
    "Matching",
    "MinCut",
    "MinDegree",
    "SpanningForest",
    "Triangles",
]
