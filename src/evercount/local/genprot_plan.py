"""GenProtPlan: the public parameters of the protocol in `genprot.py`, its geometry, candidates and
exact privacy.

Proof of the exact privacy: `genprot.proof.md`, theorem 1.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import Literal, get_args

import numpy as np

from evercount._validate import FloatArray, IntArray, check_count, check_name, check_whole
from evercount.errors import ParameterError
from evercount.local.collection_plan import MISS, UNIT, LocalPlan
from evercount.privacy import Budget

Rule = Literal["best", "paper"]
BITS = 53  # bit probabilities are whole multiples of 2^−53
MOST_CANDIDATES = 64
_PERSON = b"evercount.gprot"


@dataclass(frozen=True)
class GenProtPlan:
    """Public parameters. `candidates` T: the message has log₂ T bits.

    rule="best" (default): the widest clip whose exact privacy is ε, and p_t = hi or lo by the sign
    of the match, which has the least variance. rule="paper": the Gaussian randomizer with (ε/10,
    delta) inside, clip 2ε/10, p_t = ½ outside of it; Lemma 6.2 of Bun, Nelson and Stemmer then
    gives ε, and the exact value `exact_epsilon` is smaller.

    Args:
        epsilon: The ε of one client's message, above 0.
        n: The number of clients that is planned for.
        seed: The public text from which all candidates follow.
        candidates: T, from 2 to 64.
        rule: "best" or "paper".
        buckets: How many buckets [0, 1] is cut into; None takes ⌈ε√n⌉.
        delta: The δ inside the paper's rule. The message is pure in any case.

    Raises:
        ParameterError: An argument is outside its range, or the paper's rule costs more than ε.
        TooLarge: There are too many buckets.

    **Guarantee.** Pure `exact_epsilon`-LDP, at most epsilon. Proof: `genprot.proof.md`. Test:
    tests/local/test_local_genprot.py::test_exact_privacy_by_enumeration.

    >>> plan = GenProtPlan(1.0, 10_000, "survey 2026", buckets=16)
    >>> plan.bits, plan.exact_epsilon <= 1.0
    (2.0, True)
    """

    epsilon: float
    n: int
    seed: str
    candidates: int = 4
    rule: Rule = "best"
    buckets: int | None = None
    delta: float = 1e-6

    def __post_init__(self) -> None:
        check_name("rule of GenProt", self.rule, get_args(Rule))
        if not isinstance(self.seed, str) or not self.seed:
            raise ParameterError("the public seed must be a nonempty string")
        try:
            self.seed.encode()
        except UnicodeEncodeError:
            raise ParameterError(
                "the public seed holds half a character: it cannot be written as UTF-8"
            ) from None
        count = check_whole(
            "candidates", check_count("candidates", self.candidates), 2, MOST_CANDIDATES
        )
        object.__setattr__(self, "candidates", count)
        # the shape refuses what cannot be run: too many buckets, a bad delta, an epsilon that no
        # noise can be found for
        shape = self.shape
        for name, value in (
            ("epsilon", shape.epsilon),
            ("n", shape.n),
            ("buckets", shape.w),
            ("delta", shape.delta),
        ):
            object.__setattr__(self, name, value)
        if self.rule == "paper":
            _ = self._mu
        if self.exact_epsilon > self.epsilon:
            raise ParameterError(
                f"the paper's rule costs {self.exact_epsilon:.3g} with {self.candidates} "
                "candidates; use more"
            )

    @cached_property
    def shape(self) -> LocalPlan:
        """Buckets and factor R of the Gaussian protocol; its noise is not used."""
        return LocalPlan(self.epsilon, self.delta, self.n, "one-counter", self.buckets)

    @cached_property
    def _mu(self) -> float:
        """μ of the Gaussian randomizer inside the paper's rule."""
        return Budget(self.epsilon / 10, self.delta).mu

    @cached_property
    def clip(self) -> float:
        """c: bit probabilities are forced into ½·[e^−c, e^c]."""
        if self.rule == "best":
            return widest_clip(self.epsilon, self.candidates)
        return self.epsilon / 5

    @property
    def limits(self) -> tuple[int, int]:
        """lo and hi in units of 2^−53."""
        return clip_limits(self.clip)

    @cached_property
    def exact_epsilon(self) -> float:
        """The ε that this plan really spends, by exact enumeration of its corners."""
        return pure_epsilon(self.clip, self.candidates)

    @property
    def bits(self) -> float:
        """Bits of a message."""
        return math.log2(self.candidates)

    @cached_property
    def centre(self) -> FloatArray:
        """About the centre of the smallest ball around all R·e_j: the point that the candidates
        surround."""
        table = self._table
        centre = table.mean(axis=0)
        for step in range(1, 300):
            far = table[int(np.argmax(((table - centre) ** 2).sum(axis=1)))]
            centre = centre + (far - centre) / (step + 1)
        return np.asarray(centre)

    @cached_property
    def _table(self) -> FloatArray:
        """All R·e_j, one in each row."""
        from scipy.linalg import toeplitz

        return np.ascontiguousarray(toeplitz(self.shape.factor, np.zeros(self.shape.w)).T / UNIT)

    @cached_property
    def radius(self) -> float:
        """Distance of the farthest R·e_j from the centre."""
        return float(np.sqrt(((self._table - self.centre) ** 2).sum(axis=1).max()))

    @cached_property
    def directions(self) -> FloatArray:
        """Unit vectors, a row per bucket: (R·e_j − centre, rest)/radius; one coordinate evens the
        norms out."""
        apart = self._table - self.centre
        rest = np.sqrt(np.maximum(self.radius**2 - (apart**2).sum(axis=1), 0.0))
        return np.asarray(np.column_stack([apart, rest]) / self.radius)

    def bit_probabilities(self, match: FloatArray) -> IntArray:
        """p_t in units of 2^−53 from the inner products of the candidates with the client's
        direction.

        Args:
            match: The inner products.

        Returns:
            One whole number for each of them, between the two `limits`.
        """
        low, high = self.limits
        if self.rule == "best":
            return np.where(match > 0, high, low)
        mu = self._mu
        exponent = np.clip(mu * match - mu * mu / 2, -2.0, 0.69)
        raw = np.floor(2.0 ** (BITS - 1) * np.exp(exponent)).astype(np.int64)
        return np.where((raw < low) | (raw > high), 2 ** (BITS - 1), raw)

    @cached_property
    def moments(self) -> tuple[float, float]:
        """(mean, variance) of the sent candidate along the client's direction; across it they are 0
        and 1."""
        s = np.linspace(-10, 10, 400_001)
        weight = np.exp(-s * s / 2) * (s[1] - s[0]) / math.sqrt(2 * math.pi)
        p = self.bit_probabilities(s) * 2.0**-BITS
        T = self.candidates
        mean_p = float(p @ weight)
        nonempty = (1 - (1 - mean_p) ** T) / mean_p
        empty = (1 - mean_p) ** (T - 1)
        first = float((s * p) @ weight)
        second = float((s * s * p) @ weight)
        mean = first * (nonempty - empty)
        return mean, second * nonempty + (1 - second) * empty - mean**2

    @cached_property
    def reach(self) -> float:
        """The norm that a candidate passes with probability below 2^−40 (Laurent and Massart); it
        is then zeros."""
        size = self.shape.w + 1
        return math.sqrt(size + 2 * math.sqrt(size * MISS) + 2 * MISS)

    def candidate(self, client: int, number: int) -> FloatArray:
        """Candidate y_number of a client: w + 1 standard normals from the public seed, or zeros
        beyond `reach`.

        Args:
            client: The public number of the client.
            number: Which candidate, from 0.

        Returns:
            The vector, of w + 1 numbers.
        """
        from scipy.special import ndtri

        text = f"{self.seed}|{client}|{number}".encode()
        size = self.shape.w + 1
        words = np.frombuffer(hashlib.shake_256(_PERSON + text).digest(8 * size), "<u8")
        vector = np.asarray(
            ndtri((words >> np.uint64(11)).astype(np.float64) * 2.0**-53 + 2.0**-54)
        )
        if vector @ vector <= self.reach**2:
            return vector
        return np.zeros(size)


def choice_weights(low: int, high: int, unit: int, count: int) -> list[int]:
    """P(a candidate is sent) at every corner, in units of 1/(unit^count·lcm(1 … count)): exact
    integers.

    A corner: k of the other bits have probability high/unit and the rest low/unit; the candidate's
    own bit has one of the two.
    """
    shares = math.lcm(*range(1, count + 1))
    weights = []
    for k in range(count):
        law = [1]  # of the number of other bits that are 1, in units of 1/unit^(number of others)
        for p in [high] * k + [low] * (count - 1 - k):
            law = [a * (unit - p) + b * p for a, b in zip([*law, 0], [0, *law], strict=True)]
        sent = sum(value * (shares // (1 + i)) for i, value in enumerate(law))
        weights += [p * sent + (unit - p) * law[0] * (shares // count) for p in (low, high)]
    return weights


def exact_ratio(low: int, high: int, unit: int, count: int) -> Fraction:
    """The largest ratio of the probabilities of a message under two inputs, when all p_t lie in
    [low, high]/unit.

    **Guarantee.** Exact. The probability of a message is linear in each p_t, so its extremes lie at
    corners; by symmetry a corner is (own p, number of others at `high`). Test:
    tests/local/test_local_genprot.py::test_exact_privacy_by_enumeration.
    """
    weights = choice_weights(low, high, unit, count)
    return Fraction(max(weights), min(weights))


def clip_limits(c: float) -> tuple[int, int]:
    """lo and hi in units of 2^−53, rounded inwards."""
    scale = 2.0 ** (BITS - 1)
    return math.ceil(scale * math.exp(-c) * (1 + 1e-15)), min(
        2**BITS, math.floor(scale * math.exp(c) * (1 - 1e-15))
    )


def pure_epsilon(c: float, count: int) -> float:
    """The exact ε of clipping at ½·e^(±c), rounded up."""
    ratio = exact_ratio(*clip_limits(c), 2**BITS, count)
    return math.log(ratio) * (1 + 1e-12) + 1e-15


@lru_cache(maxsize=256)
def widest_clip(epsilon: float, count: int) -> float:
    """The largest c ≤ ln 2 whose exact ε is at most `epsilon`; by bisection, the result checked."""
    low, high = 0.0, math.log(2)
    if pure_epsilon(high, count) <= epsilon:
        return high
    for _ in range(40):
        middle = (low + high) / 2
        if pure_epsilon(middle, count) <= epsilon:
            low = middle
        else:
            high = middle
    if not low > 0:
        raise ParameterError(
            f"epsilon={epsilon!r} is too small for GenProt with {count} candidates"
        )
    return low
