"""The name "best": the mechanism of least worst std, the budget that it keeps, and the doors that take it."""

from __future__ import annotations

import numpy as np
import pytest

from evercount import Budget, Count, Stream
from evercount.declare.declaration import StreamDeclaration
from evercount.engine.best import settle_best
from evercount.errors import BudgetExceeded, ParameterError
from evercount.factorizations.laplace_choice import is_pure_name
from evercount.noise import Secret
from evercount.planning import plan
from evercount.privacy import Ledger
from evercount.queries.base import Query

SECRET = Secret.from_hex("7" * 64)
SMALL, LARGE = Budget(0.5, 1e-10), Budget(0.5, 1e-3)


@pytest.mark.parametrize(("budget", "name"), [(SMALL, "bridge"), (LARGE, "balanced")])
def test_best_has_the_least_worst_std_and_says_what_it_keeps(budget: Budget, name: str) -> None:
    stream = Stream(Count(), budget, 2**12, "best", secret=SECRET.derive(name))
    assert stream.factorization.name == name
    assert stream.budget.delta == (0.0 if name == "bridge" else budget.delta)
    assert stream.budget.epsilon == budget.epsilon
    found = plan(budget, 2**12, Count())
    assert found.best["worst tick"] == name == found.rows[0].name
    stds = stream.std(np.arange(1, 2**12 + 1))
    assert float(stds.max()) == pytest.approx(found.rows[0].worst_std, rel=1e-3)
    blob = stream.snapshot()
    stream.close()
    restored = Stream.restore(blob)
    assert restored.budget == stream.budget
    named = Stream(Count(), budget, 2**12, name, secret=SECRET.derive(name), replay=True)
    assert restored.step(3).value == named.step(3).value


def test_a_pure_stream_is_accounted_as_one() -> None:
    """A ledger is asked for ε with δ = 0: as a Gaussian stream it would be charged too little."""
    stream = Stream(Count(), SMALL, 2**12, "best", secret=SECRET.derive("accounted"))
    assert stream.budget.pure
    ledger = Ledger(Budget(1.0, 1e-9))
    ledger.spend("one", stream.cost)
    ledger.spend("two", stream.cost)
    with pytest.raises(BudgetExceeded):
        ledger.spend("three", stream.cost)


def test_names() -> None:
    assert is_pure_name("bridge")
    assert is_pure_name("pure-tree-7")
    assert not is_pure_name("balanced")
    assert not is_pure_name(None)
    assert settle_best(Count(), SMALL, 100, None) == (SMALL, None)
    assert settle_best(Count(), SMALL, 100, "pure-tree")[0].delta == 0
    assert settle_best(Count(), Budget(1.0, 0.0), None, "best")[1] == "endless-bridge"

    class Silent(Count):
        l1_sensitivity = Query.l1_sensitivity

    assert settle_best(Silent(), SMALL, 2**16, "best") == (SMALL, "balanced")
    with pytest.raises(ParameterError):
        Stream(Count(), SMALL, 100, "no such thing")


def test_a_declaration_settles_best_once() -> None:
    table = {
        "name": "visits",
        "query": "count",
        "budget": {"epsilon": 0.5, "delta": 1e-10},
        "horizon": 65536,
        "factorization": "best",
    }
    declared = StreamDeclaration.from_dict(table)
    assert declared.factorization == "bridge"
    assert declared.budget.pure
    again = StreamDeclaration.from_dict(declared.to_dict())
    assert again == declared
    assert declared.build(secret=SECRET).factorization.name == "bridge"
    plain = StreamDeclaration.from_dict({**table, "factorization": None})
    assert plain.to_dict()["factorization"] is None
    assert plain.budget.delta == 1e-10
    with pytest.raises(ParameterError, match="factorization must be"):
        StreamDeclaration.from_dict({**table, "factorization": 3})
