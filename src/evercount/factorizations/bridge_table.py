"""Shapes and shares of bridges: few numbers for each range of horizons, printed by `benchmarks/fit_bridge.py`.

The numbers stand in `bridge_table.json`. The table is frozen: `bridge` means these numbers, and streams in the world
depend on them. A better table gets a new name.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

PLAIN = 7  # up to this horizon one level is best: every tick has all of ε


@dataclass(frozen=True)
class Design:
    """A tree: its branching from the top, and for each level but the last the coefficients of its shares."""

    # A child at x in (−1, 1) of a block at y in (−1, 1) takes a part of what is left that grows with the polynomial c_0
    # + c_1·x + c_2·x² + c_3·x³ + c_4·y + c_5·y² + c_6·y³ (the first four at the top, where there is one block).

    branching: tuple[int, ...]
    coefficients: tuple[tuple[float, ...], ...]


def design_for(horizon: int) -> Design:
    """The design of the shortest range of the table that holds the horizon."""
    if horizon <= PLAIN:
        return Design((horizon,), ())
    for longest, top, coefficients in TABLE:
        if horizon <= longest:
            return Design(branching(horizon, len(coefficients) + 1, top), coefficients)
    raise ValueError(horizon)  # LARGEST_TICKS is in the table


def branching(horizon: int, levels: int, top: int) -> tuple[int, ...]:
    """`top` blocks, and below them levels whose branching is as equal as it can be, with at least `horizon` leaves."""
    shape, rest = [top], -(-horizon // top)
    for below in range(levels - 1, 0, -1):
        k = 1
        while k**below < rest:
            k += 1
        shape.append(max(k, 2))
        rest = -(-rest // max(k, 2))
    return tuple(shape)


Coefficients = tuple[tuple[float, ...], ...]


def _coefficients(levels: list[list[float]]) -> Coefficients:
    return tuple(tuple(level) for level in levels)


_NUMBERS = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))

TABLE: tuple[tuple[int, int, Coefficients], ...] = tuple(
    (longest, top, _coefficients(levels)) for longest, top, levels in _NUMBERS["horizons"]
)
"""(longest horizon, branching at the top, coefficients of each level but the last)."""

ENDLESS: tuple[Coefficients, ...] = tuple(_coefficients(levels) for levels in _NUMBERS["endless"])
"""Coefficients of the epochs of the endless bridge, as in `Design`; printed by `fit_bridge.py endless`. Frozen too."""
