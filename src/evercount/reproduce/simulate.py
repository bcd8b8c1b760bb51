"""The simulator: many independent noise streams at once, with statistics at every tick.

Errors are those of L·z with standard normals z; multiply them by σ = multiplier·√S·c for a calibrated mechanism.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np

from evercount._arrays import FloatArray
from evercount.errors import ParameterError, UnknownName
from evercount.factorizations import FACTORIZATIONS, Factorization, factorization
from evercount.noise import Secret
from evercount.noise.simulation import insecure_generator
from evercount.reproduce.item import Progress, silent

BATCH = 64  # repetitions that run at once


@dataclass(frozen=True, eq=False)
class Simulation:
    """Statistics of one mechanism in units of σ, as sums over repetitions; `+` joins those of other repetitions."""

    name: str
    std: FloatArray  # the exact std at each tick; only `mean_normalised` uses it
    repetitions: int
    absolute: FloatArray  # Σ |error| at each tick
    running: FloatArray  # Σ of max_{s≤t} |error_s|
    each: FloatArray  # per repetition, summed: rows mean_t |error|/std and max_t |error|; columns Σ and Σ of squares

    def __add__(self, other: Simulation) -> Simulation:
        sums = self.absolute + other.absolute, self.running + other.running, self.each + other.each
        return Simulation(self.name, self.std, self.repetitions + other.repetitions, *sums)

    @property
    def mean_absolute(self) -> FloatArray:
        """Mean |error| at each tick; exactly std·√(2/π) in expectation."""
        return self.absolute / self.repetitions

    @property
    def running_maximum(self) -> FloatArray:
        return self.running / self.repetitions

    def _summary(self, which: int) -> tuple[float, float]:
        """(mean, standard error) of one row of `each`."""
        total, squares = self.each[which]
        n = self.repetitions
        mean = float(total / n)
        variance = max(float(squares / n) - mean**2, 0.0) * n / max(n - 1, 1)
        return mean, float(np.sqrt(variance / n))

    @property
    def mean_normalised(self) -> tuple[float, float]:
        """(mean, standard error) of mean_t |error|/std; √(2/π) = 0.7979 in expectation."""
        return self._summary(0)

    @property
    def worst_error(self) -> tuple[float, float]:
        """(mean, standard error) of the ℓ∞ error max_t |error|."""
        return self._summary(1)


def measure(name: str, noise: FloatArray, std: FloatArray) -> Simulation:
    size = np.abs(noise)
    running = np.maximum.accumulate(size, axis=0)
    each = np.stack([(size / std[:, np.newaxis]).mean(axis=0), running[-1]])
    squares = np.stack([each.sum(axis=1), (each**2).sum(axis=1)], axis=1)
    return Simulation(name, std, noise.shape[1], size.sum(axis=1), running.sum(axis=1), squares)


def one_batch(engine: Factorization, repetitions: int, seed: int) -> FloatArray:
    """Noise of `repetitions` streams at every tick of the horizon, shape (ticks, repetitions)."""
    assert engine.horizon is not None
    draws = engine.draws(0, engine.horizon)
    z = insecure_generator(seed).standard_normal((draws, repetitions))
    return engine.block(engine.initial(repetitions), z, engine.horizon)[0]


def simulate(
    names: Sequence[str], horizon: int, repetitions: int, seed: int = 0, progress: Progress = silent
) -> dict[str, Simulation]:
    """Statistics of the named factorizations over `repetitions` streams of `horizon` ticks each.

    >>> simulation = simulate(["square-root"], horizon=64, repetitions=100)["square-root"]
    >>> mean, standard_error = simulation.mean_normalised  # √(2/π) = 0.798 in expectation
    >>> abs(mean - 0.798) < 4 * standard_error
    True
    """
    for name in names:
        if name not in FACTORIZATIONS:
            raise UnknownName("factorization", name, FACTORIZATIONS)
    if repetitions < 2:
        raise ParameterError(f"repetitions must be at least 2, because a standard error needs two, not {repetitions}")
    simulations = {}
    for place, name in enumerate(names):
        engine = factorization(name, horizon)
        std = engine.row_norms(np.arange(1, horizon + 1))
        batches = []
        for start in range(0, repetitions, BATCH):
            count = min(BATCH, repetitions - start)
            batches.append(measure(name, one_batch(engine, count, batch_seed(seed, name, start)), std))
            progress(place * repetitions + start + count, repetitions * len(names))
        simulations[name] = reduce(add, batches)
    return simulations


def batch_seed(seed: int, name: str, start: int) -> int:
    """A seed for one batch, by hashing: a batch gives the same numbers whenever it is run."""
    words = np.random.SeedSequence([seed, start, *name.encode()]).generate_state(2)
    return int(words[0]) << 30 ^ int(words[1])


def secret_of(label: str) -> Secret:
    """A reproducible secret; only for simulation."""
    return Secret.from_hex(hashlib.blake2b(label.encode(), digest_size=32).hexdigest())
