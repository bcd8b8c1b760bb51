"""A process that dies in the middle, without another process: the n-th time that it makes something
durable, nothing more is done."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class Killed(BaseException):
    """The process is dead. No handler of errors may catch it."""


@contextmanager
def killed_at(call: int) -> Iterator[None]:
    """Die before the file that is written down as the `call`-th one reaches the disk."""
    sync, replace = os.fsync, os.replace
    calls = 0

    def count() -> None:
        nonlocal calls
        calls += 1
        if calls >= call:
            raise Killed

    def dying_sync(*arguments: Any) -> None:
        count()
        sync(*arguments)

    def dying_replace(*arguments: Any, **named: Any) -> None:
        count()
        replace(*arguments, **named)

    os.fsync = dying_sync  # type: ignore[assignment]
    os.replace = dying_replace
    try:
        yield
    finally:
        os.fsync = sync
        os.replace = replace
