"""Many independent streams as cells of one draw: coverage is counted over streams, as ticks of one
are dependent."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from evercount import Releases, Stream
from evercount._validate import FloatArray, IntArray
from evercount.engine.build import squared_norm
from evercount.mechanisms import build_noise
from evercount.mechanisms.laplace_noise import build_pure
from evercount.noise import Secret
from evercount.noise.secret import insecure_generator, insecure_secret
from evercount.queries import Query
from evercount.queries.sensitivities import protected_l1
from product_internals import error_model, replace_parameters, sums_of

SECRET = Secret.from_hex("0b" * 32)


def smooth_stream(*declared: Any, seed: int = 1, **rest: Any) -> Stream:
    """A stream whose errors are those of its noise before that is rounded to the grid: for
    statements about normals."""
    stream = Stream(*declared, secret=insecure_secret(seed), replay=True, **rest)
    if not stream.budget.pure:
        replace_parameters(stream, errors=replace(error_model(stream), rounded=False))
    return stream


def noise_of(stream: Stream, streams: int, ticks: int) -> FloatArray:
    """Noise of many streams with the declaration of `stream`, in real units, shape (ticks, streams,
    cells).

    Of a `smooth_stream` before it is rounded.
    """
    query, engine, budget = stream.query, stream.factorization, stream.budget
    if not budget.pure and not error_model(stream).rounded:
        cells = streams * query.cells
        normals = insecure_generator(11).standard_normal((engine.draws(0, ticks), cells))
        noise = engine.block(engine.initial(cells), normals, ticks)[0] * stream.sigma
        return noise.reshape(ticks, streams, query.cells)
    common: dict[str, Any] = {"cells": streams * query.cells, "grid": query.grid, "secret": SECRET}
    if budget.pure:
        l1 = protected_l1(query, budget, stream.horizon)
        made = build_pure(engine, l1=l1, epsilon=budget.epsilon, **common)
    else:
        made = build_noise(
            engine,
            sensitivity=math.sqrt(squared_norm(engine, query, budget, stream.horizon)),
            budget=budget,
            horizon=stream.horizon,
            **common,
        )
    return (made.stream.take(ticks) * query.grid).reshape(ticks, streams, query.cells)


def published(query: Query, sums: FloatArray) -> FloatArray:
    """What streams publish from noisy sums of all ticks from the first on, shape (ticks, streams,
    outputs)."""
    if query.name == "average":  # it looks at the number of the tick
        return np.stack(
            [query.decode_run(1, sums[:, number]) for number in range(sums.shape[1])], axis=1
        )
    return np.stack([query.decode_run(1, tick) for tick in sums])


def least_share(level: float, streams: int) -> float:
    """The share of streams below which a true `level` falls with a probability of less than 1 in
    30,000."""
    return float(level - 4 * np.sqrt(level * (1 - level) / streams))


class Discoveries(NamedTuple):
    """What many streams of discovered keys publish of the same data, each with a total of its
    own."""

    total: FloatArray
    """Shape (ticks, streams)."""
    keys: FloatArray
    """Shape (ticks, streams, keys); NaN where a key is not public."""
    evidence: FloatArray
    """How many stds each key was above its threshold at the last discovery tick, in the shape of
    `keys`."""
    releases: Releases
    """From which the errors of a cell are read."""

    def rows(self, tick: int) -> tuple[FloatArray, FloatArray, IntArray]:
        """What every stream publishes at a 1-based tick, as a release has it: public keys first,
        then NaN.

        Values and evidence have columns `total`, `other` and keys; the last array has the number of
        the key of each.
        """
        keys, total = self.keys[tick - 1], self.total[tick - 1, :, np.newaxis]
        order = np.argsort(np.isnan(keys), axis=1, kind="stable")
        other = total - np.nansum(keys, axis=1, keepdims=True)
        values = np.concatenate([total, other, np.take_along_axis(keys, order, axis=1)], axis=1)
        evidence = np.take_along_axis(self.evidence[tick - 1], order, axis=1)
        return values, np.concatenate([np.zeros((len(keys), 2)), evidence], axis=1), order


def discoveries(stream: Stream, counts: IntArray, streams: int) -> Discoveries:
    """Many streams with these running counts, shape (ticks, keys): groups of keys of one stream
    with exact noise.

    The total of a group is one more key, which must be so large that it is public at every tick
    that is looked at.
    """
    both = np.concatenate([counts, counts.sum(axis=1, keepdims=True)], axis=1)
    names = [f"{group} {key}" for group in range(streams) for key in range(both.shape[1])]
    steps = np.diff(both, axis=0, prepend=0)
    releases = stream.run(
        [dict(zip(names, np.tile(row, streams).tolist(), strict=True)) for row in steps]
    )
    shape = (len(counts), streams, both.shape[1])
    values, evidence = np.full((2, len(counts), len(names)), np.nan)
    at = np.asarray(
        [
            int(group) * both.shape[1] + int(key)
            for group, key in map(str.split, releases.labels[2:])
        ]
    )
    values[:, at], evidence[:, at] = releases.rows[:, 2:], sums_of(releases)[:, 2:]
    values, evidence = values.reshape(shape), evidence.reshape(shape)
    return Discoveries(values[..., -1], values[..., :-1], evidence[..., :-1], releases)
