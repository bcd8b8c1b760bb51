"""The same declaration for the next year: independent noise on one secret, and what it costs in a
ledger."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from evercount import Budget, Count, Ledger, Stream
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.settle import settle
from evercount.errors import BudgetExceeded, HorizonReached, ParameterError
from evercount.noise import Secret
from evercount.privacy import TimeRange, compose
from soak_cases import soak_except

SECRET = Secret.from_hex("4c" * 32)
DAY = 86_400_000_000


def declared(year: int, **change: Any) -> StreamDeclaration:
    table = {
        "name": f"y{year}",
        "query": "count",
        "budget": {"epsilon": 1.0, "delta": 1e-6},
        "tick": "1d",
        "zone": "Europe/Vienna",
        "start": f"{year}-01-01",
        "horizon": 366 if year % 4 == 0 else 365,
        "views": ["running"],
    }
    return StreamDeclaration.from_dict({**table, **change})


def alike(declaration: StreamDeclaration, other: StreamDeclaration, ranged: bool = True) -> float:
    """The correlation of the noise of two streams on one secret; without `ranged`, as if the range
    were not its key."""
    steps = []
    for one in (declaration, other):
        if ranged:
            stream = one.build(secret=SECRET, replay=True)
        else:
            settled = settle(one)
            stream = Stream(
                settled.query,
                settled.budget,
                settled.horizon,
                settled.factorization,
                secret=SECRET,
                replay=True,
                views=settled.noise_for,
            )
        users = one.budget.unit == "user"
        noise = np.diff(np.ravel(stream.run([0] * 360, capped=users).values), prepend=0.0)
        steps.append((noise - noise.mean()) / noise.std())
    return abs(float(np.mean(steps[0] * steps[1])))


KINDS: list[dict[str, Any]] = [
    {},
    {"budget": {"epsilon": 1.0, "delta": 0}},
    {"views": ["per-tick"]},
    {"views": ["per-tick", "last-7", "running"]},
    {"views": ["per-tick", "last-7", "running"], "budget": {"epsilon": 1.0, "delta": 0}},
    {"factorization": "periods-5"},
    {"budget": {"epsilon": 1.0, "delta": 1e-6, "unit": "user", "max_events": 3}},
]


@pytest.mark.parametrize("change", KINDS)
def test_next_year_on_the_same_secret_has_independent_noise(change: dict[str, Any]) -> None:
    """And the planted version, without the range in the key, has the same noise in both years."""
    one, two = declared(2026, **change), declared(2027, **change)
    limit = 6 / np.sqrt(360)
    assert alike(one, two) < limit
    assert alike(one, one) == pytest.approx(1.0)
    assert alike(one, two, ranged=False) == pytest.approx(1.0)


@pytest.mark.parametrize(
    "change", [{"tick": "24h"}, {"zone": "UTC"}, {"start": "2026-01-02"}, {"horizon": 366}]
)
def test_every_other_range_has_other_noise(change: dict[str, Any]) -> None:
    assert alike(declared(2026), declared(2026, **change)) < 6 / np.sqrt(360)


def test_one_stream_has_one_key() -> None:
    """However its ticks are written, whoever settles the start, and after a restore."""
    one = declared(2026, tick="1h", zone="UTC", horizon=400)
    same = [
        replace(
            declared(2026, tick="60m", zone="UTC", horizon=400), name="other", description="words"
        ),
        one.unstarted().started(one.schedule.begin),
        StreamDeclaration.from_dict(one.to_dict()),
    ]
    stream = one.build(secret=SECRET, replay=True)
    first = stream.run([0] * 30).values
    for other in same:
        assert np.array_equal(other.build(secret=SECRET, replay=True).run([0] * 30).values, first)
    live = one.build(secret=SECRET)
    live.run([0] * 10)
    blob = live.snapshot()
    live.close()
    restored = Stream.restore(blob)
    assert restored.cost == stream.cost
    assert restored.during == one.during
    assert np.array_equal(restored.run([0] * 20).values, first[10:])
    restored.close()


def test_a_stream_without_a_schedule_has_no_range() -> None:
    assert Stream(Count(), Budget(1.0, 1e-6), 10).during is None
    assert declared(2026, start=None).during is None
    assert declared(2026, start=None).build().cost.during is None


def test_the_range_is_the_days_of_the_year() -> None:
    """Local days: the year has its clock changes, and the next one begins where it ends."""
    first, second = declared(2026).during, declared(2027).during
    assert first is not None
    assert second is not None
    assert first.end == second.start
    assert second.start - first.start == 365 * DAY
    assert first.ticks == f"{DAY} Europe/Vienna"
    endless = declared(2026, horizon=None).during
    assert endless is not None
    assert endless.end is None


@pytest.mark.parametrize("change", soak_except(KINDS[:2], KINDS[:4]))
def test_ten_declared_years(change: dict[str, Any]) -> None:
    """The bar: event level, (1, 1e-6) a year, ten years: (1, 1e-6), stated and kept by a ledger."""
    ledger = Ledger(Budget(1.0, 1e-6))
    streams = [
        declared(year, **change).build(secret=SECRET, ledger=ledger) for year in range(2026, 2036)
    ]
    total = compose(stream.cost for stream in streams)
    assert total.delta == (0.0 if streams[0].budget.pure else 1e-6)
    assert 1 - 1e-9 < total.epsilon <= 1.0
    with pytest.raises(BudgetExceeded):
        declared(2030, **change).build(ledger=ledger)
    assert len(ledger.entries) == 10


def test_ten_years_of_keys_that_nobody_listed() -> None:
    """Half of δ pays for thresholds, from noise that nobody has seen before: not added up
    either."""
    change = {"query": "discovered-keys", "horizon": 300}
    ledger = Ledger(Budget(1.0, 1e-6))
    streams = [declared(year, **change).build(ledger=ledger) for year in range(2026, 2036)]
    assert streams[0].numeric_delta >= 5e-7
    total = compose(stream.cost for stream in streams)
    assert (total.epsilon, total.delta) == (pytest.approx(1.0, abs=1e-9), 1e-6)


def test_ten_years_of_the_same_persons() -> None:
    """Somebody who is there for ten years is protected by what ten streams cost together."""
    person = {"budget": {"epsilon": 1.0, "delta": 1e-6, "unit": "user", "max_events": 3}}
    costs = [declared(year, **person).build().cost for year in range(2026, 2036)]
    two, ten = compose(costs[:2]), compose(costs)
    assert (round(two.epsilon, 2), two.delta) == (1.4, 2e-6)
    assert (round(ten.epsilon, 2), ten.delta) == (3.14, 1e-5)


def test_ten_years_of_persons_in_weeks() -> None:
    """What a person does in one week is in one year, if the years begin whole weeks apart."""
    person = {"epsilon": 1.0, "delta": 1e-6, "unit": "user", "max_events": 3, "period": "1w"}
    starts = [f"{year}-01-0{day}" for year, day in ((2026, 5), (2027, 4), (2028, 3))]
    ledger = Ledger(Budget(1.0, 1e-6, unit="user", max_events=3, period="1w"))
    costs = [
        declared(int(start[:4]), budget=person, start=start, horizon=364).build(ledger=ledger).cost
        for start in starts
    ]
    total = compose(costs)
    assert (total.epsilon, total.delta) == (pytest.approx(1.0, abs=1e-9), 1e-6)
    with pytest.raises(ParameterError, match="whole number of periods apart"):
        declared(2028, budget=person, start="2028-12-26", horizon=364).build(ledger=ledger)
    # the weeks before are over
    declared(2029, budget=person, start="2029-01-02", horizon=364).build(ledger=ledger)
    declared(2030, budget=person, start="2030-01-01", horizon=10).build(ledger=ledger)
    # and here they are not: a part of a week of the next stream is in the week of 8 January
    with pytest.raises(ParameterError, match="a part of one"):
        declared(2030, budget=person, start="2030-01-11", horizon=10).build(ledger=ledger)


class Inside(Count):
    """A count whose first state is old data."""

    name = "inside"
    starts_empty = False


def test_a_query_that_knows_the_past_is_no_successor() -> None:
    spans = [TimeRange(n, n + 1, "1") for n in range(2)]
    for query, epsilon in ((Count(), 1.0), (Inside(), 2.0)):
        costs = [Stream(query, Budget(1.0, 0.0), 1, during=span).cost for span in spans]
        assert compose(costs).epsilon == epsilon


def test_the_message_at_the_horizon_says_what_the_next_stream_costs() -> None:
    """Persons were told that each event is in only one of the two, which is not what protects a
    person."""
    for change, text in (
        ({}, "costs nothing more: each event is in only one of the two"),
        (
            {"budget": {"epsilon": 1.0, "delta": 1e-6, "unit": "user", "max_events": 3}},
            "both together keep epsilon=2, delta=0",
        ),
    ):
        stream = declared(2026, horizon=1, **change).build()
        promised = stream.budget.unit == "user"
        stream.step(0, capped=promised)
        with pytest.raises(HorizonReached, match=text):
            stream.step(0, capped=promised)
