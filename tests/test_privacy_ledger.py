"""The ledger: exact composition, refusal to overspend, immutability, JSON, and an independent accountant."""

from __future__ import annotations

import dataclasses
import json
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st

from evercount.errors import BudgetExceeded, ParameterError, SnapshotError
from evercount.privacy import Budget, Ledger, compose, gaussian

TOTAL = Budget(1.0, 1e-8)


def test_compose_against_oracle() -> None:
    parts = [Budget(0.3, 1e-6), Budget(0.5, 1e-6), Budget(0.9, 1e-6, calibration="classic")]
    together = compose(parts)
    accountant = PLDAccountant()
    for part in parts:
        accountant.compose(GaussianDpEvent(part.noise_multiplier()))
    assert together.delta == 1e-6
    assert together.epsilon == pytest.approx(accountant.get_epsilon(1e-6), rel=2e-3)
    assert together.epsilon < sum(part.epsilon for part in parts)  # better than adding up
    assert together.mu == pytest.approx(math.hypot(*(part.mu for part in parts)), rel=1e-9)


def test_compose_one_is_itself_and_order_does_not_matter() -> None:
    budget = Budget(0.7, 1e-9, adjacency="replace")
    assert compose([budget]).epsilon == pytest.approx(0.7, rel=1e-10)
    others = [budget, Budget(0.1, 1e-9, adjacency="replace")]
    assert compose(others).epsilon == pytest.approx(compose(others[::-1]).epsilon, rel=1e-12)
    assert compose(others, delta=1e-12).epsilon > compose(others).epsilon


def test_compose_refuses() -> None:
    with pytest.raises(ParameterError):
        compose([])
    with pytest.raises(ParameterError, match="same adjacency"):
        compose([Budget(0.5, 1e-9), Budget(0.5, 1e-9, adjacency="replace")])


def test_the_whole_total_can_be_spent_once() -> None:
    for total in (
        TOTAL,
        Budget(0.5, 1e-10),
        Budget(5.0, 1e-100),
        Budget(1e-3, 1e-300),
        Budget(0.5, 1e-10, calibration="paper"),
    ):
        ledger = Ledger(total)
        ledger.spend("all", total)
        assert ledger.spent() <= total.epsilon * (1 + 1e-12)


@pytest.mark.parametrize("k", [2, 3, 7, 50])
def test_equal_parts_fill_the_total(k: int) -> None:
    ledger = Ledger(TOTAL)
    part = Budget.from_mu(TOTAL.mu / math.sqrt(k), TOTAL.delta)
    for number in range(k):
        ledger.spend(f"part {number}", part)
    assert ledger.mu == pytest.approx(TOTAL.mu, rel=1e-9)
    with pytest.raises(BudgetExceeded):
        ledger.spend("one more", part)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(0.02, 0.9), st.floats(-12, -8), st.floats(0, 4e-9)), min_size=1, max_size=8))
def test_ledger_never_exceeds_its_total(wishes: list[tuple[float, float, float]]) -> None:
    ledger = Ledger(TOTAL)
    refused = 0
    for number, (epsilon, log_delta, numeric) in enumerate(wishes):
        before = ledger.entries
        try:
            entry = ledger.spend(str(number), Budget(epsilon, 10.0**log_delta), numeric_delta=numeric)
        except BudgetExceeded:
            refused += 1
            assert ledger.entries is before
        else:
            assert ledger.entries == (*before, entry)
        mu = math.sqrt(math.fsum(e.mu**2 for e in ledger.entries))
        numeric_sum = math.fsum(e.numeric_delta for e in ledger.entries)
        if ledger.entries:
            assert gaussian.delta_upper(mu, TOTAL.epsilon) + numeric_sum <= TOTAL.delta * (1 + 1e-9)
            assert ledger.spent() <= TOTAL.epsilon * (1 + 1e-9)
    assert len(ledger.entries) + refused == len(wishes)
    assert [entry.sequence for entry in ledger.entries] == list(range(len(ledger.entries)))


@settings(max_examples=30, deadline=None)
@given(st.floats(0.01, 0.99), st.floats(0, 5e-9))
def test_what_remains_can_be_spent_and_no_more(epsilon: float, numeric: float) -> None:
    ledger = Ledger(TOTAL)
    assert ledger.remaining() is not None
    try:
        ledger.spend("first", Budget(epsilon, 1e-8), numeric_delta=numeric)
    except BudgetExceeded:
        return
    rest = ledger.remaining()
    if rest is None:
        return
    with pytest.raises(BudgetExceeded):
        ledger.spend("too much", Budget.from_mu(rest.mu * 1.001 + 1e-6, rest.delta / 10))
    ledger.spend("rest", rest)
    # the total is used up: the spent ε is the total's
    assert ledger.spent() == pytest.approx(TOTAL.epsilon, rel=1e-6)


def test_numeric_deltas_add_up() -> None:
    ledger = Ledger(TOTAL)
    ledger.spend("a", Budget(0.1, 1e-8), numeric_delta=2e-9)
    ledger.spend("b", Budget(0.1, 1e-8), numeric_delta=2e-9)
    restated = 2e-9 * (1 + math.e) / (1 + math.exp(0.1))  # TOTAL has epsilon 1
    assert ledger.entries[0].numeric_delta == pytest.approx(restated)
    before = ledger.entries
    with pytest.raises(BudgetExceeded):
        ledger.spend("c", Budget(1e-3, 1e-10), numeric_delta=4e-9)
    assert ledger.entries is before
    assert ledger.spent() > Budget(0.1, 1e-8).epsilon
    plain = Ledger(TOTAL)
    plain.spend("a", Budget(0.1, 1e-8))
    plain.spend("b", Budget(0.1, 1e-8))
    assert ledger.spent() > plain.spent()


def test_empty_ledger() -> None:
    ledger = Ledger(TOTAL)
    assert ledger.spent() == 0.0
    assert ledger.mu == 0.0
    rest = ledger.remaining()
    assert rest is not None
    assert rest.mu == pytest.approx(TOTAL.mu, rel=1e-9)


def test_entries_are_immutable() -> None:
    ledger = Ledger(TOTAL)
    entry = ledger.spend("a", Budget(0.1, 1e-9), note="hourly counts")
    with pytest.raises(dataclasses.FrozenInstanceError):
        entry.mu = 0.0  # type: ignore[misc]
    assert isinstance(ledger.entries, tuple)
    with pytest.raises(AttributeError):
        ledger.entries = ()  # type: ignore[misc]
    assert (entry.epsilon, entry.delta, entry.note, entry.sequence) == (0.1, 1e-9, "hourly counts", 0)


@pytest.mark.parametrize(
    ("name", "budget", "extra"),
    [
        ("", Budget(0.1, 1e-9), {}),
        (3, Budget(0.1, 1e-9), {}),
        ("a", 0.1, {}),
        ("a", Budget(0.1, 1e-9, adjacency="replace"), {}),
        ("a", Budget(0.1, 1e-9, unit="user", max_events=2), {}),
        ("a", Budget(0.1, 1e-9), {"numeric_delta": -1e-12}),
        ("a", Budget(0.1, 1e-9), {"numeric_delta": math.nan}),
        ("a", Budget(0.1, 1e-9), {"note": 3}),
        ("taken", Budget(0.1, 1e-9), {}),
    ],
)
def test_bad_entries_are_refused_and_nothing_is_recorded(name: Any, budget: Any, extra: dict[str, Any]) -> None:
    ledger = Ledger(TOTAL)
    ledger.spend("taken", Budget(0.1, 1e-9))
    with pytest.raises(ParameterError):
        ledger.spend(name, budget, **extra)
    assert len(ledger.entries) == 1


def test_json_round_trip() -> None:
    ledger = Ledger(TOTAL)
    ledger.spend("a", Budget(0.1, 1e-9, calibration="paper"), note="ä", numeric_delta=1e-12)
    rest = ledger.remaining()
    assert rest is not None
    ledger.spend("b", rest)
    again = Ledger.from_json(ledger.to_json())
    assert again == ledger
    assert again.to_json() == ledger.to_json()
    assert Ledger.from_json(Ledger(TOTAL).to_json()) == Ledger(TOTAL)


def _damaged(change: Any) -> str:
    ledger = Ledger(TOTAL)
    ledger.spend("a", Budget(0.6, 1e-8))
    ledger.spend("b", Budget(0.6, 1e-8))
    data = json.loads(ledger.to_json())
    change(data)
    return json.dumps(data)


@pytest.mark.parametrize(
    "change",
    [
        lambda d: d.update(format="other"),
        lambda d: d.update(version=2),
        lambda d: d.pop("total"),
        lambda d: d["total"].update(epsilon=0.7),  # then the entries exceed it
        lambda d: d["entries"][0].update(mu=0.001),  # a smaller μ than its budget buys
        lambda d: d["entries"][0].update(sequence=1),
        lambda d: d["entries"][0].pop("numeric_delta"),
        lambda d: d["entries"].append(dict(d["entries"][0], name="c", sequence=2)),
        lambda d: d["entries"].reverse(),
        lambda d: d["entries"][1].update(numeric_delta="0"),
        lambda d: d.update(entries=3),
    ],
)
def test_damaged_or_overspent_json_is_refused(change: Any) -> None:
    Ledger.from_json(_damaged(lambda data: None))
    with pytest.raises(SnapshotError):
        Ledger.from_json(_damaged(change))


@pytest.mark.parametrize("text", ["", "{", "[]", "3", '{"format": "evercount-ledger"}'])
def test_text_that_is_no_ledger(text: str) -> None:
    with pytest.raises(SnapshotError):
        Ledger.from_json(text)


def test_threads_cannot_overspend_together() -> None:
    ledger = Ledger(TOTAL)
    part = Budget.from_mu(TOTAL.mu / math.sqrt(5), TOTAL.delta)

    def attempt(number: int) -> bool:
        try:
            ledger.spend(str(number), part)
        except BudgetExceeded:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(40))) == 5
