"""SparseCount: a running count of rare events whose error grows with the number of events, less with that of ticks.

    ticks ──sparse vector──► segments that hold about `threshold` events ──counter over segments──► release

In the manner of Dwork, Naor, Reingold and Rothblum (2015): where segments end is released privately, and only the
totals of closed segments go through a counter, which then serves few numbers. It is a mechanism of its own and not a
query, because what is released is not linear in the data.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from evercount.engine.snapshot_format import pack, unpack
from evercount.errors import EvercountError, HorizonReached, InputError, ParameterError, SnapshotError
from evercount.mechanisms.declared_key import DERIVATION
from evercount.noise import NoiseOwner, Secret
from evercount.noise.laplace_sampler import ExactLaplace
from evercount.sparse.budget_split import SparsePlan, make_counter, plan_sparse

_AHEAD = 1 << 12
LARGEST_COUNT = 2**53


@dataclass(frozen=True)
class SparseRelease:
    """What one tick publishes. `closed`: a segment ended here. `full`: the counter has no segments left."""

    tick: int
    value: float
    low: float
    high: float
    closed: bool
    segments: int
    full: bool


def _past(horizon: int) -> HorizonReached:
    """HorizonReached with the remedy of a sparse counter, which cannot do without a horizon."""
    error = HorizonReached(horizon)
    error.args = (
        f"the counter has a horizon of {horizon} ticks and refuses tick {horizon + 1}: the noise is calibrated to that "
        "many. Start a new counter (its budget adds to the spent one) or, next time, give a larger horizon: its error "
        "grows with the logarithm only.",
    )
    return error


class SparseCount(NoiseOwner):
    """A private running count for streams with few events.

    `max_ones` is a public promise about the whole stream; privacy never depends on it. If more come, segments run out,
    releases say `full` and stay where they are. Without it the counter has no end and its error grows with the events.

    **Guarantee.** All releases together are (epsilon, delta)-DP (delta = 0: pure) for one event more or less, at any
    tick: the partition costs the larger of threshold_epsilon and tick_epsilon, the counter counter_epsilon and delta.
    Proof: `sparse_count.proof.md`, theorem 1. Test:
    tests/sparse/test_sparse_count.py::test_partition_costs_the_larger_rate_by_exact_enumeration.
    """

    owner_noun: ClassVar[str] = "counter"

    def __init__(
        self,
        epsilon: float,
        horizon: int,
        delta: float = 0.0,
        max_ones: int | None = None,
        *,
        beta: float = 0.05,
        secret: Secret | None = None,
    ) -> None:
        self.plan = plan_sparse(epsilon, horizon, delta, max_ones, beta)
        if not (secret is None or isinstance(secret, Secret)):
            raise ParameterError(f"secret must be a Secret or None, got {type(secret).__name__}")
        key = (Secret.generate() if secret is None else secret).derive(f"evercount/sparse/{DERIVATION}/{self.plan!r}")
        self._start(key, None)

    def _start(self, secret: Secret, dumped: dict[str, Any] | None) -> None:
        """Begin with the key of the noise; earlier versions used the secret itself as the key, for all plans."""
        self._own(secret, restored=dumped is not None)
        self._secret = secret
        self._thresholds = ExactLaplace(secret.derive("sparse thresholds"), self.plan.threshold_epsilon)
        self._ticks = ExactLaplace(secret.derive("sparse ticks"), self.plan.tick_epsilon)
        self._noise = make_counter(self.plan, secret.derive("sparse counter"), dumped)
        self._radius: dict[int, float] = {}
        self._clamped = True
        self.tick = 0
        self.segments = 0
        self._torn = False
        self._open = 0  # events of the segment that is not closed
        self._total = 0  # events of closed segments
        self._estimate = 0.0
        self._level = self._draw_level()

    def __repr__(self) -> str:
        return f"SparseCount({self.plan!r}, tick={self.tick}, segments={self.segments})"

    @property
    def guarantee(self) -> str:
        """The guarantee in one sentence."""
        return self.plan.sentence()

    @property
    def numeric_delta(self) -> float:
        """The part of delta that pays for the counter's finite arithmetic; 0.0 where delta is 0."""
        return self._noise.numeric_delta

    @property
    def full(self) -> bool:
        """Whether the counter has no segment left."""
        return self.plan.segments is not None and self.segments >= self.plan.segments

    def _draw_level(self) -> int:
        """The noisy threshold of the segment that begins."""
        return self.plan.threshold + int(self._thresholds.draw([self.segments], 1)[0, 0])

    def step(self, events: int) -> SparseRelease:
        """Release the next tick, in which so many events came."""
        return self._advance(self._checked([events]))[0]

    def run(self, counts: Iterable[int]) -> list[SparseRelease]:
        """Release many ticks: the same numbers as one `step` for each."""
        return self._advance(self._checked(counts))

    def _checked(self, counts: Iterable[int]) -> list[int]:
        if isinstance(counts, str | bytes) or not isinstance(counts, Iterable):
            raise InputError(f"the events of ticks must be a sequence, got {type(counts).__name__}; use step for one")
        values: npt.NDArray[Any]
        try:
            values = np.asarray(counts if isinstance(counts, np.ndarray | list | tuple) else list(counts))
        except ValueError:  # a list inside the list
            values = np.empty((0, 0))
        if values.ndim != 1 or (values.size and not np.issubdtype(values.dtype, np.integer)):
            raise InputError("the events of ticks must be whole numbers, one for each tick")
        if values.size and int(values.min()) < 0:
            raise InputError("the number of events of a tick must not be negative")
        if self.tick + len(values) > self.plan.horizon:
            raise _past(self.plan.horizon)
        numbers: list[int] = values.tolist()
        if self._total + self._open + sum(numbers) >= LARGEST_COUNT:
            raise InputError("the running count would pass 2^53")
        return numbers

    def _advance(self, counts: list[int]) -> list[SparseRelease]:
        self._check_owner()
        self._check_whole()
        self._torn = True
        made = []
        for start in range(0, len(counts), _AHEAD):
            part = counts[start : start + _AHEAD]
            noise = self._ticks.draw(np.arange(self.tick, self.tick + len(part)), 1)[:, 0].tolist()
            for events, extra in zip(part, noise, strict=True):
                self._open += events
                closed = not self.full and self._open + extra >= self._level
                if closed:
                    self._close()
                self.tick += 1
                made.append(self._release(closed))
        self._torn = False
        return made

    def _check_whole(self) -> None:
        if self._torn:
            raise EvercountError(
                "this counter was interrupted in the middle of a tick and cannot go on; restore its newest snapshot"
            )

    def _close(self) -> None:
        self._total, self._open = self._total + self._open, 0
        self._estimate = self._total + float(self._noise.stream.take(1)[0, 0])
        self.segments += 1
        self._level = self._draw_level()

    def _release(self, closed: bool) -> SparseRelease:
        if self.segments not in self._radius:
            self._radius = {self.segments: self.plan.counter_bound(self.segments)}
        off = self._radius[self.segments]
        top = float("inf") if self.full else self._estimate + 2 * self.plan.offset + off
        value = self._estimate + self.plan.offset
        if self._clamped:  # public promises: there is no count below 0, or above the promised number of events
            value = max(0.0, value if self.plan.max_ones is None else min(value, float(self.plan.max_ones)))
        return SparseRelease(self.tick, value, max(0.0, self._estimate - off), top, closed, self.segments, self.full)

    # -- snapshots -------------------------------------------------------------------------------------------------

    def snapshot(self) -> bytes:
        """Everything needed to continue identically. Secret: it holds raw sums and the key of the noise."""
        self._check_owner()
        self._check_whole()
        plan: SparsePlan = self.plan
        data = {
            "sparse": [plan.epsilon, plan.horizon, plan.delta, plan.max_ones, plan.beta],
            "plan": [plan.threshold, plan.spread, plan.segments, plan.threshold_epsilon.hex()],
            "secret": self._secret.hex(),
            "noise": self._noise.dump(),
            "clamped": self._clamped,
            "rule": plan.rule,
            "state": [self.tick, self.segments, self._open, self._total, self._estimate],
        }
        return pack(data)

    @classmethod
    def restore(cls, blob: bytes) -> SparseCount:
        """The counter of `snapshot`, or a SnapshotError."""
        data = unpack(blob)
        try:
            epsilon, horizon, delta, max_ones, beta = data["sparse"]
            made = cls.__new__(cls)
            made.plan = plan = plan_sparse(
                epsilon,
                horizon,
                delta,
                max_ones,
                beta,
                rule=data.get("rule", "sum"),  # older counters keep their split
            )
            same = data["plan"] == [plan.threshold, plan.spread, plan.segments, plan.threshold_epsilon.hex()]
            if not same:
                raise SnapshotError("the snapshot was made with another split of the budget; use the same version")
            made._start(Secret.from_hex(data["secret"]), data["noise"])
            made._clamped = data.get("clamped", False)  # older counters go on as they began
            made.tick, made.segments, made._open, made._total, made._estimate = _checked_state(data["state"], horizon)
            made._level = made._draw_level()
        except SnapshotError:
            raise
        except (EvercountError, KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
            raise SnapshotError(f"this is not a snapshot of a SparseCount ({type(error).__name__})") from None
        return made


def _checked_state(state: Any, horizon: int) -> tuple[int, int, int, int, float]:
    """(tick, segments, open, total, estimate) of a snapshot, or a ValueError."""
    tick, segments, open_, total, estimate = state
    whole = all(type(number) is int and number >= 0 for number in (tick, segments, open_, total))
    if not whole or not segments <= tick <= horizon or total + open_ >= LARGEST_COUNT:
        raise ValueError("numbers out of range")
    if type(estimate) is not float or not math.isfinite(estimate):
        raise ValueError("no estimate")
    return tick, segments, open_, total, estimate
