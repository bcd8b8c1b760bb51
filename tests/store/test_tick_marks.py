"""Notes on ticks, and ticks that are missing: `src/evercount/store/tick_marks.proof.md`."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evercount import Secret
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.tick_marks import NewMark, TickMark
from evercount.engine.close_ticks import TickEvents
from evercount.engine.write_table import write_tables
from evercount.errors import EvercountError
from evercount.store import Batch, Reading, Store
from evercount.store.open_stream import read_request
from evercount.store.stream_life import hide_keys, join_keys, mark_ticks

SECRET = Secret.from_hex("32" * 32)
DAYS = {"name": "flu", "tick": "1d", "zone": "UTC", "start": "2026-01-01", "horizon": 60}
DAY = 86400.0
START = 1767225600.0  # 2026-01-01


def declared(**more: Any) -> StreamDeclaration:
    table = {
        **DAYS,
        "query": "count",
        "budget": {"epsilon": 1.0, "delta": 1e-6},
        "views": ["running"],
        **more,
    }
    return StreamDeclaration.from_dict(table)


def send(store: Store, declaration: StreamDeclaration, events: list[Any], now: float) -> None:
    batch = Batch(declaration.name, events, read_request(declaration, events))
    (answer,) = store.accept([batch], now)
    assert not isinstance(answer, EvercountError), answer


def running(
    folder: Path, ticks: list[list[Any]], marks: list[TickMark], kills: bool = True, **more: Any
) -> list[list[float]]:
    """The stored numbers of ticks with these events, under the one secret; with kill and load after
    every tick."""
    one, folder = declared(**more), folder / f"{len(list(folder.iterdir()))}"
    folder.mkdir()
    store = Store(folder / "a.db")
    store.declare(one, START, SECRET)
    for mark in marks:
        mark_ticks(store, "flu", mark)
    for day, events in enumerate(ticks):
        now = START + day * DAY
        if events:
            send(store, one, events, now)
        if kills:
            store.close()
            store = Store(folder / "a.db")
        live = store.find("flu")
        store.close_ticks(live, live.due(now + DAY), now)
    table = store.published(live, 0, live.closed, range(len(live.labels)))
    assert not store.verify(store.head)
    store.close()
    numbers: list[list[float]] = np.nan_to_num(table.numbers[:, 0]).tolist()
    return numbers


KEYS = {"query": {"name": "discovered-keys"}}


@pytest.mark.parametrize("query", [{}, KEYS], ids=["count", "keys"])
def test_missing_ticks_count_nothing(tmp_path: Path, query: dict[str, Any]) -> None:
    """Days 2 and 3 dropped, day 5 counted on day 6: bit for bit the numbers of the events that are
    left."""
    many = (lambda number: ["oslo"] * (100 * number)) if query else (lambda number: [number])
    marks = [TickMark(2, 3, "", "drop"), TickMark(5, 5, "moved", "next")]
    with_gaps = running(tmp_path, [many(day) for day in range(1, 8)], marks, **query)
    plain = [many(1), [], [], many(4), [], [*many(5), *many(6)], many(7)]
    assert with_gaps == running(tmp_path, plain, [], **query)


def test_neighbours_stay_neighbours(tmp_path: Path) -> None:
    """One more event, on any day and under any of these gaps, changes one tick, by one, or none.

    The numbers of one secret differ by the data alone. A count that both drops and moves, or moves
    twice, fails.
    """
    for gaps in ([(2, "next"), (3, "next")], [(1, "next"), (3, "drop")]):
        marks = [TickMark(day, day, "", rule) for day, rule in gaps]
        without = running(tmp_path, [[1]] * 4, marks, kills=False)
        for day in range(4):
            events = [[1, 1] if here == day else [1] for here in range(4)]
            more = np.subtract(running(tmp_path, events, marks, kills=False), without)[:, 0]
            steps = np.diff(more, prepend=0.0)
            assert np.count_nonzero(np.round(steps, 6)) <= 1, (gaps, day)
            assert round(float(np.abs(steps).max()), 6) == ((day + 1, "drop") not in gaps), (
                gaps,
                day,
            )


def test_events_that_move_are_there_for_those_that_come_later(tmp_path: Path) -> None:
    """An edge that moved cannot come a second time: who sends it is told so, also after a kill, and
    the tick closes."""
    one = declared(
        query={"name": "edges", "parameters": {"vertices": 9, "stream": "insert"}}, views=[]
    )
    store = Store(tmp_path / "a.db")
    store.declare(one, START, SECRET)
    mark_ticks(store, "flu", TickMark(1, 1, "", "next"))
    send(store, one, [[1, 2]], START)
    store.close_ticks(store.find("flu"), 1, START + DAY)
    for _ in range(2):
        (refusal,) = store.accept(
            [Batch("flu", [[1, 2]], read_request(one, [[1, 2]]))], START + DAY
        )
        assert "second time" in str(refusal)
        store.close()
        store = Store(tmp_path / "a.db")
    # a run without a tick
    store.close_given(store.find("flu"), TickEvents(2, []), START, list, lambda _: None)
    send(store, one, [[3, 4]], START + DAY)
    live = store.find("flu")
    assert live.events == [[1, 2], [3, 4]]
    store.close_ticks(live, 1, START + 2 * DAY)
    assert live.closed == 2
    store.close()


def test_readers_see_notes_and_gaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one = declared(views=["per-tick", "per-week"], public=True)
    store = Store(tmp_path / "a.db")
    live = store.declare(one, START, SECRET)
    mark_ticks(
        store,
        "flu",
        NewMark(first="2026-01-02", last="2026-01-03", missing="drop").on(one.schedule),
    )
    store.close_ticks(live, 9, START)
    mark_ticks(store, "flu", NewMark(first=5, text="reporting system down").on(one.schedule))
    with pytest.raises(EvercountError, match="tick 9 of 'flu' is closed"):
        mark_ticks(store, "flu", TickMark(9, 10, "", "drop"))
    for bad, why in (
        (TickMark(3, 2, "x"), "not ticks"),
        (TickMark(1, 1, ""), "needs text"),
        (TickMark(1, 1, "x" * 501), "at most 500 characters"),
        (TickMark(61, 61, "x"), "60"),
    ):
        with pytest.raises(EvercountError, match=why):
            mark_ticks(store, "flu", bad)
    # a retry adds nothing
    assert mark_ticks(store, "flu", TickMark(5, 5, "reporting system down")) in live.marks
    assert len(live.marks) == 2
    # each is looked at for every row
    monkeypatch.setattr("evercount.declarations.tick_marks.MOST_NOTES", 2)
    with pytest.raises(EvercountError, match="at most 2 notes"):
        mark_ticks(store, "flu", TickMark(6, 6, "one more"))
    shown = store.read_releases(live)
    assert [len(tick["values"]) for tick in shown] == [1, 0, 0, 1, 1, 1, 1, 1, 1]
    assert [tick.get("note") for tick in shown[1:6]] == [
        "missing",
        "missing",
        None,
        "reporting system down",
        None,
    ]
    store.close()
    reading = Reading.open(tmp_path / "a.db")
    stored, tables = reading.tables_of("flu")
    file = io.BytesIO()
    write_tables("csv", file, tables, stored.declaration.schedule, {})
    reading.close()
    lines = file.getvalue().decode().splitlines()
    assert (len(lines), lines[0].split(",")[-1], lines[3].split(",")[-1]) == (
        8,
        "note",
        "reporting system down",
    )


def test_events_of_persons_do_not_move(tmp_path: Path) -> None:
    """Caps per tick: moved events of a person would be mixed with those of the next tick."""
    budget = {"epsilon": 1.0, "delta": 1e-6, "unit": "user", "max_per_tick": 1, "period": "1d"}
    store = Store(tmp_path / "a.db")
    store.declare(declared(budget=budget), START, SECRET)
    with pytest.raises(EvercountError, match="drop them"):
        mark_ticks(store, "flu", TickMark(2, 2, "", "next"))
    mark_ticks(store, "flu", TickMark(2, 2, "", "drop"))
    store.close()


def test_notes_before_and_after_a_key_is_shown_again_are_all_kept(tmp_path: Path) -> None:
    store = Store(tmp_path / "a.db")
    histogram = {"name": "histogram", "parameters": {"keys": ["a", "b"]}}
    store.declare(declared(query=histogram), START, SECRET)
    hide_keys(store, "flu", ["b"])
    notes = [TickMark(1, 1, "first"), TickMark(1, 1, "second")]
    mark_ticks(store, "flu", notes[0])
    join_keys(store, "flu", ["b"])
    mark_ticks(store, "flu", notes[1])
    assert list(store.find("flu").marks) == notes
    store.close()
    store = Store(tmp_path / "a.db")
    assert list(store.find("flu").marks) == notes
    store.close()
