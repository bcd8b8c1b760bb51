"""Every exception that evercount raises on purpose.

    EvercountError
    ├── ParameterError (ValueError)      a parameter is outside its domain: nothing was built
    │   ├── UnknownName                  a name is not in the list; carries the nearest and all of
    │   │                                them
    │   └── TooLarge                     the request is legal but would not fit; carries what it
    │                                    would need
    ├── InputError (ValueError)          data offered to a stream is not legal: the stream is
    │                                    unchanged
    │   ├── BadRows                      rows of a file that are not events; carries their number
    │   │                                and the first few
    │   ├── EventRefused                 one event of it is not; carries its place, so that it can
    │   │                                be renumbered
    │   ├── LogUnreachable               the message log is not responding: try again
    │   └── TooEarly                     an event lies in a tick that has not begun
    ├── HorizonReached                   a step past the declared horizon: the stream is unchanged
    │   └── PrecisionReached             no horizon, but the proved price of finite arithmetic ends
    │                                    here
    ├── AlreadyReleased                  a closed tick was offered again with different data
    ├── BudgetExceeded                   a ledger was asked to spend more than it has
    ├── SnapshotError                    a snapshot is corrupt, truncated, foreign or of another
    │                                    format
    ├── StoreError                       the durable store refuses: locked, tampered with, rolled
    │                                    back, unreadable
    │   ├── Conflict                     a name or key was used before for something else
    │   ├── StreamStopped                the stream takes no more events
    │   ├── CatchingUp                   the stream closes ticks that it missed; carries when to try
    │   │                                again
    │   └── Busy                         too many requests wait for the store
    ├── HttpProblem                      an HTTP request is refused; carries the status of the
    │                                    answer
    ├── MessageRejected                  a message of a local-model client is malformed or out of
    │                                    range
    ├── ServiceRefused                   a client's request: the service cannot be reached, or
    │                                    refuses it
    └── MissingExtra (ImportError)       an optional part is not installed; carries the install
                                         command

Messages carry the offending value and the remedy. They never carry a raw count of the stream.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import is_dataclass
from typing import Any


class EvercountError(Exception):
    """Base of all errors that evercount raises on purpose.

    They can be pickled and copied, with all that they carry: a pool of processes hands them on.
    """

    exit_code = 1
    """What a command that fails with it exits with: one code for each kind."""

    def __reduce__(self) -> tuple[Any, ...]:
        carried = {name: _plain(value) for name, value in vars(self).items()}
        return _unpickled, (type(self), tuple(map(_plain, self.args)), carried)


def _unpickled(
    kind: type[EvercountError], args: tuple[Any, ...], carried: dict[str, Any]
) -> EvercountError:
    """The error as it was: its constructor takes other arguments than its message."""
    error = kind.__new__(kind, *args)
    BaseException.__init__(error, *args)
    vars(error).update(carried)
    return error


def _plain(value: Any) -> Any:
    """The value, or its text where it may not be one that can be pickled: such an error would hang
    a pool for ever."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if type(value) in (tuple, list):
        return type(value)(map(_plain, value))
    if type(value) is dict:
        return {_plain(name): _plain(item) for name, item in value.items()}
    # rows of a file, or a table
    if is_dataclass(value) and type(value).__module__.startswith("evercount."):
        return value
    return repr(value)


class ParameterError(EvercountError, ValueError):
    """A parameter is outside its domain; nothing was built."""

    exit_code = 2


class UnknownName(ParameterError):
    """A name that is not in the list; `nearest` is the closest one, `known` are all of them."""

    def __init__(self, kind: str, name: object, known: Iterable[str]) -> None:
        self.kind = kind
        self.name = name
        self.known = tuple(known)
        close = difflib.get_close_matches(str(name), self.known, n=1, cutoff=0.5)
        self.nearest = close[0] if close else None
        hint = f" Did you mean {self.nearest!r}?" if self.nearest else ""
        super().__init__(f"unknown {kind} {name!r}.{hint} Known: {', '.join(self.known)}.")


class TooLarge(ParameterError):
    """A legal request that would not fit; the message says what it would need."""


class InputError(EvercountError, ValueError):
    """Data offered to a stream is not legal; the stream is unchanged."""

    exit_code = 3


class BadRows(InputError):
    """Rows that are not events, and skipping them was not allowed; nothing was published.

    `bad` is their number, `shown` are the first of them. The message says where they are and why,
    not what is in them: messages end in logs and notebooks. `text` of each in `shown` is its raw
    input.
    """

    def __init__(self, name: str, bad: int, shown: tuple[object, ...]) -> None:
        self.bad = bad
        self.shown = shown
        listed = "".join(f"\n  {reject}" for reject in shown)
        if bad > len(shown):
            listed += f"\n  … and {bad - len(shown)} more"
        rows = "row" if bad == 1 else "rows"
        super().__init__(
            f"{name} has {bad} bad {rows}; nothing was published:{listed}\n"
            "Fix them, or skip them with `skip_bad`; `rejects` writes all of them, with what is in "
            "them, to a private file."
        )


class EventRefused(InputError):
    """One event is not legal: `number` is its place (from 0) in what was offered, `reason` says
    why.

    A tick of the library is what one call offers. The service offers parts of a request, and its
    answer counts from the beginning of that request: see `numbered`.

    >>> refused = EventRefused(3, "is not a letter")
    >>> print(refused, refused.numbered(7, "of this request"), sep="; ")
    event 3 of this tick (from 0) is not a letter; event 7 of this request (from 0) is not a letter
    """

    def __init__(
        self, number: int, reason: str, what: str = "event", where: str = "of this tick"
    ) -> None:
        self.number = number
        self.reason = reason
        self.what = what
        super().__init__(f"{what} {number} {where} (from 0) {reason}")

    def numbered(self, number: int, where: str) -> EventRefused:
        """The same refusal with another number.

        Args:
            number: The new number.
            where: What it counts, such as "of this request".

        Returns:
            A new exception; this one is unchanged.
        """
        return EventRefused(number, self.reason, self.what, where)


class LogUnreachable(InputError):
    """The message log is not responding; nothing was lost, and a later try continues."""


class TooEarly(InputError):
    """An event's time lies in a tick that has not begun; the same batch is welcome later."""


class HorizonReached(EvercountError):
    """A step past the declared horizon; the stream is unchanged."""

    exit_code = 4
    # of a run of files: what the stream has published, where a state alone keeps it
    table: Any = None

    def __init__(
        self,
        horizon: int,
        remedy: str = (
            "Start a new stream (its budget adds to the spent one) or, next time, use horizon=None "
            "for a stream without end."
        ),
    ) -> None:
        self.horizon = horizon
        super().__init__(
            f"the stream has released all {horizon} ticks of its horizon and refuses tick "
            f"{horizon + 1}: the noise is calibrated to that many. {remedy}"
        )


class PrecisionReached(HorizonReached):
    """A step past the last tick for which the numeric error is proved; the stream is unchanged."""

    def __init__(self, limit: int) -> None:
        EvercountError.__init__(
            self,
            "the stream has no horizon, but the price of finite arithmetic is accounted for "
            f"{limit} ticks only, so tick {limit + 1} is refused. Start a new stream (its budget "
            "adds to the spent one).",
        )
        self.horizon = limit


class AlreadyReleased(EvercountError):
    """A closed tick was offered again with different data; releasing it would reveal the
    difference."""

    exit_code = 5


class BudgetExceeded(EvercountError):
    """A ledger was asked to spend more than it has; nothing was recorded."""

    exit_code = 6


class SnapshotError(EvercountError):
    """A snapshot is corrupt, truncated, foreign or of another format; nothing was restored."""

    exit_code = 5


class StoreError(EvercountError):
    """The durable store refuses: locked by another writer, tampered with, rolled back or
    unreadable.

    `str(error)` may be shown to anybody. `detail` is for the operator: it may name hosts, files and
    streams.
    """

    def __init__(self, message: str, detail: str = "") -> None:
        self.detail = detail
        super().__init__(message)

    def for_operator(self) -> str:
        """The message with its detail, for the operator's eyes.

        Returns:
            The text. It must not be shown to clients.
        """
        if not self.detail:
            return str(self)
        return f"{self} ({self.detail})"

    exit_code = 5


class Conflict(StoreError):
    """A name or an idempotency key was used before for something else.

    `events` is the size of the batch that an idempotency key was used for, where that is known.
    """

    def __init__(self, message: str, detail: str = "", events: int | None = None) -> None:
        self.events = events
        super().__init__(message, detail)


class StreamStopped(StoreError):
    """The stream takes no more events; the text is public."""


class CatchingUp(StoreError):
    """The stream closes ticks that it missed and takes no events meanwhile; the text is public.

    `retry` is the number of seconds after which the same batch may be accepted.
    """

    def __init__(self, message: str, retry: float) -> None:
        self.retry = retry
        super().__init__(message)


class Busy(StoreError):
    """The writer takes no more requests for the moment; the text is public."""


class HttpProblem(EvercountError):
    """An HTTP request that is refused, with the status and the kind of error that its answer names.

    `remedy` says what the client can do; None leaves it to the status. `retry` is the number of
    seconds after which the same request may succeed.
    """

    def __init__(
        self,
        status: int,
        kind: str,
        message: str,
        remedy: str | None = None,
        retry: float | None = None,
    ) -> None:
        self.status = status
        self.kind = kind
        self.message = message
        self.remedy = remedy
        self.retry = retry
        super().__init__(message)


class MessageRejected(EvercountError, ValueError):
    """A message of a local-model client is malformed or out of range; the aggregate is
    unchanged."""

    exit_code = 3


class ServiceRefused(EvercountError):
    """A request of a client: the service cannot be reached, or refuses it.

    `status` is the HTTP status of the answer; None where there was no answer. `events` is the size
    of the batch that an Idempotency-Key was used for before, where the service knows it.
    """

    exit_code = 8

    def __init__(self, message: str, status: int | None = None, events: int | None = None) -> None:
        self.status = status
        self.events = events
        super().__init__(message)


class MissingExtra(EvercountError, ImportError):
    """An optional part is not installed; the message names the command that installs it."""

    exit_code = 7

    def __init__(self, what: str, extra: str, *, package: bool = False) -> None:
        self.extra = extra
        command = f"'evercount[{extra}]'"
        if package:
            command = extra
        super().__init__(
            f"{what} needs an optional part that is not installed: pip install {command}"
        )
