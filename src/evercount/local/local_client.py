"""LocalClient: one person's value in [0, 1] becomes one private message. Nobody is trusted with the value itself."""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from evercount._arrays import IntArray
from evercount.errors import AlreadyReleased, ParameterError
from evercount.local.collection_plan import Form, LocalPlan, shared_plan
from evercount.local.losses import Absolute, Loss, check_point, check_points
from evercount.local.messages import ENTRY, inside
from evercount.noise import ExactNoise, NoiseOwner, Normals, Secret
from evercount.noise.normal_sampler import NormalSequence
from evercount.noise.prf import Prf, counter

ROUNDING_MARGIN = 2.0**-32
"""Doubles round an entry only where it is farther from a boundary; they are then right: `local.proof.md`, lemma 5."""

_MASK = np.uint64(2**32 - 1)
_HALF = np.uint64(32)
Message = TypeVar("Message")


def floors(scale: int, z: Normals) -> IntArray:
    """⌊scale·z⌋ exactly, for the 128-bit normals z and a whole scale below 2^31.

    **Guarantee.** Equal to the floor in integer arithmetic for every z. The upper 64 fractional bits decide, except
    where the lower ones could carry or where the number may be whole: those are done in Python integers. Test:
    tests/local/test_local_client.py::test_floors_equal_integer_arithmetic.
    """
    factor = np.uint64(scale)
    low = factor * (z.fraction_hi & _MASK)
    middle = factor * (z.fraction_hi >> _HALF) + (low >> _HALF)
    rest = (middle << _HALF) | (low & _MASK)
    magnitude = (middle >> _HALF).astype(np.int64) + z.integer * scale
    floored = np.where(z.sign > 0, magnitude, -1 - magnitude)
    close = (rest == 0) | (rest >= np.uint64(2**64 - scale))
    if close.any():
        floored[close] = [value * scale >> 128 for value in z[close].to_ints()]
    return np.asarray(floored, dtype=np.int64)


def entries_of(plan: LocalPlan, buckets: IntArray, noise: IntArray) -> npt.NDArray[np.int16]:
    """The entries of messages, shape (clients, plan.entries), from 1-based buckets and ⌊N·z⌋ of that shape.

    A vector outside the server's ball (probability below 2^−40) is sent as zeros: post-processing.
    """
    total = noise + (1 << plan.shift - 1)
    # the second vector is the first read from the other end: 1 at w − j + 1
    for part, first in zip(plan.parts, (buckets - 1, plan.w - buckets), strict=False):
        position = np.arange(plan.w) - first[:, np.newaxis]
        total[:, part] += np.where(position >= 0, plan.factor[np.maximum(position, 0)], 0)
    total >>= plan.shift
    honest = inside(plan, total.astype(np.float64))
    if not honest.all():
        total[~honest] = 0
    return total.astype(np.int16)


def same(first: Any, second: Any) -> bool:
    """Whether two values are surely equal; arrays are compared as a whole. In doubt they are not."""
    if first is second:
        return True
    if isinstance(first, np.ndarray) or isinstance(second, np.ndarray):
        try:
            return np.array_equal(first, second)
        except (TypeError, ValueError):
            return False
    if isinstance(first, tuple | list) and type(first) is type(second):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(same(first[key], second[key]) for key in first)
    try:
        return bool(first == second)
    except (TypeError, ValueError, ArithmeticError, LookupError, RuntimeError):  # as data frames and tensors raise
        return False


class OneMessage(NoiseOwner, ABC, Generic[Message]):
    """A client that answers once: what `LocalClient` and `GenProtClient` share.

    A second call with another value is refused, and so are copies, also by a fork: the same randomness on two values
    would reveal their difference. The key is derived from the secret and `declared`, a text of the public plan: one
    secret gives clients of different plans independent randomness. While a client lives, a second one of the same
    secret, plan and kind of loss is refused in this process; other processes are not seen, so give each person a
    secret of their own and keep the message, not the client. Test:
    tests/local/test_local_client.py::test_a_second_live_client_of_one_secret_and_plan_is_refused.

    Args:
        secret: The client's own secret; None for a fresh one.
        loss: What the server will minimise; the absolute loss by default.
        declared: The public plan as a text.

    Raises:
        ParameterError: If the secret or the loss is none, or if the place is taken.
    """

    _owner_noun: ClassVar[str] = "client"

    def __init__(self, secret: Secret | None, loss: Loss | None, declared: str) -> None:
        self.loss = Absolute() if loss is None else loss
        if not isinstance(self.loss, Loss):
            raise ParameterError(f"loss must be a Loss such as Absolute(), got {loss!r}")
        if not (secret is None or isinstance(secret, Secret)):
            raise ParameterError(f"secret must be a Secret or None, got {type(secret).__name__}")
        root = Secret.generate() if secret is None else secret
        self._secret = root.derive(f"evercount/local/2/{type(self.loss).__name__}/{declared}")
        self._own(None if secret is None else self._secret)
        self._sent: tuple[Any, Message] | None = None
        self._lock = threading.Lock()

    def message(self, value: Any) -> Message:
        """The one message of this client; the same value again gives the same message.

        Args:
            value: A value in [0, 1], or a data point of the client's loss.

        Returns:
            What is sent to the server.

        Raises:
            InputError: The value is none of these. The message does not show it.
            AlreadyReleased: A message for another value was made before.
        """
        self._check_owner()
        with self._lock:  # two threads must not both find that nothing was sent
            if self._sent is None:
                self._sent = (value, self._make(self._point(value)))
            elif not same(self._sent[0], value):
                raise AlreadyReleased("this client has sent its message: a second value would reveal both")
            return self._sent[1]

    def _point(self, value: Any) -> float:
        """The point whose median problem has this loss: the value itself, or drawn by the randomised reduction."""
        if isinstance(self.loss, Absolute):
            return check_point(value)
        word = Prf(self._secret.derive("local reduction")).encrypt(counter(0, 0, 0, 0))[:8]
        return check_point(self.loss.sample(value, (int.from_bytes(word, "little") >> 11) * 2.0**-53))

    @abstractmethod
    def _make(self, point: float) -> Message:
        """The private message for a point in [0, 1]."""


class LocalClient(OneMessage[bytes]):
    """One client: `message(value)` is everything that ever leaves it.

    `loss` says what the server will minimise: the default is the absolute loss (median); others go through the
    randomised reduction of `losses.py`. A second call with another value is refused: the same noise on two values would
    reveal their difference.

    Args:
        epsilon: The ε of the message, above 0.
        delta: The δ of the message, between 0 and 1.
        n: The number of clients that is planned for.
        secret: The client's own secret; None for a fresh one.
        form: "one-counter", or "two-counter" for the form of the paper.
        buckets: How many buckets [0, 1] is cut into; None takes ⌈ε√n⌉.
        loss: What the server will minimise; None for the absolute loss.

    Raises:
        ParameterError: An argument is of another kind or outside its range, or a client of the same secret is alive.
        TooLarge: As for `LocalPlan`.

    **Guarantee.** The message is (epsilon, delta)-LDP on a real computer: `local.proof.md`, theorem 1. Test:
    tests/local/test_local_client.py::test_message_is_the_rounding_of_the_exact_sum.

    >>> client = LocalClient(1.0, 1e-6, 10_000)
    >>> client.message(0.25) == client.message(0.25)
    True
    """

    def __init__(
        self,
        epsilon: float,
        delta: float,
        n: int,
        secret: Secret | None = None,
        form: Form = "one-counter",
        *,
        buckets: int | None = None,
        loss: Loss | None = None,
    ) -> None:
        self.plan = shared_plan(epsilon, delta, n, form, buckets)
        super().__init__(secret, loss, self.plan.public_text)
        self._noise: NormalSequence | None = None

    def __repr__(self) -> str:
        return f"LocalClient(epsilon={self.plan.epsilon:g}, delta={self.plan.delta:g}, n={self.plan.n}, {self.loss!r})"

    def prepare(self) -> None:
        """Draw the noise now, before the value is known; `message` then only adds."""
        if self._noise is None:
            self._noise = NormalSequence(self._secret, self.plan.entries)

    def _make(self, point: float) -> bytes:
        self.prepare()
        assert self._noise is not None
        bucket = min(max(math.ceil(point * self.plan.w), 1), self.plan.w)
        message = self.plan.header + entries(self.plan, bucket, self._noise)
        self._noise = None
        return message


def entries(plan: LocalPlan, bucket: int, noise: NormalSequence) -> bytes:
    """The entries of one message as bytes: ⌊(R·e_bucket + N·z)/2^m + ½⌋, or zeros outside the server's ball.

    **Guarantee.** Equal to the floor in integer arithmetic for every z: doubles round, and integers where a boundary
    is nearer than ROUNDING_MARGIN. Proof: `local.proof.md`, lemma 5. Tests: tests/local/test_local_client.py
    (test_message_is_the_rounding_of_the_exact_sum, test_entries_that_are_too_close_are_rounded_in_integers).
    """
    mean = plan.mean(bucket)
    off = noise.near * plan.ratio
    off += mean
    rounded = np.rint(off)
    off -= rounded
    np.abs(off, out=off)
    if off[off.argmax()] >= 0.5 - ROUNDING_MARGIN:
        for place in np.flatnonzero(off >= 0.5 - ROUNDING_MARGIN).tolist():
            units = (int(math.ldexp(mean[place], plan.shift)) << 128) + plan.scale * noise.exact(place)
            rounded[place] = (units >> 127 + plan.shift) + 1 >> 1  # ⌊t + ½⌋ = ⌊(⌊2t⌋ + 1)/2⌋
    for part in plan.parts:
        vector = rounded[part]
        if vector.dot(vector) > plan.radius**2:
            rounded[:] = 0.0
    return rounded.astype(ENTRY).tobytes()


def simulate(plan: LocalPlan, points: npt.ArrayLike, secret: Secret, first: int = 0) -> npt.NDArray[np.int16]:
    """Entries of many clients' messages at once, for studies and benchmarks: one secret serves all of them.

    Real clients each hold their own secret and draw a `NormalSequence` from it; the distribution is the same. `first`
    numbers the first client.

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
    out = np.empty((len(values), plan.entries), np.int16)
    rows = max(1, 2**18 // plan.entries)
    for start in range(0, len(values), rows):
        part = values[start : start + rows]
        z = source.normals(first + start, first + start + len(part), plan.entries)
        out[start : start + len(part)] = entries_of(plan, plan.bucket(part), floors(plan.scale, z))
    return out
