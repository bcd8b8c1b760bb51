"""How a stream gets into the memory of its writer: declared anew, or loaded from its rows.

The secret of a new stream, its first state and its line of the ledger are one transaction.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from sqlalchemy import Connection, insert

from evercount.declarations.cautions import changed_noise, declares_again
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.schedule import SECOND, instant_of
from evercount.declarations.settle import settle
from evercount.engine.stream import Stream
from evercount.errors import (
    Conflict,
    EvercountError,
    ParameterError,
    SnapshotError,
    StoreError,
    TooLarge,
)
from evercount.noise import Secret
from evercount.store import schema
from evercount.store.closing_ticks import cut_stream, read_shards
from evercount.store.database import find, read_fact, rows_of, write_fact
from evercount.store.open_stream import FILES, HISTORY, LiveStream, StoredStream, unpack_totals
from evercount.store.sealing import Sealer
from evercount.store.spending import Spending, refuse_beyond_cap, states
from evercount.store.stored_releases import (
    declared,
    genesis,
    labels_of,
    last_link,
    read_marks,
    released_until,
    with_late_rules,
)

if TYPE_CHECKING:
    from evercount.store.writer import Store

BeforeCommit = Callable[[Connection, LiveStream], object]
MOST_CELLS = 100_000  # cells of one stream: each is a row per tick
MOST_MISSED = 100_000  # ticks that a newly declared stream may have missed already


def declare_stream(
    store: Store,
    declaration: StreamDeclaration,
    now: float,
    secret: Secret | None = None,
    *,
    shards: int | None = None,
    before_commit: BeforeCommit | None = None,
    waits_for: str | None = None,
    inherited_caps: Mapping[str, tuple[int, int]] | None = None,
) -> LiveStream:
    """The stream of this declaration: a new one, or the existing one if it was declared in the same
    way.

    With `shards` its cells are cut into that number of ranges, which close their ticks apart
    (`closing_ticks.py`). The number stays, and may be left out later. `before_commit` is called
    with the new stream; if it fails, there is none. The clock closes no tick of a new stream that
    waits: for FILES, or for its HISTORY, if a tick has ended before it was declared.

    **Guarantee.** No two streams that are declared in one store have the same secret, query,
    budget, horizon, start, ticks and columns: they would have the same noise, and the difference of
    their releases would be that of their data. Test: `tests/store/test_store_secrets.py`.
    """
    _check_allowed(store, declaration, waits_for)
    existing = store.streams.get(declaration.name)
    if existing is not None:
        _declare_again(store, existing, declaration, shards)
        return existing
    lags = (declaration.revise_for or 0) + 1
    if max(declaration.query.cells, declaration.query.outputs) * lags > MOST_CELLS * (shards or 1):
        raise TooLarge(
            f"a stream of a store has at most {MOST_CELLS:,} cells, or {MOST_CELLS:,} in each of "
            "its shards; this query has more"
        )
    settled = settle(declaration)
    text = settled.canonical()
    start = settled.schedule.with_start(instant_of(now)).begin / SECOND
    # as it is read back: the start is part of the noise's key
    settled = settled.started(instant_of(start))
    schedule = settled.schedule
    clocked = not schedule.manual and waits_for != FILES
    if clocked and schedule.tick_of(instant_of(now)) > MOST_MISSED:
        raise ParameterError(
            f"start lies more than {MOST_MISSED} ticks in the past: start the stream later"
        )
    secret = secret or Secret.generate()
    stream = settled.build(secret=secret, inherited_caps=inherited_caps)
    line = Spending(settled.name, stream.cost, settled.public)
    identity = bytes.fromhex(stream.identity)
    try:
        refuse_twin(store, identity)
        refuse_beyond_cap(store.database, line)
    except EvercountError:
        stream.close()
        raise
    head = genesis(text, start)
    blob = stream.snapshot()
    totals = np.zeros(stream.query.cells, np.int64)
    with store.database.transaction() as connection:
        number = connection.execute(
            insert(schema.streams)
            .values(
                name=declaration.name,
                declaration=text,
                start=start,
                created=time.time(),
                genesis=head,
            )
            .returning(schema.streams.c.id)
        ).scalar_one()
        # as readers see them
        labels = stream.labels
        if declaration.revise_for is not None:
            labels = declaration.query.labels
        live = LiveStream(
            number,
            settled,
            labels=labels,
            secret=secret,
            sealer=store.sealer,
            stream=stream,
            blob=blob,
            head=head,
            totals=totals,
        )
        missed = not schedule.manual and schedule.tick_of(instant_of(now)) > 1
        if waits_for == FILES or (waits_for == HISTORY and missed):
            live.waiting = waits_for
            connection.execute(
                insert(schema.waiting_streams).values(stream=number, reason=waits_for)
            )
        for table, row in (
            (schema.secrets, {"sealed": live.seal(secret.hex().encode(), "secret")}),
            (schema.noise_identities, {"identity": identity}),
            (schema.states, {"tick": 0, "sealed": live.seal(blob, "state")}),
            (schema.accumulators, {"tick": 1, "sealed": live.pack_totals(totals, 1)}),
            (schema.ledger, {"cost": json.dumps(line.cost.to_dict()), "spent": time.time()}),
        ):
            connection.execute(insert(table).values(stream=number, **row))
        if settled.earliest is not None:
            first = json.dumps([settled.chain_name, settled.earliest])
            write_fact(connection, f"first {number}", first)
        if before_commit is not None:
            before_commit(connection, live)
    store.streams[declaration.name] = live
    store.heads.spend(line, identity)
    store.write_head()
    if shards is not None:
        cut_stream(store, live, shards)
    store.noise_ahead.draw_block(live)
    return live


def _check_allowed(store: Store, declaration: StreamDeclaration, waits_for: str | None) -> None:
    """Refuse the name of a stream that has ended, and caps that nobody hands on."""
    if store.name_is_spent(declaration.name):
        raise Conflict(
            f"stream {declaration.name!r} has ended, and its name cannot be used again: readers "
            "and the head file know the old stream by it. Declare the new stream under another "
            "name"
        )
    if declaration.carry_caps and waits_for != FILES:
        raise ParameterError(
            "carry_caps is kept by `evercount release`, with a state file or a store: a service, "
            "Spark and `consume` hand no caps on from one stream to the next. Omit it; budgets of "
            "streams over the same persons then add up"
        )


def _declare_again(
    store: Store, live: LiveStream, declaration: StreamDeclaration, shards: int | None
) -> None:
    """Take over what may change of a declaration; refuse one that declares another stream."""
    if not declares_again(live.declaration, declaration):
        raise Conflict(
            f"stream {declaration.name!r} was declared differently, and a declared stream is "
            "immutable: its noise is calibrated to its "
            f"declaration{changed_noise(live.declaration, declaration)}. Declare a new stream "
            "under another name: it is charged as a second one, or as a successor if it starts "
            "when this one is over (`evercount store retire --successor`)"
        )
    change_late_rules(store, live, declaration)
    if shards is not None:
        cut_stream(store, live, shards)


def change_late_rules(store: Store, live: LiveStream, wanted: StreamDeclaration) -> None:
    """Take over `late` and `wait` of a new declaration, for events that come from now on."""
    rules = {"late": wanted.late, "wait": wanted.wait}
    if rules == {"late": live.declaration.late, "wait": live.declaration.wait}:
        return
    with store.database.transaction() as connection:
        write_fact(connection, f"late {live.id}", json.dumps(rules))
    live.declaration = live.declaration.with_rules(**rules)


def refuse_twin(store: Store, identity: bytes) -> None:
    """Refuse a stream that would have the noise of another one of this store. This store has one
    writer: us."""
    twin = store.database.read(find, schema.noise_identities, "stream", identity=identity)
    if twin is not None or store.heads.lost_identity(identity):
        raise Conflict(
            "another stream of this store has the same secret, query, budget, horizon, start, "
            "ticks and columns, and so the same noise: the difference of their releases would "
            "reveal how their data differ. Declare it with another secret, or without one"
        )


def load_live(connection: Connection, row: Any, sealer: Sealer) -> LiveStream:
    """The stream of a row of `streams`, as it was after its last commit; StoreError where its rows
    disagree."""
    number = row["id"]

    def row_of(table: Any) -> Any:
        stored = rows_of(connection, table, stream=number).mappings().first()
        if stored is None:
            raise StoreError(
                "the store is inconsistent: a stream's row is missing",
                f"{table.name} of {row['name']!r}",
            )
        return stored

    state = row_of(schema.states)
    blob = sealer.open(state["sealed"], "state", number, state["tick"])
    try:
        stored = StoredStream(number, declared(row))
    except SnapshotError as error:
        raise StoreError(
            "the state of a stream cannot be restored", f"{row['name']!r}: {error}"
        ) from None
    declaration = with_late_rules(connection, stored)
    first = read_fact(connection, f"first {number}")
    if first is not None:
        name, earliest = json.loads(first)
        declaration = declaration._follows(earliest, name)
    if not states(row_of(schema.ledger)["cost"], declaration):
        raise StoreError(
            "the ledger states another budget or time range than a stream was declared with",
            repr(row["name"]),
        )
    sums = row_of(schema.accumulators)
    secret = Secret.from_hex(
        sealer.open(row_of(schema.secrets)["sealed"], "secret", number).decode()
    )
    try:
        stream = Stream.restore(blob, declaration.period_of)
    except SnapshotError as error:
        raise StoreError(
            "the state of a stream cannot be restored", f"{row['name']!r}: {error}"
        ) from None
    totals = sealer.open(sums["sealed"], "accumulator", number, sums["tick"])
    tick, head = last_link(connection, row)
    shards, frozen = read_shards(connection, number)
    expected = (tick, tick, tick)
    if shards is not None:
        expected = (0, tick, frozen)
    if (stream.tick, state["tick"], sums["tick"] - 1) != expected:
        raise StoreError(
            "a stream is inconsistent: its state, sums and releases disagree",
            f"stream {row['name']!r}",
        )
    live = LiveStream(
        number,
        declaration.with_query(stream.query),
        tick,
        labels_of(connection, stored),
        read_marks(connection, number),
        secret=secret,
        sealer=sealer,
        stream=stream,
        blob=blob,
        head=head,
        totals=unpack_totals(totals, stream.query.cells),
        shards=shards,
        frozen=frozen,
    )
    of_tick = {"stream": number, "tick": live.open_tick}
    for sealed in rows_of(
        connection, schema.open_events, "sealed", order="number", **of_tick
    ).scalars():
        live.events.extend(json.loads(live.unseal(sealed, "events", live.open_tick)))
        live.groups += 1
    counted = (schema.counted_totals, schema.counted_events)
    live.counted = any(
        find(connection, table, "tick", stream=number) is not None for table in counted
    )
    live.early = set(rows_of(connection, schema.early_events, "tick", stream=number).scalars())
    live.successor = find(connection, schema.renewals, "successor", stream=number)
    live.follows = find(connection, schema.renewals, "stream", successor=row["name"]) is not None
    live.waiting = find(connection, schema.waiting_streams, "reason", stream=number)
    live.moving = read_fact(connection, f"moving {number}")
    return live


def load_retired(
    connection: Connection, row: Any, retired: Mapping[str, Any], quarantined: bool
) -> StoredStream:
    """Read the retired stream of a row of `streams`; if it is `quarantined` too, nobody reads its
    history."""
    facts = json.loads(retired["facts"])
    stream = StoredStream(row["id"], declared(row))
    return replace(
        stream,
        closed=released_until(connection, stream.id),
        labels=labels_of(connection, stream),
        marks=read_marks(connection, stream.id),
        successor=retired["successor"],
        ending="retired",
        reason=retired["reason"],
        stated_guarantee=facts["guarantee"],
        readable=facts["readable"] and not quarantined,
    )
