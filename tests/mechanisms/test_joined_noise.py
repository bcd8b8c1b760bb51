"""Cells that join have the noise of the stream that had all cells from the start, less that before
they joined."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from evercount.errors import ParameterError, SnapshotError
from evercount.factorizations import factorization
from evercount.factorizations.laplace_choice import pure_factorization
from evercount.mechanisms.composed_noise import FreshStream
from evercount.mechanisms.exact.exact_noise import ExactStream
from evercount.mechanisms.laplace_noise import PureStream
from evercount.mechanisms.noise_stream import (
    Cohort,
    JoinedNoise,
    NoiseStream,
    cohort_states,
    join_cells,
)
from evercount.noise import Secret

SECRET = Secret.from_hex("7c" * 32)
T = 80


def make(kind: str, cells: int) -> NoiseStream:
    if kind == "fresh":
        return FreshStream(5.0, cells, SECRET, 0, 0.0, T)
    if kind.startswith("pure"):
        return PureStream(pure_factorization(kind[5:] or None, T), 1.0, 1.0, 1.0, cells, SECRET)
    return ExactStream(factorization(kind, T), 5.0, cells, SECRET)


@pytest.mark.parametrize(
    "kind", ["balanced", "binary-tree", "fresh", "pure bridge", "pure fresh", "pure pure-tree"]
)
def test_cells_have_the_noise_of_the_whole_stream(kind: str) -> None:
    whole = make(kind, 6).take(T)
    noise = make(kind, 3)
    rows = [noise.take(33)]
    state = join_cells(noise, 3, 1)
    noise = _loaded(noise, state, kind)
    rows.append(noise.take(7))
    noise = _loaded(noise, join_cells(noise, 4, 2), kind)
    rows += [noise.take(1) for _ in range(40, T)]
    assert np.array_equal(np.concatenate([row[:, :3] for row in rows]), whole[:, :3])
    assert np.array_equal(
        np.concatenate([row[:, 3] for row in rows[1:]]), whole[33:, 3] - whole[32, 3]
    )
    assert np.array_equal(
        np.concatenate([row[:, 4:] for row in rows[2:]]), whole[40:, 4:] - whole[39, 4:]
    )


def _loaded(noise: NoiseStream, state: dict[str, Any], kind: str) -> JoinedNoise:
    """As `engine/build.py` loads it."""
    cohorts = []
    for cells, base, one in cohort_states(state):
        joining = make(kind, 1).further_cells(cells.start, len(cells))
        if isinstance(joining, PureStream):
            joining = joining.resume(one)
        elif isinstance(joining, FreshStream):
            joining = FreshStream(5.0, len(cells), SECRET, cells.start, 0.0, T, one)
        else:
            joining = ExactStream.load(factorization(kind, T), 5.0, len(cells), one)
        cohorts.append(Cohort(joining, len(cells), base))
    return JoinedNoise(cohorts)


def test_damaged_states_and_other_noise_are_refused() -> None:
    state = join_cells(make("balanced", 2), 2, 3)
    state["joined"][1]["base"] = np.zeros(2)
    with pytest.raises(SnapshotError, match="disagree"):
        cohort_states(state)

    class Other(ExactStream):
        further_cells = NoiseStream.further_cells

    with pytest.raises(ParameterError, match="cannot join this stream"):
        join_cells(Other(factorization("balanced", T), 5.0, 2, SECRET), 2, 1)
