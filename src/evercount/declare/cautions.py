"""Declarations that are legal, but seldom what an operator wants: said once, in words."""

from __future__ import annotations

import math

from evercount.declare.declaration import StreamDeclaration
from evercount.declare.schedule import SECOND, UNITS

WEAK_EPSILON = 10.0
"""Above this an outcome may be more than 22,000 times as likely with an event as without it."""


def cautions(declaration: StreamDeclaration) -> list[str]:
    """What an operator should think about again.

    >>> def declared(epsilon, tick):
    ...     return StreamDeclaration.from_dict({"name": "s", "query": "count", "tick": tick,
    ...         "budget": {"epsilon": epsilon, "delta": 1e-9}})
    >>> cautions(declared(1.0, "1h"))
    []
    >>> [text.partition(":")[0] for text in cautions(declared(12.0, "100ms"))]
    ['epsilon=12 is a weak promise', 'ticks of 100ms are very short']
    """
    sentences = []
    epsilon, schedule = declaration.budget.epsilon, declaration.schedule
    if epsilon > WEAK_EPSILON:
        factor = f"{math.exp(min(epsilon, 700)):.2g}"
        sentences.append(
            f"epsilon={epsilon:g} is a weak promise: an outcome may be {factor} times as likely with an event as "
            "without it. Usual values are 0.1 to 3."
        )
    if not schedule.manual and schedule.length < SECOND:
        a_day = UNITS["d"] // schedule.length
        sentences.append(
            f"ticks of {schedule.tick} are very short: they release {a_day:,} times a day, without a pause, and the "
            "error grows with the number of ticks. Is 1s, 1m or 1h meant?"
        )
    return sentences
