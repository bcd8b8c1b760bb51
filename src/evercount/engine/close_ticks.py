"""close_ticks: totals in, released rows out. Every door closes its ticks here; noise is drawn nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from evercount.engine.release import Releases
from evercount.engine.release_table import LEVEL, ReleaseTable
from evercount.engine.stream import Stream
from evercount.engine.tick_totals import TickEvents, TickTotals
from evercount.engine.user_counting import Capped
from evercount.errors import InputError

NUMBERS_AT_A_TIME = 1 << 17  # published numbers of one table: memory stays bounded, and noise is drawn in long blocks

Starts = Callable[[int, int], Sequence[int] | None]
"""From (first tick, number of ticks) to the instants at which they begin; None where ticks are closed by hand."""


def close_ticks(
    stream: Stream,
    totals: TickTotals | TickEvents,
    starts: Starts,
    *,
    level: float = LEVEL,
    numbers: int = NUMBERS_AT_A_TIME,
) -> Iterator[ReleaseTable]:
    """Release the ticks of `totals`, in order, as tables of a bounded size. Users are capped already.

    **Guarantee.** The published numbers are those of `Stream.step_totals` tick by tick: a function of the stream's
    parameters, its secret and the totals, whatever the sizes of the tables. Test:
    tests/contracts/test_same_table.py::test_every_door_publishes_the_same_table.
    """
    if totals.first_tick != stream.tick + 1:
        raise InputError(f"the totals begin at tick {totals.first_tick}, and the stream's next is {stream.tick + 1}")
    capped: Capped = "by door" if stream.budget.unit == "user" and stream.query.people is None else False
    for releases in _released(stream, totals, capped, numbers):
        yield releases.table(level, starts(releases.first_tick, len(releases)))


def _released(stream: Stream, totals: TickTotals | TickEvents, capped: Capped, numbers: int) -> Iterator[Releases]:
    """The ticks, some at a time; a table without rows where there are no ticks of events."""
    if isinstance(totals, TickTotals):
        for rows in totals.blocks(numbers):
            yield stream.run_totals(rows, capped=capped)
        return
    done = 0
    while done < len(totals) or not done:
        some = max(1, numbers // len(stream.labels))
        yield stream.run(totals.ticks[done : done + some], capped=capped)
        done += some
