"""The batched simulator: many independent noise streams at once, with statistics at every tick.

Errors are those of L·z with standard normals z; multiply by σ = multiplier·√S·c for a calibrated mechanism. Two
backends give the same statistics up to sampling error: NumPy here, PyTorch in `simulate_torch`.
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
from evercount.noise import FloatNoise

BACKENDS = ("numpy", "torch")
EDGES = (0.25, 0.67448975, 1.0, 1.5, 1.95996398, 2.5758293, 3.0, 3.29052673)
"""Where each tick's |error|/std is counted: the quartile, the 95 %, 99 % and 99.9 % points and some between."""
BATCH = 64
"""Repetitions that NumPy runs at a time."""
SAVE_EVERY = 4
"""Batches between two checkpoints."""


@dataclass(frozen=True, eq=False)
class Totals:
    """Sums over repetitions; totals of disjoint repetitions add up."""

    repetitions: int
    absolute: FloatArray
    """Σ |error| at each tick."""
    largest: FloatArray
    """max |error| at each tick."""
    running: FloatArray
    """Σ of max_{s≤t} |error_s|."""
    below: FloatArray
    """How often |error| ≤ EDGES[j]·std, shape (ticks, edges)."""
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
    """The exact std at each tick, for comparison: nothing below is computed from it but the places of `EDGES`."""
    totals: Totals

    @property
    def repetitions(self) -> int:
        """How many independent streams were run."""
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
        """The level-quantile of |error| at each tick, between counted edges by the normal's own curve."""
        from scipy.special import ndtri

        n = self.repetitions
        shares = np.clip(self.totals.below / n, 0.5 / n, 1 - 0.5 / n)
        scores = ndtri(0.5 + shares / 2)
        wanted = float(ndtri(0.5 + level / 2))
        edges = np.asarray(EDGES)
        if not edges[0] <= wanted <= edges[-1]:
            raise ParameterError(f"quantiles are counted between the levels 0.2 and 0.999, not at {level}")
        places = [np.interp(wanted, row, edges) for row in scores]
        return np.asarray(places) * self.std

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
    """The statistics of noise of shape (ticks, repetitions)."""
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
    """Noise of so many streams over the whole horizon, shape (ticks, repetitions)."""
    assert engine.horizon is not None
    draws = engine.draws(0, engine.horizon)
    z = FloatNoise(seed).normals(0, draws, repetitions)
    return engine.block(engine.initial(repetitions), z, engine.horizon)[0]


def simulate(
    names: Sequence[str],
    horizon: int,
    repetitions: int,
    *,
    seed: int = 0,
    backend: str = "numpy",
    device: str = "cpu",
    checkpoint: Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Simulation]:
    """Statistics of the named factorisations over `repetitions` streams of `horizon` ticks each.

    The numbers depend on names, sizes, seed and backend only. With `checkpoint` (a folder), finished batches are kept
    there and a later call with the same arguments goes on after them.
    """
    if backend not in BACKENDS:
        raise UnknownName("backend", backend, BACKENDS)
    for name in names:
        if name not in FACTORIZATIONS:
            raise UnknownName("factorization", name, FACTORIZATIONS)
    if repetitions < 2:
        raise ParameterError(
            f"repetitions must be at least 2, for a standard error exists only then, not {repetitions}"
        )
    engines = {name: factorization(name, horizon) for name in names}
    done = 0
    found = {}
    for name, engine in engines.items():
        std = engine.row_norms(np.arange(1, horizon + 1))
        make = _torch_batches(engine, std, device) if backend == "torch" else _numpy_batches(engine, std)
        store = None if checkpoint is None else checkpoint / f"{name}-{horizon}-{repetitions}-{seed}-{backend}.npz"
        total = load_totals(store)
        start = 0 if total is None else total.repetitions
        while start < repetitions:
            count = min(make.size, repetitions - start)
            part = make.run(count, batch_seed(seed, name, start))
            total = part if total is None else total + part
            start += count
            if start >= repetitions or start % (make.size * SAVE_EVERY) == 0:
                save_totals(store, total)
            if progress is not None:
                progress(done + start, repetitions * len(names))
        assert total is not None
        done += repetitions
        found[name] = Simulation(name, std, total)
    return found


@dataclass(frozen=True, eq=False)
class _Batches:
    size: int
    run: Callable[[int, int], Totals]


def _numpy_batches(engine: Factorization, std: FloatArray) -> _Batches:
    return _Batches(BATCH, lambda count, seed: measure(one_batch(engine, count, seed), std))


def _torch_batches(engine: Factorization, std: FloatArray, device: str) -> _Batches:
    from evercount.reproduce import simulate_torch

    plan = simulate_torch.Plan.of(simulate_torch.describe(engine, std, EDGES))

    def run(count: int, seed: int) -> Totals:
        sums = simulate_torch.run(plan, count, seed, device)
        return Totals(count, *(sums[key] for key in ("absolute", "largest", "running", "below", "each")))

    return _Batches(simulate_torch.batch_size(device), run)


def batch_seed(seed: int, name: str, start: int) -> int:
    """A seed of its own for every batch, by hashing: the same batch is the same whenever it is run."""
    words = np.random.SeedSequence([seed, start, *name.encode()]).generate_state(2)
    return int(words[0]) << 30 ^ int(words[1])


def load_totals(path: Path | None) -> Totals | None:
    """Finished batches, or None where there are none."""
    if path is None or not path.exists():
        return None
    with np.load(path) as saved:
        return Totals(int(saved["repetitions"]), *(saved[f.name] for f in fields(Totals)[1:]))


def save_totals(path: Path | None, totals: Totals) -> None:
    """Keep finished batches; the file is replaced whole, so a broken run leaves the last good one."""
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_suffix(".part.npz")
    values: dict[str, Any] = {f.name: getattr(totals, f.name) for f in fields(totals)}
    np.savez(part, **values)
    part.replace(path)
