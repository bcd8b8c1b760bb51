"""Normal tails for error bars: one tick, and many ticks or cells at once by the union bound with exact tails."""

from __future__ import annotations

import math

from evercount._validate import check_count, check_probability
from evercount.errors import ParameterError


def _quantile(log_count: float, beta: float) -> float:
    """The smallest a with count·2·(1−Φ(a)) ≤ β, rounded up. The count is given by its logarithm: it may be huge."""
    from scipy.special import log_ndtr, ndtri_exp  # imported here: it takes longer than all the rest of start-up

    target = math.log(beta) - math.log(2) - log_count
    a = -float(ndtri_exp(target))
    # The logarithms are wrong by a few units in the last place at most. Step up until the claim holds despite that.
    slack = 8 * 2.0**-52 * (1 + abs(target) + log_count)
    step = 2.0**-52 * max(a, 1.0)
    while float(log_ndtr(-a)) + slack > target:
        a += step
        step *= 2
    return a


def interval_quantile(beta: float) -> float:
    """The a with 2·(1−Φ(a)) = β: one tick's error stays within a·std with probability 1 − β.

    Args:
        beta: The probability of a larger error.

    Returns:
        a, rounded up.

    Raises:
        ParameterError: `beta` is not strictly between 0 and 1.

    >>> round(interval_quantile(0.05), 3)
    1.96
    """
    return _quantile(0.0, check_probability("beta", beta))


def simultaneous_quantile(ticks: int, beta: float) -> float:
    """The smallest a with ticks·2·(1−Φ(a)) ≤ β, rounded up; exact normal tails, stable for any number of ticks.

    **Guarantee.** If each of `ticks` errors is normal with mean 0, then with probability at least 1 − β all of them
    are within a times their own std, whatever their correlation (union bound). Test:
    `tests/bounds/test_normal_tails.py::test_simultaneous_quantile_against_high_precision`.

    Args:
        ticks: The number of errors that must hold together.
        beta: The probability that any of them is larger.

    Returns:
        a, rounded up.

    Raises:
        ParameterError: `ticks` is not a whole number of at least 1, or `beta` is not strictly between 0 and 1.

    >>> round(simultaneous_quantile(65536, 0.05), 3)
    4.945
    """
    return _quantile(math.log(check_count("ticks", ticks)), check_probability("beta", beta))


def simultaneous_closed_form(ticks: int, beta: float) -> float:
    """√(2 ln(ticks/β)), an upper bound of `simultaneous_quantile`, because 2·(1−Φ(a)) ≤ exp(−a²/2)."""
    return math.sqrt(2 * (math.log(check_count("ticks", ticks)) - math.log(check_probability("beta", beta))))


def simultaneous_paper_proof(ticks: int, beta: float) -> float:
    """√2·ln(2·ticks/β), the factor in the paper's proof of Theorem 2."""
    # The square root around the logarithm is missing.
    return math.sqrt(2) * math.log(2 * check_count("ticks", ticks) / check_probability("beta", beta))


def simultaneous_paper_two_thirds(ticks: int) -> float:
    """√ln(6·ticks), the paper's factor for probability 2/3. Its tail bound with β = 1/3 gives √(2 ln(6·ticks))."""
    return math.sqrt(math.log(6 * check_count("ticks", ticks)))


def simultaneous_quantile_of_log(log_count: float, beta: float) -> float:
    """`simultaneous_quantile` for a number of errors too large to write down, given by its natural logarithm."""
    if not 0 <= log_count < math.inf:
        raise ParameterError(f"log_count must be a finite number of at least 0, not {log_count!r}.")
    return _quantile(float(log_count), check_probability("beta", beta))
