"""Count, Sum and Average: one number per tick from events that each add a bounded value."""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from evercount._validate import (
    FloatArray,
    IntArray,
    check_count,
    check_name,
    check_number,
    check_positive,
)
from evercount.errors import EventRefused, InputError, ParameterError
from evercount.privacy import Adjacency
from evercount.queries.base import LARGEST_TOTAL, PowerQuery
from evercount.queries.publishing import (
    CellErrors,
    Change,
    ErrorsFromSums,
    Limits,
    Publishing,
    fieller_interval,
)
from evercount.queries.sensitivities import EventNumber, Groups, RowFormat

MOST_UNITS = 2**20
"""Grid units of one event: with 2^43 events a running sum still fits 63 bits, so no sum ever has to
be refused."""

WHOLE_NUMBERS = 1.0
"""The grid on which nothing is rounded: it is the default, and fractions would be lost without a
word."""
NOT_WHOLE = (
    "is not a whole number, and the grid is 1: declare a finer one, such as grid=0.01, or round "
    "the values yourself"
)

NO_SUM = (
    "an average is not a sum over ticks; stream a Sum; in Python, Releases.between has the average "
    "between two ticks"
)
NO_EVENTS = (
    "an average per event does not reveal its number of events, so nothing can be said about the "
    "ticks between two releases; stream a Sum and a Count instead"
)


def check_range(low: float, high: float) -> None:
    """Refuse a range of values that is empty."""
    if not low < high:
        raise ParameterError(f"low must be below high, got low={low}, high={high}")


def as_numbers(values: Any, what: str) -> npt.NDArray[Any]:
    """`values` as an array of numbers, or of true and false, or an InputError."""
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise InputError(f"{what} must be numbers, got rows of different lengths") from error
    if not array.size:
        return np.zeros(array.shape)
    if array.dtype.kind not in "biuf":
        kind = {"U": "text", "S": "bytes"}.get(array.dtype.kind, f"{array.dtype} data")
        raise InputError(f"{what} must be numbers, got {kind}")
    # narrow ones could not hold the limits
    if array.dtype.kind == "f":
        return array.astype(np.float64)
    return array


def whole_numbers(values: Any, low: float, high: float, what: str) -> IntArray:
    """`values` as int64, or an InputError that names the first one that is not a whole number in
    [low, high]."""
    array = as_numbers(values, what)
    with np.errstate(invalid="ignore"):
        bad = ~((array >= low) & (array <= high) & (array == np.floor(array)))
    if bad.any():
        # the offending number may be a count of people's events: name its place, not its value
        at = int(np.argmax(bad))
        raise InputError(
            f"{what} must be whole numbers from {low:g} to {high:g}; item {at} (from 0) is not"
        )
    return array.astype(np.int64)


def values_inside(events: Any, low: float, high: float) -> FloatArray:
    """The values of a tick's events, or an InputError that names the first one outside [low,
    high]."""
    values = np.atleast_1d(as_numbers(events, "the events of a tick"))
    if values.dtype == np.bool_ or (isinstance(events, list | tuple) and bool in map(type, events)):
        raise InputError("the events of a tick must be numbers, got true or false")
    if values.ndim != 1:
        raise InputError(f"a tick is a sequence of values, got an array of shape {values.shape}")
    values = values.astype(np.float64)
    with np.errstate(invalid="ignore"):
        bad = ~((values >= low) & (values <= high))
    if bad.any():
        raise EventRefused(
            int(np.argmax(bad)), f"is outside the declared range [{low:g}, {high:g}]"
        )
    return values


class Count(PowerQuery[float]):
    """How many events so far. A tick is its number of events, or a sequence of such numbers: 3, or
    [1, 1, 1].

    One event adds 1 (or 0).

    `most_per_tick` is a public promise about the largest number of events of a tick. A tick that
    breaks it is refused, and anyone who sees the refusal learns that: promise only what holds
    whatever people do.

    Guarantee. S = 1 for both adjacencies: one event moves one tick's increment by at most 1
    (replace: an event that counts becomes one that does not). Test:
    tests/queries/test_queries_counts.py::test_sensitivity_by_enumeration.

    Args:
        most_per_tick: the promise; None for none.

    Raises:
        ParameterError: the promise is not a whole number of at least 1.

    >>> Count().encode(None, 3)[0].tolist()
    [3]
    """

    name = "count"
    rows = RowFormat()
    cells = 1
    monotone = True

    def __init__(self, most_per_tick: int | None = None) -> None:
        if most_per_tick is not None:
            most_per_tick = check_count("most_per_tick", most_per_tick)
        self.most_per_tick = most_per_tick

    @property
    def event_number(self) -> EventNumber:
        return EventNumber(self.most_per_tick)

    def _sensitivity(self, adjacency: Adjacency, power: int) -> float:
        return 1.0

    def check_totals(self, totals: IntArray) -> None:
        whole_numbers(
            totals, 0, self.most_per_tick or LARGEST_TOTAL, "the number of events of a tick"
        )

    def encode(self, state: Any, events: Any) -> tuple[IntArray, Any]:
        number = whole_numbers(
            events, 0, self.most_per_tick or LARGEST_TOTAL, "the number of events of a tick"
        )
        if number.ndim > 1:
            raise InputError(
                "a tick of Count is a number of events, or a sequence of them, got shape "
                f"{number.shape}"
            )
        total = whole_numbers(
            sum(number.reshape(-1).tolist()), 0, self.most_per_tick or LARGEST_TOTAL, "the sum"
        )
        return total.reshape(1), state

    def encode_run(self, state: Any, ticks: Iterable[Any]) -> tuple[IntArray, Any]:
        values = ticks if isinstance(ticks, np.ndarray | list | tuple) else list(ticks)
        if isinstance(values, list | tuple) and any(isinstance(tick, Sized) for tick in values):
            return super().encode_run(state, values)
        numbers = whole_numbers(
            values, 0, self.most_per_tick or LARGEST_TOTAL, "numbers of events per tick"
        )
        if numbers.ndim != 1:
            raise InputError(
                "a run of Count is one number of events per tick, got an array of shape "
                f"{numbers.shape}"
            )
        return numbers[:, np.newaxis], state


class Sum(PowerQuery[float]):
    """The sum so far of one value per event, each in [low, high], on a public grid.

    A tick's input is the sequence of its events' values (a single number is one event). `low` and
    `high` must be multiples of `grid`. With grid 1, the default, values are whole numbers and all
    others are refused: rounded to whole numbers, a thousand values of 0.3 would add up to 0. With
    another grid they are rounded to the nearest multiple of it, and what is published, with its
    intervals, is the sum of the rounded values: each may be off by half of `grid`.

    Guarantee. In grid units an event adds a whole number from ⌊low⌉ to ⌊high⌉, the roundings that
    the encoder makes of low/grid and high/grid (division and rounding are monotone). S =
    max(⌊low⌉², ⌊high⌉²)·grid² for add-remove and (⌊high⌉−⌊low⌉)²·grid² for replace: differences are
    taken of whole numbers, so nothing cancels. Tests:
    tests/queries/test_queries_counts.py::test_sensitivity_by_enumeration and
    tests/queries/test_queries_counts.py::test_sensitivity_is_what_the_encoder_can_do_on_any_grid.

    Args:
        low: the lowest legal value, a multiple of `grid`.
        high: the highest legal value, a multiple of `grid`.
        grid: the public unit that values are rounded to; 1 for whole numbers.

    Raises:
        ParameterError: the range is empty, or an end is not on the grid.

    >>> Sum(0, 4, 0.5).squared_sensitivity("add-remove")
    16.0
    """

    name = "sum"
    cells = 1
    grid = 1.0
    labels = ("sum",)

    def __init__(self, low: float = 0.0, high: float = 1.0, grid: float = 1.0) -> None:
        self.low = check_number("low", low)
        self.high = check_number("high", high)
        self.grid = check_positive("grid", grid)
        check_range(low, high)
        self._whole = self.grid == WHOLE_NUMBERS
        self._low = round(low / grid)
        self._high = round(high / grid)
        if (
            max(abs(self._low * self.grid - self.low), abs(self._high * self.grid - self.high))
            > 1e-9 * self.grid
        ):
            raise ParameterError(
                f"low={low} and high={high} must be whole multiples of grid={grid}"
            )
        if max(abs(self._low), abs(self._high)) > MOST_UNITS:
            raise ParameterError(
                f"grid={grid} is too fine for [{low}, {high}]: an event may add at most 2^20 units"
            )

    def _sensitivity(self, adjacency: Adjacency, power: int) -> float:
        if adjacency == "add-remove":
            change = max(abs(self._low), abs(self._high))
        else:
            change = self._high - self._low
        return float((change * self.grid) ** power)

    @property
    def monotone(self) -> bool:
        return self._low >= 0

    def _units(self, events: Any) -> IntArray:
        values = values_inside(events, self.low, self.high)
        units = np.rint(values / self.grid)
        if self._whole and not np.array_equal(units, values):
            raise EventRefused(int(np.argmax(units != values)), NOT_WHOLE)
        return units.astype(np.int64)

    @property
    def rows(self) -> RowFormat:
        limits = (self.low, self.high, self.grid)
        return RowFormat(("value",), range=limits, whole=self._whole, totals=self._totals_of_rows)

    def _totals_of_rows(
        self, tick: IntArray, cell: IntArray, events: IntArray, units: IntArray
    ) -> Groups:
        return tick, cell, units

    def encode(self, state: Any, events: Any) -> tuple[IntArray, Any]:
        return np.asarray([self._units(events).sum()], dtype=np.int64), state


class Average(Sum):
    """The running average of values in [low, high]: per tick (the paper's: sum so far / tick) or
    per event.

    per="tick" divides the noisy sum by the public tick number, so its std is that of the sum over
    t. per="event" keeps two running sums, of (value − mid) and of 1, with mid = (low+high)/2
    rounded to the grid, and publishes mid + their ratio; its std is the first-order one at the
    published values, its intervals are Fieller's and hold at every tick.

    Guarantee. per="tick": S of `Sum` (post-processing). per="event": with a = max(high−mid,
    mid−low), half the range up to the grid, S = a² + 1 for add-remove; for replace the larger of
    that and (high−low)² (an event may become no event). Test:
    tests/queries/test_queries_counts.py::test_sensitivity_by_enumeration.

    Args:
        per: "tick" or "event": what the sum is divided by.

    Raises:
        ParameterError: as `Sum`; with per="event" the grid must divide 1.

    >>> Average(0, 4, per="event").cells
    2
    """

    name = "average"
    outputs = 1
    labels = ("average",)
    monotone = False

    def __init__(
        self,
        low: float = 0.0,
        high: float = 1.0,
        grid: float = 1.0,
        per: Literal["tick", "event"] = "tick",
    ) -> None:
        super().__init__(low, high, grid)
        check_name("kind of average", per, ("tick", "event"))
        if per == "event" and 1 / self.grid != round(1 / self.grid):
            raise ParameterError(f"per='event' needs a grid that divides 1, got {grid}")
        self.per = per
        self._mid = (self._low + self._high) // 2
        self._farthest = max(self._high - self._mid, self._mid - self._low)
        self._one = round(1 / self.grid)
        self.cells = 2 if per == "event" else 1

    def _sensitivity(self, adjacency: Adjacency, power: int) -> float:
        if self.per == "tick":
            return super()._sensitivity(adjacency, power)
        absent = self._farthest**power + self._one**power
        if adjacency == "add-remove":
            units = absent
        else:
            units = max(absent, (self._high - self._low) ** power)
        return float(units * self.grid**power)

    def _totals_of_rows(
        self, tick: IntArray, cell: IntArray, events: IntArray, units: IntArray
    ) -> Groups:
        if self.per == "tick":
            return super()._totals_of_rows(tick, cell, events, units)
        both = np.stack([units - self._mid * events, events * self._one], axis=1)
        return np.repeat(tick, 2), np.tile(np.asarray([0, 1]), len(tick)), both.ravel()

    def encode(self, state: Any, events: Any) -> tuple[IntArray, Any]:
        if self.per == "tick":
            return super().encode(state, events)
        units = self._units(events)
        return np.asarray(
            [(units - self._mid).sum(), len(units) * self._one], dtype=np.int64
        ), state

    @property
    def publishing(self) -> Publishing:
        if self.per == "tick":
            return Publishing(
                self._per_tick,
                weights=lambda ticks: 1.0 / ticks,
                why_no_views=NO_SUM,
                change=self._average_between,
            )
        return Publishing(
            self._per_event,
            why_no_views=NO_EVENTS,
            change=self._nothing_between,
            kept=ErrorsFromSums(self._output_scale, self._interval),
        )

    def _per_tick(self, first_tick: int, noisy: FloatArray) -> FloatArray:
        return noisy / np.arange(first_tick, first_tick + len(noisy))[:, np.newaxis]

    def _per_event(self, first_tick: int, noisy: FloatArray) -> FloatArray:
        events = np.maximum(noisy[:, 1], 1.0)
        return np.clip(self._mid * self.grid + noisy[:, 0] / events, self.low, self.high)[
            :, np.newaxis
        ]

    def _average_between(
        self, earlier: int, later: int, low: FloatArray, high: FloatArray
    ) -> Change:
        ticks = max(later - earlier, 1)
        return (later * high - earlier * low) / ticks, np.ones(1) / ticks

    def _nothing_between(
        self, earlier: int, later: int, low: FloatArray, high: FloatArray
    ) -> Change:
        raise ParameterError(NO_EVENTS)

    def _output_scale(self, sums: FloatArray, values: FloatArray) -> FloatArray:
        """Compute the factor from the std of a cell to that of the ratio at the published
        values."""
        events = np.maximum(sums[:, 1:2], 1.0)
        return np.asarray(np.sqrt(1 + (values - self._mid * self.grid) ** 2) / events)

    def _interval(
        self, values: FloatArray, sums: FloatArray, errors: CellErrors, level: float
    ) -> Limits:
        """Compute Fieller's interval of the ratio.

        **Guarantee.** At every tick with at least one event it holds the true average of the
        values, rounded to the grid, with probability at least `level`. Proof: `averages.proof.md`.
        Test: tests/queries/test_queries_averages.py::test_intervals_of_averages_per_event_hold.
        """
        mid = self._mid * self.grid
        # the mixed sum of two Laplace noises has no quantile here: each noise by itself
        if errors.pure:
            normal = np.zeros_like(errors.spread)
            linear = errors.half(level, 2)
        else:
            normal = errors.factor(level) * errors.spread
            linear = errors.slack + errors.step
        least = self._low * self.grid - mid
        most = self._high * self.grid - mid
        low, high = fieller_interval(sums[:, :1], sums[:, 1:], normal, linear, least, most)
        return np.minimum(low + mid, values), np.maximum(high + mid, values)
