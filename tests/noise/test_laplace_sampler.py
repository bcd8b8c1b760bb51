"""Exact discrete Laplace noise: the exact path, close calls, the distribution with planted bugs,
replay."""

from __future__ import annotations

import math
import pickle
from functools import partial

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
    assert (Slow(SECRET).draw(draws, rate, 2) == ExactLaplace(SECRET).draw(draws, rate, 2)).all()


def test_forced_path_is_really_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else its numbers would be those of doubles, and close calls as well."""
    monkeypatch.setattr(ExactLaplace, "_exactly", lambda *of: 7)
    assert set(np.abs(Slow(SECRET).draw(np.arange(50), 1.0, 2)).ravel().tolist()) == {7}


@pytest.mark.parametrize("rate", [0.3, 2.0, 0.01])
def test_decisions_against_fifty_digits(rate: float) -> None:
    """u just below and just above t_k, for u of 192 bits: k and k − 1."""
    search = partial(ExactLaplace._search, rate=rate)
    with mpmath.workdps(90):
        for k in (1, 2, 7, 30):
            q = mpmath.exp(-mpmath.mpf(rate))
            edge = int(mpmath.floor(2 * q**k / (1 + q) * mpmath.mpf(2) ** 192))
            assert search(edge - 1, 192, k) == k
            assert search(edge + 1, 192, k) == k - 1
            assert search(edge, 192, k) is None  # these bits do not tell
            for guess in (0, k - 1, k + 3):
                assert search(edge - 1, 192, guess) == k


@pytest.mark.parametrize("rate", [0.05, 0.5, 2.0])
def test_distribution_and_a_planted_bug_is_caught(rate: float) -> None:
    """χ² of 200,000 numbers at 1e-6 against the exact probabilities; a rate that is off by 3 % must
    be seen."""
    x = ExactLaplace(SECRET).draw(np.arange(100000), rate, 2).ravel()
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
    source = ExactLaplace(SECRET)
    table = source.draw(np.arange(300), 0.2, 7)
    assert (source.draw([250, 3, 3], 0.2, 2, first_cell=4) == table[[250, 3, 3], 4:6]).all()
    assert (ExactLaplace(Secret.from_hex("4" * 64)).draw(np.arange(300), 0.2, 7) != table).any()
    assert source.draw(np.empty(0, np.int64), 0.2, 3).shape == (0, 3)
    assert table[:2, :3].tolist() == ExactLaplace(SECRET).draw([0, 1], 0.2, 3).tolist()


def test_known_answers() -> None:
    """A new layout of bits needs a new label: these numbers must not change."""
    assert ExactLaplace(SECRET).draw(np.arange(8), 0.125, 1).ravel().tolist() == KNOWN


KNOWN = [-2, -1, 1, 3, 12, 9, -4, 25]


def test_a_rate_for_each_draw() -> None:
    """Each draw is the number that it has among draws of its rate alone, in any order and by the
    exact way as well."""
    rates = np.asarray([2.0**-30, 0.001, 0.3, 1.0, 7.5, 64.0] * 20)
    draws = np.arange(len(rates))
    table = ExactLaplace(SECRET).draw(draws, rates, 3)
    for rate in set(rates.tolist()):
        here = rates == rate
        assert (ExactLaplace(SECRET).draw(draws[here], rate, 3) == table[here]).all()
    order = np.random.default_rng(0).permutation(len(rates))
    assert (ExactLaplace(SECRET).draw(draws[order], rates[order], 3) == table[order]).all()
    assert (Slow(SECRET).draw(draws, rates, 2) == table[:, :2]).all()


def test_numbers_of_different_rates_are_independent() -> None:
    """Neighbouring draws with rates 0.1 and 0.3: no correlation in 100,000 pairs; one shared
    uniform would show 0.9."""
    rates = np.tile([0.1, 0.3], 50_000)
    x = ExactLaplace(SECRET).draw(np.arange(100_000), rates, 1).reshape(-1, 2).astype(float)
    assert abs(np.corrcoef(x.T)[0, 1]) < 5 / math.sqrt(50_000)
    same = [ExactLaplace(SECRET).draw(np.arange(1000), rate, 1).ravel() for rate in (0.1, 0.3)]
    assert np.corrcoef(same)[0, 1] > 0.9
    for column, rate in enumerate((0.1, 0.3)):
        assert x[:, column].var() == pytest.approx(variance(rate), rel=5 * math.sqrt(5 / 50_000))


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
    source = ExactLaplace(SECRET)
    for rate in (0.0, -1.0, math.nan, 65.0):
        with pytest.raises(ParameterError, match="rates"):
            source.draw([0, 1], [1.0, rate], 1)
    with pytest.raises(ParameterError):
        ExactLaplace("secret")  # type: ignore[arg-type]
    with pytest.raises(ParameterError):
        source.draw([-1], 1.0, 1)
    with pytest.raises(ParameterError):
        source.draw([0], 1.0, 0)
    with pytest.raises(ParameterError):
        pickle.dumps(source)
    assert "5555" not in repr(source)
