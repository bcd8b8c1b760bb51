"""The contract of a noise stream: correlated noise, tick after tick, in units of the query's public grid."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from typing import Any, NoReturn, SupportsIndex

from evercount._arrays import FloatArray
from evercount.errors import ParameterError


class NoiseStream(ABC):
    """Noise of one stream: row t is scale·(L z)_t for one z that is drawn once and never again.

    `scale` is σ/grid, so noise comes in grid units. It does not depend on the data; a stream owns one of these and
    takes from it exactly once per tick.
    """

    name: str
    """What a release says about its noise: "exact" or "insecure-float"."""

    rounded: bool
    """Whether real noise was rounded to whole grid units, which adds grid²/12 to its variance."""

    whole: bool = False
    """Whether the noise is a whole number of grid units, so that sums are added as integers."""

    @property
    def tick(self) -> int:
        """How many ticks have been taken."""
        raise NotImplementedError

    numeric_delta: float
    """The proved price in δ of finite arithmetic; 0 where nothing is proved (floats)."""

    @abstractmethod
    def take(self, ticks: int) -> FloatArray:
        """Noise of the next `ticks` ticks in grid units, shape (ticks, cells); the same for any split into calls."""

    def __reduce__(self) -> NoReturn:
        raise ParameterError("a noise stream is not pickled: keep dump() where passwords are kept")

    def prepare(self) -> None:  # noqa: B027 - doing nothing is right for most
        """Make noise ahead of its tick where that helps; it changes no number."""

    @abstractmethod
    def dump(self) -> dict[str, Any]:
        """Everything needed to continue identically, JSON-serialisable. It is secret."""


def whole_ticks(ticks: SupportsIndex) -> int:
    """A number of ticks to take, or a ParameterError."""
    number = operator.index(ticks)
    if number < 0:
        raise ParameterError(f"the number of ticks must not be negative, got {number}")
    return number
