"""What the servers of the local model share, and the messages of its Gaussian forms.

All servers keep sums of accepted messages, which merge and move between machines. A message of a
Gaussian form is b"eL" · version (1 byte) · form (1 byte: number of counters) · digest of the plan
(4) · entries (int16, little-endian).
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import astuple
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from evercount._validate import BoolArray, FloatArray, check_kind
from evercount.errors import InputError, MessageRejected, ParameterError, SnapshotError
from evercount.local.collection_plan import LocalPlan
from evercount.local.estimate import RiskFunction

HEAD = 8
ENTRY = np.dtype("<i2")


def size(plan: LocalPlan) -> int:
    """Bytes of a message."""
    return HEAD + plan.entries * ENTRY.itemsize


def inside(plan: LocalPlan, entries: FloatArray) -> BoolArray:
    """Which rows lie in the server's ball, each counter by itself; sums of squares below 2^53 are
    exact in doubles."""
    vectors = entries.reshape(len(entries), plan.counters, plan.w)
    norms = np.einsum("ijk,ijk->ij", vectors, vectors)
    return np.asarray((norms <= plan.radius**2).all(axis=1))


def unpack(plan: LocalPlan, message: object) -> FloatArray:
    """The entries of one message (bytes, bytearray or memoryview), or MessageRejected with the
    reason."""
    try:
        data = bytes(message) if isinstance(message, bytes | bytearray | memoryview) else None
    except ValueError:  # a view that was released
        data = None
    if data is None:
        raise MessageRejected(f"a message is bytes, got {type(message).__name__}")
    if len(data) != size(plan) or data[:HEAD] != plan.header:
        raise MessageRejected(
            f"this is not one of the messages of {size(plan)} bytes that clients of this plan "
            "make: it may be of other parameters (epsilon, delta, buckets or form) or of another "
            "program"
        )
    entries = np.frombuffer(data, ENTRY, offset=HEAD).astype(np.float64)
    if not inside(plan, entries[np.newaxis])[0]:
        raise MessageRejected(
            f"the message lies outside the ball of radius {plan.radius} of honest messages"
        )
    return entries


FORMAT = 1  # the version of dumps


def check_plan(plan: object, kind: type) -> None:
    """Refuse what is not a plan of this protocol."""
    check_kind("plan", plan, kind, f"{kind.__name__}(...)")


class MessageServer(ABC):
    """Adds up messages in constant memory. Servers of equal plans merge, in any order."""

    plan: Any
    _plans: ClassVar[type]  # the kind of its plan
    _sums: npt.NDArray[Any]
    accepted: int = 0
    rejected: int = 0

    def __init__(self, plan: Any) -> None:
        check_plan(plan, self._plans)
        self.plan = plan

    def add(self, message: Any) -> None:
        """Add one message, or count it as rejected and raise MessageRejected.

        Args:
            message: What a client sent.

        Raises:
            MessageRejected: No client of this plan sends it.
        """
        try:
            self._receive(message)
        except MessageRejected:
            self.rejected += 1
            raise
        self.accepted += 1

    @abstractmethod
    def _receive(self, message: Any) -> None:
        """Add one message to the sums, or raise MessageRejected and change nothing."""

    @abstractmethod
    def estimate(self) -> RiskFunction:
        """What all accepted messages together say; may be asked at any time and as often as wanted.

        Returns:
            The estimate, with its errors.

        Raises:
            InputError: Too few messages were accepted yet.
        """

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}({list(astuple(self.plan))}, accepted={self.accepted}, "
            f"rejected={self.rejected})"
        )

    def add_many(self, messages: Iterable[object]) -> int:
        """Add a batch of any length; the number of accepted ones. Bad ones are only counted.

        Args:
            messages: What clients sent, in the form that `add` takes (as tuples where that is more
                than one value).

        Returns:
            How many of them were accepted.

        Raises:
            InputError: messages is one message or no sequence.
        """
        if isinstance(messages, str | bytes | bytearray | memoryview) or not isinstance(
            messages, Iterable
        ):
            kind = type(messages).__name__
            raise InputError(
                f"a batch is a sequence of messages, got {kind}; use add for one message"
            )
        before = self.accepted
        for message in messages:
            with suppress(MessageRejected):
                MessageServer.add(self, message)
        return self.accepted - before

    def merge(self, *others: Self) -> None:
        """Add the sums of other servers of the same plan; they are left as they are and must not be
        merged twice.

        Args:
            *others: Servers of the same plan.

        Raises:
            ParameterError: One of them has another plan, or is this server itself.
        """
        for other in others:
            if type(other) is not type(self) or other.plan != self.plan:
                raise ParameterError("only servers of one kind and plan can be merged")
            if other is self:
                raise ParameterError("a server cannot be merged with itself")
        for other in others:
            self._sums += other._sums
            self.accepted += other.accepted
            self.rejected += other.rejected

    def dump(self) -> bytes:
        """The partial sums, to store or to send to another server. They hold private messages only:
        no secret.

        Returns:
            Bytes for `load`: JSON, and its checksum before it.
        """
        sums = {"accepted": self.accepted, "rejected": self.rejected, "sums": self._sums.tolist()}
        text = json.dumps(
            {"format": FORMAT, "server": type(self).__name__, "plan": astuple(self.plan)} | sums
        ).encode()
        return _checksum(text) + b" " + text

    @classmethod
    def load(cls, blob: bytes) -> Self:
        """The server of `dump`, or a SnapshotError.

        Args:
            blob: A result of `dump`.

        Returns:
            A server with the same sums.

        Raises:
            SnapshotError: It is anything else, is damaged, or belongs to another version or kind of
                server.
        """
        try:
            checksum, _, text = bytes(blob).partition(b" ")
            if checksum != _checksum(text):
                raise ValueError
            data = json.loads(text)
            if (data["format"], data["server"]) != (FORMAT, cls.__name__):
                raise SnapshotError("the dump belongs to another version or kind of server")
            server = cls(cls._plans(*data["plan"]))
            server._sums = np.asarray(data["sums"], server._sums.dtype).reshape(server._sums.shape)
            server.accepted = int(data["accepted"])
            server.rejected = int(data["rejected"])
        except (ValueError, KeyError, TypeError, OverflowError):
            raise SnapshotError(
                f"this is not a dump of a {cls.__name__}, or it is damaged"
            ) from None
        return server


def _checksum(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=16).hexdigest().encode()
