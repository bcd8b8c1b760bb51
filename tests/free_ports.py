"""Ports for programs that must be told one."""

from __future__ import annotations

import atexit
import socket


def free_port() -> int:
    """A port for a program that must be told one. It stays bound here, so that the system gives it
    to nobody else, while a program that sets SO_REUSEADDR, as servers do, may listen on it, also a
    second time."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    atexit.register(held.close)
    port: int = held.getsockname()[1]
    return port
