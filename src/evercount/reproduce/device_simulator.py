"""The simulator in PyTorch, in single precision: the same lines on a CPU and on a GPU.

A block of ticks is one matrix product for many repetitions at once: [state after; noise] =
matrix·[state before; z] (`block_matrices`). Its statistics are taken before the next block, so the
noise of a whole stream is never in memory.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from evercount._validate import FloatArray
from evercount.errors import MissingExtra, ParameterError
from evercount.factorizations import Factorization
from evercount.reproduce.simulator import Totals, batches, block_matrices, moments_of

BLOCK = 64
"""Ticks of a block. Longer ones cost more products than they save: 256 take 2.7 times as long on a
CPU."""
CPU_PART = 1024
GPU_PART = 2**18
"""Repetitions of one product: blocks that stay in a cache, and few calls."""
CPU_PARTS = 8  # parts of a batch; the cores share them
Statistics: TypeAlias = Callable[[Any, Any], tuple[Any, Any, Any]]


def load_torch() -> Any:
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        raise MissingExtra("--device", "torch") from error


def check_device(device: str) -> None:
    """Refuse a device that PyTorch does not have here."""
    torch = load_torch()
    try:
        torch.empty(1, device=device).cpu()
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ParameterError(
            f"there is no device {device!r} here ({reason}): take --device cpu, or leave --device "
            "out for NumPy"
        ) from None


def block_statistics(noise: Any, inverse_std: Any) -> tuple[Any, Any, Any]:
    """Σ |error| at each tick of a block; max |error| and Σ |error|/std of each stream."""
    size = noise.abs()
    return size.sum(1), size.amax(0), inverse_std @ size


class DeviceBatches:
    """Batches of one factorization on one device. After a batch that did not fit into memory all
    are half as large.

    Args:
        engine: The factorization.
        std: The exact std at each tick.
        device: A device of PyTorch.
        part: How many repetitions share a product.
        block: Ticks of a block.
        statistics: `block_statistics`, or what `torch.compile` makes of it.
    """

    def __init__(
        self,
        engine: Factorization,
        std: FloatArray,
        device: str,
        part: int | None = None,
        block: int = BLOCK,
        statistics: Statistics = block_statistics,
    ) -> None:
        check_device(device)
        self.torch = load_torch()
        self.device = device
        self.statistics = statistics
        on_cpu = device.startswith("cpu")
        self.part = part or (CPU_PART if on_cpu else GPU_PART)
        self.batch = self.part * (CPU_PARTS if on_cpu else 1)
        self.workers = os.cpu_count() or 1 if on_cpu else 1
        self.ticks = len(std)
        self.state_size = sum(array.size for array in engine.initial(1).arrays)
        on_device = partial(self.torch.as_tensor, dtype=self.torch.float32, device=device)
        self.inverse_std = on_device(1 / std)
        self.blocks = [
            (start, on_device(matrix)) for start, matrix in block_matrices(engine, block)
        ]

    def __call__(self, most: int, seed: int) -> Totals:
        """Run a batch of at most so many repetitions: as many as fit into memory."""
        while True:
            count = min(most, self.batch)
            try:
                return self.run_parts(count, seed)
            except RuntimeError as error:
                if not self.is_short_of_memory(error):
                    raise
            if count == 1:
                raise ParameterError(
                    f"one stream of {self.ticks} ticks does not fit into the memory of "
                    f"{self.device}"
                )
            self.batch = count // 2
            self.part = min(self.part, self.batch)
            if self.device.startswith("cuda"):
                self.torch.cuda.empty_cache()

    def is_short_of_memory(self, error: RuntimeError) -> bool:
        return isinstance(error, self.torch.OutOfMemoryError) or "allocate memory" in str(error)

    def run_parts(self, count: int, seed: int) -> Totals:
        """Run so many repetitions, a part with a seed of its own on each core. The same numbers for
        any cores."""
        parts = list(batches(count, self.part))

        def use_one_core() -> None:
            if self.workers > 1:  # PyTorch draws normals on one core, whatever it may use
                self.torch.set_num_threads(1)

        with ThreadPoolExecutor(self.workers, "simulate", use_one_core) as pool:
            each = pool.map(lambda part: self.run(part[1], seed + part[0]), parts)
            return sum(each, Totals.none(self.ticks))

    def noise(self, count: int, seed: int) -> Iterator[tuple[int, Any]]:
        """(first tick, noise of shape (ticks, count)) of each block. The noise is valid until the
        next one."""
        generator = self.torch.Generator(self.device)
        generator.manual_seed(seed % 2**63)
        rows = max(matrix.shape[1] for _, matrix in self.blocks)
        inputs = self.torch.zeros((rows, count), device=self.device)
        for start, matrix in self.blocks:
            used = inputs[: matrix.shape[1]]
            used[self.state_size :].normal_(generator=generator)
            output = matrix @ used
            used[: self.state_size] = output[: self.state_size]
            yield start, output[self.state_size :]

    def run(self, count: int, seed: int) -> Totals:
        """Run this many repetitions."""
        absolute = self.torch.empty(self.ticks, device=self.device)
        worst = self.torch.zeros(count, device=self.device)
        normalised = self.torch.zeros(count, device=self.device)
        ends: list[int] = []
        running: list[Any] = []
        for start, noise in self.noise(count, seed):
            stop = start + len(noise)
            if not start:  # early maxima grow fast: all of them
                first = noise.abs().cummax(0).values.sum(1)
                running.extend(first[:-1].unbind())
                ends.extend(range(1, stop))
            sums, largest, share = self.statistics(noise, self.inverse_std[start:stop])
            absolute[start:stop] = sums
            worst = self.torch.maximum(worst, largest)
            normalised += share
            running.append(worst.sum())
            ends.append(stop)
        each = self.torch.stack([normalised / self.ticks, worst]).double().cpu().numpy()
        maxima = self.torch.stack(running).double().cpu().numpy()
        # known at the ends of blocks
        between = np.interp(np.arange(1, self.ticks + 1), ends, maxima)
        return Totals(count, absolute.double().cpu().numpy(), between, moments_of(each))
