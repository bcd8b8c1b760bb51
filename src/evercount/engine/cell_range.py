"""CellRange: some consecutive cells of a query, for streams whose cells are cut into shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from evercount._arrays import IntArray
from evercount._validate import check_whole
from evercount.errors import InputError, ParameterError
from evercount.queries.base import Adjacency, Query


class CellRange(Query):
    """The cells `part` of a query that publishes each cell by itself.

    **Guarantee.** Noise, sums and published numbers of a cell depend on that cell and on public facts only. So streams
    of disjoint parts of one declaration publish together exactly what the whole stream publishes, and its guarantee
    holds for all of them together; the noise of a part is calibrated to the whole query (`engine/build.py`). Test:
    tests/engine/test_cell_range.py::test_parts_together_are_the_whole_stream.

    >>> from evercount import Histogram
    >>> CellRange(Histogram(["a", "b", "c"]), range(1, 3)).labels
    ('b', 'c')
    """

    name: ClassVar[str] = "cell-range"

    def __init__(self, query: Query, part: range) -> None:
        if part.step != 1 or not 0 <= part.start < part.stop <= query.cells:
            raise ParameterError(f"{part} is not a range of the {query.cells} cells")
        if not can_be_cut(query) and len(part) != query.cells:
            raise ParameterError(f"the cells of {query.name!r} cannot be cut into parts: use one part")
        self.query = query
        self.part = part

    @property
    def cells(self) -> int:
        return len(self.part)

    @property
    def grid(self) -> float:
        return self.query.grid

    @property
    def labels(self) -> Sequence[str]:
        return self.query.labels[self.part.start : self.part.stop]

    @property
    def monotone(self) -> bool:
        return self.query.monotone

    def squared_sensitivity(self, adjacency: Adjacency) -> float:
        """As the whole query: an event may lie in the part."""
        return self.query.squared_sensitivity(adjacency)

    def encode(self, state: Any, events: Any) -> tuple[IntArray, Any]:
        """A part takes totals only."""
        raise InputError("a part of the cells takes totals, not events: count the events before the cells are cut")

    def parameters(self) -> dict[str, Any]:
        return {"query": self.query, "part": self.part}


def can_be_cut(query: Query) -> bool:
    """Whether each published number is one cell's running sum, so that cells can be released apart.

    >>> from evercount import Average, Histogram
    >>> can_be_cut(Histogram(10)), can_be_cut(Average())
    (True, False)
    """
    published = query.publishing
    return (
        query.outputs == query.cells
        and query.initial_state() is None
        and not query.whole_ticks
        and published.as_they_are
        and published.kept is None
    )


def cut_cells(cells: int, shards: int) -> list[range]:
    """`shards` ranges of nearly equal length that cover the cells.

    >>> cut_cells(7, 3)
    [range(0, 2), range(2, 4), range(4, 7)]
    """
    check_whole("shards", shards, 1, cells)
    return [range(number * cells // shards, (number + 1) * cells // shards) for number in range(shards)]
