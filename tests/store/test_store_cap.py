"""The cap on what all streams of a store spend together."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from evercount.cli.store_command import store as commands
from evercount.errors import BudgetExceeded, ParameterError
from evercount.privacy import Budget, Cost, compose
from evercount.store import BudgetCap, Store, StreamDeclaration, retire_stream, set_cap


def declared(name: str, epsilon: float, delta: float = 1e-9, **budget: object) -> StreamDeclaration:
    promise = {"epsilon": epsilon, "delta": delta, **budget}
    noise = "balanced" if delta else None
    table = {
        "name": name,
        "query": "count",
        "budget": promise,
        "horizon": 16,
        "factorization": noise,
    }
    return StreamDeclaration.from_dict(table)


def test_the_stated_total_never_exceeds_the_cap(tmp_path: Path) -> None:
    """Also with pure streams between, and with retired ones: what is spent stays spent."""
    store = Store(tmp_path / "a.db")
    cap = BudgetCap(1.5, 5e-9)
    set_cap(store.database, cap)
    refused = 0
    for number, (epsilon, delta) in enumerate(
        [(0.5, 1e-9), (0.4, 0.0), (0.5, 1e-9), (0.5, 1e-9), (0.3, 1e-9)] * 2
    ):
        name = f"s{number}"
        try:
            store.declare(declared(name, epsilon, delta), 0.0)
            retire_stream(store, name, 0.0)
        except BudgetExceeded:
            refused += 1
            assert name not in store.names()
        for total in store.ledger()["totals"]:
            assert total["epsilon"] <= cap.epsilon
            assert total["delta"] <= cap.delta
    assert 2 <= refused <= 8
    assert store.ledger()["cap"] == {"epsilon": 1.5, "delta": 5e-9}
    store.close()


def test_a_cap_is_kept_by_choices_after_releases(tmp_path: Path) -> None:
    """Noise or pure streams fill the cap; which of them come is not left to whoever has seen
    releases.

    The stated total of the mix that is refused is within the cap: only the filter refuses it. That
    a choice after releases would break the cap is computed in
    tests/privacy/test_privacy_adaptive.py (one pot for all kinds).
    """
    for last, fits in (
        (("noise", 0.9, 4e-9), True),
        (("pure", 0.505, 0.0), False),
        (("pure", 0.1, 0.0), True),
    ):
        store = Store(tmp_path / f"{last}.db")
        set_cap(store.database, BudgetCap(1.5, 1e-8))
        store.declare(declared("first", 1.0, 4e-9), 0.0)
        stated = compose([Cost(Budget(1.0, 4e-9), 0.0), Cost(Budget(*last[1:]), 0.0)])
        assert stated.epsilon <= 1.5
        if fits:
            store.declare(declared(*last), 0.0)
        else:
            with pytest.raises(BudgetExceeded, match="promises that add up"):
                store.declare(declared(*last), 0.0)
        store.close()


def test_units_that_cannot_be_added_up_have_the_cap_each(tmp_path: Path) -> None:
    store = Store(tmp_path / "a.db")
    set_cap(store.database, BudgetCap(1.0, 1e-9))
    store.declare(declared("events", 1.0), 0.0)
    store.declare(declared("users", 1.0, unit="user", max_events=2), 0.0)
    with pytest.raises(BudgetExceeded, match="cap of this store"):
        store.declare(declared("more", 0.1), 0.0)
    assert store.declare(declared("events", 1.0), 0.0).name == "events", (
        "the same declaration spends nothing"
    )
    store.close()


def test_streams_about_users_add_up_whatever_they_count_of_each(tmp_path: Path) -> None:
    """Each keeps its promise for all events of a user: four of epsilon 1 are not one of 1."""
    store = Store(tmp_path / "a.db")
    for events in (5, 4, 3, 1):
        store.declare(declared(f"k{events}", 1.0, unit="user", max_events=events), 0.0)
    (total,) = store.ledger()["totals"]
    same = compose([Cost(Budget(1.0, 1e-9), 0.0)] * 4)
    assert (total["streams"], total["unit"], total["period"]) == (4, "user", None)
    assert total["delta"] == same.delta
    assert same.epsilon * (1 - 1e-9) <= total["epsilon"] <= same.epsilon * 1.001
    set_cap(store.database, BudgetCap(total["epsilon"], total["delta"] + 1e-9))
    with pytest.raises(BudgetExceeded):
        store.declare(declared("k2", 0.5, unit="user", max_events=2), 0.0)
    store.close()


def test_the_command_sets_shows_and_removes_it(tmp_path: Path) -> None:
    place = tmp_path / "a.db"
    Store(place).close()
    for arguments, text in (
        ((), "no cap\n"),
        (("--epsilon", "2", "--delta", "1e-8"), "cap: epsilon 2, delta 1e-08\n"),
        ((), "cap: epsilon 2, delta 1e-08\n"),
        (("--remove",), "no cap\n"),
    ):
        done = CliRunner().invoke(commands, ["cap", "--db", str(place), *arguments])
        assert (done.exit_code, done.output) == (0, text)
    assert isinstance(
        CliRunner().invoke(commands, ["cap", "--epsilon", "2"]).exception, ParameterError
    )
    with pytest.raises(ParameterError, match="cap needs"):
        BudgetCap(0.0, 1e-9)
