"""A stream of NATS JetStream. Its sequence numbers are the positions; the server keeps nothing about the reader.

The messages come by a pull consumer without acknowledgements, made anew from the stored position whenever it is lost.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine
from typing import Any, TypeVar

import nats
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import NotFoundError

from evercount.consume.log_source import LogAddress, Messages, Positions
from evercount.errors import InputError, LogUnreachable, ParameterError

ONE = "0"  # the name of the only partition
ANSWER_SECONDS = 10.0
UNUSED_SECONDS = 300.0  # after this the server forgets a consumer whose reader went away
OPTIONS = ("subject", "credentials", "domain")
T = TypeVar("T")


class JetStream:
    """One stream; with `subject` only its messages of these subjects."""

    def __init__(self, address: LogAddress) -> None:
        for name in address.options:
            if name not in OPTIONS:
                raise ParameterError(f"unknown option {name!r} of a NATS address; known: {', '.join(OPTIONS)}")
        self._name, self._subject = address.name, address.options.get("subject")
        self._loop = asyncio.new_event_loop()
        self._inbox, self._consumer = "", ""
        self._next = self._end = self._delivered = 0
        self._got: list[Msg] = []
        self._wanted = 0
        self._complete = asyncio.Event()
        try:
            hosts = [f"{address.scheme}://{host}" for host in address.hosts.split(",")]
            once: Any = {"allow_reconnect": False, "max_reconnect_attempts": 0, "connect_timeout": ANSWER_SECONDS}
            credentials = address.options.get("credentials")
            self._connection = self._ask(nats.connect(hosts, user_credentials=credentials, **once))
            self._stream = self._connection.jetstream(domain=address.options.get("domain"), timeout=ANSWER_SECONDS)
            created = self._ask(self._info())["created"]
            self.identity = json.dumps(["nats", self._name, created, self._subject])
        except BaseException:
            self.close()
            raise

    def _ask(self, question: Coroutine[Any, Any, T]) -> T:
        try:
            return self._loop.run_until_complete(asyncio.wait_for(question, 3 * ANSWER_SECONDS))
        except (NatsError, OSError, TimeoutError) as error:
            raise LogUnreachable(f"the NATS server does not answer: {type(error).__name__} {error}".rstrip()) from None

    async def _info(self) -> Any:
        """The answer as it is: the client's own class drops fields that we need."""
        try:
            await self._stream.stream_info(self._name)
        except NotFoundError:
            raise InputError(f"the NATS server has no stream {self._name!r}") from None
        answer = await self._connection.request(f"$JS.API.STREAM.INFO.{self._name}", timeout=ANSWER_SECONDS)
        return json.loads(answer.data)

    def reach(self) -> tuple[Positions, Positions]:
        state = self._ask(self._info())["state"]
        self._end = state["last_seq"] + 1
        return {ONE: state["first_seq"] if state["messages"] else self._end}, {ONE: self._end}

    def start(self, positions: Positions) -> None:
        self._next = max(1, positions.get(ONE, 1))
        self._consumer = ""

    async def _begin(self) -> None:
        if not self._inbox:
            self._inbox = self._connection.new_inbox()
            await self._connection.subscribe(self._inbox, cb=self._take, pending_msgs_limit=-1, pending_bytes_limit=-1)
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
        self._consumer, self._delivered = made.name, 0

    async def _take(self, message: Msg) -> None:
        self._got.append(message)
        if len(self._got) >= self._wanted or not message.reply:
            self._complete.set()

    def read(self, most: int) -> Messages:
        """See LogSource. That nothing is left of what `reach` saw moves the position, too: subjects may be filtered."""
        try:
            return self._ask(self._read(most))
        except LogUnreachable:
            self._consumer = ""
            raise

    async def _read(self, most: int) -> Messages:
        if not self._consumer:
            await self._begin()
        self._got, self._wanted = [], most
        self._complete.clear()
        body = json.dumps({"batch": most, "no_wait": True}).encode()
        subject = f"{self._stream._prefix}.CONSUMER.MSG.NEXT.{self._name}.{self._consumer}"
        await self._connection.publish(subject, body, reply=self._inbox)
        await asyncio.wait_for(self._complete.wait(), ANSWER_SECONDS)
        got = self._got
        status = "" if got[-1].reply else (got.pop().headers or {}).get("Status", "")
        orders = []
        for message in got:
            parts = message.reply.split(".")
            at = 5 if len(parts) == 9 else 7  # with a domain there are two parts more
            order, number = int(parts[at]), int(parts[at + 1])
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
        return Messages([message.data for message in got], orders, {ONE: self._next})

    def place(self, order: int) -> tuple[str, int]:
        return ONE, order

    def close(self) -> None:
        connection = getattr(self, "_connection", None)
        try:
            if connection is not None:
                self._ask(connection.close())
        except LogUnreachable:
            pass
        finally:
            self._loop.close()
