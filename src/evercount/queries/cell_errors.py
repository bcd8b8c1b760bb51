"""The error of one cell's noisy sum at some ticks, as queries need it to make intervals of their own."""

from __future__ import annotations

from dataclasses import dataclass

from evercount._arrays import FloatArray
from evercount._validate import check_count, check_probability
from evercount.bounds import simultaneous_quantile
from evercount.bounds.laplace_tails import laplace_factor


@dataclass(frozen=True, eq=False)
class CellErrors:
    """Noise of a cell, tick by tick. Cells have independent noise of the same law.

    Attributes:
        spread: The size of the noise that quantiles are multiplied with, shape (ticks, 1).
        slack: What rounding can add at most, shape (ticks, 1).
        pure: Whether the noise is a sum of Laplace numbers; else it is normal.
    """

    spread: FloatArray
    slack: FloatArray
    pure: bool

    def factor(self, level: float, cells: int = 1) -> float:
        """How many spreads hold the noise of this number of cells at once, with probability at least `level`."""
        beta, count = 1 - check_probability("level", level), check_count("cells", cells)
        return laplace_factor(beta / count) if self.pure else float(simultaneous_quantile(count, beta))

    def half(self, level: float, cells: int = 1) -> FloatArray:
        """Half-width, shape (ticks, 1), that holds for this number of cells at once with probability at least `level`.

        >>> import numpy as np
        >>> one = CellErrors(np.ones((1, 1)), np.zeros((1, 1)), pure=False)
        >>> float(one.half(0.95)[0, 0].round(3)), float(one.half(0.95, 1000)[0, 0].round(3))
        (1.96, 4.056)
        """
        return self.factor(level, cells) * self.spread + self.slack
