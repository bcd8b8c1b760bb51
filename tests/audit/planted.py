"""Small programs with one privacy bug each, and an honest one to compare with. None of this is for
use.

The toys count with the square-root factorization over a few ticks. Noise is a function of the
secret, as in the product, but drawn by numpy: they are fast, and the audit sees the bug and nothing
else.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from evercount import (
    ActiveUsers,
    Budget,
    Count,
    DistinctUsers,
    Histogram,
    Quantiles,
    Rollup,
    Secret,
)
from evercount.audit import Claim, Published
from evercount.audit.doors import LibraryProgram
from evercount.audit.universes import Universe
from evercount.factorizations import factorization
from evercount.graphs import HighDegree
from evercount.queries import Occupancy
from evercount.words import Substrings

T = 4
BUDGET = Budget(3.0, 0.01)


class Honest:
    """A correct program: one vector z, σ from the joint sensitivity, every tick once, noise on a
    fine lattice."""

    name = "honest"
    query = Count()
    universe = Universe((0, 1), tick=sum)
    budget = BUDGET
    lattice = 2.0**-10

    def __init__(self) -> None:
        self.L, self.R = factorization("square-root", T).dense(T)

    @property
    def sigma(self) -> float:
        return self.budget.noise_multiplier() * float(np.linalg.norm(self.R, axis=0).max())

    def claim(self, ticks: int) -> Claim:
        return Claim(self.budget, self.L[:ticks], sigma=self.sigma)

    def generator(self, secret: Secret) -> np.random.Generator:
        return np.random.default_rng(int(secret.hex(), 16))

    def noise(self, secret: Secret) -> Any:
        return self.round(self.sigma * self.L @ self.generator(secret).standard_normal(T))

    def round(self, noise: Any) -> Any:
        return np.rint(noise / self.lattice) * self.lattice

    def sums(self, data: Any) -> Any:
        return np.cumsum([float(sum(tick)) for tick in data])

    def run(self, data: Any, secret: Secret) -> Published:
        values = self.sums(data) + self.noise(secret)[: len(data)]
        return Published(tuple(range(1, len(data) + 1)), ("count",), values[:, np.newaxis])


class Coin:
    """A mechanism with a known answer: one number, N(count, σ²), rounded to a fine lattice."""

    name = "coin"

    def __init__(self, sigma: float, stated: float) -> None:
        self.sigma, self.stated = sigma, stated

    def claim(self, ticks: int) -> Claim:
        return Claim(Budget.from_mu(1 / self.stated, 1e-3), np.eye(1), sigma=self.stated)

    def run(self, data: Any, secret: Secret) -> Published:
        drawn = np.random.default_rng(int(secret.hex(), 16)).standard_normal()
        value = round((len(data[0]) + self.sigma * drawn) * 2**20) / 2**20
        return Published((1,), ("count",), np.asarray([[value]]))


class FreshNoisePerRound(Honest):
    """The paper's proof of its theorem 2: a new vector z in every round."""

    def noise(self, secret: Secret) -> Any:
        generator = self.generator(secret)
        return self.round(
            np.asarray([self.sigma * self.L[t] @ generator.standard_normal(T) for t in range(T)])
        )


class SigmaWithoutColumnNorm(Honest):
    """σ = C·√S: ‖R‖ is forgotten."""

    @property
    def sigma(self) -> float:
        return self.budget.noise_multiplier()


class SmallerNoiseThanStated(Honest):
    """The stated σ is right; the noise that is drawn is not."""

    def noise(self, secret: Secret) -> Any:
        return self.round(super().noise(secret) / 1.5)


class TwoVersionsOfATick(Honest):
    """Every tick is published twice, preliminary (without its last event) and final, with the same
    noise."""

    def run(self, data: Any, secret: Secret) -> Published:
        final = super().run(data, secret)
        early = super().run(tuple(tick[:-1] for tick in data), secret)
        return Published(
            final.ticks * 2, final.labels, np.concatenate([early.values, final.values])
        )


class LateEventInAClosedTick(Honest):
    """The second event of a tick comes late: the tick before the current one is corrected and
    published again."""

    def run(self, data: Any, secret: Secret) -> Published:
        noise, rows, ticks = self.noise(secret), [], []
        for now in range(1, len(data) + 1):
            on_time = [
                tick if number < now - 1 else tick[:1] for number, tick in enumerate(data[:now])
            ]
            sums = self.sums(on_time)
            for tick in (now - 1, now) if now > 1 else (now,):
                ticks.append(tick)
                rows.append([sums[tick - 1] + noise[tick - 1]])
        return Published(tuple(ticks), ("count",), np.asarray(rows))


class NoiseStartsAgainAfterRestore(Honest):
    """A restart after half the ticks forgets where the noise stood and takes it from the first tick
    on."""

    def noise(self, secret: Secret) -> Any:
        made = super().noise(secret)
        return np.concatenate([made[: T // 2], made[: T - T // 2]])


class KeyAppearsWithItsFirstEvent(Honest):
    """A column for every key that has occurred."""

    universe = Universe(("a", "b"))
    query = None

    def run(self, data: Any, secret: Secret) -> Published:
        keys = sorted({event for tick in data for event in tick})
        columns = []
        for key in keys:
            counts = np.cumsum([float(tick.count(key)) for tick in data])
            columns.append(counts + self.noise(secret.derive(key))[: len(data)])
        values = np.stack(columns, axis=1) if keys else np.empty((len(data), 0))
        return Published(tuple(range(1, len(data) + 1)), tuple(keys), values)


class CapAfterEncoding(Honest):
    """Users are protected with at most 2 events, but the cap is applied to each tick's sum of a
    user, not to events."""

    budget = Budget(3.0, 0.01, unit="user", max_events=2)
    query = None
    universe = Universe((1,), tick=sum)

    @property
    def sigma(self) -> float:
        return 2 * super().sigma

    def sums(self, data: Any) -> Any:
        totals = []
        for tick in data:
            users: dict[str, float] = {}
            for user, event in tick:
                users[user] = users.get(user, 0.0) + event
            totals.append(sum(min(2.0, total) for total in users.values()))
        return np.cumsum(totals)


class ShortSeed(Honest):
    """All noise follows from 16 bits of the secret."""

    def generator(self, secret: Secret) -> np.random.Generator:
        return np.random.default_rng(int(secret.hex(), 16) % 2**16)


class FloatNoise(Honest):
    """Float noise added to float counts: the lowest bits tell the count (Mironov 2012)."""

    budget = Budget(1.0, 1e-3)

    def round(self, noise: Any) -> Any:
        return noise


class RoundingBeforeNoise(Honest):
    """Values of at most 0.4 are added up and the sum is rounded to whole numbers before the noise
    for 0.4."""

    query = None
    universe = Universe((0.2, 0.4), tick=list)

    @property
    def sigma(self) -> float:
        return 0.4 * super().sigma

    def sums(self, data: Any) -> Any:
        return np.rint(super().sums(data))


class PerTickCalibration(Honest):
    """Independent noise on every running count, calibrated as if one tick were all that is
    published."""

    def claim(self, ticks: int) -> Claim:
        return Claim(self.budget, np.eye(ticks), sigma=self.budget.noise_multiplier())

    def noise(self, secret: Secret) -> Any:
        return self.round(
            self.budget.noise_multiplier() * self.generator(secret).standard_normal(T)
        )


class ParallelAdaptiveStreams(Honest):
    """Two streams of disjoint events, claimed to cost as much as one; what the first releases
    decides who is in it."""

    query = None
    universe = Universe((1,), tick=sum)

    def run(self, data: Any, secret: Secret) -> Published:
        noises = [self.noise(secret.derive(name)) for name in ("first", "second")]
        totals, rows = [0.0, 0.0], []
        side = 0
        for tick, events in enumerate(data):
            totals[side] += float(sum(events))
            row = [total + noise[tick] for total, noise in zip(totals, noises, strict=True)]
            side = int(np.floor(row[0])) % 2
            rows.append(row)
        return Published(tuple(range(1, len(data) + 1)), ("first", "second"), np.asarray(rows))


class PaperSubstrings(Substrings):
    """The paper's S = ℓ²."""

    def squared_sensitivity(self, adjacency: Any) -> float:
        return float(self.parameters()["max_length"] ** 2)


class PaperHighDegree(HighDegree):
    """The paper's corollary: the squared l2 norm of the difference sequence, 6."""

    def squared_sensitivity(self, adjacency: Any) -> float:
        return 6.0


class ReplaceAsAddRemove(Histogram):
    """The S of add-remove for both adjacencies."""

    def squared_sensitivity(self, adjacency: Any) -> float:
        return super().squared_sensitivity("add-remove")


class LevelWeightsForgotten(Rollup):
    """S is the number of levels, although the rows of a level are multiplied by its weight."""

    def squared_sensitivity(self, adjacency: Any) -> float:
        return float(self.depth + 1)


class ValueInTwoBins(Quantiles):
    """A value at an edge counts in the bins on both sides, with the S of one bin."""

    def encode(self, state: Any, events: Any) -> Any:
        both = [
            value for event in events for value in {event, max(event - self.width, self.edges[0])}
        ]
        return super().encode(state, both)


class OncePerKeyAsOnce(DistinctUsers):
    """A user counts under every key, with the S of a user that counts once."""

    def user_sensitivity(self, adjacency: Any, *more: Any, **kinds: Any) -> float:
        return 1.0


class EveryTickAsOnce(ActiveUsers):
    """A user counts in many ticks, with the S of a user that counts in one."""

    each_tick = False

    def check_budget(self, budget: Budget) -> None:
        pass


class MovesAsOneChange(Occupancy):
    """A user who moves changes two cells, with the S of a user who changes one."""

    def user_sensitivity(self, adjacency: Any, *more: Any, **kinds: Any) -> float:
        return Occupancy(max_events=1).user_sensitivity(adjacency, *more, **kinds)


def level_weights_forgotten() -> LibraryProgram:
    paths = [("a", "x"), ("a", "y"), ("b", "x")]
    return LibraryProgram(LevelWeightsForgotten(paths, [1, 2, 3]), Budget(1.0, 1e-6), 6)


def value_in_two_bins() -> LibraryProgram:
    return LibraryProgram(ValueInTwoBins(0, 4, 4), Budget(1.0, 1e-6), 6)


def once_per_key_as_once() -> LibraryProgram:
    return LibraryProgram(
        OncePerKeyAsOnce(["a", "b"], max_keys=2), Budget(1.0, 1e-6, unit="user"), 6
    )


def every_tick_as_once() -> LibraryProgram:
    return LibraryProgram(EveryTickAsOnce(), Budget(1.0, 1e-6, unit="user", max_ticks=4), 6)


def moves_as_one_change() -> LibraryProgram:
    return LibraryProgram(
        MovesAsOneChange(["a", "b"], max_events=6), Budget(1.0, 1e-6, unit="user"), 6, "balanced"
    )


def paper_substrings() -> LibraryProgram:
    return LibraryProgram(PaperSubstrings("ab", 2), Budget(1.0, 1e-6, adjacency="replace"), 6)


def paper_graphs() -> LibraryProgram:
    return LibraryProgram(PaperHighDegree(4, tau=2), Budget(1.0, 1e-6), 6)


def replace_as_add_remove() -> LibraryProgram:
    return LibraryProgram(ReplaceAsAddRemove(3), Budget(1.0, 1e-6, adjacency="replace"), 6)
