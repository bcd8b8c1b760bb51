"""The laws of discovery: exact for one tick, measured with real noise for many, each with wrong
thresholds planted."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import beta, norm

from evercount import Budget, DiscoveredKeys, Secret, Stream
from evercount.mechanisms.composed_noise import NamedNoise
from soak_cases import soak_except


def clopper_pearson(hits: int, trials: int, miss: float = 1e-6) -> tuple[float, float]:
    low = 0.0 if hits == 0 else float(beta.ppf(miss, hits, trials - hits + 1))
    high = 1.0 if hits == trials else float(beta.ppf(1 - miss, hits + 1, trials - hits))
    return low, high


def listing_rate(
    stream: Stream, count: int, trials: int, threshold: Callable[[int], int]
) -> tuple[int, int]:
    """How many of so many keys, each with `count` events at tick 1, are ever listed; noise is that
    of real streams."""
    assert stream.horizon is not None
    assert stream.thresholds is not None
    names = [f"person {number}" for number in range(trials)]
    noise = NamedNoise(
        stream.factorization, stream.sigma, Secret.from_hex("7e" * 32), ["", *names], stream.horizon
    ).rows(1, stream.horizon)[:, 1:]
    passed = [count + noise[tick - 1] >= threshold(tick) for tick in range(1, stream.horizon + 1)]
    return int(np.any(passed, axis=0).sum()), trials


CASES = [
    ("add-remove", "event", 1, 1),
    ("replace", "event", 1, 4),
    ("add-remove", "user", 3, 1),
]


@pytest.mark.parametrize(("adjacency", "unit", "most", "minimum"), soak_except(CASES[1:], CASES))
def test_a_key_of_one_person_is_listed_with_at_most_delta_2(
    adjacency: str, unit: str, most: int, minimum: int
) -> None:
    """At δ₂ of some percent, which can be measured. The thresholds that are planted are each wrong
    in one way."""
    epsilon, delta, horizon, trials = 1.0, 0.4, 24, 8000
    budget = Budget(
        epsilon, delta, adjacency=adjacency, unit=unit, max_events=most if unit == "user" else None
    )  # type: ignore[arg-type]
    stream = Stream(DiscoveredKeys(minimum=minimum), budget, horizon=horizon)
    thresholds = stream.thresholds
    assert thresholds is not None
    delta_2 = 0.5 * delta / (1 + math.exp(epsilon))
    assert thresholds.delta == pytest.approx(delta_2)
    person = minimum - 1 + most  # a key that only this person brings to the minimum
    rate = clopper_pearson(*listing_rate(stream, person, trials, thresholds.at))
    assert rate[0] <= delta_2
    assert rate[1] >= delta_2 / 20, "the test would notice a mechanism that lists nothing"
    std = stream.sigma * stream.factorization.row_norms(np.arange(1, horizon + 1))
    planted: dict[str, Callable[[int], int]] = {
        "δ₂ at every tick instead of once": lambda tick: math.ceil(
            person + 0.5 + std[tick - 1] * norm.isf(delta_2)
        ),
        "the std of z instead of that of L z": lambda tick: math.ceil(
            person + 0.5 + stream.sigma * norm.isf(delta_2 / horizon)
        ),
        "a key that appears with its first event": lambda tick: minimum,
    }
    for what, wrong in planted.items():
        assert clopper_pearson(*listing_rate(stream, person, trials, wrong))[0] > delta_2, what


def exact_divergence(threshold: int, std: float, epsilon: float, counts: tuple[int, int]) -> float:
    """sup_E P(M(x) ∈ E) − e^ε·P(M(x′) ∈ E) of one tick: x has counts[0] events of the key, x′
    counts[1].

    Outputs are pairs (noisy total, noisy count or nothing). Rounded normal noise, each output
    enumerated.
    """
    reach = int(9 * std) + 3
    grid = np.arange(-reach, reach + 1)

    def law(count: int) -> tuple[np.ndarray, np.ndarray]:
        mass = norm.cdf(grid - count + 0.5, scale=std) - norm.cdf(grid - count - 0.5, scale=std)
        key = np.where((grid >= threshold) & (count >= 1), mass, 0.0)
        return mass, np.append(key, 1 - key.sum())

    (total, key), (other_total, other_key) = law(counts[0]), law(counts[1])
    gap = np.multiply.outer(total, key) - math.exp(epsilon) * np.multiply.outer(
        other_total, other_key
    )
    return float(np.maximum(gap, 0).sum())


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 0.05), (0.5, 1e-3), (3.0, 1e-5)])
def test_exact_law_of_one_tick_keeps_epsilon_and_delta(epsilon: float, delta: float) -> None:
    """All outputs of a stream of one tick, for a key that one event brings into being or raises by
    one."""
    stream = Stream(DiscoveredKeys(), Budget(epsilon, delta), horizon=1, factorization="direct")
    assert stream.thresholds is not None
    threshold, std = stream.thresholds.at(1), stream.sigma
    pairs = [(1, 0), (0, 1), (2, 1), (1, 2), (threshold, threshold - 1), (threshold - 1, threshold)]
    found = {pair: exact_divergence(threshold, std, epsilon, pair) for pair in pairs}
    assert max(found.values()) <= delta
    assert max(found.values()) >= delta / 40, "the enumeration sees what the mechanism spends"
    # planted: a key that appears with its first event; and a threshold for the tenfold δ₂
    assert exact_divergence(1, std, epsilon, (1, 0)) > delta
    lower = math.floor(1.5 + std * norm.isf(10 * stream.thresholds.delta * math.exp(epsilon)))
    assert exact_divergence(lower, std, epsilon, (1, 0)) > delta


def test_noise_of_named_cells_is_normal_and_independent() -> None:
    """The noise that thresholds are compared with has the law that they assume, at single ticks and
    jointly."""
    stream = Stream(DiscoveredKeys(), Budget(1.0, 1e-3), horizon=16)
    names = [f"key {number}" for number in range(6000)]
    noise = NamedNoise(
        stream.factorization, stream.sigma, Secret.from_hex("19" * 32), names, 16
    ).rows(1, 16)
    std = stream.sigma * stream.factorization.row_norms(np.arange(1, 17))
    for tick in (1, 5, 16):
        edges = np.unique(np.rint(norm.ppf(np.linspace(0.02, 0.98, 21), scale=std[tick - 1]))) + 0.5
        seen = np.histogram(noise[tick - 1], [-np.inf, *edges, np.inf])[0]
        wanted = np.diff(norm.cdf([-np.inf, *edges, np.inf], scale=std[tick - 1])) * len(names)
        assert float(((seen - wanted) ** 2 / wanted).sum()) < len(wanted) + 6 * math.sqrt(
            2 * len(wanted)
        )
    left = stream.factorization.dense()[0]
    measured = noise @ noise.T / len(names)
    expected = stream.sigma**2 * (left @ left.T) + np.eye(16) / 12
    scale = np.sqrt(np.outer(np.diag(expected), np.diag(expected)))
    assert np.abs((measured - expected) / scale).max() < 6 / math.sqrt(len(names))
    # neighbours in the list of names are independent
    assert abs(np.corrcoef(noise[-1, ::2], noise[-1, 1::2])[0, 1]) < 5 / math.sqrt(len(names) / 2)
