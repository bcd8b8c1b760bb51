"""Running the service: uvicorn with one worker, which ends its live connections when it is told to stop."""

from __future__ import annotations

import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType

import uvicorn

from evercount.service.http_server import parse_proxies, server_config
from evercount.service.runtime import Service

SWITCH_SECONDS = 0.001
"""After how long Python gives a waiting thread its turn. A batch goes from the loop to the writer and back, and with
Python's own 5 ms each change of hands could take that long."""


def run(
    service: Service,
    host: str,
    port: int,
    ready: Callable[[str], None] | None = None,
    trusted_proxies: Sequence[str] = (),
) -> None:
    """Serve until SIGTERM or Ctrl-C, then finish what was accepted. `ready` is called with the address.

    `trusted_proxies`: addresses or networks whose X-Forwarded-For is believed; nobody else's is.
    """

    class Server(uvicorn.Server):
        """uvicorn waits for open connections; server-sent events never end by themselves, so they are ended."""

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
            # for the moment before uvicorn listens to signals, and for the one after: uvicorn raises the signal again
            # once it has stopped, and that must not cut the rest of the stopping short
            for number in before:
                signal.signal(number, lambda *_: setattr(server, "should_exit", True))
        server.run()
    finally:
        service.stop()
        sys.setswitchinterval(switching)
        if main:
            for number, handler in before.items():
                signal.signal(number, handler)
