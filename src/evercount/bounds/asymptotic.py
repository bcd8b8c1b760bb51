"""Lower bounds that are known only up to a constant: growth expressions, never numbers to compare an error with.

The paper's section on lower bounds proves Ω-statements. A `Growth` keeps the expression and its conditions;
`evaluate` gives the expression's value, which shows how the error must grow but is no bound: the constant in
front is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field

from evercount._validate import check_positive
from evercount.errors import ParameterError


@dataclass(frozen=True)
class Growth:
    """An Ω-statement: `quantity` grows at least like `expression`, under `conditions`."""

    name: str
    quantity: str
    expression: str
    parameters: tuple[str, ...]
    conditions: str
    where: str
    _formula: Callable[..., float] = field(repr=False, compare=False)
    caveat: str = ""

    def evaluate(self, **params: float) -> float:
        """The value of the growth expression. Not a lower bound: the constant in front of it is unknown."""
        if set(params) != set(self.parameters):
            raise ParameterError(
                f"{self.name} needs exactly {', '.join(self.parameters)}, not {', '.join(sorted(params)) or 'nothing'}."
            )
        values = {key: check_positive(key, value) for key, value in params.items()}
        formula: Callable[..., float] = self._formula
        try:
            value = formula(**values)
        except (ValueError, ZeroDivisionError, OverflowError):
            value = math.nan
        if not 0 < value < math.inf:
            raise ParameterError(f"{self.expression} has no positive value at {params}: {self.conditions}.")
        return value

    def __str__(self) -> str:
        return f"{self.quantity} = Ω({self.expression}), {self.conditions}"


def _cube_root(T: float, epsilon: float) -> float:
    return math.cbrt(T) / math.cbrt((epsilon * math.log(epsilon * T)) ** 2)


def _approximate(T: float, epsilon: float, d: float) -> float:
    """min{T^{1/3}/(ε^{2/3} log^{2/3}(εT)), √d/(ε log d), T} of Jain et al., maximum sum."""
    return min(_cube_root(T, epsilon), math.sqrt(d) / (epsilon * math.log(d)), T)


def _pure(T: float, epsilon: float, d: float) -> float:
    return min(math.sqrt(T / epsilon), d / epsilon, T)


_APPROXIMATE = "ε in (0,1), δ > 0, δ = o(ε/T), T large enough, εT > 1"
_PURE = "ε in (0,1), δ = 0, T large enough"
_REDUCTION = (
    "the reduction answers with the count of the most frequent letter, but the maximum sum needs the largest "
    "coordinate, which adds up many letters: a claim, not a proof"
)

GROWTHS: dict[str, Growth] = {
    growth.name: growth
    for growth in (
        Growth(
            "counting",
            "max over streams of E‖error‖²_∞",
            "ln²(T)/ε²",
            ("T", "epsilon"),
            "ε and δ below a small constant, noise independent of the data, streams fixed in advance, T > 1",
            "Theorem 3 (lower bound)",
            lambda T, epsilon: (math.log(T) / epsilon) ** 2,
        ),
        Growth(
            "maximum-sum",
            "error α of the d-dimensional maximum sum",
            "min{T^(1/3)/(ε^(2/3)·log^(2/3)(εT)), √d/(ε·log d), T}",
            ("T", "epsilon", "d"),
            _APPROXIMATE + ", d > 1",
            "Section 'Lower bounds', quoted from Jain et al.",
            _approximate,
        ),
        Growth(
            "maximum-sum-pure",
            "error α of the d-dimensional maximum sum",
            "min{√(T/ε), d/ε, T}",
            ("T", "epsilon", "d"),
            _PURE,
            "Section 'Lower bounds', quoted from Jain et al.",
            _pure,
        ),
        Growth(
            "minimum-cut",
            "error α of the minimum cut, or of the minimum degree, of a multigraph",
            "min{T^(1/3)/(ε^(2/3)·log^(2/3)(εT)), √n/(ε·log n), T}",
            ("T", "epsilon", "n"),
            _APPROXIMATE + ", n ≥ 3 nodes",
            "Section 'Lower bounds', first theorem",
            lambda T, epsilon, n: _approximate(T, epsilon, n),
        ),
        Growth(
            "minimum-cut-pure",
            "error α of the minimum cut, or of the minimum degree, of a multigraph",
            "min{√(T/ε), n/ε, T}",
            ("T", "epsilon", "n"),
            _PURE + ", n ≥ 3 nodes",
            "Section 'Lower bounds', first theorem",
            lambda T, epsilon, n: _pure(T, epsilon, n),
        ),
        Growth(
            "substrings",
            "error α of counting substrings over an alphabet of U letters",
            "min{T^(1/3)/(ε^(2/3)·log^(2/3)(εT)), √log U/(ε·log log U), T}",
            ("T", "epsilon", "U"),
            _APPROXIMATE + ", log U > 1",
            "Section 'Lower bounds', second theorem",
            lambda T, epsilon, U: _approximate(T, epsilon, math.log(U)),
            _REDUCTION,
        ),
        Growth(
            "substrings-pure",
            "error α of counting substrings over an alphabet of U letters",
            "min{√(T/ε), log U/ε, T}",
            ("T", "epsilon", "U"),
            _PURE + ", U > 1",
            "Section 'Lower bounds', second theorem",
            lambda T, epsilon, U: _pure(T, epsilon, math.log(U)),
            _REDUCTION,
        ),
    )
}
"""Every lower bound of the paper's section on lower bounds, by name."""
