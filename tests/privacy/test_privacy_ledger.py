"""The ledger: its accounts, the mixed profile against independent accountants, refusals."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from typing import Any

import pytest
from dp_accounting.pld import privacy_loss_distribution
from hypothesis import given, settings
from hypothesis import strategies as st

from evercount import Count, Stream
from evercount.errors import BudgetExceeded, ParameterError
from evercount.privacy import Budget, Cost, Ledger, gaussian
from evercount.privacy.accounts import Filter
from evercount.privacy.composition import mixed_delta_upper, numeric_at
from evercount.privacy.gaussian import root_down
from evercount.sparse import SparseCount

TOTAL = Budget(1.0, 1e-8)


def noise(epsilon: float, delta: float, leak: float = 0.0) -> Cost:
    return Cost(Budget(epsilon, delta), leak)


def test_one_entry_may_take_everything() -> None:
    for total in (
        TOTAL,
        Budget(0.5, 1e-10),
        Budget(5.0, 1e-100),
        Budget(1e-3, 1e-300),
        Budget(1e-3, 2.0**-1022),
        Budget(0.5, 1e-10, calibration="paper"),
        Budget(0.5, 0.0),
    ):
        for cost in (Cost(total, 0.0), total):
            ledger = Ledger(total)
            assert ledger.remaining() == Cost(total, 0.0)
            ledger.spend("all", cost)
            with pytest.raises(BudgetExceeded):
                ledger.spend("more", Budget(total.epsilon, 0.0))
        with pytest.raises(BudgetExceeded):
            Ledger(total).spend("more", Budget(math.nextafter(total.epsilon, 9.0), 0.0))


@pytest.mark.parametrize("k", [2, 3, 7, 50])
def test_equal_parts_fill_the_account_of_noise(k: int) -> None:
    ledger = Ledger(TOTAL)
    part = Cost(
        Budget.from_mu(root_down(Filter(TOTAL).noise.most) / math.sqrt(k), TOTAL.delta), 0.0
    )
    for number in range(k):
        ledger.spend(f"part {number}", part)
    with pytest.raises(BudgetExceeded):
        ledger.spend("one more", part)


def test_noise_of_one_kind_costs_little_more_than_alone() -> None:
    """docs/ledger.md: what half of δ for promises, and a quarter of the rest for leaks, cost in
    noise."""
    for delta, most in ((1e-9, 0.03), (1e-6, 0.05)):
        total = Budget(1.0, delta)
        assert 1 - most < root_down(Filter(total).noise.most) / total.mu < 1


wishes = st.tuples(
    st.floats(0.02, 0.9),
    st.sampled_from([0.0, 1e-12, 1e-9, 4e-9, 1e-8]),
    st.sampled_from([None, 0.0, 1e-6, 0.3]),
).map(lambda t: Cost(Budget(t[0], t[1]), t[2] and t[1] * t[2]))


@settings(max_examples=50, deadline=None)
@given(st.lists(wishes, min_size=1, max_size=8))
def test_mixtures_never_exceed_their_total(costs: list[Cost]) -> None:
    """The invariant, written out again: some choice of what counts as noise is within fixed parts
    that add up to δ.

    And what remains, of either kind, can be spent.
    """
    ledger = Ledger(TOTAL)
    for number, cost in enumerate(costs):
        before = ledger.entries
        try:
            entry = ledger.spend(str(number), cost)
        except BudgetExceeded:
            assert ledger.entries is before
        else:
            assert ledger.entries == (*before, entry)
    kept = [entry.cost for entry in ledger.entries]
    boxes = [(0.0, 0.0, 5e-9), (1.0, 5e-9, 0.0)]

    def within(
        as_noise: tuple[Cost, ...], as_promise: list[Cost], box: tuple[float, float, float]
    ) -> bool:
        mu = math.sqrt(math.fsum(cost.mu**2 for cost in as_noise))
        leak = math.fsum(
            numeric_at(cost.leak or 0.0, cost.budget.epsilon, 1.0) for cost in as_noise
        )
        epsilon = math.fsum(cost.budget.epsilon for cost in as_promise)
        delta = math.fsum(cost.budget.delta for cost in as_promise)
        # the account as a whole, not the streams that happen to be in it, is what δ must cover
        covered = mixed_delta_upper(mu, Fraction(box[0]), 1.0) + leak <= box[2] * (1 + 1e-9)
        return covered and epsilon <= box[0] * (1 + 1e-12) and delta <= box[1] * (1 + 1e-12)

    gaussians = [cost for cost in kept if not cost.plain]
    assert len(kept) <= 1 or any(
        within(chosen, [cost for cost in kept if cost not in chosen], box)
        for box in boxes
        for count in range(len(gaussians) + 1)
        for chosen in itertools.combinations(gaussians, count)
    )
    for pure in (False, True):
        copy = Ledger(TOTAL)
        for entry in ledger.entries:
            copy.spend(entry.name, entry.cost)
        rest = copy.remaining(pure=pure)
        if rest is not None:
            assert rest.budget.pure == pure
            copy.spend("rest", rest)
            again = copy.remaining(pure=pure)
            assert again is None or again.budget.epsilon < 1e-3 * rest.budget.epsilon


def test_what_remains_is_the_most() -> None:
    ledger = Ledger(TOTAL)
    ledger.spend("first", noise(0.3, 1e-9, 1e-12))
    rest, pure = ledger.remaining(), ledger.remaining(pure=True)
    assert rest is not None
    assert pure is not None
    assert pure.budget == Budget(0.7, 0.0)
    with pytest.raises(
        BudgetExceeded,
        match=r"What is left: at most epsilon=0\.7 of pure privacy, or Gaussian noise",
    ):
        ledger.spend("too much", Cost(Budget.from_mu(rest.mu * 1.001, 1e-9), 0.0))
    stream = Stream(Count(), rest.budget, 10, "balanced", ledger=ledger)
    assert ledger.entries[-1].cost == stream.cost
    last = ledger.remaining()
    assert last is None or last.mu < 1e-3 * rest.mu


def test_leaks_add_up_at_the_epsilon_of_the_total() -> None:
    """Streams count as their noise while the leaks fit, else all of them as promises, whose ε and δ
    add up."""
    total = Budget(1.0, 1e-8)
    accounts, keys = Filter(total), noise(0.1, 1e-9, 5e-10)
    priced = 5e-10 * (1 + math.e) / (1 + math.exp(0.1))
    assert keys.leak_at(1.0) == pytest.approx(priced)
    room = accounts.noise.room_after([keys])
    assert room is not None
    assert float(room.delta) == pytest.approx(accounts.noise.delta - priced, rel=1e-9)
    assert accounts.noise.room_after([keys] * 2) is None
    room = accounts.promises.room_after([keys] * 4)
    assert room is not None
    assert (room.delta, room.most) == (Fraction(5e-9) - 4 * Fraction(1e-9), 1 - 4 * Fraction(0.1))
    assert accounts.promises.room_after([keys] * 6) is None


def test_a_total_is_a_budget() -> None:
    with pytest.raises(ParameterError):
        Ledger(0.5)  # type: ignore[arg-type]
    with pytest.raises(ParameterError, match="starts from a Budget"):
        Ledger()


def test_entries_are_immutable() -> None:
    ledger = Ledger(TOTAL)
    entry = ledger.spend("a", Budget(0.1, 1e-9))
    with pytest.raises(dataclasses.FrozenInstanceError):
        entry.cost = Cost(TOTAL)  # type: ignore[misc]
    assert isinstance(ledger.entries, tuple)
    with pytest.raises(AttributeError):
        ledger.entries = ()  # type: ignore[misc]
    assert entry.cost == Cost(Budget(0.1, 1e-9))
    assert "1 entries" in repr(ledger)


@pytest.mark.parametrize(
    ("name", "cost"),
    [
        ("", Budget(0.1, 1e-9)),
        (3, Budget(0.1, 1e-9)),
        ("a", 0.1),
        ("a", Budget(0.1, 1e-9, adjacency="replace")),
        ("a", Budget(0.1, 1e-9, unit="user", max_events=2)),
        ("taken", Budget(0.1, 1e-9)),
    ],
)
def test_bad_entries_are_refused_and_nothing_is_recorded(name: Any, cost: Any) -> None:
    ledger = Ledger(TOTAL)
    ledger.spend("taken", Budget(0.1, 1e-9))
    with pytest.raises(ParameterError):
        ledger.spend(name, cost)
    assert len(ledger.entries) == 1


def test_threads_cannot_overspend_together() -> None:
    ledger = Ledger(TOTAL)
    part = Cost(
        Budget.from_mu(root_down(Filter(TOTAL).noise.most) / math.sqrt(5), TOTAL.delta), 0.0
    )

    def attempt(number: int) -> bool:
        try:
            ledger.spend(str(number), part)
        except BudgetExceeded:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(attempt, range(40))) == 5


# -- pure entries ----------------------------------------------------------------------------------


def pld_delta(mu: float, pure: float, epsilon: float, kind: str) -> float:
    """δ(ε) of a Gaussian mechanism with a pure one, by dp-accounting: discretised, rounded up."""
    step = 2e-4
    other = (
        privacy_loss_distribution.from_randomized_response(
            2 / (1 + math.exp(pure)), 2, value_discretization_interval=step
        )
        if kind == "randomised response"
        else privacy_loss_distribution.from_laplace_mechanism(
            1 / pure, value_discretization_interval=step
        )
    )
    normal = privacy_loss_distribution.from_gaussian_mechanism(
        1 / mu, value_discretization_interval=step
    )
    return float(other.compose(normal).get_delta_for_epsilon(epsilon))


MIXED = [(0.3, 0.5, 1.0), (0.3, 0.5, 2.0), (1.0, 0.1, 3.0), (0.1, 2.0, 2.2), (0.5, 1.0, 1.0)]


@pytest.mark.parametrize(("mu", "pure", "epsilon"), MIXED)
def test_mixed_profile_against_oracle(mu: float, pure: float, epsilon: float) -> None:
    """Tight for randomised response, enough for Laplace noise; two wrong rules are caught by the
    same oracle.

    The oracle rounds losses up by 2e-4 each, which changes δ by less than 1 % at these parameters.
    """
    stated = mixed_delta_upper(mu, Fraction(pure), epsilon)
    worst = pld_delta(mu, pure, epsilon, "randomised response")
    assert stated == pytest.approx(worst, rel=1e-2)
    assert stated >= pld_delta(mu, pure, epsilon, "laplace") * 0.99
    # never worse than adding up
    assert stated <= gaussian.delta_upper(mu, epsilon - pure) * (1 + 1e-12)
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
        rest = ledger.remaining()
        assert (rest is None) == (exact == 1)
        if rest is not None:
            assert rest.budget.pure
            assert 0 <= (1 - exact) - Fraction(rest.budget.epsilon) <= Fraction(2.0**-52)
    if (rest := ledger.remaining()) is not None:
        with pytest.raises(BudgetExceeded):
            ledger.spend("too much", Budget(math.nextafter(rest.budget.epsilon, 2.0), 0.0))
        ledger.spend("rest", rest)


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
    assert ledger.remaining() is None


def test_a_pure_total_takes_pure_entries_only() -> None:
    ledger = Ledger(Budget(1.0, 0.0))
    for cost in (Budget(0.1, 1e-12), noise(0.1, 1e-12)):
        with pytest.raises(BudgetExceeded, match="only pure mechanisms"):
            ledger.spend("not pure", cost)
    assert ledger.entries == ()
    assert ledger.remaining() == Cost(Budget(1.0, 0.0))


@pytest.mark.parametrize("delta", [0.0, 1e-9])
def test_a_sparse_counter_spends_what_its_plan_says(delta: float) -> None:
    counter = SparseCount(1.0, 1000, delta, max_ones=100, method="partition")
    budgets = counter.plan.budgets()
    assert sum(Fraction(b.epsilon) for b in budgets) <= 1
    assert [b.pure for b in budgets] == ([True] if delta == 0 else [True, False])
    ledger = Ledger(Budget(2.0, 4 * delta))
    for number, budget in enumerate(budgets):
        ledger.spend(
            f"part {number}", Cost(budget, counter.numeric_delta if not budget.pure else None)
        )
    assert [entry.cost.plain for entry in ledger.entries] == [budget.pure for budget in budgets]


def test_an_entry_that_was_interrupted_on_its_way_to_the_disk_leaves_nothing(tmp_path, monkeypatch):
    path = tmp_path / "spent.ledger"
    ledger = Ledger(Budget(1.0, 1e-6), path)

    def interrupted(handle):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ledger.spend("an entry with a long name", Budget(0.1, 1e-9))
    ledger.spend("short", Budget(0.1, 0.0))
    ledger.close()
    with Ledger(path=path) as again:
        assert [entry.name for entry in again.entries] == ["short"]
