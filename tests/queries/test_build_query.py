"""Queries by name: what is missing or unknown is named, with an example that works."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from evercount.errors import ParameterError, UnknownName
from evercount.queries import EXAMPLE_PARAMETERS, QUERIES, Query, Sum, build_query


@pytest.mark.parametrize("name", [name for name in QUERIES if name != "prefix"])
def test_every_example_builds(name: str) -> None:
    assert build_query(name, EXAMPLE_PARAMETERS.get(name, {})).name == name


def test_a_missing_parameter_is_named_with_an_example() -> None:
    with pytest.raises(
        ParameterError, match=r"needs keys; for example parameters = .*north.* -p keys="
    ):
        build_query("histogram", {})


def test_an_unknown_parameter_is_named_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'vertices'"):
        build_query("edges", {"vertice": 5})


class Multiples(Query[float]):
    """A query that leaves out `parameters`."""

    name, cells = "multiples", 1

    def __init__(self, of: int, shift: int = 0) -> None:
        self.of, self.shift = of, shift

    def encode(self, state: Any, events: Any) -> tuple[Any, Any]:
        return np.asarray([sum((event - self.shift) % self.of == 0 for event in events)]), state

    def squared_sensitivity(self, adjacency: Any) -> float:
        return 1.0


class Hidden(Multiples):
    """One whose arguments nothing can find."""

    def __init__(self, divisor: int) -> None:
        super().__init__(divisor)


class Spelled(Multiples):
    """One with a parameter of the short name and one of the long name that it stands for in keys of
    noise."""

    def __init__(self, low: int, lo: int) -> None:
        super().__init__(1)
        self.low, self.lo = low, lo


def test_declarations_that_differ_have_different_identities() -> None:
    assert Sum(0, 1).identity()[1] == {"lo": 0, "hi": 1, "grid": 1.0}
    made = [Spelled(low, lo) for low in (0, 1) for lo in (0, 1)]
    assert len({repr(query.identity()) for query in made}) == len(made)


def test_parameters_are_the_arguments_of_the_constructor() -> None:
    query = Multiples(3, shift=1)
    assert query.identity()[:2] == ["multiples", {"of": 3, "shift": 1}]
    assert Multiples(**query.parameters()) == query != Multiples(3)
    with pytest.raises(AttributeError, match="divisor"):
        Hidden(3).identity()
