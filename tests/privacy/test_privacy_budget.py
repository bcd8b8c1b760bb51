"""Budgets: the promise, its conversions to μ and ρ, what is refused, and the sentence."""

from __future__ import annotations

import dataclasses
import json
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evercount._validate import stated
from evercount.errors import ParameterError, UnknownName
from evercount.privacy import Budget, exact_privacy_profile, gaussian

epsilons = st.floats(-3, 1.5).map(lambda x: 10.0**x)
deltas = st.floats(-30, -2).map(lambda x: 10.0**x)


@settings(max_examples=80, deadline=None)
@given(epsilons, deltas, st.sampled_from(["tight", "classic", "paper"]))
def test_noise_multiplier_meets_the_promise(epsilon: float, delta: float, calibration: Any) -> None:
    if calibration != "tight" and epsilon >= 1:
        with pytest.raises(ParameterError):
            Budget(epsilon, delta, calibration=calibration)
        return
    budget = Budget(epsilon, delta, calibration=calibration)
    assert gaussian.delta_upper(1 / budget.noise_multiplier(), epsilon) <= delta
    assert budget.noise_multiplier() * budget.mu == pytest.approx(1, rel=1e-15)
    assert budget.rho == pytest.approx(budget.mu**2 / 2)
    # less noise by one part in 10⁹ would break the tight promise
    if calibration == "tight":
        assert gaussian.delta_of((1 + 1e-9) / budget.noise_multiplier(), epsilon) > delta


def test_multiplier_is_rounded_up() -> None:
    for epsilon in np.linspace(0.1, 3, 50):
        budget = Budget(epsilon, 1e-10)
        assert Fraction(budget.noise_multiplier()) * Fraction(budget.mu) >= 1


@settings(max_examples=60, deadline=None)
@given(st.floats(-2.5, 1).map(lambda x: 10.0**x), st.floats(-30, -4).map(lambda x: 10.0**x))
def test_from_mu_and_from_rho_never_buy_more_than_asked(mu: float, delta: float) -> None:
    budget = Budget.from_mu(mu, delta)
    assert mu * (1 - 1e-9) <= budget.mu <= mu
    rho = mu * mu / 2
    budget = Budget.from_rho(rho, delta, adjacency="replace")
    assert budget.adjacency == "replace"
    assert rho * (1 - 1e-8) <= budget.rho
    assert Fraction(budget.mu) ** 2 / 2 <= Fraction(rho)


def test_from_mu_refuses_when_delta_alone_covers_it() -> None:
    with pytest.raises(ParameterError, match="costs no epsilon"):
        Budget.from_mu(1e-6, 1e-3)


@settings(max_examples=60, deadline=None)
@given(epsilons, deltas, deltas)
def test_conversions_at_other_points_are_consistent(
    epsilon: float, delta: float, other: float
) -> None:
    budget = Budget(epsilon, delta)
    assert exact_privacy_profile(budget, delta=delta) == pytest.approx(epsilon, rel=1e-8)
    assert exact_privacy_profile(budget, delta=delta) <= epsilon * (1 + 1e-12)
    assert exact_privacy_profile(budget, epsilon=epsilon) <= delta
    assert exact_privacy_profile(budget, epsilon=epsilon) == pytest.approx(delta, rel=1e-8)
    moved = exact_privacy_profile(budget, delta=other)
    if moved > 0:
        assert exact_privacy_profile(budget, epsilon=moved) == pytest.approx(other, rel=1e-7)


def test_mu_of_classic_and_paper_is_that_of_their_noise() -> None:
    paper = Budget(0.5, 1e-10, calibration="paper")
    assert paper.noise_multiplier() == pytest.approx(19.285, abs=5e-4)
    # much more noise than the promise needs
    assert exact_privacy_profile(paper, delta=1e-10) < 0.5 * 0.62


@settings(max_examples=60, deadline=None)
@given(deltas, st.floats(0, 0.999))
def test_reserve_rounds_down(delta: float, share: float) -> None:
    numeric = delta * share
    left = Budget(0.5, delta).reserve(numeric)
    assert Fraction(left.delta) + Fraction(numeric) <= Fraction(delta)
    assert left.delta == pytest.approx(delta - numeric, rel=1e-12, abs=1e-16 * delta)
    assert left.epsilon == 0.5


@pytest.mark.parametrize("numeric", [1e-10, 1.0, -1e-12, math.nan, math.inf, "1e-12", True])
def test_reserve_refuses_negative_or_too_large_parts(numeric: Any) -> None:
    with pytest.raises(ParameterError):
        Budget(0.5, 1e-10).reserve(numeric)


@pytest.mark.parametrize(
    "bad", [0, 0.0, -0.5, math.nan, math.inf, -math.inf, True, "0.5", None, 1j, [1.0], 10**400]
)
def test_bad_epsilon_is_refused(bad: Any) -> None:
    with pytest.raises(ParameterError, match="epsilon"):
        Budget(bad, 1e-10)


@pytest.mark.parametrize(
    "bad", [-1e-10, 1, 1.0, 2.0, math.nan, math.inf, False, "1e-10", None, 5e-324]
)
def test_bad_delta_is_refused(bad: Any) -> None:
    with pytest.raises(ParameterError, match="delta"):
        Budget(0.5, bad)


def test_pure_budgets_are_refused_by_everything_gaussian() -> None:
    for zero in (0, 0.0, -0.0):
        budget = Budget(0.5, zero)
        assert budget.pure
        assert not Budget(0.5, 1e-10).pure
        for attempt in (lambda b: b.mu, lambda b: b.rho, lambda b: b.noise_multiplier()):
            with pytest.raises(ParameterError, match="pure mechanisms"):
                attempt(budget)
        with pytest.raises(ParameterError):
            Budget(0.5, zero, calibration="paper")


@pytest.mark.parametrize(
    ("field", "value", "nearest"),
    [
        ("adjacency", "add_remove", "add-remove"),
        ("calibration", "tihgt", "tight"),
        ("unit", "users", "user"),
        ("adjacency", None, None),
        ("unit", 3, None),
    ],
)
def test_unknown_names_are_refused(field: str, value: Any, nearest: str | None) -> None:
    with pytest.raises(UnknownName) as caught:
        Budget(0.5, 1e-10, **{field: value})
    assert caught.value.nearest == nearest


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "2"])
def test_bad_max_events_are_refused(bad: Any) -> None:
    with pytest.raises(ParameterError):
        Budget(0.5, 1e-10, unit="user", max_events=bad)


def test_max_events_is_refused_for_unit_event() -> None:
    with pytest.raises(ParameterError, match="unit='user'"):
        Budget(0.5, 1e-10, max_events=3)


def test_frozen_equal_and_hashable() -> None:
    budget = Budget(np.float64(0.5), 1e-10)
    assert type(budget.epsilon) is float
    assert budget == Budget(0.5, 1e-10)
    assert len({budget, Budget(0.5, 1e-10)}) == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        budget.epsilon = 1.0  # type: ignore[misc]


def test_dict_round_trip() -> None:
    budget = Budget(
        0.3, 1e-9, adjacency="replace", calibration="classic", unit="user", max_events=4
    )
    assert Budget.from_dict(json.loads(json.dumps(budget.to_dict()))) == budget
    for bad in ({"epsilon": 0.5}, {**budget.to_dict(), "extra": 1}, [0.5, 1e-10]):
        with pytest.raises(ParameterError):
            Budget.from_dict(bad)  # type: ignore[arg-type]


def test_what_is_touched() -> None:
    """The least of all that bounds a unit; None where nothing does."""

    def touched(horizon: int | None = None, **caps: object) -> tuple[int | None, ...]:
        return tuple(Budget(0.5, 1e-10, unit="user", **caps).touched(horizon))  # type: ignore[arg-type]

    assert Budget(0.5, 1e-10).touched() == (1, 1, 1, 1)
    assert touched(max_events=5) == (5, 5, 5, None)
    assert touched(3, max_events=5) == (3, 5, 5, 3)
    assert touched(max_per_tick=2) == (None, 2, None, None)
    assert touched(10, max_per_tick=2) == (10, 2, 20, 10)
    assert touched(max_per_tick=2, period=7) == (7, 2, 14, 7)
    assert touched(max_per_tick=2, max_ticks=3, period=7) == (3, 2, 6, 7)
    assert touched(max_per_tick=2, max_ticks=3, max_events=4, period=7) == (3, 2, 4, 7)
    assert touched(max_ticks=3) == (3, None, None, None)
    assert touched(max_per_tick=3, max_ticks=9, max_events=2, period=7) == (2, 2, 2, 7)
    with pytest.raises(ParameterError, match="number of ticks"):
        touched(max_per_tick=2, period="1d")


@pytest.mark.parametrize(
    ("caps", "message"),
    [
        ({"unit": "event", "period": 7}, "has no meaning"),
        ({"max_events": 1, "period": "1 month"}, "a length of the calendar"),
        ({"max_events": 1, "period": 0}, "period"),
        ({"max_events": 1, "period": 1.5}, "period"),
        ({"max_events": 1, "period_ticks": 5}, "there is no period"),
    ],
)
def test_contradictory_caps_are_refused(caps: dict[str, object], message: str) -> None:
    with pytest.raises(ParameterError, match=message):
        Budget(0.5, 1e-10, **{"unit": "user", **caps})  # type: ignore[arg-type]


def test_sentence_names_who_and_how_much() -> None:
    event = Budget(0.5, 1e-10).sentence()
    assert "any one event" in event
    assert "left out" in event
    assert "epsilon=0.5, delta=1e-10, adjacency add-remove, unit event" in event
    user = Budget(0.5, 1e-10, adjacency="replace", unit="user", max_events=4).sentence()
    assert (
        "everything under the id of any person (evercount counts at most its first 4 events" in user
    )
    assert "any other" in user
    assert event.count(". ") == user.count(". ") == 0  # one sentence each


@pytest.mark.parametrize(
    "number", [0.0, 1.0, 0.5, 1e-10, 0.12345649, 1.2345649e-6, 0.1, 1 / 3, 2.5e-300, 123456789.0]
)
def test_stated_numbers_are_never_too_small(number: float) -> None:
    assert float(stated(number)) >= number
    assert float(stated(number)) == pytest.approx(number, rel=1e-5)


def test_sentences_round_up() -> None:
    assert "epsilon=0.123457, delta=1.23457e-06" in Budget(0.12345649, 1.2345649e-6).sentence()
    assert "epsilon=0.5, delta=1e-10" in Budget(0.5, 1e-10).sentence()
