"""Logs as sources of events: the interface of any log, with NATS JetStream and Kafka behind it.

Neither server remembers what was read: the store does. Positions are the sequence numbers of a
JetStream stream and the offsets of each partition of a Kafka topic. JetStream's messages come
through a pull consumer without acknowledgements, which is made anew from the stored position
whenever it is lost.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar
from urllib.parse import parse_qsl, unquote, urlsplit

import nats
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from evercount._validate import check_name
from evercount.errors import InputError, LogUnreachable, ParameterError

Positions = Mapping[str, int]  # for each partition the number of the next message


@dataclass(frozen=True)
class Messages:
    """Messages in the order of `orders`. Secret. An order is a whole number that two messages never
    share, and it grows with the position in a partition."""

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
    """Where a log is: nats://host:4222/STREAM?subject=a.> or
    kafka://host:9092,host:9093/TOPIC?key=value.

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
            options = parse_qsl(
                parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)
            )
        except ValueError:
            raise ParameterError(f"the address of the log cannot be parsed: {example}") from None
        name = unquote(parts.path.strip("/"))
        known = parts.scheme in ("nats", "tls", "kafka") and parts.netloc.rpartition("@")[2] != ""
        if not known or not name or "/" in name or parts.fragment:
            # not quoted: it may hold a password
            raise ParameterError(f"not the address of a log: {example}")
        if parts.scheme == "kafka" and "@" in parts.netloc:
            raise ParameterError(
                "a Kafka address has no user before '@': use ?sasl.username=…&sasl.password=…; "
                f"{example}"
            )
        if len(dict(options)) < len(options):
            raise ParameterError("an option of the log's address is given twice")
        return cls(parts.scheme, parts.netloc, name, dict(options))

    def open(self) -> LogSource:
        return KafkaTopic(self) if self.scheme == "kafka" else JetStream(self)


ONE = "0"  # the name of the only partition
ANSWER_SECONDS = 10.0
UNUSED_SECONDS = 300.0  # after this the server forgets a consumer whose reader went away
OPTIONS = ("subject", "credentials")
T = TypeVar("T")


class JetStream:
    """One stream; with `subject` only its messages of these subjects."""

    def __init__(self, address: LogAddress) -> None:
        for name in address.options:
            check_name("option of a NATS address", name, OPTIONS)
        self._name = address.name
        self._subject = address.options.get("subject")
        self._loop = asyncio.new_event_loop()
        self._inbox, self._consumer = "", ""
        self._next = self._end = self._delivered = 0
        self._answers: list[Msg] = []
        self._wanted = 0
        self._complete = asyncio.Event()
        try:
            hosts = [f"{address.scheme}://{host}" for host in address.hosts.split(",")]
            once: Any = {
                "allow_reconnect": False,
                "max_reconnect_attempts": 0,
                "connect_timeout": ANSWER_SECONDS,
            }
            credentials = address.options.get("credentials")
            self._connection = self._ask(nats.connect(hosts, user_credentials=credentials, **once))
            self._stream = self._connection.jetstream(timeout=ANSWER_SECONDS)
            created = self._ask(self._info())["created"]
            self.identity = json.dumps(["nats", self._name, created, self._subject])
        except BaseException:
            self.close()
            raise

    def _ask(self, question: Coroutine[Any, Any, T]) -> T:
        try:
            return self._loop.run_until_complete(asyncio.wait_for(question, 3 * ANSWER_SECONDS))
        except (NatsError, OSError, TimeoutError) as error:
            raise LogUnreachable(
                f"the NATS server does not answer: {type(error).__name__} {error}".rstrip()
            ) from None

    async def _info(self) -> Any:
        """Read the server's answer as it is: the client's own class drops fields that we need."""
        answer = await self._connection.request(
            f"$JS.API.STREAM.INFO.{self._name}", timeout=ANSWER_SECONDS
        )
        info = json.loads(answer.data)
        if info.get("error", {}).get("code") == 404:
            raise InputError(f"the NATS server has no stream {self._name!r}")
        if "error" in info:
            raise LogUnreachable(f"the NATS server refuses: {info['error'].get('description')}")
        return info

    def reach(self) -> tuple[Positions, Positions]:
        state = self._ask(self._info())["state"]
        self._end = state["last_seq"] + 1
        return {ONE: state["first_seq"] if state["messages"] else self._end}, {ONE: self._end}

    def start(self, positions: Positions) -> None:
        self._next = max(1, positions.get(ONE, 1))
        self._consumer = ""

    async def _begin(self) -> None:
        """Make a consumer that begins at the next position."""
        if not self._inbox:
            self._inbox = self._connection.new_inbox()
            await self._connection.subscribe(
                self._inbox, cb=self._take, pending_msgs_limit=-1, pending_bytes_limit=-1
            )
        made = await self._stream.add_consumer(
            self._name,
            ConsumerConfig(
                deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
                opt_start_seq=self._next,
                ack_policy=AckPolicy.NONE,
                filter_subject=self._subject,
                inactive_threshold=UNUSED_SECONDS,
                mem_storage=True,
            ),
        )
        self._consumer = made.name
        self._delivered = 0

    async def _take(self, message: Msg) -> None:
        self._answers.append(message)
        if len(self._answers) >= self._wanted or not message.reply:
            self._complete.set()

    def read(self, most: int) -> Messages:
        """See LogSource. That nothing is left of what `reach` saw moves the position, too: subjects
        may be filtered."""
        try:
            return self._ask(self._read(most))
        except LogUnreachable:
            self._consumer = ""
            raise

    async def _read(self, most: int) -> Messages:
        """Ask for messages once, and wait until all are there."""
        if not self._consumer:
            await self._begin()
        self._answers = []
        self._wanted = most
        self._complete.clear()
        body = json.dumps({"batch": most, "no_wait": True}).encode()
        subject = f"{self._stream._prefix}.CONSUMER.MSG.NEXT.{self._name}.{self._consumer}"
        await self._connection.publish(subject, body, reply=self._inbox)
        await asyncio.wait_for(self._complete.wait(), ANSWER_SECONDS)
        answers = self._answers
        status = ""
        if not answers[-1].reply:
            status = (answers.pop().headers or {}).get("Status", "")
        orders = []
        for message in answers:
            parts = message.reply.split(".")
            at = 7  # later servers name their domain and account before
            if len(parts) == 9:
                at = 5
            order = int(parts[at])
            number = int(parts[at + 1])
            self._delivered += 1
            if number != self._delivered:
                raise TimeoutError("a message was lost on the way")
            orders.append(order)
        if status not in ("", "404", "408"):
            raise TimeoutError(f"status {status}")
        if orders:
            self._next = orders[-1] + 1
        if status == "404":
            self._next = max(self._next, self._end)
        return Messages([message.data for message in answers], orders, {ONE: self._next})

    def place(self, order: int) -> tuple[str, int]:
        return ONE, order

    def close(self) -> None:
        with closing(self._loop), suppress(LogUnreachable):
            if hasattr(self, "_connection"):
                self._ask(self._connection.close())


READ_SECONDS = 0.2
# an order is partition · 2^48 + offset: no other events change where a person's stand
PARTITION_BITS = 48
OURS = {
    "group.id": "evercount",  # librdkafka asks for one; nothing is ever committed to it
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "enable.partition.eof": True,
    "auto.offset.reset": "error",
    "isolation.level": "read_committed",
}


class KafkaTopic:
    """One topic, all of its partitions. Options of the address go to librdkafka."""

    def __init__(self, address: LogAddress) -> None:
        if reserved := [name for name in (*OURS, "bootstrap.servers") if name in address.options]:
            raise ParameterError(
                f"the option {reserved[0]!r} cannot be set: offsets are kept in the store"
            )
        self._topic = address.name
        self._next: dict[str, int] = {}
        self._failure = ""
        try:
            own = {**OURS, "bootstrap.servers": address.hosts, "error_cb": self._failed}
            self._consumer = Consumer({"log_level": 0, **address.options, **own})
        except KafkaException as error:
            raise ParameterError(
                f"an option of the Kafka address is not legal: {error.args[0].str()}"
            ) from None
        # the cluster and the topic
        self.identity = json.dumps(["kafka", self._metadata().cluster_id, self._topic])

    def _failed(self, error: KafkaError) -> None:
        self._failure = error.str()

    def _unreachable(self, error: KafkaException) -> LogUnreachable:
        return LogUnreachable(
            f"the Kafka brokers do not answer: {self._failure or error.args[0].str()}"
        )

    def _metadata(self) -> Any:
        try:
            return self._consumer.list_topics(self._topic, timeout=ANSWER_SECONDS)
        except KafkaException as error:
            raise self._unreachable(error) from None

    def reach(self) -> tuple[Positions, Positions]:
        """See LogSource. Its ends are those of committed transactions."""
        topic = self._metadata().topics[self._topic]
        if topic.error is not None or not topic.partitions:
            raise InputError(f"the Kafka brokers have no topic {self._topic!r}")
        first, end = {}, {}
        try:
            for number in sorted(topic.partitions):
                place = TopicPartition(self._topic, number)
                first[str(number)], end[str(number)] = self._consumer.get_watermark_offsets(
                    place, ANSWER_SECONDS
                )
        except KafkaException as error:
            raise self._unreachable(error) from None
        return first, end

    def start(self, positions: Positions) -> None:
        self._next = dict(positions)
        self._consumer.assign(
            [TopicPartition(self._topic, int(name), at) for name, at in positions.items()]
        )

    def read(self, most: int) -> Messages:
        bodies: dict[int, bytes] = {}
        try:
            messages: list[Any] = self._consumer.consume(most, READ_SECONDS)
            for message in messages:
                partition = message.partition()
                offset = message.offset()
                error = message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                if error is None:
                    bodies[(partition << PARTITION_BITS) | offset] = message.value() or b""
                self._next[str(partition)] = offset + (error is None)
        except KafkaException as error:
            self.start(self._next)
            raise self._unreachable(error) from None
        orders = sorted(bodies)
        return Messages([bodies[order] for order in orders], orders, dict(self._next))

    def place(self, order: int) -> tuple[str, int]:
        return str(order >> PARTITION_BITS), order & ((1 << PARTITION_BITS) - 1)

    def close(self) -> None:
        self._consumer.close()
