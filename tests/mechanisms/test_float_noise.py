"""Float noise streams: L·z whatever the split into calls, the width, and the interruptions."""

from __future__ import annotations

import numpy as np
import pytest

from evercount.errors import EvercountError, HorizonReached, SnapshotError
from evercount.factorizations import factorization
from evercount.mechanisms.float_noise import NUMBERS_AT_ONCE, SLICE_CELLS, TICKS_AHEAD, FloatStream
from evercount.noise import FloatNoise

KINDS = [
    "balanced",
    "unbounded",
    "normalized",
    "square-root",
    "binary-tree",
    "honaker",
    "honaker-full",
    "fresh",
    "optimal",
]


def normals(ticks: int, cells: int, seed: int) -> np.ndarray:
    """The normals of a stream with one draw a tick, in the order of blocks of TICKS_AHEAD ticks and slices of cells."""
    generator = np.random.Generator(np.random.SFC64(seed))
    z = np.empty((ticks, cells))
    for start in range(0, ticks, TICKS_AHEAD):
        rows = z[start : start + TICKS_AHEAD]
        for left in range(0, cells, SLICE_CELLS):
            part = rows[:, left : left + SLICE_CELLS]
            part[...] = generator.standard_normal(part.shape)
    return z


@pytest.mark.parametrize("kind", ["balanced", "square-root", "fresh"])
@pytest.mark.parametrize("cells", [1, 30, SLICE_CELLS, SLICE_CELLS + 3, 2 * SLICE_CELLS + 700])
def test_noise_is_the_dense_matrix_times_its_normals(kind: str, cells: int) -> None:
    ticks = 2 * TICKS_AHEAD + 9
    left = factorization(kind, ticks).dense()[0]
    made = FloatStream(factorization(kind, ticks), 3.0, cells, FloatNoise(5)).take(ticks)
    wanted = 3.0 * left @ normals(ticks, cells, 5)
    np.testing.assert_allclose(made, wanted, rtol=0, atol=1e-10 * np.abs(wanted).max())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("cells", [1, 30, 2 * SLICE_CELLS + 5])
def test_any_split_gives_the_same_noise(kind: str, cells: int) -> None:
    ticks = 4 * TICKS_AHEAD + 7
    whole = FloatStream(factorization(kind, ticks), 1.0, cells, FloatNoise(7)).take(ticks)
    split = FloatStream(factorization(kind, ticks), 1.0, cells, FloatNoise(7))
    parts = [split.take(count) for count in (1, 1, TICKS_AHEAD, 3, 2 * TICKS_AHEAD + 1, 0)]
    parts.append(split.take(ticks - split.tick))
    np.testing.assert_allclose(np.concatenate(parts), whole, rtol=0, atol=1e-11 * np.abs(whole).max())
    with pytest.raises(HorizonReached):
        split.take(1)


@pytest.mark.parametrize("cells", [1, 30, SLICE_CELLS + 5])
@pytest.mark.parametrize("done", [0, 1, TICKS_AHEAD - 1, TICKS_AHEAD, TICKS_AHEAD + 5])
def test_a_loaded_stream_goes_on_identically(cells: int, done: int) -> None:
    kind, ticks = "balanced", 3 * TICKS_AHEAD
    stream = FloatStream(factorization(kind, ticks), 1.0, cells, FloatNoise(3))
    for _ in range(done):
        stream.take(1)
    other = FloatStream.load(factorization(kind, ticks), 1.0, cells, stream.dump())
    for _ in range(TICKS_AHEAD + 3):
        np.testing.assert_array_equal(stream.take(1), other.take(1))


def test_a_state_of_another_width_or_scale_is_refused() -> None:
    dumped = FloatStream(factorization("balanced", 50), 1.0, SLICE_CELLS + 1, FloatNoise(3)).dump()
    with pytest.raises(SnapshotError):
        FloatStream.load(factorization("balanced", 50), 1.0, SLICE_CELLS, dumped)
    with pytest.raises(SnapshotError, match="another size"):
        FloatStream.load(factorization("balanced", 50), 1.5, SLICE_CELLS + 1, dumped)


def test_a_long_run_in_threads_is_the_same_as_short_ones() -> None:
    ticks = 5 * NUMBERS_AT_ONCE + 123  # several parts: normals are drawn in another thread
    threaded = FloatStream(factorization("balanced", ticks), 1.0, 1, FloatNoise(1)).take(ticks)[:, 0]
    plain = FloatStream(factorization("balanced", ticks), 1.0, 1, FloatNoise(1))
    parts = [plain.take(NUMBERS_AT_ONCE // 2 + 77)[:, 0]]
    while plain.tick < ticks:
        parts.append(plain.take(min(NUMBERS_AT_ONCE, ticks - plain.tick))[:, 0])
    np.testing.assert_allclose(np.concatenate(parts), threaded, rtol=0, atol=1e-10 * np.abs(threaded).max())


@pytest.mark.parametrize("cells", [1, SLICE_CELLS + 1])
def test_a_tree_that_draws_more_than_two_normals_a_tick(cells: int) -> None:
    """Where many nodes complete at once, `honaker` draws more than two normals for each tick of a part."""
    ticks = 2**19 if cells == 1 else 300
    whole = FloatStream(factorization("honaker", ticks), 1.0, cells, FloatNoise(1)).take(ticks)
    again = FloatStream(factorization("honaker", ticks), 1.0, cells, FloatNoise(1))
    first = again.take(ticks // 2)
    np.testing.assert_allclose(first, whole[: ticks // 2], rtol=0, atol=1e-9)


def test_an_interrupted_stream_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = FloatStream(factorization("balanced", 100), 1.0, 2 * SLICE_CELLS, FloatNoise(1))
    dumped = stream.dump()

    def stop(self: FloatStream, number: int, *rest: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(FloatStream, "_filter", stop)
        with pytest.raises(KeyboardInterrupt):
            stream.take(1)
    with pytest.raises(EvercountError, match="interrupted"):
        stream.take(1)
    assert FloatStream.load(factorization("balanced", 100), 1.0, 2 * SLICE_CELLS, dumped).take(1).shape == (
        1,
        2 * SLICE_CELLS,
    )
