"""NamedNoise: who joins when, with whom and over how many snapshots changes no number."""

from __future__ import annotations

import random

import numpy as np
import pytest

from evercount.errors import ParameterError, SnapshotError
from evercount.factorizations import factorization
from evercount.mechanisms.composed_noise import NamedNoise
from evercount.mechanisms.exact.exact_noise import ExactStream
from evercount.noise import Secret

SECRET = Secret.from_hex("3d" * 32)
NAMES = [f"n{number}" for number in range(40)]


def alone(kind: str, horizon: int | None, ticks: int) -> dict[str, np.ndarray]:
    made = {}
    for name in ["", *NAMES]:
        stream = ExactStream(
            factorization(kind, horizon), 7.0, 1, SECRET, limit=ticks, names=[name]
        )
        made[name] = stream.take(ticks)[:, 0]
    return made


@pytest.mark.parametrize(
    ("kind", "horizon"), [("balanced", 600), ("anytime", None), ("binary-tree", 600)]
)
def test_company_and_time_of_joining_change_no_number(kind: str, horizon: int | None) -> None:
    expected = alone(kind, horizon, 600)
    draw = random.Random(1)
    noise = NamedNoise(factorization(kind, horizon), 7.0, SECRET, [""], 600)
    waiting, tick = NAMES.copy(), 0
    draw.shuffle(waiting)
    while tick < 600:
        ticks = min(draw.choice([1, 1, 3, 64]), 600 - tick)
        noise.join([waiting.pop() for _ in range(draw.randrange(4)) if waiting], tick)
        rows = noise.rows(tick + 1, ticks)
        assert np.array_equal(noise.rows(tick + 1, ticks), rows), "asked again, the same numbers"
        for name, place in noise.place.items():
            assert np.array_equal(rows[:, place], expected[name][tick : tick + ticks]), name
        tick += ticks
    assert not waiting


def test_snapshots_and_joined_cohorts_change_no_number() -> None:
    expected = alone("balanced", 600, 600)
    noise = NamedNoise(factorization("balanced", 600), 7.0, SECRET, [""], 600)
    most = 0
    for tick in range(600):
        if tick % 16 == 0 and tick // 16 < len(NAMES):
            noise.join([NAMES[tick // 16]], tick)
        row = noise.rows(tick + 1, 1)[0]
        if tick % 50 == 7:
            noise = NamedNoise.load(factorization("balanced", 600), 7.0, noise.dump())
        if tick % 31 == 0:
            noise.prepare()
        assert [row[place] for place in noise.place.values()] == [
            expected[name][tick] for name in noise.place
        ]
        cohorts = len(noise._cohorts)
        most = max(most, cohorts)
    assert cohorts < most, "cohorts were joined"


def test_expected_names_are_ready_and_unknown_ones_are_told() -> None:
    noise = NamedNoise(factorization("balanced", 600), 7.0, SECRET, [""], 600)
    noise.rows(1, 30)
    noise.expect(["n1", "n1", "n2"])
    assert list(noise.place) == ["", "n1", "n2"]
    assert not noise.join(["n1"], 30)
    assert noise.join(["n3", "n1"], 30)


def test_damaged_dumps_are_refused() -> None:
    noise = NamedNoise(factorization("balanced", 600), 7.0, SECRET, ["", "a", "b"], 600)
    noise.rows(1, 3)
    dump = noise.dump()
    names = np.frombuffer(b"\na", np.uint8)
    for wrong in ({**dump, "names": names}, {**dump, "cohorts": []}, {**dump, "secret": 7}, {}):
        with pytest.raises((SnapshotError, ParameterError)):
            NamedNoise.load(factorization("balanced", 600), 7.0, wrong)
    with pytest.raises(SnapshotError):
        NamedNoise.load(factorization("balanced", 600), 8.0, dump)
