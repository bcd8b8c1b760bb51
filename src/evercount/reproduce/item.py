"""What an item of the reproduction is: its parameters, what it may use, and the result it hands back."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row: TypeAlias = dict[str, Any]
"""One line of a table: column → a number, a string or None."""


def _silent(done: int, total: int) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True)
class Context:
    """What a running item may use besides its parameters."""

    seed: int = 0
    backend: str = "numpy"
    device: str = "cpu"
    checkpoints: Path | None = None
    """Where finished batches of a simulation are kept until the item is done; None: nowhere."""
    progress: Callable[[int, int], None] = _silent


@dataclass(frozen=True, eq=False)
class Result:
    """What an item found: tables, figures, the paper's own numbers and what to think of the difference."""

    tables: Mapping[str, Sequence[Row]]
    findings: Sequence[str]
    verdict: str
    paper: Mapping[str, Any] = field(default_factory=dict)
    figures: Mapping[str, Callable[[], Figure]] = field(default_factory=dict)
    """Name → a function that draws; called only where matplotlib is installed."""


@dataclass(frozen=True, eq=False)
class Item:
    """One figure, table or remark of the paper.

    `full` and `quick` are the parameters of the two sizes; a "repetitions" among them can be overridden.
    """

    name: str
    title: str
    shows: str
    run: Callable[[Mapping[str, Any], Context], Result]
    full: Mapping[str, Any] = field(default_factory=dict)
    quick: Mapping[str, Any] = field(default_factory=dict)

    def parameters(self, quick: bool = False, repetitions: int | None = None) -> dict[str, Any]:
        """The parameters of one run."""
        chosen = {**self.full, **self.quick} if quick else dict(self.full)
        if repetitions is not None and "repetitions" in chosen:
            chosen["repetitions"] = repetitions
        return chosen
