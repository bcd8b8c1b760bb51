"""GenProt (Bun, Nelson, Stemmer 2018, Algorithm 3): pure ε-LDP with a message of two bits, by
public randomness.

Public: every client has T candidate vectors y_1 … y_T, independent normals that follow from a seed
that all know. The client computes how likely each candidate would be as its own noisy vector, p_t =
½·(density ratio), forced into [lo, hi] = ½·[e^−c, e^c]. It draws a bit of probability p_t for each,
and sends the number of one candidate, uniform among those with bit 1 (among all if there is none).
Privacy needs only that lo ≤ p_t ≤ hi: it does not depend on the candidates, on the seed or on
floating-point errors.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from itertools import count
from typing import Any

import numpy as np

from evercount._validate import IntArray
from evercount.errors import InputError, MessageRejected, ParameterError
from evercount.local.client_and_server import OneMessage
from evercount.local.estimate import LocalEstimate, conditioned
from evercount.local.genprot_plan import BITS, GenProtPlan
from evercount.local.losses import Loss
from evercount.local.message_server import MessageServer, check_plan
from evercount.noise import Secret
from evercount.noise.prf import Prf, counter

NUMBERS = 2**63  # the number of a client lies from 0 to below this


def choose(plan: GenProtPlan, probabilities: IntArray, secret: Secret) -> int:
    """The message: exact Bernoulli bits, then an exactly uniform choice among the ones. Randomness
    from the secret."""
    words = _words(secret)
    ones = [t for t, p in enumerate(probabilities.tolist()) if next(words) >> (64 - BITS) < p]
    candidates = ones or list(range(plan.candidates))
    limit = 2**64 - 2**64 % len(candidates)
    return candidates[next(word for word in words if word < limit) % len(candidates)]


def _words(secret: Secret) -> Iterator[int]:
    """Draw 64-bit words from a secret: the key stream of `Prf` under a label of its own."""
    prf = Prf(secret.derive("genprot"))
    for index in count():
        yield from struct.unpack("<QQ", prf.encrypt(counter(0, 0, 0, index)))


def _integer_below(value: object, end: int) -> int | None:
    """Read a whole number in 0 … end − 1 as an int; else None; booleans are none."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 0 <= value < end:
        return None
    return int(value)


class GenProtClient(OneMessage[int]):
    """One client with its public number: `message(value)` is the number of a candidate, log₂ T
    bits.

    `loss` as in `LocalClient`: the default is the absolute loss; others go through the randomised
    reduction, which comes before the private message and so costs no privacy.

    Args:
        plan: The public plan.
        number: The client's public number, from 0 to below 2^63. No two clients share one.
        secret: The client's own secret; None for a fresh one.
        loss: What the server will minimise; None for the absolute loss.

    Raises:
        ParameterError: An argument is of another kind or outside its range, or a client of the same
            secret is alive.

    **Guarantee.** The message is pure `plan.exact_epsilon`-LDP. Proof: `genprot.proof.md`,
    theorem 1. Test: tests/local/test_local_genprot.py::test_choose_has_the_exact_law.

    >>> plan = GenProtPlan(1.0, 10_000, "survey 2026", buckets=16)
    >>> GenProtClient(plan, 7).message(0.25) in range(plan.candidates)
    True
    """

    def __init__(
        self,
        plan: GenProtPlan,
        number: int,
        secret: Secret | None = None,
        *,
        loss: Loss | None = None,
    ) -> None:
        check_plan(plan, GenProtPlan)
        client = _integer_below(number, NUMBERS)
        if client is None:
            raise ParameterError(
                f"a client's number must be a whole number from 0 to below 2^63, got {number!r}"
            )
        super().__init__(secret, loss, f"{plan!r}/{client}")
        self.plan = plan
        self.number = client

    def __repr__(self) -> str:
        return f"GenProtClient({self.plan!r}, {self.number}, {self.loss!r})"

    def _make(self, point: float) -> int:
        bucket = int(self.plan.shape.bucket([point])[0])
        table = np.stack([self.plan.candidate(self.number, t) for t in range(self.plan.candidates)])
        return choose(
            self.plan,
            self.plan.bit_probabilities(table @ self.plan.directions[bucket - 1]),
            self._secret,
        )


class GenProtServer(MessageServer):
    """Adds up the candidates that clients name. Constant memory; servers of one plan merge.

    Args:
        plan: The public plan of the clients.

    Raises:
        ParameterError: plan is not a `GenProtPlan`.

    **Guarantee.** A rejected message changes nothing but the number of rejected ones. An accepted
    message, whatever its client number, moves any entry of x̂ by at most `poison_bound()`/accepted.
    Proof: `poison_bound`. Test:
    tests/local/test_local_genprot.py::test_a_poisoned_message_moves_no_more_than_its_share.

    >>> plan = GenProtPlan(2.0, 100, "survey 2026", buckets=4)
    >>> server = GenProtServer(plan)
    >>> server.add_many(
    ...     (number, GenProtClient(plan, number).message(0.25)) for number in range(100)
    ... )
    100
    >>> 0 <= server.estimate().median <= 1
    True
    """

    plan: GenProtPlan
    _plans = GenProtPlan

    def __init__(self, plan: GenProtPlan) -> None:
        super().__init__(plan)
        self._sums = np.zeros(plan.shape.w + 1)

    def add(self, number: object, message: object) -> None:  # type: ignore[override]
        """Add the message of the client with this number, or count it as rejected and raise
        MessageRejected.

        Args:
            number: The client's public number.
            message: What the client sent.

        Raises:
            MessageRejected: The number or the message is not one that a client of this plan sends.
        """
        super().add((number, message))

    def _receive(self, message: Any) -> None:
        try:
            number, candidate = message
        except (TypeError, ValueError):
            raise MessageRejected(
                "a message of a batch is a pair of the client's number and its message"
            ) from None
        client = _integer_below(number, NUMBERS)
        index = _integer_below(candidate, self.plan.candidates)
        if client is None or index is None:
            what, end = (
                ("number of a client", NUMBERS)
                if client is None
                else ("message", self.plan.candidates)
            )
            raise MessageRejected(f"the {what} is a whole number from 0 to {end - 1}")
        self._sums += self.plan.candidate(client, index)

    def poison_bound(self) -> float:
        """As `LocalServer.poison_bound`.

        Returns:
            The bound; divided by the number of accepted messages it is the share of one of them.

        **Guarantee.** For every client number and message, even where the sender chose both. Every
        candidate lies in the ball of radius `reach`, because `candidate` replaces others by zeros.
        So the sum moves by at most 2·reach, the mean vector by 2·reach·radius/(κ·accepted) with κ =
        moments[0], and x̂[t] is a linear function of it with the row t of `LocalEstimate.rows`:
        Cauchy and Schwarz. Zeros cost an estimate nothing: less than 2^−40 for a candidate. Test:
        tests/local/test_local_genprot.py::test_a_poisoned_message_moves_no_more_than_its_share.
        """
        plan = self.plan
        w = self.plan.shape.w
        rows = LocalEstimate(plan.shape, 1, np.zeros(w + 1)).rows
        steepest = float(np.linalg.norm(rows, axis=1).max())
        return 2 * plan.reach * plan.radius * steepest / plan.moments[0] * (1 + 1e-9)

    def estimate(self) -> LocalEstimate:
        """The estimate from all accepted messages: unbiased for rule="best", nearly so for
        rule="paper"."""
        if not self.accepted:
            raise InputError("no message has been accepted yet: there is nothing to estimate")
        plan = self.plan
        mean, variance = plan.moments
        vector = plan.centre + plan.radius * self._sums[:-1] / (mean * self.accepted)
        return conditioned(
            plan.shape, self.accepted, vector, plan.radius * math.sqrt(max(1.0, variance)) / mean
        )
