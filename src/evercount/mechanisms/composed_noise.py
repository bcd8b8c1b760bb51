"""Noise streams that are put together from exact ones: drawn afresh in each tick or period, or a
stream for each name.

`FreshStream` and `PeriodicStream` add noise of a tick or of a period on top of that of earlier
ones. In `NamedNoise` cells have names, which join while the stream runs: a name's noise begins at
tick 1, whenever it joins, and is a function of (secret, name, tick). So it does not tell when a
name joined, after which others, or how many there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from evercount._validate import IntArray
from evercount.errors import SnapshotError
from evercount.factorizations import Direct, Factorization, Periods
from evercount.mechanisms.exact.exact_noise import ExactStream, pack, unpack
from evercount.mechanisms.exact.filter_numbers import MOST_TICKS
from evercount.mechanisms.noise_stream import Facts, NoiseStream, check_room, whole_noise
from evercount.noise import Secret
from evercount.noise.prf import NameHashes

ONE_BY_ONE = Direct(MOST_TICKS)
"""Its rows are the normals themselves, each rounded to a whole number of grid units."""


class FreshStream(NoiseStream):
    """The noise of `fresh`: row t is the sum of the first t numbers of an `ExactStream` of
    independent rows.

    **Guarantee.** Differences of rows are functions of (secret, scale, tick, cell) alone, so the
    noise of ticks that two neighbours share has one law, whatever finite arithmetic makes of it.
    Test: tests/mechanisms/test_fresh_noise.py::test_only_touched_ticks_cost_anything.
    """

    rounded = True

    def __init__(
        self,
        scale: float,
        cells: int,
        secret: Secret,
        first_cell: int,
        numeric_delta: float,
        limit: int,
        dumped: dict[str, Any] | None = None,
    ) -> None:
        self.numeric_delta = numeric_delta
        self._secret = secret
        if dumped is None:
            self._each = ExactStream(ONE_BY_ONE, scale, cells, secret, first_cell, limit=limit)
            self._before: IntArray = np.zeros(cells, np.int64)
            return
        self._each = ExactStream.load(ONE_BY_ONE, scale, cells, dumped)
        self._before = whole_noise(dumped["before"], cells)
        if self._each.first_cell != first_cell:
            raise SnapshotError("the noise state belongs to other cells")

    @property
    def tick(self) -> int:
        return self._each.tick

    def take(self, ticks: int) -> IntArray:
        rows = np.cumsum(self._each.take(ticks), axis=0)
        rows += self._before
        check_room(rows)
        if ticks:
            self._before = rows[-1].copy()
        return rows

    def further_cells(self, first_cell: int, cells: int) -> FreshStream:
        each = self._each
        return FreshStream(
            each.scale, cells, self._secret, first_cell, self.numeric_delta, each.limit
        )

    def prepare(self) -> None:
        self._each.prepare()

    def dump(self) -> dict[str, Any]:
        return {**self._each.dump(), "before": self._before}


class PeriodicStream(NoiseStream):
    """The noise of `periods-7`: every period has noise of its own, from a key derived from the
    stream's key and the period's number.

    **Guarantee.** Row t is the noise at the ends of all earlier periods plus that of the tick's
    own: a function of outputs of independent inner streams, one for each period. Test:
    tests/factorizations/test_periods.py::test_exact_noise_has_the_stated_covariance.
    """

    rounded = True

    def __init__(self, factorization: Periods, scale: float, cells: int, root: Secret) -> None:
        self.period = factorization.width
        self._root = root
        self._factorization = factorization.period
        self._scale = scale
        self._cells = cells
        self._done, self._inner = 0, self._noise_of(0)
        self._before: IntArray = np.zeros(cells, np.int64)
        self.numeric_delta = self._inner.numeric_delta

    def _noise_of(self, period: int) -> ExactStream:
        secret = self._root.derive(f"period {period}")
        return ExactStream(self._factorization, self._scale, self._cells, secret)

    @property
    def tick(self) -> int:
        return self._done * self.period + self._inner.tick

    def take(self, ticks: int) -> IntArray:
        parts = [self._inner.take(0)]
        while ticks:
            if self._inner.tick == self.period:
                self._done, self._inner = self._done + 1, self._noise_of(self._done + 1)
            count = min(ticks, self.period - self._inner.tick)
            parts.append(self._inner.take(count) + self._before)
            check_room(parts[-1])
            ticks -= count
            if self._inner.tick == self.period:
                self._before = parts[-1][-1].copy()
        return np.concatenate(parts)

    def dump(self) -> dict[str, Any]:
        inner = {"done": self._done, "before": self._before, "inner": self._inner.dump()}
        return {"secret": self._root.hex(), **inner}

    def resume(self, dumped: dict[str, Any]) -> PeriodicStream:
        before = whole_noise(dumped["before"], len(self._before))
        inner = dumped["inner"]
        self._inner = ExactStream.load(self._factorization, self._scale, self._cells, inner)
        self._done, self._before = int(dumped["done"]), before
        return self


MOST_TOGETHER = 3999
"""Names of one cohort: larger ones have blocks of another length (`exact_noise.MANY`), and states
do not join."""
# cohorts are joined at multiples of this many ticks, where the blocks of most of them end
JOIN_EVERY = 64


class NamedNoise(NoiseStream):
    """Exact noise by name. Names that join together are a cohort, with one `ExactStream`.

    The columns of `rows` are the names in the order in which they joined; `place` has the column of
    each name.

    **Guarantee.** The noise of a name at a tick is that of an `ExactStream` of this name alone: it
    depends on (secret, factorization, scale, name, tick) and on nothing else, so joining, order,
    snapshots and joined cohorts change no number. Tests:
    tests/mechanisms/test_named_noise.py::test_company_and_time_of_joining_change_no_number and
    tests/mechanisms/test_named_noise.py::test_snapshots_and_joined_cohorts_change_no_number.
    """

    rounded = True

    def __init__(
        self,
        factorization: Factorization,
        scale: float,
        secret: Secret,
        names: Sequence[str],
        limit: int,
        numeric_delta: float = 0.0,
    ) -> None:
        self._factorization = factorization
        self._scale = scale
        self._secret = secret
        self.limit = limit
        self.numeric_delta = numeric_delta
        self._hashes: NameHashes | None = None  # of `at`
        self._cohorts: list[ExactStream] = []
        self.place: dict[str, int] = {}
        self._add_cohorts(0, list(names))

    @property
    def tick(self) -> int:
        return self._cohorts[0].tick

    def take(self, ticks: int) -> IntArray:
        return np.concatenate([cohort.take(ticks) for cohort in self._cohorts], axis=1)

    def rows(self, first: int, ticks: int) -> IntArray:
        """One column for each name that has joined."""
        if first % JOIN_EVERY == 1 and all(cohort.tick == first - 1 for cohort in self._cohorts):
            self._join_cohorts()
        return np.concatenate([cohort.rows(first, ticks) for cohort in self._cohorts], axis=1)

    def join(self, names: Iterable[str], tick: int) -> bool:
        """Add the names that have not joined yet; their noise goes on after `tick`. Returns whether
        any was new.

        It takes time in proportion to `tick` and to the number of new names.
        """
        fresh = [name for name in dict.fromkeys(names) if name not in self.place]
        if fresh:
            self._add_cohorts(tick, fresh)
        return bool(fresh)

    def at(self, tick: int, names: Sequence[str]) -> IntArray:
        """The noise of names at one tick, where ticks have independent noise: then nobody joins."""
        if not names:
            return np.empty(0, np.int64)
        if self._hashes is None:
            self._hashes = NameHashes(self._secret)
        stream = ExactStream(
            self._factorization,
            self._scale,
            len(names),
            self._secret,
            limit=self.limit,
            names=self._hashes.of(names),
        )
        return stream.row(tick)

    def _add_cohorts(self, tick: int, names: list[str]) -> None:
        """Let these names join after this tick, in cohorts of bounded size."""
        for start in range(0, len(names), MOST_TOGETHER):
            part = names[start : start + MOST_TOGETHER]
            cohort = ExactStream(
                self._factorization,
                self._scale,
                len(part),
                self._secret,
                numeric_delta=self.numeric_delta,
                limit=self.limit,
                names=part,
            )
            cohort.skip_to(tick)
            # then the names: an interruption in between leaves a column that nobody reads
            self._cohorts.append(cohort)
            first = sum(one.cells for one in self._cohorts) - len(part)
            self.place.update((name, first + number) for number, name in enumerate(part))

    def expect(self, names: Iterable[str]) -> None:
        self.join(names, self.tick)

    def prepare(self) -> None:
        for cohort in self._cohorts:
            cohort.prepare()

    def _join_cohorts(self) -> None:
        """Put neighbouring cohorts together whose blocks begin at the same tick."""
        joined: list[ExactStream] = []
        for cohort in self._cohorts:
            last = joined[-1] if joined else None
            if last is not None and last.cells + cohort.cells <= MOST_TOGETHER:
                left = last.dump()
                right = cohort.dump()
                if left["start"] == right["start"]:
                    joined[-1] = self._together(
                        left, right, [*(last.names or ()), *(cohort.names or ())]
                    )
                    continue
            joined.append(cohort)
        self._cohorts = joined

    def _together(self, left: Facts, right: Facts, names: list[str]) -> ExactStream:
        """Make one stream of two whose blocks begin at the same tick."""
        kernel = self._cohorts[0].kernel
        states = [
            unpack(one["state"], (kernel.rows, one["cells"]), kernel.narrow)
            for one in (left, right)
        ]
        state = pack(np.concatenate(states, axis=2), kernel.narrow)
        joined = {**left, "cells": len(names), "state": state}
        return ExactStream.load(self._factorization, self._scale, len(names), joined, names)

    def dump(self) -> dict[str, Any]:
        text = "\n".join(name for cohort in self._cohorts for name in cohort.names or ())
        names = np.frombuffer(text.encode(), np.uint8)
        cohorts = [{**cohort.dump(), "secret": ""} for cohort in self._cohorts]
        return {
            "secret": self._secret.hex(),
            "limit": self.limit,
            "names": names,
            "cohorts": cohorts,
        }

    @classmethod
    def load(cls, factorization: Factorization, scale: float, dumped: Facts) -> NamedNoise:
        """The noise that `dump` described, or a SnapshotError where anything public differs."""
        try:
            noise = cls(
                factorization, scale, Secret.from_hex(dumped["secret"]), (), int(dumped["limit"])
            )
            names = bytes(dumped["names"]).decode().split("\n")
            for one in dumped["cohorts"]:
                part = names[: one["cells"]]
                names = names[one["cells"] :]
                state = {**one, "secret": dumped["secret"]}
                noise._cohorts.append(
                    ExactStream.load(factorization, scale, len(part), state, part)
                )
                noise.place.update(
                    {name: len(noise.place) + number for number, name in enumerate(part)}
                )
            noise.numeric_delta = noise._cohorts[0].numeric_delta
            agree = not names and len({cohort.tick for cohort in noise._cohorts}) == 1
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise SnapshotError(f"the noise state is damaged ({type(error).__name__})") from None
        if not agree:
            raise SnapshotError("the noise state is damaged: its names and its cohorts disagree")
        return noise
