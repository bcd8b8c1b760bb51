"""GenProt (Bun, Nelson, Stemmer 2018, Algorithm 3): pure ε-LDP with a message of two bits, by public randomness.

Public: every client has T candidate vectors y_1 … y_T, independent normals that follow from a seed that all know. The
client computes how likely each candidate would be as its own noisy vector, p_t = ½·(density ratio), forced into
[lo, hi] = ½·[e^−c, e^c]. It draws a bit of probability p_t for each, and sends the number of one candidate, uniform
among those with bit 1 (among all if there is none). Privacy needs only that lo ≤ p_t ≤ hi: it does not depend on the
candidates, on the seed or on floating-point errors.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np

from evercount._arrays import FloatArray, IntArray
from evercount._validate import check_count, check_name, check_positive
from evercount.errors import InputError, MessageRejected, ParameterError, SnapshotError
from evercount.local.collection_plan import MISS, UNIT, LocalPlan, shared_plan
from evercount.local.estimate import LocalEstimate, gain
from evercount.local.genprot_exact import BITS, clip_limits, pure_epsilon, widest_clip
from evercount.local.local_client import OneMessage
from evercount.local.local_server import iterate
from evercount.local.losses import Loss
from evercount.noise import Secret
from evercount.noise.prf import Prf, counter
from evercount.privacy import Budget

Rule = Literal["best", "paper"]
MOST_CANDIDATES = 64
NUMBERS = 2**63
"""The number of a client lies from 0 to below this."""
VERSION = 1
_PERSON = b"evercount.gprot"


@dataclass(frozen=True)
class GenProtPlan:
    """Public parameters. `candidates` T: the message has log₂ T bits.

    rule="best" (default): the widest clip whose exact privacy is ε, and p_t = hi or lo by the sign of the match, which
    has the least variance. rule="paper": the Gaussian randomizer with (ε/10, delta) inside, clip 2ε/10, p_t = ½ outside
    of it; Lemma 6.2 of Bun, Nelson and Stemmer then gives ε, and the exact value `exact_epsilon` is smaller.

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
        object.__setattr__(self, "epsilon", check_positive("epsilon", self.epsilon))
        object.__setattr__(self, "n", check_count("n", self.n))
        check_name("rule of GenProt", self.rule, get_args(Rule))
        if not isinstance(self.seed, str) or not self.seed:
            raise ParameterError("the public seed must be a nonempty text")
        try:
            self.seed.encode()
        except UnicodeEncodeError:
            raise ParameterError("the public seed holds half a character: it cannot be written as UTF-8") from None
        count = check_count("candidates", self.candidates)
        if not 2 <= count <= MOST_CANDIDATES:
            raise ParameterError(f"candidates must lie between 2 and {MOST_CANDIDATES}, got {count}")
        object.__setattr__(self, "candidates", count)
        # refuse here what cannot be run: too many buckets, a bad delta, an epsilon that the noise cannot be found for
        object.__setattr__(self, "buckets", self.shape.w)
        object.__setattr__(self, "delta", self.shape.delta)
        if self.rule == "paper":
            _ = self._mu
        if self.exact_epsilon > self.epsilon:
            raise ParameterError(
                f"the paper's rule with {count} candidates costs {self.exact_epsilon:.3g}; use more candidates"
            )

    @cached_property
    def shape(self) -> LocalPlan:
        """Buckets and factor R of the Gaussian protocol; its noise is not used."""
        return shared_plan(self.epsilon, self.delta, self.n, "one-counter", self.buckets)

    @cached_property
    def _mu(self) -> float:
        """μ of the Gaussian randomizer inside the paper's rule."""
        return Budget(self.epsilon / 10, self.delta).mu

    @cached_property
    def clip(self) -> float:
        """c."""
        return widest_clip(self.epsilon, self.candidates) if self.rule == "best" else self.epsilon / 5

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
        """p_t in units of 2^−53 from the inner products of the candidates with the client's direction.

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

    @cached_property
    def reach(self) -> float:
        """The norm that a candidate passes with probability below 2^−40 (Laurent and Massart); such a one is zeros."""
        size = self.shape.w + 1
        return math.sqrt(size + 2 * math.sqrt(size * MISS) + 2 * MISS)

    @cached_property
    def poison_bound(self) -> float:
        """The most that one accepted message in place of an honest one moves any entry of x̂, times the accepted ones.

        **Guarantee.** For every client number and message, also where the sender chose both. Every candidate lies in
        the ball of radius `reach`, because `candidate` replaces others by zeros. So the sum moves by at most 2·reach,
        the mean vector by 2·reach·radius/(κ·accepted) with κ = moments[0], and x̂[t] is a linear function of it with
        the row t of `LocalEstimate.rows`: Cauchy and Schwarz. Zeros cost an estimate nothing: less than 2^−40 for a
        candidate. Test: tests/local/test_local_genprot.py::test_a_poisoned_message_moves_no_more_than_its_share.
        """
        rows = LocalEstimate(self.shape, 1, np.zeros(self.shape.w + 1)).rows
        steepest = float(np.linalg.norm(rows, axis=1).max())
        return 2 * self.reach * self.radius * steepest / self.moments[0] * (1 + 1e-9)

    @cached_property
    def digest(self) -> str:
        """By this servers know that they mean the same plan and candidates."""
        numbers = f"{self.epsilon.hex()}|{self.delta.hex()}|{self.n}|{self.candidates}|{self.rule}|{self.buckets}"
        text = f"{VERSION}|{numbers}|{self.limits}|{self.seed}"
        return hashlib.blake2b(text.encode(), digest_size=8, person=_PERSON).hexdigest()

    def candidate(self, client: int, number: int) -> FloatArray:
        """Candidate y_number of a client: w + 1 standard normals from the public seed, or zeros beyond `reach`.

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
        made = np.asarray(ndtri((words >> np.uint64(11)).astype(np.float64) * 2.0**-53 + 2.0**-54))
        return made if made @ made <= self.reach**2 else np.zeros(size)


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


def _whole(value: object, end: int) -> int | None:
    """A whole number in 0 … end − 1 as an int, else None; booleans are none."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < end:
        return None
    return int(value)


def _check_plan(plan: object) -> None:
    if not isinstance(plan, GenProtPlan):
        raise ParameterError(f"plan must be a GenProtPlan, got {type(plan).__name__}")


class GenProtClient(OneMessage[int]):
    """One client with its public number: `message(value)` is the number of a candidate, log₂ T bits.

    `loss` as in `LocalClient`: the default is the absolute loss; others go through the randomised reduction, which
    comes before the private message and so costs no privacy.

    Args:
        plan: The public plan.
        number: The client's public number, from 0 to below 2^63. No two clients share one.
        secret: The client's own secret; None for a fresh one.
        loss: What the server will minimise; None for the absolute loss.

    Raises:
        ParameterError: An argument is of another kind or outside its range, or a client of the same secret is alive.

    **Guarantee.** The message is pure `plan.exact_epsilon`-LDP. Proof: `genprot.proof.md`, theorem 1. Test:
    tests/local/test_local_genprot.py::test_choose_has_the_exact_law.

    >>> plan = GenProtPlan(1.0, 10_000, "survey 2026", buckets=16)
    >>> GenProtClient(plan, 7).message(0.25) in range(plan.candidates)
    True
    """

    def __init__(
        self, plan: GenProtPlan, number: int, secret: Secret | None = None, *, loss: Loss | None = None
    ) -> None:
        _check_plan(plan)
        whole = _whole(number, NUMBERS)
        if whole is None:
            raise ParameterError(f"a client's number must be a whole number from 0 to below 2^63, got {number!r}")
        super().__init__(secret, loss, f"{plan!r}/{whole}")
        self.plan, self.number = plan, whole

    def __repr__(self) -> str:
        return f"GenProtClient({self.plan!r}, {self.number}, {self.loss!r})"

    def _make(self, point: float) -> int:
        bucket = int(self.plan.shape.bucket([point])[0])
        table = np.stack([self.plan.candidate(self.number, t) for t in range(self.plan.candidates)])
        return choose(self.plan, self.plan.bit_probabilities(table @ self.plan.directions[bucket - 1]), self._secret)


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
    """Adds up the candidates that clients name. Constant memory; servers of one plan merge.

    Args:
        plan: The public plan of the clients.

    Raises:
        ParameterError: plan is no `GenProtPlan`.

    **Guarantee.** A rejected message changes nothing but the number of rejected ones. An accepted message, whatever
    its client number, moves any entry of x̂ by at most `poison_bound()`/accepted. Proof: `GenProtPlan.poison_bound`.
    Test: tests/local/test_local_genprot.py::test_a_poisoned_message_moves_no_more_than_its_share.

    >>> plan = GenProtPlan(2.0, 100, "survey 2026", buckets=4)
    >>> server = GenProtServer(plan)
    >>> server.add_many((number, GenProtClient(plan, number).message(0.25)) for number in range(100))
    100
    >>> 0 <= server.estimate().median <= 1
    True
    """

    def __init__(self, plan: GenProtPlan) -> None:
        _check_plan(plan)
        self.plan = plan
        self._sum = np.zeros(plan.shape.w + 1)
        self.accepted = 0
        self.rejected = 0

    def __repr__(self) -> str:
        return f"GenProtServer({self.plan!r}, accepted={self.accepted}, rejected={self.rejected})"

    def add(self, number: object, message: object) -> None:
        """Add the message of the client with this number, or count it as rejected and raise MessageRejected.

        Args:
            number: The client's public number.
            message: What the client sent.

        Raises:
            MessageRejected: The number or the message is none that a client of this plan sends.
        """
        client, chosen = _whole(number, NUMBERS), _whole(message, self.plan.candidates)
        if client is None or chosen is None:
            self.rejected += 1
            if client is None:
                raise MessageRejected("the number of a client is a whole number from 0 to below 2^63")
            raise MessageRejected(f"a message is a whole number from 0 to {self.plan.candidates - 1}")
        self._sum += self.plan.candidate(client, chosen)
        self.accepted += 1

    def add_many(self, messages: Iterable[object]) -> int:
        """Add pairs (client's number, message); the number of accepted ones. Bad ones are only counted.

        Args:
            messages: The pairs.

        Returns:
            How many of them were accepted.

        Raises:
            InputError: messages is one message or no sequence.
        """
        before = self.accepted
        pair: Any
        for pair in iterate(messages):
            try:
                number, message = pair
            except (TypeError, ValueError):
                self.rejected += 1
                continue
            try:
                self.add(number, message)
            except MessageRejected:
                continue
        return self.accepted - before

    def merge(self, *others: GenProtServer) -> None:
        """Add the sums of other servers of the same plan; they are left as they are and must not be merged twice.

        Args:
            *others: Servers of the same plan.

        Raises:
            ParameterError: One of them has another plan, or is this server itself.
        """
        for other in others:
            if not isinstance(other, GenProtServer) or other.plan != self.plan or other is self:
                raise ParameterError("only different GenProt servers of the same plan can be merged")
        for other in others:
            self._sum += other._sum
            self.accepted += other.accepted
            self.rejected += other.rejected

    def poison_bound(self) -> float:
        """As `LocalServer.poison_bound`: see `GenProtPlan.poison_bound`.

        Returns:
            The bound.
        """
        return self.plan.poison_bound

    def estimate(self) -> PureEstimate:
        """The estimate from all accepted messages: unbiased for rule="best", nearly so for rule="paper".

        Returns:
            The estimate, with its errors.

        Raises:
            InputError: No message was accepted yet.
        """
        if not self.accepted:
            raise InputError("no message was accepted yet: there is nothing to estimate")
        plan, shape = self.plan, self.plan.shape
        mean, variance = plan.moments
        vector = plan.centre + plan.radius * self._sum[:-1] / (mean * self.accepted)
        prefix = shape.prefix(vector)
        x = 2 * (prefix - gain(shape) * (prefix[-1] - 1)) - 1
        std = plan.radius * math.sqrt(max(1.0, variance)) / mean
        return PureEstimate(shape, self.accepted, np.concatenate([[-1.0], x]), std)

    # -- keeping and moving the sums -----------------------------------------------------------------------------

    def dump(self) -> bytes:
        """The partial sums, to store or to send to another server. They hold private messages only: no secret.

        Returns:
            JSON as bytes, for `load`.
        """
        plan = self.plan
        data: dict[str, Any] = {
            "format": VERSION,
            "genprot": [plan.epsilon, plan.n, plan.seed, plan.candidates, plan.rule, plan.buckets, plan.delta],
            "digest": plan.digest,
            "accepted": self.accepted,
            "rejected": self.rejected,
            "sum": self._sum.tolist(),
        }
        return json.dumps(data).encode()

    @classmethod
    def load(cls, blob: bytes) -> GenProtServer:
        """The server of `dump`, or a SnapshotError.

        Args:
            blob: A result of `dump`.

        Returns:
            A server with the same sums.

        Raises:
            SnapshotError: It is anything else, is damaged, or belongs to another version or plan.
        """
        try:
            data = json.loads(blob)
            made = cls(GenProtPlan(*data["genprot"]))
            good = data["format"] == VERSION and data["digest"] == made.plan.digest
            total = np.asarray(data["sum"], dtype=np.float64)
            accepted, rejected = (_whole(data[name], NUMBERS) for name in ("accepted", "rejected"))
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise SnapshotError(f"this is not a dump of a GenProtServer ({type(error).__name__})") from None
        if not good or accepted is None or rejected is None or total.shape != made._sum.shape:
            raise SnapshotError("the dump belongs to another version or plan")
        if not np.linalg.norm(total) <= accepted * made.plan.reach * (1 + 1e-9):  # NaN fails this, too
            raise SnapshotError("the dump is damaged: no messages have this sum")
        made._sum, made.accepted, made.rejected = total, accepted, rejected
        return made
