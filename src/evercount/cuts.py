"""All cuts of a weighted graph, and the graph that is released."""

from evercount.queries.cuts.cut_query import Cuts

__all__ = ["Cuts"]
