"""The simulator: many independent noise streams at once, with statistics of every tick.

Errors are those of c·L·z with standard normals z; multiply them by multiplier·√S for a calibrated mechanism.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from evercount._validate import FloatArray
from evercount.factorizations import Factorization, factorization
from evercount.noise import Secret
from evercount.noise.secret import insecure_generator
from evercount.reproduce.item import Progress, silent

BATCH = 64  # repetitions that run at once


@dataclass(frozen=True, eq=False)
class Simulation:
    """Statistics of one mechanism at noise multiplier 1 and S = 1, over all repetitions."""

    std: FloatArray  # the exact std at each tick
    mean_absolute: FloatArray  # of |error| at each tick; exactly std·√(2/π) in expectation
    running_maximum: FloatArray  # mean of max_{s≤t} |error_s|
    mean_normalised: tuple[float, float]  # (mean, standard error) of mean_t |error|/std; √(2/π) in expectation
    worst_error: tuple[float, float]  # (mean, standard error) of the ℓ∞ error max_t |error|


def measure(noise: FloatArray, std: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Σ |error| and Σ of max_{s≤t} |error_s| at each tick; (mean_t |error|/std, max_t |error|) of each repetition."""
    size = np.abs(noise)
    running = np.maximum.accumulate(size, axis=0)
    return size.sum(axis=1), running.sum(axis=1), np.stack([(size / std[:, np.newaxis]).mean(axis=0), running[-1]])


def with_standard_error(values: FloatArray) -> tuple[float, float]:
    """Their mean, and its standard error."""
    return float(values.mean()), float(values.std(ddof=1) / np.sqrt(len(values)))


def stds(engine: Factorization) -> FloatArray:
    """The exact std at every tick of the horizon, at noise multiplier 1 and S = 1."""
    assert engine.horizon is not None
    return engine.row_norms(np.arange(1, engine.horizon + 1)) * engine.column_norm


def batches(repetitions: int, most: int) -> Iterator[tuple[int, int]]:
    """(number of the first repetition, how many) of each batch."""
    return ((start, min(most, repetitions - start)) for start in range(0, repetitions, most))


def one_batch(engine: Factorization, repetitions: int, seed: int) -> FloatArray:
    """Noise of `repetitions` streams at every tick of the horizon, shape (ticks, repetitions)."""
    assert engine.horizon is not None
    z = insecure_generator(seed).standard_normal((engine.draws(0, engine.horizon), repetitions))
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
    simulations = {}
    for place, name in enumerate(names):
        engine = factorization(name, horizon)
        std = stds(engine)
        measured = []
        for start, count in batches(repetitions, BATCH):
            noise = one_batch(engine, count, batch_seed(seed, name, start)) * engine.column_norm
            measured.append(measure(noise, std))
            progress(place * repetitions + start + count, repetitions * len(names))
        *sums, each = zip(*measured, strict=True)
        means = (np.sum(one, axis=0) / repetitions for one in sums)
        simulations[name] = Simulation(std, *means, *map(with_standard_error, np.concatenate(each, axis=1)))
    return simulations


def batch_seed(seed: int, name: str, start: int) -> int:
    """A seed for one batch, by hashing: a batch gives the same numbers whenever it is run."""
    words = np.random.SeedSequence([seed, start, *name.encode()]).generate_state(2)
    return int(words[0]) << 30 ^ int(words[1])


def secret_of(label: str) -> Secret:
    """A reproducible secret; only for simulation."""
    return Secret.from_hex(hashlib.blake2b(label.encode(), digest_size=32).hexdigest())
