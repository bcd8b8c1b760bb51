"""A person who asks to be forgotten: what the store still holds of them goes, and the promise
stays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select
from typer.testing import CliRunner

from evercount.cli.store_command import store as commands
from evercount.declarations.declaration import StreamDeclaration
from evercount.engine.arrivals import Arrivals, NamedRows, PersonEvents
from evercount.engine.close_ticks import TickTotals
from evercount.errors import EvercountError, ParameterError
from evercount.noise import Secret
from evercount.queries.user_cap import Caps
from evercount.service.read_events import read_batch
from evercount.store import Accepted, Store
from evercount.store.accept_totals import SourceBatch
from evercount.store.caps_of_persons import HASH, CapBlocks
from evercount.store.commit_batches import user_hashes
from evercount.store.forget_person import forget_person, names_persons, used_up
from evercount.store.open_stream import FILES, HISTORY
from evercount.store.schema import metadata, users
from store_reading import all_releases

SECRET = Secret.from_hex("5e" * 32)
ANN, BOB = "ann@example.org", "bob@example.org"
CELLS = 3
NONE = np.empty(0, np.int64)
PLACES = ["sqlite", "postgresql"]


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return (
        tmp_path / "store.db"
        if request.param == "sqlite"
        else request.getfixturevalue("postgres").fresh()
    )


def declared(query: Any = None, **changes: Any) -> StreamDeclaration:
    table = {
        "name": "one",
        "query": query or {"name": "histogram", "parameters": {"keys": CELLS}},
        "budget": {"epsilon": 1.0, "delta": 1e-6, "unit": "user", "max_events": 2},
        "tick": "1h",
        "start": "2026-01-01T00:00:00Z",
        "horizon": 24,
        "views": ["running"],
        **changes,
    }
    return StreamDeclaration.from_dict(table)


START = declared().schedule.begin / 1e6


def send(store: Store, declaration: StreamDeclaration, *events: Any, now: float = START) -> None:
    (answer,) = store.accept([read_batch(declaration, json.dumps(events).encode())], now)
    assert isinstance(answer, Accepted), answer


def elsewhere(number: int, *events: tuple[int, str, int]) -> tuple[SourceBatch, Arrivals]:
    """Events (tick, user, cell) that were read elsewhere."""
    tick, user, cell = zip(*events, strict=True)
    order = np.arange(len(events))
    columns = PersonEvents(
        np.asarray(tick), user, order, order, np.asarray(cell), np.zeros(len(events), np.int64)
    )
    totals = TickTotals(1, 0, CELLS, NONE, NONE, NONE)
    return SourceBatch("q", number), Arrivals(totals, persons=columns)


def released(store: Store) -> list[list[float]]:
    return [one["values"] for one in all_releases(store, "one")]


def expected(rows: Any, declaration: StreamDeclaration) -> list[list[float]]:
    return (
        declaration.build(secret=SECRET, replay=True)
        .run_totals(np.asarray(rows), capped=True)
        .rows.tolist()
    )


def held(store: Store) -> bytes:
    """All private columns of the store, opened as far as they are not encrypted."""
    parts = []
    with store.database.reading() as connection:
        for table in metadata.sorted_tables:
            if "sealed" in table.c:
                parts += [
                    bytes(one) for one in connection.execute(select(table.c.sealed)).scalars()
                ]
    return b"\n".join(parts)


def test_nothing_of_the_person_is_left(place: Any) -> None:
    """Events that wait in every kind of place; the others' stay, and count."""
    declaration = declared()
    store = Store(place)
    live = store.declare(declaration, START + 3 * 3600, SECRET, waits_for=HISTORY)
    events = [
        {"key": 0, "user": who, "time": START + 3600 * hour}
        for who in (ANN, BOB)
        for hour in (1, 2)
    ]
    send(store, declaration, *events, now=START + 3 * 3600)  # they wait for ticks 2 and 3
    store.accept_totals("one", *elsewhere(0, (1, ANN, 1), (1, BOB, 1), (4, ANN, 2)))
    (hashed,) = user_hashes(live, [ANN])
    before = held(store)
    assert ANN.encode() in before
    assert hashed in before
    forget_person(store, "one", ANN)
    for _ in range(2):
        if isinstance(place, Path):  # also while the store is open: the log is emptied
            files = b"".join(file.read_bytes() for file in place.parent.iterdir())
            assert ANN.encode() not in files
            assert hashed not in files
            assert BOB.encode() in files
        after = held(store)
        assert ANN.encode() not in after
        assert hashed not in after
        assert BOB.encode() in after
        store.close()
        store = Store(place)
    store.open_history("one")
    for _ in range(4):
        store.close_ticks(store.find("one"), 1, 0.0)
    # bob's cap is 2
    assert released(store) == expected([[0, 1, 0], [1, 0, 0], [0, 0, 0], [0, 0, 0]], declaration)
    store.close()


@pytest.mark.parametrize("block", [False, True], ids=["rows", "blocks"])
def test_caps_stay_used_up(place: Any, block: bool) -> None:
    """Ann has one of two events left; after she is forgotten none counts, whoever sends it, and
    bob's still do."""
    declaration = declared()
    store = Store(place)
    live = store.declare(declaration, START, SECRET)
    if block:
        store.accept_totals("one", *elsewhere(0, (1, ANN, 0), (1, BOB, 0)))
    else:
        send(store, declaration, {"key": 0, "user": ANN}, {"key": 0, "user": BOB})
    store.close_ticks(live, 1, 0.0)
    forget_person(store, "one", ANN)
    store.close()
    store = Store(place)
    live = store.find("one")
    hashes = np.sort(np.asarray(user_hashes(live, [ANN, BOB, "stranger"]), HASH))
    with store.database.reading() as connection:
        entries = dict(
            zip(
                hashes.tolist(),
                CapBlocks(live.id, store.sealer).read(connection, hashes).tolist(),
                strict=True,
            )
        )
        kept = len(connection.execute(select(users.c.user)).all())
    ann, bob, stranger = (
        np.asarray(one, HASH).item() for one in user_hashes(live, [ANN, BOB, "stranger"])
    )
    assert entries[ann] == list(used_up(Caps.of(declaration.budget), 2)) == [2, 0, 0, 0]
    assert (entries[bob][0], entries[stranger], kept) == (1, [0, 0, 0, 0], 2)
    send(store, declaration, {"key": 1, "user": ANN}, {"key": 1, "user": BOB}, now=START)
    store.accept_totals("one", *elsewhere(int(block), (3, ANN, 2), (3, BOB, 2)))
    store.close_ticks(live, 2, 0.0)
    assert released(store) == expected([[2, 0, 0], [0, 1, 0], [0, 0, 0]], declaration)
    store.close()


@pytest.mark.parametrize(
    ("caps", "entry"),
    [
        ({"max_events": 3}, (3, 0, 0, 0)),
        ({"max_per_tick": 2, "max_ticks": 4}, (0, 4, 0, 0)),
        ({"max_per_tick": 2, "period": 1}, (0, 0, 7, 2)),
        ({"max_events": 3, "max_per_tick": 2, "max_ticks": 2, "period": 4}, (3, 2, 0, 0)),
    ],
    ids=repr,
)
def test_used_up_leaves_no_room(caps: dict[str, Any], entry: tuple[int, ...]) -> None:
    rule = Caps.of(declared(budget={"epsilon": 1.0, "delta": 1e-6, "unit": "user", **caps}).budget)
    assert used_up(rule, 7) == entry
    assert rule.room(used_up(rule, 7), 7) == 0
    if not rule.within_a_tick:
        assert [rule.room(used_up(rule, 7), tick) for tick in (8, 9, 20)] == [0, 0, 0]


def test_queries_that_count_persons(place: Any) -> None:
    """Rows with names, and events of the open tick. Whoever was counted before is not counted
    again."""
    declaration = declared(
        {"name": "distinct-users"}, budget={"epsilon": 1.0, "delta": 1e-6, "unit": "user"}
    )
    store = Store(place)
    live = store.declare(declaration, START, SECRET)
    send(store, declaration, {"user": "cyd@example.org"}, {"user": BOB})
    store.close_ticks(live, 1, 0.0)
    send(store, declaration, {"user": ANN}, {"user": "dan@example.org"})
    rows = NamedRows(np.asarray([2, 3]), [ANN, "eve@example.org"], np.zeros((2, 3), np.int64))
    store.accept_totals(
        "one",
        SourceBatch("q", 0),
        Arrivals(TickTotals(1, 0, 1, NONE, NONE, NONE), rows_with_names=[rows]),
    )
    assert held(store).count(ANN.encode()) == 2
    forget_person(store, "one", ANN)
    said = forget_person(store, "one", "cyd@example.org")
    assert any("counts twice" in line for line in said)
    assert ANN.encode() not in held(store)
    store.close()
    store = Store(place)
    live = store.find("one")
    assert ANN.encode() not in held(store)
    send(store, declaration, {"user": "cyd@example.org"}, {"user": "fay@example.org"})
    forget_person(store, "one", "fay@example.org")  # and the same process goes on
    store.close_ticks(live, 2, 0.0)
    found = released(store)
    store.close()
    ticks = [["cyd", BOB], ["dan", "cyd"], ["eve"]]
    assert found == declaration.build(secret=SECRET, replay=True).run(ticks).rows.tolist()


def test_keys_that_only_this_person_named_go_too(place: Any) -> None:
    query = {"name": "discovered-keys", "parameters": {"minimum": 2}}
    budget = {"epsilon": 8.0, "delta": 0.01, "unit": "user", "max_events": 2}
    declaration = declared(query, budget=budget, columns={"time": "t", "key": "k", "user": "u"})
    store = Store(place)
    store.declare(declaration, START, SECRET)
    columns = PersonEvents(
        np.asarray([1, 1]), [ANN, BOB], *(np.arange(2) for _ in range(3)), np.zeros(2, np.int64),
        None, ("a key of ann", "a key of bob"),
    )  # fmt: skip
    store.accept_totals(
        "one",
        SourceBatch("q", 0),
        Arrivals(TickTotals(1, 0, 1, NONE, NONE, NONE), persons=columns),
    )
    assert b"a key of ann" in held(store)
    forget_person(store, "one", ANN)
    assert b"a key of ann" not in held(store)
    assert b"a key of bob" in held(store)
    store.close_ticks(store.find("one"), 1, 0.0)
    store.close()


def test_revised_days_are_found_for_every_day(tmp_path: Path) -> None:
    budget = {"epsilon": 1.0, "delta": 1e-6, "unit": "user", "max_events": 2, "period": 1}
    declaration = declared(budget=budget, late="revise", revise_for=2, views=["per-tick"])
    store = Store(tmp_path / "store.db")
    live = store.declare(declaration, START, SECRET)
    for hour in range(2):
        now = START + 3600 * hour
        send(
            store,
            declaration,
            *({"key": 0, "user": who, "time": now} for who in (ANN, BOB)),
            now=now,
        )
        store.close_ticks(live, 1 - hour, 0.0) if not hour else None
    with store.database.reading() as connection:
        before = set(map(bytes, connection.execute(select(users.c.user)).scalars()))
    own = {one for lag in (0, 1) for one in user_hashes(live, [ANN], lag)}
    assert own <= before
    forget_person(store, "one", ANN)
    with store.database.reading() as connection:
        rows = {
            bytes(user): sealed
            for user, sealed in connection.execute(select(users.c.user, users.c.sealed))
        }
    assert rows.keys() == before
    assert len({bytes(rows[one]) for one in own}) == 1  # used up on both days
    send(store, declaration, {"key": 1, "user": ANN, "time": START}, now=START + 3600)
    assert not live.totals.reshape(-1, CELLS)[:, 1].any()
    store.close()


def test_what_it_says_does_not_tell_whether_the_person_was_there(tmp_path: Path) -> None:
    answers = []
    for number, events in enumerate(([{"key": 0, "user": ANN}], [])):
        path = tmp_path / f"{number}.db"
        store = Store(path)
        store.declare(declared(), START, SECRET)
        if events:
            send(store, declared(), *events)
        store.close()
        done = CliRunner().invoke(commands, ["forget", "-", "--db", str(path)], input=f"{ANN}\n")
        assert done.exit_code == 0, done.output
        answers.append(done.output)
    assert answers[0] == answers[1]
    assert "keyed hash" in answers[0]
    assert ANN not in answers[0]


def test_streams_without_ids_and_streams_of_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    store = Store(path)
    events = store.declare(declared(name="events", budget={"epsilon": 1.0, "delta": 1e-6}), START)
    store.declare(declared(name="files"), START, waits_for=FILES)
    store.declare(declared(), START)
    assert not names_persons(events)
    for name, why in (("events", "without ids"), ("files", "out of the files")):
        with pytest.raises(ParameterError, match=why):
            forget_person(store, name, ANN)
    with pytest.raises(ParameterError, match="characters"):
        forget_person(store, "one", "")
    store.close()
    done = CliRunner().invoke(commands, ["forget", ANN, "--db", str(path)])
    assert done.output.startswith("one: ")
    assert "events:" not in done.output
    for name in ("nobody", "events"):
        done = CliRunner().invoke(commands, ["forget", ANN, "--stream", name, "--db", str(path)])
        assert isinstance(done.exception, EvercountError)
