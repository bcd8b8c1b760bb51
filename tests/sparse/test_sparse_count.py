"""SparseCount: exact privacy of the partition, the split of the budget, errors against the bound,
snapshots."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

from evercount.errors import HorizonReached, InputError, ParameterError, SnapshotError
from evercount.factorizations.laplace_choice import pure_factorization
from evercount.mechanisms.laplace_noise import build_pure
from evercount.noise import Secret
from evercount.noise.laplace_sampler import ExactLaplace, quantile, tail
from evercount.sparse.budget_split import make_counter, plan_sparse, sparse_against_plain
from evercount.sparse.sparse_count import SparseCount, SparseRelease
from evercount.sparse.sparse_plan import endless_radius
from independent_streams import least_share
from soak_cases import soak_except

pytestmark = pytest.mark.slow


def secret(seed: int) -> Secret:
    return Secret.from_hex(f"{seed:064x}")


def closing_probabilities(
    counts: list[int], threshold: int | list[int], rates: tuple[float, float]
) -> dict[tuple[bool, ...], float]:
    """P(every pattern of closings) of the sparse vector over these ticks, summed over the
    threshold's noise exactly.

    Noise beyond ±90 is left out (below 1e-11 here).
    """
    levels = threshold if isinstance(threshold, list) else [threshold] * len(counts)
    a, b = rates
    rho = np.arange(-90, 91)
    weight = np.exp(-a * np.abs(rho))
    weight /= weight.sum()

    def reach(gap: np.ndarray) -> np.ndarray:
        """P(ν ≥ gap) for discrete Laplace ν of rate b."""
        q = math.exp(-b)
        up = np.exp(-b * np.maximum(gap, 0)) / (1 + q)
        return np.where(gap > 0, up, 1 - np.exp(b * np.minimum(gap - 1, 0)) / (1 + q))

    found: dict[tuple[bool, ...], float] = {}
    for pattern in itertools.product((False, True), repeat=len(counts)):
        density, total, held = weight.copy(), 1.0, 0
        for tick, closed in enumerate(pattern):
            held += counts[tick]
            p = reach(levels[tick] + rho - held)
            density = density * (p if closed else 1 - p)
            if closed:
                held = 0
                total, density = total * density.sum(), weight.copy()
        found[pattern] = total * float(density.sum())
    return found


def worst_ratios(rates: tuple[float, float]) -> tuple[float, float]:
    """The largest log-ratios of a pattern's probabilities: one event less over one more, and the
    other way round."""
    less_over_more = more_over_less = -math.inf
    for counts in (
        [0, 0, 0, 0],
        [1, 0, 2, 0],
        [2, 2, 2, 2],
        [0, 3, 0, 3],
        [5, 5, 5, 5],
        [9, 0, 9, 0],
    ):
        base = closing_probabilities(counts, 3, rates)
        assert sum(base.values()) == pytest.approx(1, abs=1e-9)
        for tick in range(len(counts)):
            more = list(counts)
            more[tick] += 1
            other = closing_probabilities(more, 3, rates)
            logs = [math.log(base[pattern] / other[pattern]) for pattern in base]
            less_over_more, more_over_less = (
                max(less_over_more, *logs),
                max(more_over_less, *(-log for log in logs)),
            )
    return less_over_more, more_over_less


@pytest.mark.parametrize("rates", [(0.3, 0.7), (0.5, 0.5), (1.0, 0.25), (0.7, 0.7), (0.35, 1.4)])
def test_partition_costs_the_larger_rate_by_exact_enumeration(rates: tuple[float, float]) -> None:
    """All patterns over four ticks, all neighbours of six streams: each direction within its own
    rate, nearly reached.

    One event less over one more costs the threshold's rate, the other direction the rate of the
    ticks. So neither rate could be left out of the maximum.
    """
    threshold, ticks = worst_ratios(rates)
    assert 0.75 * rates[0] < threshold <= rates[0] + 1e-9
    assert 0.75 * rates[1] < ticks <= rates[1] + 1e-9


def test_partition_with_too_little_noise_is_caught() -> None:
    """Negative controls: planted rates of 1.0 for ticks, or for thresholds, exceed a promise of
    0.7."""
    assert max(worst_ratios((0.7, 1.0))) > 0.7
    assert max(worst_ratios((1.0, 0.7))) > 0.7


def test_a_threshold_that_is_not_shifted_by_the_whole_event_is_caught() -> None:
    """Negative control of the proof's step c′ = c + 1 at the closing tick: an event that leaves its
    segment again.

    A planted counter that forgets the last event at the closing tick has c′ = c there, and exceeds
    the maximum.
    """
    rates = (0.5, 0.5)
    base = closing_probabilities([1, 0, 2, 0], 3, rates)
    forgets = closing_probabilities([2, -1, 2, 0], 3, rates)
    assert (
        max(abs(math.log(base[pattern] / forgets[pattern])) for pattern in base) > max(rates) + 0.1
    )


def test_the_simulated_partition_has_these_probabilities() -> None:
    """The program's own draws against the enumeration: 20,000 partitions, 5 standard errors for
    each pattern."""
    rates, counts, threshold = (0.5, 0.5), [1, 0, 2], 3
    rho = ExactLaplace(secret(1)).draw(np.arange(20000), rates[0], 4)
    nu = ExactLaplace(secret(2)).draw(np.arange(20000), rates[1], 3)
    seen: dict[tuple[bool, ...], int] = {}
    for levels, noise in zip(rho.tolist(), nu.tolist(), strict=True):
        held, number, pattern = 0, 0, []
        for tick in range(3):
            held += counts[tick]
            closed = held + noise[tick] >= threshold + levels[number]
            if closed:
                held, number = 0, number + 1
            pattern.append(closed)
        seen[tuple(pattern)] = seen.get(tuple(pattern), 0) + 1
    for pattern, p in closing_probabilities(counts, threshold, rates).items():
        assert abs(seen.get(pattern, 0) / 20000 - p) < 5 * math.sqrt(p * (1 - p) / 20000) + 1e-4


@pytest.mark.parametrize(("delta", "ones"), [(0.0, 100), (0.0, None), (1e-8, 100), (1e-8, None)])
def test_parts_of_epsilon_add_up(delta: float, ones: int | None) -> None:
    for epsilon in (0.1, 1.0, 1 / 3):
        plan = plan_sparse(epsilon, 2**16, delta, ones, method="partition")
        parts = (plan.threshold_epsilon, plan.tick_epsilon, plan.counter_epsilon)
        assert max(map(Fraction, parts[:2])) + Fraction(parts[2]) <= Fraction(epsilon)
        assert plan.partition_epsilon + plan.counter_epsilon == pytest.approx(epsilon, rel=1e-6)
        assert min(parts) > 0
        assert plan.threshold > plan.spread > 0


def sparse_stream(seed: int, T: int, ones: int, clustered: bool) -> np.ndarray:
    rng = np.random.default_rng(seed)
    counts = np.zeros(T, np.int64)
    where = rng.integers(T // 3, T // 3 + 40, ones) if clustered else rng.integers(0, T, ones)
    np.add.at(counts, where, 1)
    return counts


def test_every_segment_has_a_threshold_of_its_own() -> None:
    counter, levels = SparseCount(0.01, 1000, method="partition", secret=secret(1)), set()
    for _ in range(12):  # each tick brings enough events to end a segment
        assert counter.step(10**6).closed
        levels.add(counter._level_noise)
    assert len(levels) > 9


@pytest.mark.parametrize(
    ("delta", "clustered"), soak_except([(0.0, True)], [(0.0, True), (1e-8, False)])
)
def test_errors_stay_within_the_bound(delta: float, clustered: bool) -> None:
    """12 streams of 4,096 ticks with 1,500 events: the largest error within the 95 % bound in at
    least 10 of them.

    A bound that holds with probability 0.95 fails this less than once in 500. A third of it is
    passed (negative control).
    """
    T, ones = 4096, 1500
    plan = plan_sparse(2.0, T, delta, ones, method="partition")
    inside = narrow = 0
    for seed in range(12):
        counts = sparse_stream(seed, T, ones, clustered)
        releases = SparseCount(2.0, T, delta, ones, method="partition", secret=secret(seed)).run(
            counts
        )
        truth = np.cumsum(counts)
        error = np.abs(np.asarray([r.value for r in releases]) - truth).max()
        inside += error <= plan.bound()
        narrow += error <= plan.bound() / 3
        assert (
            all(r.low <= x <= r.high for r, x in zip(releases, truth, strict=True))
            or error > plan.bound()
        )
    assert inside >= 10
    assert narrow < 10


def test_unknown_number_of_ones() -> None:
    T = 3000
    counts = sparse_stream(3, T, 2000, False)
    counter = SparseCount(2.0, T, method="partition", secret=secret(3))
    releases = counter.run(counts)
    error = np.abs(np.asarray([r.value for r in releases]) - np.cumsum(counts)).max()
    assert error <= counter.plan.bound(2000)
    assert not any(r.full for r in releases)
    assert releases[-1].segments >= 3
    with pytest.raises(ParameterError, match="max_ones is unknown"):
        counter.plan.bound()


def test_bounds_of_all_numbers_of_segments_hold_together() -> None:
    """The chances of all doublings add up to β/3, and each bound is that of its doubling's chance.

    And in 2,400 simulated counters, no release is off by more than its own bound in at least 1 −
    β/3 of them.
    """
    plan = plan_sparse(1.0, 2**12, beta=0.3, method="partition")
    tree = pure_factorization("endless-bridge", None)

    chances = [plan.beta / 3 / ((doubling + 1) * (doubling + 2)) for doubling in range(50)]
    assert sum(chances) <= plan.beta / 3
    for doubling in range(0, 11, 2):
        radius = plan.counter_bound(1 << doubling)
        assert radius == endless_radius(plan.counter_epsilon, 0.0, 1 << doubling, chances[doubling])
        assert radius > endless_radius(plan.counter_epsilon, 0.0, 1 << doubling, plan.beta / 3)
    bounds = np.asarray([plan.counter_bound(release) for release in range(1, 513)])
    late = np.asarray(
        [plan.counter_bound(512 if release > 256 else release) for release in range(1, 513)]
    )
    assert np.array_equal(bounds, late), "one bound for each doubling"
    held = tight = 0
    for seed in range(8):
        noise = build_pure(
            tree, cells=300, grid=1.0, l1=1.0, epsilon=plan.counter_epsilon, secret=secret(seed)
        )
        errors = np.abs(noise.stream.take(512))
        held += int(np.all(errors <= bounds[:, np.newaxis], axis=0).sum())
        tight += int(np.all(errors <= bounds[:, np.newaxis] / 2, axis=0).sum())
    assert held >= 2400 * (1 - plan.beta / 3)
    assert tight < 2400 * (1 - plan.beta / 3)


class Column:
    """Numbers that were drawn before, of one stream among many, as the sources of noise give
    them."""

    def __init__(self, numbers: np.ndarray) -> None:
        self.numbers, self.taken = numbers, 0

    def draw(self, places: np.ndarray, rate: float, cells: int) -> np.ndarray:
        return self.numbers[np.asarray(places), np.newaxis]

    def take(self, ticks: int) -> np.ndarray:
        self.taken += ticks
        return self.numbers[self.taken - ticks : self.taken, np.newaxis]


def many_runs(
    counter: SparseCount, counts: np.ndarray, streams: int
) -> Iterator[list[SparseRelease]]:
    """What the counter releases for these counts when it begins again, with the noise of as many
    streams."""
    plan, ticks, key = counter.plan, len(counts), secret(77)
    begun = dict(vars(counter))
    served = ticks if plan.method == "plain" or plan.segments is None else plan.segments
    noise = make_counter(plan, key.derive("counters"), None, streams).stream.take(served)
    if plan.method == "partition":
        levels = ExactLaplace(key.derive("levels")).draw(
            np.arange(ticks + 1), plan.threshold_epsilon, streams
        )
        extra = ExactLaplace(key.derive("ticks")).draw(np.arange(ticks), plan.tick_epsilon, streams)
    for stream in range(streams):
        vars(counter).update(begun)
        counter._noise = SimpleNamespace(stream=Column(noise[:, stream]))  # type: ignore[assignment]
        if plan.method == "partition":
            counter._thresholds = Column(levels[:, stream])  # type: ignore[assignment]
            counter._ticks = Column(extra[:, stream])  # type: ignore[assignment]
            counter._level_noise = counter._draw_level()
        yield counter.run(counts)


@pytest.mark.parametrize(
    ("method", "delta", "horizon", "ones"),
    soak_except(
        [("partition", 0.0, 24, 150), ("partition", 1e-8, None, 150)],
        [
            ("partition", 0.0, 24, 150),
            ("partition", 1e-8, 24, None),
            ("partition", 0.0, None, None),
            ("partition", 1e-8, None, 150),
            ("plain", 0.0, 24, 150),
            ("plain", 1e-8, None, None),
        ],
    ),
)
def test_intervals_hold_at_once_over_many_streams(
    method: str, delta: float, horizon: int | None, ones: int | None
) -> None:
    """1,000 streams: every release holds the truth and keeps its bound, in 95 % of them less 4
    standard errors."""
    streams, counts = 1_000, sparse_stream(1, 24, 150, False)
    truth = np.cumsum(counts)
    counter = SparseCount(6.0, horizon, delta, ones, method=method, secret=secret(5))
    bounds = np.asarray([counter.plan.bound(int(x), tick) for tick, x in enumerate(truth, 1)])
    held = kept = narrow = 0
    for releases in many_runs(counter, counts, streams):
        value, low, high = np.asarray([(one.value, one.low, one.high) for one in releases]).T
        held += bool(np.all((low <= truth) & (truth <= high)))
        kept += bool(np.all(np.abs(value - truth) <= bounds))
        narrow += bool(np.all(np.abs(value - truth) <= (high - low) / 4))
    assert held >= streams * least_share(0.95, streams)
    assert kept >= streams * least_share(0.95, streams)
    assert narrow < streams * least_share(0.95, streams), "planted: intervals that are half as wide"


@pytest.mark.soak
def test_unknown_number_of_ones_over_many_streams() -> None:
    """2,000 streams: all releases within the bound of the events so far, in at least 95 % of
    them."""
    T, held = 256, 0
    for seed in range(2000):
        counts = sparse_stream(seed, T, 120, seed % 2 == 0)
        counter = SparseCount(4.0, T, method="partition", secret=secret(seed))
        truth = np.cumsum(counts)
        bounds = {int(x): counter.plan.bound(int(x)) for x in np.unique(truth)}
        held += all(
            abs(r.value - x) <= bounds[int(x)]
            for r, x in zip(counter.run(counts), truth, strict=True)
        )
        counter.close()
    assert held >= 1900


def test_more_ones_than_promised_is_private_and_said() -> None:
    counter = SparseCount(2.0, 2000, max_ones=200, method="partition", secret=secret(4))
    releases = counter.run(np.full(2000, 3))
    assert releases[-1].full
    assert releases[-1].high == math.inf
    first = next(i for i, r in enumerate(releases) if r.full)
    assert len({r.value for r in releases[first:]}) == 1


def test_step_run_and_restore_agree() -> None:
    for delta, ones in ((0.0, 400), (0.0, None), (1e-8, 400), (1e-8, None)):
        counts = sparse_stream(5, 600, 400, False).tolist()
        whole = SparseCount(3.0, 600, delta, ones, method="partition", secret=secret(6)).run(counts)
        single = SparseCount(3.0, 600, delta, ones, method="partition", secret=secret(6))
        assert [single.step(c) for c in counts] == whole
        single.close()
        paused = SparseCount(3.0, 600, delta, ones, method="partition", secret=secret(6))
        paused.run(counts[:333])
        again = SparseCount.restore(paused.snapshot())
        assert again.run(counts[333:]) == whole[333:]
        assert any(r.closed for r in whole)


def test_refusals() -> None:
    counter = SparseCount(1.0, 10, max_ones=5, secret=secret(7))
    for bad in (-1, 0.5, "3", None, [1]):
        with pytest.raises(InputError):
            counter.step(bad)  # type: ignore[arg-type]
    assert counter.tick == 0
    counter.run([0] * 10)
    with pytest.raises(HorizonReached, match="horizon=None") as caught:
        counter.step(0)
    assert caught.value.horizon == 10
    assert "10 ticks" in str(caught.value)
    for bad_run in (5, np.array(5), "12", b"12", [[1], [1, 2]], [[1]], [0.5]):
        with pytest.raises(InputError):
            SparseCount(1.0, 10).run(bad_run)  # type: ignore[arg-type]
    with pytest.raises(SnapshotError):
        SparseCount.restore(b"nonsense")
    for arguments in ((0.0, 10), (1.0, 0), (1.0, 10, 1.5), (1.0, 10, 0.0, 0), (100.0, 10)):
        with pytest.raises(ParameterError):
            SparseCount(*arguments)  # type: ignore[arg-type]
    for wrong in ("a", "1", [3], (3,), {}, True, float("nan"), 10**400, np.ones(2), 1j):
        for name in ("epsilon", "horizon", "delta", "max_ones", "level", "method", "secret"):
            with pytest.raises(ParameterError):
                SparseCount(**{"epsilon": 1.0, "horizon": 10} | {name: wrong})  # type: ignore[arg-type]
    plan = plan_sparse(1, 10, 0, np.int64(5))  # type: ignore[arg-type]
    assert plan is plan_sparse(1.0, 10, 0.0, 5)
    assert plan.bound(0) <= plan.bound(5) == plan.bound()
    for ones in (-1, 1.5, "3", True, np.ones(2)):
        with pytest.raises(ParameterError, match="ones"):
            plan.bound(ones)  # type: ignore[arg-type]


def test_where_it_wins() -> None:
    rows = sparse_against_plain(1.0, (2**10, 2**20), (10, 1000))
    table = {(r["horizon"], r["ones"]): r for r in rows}
    assert table[2**20, 1000]["wins"]
    assert not table[2**10, 1000]["wins"]
    assert not table[2**20, 10]["wins"]  # ten events: a constant is as good
    assert table[2**20, 1000]["plain"] > table[2**10, 1000]["plain"]
    assert sparse_against_plain(1.0, (2**20,), (10,), 1e-10)[0]["plain"] < table[2**20, 10]["plain"]


def test_one_promised_event_costs_nothing_and_is_off_by_a_half() -> None:
    """The counter published 39 here."""
    counter = SparseCount(1.0, 1000, max_ones=1, secret=secret(9))
    assert counter.plan.method == "constant"
    assert [release.value for release in counter.run([0, 1, 0])] == [0.5, 0.5, 0.5]
    assert counter.plan.budgets() == ()
    assert counter.plan.bound() == 0.5
    assert "no budget" in counter.guarantee
    restored = SparseCount.restore(counter.snapshot())
    assert (restored.step(0).tick, restored.numeric_delta) == (4, 0.0)
    with pytest.raises(ParameterError, match="max_ones"):
        plan_sparse(1.0, 1000, method="constant")
    with pytest.raises(ParameterError, match="promised"):
        plan_sparse(1.0, 1000, max_ones=100, method="partition").bound(101)


@pytest.mark.parametrize("delta", [0.0, 1e-8])
@pytest.mark.parametrize("horizon", [64, 2**12, 2**20, None])
def test_the_least_bound_is_chosen(delta: float, horizon: int | None) -> None:
    """Never a larger bound than the partition, the plain counter or half of the promise; each wins
    somewhere."""
    chosen = set()
    ticks = 2**20 if horizon is None else horizon
    for ones in (1, 30, 1000, 10**5):
        plan = plan_sparse(1.0, horizon, delta, ones)
        chosen.add(plan.method)
        rivals = {
            way: plan_sparse(1.0, horizon, delta, ones, method=way)
            for way in ("partition", "plain", "constant")
        }
        assert plan.bound(ticks=ticks) == min(rival.bound(ticks=ticks) for rival in rivals.values())
        assert plan.bound(ticks=ticks) <= ones / 2
        assert plan is rivals[plan.method]
    assert "constant" in chosen
    assert "plain" in chosen or ticks >= 2**20
    assert ("partition" in chosen) == (ticks >= 2**20)


@pytest.mark.parametrize(
    ("method", "delta", "horizon"),
    soak_except(
        [
            ("partition", 0.0, 500),
            ("partition", 1e-8, None),
            ("plain", 1e-8, 500),
            ("constant", 0.0, 500),
        ],
        itertools.product(["partition", "plain", "constant"], [0.0, 1e-8], [500, None]),
    ),
)
def test_releases_keep_the_promise_and_the_bound(
    method: str, delta: float, horizon: int | None
) -> None:
    """Between 0 and max_ones, in the middle of an interval that holds the truth; the same after a
    restore."""
    counts = sparse_stream(11, 500, 150, True)
    truth = np.cumsum(counts)
    counter = SparseCount(1.0, horizon, delta, 150, method=method, secret=secret(12))
    releases = counter.run(counts[:200])
    counter = SparseCount.restore(counter.snapshot())
    releases += counter.run(counts[200:])
    for tick, (release, x) in enumerate(zip(releases, truth, strict=True), 1):
        assert 0 <= release.low <= release.value <= release.high <= 150
        assert release.low <= x <= release.high
        assert release.value == (release.low + release.high) / 2
        assert abs(release.value - x) <= counter.plan.bound(ticks=tick) <= 75
    widths = [release.high - release.low for release in releases]
    assert (max(widths) < 150) == (method == "plain") or method != "constant"


@pytest.mark.parametrize(
    ("ones", "delta"),
    soak_except([(1500, 0.0), (None, 1e-8)], itertools.product([1500, None], [0.0, 1e-8])),
)
def test_without_a_horizon(delta: float, ones: int | None) -> None:
    """Errors within the bound of their tick, which grows with the logarithm; no end; snapshots; a
    far tick alone."""
    T = 6000
    inside = 0
    for seed in range(6):
        counts = sparse_stream(seed, T, 1500, False)
        counter = SparseCount(2.0, None, delta, ones, method="partition", secret=secret(seed))
        releases = counter.run(counts[:3000])
        counter = SparseCount.restore(counter.snapshot())
        releases += counter.run(counts[3000:])
        truth = np.cumsum(counts)
        bounds = [counter.plan.bound(int(x), t) for t, x in enumerate(truth, 1) if t % 50 == 0]
        inside += all(
            abs(r.value - x) <= bound
            for r, x, bound in zip(releases[49::50], truth[49::50], bounds, strict=True)
        )
    assert inside >= 5
    plan = counter.plan
    assert plan.horizon is None
    grown = [plan.spread_at(2**k) for k in range(0, 40, 4)]
    assert grown == sorted(grown)
    assert grown[-1] < 8 * grown[2]
    if ones is not None:
        known = plan_sparse(2.0, T, delta, ones, method="partition")
        assert plan.bound(ticks=T) < 1.6 * known.bound()
        with pytest.raises(ParameterError, match="ticks"):
            plan.bound()


def test_thresholds_without_a_horizon_use_no_more_than_their_chance() -> None:
    """Exact tails at the spread of each doubling, added up over its ticks: at most β/3, and not
    idle."""
    plan = plan_sparse(1.0, None, 0.0, 500, method="partition")
    fixed = quantile(plan.threshold_epsilon, plan.beta / 3 / (plan.segments + 1))
    total = 0.0
    for doubling in range(60):
        own = plan.spread_at(1 << doubling) - fixed
        assert own == plan.spread_at((2 << doubling) - 1) - fixed
        total += 2.0**doubling * tail(plan.tick_epsilon, own + 1)
    assert plan.beta / 12 < total <= plan.beta / 3


def test_privacy_of_thresholds_that_grow_by_exact_enumeration() -> None:
    """As the fixed threshold: all patterns over four ticks with thresholds 2, 3, 3, 5 and all
    neighbours."""
    rates, levels = (0.5, 0.5), [2, 3, 3, 5]
    worst = 0.0
    for counts in ([0, 0, 0, 0], [1, 0, 2, 0], [2, 2, 2, 2], [0, 3, 0, 3]):
        base = closing_probabilities(counts, levels, rates)
        for tick in range(4):
            more = [c + (i == tick) for i, c in enumerate(counts)]
            other = closing_probabilities(more, levels, rates)
            worst = max(worst, *(abs(math.log(base[p] / other[p])) for p in base))
    assert 0.4 < worst <= 1.0 + 1e-9
