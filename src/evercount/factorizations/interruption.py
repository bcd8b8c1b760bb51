"""Long computations ask now and then whether anybody still waits for them.

Whoever starts one may give it a check, which raises once nobody waits; without a check it goes on
to its end. It asks between steps, of two seconds at most, where nothing is half done: what is kept
for later calls is whole.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Check = Callable[[], None]
_check: ContextVar[Check | None] = ContextVar("check of a computation", default=None)


def check_wanted() -> None:
    """Raise what the check of this computation raises, if it has one and nobody waits any more."""
    check = _check.get()
    if check is not None:
        check()


@contextmanager
def interrupted_by(check: Check) -> Iterator[None]:
    """Let a check end the computations of this block, in this thread.

    Args:
        check: Raises an exception that is no ParameterError once nobody waits for them.

    Yields:
        Nothing.

    >>> def refuse():
    ...     raise TimeoutError("nobody waits")
    >>> with interrupted_by(refuse):
    ...     check_wanted()
    Traceback (most recent call last):
    ...
    TimeoutError: nobody waits
    """
    before = _check.set(check)
    try:
        yield
    finally:
        _check.reset(before)
