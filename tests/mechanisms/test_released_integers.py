"""The law of the whole numbers that are released, for every kind of noise and two neighbours.

Attacks on noise before it is rounded cannot see what rounding gives away, nor what doubles lose. So
these look at the released integers themselves: at their residues, for every kind, through the
public interfaces; and for Laplace noise at the exact law of each of them. Two bugs are planted:
noise that is rounded with halves to even before the data come, and noise that passes through
doubles beyond 2^53.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy.signal import fftconvolve
from scipy.stats import chi2

from evercount import Budget, DiscoveredKeys, Histogram, Secret, Stream
from evercount._validate import AnyArray, FloatArray, IntArray
from evercount.factorizations import BUILT_IN, Balanced, Dense
from evercount.factorizations.laplace_choice import PURE, PURE_ENDLESS
from evercount.factorizations.laplace_trees import EndlessTree
from evercount.factorizations.terrace import Levels
from evercount.mechanisms import laplace_noise
from evercount.mechanisms.laplace_noise import EpochNoise, PureStream, TreeNoise
from evercount.mechanisms.terrace_noise import TerraceNoise
from evercount.sparse.budget_split import make_counter
from evercount.sparse.sparse_count import SparseCount
from product_internals import noise_source, secret_of, source_of

SECRET = Secret.from_hex("44" * 32)
EPSILON, DELTA, T = 0.1, 1e-6, 24
MODULI = (2, 3, 4, 64)
TERRACES = {
    "terrace-8": Levels((8,), (800, 224), (40960,)),
    "terrace-2-8": Levels((2, 8), (600, 200, 224), (24576, 49152)),
}
"""Terraces whose corrections are whole multiples of 2^−8: no weight is rounded, so their law is a
finite sum."""
ENDS = ("anytime", "unbounded", "terrace-2-8", *PURE_ENDLESS)
ENDLESS = (*ENDS, "fresh")
GAUSSIAN = [*(name for name in BUILT_IN if name != "direct"), "periods-7", "blend", "dense"]
"""`direct` is for queries of values; its noise is that of `fresh`, one number a tick."""
LAPLACE = [*PURE, "pure-tree-3", *PURE_ENDLESS, "fresh", "pure-window-7", *TERRACES]
KINDS = [*((name, DELTA) for name in GAUSSIAN), *((name, 0.0) for name in [*LAPLACE, "terrace"])]


# -- residues, through the public interfaces -------------------------------------------------------


def excess(one: AnyArray, other: AnyArray, epsilon: float, delta: float) -> float:
    """How far residues break (ε, δ), in standard deviations of the worst of them; rows are ticks,
    columns samples.

    Events are the residues of each tick's number, and of what it adds to that of the tick before,
    modulo 2, 3, 4 and 64, and how they fall for the two neighbours.
    """
    worst = -math.inf
    samples = one.shape[1]
    for numbers in (lambda rows: rows, lambda rows: np.diff(rows, axis=0)):
        for modulus in MODULI:
            p, q = (_shares(numbers(world) % modulus, modulus) for world in (one, other))
            for a, b in ((p, q), (q, p)):
                bound = math.exp(epsilon)
                # of Poisson counts; rare ones may be missing in b
                variance = a + bound**2 * (b + 16 / samples)
                worst = max(
                    worst, float(((a - bound * b - delta) / np.sqrt(variance / samples)).max())
                )
    return worst


def _shares(residues: AnyArray, modulus: int) -> FloatArray:
    counts = [np.bincount(row.astype(np.int64), minlength=modulus) for row in residues]
    return np.stack(counts) / residues.shape[1]


LIMIT = 6.0
"""Standard deviations: 80,000 residues of all kinds together exceed it with a chance of about 1e-4;
keys are fixed."""

World = Callable[[int, Secret], AnyArray]
"""The numbers that are published with so many events of one unit in the first tick: (ticks,
samples)."""


def neighbours(world: World, epsilon: float = EPSILON, delta: float = 0.0) -> float:
    """Independent samples of two neighbours; the numbers must be whole."""
    rows = [world(events, SECRET.derive(f"world {events}")) for events in (0, 1)]
    for numbers in rows:
        assert np.array_equal(numbers, np.rint(numbers))
    return excess(*rows, epsilon, delta)


def factorization_of(name: str) -> Any:
    if name in TERRACES:
        return {"name": "terrace", **TERRACES[name].as_dict()}
    return Dense.of_noise(Balanced(T).dense()[0]) if name == "dense" else name


def plain(name: str, delta: float, epsilon: float = EPSILON, samples: int = 6000) -> World:
    """Each cell of a histogram is a sample."""

    def world(events: int, secret: Secret) -> AnyArray:
        horizon = None if name in ENDS or name.startswith("pure-window") else T
        stream = Stream(
            Histogram(samples),
            Budget(epsilon, delta),
            horizon,
            factorization_of(name),
            secret=secret,
        )
        totals = np.zeros((T, samples), np.int64)
        totals[0] = events
        return stream.run_totals(totals).rows

    return world


@pytest.mark.parametrize(("name", "delta"), KINDS)
def test_residues_of_every_kind_of_noise(name: str, delta: float) -> None:
    assert neighbours(plain(name, delta), delta=delta) < LIMIT


@pytest.mark.soak
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
@pytest.mark.parametrize(("name", "delta"), KINDS)
def test_residues_of_many_samples(name: str, delta: float, epsilon: float) -> None:
    assert neighbours(plain(name, delta, epsilon, 200_000), epsilon, delta) < LIMIT


def revised(delta: float) -> World:
    """Day 1 of a stream whose days are published again: it runs on a bridge, whatever δ is."""
    samples = 1000

    def world(events: int, secret: Secret) -> AnyArray:
        stream = Stream(Histogram(samples), Budget(EPSILON, delta), secret=secret, revise_for=T - 1)
        totals = np.zeros((T, T, samples), np.int64)
        totals[0, 0] = events
        rows = stream.run_totals(totals.reshape(T, -1)).rows.reshape(T, T, samples)
        return rows[np.arange(T), np.arange(T)]

    return world


def joined(name: str, delta: float) -> World:
    """Cells that joined after tick 5; the event is in the sixth."""
    samples, after = 4000, 5

    def world(events: int, secret: Secret) -> AnyArray:
        horizon = None if name in ENDS else T + after
        engine = factorization_of(name)
        stream = Stream(
            Histogram(["first"]), Budget(EPSILON, delta), horizon, engine, secret=secret
        )
        stream.run_totals(np.zeros((after, 1), np.int64))
        stream.add_keys([f"k{number}" for number in range(samples)])
        totals = np.zeros((T, samples + 1), np.int64)
        totals[0, 1:] = events
        return stream.run_totals(totals).rows[:, 1:]

    return world


def discovered(events: int, secret: Secret) -> AnyArray:
    """Keys far above every threshold, each a sample."""
    keys = {f"k{number}": 10**4 + events for number in range(1500)}
    stream = Stream(DiscoveredKeys(), Budget(EPSILON, DELTA), T, secret=secret)
    releases = stream.run([keys, *[{}] * (T - 1)])
    assert len(releases.labels) == 1502
    return releases.rows[:, 2:]


def keys_of_the_day(events: int, secret: Secret) -> AnyArray:
    keys = {f"k{number}": 10**4 + events for number in range(1500)}
    stream = Stream(DiscoveredKeys(), Budget(EPSILON, DELTA), secret=secret, views=["per-tick"])
    return stream.run([keys, keys]).rows[:, 2:]


def sparse(method: str, delta: float) -> World:
    """Counters of a sparse count over segments or ticks: as many at once as there are samples.

    One counter is compared with what `SparseCount` itself estimates from such noise.
    """
    samples = 4000

    def world(events: int, secret: Secret) -> AnyArray:
        counter = SparseCount(2 * EPSILON, T, delta, 10**4, method=method, secret=secret)
        single = make_counter(
            counter.plan, secret_of(counter).derive("sparse counter")
        ).stream.take(T)[:, 0]
        for tick in range(T):
            counter.step(10**5)
            closed = tick + 1 if method == "plain" else counter.segments
            assert counter._estimate == (tick + 1) * 10**5 + single[closed - 1]
        noise = make_counter(counter.plan, secret.derive("many"), counters=samples).stream.take(T)
        return events + noise

    return world


PARTS = {
    "revised": (revised(0.0), 0.0),
    "revised, delta": (revised(DELTA), DELTA),
    "joined bridge": (joined("bridge", 0.0), 0.0),
    "joined endless": (joined("endless-bridge", 0.0), 0.0),
    "joined terrace": (joined("terrace", 0.0), 0.0),
    "joined terrace without an end": (joined("terrace-2-8", 0.0), 0.0),
    "joined balanced": (joined("balanced", DELTA), DELTA),
    "joined fresh": (joined("fresh", DELTA), DELTA),
    "discovered": (discovered, DELTA),
    "keys of the day": (keys_of_the_day, DELTA),
    "sparse, ticks": (sparse("plain", 0.0), 0.0),
    "sparse, segments": (sparse("partition", 0.0), 0.0),
    "sparse, delta": (sparse("partition", DELTA), DELTA),
}


@pytest.mark.parametrize("part", PARTS)
def test_residues_where_parts_hand_noise_on(part: str) -> None:
    world, delta = PARTS[part]
    assert neighbours(world, 2 * EPSILON if part.startswith("sparse") else EPSILON, delta) < LIMIT


def halves_to_even(noise: AnyArray, bits: int, up: IntArray) -> AnyArray:
    """Planted: what `bridge` did once. Whether X + this is even tells whether X is."""
    if bits == 0:
        return noise
    low, half = noise >> bits, 1 << (bits - 1)
    rest = noise - (low << bits)
    return np.asarray(low + ((rest > half) | ((rest == half) & (low % 2 == 1))))


BRIDGES = ["revised", "revised, delta", "sparse, ticks", "sparse, segments"]
"""Not cells that joined: the noise before they did hides whether a single number of theirs is
odd."""


@pytest.fixture
def planted_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laplace_noise, "round_to_grid", halves_to_even)


@pytest.mark.usefixtures("planted_halves")
def test_halves_to_even_are_caught_wherever_a_bridge_is() -> None:
    found = {name: neighbours(plain(name, 0.0)) for name in ("bridge", "pure-tree")}
    found["endless-bridge"] = neighbours(plain("endless-bridge", 0.0, samples=40_000))
    found |= {part: neighbours(PARTS[part][0], EPSILON, PARTS[part][1]) for part in BRIDGES}
    assert found.pop("pure-tree") < LIMIT, "whole coefficients: nothing is rounded"
    assert min(found.values()) > 2 * LIMIT, found


# -- the exact law of each released integer --------------------------------------------------------


def exact_law(stream: PureStream, tick: int) -> tuple[FloatArray, int]:
    """(probabilities, place of 0) of the noise of one tick as the program rounds it, from the rates
    that it draws."""
    source, at = source_of(stream), tick
    law, zero = np.ones(1), 0
    if isinstance(source, TerraceNoise):
        return terrace_law(source, tick)
    if isinstance(source, EpochNoise):
        tree = source.tree
        assert isinstance(tree, EndlessTree)
        epoch = int(tree.epochs([tick])[0])
        for before in range(epoch):
            law, zero = _plus(law, zero, _total_rate(source, before), 1)
        at, source = tick - int(tree.ends[epoch]), source.inside(epoch)
    assert isinstance(source, TreeNoise)
    _, weights, shares = source.tree.matrix(np.asarray([at]))
    bits = source.tree.bits
    law, zero = _spread(law, zero, 1 << bits)
    rates = source.rates(shares)
    for node in np.flatnonzero(weights[0]):
        law, zero = _plus(law, zero, float(rates[node]), abs(int(weights[0][node])))
    places = np.arange(len(law)) - zero
    rounded = [
        laplace_noise.round_to_grid(places, bits, np.full(len(law), coin)) for coin in (0, 1)
    ]
    least = int(min(one.min() for one in rounded))
    each = [np.bincount(one - least, law, 2 + int(rounded[1].max()) - least) for one in rounded]
    return (each[0] + each[1]) / 2, -least


FRACTION = 8
"""Binary digits of the corrections of TERRACES."""


def terrace_law(source: TerraceNoise, tick: int) -> tuple[FloatArray, int]:
    """As `exact_law`: the sum of its numbers, then its fraction is rounded up with the chance that
    it says."""
    terrace, law, zero = source.terrace, np.ones(1), 0
    left, right, _ = terrace.node_matrices(tick)
    level_of = np.searchsorted(terrace.lengths, right.sum(axis=1))
    for node in np.flatnonzero(left[-1]):
        weight = abs(float(left[-1, node])) * 2**FRACTION
        assert weight == int(weight)
        law, zero = _plus(law, zero, source.rates[level_of[node]], int(weight))
    places = np.arange(len(law)) - zero
    low, up = places >> FRACTION, places % 2**FRACTION / 2**FRACTION
    least = int(low.min())
    length = int(low.max()) - least + 2
    rounded = np.bincount(low - least, law * (1 - up), length) + np.bincount(
        low + 1 - least, law * up, length
    )
    return np.asarray(rounded, np.float64), -least


def _total_rate(source: EpochNoise, epoch: int) -> float:
    """The rate of the total of an epoch."""
    if isinstance(source, laplace_noise.EndlessBridgeNoise):
        return float(source.inside(epoch).rates(source.tree.tree(epoch).top_shares)[0])
    assert isinstance(source, laplace_noise.HybridNoise)
    return laplace_noise.node_rate(*source._calibration, source.tree.total_share)


def _spread(law: FloatArray, zero: int, step: int) -> tuple[FloatArray, int]:
    out = np.zeros((len(law) - 1) * step + 1)
    out[::step] = law
    return out, zero * step


def _plus(law: FloatArray, zero: int, rate: float, weight: int) -> tuple[FloatArray, int]:
    """The law of this plus weight·(a discrete Laplace number); what is cut off has a chance below
    1e-12."""
    reach = math.ceil(28 / rate)
    steps = np.exp(-rate * np.abs(np.arange(-reach, reach + 1))) * math.tanh(rate / 2)
    wide, _ = _spread(steps, reach, weight)
    small = len(wide) * len(law) < 2**20
    both = np.convolve(law, wide) if small else np.maximum(fftconvolve(law, wide), 0.0)
    return _trimmed(both, zero + reach * weight)


def _trimmed(law: FloatArray, zero: int) -> tuple[FloatArray, int]:
    """Without tails of a chance below 1e-13."""
    low, high = np.searchsorted(np.cumsum(law), 1e-13), np.searchsorted(np.cumsum(law[::-1]), 1e-13)
    cut = min(int(low), int(high))
    return law[cut : len(law) - cut], zero - cut


def worst_ratio(law: FloatArray) -> float:
    """The largest log-ratio of a released number, of its parity or of its residues for neighbours
    one apart."""
    one, other = law[1:], law[:-1]
    common = (one > 1e-9) | (other > 1e-9)
    ratios = [np.abs(np.log(one[common] / other[common])).max()]
    for modulus in MODULI:
        shares = np.bincount(np.arange(len(law)) % modulus, law, modulus)
        if shares.min() > 1e-9:
            ratios.append(np.abs(np.log(shares / np.roll(shares, 1))).max())
    return float(max(ratios))


def law_of(name: str, epsilon: float, tick: int) -> tuple[FloatArray, int]:
    horizon = None if name in ENDS or name.startswith("pure-window") else T
    engine = factorization_of(name)
    stream = Stream(Histogram(2), Budget(epsilon, 0.0), horizon, engine, secret=SECRET, replay=True)
    noise = noise_source(stream)
    assert isinstance(noise, PureStream)
    return exact_law(noise, tick)


TICKS = (1, 4, 6, 10, 15, 16, 17, 20)


@pytest.mark.parametrize("name", LAPLACE)
def test_the_exact_law_of_each_released_integer(name: str) -> None:
    """No number's chance, nor that of a residue, differs by more than e^ε for neighbours one
    apart."""
    ratios = [worst_ratio(law_of(name, 1.0, tick)[0]) for tick in TICKS]
    assert max(ratios) <= 1.0 + 1e-6
    assert max(ratios) > 0.05


@pytest.mark.soak
@pytest.mark.parametrize("epsilon", [0.1, 0.5, 2.0, 5.0])
@pytest.mark.parametrize("name", LAPLACE)
def test_the_exact_law_at_every_tick_and_budget(name: str, epsilon: float) -> None:
    """Of `endless-bridge` at the ticks of its first epoch only: later ones have laws of many
    million places."""
    last = 16 if name == "endless-bridge" else T
    assert (
        max(worst_ratio(law_of(name, epsilon, tick)[0]) for tick in range(1, last + 1))
        <= epsilon + 1e-6
    )


def test_the_exact_law_sees_halves_to_even(monkeypatch: pytest.MonkeyPatch) -> None:
    """Day 20 of 24: even with chance 0.75 without an event and 0.25 with one, at ε = 0.1.

    Rounded rightly it tells less than ε allows, and has mean 0 and the stated std.
    """
    law, zero = law_of("bridge", EPSILON, 20)
    places = np.arange(len(law)) - zero
    assert worst_ratio(law) <= EPSILON
    assert law @ places == pytest.approx(0.0, abs=1e-6)
    stated = float(
        Stream(Histogram(2), Budget(EPSILON, 0.0), T, secret=SECRET, replay=True).std([20])[0, 0]
    )
    assert math.sqrt(law @ places**2) == pytest.approx(stated, rel=1e-6)
    monkeypatch.setattr(laplace_noise, "round_to_grid", halves_to_even)
    for epsilon, least, most in ((0.1, 1.1, 1.2), (1.0, 1.5, 1.7), (2.0, 2.1, 2.3)):
        wrong, zero = law_of("bridge", epsilon, 20)
        assert least < worst_ratio(wrong) < most
        assert wrong[zero % 2 :: 2].sum() > 0.7


@pytest.mark.parametrize(
    "name", ["bridge", "endless-bridge", "pure-tree", "pure-hybrid", "fresh", *TERRACES]
)
def test_the_program_follows_the_exact_law(name: str) -> None:
    """50,000 cells as samples: χ² of the released integers against the law, p-value above 1e-6 at
    every tick."""
    samples = 50_000
    rows = plain(name, 0.0, 1.0, samples)(3, SECRET.derive("follows"))
    for tick in (1, 4, 16, 20):
        law, zero = law_of(name, 1.0, tick)
        counts = np.bincount(
            np.clip(rows[tick - 1].astype(np.int64) - 3 + zero, 0, len(law) - 1), minlength=len(law)
        )
        common = law * samples >= 5
        seen, expected = (
            np.append(counts[common], counts[~common].sum()),
            np.append(law[common], law[~common].sum()),
        )
        expected *= samples
        assert chi2.sf(((seen - expected) ** 2 / expected).sum(), len(seen) - 1) > 1e-6


@pytest.mark.parametrize("name", TERRACES)
def test_stated_stds_of_terraces_are_those_of_the_exact_law(name: str) -> None:
    """Discrete numbers are exact in them; what rounding adds is stated from above, by at most a
    twelfth of a unit."""
    horizon = None if name in ENDS else T
    for epsilon in (0.3, 1.0, 4.0):
        stream = Stream(
            Histogram(2),
            Budget(epsilon, 0.0),
            horizon,
            factorization_of(name),
            secret=SECRET,
            replay=True,
        )
        for tick in TICKS:
            law, zero = law_of(name, epsilon, tick)
            places = np.arange(len(law)) - zero
            exact, stated = law @ places**2, float(stream.std([tick])[0, 0]) ** 2
            assert law @ places == pytest.approx(0.0, abs=1e-6)
            assert exact * (1 - 1e-6) <= stated <= exact * 1.01 + 1 / 12


def test_the_exact_law_sees_a_terrace_that_rounds_everything(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Planted: noise is rounded to even numbers as a whole. Its parity then shows that of the
    data."""
    law, _ = law_of("terrace-8", 0.3, 4)
    assert worst_ratio(law) <= 0.3
    wrong = np.zeros(len(law) + 3)
    np.add.at(wrong, 2 * np.rint(np.arange(len(law)) / 2).astype(int), law)
    assert worst_ratio(wrong + 1e-8) > 1.0
    rounds = TerraceNoise.rows
    monkeypatch.setattr(
        TerraceNoise, "rows", lambda self, *at: 2 * np.rint(rounds(self, *at) / 2).astype(np.int64)
    )
    assert neighbours(plain("terrace-8", 0.0)) > 2 * LIMIT
