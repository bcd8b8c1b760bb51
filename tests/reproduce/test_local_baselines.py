"""The baselines of local learning: unbiased, as private and as exact as they say."""

from __future__ import annotations

import math

import numpy as np
import pytest

from evercount.reproduce.local_baselines import (
    below_less_above,
    path_nodes,
    sphere_radius,
    tree_messages,
    tree_through_randomiser,
    tree_variance,
)

SIGMAS = 4.5


@pytest.mark.parametrize("buckets", [2, 8, 64])
def test_without_noise_the_tree_gives_the_distribution(buckets: int) -> None:
    leaves = np.random.default_rng(1).integers(0, buckets, 500)
    nodes = np.zeros(2 * buckets - 2)
    np.add.at(nodes, path_nodes(leaves, buckets), 1 / len(leaves))
    found = (1 + below_less_above(buckets) @ np.append(nodes, 1.0)) / 2
    expected = [np.mean(leaves < t) for t in range(1, buckets + 1)]
    np.testing.assert_allclose(found, expected, atol=1e-12)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_messages_are_unbiased_with_the_variance_of_the_sphere(epsilon: float) -> None:
    buckets, clients = 8, 40_000
    messages = tree_messages(np.full(clients, 5), buckets, epsilon, np.random.default_rng(2))
    expected = np.zeros(2 * buckets - 2)
    expected[path_nodes(np.array([5]), buckets)[0]] = 1.0
    square = sphere_radius(buckets, epsilon) ** 2 / len(expected)
    np.testing.assert_allclose(
        messages.mean(axis=0), expected, atol=SIGMAS * math.sqrt(square / clients)
    )
    np.testing.assert_allclose((messages**2).mean(axis=0), square, rtol=0.05)


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_messages_of_two_values_differ_by_the_factor_at_most(epsilon: float) -> None:
    """A message is on a half of one sphere, uniform there: the halves are as likely as they may be,
    and no more."""
    buckets, clients = 8, 40_000
    for one, other in ((0, 1), (0, 7), (3, 4)):
        likely = []
        for leaf in (one, other):
            messages = tree_messages(
                np.full(clients, leaf), buckets, epsilon, np.random.default_rng(leaf)
            )
            np.testing.assert_allclose(
                np.linalg.norm(messages, axis=1), sphere_radius(buckets, epsilon)
            )
            along = [
                messages[:, path_nodes(np.array([x]), buckets)[0]].sum(axis=1) >= 0
                for x in (one, other)
            ]
            likely.append([np.mean(along[0] & ~along[1]), np.mean(along[1] & ~along[0])])
        # where the two trees' halves differ, the ratio is e^ε exactly, so it is seen if it were
        # larger
        for ratio in (likely[0][0] / likely[1][0], likely[1][1] / likely[0][1]):
            least = clients * min(map(min, likely))
            assert abs(math.log(ratio) - epsilon) < SIGMAS * math.sqrt(2 / least)


def test_the_variance_of_the_distribution_is_exact() -> None:
    buckets, clients, runs = 16, 50, 4000
    points = np.random.default_rng(3).random(clients)
    rng = np.random.default_rng(4)
    found = np.array([tree_through_randomiser(points, buckets, 1.0, rng) for _ in range(runs)])
    exact = tree_variance(buckets, 1.0)
    largest = found.var(axis=0).max() * clients
    assert abs(largest / exact - 1) < SIGMAS * math.sqrt(2 / runs) + 0.01
    truth = np.array([np.mean(points <= t / buckets) for t in range(1, buckets + 1)])
    assert np.abs(found.mean(axis=0) - truth).max() < SIGMAS * math.sqrt(exact / clients / runs)
