"""Streams of some of the cells of a query, for shards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from evercount._validate import FloatArray, IntArray, check_whole
from evercount.engine.derived_query import SensitivityOfQuery
from evercount.errors import InputError, ParameterError
from evercount.queries.base import Query


class CellRange(SensitivityOfQuery, Query[FloatArray]):
    """The cells `part` of a query that publishes each cell by itself.

    **Guarantee.** Noise, sums and published numbers of a cell depend on that cell and on public
    facts only. So streams of disjoint parts of one declaration publish together exactly what the
    whole stream publishes, and its guarantee holds for all of them together; the noise of a part is
    calibrated to the whole query (`engine/build.py`). Test:
    tests/engine/test_cell_range.py::test_parts_together_are_the_whole_stream.
    """

    name: ClassVar[str] = "cell-range"
    cells = 0

    def __init__(self, query: Query, part: range) -> None:
        if part.step != 1 or not 0 <= part.start < part.stop <= query.cells:
            raise ParameterError(f"{part} is not a range of the {query.cells} cells")
        if not can_be_cut(query) and len(part) != query.cells:
            raise ParameterError(
                f"the cells of {query.name!r} cannot be cut into parts: use one part"
            )
        self.query = query
        self.part = part
        self.cells = len(part)

    @property
    def labels(self) -> Sequence[str]:
        return self.query.labels[self.part.start : self.part.stop]

    @property
    def monotone(self) -> bool:
        return self.query.monotone

    def encode(self, state: Any, events: Any) -> tuple[IntArray, Any]:
        raise InputError(
            "a part of the cells takes totals, not events: count the events before the cells are "
            "cut"
        )

    def parameters(self) -> dict[str, Any]:
        return {"query": self.query, "part": self.part}


def can_be_cut(query: Query) -> bool:
    """Whether each published number is one cell's running sum, so that cells can be released
    apart."""
    sums = (
        query.publishing.as_they_are
        and query.publishing.kept is None
        and query.outputs == query.cells
    )
    return sums and query.initial_state() is None and not query.whole_ticks


def cut_cells(cells: int, shards: int) -> list[range]:
    """`shards` ranges of nearly equal length that cover the cells."""
    check_whole("shards", shards, 1, cells)
    return [
        range(number * cells // shards, (number + 1) * cells // shards) for number in range(shards)
    ]
