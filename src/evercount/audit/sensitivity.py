"""Attacks the declared sensitivity of a query: searches neighbouring streams for the largest ‖R(X−X′)‖².

Every legal stream of a few steps is tried if that is affordable, else a random search with hill climbing runs. A claim
that is beaten is wrong, with the two streams as proof. A claim that holds is proved only for what was enumerated.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations_with_replacement, product
from math import comb
from typing import Any, get_args

import numpy as np

from evercount._arrays import FloatArray, IntArray
from evercount.audit.universes import Universe
from evercount.audit.universes import universe as known_universe
from evercount.errors import InputError, ParameterError, UnknownName
from evercount.queries.base import Adjacency, Query

__all__ = ["Finding", "SensitivityReport", "Universe", "audit_sensitivity"]

Step = tuple[Any, ...]
Pair = tuple[tuple[Any, ...], tuple[Any, ...]]
Factorizations = FloatArray | Sequence[FloatArray] | Mapping[str, FloatArray]

MOST_PLACEMENTS = 500
BATCH = 1024
TOLERANCE = 1e-9
"""Relative: a claim counts as beaten only if it is exceeded by more than rounding can explain."""


@dataclass(frozen=True)
class Finding:
    """The largest ‖R(X−X′)‖² found for one factorisation beside the claim c²·S, and the ticks of the two streams."""

    factorization: str
    found: float
    claimed: float
    nonnegative_gram: bool
    pair: Pair | None

    @property
    def holds(self) -> bool:
        """True unless the claim was beaten."""
        return self.found <= self.claimed * (1 + TOLERANCE)


@dataclass(frozen=True)
class SensitivityReport:
    """What an audit found. `norm` is the largest Σ(P²+N²) found, which no factorisation enters; the claim is `S`."""

    query: str
    adjacency: Adjacency
    ticks: int
    steps: int
    S: float
    norm: float
    pair: Pair | None
    findings: tuple[Finding, ...]
    pairs: int
    exhaustive: bool

    @property
    def holds(self) -> bool:
        """True unless some claim was beaten."""
        return self.norm <= self.S * (1 + TOLERANCE) and all(finding.holds for finding in self.findings)

    @property
    def reached(self) -> bool:
        """True if the claim S is reached: then it cannot be lowered."""
        return self.norm >= self.S * (1 - TOLERANCE)

    def summary(self) -> str:
        """A few lines for people."""
        how = "all" if self.exhaustive else "a random search of"
        lines = [
            f"{self.query}, {self.adjacency}: {how} {self.pairs} pairs of streams of {self.steps} steps in "
            f"{self.ticks} ticks",
            f"  sum of P^2+N^2: found {self.norm:.6g}, claimed S = {self.S:.6g}",
        ]
        for finding in self.findings:
            gram = "" if finding.nonnegative_gram else " (Gram matrix has negative entries: no claim can rest on S)"
            lines.append(
                f"  {finding.factorization}: found {finding.found:.6g}, claimed c^2*S = {finding.claimed:.6g}{gram}"
            )
        lines.append("  the claim holds" if self.holds else "  THE CLAIM IS BEATEN")
        return "\n".join(lines)


def audit_sensitivity(
    query: Query,
    factorizations: Factorizations,
    adjacency: Adjacency,
    ticks: int,
    universe: Universe | None = None,
    *,
    steps: int | None = None,
    budget: int = 100_000,
    seed: int = 0,
    claimed: float | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SensitivityReport:
    """Search neighbouring streams of `steps` steps (default: `ticks`) spread over `ticks` ticks.

    `factorizations` are dense matrices R with at least `ticks` columns. All pairs are tried if there are at most
    `budget`, else `budget` pairs of a random search from `seed`. `claimed` replaces the query's own S, or where it has
    one its smaller S for Gram matrices that fall (`Query.falling_sensitivity`), which streams use.
    `progress(done, total)` is called now and then.

        Guarantee. If `holds` is False, the reported pair is a proof that the claim is too small, up to the
        checks of the query itself. If `exhaustive` and `holds`, no legal pair of that size over that universe beats it.
        Tests: ``test_beaten_pair_can_be_replayed``, ``test_planted_understatement_is_caught``.
    """
    if adjacency not in get_args(Adjacency):
        raise UnknownName("adjacency", adjacency, get_args(Adjacency))
    universe = known_universe(query) if universe is None else universe
    query = query.with_known_keys(universe.events)
    length = ticks if steps is None else steps
    if ticks < 1 or length < 1 or budget < 1:
        raise ParameterError(f"ticks, steps and budget must be at least 1, got {ticks}, {length}, {budget}")
    world = universe
    if not world.merge and length != ticks:
        raise ParameterError(f"in this universe every step is a tick: steps must be {ticks}, got {length}")
    named = _named(factorizations, ticks)
    search = _Search(query, world, adjacency, ticks, length, named, random.Random(seed))
    exhaustive = search.enumerate(budget, progress)
    if not exhaustive:
        search.climb(budget, progress)
    if claimed is not None and not (isinstance(claimed, int | float) and 0 <= claimed < float("inf")):
        raise ParameterError(f"the claim must be a number of at least 0, got {claimed!r}")
    smaller = query.falling_sensitivity(adjacency)
    if claimed is not None and smaller is not None:  # it is the claim that streams use
        S, smaller = query.squared_sensitivity(adjacency), float(claimed)
    else:
        S = query.squared_sensitivity(adjacency) if claimed is None else float(claimed)
    findings = tuple(
        Finding(
            name,
            search.largest[number],
            float((R**2).sum(axis=0).max()) * (S if smaller is None or not gram_falls(R) else smaller),
            bool((R.T @ R >= -1e-12).all()),
            search.worst[number],
        )
        for number, (name, R) in enumerate(named.items())
    )
    return SensitivityReport(
        repr(query),
        adjacency,
        ticks,
        length,
        S,
        search.largest[-1],
        search.worst[-1],
        findings,
        search.pairs,
        exhaustive and search.all_placements,
    )


def gram_falls(R: FloatArray) -> bool:
    """Whether RᵀR falls away from its diagonal along rows or along columns, up to rounding."""
    gram = R.T @ R
    size = len(gram)
    rows = (gram[:, :-1] - gram[:, 1:])[np.triu_indices(size, 0, size - 1)]
    columns = (gram[1:] - gram[:-1])[np.triu_indices(size - 1, 1, size)]
    return bool(np.all(rows >= -1e-12) or np.all(columns >= -1e-12))


def _named(factorizations: Factorizations, ticks: int) -> dict[str, FloatArray]:
    if isinstance(factorizations, np.ndarray):
        factorizations = [factorizations]
    if not isinstance(factorizations, Mapping):
        factorizations = {f"R{number}": R for number, R in enumerate(factorizations)}
    named = {name: np.asarray(R, np.float64) for name, R in factorizations.items()}
    for name, R in named.items():
        if R.ndim != 2 or R.shape[1] < ticks:
            raise ParameterError(f"{name}: R must be a matrix of at least {ticks} columns, got shape {R.shape}")
    return named


def _with_quiet_step(rows: IntArray, place: int) -> IntArray:
    """The same increments with a row of zeros at `place`; the last row, which is quiet, makes room."""
    later = np.zeros_like(rows)
    later[:place] = rows[:place]
    later[place + 1 :] = rows[place:-1]
    return later


class _Search:
    """The streams tried so far and the worst pair for each factorisation; the last entry is Σ(P²+N²)."""

    def __init__(
        self,
        query: Query,
        world: Universe,
        adjacency: Adjacency,
        ticks: int,
        length: int,
        named: Mapping[str, FloatArray],
        draw: random.Random,
    ) -> None:
        self.query, self.world, self.adjacency = query, world, adjacency
        self.ticks, self.length, self.draw = ticks, length, draw
        self.placements = self._choose_placements()
        chosen = np.array(self.placements)
        # ‖R A d‖² = ⟨AᵀRᵀRA, ddᵀ⟩, A the placement of steps in ticks: one flat row for each placement
        self.grams = [
            (R.T @ R)[chosen[:, :, None], chosen[:, None, :]].reshape(len(chosen), -1) for R in named.values()
        ]
        self.scale = [float((R**2).sum(axis=0).max()) for R in named.values()]
        self.largest = [0.0] * (len(named) + 1)
        self.worst: list[Pair | None] = [None] * (len(named) + 1)
        self.pairs = 0
        self.waiting: list[tuple[tuple[Step, ...], tuple[Step, ...], IntArray]] = []

    def _choose_placements(self) -> list[tuple[int, ...]]:
        if not self.world.merge:
            self.all_placements = True
            return [tuple(range(self.ticks))]
        total = comb(self.length + self.ticks - 1, self.length)
        self.all_placements = total <= MOST_PLACEMENTS
        if self.all_placements:
            return list(combinations_with_replacement(range(self.ticks), self.length))
        spread = np.linspace(0, self.ticks - 1, self.length).astype(int)
        drawn = [tuple(sorted(self.draw.choices(range(self.ticks), k=self.length))) for _ in range(MOST_PLACEMENTS)]
        return [tuple(int(tick) for tick in spread), *drawn]

    # -- every pair --------------------------------------------------------------------------------------------

    def enumerate(self, budget: int, progress: Callable[[int, int], None] | None) -> bool:
        """Try every pair; False, with nothing tried, if there are more than `budget`."""
        if len(self.world.events) ** self.length > 1000 * budget:
            return False  # even if most streams are refused
        # each pair once: the norms are symmetric, so an event is replaced by later ones only
        order = {event: number for number, event in enumerate(self.world.events)}
        others = {
            event: [
                other
                for other in self.world.alternatives(event, self.adjacency)
                if other in self.world.absent or order[other[0]] > order[event]
            ]
            for event in self.world.events
        }
        known: dict[tuple[Step, ...], IntArray] = {(): np.zeros((self.length, self.query.cells), np.int64)}
        total = 0
        for stream, rows in self._legal_streams():
            known[stream] = rows
            total += sum(len(others[event]) for (event,) in stream)
            if total > budget:
                return False
        done = 0
        for stream, rows in known.items():
            for place, (event,) in enumerate(stream):
                for other in others[event]:
                    done += 1
                    if progress is not None and (done % BATCH == 0 or done == total):
                        progress(done, total)
                    neighbour = (*stream[:place], other, *stream[place + 1 :])
                    if other == () and self.world.merge:  # a quiet step: the shorter stream is known already
                        shorter = known.get((*stream[:place], *stream[place + 1 :]))
                        changed = None if shorter is None else _with_quiet_step(shorter, place)
                    else:
                        absent = other in self.world.absent  # such streams are not among the known ones
                        changed = self._encode(neighbour) if absent else known.get(neighbour)
                    if changed is not None:
                        self._offer(stream, neighbour, rows, changed)
        if self.adjacency == "replace":
            self._try_replaced_ticks(list(known))
        self._settle()
        return True

    def _try_replaced_ticks(self, streams: Sequence[tuple[Step, ...]]) -> None:
        """Pairs whose changed tick has several events, beside single events in all other ticks."""
        for stream, ticks in product(streams, self.world.replaced_ticks):
            for place in range(len(stream)):
                one, other = ((*stream[:place], tick, *stream[place + 1 :]) for tick in ticks)
                rows, changed = self._encode(one), self._encode(other)
                if rows is not None and changed is not None:
                    self._offer(one, other, rows, changed)

    def _legal_streams(self) -> Iterator[tuple[tuple[Step, ...], IntArray]]:
        """Legal streams without absent steps: of all lengths if ticks may be quiet, else of full length only."""
        stack: list[tuple[Step, ...]] = [()]
        while stack:
            stream = stack.pop()
            rows = self._encode(stream)
            if rows is None:
                continue
            if stream and (self.world.merge or len(stream) == self.length):
                yield stream, rows
            if len(stream) < self.length:
                stack.extend((*stream, (event,)) for event in self.world.events)

    def _encode(self, stream: tuple[Step, ...]) -> IntArray | None:
        """Increments of every step, padded with quiet steps; None if the stream is not legal."""
        rows = np.zeros((self.length, self.query.cells), np.int64)
        state = self.query.initial_state()
        try:
            for number, step in enumerate(stream):
                rows[number], state = self.query.encode(state, self.world.tick(step))
        except InputError:
            return None
        return rows

    # -- random search -----------------------------------------------------------------------------------------

    def climb(self, budget: int, progress: Callable[[int, int], None] | None) -> None:
        """Random pairs, each improved by small changes until that has not helped for a while."""
        while self.pairs < budget:
            pair = self._random_pair()
            score, stale = -1.0, 0
            while stale < 150 and self.pairs < budget:
                candidate = pair if score < 0 else self._mutated(*pair)
                rows = [self._encode(stream) for stream in candidate]
                self.pairs += 1
                if progress is not None and (self.pairs % BATCH == 0 or self.pairs == budget):
                    progress(self.pairs, budget)
                new = -1.0
                if rows[0] is not None and rows[1] is not None:
                    self._offer(*candidate, rows[0], rows[1], count=False)
                    new = self._settle()
                stale = 0 if new > score else stale + 1
                if new >= score:
                    score, pair = new, candidate
                if score < 0:
                    break

    def _random_pair(self) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
        """A random stream without updates that are refused, and a random neighbour (which may be refused)."""
        part = self.draw.sample(self.world.events, self.draw.randint(1, len(self.world.events)))
        size = self.draw.randint(1, self.length) if self.world.merge else self.length
        stream: list[Step] = []
        state = self.query.initial_state()
        for _ in range(4 * self.length):
            event = self.draw.choice(part if self.draw.random() < 0.9 else self.world.events)
            try:
                _, state = self.query.encode(state, self.world.tick((event,)))
            except InputError:
                continue
            stream.append((event,))
            if len(stream) == size:
                break
        place = self.draw.randrange(len(stream)) if stream else 0
        return self._neighbours(stream or [(self.world.events[0],)], place)

    def _neighbours(self, stream: Sequence[Step], place: int) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
        others = self.world.alternatives(stream[place][0], self.adjacency) or [stream[place]]
        other = self.draw.choice(others)
        return tuple(stream), (*stream[:place], other, *stream[place + 1 :])

    def _mutated(self, one: tuple[Step, ...], other: tuple[Step, ...]) -> tuple[tuple[Step, ...], tuple[Step, ...]]:
        """The same pair with one to three steps changed, added, taken out or moved, in both streams alike."""
        steps = list(zip(one, other, strict=True))
        for _ in range(self.draw.randint(1, 3)):
            fresh = self.draw.choice(self.world.events)
            place = self.draw.randrange(len(steps))
            kind = self.draw.choice(["change", "add", "drop", "move"] if self.world.merge else ["change", "move"])
            if steps[place][0] != steps[place][1] and kind in ("change", "drop"):
                steps[place] = (steps[place][0], self._neighbours([steps[place][0]], 0)[1][0])
            elif kind == "change":
                steps[place] = ((fresh,), (fresh,))
            elif kind == "add" and len(steps) < self.length:
                steps.insert(place + self.draw.randint(0, 1), ((fresh,), (fresh,)))
            elif kind == "drop" and len(steps) > 1:
                del steps[place]
            elif kind == "move":
                steps.insert(self.draw.randrange(len(steps)), steps.pop(place))
        return tuple(pair[0] for pair in steps), tuple(pair[1] for pair in steps)

    # -- judging -----------------------------------------------------------------------------------------------

    def _offer(
        self,
        one: tuple[Step, ...],
        other: tuple[Step, ...],
        rows: IntArray,
        changed: IntArray,
        count: bool = True,
    ) -> None:
        self.pairs += count
        self.waiting.append((one, other, changed - rows))
        if len(self.waiting) >= BATCH:
            self._settle()

    def _settle(self) -> float:
        """Judge the waiting pairs; gives the largest value among them, in units of c², summed over all judges."""
        if not self.waiting:
            return -1.0
        change = np.stack([entry[2] for entry in self.waiting]).astype(np.float64) * self.query.grid
        rises, falls = np.maximum(change, 0).sum(axis=1), np.maximum(-change, 0).sum(axis=1)
        norm = (rises**2 + falls**2).sum(axis=1)
        self._record(len(self.grams), norm, None)
        products = (change @ change.transpose(0, 2, 1)).reshape(len(change), -1)
        score = norm.copy()
        for number, grams in enumerate(self.grams):
            values = products @ grams.T
            score += values.max(axis=1) / self.scale[number]
            self._record(number, values.max(axis=1), values.argmax(axis=1))
        self.waiting.clear()
        return float(score.max())

    def _record(self, number: int, values: FloatArray, placements: Any) -> None:
        best = int(values.argmax())
        if values[best] > self.largest[number]:
            one, other, _ = self.waiting[best]
            placement = range(self.length) if placements is None else self.placements[placements[best]]
            ticks = self.length if placements is None else self.ticks
            self.largest[number] = float(values[best])
            self.worst[number] = (self._ticks(one, placement, ticks), self._ticks(other, placement, ticks))

    def _ticks(self, stream: tuple[Step, ...], placement: Sequence[int], ticks: int) -> tuple[Any, ...]:
        contents: list[list[Any]] = [[] for _ in range(ticks)]
        for step, tick in zip(stream, placement, strict=False):
            contents[tick].extend(step)
        return tuple(self.world.tick(content) for content in contents)
