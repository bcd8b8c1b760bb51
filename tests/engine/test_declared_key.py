"""One secret, many streams: each declaration has a key of its own, and shards of one stream share
it."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from evercount import Average, Budget, Count, Histogram, Secret, Stream, Sum
from evercount.engine.build import choose_engine, make_noise
from evercount.engine.snapshot_format import unpack
from evercount.factorizations import FACTORIZATIONS, SquareRoot, factorization
from evercount.local import LocalClient, LocalPlan
from evercount.mechanisms.exact.exact_noise import ExactStream
from evercount.mechanisms.noise_stream import declaration_fingerprint
from evercount.sparse import SparseCount

SECRET = Secret.from_hex("3a" * 32)
BUDGET = Budget(1.0, 1e-9)
PURE = Budget(1.0, 0.0)

FAMILIES: dict[str, list[dict[str, Any]]] = {
    "gaussian": [
        {},
        {"query": Count(most_per_tick=10**6)},
        {"query": Sum(0, 1)},
        {"query": Sum(0, 1, 0.5)},
        {"query": Histogram(1)},
        {"query": Histogram(["a"])},
        {"query": Histogram(["b"])},
        {"query": Average(0, 1)},
        {"budget": Budget(1.0 + 2**-52, 1e-9)},
        {"budget": Budget(1.0, 2e-9)},
        {"budget": Budget(1.0, 1e-9, adjacency="replace")},
        {"budget": Budget(1.0, 1e-9, unit="user", max_events=1)},
        {"budget": Budget(1.0, 1e-9, unit="user", max_events=1, period=3)},
        {"horizon": 401},
        {"horizon": None},
        {"postprocess": ["integer"]},
        *({"factorization": name} for name in ("square-root", "binary-tree", "fresh")),
    ],
    "pure": [
        {"budget": PURE},
        {"budget": PURE, "query": Sum(0, 1)},
        {"budget": PURE, "horizon": 401},
        {"budget": PURE, "horizon": None},
        {"budget": Budget(1.0 + 2**-52, 0.0)},
        {"budget": PURE, "factorization": "pure-window-5"},
    ],
    "periods": [
        {"factorization": "periods-5"},
        {"factorization": "periods-6"},
        {"factorization": "fresh"},
    ],
}


def normals(arguments: dict[str, Any]) -> Any:
    """400 ticks of noise of the first cell, scaled to size one."""
    given: dict[str, Any] = {"query": Count(), "budget": BUDGET, "horizon": 400, **arguments}
    stream = Stream(**given, secret=SECRET)
    noise = stream._parameters.noise.stream.take(400)[:, 0]
    steps = np.diff(noise, prepend=0.0)
    return (steps - steps.mean()) / steps.std()


@pytest.mark.parametrize("family", FAMILIES)
def test_streams_that_differ_in_anything_have_independent_noise(family: str) -> None:
    """On the secret alone, streams of one kind of noise have correlation 1, whatever else they
    declare."""
    noises = [normals(arguments) for arguments in FAMILIES[family]]
    for (i, one), (j, other) in itertools.combinations(enumerate(noises), 2):
        correlation = abs(float(np.mean(one * other)))
        assert correlation < 6 / np.sqrt(400), (FAMILIES[family][i], FAMILIES[family][j])


def test_the_same_declaration_gives_the_same_noise() -> None:
    one, two = (
        Stream(Count(), BUDGET, 40, secret=SECRET, replay=True).run([0] * 40).values
        for _ in range(2)
    )
    assert np.array_equal(one, two)


def test_shards_share_the_key_and_count_cells_globally() -> None:
    query = Histogram(100)
    engine = choose_engine(query, BUDGET, 50, "balanced")
    whole = make_noise(query, engine, BUDGET, 50, secret=SECRET)
    shards = [
        ExactStream(engine, whole.sigma, cells, whole.key, first)
        for first, cells in ((0, 30), (30, 70))
    ]
    expected = Stream(query, BUDGET, 50, "balanced", secret=SECRET)._parameters.noise.stream.take(
        50
    )
    assert np.array_equal(np.concatenate([shard.take(50) for shard in shards], axis=1), expected)


def test_a_snapshot_holds_the_derived_key_only() -> None:
    stream = Stream(Count(), BUDGET, 40, secret=SECRET)
    data = unpack(stream.snapshot())
    assert SECRET.hex() not in str(data)


@pytest.mark.parametrize("name", FACTORIZATIONS)
def test_public_parameters_tell_factorizations_apart(name: str) -> None:
    prints = {
        declaration_fingerprint({}, factorization(name, horizon), 1.0) for horizon in (16, 32)
    }
    assert len(prints) == 2
    assert declaration_fingerprint({}, factorization(name, 16), 1.0) in prints


def test_numbers_of_a_factorization_are_part_of_its_fingerprint() -> None:
    class Nudged(SquareRoot):
        def public_parameters(self) -> Any:
            first, *rest = super().public_parameters()
            return (first * (1 + 2**-40), *rest)

    known = declaration_fingerprint({}, SquareRoot(64), 1.0)
    assert declaration_fingerprint({}, Nudged(64), 1.0) != known
    assert declaration_fingerprint({}, SquareRoot(64), 1.0 + 2**-52) != known, (
        "nor may two scales share normals"
    )


def test_sparse_counters_and_clients_of_one_secret_differ() -> None:
    one, other = (
        SparseCount(1.0, horizon, max_ones=5, method="partition", secret=SECRET)
        for horizon in (100, 101)
    )
    ticks = [counter._ticks.draw(np.arange(400), 0.1, 1) for counter in (one, other)]
    assert np.mean(ticks[0] == ticks[1]) < 0.5
    messages = [
        LocalClient(LocalPlan(1.0, delta, 2000, buckets=64), SECRET).message(0.5)
        for delta in (1e-6, 1.0001e-6)
    ]
    entries = [np.frombuffer(message[8:], "<i2").astype(float) for message in messages]
    assert abs(np.corrcoef(entries[0], entries[1])[0, 1]) < 6 / 8
