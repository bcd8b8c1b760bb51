"""The fused CUDA kernel of the simulator, in Triton: normals, tree, filter and statistics without leaving the chip.

One program takes 64 repetitions at a time through all ticks, in tiles of 64 repetitions × 64 ticks. The tree and the
filter are small products with constant matrices plus a carried state. The only memory traffic is the statistics: each
program adds them into a buffer of its own, so that the result depends only on the seed and on the number of programs.
Import it only where a CUDA device and triton exist. Products run in TF32; their inputs are rounded to TF32 first, so
that the products are exact and carry no bias.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch  # type: ignore[import-not-found, unused-ignore]
import triton  # type: ignore[import-not-found, unused-ignore]
import triton.language as tl  # type: ignore[import-not-found, unused-ignore]

FloatArray: TypeAlias = npt.NDArray[np.float64]

TILE_REPETITIONS = 64
"""Repetitions of a tile."""
EDGE_COUNT = 8
"""The number of `simulate.EDGES`; their counters are packed into two 32-bit words."""


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _larger(a, b):  # type: ignore[no-untyped-def]
    return tl.maximum(a, b)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _round(x):  # type: ignore[no-untyped-def]
    """Round to the nearest TF32 number, which drops 13 bits."""
    bits = x.to(tl.int32, bitcast=True)
    return ((bits + 0x1000) & -8192).to(tl.float32, bitcast=True)


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _pair(a, b):  # type: ignore[no-untyped-def]
    """Two independent normals from two random words (Box and Muller).

    The angle is π·v with v in [−½, ½), by polynomials that are accurate to single precision. A random sign of the
    cosine covers the other half of the circle. Library sines would branch and spill registers.
    """
    u = (a.to(tl.uint32, bitcast=True).to(tl.float32) + 0.5) * 2.3283064365386963e-10
    word = b.to(tl.int32, bitcast=True)
    v = word.to(tl.float32) * 2.3283064365386963e-10
    w = v * v
    sine = 3.14159264 + w * (-5.16771008 + w * (2.55007739 + w * (-0.598290411 + w * 0.0776559123)))
    cosine = 1.0 + w * (-4.93480214 + w * (4.05870915 + w * (-1.33521195 + w * (0.234937069 - w * 0.0243959321))))
    radius = tl.sqrt(-2.0 * tl.log(u))
    return tl.where((word & 1) == 0, radius, -radius) * cosine, radius * v * sine


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _normals(seed, block, B: tl.constexpr, K: tl.constexpr):  # type: ignore[no-untyped-def]
    rows = tl.arange(0, B)[:, None]
    quads = tl.arange(0, K // 4)[None, :]
    a, b, c, d = tl.randint4x(seed, block * (B * K // 4) + rows * (K // 4) + quads)
    z0, z1 = _pair(a, b)
    z2, z3 = _pair(c, d)
    return _round(tl.reshape(tl.join(tl.join(z0, z1), tl.join(z2, z3)), (B, K)))


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _tally(  # type: ignore[no-untyped-def]
    noise, valid, inverse_std, edges, top, average, highest, sums, block, ticks, K: tl.constexpr, EVEN: tl.constexpr
):
    """Add one tile to the program's sums; returns the carried (top, average, highest) of every repetition."""
    cols = tl.arange(0, K)
    size = tl.abs(noise)
    normal = size * tl.load(inverse_std + block * K + cols)[None, :]
    running = tl.maximum(tl.associative_scan(size, 1, _larger), top[:, None])
    low = tl.zeros_like(size).to(tl.int32)
    high = tl.zeros_like(size).to(tl.int32)
    for j in tl.static_range(4):
        low += (normal <= tl.load(edges + j)).to(tl.int32) << (8 * j)
        high += (normal <= tl.load(edges + 4 + j)).to(tl.int32) << (8 * j)
    if EVEN:
        counted, ran = size, running
    else:
        counted, ran = tl.where(valid[:, None], size, 0.0), tl.where(valid[:, None], running, 0.0)
        low, high = tl.where(valid[:, None], low, 0), tl.where(valid[:, None], high, 0)
    at = sums + block * K + cols
    tl.atomic_add(at, tl.sum(counted, axis=0), sem="relaxed")
    tl.atomic_max(at + ticks, tl.max(counted, axis=0), sem="relaxed")
    tl.atomic_add(at + 2 * ticks, tl.sum(ran, axis=0), sem="relaxed")
    low_sum, high_sum = tl.sum(low, axis=0), tl.sum(high, axis=0)
    for j in tl.static_range(4):
        tl.atomic_add(at + (3 + j) * ticks, ((low_sum >> (8 * j)) & 255).to(tl.float32), sem="relaxed")
        tl.atomic_add(at + (7 + j) * ticks, ((high_sum >> (8 * j)) & 255).to(tl.float32), sem="relaxed")
    top = tl.maximum(top, tl.max(size, axis=1))
    average += tl.sum(normal, axis=1)
    highest = tl.maximum(highest, tl.max(normal, axis=1))
    return top, average, highest


@triton.jit  # type: ignore[untyped-decorator, unused-ignore]
def _kernel(  # type: ignore[no-untyped-def]
    lower_p,
    readout_p,
    feed_p,
    decay_p,
    tree_p,
    filter_std,
    tree_std,
    edges,
    partial,
    each,
    seed,
    ticks,
    groups,
    repetitions,
    B: tl.constexpr,
    K: tl.constexpr,
    D: tl.constexpr,
    V: tl.constexpr,
    FILTER: tl.constexpr,
    TREE: tl.constexpr,
    EVEN: tl.constexpr,
):
    program = tl.program_id(0)
    rows, cols, poles, levels = tl.arange(0, B), tl.arange(0, K), tl.arange(0, D), tl.arange(0, V)
    square = cols[:, None] * K + cols[None, :]
    lower = tl.load(lower_p + square)
    readout = tl.load(readout_p + poles[:, None] * K + cols[None, :])
    feed = tl.load(feed_p + cols[:, None] * D + poles[None, :])
    decay = tl.load(decay_p + poles)
    tree = tl.load(tree_p + square)
    filter_sums = partial + program.to(tl.int64) * 22 * ticks
    tree_sums = filter_sums + 11 * ticks
    for group in range(program, groups, tl.num_programs(0)):
        number = group * B + rows
        valid = number < repetitions
        state = tl.zeros((B, D), tl.float32)
        stack = tl.zeros((B, V), tl.float32)
        f_top = tl.zeros((B,), tl.float32)
        f_average = tl.zeros((B,), tl.float32)
        f_highest = tl.zeros((B,), tl.float32)
        t_top = tl.zeros((B,), tl.float32)
        t_average = tl.zeros((B,), tl.float32)
        t_highest = tl.zeros((B,), tl.float32)
        for block in range(ticks // K):
            z = _normals(seed + group, block, B, K)
            if FILTER:
                noise = tl.dot(z, lower, input_precision="tf32")
                noise = tl.dot(_round(state), readout, acc=noise, input_precision="tf32")
                state = state * decay[None, :] + tl.dot(z, feed, input_precision="tf32")
                f_top, f_average, f_highest = _tally(
                    noise, valid, filter_std, edges, f_top, f_average, f_highest, filter_sums, block, ticks, K, EVEN
                )
            if TREE:
                noise = tl.dot(z, tree, input_precision="tf32")
                bit = (block + 1) & -(block + 1)
                power = (levels * 0 + 1) << levels
                base = tl.sum(tl.where(levels[None, :] == 0, stack, 0.0), axis=1)
                parent = tl.sum(tl.where(power[None, :] == bit, stack, 0.0), axis=1)
                noise += tl.where(cols[None, :] == K - 1, parent[:, None], base[:, None])
                last = tl.sum(tl.where(cols[None, :] == K - 1, noise, 0.0), axis=1)
                stack = tl.where(power[None, :] <= bit, last[:, None], stack)
                t_top, t_average, t_highest = _tally(
                    noise, valid, tree_std, edges, t_top, t_average, t_highest, tree_sums, block, ticks, K, EVEN
                )
        at = each + number
        if FILTER:
            tl.store(at, f_average / ticks, mask=valid)
            tl.store(at + repetitions, f_top, mask=valid)
            tl.store(at + 2 * repetitions, f_highest, mask=valid)
        if TREE:
            tl.store(at + 3 * repetitions, t_average / ticks, mask=valid)
            tl.store(at + 4 * repetitions, t_top, mask=valid)
            tl.store(at + 5 * repetitions, t_highest, mask=valid)


def to_tf32(values: FloatArray) -> npt.NDArray[np.float32]:
    """Round to the nearest TF32 numbers."""
    bits = values.astype(np.float32).view(np.int32)
    return np.ascontiguousarray((bits + 0x1000) & -8192).view(np.float32)


def tree_matrix(block: int) -> FloatArray:
    """Column j marks the normals of the block that the noise at its tick j+1 adds up, without the levels above."""
    matrix = np.zeros((block, block))
    for t in range(1, block + 1):
        chain = t
        while chain:
            matrix[chain - 1, t - 1] = 1.0
            chain &= chain - 1
    return matrix


def programs(device: str) -> int:
    """How many programs run at the same time."""
    if device.startswith("cuda"):
        return 4 * int(torch.cuda.get_device_properties(device).multi_processor_count)
    return 2


@dataclass(frozen=True)
class Launch:
    """The launch layout of the kernel. It changes the statistics by rounding at most."""

    warps: int = 8
    programs: int | None = None
    registers: int | None = None


def run(
    plans: Sequence[Any], count: int, seed: int, device: str, how: Launch | None = None
) -> dict[str, dict[str, FloatArray]]:
    """Sums over `count` repetitions of at most one filter and one tree, over the same normals."""
    sums, each, order = launch(plans, count, seed, device, how or Launch())
    return {name: _read(sums[i], each[i]) for name, i in order.items()}


def launch(plans: Sequence[Any], count: int, seed: int, device: str, how: Launch) -> tuple[Any, Any, dict[str, int]]:
    """The kernel alone: (sums of shape (2, 11, ticks), numbers per repetition (2, 3, count), name → index)."""
    package = __package__ + "." if __package__ else ""
    block = int(importlib.import_module(package + "simulate_torch").BLOCK_TICKS)
    matrices = importlib.import_module(package + "simulate_torch").filter_matrices
    filters = [plan for plan in plans if plan.weights is not None]
    trees = [plan for plan in plans if plan.weights is None]
    ticks = plans[0].ticks
    poles = 16
    constants = [np.zeros((block, block)), np.zeros((poles, block)), np.zeros((block, poles)), np.zeros(poles)]
    if filters:
        order = len(filters[0].rates)
        poles = max(16, 1 << (order - 1).bit_length())
        lower, readout, feed, decay = matrices(filters[0], block)
        constants = [
            lower,
            np.pad(readout, ((0, poles - order), (0, 0))),
            np.pad(feed, ((0, 0), (0, poles - order))),
            np.pad(decay, (0, poles - order)),
        ]
    like = {"dtype": torch.float32, "device": device}
    tensors = [torch.as_tensor(to_tf32(a), **like) for a in constants[:3]]
    tensors.append(torch.as_tensor(constants[3], **like))
    tensors.append(torch.as_tensor(tree_matrix(block), **like))
    ones = np.ones(ticks)
    tensors += [torch.as_tensor(1 / (p[0].std if p else ones), **like) for p in (filters, trees)]
    tensors.append(torch.as_tensor(plans[0].edges, **like))
    assert len(plans[0].edges) == EDGE_COUNT
    groups = -(-count // TILE_REPETITIONS)
    grid = min(groups, how.programs or programs(device))
    partial = torch.zeros((grid, 2, 11, ticks), **like)
    each = torch.zeros((2, 3, count), **like)
    _kernel[(grid,)](
        *tensors,
        partial,
        each,
        seed % 2**48,
        ticks,
        groups,
        count,
        B=TILE_REPETITIONS,
        K=block,
        D=poles,
        V=max(16, 1 << (ticks // block).bit_length().bit_length()),
        FILTER=bool(filters),
        TREE=bool(trees),
        EVEN=count % TILE_REPETITIONS == 0,
        num_warps=how.warps,
        **({} if how.registers is None else {"maxnreg": how.registers}),
    )
    sums = partial.sum(dim=0, dtype=torch.float64)
    sums[:, 1] = partial[:, :, 1].amax(dim=0)
    names = {plan.name: 0 for plan in filters} | {plan.name: 1 for plan in trees}
    return sums, each, names


def _read(sums: Any, each: Any) -> dict[str, FloatArray]:
    table = sums.cpu().numpy()
    values = each.double()
    moments = torch.stack([values.sum(dim=1), (values**2).sum(dim=1)], dim=1).cpu().numpy()
    return {
        "absolute": table[0],
        "largest": table[1],
        "running": table[2],
        "below": np.ascontiguousarray(table[3:].T),
        "each": moments,
    }
