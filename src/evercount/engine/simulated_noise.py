"""Simulated paths of a stream's noise: for researchers, and for bounds that hold at all ticks."""

from __future__ import annotations

import numpy as np

from evercount._validate import FloatArray, check_count
from evercount.engine.error_model import ErrorModel, whole_ticks
from evercount.errors import ParameterError
from evercount.factorizations import Fresh, Periods
from evercount.mechanisms import NoiseStream
from evercount.mechanisms.composed_noise import FreshStream, PeriodicStream
from evercount.mechanisms.exact.exact_noise import ExactStream
from evercount.mechanisms.exact.filter_numbers import MOST_TICKS
from evercount.mechanisms.laplace_noise import build_pure
from evercount.noise.secret import insecure_generator, insecure_secret


def simulated_noise(model: ErrorModel, paths: int, seed: int | None) -> NoiseStream:
    """The noise of running sums, in grid units: each cell is an independent path of the law of one
    cell. Insecure."""
    engine = model.factorization
    scale = model.sigma / model.query.grid
    secret = insecure_secret(seed)
    if model.pure:
        return build_pure(
            engine, cells=paths, grid=1.0, l1=1.0, epsilon=model.full_rate, secret=secret
        ).stream
    if isinstance(engine, Fresh):
        return FreshStream(scale, paths, secret, 0, 0.0, MOST_TICKS)
    if isinstance(engine, Periods):
        return PeriodicStream(engine, scale, paths, secret)
    return ExactStream(engine, scale, paths, secret)


def noise_paths(model: ErrorModel, count: int, last: int | None, seed: int | None) -> FloatArray:
    """Paths of what is published of one cell, up to the tick `last`."""
    query = model.query
    count = check_count("n", count)
    if last is None:
        raise ParameterError(
            "a stream without a horizon has no last tick: say how many ticks a path has"
        )
    at = np.arange(1, check_count("ticks", last) + 1)
    whole_ticks(at[-1:], model.factorization.horizon)
    rows = simulated_noise(model, count, seed).take(last)
    if query.publishing.own_ticks:
        rows = np.diff(rows, axis=0, prepend=0)
    return np.asarray((rows * (query.grid * query.publishing.sum_weights(at))[:, np.newaxis]).T)


SIMULATED_RUNS = 4000
RUNS_AT_A_TIME = 100
LONGEST_SIMULATION = 2**17  # the largest number of ticks: memory and time grow with it
SEED = 0x5EED  # public, so that a bound is a function of public parameters alone


def simulated_factor(
    errors: ErrorModel, spread: FloatArray, slack: FloatArray, shape: FloatArray, beta: float
) -> float:
    """The smallest q, up to simulation, with P(|error| ≤ q·shape·spread + slack at all ticks) ≥ 1 −
    beta. It is the upper 99.9 % confidence limit over `SIMULATED_RUNS` runs; infinite where beta is
    too small for these."""
    query = errors.query
    engine = errors.factorization
    ticks = len(shape)
    # a combination of Laplace numbers of several cells has other tails
    mixed = errors.pure and query.cells != 1
    if query.outputs != 1 or mixed or not 0 < ticks <= LONGEST_SIMULATION:
        raise ParameterError(
            "method='simulate' is for one running sum, from tick 1 on, up to 2^17 ticks; use "
            "'union'"
        )
    largest = []
    source = insecure_generator(SEED)
    for number in range(0, SIMULATED_RUNS, RUNS_AT_A_TIME):
        if errors.pure:
            noise = simulated_noise(errors, RUNS_AT_A_TIME, SEED + number).take(ticks)
            scale = float(np.atleast_1d(query.publishing.norms())[0]) * query.grid
            off = (np.abs(noise) * scale - slack) / spread
        else:  # over its std; slack is rounding and comes on top
            normals = source.standard_normal((engine.draws(0, ticks), RUNS_AT_A_TIME))
            real, _ = engine.block(engine.initial(RUNS_AT_A_TIME), normals, ticks)
            off = np.abs(real) / engine.row_norms(np.arange(1, ticks + 1))[:, np.newaxis]
        largest.append(np.max(off / shape, axis=0))
    ordered = np.sort(np.concatenate(largest))
    rank = int(
        np.ceil(SIMULATED_RUNS * (1 - beta) + 3.1 * np.sqrt(SIMULATED_RUNS * beta * (1 - beta)))
    )
    if rank < SIMULATED_RUNS:
        return max(float(ordered[rank]), 0.0)
    return float("inf")
