"""Keys that join a stream of a store: the numbers of the library, whole after a kill, readable and
verified."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.view_names import stack_rows
from evercount.errors import ParameterError
from evercount.noise import Secret
from evercount.service.views import ViewRequest, read_view
from evercount.store import Batch, Reading, Store
from evercount.store.open_stream import read_request
from evercount.store.stream_life import hide_keys, join_keys
from loaded_program import Programs
from stored import all_releases, stored_labels

SECRET = Secret.from_hex("6e" * 32)
QUERIES: dict[str, tuple[dict[str, Any], list[Any], list[Any], list[Any]]] = {
    # parameters, events before, keys that join, events after
    "histogram": ({"keys": ["a", "b"], "unknown": "other"}, ["a", "c"], ["c"], ["a", "c", "c"]),
    "rollup": (
        {"paths": [["a", "x"], ["b", "y"]]},
        [["a", "x"]],
        [("c", "z")],
        [["c", "z"], ["b", "y"]],
    ),
    "distinct-users": (
        {"keys": ["a"], "max_keys": 1},
        [["u", "a"]],
        ["b"],
        [["v", "b"], ["u", "b"]],
    ),
    "active-users": ({"keys": ["a"], "max_keys": 1}, [["u", "a"]], ["b"], [["v", "b"], ["u", "a"]]),
}


def declared(name: str) -> StreamDeclaration:
    user = {"unit": "user", "max_ticks": 9} if name == "active-users" else {"unit": "user"}
    budget = {"epsilon": 1.0, "delta": 1e-6, **(user if name.endswith("users") else {})}
    query = {"name": name, "parameters": QUERIES[name][0]}
    views = {"views": ["per-tick", "last-3"]}
    return StreamDeclaration.from_dict(
        {"name": "s", "query": query, "budget": budget, "horizon": 30, **views}
    )


def send(store: Store, events: list[Any], ticks: int) -> None:
    for _ in range(ticks):
        live = store.find("s")
        (answer,) = store.accept([Batch("s", events, read_request(live.declaration, events))], 0.0)
        assert answer.accepted == len(events)  # type: ignore[union-attr]
        store.close_ticks(live, 1, 0.0)


@pytest.mark.parametrize("name", QUERIES)
def test_keys_join_with_the_numbers_of_the_library(name: str, tmp_path: Path) -> None:
    declaration = declared(name)
    _, before, keys, after = QUERIES[name]
    store = Store(tmp_path / "e.db")
    store.declare(declaration, 0.0, SECRET)
    send(store, before, 4)
    live = store.find("s")
    # the open tick keeps what it has
    store.accept([Batch("s", before, read_request(live.declaration, before))], 0.0)
    new = join_keys(store, "s", keys)
    assert new
    assert join_keys(store, "s", keys) == []
    if name == "histogram":  # no restart in between
        send(store, after, 1)
        store.close()
        store = Store(tmp_path / "e.db")
    else:
        store.close()
        store = Store(tmp_path / "e.db")
        send(store, after, 1)
    send(store, after, 2)
    started = store.find("s").declaration.as_declared
    assert store.declare(declaration, 0.0) is store.find("s"), "it is declared as before"
    store.close()

    plain = started.build(secret=SECRET, replay=True)
    rows = [plain.run([before] * 4).rows]
    plain.add_keys(keys)
    # what the open tick has counted stays where it is
    waiting = ["a", "q"] if name == "histogram" else before
    rows.append(plain.run([[*waiting, *after], after, after]).rows)
    reading = Reading.open(tmp_path / "e.db")
    try:
        assert reading.verify() == []
        said = list(all_releases(reading, "s"))
        assert stored_labels(reading, "s") == list(plain.labels)
        wide = stack_rows(*rows)
        view = plain.read_back(wide).per_tick()
        for release, values, low in zip(said, view.values, view.interval()[0], strict=True):
            shown = ~np.isnan(values)
            assert np.array_equal(
                np.asarray(release["values"], float)[: shown.sum()], values[shown]
            )
            assert np.array_equal(np.asarray(release["low"], float)[: shown.sum()], low[shown])
    finally:
        reading.close()


def test_what_cannot_join_is_refused_and_nothing_changes(tmp_path: Path) -> None:
    store = Store(tmp_path / "e.db")
    store.declare(declared("histogram"), 0.0, SECRET)
    blob = store.find("s").blob
    for keys, why in ((["x\n"], "line|control|character"), ([""], "key")):
        with pytest.raises(ParameterError, match=why):
            join_keys(store, "s", keys)
    assert store.find("s").blob == blob
    send(store, ["a"], 1)
    store.close()


KILLED = """
import os, signal, sys
from evercount.store import LiveStream, Store
from evercount.store.stream_life import hide_keys, join_keys
store = Store(sys.argv[1])
place = int(sys.argv[2])
calls = [0]
def dying(original):
    def call(*arguments, **named):
        calls[0] += 1
        if calls[0] == place:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **named)
    return call
LiveStream.write_state = dying(LiveStream.write_state)
LiveStream.write_totals = dying(LiveStream.write_totals)
join_keys(store, "s", ["c"])
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_kill_leaves_all_or_nothing(place: int, programs: Programs, tmp_path: Path) -> None:
    """At the first write, at the second, and after the commit."""
    with_kill = tmp_path / "e.db"
    store = Store(with_kill)
    store.declare(declared("histogram"), 0.0, SECRET)
    send(store, ["a", "c"], 2)
    store.close()
    done = programs.run(KILLED, with_kill, place)
    assert done.returncode == -signal.SIGKILL
    store = Store(with_kill)
    assert list(store.find("s").stream.labels) == [
        "a",
        "b",
        "other",
        *(["c"] if place == 3 else []),
    ]
    join_keys(store, "s", ["c"])
    send(store, ["c"], 2)
    assert store.verify() == []
    store.close()


def test_removed_keys_are_not_shown(tmp_path: Path) -> None:
    """In no table, page or view from the next tick on; counted and chained as before, and shown
    again without a gap."""
    store = Store(tmp_path / "e.db")
    store.declare(declared("histogram"), 0.0, SECRET)
    send(store, ["a", "b"], 2)
    assert hide_keys(store, "s", ["b"]) == ["b"]
    assert hide_keys(store, "s", ["b"]) == []
    send(store, ["a", "b"], 3)
    for labels, why in ((["z"], "no key 'z'"), (["a", "other"], "nothing would be left")):
        with pytest.raises(ParameterError, match=why):
            hide_keys(store, "s", labels)
    store.close()
    store = Store(tmp_path / "e.db")

    def ticks_of(cell: str) -> list[int]:
        rows = [
            row
            for table in store.tables_of("s")[1]
            for row in zip(*table.columns().values(), strict=True)
        ]
        return [int(row[0]) for row in rows if cell in row]

    assert (ticks_of("a"), ticks_of("b")) == ([1, 2, 3, 4, 5], [1, 2])
    assert [page["values"][1] is None for page in all_releases(store, "s")] == [False] * 2 + [
        True
    ] * 3
    live = store.find("s")
    view = read_view(store, live, ViewRequest(view="last-3"), 10**6)
    assert np.isnan(view.numbers[:, 0, 1]).all()
    assert store.verify(store.head) == []
    assert join_keys(store, "s", ["b"]) == ["b"]
    send(store, ["a", "b"], 1)
    assert ticks_of("b") == [1, 2, 6]
    plain = live.declaration.build(secret=SECRET, replay=True).run([["a", "b"]] * 6)
    last = read_view(store, live, ViewRequest(view="last-3"), 10**6).numbers[-1, 0]
    assert np.array_equal(last, plain.last(3).values[-1])
    assert store.verify(store.head) == []
    store.close()
