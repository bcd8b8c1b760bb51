"""uvicorn with what it leaves out: deadlines for half-sent requests and unread answers, connections
per address, and live connections that are ended when the service is told to stop.
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
    """Refuses a request whose length is told twice: a proxy may believe the other one, and see two
    requests in it."""

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        event = super().next_event()
        if isinstance(event, h11.Request):
            names = {name for name, _ in event.headers}
            if {b"content-length", b"transfer-encoding"} <= names:
                raise h11.RemoteProtocolError("Content-Length together with Transfer-Encoding", 400)
        return event


def guarded_protocol(limits: Limits, proxies: Sequence[Network] = ()) -> type[H11Protocol]:
    opened: Counter[str] = Counter()

    def trusted(host: str) -> bool:
        try:
            return any(ipaddress.ip_address(host) in network for network in proxies)
        except ValueError:
            return False

    class Guarded(H11Protocol):
        """Ends a connection whose request does not arrive or whose answer is not read; see
        `Limits`."""

        _peer: str | None = None
        _phase: object = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            self._timers: dict[str, asyncio.TimerHandle] = {}
            super().connection_made(transport)
            self.conn = StrictConnection(
                h11.SERVER, self.config.h11_max_incomplete_event_size or MOST_HEAD_BYTES
            )
            host = self.client[0] if self.client else "local"
            if not trusted(host):
                self._peer = shared_address(host)
                opened[self._peer] += 1
                if opened[self._peer] > limits.connections:
                    transport.abort()
                    return
            self._watch()

        def connection_lost(self, exc: Exception | None) -> None:
            self._limit("request")
            self._limit("answer")
            if self._peer is not None:
                opened[self._peer] -= 1
                if not opened[self._peer]:
                    del opened[self._peer]
                self._peer = None
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._watch()

        def _watch(self) -> None:
            """Start a deadline when a part of a request begins, and never again before that part
            has ended."""
            state = self.conn.their_state
            phase = (state, self.cycle)
            if phase == self._phase:
                return
            self._phase = phase
            self._limit(
                "request",
                {h11.IDLE: limits.header_seconds, h11.SEND_BODY: limits.body_seconds}.get(state),
            )

        def pause_writing(self) -> None:
            super().pause_writing()
            self._limit("answer", limits.write_seconds)

        def resume_writing(self) -> None:
            self._limit("answer")
            super().resume_writing()

        def _limit(self, what: str, seconds: float | None = None) -> None:
            """End the connection after so many seconds, unless this is called for the same thing
            before."""
            if (timer := self._timers.pop(what, None)) is not None:
                timer.cancel()
            if seconds is not None:
                self._timers[what] = self.loop.call_later(seconds, self.transport.abort)

    return Guarded


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
    address. `trusted_proxies`: addresses or networks whose X-Forwarded-For is believed; nobody
    else's is."""

    class Server(uvicorn.Server):
        """uvicorn waits for open connections; server-sent events never end by themselves, so they
        are ended."""

        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            service.end_waiting()
            super().handle_exit(sig, frame)

        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            if ready is not None and self.started and self.servers:
                bound = self.servers[0].sockets[0].getsockname()
                shown = f"[{bound[0]}]" if ":" in bound[0] else bound[0]
                ready(f"http://{shown}:{bound[1]}")

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
