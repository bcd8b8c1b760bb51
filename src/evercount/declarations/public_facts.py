"""What readers of a published table must know, whichever way it reaches them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.tick_marks import TickMark
from evercount.engine.carried_totals import CarriedTotals
from evercount.engine.user_counting import enforced_by
from evercount.privacy import counted_text


def public_facts(
    declaration: StreamDeclaration,
    guarantee: str,
    marks: Sequence[TickMark],
    *,
    full_digits: bool,
    carried: CarriedTotals | None = None,
) -> dict[str, Any]:
    """What readers of a table must know: ε, δ, who is protected, what intervals are about."""
    budget = declaration.budget
    remarks = [mark.facts(declaration.schedule) for mark in marks if mark.hides is None]
    since = None if carried is None else declaration.schedule.show(carried.since)
    totals = f"since {since}, with the errors of all streams since then"
    return {
        "epsilon": budget.epsilon,
        "delta": budget.delta,
        "adjacency": budget.adjacency,
        "unit": "person" if budget.unit == "user" else "event",
        "period": budget.period,
        "counted": counted_text(budget, enforced_by(declaration.released_query, None), declaration.tick),
        "guarantee": guarantee,
        "query": declaration.query.name,
        "tick": declaration.tick,
        "zone": declaration.schedule.zone,
        "postprocess": list(declaration.postprocess),
        "digits": "all" if full_digits else "as many as the error allows",
        **({} if carried is None else {"running totals": totals}),
        **({"remarks": remarks} if remarks else {}),
        "made with": "evercount",
    }
