"""NamedNoise: exact noise of cells that have names and that join while the stream runs.

A name's noise begins at tick 1, whenever the name joins, and is a function of (secret, name, tick). So it does not tell
when a name joined, after which others, or how many there are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from evercount._arrays import FloatArray
from evercount.errors import SnapshotError
from evercount.factorizations import Factorization
from evercount.mechanisms.exact.exact_noise import ExactStream, pack, unpack
from evercount.mechanisms.noise_stream import NoiseStream
from evercount.noise import Secret

MOST_TOGETHER = 3999
"""Names of one cohort: larger ones have blocks of another length (`exact_noise.MANY`), and states do not join."""
JOIN_EVERY = 64  # cohorts are joined at multiples of this many ticks, where the blocks of most of them end


class NamedNoise(NoiseStream):
    """Exact noise by name. Names that join together are a cohort, with one `ExactStream`.

    The columns of `rows` are the names in the order in which they joined; `place` has the column of each name.

    **Guarantee.** The noise of a name at a tick is that of an `ExactStream` of this name alone: it depends on (secret,
    factorization, scale, name, tick) and on nothing else, so joining, order, snapshots and joined cohorts change no
    number. Tests: tests/mechanisms/test_named_noise.py::test_company_and_time_of_joining_change_no_number and
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
        self._parameters: tuple[Factorization, float] = (factorization, scale)
        self._secret, self.limit, self.numeric_delta = secret, limit, numeric_delta
        self._cohorts: list[ExactStream] = []
        self.place: dict[str, int] = {}
        self._add_cohorts(0, list(names))

    def __repr__(self) -> str:
        return f"NamedNoise({self._parameters[0].name}, tick={self.tick}, secret=…)"

    @property
    def tick(self) -> int:
        return self._cohorts[0].tick

    def take(self, ticks: int) -> FloatArray:
        return np.concatenate([cohort.take(ticks) for cohort in self._cohorts], axis=1)

    def rows(self, first: int, ticks: int) -> FloatArray:
        """One column for each name that has joined."""
        if first % JOIN_EVERY == 1 and all(cohort.tick == first - 1 for cohort in self._cohorts):
            self._join_cohorts()
        return np.concatenate([cohort.rows(first, ticks) for cohort in self._cohorts], axis=1)

    def join(self, names: Iterable[str], tick: int) -> bool:
        """Add the names that have not joined yet; their noise goes on after `tick`. Returns whether any was new.

        It takes time in proportion to `tick` and to the number of new names.
        """
        fresh = [name for name in dict.fromkeys(names) if name not in self.place]
        if fresh:
            self._add_cohorts(tick, fresh)
        return bool(fresh)

    def at(self, tick: int, names: Sequence[str]) -> FloatArray:
        """The noise of names at one tick, where ticks have independent noise: then nobody joins."""
        if not names:
            return np.empty(0)
        factorization, scale = self._parameters
        return ExactStream(factorization, scale, len(names), self._secret, limit=self.limit, names=names).row(tick)

    def _add_cohorts(self, tick: int, names: list[str]) -> None:
        factorization, scale = self._parameters
        for start in range(0, len(names), MOST_TOGETHER):
            part = names[start : start + MOST_TOGETHER]
            parameters = (self._secret, 0, self.numeric_delta, self.limit, part)
            cohort = ExactStream(factorization, scale, len(part), *parameters)
            cohort.skip_to(tick)
            self._cohorts.append(cohort)  # then the names: an interruption in between leaves a column that nobody reads
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
                left, right = last.dump(), cohort.dump()
                if left["start"] == right["start"]:
                    joined[-1] = self._together(left, right, [*(last.names or ()), *(cohort.names or ())])
                    continue
            joined.append(cohort)
        self._cohorts = joined

    def _together(self, left: Mapping[str, Any], right: Mapping[str, Any], names: list[str]) -> ExactStream:
        factorization, scale = self._parameters
        kernel = self._cohorts[0].kernel
        states = [unpack(one["state"], (kernel.rows, one["cells"]), kernel.narrow) for one in (left, right)]
        state = pack(np.concatenate(states, axis=2), kernel.narrow)
        return ExactStream.load(factorization, scale, len(names), {**left, "cells": len(names), "state": state}, names)

    def dump(self) -> dict[str, Any]:
        names = "\n".join(name for cohort in self._cohorts for name in cohort.names or ())
        cohorts = [{**cohort.dump(), "secret": ""} for cohort in self._cohorts]
        return {
            "secret": self._secret.hex(),
            "limit": self.limit,
            "names": np.frombuffer(names.encode(), np.uint8),
            "cohorts": cohorts,
        }

    @classmethod
    def load(cls, factorization: Factorization, scale: float, dumped: Mapping[str, Any]) -> NamedNoise:
        """The noise that `dump` described, or a SnapshotError where anything public differs."""
        try:
            noise = cls.__new__(cls)
            noise._parameters = (factorization, scale)
            noise._secret, noise.limit = Secret.from_hex(dumped["secret"]), int(dumped["limit"])
            noise._cohorts, noise.place = [], {}
            names = bytes(dumped["names"]).decode().split("\n")
            for one in dumped["cohorts"]:
                part, names = names[: one["cells"]], names[one["cells"] :]
                state = {**one, "secret": dumped["secret"]}
                noise._cohorts.append(ExactStream.load(factorization, scale, len(part), state, part))
                noise.place.update({name: len(noise.place) + number for number, name in enumerate(part)})
            noise.numeric_delta = noise._cohorts[0].numeric_delta
            agree = not names and len({cohort.tick for cohort in noise._cohorts}) == 1
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise SnapshotError(f"the noise state is damaged ({type(error).__name__})") from None
        if not agree:
            raise SnapshotError("the noise state is damaged: its names and its cohorts disagree")
        return noise
