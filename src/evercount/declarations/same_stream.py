"""Whether a declaration declares a stream that is known again, and in words what makes it another one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from evercount.declarations.declaration import StreamDeclaration

FREE = ("views", "late", "wait")  # what may change while a stream runs


def as_known(wanted: StreamDeclaration, known: StreamDeclaration) -> StreamDeclaration:
    """A declaration with the noise of the stream that is known, where it does not say what its noise is for."""
    asked = wanted.asked
    if asked.noise_for or wanted.noise_for == known.noise_for or wanted.revise_for != known.revise_for:
        return wanted
    fitted = known.factorization if isinstance(known.factorization, dict) else None
    name = fitted if fitted is not None and asked.factorization in (None, "blend", "best") else asked.factorization
    return replace(wanted, budget=asked.budget, factorization=name, noise_for=known.noise_for)


def declares_again(known: StreamDeclaration, wanted: StreamDeclaration) -> bool:
    """Whether a stream is declared again, in every field; the start may be left open."""
    mine, theirs = known.to_dict(), as_known(wanted, known).to_dict()
    if theirs["start"] is None:
        theirs["start"] = mine["start"]
    same = all(mine[name] == theirs[name] for name in mine if name not in FREE)
    return same and known.stream_postprocess == wanted.stream_postprocess


def differences(known: StreamDeclaration, wanted: StreamDeclaration) -> list[str]:
    """What makes `wanted` another stream, in words; empty where it declares the known one again. A start may be left
    open by either. Names, descriptions, views, who may read, and what becomes of late events do not matter here."""
    mine, theirs = known.to_dict(), as_known(wanted, known).to_dict()
    if known.query.name == wanted.query.name:
        found = _changes(mine["query"]["parameters"], theirs["query"]["parameters"])
    else:
        found = _changes(mine, theirs, ["query"])
    found += _changes(mine["budget"], theirs["budget"])
    apart = ("name", "description", "public", *FREE, "query", "budget", "tick", "start", "zone")
    found += _changes(mine, theirs, [name for name in mine if name not in apart])
    if not known.schedule.same_ticks(wanted.schedule):
        found += _changes(mine, theirs, ["tick", "start", "zone"])
    if known.stream_postprocess != wanted.stream_postprocess and known.postprocess == wanted.postprocess:
        found += _changes(mine, theirs, ["views"])  # with views they are post-processed, and not the releases
    return found


def changed_noise(known: StreamDeclaration, wanted: StreamDeclaration) -> str:
    """What to say where a declaration asks a running stream for the noise of other views; empty where it does not."""
    if known.noise_for == as_known(wanted, known).noise_for:
        return ""
    return (
        f" (its noise is for {', '.join(known.noise_for)} and stays so: noise_for of a running stream cannot change, "
        "while views may)"
    )


def _changes(before: dict[str, Any], after: dict[str, Any], names: Iterable[str] | None = None) -> list[str]:
    return [
        f"{name} holds other {name}, or the same in another order"
        if name in ("keys", "paths")
        else f"{name} was {before.get(name)!r} and is now {after.get(name)!r}"
        for name in ({**before, **after} if names is None else names)
        if before.get(name) != after.get(name)
    ]
