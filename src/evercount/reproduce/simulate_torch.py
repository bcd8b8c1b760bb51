"""The PyTorch backend of the simulator: tensor code on any device, one fused kernel on a CUDA device.

This file needs only torch and numpy, so that a machine without the rest of the package can run it too.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

FloatArray: TypeAlias = npt.NDArray[np.float64]

BLOCK_TICKS = 64
"""Ticks of one matrix product."""


@dataclass(frozen=True, eq=False)
class Plan:
    """A mechanism as numbers: the binary tree, or a filter h(0) = 1, h(k) = Σ weight_i·exp(−rate_i·k).

    With `eta` and `n` the noise is the running sum of n_t·(filter of η·z)_t instead of the filter's output.
    """

    name: str
    ticks: int
    edges: tuple[float, ...]
    std: FloatArray
    weights: FloatArray | None = None
    rates: FloatArray | None = None
    eta: FloatArray | None = None
    n: FloatArray | None = None

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Plan:
        """The plan of a mapping that `describe` returned; a missing std is computed from the filter."""
        arrays = {
            key: np.asarray(described[key], np.float64)
            for key in ("weights", "rates", "eta", "n", "std")
            if described.get(key) is not None
        }
        ticks = int(described["ticks"])
        if "std" not in arrays:
            arrays["std"] = _std(ticks, arrays.get("weights"), arrays.get("rates"))
        return cls(str(described["name"]), ticks, tuple(described["edges"]), **arrays)

    @property
    def plain(self) -> bool:
        """Whether the fused kernel can run it: 2^k ≥ 64 ticks of the tree, or of a filter without η and n."""
        return self.eta is None and self.ticks % BLOCK_TICKS == 0 and self.ticks & (self.ticks - 1) == 0


def describe(engine: Any, std: FloatArray | None, edges: Sequence[float]) -> dict[str, Any]:
    """A factorization as a mapping of numbers, which `Plan.of` reads."""
    ticks = int(engine.horizon)
    described: dict[str, Any] = {"name": engine.name, "ticks": ticks, "edges": list(edges)}
    if std is not None:
        described["std"] = std
    if engine.name == "binary-tree":
        return described
    weighted = getattr(engine, "weights", None)
    if engine.name == "square-root":
        response = engine.filter.forward()
    elif weighted is not None:
        response = weighted.filter.inverse()
        described |= {"eta": weighted.eta.at(0, ticks), "n": weighted.n.at(0, ticks)}
    else:
        from evercount.errors import ParameterError

        raise ParameterError(f"the torch backend runs trees and filters, not {engine.name!r}; use backend='numpy'")
    return described | {"weights": response.weights.tolist(), "rates": response.rates.tolist()}


def _std(ticks: int, weights: FloatArray | None, rates: FloatArray | None) -> FloatArray:
    """The std at each tick: of a filter, or of the binary tree if there are no weights."""
    t = np.arange(ticks)
    if weights is None or rates is None:
        return np.sqrt(np.bitwise_count(t + 1).astype(np.float64))
    h = np.exp(-np.multiply.outer(t, rates)) @ weights
    h[0] = 1.0
    return np.asarray(np.sqrt(np.cumsum(h**2)))


def load_torch() -> Any:
    """The torch module, or MissingExtra."""
    try:
        return importlib.import_module("torch")
    except ImportError as error:
        from evercount.errors import MissingExtra

        raise MissingExtra("the torch backend", "gpu") from error


def batch_size(device: str) -> int:
    """How many repetitions to ask of one call of `run`."""
    return 64 if device == "cpu" else 1 << 17


def run(plan: Plan, count: int, seed: int, device: str) -> dict[str, FloatArray]:
    """Sums over `count` repetitions of one mechanism, as `simulate.Totals` names them."""
    return run_many([plan], count, seed, device)[plan.name]


def run_many(plans: Sequence[Plan], count: int, seed: int, device: str) -> dict[str, dict[str, FloatArray]]:
    """`run` for several mechanisms. On CUDA one tree and one filter share a single kernel and its normals."""
    if fused(plans, device):
        kernel = _sibling("kernel_triton")
        sums: dict[str, dict[str, FloatArray]] = kernel.run(plans, count, seed, device)
        return sums
    return {plan.name: run_tensors(plan, count, seed, device) for plan in plans}


def fused(plans: Sequence[Plan], device: str) -> bool:
    """Whether the fused kernel can run these plans on this device: at most one tree and one filter, on CUDA."""
    is_tree = [plan.weights is None for plan in plans]
    one_of_each = len(set(is_tree)) == len(is_tree)
    fits = all(plan.plain for plan in plans) and one_of_each and len({plan.ticks for plan in plans}) == 1
    return fits and device.startswith("cuda") and importlib.util.find_spec("triton") is not None


def _sibling(name: str) -> Any:
    """A module of this folder; works in the package and when this file is run on its own."""
    return importlib.import_module(f"{__package__}.{name}" if __package__ else name)


# -- tensor code -----------------------------------------------------------------------------------------------


def run_tensors(plan: Plan, count: int, seed: int, device: str, batch: int = 1024) -> dict[str, FloatArray]:
    """`run` by tensor operations, `batch` repetitions at a time."""
    torch = load_torch()
    generator = torch.Generator(device=device)
    generator.manual_seed(seed % 2**63)
    total: dict[str, FloatArray] = {}
    for start in range(0, count, batch):
        z = torch.randn((min(batch, count - start), plan.ticks), generator=generator, device=device)
        for key, value in _statistics(torch, plan, noise_of(torch, plan, z)).items():
            old = total.get(key)
            total[key] = value if old is None else np.maximum(old, value) if key == "largest" else old + value
    return total


def noise_of(torch: Any, plan: Plan, z: Any) -> Any:
    """L·z for z of shape (repetitions, ticks). Warning: the tree overwrites z."""
    if plan.weights is None or plan.rates is None:
        return tree_noise(z)
    if plan.eta is None or plan.n is None:
        return filter_noise(torch, plan, z)
    like = {"dtype": z.dtype, "device": z.device}
    noise = filter_noise(torch, plan, z * torch.as_tensor(plan.eta, **like))
    noise *= torch.as_tensor(plan.n, **like)
    return torch.cumsum(noise, dim=1)


def tree_noise(z: Any) -> Any:
    """noise_t = z_t + noise_{t − lowbit(t)}, level by level from the top, in place."""
    ticks = z.shape[1]
    for level in range(ticks.bit_length() - 1, -1, -1):
        step = 2 << level
        children = z[:, (3 << level) - 1 :: step]
        children += z[:, step - 1 :: step][:, : children.shape[1]]
    return z


def filter_matrices(plan: Plan, block: int = BLOCK_TICKS) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """The matrices of the filter over blocks of ticks, for row vectors: noise = z·lower + state·readout."""
    assert plan.weights is not None
    assert plan.rates is not None
    k = np.arange(block)
    h = np.exp(-np.multiply.outer(k, plan.rates)) @ plan.weights
    h[0] = 1.0
    lag = k - k[:, np.newaxis]  # column tick − row tick
    lower = np.where(lag >= 0, h[np.maximum(lag, 0)], 0.0)
    readout = (np.exp(-np.multiply.outer(k, plan.rates)) * plan.weights).T
    feed = np.exp(-np.multiply.outer(block - k, plan.rates))
    return lower, readout, feed, np.exp(-block * plan.rates)


def filter_noise(torch: Any, plan: Plan, z: Any) -> Any:
    """The filter over blocks of ticks: two large products and a short recurrence over the blocks."""
    count, ticks = z.shape
    padded = torch.nn.functional.pad(z, (0, -ticks % BLOCK_TICKS)).reshape(count, -1, BLOCK_TICKS)
    like = {"dtype": z.dtype, "device": z.device}
    lower, readout, feed, decay = (torch.as_tensor(a, **like) for a in filter_matrices(plan))
    fed = padded @ feed
    before = torch.empty_like(fed)
    state = torch.zeros_like(fed[:, 0])
    for i in range(fed.shape[1]):
        before[:, i] = state
        state = state * decay + fed[:, i]
    noise = padded @ lower + before @ readout
    return noise.reshape(count, -1)[:, :ticks]


def _statistics(torch: Any, plan: Plan, noise: Any) -> dict[str, FloatArray]:
    """Sums over the repetitions, as `simulate.measure` computes them."""
    size = noise.abs()
    normal = size / torch.as_tensor(plan.std, dtype=size.dtype, device=size.device)
    running = torch.cummax(size, dim=1).values
    each = torch.stack([normal.mean(dim=1), running[:, -1], normal.amax(dim=1)]).double()
    below = torch.stack([(normal <= edge).sum(dim=0) for edge in plan.edges], dim=1)
    sums = {
        "absolute": size.sum(dim=0, dtype=torch.float64),
        "largest": size.amax(dim=0),
        "running": running.sum(dim=0, dtype=torch.float64),
        "below": below,
        "each": torch.stack([each.sum(dim=1), (each**2).sum(dim=1)], dim=1),
    }
    return {key: value.double().cpu().numpy() for key, value in sums.items()}
