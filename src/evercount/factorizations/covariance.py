"""Exact variances of the row-weighted family's noise: O(d²) numbers per block, and doubling inside a block.

Inside a block the weights are linear in the tick, so the noise after ℓ ticks is a fixed linear map of the buffers
before it and of the block's normals. For ℓ a power of two these maps follow from those for ℓ/2, so no step is per tick.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from evercount._arrays import FloatArray, IntArray
from evercount.factorizations.piecewise_linear import PiecewiseLinear
from evercount.factorizations.square_root_filter import Exponentials


@dataclass(frozen=True, eq=False)
class _Step:
    """What ℓ ticks do to the buffers and to two sums of the filter's outputs w_k, before weights are applied.

    The weights are η = η_0 + η'k and n = n_0 + n'k. Γ(j) is what the normal of tick j adds to (buffers, Σ w_k,
    Σ k·w_k).
    """

    decay: FloatArray  # (d,): μ^ℓ
    zero: FloatArray  # (d,): what the buffers add to Σ w_k
    one: FloatArray  # (d,): what the buffers add to Σ k·w_k
    Q: tuple[FloatArray, FloatArray, FloatArray]  # Σ_j j^p Γ(j)Γ(j)ᵀ for p = 0, 1, 2, each (d+2, d+2)


@dataclass(frozen=True, eq=False)
class _Moments:
    """Covariance of (buffers, running noise) after some tick, shape (d+1, d+1)."""

    P: FloatArray


class Covariance:
    """Var(noise_t) and Var(noise_t − noise_s) for unit normals, for any ticks."""

    def __init__(self, inverse: Exponentials, eta: PiecewiseLinear, n: PiecewiseLinear) -> None:
        self.inverse = inverse
        self.knots = eta.knots
        self.eta = eta
        self.n = n
        self._steps: dict[int, _Step] = {}
        self._cubics: dict[int, FloatArray] = {}
        self._lock = threading.RLock()
        self._at_knots: list[_Moments] = [_Moments(np.zeros((len(inverse.u) + 1,) * 2))]

    # -- queries -------------------------------------------------------------------------------------------------

    def variances(self, ticks: IntArray) -> FloatArray:
        """Var(noise_t) for 1-based ticks; each is a function of its tick alone, whatever else is asked for.

        Between two knots the variance is a cubic through four exact values: at both knots and at the thirds between.
        Up to three ticks apart every tick is such a point. The relative error is below 1e-7: tests/factorizations/
        test_factorizations_numbers.py::test_variances_between_knots_are_exact_enough.
        """
        flat = ticks.ravel()
        blocks = np.searchsorted(self.knots, flat, side="right") - 1
        distinct, where = np.unique(blocks, return_inverse=True)
        tables = np.stack([self._cubic(int(q)) for q in distinct])[where] if len(distinct) else np.empty((0, 3, 4))
        x, exact, c = tables[:, 0], tables[:, 1], tables[:, 2]
        at = flat.astype(np.float64)
        values = c[:, 0] + (at - x[:, 0]) * (c[:, 1] + (at - x[:, 1]) * (c[:, 2] + (at - x[:, 2]) * c[:, 3]))
        for i in range(4):  # at its points the cubic is right up to rounding, the table is right
            values = np.where(at == x[:, i], exact[:, i], values)
        for index in np.flatnonzero(blocks == len(self.knots) - 1):  # constant weights: no block to interpolate in
            values[index] = self._after(int(flat[index])).P[-1, -1]
        return np.asarray(values.reshape(ticks.shape), dtype=np.float64)

    def _cubic(self, block: int) -> FloatArray:
        """Rows: four points of a block between knots, the exact variances there, and Newton's divided differences."""
        if block not in self._cubics:
            table = np.zeros((3, 4))
            if block < len(self.knots) - 1:
                left, right = int(self.knots[block]), int(self.knots[block + 1])
                points = sorted({left, left + (right - left) // 3, left + 2 * (right - left) // 3, right})
                size = len(points)
                differences = np.asarray([self._after(t).P[-1, -1] for t in points])
                table[0, :size], table[1, :size] = points, differences
                for order in range(1, size):
                    apart = np.asarray(points[order:]) - np.asarray(points[:-order])
                    differences[order:] = np.diff(differences[order - 1 :]) / apart
                table[2, :size] = differences
            self._cubics[block] = table
        return self._cubics[block]

    def difference(self, earlier: int, later: int) -> float:
        """Var(noise_later − noise_earlier); tick 0 is before the first one."""
        P = self._after(earlier).P.copy()
        P[-1, :] = 0.0
        P[:, -1] = 0.0
        return float(self._advance(_Moments(P), earlier, later).P[-1, -1])

    def differences_to(self, later: int, earlier: IntArray) -> FloatArray:
        """`difference` to one later tick from many earlier ones, in one pass backwards: equal up to rounding.

        The noise after tick `earlier` is a sum over the buffers there (`factors`) and over later normals (`fresh`).
        """
        d = len(self.inverse.u)
        factors, fresh, at = np.zeros(d), 0.0, later
        values = {}
        for tick in np.unique(earlier)[::-1].tolist():
            for step, eta, n in reversed(list(self._pieces(tick, at))):
                v = np.concatenate([factors, n])
                fresh += float(
                    eta[0] ** 2 * (v @ step.Q[0] @ v)
                    + 2 * eta[0] * eta[1] * (v @ step.Q[1] @ v)
                    + eta[1] ** 2 * (v @ step.Q[2] @ v)
                )
                factors = factors * step.decay + n[0] * step.zero + n[1] * step.one
            at = tick
            values[tick] = float(factors @ self._after(tick).P[:-1, :-1] @ factors) + fresh
        return np.asarray([values[tick] for tick in earlier.tolist()])

    # -- evolution -----------------------------------------------------------------------------------------------

    def _after(self, tick: int) -> _Moments:
        """Moments after `tick` ticks, computed from the last knot that is not later."""
        q = int(np.searchsorted(self.knots, tick, side="right")) - 1
        with self._lock:  # several threads ask for errors: append each knot once
            while len(self._at_knots) <= q:
                k = len(self._at_knots)
                self._at_knots.append(self._advance(self._at_knots[-1], int(self.knots[k - 1]), int(self.knots[k])))
        return self._advance(self._at_knots[q], int(self.knots[q]), tick)

    def _advance(self, moments: _Moments, start: int, stop: int) -> _Moments:
        """Moments after tick `stop` from those after tick `start`, by power-of-two steps inside each block."""
        for step, eta, n in self._pieces(start, stop):
            moments = self._apply(moments, step, eta, n)
        return moments

    def _pieces(self, start: int, stop: int) -> Iterator[tuple[_Step, tuple[float, float], tuple[float, float]]]:
        """Ticks start+1 … stop as power-of-two steps inside blocks, with (value, slope) of both weights in each."""
        at = start
        q = int(np.searchsorted(self.knots, at, side="right")) - 1
        while at < stop:
            final = q + 1 >= len(self.knots)
            left = int(self.knots[q])
            right = stop if final else int(self.knots[q + 1])
            length = 1 if final else right - left
            eta_slope = 0.0 if final else (self.eta.values[q + 1] - self.eta.values[q]) / length
            n_slope = 0.0 if final else (self.n.values[q + 1] - self.n.values[q]) / length
            end = min(right, stop)
            while at < end:
                size = 1 << ((end - at).bit_length() - 1)
                offset = 0 if final else at - left
                eta = (self.eta.values[q] + eta_slope * offset, eta_slope)
                yield self._step(size), eta, (self.n.values[q] + n_slope * offset, n_slope)
                at += size
            q += 1

    def _apply(self, moments: _Moments, step: _Step, eta: tuple[float, float], n: tuple[float, float]) -> _Moments:
        """Moments after one step whose weights start at (value, slope) `eta` and `n`."""
        d = len(step.decay)
        A = np.zeros((d + 1, d + 1))
        A[np.arange(d), np.arange(d)] = step.decay
        A[d, :d] = n[0] * step.zero + n[1] * step.one
        A[d, d] = 1.0
        Q = eta[0] ** 2 * step.Q[0] + 2 * eta[0] * eta[1] * step.Q[1] + eta[1] ** 2 * step.Q[2]
        E = np.zeros((d + 1, d + 2))
        E[np.arange(d), np.arange(d)] = 1.0
        E[d, d], E[d, d + 1] = n
        return _Moments(A @ moments.P @ A.T + E @ Q @ E.T)

    def _step(self, length: int) -> _Step:
        """The maps of `length` ticks, a power of two; computed once."""
        if length not in self._steps:
            self._steps[length] = self._single() if length == 1 else self._double(length // 2)
        return self._steps[length]

    def _single(self) -> _Step:
        mu = np.exp(-self.inverse.rates)
        gamma = np.concatenate([mu, [1.0, 0.0]])
        empty = np.zeros((len(gamma), len(gamma)))
        return _Step(mu, self.inverse.weights, np.zeros_like(mu), (np.outer(gamma, gamma), empty, empty))

    def _double(self, half: int) -> _Step:
        step = self._step(half)
        d = len(step.decay)
        first = np.eye(d + 2)  # what the second half does with the result of the first
        first[np.arange(d), np.arange(d)] = step.decay
        first[d, :d] = step.zero
        first[d + 1, :d] = step.one + half * step.zero
        second = np.eye(d + 2)  # the second half counts its ticks from `half` on
        second[d + 1, d] = half
        Q0, Q1, Q2 = step.Q
        shifted = (Q0, Q1 + half * Q0, Q2 + 2 * half * Q1 + half**2 * Q0)
        q0, q1, q2 = (first @ old @ first.T + second @ new @ second.T for old, new in zip(step.Q, shifted, strict=True))
        decay = np.exp(-2 * half * self.inverse.rates)
        zero = step.zero * (1 + step.decay)
        one = step.one + (step.one + half * step.zero) * step.decay
        return _Step(decay, zero, one, (q0, q1, q2))
