"""What several noise streams over the same data promise together."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest

from evercount import Budget
from evercount.errors import ParameterError
from evercount.files.resume_run import compose_sentence
from evercount.privacy import Cost, compose, gaussian
from evercount.privacy.composition import mixed_delta_upper


def spent(epsilon: float, delta: float = 1e-6, numeric: float = 0.0, **more: str) -> Cost:
    return Cost(Budget(epsilon, delta, **more), numeric)  # type: ignore[arg-type]


def promise(sentence: str) -> tuple[float, float]:
    found = re.search(r"epsilon=([0-9.]+), delta=([0-9.e-]+)", sentence)
    assert found is not None
    return float(found[1]), float(found[2])


@pytest.mark.parametrize("parts", [(1.0, 1.0), (0.5, 2.0), (1.0, 1.0, 1.0, 0.1)])
def test_composed_promise(parts: tuple[float, ...]) -> None:
    """Never below the exact composition, above it by rounding only, and below the plain sum."""
    epsilon, delta = promise(compose_sentence(tuple(map(spent, parts[1:])), spent(parts[0])))
    exact = compose([Cost(Budget(part, 1e-6), 0.0) for part in parts], delta=len(parts) * 1e-6)
    assert delta == pytest.approx(exact.delta)
    assert exact.epsilon <= epsilon < exact.epsilon * (1 + 1e-4)
    assert epsilon < sum(parts)


def test_numerical_error_is_paid_for() -> None:
    small = promise(compose_sentence((spent(1.0, numeric=1e-9),), spent(1.0, numeric=1e-9)))[0]
    plain = promise(compose_sentence((spent(1.0),), spent(1.0)))[0]
    # the noise is a little larger than without reserve, so that the two almost balance; the promise
    # must still hold
    mu = 2**0.5 * Budget(1.0, 1e-6).reserve(1e-9).mu
    left = 2e-6 - 2 * 1e-9 * (1 + 2.718281828459045**small) / (1 + 2.718281828459045)
    assert gaussian.delta_upper(mu, small) <= left
    assert small == pytest.approx(plain, rel=0.02)
    # too much numerical error to pay from the delta: the plain sums
    assert promise(compose_sentence((spent(1.0, numeric=9e-7),), spent(1.0, numeric=9e-7))) == (
        2.0,
        2e-6,
    )


def test_pure_streams_add_up() -> None:
    """Pure streams add ε with no δ; with a Gaussian one the promise is less than the plain sum, and
    holds."""
    assert promise(compose_sentence((spent(1.0, 0.0),), spent(0.5, 0.0))) == (1.5, 0.0)
    epsilon, delta = promise(compose_sentence((spent(1.0, 0.0),), spent(0.5)))
    assert delta == 1e-6
    assert 1.0 < epsilon < 1.5
    assert mixed_delta_upper(Budget(0.5, 1e-6).mu, Fraction(1), epsilon) <= 1e-6


def test_promises_about_different_things_do_not_add_up() -> None:
    with pytest.raises(ParameterError, match="adjacency"):
        compose_sentence((spent(1.0),), spent(1.0, adjacency="replace"))
