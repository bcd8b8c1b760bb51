"""Every exception that evercount raises on purpose.

    EvercountError
    ├── ParameterError (ValueError)      a parameter is outside its domain: nothing was built
    │   ├── UnknownName                  a name is not in the list; carries the nearest and all of them
    │   └── TooLarge                     the request is legal but would not fit; carries what it would need
    ├── InputError (ValueError)          data offered to a stream is not legal: the stream is unchanged
    │   └── BadRows                      rows of a file that are no events; carries their number and the first few
    ├── HorizonReached                   a step past the declared horizon: the stream is unchanged
    ├── AlreadyReleased                  a closed tick was offered again with different data
    ├── BudgetExceeded                   a ledger was asked to spend more than it has
    ├── SnapshotError                    a snapshot is corrupt, truncated, foreign or newer than this program
    ├── StoreError                       the durable store refuses: locked, tampered with, rolled back, unreadable
    ├── MessageRejected                  a message of a local-model client is malformed or out of range
    └── MissingExtra (ImportError)       an optional part is not installed; carries the install command

Messages carry the offending value and the remedy. They never carry a raw count of the stream.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class EvercountError(Exception):
    """Base of all errors that evercount raises on purpose."""

    exit_code = 1
    """What a command that fails with it exits with: one code for each kind."""


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
    """Rows that are no events, and no leave to skip them; nothing was published.

    `bad` is their number, `shown` are the first of them.
    """

    def __init__(self, name: str, bad: int, shown: tuple[object, ...]) -> None:
        self.bad, self.shown = bad, shown
        listed = "".join(f"\n  {reject}" for reject in shown)
        more = f"\n  … and {bad - len(shown)} more" if bad > len(shown) else ""
        super().__init__(
            f"{name} has {bad} bad {'row' if bad == 1 else 'rows'}; nothing was published:{listed}{more}\nMend them, "
            "or leave them out with --skip-bad; --rejects FILE writes all of them to a file."
        )


class HorizonReached(EvercountError):
    """A step past the declared horizon; the stream is unchanged."""

    exit_code = 4

    def __init__(self, horizon: int) -> None:
        self.horizon = horizon
        super().__init__(
            f"the stream has released all {horizon} ticks of its horizon and refuses tick {horizon + 1}: the noise "
            "is calibrated to that many. Start a new stream (its budget adds to the spent one) or, next time, use "
            "horizon=None for a stream without end."
        )


class AlreadyReleased(EvercountError):
    """A closed tick was offered again with different data; releasing it would reveal the difference."""

    exit_code = 5


class BudgetExceeded(EvercountError):
    """A ledger was asked to spend more than it has; nothing was recorded."""

    exit_code = 6


class SnapshotError(EvercountError):
    """A snapshot is corrupt, truncated, foreign or newer than this program; nothing was restored."""

    exit_code = 5


class StoreError(EvercountError):
    """The durable store refuses: locked by another writer, tampered with, rolled back or unreadable."""

    exit_code = 5


class MessageRejected(EvercountError, ValueError):
    """A message of a local-model client is malformed or out of range; the aggregate is unchanged."""

    exit_code = 3


class MissingExtra(EvercountError, ImportError):
    """An optional part is not installed; the message names the command that installs it."""

    exit_code = 7

    def __init__(self, what: str, extra: str, *, package: bool = False) -> None:
        self.extra = extra
        command = extra if package else f"'evercount[{extra}]'"
        super().__init__(f"{what} needs an optional part that is not installed: pip install {command}")
