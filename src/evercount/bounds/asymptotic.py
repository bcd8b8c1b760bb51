"""Lower bounds that are known only up to a constant: growth expressions. Do not compare an error with their values.

The paper's section on lower bounds proves Ω-statements. A `Growth` keeps the expression and its conditions;
`evaluate` gives the expression's value, which shows how the error must grow. It is not a bound: the constant in
front is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from evercount._validate import check_positive
from evercount.errors import ParameterError


@dataclass(frozen=True)
class Growth:
    """An Ω-statement: `quantity` grows at least like `expression`, under `conditions`.

    Attributes:
        name: Its key in `GROWTHS`.
        quantity: What grows.
        expression: How fast, up to a constant factor.
        parameters: The names that `evaluate` takes.
        conditions: When the statement holds.
        where: Its place in the paper.
        caveat: What is missing in its proof; empty if nothing.

    >>> from evercount.bounds import GROWTHS
    >>> print(GROWTHS["maximum-sum-pure"])
    error α of the d-dimensional maximum sum = Ω(min{√(T/ε), d/ε, T}), ε in (0,1), δ = 0, T large enough
    >>> GROWTHS["maximum-sum-pure"].evaluate(T=10000, epsilon=0.25, d=10)
    40.0
    """

    name: str
    quantity: str
    expression: str
    parameters: tuple[str, ...]
    conditions: str
    where: str
    _formula: Callable[..., float] = field(repr=False, compare=False)
    caveat: str = ""

    def evaluate(self, **params: float) -> float:
        """The value of the growth expression. Not a lower bound: the constant in front of it is unknown.

        Args:
            **params: A positive number for each name in `parameters`.

        Returns:
            The value.

        Raises:
            ParameterError: Another set of names, or the expression has no positive value there.
        """
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


def _approximate(T: float, epsilon: float, d: float) -> float:
    """min{T^{1/3}/(ε^{2/3} log^{2/3}(εT)), √d/(ε log d), T} of Jain et al., maximum sum."""
    cube_root = math.cbrt(T) / math.cbrt((epsilon * math.log(epsilon * T)) ** 2)
    return min(cube_root, math.sqrt(d) / (epsilon * math.log(d)), T)


def _pure(T: float, epsilon: float, d: float) -> float:
    """min{√(T/ε), d/ε, T} of Jain et al., maximum sum under pure privacy."""
    return min(math.sqrt(T / epsilon), d / epsilon, T)


_APPROXIMATE = "ε in (0,1), δ > 0, δ = o(ε/T), T large enough, εT > 1"
_PURE = "ε in (0,1), δ = 0, T large enough"
_REDUCTION = (
    "the reduction answers with the count of the most frequent letter, but the maximum sum needs the largest "
    "coordinate, which adds up many letters: a claim, not a proof"
)


def _both_kinds(
    name: str,
    quantity: str,
    parameter: str,
    dimension: str,
    conditions: tuple[str, str],
    where: str,
    dimension_of: Callable[[float], float] = float,
    caveat: str = "",
) -> Iterator[Growth]:
    """The bound of a problem that contains the maximum sum, for approximate and for pure privacy."""
    # `parameter` names the problem's size; `dimension` and `dimension_of` give the dimension of the maximum sum in it.
    approximate = f"min{{T^(1/3)/(ε^(2/3)·log^(2/3)(εT)), √{dimension}/(ε·log {dimension}), T}}"
    pure = f"min{{√(T/ε), {dimension}/ε, T}}"
    kinds = (("", approximate, _APPROXIMATE, _approximate), ("-pure", pure, _PURE, _pure))
    for (ending, expression, condition, bound), more in zip(kinds, conditions, strict=True):

        def formula(T: float, epsilon: float, bound: Callable[..., float] = bound, **size: float) -> float:
            return bound(T, epsilon, dimension_of(size[parameter]))

        names = ("T", "epsilon", parameter)
        yield Growth(name + ending, quantity, expression, names, condition + more, where, formula, caveat)


_SECTION = "Section 'Lower bounds', "
_COUNTING = Growth(
    "counting",
    "max over streams of E‖error‖²_∞",
    "ln²(T)/ε²",
    ("T", "epsilon"),
    "ε and δ below a small constant, noise independent of the data, streams fixed in advance, T > 1",
    "Theorem 3 (lower bound)",
    lambda T, epsilon: (math.log(T) / epsilon) ** 2,
)
GROWTHS: dict[str, Growth] = {
    growth.name: growth
    for growth in (
        _COUNTING,
        *_both_kinds(
            "maximum-sum",
            "error α of the d-dimensional maximum sum",
            "d",
            "d",
            (", d > 1", ""),
            _SECTION + "quoted from Jain et al.",
        ),
        *_both_kinds(
            "minimum-cut",
            "error α of the minimum cut, or of the minimum degree, of a multigraph",
            "n",
            "n",
            (", n ≥ 3 nodes", ", n ≥ 3 nodes"),
            _SECTION + "first theorem",
        ),
        *_both_kinds(
            "substrings",
            "error α of counting substrings over an alphabet of U letters",
            "U",
            "log U",
            (", log U > 1", ", U > 1"),
            _SECTION + "second theorem",
            math.log,
            _REDUCTION,
        ),
    )
}
"""Every lower bound of the paper's section on lower bounds, by name."""
