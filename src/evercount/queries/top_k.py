"""TopK: the keys with the largest noisy counts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from evercount.errors import ParameterError
from evercount.queries.histogram import Histogram


class TopK(Histogram):
    """The k keys with the largest noisy counts; k = 1 is the paper's top-1.

    The stream releases the whole noisy histogram; `Release.top` picks from it. That is post-processing, so it costs
    nothing.

    Guarantee. Privacy: as Histogram. Error: `TopKey`. If every cell of the tick is within a of its true count, then
    the i-th published value is within a of the true i-th largest count. Proof: `histogram.proof.md`. Test:
    tests/queries/test_queries_top.py::test_top_values_obey_the_simultaneous_bound.

    Args:
        k: how many keys `Release.top` gives by default.

    Raises:
        ParameterError: as `Histogram`, or k is not between 1 and the number of keys.

    >>> TopK(["north", "south", "east"], k=2).k
    2
    """

    name: ClassVar[str] = "top-k"

    def __init__(
        self,
        keys: Sequence[str] | int,
        k: int = 1,
        max_keys_per_event: int = 1,
        removals: bool = False,
        unknown: Literal["refuse", "other"] = "refuse",
    ) -> None:
        super().__init__(keys, max_keys_per_event, removals, unknown)
        self._k = self._checked_k(k)

    def with_keys(self, keys: Sequence[Any]) -> Histogram:
        raise ParameterError("'top-k' keeps its keys: declare a histogram, whose largest keys `Release.top` gives, too")

    def parameters(self) -> dict[str, Any]:
        return {**super().parameters(), "k": self._k}
