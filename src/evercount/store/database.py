"""One writer's connection to SQLite or PostgreSQL with the lock that keeps every other writer out,
readers, and the statements that both use."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import sqlite3
import stat
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, TypeVar

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Engine,
    NullPool,
    Table,
    and_,
    create_engine,
    delete,
    event,
    insert,
    select,
    text,
    update,
)
from sqlalchemy.engine import URL, CursorResult, make_url
from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError, SQLAlchemyError

from evercount._safe_files import (
    MAKE_ROOM,
    keep_others_out,
    lock_exclusively,
    open_private,
    refuse_link,
)
from evercount.errors import MissingExtra, ParameterError, StoreError
from evercount.store import schema

log = logging.getLogger("evercount.store")
P = ParamSpec("P")
T = TypeVar("T")
V = TypeVar("V")

LOCK = int.from_bytes(
    hashlib.blake2b(b"evercount single writer", digest_size=8).digest(), "big", signed=True
)
"""The number of the advisory lock that the one writer of a PostgreSQL schema holds."""
MAGIC = b"SQLite format 3\0"  # how every SQLite file begins
BUSY_SECONDS = 10
NAMED_AT_ONCE = 500  # values that one statement names: databases limit their number
ROWS_PER_STATEMENT = 50  # rows that `insert_rows` puts into one statement
LEAST_FREE = 1 << 20  # bytes; SQLite cannot work where fewer are free
POSTGRES_FULL = "53100"  # SQLSTATE disk_full
PATIENCE = 3.0  # seconds to wait for the session of a killed writer to end


def parse_url(place: str | Path) -> URL:
    given = str(place)
    if "://" not in given:
        return URL.create("sqlite", database=str(Path(given).expanduser().absolute()))
    try:
        url = make_url(given)
    except (ArgumentError, ValueError):
        raise ParameterError(
            "the database must be a file's path or a URL such as postgresql://user@host/name"
        ) from None
    kind = url.get_backend_name()
    if kind == "sqlite":
        if not url.database or url.database == ":memory:":
            raise ParameterError(
                "the store must be durable: give the path of a file, not an SQLite database in "
                "memory"
            )
        return URL.create("sqlite", database=str(Path(url.database).absolute()))
    if kind in ("postgresql", "postgres"):
        return url.set(drivername="postgresql+psycopg")
    raise ParameterError(f"the database must be SQLite or PostgreSQL, got {kind!r:.40}")


WRITER_PRAGMAS = ("journal_mode=WAL", "synchronous=FULL", "secure_delete=ON")
"""secure_delete: consumed accumulators and old states leave no copy in free pages."""
READER_PRAGMAS = ("query_only=ON",)


def explain(error: SQLAlchemyError, file: Path | None = None) -> StoreError:
    """A StoreError whose message names the kind of trouble, and whose detail is the database's own
    text. `file` is that of an SQLite database.

    **Guarantee.** The message holds nothing of the driver's text, which may name hosts, ports,
    users, files or values. Statements and their parameters are in neither. Test:
    `tests/store/test_store_messages.py`.
    """
    origin: BaseException = error
    if isinstance(error, DBAPIError) and error.orig is not None:
        origin = error.orig
    first = (str(origin).strip().splitlines() or ["no reason given"])[0]
    remedy = f": {MAKE_ROOM}" if _is_full(origin, file) else ""
    return StoreError(f"the database refused the request ({type(origin).__name__}){remedy}", first)


def _is_full(error: BaseException, file: Path | None) -> bool:
    """Return whether a database failed because its disk is full; SQLite calls some such failures
    I/O errors."""
    if getattr(error, "sqlstate", None) == POSTGRES_FULL:
        return True
    code = getattr(error, "sqlite_errorcode", None)
    if code is None:
        return False
    if code & 0xFF == sqlite3.SQLITE_IOERR and file is not None:
        return shutil.disk_usage(file.parent).free < LEAST_FREE
    return bool(code == sqlite3.SQLITE_FULL)


class Database:
    """A database that is open for reading and, with `write`, for the one writer.

    **Guarantee.** While a Database with `write` is open, no other process has one on the same
    database: SQLite by an operating-system lock on `<file>.lock`, PostgreSQL by an advisory lock of
    the session that also does all writing, so a writer that lost its lock lost its connection too.
    With `helper` no lock is taken: for the shards that the process with the lock has asked to close
    (`closing_ticks.py`), whose commits are the same in every process. Tests:
    `tests/store/test_store_lock.py`.
    """

    def __init__(self, place: str | Path, write: bool = True, helper: bool = False) -> None:
        self.url = parse_url(place)
        self.sqlite = self.url.get_backend_name() == "sqlite"
        self.write = write
        self.helper = helper
        self._lock_file: int | None = None
        self._connection: Connection | None = None
        self._told = ""
        if self.file is not None:
            self._check_file(self.file)
        self.writer = self._engine(write)
        self.reader = self._engine(False)
        self._frozen = (
            self._engine(False, frozen=True) if self.sqlite and not write else self.reader
        )
        if self.file is not None and write and not helper:
            self._lock_file = take_file_lock(self.file)
        try:
            if write:
                self.reconnect()
        except BaseException:
            self.close()
            raise

    @property
    def file(self) -> Path | None:
        return Path(str(self.url.database)) if self.sqlite else None

    def describe(self) -> str:
        return str(self.file) if self.sqlite else self.url.render_as_string(hide_password=True)

    # -- opening -----------------------------------------------------------------------------------

    def _check_file(self, file: Path) -> None:
        """Refuse a file that cannot be a store, or that this user cannot open so; make a new one
        for its owner only."""
        refuse_link("the store", file)  # the lock and the head lie next to the name that is used
        if not file.parent.is_dir():
            raise StoreError(
                f"the folder {file.parent} does not exist: make it, or choose another file"
            )
        if file.is_dir():
            raise StoreError(f"{file} is a folder: name a file in it")
        if not file.exists() and not self.write:
            raise StoreError(f"there is no store at {file}")
        if self.write and not os.access(file if file.exists() else file.parent, os.W_OK):
            raise StoreError(
                f"{file} is read-only for this user: change its permissions or choose another file"
            )
        # what cannot be read is explained by SQLite
        with contextlib.suppress(OSError), file.open("rb") as content:
            if (start := content.read(len(MAGIC))) and start != MAGIC:
                raise StoreError(
                    f"{file} is not an SQLite database: name another file for the store"
                )
        if self.write and not file.exists():
            # raw sums and secrets: for the owner only
            os.close(open_private(file, os.O_CREAT | os.O_RDWR))

    def _engine(self, write: bool, frozen: bool = False) -> Engine:
        """Make connections for the writer, or for readers; `frozen`: to a file that does not
        change."""
        if self.sqlite:
            options: dict[str, Any] = {"check_same_thread": False, "timeout": BUSY_SECONDS}
            url = self.url
            if frozen and self.file is not None:
                url = url.set(database=self.file.as_uri(), query={"uri": "true", "immutable": "1"})
            engine = create_engine(
                url, hide_parameters=True, poolclass=NullPool, connect_args=options
            )
            event.listen(
                engine,
                "connect",
                partial(_set_pragmas, WRITER_PRAGMAS if write else READER_PRAGMAS),
            )
            begin = "BEGIN IMMEDIATE" if write else "BEGIN"
            event.listen(engine, "begin", lambda connection: connection.exec_driver_sql(begin))
            return engine
        options = {"connect_timeout": BUSY_SECONDS, "application_name": "evercount"}
        pool: dict[str, Any] = (
            {"poolclass": NullPool} if write else {"pool_size": 4, "pool_pre_ping": True}
        )
        try:
            engine = create_engine(self.url, hide_parameters=True, connect_args=options, **pool)
        except (ModuleNotFoundError, NoSuchModuleError) as error:
            raise MissingExtra("PostgreSQL", "postgres") from error
        if write:
            return engine
        # one view for all statements of a read; SQLite's BEGIN gives it anyway
        return engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)

    def reconnect(self) -> None:
        """A fresh connection of the writer, with its lock; StoreError when another writer has
        it."""
        self._disconnect()
        with self._explained():
            connection = self.writer.connect()
            if not self.sqlite and not self.helper and not _advisory_lock(connection):
                connection.close()
                raise StoreError(
                    "another process writes to this store: a stream has one writer. Stop that "
                    "process first",
                    self.describe(),
                )
        self._connection = connection

    def _disconnect(self) -> None:
        if self._connection is not None:
            with contextlib.suppress(SQLAlchemyError):
                self._connection.close()
            self._connection = None

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn the database's errors into StoreError; the log gets the detail, once for as long as
        it stays the same."""
        try:
            yield
        except SQLAlchemyError as failed:
            error = explain(failed, self.file)
            if error.detail != self._told:
                log.error("%s", error.for_operator())
            self._told = error.detail
            raise error from None

    # -- use ---------------------------------------------------------------------------------------

    @property
    def lost(self) -> bool:
        """Whether the writer's connection broke, and with it its lock."""
        return self._connection is None or self._connection.invalidated or self._connection.closed

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Connection]:
        """One write transaction: all of it is durable when the block ends, or none of it and
        StoreError."""
        if not self.write:
            raise StoreError("this store was opened for reading only")
        if self.lost:
            raise StoreError("the connection to the database is lost; it is being opened again")
        connection = self.connection()
        with self._explained():
            try:
                with connection.begin():
                    yield connection
            except SQLAlchemyError:
                # SQLite may or may not have ended the transaction: end it for certain
                if self.sqlite and not connection.invalidated:
                    raw: Any = connection.connection.dbapi_connection
                    with contextlib.suppress(sqlite3.Error):
                        raw.execute("ROLLBACK")
                raise
        self._told = ""

    @contextlib.contextmanager
    def reading(self) -> Iterator[Connection]:
        """One read-only transaction: all statements in the block see the same committed moment.

        **Guarantee.** SQLite (WAL) and PostgreSQL (REPEATABLE READ, READ ONLY) give one snapshot to
        all of the block. There is one writer, so a snapshot is the state after one of its commits;
        nothing stricter is needed. Test: `tests/store/test_store_views.py`.
        """
        at_rest = self._at_rest()
        engine = self.reader if at_rest is None else self._frozen
        with self._explained(), engine.connect() as connection, connection.begin():
            yield connection
        if at_rest is not None and self._at_rest() != at_rest:
            raise StoreError("a writer opened the store while it was read: read it again")

    def _at_rest(self) -> tuple[int, ...] | None:
        """Return what the file of a reader looks like that is in a folder which cannot be written,
        while nobody writes to it; else None. SQLite keeps an index next to a database that is
        written to, so it opens such a file only if it is told that the file does not change."""
        if self.file is None or self.write or os.access(self.file.parent, os.W_OK):
            return None
        file, log, index = sqlite_files(self.file)
        if log.exists() and log.stat().st_size:
            if index.exists():
                return None  # of a writer that lives elsewhere; SQLite reads both
            raise StoreError(
                "the store was copied without its log, or while it was open, and it lies where "
                "nothing can be written: copy it again with `evercount store backup`"
            )
        state = file.stat()
        return state.st_ino, state.st_size, state.st_mtime_ns

    def read(
        self, function: Callable[Concatenate[Connection, P], T], *given: P.args, **named: P.kwargs
    ) -> T:
        """What a function reads, in a view of its own."""
        with self.reading() as connection:
            return function(connection, *given, **named)

    def size(self) -> int:
        """Bytes of the database. It moves with raw data."""
        if self.file is not None:
            return sum(part.stat().st_size for part in sqlite_files(self.file)[:2] if part.exists())
        with self.reading() as connection:
            return int(
                connection.execute(text("select pg_database_size(current_database())")).scalar_one()
            )

    def checkpoint(self) -> None:
        """Move SQLite's log into its file and empty it, so that deleted rows leave no copy there;
        PostgreSQL: nothing. A reader may hold the log for the moment: then it is emptied by a later
        checkpoint."""
        if self.sqlite and self._connection is not None:
            with contextlib.suppress(sqlite3.Error):
                raw: Any = self._connection.connection.dbapi_connection
                raw.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()

    def move_log(self, over: Callable[[], bool]) -> None:
        """Move what is committed from SQLite's log into its file again and again, until it is
        `over`, which waits. It waits for nobody and keeps nobody waiting (a passive checkpoint).
        PostgreSQL needs none: it returns at once."""
        if self.file is None:
            return
        with contextlib.closing(sqlite3.connect(self.file, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous=FULL")
            while not over():
                # a later call, or the writer itself, does what this could not
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall()

    def keep_others_out(self) -> None:
        """The files hold raw sums and secrets: they are for their owner only, whoever copied them
        here."""
        if self.file is not None:
            keep_others_out("the store", sqlite_files(self.file), stat.S_IRWXO)

    def migrate(self) -> None:
        with self._explained():
            schema.migrate(self.connection(), schema.MIGRATIONS)

    def connection(self) -> Connection:
        assert self._connection is not None
        return self._connection

    def close(self) -> None:
        self._disconnect()
        self.writer.dispose()
        self.reader.dispose()
        self._frozen.dispose()
        if self._lock_file is not None:
            os.close(self._lock_file)
            self._lock_file = None


def sqlite_files(file: Path) -> list[Path]:
    """The files of an SQLite database: its own, its log and the index of its log."""
    return [file.with_name(file.name + suffix) for suffix in ("", "-wal", "-shm")]


def take_file_lock(file: Path) -> int:
    """The handle of the lock that keeps every other writer of an SQLite file out, until the handle
    is closed."""
    path = file.with_name(file.name + ".lock")
    try:
        handle = open_private(path, os.O_CREAT | os.O_RDWR)
    except OSError as error:
        raise StoreError(f"the lock {path} cannot be opened: {error.strerror}") from None
    try:
        lock_exclusively(handle)
    except OSError:
        os.close(handle)
        raise StoreError(
            f"another process writes to {file}: a stream has one writer. Stop that process first "
            f"(it holds {path})"
        ) from None
    return handle


def _advisory_lock(connection: Connection) -> bool:
    """Take the writer's lock for the session; return whether it has it. It waits a little: a killed
    writer's session takes a moment to end."""
    last = time.monotonic() + PATIENCE
    while True:
        held = bool(
            connection.execute(text("select pg_try_advisory_lock(:lock)"), {"lock": LOCK}).scalar()
        )
        connection.commit()
        if held or time.monotonic() > last:
            return held
        time.sleep(0.05)


def _set_pragmas(pragmas: Iterable[str], connection: sqlite3.Connection, _: object) -> None:
    # transactions are begun by our own listener, not by the driver
    connection.isolation_level = None
    for pragma in pragmas:
        connection.execute(f"PRAGMA {pragma}")


def having(table: Table, **values: Any) -> ColumnElement[bool]:
    """The condition that columns have these values: ranges match inclusively from their first to
    their last number, lists and sets any of their values."""

    def fits(column: Column[Any], value: Any) -> ColumnElement[bool]:
        if isinstance(value, range):
            return column.between(value.start, value.stop - 1)
        return column.in_(value) if isinstance(value, list | set) else column == value

    return and_(True, *(fits(table.c[name], value) for name, value in values.items()))


def rows_of(
    connection: Connection, table: Table, *columns: str, order: str = "", **values: Any
) -> CursorResult[*tuple[Any, ...]]:
    """Some columns (all where none is named) of the rows that have these values, in the order of a
    column."""
    query = select(*(table.c[name] for name in columns or table.c.keys())).where(
        having(table, **values)
    )
    return connection.execute(query.order_by(table.c[order]) if order else query)


def in_parts(values: Sequence[V], size: int = NAMED_AT_ONCE) -> Iterator[Sequence[V]]:
    return (values[start : start + size] for start in range(0, len(values), size))


def find(connection: Connection, /, table: Table, column: str, **values: Any) -> Any:
    """A column of the first row that has these values; None where there is no row."""
    return connection.execute(
        select(table.c[column]).where(having(table, **values)).limit(1)
    ).scalar()


def remove(connection: Connection, table: Table, **values: Any) -> bool:
    """Delete matching rows; return whether any existed."""
    return bool(connection.execute(delete(table).where(having(table, **values))).rowcount)


def change(connection: Connection, table: Table, new: Mapping[str, Any], **values: Any) -> None:
    connection.execute(update(table).where(having(table, **values)).values(**new))


def read_fact(connection: Connection, key: str) -> str | None:
    text: str | None = find(connection, schema.meta, "value", key=key)
    return text


def write_fact(connection: Connection, key: str, value: str | None) -> None:
    """Keep one value under a key, or none."""
    remove(connection, schema.meta, key=key)
    if value is not None:
        connection.execute(insert(schema.meta).values(key=key, value=value))


def insert_rows(connection: Connection, table: Table, rows: Iterable[tuple[Any, ...]]) -> None:
    """Insert rows that have a value for each column of the table, in the table's order. It passes
    the values to the driver as they are, many rows to a statement: SQLAlchemy's own way costs
    several times the insert, and a statement for each row twice as much on SQLite, four times on
    PostgreSQL."""
    mark = "?" if connection.dialect.name == "sqlite" else "%s"
    values = list(rows)
    whole = len(values) - len(values) % ROWS_PER_STATEMENT
    if whole:
        groups = [
            tuple(chain.from_iterable(part))
            for part in in_parts(values[:whole], ROWS_PER_STATEMENT)
        ]
        connection.exec_driver_sql(_insert_statement(table, mark, ROWS_PER_STATEMENT), groups)
    if single := values[whole:]:
        connection.exec_driver_sql(_insert_statement(table, mark, 1), single)


def replace_rows(connection: Connection, table: Table, rows: Sequence[tuple[Any, ...]]) -> None:
    """Insert rows of one stream, each in place of the one with the same key, if there is one: its
    second column."""
    key = list(table.columns)[1].name
    for part in in_parts(rows):
        remove(connection, table, stream=part[0][0], **{key: [row[1] for row in part]})
    insert_rows(connection, table, rows)


@lru_cache(maxsize=64)
def _insert_statement(table: Table, mark: str, rows: int) -> str:
    names = ", ".join(f'"{column.name}"' for column in table.columns)
    marks = ", ".join([mark] * len(table.columns))
    return f'INSERT INTO "{table.name}" ({names}) VALUES {", ".join([f"({marks})"] * rows)}'
