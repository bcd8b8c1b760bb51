"""DiscoveredKeys streams: against a plain oracle, order, bad keys, retries, snapshots, users."""

from __future__ import annotations

import random
import unicodedata
from collections import Counter
from typing import Any

import numpy as np
import pytest

from evercount import Budget, DiscoveredKeys, Secret, Stream
from evercount.errors import (
    AlreadyReleased,
    EventRefused,
    InputError,
    ParameterError,
    SnapshotError,
)
from evercount.mechanisms.composed_noise import NamedNoise
from product_internals import inner_state, noise_parts

SECRET = Secret.from_hex("d1" * 32)
BUDGET = Budget(2.0, 1e-3)


def ticks_of(number: int, seed: int = 0) -> list[list[str]]:
    """Keys with counts of very different size; some come late."""
    draw = random.Random(seed)
    keys = [f"k{place}" for place in range(30)]
    return [
        [
            key
            for place, key in enumerate(keys)
            for _ in range(draw.randrange(2 + 120 // (place + 1)))
        ]
        if tick % 3 != 2
        else ["late"] * tick
        for tick in range(number)
    ]


def stream_of(
    query: DiscoveredKeys, horizon: int | None = 60, budget: Budget = BUDGET, **rest: Any
) -> Stream:
    return Stream(query, budget, horizon, secret=SECRET, **{"replay": True, **rest})


def oracle(stream: Stream, ticks: list[list[str]]) -> list[dict[str, float]]:
    """Every possible key has noise from the start; plain dictionaries do the rest."""
    thresholds, noises = stream.thresholds, noise_parts(stream)
    assert thresholds is not None
    assert noises.key is not None
    assert noises.limit is not None
    names = sorted({key for tick in ticks for key in tick})
    noise = NamedNoise(
        stream.factorization, stream.sigma, noises.key, ["", *names], noises.limit
    ).rows(1, len(ticks))
    counts: Counter[str] = Counter()
    public: list[str] = []
    found = []
    for tick, events in enumerate(ticks, 1):
        counts.update(events)
        noisy = {key: counts[key] + noise[tick - 1, 1 + place] for place, key in enumerate(names)}
        if tick % thresholds.every == 0:
            passed = [
                key
                for key in names
                if counts[key] >= thresholds.minimum and noisy[key] >= thresholds.at(tick)
            ]
            public += [key for key in passed if key not in public]
        total = sum(counts.values()) + noise[tick - 1, 0]
        found.append(
            {"total": total, "other": total - sum(noisy[key] for key in public)}
            | {k: noisy[k] for k in public}
        )
    return found


def published(stream: Stream, ticks: list[Any], **rest: Any) -> list[dict[str, float]]:
    return [
        dict(zip(release.labels, release.values.tolist(), strict=True))
        for release in stream.run(ticks, **rest)
    ]


@pytest.mark.parametrize("horizon", [60, None])
@pytest.mark.parametrize(("every", "minimum"), [(1, 1), (1, 20), (7, 5)])
def test_against_a_plain_oracle(every: int, minimum: int, horizon: int | None) -> None:
    stream = stream_of(DiscoveredKeys(every, minimum), horizon)
    ticks = ticks_of(50)
    expected = oracle(stream, ticks)
    assert published(stream, ticks) == expected
    assert len(expected[0]) < len(expected[-1]), "keys become public one after the other"
    assert [list(one) for one in expected] == [list(one)[: len(one)] for one in expected]


@pytest.mark.parametrize("seed", range(3))
def test_steps_runs_snapshots_and_preparation_agree(seed: int) -> None:
    ticks, draw = ticks_of(70, seed), random.Random(seed)
    expected = published(stream_of(DiscoveredKeys(minimum=8), 70), ticks)
    stream = stream_of(DiscoveredKeys(minimum=8), 70, replay=False)
    found: list[dict[str, float]] = []
    while len(found) < len(ticks):
        size = draw.choice([1, 1, 1, 5, 40])
        if size == 1:
            events = ticks[len(found)]
            draw.shuffle(events)
            release = stream.step(events, tick=len(found) + 1)
            again = stream.step(events, tick=len(found) + 1)
            assert again.values.tolist() == release.values.tolist()
            assert list(again.labels) == list(release.labels)
            found.append(dict(zip(release.labels, release.values.tolist(), strict=True)))
        else:
            found += published(stream, ticks[len(found) : len(found) + size])
        if draw.random() < 0.4:  # with events of the next tick, which are not counted by that
            stream.prepare(draw.choice([[], ["never"] * 99, *ticks[len(found) : len(found) + 1]]))
        if draw.random() < 0.3:
            blob = stream.snapshot()
            stream.close()
            stream = Stream.restore(blob)
            assert list(stream.labels) == list(found[-1])
    stream.close()
    assert found == expected


def test_a_failed_step_leaves_the_stream_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted after the noise was drawn, with keys that then do not come: nothing of them
    stays."""
    ticks = ticks_of(12)
    expected = published(stream_of(DiscoveredKeys(minimum=3)), ticks)
    stream = stream_of(DiscoveredKeys(minimum=3))
    found = published(stream, ticks[:5])
    rows = NamedNoise.rows

    def interrupted(self: NamedNoise, first: int, number: int) -> Any:
        rows(self, first, number)
        if "never" in self.place:
            raise KeyboardInterrupt
        return rows(self, first, number)

    with monkeypatch.context() as patch:
        patch.setattr(NamedNoise, "rows", interrupted)
        with pytest.raises(KeyboardInterrupt):
            stream.step(["never"] * 500 + ["k1"] * 7)
    assert stream.tick == 5
    found += published(stream, ticks[5:])
    assert found == expected


def test_only_public_facts_order_the_keys() -> None:
    """Whoever comes first, in whatever order and company, the same counts give the same release."""
    first = [["b"] * 400 + ["a"] * 400 + ["rare"], ["c"] * 300]
    other = [["a"] * 400 + ["rare 2"] + ["b"] * 400, ["c"] * 300]
    one, two = (published(stream_of(DiscoveredKeys()), ticks) for ticks in (first, other))
    assert one == two
    assert list(one[1]) == ["total", "other", "a", "b", "c"]


def test_normal_forms_are_one_key_and_bad_keys_are_refused() -> None:
    composed, decomposed = "caf\u00e9", unicodedata.normalize("NFD", "caf\u00e9")
    stream = stream_of(DiscoveredKeys())
    plain = published(stream_of(DiscoveredKeys()), [[composed] * 600])
    assert published(stream, [[composed, decomposed] * 300]) == plain
    assert list(plain[0])[2:] == [composed]
    for bad in (
        "",
        " a",
        "a\n",
        "\u202ea",
        "x" * 201,
        "x" * 1_000_000,
        "\ud800",
        "\u0301a",
        7,
        None,
        ["a"],
        b"a",
    ):
        with pytest.raises(InputError) as refusal:
            stream.step(["fine", bad])
        assert isinstance(refusal.value, EventRefused)
        assert refusal.value.number == 1
        assert len(str(refusal.value)) < 300
    for bad_tick in ("text", 5, object(), {"a": -1}, {"a": 1.5}, {"a": True}):
        with pytest.raises(InputError):
            stream.step(bad_tick)
    assert stream.tick == 1
    assert list(stream.step({"x" * 200: 500}).labels) == ["total", "other", composed, "x" * 200]


def test_keys_named_total_or_other_count_and_are_never_listed() -> None:
    release = stream_of(DiscoveredKeys()).step({"total": 500, "other": 500, "north": 500})
    assert list(release.labels) == ["total", "other", "north"]
    assert abs(release.values[0] - 1500) < 6 * release.stds[0]
    assert abs(release.values[1] - 1000) < 6 * release.stds[1]


def test_a_hundred_thousand_new_keys_in_one_tick() -> None:
    stream = stream_of(DiscoveredKeys(minimum=10), None)
    stream.run([["a"] * 500] * 5)
    release = stream.step([f"new {number}" for number in range(100_000)] + ["b"] * 500)
    assert list(release.labels) == ["total", "other", "a", "b"]
    assert abs(release.values[1] - 100_000) < 8 * release.stds[1]
    again = Stream.restore(stream_of(DiscoveredKeys(minimum=10), None, replay=False).snapshot())
    again.close()
    assert len(inner_state(stream).encoder.settled().rare) == 100_000


def test_users_and_their_cap() -> None:
    budget = Budget(2.0, 1e-3, unit="user", max_events=2)
    stream = stream_of(DiscoveredKeys(), budget=budget)
    events = [f"k{number % 3}" for number in range(6000)]
    users = [f"u{number % 1500}" for number in range(6000)]  # four events each, two of which count
    release = stream.step(events, users=users)
    assert abs(release.values[0] - 3000) < 6 * release.stds[0]
    assert set(release.labels) == {"total", "other", "k0", "k1", "k2"}
    with pytest.raises(ParameterError):
        stream_of(DiscoveredKeys(), budget=budget).step(events)
    event_level = stream_of(DiscoveredKeys()).thresholds
    assert stream.thresholds is not None
    assert event_level is not None
    assert stream.thresholds.at(1) > event_level.at(1) + 1


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ParameterError, match="l1 sensitivity"):
        stream_of(DiscoveredKeys(), budget=Budget(1.0, 0.0))
    with pytest.raises(ParameterError, match="monotone"):
        stream_of(DiscoveredKeys(), postprocess=["monotone"])
    with pytest.raises(ParameterError, match="every"):
        stream_of(DiscoveredKeys(every=61))
    for bad in ({"every": 0}, {"minimum": 0}, {"share": 0.0}, {"share": 1.0}):
        with pytest.raises(ParameterError):
            DiscoveredKeys(**bad)  # type: ignore[arg-type]
    one = stream_of(DiscoveredKeys())
    one.step(["a"], tick=1)
    with pytest.raises(AlreadyReleased):
        one.step(["b"], tick=1)
    stream = stream_of(DiscoveredKeys(), replay=False)
    stream.step(["a"] * 500)
    dump = stream.dump()
    stream.close()
    with pytest.raises(SnapshotError):
        Stream.load({**dump, "encoder": {**dump["encoder"], "counts": np.empty(0, np.int64)}})


def test_the_budget_is_split_and_the_ledger_sees_all_of_it() -> None:
    stream = stream_of(DiscoveredKeys(share=0.25), budget=Budget(1.0, 1e-6))
    assert stream.numeric_delta == pytest.approx(0.25e-6, rel=1e-3)
    plain = Budget(1.0, 0.75e-6 * 0.999)
    assert (
        stream.sigma
        <= plain.noise_multiplier() * np.sqrt(2) * stream.factorization.column_norm * 1.001
    )
    assert (
        stream.sigma
        >= Budget(1.0, 0.75e-6).noise_multiplier() * np.sqrt(2) * stream.factorization.column_norm
    )
    assert "delta=1e-06" in stream.guarantee


def test_post_processing_and_exports_leave_out_what_is_not_public(tmp_path: Any) -> None:
    stream = stream_of(DiscoveredKeys(), postprocess=["nonnegative"])
    run = stream.run([["a"] * 300, ["b"] * 300])
    assert run[0].labels == ("total", "other", "a")
    assert run[1].labels == ("total", "other", "a", "b")
    run.to_csv(tmp_path / "out.csv")
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert len(lines) == 1 + 3 + 4
    assert "nan" not in " ".join(lines)
    change, std = run.between(2, 3)
    assert change[0] == run.rows[1, 0] - run.rows[0, 0]
    assert change[1] == change[0] - change[2], "other is the rest of the total"
    assert std[1] == std[0] * np.sqrt(2)
    assert np.isnan(change[3])
    assert std[0] > 0
    assert {key.key for key in run[1].top(2)} == {"a", "b"}
    with pytest.raises(ParameterError, match="post-processed"):
        run.per_tick()
