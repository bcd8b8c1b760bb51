"""What clients and the server of one local-model collection agree on: buckets, integer factor R,
noise, message limits.

Everything that privacy depends on is an integer here: R is fixed-point, its sensitivity is an
integer square root, and the noise has a whole number of units. `local.proof.md` has the proofs.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from evercount._validate import (
    FloatArray,
    IntArray,
    check_count,
    check_delta,
    check_name,
    check_positive,
)
from evercount.errors import ParameterError, TooLarge
from evercount.privacy import Budget

Form = Literal["one-counter", "two-counter"]

UNIT = 2**20  # R is rounded to multiples of 1/UNIT
MOST_BUCKETS = 4096
MOST_CLIENTS = 2**47  # sums of this many 16-bit entries fit 64 bits
LARGEST_ENTRY = 32767  # an entry of a message is a signed 16-bit number
# an honest message falls outside the server's ball with probability below 2^−40
MISS = 40 * math.log(2)
# relative: square roots and products of doubles are rounded up by this much, on the private side
HEADROOM = 1e-12
VERSION = 1
MAGIC = b"eL"


@lru_cache(maxsize=64)
def _factor(buckets: int) -> IntArray:
    """Compute round(UNIT·binom(2k,k)/4^k) for k < buckets: the first column of the integer Toeplitz
    factor R."""
    column = np.empty(buckets, np.int64)
    central = 1  # binom(2k, k)
    for k in range(buckets):
        column[k] = ((central * UNIT << 1) + (1 << 2 * k)) >> (2 * k + 1)
        central = central * 2 * (2 * k + 1) // (k + 1)
    column.flags.writeable = False
    return column


@lru_cache(maxsize=64)
def squared_distance(buckets: int) -> int:
    """max over all pairs of ‖R(e_i − e_j)‖² in squared units, an exact integer.

    **Guarantee.** For i < j, ‖R(e_i − e_j)‖² = Σ_{k < w−i+1} (r(k) − r(k−d))² with d = j − i and
    r(k) = 0 for k < 0. That is a sum of squares with fewer terms for larger i. So i = 1 is the
    worst, and only the w − 1 distances d are compared. Test:
    tests/local/test_local_sensitivity.py::test_the_worst_pair_by_enumeration.
    """
    r = _factor(buckets)
    worst = 0
    for d in range(1, buckets):
        difference = r.copy()
        difference[d:] -= r[:-d]
        worst = max(worst, int(difference @ difference))
    return worst


@dataclass(frozen=True)
class LocalPlan:
    """Public parameters of one collection; equal plans make messages that fit together.

    `n` is the number of clients that is planned for (it sets the number of buckets); any number may
    answer. `buckets` overrides w = ⌈ε√n⌉.

    Args:
        epsilon: The ε of one client's message, above 0.
        delta: The δ of one client's message, between 0 and 1.
        n: The number of clients that is planned for.
        form: "one-counter", or "two-counter" for the form of the paper.
        buckets: How many buckets [0, 1] is cut into, from 2 to 4096; None takes ⌈ε√n⌉.

    Raises:
        ParameterError: An argument is outside its range, or δ is too small for exact arithmetic.
        TooLarge: There are too many clients or buckets, or the noise does not fit the message
            format.

    **Guarantee.** A client's message is (epsilon, delta)-LDP: for any two values the probabilities
    of every set of messages differ by a factor e^ε and by delta at most. (That a client takes part
    at all is not hidden.) Proof: `local.proof.md`, theorem 1. Assumption: the client's secret is
    its own and used for this message only; the bits of AES-256 are as good as random ones. Tests:
    tests/local/test_local_sensitivity.py.

    >>> plan = LocalPlan(1.0, 1e-6, 10_000)
    >>> plan.w, plan.counters, plan.bucket([0.0, 0.5, 1.0]).tolist()
    (100, 1, [1, 50, 100])
    """

    epsilon: float
    delta: float
    n: int
    form: Form = "one-counter"
    buckets: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", check_positive("epsilon", self.epsilon))
        object.__setattr__(self, "delta", check_delta(self.delta))
        object.__setattr__(self, "n", check_count("n", self.n))
        if self.n > MOST_CLIENTS:
            raise TooLarge(
                f"n is more than {MOST_CLIENTS}: sums of that many messages would not be exact"
            )
        check_name("form of the local protocol", self.form, get_args(Form))
        w = self.buckets
        if w is None:
            w = max(2, math.ceil(self.epsilon * math.sqrt(self.n)))
        else:
            w = check_count("buckets", w, least=2)
        if w > MOST_BUCKETS:
            raise TooLarge(
                f"{w} buckets are more than {MOST_BUCKETS}: give buckets={MOST_BUCKETS} or fewer"
            )
        object.__setattr__(self, "buckets", w)
        if self.scale >= 2**31:
            raise TooLarge(
                f"noise for epsilon={self.epsilon:g} is too large for the message format; use more "
                "epsilon"
            )

    @cached_property
    def w(self) -> int:
        """Number of buckets of [0, 1]."""
        assert self.buckets is not None
        return self.buckets

    @cached_property
    def counters(self) -> int:
        """Vectors in a message: 1, or 2 in the paper's form."""
        return 1 if self.form == "one-counter" else 2

    @cached_property
    def entries(self) -> int:
        """Numbers in a message."""
        return self.w * self.counters

    @cached_property
    def factor(self) -> IntArray:
        """First column of the integer Toeplitz matrix R, in units of 1/UNIT."""
        return _factor(self.w)

    @cached_property
    def sensitivity(self) -> float:
        """max over pairs ‖R(e_i − e_j)‖ in units, rounded up."""
        return math.sqrt(squared_distance(self.w)) * (1 + HEADROOM)

    def _budget(self) -> Budget:
        """Compute what one counter may spend: the paper's form halves both parameters (basic
        composition)."""
        return Budget(self.epsilon / self.counters, self.delta / self.counters, adjacency="replace")

    @cached_property
    def numeric_delta(self) -> float:
        """The part of delta that pays for cutting the normals to 128 bits: theorem 1 of the
        proof."""
        most = 2 * self._budget().noise_multiplier() * self.sensitivity
        price = (
            (1 + math.exp(min(self.epsilon, 700.0)))
            * self.entries
            * 4
            * most
            * 2.0**-128
            * (1 + 1e-6)
        )
        if price > self.delta / 2:
            raise ParameterError(
                f"delta={self.delta:g} is too small for exact arithmetic here, which needs "
                f"{price:.3g} of it; choose a larger delta or a smaller epsilon"
            )
        return price

    @cached_property
    def scale(self) -> int:
        """N: the std of the noise in units of 1/UNIT, a whole number."""
        noise_budget = self._budget().reserve(self.numeric_delta / self.counters)
        return math.ceil(noise_budget.noise_multiplier() * self.sensitivity * (1 + HEADROOM))

    @property
    def sigma(self) -> float:
        """Std of the noise on R·e_j, in real units."""
        return self.scale / UNIT

    @cached_property
    def _largest_norm(self) -> float:
        """The norm in units that an honest vector passes with probability below 2^−40 (Laurent and
        Massart)."""
        top = math.sqrt(float(self.factor @ self.factor))
        return top + self.scale * math.sqrt(self.w + 2 * math.sqrt(self.w * MISS) + 2 * MISS)

    @cached_property
    def shift(self) -> int:
        """m: an entry of a message counts 2^m units, the finest for which the ball fits 16 bits."""
        m = 1
        while self._largest_norm / (1 << m) + math.sqrt(self.w) > LARGEST_ENTRY:
            m += 1
        return m

    @cached_property
    def radius(self) -> int:
        """The server refuses vectors of a larger Euclidean norm, in entries."""
        return math.ceil(self._largest_norm / (1 << self.shift) + math.sqrt(self.w))

    @cached_property
    def ratio(self) -> FloatArray:
        """N/2^m, the std of the noise in entries, as an array without axes: exact, and quick for
        numpy to take."""
        return np.asarray(math.ldexp(self.scale, -self.shift))

    @cached_property
    def _ramp(self) -> FloatArray:
        """w zeros, then the first column of R in entries: every column of R is a piece of it,
        exactly."""
        ramp = np.concatenate([np.zeros(self.w), np.ldexp(self.factor, -self.shift)])
        ramp.flags.writeable = False
        return ramp

    def mean(self, bucket: int) -> FloatArray:
        """R·e_bucket in entries (in the paper's form, that of the other end behind it), exact.

        Args:
            bucket: The 1-based bucket of the client's value.

        Returns:
            The vector that a message has without its noise, of `entries` numbers.
        """
        w, ramp = self.w, self._ramp
        first = ramp[w + 1 - bucket : 2 * w + 1 - bucket]
        if self.counters == 1:
            return first
        return np.concatenate([first, ramp[bucket : w + bucket]])

    @property
    def entry(self) -> float:
        """What 1 in a message stands for, in real units of R·e_j."""
        return float(1 << self.shift) / UNIT

    @cached_property
    def public_text(self) -> str:
        """All that fixes the messages of this plan, in one text."""
        return (
            f"{VERSION}|{self.epsilon.hex()}|{self.delta.hex()}|{self.w}|{self.form}|{self.scale}|"
            f"{self.shift}"
        )

    @cached_property
    def digest(self) -> bytes:
        """Four bytes by which client and server know that they mean the same plan."""
        return hashlib.blake2b(
            self.public_text.encode(), digest_size=4, person=b"evercount.local"
        ).digest()

    @cached_property
    def header(self) -> bytes:
        """The first eight bytes of every message: see `message_server.py`."""
        return MAGIC + bytes([VERSION, self.counters]) + self.digest

    @cached_property
    def left(self) -> FloatArray:
        """First column of L = M·R^{-1} in real units (Toeplitz, lower triangular)."""
        from scipy.linalg import solve_toeplitz

        r = self.factor / UNIT
        return np.asarray(
            solve_toeplitz((r, np.append(r[:1], np.zeros(self.w - 1))), np.ones(self.w))
        )

    def prefix(self, vector: FloatArray) -> FloatArray:
        """L·vector: noisy numbers of values up to the end of each bucket.

        Args:
            vector: The mean of accepted messages for one counter, in real units.

        Returns:
            `w` numbers, one for the end of each bucket.
        """
        return np.convolve(self.left, vector)[: self.w]

    def bucket(self, values: npt.ArrayLike) -> IntArray:
        """1-based bucket j of each value in [0, 1]: (j−1)/w < value ≤ j/w, and 1 for value 0.

        Args:
            values: One value in [0, 1], or an array of them.

        Returns:
            The buckets, of the shape of `values`.
        """
        return np.clip(np.ceil(np.asarray(values, np.float64) * self.w), 1, self.w).astype(np.int64)
