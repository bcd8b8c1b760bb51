"""Weighted sums of ticks: their errors are exact, their intervals hold, and noise is chosen for
them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from evercount import Average, Budget, Count, DiscoveredKeys, Histogram, Secret, Stream
from evercount._validate import FloatArray
from evercount.engine.build import Decayed
from evercount.engine.noise_choice import candidates
from evercount.engine.weighted_errors import decayed_std
from evercount.engine.worst_errors import worst_of_view
from evercount.errors import ParameterError, TooLarge, UnknownName
from evercount.planning.plan_views import plan_views

SECRET = Secret.from_hex("77" * 32)
PURE, GAUSSIAN = Budget(1.0, 0.0), Budget(1.0, 1e-6)
T = 40
KINDS: list[tuple[Any, Budget]] = [
    ("bridge", PURE),
    ("terrace", PURE),
    (
        {
            "name": "terrace",
            "blocks": [4, 12],
            "shares": [600, 200, 224],
            "weights": [30000, 20000],
        },
        PURE,
    ),
    ("fresh", PURE),
    ("pure-tree", PURE),
    ("pure-window-7", PURE),
    ("balanced", GAUSSIAN),
    ("fresh", GAUSSIAN),
    ("honaker-full", GAUSSIAN),
]
RANDOM = np.tril(np.random.default_rng(3).normal(size=(T, T)))


def band(width: int) -> FloatArray:
    return np.tril(np.ones((T, T))) - np.tril(np.ones((T, T)), -width)


def decays(factor: float, ticks: int = T) -> FloatArray:
    rows = np.zeros((ticks, ticks))
    for tick in range(ticks):
        rows[tick:, tick] = factor ** np.arange(ticks - tick)
    return rows


@pytest.mark.parametrize(("name", "budget"), KINDS)
def test_stds_are_those_of_plain_views(name: Any, budget: Budget) -> None:
    stream, ticks = (
        Stream(Histogram(2), budget, T, name, secret=SECRET, replay=True),
        np.arange(1, T + 1),
    )
    for view, weights in (("per-tick", band(1)), ("last-7", band(7)), ("running", band(T))):
        np.testing.assert_allclose(stream.std(ticks, weights), stream.std(ticks, view), rtol=1e-6)
        np.testing.assert_allclose(
            stream.std([T, 3], 2.5 * weights), 2.5 * stream.std([T, 3], view), rtol=1e-6
        )
    np.testing.assert_allclose(
        stream.std(ticks, "decayed-0.8"), stream.std(ticks, decays(0.8)), rtol=1e-12
    )


@pytest.mark.parametrize(("name", "budget"), KINDS)
def test_stds_are_those_of_the_matrices(name: Any, budget: Budget) -> None:
    """Of noise that is drawn, for weights without any structure; and values are W times what ticks
    added."""
    samples = 6000
    stream = Stream(Histogram(samples), budget, T, name, secret=SECRET, replay=True)
    events = np.arange(T) % 5
    view = stream.run_totals(np.repeat(events[:, np.newaxis], samples, axis=1)).weighted(RANDOM)
    truth = RANDOM @ events
    errors = view.values - truth[:, np.newaxis]
    assert np.abs(errors.std(axis=1) / view.std[:, 0] - 1).max() < 0.06
    assert np.abs(errors.mean(axis=1) / view.std[:, 0]).max() < 5 / math.sqrt(samples)
    np.testing.assert_allclose(
        view.std[:, :1], stream.std(np.arange(1, T + 1), RANDOM)[:, :1], rtol=1e-12
    )


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 4.0])
@pytest.mark.parametrize(("name", "budget"), KINDS)
def test_intervals_hold(name: Any, budget: Budget, epsilon: float) -> None:
    samples = 8000
    declared = Budget(epsilon, budget.delta)
    releases = Stream(Histogram(samples), declared, T, name, secret=SECRET).run_totals(
        np.zeros((T, samples), np.int64)
    )
    for weights in ("decayed-0.9", RANDOM, band(7) / 7):
        view = releases.weighted(weights)
        for beta in (0.05, 0.001):
            low, high = view.interval(1 - beta)
            outside = ((low > 0) | (high < 0)).mean(axis=1).max()
            assert outside <= beta * 1.02 + 4.5 * math.sqrt(beta / samples)
        assert np.isfinite(view.bound()).all()


def test_narrow_intervals_would_not_hold() -> None:
    """The same with half widths that are a tenth smaller: the test above can fail."""
    samples = 20_000
    stream = Stream(Histogram(samples), Budget(0.02, 0.0), T, "fresh", secret=SECRET)
    view = stream.run_totals(np.zeros((T, samples), np.int64)).weighted(band(1))
    low, high = view.interval(0.95)
    middle, half = (low + high) / 2, 0.9 * (high - low) / 2
    assert (np.abs(middle) > half).mean() > 0.055


def test_other_outputs_have_their_share() -> None:
    stream = Stream(Histogram(["a", "b"], weights={"b": 4}), PURE, T, secret=SECRET)
    view = stream.run([["a", "b"]] * T).weighted("decayed-0.5")
    assert view.std[-1, 1] == pytest.approx(view.std[-1, 0] / 4)
    assert view.cells == ("a", "b")
    assert view.only("b").std.shape == (T, 1)
    assert view.compare("a", "b").std[-1, 0] == pytest.approx(math.hypot(*view.std[-1]))
    table = view.table()
    assert table.ticks.tolist() == list(range(1, T + 1))


@pytest.mark.parametrize("budget", [PURE, GAUSSIAN, Budget(6.0, 1e-6)])
@pytest.mark.parametrize("views", [("decayed-0.9",), ("per-tick", "decayed-0.98", "running")])
def test_noise_is_chosen_for_them(budget: Budget, views: tuple[str, ...]) -> None:
    stream = Stream(Count(), budget, 100, views=views, secret=SECRET, replay=True)
    found = candidates(Count(), budget, 100, views)
    assert {one.budget.pure for one in found} == ({True} if budget.pure else {True, False})
    own = next(
        one
        for one in found
        if (one.engine.spec, one.budget) == (stream.factorization.spec, stream.budget)
    )
    for view, std in zip(views, own.stds, strict=True):
        assert stream.std(np.arange(1, 101), view).max() == pytest.approx(std)
    if len(views) == 1:
        least = min(one.stds[0] for one in found if one.budget.pure == own.budget.pure)
        assert own.stds[0] <= 1.005 * least
    planned = plan_views(budget, 100, views)
    assert planned[0].name == stream.factorization.name
    assert list(planned[0].stds) == list(views)


def test_noise_for_a_decayed_sum_beats_that_of_running_totals() -> None:
    ticks = np.arange(1, 366)
    ours = Stream(Count(), PURE, 365, views=["decayed-0.9"], secret=SECRET, replay=True)
    running = Stream(Count(), PURE, 365, secret=SECRET, replay=True)
    assert ours.std(ticks, "decayed-0.9").max() < 0.4 * running.std(ticks, "decayed-0.9").max()


def test_streams_with_them_go_on_from_a_snapshot() -> None:
    declared: dict[str, Any] = {"views": ["per-tick", "decayed-0.9"], "secret": SECRET}
    whole = Stream(Count(), PURE, T, replay=True, **declared).run([3] * T)
    stream = Stream(Count(), PURE, T, **declared)
    stream.run([3] * 17)
    blob = stream.snapshot()
    stream.close()
    again = Stream.restore(blob)
    assert again.run([3] * (T - 17)).rows.tolist() == whole.rows[17:].tolist()
    with pytest.raises(ParameterError, match="every tick from the first on"):
        again.run([]).weighted("decayed-0.9")


def test_long_streams_forget_what_hardly_counts() -> None:
    for horizon, name in ((1500, "terrace"), (None, "fresh"), (None, "endless-bridge")):
        model = Stream(Count(), PURE, horizon, name, secret=SECRET, replay=True)._errors
        whole = decays(0.9, 1500)
        stream = Stream(Count(), PURE, horizon, name, secret=SECRET, replay=True)
        exact = stream.std([700, 1499], whole)[:, 0]
        np.testing.assert_allclose(
            decayed_std(model, Decayed(0.9), np.asarray([700, 1499])), exact, rtol=1e-6
        )
    assert worst_of_view(model, "decayed-0.9", 2**20) > 0


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (np.ones((T, T)), "np.tril"),
        (np.where(np.eye(T) > 0, np.nan, 0), "weight of tick 1 in row 1 is nan"),
        (np.full((T, T), np.inf), "is inf"),
        (np.ones(T), "square"),
        (np.tril(np.ones((T, T + 1))), "square"),
        ("decayed-1.5", "view"),
        ("decayed-0", "view"),
        ("decayed-0.0", "per-tick"),
        (np.tril(np.ones((3, 3))), "rows for 3 ticks"),
        ([["a"]], "real numbers"),
        (1j * np.eye(T), "real numbers"),
        (None, "square|real"),
    ],
)
def test_what_is_no_weighting_is_refused(weights: Any, words: str) -> None:
    releases = Stream(Count(), PURE, T, secret=SECRET, replay=True).run([1] * T)
    with pytest.raises((ParameterError, UnknownName), match=words):
        releases.weighted(weights)
    with pytest.raises((ParameterError, UnknownName), match=words):
        Stream(Count(), PURE, T, secret=SECRET, replay=True).std([T], weights)


def test_what_has_no_weighted_sums_is_refused() -> None:
    with pytest.raises(TooLarge, match="at most 2048"):
        Stream(Count(), PURE, None, "fresh").std([3000], "decayed-0.9")
    with pytest.raises(TooLarge, match="fall faster"):
        Stream(Count(), PURE, 5000, views=["decayed-0.9999"])
    with pytest.raises(ParameterError, match="view"):
        Stream(Count(), PURE, T).run([1]).weighted("running")
    for query in (Average(0, 1), DiscoveredKeys()):
        with pytest.raises(ParameterError):
            Stream(query, GAUSSIAN, T, views=["decayed-0.9"])
    with pytest.raises(ParameterError):
        Stream(Histogram(2), PURE, revise_for=3).std([1], "decayed-0.9")
    assert Stream(Histogram(2), PURE, revise_for=3).std([365]).shape == (1, 1), (
        "plain views are as ever"
    )
    with pytest.raises(ParameterError, match="post-processed"):
        Stream(Count(), PURE, T, postprocess=["nonnegative"]).run([1]).weighted("decayed-0.9")
    stream = Stream(Histogram(["a"]), PURE, T)
    stream.run([["a"]])
    stream.add_keys(["b"])
    with pytest.raises(ParameterError, match="from the first tick on"):
        stream.std([3], "decayed-0.9")
    from evercount.declarations.declaration import StreamDeclaration

    declared = {
        "name": "x",
        "query": "count",
        "budget": {"epsilon": 1.0, "delta": 0},
        "tick": "1d",
        "horizon": 30,
    }
    for field in ("views", "noise_for"):
        with pytest.raises(ParameterError, match="decayed"):
            StreamDeclaration.from_dict(
                {**declared, "start": "2026-01-01", "zone": "UTC", field: ["decayed-0.9"]}
            )
