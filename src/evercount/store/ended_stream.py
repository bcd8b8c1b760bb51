"""EndedStream: a stream that can be read and never releases again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from evercount.declare.declaration import StreamDeclaration

Ending = Literal["retired", "quarantined"]


@dataclass(frozen=True)
class EndedStream:
    """A stream without secret, state and sums in the memory of the process: there is nothing to release from.

    Args:
        id: its number in the database.
        declaration: as declared.
        closed: how many ticks the database has of it.
        ending: "retired" for good, or "quarantined" until the operator puts the newest database back or retires it.
        reason: why; may be shown to anyone who may read the stream.
        guarantee: what its releases promise.
        noise: the kind of noise of its releases.
        readable: whether its history may be shown.
        successor: the stream that goes on in its place, if there is one.
        labels: one label per number that its last tick published; the declared ones only, where the history is hidden.
    """

    id: int
    declaration: StreamDeclaration
    closed: int
    ending: Ending
    reason: str
    guarantee: str
    noise: str
    readable: bool = True
    successor: str | None = None
    labels: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not self.readable:  # keys that became public in a hidden history are a part of it
            object.__setattr__(self, "labels", tuple(self.declaration.query.labels))

    @property
    def name(self) -> str:
        """As declared."""
        return self.declaration.name
