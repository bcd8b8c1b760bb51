"""Keys of the day: what single ticks publish, its exact law, and a dense oracle, each with wrong
thresholds planted."""

from __future__ import annotations

import math
import random
from collections import Counter
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from evercount import Budget, DiscoveredKeys, Secret, Stream
from evercount.errors import ParameterError
from evercount.mechanisms.composed_noise import ONE_BY_ONE
from evercount.mechanisms.exact.exact_noise import ExactStream
from product_internals import inner_state, noise_parts, noise_source

SECRET = Secret.from_hex("da" * 32)
BUDGET = Budget(2.0, 1e-3)


def stream_of(query: DiscoveredKeys | None = None, budget: Budget = BUDGET, **rest: Any) -> Stream:
    options = {"replay": True, "views": ["per-tick"], **rest}
    return Stream(query or DiscoveredKeys(), budget, secret=SECRET, **options)


def ticks_of(number: int, seed: int = 0) -> list[list[str]]:
    """Keys that come and go; every fifth tick is empty."""
    draw = random.Random(seed)
    keys = [f"k{place}" for place in range(12)]
    return [
        [key for key in keys for _ in range(draw.randrange(40))] if tick % 5 else []
        for tick in range(number)
    ]


def shown(stream: Stream, ticks: list[list[str]]) -> list[dict[str, float]]:
    return [dict(zip(one.labels, one.values.tolist(), strict=True)) for one in stream.run(ticks)]


def test_keys_below_the_minimum_are_not_looked_at() -> None:
    """Of 5,000 keys with 4 events each, noise alone would list about twenty; of those with 5 it
    lists some."""
    stream = stream_of(DiscoveredKeys(minimum=5), Budget(1.0, 0.3))
    few, enough = (
        stream.step({f"k{number}": events for number in range(5000)}) for events in (4, 5)
    )
    assert few.labels == ("total", "other")
    assert len(enough.labels) > 50


# -- the law ---------------------------------------------------------------------------------------

Law = list[tuple[np.ndarray, np.ndarray]]
"""Independent numbers that are published: the probabilities of their outcomes with the unit and
without it."""


def laws(events: dict[tuple[str, int], int], base: int, threshold: int, std: float) -> Law:
    """What is published of a unit's own (key, tick) pairs, of which others have `base` events each,
    and of totals."""
    reach = int(9 * std) + 4
    grid = np.arange(-reach, base + reach + 1)

    def mass(count: int) -> np.ndarray:
        return np.asarray(
            norm.cdf(grid - count + 0.5, scale=std) - norm.cdf(grid - count - 0.5, scale=std)
        )

    def key(count: int) -> np.ndarray:
        listed = mass(count)[grid >= threshold] * (count >= 1)
        return np.append(listed, max(0.0, 1 - listed.sum()))

    totals: Counter[int] = Counter()
    for (_, tick), count in events.items():
        totals[tick] += count
    keys = [(key(base + count), key(base)) for count in events.values()]
    return keys + [(mass(number), mass(0)) for number in totals.values()]


def divergence(parts: Law, epsilon: float) -> float:
    """The larger of both hockey-stick divergences, over all joint outcomes."""
    with_unit, without = (
        reduce(np.multiply.outer, [part[side] for part in parts]) for side in (0, 1)
    )
    return max(
        float(np.maximum(a - math.exp(epsilon) * b, 0).sum())
        for a, b in ((with_unit, without), (without, with_unit))
    )


EVENT = [{("a", 1): 1}]
USER = [{("a", 1): 2}, {("a", 1): 1, ("b", 1): 1}, {("a", 1): 1, ("a", 2): 1}]


@pytest.mark.parametrize(
    ("budget", "spreads"),
    [
        (Budget(3.0, 0.05), EVENT),
        (Budget(2.0, 1e-4), EVENT),
        (Budget(6.0, 0.05, unit="user", max_events=2), USER),
        (Budget(6.0, 1e-4, unit="user", max_events=2), USER),
    ],
)
def test_exact_delta_of_two_ticks(
    budget: Budget, spreads: list[dict[tuple[str, int], int]]
) -> None:
    """The joint law of all that a unit changes, in the ticks that it touches; other ticks have the
    same law."""
    stream = stream_of(budget=budget)
    assert stream.thresholds is not None
    threshold, std = stream.thresholds.at(1), stream.sigma

    def worst(base: int, threshold: int, std: float) -> float:
        return max(
            divergence(laws(events, base, threshold, std), budget.epsilon) for events in spreads
        )

    known = threshold + math.ceil(2 * std)  # a key that is there without the unit, too
    found = [worst(base, threshold, std) for base in (0, 1, threshold - 1, known)]
    assert max(found) <= budget.delta
    assert max(found) >= budget.delta / 40, "the enumeration sees what the mechanism spends"
    # planted: a key that appears with its first event, and noise of half the size
    assert worst(0, 1, std) > budget.delta
    assert worst(known, threshold, std / 2) > budget.delta


@pytest.mark.parametrize("most", [1, 2, 5])
def test_a_unit_is_listed_with_at_most_delta_2_in_all_its_ticks(most: int) -> None:
    """With the noise that streams have, at a δ₂ that can be measured; thresholds for less are
    planted."""
    unit: dict[str, Any] = {"unit": "user", "max_events": most} if most > 1 else {}
    budget, trials = Budget(1.0, 0.4, **unit), 20_000
    stream = stream_of(budget=budget)
    thresholds, noise = stream.thresholds, noise_source(stream)
    assert thresholds is not None
    delta_2 = 0.2 / (1 + math.e)
    assert thresholds.delta == pytest.approx(delta_2)
    names = [f"person {number}" for number in range(trials)]
    drawn = [noise.at(tick, names) for tick in range(1, most + 1)]  # type: ignore[attr-defined]
    spread = 4 * math.sqrt(delta_2 / trials)

    def rate(threshold: int, together: bool) -> float:
        """All events in one key and tick, or one event of a key in each of `most` ticks."""
        passed = (
            [most + drawn[0] >= threshold] if together else [1 + row >= threshold for row in drawn]
        )
        return float(np.any(passed, axis=0).mean())

    found = max(rate(thresholds.at(1), together) for together in (True, False))
    assert delta_2 / 5 < found <= delta_2 + spread
    assert rate(1 + most, True) > delta_2 + spread
    if most > 1:
        # for one event, with less noise, too
        planted = stream_of(budget=Budget(1.0, 0.4)).thresholds
        assert planted is not None
        assert rate(planted.at(1), True) > delta_2 + spread


def test_no_year_and_no_horizon_enter_the_threshold() -> None:
    short, long = (stream_of(horizon=horizon) for horizon in (1, 10**6))
    endless = stream_of()
    assert short.thresholds is not None
    assert endless.thresholds is not None
    assert {one.thresholds.at(1) for one in (short, long, endless)} == {endless.thresholds.at(1)}  # type: ignore[union-attr]
    assert endless.thresholds.at(1) == endless.thresholds.at(10**9)
    assert short.sigma == endless.sigma
    assert short.numeric_delta == endless.numeric_delta
    year = Stream(DiscoveredKeys(), BUDGET, 365).thresholds
    assert year is not None
    assert year.at(1) > 2 * endless.thresholds.at(1)


# -- the engine ------------------------------------------------------------------------------------


def oracle(stream: Stream, ticks: list[list[str]]) -> list[dict[str, float]]:
    """Every name that ever comes has a column of noise for all ticks; plain dictionaries do the
    rest."""
    noise, thresholds = noise_parts(stream), stream.thresholds
    assert thresholds is not None
    assert noise.key is not None
    names = sorted({key for tick in ticks for key in tick})
    drawn = ExactStream(
        ONE_BY_ONE, stream.sigma, 1 + len(names), noise.key, names=["", *names]
    ).take(len(ticks))
    found = []
    for row, tick in zip(drawn, ticks, strict=True):
        counts = Counter(tick)
        noisy = {key: counts[key] + row[1 + place] for place, key in enumerate(names)}
        listed = [
            key
            for key in names
            if counts[key] >= thresholds.minimum and noisy[key] >= thresholds.at(1)
        ]
        total = len(tick) + row[0]
        found.append({"total": total, "other": total - sum(noisy[key] for key in listed)})
        found[-1] |= {key: noisy[key] for key in listed}
    return found


@pytest.mark.parametrize("minimum", [1, 8])
def test_against_a_dense_oracle(minimum: int) -> None:
    ticks = ticks_of(60)
    stream = stream_of(DiscoveredKeys(minimum=minimum))
    expected = oracle(stream, ticks)
    assert shown(stream, ticks) == expected
    listed = [set(one) - {"total", "other"} for one in expected]
    assert any(one - two for one, two in pairwise(listed)), "keys go, too"
    assert listed[0] == set(), "a key without events is not there, whatever its noise"


def test_a_tick_is_a_function_of_itself_alone() -> None:
    """Other ticks with other keys, earlier or later, change nothing of it."""
    ticks = ticks_of(12)
    whole = shown(stream_of(), ticks)
    for tick in range(12):
        others = [["x"] * 500 if number != tick else ticks[tick] for number in range(12)]
        assert shown(stream_of(), others)[tick] == whole[tick]
    assert len(inner_state(stream_of()).encoder.keys) == 0


@pytest.mark.parametrize("seed", range(3))
def test_steps_runs_snapshots_and_preparation_agree(seed: int) -> None:
    ticks, draw = ticks_of(60, seed), random.Random(seed)
    expected = shown(stream_of(), ticks)
    stream = stream_of(replay=False)
    found: list[dict[str, float]] = []
    while len(found) < len(ticks):
        if draw.random() < 0.6:
            events = list(ticks[len(found)])
            draw.shuffle(events)
            release = stream.step(events, tick=len(found) + 1)
            if draw.random() < 0.5:
                blob = stream.snapshot()
                stream.close()
                stream = Stream.restore(blob)
            again = stream.step(events, tick=len(found) + 1)
            assert list(again.labels) == list(release.labels)
            for one, other in zip(
                (again.values, *again.interval()),
                (release.values, *release.interval()),
                strict=True,
            ):
                assert one.tolist() == other.tolist()
            found.append(dict(zip(release.labels, release.values.tolist(), strict=True)))
        else:
            found += shown(stream, ticks[len(found) : len(found) + draw.randrange(20)])
        if draw.random() < 0.4:
            stream.prepare(["never"] * 9)
    assert found == expected
    assert len(stream.snapshot()) < 5000, "it keeps the keys of its last tick and nothing else"
    stream.close()


def test_intervals_hold_given_what_is_public() -> None:
    stream = stream_of(budget=Budget(1.0, 1e-2))
    assert stream.thresholds is not None
    level, count, ticks = 0.9, stream.thresholds.at(1) + 2, 1200
    run = stream.run([["near"] * count + ["far"] * 100] * ticks)
    low, high = run.interval(level)
    truth = {"total": count + 100, "far": 100, "near": count}
    for label, true in truth.items():
        place = list(run.labels).index(label)
        public = ~np.isnan(run.rows[:, place])
        inside = (low[:, place] <= true) & (true <= high[:, place])
        assert public.any()
        assert inside[public].mean() >= level - 4 * math.sqrt(0.09 / public.sum()), label
    near = np.isnan(run.rows[:, list(run.labels).index("near")])
    other = np.where(near, count, 0)
    assert ((low[:, 1] <= other) & (other <= high[:, 1])).mean() >= level - 0.03


def test_views_are_single_ticks() -> None:
    run = stream_of().run(ticks_of(9))
    view, low, high = run.per_tick(), *run.interval()
    assert np.array_equal(view.values, run.rows, equal_nan=True)
    assert np.array_equal(view.std, run.stds, equal_nan=True)
    assert all(
        np.array_equal(a, b, equal_nan=True)
        for a, b in zip(view.interval(), (low, high), strict=True)
    )
    assert view.first.tolist() == view.last.tolist() == list(range(1, 10))
    stream = stream_of()
    stream.run(ticks_of(3))
    late = stream.run(ticks_of(9)[3:])
    assert np.array_equal(late.per_tick().values, late.rows, equal_nan=True)
    compared = run.per_tick().compare("k1", "k2")
    known = ~np.isnan(compared.values[:, 0])
    assert known.any()
    places = [list(run.labels).index(key) for key in ("k1", "k2")]
    assert (compared.values[known, 0] == np.subtract(*run.rows[known][:, places].T)).all()
    for refused in (
        run.running,
        lambda: run.last(2),
        lambda: run.between(1, 2),
        lambda: stream.std([1], "last-7"),
    ):
        with pytest.raises(ParameterError, match="no sum over several"):
            refused()  # type: ignore[operator]
    assert stream.std([1, 10**6]).tolist() == [[run.stds[0, 0]]] * 2


def test_what_does_not_fit_is_refused() -> None:
    for options in (
        {"factorization": "fresh", "views": []},
        {"factorization": "balanced", "horizon": 9},
    ):
        with pytest.raises(ParameterError, match=r"omit the factorization"):
            stream_of(**options)
    with pytest.raises(ParameterError, match="every=2"):
        stream_of(DiscoveredKeys(every=2))
    several = stream_of(views=["per-tick", "last-7"], horizon=30)
    assert several.factorization.name != "fresh"
    assert not several.query.publishing.own_ticks
