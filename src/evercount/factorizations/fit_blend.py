"""Fits the filter of a `blend` to the views that will be published and to the ticks that one unit
touches.

The poles are spread evenly over all time scales; the zeros move between them. What is minimised is
the largest ratio, over the views, of a view's worst std to the least that this family has for that
view alone. The model is a Toeplitz one (all weights 1, sums over lags on a grid that grows with the
lag), so a step takes a millisecond for any horizon; one round with the true worst errors corrects
what the model leaves out. For persons with running totals, zeros and weights are then fitted
together with true errors, and for those of short periods taps, too, which takes some seconds. The
result is public, rounded to few bits, and stored with the declaration: another machine that fitted
it again might find other last digits.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from evercount._validate import FloatArray, check_count
from evercount.errors import ParameterError
from evercount.factorizations.base import Factorization, check_known_horizon, lower_toeplitz
from evercount.factorizations.blas_threads import blas_threads
from evercount.factorizations.blend import (
    LEAST_GAP,
    WEIGHT_BITS,
    WEIGHT_SHAPES,
    BlendFilter,
    make_blend,
    round_root,
    weight_shapes,
)
from evercount.factorizations.filter_numbers import geometric
from evercount.factorizations.interruption import check_wanted
from evercount.factorizations.participation import MOST_TICKS, participation, signed_costs
from evercount.factorizations.row_weighted import Balanced
from evercount.factorizations.view_norms import worst_view

RUNNING = "running"
View = int | str
"""A width in ticks (1: per tick), or "running"."""

LONGEST_POLE = 0.5
SHORTEST_POLE = 6.0
"""u-values (1/root − 1) of the poles lie between 0.5/T and this: from twice the horizon to less
than a tick."""
LAST_ZERO = 40.0
"""The last zero lies between the last pole and this u-value."""
LARGEST_SHARE = 10.0
"""The largest logit of where a zero lies between its poles."""
GAP = 4 * LEAST_GAP
"""Zeros stay this far from poles on a scale of logarithms: rounding takes less than half of it."""
SHARPNESS = 24.0
"""The norm that stands for a maximum over views."""
STARTS = (0.0, -1.5, 4.0)
"""Logits that fits begin with: the square root, towards fresh noise, and towards long memory."""
STEPS = 60
DIFFERENCE = 1e-5
"""Step of the numerical gradient."""
WEIGHTED_TICKS = range(64, 513)
"""Horizons for which weights are fitted, where units touch several ticks and a running total is
published: the search has T × T matrices."""
WEIGHTED_SHARPNESS = (100.0, 1000.0)
"""Norms of squares that stand for maxima there, one after the other."""
WEIGHTED_STEPS = 100
"""The most steps with each of these norms."""
RUNNING_SHARES = (7.0, 30.0), (0.986, 1.012)
"""What running totals of persons are compared with, over the std of a fit for them alone, for a
unit of 7 ticks and of 30 or more. A smaller share brings the largest ratio down, but days pay for
it, and those of 30 ticks are noisy already.
"""
TAPPED_PERIODS = range(2, 32)
"""Ticks of a period for which taps are fitted, where one unit may fill all of them and single ticks
and running totals are published. (Taps bring nothing for sums over a period.)"""
FIRST_TAP = 0.35
"""The search for taps begins with this first one."""
NEXT_TAP = 0.88
"""There, each next tap is this part of the one before."""
SINGLE_LAGS = 32
"""Lags that are summed one by one; later ones in ranges of 1/8 of their size."""


def fit_blend(
    views: Sequence[View], horizon: int, q: int = 1, period: int | None = None
) -> BlendFilter:
    """The filter of the `blend` for these views together.

    Args:
        views: Widths in ticks (1: each tick's own number, 7: the last seven), or "running"; at
            least one.
        horizon: The number of ticks that errors matter for. A stream without a horizon may go on
            after it.
        q: The most ticks that one protected unit touches.
        period: Where these lie within this many consecutive ones.

    Returns:
        The public numbers. They depend on the arguments alone (up to the machine's arithmetic);
        store them.

    Raises:
        ParameterError: There is no view, or a number is not a whole one of at least 1.

    >>> filter_ = fit_blend((1, 7, "running"), 365)
    >>> engine = make_blend(365, filter_)
    >>> # balanced: 9.3, 12.6, 11.2
    >>> [round(4.22468 * worst_view(engine, width)[1], 1) for width in (1, 7, None)]
    [5.3, 9.6, 14.0]
    """
    T = check_known_horizon(horizon)
    q = check_count("q", q)
    widths = tuple(dict.fromkeys(_width(view, T) for view in views))
    if not widths:
        raise ParameterError("name at least one view, such as 1 (per tick) or 'running'")
    if T == 1:
        return BlendFilter((), ())
    importlib.import_module("scipy.optimize")  # its BLAS is there before threads are counted
    with blas_threads(1):  # the matrices are small: more threads take 20 times longer
        return _fit_filter(T, widths, q, period)


def _fit_filter(T: int, widths: tuple[int, ...], q: int, period: int | None) -> BlendFilter:
    """Fit the filter of `fit_blend` to these widths; the running total is the last T ticks."""
    model = _Model(T, widths, min(q, T))
    weighted = T in WEIGHTED_TICKS and T in widths and 1 < q < T
    alone = np.asarray([_least(model, i, q, weighted) for i in range(len(widths))])
    best = model.fit(range(len(widths)), alone)
    if weighted and best.filter.poles:
        if set(widths) == {1, T} and q == period and period in TAPPED_PERIODS:
            tapped = _WeightedSearch(model, alone, taps=q - 1)
            weighted_filter = tapped.best_filter(np.zeros(len(best.x)))
        else:
            weighted_filter = _WeightedSearch(model, alone, taps=0).best_filter(best.x)

        def largest_ratio(filter_: BlendFilter) -> float:
            return float((_true_stds(make_blend(T, filter_), widths, q, period) / alone).max())

        return min((best.filter, weighted_filter), key=largest_ratio)
    if len(widths) > 1 and best.filter.poles:
        true = _true_stds(make_blend(T, best.filter), widths, q)
        left_out = true / np.exp(model.log_stds(best.x[None])[0])
        best = model.fit(range(len(widths)), alone / left_out, (best.x,))
    return best.filter


class _Point(NamedTuple):
    """The factors at one point of a search, and what the gradient needs of them.

    With F = Toep(f), H = Toep(g) = F^−1 and D = diag(1/n): R = diag(e)·F·D, and R^−1 is
    `inverse`.
    """

    e: FloatArray
    """Weights of rows."""
    n: FloatArray
    """Norms of the columns of diag(e)·F over their weights c."""
    f: FloatArray
    """Coefficients of the filter, with taps; then the same with each zero moved a little."""
    g: FloatArray
    """Those of the inverse filter."""
    inverse_without_taps: FloatArray
    """The first row of `g` before taps."""
    taps: FloatArray
    """1, a_1, a_2, …"""
    tap_ratios: FloatArray
    """a_m/a_{m−1}."""
    F: FloatArray
    squares: FloatArray
    """Squares of the entries of diag(e)·F."""
    column_squares: FloatArray
    """Their sums by column."""
    R: FloatArray
    inverse: FloatArray


class _WeightedSearch:
    """The search for zeros, weights and taps together.

    It minimises the largest ratio of a view's worst std to its target, for a unit that costs 1.
    Errors are true ones, of T × T matrices; a unit costs what its costliest interval of q ticks
    does. A norm stands for each of the two maxima, so that there is a gradient. A point of the
    search has logits of zeros, weights of rows and of columns (in orthogonal shapes), and of each
    tap its ratio to the one before.
    """

    def __init__(self, model: _Model, targets: FloatArray, taps: int) -> None:
        T = model.horizon
        self.model = model
        self.targets = targets
        self.taps = taps
        self.order = len(model.poles)
        ticks = np.arange(T)
        shapes = weight_shapes(T, ticks).T
        # the search takes fewer steps on orthogonal shapes
        shapes, triangle = np.linalg.qr(shapes - shapes.mean(axis=0))
        self.shapes = math.sqrt(T) * shapes.T
        self.triangle = triangle / math.sqrt(T)
        self.lags = np.maximum(np.subtract.outer(ticks, ticks), 0)
        self.steps = np.vstack([np.zeros(self.order), DIFFERENCE * np.eye(self.order)])

    def best_filter(self, zeros: FloatArray) -> BlendFilter:
        """Search from these zeros, without weights, and round the result."""
        from scipy.optimize import minimize

        limits = (
            [(-LARGEST_SHARE, LARGEST_SHARE)] * self.order
            + [(None, None)] * (2 * WEIGHT_SHAPES)
            + [(0.01, 1.0)] * self.taps
        )
        # glibc keeps freed blocks up to the size of the largest one that was freed: without this
        # one it clears the pages of every matrix anew, which takes as long as the search
        np.empty(31 << 20, dtype=np.uint8)
        point = np.concatenate([zeros, np.zeros(2 * WEIGHT_SHAPES), self._first_tap_ratios()])
        for sharpness in WEIGHTED_SHARPNESS:
            point = minimize(
                self.loss,
                point,
                args=(sharpness,),
                method="L-BFGS-B",
                jac=True,
                bounds=limits,
                options={"maxiter": WEIGHTED_STEPS},
            ).x
        return self._rounded(point)

    def loss(self, v: FloatArray, sharpness: float) -> tuple[float, FloatArray]:
        """The logarithm of √(cost·largest variance over its target), and its gradient."""
        check_wanted()
        point = self._point(v)
        error, to_inverse = self._error(point.inverse, sharpness)
        cost, to_R = self._cost(point.R, sharpness)
        return 0.5 * (error + cost), 0.5 * self._gradient(point, to_inverse, to_R)

    def _first_tap_ratios(self) -> list[float]:
        """Ratios of the taps that the search begins with."""
        if not self.taps:
            return []
        return [FIRST_TAP] + [NEXT_TAP] * (self.taps - 1)

    def _parts(self, v: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Take a point apart: logits of zeros, weights of rows and of columns, ratios of taps."""
        weights, ratios = np.split(v[self.order :], [2 * WEIGHT_SHAPES])
        return v[: self.order], np.reshape(weights, (2, WEIGHT_SHAPES)), ratios

    def _point(self, v: FloatArray) -> _Point:
        """Compute the factors at a point of the search."""
        from scipy.signal import lfilter

        zeros, weights, tap_ratios = self._parts(v)
        e, c = np.exp(weights @ self.shapes)
        f, g = self.model.responses(zeros + self.steps)
        taps = np.append(1.0, np.cumprod(tap_ratios))
        inverse_without_taps = g[0]
        if self.taps:
            f = lfilter([1.0], taps, f)
            g = lfilter(taps, [1.0], g)
        F = lower_toeplitz(f[0])
        H = lower_toeplitz(g[0])
        squares = np.square(e[:, None] * F)
        column_squares = squares.sum(axis=0)
        n = np.sqrt(column_squares) / c
        return _Point(
            e=e,
            n=n,
            f=f,
            g=g,
            inverse_without_taps=inverse_without_taps,
            taps=taps,
            tap_ratios=tap_ratios,
            F=F,
            squares=squares,
            column_squares=column_squares,
            R=e[:, None] * F / n,
            inverse=n[:, None] * H / e,
        )

    def _error(self, inverse: FloatArray, sharpness: float) -> tuple[float, FloatArray]:
        """The logarithm of the largest variance over its target's square, and its gradient in
        R^−1."""
        noise = np.cumsum(inverse, axis=0)
        views = [
            np.concatenate([noise[:width], noise[width:] - noise[:-width]])
            for width in self.model.widths
        ]
        variances = [
            np.square(view).sum(axis=1) / target**2
            for view, target in zip(views, self.targets, strict=True)
        ]
        error, to_variances = _smooth_maximum(np.concatenate(variances), sharpness)
        to_noise = np.zeros_like(noise)
        for view, width, to_variance, target in zip(
            views,
            self.model.widths,
            np.split(to_variances, len(views)),
            self.targets,
            strict=True,
        ):
            to_view = (2 * to_variance / target**2)[:, None] * view
            to_noise += to_view
            to_noise[:-width] -= to_view[width:]
        return error, _sums_from_end(to_noise, axis=0)

    def _cost(self, R: FloatArray, sharpness: float) -> tuple[float, FloatArray]:
        """The logarithm of the largest cost of q consecutive ticks, and its gradient in R."""
        if self.taps:
            return self._signed_cost(R, sharpness)
        q = self.model.q
        sums = np.cumsum(R, axis=1)
        sums[:, q:] -= sums[:, :-q].copy()  # of the last q columns
        costs = np.square(sums[:, q - 1 :]).sum(axis=0)
        cost, to_costs = _smooth_maximum(costs, sharpness)
        to_sums = 2 * sums * np.append(np.zeros(q - 1), to_costs)
        to_R = _sums_from_end(to_sums, axis=1)
        to_R[:, :-q] -= to_R[:, q:].copy()
        return cost, to_R

    def _signed_cost(self, R: FloatArray, sharpness: float) -> tuple[float, FloatArray]:
        """`_cost` where G = R^T·R has negative entries, as it has with taps."""
        q = self.model.q
        intervals = self.model.horizon - q + 1
        costs, to_blocks = signed_costs(R.T @ R, q, q)
        cost, to_costs = _smooth_maximum(costs, sharpness)
        to_G = np.zeros_like(R)
        for i in range(q):
            for j in range(q):
                # entry (i, j) of the block of every interval lies on this diagonal
                diagonal = np.einsum("ii->i", to_G[i : i + intervals, j : j + intervals])
                diagonal += to_costs * to_blocks[:, i, j]
        return cost, 2 * R @ to_G

    def _gradient(self, point: _Point, to_inverse: FloatArray, to_R: FloatArray) -> FloatArray:
        """The gradient in the numbers of a point, from those in R^−1 and in R."""
        e = point.e[:, None]
        on_rows = to_inverse * point.inverse
        on_columns = to_R * point.R
        # by logarithms of n and of e; n changes with e and F
        to_n = on_rows.sum(axis=1) - on_columns.sum(axis=0)
        to_column_squares = to_n / point.column_squares
        to_e = on_columns.sum(axis=1) - on_rows.sum(axis=0) + point.squares @ to_column_squares
        to_f = self._sums_by_lag(e * to_R / point.n + (e**2) * point.F * to_column_squares)
        to_g = self._sums_by_lag(point.n[:, None] * to_inverse / point.e)
        f, g = point.f, point.g
        to_zeros = ((f[1:] - f[0]) @ to_f + (g[1:] - g[0]) @ to_g) / DIFFERENCE
        to_tap_ratios = self._to_tap_ratios(point, to_f, to_g)
        return np.concatenate([to_zeros, self.shapes @ to_e, self.shapes @ -to_n, to_tap_ratios])

    def _to_tap_ratios(self, point: _Point, to_f: FloatArray, to_g: FloatArray) -> FloatArray:
        """The gradient in the ratios of taps: f is divided by them, g multiplied."""
        from scipy.signal import lfilter

        if not self.taps:
            return np.zeros(0)
        T = self.model.horizon
        plain = point.inverse_without_taps
        divided = lfilter([1.0], point.taps, point.f[0])
        to_taps = [
            to_g[lag:] @ plain[: T - lag] - to_f[lag:] @ divided[: T - lag]
            for lag in range(1, self.taps + 1)
        ]
        return np.asarray(_sums_from_end(point.taps[1:] * to_taps, axis=0) / point.tap_ratios)

    def _sums_by_lag(self, entries: FloatArray) -> FloatArray:
        """Add up the entries of each diagonal, of the lower triangle."""
        size = self.model.horizon
        return np.asarray(np.bincount(self.lags.ravel(), np.tril(entries).ravel(), size))

    def _rounded(self, v: FloatArray) -> BlendFilter:
        """The filter of a point, its weights in the shapes of the public numbers."""
        logits, in_orthogonal_shapes, tap_ratios = self._parts(v)
        weights = np.linalg.solve(self.triangle, in_orthogonal_shapes.T).T.ravel()
        poles, zeros = self.model.lacks(logits)
        taps = np.cumprod(tap_ratios)
        return BlendFilter(poles, zeros, _rounded_weights(weights), _rounded_weights(taps))


def _smooth_maximum(values: FloatArray, sharpness: float) -> tuple[float, FloatArray]:
    """The logarithm of a norm that stands for the maximum, and its gradient."""
    top = float(values.max())
    shares = (values / top) ** sharpness
    total = float(shares.sum())
    return math.log(top) + math.log(total) / sharpness, shares / (total * values)


def _sums_from_end(values: FloatArray, axis: int) -> FloatArray:
    """Add up all entries from each one to the last: the gradient of a cumulative sum."""
    return np.flip(np.cumsum(np.flip(values, axis), axis=axis), axis)


def _rounded_weights(values: npt.ArrayLike) -> tuple[float, ...]:
    """Weights or taps with `WEIGHT_BITS` bits."""
    scale = 2.0**WEIGHT_BITS
    return tuple((np.rint(np.clip(values, -1, 1) * scale) / scale).tolist())


def _least(model: _Model, view: int, q: int, weighted: bool) -> float:
    """The least std known for one view alone.

    It is the model's; for the running total of events that of `balanced`, and for that of persons a
    share of that of a fit with weights.
    """
    if weighted and model.widths[view] == model.horizon:
        if len(model.widths) == 1:
            return 1.0  # of one view the least plays no part
        alone = make_blend(model.horizon, fit_blend((RUNNING,), model.horizon, q))
        return float(np.interp(q, *RUNNING_SHARES) * _true_stds(alone, (model.horizon,), q)[0])
    least = float(np.exp(model.fit([view]).loss))
    if model.widths[view] < model.horizon or q > 1:
        return least
    return min(least, float(_true_stds(Balanced(model.horizon), (model.horizon,), q)[0]))


def _true_stds(
    engine: Factorization, widths: Sequence[int], q: int, period: int | None = None
) -> FloatArray:
    """Compute the worst norm of each view, times the root of what one unit costs."""
    norms = [worst_view(engine, None if width == engine.horizon else width)[1] for width in widths]
    assert engine.horizon is not None
    # between knots the bound is above that of a column, and takes a second
    if q == 1 and engine.horizon > MOST_TICKS:
        return np.asarray(norms) * engine.column_norm
    return np.asarray(norms) * float(np.sqrt(participation(engine, q, period)))


def _width(view: View, horizon: int) -> int:
    """The width of a view; the running total is the last T ticks."""
    if isinstance(view, str):
        if view != RUNNING:
            raise ParameterError(f"a view is a number of ticks or {RUNNING!r}, got {view!r}")
        return horizon
    return min(check_count("width", view), horizon)


class _Fit(NamedTuple):
    x: FloatArray
    loss: float
    filter: BlendFilter


class _Model:
    """Stds of views under Toeplitz factors, for many sets of zeros at once."""

    def __init__(self, T: int, widths: tuple[int, ...], q: int) -> None:
        self.horizon = T
        self.widths = widths
        self.q = q
        order = 8 if T <= 10**4 else 10
        poles = np.geomspace(LONGEST_POLE / T, SHORTEST_POLE, 2 * order)[0::2]
        poles = np.asarray([round_root(u / (1 + u)) for u in poles])
        self.poles = poles / (1 - poles)
        rates = np.log1p(self.poles)
        lags, self.counts = _lags(T)
        self.forward = np.exp(-np.multiply.outer(lags, rates))
        """Powers of the poles at a grid of lags; `counts` is how many lags each stands for."""
        self.lags = [(*_lags(width), *_lags(T - width)) for width in widths]
        """Of each view the lags of a window that fills, their numbers, the lags after it, their
        numbers."""
        self.sums = geometric(np.add.outer(rates, rates), np.asarray(float(T)))
        """Σ_k (λ_a·λ_b)^k over the horizon."""
        d, pairs = _lags(q - 1)
        self.lagged = (2 * pairs * (q - 1 - d)) @ np.exp(-np.multiply.outer(d + 1, rates))
        """Powers of the poles at the distances below q, each times twice the number of pairs of
        ticks it stands for."""

    def zeros(self, x: FloatArray) -> FloatArray:
        """u-values of zeros: logits `x` of where they lie between the poles, on a scale of
        logarithms."""
        room = np.log(np.append(self.poles[1:], LAST_ZERO) / self.poles) - 2 * GAP
        return np.asarray(self.poles * np.exp(GAP + room / (1 + np.exp(-x))))

    def log_stds(self, x: FloatArray, views: Sequence[int] | None = None) -> FloatArray:
        """ln(√B·norm of the view) for every row of `x`, (rows, views)."""
        zeros = self.zeros(x)
        weights = _residues(np.broadcast_to(self.poles, zeros.shape), zeros)
        head = np.prod((1 + self.poles) / (1 + zeros), axis=1)
        f = weights @ self.forward.T
        f[:, 0] = 1.0
        B = self.q * (f**2 @ self.counts)
        if self.q > 1:
            B += ((weights * (weights @ self.sums + head[:, None])) * self.lagged).sum(axis=1)
        roots = np.concatenate([np.zeros((len(x), 1)), zeros], axis=1)
        rates = np.log1p(roots)[:, None, :]
        summed = _residues(roots, np.broadcast_to(self.poles, zeros.shape))
        norms = []
        for view in range(len(self.widths)) if views is None else views:
            width = self.widths[view]
            filling, numbers, after, later = self.lags[view]
            h = (np.exp(-filling[:, None] * rates) @ summed[:, :, None])[:, :, 0]
            h[:, 0] = 1.0
            norm = h**2 @ numbers
            if len(after):
                drop = summed * np.expm1(-width * rates[:, 0])  # h(k + width) − h(k)
                change = (np.exp(-after[:, None] * rates) @ drop[:, :, None])[:, :, 0]
                norm += change**2 @ later
            norms.append(norm)
        return np.asarray(0.5 * np.log(B[:, None] * np.stack(norms, axis=1)))

    def fit(
        self,
        views: Sequence[int],
        targets: FloatArray | None = None,
        starts: Sequence[FloatArray] = (),
    ) -> _Fit:
        """The zeros with the smallest SHARPNESS-norm of std/target over these views; no poles where
        that is best."""
        from scipy.optimize import minimize  # imported here: it takes longer than the fit

        log_targets = np.zeros(len(views)) if targets is None else np.log(targets)
        size = len(self.poles)
        steps = np.vstack([np.zeros(size), DIFFERENCE * np.eye(size)])

        def losses(log_stds: FloatArray) -> FloatArray:
            ratios = SHARPNESS * (log_stds - log_targets)
            top = ratios.max(axis=1)
            return np.asarray((top + np.log(np.exp(ratios - top[:, None]).sum(axis=1))) / SHARPNESS)

        def loss(x: FloatArray) -> tuple[float, FloatArray]:
            check_wanted()
            values = losses(self.log_stds(x + steps, views))
            return float(values[0]), (values[1:] - values[0]) / DIFFERENCE

        limits = [(-LARGEST_SHARE, LARGEST_SHARE)] * size
        results = [
            minimize(
                loss, start, jac=True, method="L-BFGS-B", bounds=limits, options={"maxiter": STEPS}
            )
            for start in (starts or [np.full(size, logit) for logit in STARTS])
        ]
        best = min(results, key=lambda result: float(result.fun))
        fresh = float(
            losses(
                0.5
                * np.log(self.q * np.asarray([[self.widths[view] for view in views]], np.float64))
            )[0]
        )
        if fresh <= best.fun:
            return _Fit(np.asarray(best.x), fresh, BlendFilter((), ()))
        poles, zeros = self.lacks(best.x)
        return _Fit(np.asarray(best.x), float(best.fun), BlendFilter(poles, zeros))

    def lacks(self, x: FloatArray) -> tuple[tuple[float, ...], tuple[float, ...]]:
        """What poles and zeros lack to 1, rounded."""
        poles, zeros = (
            tuple(round_root(u / (1 + u)) for u in part)
            for part in (self.poles, self.zeros(x[None])[0])
        )
        return poles, zeros

    def responses(self, x: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Coefficients of F and of 1/F for every row of `x`, (rows, horizon)."""
        zeros = self.zeros(x)
        poles = np.broadcast_to(self.poles, zeros.shape)
        ticks = np.arange(self.horizon)
        coefficients = []
        for roots, others in ((poles, zeros), (zeros, poles)):
            powers = np.exp(-ticks[:, None] * np.log1p(roots)[:, None, :])
            coefficients.append((powers @ _residues(roots, others)[:, :, None])[:, :, 0])
            coefficients[-1][:, 0] = 1.0
        return coefficients[0], coefficients[1]


@lru_cache(maxsize=256)
def _lags(count: int) -> tuple[FloatArray, FloatArray]:
    """Lags that stand for 0 … count − 1, and how many each stands for."""
    single = min(count, SINGLE_LAGS)
    at = SINGLE_LAGS
    lags = [float(lag) for lag in range(single)]
    counts = [1.0] * single
    while at < count:
        step = min(at // 8, count - at)
        lags.append(at + (step - 1) / 2)
        counts.append(float(step))
        at += step
    return np.asarray(lags), np.asarray(counts)


def _residues(poles: FloatArray, zeros: FloatArray) -> FloatArray:
    """As `filter_numbers._residues`, for every row."""
    above = np.prod((zeros[:, None, :] - poles[:, :, None]) / (1 + zeros)[:, None, :], axis=2)
    apart = (poles[:, None, :] - poles[:, :, None]) / (1 + poles)[:, None, :]
    own = np.arange(poles.shape[1])
    apart[:, own, own] = 1.0
    return np.asarray(above / np.prod(apart, axis=2))
