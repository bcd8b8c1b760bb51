"""LogSource: what any log gives, its messages in order and how far it reaches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import parse_qsl, unquote, urlsplit

from evercount.errors import ParameterError

Positions = Mapping[str, int]  # for each partition the number of the next message


@dataclass(frozen=True)
class Messages:
    """Messages in the order of `orders`. Secret. An order is a whole number that two messages never share, and it grows
    with the position in a partition."""

    bodies: Sequence[bytes]
    orders: Sequence[int]
    after: Positions  # where the log goes on


class LogSource(Protocol):
    """One log. Its methods are called from one thread; LogUnreachable where it does not answer."""

    identity: str  # what this log has alone; the same name with other messages has another

    def reach(self) -> tuple[Positions, Positions]:
        """The first and the next position of each partition, now."""

    def start(self, positions: Positions) -> None:
        """Read from these positions on."""

    def read(self, most: int) -> Messages:
        """Some of the messages that are there, at most `most`; it does not wait for new ones."""

    def place(self, order: int) -> tuple[str, int]:
        """The partition and the position of a message."""

    def close(self) -> None:
        """Leave the log."""


@dataclass(frozen=True)
class LogAddress:
    """Where a log is: nats://host:4222/STREAM?subject=a.> or kafka://host:9092,host:9093/TOPIC?key=value.

    >>> LogAddress.parse("kafka://one:9092,two:9092/visits?security.protocol=ssl").hosts
    'one:9092,two:9092'
    """

    scheme: str
    hosts: str  # with user and password, where they are given
    name: str
    options: Mapping[str, str]

    @classmethod
    def parse(cls, url: str) -> LogAddress:
        """ParameterError for what is not the address of a log."""
        example = "write nats://host:4222/STREAM or kafka://host:9092/TOPIC"
        try:
            parts = urlsplit(url)
            options = parse_qsl(parts.query, keep_blank_values=True, strict_parsing=bool(parts.query))
        except ValueError:
            raise ParameterError(f"the address of the log cannot be parsed: {example}") from None
        name = unquote(parts.path.strip("/"))
        known = parts.scheme in ("nats", "tls", "kafka") and parts.netloc.rpartition("@")[2] != ""
        if not known or not name or "/" in name or parts.fragment:
            raise ParameterError(f"not the address of a log: {example}")  # not quoted: it may hold a password
        if parts.scheme == "kafka" and "@" in parts.netloc:
            raise ParameterError(f"a Kafka address names no user: add ?sasl.username=…&sasl.password=…; {example}")
        if len(dict(options)) < len(options):
            raise ParameterError("an option of the log's address is given twice")
        return cls(parts.scheme, parts.netloc, name, dict(options))

    def open(self) -> LogSource:
        if self.scheme == "kafka":
            from evercount.consume.kafka import KafkaTopic

            return KafkaTopic(self)
        from evercount.consume.jetstream import JetStream

        return JetStream(self)
