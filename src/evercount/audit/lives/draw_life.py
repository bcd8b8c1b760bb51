"""draw_life: random lives, from a seed. What a declaration refuses is drawn again.

Everything is small: up to 8 ticks, 3 persons and 2 keys. Rows lie at the ends of ticks and values
at the ends of their ranges, because that is where counting goes wrong.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

from evercount.audit.lives.life import Event, History, Life, Step
from evercount.audit.lives.python_way import settled
from evercount.audit.lives.ways import WAYS
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.schedule import SECOND, format_utc
from evercount.errors import EvercountError
from evercount.queries.base import Query

MOST_TICKS = 8
PERSONS = ("ann", "bob", "cid")
KEYS = ("a", "b")
EPSILONS = (1.0, 0.001, 1e-4)
DELTAS = (0.0, 1e-6, 1e-3)
ZONES = (("UTC", "2026-03-27"), ("Europe/Vienna", "2026-03-28"), ("America/New_York", "2026-10-31"))
QUERIES: tuple[tuple[str, Mapping[str, Any]], ...] = (
    ("count", {}),
    ("count", {}),
    ("sum", {"low": -1, "high": 2}),
    ("sum", {"low": 0, "high": 1, "grid": 0.25}),
    ("sum", {"low": 0, "high": 2**42}),
    ("histogram", {"keys": list(KEYS)}),
    ("distinct-users", {}),
    ("distinct-users", {"keys": list(KEYS)}),
    ("active-users", {}),
    ("active-users", {"keys": list(KEYS)}),
    ("occupancy", {"max_events": 1}),
    ("occupancy", {"keys": list(KEYS), "max_events": 2}),
)
# a choice by evercount takes longer than the life of most streams
NOISE = (None, "fresh", "fresh", "balanced", "binary-tree", "direct", "square-root", "bridge")
VIEWS: tuple[tuple[str, ...], ...] = (
    (),
    ("running",),
    ("per-tick",),
    ("last-2",),
    ("per-tick", "running"),
    ("last-3", "running"),
)
PERIODS = {"1h": (None, 1, 2, 3, "1d"), "6h": (None, 1, 2, "1d"), "1d": (None, 1, 2, 3, "1d", "1w")}
TRIES = 200


def draw_life(seed: int | str, ways: Sequence[str] = ("python",)) -> Life:
    """The life of a seed, in one of these ways."""
    draw = random.Random(f"evercount life {seed}")
    way = draw.choice(ways)
    for _ in range(TRIES):
        fields = draw_declaration(draw, way)
        try:
            declared = settled(json.dumps(fields))
        except EvercountError:
            continue
        if declared.horizon is None and isinstance(declared.factorization, dict):
            continue  # the matrix of an endless terrace takes half a minute
        history = draw_history(draw, declared)
        if way == "python":
            history = tuple(event._replace(arrives=0) for event in history)
        steps = draw_steps(draw, declared, way)
        total = None
        if draw.random() < 0.3:
            factor = draw.choice((1.0, 1.5, 3.0))
            budget = declared.budget
            total = (budget.epsilon * factor, min(budget.delta * factor, 0.4))
        return Life(way, fields, history, steps, total, str(seed))
    raise AssertionError("no declaration was accepted")


def draw_declaration(draw: random.Random, way: str) -> dict[str, Any]:
    """Fields of a declaration, which may be refused."""
    name, parameters = draw.choice(QUERIES)
    zone, day = draw.choice(ZONES)
    tick = draw.choice(("1h", "6h", "1d", "1d"))
    views = draw.choice(VIEWS)
    fields: dict[str, Any] = {
        "name": "life",
        "query": {"name": name, "parameters": dict(parameters)},
        "budget": draw_budget(draw, tick),
        "tick": tick,
        "start": day,
        "zone": zone,
        "horizon": draw.choice((None, 2, 3, 4, 5, 6, MOST_TICKS, 12)),
    }
    if views:
        fields["views"] = list(views)
    noise = draw.choice(NOISE)
    if noise is not None:
        fields["factorization"] = noise
    if way != "python":
        late = draw.choice(("drop", "drop", "next", "revise"))
        fields["late"] = late
        if late == "revise":
            fields["revise_for"] = draw.choice((1, 2))
            fields.pop("views", None)
        free = fields["budget"]["unit"] == "user" and "period" not in fields["budget"]
        if way != "store" and free and draw.random() < 0.5:
            fields["carry_caps"] = True
        if draw.random() < 0.2:
            fields["wait"] = "2h"
    if "views" in fields and draw.random() < 0.1:
        fields["postprocess"] = ["nonnegative"]
    return fields


def draw_budget(draw: random.Random, tick: str) -> dict[str, Any]:
    budget: dict[str, Any] = {
        "epsilon": draw.choice(EPSILONS),
        "delta": draw.choice(DELTAS),
        "adjacency": draw.choice(("add-remove", "replace")),
        "unit": draw.choice(("event", "user", "user")),
    }
    if budget["unit"] == "event":
        return budget
    for cap in ("max_events", "max_per_tick", "max_ticks"):
        if draw.random() < 0.45:
            budget[cap] = draw.choice((1, 1, 2, 3))
    period = draw.choice(PERIODS[tick])
    if period is not None:
        budget["period"] = period
    return budget


def contents_for(query: Query[Any]) -> list[tuple[str, int]]:
    """All that a row of this query can say: (key, value)."""
    parameters, rows = query.parameters(), query.rows
    if "low" in parameters:
        return [(KEYS[0], parameters["low"]), (KEYS[0], parameters["high"])]
    keys: Sequence[str] = KEYS[:1]
    if rows is not None and "key" in rows.columns and rows.keys[0]:
        keys = rows.keys[0]
    return [(key, 1) for key in keys]


def draw_history(draw: random.Random, declared: StreamDeclaration) -> History:
    """Rows at the first, the last or any second of ticks, to after the end."""
    schedule, contents = declared.schedule, contents_for(declared.query)
    persons = PERSONS[: draw.choice((1, 2, 3))]
    lateness = draw.choice((0.0, 0.0, 0.3))
    events = []
    if draw.random() < 0.5:
        events += _diligent(draw, declared, contents)
    for _ in range(draw.choice((0, 1, 2, 3, 4, 6, 9))):
        tick = draw.randint(1, MOST_TICKS + 4)
        begin = schedule.start_of(tick) // SECOND
        end = schedule.start_of(tick + 1) // SECOND
        at = draw.choice((begin, end - 1, draw.randrange(begin, end)))
        key, value = draw.choice(contents)
        arrives = 0
        if draw.random() < lateness:
            arrives = schedule.start_of(tick + draw.randint(1, 4)) // SECOND + 1
        events.append(Event(at, draw.choice(persons), key, value, arrives))
    return tuple(sorted(events))


def _diligent(
    draw: random.Random, declared: StreamDeclaration, contents: Sequence[tuple[str, int]]
) -> list[Event]:
    """Rows of one person in each tick of a stretch: what costs most, as a rule."""
    schedule = declared.schedule
    first = draw.choice((1, 1, 2, 3))
    last = draw.randint(first, MOST_TICKS)
    each = draw.choice((1, 1, 2, 3))
    one = draw.choice(contents)
    mixed = draw.random() < 0.5
    events = []
    for tick in range(first, last + 1):
        for number in range(each):
            key, value = draw.choice(contents) if mixed else one
            events.append(Event(schedule.start_of(tick) // SECOND + number, PERSONS[0], key, value))
    return events


def draw_steps(draw: random.Random, declared: StreamDeclaration, way: str) -> tuple[Step, ...]:
    """What the operator does, in an order that the clock allows."""
    schedule = declared.schedule
    unkeyed = declared.query.parameters().get("keys") is None
    without = {"release", "steps", *(("join", "hide") if unkeyed else ())}
    operations = [name for name in WAYS[way][1] if name not in without]
    chosen = draw.sample(operations, draw.randint(0, min(4, len(operations))))
    last = MOST_TICKS + draw.randint(0, 4)
    times = sorted(draw.randint(1, last) for _ in range(draw.randint(0, 2)))
    steps: list[Step] = []
    for tick in [*times, last]:
        while chosen and draw.random() < 0.6:
            steps.append(_step(draw, chosen.pop(), declared))
        name = "release"
        if "steps" in WAYS[way][1] and draw.random() < 0.3:
            name = "steps"
        steps.append(Step(name, schedule.start_of(tick + 1) // SECOND))
    return tuple(steps)


def _step(draw: random.Random, name: str, declared: StreamDeclaration) -> Step:
    arguments: dict[str, Any] = {
        "join": ["c"],
        "hide": [KEYS[1]],
        "note": draw.randint(1, 4),
        "missing": (draw.randint(2, MOST_TICKS), draw.choice(("drop", "next"))),
        "kill": draw.randint(1, 9),
        "shards": 2,
    }
    if name == "second":
        return Step(name, _second(draw, declared))
    return Step(name, arguments.get(name))


def _second(draw: random.Random, declared: StreamDeclaration) -> dict[str, Any]:
    """What a second stream declares in another way."""
    schedule = declared.schedule
    zone = ZoneInfo(declared.zone or "UTC")
    later = schedule.start_of(draw.randint(2, 5)) // SECOND
    budget = draw_budget(draw, declared.tick)
    same_unit = {
        field: value
        for field, value in declared.budget.to_dict().items()
        if field in ("epsilon", "delta", "adjacency", "unit", "max_events", "max_per_tick")
        or field in ("max_ticks", "period")
        if value is not None
    }
    shifted = {"start": datetime.fromtimestamp(later, zone).isoformat()}
    periods = [period for period in PERIODS[declared.tick] if period is not None]
    alike = {"UTC": "Africa/Abidjan", "Europe/Vienna": "Europe/Berlin"}
    same_clock = {"zone": alike.get(declared.zone or "UTC", "America/Toronto")}
    choices: list[dict[str, Any]] = [
        shifted,
        shifted,
        {"budget": {**same_unit, "epsilon": same_unit["epsilon"] / 2}},
        {"budget": {**same_unit, "delta": 1e-6}},
        same_clock,
        same_clock,
        {"horizon": draw.choice((3, 7, None))},
        {"views": ["running"]},
        {"factorization": draw.choice(("fresh", "balanced"))},
        {"budget": budget},
        {},
    ]
    if "period" in same_unit:
        choices += [shifted, *({"budget": {**same_unit, "period": each}} for each in periods)]
    changes: dict[str, Any] = {"name": "second"}
    for change in draw.sample(choices, draw.choice((1, 1, 2))):
        changes |= change
    if "start" not in changes:  # the same instant, in any zone
        changes["start"] = format_utc(schedule.begin)
    return changes
