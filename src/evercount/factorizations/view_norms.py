"""Errors of what people read: the norm of a view (per tick, the last N ticks, the running total) at each tick."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from evercount._arrays import FloatArray, IntArray
from evercount._validate import check_count
from evercount.errors import ParameterError
from evercount.factorizations.base import Factorization, tick_grid
from evercount.factorizations.fresh import Fresh
from evercount.factorizations.row_weighted import Weighted
from evercount.factorizations.square_root import SquareRoot

POINTS_PER_OCTAVE = 16
"""Norms are exact at this many ticks in each doubling of the distance from a jump, a cubic between."""


def view_norms(factorization: Factorization, width: int | None, ticks: npt.ArrayLike) -> FloatArray:
    """The std, over σ, of the sum of the last `width` ticks at each tick.

    A factorization of the row-weighted family has norms that are smooth but for the ticks where the window fills and
    where time ends. Far from these ticks a cubic through four exact norms takes their place, to a relative 1e-6.

    Args:
        factorization: M = L·R.
        width: 1: each tick's own number; N: the last N ticks, or all if there are fewer; None: the running total.
        ticks: Ticks from 1 on, in an array of any shape.

    Returns:
        ‖L_t − L_{t−N}‖₂ at each tick, in the same shape.

    Raises:
        ParameterError: The width is not a whole number of at least 1, or a tick lies outside the horizon.

    Test: tests/factorizations/test_view_norms.py::test_norms_are_those_of_the_dense_matrix.

    >>> from evercount.factorizations import Balanced
    >>> view_norms(Balanced(365), 7, [1, 7, 365]).round(2).tolist()
    [1.97, 2.47, 1.85]
    """
    if width is None:
        return factorization.row_norms(ticks)
    width, at = check_count("width", width), np.asarray(ticks)
    if at.size:
        factorization.row_norms(at.reshape(-1)[[int(at.argmin()), int(at.argmax())]])  # checks them
    flat = at.astype(np.int64).ravel()
    if isinstance(factorization, Fresh):
        return np.sqrt(np.minimum(flat, width)).reshape(at.shape)
    full = flat > width
    norms = np.empty(len(flat))
    norms[~full] = factorization.row_norms(flat[~full])
    norms[full] = _full_windows(factorization, width, flat[full])
    return norms.reshape(at.shape)


def worst_view(factorization: Factorization, width: int | None, last: int | None = None) -> tuple[int, float]:
    """The tick with the largest norm of a view, and that norm.

    The row-weighted family has few maxima, and wide ones: exact norms at 16 ticks in each doubling of the distance from
    the ends find it, and a search between the neighbours of the best. Other factorizations are searched on a grid.

    Args:
        factorization: M = L·R.
        width: As in `view_norms`.
        last: The last tick; needed without a horizon, whose error grows for ever.

    Returns:
        (tick, norm).

    Raises:
        ParameterError: Neither a horizon nor a last tick is given.

    Test: tests/factorizations/test_view_norms.py::test_the_worst_tick_is_found.
    """
    end = last or factorization.horizon
    if end is None:
        raise ParameterError("errors grow for ever without a horizon: give the last tick")
    if width is None and last is None and not _smooth(factorization):
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


def _smooth(factorization: Factorization) -> bool:
    return isinstance(factorization, Weighted | SquareRoot)


def _exact(factorization: Factorization, width: int | None, ticks: IntArray) -> FloatArray:
    if width is None:
        return factorization.row_norms(ticks)
    return np.asarray([factorization.difference_norm(max(0, t - width), t) for t in ticks.tolist()])


def _full_windows(factorization: Factorization, width: int, ticks: IntArray) -> FloatArray:
    """Norms at ticks after `width`; each is a function of its tick alone, whatever else is asked for."""
    if not _smooth(factorization):
        distinct, where = np.unique(ticks, return_inverse=True)
        return _exact(factorization, width, distinct)[where]
    low, end = width + 1, factorization.horizon
    distance = ticks - low if end is None else np.minimum(ticks - low, end - ticks)
    spacing = 1 << np.maximum(np.frexp(distance // POINTS_PER_OCTAVE)[1] - 1, 0).astype(np.int64)
    first = np.maximum(low, low + (ticks - low) // spacing * spacing - spacing)
    if end is not None:
        first = np.where(spacing > 1, np.minimum(first, end - 3 * spacing), first)
    nodes = np.where(spacing[:, None] > 1, first[:, None] + spacing[:, None] * np.arange(4), ticks[:, None])
    distinct, where = np.unique(nodes, return_inverse=True)
    values = _exact(factorization, width, distinct)[where.reshape(nodes.shape)]
    x = (ticks - nodes[:, 0]) / spacing  # Lagrange's form on 0, 1, 2, 3
    weights = [-(x - 1) * (x - 2) * (x - 3) / 6, x * (x - 2) * (x - 3) / 2, -x * (x - 1) * (x - 3) / 2]
    weights.append(x * (x - 1) * (x - 2) / 6)
    return np.where(spacing > 1, np.sum(np.stack(weights, axis=1) * values, axis=1), values[:, 0])
