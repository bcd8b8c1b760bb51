"""Many independent streams as cells of one draw: coverage is counted over streams, as ticks of one are dependent."""

from __future__ import annotations

import numpy as np

from evercount import Stream
from evercount._arrays import FloatArray
from evercount.factorizations.laplace_base import PureFactorization
from evercount.mechanisms.float_noise import FloatStream
from evercount.mechanisms.laplace_noise import PureStream
from evercount.noise import FloatNoise, Secret
from evercount.queries import Query

SECRET = Secret.from_hex("0b" * 32)


def noise_of(stream: Stream, streams: int, ticks: int) -> FloatArray:
    """Noise of many streams with the declaration of `stream`, in real units, shape (ticks, streams, cells)."""
    query, engine, cells = stream.query, stream.factorization, streams * stream.query.cells
    if isinstance(engine, PureFactorization):
        l1 = query.protected_l1(stream.budget)
        drawn = PureStream(engine, stream.budget.epsilon, l1, query.grid, cells, SECRET).take(ticks) * query.grid
    else:
        drawn = FloatStream(engine, stream.sigma, cells, FloatNoise(11)).take(ticks)
    return drawn.reshape(ticks, streams, query.cells)


def published(query: Query, sums: FloatArray) -> FloatArray:
    """What streams publish from noisy sums of all ticks from the first on, shape (ticks, streams, outputs)."""
    if query.name == "average":  # it divides by the tick
        return np.stack([query.decode_run(1, sums[:, number]) for number in range(sums.shape[1])], axis=1)
    return np.stack([query.decode_run(1, tick) for tick in sums])


def least_share(level: float, streams: int) -> float:
    """The share of streams below which a true `level` falls with a probability of less than 1 in 30,000."""
    return float(level - 4 * np.sqrt(level * (1 - level) / streams))
