"""Normal tails: a 60-digit oracle, the order of the closed forms, and what the paper's factors
miss."""

from __future__ import annotations

import math
from typing import Any

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evercount.bounds import interval_quantile, simultaneous_quantile
from evercount.bounds.tails import (
    simultaneous_closed_form,
    simultaneous_paper_proof,
    simultaneous_paper_two_thirds,
    simultaneous_quantile_of_log,
)
from evercount.errors import ParameterError


def failure(ticks: int, a: float) -> mpmath.mpf:
    """ticks·2·(1−Φ(a)) in 60 digits."""
    with mpmath.workdps(60):
        return ticks * mpmath.erfc(mpmath.mpf(a) / mpmath.sqrt(2))


@pytest.mark.parametrize("ticks", [1, 2, 1000, 65536, 10**8, 2**44, 10**30, 10**300, 10**400])
@pytest.mark.parametrize("beta", [0.9, 0.5, 1 / 3, 0.05, 1e-6, 1e-30, 1e-300])
def test_simultaneous_quantile_against_high_precision(ticks: int, beta: float) -> None:
    a = simultaneous_quantile(ticks, beta)
    assert failure(ticks, a) <= beta
    assert failure(ticks, a * (1 - 1e-11)) > beta  # and it is the smallest


def test_values_from_textbooks() -> None:
    assert interval_quantile(0.05) == pytest.approx(1.959963984540054, rel=1e-14)
    assert interval_quantile(1 / 3) == pytest.approx(0.967421566101701, rel=1e-13)
    assert simultaneous_quantile(1, 0.05) == interval_quantile(0.05)
    assert simultaneous_quantile_of_log(math.log(65536), 0.05) == simultaneous_quantile(65536, 0.05)


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 10**40), st.floats(1e-200, 0.999))
def test_order_and_monotonicity(ticks: int, beta: float) -> None:
    a = simultaneous_quantile(ticks, beta)
    assert a <= simultaneous_closed_form(ticks, beta) * (1 + 1e-12)
    assert simultaneous_quantile(3 * ticks, beta) > a
    assert simultaneous_quantile(ticks, beta / 3) > a


def test_the_papers_factors_are_too_large_or_too_small() -> None:
    T = 65536
    # the theorem's √(2 ln(T/β)) is right; the proof's factor is much larger than needed
    assert simultaneous_paper_proof(T, 0.05) > 3.9 * simultaneous_closed_form(T, 0.05)
    # √ln(6T) does not follow: the tail bound 2T·exp(−a²/2) ≤ 1/3 gives √2 times it
    a = simultaneous_paper_two_thirds(T)
    assert failure(T, a) > 20
    assert 2 * T * math.exp(-((math.sqrt(2) * a) ** 2) / 2) == pytest.approx(1 / 3)


@pytest.mark.parametrize("bad", [0, -1, 1.5, True, "2", None, math.nan])
def test_bad_ticks_are_refused(bad: Any) -> None:
    for function in (simultaneous_quantile, simultaneous_closed_form, simultaneous_paper_proof):
        with pytest.raises(ParameterError):
            function(bad, 0.05)


@pytest.mark.parametrize("bad", [0, 1, -0.1, 1.5, math.nan, math.inf, True, "0.05", None])
def test_bad_beta_is_refused(bad: Any) -> None:
    for function in (simultaneous_quantile, simultaneous_closed_form):
        with pytest.raises(ParameterError):
            function(10, bad)
    with pytest.raises(ParameterError):
        interval_quantile(bad)


def test_bad_logarithm_is_refused() -> None:
    for bad in (-1.0, math.inf, math.nan):
        with pytest.raises(ParameterError):
            simultaneous_quantile_of_log(bad, 0.05)
