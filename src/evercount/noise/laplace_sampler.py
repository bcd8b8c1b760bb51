"""Exact discrete Laplace noise as a function of (secret, draw, cell).

Doubles decide each number; where one is closer to a boundary than their error, exact integers
decide.

P(X = k) is proportional to exp(−rate·|k|) on the whole numbers. |X| is the number of k ≥ 1 with u <
t_k for one uniform u, where t_k = P(|X| ≥ k) = 2·exp(−rate·k)/(1 + exp(−rate)); the sign is one
more bit.

The key stream of a number (layout of `prf.py`, under a key of its own): index 0 holds bits 1 … 128
of u, the lowest bit of index 1's first word is the sign, and index 2, 3, … hold 128 further bits of
u each, read when a decision needs them.
"""

from __future__ import annotations

import math
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from evercount._validate import FloatArray, IntArray, UIntArray, check_probability
from evercount.errors import ParameterError
from evercount.noise.prf import (
    BITS_PER_READ,
    DRAWS,
    GUARD,
    Prf,
    check_cells,
    counters,
    exp_minus,
    read_counter,
)
from evercount.noise.secret import Secret, check_secret

LABEL = "evercount/noise/laplace/1"
# more than the error in doubles of ln t_0 − ln u: `laplace_sampler.proof.md`, lemma 2
SLACK = 2.0**-42
LEAST_RATE = 2.0**-36
LARGEST_RATE = 64.0
_NUMBERS_AT_A_TIME = 1 << 14


class ExactLaplace:
    """Discrete Laplace numbers with a rate for each draw: a pseudorandom function of (secret, draw,
    cell), stateless.

    **Guarantee.** For bits that are uniform (see `Prf`), the numbers of all (draw, cell) are
    independent and each has exactly the discrete Laplace distribution of its rate, so P(X =
    a)/P(X = b) ≤ exp(rate·|a − b|) for all whole a and b, with no δ. Proof:
    `laplace_sampler.proof.md`. Assumption: `numpy.log` errs by less than 2^−44 on [1, 2^64]. Tests:
    `tests/noise/test_laplace_sampler.py` (exact path against doubles, close calls, distribution
    with planted bugs).

    Two streams must never share a secret, and one draw must always have one rate: derive the secret
    from everything that decides the rates.
    """

    _slack: ClassVar[float] = SLACK  # tests make it larger: every decision then goes the exact way

    def __init__(self, secret: Secret) -> None:
        self._prf = Prf(check_secret(secret).derive(LABEL))

    def draw(
        self, draws: npt.ArrayLike, rates: npt.ArrayLike, cells: int, first_cell: int = 0
    ) -> IntArray:
        """The numbers of these draws (in any order) and `cells` cells from `first_cell` on, shape
        (draws, cells).

        `rates` is one for each draw, or one for all.
        """
        rows = np.atleast_1d(np.asarray(draws, dtype=np.int64))
        cells, first_cell = check_cells(len(rows), cells, first_cell, 1)
        if rows.ndim != 1 or (rows.size and not 0 <= rows.min() <= rows.max() < DRAWS):
            raise ParameterError("draws must be numbers from 0 to 2^48 − 1")
        rate = np.broadcast_to(np.asarray(rates, dtype=np.float64), rows.shape)
        if rate.size and not LEAST_RATE <= rate.min() <= rate.max() <= LARGEST_RATE:
            raise ParameterError(
                "the rates of Laplace noise must lie between 2^-36 and 64, got "
                f"{float(rate.min())!r} to {float(rate.max())!r}"
            )
        out = np.empty((len(rows), cells), np.int64)
        step = max(1, _NUMBERS_AT_A_TIME // cells)
        for start in range(0, len(rows), step):
            now = slice(start, start + step)
            blocks = counters(rows[now], range(first_cell, first_cell + cells))
            out[now] = self._block(blocks, rate[now], cells).reshape(-1, cells)
        return out

    def _block(self, blocks: UIntArray, rate: FloatArray, cells: int) -> IntArray:
        """The numbers of counter blocks, with a rate for every `cells` of them."""
        words = self._prf.words(blocks)
        u = np.maximum(words[:, 0].astype(np.float64), 0.5)
        head = math.log(2) - np.log1p(np.exp(-rate)) + 64 * math.log(2)  # ln t_0 + ln 2^64
        head = np.repeat(head, cells)
        rate = np.repeat(rate, cells)
        y = (head - np.log(u)) / rate
        size = np.floor(y)
        unsure = np.minimum(y - size, 1 - (y - size)) <= (1 / u + self._slack) / rate + y * 2.0**-48
        unsure |= words[:, 0] == 0  # ln u is then not bounded below
        magnitude = size.astype(np.int64)
        for number in np.flatnonzero(unsure):
            draw, cell, _ = read_counter(blocks[number])
            magnitude[number] = self._exactly(
                draw, cell, int(magnitude[number]), float(rate[number])
            )
        return np.where(words[:, 2] & np.uint64(1), -magnitude, magnitude)

    def _exactly(self, draw: int, cell: int, guess: int, rate: float) -> int:
        """|X| in exact arithmetic, on as many bits of u as it takes."""
        u = read = index = 0
        while True:
            u = u << BITS_PER_READ | self._prf.number(draw, cell, 0, index)
            read += BITS_PER_READ
            index = max(2, index + 1)
            number = self._search(u, read, guess, rate)
            if number is not None:
                return number

    @staticmethod
    def _search(u: int, read: int, guess: int, rate: float) -> int | None:
        """The k with t_{k+1} ≤ u < t_k for every continuation of the bits read, or None."""
        k = max(guess, 0)
        while (below := reaches(u, read, k, rate)) is False:
            k -= 1
        while below:
            if (below := reaches(u, read, k + 1, rate)) is False:
                return k
            k += 1
        return None


def reaches(u: int, read: int, k: int, rate: float) -> bool | None:
    """Whether u < t_k, for u known to its first `read` bits; None where they do not tell."""
    if k <= 0:
        return True
    numerator, denominator = rate.as_integer_ratio()
    shift = denominator.bit_length() - 1
    bits = read + GUARD
    low, high = exp_minus(k * numerator, shift, bits)
    q_low, q_high = exp_minus(numerator, shift, bits)
    one = 1 << bits
    t_low = (2 * low << bits) // (one + q_high)
    t_high = -((-2 * high << bits) // (one + q_low))
    if u + 1 << GUARD <= t_low:
        return True
    if u << GUARD >= t_high:
        return False
    return None


def variance(rate: float) -> float:
    """Var X = 2q/(1 − q)² = 1/(2·sinh²(rate/2)), q = exp(−rate): just below 2/rate²."""
    return 0.5 / math.sinh(rate / 2) ** 2


def tail(rate: float, k: int) -> float:
    """P(|X| ≥ k) for k ≥ 1."""
    return 2 * math.exp(-rate * k) / (1 + math.exp(-rate))


def quantile(rate: float, beta: float) -> int:
    """The smallest whole a with P(|X| > a) ≤ beta."""
    check_probability("beta", beta)
    a = max(0, math.ceil((math.log(2) - math.log1p(math.exp(-rate)) - math.log(beta)) / rate) - 1)
    if tail(rate, a + 1) <= beta:
        return a
    return a + 1
