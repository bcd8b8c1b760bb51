"""Tries pairs of neighbouring streams of a query: every pair over a small universe of events, or a
random search.

For each pair it looks at the change of the increments, one step in each tick, in four ways:
‖R(X−X′)‖² for each factorization, Σ(P²+N²), Σ|change|, and the largest squared difference of the
values of a tick. It keeps the worst pair of each. Claims are not its business: `sensitivity.py`
compares.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, combinations_with_replacement, product
from math import comb, prod
from typing import Any

import numpy as np

from evercount._validate import FloatArray, IntArray
from evercount.audit.universes import Universe
from evercount.errors import InputError
from evercount.privacy import Adjacency
from evercount.queries.base import Query

Step = tuple[Any, ...]
Steps = tuple[Step, ...]
Pair = tuple[tuple[Any, ...], tuple[Any, ...]]
Progress = Callable[[int, int], None]

MOST_PLACEMENTS = 500
BATCH = 1024
SQUARES = -3
ABSOLUTE = -2
VALUES = -1
"""Places in `PairSearch.largest` and `worst` after those of the factorizations: Σ(P²+N²),
Σ|change|, values."""


@dataclass(eq=False)
class PairSearch:
    """The streams tried so far and the worst pair of each judge: one for each factorization, then
    the three above."""

    query: Query
    world: Universe
    adjacency: Adjacency
    ticks: int
    length: int
    matrices: Mapping[str, FloatArray]
    draw: random.Random
    changed: int  # neighbours differ in exactly so many events

    def __post_init__(self) -> None:
        self.placements = self._choose_placements()
        ticks_of_steps = np.array(self.placements)
        # ‖R A d‖² = ⟨AᵀRᵀRA, ddᵀ⟩, A the placement of steps in ticks: one flat row for each
        # placement
        rows = ticks_of_steps[:, :, None]
        columns = ticks_of_steps[:, None, :]
        self.grams = [
            (R.T @ R)[rows, columns].reshape(len(ticks_of_steps), -1)
            for R in self.matrices.values()
        ]
        self.scale = [float((R**2).sum(axis=0).max()) for R in self.matrices.values()]
        self.largest = [0.0] * (len(self.matrices) + 3)
        self.worst: list[Pair | None] = [None] * (len(self.matrices) + 3)
        self.pairs = 0
        self.queue: list[tuple[Steps, Steps, IntArray]] = []

    def _choose_placements(self) -> list[tuple[int, ...]]:
        if not self.world.merge:
            self.all_placements = True
            return [tuple(range(self.ticks))]
        total = comb(self.length + self.ticks - 1, self.length)
        self.all_placements = total <= MOST_PLACEMENTS
        if self.all_placements:
            return list(combinations_with_replacement(range(self.ticks), self.length))
        spread = np.linspace(0, self.ticks - 1, self.length).astype(int)
        random_placements = [
            tuple(sorted(self.draw.choices(range(self.ticks), k=self.length)))
            for _ in range(MOST_PLACEMENTS)
        ]
        return [tuple(int(tick) for tick in spread), *random_placements]

    def enumerate(self, budget: int, progress: Progress | None = None) -> bool:
        """Try every pair; False, with nothing tried, if there are more than `budget`."""
        if len(self.world.events) ** self.length > 1000 * budget:
            return False  # even if most streams are refused
        others = {event: self._others(event) for event in self.world.events}
        known: dict[Steps, IntArray | None] = {
            (): np.zeros((self.length, self.query.cells), np.int64)
        }
        total = 0
        for stream, legal in self._legal_streams():
            known[stream] = legal
            options = [len(others[event]) for (event,) in stream]
            total += sum(map(prod, combinations(options, self.changed)))
            if total > budget:
                return False
        done = 0
        for stream, rows in list(known.items()):
            for places in combinations(range(len(stream)), self.changed):
                for steps in product(*(others[stream[place][0]] for place in places)):
                    done += 1
                    if progress is not None and (done % BATCH == 0 or done == total):
                        progress(done, total)
                    neighbour = _edit(stream, places, steps)
                    self.pairs += self._offer(
                        stream, neighbour, rows, self._rows_of(neighbour, known)
                    )
        if self.adjacency == "replace" and self.changed == 1:
            self._try_replaced_ticks(list(known))
        self._settle()
        return True

    def _others(self, event: Any) -> list[Step]:
        """List the steps that are tried in place of an event."""
        # The judges are symmetric: where one event changes, it is replaced by later ones only, and
        # each pair comes once.
        steps = self.world.alternatives(event, self.adjacency)
        if self.changed > 1:
            return steps
        order = {event: number for number, event in enumerate(self.world.events)}
        return [
            step for step in steps if step in self.world.absent or order[step[0]] > order[event]
        ]

    def _rows_of(self, stream: Steps, known: dict[Steps, IntArray | None]) -> IntArray | None:
        """Look up the increments of a neighbour of a legal stream; encode what is new, and remember
        it."""
        kept = [place for place, step in enumerate(stream) if step != () or not self.world.merge]
        shorter = tuple(stream[place] for place in kept)
        if shorter not in known:
            # a stream without absent steps that is not known is not legal
            absent = any(step in self.world.absent for step in shorter)
            known[shorter] = None
            if absent:
                known[shorter] = self._encode(shorter)
        rows = known[shorter]
        if rows is None or shorter == stream:
            return rows
        spread = np.zeros_like(rows)
        spread[kept] = rows[: len(kept)]
        return spread

    def _try_replaced_ticks(self, streams: Sequence[Steps]) -> None:
        """Try pairs whose changed tick has several events, next to single events in all other
        ticks."""
        for stream, ticks in product(streams, self.world.replaced_ticks):
            for place in range(len(stream)):
                one, other = (_edit(stream, (place,), (tick,)) for tick in ticks)
                self.pairs += self._offer(one, other, self._encode(one), self._encode(other))

    def _legal_streams(self) -> Iterator[tuple[Steps, IntArray]]:
        """List legal streams without absent steps: of all lengths if ticks may be quiet, else of
        full length only."""
        stack: list[Steps] = [()]
        while stack:
            stream = stack.pop()
            rows = self._encode(stream)
            if rows is None:
                continue
            if stream and (self.world.merge or len(stream) == self.length):
                yield stream, rows
            if len(stream) < self.length:
                stack.extend((*stream, (event,)) for event in self.world.events)

    def _encode(self, stream: Steps) -> IntArray | None:
        """Compute the increments of every step, padded with quiet steps; None if the stream is not
        legal."""
        rows = np.zeros((self.length, self.query.cells), np.int64)
        state = self.query.initial_state()
        try:
            for number, step in enumerate(stream):
                rows[number], state = self.query.encode(state, self.world.tick(step))
        except InputError:
            return None
        return rows

    def climb(self, budget: int, progress: Progress | None) -> None:
        """Random pairs, each improved by small changes until that has not helped for a while."""
        while self.pairs < budget:
            pair = self._random_pair()
            score = -1.0
            stale = 0
            while stale < 150 and self.pairs < budget:
                candidate = pair
                if score >= 0:
                    candidate = self._mutate(*pair)
                one, other = candidate
                self.pairs += 1
                if progress is not None and (self.pairs % BATCH == 0 or self.pairs == budget):
                    progress(self.pairs, budget)
                self._offer(one, other, self._encode(one), self._encode(other))
                new = self._settle()
                stale += 1
                if new > score:
                    stale = 0
                if new >= score:
                    score = new
                    pair = candidate
                if score < 0:
                    break

    def _random_pair(self) -> tuple[Steps, Steps]:
        """Draw a random stream without updates that are refused, and a random neighbour (which may
        be refused)."""
        part = self.draw.sample(self.world.events, self.draw.randint(1, len(self.world.events)))
        size = self.length
        if self.world.merge:
            size = self.draw.randint(1, self.length)
        stream: list[Step] = []
        state = self.query.initial_state()
        for _ in range(4 * self.length):
            choices: Sequence[Any] = self.world.events
            if self.draw.random() < 0.9:
                choices = part
            event = self.draw.choice(choices)
            try:
                _, state = self.query.encode(state, self.world.tick((event,)))
            except InputError:
                continue
            stream.append((event,))
            if len(stream) == size:
                break
        stream = stream or [(self.world.events[0],)]
        places = sorted(self.draw.sample(range(len(stream)), min(self.changed, len(stream))))
        return tuple(stream), _edit(
            stream, places, [self._random_other(stream[place]) for place in places]
        )

    def _random_other(self, step: Step) -> Step:
        return self.draw.choice(self.world.alternatives(step[0], self.adjacency) or [step])

    def _mutate(self, one: Steps, other: Steps) -> tuple[Steps, Steps]:
        """Change the pair: the same with one to three steps changed, added, taken out or moved, in
        both streams alike."""
        steps = list(zip(one, other, strict=True))
        for _ in range(self.draw.randint(1, 3)):
            fresh = self.draw.choice(self.world.events)
            place = self.draw.randrange(len(steps))
            kinds = ["change", "move"]
            if self.world.merge:
                kinds = ["change", "add", "drop", "move"]
            kind = self.draw.choice(kinds)
            if steps[place][0] != steps[place][1] and kind in ("change", "drop"):
                steps[place] = (steps[place][0], self._random_other(steps[place][0]))
            elif kind == "change":
                steps[place] = ((fresh,), (fresh,))
            elif kind == "add" and len(steps) < self.length:
                steps.insert(place + self.draw.randint(0, 1), ((fresh,), (fresh,)))
            elif kind == "drop" and len(steps) > 1:
                del steps[place]
            elif kind == "move":
                steps.insert(self.draw.randrange(len(steps)), steps.pop(place))
        return tuple(pair[0] for pair in steps), tuple(pair[1] for pair in steps)

    def _offer(
        self, one: Steps, other: Steps, rows: IntArray | None, changed: IntArray | None
    ) -> bool:
        """Queue the pair to be judged if both streams are legal; return whether they are."""
        if rows is None or changed is None:
            return False
        self.queue.append((one, other, changed - rows))
        if len(self.queue) >= BATCH:
            self._settle()
        return True

    def _settle(self) -> float:
        """Judge the queued pairs; return the largest value among them, in units of c², summed over
        all judges; −1 if no pair waits."""
        if not self.queue:
            return -1.0
        change = np.stack([entry[2] for entry in self.queue]).astype(np.float64) * self.query.grid
        rises = np.maximum(change, 0).sum(axis=1)
        falls = np.maximum(-change, 0).sum(axis=1)
        norm = (rises**2 + falls**2).sum(axis=1)
        self._record(SQUARES, norm, None)
        self._record(ABSOLUTE, (rises + falls).sum(axis=1), None)
        self._record(VALUES, np.square(change.cumsum(axis=1)).sum(axis=2).max(axis=1), None)
        products = (change @ change.transpose(0, 2, 1)).reshape(len(change), -1)
        score = norm.copy()
        for number, grams in enumerate(self.grams):
            values = products @ grams.T
            score += values.max(axis=1) / self.scale[number]
            self._record(number, values.max(axis=1), values.argmax(axis=1))
        self.queue.clear()
        return float(score.max())

    def _record(self, number: int, values: FloatArray, placements: Any) -> None:
        best = int(values.argmax())
        if values[best] > self.largest[number]:
            one, other, _ = self.queue[best]
            if placements is None:
                placement = range(self.length)
                ticks = self.length
            else:
                placement = self.placements[placements[best]]
                ticks = self.ticks
            self.largest[number] = float(values[best])
            self.worst[number] = (
                self._ticks(one, placement, ticks),
                self._ticks(other, placement, ticks),
            )

    def _ticks(self, stream: Steps, placement: Sequence[int], ticks: int) -> tuple[Any, ...]:
        contents: list[list[Any]] = [[] for _ in range(ticks)]
        for step, tick in zip(stream, placement, strict=False):
            contents[tick].extend(step)
        return tuple(self.world.tick(content) for content in contents)


def _edit(stream: Sequence[Step], places: Sequence[int], steps: Sequence[Step]) -> Steps:
    edited = list(stream)
    for place, step in zip(places, steps, strict=True):
        edited[place] = step
    return tuple(edited)
