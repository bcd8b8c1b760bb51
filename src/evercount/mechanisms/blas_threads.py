"""One BLAS thread for many small matrix products: more threads cost more than they bring, much more under load."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any


@lru_cache(maxsize=1)
def _controller() -> Any:
    return importlib.import_module("threadpoolctl").ThreadpoolController()


@contextmanager
def one_thread() -> Iterator[None]:
    """Products inside run on one thread; what was set before is set again afterwards."""
    with _controller().limit(limits=1, user_api="blas"):
        yield
