"""Events of users that were read elsewhere: the cap of the whole stream, whatever batches they came
in."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import func, select

from evercount.declarations.declaration import StreamDeclaration
from evercount.engine.arrivals import Arrivals, PersonEvents
from evercount.engine.close_ticks import TickTotals
from evercount.errors import Conflict, ParameterError
from evercount.noise import Secret
from evercount.service.read_events import read_batch
from evercount.store import Accepted, Store
from evercount.store.accept_totals import SourceBatch
from evercount.store.caps_of_persons import CapBlock, CapBlocks, _read_blocks
from evercount.store.open_stream import HISTORY
from evercount.store.schema import counted_events
from soak_cases import soak_except
from store_reading import all_releases

SECRET = Secret.from_hex("6d" * 32)
MOST, TICKS, CELLS = 3, 6, 4
CAPS: list[dict[str, Any]] = [
    {"max_events": MOST},
    {"max_per_tick": 1, "max_ticks": 2},
    {"max_per_tick": 2, "period": 1},
    {"max_events": 3, "max_per_tick": 2, "max_ticks": 2, "period": 4},
    {"max_events": 2, "period": "1d"},
]


def declared(caps: dict[str, Any]) -> StreamDeclaration:
    table = {
        "name": "capped",
        "query": {"name": "histogram", "parameters": {"keys": CELLS}},
        "budget": {"epsilon": 1.0, "delta": 1e-6, "unit": "user", **caps},
        "tick": "1h",
        "zone": "Europe/Vienna",
        "start": "2025-12-31T21:00:00Z",
        "horizon": 40,
        "factorization": "balanced",
        "views": ["running"],
    }
    return StreamDeclaration.from_dict(table)


DECLARATION = declared(CAPS[0])
START = DECLARATION.schedule.begin / 1e6
Event = tuple[int, str, int, int, int]
"""Tick, user, time, order and cell."""


def random_events(number: int, seed: int = 3) -> list[Event]:
    """Few users, few times and few orders: many users are beyond the cap, and many events stand at
    one place."""
    draw = np.random.default_rng(seed).integers
    return [
        (
            int(draw(1, TICKS + 1)),
            f"u{draw(0, 12)}",
            int(draw(0, 3)),
            int(draw(0, 3)),
            int(draw(0, CELLS)),
        )
        for _ in range(number)
    ]


def by_hand(events: list[Event], caps: dict[str, Any] = CAPS[0]) -> Any:
    """The rule in plain Python: of the user's events, those at or before its (time, order) have
    room in the tick."""
    rows = np.zeros((TICKS, CELLS), np.int64)
    length = caps.get("period", TICKS)
    length = TICKS if length == "1d" else length  # 22:00 to 04:00 of the stream's first day
    for user in {event[1] for event in events}:
        counted, came = 0, 0
        for tick in range(1, TICKS + 1):
            if (tick - 1) % length == 0:
                counted, came = 0, 0
            here = [event for event in events if event[:2] == (tick, user)]
            if not here:
                continue
            came += 1
            room = min(caps.get("max_per_tick", 10**9), caps.get("max_events", 10**9) - counted)
            room = room if came <= caps.get("max_ticks", 10**9) else 0
            for _, _, time, order, cell in here:
                rows[tick - 1, cell] += sum(other[2:4] <= (time, order) for other in here) <= room
            counted += min(room, len(here))
    return rows


def batch(number: int, events: list[Event]) -> tuple[SourceBatch, Arrivals]:
    tick, user, time, order, cell = zip(*events, strict=True) if events else ((), (), (), (), ())
    columns = [np.asarray(column, np.int64) for column in (tick, time, order, cell)]
    persons = PersonEvents(columns[0], user, *columns[1:], np.zeros(len(events), np.int64))
    none = np.empty(0, np.int64)
    totals = TickTotals(1, 0, CELLS, none, none, none)
    return SourceBatch("q", number), Arrivals(totals, persons=persons)


def released(store: Store) -> list[list[float]]:
    return [one["values"] for one in all_releases(store, "capped")]


def expected(rows: Any, declaration: StreamDeclaration = DECLARATION) -> list[list[float]]:
    return (
        declaration.build(secret=SECRET, replay=True)
        .run_totals(np.asarray(rows), capped=True)
        .rows.tolist()
    )


@pytest.mark.parametrize("caps", soak_except(CAPS[1:4], CAPS), ids=repr)
def test_the_cap_is_that_of_plain_python(tmp_path: Path, caps: dict[str, Any]) -> None:
    """Batches in any order and of any size, ticks closed one by one or together, with restarts
    between."""
    seed, declaration = CAPS.index(caps), declared(caps)
    events = random_events(120, seed)
    generator = np.random.default_rng(seed)
    path, key = tmp_path / "store.db", bytes(range(32))
    store = Store(path, key)
    store.declare(declaration, START, SECRET)
    number = closed = 0
    for last in (1, 2, 5, TICKS):
        left = [event for event in events if closed < event[0] <= last]
        for part in np.array_split(generator.permutation(len(left)), 3):
            assert store.accept_totals("capped", *batch(number, [left[i] for i in part]))
            number += 1
        store.close()
        store = Store(path, key)
        store.close_ticks(store.find("capped"), last - closed, 0.0)
        closed = last
    found = released(store)
    with store.database.reading() as connection:
        kept = {
            user
            for block in _read_blocks(connection, 1, store.sealer)
            for user in block.user.tolist()
        }
    store.close()
    rows = by_hand(events, caps)
    assert rows.sum() < len(events)
    assert found == expected(rows, declaration)
    last = {event[1] for event in events if event[0] > 4}  # of the period that is open
    assert len(kept) == {1: 0, 4: len(last)}.get(
        caps.get("period", 0), len({event[1] for event in events})
    )


def test_the_service_and_batches_share_the_caps_of_a_user(tmp_path: Path) -> None:
    """Rows of single users become a block when batches are closed, and rows again when the service
    asks for them."""
    store = Store(tmp_path / "store.db", bytes(range(32)))
    live = store.declare(DECLARATION, START, SECRET)
    rows = np.zeros((6, CELLS), np.int64)
    for tick, counted in enumerate(((1, 0), (1, 1), (1, 0), (0, 1), (0, 0), (0, 1)), 1):
        if tick % 2:  # ann comes each time, and bob every second time; a cap of 3 for each
            body = b'[{"key": 0, "user": "ann"}]'
            (answer,) = store.accept([read_batch(DECLARATION, body)], START)
            assert isinstance(answer, Accepted)
        else:
            assert store.accept_totals(
                "capped", *batch(tick // 2 - 1, [(tick, "ann", 5, 5, 0), (tick, "bob", 5, 5, 1)])
            )
        store.close_ticks(live, 1, 0.0)
        rows[tick - 1, :2] = counted
    assert released(store) == expected(rows)
    store.close()


def test_events_of_later_ticks_wait_and_have_the_same_caps(tmp_path: Path) -> None:
    """While the past is loaded, one request brings five events of ann for three ticks: three of
    them count."""
    store = Store(tmp_path / "store.db")
    live = store.declare(DECLARATION, START + 3 * 3600, SECRET, waits_for=HISTORY)
    minutes = (10, 70, 70, 130, 130)
    body = json.dumps(
        [{"key": 0, "user": "ann", "time": START + 60 * minute} for minute in minutes]
    )
    assert store.accept([read_batch(DECLARATION, body.encode())], START + 3 * 3600) == [
        Accepted(5, 4)
    ]
    store.open_history("capped")
    for _ in range(3):
        store.close_ticks(live, 1, 0.0)
    assert released(store) == expected([[1, 0, 0, 0], [2, 0, 0, 0], [0, 0, 0, 0]])
    store.close()


def test_many_ticks_leave_few_blocks(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.db")
    live = store.declare(DECLARATION, START, SECRET)
    for tick in range(1, 31):
        names = ["always", *(f"{tick}-{number}" for number in range(4))]
        assert store.accept_totals(
            "capped", *batch(tick - 1, [(tick, name, 0, 0, 0) for name in names])
        )
        store.close_ticks(live, 1, 0.0)
    with store.database.reading() as connection:
        blocks = _read_blocks(connection, 1, store.sealer)
    used = CapBlocks(1, store.sealer)
    with store.database.reading() as connection:
        found = used.read(connection, np.sort(np.concatenate([block.user for block in blocks])))
    store.close()
    assert len(blocks) <= 6
    assert len({user for block in blocks for user in block.user.tolist()}) == 1 + 30 * 4
    assert set(found[:, 0].tolist()) == {1, MOST}


def test_hashes_that_begin_alike_are_told_apart() -> None:
    begin = bytes(8)
    hashes = np.asarray(
        [begin + bytes([number] * 24) for number in (9, 3, 200, 3, 5)] + [b"z" * 32], "S32"
    )
    block = CapBlock(None, np.unique(hashes), np.zeros((5, 4), np.int64))
    assert block.find(hashes).tolist() == [2, 0, 3, 0, 1, 4]
    assert block.find(np.asarray([begin + b"x" * 24, b"y" * 32], "S32")).tolist() == [-1, -1]


def test_a_user_changes_at_most_the_cap() -> None:
    """Lemma 1 on the rule itself: without one user, at most MOST events of the others' ticks and
    cells differ."""
    events = random_events(150)
    whole = by_hand(events)
    for user in Counter(event[1] for event in events):
        change = whole - by_hand([event for event in events if event[1] != user])
        assert change.min() >= 0
        assert change.sum() <= MOST


def test_a_repeated_batch_is_known_in_any_order_and_a_changed_one_refused(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.db")
    store.declare(DECLARATION, START, SECRET)
    events = random_events(30)
    assert store.accept_totals("capped", *batch(0, events))
    assert not store.accept_totals("capped", *batch(0, events[::-1]))
    changed = [*events[:-1], (*events[-1][:4], (events[-1][4] + 1) % CELLS)]
    with pytest.raises(Conflict, match="counted before with other events"):
        store.accept_totals("capped", *batch(0, changed))
    with pytest.raises(ParameterError, match="with their users"):
        store.accept_totals(
            "capped", SourceBatch("q", 1), Arrivals(TickTotals.dense(1, [[1, 0, 0, 0]]))
        )
    store.close_ticks(store.find("capped"), TICKS, 0.0)
    assert released(store) == expected(by_hand(events))
    store.close()


def test_a_batch_without_events_is_counted_once(tmp_path: Path) -> None:
    """As after a round that has passed over other subjects, or left out every row."""
    store = Store(tmp_path / "store.db")
    store.declare(DECLARATION, START, SECRET)
    events = random_events(30)
    assert store.accept_totals("capped", *batch(0, []))
    assert not store.accept_totals("capped", *batch(0, []))
    with pytest.raises(Conflict, match="counted before with other events"):
        store.accept_totals("capped", *batch(0, events))
    assert store.accept_totals("capped", *batch(1, events))
    store.close_ticks(store.find("capped"), TICKS, 0.0)
    assert released(store) == expected(by_hand(events))
    store.close()


def test_users_and_their_events_are_sealed_and_forgotten(tmp_path: Path) -> None:
    store = Store(tmp_path / "store.db", bytes(range(32)))
    store.declare(DECLARATION, START, SECRET)
    store.accept_totals("capped", *batch(0, [(1, "maria@example.org", 123456789123, 1, 2)]))
    content = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"maria@example.org" not in content
    assert (123456789123).to_bytes(8, "little") not in content
    store.close_ticks(store.find("capped"), 1, 0.0)
    with store.database.reading() as connection:
        assert connection.execute(select(func.count()).select_from(counted_events)).scalar() == 0
    store.close()
