"""A mechanism of your own: compare it, run it with exact noise, attack it, draw its covariance.

python examples/own_mechanism.py [folder]
"""

import sys
from pathlib import Path

import numpy as np

from evercount import Budget, Count, Secret, Stream
from evercount.audit.attack import attack
from evercount.audit.doors import LibraryProgram
from evercount.audit.mechanism_grid import hardest_pair
from evercount.factorizations import Dense, register_factorization
from evercount.planning import plan
from evercount.plotting import new_axes, save


def banded(horizon: int, bands: int = 16) -> Dense:
    """The first coefficients of the square root of M, cut off after some bands."""
    k = np.arange(1, min(bands, horizon))
    root = np.cumprod(np.append(1.0, (2 * k - 1) / (2 * k)))
    R = sum(c * np.eye(horizon, k=-i) for i, c in enumerate(root))
    return Dense(np.tril(np.tri(horizon) @ np.linalg.inv(R)), R, "banded")


register_factorization("banded", banded)
for row in plan(Budget(1.0, 1e-6), 64).rows:
    print(f"{row.name}: worst std {row.worst_std:.2f}")
stream = Stream(Count(), Budget(1.0, 1e-6), factorization=banded(64))
print(stream.run([3] * 64)[-1], stream.guarantee)
program = LibraryProgram(Count(), Budget(3.0, 0.01), 4, "banded")
pair = hardest_pair(program, Count(), 4, Secret.generate())
print(attack(program, pair, 1000, Secret.generate(), 0.9999).summary())
folder = Path(sys.argv[1] if len(sys.argv) > 1 else "out/examples")
folder.mkdir(parents=True, exist_ok=True)
axes = new_axes()
axes.imshow(stream.noise_covariance(range(1, 65)))
save(axes, folder / "own_mechanism.png")
