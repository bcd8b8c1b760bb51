"""JoinedNoise: the noise of cells that were there from the start, and of cells that joined later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from evercount._arrays import FloatArray
from evercount.errors import SnapshotError
from evercount.mechanisms.noise_stream import NoiseStream

NUMBERS_AT_A_TIME = 2**20


class Cohort(NamedTuple):
    """Cells that joined together: their noise from tick 1 on, and what it was before they joined."""

    noise: NoiseStream
    cells: int
    base: FloatArray


class JoinedNoise(NoiseStream):
    """Noise of cohorts, one beside the other. That of cells which joined after tick a is n(t) − n(a).

    **Guarantee.** Cell c has the noise n of the stream that had all cells from the start, less n(a) where it joined
    after tick a: a function of that stream's noisy sums, because a cell that has not joined counts nothing. Proof:
    `joined_noise.proof.md`. Test: tests/mechanisms/test_joined_noise.py::test_cells_have_the_noise_of_the_whole_stream.
    """

    def __init__(self, cohorts: Sequence[Cohort]) -> None:
        self.cohorts = tuple(cohorts)
        self.rounded = self.cohorts[0].noise.rounded
        self.numeric_delta = max(cohort.noise.numeric_delta for cohort in self.cohorts)

    @property
    def tick(self) -> int:
        return self.cohorts[0].noise.tick

    def take(self, ticks: int) -> FloatArray:
        return np.concatenate([cohort.noise.take(ticks) - cohort.base for cohort in self.cohorts], axis=1)

    def prepare(self) -> None:
        for cohort in self.cohorts:
            cohort.noise.prepare()

    def beside(self, first_cell: int, cells: int) -> NoiseStream:
        return self.cohorts[0].noise.beside(first_cell, cells)

    def dump(self) -> dict[str, Any]:
        states = [one.noise.dump() for one in self.cohorts]
        joined = zip(self.cohorts, states, strict=True)
        kept = [{"cells": one.cells, "base": one.base, "state": state} for one, state in joined]
        return {"secret": states[0]["secret"], "joined": kept}


def join_cells(noise: NoiseStream, old: int, new: int) -> dict[str, Any]:
    """The state of the noise with `new` more cells, beside its `old` ones; these get their noise from the next tick on.

    It takes time in proportion to the tick and to the number of new cells. `noise` itself is not changed.
    """
    joining = noise.beside(old, new)
    base = np.zeros(new)
    while joining.tick < noise.tick:
        base = joining.take(min(max(1, NUMBERS_AT_A_TIME // new), noise.tick - joining.tick))[-1]
    before = noise.cohorts if isinstance(noise, JoinedNoise) else (Cohort(noise, old, np.zeros(old)),)
    return JoinedNoise([*before, Cohort(joining, new, base)]).dump()


def cohort_states(state: Mapping[str, Any]) -> list[tuple[range, FloatArray, dict[str, Any]]]:
    """(cells, base, state) of each cohort of a dump of `JoinedNoise`; SnapshotError where it is damaged."""
    found, first = [], 0
    for one in state["joined"]:
        cells = range(first, first + int(one["cells"]))
        base = np.asarray(one["base"], np.float64)
        if base.shape != (len(cells),) or not len(cells):
            raise SnapshotError("the noise state is damaged: its cells and their noise disagree")
        found.append((cells, base, one["state"]))
        first = cells.stop
    return found
