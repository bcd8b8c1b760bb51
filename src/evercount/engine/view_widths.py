"""The names of views that add up ticks, and how many ticks each adds up."""

from __future__ import annotations

import re

from evercount.errors import UnknownName

RUNNING, PER_TICK = "running", "per-tick"
Names = tuple[str, ...]  # names of views, or of steps of post-processing
LAST = re.compile(r"last-([1-9][0-9]{0,8})")


def view_width(name: str) -> int | None:
    """How many ticks a view adds up; None for all so far.

    >>> view_width("last-7"), view_width("per-tick"), view_width("running")
    (7, 1, None)
    """
    if name == RUNNING:
        return None
    if name == PER_TICK:
        return 1
    match = LAST.fullmatch(name) if isinstance(name, str) else None
    if match is None:
        raise UnknownName("view", name, (RUNNING, PER_TICK, "last-7"))
    return int(match[1])
