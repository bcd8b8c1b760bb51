"""Forgetting a person: what a stream still holds under their id is deleted, as far as no promise
needs it.

Proof: `forget_person.proof.md`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import Connection, select

from evercount._validate import AnyArray, BoolArray
from evercount.errors import ParameterError
from evercount.queries.people import LONGEST_USER
from evercount.queries.user_cap import Caps, Used
from evercount.store.caps_of_persons import DAY_BYTES, HASH, PersonCaps
from evercount.store.commit_batches import user_hashes
from evercount.store.database import change, remove, rows_of
from evercount.store.named_events import PURPOSE, RECORD, pack_rows, unpack_rows, with_keys
from evercount.store.open_stream import FILES, LiveStream
from evercount.store.schema import counted_events, early_events, open_events, users

if TYPE_CHECKING:
    from evercount.store.writer import Store


def names_persons(live: LiveStream) -> bool:
    """Return whether the events of a stream come with ids of persons."""
    return live.declaration.budget.unit == "user" or live.declaration.query.people is not None


def forgets_in(store: Store) -> list[str]:
    """Names of the streams that `forget_person` takes: live ones whose events come with ids,
    through the service."""
    return sorted(
        name
        for name, live in store.streams.items()
        if names_persons(live) and live.waiting != FILES
    )


def forget_person(store: Store, name: str, person: str) -> list[str]:
    """Delete what a stream holds of a person and say what stays. The text is the same whether or
    not they were there.

    **Guarantee.** After the commit no event of an open tick is kept under the id or its hash, and
    the caps hold no more of the person than that they are used up, which is the same for all. The
    promise of the stream holds as before: `forget_person.proof.md`. Tests:
    tests/store/test_forget_person.py::test_nothing_of_the_person_is_left,
    tests/store/test_forget_person.py::test_caps_stay_used_up.
    """
    live = store.find(name)
    if not names_persons(live):
        raise ParameterError(
            f"the events of {name!r} come without ids of persons: nothing is kept under an id"
        )
    if live.waiting == FILES:
        raise ParameterError(
            f"{name!r} is fed from files: take the person out of the files. What its runs know of "
            "the caps of persons is forgotten when their period ends; `evercount store retire` "
            "deletes it at once"
        )
    if not 0 < len(person) <= LONGEST_USER:
        raise ParameterError(f"the id of a person has 1 to {LONGEST_USER} characters")
    with store.database.transaction() as connection:
        _forget_early(connection, live, person)
        others = _forget_open(connection, live, person)
        if live.declaration.query.people is not None:
            _forget_named(connection, live, person)
        else:
            _forget_records(connection, live, person)
        _use_up_caps(connection, live, person)
    live.events = others
    live.encoder = None
    store.database.checkpoint()
    return what_stays(live)


def what_stays(live: LiveStream) -> list[str]:
    """Sentences about what a stream of this declaration goes on holding of a person."""
    declaration = live.declaration
    query = declaration.query
    caps = declaration.user_caps
    lines = ["What was released stays, and so does its noise."]
    if query.people is None:
        lines.append(
            "Events that are added to the open tick already stay in its sum, which names nobody."
        )
    elif not query.people.each_tick:
        lines.append(
            "Its sealed state knows the id of everyone whom it has counted, so that nobody counts "
            "twice, until it is retired."
        )
    if caps is not None:
        until = (
            "the open tick closes"
            if caps.caps.within_a_tick
            else "the period ends, or the stream is retired"
        )
        lines.append(
            f"A keyed hash of a person who was counted stays until {until}: no more of them counts."
        )
    return lines


def _forget_early(connection: Connection, live: LiveStream, person: str) -> None:
    """Take the person's events out of those that wait for their tick."""
    for tick, number, sealed in rows_of(
        connection, early_events, "tick", "number", "sealed", stream=live.id
    ).all():
        events = json.loads(live.unseal(sealed, "early", tick))
        others = [
            [event, user]
            for event, user in events
            if user != person and not _is_of(live, event, person)
        ]
        # a row stays, perhaps without events: later ones are numbered after it
        if len(others) < len(events):
            new = live.seal(json.dumps(others).encode(), "early", tick)
            change(
                connection, early_events, {"sealed": new}, stream=live.id, tick=tick, number=number
            )


def _forget_open(connection: Connection, live: LiveStream, person: str) -> list[Any]:
    """Take the person's events out of those of the open tick; returns the others."""
    for tick, number, sealed in rows_of(
        connection, open_events, "tick", "number", "sealed", stream=live.id
    ).all():
        events = json.loads(live.unseal(sealed, "events", tick))
        others = [event for event in events if not _is_of(live, event, person)]
        if len(others) < len(events):
            new = live.seal(json.dumps(others).encode(), "events", tick)
            change(
                connection, open_events, {"sealed": new}, stream=live.id, tick=tick, number=number
            )
    return [event for event in live.events if not _is_of(live, event, person)]


def _is_of(live: LiveStream, event: Any, person: str) -> bool:
    """Return whether an event names the person itself."""
    people = live.declaration.query.people
    return people is not None and people.users_of([event]) == [person]


def _forget_named(connection: Connection, live: LiveStream, person: str) -> None:
    """Take the person's rows out of events with names that were read elsewhere."""
    for tick, query, batch, sealed in _counted(connection, live):
        names, numbers = unpack_rows(live.unseal(sealed, PURPOSE, tick))
        others = [place for place, name in enumerate(names) if name != person]
        if len(others) == len(names):
            continue
        content = b""
        if others:
            content = pack_rows([names[place] for place in others], numbers[others])
        _replace(connection, live, (tick, query, batch), content, PURPOSE)


def _forget_records(connection: Connection, live: LiveStream, person: str) -> None:
    """Take the person's records out of events of persons that were read elsewhere."""
    keyed = live.declaration.query.discovery is not None
    for tick, query, batch, sealed in _counted(connection, live):
        content = live.unseal(sealed, "user events", tick)
        begin = 0
        if keyed:
            begin = 8 + int.from_bytes(content[:8], "little")
        records = np.frombuffer(content, RECORD, -1, begin)
        others = records[~_are_of(live, records["user"], person)]
        if len(others) == len(records):
            continue
        rest = others.tobytes()
        if keyed and len(others):
            rest = with_keys(others, unpack_rows(content[8:begin])[0])
        _replace(connection, live, (tick, query, batch), rest, "user events")


def _counted(connection: Connection, live: LiveStream) -> Any:
    """Read the rows of `counted_events` of a stream."""
    return rows_of(
        connection, counted_events, "tick", "query", "batch", "sealed", stream=live.id
    ).all()


def _replace(
    connection: Connection,
    live: LiveStream,
    place: tuple[int, str, int],
    content: bytes,
    purpose: str,
) -> None:
    """Replace a row of `counted_events`, or delete it where nothing is left."""
    tick, query, batch = place
    where = {"stream": live.id, "tick": tick, "query": query, "batch": batch}
    if content:
        change(connection, counted_events, {"sealed": live.seal(content, purpose, tick)}, **where)
    else:
        remove(connection, counted_events, **where)


def _are_of(live: LiveStream, hashes: AnyArray, person: str) -> BoolArray:
    """Return which hashes are of the person, on whichever day where ticks are revised."""
    (own,) = user_hashes(live, [person])
    days = 0
    if live.declaration.revise_for is not None:
        days = DAY_BYTES
    stored = np.ascontiguousarray(hashes, HASH).view(np.uint8).reshape(len(hashes), HASH.itemsize)
    return np.asarray((stored[:, days:] == np.frombuffer(own, np.uint8)[days:]).all(axis=1))


def _use_up_caps(connection: Connection, live: LiveStream, person: str) -> None:
    """Replace what is stored of a person's caps: that they are used up. Without an entry nothing
    is written."""
    if live.declaration.user_caps is None:
        return
    person_caps = PersonCaps(live.id, live.sealer)
    person_caps.read(connection, [])  # blocks become rows, which can be told apart
    stored = connection.execute(select(users.c.user).where(users.c.stream == live.id)).scalars()
    hashes = np.asarray([bytes(user) for user in stored], HASH)
    own = hashes[_are_of(live, hashes, person)].tolist()
    entry = used_up(Caps.of(live.declaration.budget), live.open_tick)
    person_caps.change({user.ljust(HASH.itemsize, b"\0"): entry for user in own})
    person_caps.write(connection)


def used_up(caps: Caps, tick: int) -> Used:
    """Return the entry of a person of whom nothing more counts: for ever, or with caps within a
    tick, in this one."""
    if caps.within_a_tick:
        return Used(tick=tick, here=caps.per_tick or 0)
    return Used(events=caps.events or 0, ticks=caps.ticks or 0)
