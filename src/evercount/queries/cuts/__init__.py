"""Released graphs that keep every cut: the query, and the graph that it publishes."""

from __future__ import annotations

from evercount.queries.cuts.cut_graph import CutGraph, CutValue
from evercount.queries.cuts.cut_query import Cuts

__all__ = ["CutGraph", "CutValue", "Cuts"]
