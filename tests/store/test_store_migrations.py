"""Migrations of the schema, on SQLite and PostgreSQL: a store goes on after one, and one that fails
leaves nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("sqlalchemy")
from sqlalchemy import Connection, inspect, text

from evercount.errors import StoreError
from evercount.noise import Secret
from evercount.store import Reading, Store, StreamDeclaration, schema
from evercount.store.database import Database
from store_reading import all_releases

TABLE = {"name": "one", "query": "count", "budget": {"epsilon": 1.0, "delta": 1e-9}, "horizon": 64}


def add_length_of_names(connection: Connection) -> None:
    """A migration that changes a table which holds rows, and fills what it adds."""
    connection.execute(text("alter table streams add column length integer"))
    connection.execute(text("update streams set length = length(name)"))


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return (
        tmp_path / "a.db"
        if request.param == "sqlite"
        else request.getfixturevalue("postgres").fresh()
    )


def test_a_store_goes_on_after_a_migration(
    place: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret, head = Secret.generate(), tmp_path / "head"
    declaration = StreamDeclaration.from_dict(TABLE)
    store = Store(place, head=head)
    store.close_ticks(store.declare(declaration, 0.0, secret), 2, 0.0)
    store.close()
    known = len(schema.MIGRATIONS)
    with monkeypatch.context() as later:
        later.setattr(schema, "MIGRATIONS", (*schema.MIGRATIONS, add_length_of_names))
        with pytest.raises(
            StoreError, match=f"schema version {known} and this program reads {known + 1}"
        ):
            Reading.open(place)
        for ticks in (1, 2):  # the second start finds nothing to do
            store = Store(place, head=head)
            store.close_ticks(store.find("one"), ticks, 0.0)
            store.close()
        reading = Reading.open(place)
        with reading.database.reading() as connection:
            assert connection.execute(text("select length from streams")).scalars().all() == [3]
            rows = connection.execute(
                text("select number, name from evercount_migrations order by number")
            ).all()
            assert (rows[0].name, rows[-1].number, rows[-1].name) == (
                "first_tables",
                known + 1,
                "add_length_of_names",
            )
        released = list(all_releases(reading, "one"))
        reading.close()
    plain = declaration.started(0).build(secret=secret, replay=True)
    assert [one["values"] for one in released] == [plain.step(0).values.tolist() for _ in range(5)]
    opens: tuple[Callable[[], object], ...] = (
        lambda: Store(place, head=head),
        lambda: Reading.open(place),
    )
    for program in opens:  # the program before the migration
        with pytest.raises(StoreError, match=f"schema version {known + 1} and this program"):
            program()


def test_a_migration_and_its_record_are_one_transaction(place: Any) -> None:
    def good(connection: Connection) -> None:
        connection.execute(text("create table first (x integer)"))

    def bad(connection: Connection) -> None:
        connection.execute(text("create table second (x integer)"))
        raise StoreError("half way")

    database = Database(place)
    connection = database.connection()
    with pytest.raises(StoreError, match="half way"):
        schema.migrate(connection, (good, bad))
    with connection.begin():
        assert schema.applied(connection) == 1
        tables = inspect(connection).get_table_names()
    assert "first" in tables
    assert "second" not in tables
    with pytest.raises(StoreError, match="update evercount"):
        schema.migrate(connection, ())
    database.close()


def test_a_database_without_a_store_is_not_read(place: Any) -> None:
    Database(place).close()
    with pytest.raises(StoreError, match="not an evercount store"):
        Reading.open(place)
