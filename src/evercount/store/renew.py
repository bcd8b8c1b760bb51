"""Renew a stream: the same declaration goes on where its horizon ends, with new noise, under the next name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from sqlalchemy import insert

from evercount._validate import stated
from evercount.engine.carried_totals import check_carries
from evercount.errors import Conflict, ParameterError
from evercount.privacy import compose
from evercount.store import schema
from evercount.store.open_stream import HISTORY
from evercount.store.stored_rows import carried_row

if TYPE_CHECKING:
    from evercount.declarations.declaration import StreamDeclaration
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
    store: Store,
    name: str,
    now: float,
    *,
    horizon: int | None = None,
    new_name: str | None = None,
    carry_totals: bool = False,
) -> LiveStream:
    """Declare the stream that goes on when the horizon of this one ends; the same call again finds it.

    **Guarantee.** The new stream counts events from the instant at which the old one ends, starts at zero, and has
    noise of its own: a new secret, and the start is part of the key. So for events, and for persons in periods, both
    together cost the larger of the two, which the ledger of the store states; for persons without periods the sum. A
    cap of the store refuses what goes beyond it. With `carry_totals` its running totals are shown on top of the last
    ones of the old stream (`StoredReleases.carried`), which is post-processing. Proof: `privacy/composition.proof.md`,
    section 8. Tests: tests/store/test_store_renew.py.
    """
    live = _known(store, name)
    following = _following(live, horizon, new_name, carry_totals)
    if live.successor is not None:
        heir = store.streams.get(live.successor)
        asked = (new_name or live.successor, horizon or (heir and heir.declaration.horizon), carry_totals)
        if heir is None or asked != (heir.name, heir.declaration.horizon, store.carried(heir.id) is not None):
            raise Conflict(f"stream {name!r} is already renewed: {live.successor!r} continues it")
        return heir
    heir = store.declare(following, now, waits_for=live.waiting or HISTORY)
    with store.database.transaction() as connection:
        connection.execute(insert(schema.renewals).values(stream=live.id, successor=heir.name))
        if carry_totals:
            schema.write_fact(connection, carried_row(heir.id), str(live.id))
    live.successor, heir.follows = heir.name, True
    return heir


def _following(live: LiveStream, horizon: int | None, name: str | None, carry_totals: bool) -> StreamDeclaration:
    declaration = live.declaration
    if carry_totals:
        check_carries(declaration.query, declaration.stream_postprocess, declaration.revise_for)
    return declaration.renewed(horizon, name or next_name(live.name))


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


def explain_renewal(
    store: Store, name: str, horizon: int | None, new_name: str | None, carry_totals: bool = False
) -> str:
    live = _known(store, name)
    following = _following(live, horizon, new_name, carry_totals)
    stream = following.build()
    both = compose([live.stream.cost, stream.cost])
    stream.close()
    begin = following.schedule.show(following.schedule.begin)
    totals = "Running totals go on from the last published ones, and the errors add up.\n" * carry_totals
    return (
        f"{following.name!r} continues {name!r} from {begin} on, with new noise and counts from zero.\n{totals}"
        f"Both together keep epsilon={stated(both.epsilon)}, delta={stated(both.delta)}."
    )
