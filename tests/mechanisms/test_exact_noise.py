"""Exact noise as a stream: one number per (secret, tick, cell), whatever the calls, the cells or
the restarts."""

from __future__ import annotations

import sys
from fractions import Fraction
from itertools import pairwise
from math import floor, isqrt, lcm
from operator import mul
from typing import Any

import numpy as np
import pytest

from evercount.engine.snapshot_format import pack, unpack
from evercount.errors import HorizonReached, ParameterError, PrecisionReached, SnapshotError
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
from evercount.factorizations.filter_numbers import PiecewiseLinear
from evercount.factorizations.laplace_trees import DigitTree
from evercount.factorizations.row_weighted import Weighted
from evercount.mechanisms.exact import exact_noise
from evercount.mechanisms.exact.arithmetic import numeric_horizon
from evercount.mechanisms.exact.exact_noise import ExactStream
from evercount.noise import ExactNoise, Secret

SECRET = Secret.from_hex("5a" * 32)
SCALE = 3.7
WIDE = 24  # from this many cells on, blocks are shorter
KINDS: list[type[Any]] = [
    Balanced,
    Normalized,
    Unbounded,
    SquareRoot,
    Direct,
    BinaryTree,
    Honaker,
    HonakerFull,
    Optimal,
]
HORIZONS = [1, 32, 33, 70]


def every(horizon: int = 70) -> list[Factorization]:
    return [kind(horizon) for kind in KINDS]


def name(value: Any) -> str:
    return f"{value.name}-{value.horizon}"


# -- an independent exact reference ----------------------------------------------------------------


def series(tops: Any, roots: Any, count: int) -> list[Fraction]:
    """Coefficients of Π(1−top z)/Π(1−root z) by multiplying out and long division."""

    def expand(lacks: Any) -> list[Fraction]:
        polynomial = [Fraction(1)]
        for lack in lacks:
            value = 1 - Fraction(float(lack))
            shifted = [Fraction(0), *(-value * c for c in polynomial)]
            polynomial = [a + b for a, b in zip([*polynomial, Fraction(0)], shifted, strict=True)]
        return polynomial

    above, below = expand(tops), expand(roots)
    out: list[Fraction] = []
    for k in range(count):
        value = above[k] if k < len(above) else Fraction(0)
        value -= sum(below[i] * out[k - i] for i in range(1, min(k, len(below) - 1) + 1))
        out.append(value)
    return out


def line(weight: PiecewiseLinear, tick: int) -> Fraction:
    """The exact linear interpolation."""
    pairs = pairwise(zip(weight.knots.tolist(), weight.values.tolist(), strict=True))
    for (a, u), (b, v) in pairs:
        if a <= tick < b:
            return Fraction(u) + (Fraction(v) - Fraction(u)) * Fraction(tick - a, b - a)
    return Fraction(float(weight.values[-1]))


def whole(values: list[Fraction]) -> tuple[list[int], int]:
    """The same numbers over one denominator."""
    denominator = lcm(*(value.denominator for value in values))
    return [value.numerator * (denominator // value.denominator) for value in values], denominator


def honaker_full(height: int, ticks: int, nodes: int) -> list[list[Fraction]]:
    """L of `honaker-full` tick by tick, with roots to 2^−500: the mean of a node's ends and a fresh
    normal."""

    def unit(draw: int, square: Fraction) -> list[Fraction]:
        root = Fraction(isqrt(square.numerator * 4**500 // square.denominator), 2**500)
        return [root if j == draw else Fraction(0) for j in range(nodes)]

    v = [Fraction(2**h, 2 ** (h + 1) - 1) for h in range(height + 1)]
    at = {0: unit(-1, v[0]), 2**height: unit(0, v[height])}
    draw = 1
    for begin in range(ticks):
        for h in range(height, 0, -1):
            if begin % 2**h == 0:
                middle, fresh = begin + 2 ** (h - 1), unit(draw, v[h - 1] / 2)
                ends = zip(at[begin], at[begin + 2**h], fresh, strict=True)
                at[middle], draw = [(a + b) / 2 + c for a, b, c in ends], draw + 1
    assert draw == nodes
    return [at[t] for t in range(1, ticks + 1)]


def exact_left(f: Factorization, ticks: int) -> tuple[list[list[int]], int]:
    """(numerators, denominator) of L, exactly and straight from the definitions."""
    zero = Fraction(0)
    if isinstance(f, Weighted):
        g, below = whole(series(f.weights.filter.pole_lack, f.weights.filter.zero_lack, ticks))
        eta, below_eta = whole([line(f.weights.eta, t) for t in range(ticks)])
        n, below_n = whole([line(f.weights.n, t) for t in range(ticks)])
        sums = [[0] * ticks]
        for t in range(ticks):
            sums.append(
                [sums[-1][j] + (n[t] * g[t - j] * eta[j] if j <= t else 0) for j in range(ticks)]
            )
        return sums[1:], below * below_eta * below_n
    if isinstance(f, SquareRoot):
        h, below = whole(series(f.filter.zero_lack, f.filter.pole_lack, ticks))
        return [[h[t - j] if j <= t else 0 for j in range(ticks)] for t in range(ticks)], below
    if isinstance(f, Direct | BinaryTree | Optimal):
        entries, below = whole([Fraction(float(v)) for v in f.dense(ticks)[0].ravel()])
        return [entries[t * ticks : (t + 1) * ticks] for t in range(ticks)], below
    nodes = f.draws(0, ticks)
    if isinstance(f, HonakerFull):
        entries, below = whole(
            [value for row in honaker_full(f.height, ticks, nodes) for value in row]
        )
        return [entries[t * nodes : (t + 1) * nodes] for t in range(ticks)], below
    assert isinstance(f, Honaker)
    rows: list[list[Fraction]] = []
    newest: dict[tuple[int, int], list[Fraction]] = {}
    index = 0
    for t in range(1, ticks + 1):
        for level in range((t & -t).bit_length()):
            v = Fraction(2**level, 2 ** (level + 1) - 1)
            own = [zero] * nodes
            own[index] = v
            if level:
                left, right = newest[level - 1, t - 2 ** (level - 1)], newest[level - 1, t]
                own = [a + (1 - v) * (b + c) for a, b, c in zip(own, left, right, strict=True)]
            newest[level, t] = own
            index += 1
        low = t & -t
        chain = rows[t - low - 1] if t > low else [zero] * nodes
        rows.append([a + b for a, b in zip(chain, newest[low.bit_length() - 1, t], strict=True)])
    entries, below = whole([value for row in rows for value in row])
    return [entries[t * nodes : (t + 1) * nodes] for t in range(ticks)], below


@pytest.mark.parametrize("kind", KINDS, ids=lambda k: k.name)
@pytest.mark.parametrize("horizon", HORIZONS)
def test_equals_exact_rational_evaluation(kind: type[Any], horizon: int) -> None:
    f = kind(horizon)
    cells = 2
    z = ExactNoise(SECRET).normals(0, f.draws(0, horizon), cells).to_ints()
    left, below = exact_left(f, horizon)
    unit = Fraction(SCALE) / below / 2**128
    want = [
        [
            floor(unit * sum(map(mul, row, z[:, cell].tolist())) + Fraction(1, 2))
            for cell in range(cells)
        ]
        for row in left
    ]
    got = ExactStream(f, SCALE, cells, SECRET).take(horizon)
    assert got.dtype == np.int64
    assert got.tolist() == want


@pytest.mark.parametrize("f", every(), ids=name)
def test_agrees_with_the_float_path(f: Factorization) -> None:
    cells, fine = 3, 2.0**35  # so fine a grid that rounding is below 1e-10
    z = ExactNoise(SECRET).normals(0, f.draws(0, 70), cells).to_float()
    floats, _ = f.block(f.initial(cells), z, 70)
    got = ExactStream(f, fine, cells, SECRET).take(70) / fine
    assert np.abs(got - floats).max() < 1e-9
    assert np.abs(got - floats).max() > 0


# -- one noise, however it is taken ----------------------------------------------------------------


@pytest.mark.parametrize("f", every(), ids=name)
@pytest.mark.parametrize("cells", [1, 3, WIDE + 2])
def test_any_split_and_restore_at_any_tick(f: Factorization, cells: int) -> None:
    whole = ExactStream(f, SCALE, cells, SECRET, first_cell=5).take(70)
    rng = np.random.default_rng(1)
    for _ in range(3):
        stream, rows = ExactStream(f, SCALE, cells, SECRET, first_cell=5), []
        while stream.tick < 70:
            count = min(int(rng.choice([0, 1, 1, 2, 31, 32, 33, 40])), 70 - stream.tick)
            rows.append(stream.take(count))
            dumped = pack(stream.dump())
            stream = ExactStream.load(f, SCALE, cells, unpack(dumped))
            assert pack(stream.dump()) == dumped
        assert np.array_equal(np.concatenate(rows), whole)


@pytest.mark.parametrize(
    "f", [Balanced(100), Unbounded(), Honaker(100), HonakerFull(100), Optimal(100)], ids=name
)
def test_restore_at_every_tick(f: Factorization) -> None:
    whole = ExactStream(f, SCALE, 2, SECRET).take(100)
    stream = ExactStream(f, SCALE, 2, SECRET)
    for tick in range(100):
        again = ExactStream.load(f, SCALE, 2, stream.dump())
        assert again.tick == tick
        assert np.array_equal(again.take(100 - tick), whole[tick:])
        assert np.array_equal(stream.take(1), whole[tick : tick + 1])


def test_long_runs_of_few_cells_equal_single_steps() -> None:
    f = Balanced(5000)
    whole = ExactStream(f, SCALE, 2, SECRET).take(5000)  # many blocks at once
    stream = ExactStream(f, SCALE, 2, SECRET)
    assert np.array_equal(np.concatenate([stream.take(1) for _ in range(5000)]), whole)
    again = ExactStream(f, SCALE, 2, SECRET)
    again.take(4321)
    assert again.tick == 4321
    assert np.array_equal(again.take(679), whole[4321:])


@pytest.mark.parametrize("f", every(), ids=name)
def test_subset_of_cells(f: Factorization) -> None:
    cells = 2 * WIDE
    whole = ExactStream(f, SCALE, cells, SECRET).take(70)
    for first, count in [(0, 1), (7, 3), (20, WIDE), (cells - 1, 1)]:
        part = ExactStream(f, SCALE, count, SECRET, first_cell=first).take(70)
        assert np.array_equal(part, whole[:, first : first + count])


def test_two_processes_with_one_snapshot_make_the_same_noise() -> None:
    f = Balanced(200)
    stream = ExactStream(f, SCALE, 4, SECRET)
    stream.take(45)
    dumped = stream.dump()
    one, two = (ExactStream.load(f, SCALE, 4, dumped) for _ in range(2))
    assert np.array_equal(one.take(100), np.concatenate([two.take(1) for _ in range(100)]))


def test_other_secret_cell_or_tick_is_other_noise() -> None:
    f = Direct(2000)
    one = ExactStream(f, 50.0, 2, SECRET).take(2000)
    two = ExactStream(f, 50.0, 2, Secret.from_hex("5b" * 32)).take(2000)
    steps = np.concatenate([one, two], axis=1)
    correlation = np.corrcoef(steps.T)
    assert np.abs(correlation - np.eye(4)).max() < 0.12  # 5 deviations of 1/√2000
    assert np.abs(np.corrcoef(steps[1:, 0], steps[:-1, 0])[0, 1]) < 0.12


# -- refusals --------------------------------------------------------------------------------------


def test_past_the_horizon() -> None:
    stream = ExactStream(Balanced(40), SCALE, 1, SECRET)
    stream.take(39)
    with pytest.raises(HorizonReached):
        stream.take(2)
    assert stream.tick == 39
    stream.take(1)


def test_past_the_proved_precision() -> None:
    f = Unbounded()
    stream = ExactStream(f, SCALE, 1, SECRET, limit=40)
    stream.take(40)
    with pytest.raises(PrecisionReached, match="40 ticks"):
        stream.take(1)
    assert ExactStream(f, SCALE, 1, SECRET).limit == numeric_horizon(f, SCALE, 1, 1.0) >= 2**30


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf"), 2.0**60])
def test_bad_scale(bad: float) -> None:
    with pytest.raises(ParameterError):
        ExactStream(Balanced(10), bad, 1, SECRET)


def test_bad_parameters() -> None:
    for call in (
        lambda: ExactStream(Balanced(10), SCALE, 0, SECRET),
        lambda: ExactStream(Balanced(10), SCALE, 1, SECRET, first_cell=-1),
        lambda: ExactStream(Balanced(10), SCALE, 1, SECRET, limit=11),
        lambda: ExactStream(Balanced(2**49), SCALE, 1, SECRET),
        lambda: ExactStream(DigitTree(8), SCALE, 1, SECRET),
    ):
        with pytest.raises(ParameterError):
            call()


@pytest.mark.parametrize("cells", [2, WIDE])
def test_foreign_and_damaged_snapshots(cells: int) -> None:
    f = Balanced(100)
    stream = ExactStream(f, SCALE, cells, SECRET)
    stream.take(50)
    good = stream.dump()
    for other, scale, count in [(Balanced(101), SCALE, cells), (Normalized(100), SCALE, cells),
                                (f, 3.8, cells),
                                (f, SCALE, cells + 1)]:  # fmt: skip
        with pytest.raises(SnapshotError):
            ExactStream.load(other, scale, count, good)
    for key, value in [("tick", 101), ("tick", -1), ("bits", 110), ("format", 2), ("secret", "00"),
                       ("state", None),
                       ("fingerprint", "0" * 32), ("state", good["state"][:-8]), ("start", 33),
                       ("start", 64), ("state", "!"), ("state", np.full_like(good["state"], 255)),
                       ("start", None), ("state", 7), ("first_cell", 2**32),
                       ("rows", good["state"])]:  # fmt: skip
        with pytest.raises(SnapshotError):
            ExactStream.load(f, SCALE, cells, {**good, key: value})
    with pytest.raises(SnapshotError):
        ExactStream.load(f, SCALE, cells, {k: v for k, v in good.items() if k != "state"})


def test_secret_stays_out_of_repr_and_pickle() -> None:
    import pickle

    stream = ExactStream(Balanced(10), SCALE, 1, SECRET)
    assert "5a5a" not in repr(stream)
    with pytest.raises(ParameterError):
        pickle.dumps(stream)


# -- distribution ----------------------------------------------------------------------------------


def worst_score(noise: np.ndarray[Any, Any], covariance: np.ndarray[Any, Any]) -> float:
    """The largest deviation of a sample covariance from the wanted one, in standard errors."""
    count = noise.shape[1]
    sample = noise @ noise.T / count
    diagonal = np.diag(covariance)
    error = np.sqrt((np.multiply.outer(diagonal, diagonal) + covariance**2) / count)
    return float((np.abs(sample - covariance) / error).max())


@pytest.mark.parametrize(
    "f",
    [Balanced(40), Unbounded(), SquareRoot(40), Honaker(40), HonakerFull(40), Optimal(40)],
    ids=name,
)
def test_covariance_of_released_noise(f: Factorization) -> None:
    # 820 entries: a correct program exceeds 5.5 standard errors with probability below 1e-4.
    scale = 5.0
    noise = ExactStream(f, scale, 8000, SECRET).take(40)
    left = f.dense(40)[0]
    wanted = scale**2 * left @ left.T + np.eye(40) / 12
    assert worst_score(noise, wanted) < 5.5
    # negative controls: σ off by 5 %, another factorization, noise repeated from one tick to the
    # next
    assert worst_score(noise * 1.05, wanted) > 5.5
    other = Normalized(40).dense()[0]
    assert worst_score(noise, scale**2 * other @ other.T + np.eye(40) / 12) > 5.5
    repeated = noise.copy()
    repeated[20] = repeated[19]
    assert worst_score(repeated, wanted) > 5.5


@pytest.mark.parametrize("many", [30, 4000])
def test_an_interruption_at_any_line_leaves_a_stream_whole(
    many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C before any line of `take` and `prepare`: the stream goes on from its tick with the
    right numbers."""
    monkeypatch.setattr(exact_noise, "MANY", many)
    f, cells = Balanced(300), 40
    want, before = ExactStream(f, SCALE, cells, SECRET).take(300), sys.gettrace()
    lines = 0
    for stop in range(1, 1000):
        stream, lines = ExactStream(f, SCALE, cells, SECRET), 0

        def trace(frame: Any, event: str, _: Any, stop: int = stop) -> Any:
            nonlocal lines
            code = frame.f_code
            if code.co_filename != exact_noise.__file__ or code.co_name not in ("take", "prepare"):
                return None
            lines += event == "line"
            if lines == stop:
                raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            stream.take(70)
            stream.take(58)
            stream.prepare()
            stream.take(30)
        except KeyboardInterrupt:
            pass
        finally:
            sys.settrace(before)
        tick, dumped = stream.tick, stream.dump()
        stream.prepare()
        for one in (stream, ExactStream.load(f, SCALE, cells, dumped)):
            assert np.array_equal(one.take(100), want[tick : tick + 100])
        if lines < stop:
            break
    assert 40 < lines < 1000


@pytest.mark.parametrize(
    "f", [Balanced(200), Unbounded(), Honaker(100), HonakerFull(100)], ids=lambda f: f.name
)
def test_dumps_with_rows_go_on_at_every_tick(
    f: Factorization, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Very many cells keep no state from before a block: dumps hold the rows that are ready. The
    same numbers."""
    want = ExactStream(f, SCALE, 40, SECRET).take(100)
    monkeypatch.setattr(exact_noise, "MANY", 30)
    stream = ExactStream(f, SCALE, 40, SECRET)
    kinds = set()
    for tick in range(100):
        assert np.array_equal(stream.take(1)[0], want[tick])
        dumped = unpack(pack(stream.dump()))
        kinds.add("rows" in dumped)
        if tick % 7 == 0:
            stream = ExactStream.load(f, SCALE, 40, dumped)
        if tick == 50:
            stream.prepare()
    assert kinds == {False, True}
    stream = ExactStream(f, SCALE, 40, SECRET)
    stream.take(5)
    good = stream.dump()
    for rows in (None, "", "AAAA", good["rows"][4:]):
        with pytest.raises(SnapshotError):
            ExactStream.load(f, SCALE, 40, {**good, "rows": rows})
    for start in (0, 31, 2**16, -32, 2**62, 2**70):
        with pytest.raises(SnapshotError):
            ExactStream.load(f, SCALE, 40, {**good, "start": start})
    assert not good["state"].flags.writeable, "dumps of one block share it"
