"""shrink: the smallest life that still shows what a life showed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from evercount.audit.lives.attack import compare_worlds
from evercount.audit.lives.life import History, Life
from evercount.audit.lives.verdict import Find
from evercount.errors import EvercountError

MOST_TRIES = 150


def shrink(find: Find) -> Find:
    """Leave out operations, rows, caps and options as long as the find stays one of its kind."""
    tries = 0
    smaller = True
    while smaller:
        smaller = False
        for life, neighbour in _smaller(find):
            tries += 1
            if tries > MOST_TRIES:
                return find
            found = _same_kind(find, life, neighbour)
            if found is not None:
                find, smaller = found, True
                break
    return find


def _same_kind(find: Find, life: Life, neighbour: History | None) -> Find | None:
    try:
        found = compare_worlds(life, neighbour)
    except (EvercountError, ValueError, KeyError, IndexError):
        return None
    for one in found:
        if one.kind == find.kind and not one.holds:
            return one
    return None


def _smaller(find: Find) -> Iterator[tuple[Life, History | None]]:
    life, neighbour = find.life, find.neighbour
    for place in range(len(life.steps)):
        steps = (*life.steps[:place], *life.steps[place + 1 :])
        yield replace(life, steps=steps), neighbour
    common = life.history
    if neighbour is not None:
        common = tuple(event for event in life.history if event in neighbour)
    for event in dict.fromkeys(common):
        other = None if neighbour is None else _without(neighbour, event)
        yield life.with_history(_without(life.history, event)), other
    if life.total is not None:
        yield replace(life, total=None), neighbour
    for name in ("postprocess", "wait", "factorization", "views"):
        if life.declaration.get(name):
            fields = {key: value for key, value in life.declaration.items() if key != name}
            yield replace(life, declaration=fields), neighbour


def _without(history: History, event: object) -> History:
    """The history without one of these rows."""
    place = history.index(event)
    return (*history[:place], *history[place + 1 :])
