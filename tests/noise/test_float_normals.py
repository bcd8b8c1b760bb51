"""Insecure float noise: sequential, resumable, and a good normal."""

from __future__ import annotations

import json

import numpy as np
import pytest

from evercount.errors import ParameterError, SnapshotError, TooLarge
from evercount.noise import FloatNoise


def test_name_and_docstring_say_that_it_is_insecure() -> None:
    assert FloatNoise.name == "insecure-float"
    assert "Mironov" in (FloatNoise.__doc__ or "")


@pytest.mark.parametrize("cells", [1, 3, 7])
def test_splitting_gives_the_same_numbers(cells: int) -> None:
    whole = FloatNoise(5).normals(0, 50, cells)
    noise, parts, position = FloatNoise(5), [], 0
    for step in (0, 1, 2, 13, 34):
        parts.append(noise.normals(position, position + step, cells))
        position += step
    assert np.array_equal(whole, np.concatenate(parts))


def test_seeds_and_distribution() -> None:
    assert not np.array_equal(FloatNoise(1).normals(0, 9, 1), FloatNoise(2).normals(0, 9, 1))
    assert not np.array_equal(FloatNoise().normals(0, 9, 1), FloatNoise().normals(0, 9, 1))
    z = FloatNoise(3).normals(0, 1000, 200)
    assert abs(z.mean()) < 5 / np.sqrt(z.size)
    assert abs((z**2).mean() - 1) < 5 * np.sqrt(2 / z.size)


def test_out_is_filled_and_returned() -> None:
    out = np.empty((4, 3))
    assert FloatNoise(1).normals(0, 4, 3, out=out) is out
    assert np.array_equal(out, FloatNoise(1).normals(0, 4, 3))


@pytest.mark.parametrize(
    "out", [np.empty((3, 4)), np.empty((4, 3), np.float32), np.empty((3, 4)).T, np.empty((4, 6))[:, ::2]]
)
def test_a_wrong_out_is_refused_before_anything_is_drawn(out: np.ndarray) -> None:
    noise = FloatNoise(1)
    with pytest.raises(ParameterError):
        noise.normals(0, 4, 3, out=out)
    assert np.array_equal(noise.normals(0, 4, 3), FloatNoise(1).normals(0, 4, 3))


@pytest.mark.parametrize("request_", [(1, 2, 1), (-1, 0, 1), (0, -1, 1), (0, 1, -1)])
def test_illegal_requests_leave_the_generator_as_it_was(request_: tuple[int, int, int]) -> None:
    noise = FloatNoise(1)
    before = noise.state()
    with pytest.raises(ParameterError):
        noise.normals(*request_)
    assert noise.state() == before


def test_a_request_that_would_not_fit_is_refused() -> None:
    noise = FloatNoise(1)
    with pytest.raises(TooLarge):
        noise.normals(0, 2**20, 2**20)
    with pytest.raises(ParameterError, match="must be an integer"):
        noise.normals(0, 1.0, 1)  # type: ignore[arg-type]
    assert noise.position == 0


def test_a_draw_is_never_drawn_twice() -> None:
    noise = FloatNoise(1)
    noise.normals(0, 3, 1)
    assert noise.position == 3
    with pytest.raises(ParameterError, match="draw 3 comes next"):
        noise.normals(0, 3, 1)


def test_state_survives_json() -> None:
    noise = FloatNoise(9)
    noise.normals(0, 17, 3)
    again = FloatNoise.from_state(json.loads(json.dumps(noise.state())))
    assert again.position == 17
    assert np.array_equal(noise.normals(17, 30, 3), again.normals(17, 30, 3))


def test_bad_states_are_refused() -> None:
    good = FloatNoise(9).state()
    changes: list[dict[str, object]] = [
        {"name": "exact"}, {"generator": "PCG64"}, {"position": -1}, {"position": 1.0}, {"words": [1, 2, 3]},
        {"words": [1, 2, 3, 2**64]}, {"words": [1, 2, 3, -1]}, {"words": None}, {"words": [1, 2, 3, "4"]},
    ]  # fmt: skip
    for change in changes:
        with pytest.raises(SnapshotError):
            FloatNoise.from_state({**good, **change})
    with pytest.raises(SnapshotError):
        FloatNoise.from_state({})
    with pytest.raises(SnapshotError):
        FloatNoise.from_state(None)  # type: ignore[arg-type]


@pytest.mark.parametrize("seed", [-1, 1.5, "7", True])
def test_bad_seeds_are_refused(seed: object) -> None:
    with pytest.raises(ParameterError):
        FloatNoise(seed)  # type: ignore[arg-type]
