"""Sums of an open tick: exact, cut once at a public number, and never a reason to refuse a
request."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evercount._validate import IntArray
from evercount.errors import InputError
from evercount.noise import Secret
from evercount.queries import Query, build_query
from evercount.store import Accepted, Batch, Store, StreamDeclaration
from evercount.store.open_stream import (
    MOST_PER_REQUEST,
    MOST_PER_TICK,
    NARROW,
    add_exactly,
    cut_total,
    pack_totals,
    read_request,
    unpack_totals,
)
from product_internals import true_totals
from store_reading import close_and_read

pytestmark = pytest.mark.slow

BUDGET = {"epsilon": 1.0, "delta": 1e-9}
SMALL = 3


def change(one: IntArray, other: IntArray) -> tuple[int, int]:
    """Σ over cells of P² + N², and of P + N; rows are ticks."""
    difference = one - other
    rises, falls = np.maximum(difference, 0).sum(axis=0), np.maximum(-difference, 0).sum(axis=0)
    return int((rises**2 + falls**2).sum()), int((rises + falls).sum())


def cut_rows(query: Query, ticks: tuple[tuple[Any, ...], ...]) -> IntArray:
    return np.stack([cut_total(query, query.encode(None, list(events))[0]) for events in ticks])


def test_the_cut_never_widens_a_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lemma 2, by enumeration: two ticks of up to six events, all neighbours of one and of two
    events (a user)."""
    monkeypatch.setattr("evercount.store.open_stream.MOST_PER_TICK", SMALL)
    query = build_query("sum", {"low": -2, "high": 2})
    values = (-2, 1, 2)
    worst, pairs, cut = 0, 0, 0
    for size in range(1, 7):
        for events in itertools.combinations_with_replacement(values, size):
            for split in range(size + 1):
                ticks = (events[:split], events[split:])
                whole = [
                    np.stack([query.encode(None, list(t))[0] for t in ticks]),
                    cut_rows(query, ticks),
                ]
                for gone in itertools.chain(
                    itertools.combinations(range(size), 1), itertools.combinations(range(size), 2)
                ):
                    left = tuple(
                        tuple(
                            e
                            for i, e in enumerate(events)
                            if i not in gone and (i < split) == first
                        )
                        for first in (True, False)
                    )
                    other = [
                        np.stack([query.encode(None, list(t))[0] for t in left]),
                        cut_rows(query, left),
                    ]
                    exact, after = change(whole[0], other[0]), change(whole[1], other[1])
                    assert after[0] <= exact[0]
                    assert after[1] <= exact[1]
                    assert after[0] <= len(gone) ** 2 * query.squared_sensitivity("add-remove")
                    worst, pairs = max(worst, after[0]), pairs + 1
                    cut += after != exact
    assert worst == 4 * query.squared_sensitivity("add-remove")
    assert cut > 100, "the cut must have had something to cut"
    assert pairs > 1000


def test_deferring_and_running_cuts_would_be_caught() -> None:
    """Negative controls: both wrong ways break what the enumeration checks."""

    def deferred(events: str, capacity: int = 1) -> IntArray:
        """A tick takes the oldest events that wait; columns are the keys a and b."""
        ticks = [events[at : at + capacity] for at in range(0, len(events), capacity)]
        return np.asarray(
            [[tick.count("a"), tick.count("b")] for tick in [*ticks, ""][: len(events)]]
        )

    def running(additions: tuple[int, ...]) -> int:
        total = 0
        for number in additions:
            total = max(-SMALL, min(SMALL, total + number))
        return total

    waiting = "ab" * 8
    # a histogram claims S = 1
    assert change(deferred("a" + waiting)[:16], deferred(waiting)[:16])[0] > 100
    assert len({running(order) for order in itertools.permutations((3, 3, -3))}) > 1


def test_order_and_grouping_do_not_matter() -> None:
    query = build_query("sum", {"low": -1, "high": 1})
    big = np.asarray([MOST_PER_REQUEST], np.int64)
    additions = [big * 3, -big, big * 2, -big * 5000, big * 5001]
    found = set()
    for order in itertools.permutations(additions):
        total: Any = np.zeros(1, np.int64)
        for number in order:
            total = add_exactly(total, number)
        found.add(int(cut_total(query, total)[0]))
    assert found == {5 * MOST_PER_REQUEST}


def test_sums_are_exact_beyond_int64_and_are_stored() -> None:
    query = build_query("sum", {"low": -1, "high": 1})
    total: Any = np.asarray([NARROW - 1, -NARROW + 1, 7], np.int64)
    row = np.asarray([NARROW, -NARROW, 1], np.int64)
    wanted = [NARROW - 1, -NARROW + 1, 7]
    assert len(pack_totals(total)) == 24
    for _ in range(5):
        total = add_exactly(total, row)
        wanted = [a + b for a, b in zip(wanted, row.tolist(), strict=True)]
        total = unpack_totals(pack_totals(total), 3)
        assert [int(number) for number in total] == wanted
    assert len(pack_totals(total)) == 48
    assert cut_total(query, total).tolist() == [MOST_PER_TICK, -MOST_PER_TICK, 12]


def declared(parameters: dict[str, Any]) -> StreamDeclaration:
    return StreamDeclaration.from_dict(
        {
            "name": "c",
            "query": {"name": "count", "parameters": parameters},
            "budget": BUDGET,
            "horizon": 8,
        }
    )


def send(store: Store, declaration: StreamDeclaration, events: list[Any]) -> Any:
    return store.accept([Batch("c", events, read_request(declaration, events))], 0.0)[0]


@pytest.mark.parametrize(("most", "wanted"), [(5, 5), (None, 14)])
def test_a_full_tick_is_no_secret(tmp_path: Path, most: int | None, wanted: int) -> None:
    """The same request gets the same answer whatever others sent; the tick releases at most what is
    declared."""
    declaration, secret = declared({"most_per_tick": most}), Secret.generate()
    store = Store(tmp_path / "a.db")
    live = store.declare(declaration, 0.0, secret)
    assert [send(store, declaration, [number]) for number in (5, 5, 4)] == [Accepted(1, 1)] * 3
    store.close()
    store = Store(tmp_path / "a.db")
    live = store.find("c")
    assert live.totals.tolist() == [14]
    released = close_and_read(store, live, 1, 0.0)[0]["values"]
    store.close()
    assert released == declaration.started(0).build(secret=secret).step(wanted).values.tolist()


def test_one_request_is_refused_for_itself_alone(tmp_path: Path) -> None:
    declaration = declared({"most_per_tick": 5})
    with pytest.raises(InputError, match="at most 5 grid units"):
        read_request(declaration, [3, 3])
    plain = declared({})
    with pytest.raises(InputError, match=str(MOST_PER_REQUEST)):
        read_request(plain, [MOST_PER_REQUEST, 1])
    store = Store(tmp_path / "a.db")
    live = store.declare(plain, 0.0)
    # near and beyond what a tick releases: a probe learns nothing and breaks nothing
    for _ in range(3):
        live.totals = np.asarray([MOST_PER_TICK - 1], np.int64)
        assert send(store, plain, [MOST_PER_REQUEST]) == Accepted(1, live.open_tick)
        assert close_and_read(store, live, 1, 0.0)[0]["tick"] == live.closed
    assert true_totals(live.stream).tolist() == [3 * MOST_PER_TICK]
    store.close()
