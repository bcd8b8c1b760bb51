"""One writer: a second process or a second object is refused with a clear error."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from evercount.errors import ParameterError, StoreError
from evercount.store import Reading, Store
from evercount.store.database import parse_url
from postgres_cluster import Postgres

pytestmark = pytest.mark.slow

SECOND = """
import sys
from pathlib import Path
from evercount.errors import StoreError
from evercount.store import Store
try:
    Store(sys.argv[1], head=Path(sys.argv[2])).close()
except StoreError as error:
    print(error)
else:
    print("opened")
"""


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "a.db")
    cluster: Postgres = request.getfixturevalue("postgres")
    return cluster.fresh()


def second(place: str, head: Path) -> str:
    command = [sys.executable, "-c", SECOND, place, str(head)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_second_process_is_refused_while_the_first_lives(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evercount.store.database.PATIENCE", 0.0)
    head = tmp_path / "head"
    store = Store(place, head=head)
    assert "a stream has one writer" in second(place, head)
    with pytest.raises(StoreError, match="one writer"):
        Store(place, head=head)
    Reading.open(place).close()  # reading is free
    store.close()
    assert second(place, head) == "opened\n"


def test_a_lost_connection_is_noticed_and_restored(tmp_path: Path, postgres: Postgres) -> None:
    from evercount.store import Batch, StreamDeclaration

    store = Store(postgres.fresh(), head=tmp_path / "head")
    try:
        table = {"name": "c", "query": {"name": "count"}, "budget": {"epsilon": 1.0, "delta": 1e-9}}
        live = store.declare(StreamDeclaration.from_dict(table), 0.0)
        batch = Batch("c", [1, 1], live.encode([1, 1]), key="k", body=b"2")
        store.accept([batch], 0.0)
        postgres.stop("immediate")
        with pytest.raises(StoreError):
            store.accept([Batch("c", [1], live.encode([1]))], 0.0)
        assert store.database.lost
        with pytest.raises(StoreError):
            store.recover()
        postgres.start()
        store.recover()
        store.accept([batch], 0.0)
        assert store.find("c").totals.tolist() == [2]
    finally:
        store.close()


@pytest.mark.parametrize(
    "place", ["mysql://host/name", "sqlite://", "sqlite:///:memory:", "http://[broken"]
)
def test_other_databases_are_refused(place: str) -> None:
    with pytest.raises(ParameterError):
        parse_url(place)


def test_passwords_are_not_shown() -> None:
    from evercount.store.database import Database

    made = Database.__new__(Database)
    made.url, made.sqlite = parse_url("postgresql://user:hidden@host/name"), False
    assert "hidden" not in made.describe()
