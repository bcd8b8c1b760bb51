"""EndedStream: a stream that can be read and never releases again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.tick_marks import TickMark

Ending = Literal["retired", "quarantined"]


@dataclass(frozen=True)
class EndedStream:
    """A stream without secret, state and sums in the memory of the process: there is nothing to release from."""

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
    marks: Sequence[TickMark] = ()

    def __post_init__(self) -> None:
        if not self.readable:  # keys that became public in a hidden history are a part of it
            object.__setattr__(self, "labels", tuple(self.declaration.query.labels))

    @property
    def name(self) -> str:
        return self.declaration.name
