"""A topic of Kafka. Offsets are the positions; no consumer group keeps them, the store does."""

from __future__ import annotations

import json
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from evercount.consume.log_source import LogAddress, Messages, Positions
from evercount.errors import InputError, LogUnreachable, ParameterError

ANSWER_SECONDS = 10.0
READ_SECONDS = 0.2
PARTITION_BITS = 48  # an order is partition · 2^48 + offset: no other events change where a person's stand
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
        if taken := [name for name in (*OURS, "bootstrap.servers") if name in address.options]:
            raise ParameterError(f"the option {taken[0]!r} cannot be set: offsets are kept in the store")
        self._topic = address.name
        self._next: dict[str, int] = {}
        self._failure = ""
        try:
            own = {**OURS, "bootstrap.servers": address.hosts, "error_cb": self._failed}
            self._consumer = Consumer({"log_level": 0, **address.options, **own})
        except KafkaException as error:
            raise ParameterError(f"an option of the Kafka address is not legal: {error.args[0].str()}") from None
        self.identity = json.dumps(["kafka", self._metadata().cluster_id, self._topic])  # the cluster and the topic

    def _failed(self, error: KafkaError) -> None:
        self._failure = error.str()

    def _unreachable(self, error: KafkaException) -> LogUnreachable:
        return LogUnreachable(f"the Kafka brokers do not answer: {self._failure or error.args[0].str()}")

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
                first[str(number)], end[str(number)] = self._consumer.get_watermark_offsets(place, ANSWER_SECONDS)
        except KafkaException as error:
            raise self._unreachable(error) from None
        return first, end

    def start(self, positions: Positions) -> None:
        self._next = dict(positions)
        self._consumer.assign([TopicPartition(self._topic, int(name), at) for name, at in positions.items()])

    def read(self, most: int) -> Messages:
        bodies: dict[int, bytes] = {}
        try:
            for message in self._consumer.consume(most, READ_SECONDS):
                partition, offset, error = message.partition(), message.offset(), message.error()
                if error is not None and error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                assert partition is not None
                assert offset is not None
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
