"""When a stream may be followed by the one of the next year, and what it hands on to that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.tick_marks import hidden_labels
from evercount.engine.carried_totals import CarriedTotals, check_carries
from evercount.engine.stream import Stream
from evercount.errors import ParameterError
from evercount.files.cap_users import UsedBefore
from evercount.files.keeper import Keeper, RunState
from evercount.files.ledger_entry import NOT_ENTERED
from evercount.files.release_job import Job
from evercount.queries import Query


def is_complete(declaration: StreamDeclaration, state: RunState) -> bool:
    """Whether all ticks of the horizon are released."""
    horizon = declaration.horizon
    if horizon is None:
        return False
    return state.closed.until >= declaration.schedule.start_of(horizon + 1)


def check_charged(job: Job, state: RunState, which: str) -> None:
    """Refuse to follow a stream in a ledger without it, or one that is in none with a ledger."""
    if state.entry is not None and job.ledger is None:
        raise ParameterError(
            f"the stream is in a ledger: give `ledger`, which is charged for {which}, too"
        )
    if state.entry is None and job.ledger is not None and not job.new_noise_stream:
        raise ParameterError(NOT_ENTERED.format("the stream that is renewed", job.ledger))


def check_renewal(job: Job, capped: bool, *, now: bool) -> None:
    """Refuse to renew by itself what costs more each time, unless a ledger or a cap says how much
    may be spent, and to carry totals over that do not add up.

    `now`: the stream is declared, or renewed, by this run.
    """
    declaration = job.declaration
    if job.carry_totals:
        check_carries(declaration.query, declaration.stream_postprocess, declaration.revise_for)
    if job.ledger is not None or capped or declaration.renews_for_free:
        return
    if declaration.budget.period is None:
        raise ParameterError(
            "a person may be in every year, so each renewal adds to what is spent: give `ledger` "
            "with a `total` that allows for it, protect persons within a `period`, or declare "
            "`carry_caps` from the first year on"
        )
    if now:
        raise ParameterError(_cut_horizon(declaration))


def _cut_horizon(declaration: StreamDeclaration) -> str:
    """Say what is wrong with a horizon that is not a whole number of periods, and which one is."""
    during = declaration.during
    end = None if during is None else during.whole.end
    whole = ""
    if end is not None:
        whole = f", such as {declaration.schedule.tick_of(end) - 1}"
    return (
        f"the horizon of {declaration.horizon} ticks ends in the middle of a period of "
        f"{declaration.budget.period}: the next stream counts what the same persons do in that "
        f"period again, so a renewal adds to what is spent. Choose a `horizon` of whole periods"
        f"{whole}, or give `ledger` with a `total` that allows for it. A stream that has begun "
        "goes on without `renew`; declare its successor with another `out` and a `start` that is a "
        "whole number of periods after this one"
    )


def renewed(job: Job, query: Query) -> Job:
    """The job of the stream that goes on for one that counts `query`, with keys that joined."""
    declaration = job.declaration.with_query(query).renewed()
    return replace(job, declaration=declaration, secret=None)


def used_caps(
    declaration: StreamDeclaration, state: RunState, stream: Stream
) -> Mapping[str, UsedBefore]:
    """Return what persons have used of their caps: a query of persons keeps that in its stream.

    **Guarantee.** A stream that goes on with `carry_caps` begins with what every person has used in
    all streams of its chain, whatever it counts. Test: tests/files/test_carry_caps.py
    ::test_caps_are_those_of_one_stream.
    """
    if declaration.query.people is None:
        return state.users
    return stream._used_caps()


def totals_at_end(keeper: Keeper, state: RunState, stream: Stream) -> CarriedTotals:
    """The running totals that a stream has published last; NaN for keys that are not shown."""
    values = keeper.published(stream.tick - 1)[-1].copy()
    hidden = hidden_labels(state.marks, stream.tick)
    for place, label in enumerate(stream.query.labels):
        if label in hidden:
            values[place] = float("nan")
    since = state.settled.schedule.begin
    return CarriedTotals.after(stream._errors, stream.tick, values, since, state.carried_totals)
