"""Counters of rare events: their error grows with the number of events. Not linear, so not a
stream's query."""

from evercount.sparse.sparse_count import SparseCount

__all__ = ["SparseCount"]
