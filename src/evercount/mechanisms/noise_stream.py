"""The contract of a noise stream, its key, and the noise of cells of which some joined later.

A noise stream gives correlated noise, tick after tick, in units of the query's public grid. Its key
is a function of the secret and of everything public that the stream declares.
"""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, NoReturn

import numpy as np

from evercount._validate import AnyArray, IntArray
from evercount.errors import EvercountError, ParameterError, SnapshotError, TooLarge
from evercount.factorizations import Factorization
from evercount.noise import Secret

Facts = Mapping[str, Any]  # plain data: JSON values and arrays, such as a dump or a declaration


LARGEST_NOISE = 2**61
"""Noise is smaller than this, in grid units: so 64 bits hold the difference of two numbers, added
to a sum of 2^62."""


def check_room(noise: IntArray) -> None:
    """Refuse noise of `LARGEST_NOISE` and more."""
    if noise.size and not -LARGEST_NOISE < int(noise.min()) <= int(noise.max()) < LARGEST_NOISE:
        raise TooLarge(
            "the noise of the running sums has passed 2^61: use a larger epsilon or a coarser grid"
        )


def whole_noise(numbers: Any, cells: int) -> IntArray:
    """The noise of a snapshot: a whole number of 64 bits for each cell."""
    noise: AnyArray = np.asarray(numbers)
    if noise.shape != (cells,):
        raise SnapshotError("the noise state belongs to other cells")
    if noise.dtype.kind != "i" or not (np.abs(noise) < LARGEST_NOISE).all():
        raise SnapshotError("the noise state is damaged: its numbers are not whole, or too large")
    return noise.astype(np.int64)


class NoiseStream(ABC):
    """Noise of one stream: row t is scale·(L z)_t for one z that is drawn once and never again.

    `scale` is σ/grid, so noise comes in whole grid units: 64-bit integers from here to where they
    meet the data, and no double in between. It does not depend on the data; a stream owns one of
    these and takes from it exactly once per tick. What each kind of noise rounds, and why that is
    private, is in the table of `laplace_noise.proof.md`.
    """

    # whether real noise was rounded to whole grid units, which adds grid²/12 to its variance
    rounded: bool

    @property
    def tick(self) -> int:
        """How many ticks have been taken."""
        raise NotImplementedError

    numeric_delta: float  # the proved price in δ of finite arithmetic

    @abstractmethod
    def take(self, ticks: int) -> IntArray:
        """Noise of the next `ticks` ticks in grid units, shape (ticks, cells); the same for any
        split into calls."""

    _last_block: tuple[int, IntArray] | None = None
    _taking: bool = False

    def rows(self, first: int, ticks: int) -> IntArray:
        """Noise of ticks first … first+ticks−1: the same numbers again if it is asked again.

        It reaches back to the first tick of the last block that was asked for, so that a step that
        failed after its noise was drawn can be tried again. The array must not be changed.
        """
        start, block = self._last_block or (self.tick + 1, self.take(0))
        if not start <= first <= self.tick + 1:
            raise ParameterError(f"noise of tick {first} is gone: the next tick is {self.tick + 1}")
        drawn = block[first - start :]
        if len(drawn) < ticks:
            if self._taking:
                raise EvercountError(
                    "the noise was interrupted in the middle of a tick; restore the newest snapshot"
                )
            self._taking = True
            fresh = self.take(ticks - len(drawn))
            drawn = np.concatenate([drawn, fresh]) if len(drawn) else fresh
            self._last_block = (first, drawn)
            self._taking = False
        return drawn[:ticks]

    def __repr__(self) -> str:
        return f"{type(self).__name__}(tick={self.tick}, secret=…)"

    def __reduce__(self) -> NoReturn:
        raise ParameterError("a noise stream is not pickled: keep dump() where passwords are kept")

    def prepare(self) -> None:  # noqa: B027 - doing nothing is right for most
        """Make noise ahead of its tick where that helps; it changes no number."""

    # doing nothing is right for numbered cells
    def expect(self, names: Iterable[str]) -> None:  # noqa: B027
        """Make noise of names ready that will soon be needed, where cells have names; it changes no
        number."""

    def further_cells(self, first_cell: int, cells: int) -> NoiseStream:
        """The noise of further cells, numbered from `first_cell` on, under the same key, from tick
        1 on."""
        raise ParameterError("cells cannot join this stream: no other cell has noise of its kind")

    @abstractmethod
    def dump(self) -> dict[str, Any]:
        """Everything needed to continue identically, as JSON values and arrays. It is secret."""


def declaration_fingerprint(declaration: Facts, engine: Factorization, sigma: float) -> str:
    """A digest of a whole declaration: what is asked, how noise is correlated, and how much of it
    there is.

    σ and the numbers of the factorization belong to it: the same normals at two scales would reveal
    each other.
    """
    public = {
        **declaration,
        "factorization": [engine.name, engine.horizon],
        "sigma": float(sigma).hex(),
    }
    digest = hashlib.blake2b(digest_size=32, person=b"evercount.stream")
    text = json.dumps(public, sort_keys=True, separators=(",", ":"), default=_as_text).encode()
    digest.update(len(text).to_bytes(8, "little") + text)
    for array in engine.public_parameters():
        digest.update(
            array.size.to_bytes(8, "little") + np.ascontiguousarray(array).astype("<f8").tobytes()
        )
    return digest.hexdigest()


def _as_text(value: object) -> str:
    """What JSON has no form for, such as parameters of a query of your own. An array's repr leaves
    out its middle."""
    if isinstance(value, np.ndarray):
        return f"array {value.dtype.str} {value.shape} {value.tobytes().hex()}"
    return repr(value)


def noise_key(
    secret: Secret | None,
    dumped: Facts | None,
    declaration: Facts | None,
    engine: Factorization,
    sigma: float,
) -> tuple[Secret, str | None]:
    """(key, fingerprint) of noise that goes on from its dumped state, or begins with the secret.

    Without a declaration the secret is the key.
    """
    if dumped is not None and dumped["state"] is not None:
        return Secret.from_hex(dumped["state"]["secret"]), dumped["declaration"]
    key = secret or Secret.generate()
    if declaration is None:
        return key, None
    fingerprint = declaration_fingerprint(declaration, engine, sigma)
    return declared_key(key, fingerprint), fingerprint


def declared_key(secret: Secret, fingerprint: str) -> Secret:
    """The key of the noise of one declaration.

    **Guarantee.** Streams of different declarations on one secret have independent noise, if keyed
    BLAKE2b is a pseudorandom function: their labels differ (up to collisions of 256-bit digests).
    All shards of one declaration have one key, and tell their cells apart by global numbers. Tests:
    tests/engine/test_declared_key.py::test_streams_that_differ_in_anything_have_independent_noise
    and tests/engine/test_declared_key.py::test_shards_share_the_key_and_count_cells_globally.
    """
    return secret.derive(f"evercount/stream/2/{fingerprint}")


@dataclass(frozen=True, eq=False)
class Noise:
    stream: NoiseStream
    sigma: float
    numeric_delta: float
    limit: int | None
    """The last tick that the guarantee covers; None where every day has noise of its own, without
    an end."""
    key: Secret
    fingerprint: str | None = None
    """The digest of the declaration that the key was derived from; None where the key is the secret
    itself."""
    unseen: float = 0.0
    """The part of `numeric_delta` that depends on noise of which nothing was shown before
    (`Cost.unseen`)."""

    def dump(self) -> dict[str, Any]:
        """What `build_noise(dumped=...)` needs to continue identically. Secret."""
        state = self.stream.dump()
        return {
            "name": "exact",
            "sigma": self.sigma,
            "state": state,
            "declaration": self.fingerprint,
        }


NUMBERS_AT_A_TIME = 2**20


class Cohort(NamedTuple):
    """Cells that joined together: their noise from tick 1 on, and what it was before they
    joined."""

    noise: NoiseStream
    cells: int
    base: IntArray


class JoinedNoise(NoiseStream):
    """Noise of cohorts, one next to the other. That of cells which joined after tick a is n(t) −
    n(a).

    **Guarantee.** Cell c has the noise n of the stream that had all cells from the start, less n(a)
    where it joined after tick a: a function of that stream's noisy sums, because a cell that has
    not joined counts nothing. Proof: `joined_noise.proof.md`. Test:
    tests/mechanisms/test_joined_noise.py::test_cells_have_the_noise_of_the_whole_stream.
    """

    def __init__(self, cohorts: Sequence[Cohort]) -> None:
        self.cohorts = tuple(cohorts)
        self.rounded = self.cohorts[0].noise.rounded
        self.numeric_delta = max(cohort.noise.numeric_delta for cohort in self.cohorts)

    @property
    def tick(self) -> int:
        return self.cohorts[0].noise.tick

    def take(self, ticks: int) -> IntArray:
        return np.concatenate(
            [cohort.noise.take(ticks) - cohort.base for cohort in self.cohorts], axis=1
        )

    def prepare(self) -> None:
        for cohort in self.cohorts:
            cohort.noise.prepare()

    def further_cells(self, first_cell: int, cells: int) -> NoiseStream:
        return self.cohorts[0].noise.further_cells(first_cell, cells)

    def dump(self) -> dict[str, Any]:
        states = [one.noise.dump() for one in self.cohorts]
        cohorts = [
            {"cells": one.cells, "base": one.base, "state": state}
            for one, state in zip(self.cohorts, states, strict=True)
        ]
        return {"secret": states[0]["secret"], "joined": cohorts}


def join_cells(noise: NoiseStream, old: int, new: int) -> dict[str, Any]:
    """The state of the noise with `new` more cells next to its `old` ones; new ones get noise from
    the next tick on.

    It takes time in proportion to the tick and to the number of new cells. `noise` itself is not
    changed.
    """
    joining = noise.further_cells(old, new)
    base = np.zeros(new, np.int64)
    while joining.tick < noise.tick:
        base = joining.take(min(max(1, NUMBERS_AT_A_TIME // new), noise.tick - joining.tick))[-1]
    if isinstance(noise, JoinedNoise):
        before = noise.cohorts
    else:
        before = (Cohort(noise, old, np.zeros(old, np.int64)),)
    return JoinedNoise([*before, Cohort(joining, new, base)]).dump()


def cohort_states(state: Facts) -> list[tuple[range, IntArray, dict[str, Any]]]:
    """(cells, base, state) of each cohort of a dump of `JoinedNoise`; SnapshotError where it is
    damaged."""
    cohorts = []
    first = 0
    for one in state["joined"]:
        cells = range(first, first + int(one["cells"]))
        if not len(cells) or np.shape(one["base"]) != (len(cells),):
            raise SnapshotError("the noise state is damaged: its cells and their noise disagree")
        cohorts.append((cells, whole_noise(one["base"], len(cells)), one["state"]))
        first = cells.stop
    return cohorts
