"""LocalServer: adds up clients' messages in constant memory, rejects what no honest client sends, and estimates."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from evercount.errors import InputError, MessageRejected, ParameterError, SnapshotError
from evercount.local.collection_plan import Form, shared_plan
from evercount.local.estimate import LocalEstimate, make_estimate
from evercount.local.messages import inside, unpack, unpack_many

BATCH = 4096
"""Messages that are checked and added at a time."""


def iterate(messages: Iterable[object]) -> Iterator[object]:
    """The messages of a batch, or an InputError where it is none: one message, or nothing to go through."""
    if isinstance(messages, str | bytes | bytearray | memoryview) or not isinstance(messages, Iterable):
        raise InputError(f"a batch is a sequence of messages, got {type(messages).__name__}; use add for one message")
    return iter(messages)


class LocalServer:
    """Sums of accepted messages. Servers of equal plans merge, in any order, to the same sums.

    Args:
        epsilon: As the clients have it.
        delta: As the clients have it.
        n: As the clients have it.
        form: As the clients have it.
        buckets: As the clients have it.

    Raises:
        ParameterError: An argument is outside its range.
        TooLarge: As for `LocalPlan`.

    **Guarantee.** The sums are exact integers. A rejected message changes nothing but the number of rejected ones. An
    accepted message, however it was made, moves any entry of x̂ by at most `poison_bound()`/accepted. Proof:
    `local.proof.md`, lemma 4. Test:
    tests/local/test_local_server.py::test_a_poisoned_message_moves_no_more_than_its_share.

    >>> from evercount.local import LocalClient
    >>> server = LocalServer(1.0, 1e-6, 100)
    >>> server.add_many(LocalClient(1.0, 1e-6, 100).message(0.25) for _ in range(100))
    100
    >>> 0 <= server.estimate().median <= 1
    True
    """

    def __init__(
        self, epsilon: float, delta: float, n: int, form: Form = "one-counter", *, buckets: int | None = None
    ) -> None:
        self.plan = shared_plan(epsilon, delta, n, form, buckets)
        self._sums = np.zeros(self.plan.entries, np.int64)
        self.accepted = 0
        self.rejected = 0

    def __repr__(self) -> str:
        return f"LocalServer({self.plan.describe()!r}, accepted={self.accepted}, rejected={self.rejected})"

    def add(self, message: object) -> None:
        """Add one message, or count it as rejected and raise MessageRejected.

        Args:
            message: What a client sent.

        Raises:
            MessageRejected: No client of this plan sends it.
        """
        try:
            entries = unpack(self.plan, message)
        except MessageRejected:
            self.rejected += 1
            raise
        self._sums += entries.astype(np.int64)
        self.accepted += 1

    def add_many(self, messages: Iterable[object]) -> int:
        """Add a batch of any length; the number of accepted ones. Bad ones are only counted.

        Args:
            messages: What clients sent.

        Returns:
            How many of them were accepted.

        Raises:
            InputError: messages is one message or no sequence.
        """
        source = iterate(messages)
        before = self.accepted
        while batch := list(islice(source, BATCH)):
            entries, rejected = unpack_many(self.plan, batch)
            self._take(entries.sum(axis=0), len(entries), rejected)
        return self.accepted - before

    def add_entries(self, entries: npt.NDArray[np.int16]) -> int:
        """Add unpacked messages, shape (messages, entries), as `simulate` makes them; the number of accepted ones.

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
            kept = part if honest.all() else part[honest]
            self._take(kept.sum(axis=0), len(kept), len(part) - len(kept))
        return self.accepted - before

    def _take(self, sums: npt.NDArray[np.float64], accepted: int, rejected: int) -> None:
        self._sums += sums.astype(np.int64)  # a batch's sums are below 2^27 and exact in doubles
        self.accepted += accepted
        self.rejected += rejected

    def merge(self, *others: LocalServer) -> None:
        """Add the sums of other servers of the same plan; they are left as they are and must not be merged twice.

        Args:
            *others: Servers of the same plan.

        Raises:
            ParameterError: One of them has another plan, or is this server itself.
        """
        for other in others:
            if not isinstance(other, LocalServer):
                raise ParameterError(f"a LocalServer is merged with others of its kind, got {type(other).__name__}")
            if other.plan.digest != self.plan.digest:
                raise ParameterError("servers of different plans (epsilon, delta, buckets or form) cannot be merged")
            if other is self:
                raise ParameterError("a server cannot be merged with itself")
        for other in others:
            self._sums += other._sums
            self.accepted += other.accepted
            self.rejected += other.rejected

    def estimate(self) -> LocalEstimate:
        """What all accepted messages together say; may be asked at any time and as often as wanted.

        Returns:
            The estimate, with its errors.

        Raises:
            InputError: No message was accepted yet.
        """
        if not self.accepted:
            raise InputError("no message was accepted yet: there is nothing to estimate")
        return make_estimate(self.plan, self._sums, self.accepted)

    def poison_bound(self) -> float:
        """The most that one accepted message in place of an honest one moves any entry of x̂, times the accepted ones.

        Two vectors of the ball are at most 2·radius apart, and an entry of x̂ is a linear function of the mean vector.

        Returns:
            The bound; divided by the number of accepted messages it is the share of one of them.
        """
        rows = LocalEstimate(self.plan, 1, np.zeros(self.plan.w + 1)).rows
        norms = np.linalg.norm(rows.reshape(len(rows), self.plan.counters, self.plan.w), axis=2).sum(axis=1)
        return float(2 * self.plan.radius * self.plan.entry * norms.max()) * (1 + 1e-9)

    # -- keeping and moving the sums -----------------------------------------------------------------------------

    def dump(self) -> bytes:
        """The partial sums, to store or to send to another server. They hold private messages only: no secret.

        Returns:
            JSON as bytes, for `load`.
        """
        plan = self.plan
        parameters = [plan.epsilon, plan.delta, plan.n, plan.form, plan.w]
        data: dict[str, Any] = {"format": 1, "plan": parameters, "digest": plan.digest.hex()}
        data |= {"accepted": self.accepted, "rejected": self.rejected, "sums": self._sums.tolist()}
        return json.dumps(data).encode()

    @classmethod
    def load(cls, blob: bytes) -> LocalServer:
        """The server of `dump`, or a SnapshotError.

        Args:
            blob: A result of `dump`.

        Returns:
            A server with the same sums.

        Raises:
            SnapshotError: It is anything else, or belongs to another version or plan.
        """
        try:
            data = json.loads(blob)
            epsilon, delta, n, form, buckets = data["plan"]
            server = cls(epsilon, delta, n, form, buckets=buckets)
            sums: Sequence[int] = data["sums"]
            good = (
                data["format"] == 1 and server.plan.digest.hex() == data["digest"] and len(sums) == server.plan.entries
            )
            server._sums = np.asarray(sums, dtype=np.int64)
            server.accepted, server.rejected = int(data["accepted"]), int(data["rejected"])
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise SnapshotError(f"this is not a dump of a LocalServer ({type(error).__name__})") from None
        if not good or server.accepted < 0 or server.rejected < 0:
            raise SnapshotError("the dump belongs to another version or plan")
        return server
