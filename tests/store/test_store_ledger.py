"""The ledger of a store: what streams spend together is stated honestly."""

from __future__ import annotations

from pathlib import Path

import pytest

from evercount.store import Store, StreamDeclaration


def test_one_stream_is_its_own_total_and_units_are_kept_apart(tmp_path: Path) -> None:
    store = Store(tmp_path / "a.db")
    budgets = [
        {"epsilon": 1.0, "delta": 1e-9},
        {"epsilon": 1.0, "delta": 1e-9},
        {"epsilon": 2.0, "delta": 1e-8, "unit": "user", "max_events": 3},
        {"epsilon": 0.5, "delta": 1e-9, "adjacency": "replace"},
    ]
    for number, budget in enumerate(budgets):
        table = {"name": f"s{number}", "query": {"name": "count"}, "budget": budget, "horizon": 100}
        if budget["delta"]:
            table["factorization"] = "balanced"
        store.declare(StreamDeclaration.from_dict(table), 0.0)
    ledger = store.ledger()
    assert [entry["stream"] for entry in ledger["entries"]] == ["s0", "s1", "s2", "s3"]
    totals = {(t["unit"], t["adjacency"]): t for t in ledger["totals"]}
    assert totals["user", "add-remove"]["epsilon"] == 2.0
    assert totals["event", "replace"]["epsilon"] == 0.5
    both = totals["event", "add-remove"]
    assert both["streams"] == 2
    assert 1.0 < both["epsilon"] < 2.0
    store.close()


def test_pure_streams_are_accepted_and_add_up(tmp_path: Path) -> None:
    """Pure streams add ε; with a Gaussian one the total lies between the pure sum and the plain
    sum."""
    store = Store(tmp_path / "a.db")
    for number, delta in enumerate((0.0, 0.0, 1e-9)):
        budget = {"epsilon": 0.5, "delta": delta}
        table = {"name": f"s{number}", "query": {"name": "count"}, "budget": budget, "horizon": 100}
        if budget["delta"]:
            table["factorization"] = "balanced"
        store.declare(StreamDeclaration.from_dict(table), 0.0)
        total = store.ledger()["totals"][0]
        if delta == 0:
            assert total["epsilon"] == pytest.approx(0.5 * (number + 1))
            assert total["delta"] == 0
    assert 1.0 < total["epsilon"] < 1.5
    assert total["delta"] == pytest.approx(1e-9)
    assert [entry["mu"] > 0 for entry in store.ledger()["entries"]] == [False, False, True]
    store.close()
    again = Store(tmp_path / "a.db")
    assert again.ledger()["totals"][0]["epsilon"] == total["epsilon"]
    again.close()
