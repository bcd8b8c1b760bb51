"""GenProt (Bun, Nelson, Stemmer 2018, Algorithm 3): pure ε-LDP with a message of two bits, by public randomness.

Public: every client has T candidate vectors y_1 … y_T, independent normals that follow from a seed that all know. The
client computes how likely each candidate would be as its own noisy vector, p_t = ½·(density ratio), forced into
[lo, hi] = ½·[e^−c, e^c]. It draws a bit of probability p_t for each, and sends the number of one candidate, uniform
among those with bit 1 (among all if there is none). Privacy needs only that lo ≤ p_t ≤ hi: it does not depend on the
candidates, on the seed or on floating-point errors.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np

from evercount.errors import AlreadyReleased, InputError, MessageRejected, ParameterError, UnknownName
from evercount.local.client import check_point
from evercount.local.estimate import LocalEstimate, gain
from evercount.local.plan import UNIT, FloatArray, IntArray, LocalPlan
from evercount.noise import Secret
from evercount.noise.prf import Prf, counter
from evercount.privacy import Budget
from evercount.privacy.checks import check_count, check_positive

Rule = Literal["best", "paper"]
BITS = 53
MOST_CANDIDATES = 64
_PERSON = b"evercount.gprot"


def choice_weights(low: int, high: int, unit: int, count: int) -> list[int]:
    """P(a candidate is sent) at every corner, in units of 1/(unit^count·lcm(1 … count)): exact integers.

    A corner: k of the other bits have probability high/unit and the rest low/unit, the candidate's own bit either.
    """
    shares = math.lcm(*range(1, count + 1))
    found = []
    for k in range(count):
        law = [1]  # of the number of other bits that are 1, in units of 1/unit^(number of others)
        for p in [high] * k + [low] * (count - 1 - k):
            law = [a * (unit - p) + b * p for a, b in zip([*law, 0], [0, *law], strict=True)]
        sent = sum(value * (shares // (1 + i)) for i, value in enumerate(law))
        found += [p * sent + (unit - p) * law[0] * (shares // count) for p in (low, high)]
    return found


def exact_ratio(low: int, high: int, unit: int, count: int) -> Fraction:
    """The largest ratio of the probabilities of a message under two inputs, when all p_t lie in [low, high]/unit.

    **Guarantee.** Exact. The probability of a message is linear in each p_t, so its extremes lie at corners; by
    symmetry a corner is (own p, number of others at `high`). Test:
    tests/test_local_genprot.py::test_exact_privacy_by_enumeration.
    """
    weights = choice_weights(low, high, unit, count)
    return Fraction(max(weights), min(weights))


def _limits(c: float) -> tuple[int, int]:
    """lo and hi in units of 2^−53, rounded inwards."""
    scale = 2.0 ** (BITS - 1)
    return math.ceil(scale * math.exp(-c) * (1 + 1e-15)), min(2**BITS, math.floor(scale * math.exp(c) * (1 - 1e-15)))


def pure_epsilon(c: float, count: int) -> float:
    """The exact ε of clipping at ½·e^(±c), rounded up."""
    ratio = exact_ratio(*_limits(c), 2**BITS, count)
    return math.log(ratio) * (1 + 1e-12) + 1e-15


@lru_cache(maxsize=256)
def widest_clip(epsilon: float, count: int) -> float:
    """The largest c ≤ ln 2 whose exact ε is at most `epsilon`; by bisection, the result checked."""
    low, high = 0.0, math.log(2)
    if pure_epsilon(high, count) <= epsilon:
        return high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if pure_epsilon(middle, count) <= epsilon else (low, middle)
    if not low > 0:
        raise ParameterError(f"epsilon={epsilon!r} is too small for GenProt with {count} candidates")
    return low


@dataclass(frozen=True)
class GenProtPlan:
    """Public parameters. `candidates` T: the message has log₂ T bits.

    rule="best" (default): the widest clip whose exact privacy is ε, and p_t = hi or lo by the sign of the match, which
    has the least variance. rule="paper": the Gaussian randomizer with (ε/10, delta) inside, clip 2ε/10, p_t = ½ outside
    of it; Lemma 6.2 of Bun, Nelson and Stemmer then gives ε, and the exact value `exact_epsilon` is smaller.

    **Guarantee.** Pure `exact_epsilon`-LDP, at most epsilon. Proof: `genprot.proof.md`. Test:
    tests/test_local_genprot.py::test_exact_privacy_by_enumeration.
    """

    epsilon: float
    n: int
    seed: str
    candidates: int = 4
    rule: Rule = "best"
    buckets: int | None = None
    delta: float = 1e-6

    def __post_init__(self) -> None:
        check_positive("epsilon", self.epsilon)
        check_count("n", self.n)
        if self.rule not in ("best", "paper"):
            raise UnknownName("rule of GenProt", self.rule, ("best", "paper"))
        if not isinstance(self.seed, str) or not self.seed:
            raise ParameterError("the public seed must be a nonempty text")
        count = check_count("candidates", self.candidates)
        if not 2 <= count <= MOST_CANDIDATES:
            raise ParameterError(f"candidates must lie between 2 and {MOST_CANDIDATES}, got {count}")
        if self.exact_epsilon > self.epsilon:
            raise ParameterError(
                f"the paper's rule with {count} candidates costs {self.exact_epsilon:.3g}; use more candidates"
            )

    @cached_property
    def shape(self) -> LocalPlan:
        """Buckets and factor R of the Gaussian protocol; its noise is not used."""
        return LocalPlan(self.epsilon, self.delta, self.n, "one-counter", self.buckets)

    @cached_property
    def clip(self) -> float:
        """c."""
        return widest_clip(self.epsilon, self.candidates) if self.rule == "best" else self.epsilon / 5

    @property
    def limits(self) -> tuple[int, int]:
        """lo and hi in units of 2^−53."""
        return _limits(self.clip)

    @cached_property
    def exact_epsilon(self) -> float:
        """The ε that this plan really spends, by exact enumeration of its corners."""
        return pure_epsilon(self.clip, self.candidates)

    @property
    def bits(self) -> float:
        """Bits of a message."""
        return math.log2(self.candidates)

    # -- geometry --------------------------------------------------------------------------------------------------

    @cached_property
    def centre(self) -> FloatArray:
        """About the centre of the smallest ball around all R·e_j: the point that the candidates surround."""
        table = self._table
        centre = table.mean(axis=0)
        for step in range(1, 300):
            far = table[int(np.argmax(((table - centre) ** 2).sum(axis=1)))]
            centre = centre + (far - centre) / (step + 1)
        return np.asarray(centre)

    @cached_property
    def _table(self) -> FloatArray:
        w = self.shape.w
        table = np.zeros((w, w))
        for j in range(w):
            table[j, j:] = self.shape.factor[: w - j] / UNIT
        return table

    @cached_property
    def radius(self) -> float:
        """Distance of the farthest R·e_j from the centre."""
        return float(np.sqrt(((self._table - self.centre) ** 2).sum(axis=1).max()))

    @cached_property
    def directions(self) -> FloatArray:
        """Unit vectors, a row per bucket: (R·e_j − centre, rest)/radius; one coordinate evens the norms out."""
        apart = self._table - self.centre
        rest = np.sqrt(np.maximum(self.radius**2 - (apart**2).sum(axis=1), 0.0))
        return np.asarray(np.column_stack([apart, rest]) / self.radius)

    def bit_probabilities(self, match: FloatArray) -> IntArray:
        """p_t in units of 2^−53 from the inner products of the candidates with the client's direction."""
        low, high = self.limits
        if self.rule == "best":
            return np.where(match > 0, high, low)
        mu = Budget(self.epsilon / 10, self.delta).mu
        exponent = np.clip(mu * match - mu * mu / 2, -2.0, 0.69)
        raw = np.floor(2.0 ** (BITS - 1) * np.exp(exponent)).astype(np.int64)
        return np.where((raw < low) | (raw > high), 2 ** (BITS - 1), raw)

    @cached_property
    def moments(self) -> tuple[float, float]:
        """(mean, variance) of the sent candidate along the client's direction; across it they are 0 and 1."""
        s = np.linspace(-10, 10, 400_001)
        weight = np.exp(-s * s / 2) * (s[1] - s[0]) / math.sqrt(2 * math.pi)
        p = self.bit_probabilities(s) * 2.0**-BITS
        T = self.candidates
        mean_p = float(p @ weight)
        kept = (1 - (1 - mean_p) ** T) / mean_p
        empty = (1 - mean_p) ** (T - 1)
        first = float((s * p) @ weight)
        second = float((s * s * p) @ weight)
        mean = first * (kept - empty)
        return mean, second * kept + (1 - second) * empty - mean**2

    # -- public randomness ------------------------------------------------------------------------------------------

    def candidate(self, client: int, number: int) -> FloatArray:
        """Candidate y_number of a client: w + 1 standard normals, from the public seed."""
        from scipy.special import ndtri

        text = f"{self.seed}|{client}|{number}".encode()
        size = self.shape.w + 1
        words = np.frombuffer(hashlib.shake_256(_PERSON + text).digest(8 * size), "<u8")
        return np.asarray(ndtri((words >> np.uint64(11)).astype(np.float64) * 2.0**-53 + 2.0**-54))


def choose(plan: GenProtPlan, probabilities: IntArray, secret: Secret) -> int:
    """The message: exact Bernoulli bits, then an exactly uniform choice among the ones. Randomness from the secret."""
    stream = _Words(secret)
    ones = [t for t, p in enumerate(probabilities.tolist()) if stream.word() >> (64 - BITS) < p]
    kept = ones or list(range(plan.candidates))
    limit = 2**64 - 2**64 % len(kept)
    while (word := stream.word()) >= limit:
        pass
    return kept[word % len(kept)]


class _Words:
    """64-bit words from a secret: the key stream of `Prf` under a label of its own."""

    def __init__(self, secret: Secret) -> None:
        self._prf = Prf(secret.derive("genprot"))
        self._next = 0
        self._left: list[int] = []

    def word(self) -> int:
        """The next word."""
        if not self._left:
            blocks = b"".join(counter(0, 0, 0, self._next + i) for i in range(4))
            data = self._prf.encrypt(blocks)
            self._left = [int.from_bytes(data[i : i + 8], "little") for i in range(0, len(data), 8)]
            self._next += 4
        return self._left.pop(0)


class GenProtClient:
    """One client with its public number: `message(value)` is the number of a candidate, log₂ T bits."""

    def __init__(self, plan: GenProtPlan, number: int, secret: Secret | None = None) -> None:
        if isinstance(number, bool) or not isinstance(number, int) or number < 0:
            raise ParameterError(f"a client's number must be a whole number from 0 on, got {number!r}")
        self.plan, self.number = plan, number
        self._secret = Secret.generate() if secret is None else secret
        self._sent: tuple[Any, int] | None = None

    def message(self, value: Any) -> int:
        """The one message of this client; the same value again gives the same message."""
        if self._sent is not None:
            if self._sent[0] == value:
                return self._sent[1]
            raise AlreadyReleased("this client has sent its message: a second one with another value would reveal both")
        bucket = int(self.plan.shape.bucket([check_point(value)])[0])
        table = np.stack([self.plan.candidate(self.number, t) for t in range(self.plan.candidates)])
        chosen = choose(self.plan, self.plan.bit_probabilities(table @ self.plan.directions[bucket - 1]), self._secret)
        self._sent = (value, chosen)
        return chosen


@dataclass(frozen=True, eq=False)
class PureEstimate(LocalEstimate):
    """As `LocalEstimate`; errors are sums of many independent terms, so normal only approximately."""

    client_std: float = 0.0

    @property
    def _noise(self) -> float:
        return self.client_std / math.sqrt(self.accepted)

    def paper_bound(self) -> float:
        """Refused: the paper states no bound for this protocol."""
        raise ParameterError("the paper states no bound for the pure protocol")


class GenProtServer:
    """Adds up the candidates that clients name. Constant memory; servers of one plan merge."""

    def __init__(self, plan: GenProtPlan) -> None:
        self.plan = plan
        self._sum = np.zeros(plan.shape.w + 1)
        self.accepted = 0
        self.rejected = 0

    def add(self, number: int, message: object) -> None:
        """Add the message of a client, or count it as rejected and raise MessageRejected."""
        if isinstance(message, bool) or not isinstance(message, int | np.integer):
            self.rejected += 1
            raise MessageRejected(f"a message is a whole number, got {type(message).__name__}")
        if not 0 <= int(message) < self.plan.candidates:
            self.rejected += 1
            raise MessageRejected(f"a message lies between 0 and {self.plan.candidates - 1}, got {message}")
        self._sum += self.plan.candidate(int(number), int(message))
        self.accepted += 1

    def merge(self, other: GenProtServer) -> None:
        """Add the sums of another server of the same plan."""
        if other.plan != self.plan or other is self:
            raise ParameterError("only two different servers of the same plan can be merged")
        self._sum += other._sum
        self.accepted += other.accepted
        self.rejected += other.rejected

    def estimate(self) -> PureEstimate:
        """The estimate from all accepted messages: unbiased for rule="best", nearly so for rule="paper"."""
        if not self.accepted:
            raise InputError("no message was accepted yet: there is nothing to estimate")
        plan, shape = self.plan, self.plan.shape
        mean, variance = plan.moments
        vector = plan.centre + plan.radius * self._sum[:-1] / (mean * self.accepted)
        prefix = shape.prefix(vector)
        x = 2 * (prefix - gain(shape) * (prefix[-1] - 1)) - 1
        std = plan.radius * math.sqrt(max(1.0, variance)) / mean
        return PureEstimate(shape, self.accepted, np.concatenate([[-1.0], x]), std)
