"""SparseCount: a running count of rare events whose error grows with the number of events, less
with that of ticks.

    ticks ──sparse vector──► segments that hold about `threshold` events
          ──counter over segments──► release

Where that has a larger proved error than a plain counter over ticks, or than half of the promised
number of events for ever, the counter does that instead (`SparsePlan.method`).

In the manner of Dwork, Naor, Reingold and Rothblum (2015): where segments end is released
privately, and only the totals of closed segments go through a counter, which then serves few
numbers. It is a mechanism of its own and not a query, because what is released is not linear in the
data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from evercount._validate import chance_outside
from evercount.engine.snapshot_format import pack, unpack
from evercount.errors import EvercountError, HorizonReached, InputError, SnapshotError
from evercount.mechanisms import Noise
from evercount.noise import NoiseOwner, Secret
from evercount.noise.laplace_sampler import ExactLaplace
from evercount.noise.secret import check_secret
from evercount.sparse.budget_split import make_counter, plan_sparse
from evercount.sparse.sparse_plan import SparsePlan, up_to_power

TICKS_AHEAD = 1 << 12  # ticks whose noise is drawn at a time
LARGEST_COUNT = 2**53  # counts are exact as doubles below this

State = tuple[int, int, int, int, float]
"""The tick, the number of closed segments, the events of the open one and of the closed ones, and
the estimate."""


@dataclass(frozen=True)
class SparseRelease:
    """What one tick publishes. `closed`: a segment ended here. `full`: the counter has no segments
    left.

    Attributes:
        tick: The 1-based tick.
        value: The published count.
        low: The lower end of its interval.
        high: The upper end of its interval; infinite where nothing limits it.
        closed: Whether a segment ended at this tick.
        segments: How many segments have ended.
        full: Whether no segment is left.
    """

    tick: int
    value: float
    low: float
    high: float
    closed: bool
    segments: int
    full: bool


class SparseCount(NoiseOwner):
    """A private running count for streams with few events.

    `max_ones` is a public promise about the whole stream; privacy never depends on it. If more
    come, segments run out, releases say `full` and stay where they are. Without it the counter has
    no end and its error grows with the events. What is published is the middle of the interval that
    the noise leaves between 0 and `max_ones`.

    Args:
        epsilon: The whole budget.
        horizon: The number of ticks, or None for a counter without end.
        delta: 0 for pure privacy; else the counter has Gaussian noise.
        max_ones: The promise, or None.
        level: The probability with which the stated bounds hold.
        method: "partition", "plain" or "constant"; None takes the one of the least proved bound.
        secret: The source of the noise; None draws a new one.

    Raises:
        ParameterError: An argument is out of its range.

    Example:
        >>> counter = SparseCount(1.0, 1000, max_ones=1)
        >>> counter.plan.method, counter.step(0).value
        ('constant', 0.5)

    **Guarantee.** All releases together are (epsilon, delta)-DP (delta = 0: pure) for one event
    more or less, at any tick: the partition costs the larger of threshold_epsilon and tick_epsilon,
    the counter counter_epsilon and delta. Proof: `sparse_count.proof.md`, theorem 1. Tests:
    tests/sparse/test_sparse_count.py::test_partition_costs_the_larger_rate_by_exact_enumeration,
    tests/sparse/test_sparse_count.py::test_privacy_of_thresholds_that_grow_by_exact_enumeration.
    """

    _owner_noun: ClassVar[str] = "counter"

    def __init__(
        self,
        epsilon: float,
        horizon: int | None = None,
        delta: float = 0.0,
        max_ones: int | None = None,
        *,
        level: float = 0.95,
        method: str | None = None,
        secret: Secret | None = None,
    ) -> None:
        self.plan = plan_sparse(epsilon, horizon, delta, max_ones, chance_outside(level), method)
        root = Secret.generate() if secret is None else check_secret(secret)
        self._start(root.derive(f"evercount/sparse/2/{self.plan!r}"), None, (0, 0, 0, 0, 0.0))

    def _start(self, secret: Secret, dumped: dict[str, Any] | None, state: State) -> None:
        self._own(secret, restored=dumped is not None)
        self._secret = secret
        self._noise: Noise | None = None
        if self.plan.method == "partition":
            self._thresholds = ExactLaplace(secret.derive("sparse thresholds"))
            self._ticks = ExactLaplace(secret.derive("sparse ticks"))
        if self.plan.method != "constant":
            self._noise = make_counter(self.plan, secret.derive("sparse counter"), dumped)
        self.tick, self.segments, self._open, self._total, self._estimate = state
        self._level_noise = self._draw_level()

    def __repr__(self) -> str:
        return f"SparseCount({self.plan!r}, tick={self.tick}, segments={self.segments})"

    @property
    def guarantee(self) -> str:
        """The guarantee in one sentence."""
        return self.plan.sentence()

    @property
    def numeric_delta(self) -> float:
        """The part of delta that pays for the counter's finite arithmetic; 0.0 where delta is 0."""
        if self._noise is None:
            return 0.0
        return self._noise.numeric_delta

    @property
    def full(self) -> bool:
        """Whether the counter has no segment left."""
        return self.plan.segments is not None and self.segments >= self.plan.segments

    def _draw_level(self) -> int:
        """Draw the noise of the threshold of the segment that begins."""
        if self.plan.method != "partition":
            return 0
        return int(self._thresholds.draw([self.segments], self.plan.threshold_epsilon, 1)[0, 0])

    def step(self, events: int) -> SparseRelease:
        """Release the next tick.

        Args:
            events: The number of events of the tick.

        Returns:
            What the tick publishes.

        Raises:
            InputError: It is not a whole number, or negative.
            HorizonReached: All ticks of the horizon were released.
        """
        return self._advance(self._read_counts([events]))[0]

    def run(self, counts: Iterable[int]) -> list[SparseRelease]:
        """Release many ticks: the same numbers as one `step` for each.

        Args:
            counts: The number of events of each tick.

        Returns:
            One release for each tick.

        Raises:
            InputError: They are not whole numbers of at least 0.
            HorizonReached: There are more ticks than the horizon has left. Nothing was released.
        """
        return self._advance(self._read_counts(counts))

    def _read_counts(self, counts: Iterable[int]) -> list[int]:
        if (
            isinstance(counts, str | bytes)
            or not isinstance(counts, Iterable)
            or getattr(counts, "ndim", 1) == 0
        ):
            raise InputError(
                f"the events of ticks must be a sequence, got {type(counts).__name__}; use step "
                "for one"
            )
        values = list(counts)
        whole = (
            isinstance(value, int | np.integer) and not isinstance(value, bool) for value in values
        )
        if not all(whole) or min(values, default=0) < 0:
            raise InputError(
                "the events of ticks must be whole numbers of at least 0, one for each tick"
            )
        if self.plan.horizon is not None and self.tick + len(values) > self.plan.horizon:
            raise HorizonReached(self.plan.horizon)
        numbers = [int(value) for value in values]
        if self._total + self._open + sum(numbers) >= LARGEST_COUNT:
            raise InputError("the running count would pass 2^53")
        return numbers

    def _advance(self, counts: list[int]) -> list[SparseRelease]:
        self._check_owner()
        self._torn = True
        releases = []
        for start in range(0, len(counts), TICKS_AHEAD):
            part = counts[start : start + TICKS_AHEAD]
            for events, noise in zip(part, self._draw_ticks(len(part)), strict=True):
                self.tick += 1
                releases.append(self._release(self._count(events, noise)))
        self._torn = False
        return releases

    def _draw_ticks(self, ticks: int) -> list[int]:
        """Draw the noise of the next ticks: of their comparisons with the threshold, or of the
        plain counter."""
        noise = [0] * ticks
        if self.plan.method == "partition":
            numbers = np.arange(self.tick, self.tick + ticks)
            noise = self._ticks.draw(numbers, self.plan.tick_epsilon, 1)[:, 0].tolist()
        elif self._noise is not None:
            noise = self._noise.stream.take(ticks)[:, 0].tolist()
        return noise

    def _count(self, events: int, noise: int) -> bool:
        """Count the events of a tick; return whether a segment ends with it."""
        if self.plan.method != "partition":
            self._total += events  # of a constant, for the refusal of a count above 2^53 only
            if self._noise is not None:
                self._estimate = float(self._total + noise)
            return False
        self._open += events
        closed = (
            not self.full
            and self._open + noise >= self.plan.threshold_at(self.tick) + self._level_noise
        )
        if closed:
            assert self._noise is not None
            self._total = self._total + self._open
            self._open = 0
            self._estimate = float(self._total + int(self._noise.stream.take(1)[0, 0]))
            self.segments += 1
            self._level_noise = self._draw_level()
        return closed

    def _release(self, closed: bool) -> SparseRelease:
        """Compute what the tick publishes: a function of what was released before and of public
        numbers."""
        plan = self.plan
        if plan.max_ones is None:
            most = math.inf
        else:
            most = float(plan.max_ones)
        if plan.method == "constant":
            return SparseRelease(self.tick, most / 2, 0.0, most, False, 0, False)
        if plan.method == "plain":
            releases = up_to_power(self.tick)
        else:
            releases = self.segments
        off = plan.counter_bound(releases)
        offset = plan.offset(self.tick)
        low = max(0.0, self._estimate - off)
        high = self._estimate + 2 * offset + off
        value = self._estimate + offset
        if self.full:
            value = max(low, min(value, most))
            high = math.inf
        elif low <= (high := min(high, most)):
            value = (low + high) / 2
        else:  # the noise passed its bound: the nearest possible number
            value = low = high = max(0.0, min(value, most))
        return SparseRelease(self.tick, value, low, high, closed, self.segments, self.full)

    def snapshot(self) -> bytes:
        """Everything needed to continue identically. Secret: it holds raw sums and the key of the
        noise.

        Returns:
            The bytes for `restore`.

        Raises:
            EvercountError: the counter is closed, belongs to another process, or was interrupted in
                a tick.
        """
        self._check_owner()
        plan: SparsePlan = self.plan
        noise = {}
        if self._noise is not None:
            noise = self._noise.dump()
        data = {
            "sparse": [plan.epsilon, plan.horizon, plan.delta, plan.max_ones, plan.beta],
            "method": plan.method,
            "counter": plan.counter,
            "plan": _split_of(plan),
            "secret": self._secret.hex(),
            "noise": noise,
            "state": [self.tick, self.segments, self._open, self._total, self._estimate],
        }
        return pack(data)

    @classmethod
    def restore(cls, blob: bytes) -> SparseCount:
        """The counter of `snapshot`, or a SnapshotError.

        Args:
            blob: A result of `snapshot`.

        Returns:
            The counter, which goes on with the same numbers.

        Raises:
            SnapshotError: It is anything else, or comes from another split of the budget.
        """
        data = unpack(blob)
        try:
            epsilon, horizon, delta, max_ones, beta = data["sparse"]
            counter = cls.__new__(cls)
            counter.plan = plan = plan_sparse(
                epsilon, horizon, delta, max_ones, beta, data["method"]
            )
            if data["plan"] != _split_of(plan) or data["counter"] != plan.counter:
                raise SnapshotError(
                    "the snapshot was made with another split of the budget; use the same version"
                )
            counter._start(
                Secret.from_hex(data["secret"]),
                data["noise"],
                _checked_state(data["state"], horizon),
            )
        except SnapshotError:
            raise
        except (
            EvercountError,
            KeyError,
            TypeError,
            ValueError,
            IndexError,
            AttributeError,
            OverflowError,
        ) as error:
            raise SnapshotError(
                f"this is not a snapshot of a SparseCount ({type(error).__name__})"
            ) from None
        return counter


def _split_of(plan: SparsePlan) -> list[Any]:
    return [plan.threshold, plan.spread, plan.segments, plan.threshold_epsilon.hex()]


def _checked_state(state: Any, horizon: int | None) -> State:
    """Check the state of a snapshot, or raise ValueError."""
    tick, segments, open_, total, estimate = state
    legal = all(type(number) is int and number >= 0 for number in (tick, segments, open_, total))
    legal = legal and segments <= tick and total + open_ < LARGEST_COUNT
    if not legal or (horizon is not None and tick > horizon):
        raise ValueError("numbers out of range")
    if type(estimate) is not float or not math.isfinite(estimate):
        raise ValueError("no estimate")
    return tick, segments, open_, total, estimate
