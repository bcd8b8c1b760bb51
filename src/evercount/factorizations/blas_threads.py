"""How many threads the matrix products of this process run on.

The number is one for the whole process, but threads of a service want different ones at the same
time: one for the many small products of noise, where more threads cost more than they bring, and a
fixed one where the last digits of a result must not depend on the machine.
"""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

_lock = Lock()
# how many threads of this process are inside `blas_threads` of each number
_wishes: Counter[int] = Counter()
_before: list[Any] = []  # what can restore the number from before the first of them
_controllers: dict[int, Any] = {}
"""What sets the number of threads, by how many modules were imported when the libraries were
listed.

SciPy brings a BLAS of its own, which is loaded after NumPy's: new modules may be new libraries.
"""


def _controller() -> Any:
    """List the libraries of this process; again only where modules were imported since."""
    modules = len(sys.modules)  # noqa: TID251 - only counted
    if modules not in _controllers:
        _controllers.clear()
        _controllers[modules] = importlib.import_module("threadpoolctl").ThreadpoolController()
    return _controllers[modules]


@contextmanager
def blas_threads(number: int) -> Iterator[None]:
    """Products inside run on `number` threads, or on the largest number that is wanted anywhere in
    this process.

    When nobody is inside any more, the number is what it was before. Exact noise does not depend on
    it. A library that is loaded inside keeps its own number: import it before.

    Yields:
        Nothing.
    """
    _wish(number, 1)
    try:
        yield
    finally:
        _wish(number, -1)


def _wish(number: int, more: int) -> None:
    """Count one more or one less who wishes for this number of threads, and set the largest."""
    with _lock:
        now = max(+_wishes, default=0)
        _wishes[number] += more
        wanted = max(+_wishes, default=0)
        if wanted and wanted != now:
            limiter = _controller().limit(limits=wanted, user_api="blas")
            if not now:
                _before.append(limiter)
        elif not wanted:
            _before.pop().restore_original_limits()
