"""Retire a stream: its history stays, its secret and sums go, and nothing is released from it again.

Proof: `retire.proof.md`.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import wait
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlalchemy import insert, update

from evercount._validate import stated
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.same_stream import declares_again
from evercount.declarations.schedule import instant_of
from evercount.errors import Conflict, ParameterError, StoreError
from evercount.privacy import compose
from evercount.store import schema
from evercount.store.open_stream import AnyStream, EndedStream
from evercount.store.spending import Spending, read_spendings, refuse_beyond_cap
from evercount.text_rules import check_public_text

if TYPE_CHECKING:
    from evercount.store.open_stream import LiveStream
    from evercount.store.writer import Store

SECRET_TABLES = (
    schema.secrets,
    schema.states,
    schema.accumulators,
    schema.open_events,
    schema.counted_totals,
    schema.users,
    schema.batches,
    schema.counted_events,
    schema.cut_streams,
    schema.shards,
    schema.early_events,
    schema.waiting_streams,
    schema.file_runs,
)
"""All that could release another number or tell a raw one. `noise_identities`, `ledger` and the history with
its `public_keys` stay; so does `counted_batches`: keyed digests that keep the checkpoint of a retired stream from
feeding another one."""
LONGEST_REASON = 500
EXPLANATION = """\
Retiring {name!r} cannot be undone:
  - Its releases stay readable. Its budget stays spent: {guarantee}
  - Nothing is released from it again. Events that were accepted in its open tick are not published.
  - Its secret, its exact sums, and what is kept about users and batches are deleted from the database.
  - Its name and its secret are never used again: the same noise on other data would reveal the data."""
SUCCESSOR_EXPLANATION = """\
Then {successor!r} is declared in the same way, with a new secret, from tick 1 on:
  - Its counts start at zero; readers add the last release of {name!r} if they want the sum.
  - Both together keep epsilon={epsilon}, delta={delta}."""


def explain(store: Store, name: str, now: float, successor: str | None) -> str:
    known = _known(store, name)
    text = EXPLANATION.format(name=name, guarantee=known.guarantee)
    if successor is None:
        return text
    with store.database.reading() as connection:
        lines = read_spendings(connection, {name: _until(known)})
    cost = next(line.cost for line in lines if line.stream == name)
    during = None if cost.during is None else successor_of(known.declaration, successor, now).during
    both = compose([cost, replace(cost, during=during)])
    numbers = {"epsilon": stated(both.epsilon), "delta": stated(both.delta)}
    return f"{text}\n{SUCCESSOR_EXPLANATION.format(name=name, successor=successor, **numbers)}"


def _known(store: Store, name: str) -> AnyStream:
    known = store.streams.get(name) or store.ended.get(name)
    if known is None:
        raise StoreError(f"the store has no stream {name!r}")
    return known


def retire_stream(
    store: Store, name: str, now: float, *, reason: str = "", successor: str | None = None
) -> tuple[EndedStream, LiveStream | None]:
    """Retire a stream, live or in quarantine, and declare its successor if one is named.

    Everything that can refuse the successor is checked before anything is changed. If the program is killed between
    the two, the same call again declares the successor.

    **Guarantee.** After the commit no release of the stream can be computed from the database, and no later stream of
    the store has its noise or its name: `retire.proof.md`. Its budget stays in the ledger. Tests:
    `tests/store/test_store_retire.py::test_nothing_of_a_retired_stream_is_left_to_release`,
    `tests/store/test_store_retire.py::test_the_noise_of_a_retired_stream_is_never_used_again`.
    """
    ended, known = store.ended.get(name), _known(store, name)
    if len(reason) > LONGEST_REASON:
        raise ParameterError(f"the reason has at most {LONGEST_REASON} characters")
    if reason:
        check_public_text("reason", reason)
    following = None if successor is None else successor_of(known.declaration, successor, now)
    if following is not None:
        _check_successor(store, ended, following, {name: _until(known)})
    if ended is None or ended.ending != "retired":
        ended = _retire(store, known, reason or "retired by the operator")
    if following is None:
        return ended, None
    heir = store.streams.get(following.name) or store.declare(following, now)  # it may be there after an interruption
    with store.database.transaction() as connection:
        connection.execute(update(schema.retired).where(schema.retired.c.name == name).values(successor=following.name))
    ended = store.ended[name] = replace(ended, successor=following.name)
    return ended, heir


def successor_of(declaration: StreamDeclaration, name: str, now: float) -> StreamDeclaration:
    """The same declaration under another name; one whose start has passed begins with the tick that holds now."""
    schedule, instant = declaration.schedule, instant_of(now)
    if schedule.begin <= instant:
        schedule = replace(schedule, start=None if schedule.manual else schedule.start_of(schedule.tick_of(instant)))
    return replace(declaration, name=name).with_schedule(schedule)


def _until(known: AnyStream) -> int | None:
    """The instant from which on the stream has published nothing; None where that is not known. A stream in quarantine
    has published more than this copy of the database knows."""
    schedule = known.declaration.schedule
    return None if isinstance(known, EndedStream) or schedule.manual else schedule.start_of(known.open_tick)


def _check_successor(
    store: Store, ended: EndedStream | None, following: StreamDeclaration, ending: dict[str, int | None]
) -> None:
    if ended is not None and ended.ending == "retired":
        if ended.successor not in (None, following.name):
            raise Conflict(f"stream {ended.name!r} is retired already, and its successor is {ended.successor!r}")
        heir = store.streams.get(following.name)
        if heir is not None and declares_again(heir.declaration, following.unstarted()):
            return  # it was declared before an interruption
    if following.name in store.streams or store.name_is_spent(following.name):
        raise Conflict(f"there is a stream {following.name!r} already: choose another name for the successor")
    stream = following.build()
    line = Spending(following.name, stream.cost, following.public)
    stream.close()
    refuse_beyond_cap(store.database, line, ending if ended is None else None)


def _retire(store: Store, known: AnyStream, reason: str) -> EndedStream:
    live = store.streams.get(known.name)
    if live is not None and live.ahead is not None:
        wait([live.ahead])
    facts = {"guarantee": known.guarantee, "noise": known.noise, "readable": known.readable, "until": _until(known)}
    with store.database.transaction() as connection:
        row = {"name": known.name, "stream": known.id, "moment": time.time(), "reason": reason}
        connection.execute(insert(schema.retired).values(**row, facts=json.dumps(facts)))
        for table in SECRET_TABLES:
            schema.remove(connection, table, stream=known.id)
    if isinstance(known, EndedStream):
        ended = replace(known, ending="retired", reason=reason)
    else:
        ended = store.streams.pop(known.name).ended("retired", reason)
    store.ended[known.name] = ended
    store.heads.retire(known.name, *store.current_head().streams[known.name])
    store.write_head()
    store.database.checkpoint()
    return ended
