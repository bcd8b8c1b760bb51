"""Views of discovered keys: differences of published numbers only, with exact errors and intervals
that hold."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

from evercount import Budget, Count, DiscoveredKeys, Releases, Secret, Stream
from evercount.engine.key_views import key_view
from evercount.engine.views import Difference, View
from evercount.errors import ParameterError
from many_streams import SECRET, discoveries, least_share
from tiers import soak_but

BUDGET = Budget(4.0, 1e-2)
TICKS = 24
SPANS: dict[str, list[tuple[int, int]]] = {
    "per tick": [(t - 1, t) for t in range(1, TICKS + 1)],
    "last": [(t - 5, t) for t in range(5, TICKS + 1)],
    "weeks": [(0, 7), (7, 14), (14, 21)],
    "running": [(0, t) for t in range(1, TICKS + 1)],
}


def events_of(tick: int) -> dict[str, int]:
    """Keys that come early, late and slowly, and a new one of one person at every tick."""
    return {"early": 40, "late": 60 * (tick > 9), "slow": 5, f"person {tick}": 1}


def stream_of(every: int = 1, factorization: str | None = None, **rest: Any) -> Stream:
    query = DiscoveredKeys(every=every, minimum=3)
    return Stream(
        query, BUDGET, TICKS, factorization, secret=Secret.from_hex("c4" * 32), replay=True, **rest
    )


def views_of(releases: Releases) -> dict[str, View]:
    return {
        "per tick": releases.per_tick(),
        "last": releases.last(5),
        "weeks": releases.spans("weeks", [1, 8, 15], [8, 15, 22]),
        "running": releases.running(),
    }


def published(releases: Releases) -> list[dict[str, float]]:
    """What each tick published, by label; nothing before the first."""
    return [{}, *(dict(zip(one.labels, one.values.tolist(), strict=True)) for one in releases)]


def expected(told: list[dict[str, float]], after: int, until: int) -> dict[str, float]:
    """By hand: differences of numbers that both ends published, and what is left of the total."""
    low = told[after] if after else dict.fromkeys(told[until], 0.0)
    keys = {
        label: told[until][label] - low[label]
        for label in told[until]
        if label in low and label != "other"
    }
    return {
        **keys,
        "other": keys["total"] - sum(n for label, n in keys.items() if label != "total"),
    }


@pytest.mark.parametrize("every", [1, 4])
def test_numbers_are_differences_of_what_was_published(every: int) -> None:
    stream = stream_of(every)
    releases = stream.run([events_of(tick) for tick in range(1, TICKS + 1)])
    told = published(releases)
    assert {len(row) for row in told[1:]} >= {4, 5}, "keys became public on the way"
    for source in (releases, stream.read_back(releases.rows)):
        for name, view in views_of(source).items():
            assert (
                list(zip((view.first - 1).tolist(), view.last.tolist(), strict=True)) == SPANS[name]
            )
            assert view.cells == tuple(stream.labels)
            for row, std, (after, until) in zip(view.values, view.std, SPANS[name], strict=True):
                wanted = expected(told, after, until)
                shown = {
                    cell: float(value)
                    for cell, value in zip(view.cells, row, strict=True)
                    if not math.isnan(value)
                }
                assert shown == wanted
                assert np.array_equal(np.isnan(std), np.isnan(row))
            rows = [list(expected(told, *span)) for span in SPANS[name]]
            assert len(view.table().columns()["value"]) == sum(map(len, rows)), (
                "a key has no row before it is public"
            )
    late = views_of(releases)["weeks"].only("late").values[:, 0]
    assert np.isnan(late[:2]).all(), "its first week holds the tick in which it became public"
    assert not np.isnan(late[2])


@pytest.mark.parametrize("factorization", [None, "direct", "binary-tree"])
def test_errors_are_exact(factorization: str | None) -> None:
    """From the dense factor L; a single cell's error for `other`, which adds up many, is
    planted."""
    stream = stream_of(factorization=factorization)
    releases = stream.run([events_of(tick) for tick in range(1, TICKS + 1)])
    dense = stream.factorization.dense(TICKS)[0]
    left = np.concatenate([np.zeros((1, dense.shape[1])), dense])
    for name, view in views_of(releases).items():
        for place, (after, until) in enumerate(SPANS[name]):
            cell = math.sqrt(
                stream.sigma**2 * np.linalg.norm(left[until] - left[after]) ** 2
                + (1 + (after > 0)) / 12
            )
            keys = np.count_nonzero(~np.isnan(view.values[place, 2:]))
            norms = [1.0, math.sqrt(1 + keys), *[1.0] * keys]
            assert np.allclose(
                view.std[place][~np.isnan(view.std[place])], cell * np.asarray(norms), rtol=1e-6
            )
            change, std = releases.between(after + 1, until + 1)
            assert np.array_equal(change, view.values[place], equal_nan=True)
            assert np.allclose(std, view.std[place], equal_nan=True)
        newest = view.std[-1]
        assert newest[1] > 1.4 * newest[0], "other adds up the noise of all keys"
        for one, minus in (("early", "slow"), ("early", "total"), ("early", "other")):
            compared = view.compare(one, minus)
            assert compared.cells == (f"{one} − {minus}",)
            keys = np.count_nonzero(~np.isnan(view.values[-1, 2:]))
            norm = math.sqrt(4 + (keys - 1) + 1) if minus == "other" else math.sqrt(2)
            assert compared.std[-1, 0] == pytest.approx(newest[0] * norm, rel=1e-6)
            places = [view.cells.index(label) for label in (one, minus)]
            assert np.array_equal(
                compared.values[:, 0],
                view.values[:, places[0]] - view.values[:, places[1]],
                equal_nan=True,
            )
        with pytest.raises(ParameterError, match="compared again"):
            compared.compare(compared.cells[0], compared.cells[0])


def test_running_totals_keep_the_intervals_of_their_release() -> None:
    releases = stream_of(4).run([events_of(tick) for tick in range(1, TICKS + 1)])
    low, high = releases.running().interval(0.9)
    wanted = releases._limits(0.9)
    assert np.allclose(low, wanted[0], equal_nan=True)
    assert np.allclose(high, wanted[1], equal_nan=True)
    alone = releases.running().only("late", "total").interval(0.9)
    assert np.allclose(
        alone[0], wanted[0][:, [list(releases.labels).index("late"), 0]], equal_nan=True
    )


@pytest.mark.parametrize(
    ("factorization", "every"),
    soak_but([("direct", 1), ("binary-tree", 4)], [(None, 1), ("direct", 1), ("binary-tree", 4)]),
)
def test_intervals_of_changes_hold_given_discovery(factorization: str | None, every: int) -> None:
    """2,000 streams of keys that grow through the threshold: of keys, the total, `other` and a
    comparison.

    Each stream is a span of one view. A key counts in the streams that show it.
    """
    streams, level, ticks = 2_000, 0.9, 8
    stream = Stream(
        DiscoveredKeys(every=every),
        Budget(1.0, 1e-2),
        ticks,
        factorization,
        secret=SECRET.derive("views"),
        replay=True,
    )
    thresholds = stream.thresholds
    assert thresholds is not None
    final = np.linspace(0.6, 3.0, 8) * thresholds.at(ticks)
    counts = np.stack([(final * tick / ticks).astype(int) for tick in range(ticks + 1)])
    many = discoveries(stream, counts[1:], streams)
    labels = ["total", "other", *(f"k{key}" for key in range(len(final)))]

    def columns(numbers: np.ndarray, total: np.ndarray) -> np.ndarray:
        return np.concatenate([total[:, np.newaxis], np.zeros((streams, 1)), numbers], axis=1)

    lucky = naive = 0
    for after, until in ((4, 5), (7, 8), (4, 8)):
        low, high = (columns(many.keys[tick - 1], many.total[tick - 1]) for tick in (after, until))
        assert not np.isnan(low[:, 0]).any(), "the totals are public"
        evidence = columns(many.evidence[after - 1], np.zeros(streams))
        spans = np.full(streams, after), np.full(streams, until)
        ends, errors = (low, high), many.releases._errors
        view = key_view("span", spans, ends, evidence, labels, range(len(labels)), errors, "")
        change = (counts[until] - counts[after]).astype(float)
        shown = ~np.isnan(view.values[:, 2:])
        truth = np.column_stack(
            [np.full(streams, change.sum()), change.sum() - shown @ change, shown * change]
        )
        below, above = view.interval(level)
        misses = [(truth < below) | (truth > above)]
        compared = view.compare("k7", "k6").interval(level)
        misses.append((change[7] - change[6] < compared[0]) | (change[7] - change[6] > compared[1]))
        for missed, there in zip(
            misses, (~np.isnan(view.values), shown[:, 7:] & shown[:, 6:7]), strict=True
        ):
            for number in range(missed.shape[1]):
                part = there[:, number]
                assert missed[part, number].sum() <= binom.ppf(1 - 1e-6, part.sum(), 1 - level), (
                    until,
                    number,
                )
        tested = after // every * every
        # they are listed by luck
        barely = shown & (counts[tested] < thresholds.at(max(tested, every)))
        off = np.abs(view.values - truth) > 1.645 * view.std
        lucky += int(barely.sum())
        naive += int(off[:, 2:][barely].sum())
        held = np.mean(np.abs(view.values - truth)[:, 0] <= 0.75 * (above - view.values)[:, 0])
        assert held < least_share(level, streams), (
            "planted: intervals of the total that are 25 % too narrow"
        )
    assert lucky > 500
    if factorization == "direct":
        assert naive > 1.4 * (1 - level) * lucky, (
            "symmetric intervals would have failed for keys listed by luck"
        )


def test_other_stays_narrow_when_all_keys_are_clear() -> None:
    """√(keys), not a multiple of them."""
    stream = stream_of()
    releases = stream.run([{f"k{i}": 500 for i in range(60)} for _ in range(4)])
    view = releases.per_tick()
    low, high = view.interval(0.95)
    # the step is added once
    assert high[3, 1] - low[3, 1] < 2.2 * 2 * math.sqrt(61) * view.std[3, 0] + 1
    assert np.all(view._half_widths()[3, 2:] < 2.1 * view.std[3, 0] + 0.5)


def test_a_run_that_begins_later_and_two_streams() -> None:
    stream = stream_of(4)
    events = [events_of(tick) for tick in range(1, TICKS + 1)]
    whole = stream_of(4).run(events)
    stream.run(events[:13])
    later = stream.run(events[13:])
    assert np.array_equal(later.per_tick().values, whole.per_tick().values[14:], equal_nan=True)
    for mine, wanted in zip(later.per_tick().interval(), whole.per_tick().interval(), strict=True):
        assert np.allclose(mine, wanted[14:], equal_nan=True)
    with pytest.raises(ParameterError, match="discovery tick"):
        stream.read_back(later.rows, 14)
    count = Stream(Count(), BUDGET, TICKS).run([100] * TICKS).last(5)
    apart = Difference(whole.last(5).only("late"), count)
    low, high = apart.interval()
    assert np.isnan(low[0, 0])
    assert low[-1, 0] < apart.values[-1, 0] < high[-1, 0]
    assert high[-1, 0] - low[-1, 0] > 2 * 1.96 * apart.std[-1, 0]


def test_the_picture_of_a_notebook_has_no_hole_in_its_scale() -> None:
    releases = stream_of().run([events_of(tick) for tick in range(1, TICKS + 1)])
    for shown in (releases, releases.per_tick(), releases.per_tick().only("late")):
        html = shown._repr_html_()
        assert ">nan" not in html
        assert "<img" in html
