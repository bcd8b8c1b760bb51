"""What local learning is compared with: two ways to tell the distribution of values in [0, 1] under
pure ε-LDP.

The paper compares its local form with the algorithm of Smith, Thakurta and Upadhyay (2017), which
it calls STU: every client marks its bucket in a binary tree and sends the whole tree through the
randomiser of Duchi, Jordan and Wainwright (2013). `tree_through_randomiser` is that.
`one_point_per_client` is the simplest form of the same idea.
"""

from __future__ import annotations

import math

import numpy as np

from evercount._validate import FloatArray, IntArray

CLIENTS_AT_ONCE = 10_000


def one_point_per_client(
    points: FloatArray, buckets: int, epsilon: float, rng: np.random.Generator
) -> FloatArray:
    """F̂ at the ends of the buckets, by randomised response about one random end per client."""
    # A client takes one end t of a bucket at random and tells the slope of its loss there, ±1, by a
    # randomiser that keeps the sign with probability e^ε/(1 + e^ε). Pure ε-LDP. The server averages
    # the answers about each end.
    end = rng.integers(1, buckets + 1, len(points))
    below = points <= end / buckets
    honest = rng.random(len(points)) < keep_probability(epsilon)
    answer = np.where(below == honest, 1.0, -1.0) / math.tanh(epsilon / 2)
    number = np.bincount(end, minlength=buckets + 1)[1:]
    total = np.bincount(end, answer, buckets + 1)[1:]
    return np.asarray((1 + total / np.maximum(number, 1)) / 2)


def keep_probability(epsilon: float) -> float:
    """e^ε/(1 + e^ε)."""
    return math.exp(epsilon) / (1 + math.exp(epsilon))


def tree_through_randomiser(
    points: FloatArray, buckets: int, epsilon: float, rng: np.random.Generator
) -> FloatArray:
    """F̂ at the ends of the buckets, by STU; `buckets` is a power of two.

    **Guarantee.** Pure ε-LDP: a message is uniform on the half of a sphere that its client's tree
    points to, with probability e^ε/(1 + e^ε), or else on the other half. Its density is one of two
    numbers whose ratio is e^ε, and the radius of the sphere is the same for all clients, because
    every tree marks one node on each level. Test:
    tests/reproduce/test_local_baselines.py::test_messages_of_two_values_differ_by_the_factor_at_most.
    """
    leaves = np.clip(np.ceil(points * buckets), 1, buckets).astype(np.int64) - 1
    total = np.zeros(2 * buckets - 2)
    for start in range(0, len(leaves), CLIENTS_AT_ONCE):
        total += tree_messages(leaves[start : start + CLIENTS_AT_ONCE], buckets, epsilon, rng).sum(
            axis=0
        )
    return np.asarray((1 + below_less_above(buckets) @ np.append(total / len(leaves), 1.0)) / 2)


def tree_messages(
    leaves: IntArray, buckets: int, epsilon: float, rng: np.random.Generator
) -> FloatArray:
    """The message of each client, in expectation the nodes of its tree: ones on its path, below the
    root."""
    direction = rng.standard_normal((len(leaves), 2 * buckets - 2))
    direction /= np.linalg.norm(direction, axis=1)[:, np.newaxis]
    along = np.take_along_axis(direction, path_nodes(leaves, buckets), axis=1).sum(axis=1)
    honest = rng.random(len(leaves)) < keep_probability(epsilon)
    sign = np.where((along >= 0) == honest, 1.0, -1.0)
    return np.asarray(direction * (sign * sphere_radius(buckets, epsilon))[:, np.newaxis])


def path_nodes(leaves: IntArray, buckets: int) -> IntArray:
    """The numbers of the nodes above each leaf, and of itself: a level has its nodes in a row, the
    root has none."""
    height = buckets.bit_length() - 1
    levels = np.arange(1, height + 1)
    return np.asarray(2**levels - 2 + (leaves[:, np.newaxis] >> (height - levels)))


def sphere_radius(buckets: int, epsilon: float) -> float:
    """The length of a message with which it is unbiased."""
    # E of a coordinate of a uniform unit vector, given that it is positive, is
    # Γ(d/2)/(√π·Γ((d+1)/2)); the tree, of length √height, is met by its direction with (2p − 1)
    # times as much.
    nodes = 2 * buckets - 2
    height = buckets.bit_length() - 1
    log_mean = math.lgamma(nodes / 2) - math.lgamma((nodes + 1) / 2) - math.log(math.pi) / 2
    return math.sqrt(height) / (math.tanh(epsilon / 2) * math.exp(log_mean))


def below_less_above(buckets: int) -> FloatArray:
    """For the end of each bucket t, nodes up to t less nodes above t, as rows over the nodes and
    the root."""
    height = buckets.bit_length() - 1
    rows = np.zeros((buckets, 2 * buckets - 1))
    for t in range(1, buckets + 1):
        for sign, start, stop in ((1.0, 0, t), (-1.0, t, buckets)):
            while start < stop:  # the largest node that begins here and does not reach beyond
                size = min(start & -start or buckets, 1 << ((stop - start).bit_length() - 1))
                level = height - (size.bit_length() - 1)
                if level:
                    node = 2**level - 2 + start // size
                else:
                    node = -1
                rows[t - 1, node] += sign
                start += size
    return rows


def tree_variance(buckets: int, epsilon: float) -> float:
    """n times the largest variance of an entry of the F̂ of `tree_through_randomiser`, exactly."""
    # E[ZZᵀ] is that of the whole sphere, radius²/d·I, because its halves are mirror images; the
    # mean of one client's entry of F̂, 0 or 1 (up to the constant ½), has the square ¼.
    nodes = 2 * buckets - 2
    largest = float((below_less_above(buckets)[:, :-1] ** 2).sum(axis=1).max())
    return largest / 4 * sphere_radius(buckets, epsilon) ** 2 / nodes - 1 / 4
