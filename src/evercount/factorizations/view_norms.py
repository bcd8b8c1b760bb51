"""Errors of what people read: the worst tick of a view (per tick, the last N ticks, the running
total)."""

from __future__ import annotations

import hashlib

import numpy as np

from evercount._validate import FloatArray, IntArray
from evercount.errors import ParameterError
from evercount.factorizations.base import Factorization, tick_grid
from evercount.factorizations.interruption import check_wanted
from evercount.factorizations.laplace_bridge import Bridge
from evercount.factorizations.laplace_choice import EndlessBridge
from evercount.factorizations.row_weighted import SquareRoot, Weighted


def worst_view(
    factorization: Factorization, width: int | None, last: int | None = None
) -> tuple[int, float]:
    """The tick with the largest norm of the sum of the last `width` ticks (None: of all), and that
    norm.

    The row-weighted family has few maxima, and wide ones: exact norms at 16 ticks in each doubling
    of the distance from the ends find it, and a search between the neighbours of the best. Other
    factorizations are searched on a grid.

    Test: tests/factorizations/test_view_norms.py::test_the_worst_norm_is_that_of_the_dense_matrix.
    """
    if not isinstance(factorization, Bridge | EndlessBridge | Weighted):
        return _search(factorization, width, last)
    parameters = (
        hashlib.sha256(array.tobytes()).digest() for array in factorization.public_parameters()
    )
    key = type(factorization), factorization.horizon, tuple(parameters), width, last
    if len(_worst) > MOST_STORED:
        _worst.clear()  # perhaps while another thread is between the next two lines
    worst = _worst.get(key)
    # a search takes up to a second; streams of one declaration have the same numbers
    if worst is None:
        worst = _worst[key] = _search(factorization, width, last)
    return worst


MOST_STORED = 256
_worst: dict[tuple[object, ...], tuple[int, float]] = {}
"""Results for factorizations that are equal if their public parameters are."""


def _search(factorization: Factorization, width: int | None, last: int | None) -> tuple[int, float]:
    """Search a grid of ticks for the largest norm, then between the neighbours of the best."""
    end = last or factorization.horizon
    if end is None:
        raise ParameterError("errors grow for ever without a horizon: give the last tick")
    if width is None and last is None and not isinstance(factorization, Weighted | SquareRoot):
        return factorization.worst_row()
    grid = tick_grid(end)
    if width is not None and width < end:  # the ticks around the one from which on windows are full
        grid = np.unique(
            np.concatenate([grid, width + tick_grid(end - width), width + tick_grid(width)[:3] - 1])
        )
        grid = grid[grid <= end]
    norms = _exact(factorization, width, grid)
    best = int(np.argmax(norms))
    low = int(grid[max(best - 1, 0)])
    high = int(grid[min(best + 1, len(grid) - 1)])
    tick = int(grid[best])
    norm = float(norms[best])
    while high - low > 2:
        inside = np.unique(np.linspace(low, high, 9).astype(np.int64))
        values = _exact(factorization, width, inside)
        place = int(np.argmax(values))
        if values[place] > norm:
            tick = int(inside[place])
            norm = float(values[place])
        nearer = int(inside[max(place - 1, 0)]), int(inside[min(place + 1, len(inside) - 1)])
        if nearer == (low, high):
            break
        low, high = nearer
    return tick, norm


def _exact(factorization: Factorization, width: int | None, ticks: IntArray) -> FloatArray:
    """Compute the norms of a view at these ticks."""
    check_wanted()
    if width is None:
        return factorization.row_norms(ticks)
    return factorization.difference_norms(np.maximum(ticks - width, 0), ticks)
