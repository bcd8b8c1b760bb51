"""Write the test vectors: secrets and parameters with the numbers that follow from them, for other
implementations.

python tools/vectors.py            writes docs/vectors/*.json
python tools/vectors.py --check    fails if a file is not what this installation computes
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from evercount.bounds import interval_quantile, nuclear_lower, simultaneous_quantile
from evercount.bounds.tails import laplace_quantile
from evercount.engine.stream import Stream
from evercount.factorizations import BUILT_IN, factorization
from evercount.factorizations.laplace_trees import DigitTree
from evercount.noise import ExactNoise, Secret
from evercount.noise.laplace_sampler import ExactLaplace, quantile, tail, variance
from evercount.privacy import Budget
from evercount.queries import Count, Histogram, Query, Sum

FOLDER = Path(__file__).parents[1] / "docs" / "vectors"
KEY = "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f"
# floats that special functions enter may differ by this much between platforms; whole numbers may
# not
RELATIVE = 1e-9


TERRACE = {
    "name": "terrace",
    "blocks": [2, 6],
    "shares": [600, 200, 224],
    "weights": [12345, 54321],
}
"""Weights are not those of least squares: for others to compute they are as good."""


def noise_vectors() -> dict[str, Any]:
    """Normals and discrete Laplace numbers of one secret."""
    secret = Secret.from_hex(KEY)
    normals = ExactNoise(secret).normals(0, 6, 3)
    return {
        "about": (
            "z[draw][cell] = integer / 2^128 for normals; whole numbers for the discrete Laplace "
            "law of a rate"
        ),
        "secret": KEY,
        "derived": {
            label: secret.derive(label).hex() for label in ("period 0", "pure tree", "any label")
        },
        "normals": [
            [str(value) for value in row] for row in np.asarray(normals.to_ints()).tolist()
        ],
        "laplace": [
            {"rate": rate, "draws": ExactLaplace(secret).draw(np.arange(8), rate, 3).tolist()}
            for rate in (1.0, 0.25, 2.0**-10)
        ],
    }


def release_vectors() -> dict[str, Any]:
    """Small streams of one secret, with what they publish."""
    cases: list[tuple[Query, Budget, int | None, str | dict[str, Any] | None, list[Any]]] = [
        (Count(), Budget(1.0, 1e-6), 8, "balanced", [3, 0, 1, 4, 1, 5, 9, 2]),
        (Count(), Budget(0.5, 1e-9), None, "unbounded", [3, 0, 1, 4]),
        (Count(), Budget(1.0, 1e-6), 8, "binary-tree", [3, 0, 1, 4, 1, 5, 9, 2]),
        (Count(), Budget(1.0, 1e-6), 8, "square-root", [3, 0, 1, 4]),
        (
            Sum(-2, 1, 0.25),
            Budget(1.0, 1e-6, adjacency="replace"),
            4,
            "normalized",
            [[0.5, -2], [], [1], [0.25]],
        ),
        (
            Histogram(("north", "south")),
            Budget(1.0, 1e-6),
            4,
            "balanced",
            [["north"], [], ["south", "north"], []],
        ),
        (Count(), Budget(1.0, 0.0), 8, "pure-tree", [3, 0, 1, 4, 1, 5, 9, 2]),
        (Count(), Budget(1.0, 0.0), 8, "pure-binary", [3, 0, 1, 4, 1, 5, 9, 2]),
        (Count(), Budget(1.0, 0.0), None, "pure-hybrid", [3, 0, 1, 4]),
        (Count(), Budget(1.0, 1e-6), 8, "honaker-full", [3, 0, 1, 4, 1, 5, 9, 2]),
        (Count(), Budget(1.0, 0.0), 8, TERRACE, [3, 0, 1, 4, 1, 5, 9, 2]),
        (
            Histogram(("north", "south")),
            Budget(0.25, 0.0),
            None,
            TERRACE,
            [["north"], [], ["south", "north"], []],
        ),
    ]
    streams = []
    for query, budget, horizon, name, events in cases:
        stream = Stream(query, budget, horizon, name, secret=Secret.from_hex(KEY))
        released = [stream.step(tick).values.tolist() for tick in events]
        asked = {"name": query.name, "parameters": query.identity()[1]}
        facts = {
            "query": asked,
            "budget": budget.to_dict(),
            "horizon": horizon,
            "factorization": name,
        }
        noise = {"sigma": stream.sigma, "numeric_delta": stream.numeric_delta}
        streams.append({**facts, **noise, "events": events, "releases": released})
    about = "every stream has the same secret; events are the ticks in order"
    return {"about": about, "secret": KEY, "streams": streams}


def norm_vectors() -> dict[str, Any]:
    """Norms of the built-in factorizations."""
    norms = []
    for name in BUILT_IN:
        for ticks in (8, 256) if name == "optimal" else (8, 256, 65536):
            built = factorization(name, None if name == "unbounded" else ticks)
            rows = built.row_norms([1, ticks // 2, ticks])
            made = {"column_norm": built.column_norm, "row_norms": rows.tolist()}
            norms.append({"factorization": name, "ticks": ticks, **made})
    return {
        "about": "row_norms are at ticks 1, T/2 and T; column_norm has a head-room of 1e-9",
        "norms": norms,
    }


def multiplier_vectors() -> dict[str, Any]:
    """Noise multipliers by calibration."""
    multipliers = []
    for epsilon, delta in (
        (0.1, 1e-10),
        (0.5, 1e-10),
        (0.5, 1e-6),
        (0.9, 1e-5),
        (1.0, 1e-6),
        (4.0, 1e-3),
    ):
        for calibration in ("tight", "classic", "paper") if epsilon < 1 else ("tight",):
            budget = Budget(epsilon, delta, calibration=calibration)
            made = {"multiplier": budget.noise_multiplier(), "mu": budget.mu}
            multipliers.append(
                {"epsilon": epsilon, "delta": delta, "calibration": calibration, **made}
            )
    return {
        "about": "multiplier = sigma over sensitivity, rounded to the private side",
        "multipliers": multipliers,
    }


def threshold_vectors() -> dict[str, Any]:
    """Quantiles of normal and Laplace noise."""
    chances = (0.05, 1e-6)
    return {
        "about": (
            "normal: standard deviations; laplace: whole k with P(|X| > k) <= beta; sums: of "
            "`weight` numbers"
        ),
        "normal_interval": [
            {"beta": b, "quantile": float(interval_quantile(b))} for b in (0.05, 0.01, 1e-6)
        ],
        "normal_simultaneous": [
            {"ticks": t, "beta": 0.05, "quantile": float(simultaneous_quantile(t, 0.05))}
            for t in (1, 100, 65536)
        ],
        "laplace": [
            {
                "rate": r,
                "beta": b,
                "quantile": quantile(r, b),
                "tail": tail(r, 5),
                "variance": variance(r),
            }
            for r, b in product((1.0, 0.1), chances)
        ],
        "laplace_sums": [
            {"weight": w, "beta": b, "quantile": laplace_quantile(w, b)}
            for w, b in product((1, 4, 16), chances)
        ],
    }


def literature_vectors() -> dict[str, Any]:
    """Published constants next to what this program computes."""
    powers, size = (14, 16, 18, 20), 2**20
    root, rest = factorization("square-root", size), math.log(size) / math.pi
    largest, mean = zip(*(_normalized_constants(2**power) for power in powers), strict=True)
    tree = DigitTree(1024, 13)
    rows = [
        _row("(gamma + 4 ln 2)/pi", 1.0663, root.worst_row()[1] * root.column_norm - rest, 1e-4,
             "square root, max error, norm - ln T/pi at T = 2^20; Fichtenberger, Henzinger, "
             "Upadhyay 2023"),
        _row("normalised square root, max error", 0.846, _limit(powers, largest), 2e-3,
             "limit, extrapolated in 1/ln T from 2^14 to 2^20; Henzinger, Kalinin, Upadhyay, "
             "arXiv 2509.14334"),
        _row("normalised square root, mean squared error", 0.748, _limit(powers, mean), 2e-3,
             "limit, extrapolated as above; same source"),
        _row("lower bound of every factorization", 0.7019, float(nuclear_lower(size)) - rest, 1e-4,
             "nuclear norm over T, minus ln T/pi at T = 2^20; Henzinger, Upadhyay, Upadhyay 2023"),
        _row("k-ary tree, leading constant at k = 19", 0.1236,
             (19**2 - 1) / (38 * math.log2(19) ** 3), 5e-5,
             "mean squared error over log2(T)^3/eps^2; Andersson, Pagh, Steiner, Torkamani 2024"),
        _row("k-ary tree, largest variance at T = 1024", 324.0,
             2.0 * tree.levels**2 * tree.worst_row()[1] ** 2, 1e-6,
             "k = 13, continuous Laplace noise at eps = 1; same source"),
        _row("tight Gaussian multiplier", 11.436, Budget(0.5, 1e-10).noise_multiplier(), 1e-3,
             "eps = 0.5, delta = 1e-10; Balle, Wang 2018"),
        _row("the paper's C", 19.285, Budget(0.5, 1e-10, calibration="paper").noise_multiplier(),
             1e-3,
             "eps = 0.5, delta = 1e-10; Fichtenberger, Henzinger, Upadhyay 2023"),
    ]  # fmt: skip
    return {
        "about": "published constants next to what this program computes",
        "constants": rows,
        "by_search": [
            {
                "name": (
                    "pure noise on a dense optimised factorization, largest variance at T = 1024, "
                    "eps = 1"
                ),
                "published": 103.6,
                "reached": 96.36,
                "command": (
                    "benchmarks/dense_laplace.py 1024 --levels 1 10 100 1024 --steps 16000 --rate "
                    "3e-5 --freed 1e-6 --device cuda"
                ),
            }
        ],
    }


def _row(
    name: str, published: float, computed: float, tolerance: float, source: str
) -> dict[str, Any]:
    return {
        "name": name,
        "published": published,
        "computed": computed,
        "tolerance": tolerance,
        "source": source,
    }


def _normalized_constants(ticks: int) -> tuple[float, float]:
    """(largest, root mean square) of ‖L_t‖·‖R‖ over ticks, each minus ln T/π."""
    built = factorization("normalized", ticks)
    places = np.unique(np.linspace(1, ticks, 16385).astype(np.int64))
    squares = built.row_norms(places) ** 2
    mean = math.sqrt(float(np.trapezoid(squares, places)) / (ticks - 1))
    rest = math.log(ticks) / math.pi
    return built.worst_row()[1] * built.column_norm - rest, mean * built.column_norm - rest


def _limit(powers: tuple[int, ...], values: tuple[float, ...]) -> float:
    """The constant term of a quadratic in 1/ln T through the values."""
    inverse = 1 / (np.asarray(powers) * math.log(2))
    return float(np.polyfit(inverse, values, 2)[-1])


FILES: dict[str, Callable[[], dict[str, Any]]] = {
    "noise": noise_vectors,
    "releases": release_vectors,
    "norms": norm_vectors,
    "multipliers": multiplier_vectors,
    "thresholds": threshold_vectors,
    "literature": literature_vectors,
}


def write_vectors(folder: Path) -> None:
    """Write all files into this folder."""
    for name, build in FILES.items():
        text = json.dumps(build(), indent=1, ensure_ascii=False) + "\n"
        (folder / f"{name}.json").write_text(text, encoding="utf-8")


def check_vectors(folder: Path) -> list[str]:
    """Compute all files again; returns what differs, nothing when all agree."""
    wrong = []
    for name, build in FILES.items():
        stored = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
        wrong += [
            f"{name}{place}" for place in _differences(stored, json.loads(json.dumps(build())), "")
        ]
    return wrong


def _differences(stored: Any, computed: Any, place: str) -> list[str]:
    if isinstance(stored, dict) and isinstance(computed, dict) and stored.keys() == computed.keys():
        return [
            d for key in stored for d in _differences(stored[key], computed[key], f"{place}.{key}")
        ]
    if isinstance(stored, list) and isinstance(computed, list) and len(stored) == len(computed):
        pairs = enumerate(zip(stored, computed, strict=True))
        return [d for number, (a, b) in pairs for d in _differences(a, b, f"{place}[{number}]")]
    if isinstance(stored, float) and isinstance(computed, float):
        return [] if math.isclose(stored, computed, rel_tol=RELATIVE, abs_tol=1e-300) else [place]
    return [] if stored == computed else [place]


if __name__ == "__main__":
    if "--check" not in sys.argv[1:]:
        write_vectors(FOLDER)
    elif wrong := check_vectors(FOLDER):
        sys.exit("\n".join(f"differs: {place}" for place in wrong))
