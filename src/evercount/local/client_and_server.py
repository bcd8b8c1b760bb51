"""The Gaussian forms of the local model, and what the clients of all forms share: one message only.

A LocalClient turns one person's value in [0, 1] into one private message, so nobody is trusted with
the value itself. A LocalServer adds messages up in constant memory, rejects what no honest client
sends, and estimates.
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from evercount._validate import check_kind
from evercount.errors import AlreadyReleased, InputError
from evercount.local.collection_plan import LocalPlan
from evercount.local.estimate import LocalEstimate, make_estimate
from evercount.local.losses import Absolute, Loss, check_point, check_points
from evercount.local.message_server import ENTRY, MessageServer, check_plan, inside, unpack
from evercount.noise import ExactNoise, NoiseOwner, Secret
from evercount.noise.normal_sampler import NormalSequence
from evercount.noise.prf import Prf, counter
from evercount.noise.secret import check_secret

ROUNDING_MARGIN = 2.0**-32
"""Doubles round an entry only where it is farther from a boundary; they are then right:
`local.proof.md`, lemma 5."""

Message = TypeVar("Message")


class OneMessage(NoiseOwner, ABC, Generic[Message]):
    """A client that answers once: what the clients of all forms share.

    A second call with another value is refused, and so are copies, even by a fork: the same
    randomness on two values would reveal their difference. The key is derived from the secret and
    `declared`, a text of the public plan: one secret gives clients of different plans independent
    randomness. While a client lives, a second one of the same secret, plan and kind of loss is
    refused in this process; other processes are not seen, so give each person a secret of their own
    and keep the message, not the client. Test:
    tests/local/test_local_client.py::test_a_second_live_client_of_one_secret_and_plan_is_refused.

    Args:
        secret: The client's own secret; None for a fresh one.
        loss: What the server will minimise; the absolute loss by default.
        declared: The public plan as a text.

    Raises:
        ParameterError: The secret or the loss is of another kind, or a client of the same secret is
            alive.
    """

    _owner_noun: ClassVar[str] = "client"

    def __init__(self, secret: Secret | None, loss: Loss | None, declared: str) -> None:
        check_kind("loss", loss, Loss | None, "Absolute()")
        self.loss = Absolute() if loss is None else loss
        root = Secret.generate() if secret is None else check_secret(secret)
        self._secret = root.derive(f"evercount/local/2/{name_of_loss(self.loss)}/{declared}")
        self._own(None if secret is None else self._secret)
        self._sent: tuple[float, Message] | None = None
        self._lock = threading.Lock()

    def message(self, value: Any) -> Message:
        """The one message of this client; the same value again gives the same message.

        Args:
            value: A value in [0, 1], or a data point of the client's loss.

        Returns:
            What is sent to the server.

        Raises:
            InputError: The value is none of these. The message does not show it.
            AlreadyReleased: A message for another value was made before. Values that the loss
                reduces to one point have the same message.
        """
        self._check_owner()
        with self._lock:  # two threads must not both find that nothing was sent
            point = self._point(value)
            if self._sent is None:
                self._sent = (point, self._make(point))
            elif self._sent[0] != point:
                raise AlreadyReleased(
                    "this client has sent its message: a second value would reveal both"
                )
            return self._sent[1]

    def _point(self, value: Any) -> float:
        """Choose the point whose median problem has this loss: the value itself, or drawn by the
        randomised reduction."""
        if isinstance(self.loss, Absolute):
            return check_point(value)
        word = Prf(self._secret.derive("local reduction")).encrypt(counter(0, 0, 0, 0))[:8]
        return check_point(
            self.loss.sample(value, (int.from_bytes(word, "little") >> 11) * 2.0**-53)
        )

    @abstractmethod
    def _make(self, point: float) -> Message:
        """Make the private message for a point in [0, 1]."""


def name_of_loss(loss: Loss) -> str:
    """Name a loss with its numbers: losses that differ in one draw their own randomness from one
    secret.

    Functions of a loss of one's own have no name that another process would give them: they are not
    told apart.

    Test:
    tests/local/test_local_client.py::test_losses_that_differ_in_a_parameter_share_no_randomness.
    """
    numbers = {
        name: value for name, value in vars(loss).items() if isinstance(value, int | float | str)
    }
    parameters = ", ".join(f"{name}={numbers[name]!r}" for name in sorted(numbers))
    if parameters:
        return f"{type(loss).__name__}({parameters})"
    return type(loss).__name__


class LocalClient(OneMessage[bytes]):
    """One client: `message(value)` is everything that ever leaves it.

    `loss` says what the server will minimise: the default is the absolute loss (median); others go
    through the randomised reduction of `losses.py`. A second call with another value is refused:
    the same noise on two values would reveal their difference.

    Args:
        plan: The public plan.
        secret: The client's own secret; None for a fresh one.
        loss: What the server will minimise; None for the absolute loss.

    Raises:
        ParameterError: An argument is of another kind, or a client of the same secret is alive.

    **Guarantee.** The message is (plan.epsilon, plan.delta)-LDP on a real computer:
    `local.proof.md`, theorem 1. Test:
    tests/local/test_local_client.py::test_message_is_the_rounding_of_the_exact_sum.

    >>> client = LocalClient(LocalPlan(1.0, 1e-6, 10_000))
    >>> client.message(0.25) == client.message(0.25)
    True
    """

    def __init__(
        self, plan: LocalPlan, secret: Secret | None = None, *, loss: Loss | None = None
    ) -> None:
        check_plan(plan, LocalPlan)
        super().__init__(secret, loss, plan.public_text)
        self.plan = plan

    def __repr__(self) -> str:
        return f"LocalClient({self.plan!r}, {self.loss!r})"

    def _make(self, point: float) -> bytes:
        bucket = min(max(math.ceil(point * self.plan.w), 1), self.plan.w)
        return self.plan.header + entries(
            self.plan, bucket, NormalSequence(self._secret, self.plan.entries)
        )


def entries(plan: LocalPlan, bucket: int, noise: NormalSequence) -> bytes:
    """The entries of one message as bytes: ⌊(R·e_bucket + N·z)/2^m + ½⌋, or zeros outside the
    server's ball.

    **Guarantee.** Equal to the floor in integer arithmetic for every z: doubles round, and integers
    where a boundary is nearer than ROUNDING_MARGIN. Proof: `local.proof.md`, lemma 5. Tests:
    tests/local/test_local_client.py (test_message_is_the_rounding_of_the_exact_sum,
    test_entries_that_are_too_close_are_rounded_in_integers).
    """
    mean = plan.mean(bucket)
    off = noise.near * plan.ratio
    off += mean
    rounded = np.rint(off)
    off -= rounded
    np.abs(off, out=off)
    if off[off.argmax()] >= 0.5 - ROUNDING_MARGIN:
        for place in np.flatnonzero(off >= 0.5 - ROUNDING_MARGIN).tolist():
            units = (int(math.ldexp(mean[place], plan.shift)) << 128) + plan.scale * noise.exact(
                place
            )
            rounded[place] = (units >> 127 + plan.shift) + 1 >> 1  # ⌊t + ½⌋ = ⌊(⌊2t⌋ + 1)/2⌋
    if not inside(plan, rounded[np.newaxis])[0]:
        rounded[:] = 0.0
    return rounded.astype(ENTRY).tobytes()


def simulate(
    plan: LocalPlan, points: npt.ArrayLike, secret: Secret, first: int = 0
) -> npt.NDArray[np.int16]:
    """Entries of many clients' messages at once, for studies and benchmarks: one secret serves all
    of them.

    Real clients each hold their own secret and draw a `NormalSequence` from it; the distribution is
    the same, but for entries within a few units of 2^−50 of a boundary, which are rounded as
    doubles. `first` numbers the first client.

    Args:
        plan: The public plan.
        points: Values in [0, 1].
        secret: The key of all clients; real clients each have their own.
        first: The number of the first client: other numbers give other noise.

    Returns:
        One row for each client, for `LocalServer.add_entries`.

    Raises:
        InputError: A point lies outside [0, 1].

    >>> plan = LocalPlan(1.0, 1e-6, 10_000, buckets=16)
    >>> simulate(plan, [0.25, 0.5, 0.75], Secret.generate()).shape
    (3, 16)
    """
    values = check_points(points)
    source = ExactNoise(secret)
    out = np.zeros((len(values), plan.entries), np.int16)
    rows = max(1, 2**18 // plan.entries)
    for start in range(0, len(values), rows):
        part = plan.bucket(values[start : start + rows]).tolist()
        z = source.normals(first + start, first + start + len(part), plan.entries).to_float()
        entries = np.rint(np.stack([plan.mean(bucket) for bucket in part]) + z * plan.ratio)
        honest = inside(plan, entries)
        out[start : start + len(part)][honest] = entries[honest]
    return out


BATCH = 4096  # unpacked messages that are checked and added at a time


class LocalServer(MessageServer):
    """Sums of accepted messages. Servers of equal plans merge, in any order, to the same sums.

    Args:
        plan: The public plan of the clients.

    Raises:
        ParameterError: plan is not a `LocalPlan`.

    **Guarantee.** The sums are exact integers. A rejected message changes nothing but the number of
    rejected ones. An accepted message, however it was made, moves any entry of x̂ by at most
    `poison_bound()`/accepted. Proof: `local.proof.md`, lemma 4. Test:
    tests/local/test_local_server.py::test_a_poisoned_message_moves_no_more_than_its_share.

    >>> plan = LocalPlan(1.0, 1e-6, 100)
    >>> server = LocalServer(plan)
    >>> server.add_many(LocalClient(plan).message(0.25) for _ in range(100))
    100
    >>> 0 <= server.estimate().median <= 1
    True
    """

    plan: LocalPlan
    _plans = LocalPlan

    def __init__(self, plan: LocalPlan) -> None:
        super().__init__(plan)
        self._sums = np.zeros(plan.entries, np.int64)

    def _receive(self, message: Any) -> None:
        self._sums += unpack(self.plan, message).astype(np.int64)

    def add_entries(self, entries: npt.NDArray[np.int16]) -> int:
        """Add unpacked messages, shape (messages, entries), as `simulate` makes them; the number of
        accepted ones.

        Args:
            entries: The messages as 16-bit numbers.

        Returns:
            How many of them were accepted.

        Raises:
            InputError: The array has another shape or type.
        """
        if entries.ndim != 2 or entries.shape[1] != self.plan.entries or entries.dtype != np.int16:
            raise InputError(f"entries must be int16 of shape (messages, {self.plan.entries})")
        before = self.accepted
        for start in range(0, len(entries), BATCH):
            part = entries[start : start + BATCH].astype(np.float64)
            honest = inside(self.plan, part)
            # below 2^27, so exact in doubles
            self._sums += part[honest].sum(axis=0).astype(np.int64)
            self.accepted += int(np.count_nonzero(honest))
            self.rejected += int(np.count_nonzero(~honest))
        return self.accepted - before

    def estimate(self) -> LocalEstimate:
        if not self.accepted:
            raise InputError("no message has been accepted yet: there is nothing to estimate")
        return make_estimate(self.plan, self._sums, self.accepted)

    def poison_bound(self) -> float:
        """The most that one accepted message in place of an honest one moves any entry of x̂, times
        the accepted ones.

        Two vectors of the ball are at most 2·radius apart, and an entry of x̂ is a linear function
        of the mean vector.

        Returns:
            The bound; divided by the number of accepted messages it is the share of one of them.
        """
        rows = LocalEstimate(self.plan, 1, np.zeros(self.plan.w + 1)).rows
        norms = np.linalg.norm(
            rows.reshape(len(rows), self.plan.counters, self.plan.w), axis=2
        ).sum(axis=1)
        return float(2 * self.plan.radius * self.plan.entry * norms.max()) * (1 + 1e-9)
