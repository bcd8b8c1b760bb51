"""Public numbers of the row-weighted family: a rational filter close to (1−z)^(−1/2), and piecewise
linear weights.

The filter has poles, residues and squared sums in closed form, and runs in doubles (`BlockFilter`):

    F(z) = Π(1−μ_i z)/(1−λ_i z),  d poles λ and d zeros μ (Zolotarev's points) with
                                  1 > λ_1 > μ_1 > λ_2 > … > μ_d > 0.

Roots are stored as u = 1/root − 1 (so root = 1/(1+u)): differences of roots near 1 are then exact.
Because poles and zeros interlace, every residue is positive, and so is every coefficient of F and
of 1/((1−z)·F).

The weights are linear over blocks whose lengths are powers of two. A block is at most
1/KNOT_DENSITY times as long as its distance to either end. So 10^8 ticks need about ten thousand
knots, and every tick near an end is a knot of its own. Values between two knots are *defined* as
the exact linear interpolation; doubles give it up to one rounding, fixed-point arithmetic exactly.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from evercount._validate import FloatArray, IntArray
from evercount.errors import ParameterError
from evercount.factorizations.base import lower_toeplitz

FILTER_LOSS = 1e-6
"""The filter's product of norms exceeds that of the exact square root by less than this
fraction."""


@dataclass(frozen=True, eq=False)
class Exponentials:
    """A sequence h(0) = head, h(k) = Σ weight_i·root_i^k for k ≥ 1, with root_i = 1/(1+u_i)."""

    head: float
    weights: FloatArray
    u: FloatArray

    @property
    def rates(self) -> FloatArray:
        """−ln(root), accurate also for roots next to 1."""
        return np.log1p(self.u)

    def values(self, count: int) -> FloatArray:
        """h(0) … h(count−1)."""
        k = np.arange(count)
        h = np.exp(-np.multiply.outer(k, self.rates)) @ self.weights
        h[:1] = self.head
        return h

    def squared_sums(self, counts: FloatArray) -> FloatArray:
        """Σ_{k<n} h(k)² for each n ≥ 0 in `counts`, in O(d²) each."""
        pairs = np.add.outer(self.rates, self.rates).ravel()
        weights = np.multiply.outer(self.weights, self.weights).ravel()
        n = np.asarray(counts, dtype=np.float64)
        # not a matrix product: its last digits would depend on how many ticks are asked for at once
        sums = np.sum(geometric(pairs, n[..., np.newaxis]) * weights, axis=-1)
        return np.where(n > 0, sums + (self.head**2 - float(np.sum(self.weights)) ** 2), 0.0)


def geometric(rates: FloatArray, counts: FloatArray) -> FloatArray:
    """Σ_{k<n} exp(−rate·k), stable for every rate ≥ 0 (n for rate 0)."""
    is_zero = rates == 0
    nonzero = np.where(is_zero, 1.0, rates)  # avoids 0/0 where the closed form does not hold
    return np.where(is_zero, counts, np.expm1(-nonzero * counts) / np.expm1(-nonzero))


@dataclass(frozen=True, eq=False)
class Rational:
    """The filter F of the module docstring, defined by public dyadic numbers of 32 bits.

    `pole_lack` and `zero_lack` are 1 − λ_i and 1 − μ_i: what each root lacks to 1. Everything else
    (residues, norms) follows from them.
    """

    pole_lack: FloatArray
    zero_lack: FloatArray

    @property
    def order(self) -> int:
        """d, the number of poles."""
        return len(self.pole_lack)

    @property
    def poles(self) -> FloatArray:
        """u-values of λ."""
        return self.pole_lack / (1 - self.pole_lack)

    @property
    def zeros(self) -> FloatArray:
        """u-values of μ."""
        return self.zero_lack / (1 - self.zero_lack)

    def forward(self) -> Exponentials:
        """Coefficients of F: positive, close to binom(2k,k)/4^k."""
        return Exponentials(1.0, _residues(self.poles, self.zeros), self.poles)

    def inverse(self) -> Exponentials:
        """Coefficients of 1/F: g(0) = 1 and g(k) < 0 after that."""
        return Exponentials(1.0, _residues(self.zeros, self.poles), self.zeros)

    def summed_inverse(self) -> Exponentials:
        """Coefficients of 1/((1−z)·F), the running sums of `inverse`: positive, again close to
        binom(2k,k)/4^k."""
        roots = np.concatenate([[0.0], self.zeros])
        return Exponentials(1.0, _residues(roots, self.poles), roots)


FILTER_TICKS = 32  # ticks that `BlockFilter` runs at a time


class BlockFilter:
    """The filter with impulse response h(0) = 1, h(k) = Σ c_i μ_i^k, as small matrix products; no
    release is made so.

    y = x + Σ c_i s_i and s_i ← μ_i (s_i + x), with buffers s of shape (d, cells).
    """

    def __init__(self, response: Exponentials) -> None:
        self._rates = response.rates[:, np.newaxis]
        ticks = np.arange(FILTER_TICKS)
        self._lower = lower_toeplitz(response.values(FILTER_TICKS))
        self._readout = np.exp(-np.multiply.outer(ticks, response.rates)) * response.weights
        # what the inputs add to the buffers
        self._feed = np.exp(-self._rates * (FILTER_TICKS - ticks))

    def apply(self, x: FloatArray, buffers: FloatArray) -> tuple[FloatArray, FloatArray]:
        """(y, buffers after) for inputs x of shape (ticks, cells)."""
        y = np.empty_like(x)
        for start in range(0, len(x), FILTER_TICKS):
            inputs = x[start : start + FILTER_TICKS]
            size = len(inputs)
            y[start : start + size] = (
                self._lower[:size, :size] @ inputs + self._readout[:size] @ buffers
            )
            buffers = (
                np.exp(-size * self._rates) * buffers
                + self._feed[:, FILTER_TICKS - size :] @ inputs
            )
        return y, buffers


def _residues(poles: FloatArray, zeros: FloatArray) -> FloatArray:
    """Weights of the partial fractions of Π(1−zero·z)/Π(1−pole·z), from u-values."""
    weights = np.empty(len(poles))
    for i, pole in enumerate(poles):
        others = np.delete(poles, i)
        weights[i] = np.prod((zeros - pole) / (1 + zeros)) / np.prod((others - pole) / (1 + others))
    return weights


@cache
def _first_landau() -> FloatArray:
    """The first 128 Landau constants, summed without rounding errors."""
    squares = [(math.comb(2 * k, k) / 4**k) ** 2 for k in range(128)]
    return np.array([math.fsum(squares[:ticks]) for ticks in range(1, 129)])


def landau(ticks: npt.ArrayLike) -> FloatArray:
    """Σ_{k<T} (binom(2k,k)/4^k)², the squared norm of the exact square root (a Landau constant), to
    1e-15 relative.

    For one horizon or an array of them. Summed up to T = 128; above, an expansion in 1/(T−¼)² whose
    first omitted term is below 1e-17 (both checked against many digits in tests).
    """
    T = np.asarray(ticks, dtype=np.int64)
    x = T - 0.25
    y = 1 / (x * x)
    tail = y * (11 / 192 - y * (1541 / 122880 - y * (63433 / 8257536)))
    expansion: FloatArray = (np.log(x) + (np.euler_gamma + 4 * math.log(2)) + tail) / math.pi
    first = _first_landau()
    return np.where(len(first) < T, expansion, first[np.minimum(T, len(first)) - 1])


def round_bits(values: FloatArray, up: bool = False) -> FloatArray:
    """Values rounded to 32 significant bits, to the nearest or (with `up`) upwards.

    Machines whose elliptic functions differ in the last place then still agree on the public
    parameters.
    """
    mantissa, exponent = np.frexp(values)
    scaled = mantissa * 2.0**32
    return np.asarray(
        np.ldexp(np.ceil(scaled) if up else np.rint(scaled), exponent - 32), dtype=np.float64
    )


@lru_cache(maxsize=256)
def design(ticks: int) -> Rational:
    """The filter with the fewest poles whose ‖L‖·‖R‖ over `ticks` ticks exceeds the exact square
    root's by FILTER_LOSS at most."""
    if ticks == 1:
        return Rational(np.empty(0), np.empty(0))
    exact = float(landau(ticks))
    for order in range(1, 80):
        filter_ = zolotarev(ticks, order)
        if norm_product(filter_, ticks) < exact * (1 + FILTER_LOSS):
            return filter_
    raise ParameterError(
        f"no filter of up to 80 poles has a loss of {FILTER_LOSS} over {ticks} ticks"
    )


def norm_product(filter_: Rational, ticks: int) -> float:
    """‖L‖·‖R‖ of the `square-root` factorization with this filter over `ticks` ticks."""
    n = np.asarray(float(ticks))
    return float(
        np.sqrt(filter_.forward().squared_sums(n) * filter_.summed_inverse().squared_sums(n))
    )


def zolotarev(ticks: int, order: int) -> Rational:
    """Zolotarev's points for 1/√u on [3.5/ticks, 1], in closed form by elliptic functions."""
    # imported here: it takes longer than all the rest of start-up
    from scipy.special import ellipj, ellipkm1

    low = min(3.5 / ticks, 0.5)
    argument = np.arange(1, 2 * order + 1) * ellipkm1(low) / (2 * order + 1)
    sn, cn, _, _ = ellipj(argument, 1 - low)
    u = np.asarray(low * (sn / cn) ** 2, dtype=np.float64)
    lack = round_bits(u / (1 + u))
    return Rational(np.ascontiguousarray(lack[0::2]), np.ascontiguousarray(lack[1::2]))


KNOT_DENSITY = 256  # least ratio of a block's distance from the ends to its length


def dyadic_knots(last: int, mirrored: bool) -> IntArray:
    """Knots 0 = t_0 < t_1 < … = last with power-of-two steps, small near 0 and, with `mirrored`,
    near the end too."""
    knots = [0]
    at = 0
    length = 1
    while at < last:
        length = min(2 * length, at & -at) if at else 1
        while length > 1 and length * KNOT_DENSITY > min(
            at, last - at - length if mirrored else at
        ):
            length //= 2
        while at + length > last:
            length //= 2
        at += length
        knots.append(at)
    return np.asarray(knots, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class PiecewiseLinear:
    """A public function of the 0-based tick, linear between knots and constant after the last
    one."""

    knots: IntArray
    values: FloatArray

    @cached_property
    def _slopes(self) -> FloatArray:
        return np.append(np.diff(self.values) / np.diff(self.knots), 0.0)

    def at(self, start: int, stop: int) -> FloatArray:
        """Values at ticks start … stop−1 (0-based)."""
        ticks = np.arange(start, stop)
        block = np.searchsorted(self.knots, ticks, side="right") - 1
        return np.asarray(self.values[block] + self._slopes[block] * (ticks - self.knots[block]))
