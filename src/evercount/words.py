"""Counts of words in a text and of patterns of events."""

from evercount.queries.episodes import Episodes
from evercount.queries.substrings import Substrings

__all__ = ["Episodes", "Substrings"]
