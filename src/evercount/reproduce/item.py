"""An item of the reproduction: parameters, the context that it runs in, its result, and the looks
of figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from evercount.factorizations import BUILT_IN, FACTORIZATIONS
from evercount.plotting import COLOURS as PALETTE
from evercount.plotting import label_lines

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Figure
else:
    Figure = Any  # matplotlib is an extra

Step = TypeVar("Step")
Parameters: TypeAlias = Mapping[str, Any]
Row: TypeAlias = dict[str, Any]  # one line of a table: column → a number, a string or None


Progress: TypeAlias = Callable[[int, int], None]  # called with (steps done, all steps)


def silent(*progress: Any) -> None:
    """The progress callback when nobody watches."""


@dataclass(frozen=True)
class Context:
    seed: int = 0
    progress: Progress = silent
    folder: Path | None = None  # where an item keeps what an interrupted run of it needs to go on

    def steps(self, steps: Sequence[Step]) -> Iterator[Step]:
        """Go through the steps of an item and report progress before each."""
        for number, step in enumerate(steps):
            self.progress(number, len(steps))
            yield step


@dataclass(frozen=True, eq=False)
class Result:
    """What an item returns: tables, a verdict in one line, the paper's own numbers and figures."""

    tables: Mapping[str, Sequence[Row]]
    verdict: str
    paper: Mapping[str, Any] = field(default_factory=dict)
    figures: Mapping[str, Callable[[], Figure]] = field(default_factory=dict)
    """Name → a function that draws; called only where matplotlib is installed."""


Run: TypeAlias = Callable[[Parameters, Context], Result]


@dataclass(frozen=True, eq=False)
class Item:
    """One figure, table or remark of the paper."""

    # `full` are the parameters; `quick` are those that differ in a quick run. "repetitions" can be
    # overridden, and so can "device", where PyTorch simulates; "registered" are the names of the
    # user's own factorizations.

    name: str
    title: str
    shows: str
    full: Parameters
    quick: Parameters
    run: Run

    def parameters(
        self, quick: bool = False, repetitions: int | None = None, device: str | None = None
    ) -> dict[str, Any]:
        if quick:
            parameters = {**self.full, **self.quick}
        else:
            parameters = dict(self.full)
        if repetitions is not None and "repetitions" in parameters:
            parameters["repetitions"] = repetitions
        if "device" in parameters:
            parameters["device"] = device
        if "registered" in parameters:
            parameters["registered"] = sorted(FACTORIZATIONS.keys() - set(BUILT_IN))
        return parameters


def item(
    name: str, title: str, shows: str, full: Parameters, quick: Parameters = MappingProxyType({})
) -> Callable[[Run], Item]:
    return partial(Item, name, title, shows, full, quick)


_DRAWN = (
    "balanced",
    "binary-tree",
    "normalized",
    "unbounded",
    "honaker-full",
    "square-root",
    "honaker",
    "true",
)
COLOURS: Mapping[str, str] = dict(zip(_DRAWN, PALETTE, strict=True), optimal="#000000")
"""One colour per mechanism, the same in every figure."""


def finish(
    axes: Any,
    x: str,
    y: str,
    title: str,
    legend: bool | dict[str, Any] = True,
    bottom: float | None = None,
    powers: int = 0,
) -> None:
    """Titles, where the y axis begins, and the names of the curves: at their ends, or in a legend
    that has a place. With `powers` the x axis names every so many powers of two."""
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.set_title(title, fontsize=9, loc="left")
    axes.tick_params(labelsize=8)
    if bottom is not None:
        axes.set_ylim(bottom=bottom)
    if powers:
        from matplotlib.ticker import MultipleLocator

        axes.xaxis.set_major_locator(MultipleLocator(powers))
        axes.xaxis.set_major_formatter(lambda power, _: f"$2^{{{power:.0f}}}$")
    if isinstance(legend, dict):
        axes.legend(frameon=False, fontsize=8, **legend)
    elif legend:
        label_lines(axes)


def plain_marks(axis: Any, marks: Sequence[float]) -> None:
    """Label these places of a logarithmic axis with plain numbers, and no others."""
    axis.set_ticks(marks, [f"{mark:g}" for mark in marks])
    axis.set_ticks([], minor=True)
