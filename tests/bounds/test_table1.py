"""Table 1 and growth expressions."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evercount.bounds import (
    GROWTHS,
    Growth,
    landau,
    psi_paper,
    simultaneous_quantile,
)
from evercount.bounds import counting_error as table1
from evercount.errors import ParameterError

T, C = 65536, 19.285
PSI = float(psi_paper(T))


def test_rows_as_the_paper_prints_them() -> None:
    """Each row written out again from the table, with numbers in place."""
    log = math.log
    assert table1.cuts_paper(T, C, 3, 7) == pytest.approx(
        3 * C * 3 * PSI * math.sqrt(10 * log(10) * log(6 * T))
    )
    assert table1.histogram_paper(T, C, 2, 50) == pytest.approx(
        C * PSI * math.sqrt(2 * log(6 * 50 * T))
    )
    assert table1.graph_function_paper(T, C) == pytest.approx(C * PSI * math.sqrt(log(6 * T)))
    assert table1.graph_function_paper(T, C, 5.0) == pytest.approx(
        5 * C * PSI * math.sqrt(log(6 * T))
    )
    assert table1.substrings_paper(T, C, 4, 3) == pytest.approx(
        C * PSI * 3 * math.sqrt(log(6 * T * 64))
    )
    assert table1.substrings_paper_corollary(T, C, 4, 3) == pytest.approx(
        C * PSI * 3 * math.sqrt(log(128) * log(6 * T))
    )
    assert table1.episodes_paper(T, C, 4, 3) == pytest.approx(
        2 * C * PSI * 3 * math.sqrt(16 * 3 * log(6 * T * 64))
    )
    assert table1.episodes_paper_corollary(T, C, 4, 3) == pytest.approx(
        C * PSI * math.sqrt(16 * 3 * log(128) * log(6 * T))
    )
    root = 0.5 * math.sqrt(10**6)
    noise = (
        38.0
        * math.sqrt(log(6 * (root + 1)) / (2 * 10**6))
        * (1 + log((4 * root - 3) / 5) / math.pi)
    )
    assert table1.local_learning_paper(0.5, 10**6, 38.0) == pytest.approx(noise + 2 / root)


def test_corrected_rows() -> None:
    sigma, c = 11.436, float(landau(T))
    assert table1.histogram(T, sigma, 2.0, 50, 0.05) == pytest.approx(
        sigma * math.sqrt(2) * c * simultaneous_quantile(50 * T, 0.05)
    )
    assert table1.graph_function(T, sigma, 8.0, 0.05) == pytest.approx(
        sigma * math.sqrt(8) * c * simultaneous_quantile(T, 0.05)
    )
    assert table1.words(4, 3) == 4 + 16 + 64
    # ℓ = 3, replace: S = 3·4·5/3 = 20
    assert table1.substrings(T, sigma, 20.0, 4, 3) == table1.vector_error(T, sigma, 20.0, 84)
    assert table1.episodes(T, sigma, 44.0, 3, 3) == table1.vector_error(T, sigma, 44.0, 39)
    assert table1.cut_std(T, sigma, 1.0, 3, 7) == pytest.approx(sigma * c * math.sqrt(21))
    choices = math.comb(20, 3) * math.comb(17, 7)
    assert table1.cuts(T, sigma, 1.0, 20, 3, 7) == pytest.approx(
        sigma * c * math.sqrt(21) * simultaneous_quantile(T * choices, 1 / 3)
    )
    # a given cut < cuts of these sizes < all cuts < the paper's row, although the paper's norm is
    # too small
    values = [
        table1.cut(T, sigma, 1.0, 3, 7),
        table1.cuts(T, sigma, 1.0, 20, 3, 7),
        table1.all_cuts(T, sigma, 1.0, 20, 3, 7),
        table1.cuts_paper(T, C, 3, 7),
    ]
    assert values == sorted(values)
    # 3^n never has to be written down
    assert table1.all_cuts(T, sigma, 1.0, 10**5, 3, 7) > values[2]
    assert table1.local_learning(0.5, 65536, 2775.0, 0.05) == pytest.approx(
        math.sqrt(2775 / 65536) * simultaneous_quantile(128, 0.05) + 2 / 128
    )


def test_vector_error_covers_simulated_streams() -> None:
    """3000 streams, 32 ticks × 4 cells, β = 0.2; at most β + 4 standard errors = 0.2 + 0.03 may
    fail.

    Negative control: S forgotten (S = 1 instead of 4) halves the bound and must fail far more
    often.
    """
    ticks, cells, streams, beta, S, sigma = 32, 4, 3000, 0.2, 4.0, 1.5
    k = np.arange(1, ticks)
    f = np.concatenate(([1.0], np.cumprod((2 * k - 1) / (2 * k))))
    rows, columns = np.indices((ticks, ticks))
    L = np.where(rows >= columns, f[np.abs(rows - columns)], 0.0)
    z = np.random.default_rng(5).standard_normal((streams * cells, ticks))
    worst = (
        np.abs(z @ L.T).max(axis=1).reshape(streams, cells).max(axis=1)
        * sigma
        * math.sqrt(S * landau(ticks))
    )
    assert (worst > table1.vector_error(ticks, sigma, S, cells, beta)).mean() <= beta + 0.03
    assert (worst > table1.vector_error(ticks, sigma, 1.0, cells, beta)).mean() > 0.5


@settings(max_examples=50, deadline=None)
@given(
    st.integers(2, 10**6),
    st.floats(0.1, 100),
    st.floats(0.5, 100),
    st.integers(1, 1000),
    st.floats(1e-6, 0.9),
)
def test_errors_grow_with_everything(
    ticks: int, sigma: float, S: float, cells: int, beta: float
) -> None:
    base = table1.vector_error(ticks, sigma, S, cells, beta)
    assert table1.vector_error(2 * ticks, sigma, S, cells, beta) > base
    assert table1.vector_error(ticks, 2 * sigma, S, cells, beta) == pytest.approx(2 * base)
    assert table1.vector_error(ticks, sigma, 4 * S, cells, beta) == pytest.approx(2 * base)
    assert table1.vector_error(ticks, sigma, S, 2 * cells, beta) > base
    assert table1.vector_error(ticks, sigma, S, cells, beta / 2) > base


@pytest.mark.parametrize(
    "call",
    [
        lambda: table1.vector_error(0, 1.0, 1.0, 1),
        lambda: table1.vector_error(10, -1.0, 1.0, 1),
        lambda: table1.vector_error(10, 1.0, 0.0, 1),
        lambda: table1.vector_error(10, 1.0, 1.0, 0),
        lambda: table1.vector_error(10, 1.0, 1.0, 1, 1.5),
        lambda: table1.histogram_paper(10, 1.0, 0, 5),
        lambda: table1.histogram_paper(10.0, 1.0, 1, 5),  # type: ignore[arg-type]
        lambda: table1.cuts(10, 1.0, 1.0, 5, 3, 3),
        lambda: table1.all_cuts(10, 1.0, 1.0, 5, 3, 3),
        lambda: table1.cuts_paper(10, 1.0, 0, 3),
        lambda: table1.substrings_paper(10, 1.0, 0, 3),
        lambda: table1.local_learning_paper(0.1, 4, 1.0),
        lambda: table1.local_learning(0.1, 4, math.inf),
    ],
)
def test_bad_arguments_are_refused(call: Any) -> None:
    with pytest.raises(ParameterError):
        call()


# -- growth ----------------------------------------------------------------------------------------


def test_growth_values() -> None:
    assert GROWTHS["counting"].evaluate(T=65536, epsilon=0.5) == pytest.approx(
        (math.log(65536) / 0.5) ** 2
    )
    cube = (10**6) ** (1 / 3) / (0.5 ** (2 / 3) * math.log(5e5) ** (2 / 3))
    assert GROWTHS["maximum-sum"].evaluate(T=10**6, epsilon=0.5, d=10**9) == pytest.approx(cube)
    assert GROWTHS["minimum-cut"].evaluate(T=10**12, epsilon=0.5, n=100) == pytest.approx(
        10 / (0.5 * math.log(100))
    )
    assert GROWTHS["minimum-cut-pure"].evaluate(T=100, epsilon=0.25, n=1000) == pytest.approx(20)
    assert GROWTHS["maximum-sum-pure"].evaluate(T=10**12, epsilon=0.5, d=30) == pytest.approx(60)
    assert GROWTHS["substrings-pure"].evaluate(T=10**9, epsilon=0.5, U=1000) == pytest.approx(
        math.log(1000) / 0.5
    )
    d = math.log(1e30)
    assert GROWTHS["substrings"].evaluate(T=10**12, epsilon=0.5, U=1e30) == pytest.approx(
        math.sqrt(d) / (0.5 * math.log(d))
    )


@pytest.mark.parametrize("growth", GROWTHS.values(), ids=str)
def test_growths_say_that_they_are_no_bounds_and_check_their_parameters(growth: Growth) -> None:
    assert "Ω(" in str(growth)
    assert "Not a lower bound" in (Growth.evaluate.__doc__ or "")
    good = {"T": 10**6, "epsilon": 0.5, "d": 50, "n": 50, "U": 10**6}
    params = {key: good[key] for key in growth.parameters}
    assert growth.evaluate(**params) > 0
    smaller = growth.evaluate(**{**params, "epsilon": 0.25})
    assert smaller > growth.evaluate(**params)  # less ε, more error
    for bad in ({}, {**params, "extra": 1.0}, {**params, "T": 0}, {**params, "epsilon": math.nan}):
        with pytest.raises(ParameterError):
            growth.evaluate(**bad)
    with pytest.raises(dataclasses.FrozenInstanceError):
        growth.expression = "1"  # type: ignore[misc]


def test_growth_outside_its_conditions_is_refused() -> None:
    with pytest.raises(ParameterError, match="no positive value"):
        GROWTHS["maximum-sum"].evaluate(T=10**6, epsilon=0.5, d=1)
    with pytest.raises(ParameterError, match="no positive value"):
        GROWTHS["counting"].evaluate(T=1, epsilon=0.5)
