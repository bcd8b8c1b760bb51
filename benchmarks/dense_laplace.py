"""A yardstick for bridges: the least variance that a dense Laplace mechanism for δ = 0 reaches, by
gradient descent.

R has any shape and entries, the l1 norm of each of its columns is 1, and L = M·R⁺ (least squares),
so L·R = M. The largest variance over ticks at ε = 1 is 2·max_t [M (RᵀR)⁻¹ Mᵀ]_tt. The search begins
at a tree of intervals and moves every entry. It needs T³ work and T² memory, so no stream can use
it; it says how far from the best known a bridge is. The two lines below reach 30.7 and 96.4.

    python benchmarks/dense_laplace.py 64 --levels 1 4 16 64 --steps 3000
    python benchmarks/dense_laplace.py 1024 --levels 1 10 100 1024 --steps 16000 \
        --rate 3e-5 --freed 1e-6 --device cuda

Needs PyTorch (`pip install torch`).
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
from typing import Any


def tree_of_intervals(ticks: int, levels: list[int], torch: Any) -> Any:
    """One row per interval of each level, all with equal shares; the last ones are cut off at the
    horizon."""
    rows = []
    for length in levels:
        for start in range(0, ticks, length):
            row = torch.zeros(ticks, dtype=torch.float64)
            row[start : start + length] = 1.0
            rows.append(row)
    return torch.stack(rows)


def variances(weights: Any, torch: Any) -> Any:
    """The variance at each tick for the R whose columns are those of `weights`, scaled to l1 norm
    1."""
    shares = weights / weights.abs().sum(0)
    ticks = shares.shape[1]
    factor = torch.linalg.cholesky(shares.T @ shares)
    counting = torch.ones(ticks, ticks, dtype=torch.float64, device=weights.device).tril()
    # ‖column t‖² = [M (RᵀR)⁻¹ Mᵀ]_tt
    half = torch.linalg.solve_triangular(factor, counting.T, upper=False)
    return 2 * (half**2).sum(0)


def search(
    ticks: int, levels: list[int], steps: int, device: str, rate: float, freed: float
) -> dict[str, Any]:
    """The least largest variance found, and the mean next to it."""
    torch: Any = importlib.import_module("torch")
    torch.manual_seed(1)
    start = tree_of_intervals(ticks, levels, torch).to(device)
    # First one share per row; then every entry on its own, those outside the intervals from nothing
    # on.
    logs = torch.zeros(len(start), 1, dtype=torch.float64, device=device, requires_grad=True)
    best: dict[str, Any] = {"worst": float("inf")}
    begun = time.perf_counter()
    for phase, count in (("shares", steps // 4), ("dense", steps)):
        if phase == "dense":
            weights = (start * logs.detach().exp()).clone()
            weights = weights / weights.abs().sum(0)
            weights = (weights + freed * torch.randn_like(weights)).requires_grad_()
            moved = [weights]
        else:
            moved = [logs]
        optimiser = torch.optim.Adam(moved, lr=rate * (10 if phase == "shares" else 1))
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, count)
        for step in range(count):
            optimiser.zero_grad()
            found = variances(start * logs.exp() if phase == "shares" else weights, torch)
            sharp = 10 * (200 ** (step / count))  # from a soft maximum to the maximum
            loss = torch.logsumexp(sharp * found.log(), 0) / sharp
            loss.backward()
            optimiser.step()
            schedule.step()
            worst = float(found.detach().max())
            if worst < best["worst"]:
                best = {
                    "worst": worst,
                    "mean": float(found.detach().mean()),
                    "phase": phase,
                    "step": step,
                }
            if step % max(1, count // 10) == 0:
                print(f"{phase} {step}: {worst:.2f}, best {best['worst']:.2f}", flush=True)
    return {"ticks": ticks, "levels": levels, **best, "seconds": round(time.perf_counter() - begun)}


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("ticks", type=int)
    parser.add_argument(
        "--levels",
        type=int,
        nargs="+",
        required=True,
        help="lengths of the intervals to begin with",
    )
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument(
        "--freed", type=float, default=1e-4, help="size of the entries outside the intervals"
    )
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    print(
        json.dumps(
            search(given.ticks, given.levels, given.steps, given.device, given.rate, given.freed)
        )
    )
