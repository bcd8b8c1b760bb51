"""Streams whose days are published again: their noise, their errors, their views and their
snapshots."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from conftest import ROOT_SECRET
from evercount import Budget, Count, Histogram, Quantiles, Secret, Stream
from evercount.engine.revisions import RevisedErrors, Revisions, by_day
from evercount.errors import InputError, ParameterError, SnapshotError
from independent_streams import smooth_stream
from product_internals import error_model, noise_key

SECRET = Secret.from_hex(ROOT_SECRET)
PURE, GAUSSIAN = Budget(1.0, 0.0), Budget(1.0, 1e-6)
KEYS = Histogram(["a", "b"])
TICKS = [[["a", "b"], ["b"]], [["a"]], [[], ["a", "a"], ["b"]], [["b"]], [[], [], ["a"]]]


LEVELS = {"name": "terrace", "blocks": [2], "shares": [800, 224], "weights": [30000]}


def revised(
    budget: Budget = PURE, name: str | dict[str, object] | None = None, **rest: object
) -> Stream:
    return Stream(KEYS, budget, None, name, secret=SECRET, revise_for=2, **rest)  # type: ignore[arg-type]


@pytest.mark.parametrize(("budget", "name"), [(PURE, None), (PURE, LEVELS), (GAUSSIAN, "balanced")])
def test_the_noise_of_a_day_is_that_of_a_stream_of_its_own(
    budget: Budget, name: str | dict[str, object] | None
) -> None:
    """Bit for bit; and the days, which differ in their keys alone, differ."""
    stream = revised(budget, name)
    key, engine = noise_key(stream), stream.factorization
    assert key is not None
    rows = stream.run(TICKS).rows.reshape(5, 3, 2)
    seen = []
    for day in range(1, 4):
        events = [
            TICKS[day + lag - 1][lag] if lag < len(TICKS[day + lag - 1]) else [] for lag in range(3)
        ]
        alone = Stream(KEYS, stream.budget, 3, engine.spec, secret=key.derive(f"day {day}")).run(
            events
        )
        assert np.array_equal(alone.rows, [rows[day + lag - 1, lag] for lag in range(3)])
        seen.append(
            alone.rows - np.cumsum([[one.count("a"), one.count("b")] for one in events], axis=0)
        )
    assert not any(np.array_equal(one, other) for one, other in pairwise(seen))
    assert np.isnan(rows[0, 1:]).all(), "there is no day before the first"


def test_no_two_days_share_their_noise() -> None:
    rows = revised(Budget(0.01, 0.0)).run([[[]] * 3] * 102).rows.reshape(102, 3, 2)
    days = {tuple(rows[day + lag, lag].tobytes() for lag in range(3)) for day in range(100)}
    assert len(days) == 100


@pytest.mark.parametrize(("budget", "name"), [(PURE, None), (PURE, LEVELS), (GAUSSIAN, "balanced")])
def test_restarts_change_no_number(budget: Budget, name: str | dict[str, object] | None) -> None:
    whole = revised(budget, name, replay=True).run(TICKS)
    stream, rows = revised(budget, name), []
    for events in TICKS:
        rows.append(stream.step(events, stream.tick + 1).values)
        blob = stream.snapshot()
        stream.close()
        stream = Stream.restore(blob)
    assert np.array_equal(rows, whole.rows, equal_nan=True)
    data = stream.dump()
    with pytest.raises(SnapshotError):
        Stream.load({**data, "revise_for": 3})


def test_errors_do_not_grow_with_the_days() -> None:
    """The claim of the design: worst std 4.51 for 15 ticks at ε = 1, at every tick of ten years."""
    model = error_model(Stream(Count(), PURE, revise_for=14))
    assert isinstance(model, RevisedErrors)
    stds = model.errors([1, 3650])[0]
    assert np.array_equal(stds[0], stds[1])
    assert 4.5 < stds.max() < 4.52


@pytest.mark.parametrize(("budget", "name"), [(PURE, None), (GAUSSIAN, "balanced")])
def test_views_take_the_newest_number_of_each_day(budget: Budget, name: str | None) -> None:
    """Their value is the sum of newest numbers, and std and interval are those of simulated
    ones."""
    cells = 200  # as many independent streams
    stream = smooth_stream(Histogram(cells), budget, None, name, seed=1, revise_for=2)
    releases = stream.run([[list(range(cells)) * number for number in (10, 1, 1)]] * 6)
    view, by_lag = releases.last(3), releases.rows.reshape(6, 3, cells)
    newest = np.stack([by_lag[min(day + 2, 6) - 1, min(2, 6 - day)] for day in range(1, 7)])
    assert np.allclose(view.values[-1], newest[-3:].sum(axis=0))
    truth = 12 + 11 + 10
    low, high = view.interval(0.9)
    errors = view.values[-1] - truth
    assert np.std(errors) == pytest.approx(view.std[-1, 0], rel=0.15)
    assert np.std(errors) != pytest.approx(0.75 * view.std[-1, 0], rel=0.15), "planted"
    assert abs(np.mean(errors)) < 4 * view.std[-1, 0] / np.sqrt(cells)
    assert np.mean((low[-1] <= truth) & (truth <= high[-1])) > 0.87
    assert view.std[0, 0] == pytest.approx(np.sqrt(3) * stream.std([1], "per-tick")[0, 0]), (
        "final days"
    )


def test_a_table_by_day() -> None:
    table = by_day(revised().run(TICKS).table(), Revisions(KEYS, 3), lambda first, ticks: None)
    columns = table.columns()
    rows = list(
        zip(
            *(columns[name].tolist() for name in ("tick", "as_of", "revisions_left", "cell")),
            strict=True,
        )
    )
    assert rows[:6] == [
        (1, 1, 2, "a"),
        (1, 1, 2, "b"),
        (1, 2, 1, "a"),
        (1, 2, 1, "b"),
        (2, 2, 2, "a"),
        (2, 2, 2, "b"),
    ]
    assert rows[-6:] == [(day, 5, day - 3, cell) for day in (3, 4, 5) for cell in "ab"]


def test_quantiles_are_read_from_newest_numbers() -> None:
    stream = Stream(Quantiles(0, 8, 8), Budget(1000.0, 0.0), revise_for=1)
    releases = stream.run([[[1.0] * 50], [[1.0] * 50, [7.0] * 200]])
    value, low, high = releases.per_tick().quantile(0.5)
    assert low[0] <= 7.0 <= high[0] + 1
    assert value[0] > 6 > 2 > value[1]


def test_what_does_not_fit_is_refused() -> None:
    for rest in (
        {"postprocess": ["integer"]},
        {"views": ["per-tick"]},
        {"revise_for": 0},
        {"revise_for": True},
    ):
        with pytest.raises(ParameterError):
            Stream(Count(), PURE, **{"revise_for": 2, **rest})  # type: ignore[arg-type]
    with pytest.raises(InputError, match="at most 3 days"):
        revised().step([["a"]] * 4)
