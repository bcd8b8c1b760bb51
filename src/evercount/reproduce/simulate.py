"""The simulator: many independent noise streams at once, with statistics at every tick.

Errors are those of L·z with standard normals z; multiply them by σ = multiplier·√S·c for a calibrated mechanism.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from evercount._arrays import FloatArray
from evercount.errors import ParameterError, UnknownName
from evercount.factorizations import FACTORIZATIONS, Factorization, factorization
from evercount.noise.simulation import insecure_generator
from evercount.reproduce.item import Context

EDGES = (0.25, 0.67448975, 1.0, 1.5, 1.95996398, 2.5758293, 3.0, 3.29052673)
"""At each tick, repetitions with |error|/std up to each edge are counted: the 50, 95, 99, 99.9 % points and others."""
BATCH = 64
"""Repetitions that run at once."""
BATCHES_PER_CHECKPOINT = 4
"""Batches between two checkpoints."""


@dataclass(frozen=True, eq=False)
class Totals:
    """Sums over repetitions. `+` joins the totals of different repetitions."""

    repetitions: int
    absolute: FloatArray
    """Σ |error| at each tick."""
    largest: FloatArray
    """max |error| at each tick."""
    running: FloatArray
    """Σ of max_{s≤t} |error_s|."""
    below: FloatArray
    """The number of repetitions with |error| ≤ EDGES[j]·std, shape (ticks, edges)."""
    each: FloatArray
    """Per repetition, summed: rows mean_t |error|/std, max_t |error|, max_t |error|/std; columns Σ and Σ of squares."""

    def __add__(self, other: Totals) -> Totals:
        joined = {f.name: getattr(self, f.name) + getattr(other, f.name) for f in fields(self)}
        return Totals(**{**joined, "largest": np.maximum(self.largest, other.largest)})


@dataclass(frozen=True, eq=False)
class Simulation:
    """Statistics of one mechanism over all repetitions, in units of σ."""

    name: str
    std: FloatArray
    """The exact std at each tick. Of the statistics, only counts at `EDGES` and quantiles use it."""
    totals: Totals

    @property
    def repetitions(self) -> int:
        return self.totals.repetitions

    @property
    def mean_absolute(self) -> FloatArray:
        """Mean |error| at each tick; exactly std·√(2/π) in expectation."""
        return self.totals.absolute / self.repetitions

    @property
    def running_maximum(self) -> FloatArray:
        """Mean of the largest |error| so far."""
        return self.totals.running / self.repetitions

    def quantile(self, level: float) -> FloatArray:
        """The level-quantile of |error| at each tick, interpolated between the counted edges on a normal scale."""
        from scipy.special import ndtri

        n = self.repetitions
        shares = np.clip(self.totals.below / n, 0.5 / n, 1 - 0.5 / n)
        scores = ndtri(0.5 + shares / 2)
        wanted = float(ndtri(0.5 + level / 2))
        edges = np.asarray(EDGES)
        if not edges[0] <= wanted <= edges[-1]:
            raise ParameterError(f"quantiles are counted between the levels 0.2 and 0.999, not at {level}")
        quantiles = [np.interp(wanted, row, edges) for row in scores]
        return np.asarray(quantiles) * self.std

    def summary(self, which: int) -> tuple[float, float]:
        """(mean, standard error) of one row of `Totals.each`."""
        total, squares = self.totals.each[which]
        n = self.repetitions
        mean = float(total / n)
        variance = max(float(squares / n) - mean**2, 0.0) * n / max(n - 1, 1)
        return mean, float(np.sqrt(variance / n))

    @property
    def mean_normalised(self) -> tuple[float, float]:
        """(mean, standard error) of mean_t |error|/std; √(2/π) = 0.7979 in expectation."""
        return self.summary(0)

    @property
    def worst_error(self) -> tuple[float, float]:
        """(mean, standard error) of the ℓ∞ error max_t |error|."""
        return self.summary(1)


def measure(noise: FloatArray, std: FloatArray) -> Totals:
    size = np.abs(noise)
    normal = size / std[:, np.newaxis]
    running = np.maximum.accumulate(size, axis=0)
    each = np.stack([normal.mean(axis=0), running[-1], normal.max(axis=0)])
    return Totals(
        noise.shape[1],
        size.sum(axis=1),
        size.max(axis=1),
        running.sum(axis=1),
        np.stack([np.count_nonzero(normal <= edge, axis=1) for edge in EDGES], axis=1).astype(np.float64),
        np.stack([each.sum(axis=1), (each**2).sum(axis=1)], axis=1),
    )


def one_batch(engine: Factorization, repetitions: int, seed: int) -> FloatArray:
    """Noise of `repetitions` streams at every tick of the horizon, shape (ticks, repetitions)."""
    assert engine.horizon is not None
    draws = engine.draws(0, engine.horizon)
    z = insecure_generator(seed).standard_normal((draws, repetitions))
    return engine.block(engine.initial(repetitions), z, engine.horizon)[0]


def simulate(
    names: Sequence[str],
    horizon: int,
    repetitions: int,
    *,
    seed: int = 0,
    checkpoint: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
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
    engines = {name: factorization(name, horizon) for name in names}
    done = 0
    simulations = {}
    for name, engine in engines.items():
        std = engine.row_norms(np.arange(1, horizon + 1))
        file = None if checkpoint is None else checkpoint / f"{name}-{horizon}-{repetitions}-{seed}.npz"
        total = load_totals(file)
        start = 0 if total is None else total.repetitions
        while start < repetitions:
            count = min(BATCH, repetitions - start)
            batch = measure(one_batch(engine, count, batch_seed(seed, name, start)), std)
            total = batch if total is None else total + batch
            start += count
            if start >= repetitions or start % (BATCH * BATCHES_PER_CHECKPOINT) == 0:
                save_totals(file, total)
            if progress is not None:
                progress(done + start, repetitions * len(names))
        assert total is not None
        done += repetitions
        simulations[name] = Simulation(name, std, total)
    return simulations


def simulate_item(context: Context, names: Sequence[str], horizon: int, repetitions: int) -> dict[str, Simulation]:
    """`simulate` with the seed, checkpoints and progress of a running item."""
    return simulate(
        names,
        horizon,
        repetitions,
        seed=context.seed,
        checkpoint=context.checkpoints,
        progress=context.progress,
    )


def batch_seed(seed: int, name: str, start: int) -> int:
    """A seed for one batch, by hashing: a batch gives the same numbers whenever it is run."""
    words = np.random.SeedSequence([seed, start, *name.encode()]).generate_state(2)
    return int(words[0]) << 30 ^ int(words[1])


def load_totals(path: Path | None) -> Totals | None:
    """The totals of the finished batches; None if there is no such file."""
    if path is None or not path.exists():
        return None
    with np.load(path) as saved:
        return Totals(int(saved["repetitions"]), *(saved[f.name] for f in fields(Totals)[1:]))


def save_totals(path: Path | None, totals: Totals) -> None:
    """Write the totals of the finished batches. The file is replaced at once, so an interrupted write loses nothing."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_suffix(".part.npz")
    values: dict[str, Any] = {f.name: getattr(totals, f.name) for f in fields(totals)}
    np.savez(unfinished, **values)
    unfinished.replace(path)
