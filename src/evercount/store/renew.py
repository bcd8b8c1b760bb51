"""Renew a stream: the same declaration goes on where its horizon ends, with new noise, under the next name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sqlalchemy import insert

from evercount._validate import stated
from evercount.errors import Conflict, ParameterError
from evercount.privacy import compose
from evercount.store import schema
from evercount.store.open_stream import HISTORY

if TYPE_CHECKING:
    from evercount.store.open_stream import LiveStream
    from evercount.store.writer import Store

NUMBERED = re.compile(r"(.*[._-])([0-9]{1,9})")


def next_name(name: str) -> str:
    """The name of the stream that goes on for another one.

    >>> next_name("flu"), next_name("flu-2"), next_name("flu-2026")
    ('flu-2', 'flu-3', 'flu-2027')
    """
    numbered = NUMBERED.fullmatch(name)
    following = f"{name}-2" if numbered is None else f"{numbered[1]}{int(numbered[2]) + 1}"
    if len(following) > 64:
        raise ParameterError(f"the name after {name!r} is too long: give one")
    return following


def renew_stream(
    store: Store, name: str, now: float, *, horizon: int | None = None, new_name: str | None = None
) -> LiveStream:
    """Declare the stream that goes on when the horizon of this one ends; the same call again finds it.

    **Guarantee.** The new stream counts events from the instant at which the old one ends, starts at zero, and has
    noise of its own: a new secret, and the start is part of the key. So for events, and for persons in periods, both
    together cost the larger of the two, which the ledger of the store states; for persons without periods the sum. A
    cap of the store refuses what goes beyond it. Proof: `privacy/composition.proof.md`, section 8. Test:
    tests/store/test_store_renew.py.
    """
    live = _known(store, name)
    following = live.declaration.renewed(horizon, new_name or next_name(name))
    if live.successor is not None:
        heir = store.streams.get(live.successor)
        asked = (new_name or live.successor, horizon or (heir and heir.declaration.horizon))
        if heir is None or asked != (heir.name, heir.declaration.horizon):
            raise Conflict(f"stream {name!r} is renewed already: {live.successor!r} goes on for it")
        return heir
    heir = store.declare(following, now, waits_for=live.waiting or HISTORY)
    with store.database.transaction() as connection:
        connection.execute(insert(schema.renewals).values(stream=live.id, successor=heir.name))
    live.successor, heir.follows = heir.name, True
    return heir


def _known(store: Store, name: str) -> LiveStream:
    if name not in store.streams and not store.name_is_spent(name):
        raise ParameterError(f"the store has no stream {name!r}")
    return store.find(name)


def last_of_renewals(store: Store, name: str) -> LiveStream:
    """The stream that goes on for this one now, or will: the end of its chain of renewals."""
    live = store.find(name)
    while live.successor is not None:
        live = store.find(live.successor)
    return live


def explain_renewal(store: Store, name: str, horizon: int | None, new_name: str | None) -> str:
    """What a renewal means, before it is done."""
    live = _known(store, name)
    following = live.declaration.renewed(horizon, new_name or next_name(name))
    stream = following.build()
    both = compose([live.stream.cost, stream.cost])
    stream.close()
    begin = following.schedule.show(following.schedule.begin)
    return (
        f"{following.name!r} goes on for {name!r} from {begin} on, with new noise and counts from zero.\n"
        f"Both together keep epsilon={stated(both.epsilon)}, delta={stated(both.delta)}."
    )
