"""The hierarchical counter: exact law of messages, unbiased estimates, error bars, and less error
than other forms."""

from __future__ import annotations

import math
from collections import Counter
from decimal import Decimal, localcontext

import numpy as np
import pytest

from evercount._validate import FloatArray
from evercount.errors import AlreadyReleased, InputError, MessageRejected, ParameterError
from evercount.local import (
    HierarchyClient,
    HierarchyEstimate,
    HierarchyPlan,
    HierarchyServer,
    LocalPlan,
    LocalServer,
    simulate,
)
from evercount.local.hierarchical import MESSAGE, encode, hadamard, prefix_map
from evercount.noise import Secret
from independent_streams import least_share


def collect(
    plan: HierarchyPlan, points: FloatArray, seed: int
) -> tuple[HierarchyEstimate, FloatArray]:
    """The estimate from many clients at once, with their law and other random numbers, and the true
    shares."""
    rng, n = np.random.default_rng(seed), len(points)
    bucket = np.clip(np.ceil(points * plan.buckets), 1, plan.buckets).astype(np.int64) - 1
    level = rng.integers(1, plan.levels + 1, n)
    server = HierarchyServer(plan)
    for at in range(1, plan.levels + 1):
        mine = bucket[level == at] // plan.nodes(plan.levels - at)
        row = rng.integers(0, plan.nodes(at), len(mine))
        flipped = rng.random(len(mine)) >= plan.threshold / 2**64
        bit = (np.bitwise_count(row & mine) & 1) ^ flipped
        server._coefficients(at)[:] += np.bincount(row, 1.0 - 2 * bit, plan.nodes(at)).astype(
            np.int64
        )
        server._counts[at - 1] += len(mine)
        server.accepted += len(mine)
    return server.estimate(), np.searchsorted(
        np.sort(bucket), np.arange(plan.buckets), side="right"
    ) / n


def odds_are_at_most(threshold: int, epsilon: float) -> bool:
    with localcontext(prec=60):
        return Decimal(threshold) <= Decimal(epsilon).exp() * (2**64 - threshold)


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1.0, 3.0, 20.0])
def test_messages_have_the_exact_law(epsilon: float) -> None:
    """All buckets, levels and coefficients: both sides of the threshold; in 60 digits the odds are
    at most e^ε."""
    plan = HierarchyPlan(epsilon, 16, 4)
    p = plan.threshold / 2**64
    assert plan.threshold > 2**63
    assert odds_are_at_most(plan.threshold, epsilon)
    assert not odds_are_at_most(plan.threshold + 3, epsilon), (
        "planted: a threshold that is too large by 2^-62"
    )
    assert p == pytest.approx(math.exp(epsilon) / (1 + math.exp(epsilon)), rel=1e-12)
    for level in (1, 2):
        for row in range(plan.nodes(level)):
            for bucket in range(16):
                kept = encode(plan, bucket, plan.threshold - 1, row, level - 1)
                lost = encode(plan, bucket, plan.threshold, row, level - 1)
                parity = bin(row & bucket // plan.nodes(2 - level)).count("1") % 2
                assert MESSAGE.unpack(kept) == (level, row, parity)
                assert MESSAGE.unpack(lost) == (level, row, 1 - parity)


def test_clients_draw_from_their_secret_and_answer_once() -> None:
    plan = HierarchyPlan(1.0, 16)
    secret = Secret.from_hex("01" * 32)
    client = HierarchyClient(plan, secret)
    message = client.message(0.3)
    assert client.message(0.3) == message
    with pytest.raises(AlreadyReleased):
        client.message(0.4)
    client.close()
    assert HierarchyClient(plan, secret).message(0.3) == message
    found = Counter(
        MESSAGE.unpack(HierarchyClient(plan, Secret.from_hex(f"{i:064x}")).message(0.0))
        for i in range(4_000)
    )
    expected = float(plan.threshold / 2**64)
    # node 0 has parity 0 everywhere
    kept = sum(number for (_, _, bit), number in found.items() if bit == 0)
    assert abs(kept / 4_000 - expected) < 5 * math.sqrt(expected * (1 - expected) / 4_000)
    by_level = Counter(level for (level, _, _), number in found.items() for _ in range(number))
    for number in by_level.values():
        assert abs(number - 4_000 / plan.levels) < 5 * math.sqrt(4_000 / plan.levels)


@pytest.mark.parametrize(("buckets", "fan_out"), [(16, 2), (16, 4), (16, 16), (64, 8), (256, 4)])
def test_consistency_is_exact_for_exact_numbers(buckets: int, fan_out: int) -> None:
    shares = np.random.default_rng(3).dirichlet(np.ones(buckets))
    levels = round(math.log(buckets, fan_out))
    nodes = [shares.reshape(fan_out**level, -1).sum(axis=1) for level in range(1, levels + 1)]
    cdf = np.arange(1, buckets + 1) / buckets + prefix_map(buckets, fan_out) @ np.concatenate(nodes)
    np.testing.assert_allclose(cdf, np.cumsum(shares), atol=1e-9)
    flat = np.linalg.norm(prefix_map(buckets, fan_out), axis=1)
    assert flat.max() < math.sqrt(buckets), "better than adding up leaves"


def test_hadamard_against_the_matrix() -> None:
    numbers = np.arange(16)
    signs = 1 - 2.0 * (np.bitwise_count(numbers[:, None] & numbers) & 1)
    values = np.random.default_rng(1).normal(size=16)
    np.testing.assert_allclose(hadamard(values), signs @ values, atol=1e-12)


def test_estimates_are_unbiased_and_std_holds() -> None:
    """1,000 collections of 3,000 clients: mean within 5 standard errors, std at most the stated
    one, the band holds."""
    plan = HierarchyPlan(1.0, 16)
    points = np.random.default_rng(9).beta(2, 5, 3_000)
    runs = [collect(plan, points, seed) for seed in range(1_000)]
    truth = runs[0][1]
    errors = np.stack([estimate.cdf for estimate, _ in runs]) - truth
    std = np.mean([estimate.std for estimate, _ in runs], axis=0)
    assert np.abs(errors.mean(axis=0)).max() < 5 * std.max() / math.sqrt(1_000)
    assert (errors.std(axis=0)[:-1] <= std[:-1] * (1 + 5 / math.sqrt(2_000))).all()
    assert (errors.std(axis=0)[:-1] >= 0.8 * std[:-1]).all(), "and it is not far too large"
    held = np.mean(
        [
            (np.abs(e) <= estimate.band(0.95)).all()
            for e, (estimate, _) in zip(errors, runs, strict=True)
        ]
    )
    assert held >= least_share(0.95, 1_000)
    half = np.mean(
        [
            (np.abs(e) <= 0.8 * estimate.band(0.95)).all()
            for e, (estimate, _) in zip(errors, runs, strict=True)
        ]
    )
    assert half < least_share(0.95, 1_000), "planted: a band that is 20 % too narrow"
    theta = np.linspace(0, 1, 41)
    risk = np.abs(theta[:, np.newaxis] - points).mean(axis=1) - points.mean()
    largest = np.asarray([np.abs(estimate.f(theta) - risk).max() for estimate, _ in runs])
    bounds = np.asarray([estimate.bound(0.9) for estimate, _ in runs])
    assert np.mean(largest <= bounds) >= least_share(0.9, 1_000)
    assert np.mean(largest <= 1 / plan.buckets) < least_share(0.9, 1_000), (
        "planted: a bound without the noise"
    )
    worst = np.abs(errors).max(axis=1)
    tidy = np.abs(np.stack([estimate.monotone for estimate, _ in runs]) - truth).max(axis=1)
    assert (tidy <= worst + 1e-9).all()


@pytest.mark.parametrize(("epsilon", "most"), [(1.0, 0.05), (2.0, 0.027)])
def test_largest_error_of_the_distribution(epsilon: float, most: float) -> None:
    """10^5 clients, median of 7 runs; the Gaussian form of `LocalServer` errs more than twice as
    much, with a δ."""
    points = np.random.default_rng(4).beta(2, 5, 100_000)
    runs = [collect(HierarchyPlan(epsilon), points, seed) for seed in range(7)]
    found = float(np.median([np.abs(estimate.monotone - truth).max() for estimate, truth in runs]))
    assert found < most
    estimate = runs[0][0]
    assert abs(estimate.median - np.median(points)) < 0.05
    assert estimate.quantile(0.01) < estimate.quantile(0.5) < estimate.quantile(0.99)
    if epsilon == 1.0:
        server = LocalServer(LocalPlan(epsilon, 1e-6, 100_000))
        server.add_entries(simulate(server.plan, points[:20_000], Secret.from_hex("05" * 32)))
        gaussian = server.estimate().slopes[1:] / 2 + 0.5
        ends = (
            np.searchsorted(
                np.sort(points[:20_000]), np.arange(1, server.plan.w + 1) / server.plan.w
            )
            / 20_000
        )
        fewer = [collect(HierarchyPlan(epsilon), points[:20_000], seed) for seed in range(7)]
        ours = np.median([np.abs(estimate.monotone - truth).max() for estimate, truth in fewer])
        assert 2 * ours < np.abs(gaussian - ends).max()


def test_bad_messages_are_rejected() -> None:
    plan = HierarchyPlan(1.0, 16, 4)
    server = HierarchyServer(plan)
    with pytest.raises(InputError):
        server.estimate()
    good = [HierarchyClient(plan).message(x / 100) for x in range(100)]
    bad = [
        b"",
        b"abc",
        MESSAGE.pack(0, 0, 0),
        MESSAGE.pack(3, 0, 0),
        MESSAGE.pack(1, 4, 0),
        MESSAGE.pack(1, 0, 2),
        5,
    ]
    assert server.add_many([*good, *bad]) == 100
    assert (server.accepted, server.rejected) == (100, len(bad))
    for message in bad:
        with pytest.raises(MessageRejected):
            server.add(message)
    other = HierarchyServer(plan)
    other.add_many(good)
    before = server.estimate().cdf
    server.merge(HierarchyServer.load(other.dump()))
    assert (server.accepted, server.rejected) == (200, 2 * len(bad))
    np.testing.assert_allclose(server.estimate().cdf, before)
    for wrong in (server, HierarchyServer(HierarchyPlan(2.0, 16, 4)), 5):
        with pytest.raises(ParameterError):
            server.merge(wrong)  # type: ignore[arg-type]


def test_parameters() -> None:
    for wrong in (
        {"epsilon": 0},
        {"epsilon": 41.0},
        {"buckets": 48},
        {"buckets": 1},
        {"buckets": 8192},
        {"fan_out": 3},
    ):
        with pytest.raises(ParameterError):
            HierarchyPlan(**{"epsilon": 1.0, **wrong})  # type: ignore[arg-type]
    plan = HierarchyPlan(1.0)
    assert plan.levels >= 2
    assert [plan.bucket(x) for x in (0.0, 1 / 64, 1 / 64 + 1e-9, 1.0)] == [0, 0, 1, 63]
    with pytest.raises(ParameterError):
        HierarchyClient("plan")  # type: ignore[arg-type]
