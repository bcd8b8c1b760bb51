"""A mechanism as a black box: many runs on either side of two neighbours, and an attack that tells
the sides apart.

Half of the runs train the attack (which statistic, which threshold), the other half judge it. The
statistics are the likelihood ratio of the claimed noise, the likelihood ratio of noise with the
covariance that the training runs show, a product event for Laplace noise, and the lowest set bits
of the published numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import permutations, product
from operator import itemgetter
from typing import Any

import numpy as np

from evercount._validate import BoolArray, FloatArray, check_count, check_probability, finite
from evercount.audit.replay import Claim, Pair, Program, Progress, no_progress
from evercount.errors import ParameterError
from evercount.noise import Secret

LEAST_RUNS = 40
THRESHOLDS = 33  # quantiles of the training runs that are tried as thresholds

Statistic = Callable[[FloatArray], FloatArray]
Statistics = dict[str, Statistic]
# how many runs of a side an event has, and bounds of its probability
Side = tuple[int, float, float]


@dataclass(frozen=True)
class AttackReport:
    program: str
    measure: str
    claimed: float
    possible: float
    attacked: float
    low: float
    high: float
    proved: float
    epsilon: float
    runs: int
    confidence: float
    statistic: str
    repeated: int = 0
    reason: str = ""
    hits: tuple[int, int] = (0, 0)
    judged: int = 0

    @property
    def holds(self) -> bool:
        return not self.reason

    def to_dict(self) -> dict[str, Any]:
        return {**finite(asdict(self)), "holds": self.holds}

    def summary(self) -> str:
        line = (
            f"{self.program}: claimed {self.measure} {self.claimed:.4g}, attacked "
            f"{self.attacked:.4g} [{self.low:.4g}, {self.high:.4g}] of {self.possible:.4g} "
            f"possible, proved {self.proved:.4g}; epsilon at least {self.epsilon:.4g} ({self.runs} "
            f"runs a side, {self.statistic})"
        )
        if self.holds:
            return line
        return f"{line}\n  THE PROMISE IS BROKEN: {self.reason}"


def check_runs(runs: int) -> None:
    if check_count("runs", runs) < LEAST_RUNS:
        raise ParameterError(f"an attack needs at least {LEAST_RUNS} runs a side, got {runs}")


def attack(
    program: Program,
    pair: Pair,
    runs: int = 2000,
    secret: Secret | None = None,
    confidence: float = 1 - 1e-4,
    progress: Progress = no_progress,
) -> AttackReport:
    """Attack one pair of neighbours with `runs` runs on either side, each with a secret of its own.

    **Guarantee.** If the promise is true, `proved` and `epsilon` exceed it with probability at most
    1 − confidence, whatever the noise is: thresholds are chosen on other runs than those that judge
    them. Proof: `attack.proof.md`. Test:
    tests/audit/test_mechanism.py::test_bounds_cover_at_their_confidence.
    """
    check_runs(runs)
    check_probability("confidence", confidence)
    root = Secret.generate() if secret is None else secret
    claim = program.claim(max(map(len, pair)))
    first, second = (program.run(data, root) for data in pair)
    measure = "epsilon" if claim.pure else "mu"
    if not first.same_structure(second):
        return AttackReport(
            program.name,
            measure,
            claim.limit,
            possible=math.inf,
            attacked=math.inf,
            low=math.inf,
            high=math.inf,
            proved=math.inf,
            epsilon=math.inf,
            runs=runs,
            confidence=confidence,
            statistic="structure",
            reason="the releases differ in more than noisy numbers",
        )
    difference = (first.values - second.values).ravel()
    possible = claim.spent(first.ticks, first.values - second.values)
    sides = [np.empty((runs, difference.size)) for _ in pair]
    for side, number in product((0, 1), range(runs)):
        published = program.run(pair[side], root.derive(f"side {side} run {number}"))
        if published.ticks != first.ticks:
            raise ParameterError(
                "which ticks the program publishes depends on its secret: that choice is not "
                "audited"
            )
        sides[side][number] = published.values.ravel()
        progress(side * runs + number + 1)
    repeated, expected = _repeats(sides[0], claim, first.ticks, len(first.labels))
    candidates = _statistics(sides, difference, claim, first.ticks, len(first.labels))
    result = _judge(candidates, sides, claim, confidence)
    reason = _why_broken(result, claim)
    if repeated > 3 + 10 * expected:
        reason = (
            f"{repeated} pairs of runs have the same noise, expected {expected:.2g}: not all of "
            "the secret is used"
        )
    return AttackReport(
        program.name, measure, claim.limit, possible, runs=runs, confidence=confidence,
        repeated=repeated, reason=reason, judged=runs - runs // 2, **result,
    )  # fmt: skip


def _why_broken(result: dict[str, Any], claim: Claim) -> str:
    """Say which number of an attack beats the claim; nothing if none does."""
    if result["proved"] > claim.limit:
        return f"the attack proves {result['proved']:.4g}"
    if result["low"] > claim.limit:
        return (
            f"the attack reaches {result['attacked']:.4g}, with confidence at least "
            f"{result['low']:.4g}"
        )
    if result["epsilon"] > claim.budget.epsilon:
        return f"the attack proves epsilon {result['epsilon']:.4g} at the promised delta"
    return ""


def _statistics(
    sides: list[FloatArray], difference: FloatArray, claim: Claim, ticks: Any, labels: int
) -> Statistics:
    """Make candidates from the training half of the runs and public numbers."""
    rows = claim.left[np.asarray(ticks) - 1]
    statistics: Statistics = {}
    if np.any(difference):
        # cells are independent in the claim; a direction for each of them
        weights = np.linalg.pinv(rows @ rows.T) @ difference.reshape(len(ticks), labels)
        statistics["claimed covariance"] = lambda y: np.asarray(y @ weights.ravel())
        training = [side[: len(side) // 2] for side in sides]
        centred = np.concatenate([half - half.mean(axis=0) for half in training])
        covariance = centred.T @ centred / len(centred)
        ridge = 1e-9 * np.trace(covariance) / len(covariance)
        learnt = np.linalg.solve(covariance + ridge * np.eye(len(covariance)), difference)
        statistics["learnt covariance"] = lambda y: np.asarray(y @ learnt)
        if claim.pure:
            signs = _dual_signs(rows, difference.reshape(len(ticks), labels)).ravel()
            middle = sides[1][: len(sides[1]) // 2].mean(axis=0)
            places = signs != 0
            statistics["product event"] = lambda y: ((y - middle)[:, places] * signs[places]).min(
                axis=1
            )
    statistics["low bits"] = lambda y: lowest_bits(y).min(axis=1)
    return statistics


def _dual_signs(rows: FloatArray, difference: FloatArray) -> FloatArray:
    """Find for each release the direction in which it speaks for the first side: the dual of the
    least-cost program."""
    # Where several releases say the same, the one with the fewest nodes is taken: it has the least
    # noise.
    from scipy.optimize import linprog

    signs = np.zeros_like(difference)
    limit = np.ones(2 * rows.shape[1])
    both = np.hstack([rows.T, -rows.T])
    fewest = 1e-3 * np.tile(np.square(rows).sum(axis=1) / np.square(rows).sum(axis=1).max(), 2)
    for number, column in enumerate(difference.T):
        if np.any(column):
            gain = np.concatenate([column, -column])
            solution = linprog(
                fewest * np.abs(gain).max() - gain, A_ub=np.vstack([both, -both]), b_ub=limit
            )
            if solution.success and solution.x is not None:
                weights = solution.x[: len(column)] - solution.x[len(column) :]
                signs[:, number] = np.where(np.abs(weights) > 1e-9, np.sign(weights), 0)
    return signs


def lowest_bits(values: FloatArray) -> FloatArray:
    """The exponent of the lowest bit that is set in each double; 1024 for zero.

    >>> lowest_bits(np.array([3.0, 0.5, 12.0, 0.0])).tolist()
    [0.0, -1.0, 2.0, 1024.0]
    """
    mantissa, exponent = np.frexp(values)
    integer = np.abs(mantissa * 2.0**53).astype(np.int64)
    lowest = np.where(integer == 0, 1, integer & -integer)
    return np.where(integer == 0, 1024.0, np.log2(lowest.astype(np.float64)) + exponent - 53)


def _judge(
    candidates: Statistics, sides: list[FloatArray], claim: Claim, confidence: float
) -> dict[str, Any]:
    """Judge the best candidate of the training half on the other half."""
    half = len(sides[0]) // 2
    candidate_events = []
    for name, statistic in candidates.items():
        train = [statistic(side[:half]) for side in sides]
        thresholds = np.unique(
            np.quantile(np.concatenate(train), np.linspace(0.01, 0.99, THRESHOLDS))
        )
        for threshold, sign in product(thresholds, (1, -1)):
            events = [sign * t >= sign * threshold for t in train]
            # with few runs no bound is positive: then the event that differs most between the sides
            score = (
                _bounds(events, claim, confidence)[0],
                abs(float(events[0].mean() - events[1].mean())),
            )
            candidate_events.append((score, name, float(threshold), sign))
    _, name, threshold, sign = max(candidate_events, key=itemgetter(0))
    every = [sign * candidates[name](side) >= sign * threshold for side in sides]
    events = [event[half:] for event in every]
    hits = _likely_side([event[:half] for event in every], events)
    proved, epsilon = _bounds(events, claim, confidence)
    model = "claimed covariance"
    if name == "learnt covariance":
        model = name
    attacked = low = high = 0.0
    if claim.pure:
        attacked, low, high = _log_ratio(events, confidence)
    elif model in candidates:
        first = 0  # the claimed direction needs no training
        if model == "learnt covariance":
            first = half
        attacked, low, high = _normal_model(
            [candidates[model](side[first:]) for side in sides], confidence
        )
    return {
        "statistic": name,
        "hits": hits,
        "attacked": attacked,
        "low": low,
        "high": high,
        "proved": proved,
        "epsilon": epsilon,
    }


def _likely_side(train: list[BoolArray], judge: list[BoolArray]) -> tuple[int, int]:
    """Count the hits of the judging runs: of the event or its complement, the likely side first, as
    the training runs say."""
    shares = [float(event.mean()) for event in train]
    # the rarer of the event and its complement has the larger ratio of probabilities
    rare = sum(shares) <= 1
    if not rare:
        judge = [~event for event in judge]
    first, second = (int(event.sum()) for event in judge)
    if (shares[0] >= shares[1]) == rare:
        return first, second
    return second, first


def clopper_pearson(hits: int, runs: int, confidence: float) -> tuple[float, float]:
    """One-sided lower and upper bounds of a probability, each at this confidence.

    >>> low, high = clopper_pearson(50, 100, 0.975)
    >>> round(low, 4), round(high, 4)
    (0.3983, 0.6017)
    """
    from scipy.special import betaincinv

    rest = 1 - confidence
    low = 0.0
    if hits > 0:
        low = float(betaincinv(hits, runs - hits + 1, rest))
    high = 1.0
    if hits < runs:
        high = float(betaincinv(hits + 1, runs - hits, 1 - rest))
    return low, high


def _orders(events: list[BoolArray], confidence: float) -> Iterator[tuple[Side, Side]]:
    """Give the event and its complement, each in both orders of the sides."""
    # They use four ends of two intervals, which share 1 − confidence.
    shared = 1 - (1 - confidence) / 4
    runs = len(events[0])
    hits = [int(event.sum()) for event in events]
    for counts in (hits, [runs - number for number in hits]):
        yield from permutations(
            (number, *clopper_pearson(number, runs, shared)) for number in counts
        )


def _bounds(events: list[BoolArray], claim: Claim, confidence: float) -> tuple[float, float]:
    """Compute (lower bound in the claim's measure, lower bound of ε at the promised δ) from one
    event on both sides."""
    from scipy.special import ndtri

    delta = claim.budget.delta
    epsilon = 0.0
    mu = 0.0
    for (_, more, _), (_, _, less) in _orders(events, confidence):
        if more > delta:
            epsilon = max(epsilon, math.log((more - delta) / less))
        mu = max(mu, float(ndtri(more) - ndtri(less)))
    if claim.pure:
        return epsilon, epsilon
    return mu, epsilon


def _log_ratio(events: list[BoolArray], confidence: float) -> tuple[float, float, float]:
    """Compute (estimate, low, high) of the largest log-ratio of the event, its complement and both
    orders of the sides."""
    ratios = (
        (math.log(a / b), math.log(low / above) if low else 0.0, math.log(high / below))
        for (a, low, high), (b, below, above) in _orders(events, confidence)
        if a > b > 0
    )
    return max(ratios, default=(0.0, 0.0, 0.0))


def _normal_model(values: list[FloatArray], confidence: float) -> tuple[float, float, float]:
    """Compute (estimate, low, high) of μ where the statistic is normal with one variance on both
    sides."""
    from scipy.special import ndtri

    runs = len(values[0])
    spread = math.sqrt((values[0].var(ddof=1) + values[1].var(ddof=1)) / 2)
    if spread == 0 and values[0][0] == values[1][0]:
        return 0.0, 0.0, 0.0
    if spread == 0:
        return math.inf, math.inf, math.inf
    mu = abs(float(values[0].mean() - values[1].mean())) / spread
    error = float(ndtri(confidence)) * normal_error(mu, runs)
    return mu, mu - error, mu + error


def normal_error(mu: float, runs: int) -> float:
    """The standard error of μ̂ from this many runs on either side, in the normal model."""
    return math.sqrt(2 / runs + mu**2 / (4 * runs))


def _repeats(
    side: FloatArray, claim: Claim, ticks: tuple[int, ...], labels: int
) -> tuple[int, float]:
    """Count (pairs of runs that publish the same numbers, about how many a correct program has)."""
    # Two independent draws of lattice vectors with covariance C in lattice units are equal with
    # probability about 1/√det(4πC). The lattice is read off the numbers: the least distance of two
    # of them. Laplace noise that is narrow against the lattice repeats itself more often, at most
    # as often as one number of its narrowest node does.
    counts = np.unique(side, axis=0, return_counts=True)[1]
    repeated = int((counts * (counts - 1) // 2).sum())
    rows = claim.left[np.asarray(ticks) - 1]
    if claim.cost is not None:
        scale = math.sqrt(2.0) / claim.cost
    else:
        scale = float(claim.sigma or 0)
    apart = np.diff(np.sort(side, axis=0), axis=0)
    lattice = float(apart[apart > 0].min(initial=np.inf))
    sign, logarithm = np.linalg.slogdet(4 * math.pi * (scale / lattice) ** 2 * rows @ rows.T)
    if sign <= 0:
        # no density to compare with: one number determines another
        return repeated, float(repeated)
    chance = math.exp(min(0.0, -labels * logarithm / 2))
    if claim.cost is not None:
        rate = claim.cost * lattice / float(np.abs(rows[rows != 0]).min())
        chance = max(chance, equal_laplace(rate) ** (len(ticks) * labels))
    return repeated, len(side) ** 2 / 2 * chance


def equal_laplace(rate: float) -> float:
    """The chance that two independent discrete Laplace numbers of this rate are equal: Σ_k P(k)².

    >>> round(equal_laplace(1.0), 4)
    0.2804
    """
    q = math.exp(-rate)
    return ((1 - q) / (1 + q)) ** 2 * (1 + q * q) / (1 - q * q)
