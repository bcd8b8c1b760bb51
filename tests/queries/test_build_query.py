"""Queries by name: what is missing or unknown is named, with an example that works."""

from __future__ import annotations

import pytest

from evercount.errors import ParameterError, UnknownName
from evercount.queries import EXAMPLE_PARAMETERS, QUERIES, build_query


@pytest.mark.parametrize("name", [name for name in QUERIES if name != "prefix"])
def test_every_example_builds(name: str) -> None:
    assert build_query(name, EXAMPLE_PARAMETERS.get(name, {})).name == name


def test_a_missing_parameter_is_named_with_an_example() -> None:
    with pytest.raises(ParameterError, match=r"needs keys; for example parameters = .*north.* -p keys="):
        build_query("histogram", {})


def test_an_unknown_parameter_is_named_with_the_nearest() -> None:
    with pytest.raises(UnknownName, match="Did you mean 'vertices'"):
        build_query("edges", {"vertice": 5})
