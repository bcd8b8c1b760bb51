"""attack: one life, or many, against all that was stated."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from evercount.audit.lives.draw_life import contents_for
from evercount.audit.lives.life import Event, History, Life, Step
from evercount.audit.lives.neighbours import neighbours, promise_of
from evercount.audit.lives.record import Record, StreamRecord
from evercount.audit.lives.verdict import (
    Find,
    check_changes,
    check_public,
    check_repeats,
    check_spending,
    inside,
)
from evercount.audit.lives.ways import WAYS, drawn_secrets
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.schedule import SECOND
from evercount.noise import Secret

SECRET = Secret.from_hex("11fe" * 16)
MOST_NEIGHBOURS = 4
FEW_NEIGHBOURS = 3  # of lives in files and stores, which take longer


@dataclass
class Verdict:
    """What one life showed."""

    finds: list[Find] = field(default_factory=list)
    inside: list[bool] = field(default_factory=list)
    worlds: int = 0
    closest: float = 0.0  # what was spent over what was stated, at most
    streams: int = 0
    refused: tuple[str, ...] = ()
    noise: tuple[StreamRecord, ...] = ()  # of a world without rows


def live(life: Life, history: History) -> Record:
    """One world of a life."""
    way, _ = WAYS[life.way]
    secret = SECRET.derive(f"evercount/audit/life/{life.seed}")
    with drawn_secrets(secret):
        return way(life, history, secret)


def worlds_of(life: Life, record: Record) -> dict[History, frozenset[int]]:
    """The neighbours of the history, with the streams that call them so."""
    found: dict[History, set[int]] = {}
    for number, one in enumerate(record.streams):
        for history in _of_stream(life, one):
            found.setdefault(history, set()).add(number)
    return {history: frozenset(numbers) for history, numbers in found.items()}


def _of_stream(life: Life, one: StreamRecord) -> Iterable[History]:
    declared = one.declared
    fields = {
        "budget": declared.budget.to_dict(),
        "tick": declared.tick,
        "zone": declared.zone,
        "late": declared.late,
    }
    promise = promise_of(
        fields,
        declared.schedule.begin // SECOND,
        contents_for(StreamDeclaration.from_dict(dict(life.declaration)).query),
        declared.query.people is not None,
    )
    return neighbours(promise, life.history, one.closings)


def attack(life: Life, most: int | None = None) -> Verdict:
    """Run a life in its own world, in one without rows, and in those of some neighbours.

    **Guarantee.** A find is a proof: its life, run again in both worlds, shows what it says. Test:
    tests/audit/test_lives.py::test_finds_are_found_again.
    """
    if most is None:
        most = MOST_NEIGHBOURS if life.way == "python" else FEW_NEIGHBOURS
    record, empty = live(life, life.history), live(life, ())
    verdict = Verdict(streams=len(record.streams), worlds=2)
    verdict.refused = tuple(str(fact[0]) for fact in record.public if isinstance(fact, tuple))
    verdict.noise = tuple(empty.streams)
    verdict.finds += check_repeats(life, empty)
    verdict.finds += check_changes(life, record)
    verdict.inside = inside(record, empty)
    worlds = worlds_of(life, record)
    chosen = list(worlds)
    if len(chosen) > most:
        chosen = random.Random(repr(life)).sample(chosen, most)
    for history in chosen:
        verdict.worlds += 1
        for one in _compare(life, record, history, worlds[history]):
            if one.kind == "spent" and one.holds:
                verdict.closest = max(verdict.closest, one.ratio)
            if not one.holds:
                verdict.finds.append(one)
    return verdict


def _compare(
    life: Life, record: Record, history: History, concerned: frozenset[int]
) -> Iterator[Find]:
    """What another world shows next to that of the life."""
    other = live(life, history)
    find = check_public(life, record, other, history)
    if find is not None:
        yield find
        return
    yield from check_spending(life, record, other, history, concerned)


def compare_worlds(life: Life, neighbour: History | None) -> list[Find]:
    """What a life shows in its own world, and next to one neighbour if that is one."""
    record = live(life, life.history)
    if neighbour is None:
        return [*check_repeats(life, live(life, ())), *check_changes(life, record)]
    concerned = worlds_of(life, record).get(neighbour)
    if concerned is None:
        return []
    return list(_compare(life, record, neighbour, concerned))


def show(
    way: str,
    declaration: Mapping[str, Any],
    rows: Sequence[tuple[Any, ...]],
    neighbour: Sequence[tuple[Any, ...]] | None,
    steps: Sequence[tuple[str, Any]],
    total: tuple[float, float] | None = None,
    seed: str = "",
) -> None:
    """Print what a life shows; scripts of finds call it."""
    history = tuple(map(Event._make, rows))
    life = Life(way, declaration, history, tuple(Step(*step) for step in steps), total, seed)
    other = None if neighbour is None else tuple(map(Event._make, neighbour))
    for find in compare_worlds(life, other):
        mark = "holds" if find.holds else "BROKEN"
        print(f"{mark} ({find.kind}, {find.ratio:.6g}): {find.reason}")  # noqa: T201 (a script)
