"""Noise that belongs to names: the same in every company, and independent between names."""

from __future__ import annotations

import numpy as np
import pytest

from evercount.noise import ExactNoise, Secret
from evercount.noise.prf import NamedPrf, Prf, counters

SECRET = Secret.from_hex("5c" * 32)


def near(noise: ExactNoise, start: int, stop: int, cells: int) -> np.ndarray:
    return noise.normals(start, stop, cells).to_ints().astype(np.float64) / 2.0**128


def test_noise_of_a_name_is_the_same_in_every_company() -> None:
    names = [f"name {number}" for number in range(700)]
    together = near(ExactNoise(SECRET, names), 3, 9, len(names))
    backwards = near(ExactNoise(SECRET, names[::-1]), 3, 9, len(names))[:, ::-1]
    assert np.array_equal(together, backwards)
    for number in (0, 17, 699):  # one by one: another way through the sampler
        assert np.array_equal(
            near(ExactNoise(SECRET, [names[number]]), 3, 9, 1)[:, 0], together[:, number]
        )


def test_the_exact_way_gives_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ["", "a", "ä", "b" * 200]
    fast = near(ExactNoise(SECRET, names), 0, 40, 4)
    monkeypatch.setattr(ExactNoise, "_margin", 2.0)
    assert np.array_equal(near(ExactNoise(SECRET, names), 0, 40, 4), fast)


def test_names_have_independent_noise() -> None:
    names = [f"name {number}" for number in range(4000)]
    noise = near(ExactNoise(SECRET, names), 0, 4, len(names))
    assert len(np.unique(noise)) == noise.size
    assert np.abs(noise.mean(axis=1)).max() < 5 / np.sqrt(len(names))
    assert np.abs(np.corrcoef(noise) - np.eye(4)).max() < 5 / np.sqrt(len(names))
    assert abs(np.corrcoef(noise[0, ::2], noise[0, 1::2])[0, 1]) < 5 / np.sqrt(len(names) / 2)


def test_blocks_of_two_names_and_of_numbered_cells_do_not_meet() -> None:
    blocks = counters(range(50), range(3))
    named = NamedPrf(SECRET, ["x", "y", "z"]).words(blocks)
    plain = Prf(SECRET).words(blocks)
    assert len({row.tobytes() for row in (*named, *plain)}) == 2 * len(blocks)
    assert not np.array_equal(
        named, NamedPrf(SECRET.derive("other"), ["x", "y", "z"]).words(blocks)
    )
