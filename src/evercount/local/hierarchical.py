"""A hierarchical counter without a curator and without δ: one noisy bit about one node of a tree
per client.

Values in [0, 1] fall into buckets, the leaves of a tree of equal fan-out. A client picks a level at
random, and tells one random Hadamard coefficient of the node that its bucket lies in, flipped with
probability 1/(1 + e^ε). The server estimates all nodes and makes them consistent by least squares:
every node is the sum of its children, the root is 1.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from decimal import ROUND_FLOOR, Decimal, localcontext
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from evercount._validate import FloatArray, IntArray, check_count, check_positive
from evercount.errors import InputError, MessageRejected, ParameterError
from evercount.local.client_and_server import OneMessage
from evercount.local.estimate import RiskFunction
from evercount.local.losses import Loss, check_points
from evercount.local.message_server import MessageServer, check_plan
from evercount.noise import Secret
from evercount.noise.prf import Prf, counter

MESSAGE = struct.Struct(">BIB")  # level (from 1), number of the Hadamard coefficient, bit
# what a client draws: whether it keeps its bit, the coefficient, and the level
RANDOM = struct.Struct("<QII")
FAN_OUTS = (2, 4, 8, 16)


@dataclass(frozen=True)
class HierarchyPlan:
    """What clients and server share, all public.

    Attributes:
        epsilon: Privacy of one client; at most 40.
        buckets: Leaves, a power of two from 2 to 4096. F̂ is estimated at their ends.
        fan_out: Children of a node; by default the one with the smallest worst std.

    Raises:
        ParameterError: An argument is outside its range.

    >>> plan = HierarchyPlan(1.0)
    >>> plan.buckets, plan.fan_out, plan.levels
    (64, 4, 3)
    """

    epsilon: float
    buckets: int = 64
    fan_out: int = 0

    def __post_init__(self) -> None:
        if check_positive("epsilon", self.epsilon) > 40:
            raise ParameterError(f"epsilon must be at most 40, got {self.epsilon!r}")
        if check_count("buckets", self.buckets, 2) > 4096 or self.buckets & (self.buckets - 1):
            raise ParameterError(
                f"buckets must be a power of two from 2 to 4096, got {self.buckets!r}"
            )
        if self.fan_out == 0:
            object.__setattr__(self, "fan_out", _best_fan_out(self.buckets))
        if self.fan_out not in _fan_outs(self.buckets):
            allowed = f"one of {_fan_outs(self.buckets)} for {self.buckets} buckets"
            raise ParameterError(f"fan_out must be {allowed}, got {self.fan_out!r}")

    @property
    def levels(self) -> int:
        """Levels below the root."""
        return round(math.log(self.buckets, self.fan_out))

    @cached_property
    def threshold(self) -> int:
        """A client keeps its bit iff a uniform 64-bit number is below this: never more often than
        e^ε/(1 + e^ε)."""
        with localcontext(prec=80, rounding=ROUND_FLOOR):
            grown = Decimal(self.epsilon).exp()
            return int((1 << 64) * (grown / (1 + grown))) - 1

    @property
    def correction(self) -> float:
        """1/(2p − 1) for the probability p of keeping the bit: what an estimate is multiplied
        with."""
        return 2.0**63 / (self.threshold - 2**63)

    def nodes(self, level: int) -> int:
        """Nodes of a level.

        Args:
            level: A level below the root, from 1.

        Returns:
            How many nodes it has.
        """
        return int(self.fan_out**level)

    def bucket(self, point: float) -> int:
        """The bucket, from 0, of a value in [0, 1]: bucket j holds (j/w, (j+1)/w], and 0 belongs to
        the first.

        Args:
            point: A value in [0, 1].

        Returns:
            The number of its bucket.
        """
        return min(max(math.ceil(point * self.buckets), 1), self.buckets) - 1

    @cached_property
    def client_std(self) -> FloatArray:
        """Std of F̂ at the ends of the buckets times √n, at most, for n clients whose levels are
        evenly spread."""
        norms = np.linalg.norm(prefix_map(self.buckets, self.fan_out), axis=1)
        return np.asarray(self.correction * math.sqrt(self.levels) * norms)


class HierarchyClient(OneMessage[bytes]):
    """One client: `message(value)` is everything that ever leaves it, six bytes.

    Args:
        plan: The public plan.
        secret: The client's own secret; None for a fresh one.
        loss: What the server will minimise; None for the absolute loss.

    Raises:
        ParameterError: An argument is of another kind, or a client of the same secret is alive.

    **Guarantee.** Pure ε-LDP on a real computer: for any two values and any message the
    probabilities differ by a factor of at most e^ε, for a uniform key stream. Proof:
    `hierarchical.proof.md`. Test:
    tests/local/test_local_hierarchical.py::test_messages_have_the_exact_law.

    >>> len(HierarchyClient(HierarchyPlan(1.0)).message(0.25))
    6
    """

    def __init__(
        self, plan: HierarchyPlan, secret: Secret | None = None, *, loss: Loss | None = None
    ) -> None:
        check_plan(plan, HierarchyPlan)
        super().__init__(secret, loss, repr(plan))
        self.plan = plan

    def _make(self, point: float) -> bytes:
        block = Prf(self._secret.derive("hierarchical counter")).encrypt(counter(0, 0, 0, 0))
        return encode(self.plan, self.plan.bucket(point), *RANDOM.unpack(block))


def encode(plan: HierarchyPlan, bucket: int, chance: int, row: int, level: int) -> bytes:
    """The message for a bucket and random numbers of 64, 32 and 32 bits."""
    at = 1 + level % plan.levels
    row %= plan.nodes(at)
    node = bucket // plan.nodes(plan.levels - at)
    honest = chance < plan.threshold
    return MESSAGE.pack(at, row, ((row & node).bit_count() & 1) ^ (not honest))


class HierarchyServer(MessageServer):
    """Adds up bits in constant memory; servers of equal plans merge.

    Args:
        plan: The public plan of the clients.

    Raises:
        ParameterError: plan is not a `HierarchyPlan`.

    **Guarantee.** A message that no client sends is rejected and changes nothing but the number of
    rejected ones. Test: tests/local/test_local_hierarchical.py::test_bad_messages_are_rejected.

    >>> plan = HierarchyPlan(1.0, 16)
    >>> server = HierarchyServer(plan)
    >>> server.add_many(HierarchyClient(plan).message(0.25) for _ in range(200))
    200
    >>> 0 <= server.estimate().median <= 1
    True
    """

    plan: HierarchyPlan
    _plans = HierarchyPlan

    def __init__(self, plan: HierarchyPlan) -> None:
        super().__init__(plan)
        # how many messages of each level, then the sums of its coefficients, level after level
        self._sums = np.zeros(
            plan.levels + sum(map(plan.nodes, range(1, plan.levels + 1))), np.int64
        )

    @property
    def _counts(self) -> IntArray:
        return self._sums[: self.plan.levels]

    def _coefficients(self, level: int) -> IntArray:
        start = self.plan.levels + sum(map(self.plan.nodes, range(1, level)))
        return self._sums[start : start + self.plan.nodes(level)]

    def _receive(self, message: Any) -> None:
        if isinstance(message, bytes) and len(message) == MESSAGE.size:
            level, row, bit = MESSAGE.unpack(message)
            if 1 <= level <= self.plan.levels and row < self.plan.nodes(level) and bit <= 1:
                self._coefficients(level)[row] += 1 - 2 * bit
                self._counts[level - 1] += 1
                return
        raise MessageRejected(
            f"a message is {MESSAGE.size} bytes: a level, a coefficient of it and a bit"
        )

    def estimate(self) -> HierarchyEstimate:
        """The distribution of all accepted values; needs a message of every level."""
        if not self._counts.all():
            raise InputError(
                "no message of some level has been accepted yet: there is nothing to estimate"
            )
        nodes = [
            hadamard(self._coefficients(level).astype(np.float64)) * (self.plan.correction / count)
            for level, count in enumerate(self._counts.tolist(), 1)
        ]
        weights = prefix_map(self.plan.buckets, self.plan.fan_out)
        spread = np.concatenate(
            [np.full(len(part), 1 / n) for part, n in zip(nodes, self._counts, strict=True)]
        )
        # what `prefix_map` leaves out
        even = np.arange(1, self.plan.buckets + 1) / self.plan.buckets
        cdf = even + weights @ np.concatenate(nodes)
        return HierarchyEstimate(
            self.plan, self.accepted, cdf, self.plan.correction * np.sqrt(weights**2 @ spread)
        )


def simulate_hierarchy(
    plan: HierarchyPlan, points: npt.ArrayLike, secret: Secret
) -> HierarchyServer:
    """A server with the messages of many clients, for studies: one secret serves all of them, one
    block of AES each.

    Args:
        plan: The public plan.
        points: Values in [0, 1].
        secret: The key of all clients; real clients each have their own.

    Returns:
        The server after all messages; ask it for its `estimate`.

    Raises:
        InputError: If a point lies outside [0, 1].

    >>> simulate_hierarchy(HierarchyPlan(1.0, 16), [0.25] * 500, Secret.generate()).accepted
    500
    """
    values = check_points(points)
    counters = b"".join(counter(number, 0, 0, 0) for number in range(len(values)))
    blocks = Prf(secret.derive("hierarchical counter")).encrypt(counters)
    server = HierarchyServer(plan)
    for value, random in zip(values.tolist(), RANDOM.iter_unpack(blocks), strict=True):
        server.add(encode(plan, plan.bucket(value), *random))
    return server


@dataclass(frozen=True, eq=False)
class HierarchyEstimate(RiskFunction):
    """F̂ at the ends 1/w, …, 1 of the buckets, and the risk function that follows from it.

    Args:
        plan: The public plan of the collection.
        accepted: How many messages were accepted.
        cdf: F̂ at the ends of the buckets, as it was estimated.
        std: The std of each entry of `cdf`.

    **Guarantee.** `cdf` is unbiased and each entry has at most the std `std`, whatever the data.
    Proof: `hierarchical.proof.md`. Test:
    tests/local/test_local_hierarchical.py::test_estimates_are_unbiased_and_std_holds.

    >>> plan = HierarchyPlan(1.0, 4)
    >>> cdf = np.array([0.25, 0.75, 1.0, 1.0])
    >>> estimate = HierarchyEstimate(plan, 10_000, cdf, np.full(4, 0.01))
    >>> estimate.median, estimate.quantile(0.25)
    (0.375, 0.25)
    """

    plan: HierarchyPlan
    accepted: int
    cdf: FloatArray
    std: FloatArray

    @property
    def monotone(self) -> FloatArray:
        """The nearest rising function in [0, 1]; its largest error is never larger."""
        return (1 + self.slopes[1:]) / 2

    @property
    def raw_slopes(self) -> FloatArray:
        return np.concatenate([[-1.0], 2 * self.cdf - 1])

    def bound(self, level: float = 2 / 3) -> float:
        """With probability about `level`, |f(θ) − (risk at θ − risk at 0)| is at most this for all
        θ together.

        Twice the widest half width of the band, and 1/w for the buckets: `local.proof.md`, theorem
        2, with the normal law of `band`.

        Args:
            level: The probability that the bound holds.

        Returns:
            The bound.

        Raises:
            ParameterError: the level is not between 0 and 1.
        """
        return 2 * float(self.band(level).max()) + 1 / self.plan.buckets


def hadamard(values: FloatArray) -> FloatArray:
    """Σ_r (−1)^(bits common to r and v)·values[r] for every v: the fast Walsh–Hadamard transform.

    >>> hadamard(np.array([1.0, 0.0, 0.0, 0.0])).tolist()
    [1.0, 1.0, 1.0, 1.0]
    """
    out, step = values.copy(), 1
    while step < len(out):
        pairs = out.reshape(-1, 2, step)
        out = np.stack([pairs[:, 0] + pairs[:, 1], pairs[:, 0] - pairs[:, 1]], axis=1).reshape(-1)
        step *= 2
    return out


@lru_cache(maxsize=32)
def prefix_map(buckets: int, fan_out: int) -> FloatArray:
    """F̂ as a linear map of the raw estimates of all nodes, level after level: least squares with
    the root known.

    Shape (buckets, nodes). The raw estimates of all nodes have equal variance, as levels are drawn
    evenly.
    """
    levels = round(math.log(buckets, fan_out))
    design = np.concatenate(
        [
            np.repeat(np.eye(fan_out**level), fan_out ** (levels - level), axis=1)
            for level in range(1, levels + 1)
        ]
    )
    # leaves x that sum to 1: x = 1/w + Bu with the columns of B orthogonal to the ones
    free = np.eye(buckets) - 1 / buckets
    # one singular value is 0, all others are at least 1
    inverse = np.linalg.pinv(design @ free, rcond=1e-9)
    return np.asarray(np.tril(np.ones((buckets, buckets))) @ free @ inverse)


def _fan_outs(buckets: int) -> tuple[int, ...]:
    """List the fan-outs of which the number of buckets is a power, and the flat tree of one level
    where that is small."""
    bits = buckets.bit_length() - 1
    fan_outs = {fan for fan in FAN_OUTS if bits % (fan.bit_length() - 1) == 0 and fan <= buckets}
    return tuple(sorted(fan_outs | ({buckets} if buckets <= 64 else set())))


@lru_cache(maxsize=32)
def _best_fan_out(buckets: int) -> int:
    def worst(fan_out: int) -> float:
        levels = round(math.log(buckets, fan_out))
        return levels * float(np.square(prefix_map(buckets, fan_out)).sum(axis=1).max())

    return min(_fan_outs(buckets), key=worst)
