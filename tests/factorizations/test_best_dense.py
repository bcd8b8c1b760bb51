"""The least error that any factorization has for some queries and a unit: certified, not beaten,
and close to ours."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from typer.testing import CliRunner

from evercount import Budget, Count, Stream
from evercount.cli import app
from evercount.errors import ParameterError, TooLarge
from evercount.factorizations import Dense, Factorization, factorization
from evercount.factorizations.best_dense import _Unit
from evercount.factorizations.blend import Blend
from evercount.factorizations.fit_blend import fit_blend
from evercount.factorizations.participation import participation
from evercount.planning import dense_optimum

T = 24
CASES = [
    ((1, 7, None), 1, None, True),
    ((None,), 7, None, False),
    ((7,), 7, 7, True),
    ((1, None), 3, 10, False),
]
"""Widths of views, ticks of a unit, its period, and whether the worst tick counts."""


def view(width: int | None, ticks: int = T) -> np.ndarray:
    return np.tri(ticks) if width is None else np.triu(np.tri(ticks), 1 - width)


def errors(
    engine: Factorization, workloads: list[np.ndarray], q: int, period: int | None, worst: bool
) -> list[float]:
    """From R itself and the bound that streams are calibrated to."""
    R = (
        engine.dense()[1]
        if isinstance(engine, Dense)
        else np.linalg.solve(engine.dense()[0], np.tri(engine.horizon))
    )
    size = np.sqrt(participation(engine, q, period))
    variances = [np.sum(np.linalg.solve(R.T, rows.T) ** 2, axis=0) for rows in workloads]
    return [float(np.sqrt(one.max() if worst else one.mean())) * size for one in variances]


@pytest.mark.parametrize(("widths", "q", "period", "worst"), CASES, ids=repr)
def test_no_factorization_beats_the_certificate(widths, q, period, worst):
    """Ours, random ones and the optimum itself, which also shows that the bound could not be much
    higher."""
    workloads = [view(width) for width in widths]
    best = dense_optimum(widths, T, q, period, worst)
    found = best.certificate
    assert found.least_score <= found.score * (1 + 1e-9)
    assert found.gap < (0.01 if q == 1 else 0.3)
    assert errors(best, workloads, q, period, worst) == pytest.approx(found.errors, rel=1e-6)
    engines: list[Factorization] = [
        factorization(name, T) for name in ("balanced", "square-root", "fresh", "optimal")
    ]
    engines.append(
        Blend(T, fit_blend(["running" if width is None else width for width in widths], T, q))
    )
    rng = np.random.default_rng(1)
    for size in (0.02, 0.2):
        right = np.eye(T) + np.tril(rng.exponential(size, (T, T)) ** 2)
        engines.append(Dense(np.tril(np.tri(T) @ np.linalg.inv(right)), right))
    for engine in engines:
        own = errors(engine, workloads, q, period, worst)
        assert all(one >= least * (1 - 1e-9) for one, least in zip(own, found.alone, strict=True))
        assert (
            max(one / least for one, least in zip(own, found.alone, strict=True))
            >= found.least_score
        )


@pytest.mark.parametrize(("q", "period"), [(3, None), (3, 5), (4, 4), (1, None)])
def test_the_bound_of_units_is_one_of_legal_changes(q, period):
    """Every cost is one of a legal change: none is above the largest Σ|G_ij| over sets of q ticks,
    by brute force.

    Planted: with the changes of a unit of one more tick, a cost is above it.
    """
    ticks = 9
    rng = np.random.default_rng(2)
    unit = _Unit.of(ticks, q, period)
    for _ in range(5):
        R = rng.normal(size=(ticks, ticks))
        G = R.T @ R
        changes = unit.start().joined(unit.costly(G), 0.5)
        for change in changes.rows:
            places = np.flatnonzero(change)
            assert set(np.abs(change)) <= {0.0, 1.0}
            assert len(places) <= q
            assert period is None or places[-1] - places[0] < period
        sets = [np.asarray(J) for J in itertools.combinations(range(ticks), q)]
        legal = [J for J in sets if period is None or J[-1] - J[0] < period]
        most = max(float(np.abs(G[np.ix_(J, J)]).sum()) for J in legal)
        costs = unit.costs(G, changes)
        assert max(float(part.max(initial=0.0)) for part in costs) <= most * (1 + 1e-12)
        direct = float(changes.u @ costs[0] + changes.signs @ costs[1])
        assert changes.u.sum() + changes.signs.sum() == pytest.approx(1.0)
        assert float(np.sum(unit.mean(changes) * G)) == pytest.approx(direct), (
            "the mean is that of the same changes"
        )
    ones = np.ones((ticks, ticks))
    more = _Unit.of(ticks, q + 1, None)
    assert max(float(part.max()) for part in more.costs(ones, more.start()) if part.size) > q * q


def test_costly_changes_are_found():
    """The search reaches the costliest sets of three of nine ticks in nearly all matrices: the
    bound is tight by it."""
    rng, found = np.random.default_rng(3), 0
    unit = _Unit.of(9, 3, None)
    for _ in range(20):
        R = rng.normal(size=(9, 9))
        G = R.T @ R
        most = max(
            float(d @ G[np.ix_(J, J)] @ d)
            for J in itertools.combinations(range(9), 3)
            for d in map(np.asarray, itertools.product((1, -1), repeat=3))
        )
        rows = unit.costly(G)
        found += float(((rows @ G) * rows).sum(axis=1).max()) >= most * (1 - 1e-9)
    assert found >= 15


def test_fresh_noise_is_best_for_what_a_unit_fills():
    """A person of 7 ticks moves a week by 7, so no noise for weeks has less than fresh noise
    has."""
    assert dense_optimum((1,), T).certificate.errors == pytest.approx((1.0,))
    for width, least in ((1, 7**0.5), (7, 7.0)):
        found = dense_optimum((width,), T, 7, None, True).certificate
        assert found.errors[0] == pytest.approx(least)
        assert found.gap < 0.004


def test_any_linear_queries():
    """Decayed sums, and the average of each weekday so far: ticks that no query reads have noise of
    a finite size."""
    lags = np.subtract.outer(np.arange(T), np.arange(T))
    decayed = np.where(lags >= 0, 0.8 ** np.maximum(lags, 0), 0.0)
    weekdays = np.where((lags >= 0) & (lags % 7 == 0), 1.0, 0.0)
    weekdays /= weekdays.sum(axis=1, keepdims=True)
    engine = Dense.optimal([decayed, weekdays])
    assert engine.certificate.gap < 0.01
    few = Dense.optimal(np.tri(T)[[7, 15, 23]])
    assert few.certificate.gap < 0.02
    assert few.certificate.errors[0] < 1.8
    stream = Stream(Count(), Budget(1.0, 1e-6), factorization=engine)
    assert len(stream.run([1] * T)) == T


REFUSED = {
    "not finite": (np.full((3, 3), np.nan), ParameterError, "not finite"),
    "zeros": (np.zeros((3, 3)), ParameterError, "nothing but zeros"),
    "a vector": (np.ones(3), ParameterError, "a column for every tick"),
    "text": ([["a"]], ParameterError, "matrix of real numbers"),
    "two horizons": ([np.eye(3), np.eye(4)], ParameterError, r"\(3, 3\), \(4, 4\)"),
    "too long": (np.eye(1025), TooLarge, "1024"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_workload_is_refused_with_the_reason(case):
    given, error, reason = REFUSED[case]
    with pytest.raises(error, match=reason):
        Dense.optimal(given)
    with pytest.raises(ParameterError, match="unit"):
        Dense.optimal(np.eye(3), 0)


def test_the_distance_is_printed():
    """plan --optimal: worst stds over the certified least, for events and for persons."""
    options = "plan -e 1 -d 1e-6 -t 16 --optimal --view per-tick --view running"
    done = CliRunner().invoke(app, options.split())
    assert done.exit_code == 0, done.output
    rows = [line.split() for line in done.output.splitlines() if line.endswith("%")]
    gaussian, anyhow = ({row[0]: float(row[at][:-1]) for row in rows} for at in (-2, -1))
    assert 0 <= gaussian["best"] < 1 < gaussian["blend"] < 8 < gaussian["balanced"]
    assert 0 < anyhow["terrace"] < anyhow["best"] < anyhow["blend"]
    lines = [line.split() for line in done.output.splitlines()]
    least = {line[2]: line[-2:] for line in lines if line[:2] == ["least", "of"]}
    assert least["Gaussian"][0] == "4.22"
    assert least["any"][0] == "1.36"
    done = CliRunner().invoke(app, [*options.split(), "--max-per-tick", "1", "--max-ticks", "2"])
    assert done.exit_code == 0, done.output
    assert "(chosen)" in done.output
    assert "least of any noise" in done.output, "that of units in one tick"
    done = CliRunner().invoke(app, options.replace("1e-6", "0").split())
    assert done.exit_code == 0, done.output
    assert "above any noise" in done.output
    assert "Gaussian" not in done.output
    for wrong in ("plan -e 1 -d 0 --optimal --view running", "plan -e 1 -d 1e-6 -t 9 --optimal"):
        assert CliRunner().invoke(app, wrong.split()).exit_code == 2


@pytest.mark.soak
def test_a_blend_is_close():
    """T = 365, events: day, week and running total together, worst ticks."""
    best = dense_optimum((1, 7, None), 365, 1, None, True).certificate
    own = errors(
        Blend(365, fit_blend((1, 7, "running"), 365)),
        [view(width, 365) for width in (1, 7, None)],
        1,
        None,
        True,
    )
    score = max(one / least for one, least in zip(own, best.alone, strict=True))
    assert score <= 1.05 * best.least_score
