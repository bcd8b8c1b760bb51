"""Errors of what people read: the worst tick of a view (per tick, the last N ticks, the running total)."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from evercount._arrays import FloatArray, IntArray
from evercount.errors import ParameterError
from evercount.factorizations.base import Factorization, tick_grid
from evercount.factorizations.endless_bridge import EndlessBridge
from evercount.factorizations.laplace_bridge import Bridge
from evercount.factorizations.row_weighted import Weighted
from evercount.factorizations.square_root import SquareRoot


def worst_view(factorization: Factorization, width: int | None, last: int | None = None) -> tuple[int, float]:
    """The tick with the largest norm of the sum of the last `width` ticks (None: of all), and that norm.

    The row-weighted family has few maxima, and wide ones: exact norms at 16 ticks in each doubling of the distance from
    the ends find it, and a search between the neighbours of the best. Other factorizations are searched on a grid.

    Test: tests/factorizations/test_view_norms.py::test_the_worst_norm_is_that_of_the_dense_matrix.
    """
    if isinstance(factorization, Bridge | EndlessBridge | Weighted):  # their public parameters say all of them
        return _search_once(_Known.of(factorization), width, last)
    return _search(factorization, width, last)


@dataclass(frozen=True)
class _Known:
    """A factorization that is equal to another one with the same public parameters."""

    kind: type
    horizon: int | None
    parameters: tuple[bytes, ...]
    factorization: Callable[[], Factorization | None] = field(compare=False)  # weak: norms are kept, not what has them

    @classmethod
    def of(cls, factorization: Factorization) -> _Known:
        parameters = tuple(array.tobytes() for array in factorization.public_parameters())
        return cls(type(factorization), factorization.horizon, parameters, weakref.ref(factorization))


@lru_cache(maxsize=256)
def _search_once(known: _Known, width: int | None, last: int | None) -> tuple[int, float]:
    """A search takes up to a second; every promise of a horizon has the same tree, and every run the same weights."""
    factorization = known.factorization()
    assert factorization is not None, "the caller has it"
    return _search(factorization, width, last)


def _search(factorization: Factorization, width: int | None, last: int | None) -> tuple[int, float]:
    end = last or factorization.horizon
    if end is None:
        raise ParameterError("errors grow for ever without a horizon: give the last tick")
    if width is None and last is None and not isinstance(factorization, Weighted | SquareRoot):
        return factorization.worst_row()
    grid = tick_grid(end)
    if width is not None and width < end:  # the ticks around the one from which on windows are full
        grid = np.unique(np.concatenate([grid, width + tick_grid(end - width), width + tick_grid(width)[:3] - 1]))
        grid = grid[grid <= end]
    norms = _exact(factorization, width, grid)
    best = int(np.argmax(norms))
    low, high = int(grid[max(best - 1, 0)]), int(grid[min(best + 1, len(grid) - 1)])
    tick, norm = int(grid[best]), float(norms[best])
    while high - low > 2:
        inside = np.unique(np.linspace(low, high, 9).astype(np.int64))
        found = _exact(factorization, width, inside)
        place = int(np.argmax(found))
        if found[place] > norm:
            tick, norm = int(inside[place]), float(found[place])
        nearer = int(inside[max(place - 1, 0)]), int(inside[min(place + 1, len(inside) - 1)])
        if nearer == (low, high):
            break
        low, high = nearer
    return tick, norm


def _exact(factorization: Factorization, width: int | None, ticks: IntArray) -> FloatArray:
    if width is None:
        return factorization.row_norms(ticks)
    return factorization.window_norms(width, ticks)
