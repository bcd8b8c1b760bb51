"""The tables of the store and the ordered migrations that make them."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from sqlalchemy import Column, MetaData, Table, insert, inspect, select
from sqlalchemy.engine import Connection
from sqlalchemy.types import BigInteger, Double, Integer, LargeBinary, String, Text

from evercount.errors import StoreError

metadata = MetaData()


def required(name: str, kind: Any, **options: Any) -> Column[Any]:
    return Column(name, kind, nullable=False, **options)


def numbered(name: str, kind: Any = BigInteger) -> Column[Any]:
    """A part of the primary key that we count ourselves."""
    return Column(name, kind, primary_key=True, autoincrement=False)


def table_per_stream(name: str, *columns: Column[Any], **options: Any) -> Table:
    """A table whose primary key begins with the number of the stream."""
    return Table(name, metadata, numbered("stream", Integer), *columns, **options)


def sealed_column() -> Column[Any]:
    return required("sealed", LargeBinary)


migrations = Table(
    "evercount_migrations",
    metadata,
    numbered("number", Integer),
    required("name", String(64)),
    required("applied", Double),
)

meta = Table("meta", metadata, Column("key", String(64), primary_key=True), required("value", Text))
"""Facts of the store (`identity`, `probe`, `budget_cap`), and by the number N of a stream:
`late N`, the rule for late events, where it was changed after the declaration; `joined N`, the keys
that have joined; `hidden N`, (label, first, last tick) of keys that are not shown; `totals N`, the
stream whose last running totals it goes on from; `carried N`, these totals themselves, of a stream
that was moved here; `first N`, the name and the start of the first of its renewals; `moving N`, the
state file that it is moving to; `at N SOURCE`, where a source goes on."""

streams = Table(
    "streams",
    metadata,
    Column("id", Integer, primary_key=True),
    required("name", String(64), unique=True),
    required("declaration", Text),
    required("start", Double),
    required("created", Double),
    required("genesis", LargeBinary(32)),
)

secrets = table_per_stream("secrets", sealed_column())

batches = table_per_stream(
    "batches",
    Column("key", LargeBinary(32), primary_key=True),
    required("digest", LargeBinary(32)),
    required("tick", BigInteger),
    required("accepted", Double, index=True),
    required("size", BigInteger),
    sqlite_with_rowid=False,
)

accumulators = table_per_stream("accumulators", required("tick", BigInteger), sealed_column())

open_events = table_per_stream("open_events", numbered("tick"), numbered("number"), sealed_column())

users = table_per_stream(
    "users",
    Column("user", LargeBinary(32), primary_key=True),
    sealed_column(),
    sqlite_with_rowid=False,
)

states = table_per_stream("states", required("tick", BigInteger), sealed_column())

ticks = table_per_stream(
    "ticks",
    numbered("tick"),
    required("hash", LargeBinary(32)),
    required("closed", Double),
    sqlite_with_rowid=False,
)

releases = table_per_stream(
    "releases",
    numbered("tick"),
    numbered("cell", Integer),
    *(required(name, Double) for name in ("value", "std", "low", "high")),
    sqlite_with_rowid=False,
)

ledger = Table(
    "ledger",
    metadata,
    Column("sequence", Integer, primary_key=True),
    required("stream", Integer, unique=True),
    required("cost", Text),
    required("spent", Double),
)

noise_identities = table_per_stream(
    "noise_identities", required("identity", LargeBinary(32), index=True)
)
"""What tells the noise of a stream from that of every other: a hash of its declaration, keyed with
its secret."""

tokens = Table(
    "tokens",
    metadata,
    Column("id", Integer, primary_key=True),
    required("role", String(8)),
    required("label", String(200)),
    required("digest", LargeBinary(32), unique=True),
    required("created", Double),
)

counted_batches = table_per_stream(
    "counted_batches",
    Column("query", String(64), primary_key=True),
    numbered("batch"),
    required("digest", LargeBinary(32)),
    required("accepted", Double),
    sqlite_with_rowid=False,
)

counted_totals = table_per_stream("counted_totals", numbered("tick"), sealed_column())

retired = Table(
    "retired",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("stream", Integer),
    required("moment", Double),
    required("reason", Text),
    Column("successor", String(64)),
    required("facts", Text),
)
"""Streams that never release again. `stream` is NULL where a restored database does not have the
stream at all: its spending is then in `facts`, as the head file knew it."""

counted_events = table_per_stream(
    "counted_events",
    numbered("tick"),
    Column("query", String(64), primary_key=True),
    numbered("batch"),
    sealed_column(),
)  # events of users, whose cap is applied when their tick closes

cut_streams = table_per_stream("cut_streams", required("closing", BigInteger))
"""Streams whose cells are cut into shards, and the last tick that is closed or being closed."""

shards = table_per_stream(
    "shards",
    numbered("number", Integer),
    required("first", Integer),
    required("stop", Integer),
    required("tick", BigInteger),
    sealed_column(),
)  # the state of the stream of each range of cells

# the keys that became public in streams whose keys nobody listed, with the tick at which they did
public_keys = table_per_stream(
    "public_keys", numbered("cell", Integer), required("label", Text), required("since", BigInteger)
)

early_events = table_per_stream(
    "early_events", numbered("tick"), numbered("number"), sealed_column()
)
"""Events of ticks after the first open one that cannot be added up before their tick closes
(`commit_batches.py`)."""

waiting_streams = table_per_stream("waiting_streams", required("reason", String(16)))
"""Streams whose ticks the clock does not close, and what they wait for (`open_stream.py`)."""

# what the operator says about ticks: a note, or that they are missing and what becomes of their
# events
tick_marks = table_per_stream(
    "tick_marks",
    numbered("number", Integer),
    required("first", BigInteger),
    required("last", BigInteger),
    Column("missing", String(8)),
    required("text", Text),
    required("made", Double),
)

# what runs of `evercount release --db` remember besides
file_runs = table_per_stream("file_runs", sealed_column())

# who goes on when a horizon ends
renewals = table_per_stream("renewals", required("successor", String(64)))


def first_tables(connection: Connection) -> None:
    names = set(inspect(connection).get_table_names())
    foreign = sorted(names & set(metadata.tables) - {migrations.name})
    if foreign:
        raise StoreError(
            f"the database already has tables named {', '.join(foreign)} that evercount did not "
            "make: use another database or another PostgreSQL schema"
        )
    metadata.create_all(connection)


Migrations = tuple[Callable[[Connection], None], ...]
MIGRATIONS: Migrations = (first_tables,)
"""In order and for ever: a migration that was published is never changed, a new one is added at the
end. It adds what is missing: `first_tables` makes all tables as they are now."""


def applied(connection: Connection) -> int:
    if not inspect(connection).has_table(migrations.name):
        return 0
    return len(connection.execute(select(migrations.c.number)).all())


def check_schema(connection: Connection) -> None:
    """Refuse to read a database that has other tables than this program: only the writer
    migrates."""
    if (done := applied(connection)) != len(MIGRATIONS):
        raise StoreError(
            f"the store has schema version {done} and this program reads {len(MIGRATIONS)}"
            if done
            else "this database is not an evercount store"
        )


def migrate(connection: Connection, steps: Migrations) -> int:
    """Bring the schema up to date; each step and its record are one transaction. Returns how many
    were applied."""
    with connection.begin():
        migrations.create(connection, checkfirst=True)
        done = applied(connection)
    if done > len(steps):
        raise StoreError(
            f"the store has schema version {done} and this program knows {len(steps)}: update "
            "evercount"
        )
    for number in range(done, len(steps)):
        with connection.begin():
            steps[number](connection)
            connection.execute(
                insert(migrations).values(
                    number=number + 1, name=steps[number].__name__, applied=time.time()
                )
            )
    return len(steps) - done
