"""Where the streams of a store stand: which ticks, which ledger line, who goes on for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, select

from evercount.store import schema
from evercount.store.database import find, read_fact
from evercount.store.open_stream import FILES
from evercount.store.spending import retired_rows
from evercount.store.stored_releases import declared, released_until

if TYPE_CHECKING:
    from evercount.store.reader import Reading


def stream_facts(reading: Reading) -> list[dict[str, Any]]:
    """Public facts of every stream, in the order in which they were declared."""
    with reading.database.reading() as connection:
        retired = retired_rows(connection)
        rows = connection.execute(select(schema.streams).order_by(schema.streams.c.id)).mappings()
        place = f"the store {reading.database.describe()}"
        return [_facts(connection, row, retired.get(row["name"]), place) for row in rows.all()]


def _facts(connection: Connection, row: Any, retired: Any, place: str) -> dict[str, Any]:
    number, declaration = row["id"], declared(row)
    released = released_until(connection, number)
    ticks = "none yet"
    if released:
        ticks = f"1 to {released}"
        if declaration.horizon is not None:
            ticks += f" of {declaration.horizon}"
    identity = find(connection, schema.noise_identities, "identity", stream=number)
    waits = find(connection, schema.waiting_streams, "reason", stream=number)
    facts = {
        "stream": row["name"],
        "identity": "" if identity is None else bytes(identity).hex(),
        "kept in": place,
        "ticks": ticks,
        "ledger": "the store's own",
    }
    if released and not declaration.schedule.manual:
        schedule = declaration.schedule
        facts["released until"] = schedule.show(schedule.start_of(released + 1))
    if retired is None:
        by_files = waits == FILES
        facts["fed by"] = "evercount release --db" if by_files else "a service, a log or Spark"
    else:
        facts["over"] = retired["reason"]
        if retired["successor"]:
            facts["successor"] = retired["successor"]
    successor = find(connection, schema.renewals, "successor", stream=number)
    if successor is not None:
        facts["successor"] = successor
    moving = read_fact(connection, f"moving {number}")
    if moving is not None and retired is None:
        facts["moving to"] = f"the state file {moving}"
    return facts
