"""The exact covariance of a stream's noise: of one cell's published numbers at any ticks, from
public parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from evercount._validate import AnyArray, FloatArray, IntArray
from evercount.engine.build import view_width
from evercount.engine.error_model import ErrorModel, whole_ticks
from evercount.factorizations.base import LARGEST_DENSE_TICKS
from evercount.factorizations.laplace_bridge import UNITS, Bridge
from evercount.factorizations.laplace_choice import EndlessBridge
from evercount.factorizations.laplace_trees import (
    DigitTree,
    HybridTree,
    PureFactorization,
    node_variance,
)
from evercount.factorizations.terrace import Terrace

MOST_PER_TICK = 64
"""For ticks that are more than this many apart on average, differences are quicker than the whole
matrix."""


def noise_covariance(model: ErrorModel, ticks: Any, view: str) -> FloatArray:
    published = model.query.publishing
    width = view_width(view)
    at = whole_ticks(ticks, model.factorization.horizon)
    if published.own_ticks:
        return np.diag(model.cell_errors(at)[0][:, 0] ** 2)
    if width is None:
        weights = published.sum_weights(at)
        return np.asarray(covariance_of_sums(model, at) * np.multiply.outer(weights, weights))
    published.check_views("", width)
    both = covariance_of_sums(model, np.concatenate([at, np.maximum(at - width, 0)]))
    now = slice(len(at))
    before = slice(len(at), None)
    return np.asarray(both[now, now] - both[now, before] - both[before, now] + both[before, before])


def covariance_of_sums(model: ErrorModel, ticks: IntArray) -> FloatArray:
    """The covariance of one cell's running sums; tick 0 is before the first, where there is no
    noise."""
    engine = model.factorization
    places, where = np.unique(ticks, return_inverse=True)
    last = int(places.max(initial=0))
    if isinstance(engine, Terrace):
        rate = model.full_rate
        covariance = _from_differences(
            lambda tick, from_: engine.difference_errors(from_, np.full_like(from_, tick), rate)[0],
            places,
        )
        covariance *= model.query.grid**2
    elif isinstance(engine, PureFactorization) and not isinstance(engine, DigitTree):
        coefficients, shares = nodes_of_ticks(engine, places)
        variances = model.query.grid**2 * node_variance(model.full_rate * shares)
        covariance = (coefficients * variances) @ coefficients.T
    elif model.pure or last <= min(LARGEST_DENSE_TICKS, MOST_PER_TICK * len(places)):
        left = engine.dense(last)[0]
        rows = np.vstack([np.zeros(left.shape[1]), left])[places]
        covariance = model.sigma**2 * rows @ rows.T
    else:
        covariance = _from_differences(
            lambda tick, from_: engine.difference_norms(from_, np.full_like(from_, tick)) ** 2,
            places,
        )
        covariance *= model.sigma**2
    if model.rounded:
        shared = _from_differences(
            lambda tick, from_: engine.rounding_variance(from_, np.full_like(from_, tick)), places
        )
        covariance += model.query.grid**2 * shared
    return np.asarray(covariance[np.ix_(where, where)])


def nodes_of_ticks(engine: PureFactorization, places: IntArray) -> tuple[FloatArray, FloatArray]:
    """(coefficients at each tick, share of ε) of the nodes of a bridge or a hybrid tree, whose L is
    in units of shares. R does not have the shares of all of them: a bridge reads nodes of ticks to
    come."""
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
        parts = []
        epochs = engine.epochs(at)
        for epoch in range(int(epochs.max(initial=0)) + 1):
            inside = epochs == epoch
            total = float(engine.total_parts[epoch])
            own, shares = _bridge_nodes(engine.tree(epoch), at[inside] - int(engine.ends[epoch]))
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
    _, weights, shares = bridge.matrix(np.append(at, 1))
    return weights[:-1] / float(1 << bridge.bits), shares / UNITS


def _from_differences(square: Callable[[int, IntArray], AnyArray], places: IntArray) -> FloatArray:
    """The covariance at rising ticks, from the variance of the difference of each to earlier ones
    (0: no noise)."""
    variance = np.zeros(len(places))
    apart = np.zeros((len(places), len(places)))
    for number, tick in enumerate(places.tolist()):
        if tick:
            squares = square(tick, np.append(places[:number], 0))
            apart[number, :number] = squares[:-1]
            variance[number] = squares[-1]
    covariance = (variance[:, np.newaxis] + variance - apart - apart.T) / 2
    np.fill_diagonal(covariance, variance)
    return np.asarray(covariance)
