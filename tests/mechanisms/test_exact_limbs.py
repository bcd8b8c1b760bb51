"""Python integers and limbs are one arithmetic: the same integers in every digit, also at the edge of what fits."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from evercount.errors import SnapshotError
from evercount.factorizations import (
    Balanced,
    BinaryTree,
    Factorization,
    Honaker,
    Identity,
    Normalized,
    Optimal,
    SquareRoot,
    Unbounded,
)
from evercount.factorizations.piecewise_linear import PiecewiseLinear
from evercount.mechanisms.exact import exact_noise as exact
from evercount.mechanisms.exact.exact_noise import ExactStream, make_kernel
from evercount.mechanisms.exact.filter_kernel import SIZE, Dyadics, FilterKernel
from evercount.mechanisms.exact.limbs import (
    BASE,
    WIDTH,
    aligned,
    carry,
    check_capacity,
    convolve,
    fit,
    from_ints,
    pack,
    stack,
    times,
    to_ints,
    unpack,
)
from evercount.noise import ExactNoise, Normals, Secret

SECRET = Secret.from_hex("c3" * 32)
BIG: list[Factorization] = [
    Balanced(2**16), Balanced(10**8), Balanced(2**46), Normalized(2**16), Unbounded(), SquareRoot(2**16),
    Identity(), BinaryTree(2**16), Honaker(2**16),
]  # fmt: skip
SMALL: list[Factorization] = [
    kind(horizon)
    for kind in (Balanced, Normalized, SquareRoot, BinaryTree, Honaker, Optimal)
    for horizon in (1, 2, 31, 32, 33, 200)
]


def name(f: Any) -> str:
    return f"{f.name}-{f.horizon}" if isinstance(f, Factorization) else str(f)


def integers(values: list[list[int]]) -> np.ndarray[Any, Any]:
    out = np.empty((len(values), len(values[0])), dtype=object)
    for row, entries in enumerate(values):
        out[row] = entries
    return out


def size(kernel: Any) -> int:
    """The largest that a buffer may be: 64 deviations."""
    eta = getattr(kernel, "eta", None)
    return int(128 * (eta.largest(2**47) if eta is not None else 1.0) * 2.0**30) << kernel.bits - 30


def compare(kernel: Any, state: np.ndarray[Any, Any], block: int, normals: Normals) -> np.ndarray[Any, Any]:
    """`step` and `wide` on the same block; returns the state after it."""
    y, after = kernel.step(state, block, normals.to_ints())
    limbs = from_ints(state, kernel.limbs).astype(np.int32)
    y_limbs, after_limbs = kernel.wide(limbs, block, normals.limbs(WIDTH))
    assert (to_ints(y_limbs) == y).all()
    assert (to_ints(after_limbs) == after).all()
    return np.asarray(after)


@pytest.mark.parametrize(
    ("f", "bits"), [(f, bits) for f in BIG for bits in (132, 154, 198)] + [(f, 154) for f in SMALL], ids=name
)
def test_every_bit_of_noise_and_state(f: Factorization, bits: int) -> None:
    kernel = make_kernel(f, bits)
    state = np.zeros((kernel.rows, 3), dtype=object)
    last = 4 if f.horizon is None else min(4, -(-f.horizon // SIZE))
    for block in range(last):
        state = compare(kernel, state, block, ExactNoise(SECRET).normals(*kernel.window(block), 3))


@pytest.mark.parametrize("f", BIG, ids=name)
def test_far_out_with_any_state(f: Factorization) -> None:
    kernel = make_kernel(f, 154)
    rng = random.Random(2)
    room = size(kernel)
    for block in (1, 1000, (f.horizon or 2**40) // SIZE - 1):
        state = integers([[rng.randrange(-room, room) for _ in range(3)] for _ in range(kernel.rows)])
        compare(kernel, state, block, ExactNoise(SECRET).normals(*kernel.window(block), 3))


@pytest.mark.parametrize("f", [f for f in BIG if f.name not in ("identity", "binary-tree", "honaker")], ids=name)
@pytest.mark.parametrize("signs", ["plus", "minus", "alternating", "like the response"])
def test_largest_numbers_that_are_allowed(f: Factorization, signs: str) -> None:
    # every normal 64 − 2^−128 in magnitude, buffers at 64 deviations: digits are all ones, sums the largest there are
    kernel = make_kernel(f, 154)
    assert isinstance(kernel, FilterKernel)
    pattern = {"plus": [1] * 32, "minus": [-1] * 32, "alternating": [1, -1] * 16, "like the response": [-1] * 31 + [1]}
    sign = np.asarray(pattern[signs], dtype=np.int8)[:, np.newaxis]
    ones = np.full((SIZE, 1), 2**64 - 1, dtype=np.uint64)
    normals = Normals(sign, np.full((SIZE, 1), 63), ones, ones)
    edge = size(kernel)
    for way in (1, -1):
        state = integers([[way * edge]] * kernel.rows)
        compare(kernel, state, (f.horizon or 2**47) // SIZE - 1, normals)


@pytest.mark.parametrize("f", [f for f in BIG if hasattr(f, "weights") or f.name == "square-root"], ids=name)
@pytest.mark.parametrize("cells", [1, 3])
def test_many_blocks_at_once(f: Factorization, cells: int) -> None:
    kernel = make_kernel(f, 154)
    assert isinstance(kernel, FilterKernel)
    blocks = range(3, 12)
    rng = random.Random(3)
    room = size(kernel)
    state = integers([[rng.randrange(-room, room) for _ in range(cells)] for _ in range(kernel.rows)])
    normals = ExactNoise(SECRET).normals(blocks[0] * SIZE, (blocks[-1] + 1) * SIZE, cells)
    z = normals.limbs(WIDTH).reshape(-1, len(blocks), SIZE, cells).transpose(0, 2, 1, 3)
    y, after = kernel.many(state, blocks, z.reshape(len(z), SIZE, -1))
    got = to_ints(y).reshape(SIZE, len(blocks), cells)
    for number, block in enumerate(blocks):
        want, state = kernel.step(state, block, normals[number * SIZE : (number + 1) * SIZE].to_ints())
        assert (got[:, number] == want).all()
    assert (after == state).all()


@pytest.mark.parametrize("f", [Balanced(2**20), SquareRoot(400), Honaker(400), Optimal(200)], ids=name)
@pytest.mark.parametrize("scale", [2.0**-60, 1e-6, 0.37, 1.0, 3.7, 1e9])
def test_whole_streams(f: Factorization, scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    taken, dumped = [], []
    for wide, several in [(10**9, 10**9), (1, 10**9), (10**9, 1)]:  # integers, limbs, limbs over many blocks
        monkeypatch.setattr(exact, "WIDE", wide)
        monkeypatch.setattr(exact, "SEVERAL", several)
        stream = ExactStream(f, scale, 4, SECRET)
        taken.append(stream.take(175))
        dumped.append(stream.dump())
    assert np.array_equal(taken[0], taken[1])
    assert np.array_equal(taken[0], taken[2])
    assert dumped[0] == dumped[1] == dumped[2]


# -- the pieces -------------------------------------------------------------------------------------------------------


def test_ties_round_upwards(monkeypatch: pytest.MonkeyPatch) -> None:
    # Y = (k + ½)/scale exactly, for both arithmetics
    for wide in (10**9, 1):
        monkeypatch.setattr(exact, "WIDE", wide)
        stream = ExactStream(Identity(), 0.5, 5, SECRET)
        halves = integers([[(2 * k + 1) << stream.kernel.bits for k in (-2, -1, 0, 1, 7)]])
        assert stream._rounded(from_ints(halves, 8)[:, :, :]).tolist() == [[-1, 0, 1, 2, 8]]
        integer = ((halves * (2 * stream._numerator)) + (1 << stream._point)) >> (stream._point + 1)
        assert integer.tolist() == [[-1, 0, 1, 2, 8]]


def test_weights_are_the_exact_interpolation() -> None:
    from fractions import Fraction

    rng = random.Random(4)
    lines = [f.weights.eta for f in BIG if hasattr(f, "weights")] + [f.weights.n for f in BIG if hasattr(f, "weights")]
    wild = PiecewiseLinear(np.asarray([0, 1, 2, 4, 36]), np.asarray([1e-200, 3.1, 1e9 + 2.0**-20, 7.0, 2.0**-70]))
    for weight in [*lines, wild]:
        knots = weight.knots.tolist()
        for start in [0, 5, 32, knots[-1], knots[-1] + 100, *(rng.randrange(knots[-1] + 1) for _ in range(20))]:
            values, h = Dyadics(weight).block(start)
            for offset in (0, 1, 17, 31):
                at = start + offset
                q = int(np.searchsorted(weight.knots, at, side="right")) - 1
                want = Fraction(float(weight.values[q]))
                if q + 1 < len(knots):
                    after = Fraction(float(weight.values[q + 1]))
                    want += (after - want) * Fraction(at - knots[q], knots[q + 1] - knots[q])
                assert Fraction(int(values[offset]), 2**h) == want


def test_bounds_of_weights() -> None:
    f = Balanced(5000)
    n = Dyadics(f.weights.n)
    for ticks in (1, 2, 33, 777, 5000):
        values = f.weights.n.at(0, ticks)
        assert values.max() <= n.largest(ticks) * (1 + 1e-12)
        assert values.sum() <= n.total(ticks) <= values.sum() * 1.1 + values.max()


def test_limb_arithmetic_against_integers() -> None:
    rng = random.Random(5)
    values = integers([[rng.randrange(-(2**150), 2**150) for _ in range(6)] for _ in range(5)])
    limbs = from_ints(values, 8)
    assert limbs[:-1].min() >= 0
    assert limbs[:-1].max() < BASE
    assert (to_ints(limbs) == values).all()
    assert (to_ints(fit(from_ints(values, 9), 8)) == values).all()
    assert (to_ints(carry(limbs * 3.0 - from_ints(values, 8)[::1] * 5.0)) == values * -2).all()
    weight = rng.randrange(2**70)
    for shift in (-9, 0, 1, 22, 57, 100):
        constants, drop = aligned(np.asarray([weight], dtype=object), shift)
        got = to_ints(times(limbs, constants[:, :, np.newaxis], drop, 12))
        want = (values * weight) >> shift if shift >= 0 else (values * weight) << -shift
        assert (got == want).all()
    matrix = [[rng.randrange(-(2**131), 2**131) for _ in range(5)] for _ in range(4)]
    out = np.zeros((14, 4, 6))
    convolve(stack(matrix, 6), limbs, 6, out)
    assert (to_ints(carry(out)) == integers(matrix) @ values).all()


def test_int64_and_integer_weights_have_the_same_digits() -> None:
    rng = random.Random(6)
    values = [rng.randrange(2**61) for _ in range(50)]
    for shift in range(-30, 90, 7):
        a, drop_a = aligned(np.asarray(values, dtype=np.int64), shift)
        b, drop_b = aligned(np.asarray(values, dtype=object), shift)
        assert drop_a == drop_b
        assert np.array_equal(a, b)


def test_capacity_is_checked() -> None:
    check_capacity(np.full((3, 512), float(BASE)))
    with pytest.raises(AssertionError):
        check_capacity(np.full((3, 513), float(BASE)))
    for f in BIG:
        kernel = make_kernel(f, 198)
        if isinstance(kernel, FilterKernel):
            check_capacity(*kernel._tables)


def test_packed_integers() -> None:
    values = integers([[0, -1, 2**200], [-(2**200), 5, 127]])
    packed = pack(values)
    assert (unpack(packed, (2, 3)) == values).all()
    empty = np.empty((0, 3), dtype=object)
    assert unpack(pack(empty), (0, 3)).shape == (0, 3)
    for bad in (None, {}, {**packed, "bytes": 1}, {**packed, "data": "!"}, {**packed, "shape": [3, 2]}):
        with pytest.raises(SnapshotError):
            unpack(bad, (2, 3))


def test_a_number_out_of_room_is_refused() -> None:
    kernel = make_kernel(Balanced(100), 154)
    state = integers([[1 << 22 * kernel.limbs - 3]] * kernel.rows)
    z = ExactNoise(SECRET).normals(0, 32, 1).limbs(WIDTH)
    with pytest.raises(AssertionError, match="64 standard deviations"):
        kernel.wide(from_ints(state, kernel.limbs).astype(np.int32), 0, z)
