"""What a StoreError says to anybody, and what only the operator reads."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
from sqlalchemy import text

from evercount.errors import StoreError
from evercount.store import Reading, Store, StreamDeclaration
from evercount.store.rollback_guard import Head
from free_ports import free_port
from postgres_cluster import Postgres

TABLE = {
    "name": "private-name",
    "query": "count",
    "budget": {"epsilon": 1.0, "delta": 1e-9},
    "horizon": 64,
}


def publishable(error: StoreError, *secrets: str) -> None:
    """No host, port, user, file or name of a private stream in what anybody may read; the operator
    has them."""
    for secret in secrets:
        assert secret not in str(error)
        assert secret in error.for_operator()
    assert not re.search(r"\d{4,5}|/|@|127\.0\.0\.1|localhost", str(error)), str(error)


def test_a_database_that_is_gone_is_not_named(
    tmp_path: Path, postgres: Postgres, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store(postgres.fresh(), head=tmp_path / "head")
    live = store.declare(StreamDeclaration.from_dict(TABLE), 0.0)
    port = str(postgres.port)
    postgres.stop("immediate")
    try:
        with caplog.at_level(logging.ERROR, "evercount.store"):
            with pytest.raises(StoreError) as lost:
                store.close_ticks(live, 1, 0.0)
            publishable(lost.value)
            for work in (store.names, store.recover, store.ledger):
                with pytest.raises(StoreError, match="refused the request") as caught:
                    work()
                publishable(caught.value, port)
        assert port in caplog.text
        said = [record.getMessage() for record in caplog.records]
        assert len(said) == len(set(said)), "the same trouble is told once"
    finally:
        postgres.start()
        store.close()
    with pytest.raises(StoreError) as caught:
        Reading.open(f"postgresql://somebody@127.0.0.1:{free_port()}/nowhere").names()
    publishable(caught.value)


def test_values_and_statements_stay_out_of_both(tmp_path: Path, postgres: Postgres) -> None:
    """PostgreSQL quotes values in its messages; those are in no line that leaves the store."""
    for place in (postgres.fresh(), tmp_path / "a.db"):
        store = Store(place, head=tmp_path / "head")
        (tmp_path / "head").unlink()
        with pytest.raises(StoreError) as caught, store.database.transaction() as connection:
            connection.execute(
                text("insert into meta (key, value) values ('identity', 'a secret value')")
            )
        assert "refused the request" in str(caught.value)
        assert "secret value" not in caught.value.for_operator()
        assert "insert" not in caught.value.for_operator()
        store.close()


def test_the_head_and_the_streams_are_named_to_the_operator_only(tmp_path: Path) -> None:
    place, head = tmp_path / "a.db", tmp_path / "the-head"
    store = Store(place, head=head)
    live = store.declare(StreamDeclaration.from_dict(TABLE), 0.0)
    store.close_ticks(live, 2, 0.0)
    written = head.read_text()
    renamed = written.replace('"private-name": ', '"lost-name": ', 1).replace(
        '["private-name"', '["lost-name"'
    )
    for damage, name in (
        (renamed, "lost-name"),
        ("{}", "the-head"),
        (written.replace('"store": "', '"store": "x'), "the-head"),
        (None, "the-head"),
    ):
        if damage is None:
            head.unlink()
        else:
            head.write_text(damage)
        with pytest.raises(StoreError) as caught:
            store.recover()
        publishable(caught.value, name, str(tmp_path))
    head.mkdir()
    with pytest.raises(StoreError, match="cannot be written") as caught:
        store.head.write(Head("store", {}, {}, frozenset()))
    publishable(caught.value, "the-head")
    store.close()
