"""Doubles decide the rounding of exact noise: their error is below its proved bound, and no number
depends on them."""

from __future__ import annotations

import copy
import hashlib
import os
import random
import subprocess
import sys
from collections.abc import Callable, Collection, Iterable
from fractions import Fraction
from functools import cache
from itertools import product as product_of
from math import ldexp, nextafter
from typing import Any

import numpy as np
import pytest

from evercount.errors import TooLarge
from evercount.factorizations import (
    Balanced,
    BinaryTree,
    Direct,
    Factorization,
    Honaker,
    HonakerFull,
    Normalized,
    Optimal,
    SquareRoot,
    Unbounded,
)
from evercount.factorizations.blend import Blend, BlendFilter
from evercount.factorizations.filter_numbers import PiecewiseLinear
from evercount.mechanisms.exact import exact_noise, filter_kernel
from evercount.mechanisms.exact.arithmetic import kernel
from evercount.mechanisms.exact.exact_noise import ExactStream
from evercount.mechanisms.exact.filter_kernel import FilterKernel
from evercount.mechanisms.exact.filter_numbers import (
    BLOCK_TICKS,
    LONG_BLOCK_TICKS,
    Dyadics,
    check_exact,
    cut,
    of_integers,
    pair,
    product,
    product_error,
    settle,
    two_sum,
    with_sums,
)
from evercount.noise import ExactNoise, Normals, Secret
from soak_cases import soak_except
from wrapped_functions import wrap

pytestmark = pytest.mark.slow

SECRET = Secret.from_hex("c3" * 32)
LONG_MEMORY = BlendFilter((2.0**-17, 2.0**-6, 0.125), (2.0**-7, 1.001953125 * 2.0**-6, 0.875))
"""A slow pole, a zero next to its pole, and a fast one."""
WEIGHTED = BlendFilter(
    LONG_MEMORY.poles,
    LONG_MEMORY.zeros,
    (0.375, 0.125, 0.25, -0.0625, 0.03125, 0.0625, -0.03125, 0.125, 0.03125, -0.0625),
)
Spec = tuple[Callable[..., Factorization], *tuple[Any, ...]]
KERNELS: list[Spec] = [
    (Balanced, 2**16), (Unbounded,), (SquareRoot, 2**16), (Direct, 2**16), (BinaryTree, 2**16),
    (Honaker, 2**16), (HonakerFull, 2**46), (Optimal, 150), (Blend, None, LONG_MEMORY),
]  # fmt: skip
"""One of each way to compute."""
EVERY: list[Spec] = [
    *KERNELS, (Balanced, 10**8), (Balanced, 2**46), (Normalized, 2**16), (HonakerFull, 2**16),
    (Blend, 2**16, LONG_MEMORY), (Blend, 2**16, WEIGHTED),
]  # fmt: skip
SHORT: list[Spec] = [
    (kind, horizon)
    for kind in (
        Balanced,
        Normalized,
        Unbounded,
        SquareRoot,
        Direct,
        BinaryTree,
        Honaker,
        HonakerFull,
        Optimal,
    )
    for horizon in (1, 33, 140)
]
BY_ALL: list[Spec] = [(Balanced, 2**16), (BinaryTree, 2**16), (Optimal, 150)]
"""One filter, one tree and one matrix."""


def soaked(kept: Collection[Spec], specs: Iterable[Spec]) -> list[Any]:
    """As `soak_except`, for one argument: a spec is a tuple itself."""
    return [spec if spec in kept else pytest.param(spec, marks=pytest.mark.soak) for spec in specs]


@cache
def build(spec: Spec) -> Factorization:
    kind, *arguments = spec
    return kind(*arguments)


@pytest.fixture
def f(request: pytest.FixtureRequest) -> Factorization:
    return build(request.param)


def name(spec: Any) -> str:
    if not isinstance(spec, tuple) or isinstance(spec[0], float):
        return str(spec)
    return "-".join([spec[0].name, *map(str, spec[1:2])])


def in_integers(
    f: Factorization, scale: float, cells: int, ticks: int, secret: Secret = SECRET
) -> list[list[int]]:
    """The noise as its definition says: integers from the first tick on, then one rounding, halves
    upwards."""
    made = kernel(f)
    state, rows = np.zeros((made.rows, cells), dtype=object), []
    for start in range(0, ticks, BLOCK_TICKS):
        z = ExactNoise(secret).normals(*made.window(start, start + BLOCK_TICKS), cells)
        y, state = made.step(state, start, z.to_ints())
        rows += y.tolist()
    unit = Fraction(scale) / 2**made.bits
    return [[int((value * unit + Fraction(1, 2)) // 1) for value in row] for row in rows[:ticks]]


def count_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The (first tick, cell) of every call from now on that integers decide."""
    calls = []

    def counted(plain: Any, self: ExactStream, start: int, stop: int, cell: int) -> Any:
        calls.append((start, cell))
        return plain(self, start, stop, cell)

    wrap(monkeypatch, ExactStream, "_in_integers", counted)
    return calls


def count_refined(f: Factorization, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many cells every call from now on has that finer doubles decide."""
    refined: list[int] = []
    advance = type(kernel(f)).advance

    def counted(
        self: Any, state: Any, start: int, size: int, blocks: int, normals: Any, fine: bool = False
    ) -> Any:
        if fine:
            refined.append(state.shape[2])
        return advance(self, state, start, size, blocks, normals, fine)

    monkeypatch.setattr(type(kernel(f)), "advance", counted)
    return refined


# -- the same numbers, whoever decides -------------------------------------------------------------


@pytest.mark.parametrize(
    "f", soaked([spec for spec in SHORT if spec[1] != 33], SHORT), ids=name, indirect=True
)
def test_doubles_give_the_numbers_of_integers(f: Factorization) -> None:
    ticks = f.horizon or 140
    for scale, cells in [(3.7, 2), (0.02, 30), (1e5, 3)]:
        assert ExactStream(f, scale, cells, SECRET).take(ticks).tolist() == in_integers(
            f, scale, cells, ticks
        )


CLOSE = [(26, (0.5, 0.0)), (3, (0.005, 0.5)), (3, (0.5, 0.005)), (26, (0.5, 0.005))]


@pytest.mark.parametrize(
    ("f", "cells", "doubts"),
    soak_except(
        [(spec, *close) for spec in KERNELS for close in (CLOSE if spec in BY_ALL else CLOSE[1:2])],
        [(spec, *close) for spec in KERNELS for close in CLOSE],
    ),
    ids=name,
    indirect=["f"],
)
def test_close_calls_give_the_same_numbers(
    f: Factorization, cells: int, doubts: tuple[float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    # doubles decide, then finer doubles, then integers from the first draw on: all, some, none
    ticks = 100
    plain = ExactStream(f, 12.0, cells, SECRET).take(ticks)
    refined = count_refined(f, monkeypatch)
    calls = count_calls(monkeypatch)
    monkeypatch.setattr(ExactStream, "_doubt", doubts)
    stream = ExactStream(f, 12.0, cells, SECRET)
    assert np.array_equal(stream.take(ticks), plain)
    size, blocks = stream.shape(ticks)
    columns = cells * -(-ticks // (size * min(blocks, -(-stream.limit // size))))
    assert sum(refined) == columns if doubts[0] == 0.5 else 0 < sum(refined) <= columns
    if doubts[1] == 0.005:
        assert 0 < len(calls) <= columns
    else:
        assert len(calls) == (sum(refined) if doubts[1] else 0)


def test_one_number_in_a_hundred_is_close(monkeypatch: pytest.MonkeyPatch) -> None:
    f, cells = Balanced(2**16), 600
    plain = ExactStream(f, 12.0, cells, SECRET).take(BLOCK_TICKS)
    calls = count_calls(monkeypatch)
    # 1 % of all numbers are this close to a half
    monkeypatch.setattr(ExactStream, "_doubt", (0.005, 0.005))
    assert np.array_equal(ExactStream(f, 12.0, cells, SECRET).take(BLOCK_TICKS), plain)
    # 1 − 0.99^64 = 0.474 of the cells have such a number in a block
    assert 0.38 < len(calls) / cells < 0.57


@pytest.mark.parametrize(
    "f",
    [
        (Balanced, 2**16),
        (SquareRoot, 2**16),
        (Direct, 2**16),
        (Honaker, 2**16),
        (HonakerFull, 2**16),
        (Optimal, 70),
    ],
    ids=name,
    indirect=True,
)
def test_fine_grids(f: Factorization, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_calls(monkeypatch)
    # doubles alone could not decide, nor finer ones at the last
    for scale in (1e7, 1e9, 1e12, 2.0**45):
        for cells in (2, 30):
            got = ExactStream(f, scale, cells, SECRET, limit=70).take(70)
            assert got.tolist() == in_integers(f, scale, cells, 70)
        assert len(calls) < 8 or f.name == "optimal" or scale > 1e12


@pytest.mark.parametrize("f", soaked(KERNELS, EVERY), ids=name, indirect=True)
def test_numbers_at_half_integers(f: Factorization, monkeypatch: pytest.MonkeyPatch) -> None:
    # scales that put one number as close to a half as doubles can, on either side
    made = kernel(f)
    state, exact = np.zeros((made.rows, 1), dtype=object), []
    for start in range(0, 3 * BLOCK_TICKS, BLOCK_TICKS):
        z = ExactNoise(SECRET).normals(*made.window(start, start + BLOCK_TICKS), 1)
        y, state = made.step(state, start, z.to_ints())
        exact += y[:, 0].tolist()
    refined = count_refined(f, monkeypatch)
    for tick in (3, 40, 90):
        value = Fraction(abs(exact[tick]), 2**made.bits)
        half = 37 + Fraction(1, 2)
        for scale in (
            float(half / value),
            nextafter(float(half / value), 0),
            nextafter(float(half / value), 1e9),
        ):
            refined.clear()
            got = ExactStream(f, scale, 1, SECRET).take(96)[:, 0]
            assert refined
            want = [int((Fraction(scale) * y / 2**made.bits + Fraction(1, 2)) // 1) for y in exact]
            assert got.tolist() == want


class Given:
    """A source of noise whose numbers are given, the same for all cells."""

    def __init__(self, numbers: list[Fraction]) -> None:
        self.numbers = numbers

    def normals(self, start: int, stop: int, cells: int, first_cell: int = 0) -> Normals:
        some = self.numbers[start:stop]
        units = [int(abs(number) * 2**128) for number in some]

        def column(numbers: Any, kind: Any) -> Any:
            return np.repeat(np.asarray(list(numbers), dtype=kind)[:, np.newaxis], cells, axis=1)

        return Normals(
            column((1 if number >= 0 else -1 for number in some), np.int8),
            column((unit >> 128 for unit in units), np.int64),
            column((unit >> 64 & 2**64 - 1 for unit in units), np.uint64),
            column((unit & 2**64 - 1 for unit in units), np.uint64),
        )


@pytest.mark.parametrize("cells", [1, 30])
def test_ties_round_upwards(cells: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        exact_noise,
        "ExactNoise",
        lambda secret, names: Given([Fraction(t % 60) for t in range(1024)]),
    )
    for scale in (0.5, 2.5):
        got = ExactStream(Direct(70), scale, cells, SECRET).take(70)
        want = [int((Fraction(scale) * (t % 60) + Fraction(1, 2)) // 1) for t in range(70)]
        assert all(column == want for column in got.T.tolist())


def test_a_close_call_far_into_a_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    f = Balanced(2**16)
    plain = ExactStream(f, 12.0, 1, SECRET)
    whole = plain.take(3000)
    monkeypatch.setattr(ExactStream, "_doubt", (0.02, 0.002))
    calls = count_calls(monkeypatch)
    stream = ExactStream(f, 12.0, 1, SECRET)
    assert np.array_equal(np.concatenate([stream.take(100) for _ in range(30)]), whole)
    assert len({start for start, _ in calls}) > 1


CORE = """
import hashlib, numpy as np
from evercount.factorizations import Balanced, Unbounded
from evercount.mechanisms.exact.arithmetic import kernel
from evercount.mechanisms.exact.exact_noise import ExactStream
from evercount.noise import ExactNoise, Secret
secret = Secret.from_hex("c3" * 32)
for f, cells in ((Balanced(2**16), 1), (Balanced(2**16), 100), (Unbounded(), 40)):
    noise = ExactStream(f, 12.0, cells, secret).take(640)
    size = 32 if cells > 1 else 64
    z = ExactNoise(secret).normals(0, size, cells)
    doubles = kernel(f).advance(np.zeros((2, kernel(f).rows, cells)), 0, size, 1, z)[0]
    print(hashlib.sha256(noise.tobytes()).hexdigest(), hashlib.sha256(doubles.tobytes()).hexdigest())
"""  # noqa: E501


def test_another_matrix_library_gives_the_same_numbers() -> None:
    outputs = []
    # OpenBLAS adds up in another order, with and without fused operations
    for core in ("Haswell", "Nehalem"):
        environment = {**os.environ, "OPENBLAS_CORETYPE": core, "OPENBLAS_NUM_THREADS": "1"}
        found = subprocess.run(
            [sys.executable, "-c", CORE],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.append([line.split() for line in found.stdout.splitlines()])
    ours, theirs = outputs
    assert [line[0] for line in ours] == [line[0] for line in theirs]
    if [line[1] for line in ours] == [line[1] for line in theirs]:
        pytest.skip(
            "this installation has one matrix product for all processors: nothing is compared"
        )


# -- the bounds ------------------------------------------------------------------------------------


def errors(f: Factorization, made: Any, cells: int, calls: int) -> list[tuple[float, ...]]:
    """(error and bound of the doubles, error and bound of the finer doubles) of every call."""
    exact = kernel(f)
    truth = np.zeros((exact.rows, cells), dtype=object)
    state, start, out = np.zeros((2, exact.rows, cells)), 0, []
    own, unit = 2 * exact.error(10**5) * 2.0**-exact.bits, Fraction(1, 2**exact.bits)
    for _ in range(calls):
        size, blocks = ExactStream(f, 1.0, cells, SECRET).shape(1)
        if f.horizon is not None:
            blocks = min(blocks, -(-(f.horizon - start) // size))
        normals = ExactNoise(SECRET).normals(*exact.window(start, start + size * blocks), cells)
        (noise,), bound, after = made.advance(state, start, size, blocks, normals)
        finely, small, _ = made.advance(state, start, size, blocks, normals, fine=True)
        wanted = []
        for tick in range(start, start + size * blocks, BLOCK_TICKS):
            z = ExactNoise(SECRET).normals(*exact.window(tick, tick + BLOCK_TICKS), cells)
            y, truth = exact.step(truth, tick, z.to_ints())
            wanted += y.tolist()
        first, second = (
            float(
                max(
                    abs(sum(map(Fraction, found[:, row, cell].tolist())) - value * unit)
                    for row, line in enumerate(wanted)
                    for cell, value in enumerate(line)
                )
            )
            for found in (noise[np.newaxis], finely)
        )
        last = float(np.abs(noise).max()) * 2.0**-52  # of a double; a pair has none
        out.append(
            (first, bound + own + last, second, small + own + (last if len(finely) == 1 else 0.0))
        )
        state, start = after, start + size * blocks
        # what a dump and a load do
        state[1, : made.narrow] = state[1, : made.narrow].astype(np.float32)
        if f.horizon is not None and start >= f.horizon:
            break
    return out


def below(found: list[tuple[float, ...]]) -> bool:
    """Whether every measured error is below its bound."""
    return all(
        error <= bound for call in found for error, bound in zip(call[::2], call[1::2], strict=True)
    )


@pytest.mark.parametrize(
    ("f", "cells"),
    soak_except(
        [*((spec, 1) for spec in EVERY), *((spec, 24) for spec in BY_ALL)],
        product_of(EVERY, [1, 24]),
    ),
    ids=name,
    indirect=["f"],
)
def test_error_is_below_its_bound(f: Factorization, cells: int) -> None:
    found = errors(f, kernel(f), cells, 3)
    assert below(found)
    assert any(first > 0 for first, *_ in found)
    # and the bounds are of use: at a scale of 12, one call in a million is close at the most
    assert all(
        bound < 4e-8 and (small < 1e-14 or f.name == "optimal") for _, bound, _, small in found
    )


@pytest.mark.parametrize(
    "f",
    soaked([(Balanced, 2**20)], [(Balanced, 2**20), (Unbounded,), (SquareRoot, 2**20)]),
    ids=name,
    indirect=True,
)
def test_error_over_many_ticks(f: Factorization) -> None:
    assert below(errors(f, kernel(f), 1, 16))


def test_bounds_far_into_a_stream() -> None:
    for f, ticks, most in [
        (Balanced(2**16), 2**16, 1.2e-15),
        (Balanced(10**8), 10**8, 2e-13),
        (Unbounded(), 10**8, 2e-13),
    ]:
        for size, factor in ((BLOCK_TICKS, 1), (LONG_BLOCK_TICKS, 3)):
            made = kernel(f)
            assert isinstance(made, FilterKernel)
            drifts = [made.drift(tick, size) for tick in (0, ticks // 1000, ticks // 2, ticks - 32)]
            assert drifts == sorted(drifts)
            # at a scale of 12, one number in 1/(24·drift) is computed from its first draw on:
            # `ticks` times 10 µs
            assert drifts[-1] < most * factor


def cut_bits(array: Any, bits: int) -> Any:
    """Doubles with so many bits of their own cut off."""
    mantissa, exponent = np.frexp(array)
    return np.ldexp(np.trunc(np.ldexp(mantissa, 53 - bits)), exponent - 53 + bits)


def without_third(slices: Any) -> Any:
    """Slices whose bits below 2^−40 are lost."""
    return with_sums(np.concatenate([slices[:2], 0 * slices[2:]]))


PLACES = ["draws", "tables", "state"]


@pytest.mark.parametrize(
    ("f", "where", "cells"),
    soak_except(
        [((Balanced, 2**16), where, 1) for where in PLACES] + [((Unbounded,), "state", 24)],
        product_of([(Balanced, 2**16), (Unbounded,), (SquareRoot, 2**16)], PLACES, [1, 24]),
    ),
    ids=name,
    indirect=["f"],
)
def test_planted_loss_of_what_is_carried_is_caught(
    f: Factorization, where: str, cells: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: Any = copy.copy(kernel(f))
    if where == "draws":  # the bits of normals below 2^−40
        plain = Normals.slices
        monkeypatch.setattr(Normals, "slices", lambda z: (*plain(z)[:2], np.zeros(z.shape)))
    elif where == "tables":
        tables = filter_kernel.tables

        def lossy_tables(*arguments: Any) -> Any:
            table = tables(*arguments)
            return table._replace(
                feed=without_third(table.feed), output=without_third(table.output)
            )

        monkeypatch.setattr(filter_kernel, "tables", lossy_tables)
        made._public = made._public_numbers  # none of the tables that lost nothing
    else:  # the low part of the state
        advance = made.advance

        def lossy(state: Any, *rest: Any, **more: Any) -> Any:
            noise, bound, after = advance(state, *rest, **more)
            return noise, bound, np.stack([after[0], np.zeros_like(after[1])])

        made.advance = lossy
    assert any(error > bound for *_, error, bound in errors(f, made, cells, 4))


@pytest.mark.parametrize("f", soaked(BY_ALL, EVERY), ids=name, indirect=True)
def test_planted_loss_of_what_is_read_off_is_caught(
    f: Factorization, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: Any = copy.copy(kernel(f))
    advance = made.advance

    def lossy(*arguments: Any, **more: Any) -> Any:
        noise, bound, after = advance(*arguments, **more)
        return cut_bits(noise, 26), bound, after

    made.advance = lossy
    for first, bound, second, small in errors(f, made, 24, 2):
        assert first > bound
        assert second > small


@pytest.mark.parametrize("f", [(Honaker, 2**16), (HonakerFull, 2**16)], ids=name, indirect=True)
def test_planted_loss_of_weights_in_a_tree_is_caught(f: Factorization) -> None:
    made: Any = copy.copy(kernel(f))
    made.slices = without_third(made.slices)
    assert any(error > bound for *_, error, bound in errors(f, made, 1, 2))


@pytest.mark.parametrize(
    "f", [(BinaryTree, 2**16), (Honaker, 2**16), (HonakerFull, 2**16)], ids=name, indirect=True
)
@pytest.mark.parametrize("where", ["draws", "state"])
def test_planted_loss_in_a_tree_is_caught(
    f: Factorization, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is lost lies below 2^−40: of the normals, or of what is kept."""
    made: Any = copy.copy(kernel(f))
    if where == "draws":
        plain = Normals.slices
        monkeypatch.setattr(Normals, "slices", lambda z: (*plain(z)[:2], np.zeros(z.shape)))
    else:
        sums = made._sums

        def lossy(state: Any, *rest: Any) -> Any:
            noise, after = sums(state, *rest)
            return noise, after.real + 0j

        made._sums = lossy
    assert any(error > bound for *_, error, bound in errors(f, made, 1, 2))
    monkeypatch.undo()
    assert below(errors(f, copy.copy(kernel(f)), 1, 2))


# -- the pieces ------------------------------------------------------------------------------------


def rationals(v: Any) -> list[Fraction]:
    return [sum(Fraction(float(part)) for part in parts) for parts in v[:3].reshape(3, -1).T]  # type: ignore[misc]


def wide(rng: random.Random, count: int, top: float) -> np.ndarray[Any, Any]:
    """Random integers with 256 fractional bits."""
    out = np.empty(count, dtype=object)
    out[:] = [
        rng.randrange(-int(top * 2**40) << 216, int(top * 2**40) << 216) for _ in range(count)
    ]
    return out


@pytest.mark.parametrize("unit", [1.0, 2.0**-13, 2.0**9])
def test_products_of_slices(unit: float) -> None:
    rng = random.Random(8)
    for terms, top in [(1, 64.0), (42, 64.0), (60, 130.0)]:
        a, b = wide(rng, terms, 1.0), wide(rng, terms, top)
        one, two = of_integers(a, 256), of_integers(b, 256)
        # at the edge: every number as large as it may be
        for x, y, va in (
            (one, two, a),
            (of_integers(abs(a) * 0 + (1 << 256) - 1, 256), two, abs(a) * 0 + (1 << 256) - 1),
        ):
            check_exact(x[:, np.newaxis], np.full(terms, top))
            v = y * unit
            parts = product(x, v, lambda p, q: np.asarray([p @ q]))
            want = sum(
                Fraction(int(p), 2**256) * Fraction(int(q), 2**256)
                for p, q in zip(va, b, strict=True)
            )
            want *= Fraction(unit)
            bound = Fraction(product_error(terms, float(np.abs(x[4]).sum()) * 1.001, top) * unit)
            # what `of_integers` rounded in the other factor
            bound += terms * Fraction(top * unit) / 2**93
            total = sum(Fraction(float(part[0])) for part in parts)
            assert abs(total - want) <= bound
            both = pair(tuple(part.copy() for part in parts))  # type: ignore[arg-type]
            settled = settle(parts, unit)
            assert abs(rationals(settled)[0] - want) <= bound + Fraction(unit) / 2**80
            assert (
                abs(sum(Fraction(float(p)) for p in both[:, 0]) - want)
                <= bound + Fraction(unit) / 2**80
            )
            for part, bits in ((settled[0], 20), (settled[1], 40)):
                steps = ldexp(float(part[0]) / unit, bits)
                assert steps == round(steps)
            assert abs(settled[1, 0]) <= unit * 2.0**-20
            assert abs(settled[2, 0]) <= unit * 2.0**-40


def test_cut_and_two_sum_lose_nothing() -> None:
    rng = np.random.default_rng(3)
    high = rng.normal(size=200) * 10.0 ** rng.integers(-12, 2, 200)
    low = high * rng.normal(size=200) * 2.0**-54
    for number, parts in zip(
        zip(high, low, strict=True), rationals(cut(high, low, 1.0)), strict=True
    ):
        assert abs(sum(map(Fraction, map(float, number))) - parts) <= Fraction(1, 2**94)  # type: ignore[arg-type]
    a, b = rng.permutation(high), high
    total, lost = two_sum(a, b)
    for p, q, r, s in zip(a, b, total, lost, strict=True):
        assert Fraction(float(p)) + Fraction(float(q)) == Fraction(float(r)) + Fraction(float(s))


def rounded_wrongly(rng: random.Random, shift: int) -> tuple[int, int]:
    """(pairs that are surely rounded wrongly, pairs that are not sure) of 6,000 pairs that are
    given exactly.

    Low parts are at most 2^−shift of the largest number.
    """
    wrong = unsure = 0
    for _ in range(60):
        scale = rng.uniform(1, 2) * 2.0 ** rng.randint(-60, 45)
        high, low = np.empty(100), np.empty(100)
        top = 2.0 ** rng.randint(0, 51)  # of the noise in grid units
        for k in range(100):
            value = Fraction(rng.uniform(-top, top)) / Fraction(scale)
            if k % 2:  # near a half, by what the last bits of a pair can tell, or less
                halves = Fraction(rng.randint(-int(top), int(top)) * 2 + 1, 2)
                value = (
                    halves + Fraction(rng.choice([-1, 1]) * 2.0 ** -rng.randint(20, 60))
                ) / Fraction(scale)
            high[k] = float(value - Fraction(rng.uniform(-top, top)) / Fraction(scale) / 2**shift)
            low[k] = float(value - Fraction(high[k]))
        stream = ExactStream(Direct(1), scale, 1, SECRET)
        (rounded,), (close,) = stream._finely(np.stack([high, low])[:, np.newaxis], 0.0)
        exact = [
            (Fraction(h) + Fraction(v)) * Fraction(scale)
            for h, v in zip(high.tolist(), low.tolist(), strict=True)
        ]
        right = [
            (value + Fraction(1, 2)) // 1 == found
            for value, found in zip(exact, rounded.tolist(), strict=True)
        ]
        wrong += sum(
            not good
            for good, unsure_one in zip(right, close.tolist(), strict=True)
            if not unsure_one
        )
        unsure += int(close.sum())
    return wrong, unsure


@pytest.mark.parametrize("shift", soak_except([60, 6], [60, 40, 20, 6]))
def test_rounding_of_pairs_is_right_where_it_is_sure(
    shift: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong, unsure = rounded_wrongly(random.Random(5), shift)
    assert wrong == 0
    assert 0 < unsure < 2000  # only of those that were put within 2^−50 or so of a half
    plain = exact_noise.product
    monkeypatch.setattr(exact_noise, "product", lambda *of: (*plain(*of)[:2], 0.0))
    assert rounded_wrongly(random.Random(5), shift)[0] > 0, "a planted loss of bits is caught"


def test_numbers_that_doubles_cannot_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Near 2^53 plain doubles are off by some units: a number beyond it that they see below it is
    refused, too."""
    scale, refused = 2.0**46, 0
    for less in (*range(8), 10_000, 100_000):
        numbers = [Fraction(int(Fraction(49, 100) * 2**82), 2**128)] * 64
        numbers[3], numbers[5], numbers[6] = (
            Fraction(48),
            Fraction(48),
            Fraction(32) - Fraction(less, 2**46),
        )
        totals = [Fraction(0)]
        for tick, number in enumerate(numbers, 1):
            totals.append(totals[tick & tick - 1] + number)  # the nodes of a prefix
        wanted = [(total * Fraction(scale) + Fraction(1, 2)) // 1 for total in totals[1:]]
        monkeypatch.setattr(
            exact_noise, "ExactNoise", lambda secret, names, given=numbers: Given(given)
        )
        try:
            got = ExactStream(BinaryTree(64), scale, 1, SECRET).take(64)[:, 0]
        except TooLarge:
            refused += 1
        else:
            assert [int(number) for number in got] == wanted
            assert max(wanted) < 2**53
    assert refused == 8


def test_capacity_is_checked() -> None:
    def row(first: float, second: float) -> Any:
        return np.stack([np.full((1, 64), first), np.full((1, 64), second), *np.zeros((3, 1, 64))])

    check_exact(row(1.0, 2.0**-21), np.full(64, 127.0))
    for bad, tops in ((row(1.0, 0.0), 129.0), (row(0.1, 3 * 2.0**-20), 65.0)):
        with pytest.raises(AssertionError, match="2\\^53"):
            check_exact(bad, np.full(64, tops))


def test_weights_are_the_exact_interpolation() -> None:
    rng = random.Random(4)
    weighted = [f.weights for f in map(build, EVERY) if hasattr(f, "weights")]
    lines = [weights.eta for weights in weighted] + [weights.n for weights in weighted]
    wild = PiecewiseLinear(
        np.asarray([0, 1, 2, 4, 36]), np.asarray([1e-200, 3.1, 1e9 + 2.0**-20, 7.0, 2.0**-70])
    )
    for weight in [*lines, wild]:
        knots = weight.knots.tolist()
        for start in [
            0,
            5,
            32,
            knots[-1],
            knots[-1] + 100,
            *(rng.randrange(knots[-1] + 1) for _ in range(20)),
        ]:
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


def test_blocks_of_both_lengths_make_the_same_state() -> None:
    f = Balanced(2**16)
    made: Any = kernel(f)
    normals = ExactNoise(SECRET).normals(0, 2 * LONG_BLOCK_TICKS, 1)
    zero = np.zeros((2, kernel(f).rows, 1))
    (long,), _, one = made.advance(zero, 0, LONG_BLOCK_TICKS, 2, normals)
    state, rows = zero, []
    for start in range(0, 2 * LONG_BLOCK_TICKS, BLOCK_TICKS):
        (noise,), _, state = made.advance(
            state, start, BLOCK_TICKS, 1, normals[start : start + BLOCK_TICKS]
        )
        rows.append(noise)
    assert np.abs(long - np.concatenate(rows)).max() < 1e-13
    assert np.abs(one.sum(axis=0) - state.sum(axis=0)).max() < 1e-15
    assert hashlib.sha256(one.tobytes()).digest() != hashlib.sha256(state.tobytes()).digest()


@pytest.mark.parametrize("horizon", soak_except([4100, 4300], [4100, 4196, 4300, 4500]))
def test_horizons_whose_sums_over_many_blocks_would_not_be_exact(horizon: int) -> None:
    """There fewer blocks are carried at a time; the numbers are those of any other split."""
    engine = SquareRoot(horizon)
    at_once = ExactStream(engine, 7.5, 1, SECRET).take(horizon)
    pieces = ExactStream(engine, 7.5, 1, SECRET)
    parts = [pieces.take(size) for size in (1, 40, 700, horizon - 741)]
    assert np.concatenate(parts).tolist() == at_once.tolist()
