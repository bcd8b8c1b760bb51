"""Bounds for all ticks at once by simulation: the noise of successive ticks is correlated, and a union bound is not."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from evercount._arrays import FloatArray
from evercount.engine.error_model import ErrorModel
from evercount.errors import ParameterError
from evercount.mechanisms.laplace_noise import build_pure
from evercount.noise.simulation import insecure_generator, insecure_secret

SIMULATED_RUNS = 4000
RUNS_AT_A_TIME = 100
LONGEST_SIMULATION = 2**17
"""The largest number of ticks: memory and time grow with it."""
SEED = 0x5EED
"""Public, so that a bound is a function of public parameters alone."""


def simulated_factor(
    errors: ErrorModel, ticks: int, spread: FloatArray, slack: FloatArray, shape: FloatArray, beta: float
) -> float:
    """The smallest q, up to simulation, with P(|error| ≤ q·shape·spread + slack at all ticks) ≥ 1 − beta.

    It is the upper 99.9 % confidence limit over `SIMULATED_RUNS` runs; infinite where beta is too small for these.
    """
    query = errors.query
    one_sum = query.outputs == 1
    if errors.pure and query.cells != 1:
        one_sum = False  # a combination of Laplace numbers of several cells has other tails
    if not one_sum or not 0 < ticks <= LONGEST_SIMULATION:
        raise ParameterError(
            "method='simulate' is for runs of one running sum from tick 1 on, up to 2^17 ticks; use method='union'"
        )
    simulated = _laplace_errors(errors, ticks, spread, slack) if errors.pure else _normal_errors(errors, ticks)
    largest = [np.max(error / shape, axis=0) for error in simulated]
    ordered = np.sort(np.concatenate(largest))
    rank = int(np.ceil(SIMULATED_RUNS * (1 - beta) + 3.1 * np.sqrt(SIMULATED_RUNS * beta * (1 - beta))))
    return max(float(ordered[rank]), 0.0) if rank < SIMULATED_RUNS else float("inf")


def _laplace_errors(errors: ErrorModel, ticks: int, spread: FloatArray, slack: FloatArray) -> Iterator[FloatArray]:
    """(|error| − slack)/spread of discrete Laplace noise, shape (ticks, runs), until all runs are simulated."""
    scale = float(np.atleast_1d(errors.query.publishing.norms())[0]) * errors.query.grid
    for number in range(0, SIMULATED_RUNS, RUNS_AT_A_TIME):
        noise = build_pure(
            errors.factorization,
            cells=RUNS_AT_A_TIME,  # cells have independent noise of one law: each stands for a run
            grid=1.0,
            l1=1.0,
            epsilon=errors.full_rate,
            secret=insecure_secret(SEED + number),
        )
        yield (np.abs(noise.stream.take(ticks)) * scale - slack) / spread


def _normal_errors(errors: ErrorModel, ticks: int) -> Iterator[FloatArray]:
    """|noise| over its std, shape (ticks, runs), until all runs are simulated; slack is rounding and comes on top."""
    factorization = errors.factorization
    norms = factorization.row_norms(np.arange(1, ticks + 1))[:, np.newaxis]
    source, draws = insecure_generator(SEED), factorization.draws(0, ticks)
    for _ in range(0, SIMULATED_RUNS, RUNS_AT_A_TIME):
        normals = source.standard_normal((draws, RUNS_AT_A_TIME))
        yield np.abs(factorization.block(factorization.initial(RUNS_AT_A_TIME), normals, ticks)[0]) / norms
