"""Errors of weighted sums of ticks: any public lower triangular matrix W over what the ticks added.

Row t of W says how much each tick up to t counts. Published are running sums S, so row t of the
view is the combination C·S with C[t, j] = W[t, j] − W[t, j+1], and its noise is that combination of
theirs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from evercount._validate import FloatArray, IntArray
from evercount.bounds.tails import continuous_std, equal_numbers
from evercount.engine.build import Decayed, Weighting, view_weighting
from evercount.engine.error_model import ErrorModel, whole_ticks
from evercount.engine.noise_covariance import covariance_of_sums, nodes_of_ticks
from evercount.errors import ParameterError, TooLarge
from evercount.factorizations import Factorization
from evercount.factorizations.laplace_trees import DigitTree, PureFactorization
from evercount.factorizations.terrace import Terrace
from evercount.queries.base import Query

MOST_TICKS = 2048
"""Ticks that a weighted sum may have: its error takes a matrix of their covariances."""
FORGOTTEN = 1e-9
"""Ticks that a decayed sum weighs less than this are left out of its error."""
SAMPLE = 12
"""Ticks of a long stream at which the std of a decayed sum is looked at when noise is chosen."""


class WeightedErrors(NamedTuple):
    """Errors of one cell's weighted sums, each (rows,): half a width is quantile·spread + slack."""

    std: FloatArray
    spread: FloatArray
    slack: FloatArray
    numbers: IntArray
    """How many equal Laplace numbers have tails as heavy (0: normal noise)."""


def check_weighted(query: Query) -> None:
    """Refuse queries whose releases are no running sums of ticks."""
    query.publishing.check_views("weighted views are sums over ticks, and ", None)
    if query.discovery is not None or query.lags > 1 or query.publishing.weights is not None:
        raise ParameterError(
            "weighted views are for running sums of listed keys: not for keys that nobody listed, "
            "averages, or days that are revised"
        )


def check_weights(weights: Any) -> FloatArray:
    """The matrix of a weighted view, or what is wrong with it."""
    try:
        if np.iscomplexobj(weights):
            raise TypeError
        matrix = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError):
        raise ParameterError(
            "weights are a matrix of real numbers: a row and a column for each tick"
        ) from None
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or not matrix.size:
        raise ParameterError(
            "weights are a square matrix with a row and a column for each tick, got the shape "
            f"{matrix.shape}"
        )
    if len(matrix) > MOST_TICKS:
        raise TooLarge(f"a weighted view has at most {MOST_TICKS} ticks, {len(matrix)} were given")
    if not np.isfinite(matrix).all():
        row, column = np.argwhere(~np.isfinite(matrix))[0] + 1
        raise ParameterError(
            f"the weight of tick {column} in row {row} is {matrix[row - 1, column - 1]}: give a "
            "number, 0 for a tick that does not count"
        )
    later = np.argwhere(np.triu(matrix, 1))
    if len(later):
        row, column = later[0] + 1
        raise ParameterError(
            f"row {row} weighs tick {column}, which is not published yet at tick {row}: give a "
            "lower triangular matrix, as np.tril(weights)"
        )
    return matrix


def weights_of(view: Any, ticks: int) -> FloatArray | None:
    """W of a view for the ticks 1 … `ticks`; None where it is a plain one by its name."""
    if not isinstance(view, str):
        matrix = check_weights(view)
        if len(matrix) < ticks:
            raise ParameterError(
                f"the weights have rows for {len(matrix)} ticks, and tick {ticks} is asked for"
            )
        return matrix[:ticks, :ticks]
    weighting: Weighting = view_weighting(view)
    if not isinstance(weighting, Decayed):
        return None
    if ticks > MOST_TICKS:
        raise TooLarge(f"a weighted view has at most {MOST_TICKS} ticks, {ticks} were asked for")
    lags = np.subtract.outer(np.arange(ticks), np.arange(ticks))
    return np.where(lags >= 0, weighting.factor ** np.maximum(lags, 0), 0.0)


def of_sums(weights: FloatArray) -> FloatArray:
    """C, the combination of running sums: C[t, j] = W[t, j] − W[t, j+1]."""
    return weights - np.pad(weights[:, 1:], ((0, 0), (0, 1)))


def weighted_std(model: ErrorModel, weights: FloatArray) -> FloatArray:
    """The exact std of each row of W over the ticks 1, 2, …, of one cell."""
    return _std(model, of_sums(weights), np.arange(1, weights.shape[1] + 1))


def _std(model: ErrorModel, combination: FloatArray, places: IntArray) -> FloatArray:
    covariance = covariance_of_sums(model, places)
    variance = np.einsum("ij,jk,ik->i", combination, covariance, combination, optimize=True)
    return np.asarray(np.sqrt(np.maximum(variance, 0.0)))


def decayed_std(model: ErrorModel, decayed: Decayed, ticks: IntArray) -> FloatArray:
    """The std of a decayed sum at each tick, of one cell; what it weighs less than FORGOTTEN is
    left out."""
    last = int(ticks.max())
    reach = _reach(decayed, last)
    if last <= MOST_TICKS // 2:
        rows = weights_of(f"decayed-{decayed.factor}", last)
        assert rows is not None
        return weighted_std(model, rows)[ticks - 1]
    stds = []
    for tick in ticks.tolist():
        first = max(1, tick - reach)
        row = decayed.factor ** np.arange(tick - first, -1.0, -1.0)
        combination = row - np.append(row[1:], 0.0)
        places = np.arange(first, tick + 1)
        if first > 1:
            combination = np.append(-row[0], combination)
            places = np.append(first - 1, places)
        stds.append(_std(model, combination[np.newaxis], places)[0])
    return np.asarray(stds)


def _reach(decayed: Decayed, last: int) -> int:
    """How many ticks before its own a decayed sum of at most `last` ticks looks at."""
    reach = math.ceil(math.log(FORGOTTEN) / math.log(decayed.factor))
    if min(reach, last) > MOST_TICKS:
        raise TooLarge(
            f"decayed-{decayed.factor:g} adds up more than {MOST_TICKS} ticks, which is too many "
            "for its exact error: let it fall faster"
        )
    return reach


def check_decays(views: Iterable[str], horizon: int | None) -> None:
    """Refuse decayed sums of too many ticks before noise is chosen for them."""
    for view in views:
        weighting = view_weighting(view)
        if isinstance(weighting, Decayed):
            _reach(weighting, horizon or MOST_TICKS + 1)


def weighted_suspects(engine: Factorization, last: int) -> IntArray:
    """Ticks at which the std of a decayed sum is looked at: all of a short stream, some of a long
    one."""
    if last <= MOST_TICKS // 2:
        return np.arange(1, last + 1)
    block = engine.lengths[-1] if isinstance(engine, Terrace) else last
    near = np.linspace(max(1, last - 2 * block), last, SAMPLE).astype(np.int64)
    early = np.asarray([1, *(2**power for power in range(4, 10, 2))])
    return np.unique(np.concatenate([early, near]))


def weighted_errors(model: ErrorModel, weights: FloatArray) -> WeightedErrors:
    """The errors of each row of W over the ticks 1, 2, …, of one cell.

    **Guarantee.** `std` is exact, with rounding as `Stream.noise_covariance` states it. Rounded
    numbers are each off by at most half a unit, those of a terrace by that and half a unit that
    they share (its dither): `slack` adds that up, and is also what discrete Laplace numbers get in
    excess of continuous ones. Test: tests/engine/test_weighted_views.py::test_intervals_hold.
    """
    combination = of_sums(weights)
    places = np.arange(1, weights.shape[1] + 1)
    std = _std(model, combination, places)
    half = model.query.grid / 2
    slack = half * np.abs(combination).sum(axis=1)
    plain = replace(model, rounded=False)
    if not model.pure:
        return WeightedErrors(
            std, _std(plain, combination, places), slack * model.rounded, np.zeros(len(std), int)
        )
    if isinstance(model.factorization, Terrace):
        slack = slack + half * np.abs(weights[:, 0])
    scales = _scales(model, combination, places)
    variance = 2 * (scales**2).sum(axis=1)
    numbers = equal_numbers(variance, scales.max(axis=1, initial=0.0))
    return WeightedErrors(std, np.sqrt(variance), slack, np.asarray(numbers))


def _scales(model: ErrorModel, combination: FloatArray, places: IntArray) -> FloatArray:
    """The scale of each Laplace number, as if it were continuous, in each row: shape (rows,
    numbers)."""
    engine = model.factorization
    grid = model.query.grid
    assert isinstance(engine, PureFactorization)
    last = int(places[-1])
    if isinstance(engine, DigitTree):
        one = continuous_std(model.sigma / grid) / math.sqrt(2)
        return np.asarray(np.abs(combination @ engine.dense(last)[0]) * one * grid)
    if isinstance(engine, Terrace):
        left, _, shares = engine.node_matrices(last)
    else:
        left, shares = nodes_of_ticks(engine, places)
    return np.asarray(np.abs(combination @ left) / (shares * model.full_rate) * grid)


def std_of_weights(model: ErrorModel, view: Any, ticks: Any) -> FloatArray | None:
    """The std of a weighted view at some ticks, shape (ticks, outputs or 1); None where it is a
    plain one."""
    if isinstance(view, str) and not isinstance(view_weighting(view), Decayed):
        return None
    check_weighted(model.query)
    _check_cells(model)
    at = whole_ticks(ticks, model.factorization.horizon)
    last = int(at.max(initial=1))
    weights = weights_of(view, last)
    assert weights is not None
    return np.asarray(weighted_std(model, weights)[at - 1, np.newaxis] * model.parts[0].norms)


def _check_cells(model: ErrorModel) -> None:
    if model.joined:
        raise ParameterError(
            "weighted views are for streams whose keys were there from the first tick on"
        )
