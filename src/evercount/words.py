"""Counts of words in a text and of patterns of events."""

from evercount.queries.words import Episodes, Substrings

__all__ = ["Episodes", "Substrings"]
