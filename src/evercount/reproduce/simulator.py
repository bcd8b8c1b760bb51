"""The simulator: many independent noise streams at once, with statistics of every tick.

Errors are those of c·L·z with standard normals z; multiply them by multiplier·√S for a calibrated
mechanism. NumPy runs them in doubles; with a device, PyTorch runs them in `device_simulator.py`.
Both add up the same totals, one batch after the other, and keep them in a file after each: an
interrupted run goes on with the next batch.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias
from zipfile import BadZipFile

import numpy as np

from evercount._safe_files import new_mode, replaced
from evercount._validate import FloatArray
from evercount.factorizations import Factorization, State, factorization
from evercount.noise import Secret
from evercount.noise.secret import insecure_generator
from evercount.reproduce.item import Progress, silent

BATCH = 64  # repetitions that run at once
PARTIAL_FORMAT = 1  # the version of the files of interrupted runs; other versions are not read


@dataclass(frozen=True, eq=False)
class Simulation:
    """Statistics of one mechanism at noise multiplier 1 and S = 1, over all repetitions."""

    std: FloatArray  # the exact std at each tick
    mean_absolute: FloatArray  # of |error| at each tick; exactly std·√(2/π) in expectation
    running_maximum: FloatArray  # mean of max_{s≤t} |error_s|
    # (mean, standard error) of mean_t |error|/std; √(2/π) in expectation
    mean_normalised: tuple[float, float]
    worst_error: tuple[float, float]  # (mean, standard error) of the ℓ∞ error max_t |error|


def measure(noise: FloatArray, std: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Σ |error| and Σ of max_{s≤t} |error_s| at each tick; (mean_t |error|/std, max_t |error|) of
    each repetition."""
    size = np.abs(noise)
    running = np.maximum.accumulate(size, axis=0)
    return (
        size.sum(axis=1),
        running.sum(axis=1),
        np.stack([(size / std[:, np.newaxis]).mean(axis=0), running[-1]]),
    )


@dataclass(frozen=True, eq=False)
class Totals:
    """What the repetitions so far add up to."""

    repetitions: int
    absolute: FloatArray  # Σ |error| at each tick
    running: FloatArray  # Σ max_{s≤t} |error_s| at each tick
    moments: FloatArray  # Σ x and Σ x² of mean_t |error|/std and of max_t |error|, shape (2, 2)

    @classmethod
    def none(cls, ticks: int) -> Totals:
        return cls(0, np.zeros(ticks), np.zeros(ticks), np.zeros((2, 2)))

    def __add__(self, other: Totals) -> Totals:
        return Totals(
            self.repetitions + other.repetitions,
            self.absolute + other.absolute,
            self.running + other.running,
            self.moments + other.moments,
        )

    def simulation(self, std: FloatArray) -> Simulation:
        """The means and their standard errors, of noise with this exact std."""
        count = self.repetitions
        means = self.moments[:, 0] / count
        variances = np.maximum(self.moments[:, 1] - count * means**2, 0.0) / (count - 1)
        normalised, worst = zip(means.tolist(), np.sqrt(variances / count).tolist(), strict=True)
        return Simulation(std, self.absolute / count, self.running / count, normalised, worst)


def moments_of(each: FloatArray) -> FloatArray:
    """Σ x and Σ x² of each row."""
    return np.stack([each.sum(axis=1), (each**2).sum(axis=1)], axis=1)


Batch: TypeAlias = Callable[[int, int], Totals]
"""(how many repetitions at most, seed) → the totals of those that ran: fewer where memory is
short."""


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


def block_matrices(engine: Factorization, size: int) -> Iterator[tuple[int, FloatArray]]:
    """Each `size` ticks of the noise c·L·z as one matrix: (first tick, [state after; noise] from
    [state before; z]).

    `Factorization.block` is linear in its state and its normals. It runs once for each unit vector
    of both, so the matrices are right for every factorization that streams, whatever its state is
    made of.
    """
    assert engine.horizon is not None
    initial = engine.initial(1).arrays
    sizes = [array.size for array in initial]
    for start in range(0, engine.horizon, size):
        stop = min(start + size, engine.horizon)
        units = np.eye(sum(sizes) + engine.draws(start, stop))
        *parts, z = np.split(units, np.cumsum(sizes))
        arrays = (
            part.reshape(*one.shape[:-1], -1) for part, one in zip(parts, initial, strict=True)
        )
        noise, after = engine.block(State(start, tuple(arrays)), z, stop - start)
        states = (array.reshape(-1, len(units)) for array in after.arrays)
        yield start, np.concatenate([*states, noise * engine.column_norm])


def simulate(
    names: Sequence[str],
    horizon: int,
    repetitions: int,
    seed: int = 0,
    progress: Progress = silent,
    device: str | None = None,
    folder: Path | None = None,
) -> dict[str, Simulation]:
    """Statistics of the named factorizations over `repetitions` streams of `horizon` ticks each.

    `device` is one of PyTorch's; None is NumPy. In `folder` a run that was interrupted left what it
    had, and goes on.

    >>> simulation = simulate(["square-root"], horizon=64, repetitions=100)["square-root"]
    >>> mean, standard_error = simulation.mean_normalised  # √(2/π) = 0.798 in expectation
    >>> abs(mean - 0.798) < 4 * standard_error
    True
    """
    simulations = {}
    for place, name in enumerate(names):
        engine = factorization(name, horizon)
        std = stds(engine)
        run = batch_runner(engine, std, device)
        key = json.dumps([PARTIAL_FORMAT, name, horizon, repetitions, seed, device])
        if folder is None:
            file = None
        else:
            file = folder / f"{name}.partial.npz"
        totals = read_partial(file, key) or Totals.none(horizon)
        while totals.repetitions < repetitions:
            progress(place * repetitions + totals.repetitions, repetitions * len(names))
            done = totals.repetitions
            totals += run(repetitions - done, batch_seed(seed, name, done))
            write_partial(file, key, totals)
        progress((place + 1) * repetitions, repetitions * len(names))
        simulations[name] = totals.simulation(std)
    return simulations


def batch_runner(engine: Factorization, std: FloatArray, device: str | None) -> Batch:
    """What runs a batch: PyTorch on this device, or NumPy."""
    if device is not None:
        from evercount.reproduce.device_simulator import DeviceBatches

        return DeviceBatches(engine, std, device)

    def run(most: int, seed: int) -> Totals:
        count = min(most, BATCH)
        absolute, running, each = measure(one_batch(engine, count, seed) * engine.column_norm, std)
        return Totals(count, absolute, running, moments_of(each))

    return run


def read_partial(file: Path | None, key: str) -> Totals | None:
    """What an interrupted run with this key left in the file, or None."""
    if file is None:
        return None
    unreadable = (OSError, ValueError, KeyError, EOFError, BadZipFile)
    with contextlib.suppress(*unreadable), np.load(io.BytesIO(file.read_bytes())) as stored:
        if str(stored["key"]) == key:
            return Totals(
                int(stored["repetitions"]), stored["absolute"], stored["running"], stored["moments"]
            )
    return None


def write_partial(file: Path | None, key: str, totals: Totals) -> None:
    """Replace the file by these totals."""
    if file is None:
        return
    with replaced(file, new_mode(file)) as content:
        stored: dict[str, Any] = {**vars(totals), "key": key}
        np.savez(content, **stored)


def batch_seed(seed: int, name: str, start: int) -> int:
    """A seed for one batch, by hashing: a batch gives the same numbers whenever it is run."""
    words = np.random.SeedSequence([seed, start, *name.encode()]).generate_state(2)
    return int(words[0]) << 30 ^ int(words[1])


def secret_of(label: str) -> Secret:
    """A reproducible secret; only for simulation."""
    return Secret.from_hex(hashlib.blake2b(label.encode(), digest_size=32).hexdigest())
