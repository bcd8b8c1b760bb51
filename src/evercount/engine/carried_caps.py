"""Caps of persons that go on from stream to stream: in which streams that costs no more."""

from __future__ import annotations

from evercount.errors import ParameterError
from evercount.factorizations import Dense, Factorization
from evercount.factorizations.independent import Fresh
from evercount.factorizations.participation import participation
from evercount.privacy import Budget
from evercount.queries.base import Query, is_replace


def _repels(engine: Factorization) -> bool:
    """Whether a change of one tick is larger where another tick changes the other way."""
    return isinstance(engine, Dense) and bool(engine.gram.min() < 0)


MOST_TICKS = 1024  # ticks of a person, each of which is looked at


def check_hands_on(
    engine: Factorization, query: Query, budget: Budget, horizon: int | None
) -> None:
    """Refuse, with the reason, a stream of persons that may not be in a chain of streams
    (`TimeRange.chain`).

    **Guarantee.** A person who uses a part of its caps in a stream that is accepted here costs at
    most that part of μ², or of ε: `privacy/composition.proof.md`, section 8, "Caps that are handed
    on". Test: tests/engine/test_carried_caps.py::test_parts_of_the_caps_cost_parts_of_the_promise.
    """
    events, per_tick, ticks = budget.caps
    if budget.unit != "user" or budget.period is not None:
        raise ParameterError(
            "caps are carried over only for persons without a period; else renewals cost nothing "
            "more"
        )
    if (
        not query.memoryless
        or query.discovery is not None
        or (query.people and not query.people.each_tick)
    ):
        raise ParameterError(
            f"{query.name!r} remembers more about persons than their caps, so budgets add up"
        )
    if ticks is None or events is not None:
        if events is None or per_tick is not None or ticks is not None:
            raise ParameterError(
                "caps are carried over as max_ticks (with max_per_tick), or as max_events alone"
            )
        return  # n of k events cost (n/k)² of what k cost
    if horizon is not None and ticks > horizon:
        raise ParameterError(
            f"max_ticks={ticks} is more than the {horizon} ticks of the stream, so it caps nothing"
        )
    if budget.pure or isinstance(engine, Fresh):
        return  # l1 norms, and ticks with noise of their own, add up
    if ticks > MOST_TICKS:
        raise ParameterError(f"caps of more than {MOST_TICKS} ticks are not carried over")
    if query.people is not None and is_replace(budget.adjacency) and _repels(engine):
        raise ParameterError(
            f"with {engine.name!r} a person in the place of another costs more: choose 'fresh'"
        )
    span = budget.touched(horizon).span
    whole = participation(engine, ticks, span)
    if any(participation(engine, part, span) * ticks > whole * part for part in range(1, ticks)):
        raise ParameterError(
            f"with {engine.name!r} some ticks of a person cost more than their share: choose "
            "'fresh'"
        )
