"""TimeRange: the instants whose events a stream counts, and which streams one protected unit can be in at once.

Streams over disjoint ranges cost the largest of their costs, not the sum, where every unit lies in one range:
`composition.proof.md`, section 8.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from evercount.errors import ParameterError
from evercount.privacy.budget import Budget


@dataclass(frozen=True)
class TimeRange:
    """The instants from `start` to before `end`, and how a stream divides them. A declaration gives it to its stream.

    Args:
        start: the first instant, in microseconds since 1970.
        end: the first instant after it; None for a stream without end.
        ticks: the length of a tick in microseconds and, where it follows a calendar, the zone; or "manual".
        periods: where persons are protected period by period, which periods these are: their length, their zone and
            where they begin. Empty elsewhere.
        chain: where each stream starts with what persons have used of their caps in the stream before it, a name for
            all these streams together. Empty elsewhere. Only for streams that `engine/user_counting.py` lets in.

    Raises:
        ParameterError: a range that ends before it starts, or fields of another type.

    >>> year = TimeRange(0, 365 * 86_400_000_000, "86400000000")
    >>> year.key
    [0, '86400000000']
    """

    start: int
    end: int | None
    ticks: str
    periods: str = ""
    chain: str = ""

    def __post_init__(self) -> None:
        whole = [self.start] if self.end is None else [self.start, self.end]
        if any(isinstance(one, bool) or not isinstance(one, int) for one in whole) or whole != sorted(set(whole)):
            raise ParameterError(f"a time range goes from a start to a later end, got {self.start!r} to {self.end!r}")
        texts = (self.ticks, self.periods, self.chain)
        if not all(isinstance(text, str) for text in texts) or not self.ticks:
            raise ParameterError(f"ticks, periods and chain are strings, got {texts!r}")

    @property
    def key(self) -> list[Any]:
        """What belongs to the key of the noise: all that decides what is counted of a person's events.

        The end is left out: the horizon says it in ticks, and a change in the rules of a zone may move it while the
        stream runs. Names of zones stand for themselves, whatever the database of zones says of them.
        """
        persons = [self.periods, self.chain] if self.chain else [self.periods] if self.periods else []
        return [self.start, self.ticks, *persons]

    def holds(self, instant: int) -> bool:
        """Whether the stream counts the events of this instant.

        Args:
            instant: microseconds since 1970.

        Returns:
            Whether it lies in the range.
        """
        return self.start <= instant and (self.end is None or instant < self.end)

    def to_list(self) -> list[Any]:
        """JSON-serialisable; `TimeRange(*list)` is the inverse.

        Returns:
            The fields, in order.
        """
        return [self.start, self.end, self.ticks, self.periods, *([self.chain] if self.chain else [])]


def lies_in_one_range(budget: Budget) -> bool:
    """Whether one protected unit has all its events in one of two disjoint ranges with the same periods. An event has,
    and so has what a person does within one period. A person has not: they come back next year (with the caps of a
    chain of streams that costs no more, see `composition.meetings_of`)."""
    return budget.unit == "event" or budget.period is not None


def met_at_once(ranges: Iterable[TimeRange | None]) -> list[frozenset[int]]:
    """The largest sets of streams that one instant meets, by their numbers; None meets every instant.

    **Guarantee.** For every instant the streams whose range holds it are in one of the sets. Test:
    `tests/privacy/test_successors.py::test_every_instant_is_in_a_set`.

    >>> met_at_once([TimeRange(0, 10, "1"), TimeRange(10, 20, "1"), None, TimeRange(5, None, "1")])
    [frozenset({0, 2, 3}), frozenset({1, 2, 3})]
    """
    known = list(ranges)
    starts = sorted({one.start for one in known if one is not None}) or [0]
    met = [frozenset(number for number, one in enumerate(known) if one is None or one.holds(at)) for at in starts]
    return [one for one, following in pairwise([*met, frozenset()]) if not one <= following]
