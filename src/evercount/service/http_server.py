"""uvicorn with what it leaves out: deadlines for half-sent requests and unread answers, connections
per address, and live connections that end when the service has to stop.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import signal
import socket
import sys
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from types import FrameType

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from evercount.errors import ParameterError
from evercount.service.access import Limits, shared_address
from evercount.service.http_app import create_app
from evercount.service.log_format import limit_lines
from evercount.service.runtime import Service

MOST_HEAD_BYTES = 1 << 16  # bytes of the head of a request
STOP_SECONDS = 5  # seconds that open requests get when the service stops
SWITCH_SECONDS = 0.001
"""After how long Python gives a waiting thread its turn. A batch goes from the loop to the writer
and back, and with Python's own 5 ms each change of hands could take that long."""

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


def parse_proxies(addresses: Sequence[str]) -> list[Network]:
    """The networks of `--trusted-proxy`, each an address or a network such as 10.0.0.0/8."""
    try:
        return [ipaddress.ip_network(address) for address in addresses]
    except ValueError as error:
        raise ParameterError(
            f"a trusted proxy is an IP address or a network such as 10.0.0.0/8: {error}"
        ) from None


class StrictConnection(h11.Connection):
    """Refuses a request that states its length twice: a proxy may believe the other one, and see
    two requests in it."""

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            if {b"content-length", b"transfer-encoding"} <= names:
                raise h11.RemoteProtocolError("Content-Length together with Transfer-Encoding", 400)
        return event


class OpenConnections:
    """Counts the open connections of each address, except those of trusted proxies."""

    def __init__(self, most: int, proxies: Sequence[Network]) -> None:
        self._most = most
        self._proxies = proxies
        self._open: Counter[str] = Counter()

    def add(self, host: str) -> str | None:
        """Count a connection; return the address that it counts for, None for a trusted proxy."""
        if self._trusted(host):
            return None
        address = shared_address(host)
        self._open[address] += 1
        return address

    def too_many(self, address: str) -> bool:
        return self._open[address] > self._most

    def remove(self, address: str) -> None:
        """Count one connection of an address less."""
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]

    def _trusted(self, host: str) -> bool:
        try:
            return any(ipaddress.ip_address(host) in network for network in self._proxies)
        except ValueError:
            return False


class GuardedProtocol(H11Protocol):
    """Ends a connection whose request does not arrive or whose answer is not read; see `Limits`."""

    limits: Limits
    open_connections: OpenConnections
    _address: str | None = None
    _phase: object = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._timers: dict[str, asyncio.TimerHandle] = {}
        super().connection_made(transport)
        self.conn = StrictConnection(
            h11.SERVER, self.config.h11_max_incomplete_event_size or MOST_HEAD_BYTES
        )
        host = self.client[0] if self.client else "local"
        self._address = self.open_connections.add(host)
        if self._address is not None and self.open_connections.too_many(self._address):
            transport.abort()
            return
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._limit("request")
        self._limit("answer")
        if self._address is not None:
            self.open_connections.remove(self._address)
            self._address = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self._watch()

    def _watch(self) -> None:
        """Start a deadline when a part of a request begins, and never again before that part has
        ended."""
        state = self.conn.their_state
        phase = (state, self.cycle)
        if phase == self._phase:
            return
        self._phase = phase
        deadlines = {h11.IDLE: self.limits.header_seconds, h11.SEND_BODY: self.limits.body_seconds}
        self._limit("request", deadlines.get(state))

    def pause_writing(self) -> None:
        super().pause_writing()
        self._limit("answer", self.limits.write_seconds)

    def resume_writing(self) -> None:
        self._limit("answer")
        super().resume_writing()

    def _limit(self, what: str, seconds: float | None = None) -> None:
        """End the connection after so many seconds, unless this is called for the same thing
        before; None sets no deadline."""
        timer = self._timers.pop(what, None)
        if timer is not None:
            timer.cancel()
        if seconds is not None:
            self._timers[what] = self.loop.call_later(seconds, self.transport.abort)


def guarded_protocol(limits: Limits, proxies: Sequence[Network] = ()) -> type[H11Protocol]:
    """The protocol of one service, with its limits and its own count of open connections."""
    connections = OpenConnections(limits.connections, proxies)
    own = {"limits": limits, "open_connections": connections}
    return type("ServiceProtocol", (GuardedProtocol,), own)


def server_config(
    service: Service, host: str, port: int, proxies: Sequence[Network] = ()
) -> uvicorn.Config:
    """How the service is served. No header of a request says who sent it, unless a declared proxy
    wrote it."""
    limit_lines()
    return uvicorn.Config(
        create_app(service),
        host=host,
        port=port,
        http=guarded_protocol(service.limits, proxies),
        ws="none",
        proxy_headers=bool(proxies),
        forwarded_allow_ips=[str(network) for network in proxies],
        access_log=False,  # an access log would count the batches
        log_level="warning",
        timeout_graceful_shutdown=STOP_SECONDS,
        server_header=False,
        lifespan="on",
        log_config=None,  # the handlers of log_format.py stay
    )


def run(
    service: Service,
    host: str,
    port: int,
    ready: Callable[[str], None] | None = None,
    trusted_proxies: Sequence[str] = (),
) -> None:
    """Serve until SIGTERM or Ctrl-C, then finish what was accepted. `ready` is called with the
    address. `trusted_proxies`: the only addresses or networks whose X-Forwarded-For is believed."""

    class Server(uvicorn.Server):
        """uvicorn waits for open connections; server-sent events never end by themselves, so they
        are ended."""

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            service.end_waiting()
            super().handle_exit(sig, frame)

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if ready is not None and self.started and self.servers:
                address, bound_port = self.servers[0].sockets[0].getsockname()[:2]
                if ":" in address:
                    address = f"[{address}]"
                ready(f"http://{address}:{bound_port}")

    logging.getLogger("uvicorn.error").setLevel(logging.WARNING)
    server = Server(server_config(service, host, port, parse_proxies(trusted_proxies)))
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    main = threading.current_thread() is threading.main_thread()
    switching = sys.getswitchinterval()
    sys.setswitchinterval(SWITCH_SECONDS)
    service.start()
    try:
        if main:
            # for the moment before uvicorn listens to signals, and for the one after: uvicorn
            # raises the signal again once it has stopped, and that must not cut the rest of the
            # stopping short
            for number in before:
                signal.signal(number, lambda *_: setattr(server, "should_exit", True))
        server.run()
    finally:
        service.stop()
        sys.setswitchinterval(switching)
        if main:
            for number, handler in before.items():
                signal.signal(number, handler)
