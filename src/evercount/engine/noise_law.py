"""The law of a stream's noise, for researchers: its exact covariance, and simulated paths."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from evercount._arrays import AnyArray, FloatArray, IntArray
from evercount._validate import check_count
from evercount.engine.error_model import whole_ticks
from evercount.engine.state import StreamParameters
from evercount.engine.view_widths import view_width
from evercount.errors import ParameterError
from evercount.factorizations import Fresh, Periods
from evercount.factorizations.base import LARGEST_DENSE_TICKS
from evercount.factorizations.endless_bridge import ENDS, EndlessBridge
from evercount.factorizations.laplace_base import PureFactorization, node_variance
from evercount.factorizations.laplace_bridge import UNITS, Bridge
from evercount.factorizations.laplace_trees import DigitTree, HybridTree
from evercount.mechanisms.laplace_noise import build_pure
from evercount.noise.simulation import insecure_generator, insecure_secret

MOST_PER_TICK = 64
"""For ticks that are more than this many apart on average, differences are quicker than the whole matrix."""


def noise_covariance(parameters: StreamParameters, ticks: Any, view: str) -> FloatArray:
    model, published = parameters.errors, parameters.query.publishing
    width = view_width(view)
    at = whole_ticks(ticks, parameters.factorization.horizon)
    if published.own_ticks:
        return np.diag(model.cell_errors(at)[0][:, 0] ** 2)
    if width is None:
        weights = published.sum_weights(at)
        return np.asarray(_of_sums(parameters, at) * np.multiply.outer(weights, weights))
    published.check_views("", width)
    both = np.concatenate([at, np.maximum(at - width, 0)])
    places, where = np.unique(both, return_inverse=True)
    sums = _of_sums(parameters, places)
    apart = np.zeros((len(at), len(places)))
    np.add.at(apart, (np.arange(len(at)), where[: len(at)]), 1.0)
    np.add.at(apart, (np.arange(len(at)), where[len(at) :]), -1.0)
    return np.asarray(apart @ sums @ apart.T)


def _of_sums(parameters: StreamParameters, ticks: IntArray) -> FloatArray:
    """The covariance of one cell's running sums; tick 0 is before the first, where there is no noise."""
    model, engine = parameters.errors, parameters.factorization
    places, where = np.unique(ticks, return_inverse=True)
    last = int(places.max(initial=0))
    if isinstance(engine, PureFactorization) and not isinstance(engine, DigitTree):
        coefficients, shares = _discrete_nodes(engine, places)
        variances = model.query.grid**2 * node_variance(model.full_rate * shares)
        covariance = (coefficients * variances) @ coefficients.T
    elif model.pure or last <= min(LARGEST_DENSE_TICKS, MOST_PER_TICK * len(places)):
        left = engine.dense(last)[0]
        rows = np.vstack([np.zeros(left.shape[1]), left])[places]
        covariance = model.sigma**2 * rows @ rows.T
    else:
        covariance = _from_differences(lambda tick, from_: engine.difference_norms_to(tick, from_) ** 2, places)
        covariance *= model.sigma**2
    if model.rounded:
        shared = _from_differences(lambda tick, from_: engine.roundings(from_, np.full(len(from_), tick)), places)
        covariance += model.query.grid**2 / 12 * shared
    return np.asarray(covariance[np.ix_(where, where)])


def _discrete_nodes(engine: PureFactorization, places: IntArray) -> tuple[FloatArray, FloatArray]:
    """(coefficients at each tick, share of ε) of the nodes of a bridge or a hybrid tree, whose L is in units of shares.
    R does not have the shares of all of them: a bridge reads nodes of ticks to come."""
    at = places[places > 0]
    if isinstance(engine, HybridTree):
        left = engine.dense(int(at.max(initial=1)))[0][at - 1]
        left = left[:, left.any(axis=0)]
        shares = 1 / np.abs(left).max(axis=0)  # coefficients are 1 and −1
        parts = [(left * shares, shares)]
    elif isinstance(engine, Bridge):
        parts = [_bridge_nodes(engine, at)]
    else:
        assert isinstance(engine, EndlessBridge)
        parts, epochs = [], engine.epochs(at)
        for epoch in range(int(epochs.max(initial=0)) + 1):
            inside, total = epochs == epoch, float(engine.total_parts[epoch])
            own, shares = _bridge_nodes(engine.bridge(epoch), at[inside] - int(ENDS[epoch]))
            coefficients = np.zeros((len(at), own.shape[1]))
            coefficients[inside] = own
            coefficients[epochs > epoch, 0] = 1.0  # the first node of a bridge is the total
            shares[0] = total
            parts.append((coefficients, shares))
    coefficients = np.hstack([part for part, _ in parts])
    missing = np.zeros((len(places) - len(at), coefficients.shape[1]))  # tick 0, which comes first
    return np.vstack([missing, coefficients]), np.concatenate([shares for _, shares in parts])


def _bridge_nodes(bridge: Bridge, at: IntArray) -> tuple[FloatArray, FloatArray]:
    """The nodes of some ticks, node 0 first, also where no tick reads it."""
    nodes, weights, shares = bridge.coefficients(at)
    distinct, first, place = np.unique(np.append(nodes.ravel(), 0), return_index=True, return_inverse=True)
    coefficients = np.zeros((len(at), len(distinct)))
    coefficients[np.repeat(np.arange(len(at)), nodes.shape[1]), place[:-1]] = weights.ravel() / float(1 << bridge.bits)
    return coefficients, np.append(shares.ravel(), UNITS)[first] / UNITS


def _from_differences(square: Callable[[int, IntArray], AnyArray], places: IntArray) -> FloatArray:
    """The covariance at rising ticks, from the variance of the difference of each to earlier ones (0: no noise)."""
    variance, apart = np.zeros(len(places)), np.zeros((len(places), len(places)))
    for number, tick in enumerate(places.tolist()):
        if tick:
            squares = square(tick, np.append(places[:number], 0))
            apart[number, :number], variance[number] = squares[:-1], squares[-1]
    covariance = (variance[:, np.newaxis] + variance - apart - apart.T) / 2
    np.fill_diagonal(covariance, variance)
    return np.asarray(covariance)


def noise_paths(parameters: StreamParameters, count: int, ticks: int | None, seed: int | None) -> FloatArray:
    """Paths as the cells of one draw, in the order (path, tick)."""
    engine, query, budget = parameters.factorization, parameters.query, parameters.budget
    count = check_count("n", count)
    last = parameters.horizon if ticks is None else check_count("ticks", ticks)
    if last is None:
        raise ParameterError("a stream without a horizon has no last tick: say how many ticks a path has")
    at = np.arange(1, last + 1)
    whole_ticks(at[-1:], engine.horizon)
    if budget.pure:
        l1 = query.protected_l1(budget, parameters.horizon)
        key = insecure_secret(seed)
        pure = build_pure(engine, cells=count, grid=query.grid, l1=l1, epsilon=budget.epsilon, secret=key)
        rows = pure.stream.take(last)
    else:
        normals = insecure_generator(seed).standard_normal((engine.draws(0, last), count))
        rows = engine.block(engine.initial(count), normals, last)[0] * (parameters.noise.sigma / query.grid)
        if parameters.errors.rounded:
            width = engine.width if isinstance(engine, Periods) else 1 if isinstance(engine, Fresh) else last
            _round(rows, width)
    if query.publishing.own_ticks:
        rows = np.diff(rows, axis=0, prepend=0.0)
    rows *= (query.grid * query.publishing.sum_weights(at))[:, np.newaxis]
    return rows.T


def _round(rows: FloatArray, width: int) -> None:
    """Round in place as exact noise is: the noise of each period of `width` ticks by itself."""
    real = whole = np.zeros(rows.shape[1])
    for start in range(0, len(rows), width):
        part = rows[start : start + width]
        end = part[-1].copy()
        part -= real
        np.rint(part, out=part)
        part += whole
        real, whole = end, part[-1].copy()
