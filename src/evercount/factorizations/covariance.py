"""Exact variances of the row-weighted family's noise: O(d²) numbers per block, and doubling inside
a block.

Inside a block the weights are linear in the tick, so the noise after ℓ ticks is a fixed linear map
of the buffers before it and of the block's normals. The map of a + b ticks follows from those of a
and of b ticks, so no step is per tick, and a run of blocks is computed at once.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from evercount._validate import FloatArray, IntArray
from evercount.factorizations.filter_numbers import Exponentials, PiecewiseLinear

RUN = 128  # blocks whose moments are computed together
PAIRS = 256  # pairs of ticks whose differences are computed together
KEPT_RUNS = 4  # runs whose moments are kept; of all others, those at their first knot


class _Step(NamedTuple):
    """What ℓ ticks do to the buffers and to two sums of the filter's outputs w_k, before weights
    are applied."""

    # The weights are η = η_0 + η'k and n = n_0 + n'k. Γ(j) is what the normal of tick j adds to
    # (buffers, Σ w_k, Σ k·w_k).

    decay: FloatArray  # (d,): μ^ℓ
    zero: FloatArray  # (d,): what the buffers add to Σ w_k
    one: FloatArray  # (d,): what the buffers add to Σ k·w_k
    # Σ_j j^p Γ(j)Γ(j)ᵀ for p = 0, 1, 2, each (d+2, d+2)
    Q: tuple[FloatArray, FloatArray, FloatArray]


class Covariance:
    """Var(noise_t) and Var(noise_t − noise_s) for unit normals, for any ticks."""

    # Moments P are covariances of (buffers, running noise) after some tick, shape (d+1, d+1).

    def __init__(self, inverse: Exponentials, eta: PiecewiseLinear, n: PiecewiseLinear) -> None:
        self.inverse = inverse
        self.knots = eta.knots
        self._lengths = np.diff(self.knots)
        values = eta.values, n.values
        self._lines = [
            np.stack([each[:-1], np.diff(each) / self._lengths], axis=1) for each in values
        ]
        self._last = tuple((float(each[-1]), 0.0) for each in values)
        self._steps: dict[int, _Step] = {}
        self._lock = threading.RLock()
        self._starts = [np.zeros((len(inverse.u) + 1,) * 2)]
        self._tables: list[FloatArray] = []
        self._kept: dict[int, FloatArray] = {}

    def variances(self, ticks: IntArray) -> FloatArray:
        """Var(noise_t) for 1-based ticks; each is a function of its tick alone, whatever else is
        asked for.

        Between two knots the variance is a cubic through four exact values: at both knots and at
        the thirds between. Up to three ticks apart every tick is such a point. The relative error
        is below 1e-7: tests/factorizations/
        test_factorizations_numbers.py::test_variances_between_knots_are_exact_enough.
        """
        flat = ticks.ravel()
        blocks = np.searchsorted(self.knots, flat, side="right") - 1
        values = np.empty(len(flat))
        for run in np.unique(blocks // RUN).tolist():
            here = np.flatnonzero((blocks // RUN == run) & (blocks < len(self._lengths)))
            if len(here):
                values[here] = _evaluate(
                    self._table(run)[blocks[here] - run * RUN], flat[here].astype(np.float64)
                )
        # constant weights: no block to interpolate in
        for index in np.flatnonzero(blocks == len(self._lengths)):
            values[index] = self._after(int(flat[index]))[-1, -1]
        return values.reshape(ticks.shape)

    def difference(self, earlier: int, later: int) -> float:
        """Var(noise_later − noise_earlier); tick 0 is before the first one."""
        P = self._after(earlier).copy()
        P[-1, :] = 0.0
        P[:, -1] = 0.0
        return float(self._advance(P, earlier, later)[-1, -1])

    def differences(self, earlier: IntArray, later: IntArray) -> FloatArray:
        """`difference` of many pairs, bit for bit: each is a function of its pair alone, whatever
        else is asked for."""
        norms = np.empty(len(later))
        for start in range(0, len(later), PAIRS):
            here = slice(start, start + PAIRS)
            P = self._each_after(earlier[here])
            P[:, -1, :] = 0.0
            P[:, :, -1] = 0.0
            norms[here] = self._advance_each(P, earlier[here], later[here])[:, -1, -1]
        return norms

    def differences_to(self, later: int, earlier: IntArray) -> FloatArray:
        """`difference` to one later tick from many earlier ones, in one pass backwards: equal up to
        rounding."""
        # The noise after tick `earlier` is a sum over the buffers there (`factors`) and over later
        # normals (`fresh`).
        d = len(self.inverse.u)
        factors = np.zeros(d)
        fresh = 0.0
        at = later
        values = {}
        for tick in np.unique(earlier)[::-1].tolist():
            for step, eta, n in reversed(list(self._pieces(tick, at))):
                v = np.concatenate([factors, n])
                parts = eta[0] ** 2, 2 * eta[0] * eta[1], eta[1] ** 2
                fresh += float(
                    sum(part * (v @ Q @ v) for part, Q in zip(parts, step.Q, strict=True))
                )
                factors = factors * step.decay + n[0] * step.zero + n[1] * step.one
            at = tick
            values[tick] = float(factors @ self._after(tick)[:-1, :-1] @ factors) + fresh
        return np.asarray([values[tick] for tick in earlier.tolist()])

    def _table(self, run: int) -> FloatArray:
        """Per block of a run: four points, the exact variances there, and Newton's divided
        differences, (3, 4)."""
        if run >= len(self._tables):
            self._run(run)
        return self._tables[run]

    def _run(self, run: int) -> FloatArray:
        """Moments at the first knot of a run and after each of its blocks."""
        with self._lock:  # several threads ask for errors
            if run not in self._kept:
                for missing in range(len(self._tables), run):
                    self._compute(missing)
                while len(self._kept) >= KEPT_RUNS:
                    del self._kept[next(iter(self._kept))]
                self._kept[run] = self._compute(run)
            return self._kept[run]

    def _compute(self, run: int) -> FloatArray:
        """Compute the moments of one run, block by block."""
        blocks = np.arange(run * RUN, min((run + 1) * RUN, len(self._lengths)))
        lengths = self._lengths[blocks]
        d = len(self.inverse.u)
        decay, from_buffers = np.empty((2, len(blocks), d))
        fresh = np.empty((len(blocks), d + 1, d + 1))
        for length in np.unique(lengths).tolist():
            same = lengths == length
            step = self._step(length)
            decay[same] = step.decay
            from_buffers[same], fresh[same] = self._step_covariance(step, blocks[same])
        P = np.empty((len(blocks) + 1, d + 1, d + 1))
        P[0] = self._starts[run]
        B = P[:, :d, :d]
        c = P[:, :d, d]
        D = decay[:, :, np.newaxis] * decay[:, np.newaxis]
        for k in range(len(blocks)):
            B[k + 1] = D[k] * B[k] + fresh[k, :d, :d]
        mixed = np.matmul(B[:-1], from_buffers[:, :, np.newaxis])[:, :, 0]
        fresh[:, :d, d] += decay * mixed
        for k in range(len(blocks)):
            c[k + 1] = decay[k] * c[k] + fresh[k, :d, d]
        P[:, d, :d] = c
        P[1:, d, d] = P[0, d, d] + np.cumsum(
            fresh[:, d, d] + np.sum(from_buffers * (mixed + 2 * c[:-1]), axis=1)
        )
        if run == len(self._tables):
            self._starts.append(P[-1].copy())
            self._tables.append(self._cubics(blocks, P))
        return P

    def _step_covariance(self, step: _Step, blocks: IntArray) -> tuple[FloatArray, FloatArray]:
        """What a step from the start of each block does: buffers to the running noise, (blocks, d);
        fresh moments."""
        eta, n = (line[blocks] for line in self._lines)
        d = len(step.decay)
        squares = np.stack([eta[:, 0] ** 2, 2 * eta[:, 0] * eta[:, 1], eta[:, 1] ** 2], axis=1)
        Q = np.tensordot(squares, np.stack(step.Q), axes=1)
        fresh = np.empty((len(blocks), d + 1, d + 1))
        fresh[:, :d, :d] = Q[:, :d, :d]
        fresh[:, :d, d] = fresh[:, d, :d] = np.matmul(Q[:, :d, d:], n[:, :, np.newaxis])[:, :, 0]
        fresh[:, d, d] = np.sum(np.matmul(Q[:, d:, d:], n[:, :, np.newaxis])[:, :, 0] * n, axis=1)
        return n @ np.stack([step.zero, step.one]), fresh

    def _cubics(self, blocks: IntArray, P: FloatArray) -> FloatArray:
        """The table of some blocks, from the moments at all their knots."""
        tables = np.zeros((len(blocks), 3, 4))
        d = len(self.inverse.u)
        lengths = self._lengths[blocks]
        for length in np.unique(lengths).tolist():
            same = np.flatnonzero(lengths == length)
            before = P[same]
            offsets = sorted({0, length // 3, 2 * length // 3, length})
            exact = [before[:, d, d]]
            for offset in offsets[1:-1]:
                a, fresh = self._step_covariance(self._step(offset), blocks[same])
                mixed = np.matmul(before[:, :d, :d], a[:, :, np.newaxis])[:, :, 0]
                exact.append(
                    before[:, d, d]
                    + np.sum(a * (mixed + 2 * before[:, :d, d]), axis=1)
                    + fresh[:, d, d]
                )
            differences = np.stack([*exact, P[same + 1, d, d]], axis=1)
            size = len(offsets)
            tables[same, 0, :size] = self.knots[blocks[same], np.newaxis] + np.asarray(offsets)
            tables[same, 1, :size] = differences
            for order in range(1, size):
                apart = np.asarray(offsets[order:]) - np.asarray(offsets[:-order])
                differences[:, order:] = np.diff(differences[:, order - 1 :], axis=1) / apart
            tables[same, 2, :size] = differences
        return tables

    def _after(self, tick: int) -> FloatArray:
        """Moments after `tick` ticks, computed from the last knot that is not later."""
        q = int(np.searchsorted(self.knots, tick, side="right")) - 1
        if q and q == len(self._lengths):
            P = self._run((q - 1) // RUN)[(q - 1) % RUN + 1]
        else:
            P = self._run(q // RUN)[q % RUN] if q else self._starts[0]
        return self._advance(P, int(self.knots[q]), tick)

    def _advance(self, P: FloatArray, start: int, stop: int) -> FloatArray:
        """Moments after tick `stop` from those after tick `start`, by power-of-two steps inside
        each block."""
        for step, eta, n in self._pieces(start, stop):
            P = self._apply(P, step, eta, n)
        return P

    def _each_after(self, ticks: IntArray) -> FloatArray:
        """`_after` for each of these ticks, (ticks, d+1, d+1)."""
        own = np.searchsorted(self.knots, ticks, side="right") - 1
        P = np.empty((len(ticks), *self._starts[0].shape))
        for q in np.unique(own).tolist():
            P[own == q] = self._after(int(self.knots[q]))
        return self._advance_each(P, self.knots[own], ticks)

    def _advance_each(self, P: FloatArray, start: IntArray, stop: IntArray) -> FloatArray:
        """`_advance` for each of many moments at once; the steps of one length are applied
        together."""
        P = P.copy()
        at = start.astype(np.int64)
        blocks = np.searchsorted(self.knots, at, side="right") - 1
        lines = [
            np.vstack([line, last]) for line, last in zip(self._lines, self._last, strict=True)
        ]
        ends = np.append(self.knots[1:], np.iinfo(np.int64).max)
        while len(open_ := np.flatnonzero(at < stop)):
            block = blocks[open_]
            now = at[open_]
            end = np.minimum(ends[block], stop[open_])
            # of the longest step that fits
            exponents = np.frexp((end - now).astype(np.float64))[1] - 1
            offset = now - self.knots[block]
            eta, n = (line[block] for line in lines)
            for weight in (eta, n):
                weight[:, 0] += weight[:, 1] * offset
            for exponent in np.unique(exponents).tolist():
                same = exponents == exponent
                here = open_[same]
                P[here] = self._apply_each(P[here], self._step(1 << exponent), eta[same], n[same])
            at[open_] += 1 << exponents.astype(np.int64)
            blocks[open_] += at[open_] == ends[block]
        return P

    def _apply_each(self, P: FloatArray, step: _Step, eta: FloatArray, n: FloatArray) -> FloatArray:
        """`_apply` for each of many moments; weights as (value, slope) of each."""
        d = len(step.decay)
        many = len(P)
        A = np.zeros((many, d + 1, d + 1))
        A[:, np.arange(d), np.arange(d)] = step.decay
        A[:, d, :d] = n[:, :1] * step.zero + n[:, 1:] * step.one
        A[:, d, d] = 1.0
        squares = [(value**2, 2 * value * slope, slope**2) for value, slope in eta.tolist()]
        first, mixed, last = np.asarray(squares).T[:, :, np.newaxis, np.newaxis]
        Q = first * step.Q[0] + mixed * step.Q[1] + last * step.Q[2]
        E = np.zeros((many, d + 1, d + 2))
        E[:, np.arange(d), np.arange(d)] = 1.0
        E[:, d, d:] = n
        return np.asarray(A @ P @ A.swapaxes(1, 2) + E @ Q @ E.swapaxes(1, 2))

    def _pieces(
        self, start: int, stop: int
    ) -> Iterator[tuple[_Step, tuple[float, float], tuple[float, float]]]:
        """Ticks start+1 … stop as power-of-two steps inside blocks, with (value, slope) of both
        weights in each."""
        at = start
        q = int(np.searchsorted(self.knots, at, side="right")) - 1
        while at < stop:
            final = q == len(self._lengths)
            left = int(self.knots[q])
            end = stop if final else min(int(self.knots[q + 1]), stop)
            if final:
                (eta, eta_slope), (n, n_slope) = self._last
            else:
                (eta, eta_slope), (n, n_slope) = (line[q].tolist() for line in self._lines)
            while at < end:
                size = 1 << ((end - at).bit_length() - 1)
                offset = at - left
                yield (
                    self._step(size),
                    (eta + eta_slope * offset, eta_slope),
                    (n + n_slope * offset, n_slope),
                )
                at += size
            q += 1

    def _apply(
        self, P: FloatArray, step: _Step, eta: tuple[float, float], n: tuple[float, float]
    ) -> FloatArray:
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
        return np.asarray(A @ P @ A.T + E @ Q @ E.T)

    def _step(self, length: int) -> _Step:
        """The maps of `length` ticks, a power of two or a third of one; computed once."""
        if length not in self._steps:
            first = 1 << (length - 1).bit_length() - 1 if length > 1 else 0
            if first:
                self._steps[length] = self._compose(first, length - first)
            else:
                self._steps[length] = self._single()
        return self._steps[length]

    def _single(self) -> _Step:
        """Make the maps of one tick."""
        mu = np.exp(-self.inverse.rates)
        gamma = np.concatenate([mu, [1.0, 0.0]])
        empty = np.zeros((len(gamma), len(gamma)))
        return _Step(
            mu, self.inverse.weights, np.zeros_like(mu), (np.outer(gamma, gamma), empty, empty)
        )

    def _compose(self, a: int, b: int) -> _Step:
        """The maps of a ticks and then b more."""
        one = self._step(a)
        two = self._step(b)
        d = len(one.decay)
        first = np.eye(d + 2)  # what the second part does with the result of the first
        first[np.arange(d), np.arange(d)] = two.decay
        first[d, :d] = two.zero
        first[d + 1, :d] = two.one + a * two.zero
        second = np.eye(d + 2)  # the second part counts its ticks from `a` on
        second[d + 1, d] = a
        Q0, Q1, Q2 = two.Q
        shifted = (Q0, Q1 + a * Q0, Q2 + 2 * a * Q1 + a**2 * Q0)
        q0, q1, q2 = (
            first @ old @ first.T + second @ new @ second.T
            for old, new in zip(one.Q, shifted, strict=True)
        )
        return _Step(
            decay=np.exp(-(a + b) * self.inverse.rates),
            zero=one.zero + two.zero * one.decay,
            one=one.one + (two.one + a * two.zero) * one.decay,
            Q=(q0, q1, q2),
        )


def _evaluate(tables: FloatArray, at: FloatArray) -> FloatArray:
    """The cubics of these tables, each at its own tick."""
    x = tables[:, 0]
    exact = tables[:, 1]
    c = tables[:, 2]
    values = c[:, 0] + (at - x[:, 0]) * (
        c[:, 1] + (at - x[:, 1]) * (c[:, 2] + (at - x[:, 2]) * c[:, 3])
    )
    for i in range(4):  # at its points the cubic is right up to rounding, the table is right
        values = np.where(at == x[:, i], exact[:, i], values)
    return values
