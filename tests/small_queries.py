"""A small query of every kind in the registry, and legal events for it: no test over all queries
can forget one."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from evercount._validate import FloatArray
from evercount.audit.universes import universe
from evercount.errors import InputError
from evercount.queries import (
    EXAMPLE_PARAMETERS,
    QUERIES,
    Query,
    Substrings,
    build_query,
    register_encoder,
)

TICKS = 6


@register_encoder("contract: even and odd")
def even_and_odd(events: list[int]) -> list[int]:
    if not isinstance(events, list):
        raise InputError("events are a list")
    odd = sum(event % 2 for event in events)
    return [len(events) - odd, odd]


SMALL: dict[str, dict[str, Any]] = {
    name: {
        **EXAMPLE_PARAMETERS.get(name, {}),
        **({"vertices": 6} if "vertices" in EXAMPLE_PARAMETERS.get(name, {}) else {}),
    }
    for name in QUERIES
} | {
    "prefix": {
        "encode": "contract: even and odd",
        "cells": 2,
        "sensitivity": {"add-remove": 1.0, "replace": 2.0},
    },
}


def small(name: str) -> Query:
    return build_query(name, SMALL[name])


def ticks_of(query: Query, number: int = TICKS) -> list[Any]:
    """Legal ticks, the same in every call. A graph takes every edge once."""
    if query.name == "prefix":
        return events_of(query, number)
    known = universe(query)
    return [known.tick(tick) for tick in events_of(query, number)]


def events_of(query: Query, number: int = TICKS) -> list[list[Any]]:
    """The events of each tick, one by one."""
    draw = random.Random(f"{query.name} ticks")
    if query.name == "prefix":
        return [[draw.randrange(9) for _ in range(draw.randrange(4))] for _ in range(number)]
    known = universe(query)
    events = list(known.events)
    if query.initial_state() is not None and query.rows is None and len(events) > 3:
        events = list(
            {
                tuple(event[:2]) if isinstance(event, tuple) else event: event for event in events
            }.values()
        )
        draw.shuffle(events)
        return [[events.pop()] if events and draw.random() < 0.7 else [] for _ in range(number)]
    return [[draw.choice(events) for _ in range(draw.randrange(3))] for _ in range(number)]


def exact_substring_sensitivity(query: Substrings, gram: FloatArray) -> float:
    """Largest ‖R(X−X′)‖² over replace-neighbours when every tick is one letter, U ≥ 2:
    `substrings.proof.md`, 4.

    `gram` is RᵀR. It is at most c²·S, usually less, because the changed ticks are not the same
    tick.
    """
    weights, totals = query.weights or (1,) * query.parameters()["max_length"], []
    for changed in range(1, len(gram) + 1):
        total = 0.0
        for length, weight in enumerate(weights, 1):
            ends = slice(max(changed, length) - 1, min(changed + length - 1, len(gram)))
            total += weight**2 * float(gram[ends, ends].sum() + np.trace(gram[ends, ends]))
        totals.append(total)
    return max(totals)
