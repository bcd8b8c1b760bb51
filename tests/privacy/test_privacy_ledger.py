"""The ledger: composition of Gaussian and pure entries against independent accountants, refusals, JSON."""

from __future__ import annotations

import dataclasses
import json
import math
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import PLDAccountant, privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st

from evercount import SparseCount
from evercount.errors import BudgetExceeded, ParameterError, SnapshotError
from evercount.privacy import Budget, Ledger, compose, gaussian
from evercount.privacy.composition import composed_epsilon, mixed_delta_upper

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
        pure = sum(
            (Fraction(e.epsilon) for e in ledger.entries if e.pure), Fraction(0)
        )  # of those that count as their promise
        if ledger.entries:
            assert mixed_delta_upper(mu, pure, TOTAL.epsilon) + numeric_sum <= TOTAL.delta * (1 + 1e-9)
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
        lambda d: d.update(version=3),
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


# -- pure entries ------------------------------------------------------------------------------------------------------


def pld_delta(mu: float, pure: float, epsilon: float, kind: str) -> float:
    """δ(ε) of a Gaussian mechanism beside a pure one, by dp-accounting: discretised, rounded up."""
    step = 2e-4
    other = (
        privacy_loss_distribution.from_randomized_response(
            2 / (1 + math.exp(pure)), 2, value_discretization_interval=step
        )
        if kind == "randomised response"
        else privacy_loss_distribution.from_laplace_mechanism(1 / pure, value_discretization_interval=step)
    )
    normal = privacy_loss_distribution.from_gaussian_mechanism(1 / mu, value_discretization_interval=step)
    return float(other.compose(normal).get_delta_for_epsilon(epsilon))


MIXED = [(0.3, 0.5, 1.0), (0.3, 0.5, 2.0), (1.0, 0.1, 3.0), (0.1, 2.0, 2.2), (0.5, 1.0, 1.0)]


@pytest.mark.parametrize(("mu", "pure", "epsilon"), MIXED)
def test_mixed_profile_against_oracle(mu: float, pure: float, epsilon: float) -> None:
    """Tight for randomised response, enough for Laplace noise; two wrong rules are caught by the same oracle.

    The oracle rounds losses up by 2e-4 each, which changes δ by less than 1 % at these parameters.
    """
    stated = mixed_delta_upper(mu, Fraction(pure), epsilon)
    worst = pld_delta(mu, pure, epsilon, "randomised response")
    assert stated == pytest.approx(worst, rel=1e-2)
    assert stated >= pld_delta(mu, pure, epsilon, "laplace") * 0.99
    assert stated <= gaussian.delta_upper(mu, epsilon - pure) * (1 + 1e-12)  # never worse than adding up
    forgotten = gaussian.delta_upper(mu, epsilon)
    swapped = math.exp(-pure) / (1 + math.exp(-pure))
    near, far = gaussian.delta_upper(mu, epsilon - pure), gaussian.delta_upper(mu, epsilon + pure)
    assert forgotten < 0.99 * worst
    assert swapped * near + (1 - swapped) * far < 0.99 * worst


@settings(max_examples=60, deadline=None)
@given(st.floats(0.01, 5), st.floats(1e-3, 4), st.floats(0, 6))
def test_mixed_profile_is_an_upper_bound(mu: float, pure: float, more: float) -> None:
    """Against 50-digit arithmetic: never below the exact δ, and above it by rounding only."""
    import mpmath

    with mpmath.workdps(50):
        epsilon = pure + more
        m, e, q = mpmath.mpf(mu), mpmath.mpf(epsilon), mpmath.mpf(pure)

        def exact(at: Any) -> Any:
            return mpmath.ncdf(m / 2 - at / m) - mpmath.exp(at) * mpmath.ncdf(-m / 2 - at / m)

        p = 1 / (1 + mpmath.exp(-q))
        true = p * exact(e - q) + (1 - p) * exact(e + q)
        stated = mixed_delta_upper(mu, Fraction(pure), epsilon)
        assert stated >= true
        assert stated <= true * (1 + mpmath.mpf("1e-10")) + mpmath.mpf("1e-300")


def test_mixed_profile_refuses_a_pure_part_above_epsilon() -> None:
    with pytest.raises(ParameterError):
        mixed_delta_upper(0.1, Fraction(1), 0.5)


def test_composed_epsilon() -> None:
    """Between the pure sum and plain addition, and where the oracle says; pure budgets alone are a plain sum."""
    parts = [Budget(0.5, 0.0), Budget(0.5, 1e-6)]
    found = composed_epsilon(parts, 1e-6)
    assert 0.5 < found < 1.0
    assert pld_delta(parts[1].mu, 0.5, found, "randomised response") == pytest.approx(1e-6, rel=1e-2)
    assert composed_epsilon([Budget(0.25, 0.0), Budget(0.5, 0.0)], 0.0) == 0.75
    assert Fraction(composed_epsilon([Budget(0.1, 0.0)] * 3, 0.0)) >= 3 * Fraction(0.1)
    gaussians = [Budget(0.3, 1e-6), Budget(0.4, 1e-6)]
    assert composed_epsilon(gaussians, 1e-6) == compose(gaussians, 1e-6).epsilon
    with pytest.raises(ParameterError):
        composed_epsilon([], 1e-6)
    with pytest.raises(ParameterError, match="delta=0"):
        composed_epsilon(parts, 0.0)
    with pytest.raises(ParameterError, match="same adjacency"):
        composed_epsilon([Budget(0.5, 0.0), Budget(0.5, 0.0, adjacency="replace")], 0.0)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.floats(1e-3, 1.0), min_size=1, max_size=12))
def test_a_pure_total_is_an_exact_sum(wishes: list[float]) -> None:
    total = Budget(1.0, 0.0)
    ledger, exact = Ledger(total), Fraction(0)
    for number, epsilon in enumerate(wishes):
        if exact + Fraction(epsilon) <= 1:
            ledger.spend(str(number), Budget(epsilon, 0.0))
            exact += Fraction(epsilon)
        else:
            with pytest.raises(BudgetExceeded, match="pure privacy"):
                ledger.spend(str(number), Budget(epsilon, 0.0))
        assert Fraction(ledger.spent()) >= exact
        assert ledger.spent() == ledger.pure_epsilon <= 1.0
        rest = ledger.remaining()
        assert (rest is None) == (exact == 1)
        if rest is not None:
            assert rest.pure
            assert 0 <= (1 - exact) - Fraction(rest.epsilon) <= Fraction(2.0**-52)
    if (rest := ledger.remaining()) is not None:
        with pytest.raises(BudgetExceeded):
            ledger.spend("too much", Budget(math.nextafter(rest.epsilon, 2.0), 0.0))
        ledger.spend("rest", rest)
    assert Ledger.from_json(ledger.to_json()) == ledger


def test_float_sums_are_not_rounded_in_favour_of_the_stream() -> None:
    """Ten times the double 0.1 is more than 1, though a float sum with rounding says otherwise."""
    ledger = Ledger(Budget(1.0, 0.0))
    for number in range(9):
        ledger.spend(str(number), Budget(0.1, 0.0))
    assert math.fsum([0.1] * 10) == 1.0
    with pytest.raises(BudgetExceeded, match=r"0\.0999999999999999"):
        ledger.spend("tenth", Budget(0.1, 0.0))
    rest = ledger.remaining()
    assert rest is not None
    ledger.spend("tenth", rest)
    assert ledger.spent() == 1.0


def test_a_pure_total_takes_pure_entries_only() -> None:
    ledger = Ledger(Budget(1.0, 0.0))
    with pytest.raises(BudgetExceeded, match="only pure mechanisms"):
        ledger.spend("gaussian", Budget(0.1, 1e-12))
    with pytest.raises(BudgetExceeded, match="only pure mechanisms"):
        ledger.spend("numeric", Budget(0.1, 0.0), numeric_delta=1e-30)
    assert ledger.entries == ()
    assert ledger.remaining() == Budget(1.0, 0.0)
    assert ledger.spent() == 0.0


kinds = st.one_of(
    st.tuples(st.just(0.0), st.floats(0.01, 0.6)),
    st.tuples(st.sampled_from([1e-12, 1e-9, 1e-8]), st.floats(0.02, 0.6)),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(kinds, st.floats(0, 2e-9)), min_size=1, max_size=7))
def test_mixtures_never_exceed_their_total(wishes: list[tuple[tuple[float, float], float]]) -> None:
    """The invariant is written out again here with plain floats; what remains, of either kind, can be spent."""
    ledger = Ledger(TOTAL)
    for number, ((delta, epsilon), numeric) in enumerate(wishes):
        budget = Budget(epsilon, delta)
        before = ledger.entries
        try:
            ledger.spend(str(number), budget, numeric_delta=0.0 if budget.pure else numeric)
        except BudgetExceeded:
            assert ledger.entries is before
        pure = math.fsum(e.epsilon for e in ledger.entries if e.delta == 0)
        mu = math.sqrt(math.fsum(e.budget.mu**2 for e in ledger.entries if e.delta > 0))
        numerics = math.fsum(e.numeric_delta for e in ledger.entries)
        assert ledger.mu == pytest.approx(mu)
        assert ledger.pure_epsilon == pytest.approx(pure)
        assert pure <= TOTAL.epsilon
        spent = 0.0
        if mu:
            p = 1 / (1 + math.exp(-pure))
            room = TOTAL.epsilon - pure
            mixed = p * gaussian.delta_of(mu, room) + (1 - p) * gaussian.delta_of(mu, TOTAL.epsilon + pure)
            assert mixed + numerics <= TOTAL.delta * (1 + 1e-9)
            spent = ledger.spent()
            assert pure <= spent <= TOTAL.epsilon * (1 + 1e-9)
            assert mixed_delta_upper(mu, Fraction(pure), max(spent, pure)) <= (TOTAL.delta - numerics) * (1 + 1e-6)
        else:
            assert ledger.spent() == pytest.approx(pure)
    for pure_rest in (False, True):
        assert Ledger.from_json(ledger.to_json()) == ledger
        copy = Ledger(TOTAL)
        for entry in ledger.entries:
            copy.spend(entry.name, entry.budget, numeric_delta=entry.numeric_delta, restated=True)
        rest = copy.remaining(pure=pure_rest)
        if rest is not None:
            assert rest.pure == pure_rest
            copy.spend("rest", rest)
            assert copy.spent() == pytest.approx(TOTAL.epsilon, rel=1e-6)


def test_a_tight_mixture_beats_adding_up() -> None:
    """Half of ε pure leaves a Gaussian part that plain addition of ε would refuse; a little more is refused."""
    ledger = Ledger(TOTAL)
    ledger.spend("tree", Budget(0.5, 0.0))
    rest = ledger.remaining()
    assert rest is not None
    assert rest.epsilon > 0.5 * 1.01
    with pytest.raises(BudgetExceeded):
        ledger.spend("too much", Budget(rest.epsilon * 1.001, rest.delta))
    ledger.spend("gaussian", rest)
    assert "pure_epsilon=0.5" in repr(ledger)
    pure_rest = ledger.remaining(pure=True)
    assert pure_rest is None or pure_rest.epsilon < 1e-9


def test_a_ledger_of_version_1_is_read() -> None:
    ledger = Ledger(TOTAL)
    ledger.spend("a", Budget(0.3, 1e-9), numeric_delta=1e-12)
    data = json.loads(ledger.to_json())
    assert data["version"] == 2
    data["version"] = 1
    assert Ledger.from_json(json.dumps(data)) == ledger


@pytest.mark.parametrize("change", [{"mu": 0.1}, {"numeric_delta": 1.0}])
def test_damaged_pure_entries_are_refused(change: dict[str, float]) -> None:
    ledger = Ledger(TOTAL)
    ledger.spend("a", Budget(0.3, 0.0))
    data = json.loads(ledger.to_json())
    assert data["entries"][0]["mu"] == 0.0
    data["entries"][0].update(change)
    with pytest.raises(SnapshotError):
        Ledger.from_json(json.dumps(data))


@pytest.mark.parametrize("delta", [0.0, 1e-9])
def test_a_sparse_counter_spends_what_its_plan_says(delta: float) -> None:
    counter = SparseCount(1.0, 1000, delta, max_ones=100, method="partition")
    budgets = counter.plan.budgets()
    assert sum(Fraction(b.epsilon) for b in budgets) <= 1
    assert [b.pure for b in budgets] == ([True] if delta == 0 else [True, False])
    ledger = Ledger(Budget(1.0, delta))
    for number, budget in enumerate(budgets):
        numeric = counter.numeric_delta if number == len(budgets) - 1 else 0.0
        ledger.spend(f"part {number}", budget.reserve(numeric) if numeric else budget, numeric_delta=numeric)
    assert 0 < ledger.spent() <= 1.0


def test_compose_takes_pure_budgets() -> None:
    assert compose([Budget(0.5, 0.0), Budget(0.25, 0.0)]) == Budget(0.75, 0.0)
    mixed = compose([Budget(0.5, 0.0), Budget(0.5, 1e-9)])
    assert mixed.delta == 1e-9
    assert 0.5 < mixed.epsilon < 1.0
    with pytest.raises(ParameterError):
        compose([Budget(0.5, 0.0), Budget(0.5, 1e-9)], delta=0.0)
