"""Keys that join a running stream: the bits of other cells, exact errors, snapshots, and what is
refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from evercount import (
    ActiveUsers,
    Budget,
    Count,
    DistinctUsers,
    Histogram,
    Rollup,
    Secret,
    Stream,
    TopK,
)
from evercount.engine import take_views
from evercount.errors import InputError, ParameterError
from evercount.queries import Query
from neighbouring_streams import all_neighbours, worst_pair
from product_internals import error_model, limits

SECRET = Secret.from_hex("3d" * 32)
GAUSSIAN, PURE = Budget(1.0, 1e-6), Budget(1.0, 0.0)
PATHS = [("a", "x"), ("a", "y"), ("b", "z")]
NEW = [f"n{number}" for number in range(30)]
PEOPLE = [("u", "a"), ("v", "b"), ("w", "n3"), ("u", "n3"), ("v", "n4")]
BRANCH = [("b", name) for name in NEW]

CASES: dict[str, tuple[Query, Budget, dict[str, Any], list[Any], list[Any], list[Any]]] = {
    # query, budget, options, events before, keys that join, events after
    "histogram": (Histogram(["a", "b"]), GAUSSIAN, {}, ["a", "b"], NEW, ["a", "n3", "n4", "n4"]),
    "other": (Histogram(["a"], unknown="other"), GAUSSIAN, {}, ["a", "n3"], NEW, ["a", "n3", "e"]),
    "weights": (
        Histogram(["a", "b"], 2, weights={"a": 3}),
        PURE,
        {},
        [["a", "b"]],
        NEW,
        [["a", "n3"], "b"],
    ),
    "terrace": (Histogram(["a", "b"]), PURE, {"factorization": "terrace"}, ["a"], NEW, ["a", "n3"]),
    "per tick": (Histogram(["a", "b"]), PURE, {"views": ["per-tick"]}, ["a"], NEW, ["a", "n3"]),
    "rollup": (
        Rollup(PATHS, unknown="other"),
        GAUSSIAN,
        {},
        [*PATHS, ("q", "q")],
        BRANCH,
        [*PATHS, ("b", "n3")],
    ),
    "distinct": (DistinctUsers(["a", "b"], total=True), GAUSSIAN, {}, PEOPLE[:2], NEW, PEOPLE),
    "active": (ActiveUsers(["a", "b"]), PURE, {}, PEOPLE[:2], NEW, PEOPLE),
}


def grown(
    name: str, joins: int = 20, ticks: int = 40, secret: Secret = SECRET
) -> tuple[Stream, np.ndarray, int]:
    """The stream after `ticks` ticks, what it published (NaN before keys joined), and its outputs
    at the start."""
    query, budget, options, before, keys, after = CASES[name]
    stream = Stream(query, budget, 50, secret=secret, replay=True, **options)
    first = stream.run([before] * joins).rows
    stream.add_keys(keys)
    later = stream.run([after] * (ticks - joins)).rows
    gap = np.full((joins, later.shape[1] - first.shape[1]), np.nan)
    return stream, np.concatenate([np.concatenate([first, gap], axis=1), later]), first.shape[1]


@pytest.mark.parametrize("name", CASES)
def test_numbers_of_other_cells_keep_their_bits(name: str) -> None:
    """Against the stream that nobody joins; the total of a rollup has a second tree in it, its
    other nodes have not."""
    query, budget, options, before, _, after = CASES[name]
    alone = Stream(query, budget, 50, secret=SECRET, replay=True, **options)
    cut: dict[str, list[Any]] = {"other": ["a", "e"], "weights": ["a", "b"], "rollup": PATHS}
    known = cut[name] if name in cut else [event for event in after if _is_old(query, event)]
    rows = alone.run([before] * 20 + [known] * 20).rows
    _, published, _ = grown(name)
    # the total of people has those in it who are there because of a new key
    same = [
        place
        for place, label in enumerate(query.labels)
        if label != "total" and (name, label) != ("rollup", "b")
    ]
    assert np.array_equal(published[:, same], rows[:, same])


def _is_old(query: Query, event: Any) -> bool:
    try:
        query.encode(query.initial_state(), [event])
    except InputError:
        return False
    return True


@pytest.mark.parametrize("name", CASES)
def test_errors_of_joined_cells_are_exact(name: str) -> None:
    """Published numbers and views: mean square of error over stated std, over cells and secrets;
    intervals hold."""
    query, _, _, before, keys, after = CASES[name]
    whole = query.with_keys(keys)
    state, rows = query.initial_state(), []
    for events, encoder in [(before, query)] * 20 + [(after, whole)] * 20:
        row, state = encoder.encode(state, events)
        rows.append(np.concatenate([row, np.zeros(whole.cells - len(row), np.int64)]))
    truth = whole.decode_run(1, np.cumsum(rows, axis=0).astype(float))
    scores, held = [], []
    for number in range(6):
        stream, published, outputs = grown(name, secret=SECRET.derive(f"x{number}"))
        releases = stream.read_back(published)
        running = np.abs(published - truth) / releases.stds
        low, high = limits(releases, 0.95)
        view = releases.last(15)
        spans = np.concatenate([truth[14:15], truth[15:] - truth[:-15]])
        parts = take_views.spans(releases, "parts", view.first - 1, view.last, totals=True)
        lately = np.abs(parts.values - spans) / parts.std
        scores.append(
            [np.nanmean(running[-1] ** 2), np.nanmean(lately[-3] ** 2), np.nanmean(lately[8] ** 2)]
        )
        held += [
            np.nanmean(np.where(np.isnan(published), np.nan, (low <= truth) & (truth <= high)))
        ]
        assert np.isnan(published[:20, outputs:]).all()
        # a part of a span is not shown
        assert np.array_equal(np.isnan(view.values[:, -1]), view.first <= 20)
    assert np.mean(held) > 0.93
    assert np.all(np.abs(np.mean(scores, axis=0) - 1) < 0.3)


@pytest.mark.parametrize("name", CASES)
def test_a_snapshot_goes_on_with_the_same_bits(name: str) -> None:
    _, _, _, before, keys, after = CASES[name]
    _, published, _ = grown(name)
    query, budget, options = CASES[name][:3]
    stream = Stream(query, budget, 50, secret=SECRET, **options)
    stream.run([before] * 20)
    for step in range(3):
        blob = stream.snapshot()
        stream.close()
        stream = Stream.restore(blob)
        if step == 0:
            stream.add_keys(keys)
        else:
            rows = stream.run([after] * 10).rows
            assert np.array_equal(rows, published[10 + 10 * step : 20 + 10 * step])
    assert stream.budget == budget
    stream.close()


def test_keys_that_need_more_noise_are_refused() -> None:
    """Planted: with the old claims these streams would go on, and neighbours lie further apart than
    their noise."""
    for query, budget, keys in [
        (Histogram(["a"]), Budget(1.0, 1e-6, "replace"), ["b"]),
        (Histogram(["a"]), Budget(1.0, 0.0, "replace"), ["b"]),
        (Rollup(PATHS), Budget(1.0, 1e-6, "replace"), [("b", "w")]),
        (DistinctUsers(["a", "b"], max_keys=2), Budget(1.0, 1e-6, "replace"), ["c"]),
        (ActiveUsers(["a", "b"], max_keys=2), GAUSSIAN, ["c"]),
    ]:
        stream = Stream(query, budget, 50, secret=SECRET, replay=True)
        with pytest.raises(ParameterError, match="than the stream has noise"):
            stream.add_keys(keys)
        assert stream.query == query
    moved = worst_pair(
        Histogram(["a"], added=["b"]), all_neighbours(["a", "b"], 2, "replace")
    ).value
    assert moved > Histogram(["a"]).squared_sensitivity("replace")
    paths = [*PATHS, ("b", "w")]
    moved = worst_pair(
        Rollup(PATHS, added=[[("b", "w")]]), all_neighbours(paths, 1, "replace")
    ).value
    assert moved > Rollup(PATHS).squared_sensitivity("replace")


@pytest.mark.parametrize(
    ("query", "options", "keys", "why"),
    [
        (Count(), {}, ["a"], "no list of keys"),
        (Histogram(3), {}, ["a"], "numbers"),
        (TopK(["a", "b"]), {}, ["c"], "declare a histogram"),
        (Rollup(PATHS), {}, [("a", "x", "new")], "one length"),
        (Rollup(PATHS), {}, [(PATHS[0][0],)], "one length"),
        (Rollup([("a", "x / y"), ("b", "y")]), {}, [("a / x", "y")], "two nodes would be labelled"),
        (Histogram(["a"], unknown="other"), {}, ["other"], "taken by the cell for unknown keys"),
        (DistinctUsers(["a"], total=True), {}, ["total"], "none of them called 'total'"),
        (DistinctUsers(), {}, ["a"], "all users together"),
        (Histogram(["a"]), {"postprocess": ["monotone"]}, ["b"], "monotone"),
        (Histogram(["a"]), {"factorization": "periods-5"}, ["b"], "cannot join this stream"),
    ],
)
def test_what_cannot_grow_is_refused(
    query: Query, options: dict[str, Any], keys: list[Any], why: str
) -> None:
    stream = Stream(query, GAUSSIAN, 50, **options)
    stream.step(1 if isinstance(query, Count) else [])
    with pytest.raises(ParameterError, match=why):
        stream.add_keys(keys)
    assert stream.query == query
    stream.step(1 if isinstance(query, Count) else [])


def test_keys_that_are_there_already_are_left_alone() -> None:
    stream = Stream(Histogram(["a"]), GAUSSIAN, 50)
    assert stream.add_keys(["a", "b", "b"]) == ["b"]
    assert stream.add_keys(["a", "b"]) == []
    assert stream.labels == ("a", "b")


@pytest.mark.parametrize(
    ("budget", "name"), [(GAUSSIAN, None), (PURE, None), (Budget(20.0, 1e-6), "fresh")]
)
def test_running_totals_have_the_intervals_of_their_view(budget: Budget, name: str | None) -> None:
    """The same numbers, cells that joined among them: wide and narrow noise, rounded and
    discrete."""
    stream = Stream(Histogram(["a"]), budget, 50, name, secret=SECRET, replay=True)
    stream.run([["a"]] * 9)
    stream.add_keys(["b"])
    errors = error_model(stream)
    view = errors.span_errors(np.asarray([0]), np.asarray([29]), errors.parts)
    assert np.allclose(errors.errors([29])[1:], [view.spread, view.slack + view.step])


def test_a_removed_key_is_hidden_and_can_come_back() -> None:
    stream = Stream(Histogram(["a", "b"]), GAUSSIAN, 50, secret=SECRET, replay=True)
    plain = (
        Stream(Histogram(["a", "b"]), GAUSSIAN, 50, secret=SECRET, replay=True)
        .run([["a", "b"]] * 9)
        .rows
    )
    first = stream.run([["a", "b"]] * 3).rows
    stream.remove_keys(["b"])
    hidden = stream.run([["a", "b"]] * 3)
    assert [row["cell"] for row in _table(hidden)] == ["a"] * 3
    stream.add_keys(["b"])
    rows = np.concatenate([first, hidden.rows, stream.run([["a", "b"]] * 3).rows])
    assert np.array_equal(rows[[0, 1, 2, 6, 7, 8]], plain[[0, 1, 2, 6, 7, 8]])
    # no number of a hidden tick
    assert np.isnan(stream.read_back(rows).per_tick().values[3:7, 1]).all()
    with pytest.raises(ParameterError, match="no key 'c'"):
        stream.remove_keys(["c"])
    with pytest.raises(ParameterError, match="nothing would be left"):
        stream.remove_keys(["a", "b"])


def _table(releases: Any) -> list[dict[str, Any]]:
    columns = releases.table().columns()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def test_an_interruption_leaves_the_keys_as_they_were(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Stream(Histogram(["a", "b"]), GAUSSIAN, 50, secret=SECRET, replay=True)
    stream.step(["a"])
    stream.remove_keys(["b"])

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("evercount.engine.add_keys.hide_keys", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stream.add_keys(["b", "c"])
    assert stream.labels == ("a", "b")
    assert stream.hidden_labels == ("b",)
    assert len(stream.step(["a"]).values) == 2
    assert stream.add_keys(["b", "c"]) == ["b", "c"]
