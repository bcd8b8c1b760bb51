"""What an operator does to a stream of a store: keys join it, ticks get remarks, it is renewed
where its horizon ends, and it is retired: its history stays, its secret and sums go, and nothing is
released from it again.

Proofs: `tick_marks.proof.md`, `retire.proof.md`.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import wait
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import Connection, insert

from evercount._validate import check_public_text
from evercount.declarations.cautions import declares_again
from evercount.declarations.schedule import instant_of
from evercount.declarations.settle import Settled
from evercount.declarations.tick_marks import FOR_EVER, NEXT, TickMark, check_mark
from evercount.engine.add_keys import label_of
from evercount.engine.carried_totals import check_carries
from evercount.engine.stream import Stream
from evercount.errors import AlreadyReleased, Conflict, ParameterError, StoreError, TooLarge
from evercount.privacy import compose
from evercount.privacy.guarantee_text import stated_promise
from evercount.store import schema
from evercount.store.database import change, find, remove, rows_of, write_fact
from evercount.store.declare_stream import MOST_CELLS, BeforeCommit
from evercount.store.open_stream import (
    HISTORY,
    StoredStream,
    Totals,
    pack_totals,
    unpack_totals,
)
from evercount.store.spending import Spending, read_spendings, refuse_beyond_cap
from evercount.store.stored_releases import read_joined, read_marks

if TYPE_CHECKING:
    from evercount.store.open_stream import LiveStream
    from evercount.store.writer import Store


def join_keys(store: Store, name: str, keys: Sequence[Any]) -> list[str]:
    """Let keys join a stream from its open tick on; those that are there already are left alone.

    **Guarantee.** A crash leaves the stream as it was, or with the keys. Nothing is released or
    spent, and what open ticks have counted stays. Test:
    tests/store/test_store_join_keys.py::test_a_kill_leaves_all_or_nothing.

    Returns:
        The labels of the keys that have joined.
    """
    live = store.find(name)
    if live.shards is not None:
        raise ParameterError(
            f"the cells of {name!r} are cut into shards, which keys cannot join: declare a "
            "successor"
        )
    labels = set(live.stream.labels)
    after = live.stream.tick
    try:
        new = live.stream.add_keys(keys)
        query = live.stream.query
        if max(query.cells, query.outputs) > MOST_CELLS:
            raise TooLarge(
                f"a stream of a store has at most {MOST_CELLS:,} cells; with these keys it has more"
            )
        blob = live.stream.snapshot()
        if new:
            with store.database.transaction() as connection:
                before = read_joined(connection, live.id)
                joining = [key for key in keys if label_of(key) not in labels]
                write_fact(connection, f"joined {live.id}", json.dumps([*before, (after, joining)]))
                live.write_state(connection, after, blob)
                live.write_totals(connection, live.open_tick, _widened(live.totals, query.cells))
                _widen_counted(connection, live, query.cells)
    except BaseException:
        live.stream = Stream.restore(live.blob, live.declaration.period_of)
        raise
    again = _show_again(store, live, {label_of(key) for key in keys})
    live.totals = _widened(live.totals, query.cells)
    live.blob = blob
    live.encoder = None
    live.declaration = live.declaration.with_query(query)
    return [*new, *again]


def _show_again(store: Store, live: LiveStream, labels: set[str]) -> list[str]:
    """Show hidden keys from the open tick on; returns those of the labels that were hidden."""
    hidden = _hidden_of(live)
    again = labels & {label for label, _, until in hidden if until == FOR_EVER}
    if not again:
        return []
    last = live.open_tick - 1
    rest = [(label, first, last if label in again else until) for label, first, until in hidden]
    _write_hidden(store, live, [one for one in rest if one[1] <= one[2]])
    return sorted(again)


def hide_keys(store: Store, name: str, labels: Sequence[str]) -> list[str]:
    """Show no numbers of these labels from the open tick on; `join_keys` shows them again.

    **Guarantee.** They are counted and stored as before, and no reader sees them: post-processing.
    Test: tests/store/test_store_join_keys.py::test_removed_keys_are_not_shown.
    """
    live = store.find(name)
    hidden = {label for label, _, last in _hidden_of(live) if last == FOR_EVER}
    if unknown := [label for label in labels if label not in live.labels]:
        raise ParameterError(
            f"there is no key {', '.join(map(repr, unknown))} in the list of this stream"
        )
    if live.declaration.query.discovery is not None:
        raise ParameterError("unlisted keys appear by themselves and cannot be removed")
    if not set(live.labels) - hidden - set(labels):
        raise ParameterError("nothing would be left to show; end the stream instead")
    new = [label for label in labels if label not in hidden]
    _write_hidden(
        store, live, [*_hidden_of(live), *((label, live.open_tick, FOR_EVER) for label in new)]
    )
    return new


def _hidden_of(live: LiveStream) -> list[tuple[str, int, int]]:
    return [(one.hides, one.first, one.last) for one in live.marks if one.hides is not None]


def _write_hidden(store: Store, live: LiveStream, hidden: Sequence[tuple[str, int, int]]) -> None:
    with store.database.transaction() as connection:
        write_fact(connection, f"hidden {live.id}", json.dumps(hidden))
        live.marks = read_marks(connection, live.id)


def _widened(totals: Totals, cells: int) -> Totals:
    return np.concatenate([totals, np.zeros(cells - len(totals), totals.dtype)])


def _widen_counted(connection: Connection, live: LiveStream, cells: int) -> None:
    """Give the stored totals of open ticks a place for each cell."""
    table = schema.counted_totals
    old = len(live.totals)
    for tick, stored in rows_of(connection, table, "tick", "sealed", stream=live.id).all():
        totals = unpack_totals(live.unseal(stored, "counted", tick), old)
        sealed = live.seal(pack_totals(_widened(totals, cells)), "counted", tick)
        change(connection, table, {"sealed": sealed}, stream=live.id, tick=tick)


def mark_ticks(store: Store, name: str, mark: TickMark) -> TickMark:
    """Keep a remark of the operator; for missing ticks before any of them closes.

    **Guarantee.** What a missing tick counts is fixed before the tick closes, by an act that is
    public; its events are dropped, or counted once, in the next tick: `tick_marks.proof.md`. Tests:
    `tests/store/test_tick_marks.py::test_neighbours_stay_neighbours`,
    ::test_missing_ticks_count_nothing.
    """
    stream = store.find_any(name)
    check_mark(stream.declaration, mark, len(stream.marks))
    if mark in stream.marks:
        return mark  # a retry
    if mark.missing is not None:
        _check_missing(stream, mark)
    with store.database.transaction() as connection:
        numbers = rows_of(connection, schema.tick_marks, "number", stream=stream.id).scalars()
        number = 1 + max(numbers, default=-1)
        row = {"stream": stream.id, "number": number, "made": time.time()}
        fields = {
            "first": mark.first,
            "last": mark.last,
            "missing": mark.missing,
            "text": mark.text,
        }
        connection.execute(insert(schema.tick_marks).values(**row, **fields))
    stream.marks = (*stream.marks, mark)
    return mark


def _check_missing(stream: StoredStream, mark: TickMark) -> None:
    """Refuse to declare ticks missing that are closed, may be revised, or are missing already."""
    if stream.declaration.revise_for is not None:
        raise ParameterError(
            "a tick that is revised cannot be missing: its events may still come. Write a note"
        )
    if stream.live is None or mark.first < stream.live.open_tick:
        raise AlreadyReleased(
            f"tick {mark.first} of {stream.name!r} is closed, and what is released stays released: "
            "write a note on it; only ticks that are still open can be declared missing"
        )
    missing = [one for one in stream.marks if one.missing]
    if any(one.first <= mark.last and mark.first <= one.last for one in missing):
        raise Conflict("some of these ticks are declared missing already: name the others only")
    if mark.missing == NEXT and stream.declaration.budget.unit == "user":
        raise ParameterError(
            "events of persons are capped tick by tick, so those of a missing tick cannot move "
            "to another one: drop them"
        )


NUMBERED = re.compile(r"(.*[._-])([0-9]{1,9})")


def next_name(name: str) -> str:
    """The name of the stream that goes on for another one.

    >>> next_name("flu"), next_name("flu-2"), next_name("flu-2026")
    ('flu-2', 'flu-3', 'flu-2027')
    """
    numbered = NUMBERED.fullmatch(name)
    following = f"{name}-2" if numbered is None else f"{numbered[1]}{int(numbered[2]) + 1}"
    if len(following) > 64:
        raise ParameterError(f"the next name after {name!r} is too long: give one")
    return following


def renew_stream(
    store: Store,
    name: str,
    now: float,
    *,
    horizon: int | None = None,
    new_name: str | None = None,
    carry_totals: bool = False,
    inherited_caps: Mapping[str, tuple[int, int]] | None = None,
    before_commit: BeforeCommit | None = None,
) -> LiveStream:
    """Declare the stream that goes on when the horizon of this one ends; the same call again finds
    it.

    **Guarantee.** The new stream counts events from the instant at which the old one ends, starts
    at zero, and has noise of its own: a new secret, and the start is part of the key. So for
    events, and for persons in periods that the horizon does not cut, both together cost the larger
    of the two, which the ledger of the store states; for other persons the sum. A cap of the store
    refuses what goes beyond it. With `carry_totals` its running totals are shown on top of the last
    ones of the old stream (`Reading.carried`), which is post-processing. Proof:
    `privacy/composition.proof.md`, section 8. Tests: tests/store/test_store_renew.py and
    tests/store/test_store_periods.py.
    """
    live = store.find(name)
    declaration = live.declaration
    if carry_totals:
        check_carries(declaration.query, declaration.stream_postprocess, declaration.revise_for)
    if live.successor is not None:
        successor = store.streams.get(live.successor)
        if (
            successor is None
            or (new_name or successor.name) != successor.name
            or (horizon or successor.declaration.horizon) != successor.declaration.horizon
            or carry_totals != (store.carried(successor.id) is not None)
        ):
            raise Conflict(f"stream {name!r} is already renewed: {live.successor!r} continues it")
        return successor
    following = declaration.renewed(horizon, new_name or next_name(name))
    successor = store.declare(
        following,
        now,
        waits_for=live.waiting or HISTORY,
        inherited_caps=inherited_caps,
        before_commit=before_commit,
    )
    with store.database.transaction() as connection:
        connection.execute(insert(schema.renewals).values(stream=live.id, successor=successor.name))
        if carry_totals:
            write_fact(connection, f"totals {successor.id}", str(live.id))
    live.successor = successor.name
    successor.follows = True
    return successor


def last_of_renewals(store: Store, name: str) -> LiveStream:
    """The stream that goes on for this one now, or will: the end of its chain of renewals."""
    live = store.find(name)
    while live.successor is not None:
        live = store.find(live.successor)
    return live


def newest_of(store: Store, name: str) -> LiveStream | None:
    """The end of the chain of renewals of a stream; None if the store has no such stream."""
    if store.name_is_spent(name):
        raise StoreError(
            f"stream {name!r} of the store is retired: give the new stream another `name`"
        )
    return last_of_renewals(store, name) if name in store.streams else None


def identities_of(store: Store, live: LiveStream) -> list[str]:
    """What tells the noise of a stream from that of all others, and that of the streams that it
    goes on for; its own first."""
    before = {one.successor: one for one in store.streams.values() if one.successor is not None}
    identities = []
    one: LiveStream | None = live
    while one is not None:
        own = store.database.read(find, schema.noise_identities, "identity", stream=one.id)
        identities.append(own.hex())
        one = before.get(one.name)
    return identities


SECRET_TABLES = (
    *(table for table in schema.metadata.sorted_tables if "sealed" in table.c),
    schema.batches,
    schema.cut_streams,
    schema.waiting_streams,
)
"""All that could release another number or tell a raw one. `noise_identities`, `ledger` and the
history with its `public_keys` stay; so does `counted_batches`: keyed digests that keep the
checkpoint of a retired stream from feeding another one."""
LONGEST_REASON = 500
EXPLANATION = """\
Retiring {name!r} cannot be undone:
  - Its releases stay readable. Its budget stays spent: {guarantee}
  - Nothing is released from it again. Events that were accepted in its open tick are not published.
  - Its secret, its exact sums, and what is kept about users and batches are deleted from the \
database.
  - Its name and its secret are never used again: the same noise on other data would reveal \
the data."""
SUCCESSOR_EXPLANATION = """\
Then {successor!r} is declared in the same way, with a new secret, from tick 1 on:
  - Its counts start at zero; readers add the last release of {name!r} if they want the sum.
  - {together}"""


def explain(store: Store, name: str, now: float, successor: str | None) -> str:
    """Return what retiring a stream means, for the operator who is about to do it."""
    stream = store.find_any(name)
    text = EXPLANATION.format(name=name, guarantee=stream.guarantee)
    if successor is None:
        return text
    lines = store.database.read(read_spendings, {name: _until(stream)})
    cost = next(line.cost for line in lines if line.stream == name)
    during = None
    if cost.during is not None:
        during = successor_of(stream.declaration, successor, now).during
    try:
        together = (
            f"Both together keep {stated_promise(compose([cost, replace(cost, during=during)]))}."
        )
    except ParameterError as error:
        together = f"What both keep together is not stated: {error}"
    return (
        f"{text}\n{SUCCESSOR_EXPLANATION.format(name=name, successor=successor, together=together)}"
    )


def retire_stream(
    store: Store, name: str, now: float, *, reason: str = "", successor: str | None = None
) -> tuple[StoredStream, LiveStream | None]:
    """Retire a stream, live or in quarantine, and declare its successor if one is named.

    Everything that can refuse the successor is checked before anything is changed. If the program
    is killed between the two, the same call again declares the successor.

    **Guarantee.** After the commit no release of the stream can be computed from the database, and
    no later stream of the store has its noise or its name: `retire.proof.md`. Its budget stays in
    the ledger. Tests:
    `tests/store/test_store_retire.py::test_nothing_of_a_retired_stream_is_left_to_release`,
    `tests/store/test_store_retire.py::test_the_noise_of_a_retired_stream_is_never_used_again`.
    """
    ended = store.ended.get(name)
    stream = store.find_any(name)
    if len(reason) > LONGEST_REASON:
        raise ParameterError(f"the reason has at most {LONGEST_REASON} characters")
    if reason:
        check_public_text("reason", reason)
    following = None
    if successor is not None:
        following = successor_of(stream.declaration, successor, now)
        _check_successor(store, ended, following, {name: _until(stream)})
    if ended is None or ended.ending != "retired":
        ended = _retire(store, stream, reason or "retired by the operator", _until(stream))
    if following is None:
        return ended, None
    # it may be there after an interruption
    new_stream = store.streams.get(following.name) or store.declare(following, now)
    with store.database.transaction() as connection:
        change(connection, schema.retired, {"successor": following.name}, name=name)
    ended = store.ended[name] = replace(ended, successor=following.name)
    return ended, new_stream


def successor_of(declaration: Settled, name: str, now: float) -> Settled:
    """The same declaration under another name; one whose start has passed begins with the tick that
    holds now."""
    schedule = declaration.schedule
    instant = instant_of(now)
    if schedule.begin <= instant:
        start = None
        if not schedule.manual:
            start = schedule.start_of(schedule.tick_of(instant))
        schedule = replace(schedule, start=start)
    return replace(declaration, name=name).with_schedule(schedule)


def _until(stream: StoredStream) -> int | None:
    """Return the instant from which on the stream has published nothing; None where that is not
    certain. A stream in quarantine has published more than this copy of the database holds."""
    schedule = stream.declaration.schedule
    if stream.live is None or schedule.manual:
        return None
    return schedule.start_of(stream.live.open_tick)


def _check_successor(
    store: Store, ended: StoredStream | None, following: Settled, ending: dict[str, int | None]
) -> None:
    """Refuse a successor whose name is taken or whose cost goes beyond the cap, unless it was
    declared before an interruption."""
    if ended is not None and ended.ending == "retired":
        if ended.successor not in (None, following.name):
            raise Conflict(
                f"stream {ended.name!r} is retired already, and its successor is "
                f"{ended.successor!r}"
            )
        existing = store.streams.get(following.name)
        if existing is not None and declares_again(existing.declaration, following.unstarted()):
            return
    if following.name in store.streams or store.name_is_spent(following.name):
        raise Conflict(
            f"there is a stream {following.name!r} already: choose another name for the successor"
        )
    stream = following.build()
    line = Spending(following.name, stream.cost, following.public)
    stream.close()
    refuse_beyond_cap(store.database, line, ending if ended is None else None)


def retire_moved(store: Store, live: LiveStream, reason: str) -> StoredStream:
    """Retire a stream that goes on elsewhere. It is charged in full: it counts what happens after
    its last tick here, too."""
    return _retire(store, live, reason, None)


def _retire(store: Store, stream: StoredStream, reason: str, until: int | None) -> StoredStream:
    """Delete all that could release another number of the stream, and keep its history. It has
    published nothing from the instant `until` on."""
    name = stream.name
    live = stream.live
    if live is not None and live.ahead is not None:
        wait([live.ahead])
    facts = {"guarantee": stream.guarantee, "readable": stream.readable, "until": until}
    with store.database.transaction() as connection:
        row = {"name": name, "stream": stream.id, "moment": time.time(), "reason": reason}
        connection.execute(insert(schema.retired).values(**row, facts=json.dumps(facts)))
        for table in SECRET_TABLES:
            remove(connection, table, stream=stream.id)
    if live is None:
        ended = replace(stream, ending="retired", reason=reason)
    else:
        ended = live.end("retired", reason)
        del store.streams[name]
    store.ended[name] = ended
    tick, digest = store.current_head().streams[name]
    store.heads.retire(name, tick, digest)
    store.write_head()
    store.database.checkpoint()
    return ended
