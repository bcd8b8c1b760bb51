"""The contract of a noise stream: correlated noise, tick after tick, in units of the query's public grid."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, NoReturn, SupportsIndex

import numpy as np

from evercount._arrays import FloatArray
from evercount.errors import EvercountError, ParameterError


class NoiseStream(ABC):
    """Noise of one stream: row t is scale·(L z)_t for one z that is drawn once and never again.

    `scale` is σ/grid, so noise comes in whole grid units. It does not depend on the data; a stream owns one of these
    and takes from it exactly once per tick.
    """

    rounded: bool  # whether real noise was rounded to whole grid units, which adds grid²/12 to its variance

    @property
    def tick(self) -> int:
        """How many ticks have been taken."""
        raise NotImplementedError

    numeric_delta: float  # the proved price in δ of finite arithmetic

    @abstractmethod
    def take(self, ticks: int) -> FloatArray:
        """Noise of the next `ticks` ticks in grid units, shape (ticks, cells); the same for any split into calls."""

    _last_block: tuple[int, FloatArray] | None = None
    _taking: bool = False

    def rows(self, first: int, ticks: int) -> FloatArray:
        """Noise of ticks first … first+ticks−1: the same numbers again if it is asked again.

        It reaches back to the first tick of the last block that was asked for, so that a step that failed after its
        noise was drawn can be tried again. The array must not be changed.
        """
        start, block = self._last_block if self._last_block is not None else (self.tick + 1, None)
        if not start <= first <= self.tick + 1:
            raise ParameterError(f"noise of tick {first} is gone: the next tick is {self.tick + 1}")
        drawn = None if block is None else block[first - start :]
        missing = ticks if drawn is None else ticks - len(drawn)
        if missing > 0 or drawn is None:
            if self._taking:
                raise EvercountError("the noise was interrupted in the middle of a tick; restore the newest snapshot")
            self._taking = True
            fresh = self.take(missing)
            drawn = np.concatenate([drawn, fresh]) if drawn is not None and len(drawn) else fresh
            self._last_block = (first, drawn)
            self._taking = False
        return drawn[:ticks]

    def __reduce__(self) -> NoReturn:
        raise ParameterError("a noise stream is not pickled: keep dump() where passwords are kept")

    def prepare(self) -> None:  # noqa: B027 - doing nothing is right for most
        """Make noise ahead of its tick where that helps; it changes no number."""

    def expect(self, names: Iterable[str]) -> None:  # noqa: B027 - doing nothing is right for numbered cells
        """Make noise of names ready that will soon be needed, where cells have names; it changes no number."""

    def beside(self, first_cell: int, cells: int) -> NoiseStream:
        """The noise of further cells, numbered from `first_cell` on, under the same key, from tick 1 on."""
        raise ParameterError("the noise of this stream cannot be joined by cells: no other cell has noise of its kind")

    @abstractmethod
    def dump(self) -> dict[str, Any]:
        """Everything needed to continue identically, as JSON values and arrays. It is secret."""


def whole_ticks(ticks: SupportsIndex) -> int:
    number = operator.index(ticks)
    if number < 0:
        raise ParameterError(f"the number of ticks must not be negative, got {number}")
    return number
