"""The least rms error that any factorization has for some views together: certified, and not beaten."""

from __future__ import annotations

import numpy as np
import pytest
from typer.testing import CliRunner

from evercount import Budget, Count, Stream
from evercount.cli import app
from evercount.errors import TooLarge
from evercount.factorizations import Factorization, factorization
from evercount.factorizations.base import counting_matrix
from evercount.factorizations.blend import Blend
from evercount.factorizations.fit_blend import fit_blend
from evercount.factorizations.participation import participation
from evercount.planning.dense_optimum import dense_optimum

T = 64
VIEWS: list[tuple[int | None, ...]] = [(1, None), (1, 7, None), (7,), (None,)]


def rms(engine: Factorization, width: int | None) -> float:
    """From the matrices themselves: rows of a view are differences of rows of L."""
    left = engine.dense()[0]
    rows = left if width is None else left - np.vstack([np.zeros((width, T)), left])[:T]
    return float(np.sqrt(np.mean(np.sum(rows**2, axis=1)))) * engine.column_norm


@pytest.mark.parametrize("widths", VIEWS, ids=repr)
def test_no_factorization_beats_the_certificate(widths: tuple[int | None, ...]) -> None:
    """Ours, random ones and the optimum itself; planted: a bound that is 5 % higher is beaten by the optimum."""
    best = dense_optimum(widths, T)
    assert best.least_score <= best.score <= 1.01 * best.least_score
    engines = [factorization(name, T) for name in ("balanced", "square-root", "fresh", "optimal", "binary-tree")]
    named = ["running" if width is None else width for width in widths]
    engines.append(Blend(T, fit_blend(named, T)))
    for engine in engines:
        errors = [rms(engine, width) for width in widths]
        assert max(own / least for own, least in zip(errors, best.alone, strict=True)) >= best.least_score
        assert all(own >= least * (1 - 1e-9) for own, least in zip(errors, best.alone, strict=True))
    rng = np.random.default_rng(1)
    M = counting_matrix(T)
    for _ in range(50):
        right = np.eye(T) + np.tril(rng.exponential(0.2, (T, T)) ** 2)
        right /= np.linalg.norm(right, axis=0).max()
        left = M @ np.linalg.inv(right)
        errors = []
        for width in widths:
            rows = left if width is None else left - np.vstack([np.zeros((width, T)), left])[:T]
            errors.append(float(np.sqrt(np.mean(np.sum(rows**2, axis=1)))))
        assert max(own / least for own, least in zip(errors, best.alone, strict=True)) >= best.least_score
    assert best.score < 1.05 * best.least_score, "planted: so the bound could not be 5 % higher"


def test_one_tick_alone_is_fresh_noise() -> None:
    assert dense_optimum((1,), T).rms[0] == pytest.approx(1.0, rel=2e-3)


def test_a_blend_is_close() -> None:
    """T = 365, day, week and running total together: 4 % in rms, while the blend is fitted to the worst ticks."""
    engine = Blend(365, fit_blend((1, 7, "running"), 365))
    best = dense_optimum((1, 7, None), 365)
    left = engine.dense()[0]
    errors = []
    for width in (1, 7, None):
        rows = left if width is None else left - np.vstack([np.zeros((width, 365)), left])[:365]
        errors.append(float(np.sqrt(np.mean(np.sum(rows**2, axis=1)))) * engine.column_norm)
    score = max(own / least for own, least in zip(errors, best.alone, strict=True))
    assert score <= 1.045 * best.least_score


def test_too_many_ticks() -> None:
    with pytest.raises(TooLarge, match="1024"):
        dense_optimum((1,), 2000)


@pytest.mark.parametrize("widths", [(None,), (1, None), (1, 7, None)])
def test_its_factorization_has_the_stated_errors(widths):
    """A stream on it, with exact noise: rms errors of all views over the multiplier are those of the optimum."""
    best = dense_optimum(widths, 60)
    engine = best.factorization
    assert participation(engine, 1) == pytest.approx(1.0, abs=1e-6)
    ticks = np.arange(1, 61)
    for width, rms in zip(widths, best.rms, strict=True):
        norms = np.asarray([engine.difference_norm(max(0, t - width) if width else 0, t) for t in ticks.tolist()])
        assert float(np.sqrt(np.mean(norms**2))) == pytest.approx(rms, rel=1e-6)
    stream = Stream(Count(), Budget(1.0, 1e-6), factorization=engine)
    assert len(stream.run([1] * 60)) == 60


def test_the_distance_is_printed() -> None:
    """plan --optimal, T = 365: the blend is within 4.5 % of the optimum of three views, running totals within 2 %."""
    options = "plan -e 1 -d 1e-6 -t 365 --optimal --view per-tick --view last-7 --view running"
    done = CliRunner().invoke(app, options.split())
    assert done.exit_code == 0, done.output
    away = {line.split()[0]: float(line.split()[-1][:-1]) for line in done.output.splitlines() if line.endswith("%")}
    assert 0 < away["blend"] <= 4.5 < away["balanced"]
    running = CliRunner().invoke(app, ["plan", "-e", "1", "-d", "1e-6", "-t", "365", "--optimal", "--view", "running"])
    assert "balanced" in running.output.splitlines()[-1]
    assert float(running.output.split()[-1][:-1]) < 2
    for wrong in ("plan -e 1 -d 0 -t 9 --optimal --view running", "plan -e 1 -d 1e-6 -t 9 --optimal"):
        assert CliRunner().invoke(app, wrong.split()).exit_code == 2
