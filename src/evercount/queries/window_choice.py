"""Which method a window runs on: the exact worst error of each, and a quick search for the smallest."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np

from evercount._arrays import FloatArray, IntArray
from evercount.factorizations import Balanced, Factorization, factorization, tick_grid

Method = Literal["auto", "difference", "periods", "inputs", "nodes"]

SEARCH_ERROR = 1e-4
"""The search for the largest error may miss it by less than this, relatively (`largest` says why)."""
_GOLDEN = (3 - 5**0.5) / 2


def window_errors(width: int, horizon: int | None) -> dict[Method, float]:
    """The largest std of a window over σ for each method: over the horizon, or over 2^20 ticks and 64 windows."""
    return {name: error() for name, (_, error) in _candidates(width, horizon).items()}


@lru_cache(maxsize=256)
def best_method(width: int, horizon: int | None) -> Method:
    """The method with the smallest of `window_errors`; of equal ones the first.

    A full search takes seconds for wide windows. So the methods are searched in the order of a quick lower bound, and
    those whose lower bound is above the smallest error so far are not searched: the choice is that of a full search.
    """
    candidates = _candidates(width, horizon)
    least = {name: bound() for name, (bound, _) in candidates.items()}
    errors: dict[Method, float] = {}
    for name in sorted(candidates, key=lambda name: least[name]):
        if least[name] <= min(errors.values(), default=np.inf) * (1 + SEARCH_ERROR):
            errors[name] = candidates[name][1]()
    return min((name for name in candidates if name in errors), key=lambda name: errors[name])


def _candidates(width: int, horizon: int | None) -> dict[Method, tuple[Callable[[], float], Callable[[], float]]]:
    """For each method, a quick lower bound of its largest error, and the error itself."""
    last = max(64 * width, 2**20) if horizon is None else horizon
    inputs = float(np.sqrt(min(width, last)))
    difference = _Difference(width, last, horizon is None)
    periods = _Periods(width, min(last, 2 * width))  # later windows repeat the second period
    return {
        "inputs": (lambda: inputs, lambda: inputs),
        "difference": (difference.lower_bound, difference.largest),
        "periods": (periods.lower_bound, periods.largest),
    }


@dataclass(frozen=True)
class _WindowError(ABC):
    """The error of windows of one method over the ticks up to `last`."""

    width: int
    last: int

    @abstractmethod
    def running(self) -> Factorization:
        """The running sums that windows are made of."""

    @abstractmethod
    def full(self, after: IntArray) -> FloatArray:
        """Stds of windows that end this many ticks after the first full one."""

    @abstractmethod
    def probes(self) -> list[int]:
        """Places near the largest error of `full`: they make the lower bound, and only its quality depends on them."""

    def lower_bound(self) -> float:
        """The largest error at a few places."""
        places = sorted({min(max(place, 1), self.last - self.width) for place in self.probes()})
        if self.last <= self.width:
            return self.largest()
        return float(self.full(np.asarray(places)).max()) * self.running().column_norm

    def largest(self) -> float:
        """The largest error."""
        running = self.running()
        # until the first window is full it is a running count
        worst = float(running.row_norms(tick_grid(min(self.width, self.last))).max())
        if self.last > self.width:
            worst = max(worst, largest(self.full, _hills(self.last - self.width))[1])
        return worst * running.column_norm


@dataclass(frozen=True)
class _Difference(_WindowError):
    endless: bool

    def running(self) -> Factorization:
        return _running(None if self.endless else self.last)

    def full(self, after: IntArray) -> FloatArray:
        running = self.running()
        return np.concatenate([running.difference_norms_to(self.width + k, np.asarray([k])) for k in after.tolist()])

    def probes(self) -> list[int]:
        return [self.last - self.width] if self.endless else [self.width // 3]


@dataclass(frozen=True)
class _Periods(_WindowError):
    def running(self) -> Factorization:
        return _period(self.width)

    def full(self, after: IntArray) -> FloatArray:
        """Tails of the first period after this many ticks, each with as many ticks of the second."""
        period = self.running()
        return np.asarray(np.hypot(period.row_norms(after), period.difference_norms_to(self.width, after)))

    def probes(self) -> list[int]:
        return [self.width // 16]


@lru_cache(maxsize=2)
def _running(horizon: int | None) -> Factorization:
    return factorization("unbounded" if horizon is None else None, horizon)


@lru_cache(maxsize=2)
def _period(width: int) -> Factorization:
    return Balanced(width)


def _hills(last: int) -> IntArray:
    """A few numbers from 1 to `last`, dense at both ends: enough to tell which hill of a smooth error is highest."""
    steps = np.geomspace(1, last, 13).astype(np.int64)
    return np.unique(np.concatenate([steps, last + 1 - steps[6:11:4]]))


def largest(
    values: Callable[[IntArray], FloatArray], places: IntArray, known: FloatArray | None = None
) -> tuple[int, float]:
    """(first place, value) of the maximum: the best of the rising `places`, then golden sections around it.

    Between two neighbours of the best place the value must have one hill. The search ends when the place is known to
    one in a hundred, measured from zero: the value of a hill that wide is then known to about one in 100,000.
    `known`: the values at `places`, where they have been computed already.
    """
    known_values = dict(zip(places.tolist(), (values(places) if known is None else known).tolist(), strict=True))

    def look(*asked: int) -> list[float]:
        new = [place for place in asked if place not in known_values]
        if new:
            known_values.update(zip(new, values(np.asarray(new)).tolist(), strict=True))
        return [known_values[place] for place in asked]

    at = int(np.argmax(list(known_values.values())))
    low, high = int(places[max(at - 1, 0)]), int(places[min(at + 1, len(places) - 1)])
    while high - low > max(4, high // 100):
        step = round((high - low) * _GOLDEN)
        left, right = look(low + step, high - step)
        low, high = (low, high - step) if left >= right else (low + step, high)
    if high - low <= 4:
        look(*range(low, high + 1))
    most = max(known_values.values())
    return min(place for place, size in known_values.items() if size >= most - 1e-13 * abs(most)), most
