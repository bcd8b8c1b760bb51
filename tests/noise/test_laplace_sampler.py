"""Exact discrete Laplace noise: the exact path, close calls, the distribution with planted bugs, replay."""

from __future__ import annotations

import math
import pickle

import mpmath
import numpy as np
import pytest
from scipy import stats

from evercount.errors import ParameterError
from evercount.noise import Secret
from evercount.noise.laplace_sampler import ExactLaplace, quantile, tail, variance

SECRET = Secret.from_hex("5" * 64)


class Slow(ExactLaplace):
    """Every decision goes the exact way."""

    _slack = 1e12


@pytest.mark.parametrize("rate", [2.0**-30, 0.001, 0.3, 1.0, math.log(2), 7.5, 64.0])
def test_forced_exact_path_gives_identical_numbers(rate: float) -> None:
    draws = np.arange(150)
    assert (Slow(SECRET, rate).draw(draws, 2) == ExactLaplace(SECRET, rate).draw(draws, 2)).all()


@pytest.mark.parametrize("rate", [0.3, 2.0, 0.01])
def test_decisions_against_fifty_digits(rate: float) -> None:
    """u just below and just above t_k, for u of 192 bits: k and k − 1."""
    source = ExactLaplace(SECRET, rate)
    with mpmath.workdps(90):
        for k in (1, 2, 7, 30):
            q = mpmath.exp(-mpmath.mpf(rate))
            edge = int(mpmath.floor(2 * q**k / (1 + q) * mpmath.mpf(2) ** 192))
            assert source._search(edge - 1, 192, k) == k
            assert source._search(edge + 1, 192, k) == k - 1
            assert source._search(edge, 192, k) is None  # these bits do not tell
            for guess in (0, k - 1, k + 3):
                assert source._search(edge - 1, 192, guess) == k


@pytest.mark.parametrize("rate", [0.05, 0.5, 2.0])
def test_distribution_and_a_planted_bug_is_caught(rate: float) -> None:
    """χ² of 200,000 numbers at 1e-6 against the exact probabilities; a rate that is off by 3 % must be seen."""
    x = ExactLaplace(SECRET, rate).draw(np.arange(100000), 2).ravel()
    top = quantile(rate, 1e-3)
    seen = np.bincount(np.clip(x, -top - 1, top + 1) + top + 1, minlength=2 * top + 3)

    def expected(r: float) -> np.ndarray:
        k = np.arange(-top, top + 1)
        inner = np.tanh(r / 2) * np.exp(-r * np.abs(k))
        return np.concatenate([[tail(r, top + 1) / 2], inner, [tail(r, top + 1) / 2]]) * len(x)

    assert stats.chisquare(seen, expected(rate), sum_check=False).pvalue > 1e-6
    assert stats.chisquare(seen, expected(rate * 1.03), sum_check=False).pvalue < 1e-6
    assert x.mean() == pytest.approx(0, abs=5 * math.sqrt(variance(rate) / len(x)))


def test_numbers_do_not_depend_on_the_block() -> None:
    source = ExactLaplace(SECRET, 0.2)
    table = source.draw(np.arange(300), 7)
    assert (source.draw([250, 3, 3], 2, first_cell=4) == table[[250, 3, 3], 4:6]).all()
    assert (ExactLaplace(Secret.from_hex("4" * 64), 0.2).draw(np.arange(300), 7) != table).any()
    assert source.draw(np.empty(0, np.int64), 3).shape == (0, 3)
    assert table[:2, :3].tolist() == ExactLaplace(SECRET, 0.2).draw([0, 1], 3).tolist()


def test_known_answers() -> None:
    """A new layout of bits needs a new label: these numbers must not change."""
    assert ExactLaplace(SECRET, 0.125).draw(np.arange(8), 1).ravel().tolist() == KNOWN


KNOWN = [-2, -1, 1, 3, 12, 9, -4, 25]


def test_variance_tail_and_quantile() -> None:
    for rate in (0.01, 0.7, 3.0):
        k = np.arange(1, 20000)
        p = np.tanh(rate / 2) * np.exp(-rate * k)
        assert variance(rate) == pytest.approx(2 * float(k**2 @ p), rel=1e-9)
        assert tail(rate, 3) == pytest.approx(2 * float(p[2:].sum()), rel=1e-9)
        for beta in (0.5, 0.01, 1e-9):
            a = quantile(rate, beta)
            assert tail(rate, a + 1) <= beta
            assert a == 0 or tail(rate, a) > beta


def test_refusals() -> None:
    for rate in (0.0, -1.0, math.nan, 65.0, 1):
        with pytest.raises(ParameterError):
            ExactLaplace(SECRET, rate)
    with pytest.raises(ParameterError):
        ExactLaplace("secret", 1.0)  # type: ignore[arg-type]
    source = ExactLaplace(SECRET, 1.0)
    with pytest.raises(ParameterError):
        source.draw([-1], 1)
    with pytest.raises(ParameterError):
        source.draw([0], 0)
    with pytest.raises(ParameterError):
        pickle.dumps(source)
    assert "5555" not in repr(source)
