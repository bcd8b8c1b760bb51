"""One rule for what several streams promise together: never below the truth, the least, and the
same at every door."""

from __future__ import annotations

import contextlib
import itertools
import math
import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dp_accounting import GaussianDpEvent
from dp_accounting.pld import PLDAccountant
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from evercount import Budget, Count, DiscoveredKeys, Ledger, Stream
from evercount.errors import BudgetExceeded, ParameterError
from evercount.files.resume_run import compose_sentence
from evercount.privacy import Cost, compose, composition
from evercount.privacy.composition import Overlap, least_epsilon, numeric_at
from evercount.store import Store, StreamDeclaration

Entry = tuple[Budget, float]


def together(entries: list[Entry], delta: float | None = None) -> Budget:
    return compose([Cost(*entry) for entry in entries], delta)


def true_delta(entries: list[Entry], epsilon: float) -> Any:
    """δ of all entries at ε in 50-digit arithmetic, written out again: ideal mechanisms, then the
    numerical errors."""
    import mpmath

    with mpmath.workdps(50):
        mu = mpmath.sqrt(
            sum(mpmath.mpf(b.reserve(n).mu if n else b.mu) ** 2 for b, n in entries if b.delta > 0)
        )
        q = mpmath.fsum(b.epsilon for b, _ in entries if b.delta == 0)
        e = mpmath.mpf(epsilon)

        def gauss(at: Any) -> Any:
            return mpmath.ncdf(mu / 2 - at / mu) - mpmath.exp(at) * mpmath.ncdf(-mu / 2 - at / mu)

        p = 1 / (1 + mpmath.exp(-q))
        ideal = p * gauss(e - q) + (1 - p) * gauss(e + q) if mu else mpmath.mpf(0 if e >= q else 1)
        price = sum(
            n * max(1, (1 + mpmath.exp(e)) / (1 + mpmath.exp(b.epsilon))) for b, n in entries
        )
        return ideal + price


def leaking_delta(entries: list[Entry], leaking: list[Entry], epsilon: float) -> Any:
    """The same, where those of `leaking` tell everything with probability δ and are randomised
    response of ε else."""
    import mpmath

    with mpmath.workdps(50):
        silent = mpmath.fprod(1 - mpmath.mpf(budget.delta) for budget, _ in leaking)
        bits = [(Budget(budget.epsilon, 0.0), 0.0) for budget, _ in leaking]
        return 1 - silent + silent * true_delta([*entries, *bits], epsilon)


some = st.tuples(
    st.floats(0.05, 3.0),
    st.sampled_from([0.0, 1e-12, 1e-9, 1e-6, 1e-3]),
    st.sampled_from([0.0, 1e-15, 1e-3, 0.3, 0.9]),
).map(lambda t: (Budget(t[0], t[1]), t[1] * t[2]))


@settings(max_examples=30, deadline=None)
@given(st.lists(some, min_size=2, max_size=6))
def test_the_stated_promise_is_never_below_the_truth(entries: list[Entry]) -> None:
    """The exact δ at the stated ε is within the stated δ, some entries leaking or none, or the
    plain sums are stated.

    The sum is the δ.
    """
    whole = together(entries)
    epsilons, deltas = (
        [float(getattr(b, name)) for b, _ in entries] for name in ("epsilon", "delta")
    )
    assert whole.delta == pytest.approx(math.fsum(deltas), rel=1e-12)
    assert whole.epsilon <= math.fsum(epsilons) * (1 + 1e-12)
    plain = Fraction(whole.epsilon) >= sum(map(Fraction, epsilons)) and Fraction(
        whole.delta
    ) >= sum(map(Fraction, deltas))
    with_error = [entry for entry in entries if entry[1] > 0]
    assert plain or any(
        leaking_delta(
            [entry for entry in entries if entry not in leaking], list(leaking), whole.epsilon
        )
        <= whole.delta
        for count in range(len(with_error) + 1)
        for leaking in itertools.combinations(with_error, count)
    )


def test_unlisted_keys_among_many_streams() -> None:
    """A stream half of whose δ is no Gaussian's: its price grows with the ε of all, so it counts as
    its promise.

    Negative control: without the leak the same ε would be stated too low.
    """
    many, keys = [(Budget(1.0, 1e-6), 0.0)] * 29, (Budget(1.0, 1e-6), 5e-7)
    without, whole = together(many).epsilon, together([*many, keys])
    assert without < 5.49 < 6.3 < whole.epsilon < 6.4
    assert whole.delta == 3e-5
    assert leaking_delta(many, [keys], whole.epsilon) <= whole.delta
    assert leaking_delta(many, [keys], whole.epsilon * 0.999) > whole.delta
    assert true_delta([*many, keys], whole.epsilon) > whole.delta
    mu = math.sqrt(29) * Budget(1.0, 1e-6).mu
    silent = least_epsilon(mu, Fraction(1), whole.delta, Overlap((), ()))
    assert silent is not None
    assert leaking_delta(many, [keys], silent) > whole.delta


def listing_chance(stream: Stream) -> float:
    """The exact chance that one tick lists a key of one event: a normal number, rounded, reaches
    the threshold."""
    assert stream.thresholds is not None
    std = stream.sigma * float(stream.factorization.row_norms(np.asarray([1]))[0])
    return float(norm.sf((stream.thresholds.at(1) - 1 - 0.5) / std))


@pytest.mark.parametrize("alone", [False, True])
def test_twenty_streams_that_list_keys(alone: bool) -> None:
    """A key that exists in one neighbour only is listed by some stream with a chance that the
    stated δ must cover.

    The largest δ does not: with bare budgets or with costs it is refused, and the sum covers the
    chance. A ledger takes as many as its δ covers.
    """
    stream = Stream(DiscoveredKeys(share=0.9), Budget(0.5, 1e-3), horizon=1)
    one = listing_chance(stream)
    chance = 1 - (1 - one) ** 20
    assert 6e-3 < chance < 7e-3
    given: Cost | Budget = stream.budget if alone else stream.cost
    whole = compose([given] * 20)
    assert chance <= whole.delta == 2e-2
    with pytest.raises(ParameterError, match="nothing is proved"):
        compose([given] * 20, delta=1e-3)
    assert compose([given] * 20, delta=3e-2).delta == 3e-2
    for total in (Budget(12.0, 1e-3), Budget(12.0, 1e-2), Budget(2.0, 4e-2)):
        ledger = Ledger(total)
        with contextlib.suppress(BudgetExceeded):
            for number in range(100):
                ledger.spend(str(number), given)
        assert 1 <= len(ledger.entries) < 100
        assert 1 - (1 - one) ** len(ledger.entries) <= total.delta


def test_a_cost_is_checked() -> None:
    assert Cost(Budget(0.5, 0.0)) == Cost(Budget(0.5, 0.0), 0.0)
    assert [
        Cost(Budget(0.5, d), leak).plain for d, leak in ((0.0, None), (1e-9, None), (1e-9, 0.0))
    ] == [1, 1, 0]
    assert Cost(Budget(0.5, 1e-9), 4e-10).mu == Budget(0.5, 1e-9).reserve(4e-10).mu
    for budget, leak in (
        (Budget(0.5, 1e-9), 1e-9),
        (Budget(0.5, 1e-9), -1e-12),
        (Budget(0.5, 1e-9), math.nan),
        (Budget(0.5, 0.0), 1e-12),
        (0.5, None),
    ):
        with pytest.raises(ParameterError):
            Cost(budget, leak)  # type: ignore[arg-type]


def test_compose_at_another_delta() -> None:
    """Between the pure sum and plain addition, where another accountant says, or refused."""
    mixed = [Cost(Budget(0.5, 0.0)), Cost(Budget(0.5, 1e-6), 0.0)]
    found = compose(mixed, 1e-6)
    assert 0.5 < found.epsilon < 1.0
    assert true_delta([(one.budget, 0.0) for one in mixed], found.epsilon) == pytest.approx(
        1e-6, rel=1e-6
    )
    assert compose(mixed, 1e-9).epsilon > found.epsilon
    assert compose([Budget(0.25, 0.0), Budget(0.5, 0.0)], 0.0) == Budget(0.75, 0.0)
    assert Fraction(compose([Budget(0.1, 0.0)] * 3).epsilon) >= 3 * Fraction(0.1)
    assert compose([Budget(0.5, 1e-9)] * 2, 2e-9) == Budget(1.0, 2e-9), "promises alone add up"
    for costs, delta, words in (
        (mixed, 0.0, "nothing is proved"),
        ([Budget(0.5, 1e-9)] * 2, 1e-9, "nothing is proved"),
        ([Cost(Budget(0.01, 0.1), 0.0)], 0.4, "no epsilon"),
        (mixed, 1.0, "delta"),
    ):
        with pytest.raises(ParameterError, match=words):
            compose(costs, delta)


def test_a_rule_that_forgets_the_numerical_error_is_caught() -> None:
    """Negative control: the same oracle refuses ε of the ideal mechanisms at the whole δ."""
    entries = [(Budget(1.0, 1e-6), 4e-7)] * 2
    wrong = least_epsilon(
        math.sqrt(2) * Budget(1.0, 1e-6).reserve(4e-7).mu, Fraction(0), 2e-6, Overlap((), ())
    )
    assert wrong is not None
    assert true_delta(entries, wrong) > 2e-6
    assert true_delta(entries, together(entries).epsilon) <= 2e-6


@pytest.mark.parametrize("share", [0.0, 1e-6, 0.01, 0.3])
def test_the_least_epsilon_is_the_least(share: float) -> None:
    """A thousandth less ε needs more δ than is stated, for Gaussian streams and with a pure one."""
    for others in ([], [(Budget(0.4, 0.0), 0.0)]):
        entries = [(Budget(0.5, 1e-9), share * 1e-9), (Budget(0.7, 1e-9), share * 1e-9), *others]
        whole = together(entries)
        assert true_delta(entries, whole.epsilon) <= whole.delta
        assert true_delta(entries, whole.epsilon * 0.999) > whole.delta


def test_gaussian_streams_against_another_accountant() -> None:
    parts = [Budget(0.3, 1e-6), Budget(0.5, 1e-6), Budget(0.9, 1e-6, calibration="classic")]
    accountant = PLDAccountant()
    for part in parts:
        accountant.compose(GaussianDpEvent(part.noise_multiplier()))
    whole = together([(part, 0.0) for part in parts])
    assert whole.delta == 3e-6
    assert whole.epsilon == pytest.approx(accountant.get_epsilon(3e-6), rel=2e-3)


def test_order_does_not_matter_and_one_is_itself() -> None:
    entries = [(Budget(0.5, 1e-9), 1e-12), (Budget(0.25, 0.0), 0.0), (Budget(2.0, 1e-7), 0.0)]
    first, last = together(entries), together(entries[::-1])
    assert first.epsilon == pytest.approx(last.epsilon, rel=1e-12)
    assert first.delta == last.delta
    assert together(entries[:1]) == entries[0][0]
    assert together([(Budget(0.25, 0.0), 0.0), (Budget(0.5, 0.0), 0.0)]) == Budget(0.75, 0.0)
    assert together([(Budget(0.5, 1e-9), 0.0)] * 3).delta == 3e-9


def test_a_large_sum_of_deltas_is_stated_honestly() -> None:
    """Two streams of (0.01, 0.4) are not (0.02, 0.5)-DP: their delta at 0.02 is 0.54."""
    for count in (2, 5):
        total = together([(Budget(0.01, 0.4), 0.0)] * count)
        assert true_delta([(Budget(0.01, 0.4), 0.0)] * count, total.epsilon) <= total.delta <= 0.5
    with pytest.raises(ParameterError, match="promise nothing"):
        together([(Budget(1.0, 0.4), 0.3)] * 3)
    with pytest.raises(ParameterError, match="same adjacency"):
        together([(Budget(1.0, 1e-9), 0.0), (Budget(1.0, 1e-9, adjacency="replace"), 0.0)])
    with pytest.raises(ParameterError, match="at least one"):
        together([])


def test_the_numbers_of_the_proof() -> None:
    """composition.proof.md, section 5: the same two streams at their largest δ and at the sum."""
    page = Path(composition.__file__).with_name("composition.proof.md").read_text(encoding="utf-8")
    for delta in (1e-9, 2e-9):
        epsilon = together([(Budget(0.5, 1e-9), 0.0)] * 2, delta).epsilon
        assert f"({math.ceil(epsilon * 1e4) / 1e4:.4f}, {delta:.0e})".replace("e-09", "e-9") in page
    assert together([(Budget(0.5, 1e-9), 0.0)] * 2) == together(
        [(Budget(0.5, 1e-9), 0.0)] * 2, 2e-9
    )


def test_numerical_errors_grow_with_epsilon() -> None:
    assert numeric_at(1e-12, 1.0, 0.5) == 1e-12
    assert numeric_at(1e-12, 1.0, 3.0) == pytest.approx(1e-12 * (1 + math.exp(3)) / (1 + math.e))
    assert numeric_at(1e-12, 1.0, 1e6) == 1.0


@pytest.mark.parametrize(
    "budgets", [((0.5, 1e-9), (0.5, 1e-9)), ((0.5, 0.0), (1.0, 1e-9), (0.1, 1e-12))]
)
def test_two_doors_state_the_same(tmp_path: Path, budgets: tuple[tuple[float, float], ...]) -> None:
    """`release` and the store: real streams, one answer."""
    parts = [Budget(*budget) for budget in budgets]
    streams = [Stream(Count(), part, horizon=100) for part in parts]
    whole = compose(s.cost for s in streams)

    spent = [s.cost for s in streams]
    sentence = compose_sentence(tuple(spent[:-1]), spent[-1])
    found = re.search(r"epsilon=([0-9.]+), delta=([0-9.e-]+)", sentence)
    assert found is not None
    assert float(found[1]) == pytest.approx(whole.epsilon, rel=2e-5)
    assert float(found[1]) >= whole.epsilon
    assert float(found[2]) == pytest.approx(whole.delta, rel=1e-5)

    store = Store(tmp_path / "a.db")
    for number, part in enumerate(parts):
        table = {"name": f"s{number}", "query": "count", "budget": part.to_dict(), "horizon": 100}
        store.declare(StreamDeclaration.from_dict(table), 0.0)
    total = store.ledger()["totals"][0]
    store.close()
    assert (total["epsilon"], total["delta"]) == (whole.epsilon, whole.delta)
