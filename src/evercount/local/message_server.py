"""What the servers of the local model share: sums of accepted messages, which merge and move between machines."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import astuple
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from evercount.errors import InputError, MessageRejected, ParameterError, SnapshotError
from evercount.local.estimate import RiskFunction

FORMAT = 1  # the version of dumps


def check_plan(plan: object, kind: type) -> None:
    """Refuse what is not a plan of this protocol."""
    if not isinstance(plan, kind):
        raise ParameterError(f"plan must be a {kind.__name__}, got {type(plan).__name__}")


class MessageServer(ABC):
    """Adds up messages in constant memory. Servers of equal plans merge, in any order."""

    _sums: npt.NDArray[Any]
    accepted: int = 0
    rejected: int = 0

    @abstractmethod
    def add(self, message: Any) -> None:
        """Add one message, or count it as rejected and raise MessageRejected.

        Args:
            message: What a client sent.

        Raises:
            MessageRejected: No client of this plan sends it.
        """

    def _add_any(self, message: Any) -> None:
        self.add(message)

    @abstractmethod
    def estimate(self) -> RiskFunction:
        """What all accepted messages together say; may be asked at any time and as often as wanted.

        Returns:
            The estimate, with its errors.

        Raises:
            InputError: Too few messages were accepted yet.
        """

    @property
    def _parameters(self) -> tuple[Any, ...]:
        return astuple(vars(self)["plan"])

    @classmethod
    @abstractmethod
    def _of(cls, *parameters: Any) -> Self:
        """The server whose plan has these fields."""

    @abstractmethod
    def _digest(self) -> str:
        """Equal for servers whose messages fit together."""

    def _plausible(self) -> bool:
        """Whether as many messages as were accepted can have these sums."""
        return True

    def __repr__(self) -> str:
        return f"{type(self).__name__}({list(self._parameters)}, accepted={self.accepted}, rejected={self.rejected})"

    def add_many(self, messages: Iterable[object]) -> int:
        """Add a batch of any length; the number of accepted ones. Bad ones are only counted.

        Args:
            messages: What clients sent, in the form that `add` takes (as tuples where that is more than one value).

        Returns:
            How many of them were accepted.

        Raises:
            InputError: messages is one message or no sequence.
        """
        if isinstance(messages, str | bytes | bytearray | memoryview) or not isinstance(messages, Iterable):
            kind = type(messages).__name__
            raise InputError(f"a batch is a sequence of messages, got {kind}; use add for one message")
        before = self.accepted
        for message in messages:
            try:
                self._add_any(message)
            except MessageRejected:
                continue
        return self.accepted - before

    def merge(self, *others: Self) -> None:
        """Add the sums of other servers of the same plan; they are left as they are and must not be merged twice.

        Args:
            *others: Servers of the same plan.

        Raises:
            ParameterError: One of them has another plan, or is this server itself.
        """
        for other in others:
            if type(other) is not type(self):
                name = type(self).__name__
                raise ParameterError(f"a {name} is merged with others of its kind, got {type(other).__name__}")
            if other._digest() != self._digest():
                raise ParameterError("servers of different plans cannot be merged")
            if other is self:
                raise ParameterError("a server cannot be merged with itself")
        for other in others:
            self._sums += other._sums
            self.accepted += other.accepted
            self.rejected += other.rejected

    def dump(self) -> bytes:
        """The partial sums, to store or to send to another server. They hold private messages only: no secret.

        Returns:
            JSON as bytes, for `load`.
        """
        plan = {"format": FORMAT, "plan": self._parameters, "digest": self._digest()}
        sums = {"accepted": self.accepted, "rejected": self.rejected, "sums": self._sums.tolist()}
        return json.dumps(plan | sums).encode()

    @classmethod
    def load(cls, blob: bytes) -> Self:
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
            server = cls._of(*data["plan"])
            sums = np.asarray(data["sums"], dtype=server._sums.dtype)
            good = data["format"] == FORMAT and data["digest"] == server._digest() and sums.shape == server._sums.shape
            numbers = data["accepted"], data["rejected"]
        except (ValueError, KeyError, TypeError, OverflowError) as error:
            raise SnapshotError(f"this is not a dump of a {cls.__name__} ({type(error).__name__})") from None
        if not good or not all(type(number) is int and number >= 0 for number in numbers):
            raise SnapshotError("the dump belongs to another version or plan")
        server._sums, server.accepted, server.rejected = sums, *numbers
        if not server._plausible():
            raise SnapshotError("the dump is damaged: no messages have this sum")
        return server
