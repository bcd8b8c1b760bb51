"""One noise, one owner: a second live stream, a copy and a fork are refused."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from evercount import Budget, Count, Histogram, Ledger, Secret, Stream
from evercount.errors import EvercountError, ParameterError, SnapshotError
from evercount.local import LocalClient
from evercount.local.collection_plan import LocalPlan
from evercount.local.genprot import GenProtClient
from evercount.local.genprot_plan import GenProtPlan
from evercount.noise import secret as noise_owner
from evercount.sparse import SparseCount

BUDGET = Budget(1.0, 1e-9)
PURE = Budget(1.0, 0.0)


def fresh(budget: Budget, secret: Secret, **more: Any) -> Stream:
    return Stream(Count(), budget, 20, secret=secret, **more)


@pytest.mark.parametrize("budget", [BUDGET, PURE])
def test_a_second_live_stream_is_refused(budget: Budget) -> None:
    secret = Secret.generate()
    first = fresh(budget, secret)
    with pytest.raises(ParameterError, match="another stream with this secret"):
        fresh(budget, secret)
    assert fresh(Budget(2.0, budget.delta), secret).tick == 0, "another declaration has another key"
    assert fresh(budget, Secret.generate()).tick == 0
    first.close()
    with pytest.raises(EvercountError, match="closed"):
        first.step(1)
    assert fresh(budget, secret).step(1).tick == 1


@pytest.mark.parametrize("kind", ["stream", "pure stream", "counter"])
def test_a_restored_owner_takes_the_place_of_the_living_one(kind: str) -> None:
    """Both would release the same tick with the same noise, and the difference would be that of
    their data."""
    secret = Secret.generate()

    def make() -> Any:
        return SparseCount(1.0, 50, secret=secret) if kind == "counter" else fresh(budget, secret)

    budget = PURE if kind == "pure stream" else BUDGET
    first = make()
    first.step(1)
    blob = first.snapshot()
    second = type(first).restore(blob)
    third = type(first).restore(blob)
    for older in (first, second):
        for attempt in (lambda older=older: older.step(1), lambda older=older: older.snapshot()):
            with pytest.raises(EvercountError, match="was replaced: another one was restored"):
                attempt()
    assert third.step(1).tick == 2
    first.close()  # the old owner is gone for good: it frees no place
    with pytest.raises(ParameterError, match="another"):
        make()
    third.close()
    assert make().step(1).tick == 1


def test_a_snapshot_that_is_refused_replaces_nobody() -> None:
    stream = Stream(Count(), BUDGET, 20)
    data = stream.dump()
    with pytest.raises(SnapshotError):
        Stream.load({**data, "tick": 3})
    assert stream.step(1).tick == 1


def test_a_stream_that_was_lost_is_restored_in_its_process() -> None:
    """The recovery from a crash: the old object is garbage, or hangs on somewhere; the numbers go
    on."""
    secret = Secret.generate()
    expected = fresh(BUDGET, secret, replay=True).run([1, 1, 1]).rows
    stream = fresh(BUDGET, secret)
    released = [stream.step(1).value]
    blob = stream.snapshot()
    del stream
    stream = Stream.restore(blob)
    released.append(stream.step(1).value)
    again = Stream.restore(stream.snapshot())
    released.append(again.step(1).value)
    assert released == expected[:, 0].tolist()
    assert stream.tick == 2


def of_cells(secret: Secret, part: range | None) -> Stream:
    return Stream(Histogram(6), BUDGET, 20, secret=secret, part=part)


OVERLAPPING = [
    (range(3), range(2, 6)),
    (range(6), range(2, 3)),
    (range(2, 3), range(6)),
    (None, range(2, 3)),
    (range(2, 3), None),
]


@pytest.mark.parametrize(("one", "other"), OVERLAPPING)
def test_parts_that_share_a_cell_share_its_noise(one: range | None, other: range | None) -> None:
    secret = Secret.generate()
    first = of_cells(secret, one)
    with pytest.raises(ParameterError, match="another stream with this secret"):
        of_cells(secret, other)
    first.close()
    second = of_cells(secret, other)
    blob = second.snapshot()
    second.close()
    third = of_cells(secret, one)
    assert Stream.restore(blob).tick == 0
    with pytest.raises(EvercountError, match="was replaced"):
        third.run_totals(np.zeros((1, 6 if one is None else len(one)), np.int64))


def test_a_restored_part_leaves_the_other_parts_alone() -> None:
    secret = Secret.generate()
    left, right = (of_cells(secret, part) for part in (range(3), range(3, 6)))
    again = Stream.restore(left.snapshot())
    none = np.zeros((1, 3), np.int64)
    assert again.run_totals(none).rows.shape == right.run_totals(none).rows.shape == (1, 3)


def test_a_part_is_not_charged_by_itself(tmp_path: Path) -> None:
    ledger = Ledger(BUDGET, tmp_path / "all.ledger")
    with pytest.raises(ParameterError, match="together spend one budget"):
        Stream(Histogram(6), BUDGET, 20, secret=Secret.generate(), part=range(3), ledger=ledger)
    assert ledger.entries == ()
    ledger.close()


def test_the_place_is_free_when_the_stream_is_gone() -> None:
    secret = Secret.generate()
    gc.collect()
    owners = noise_owner._live
    before = len(owners)
    for _ in range(3):
        fresh(BUDGET, secret).step(1)
        gc.collect()
    assert len(owners) == before


def test_a_replay_is_allowed_says_so_and_cannot_be_stored() -> None:
    secret = Secret.generate()
    stream = fresh(BUDGET, secret)
    replay = fresh(BUDGET, secret, replay=True)
    told = replay.step(3)
    assert told.value == stream.step(3).value
    assert "replay" in told.guarantee
    assert "do not publish" in told.guarantee
    with pytest.raises(ParameterError, match="no snapshot"):
        replay.snapshot()


def test_only_one_of_many_threads_gets_the_stream() -> None:
    secret, made, refused = Secret.generate(), [], []
    barrier = threading.Barrier(8)

    def work() -> None:
        barrier.wait()
        try:
            made.append(fresh(BUDGET, secret))
        except ParameterError as error:
            refused.append(error)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(made), len(refused)) == (1, 7)


def test_counters_have_one_owner_too() -> None:
    secret = Secret.generate()
    first = SparseCount(1.0, 50, secret=secret)
    with pytest.raises(ParameterError, match="another counter"):
        SparseCount(1.0, 50, secret=secret)
    for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(ParameterError, match="not copied or pickled"):
            attempt(first)
    assert SparseCount.restore(first.snapshot()).step(1).tick == 1


def in_a_fork(action: Callable[[], Any]) -> str:
    """What the action says in a child process: the class of its error, or "went through"."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            action()
            told = "went through"
        except BaseException as error:  # noqa: BLE001 - the child reports all
            told = f"{type(error).__name__}: {error}"
        os.write(writing, told.encode())
        os._exit(0)
    os.close(writing)
    os.waitpid(child, 0)
    with os.fdopen(reading) as pipe:
        return pipe.read()


STREAM_ACTIONS: dict[str, Callable[[Stream], Any]] = {
    "step": lambda stream: stream.step(1),
    "retry": lambda stream: stream.step(1, tick=1),
    "run": lambda stream: stream.run([1]),
    "run_totals": lambda stream: stream.run_totals([[1]]),
    "snapshot": lambda stream: stream.snapshot(),
    "prepare": lambda stream: stream.prepare(),
}


@pytest.mark.parametrize("restored", [False, True])
@pytest.mark.parametrize("action", STREAM_ACTIONS)
def test_a_fork_of_a_stream_is_refused(action: str, restored: bool) -> None:
    stream = Stream(Count(), BUDGET, 20)
    stream.step(1)
    if restored:
        stream = Stream.restore(stream.snapshot())
    told = in_a_fork(lambda: STREAM_ACTIONS[action](stream))
    assert told.startswith("EvercountError: this stream belongs to another process"), told
    assert stream.step(1).tick == 2, "the parent goes on"


def test_forks_of_counters_and_clients_are_refused() -> None:
    counter = SparseCount(1.0, 50)
    clients = (
        LocalClient(LocalPlan(1.0, 1e-6, 100)),
        GenProtClient(GenProtPlan(1.0, 100, "seed"), 3),
    )
    assert "this counter belongs to another process" in in_a_fork(lambda: counter.step(1))
    assert "this counter belongs to another process" in in_a_fork(counter.snapshot)
    for client in clients:
        assert "this client belongs to another process" in in_a_fork(
            lambda client=client: client.message(0.5)
        )
        client.message(0.25)


@pytest.mark.parametrize("closed", [False, True])
def test_a_fork_takes_the_stream_over_only_if_its_parent_has_closed_it(closed: bool) -> None:
    stream = Stream(Count(), BUDGET, 20)
    blob = stream.snapshot()
    if closed:
        stream.close()
    told = in_a_fork(lambda: Stream.restore(blob).step(1))
    if closed:
        assert told == "went through"
    else:
        assert told.startswith(
            f"SnapshotError: process {os.getpid()}, of which this one is a fork"
        ), told
        assert stream.step(1).tick == 1


def test_a_fork_takes_the_stream_over_once_its_parent_has_ended() -> None:
    """The recovery from a crash: a supervisor that was forked from the process that died."""
    stream = Stream(Count(), BUDGET, 20)
    blob = stream.snapshot()
    reading, writing = os.pipe()
    ended, end = os.pipe()

    def owner() -> None:
        own = Stream(Count(), Budget(2.0, 1e-9), 20)
        mine = own.snapshot()
        if os.fork():
            os._exit(0)  # the owner dies without a word
        os.close(end)
        os.read(ended, 1)  # until it is reaped
        with os.fdopen(writing, "w") as pipe:
            pipe.write(f"tick {Stream.restore(mine).step(1).tick}")
        os._exit(0)

    child = os.fork()
    if child == 0:
        owner()
    os.close(writing)
    os.waitpid(child, 0)
    os.close(ended)
    os.close(end)
    with os.fdopen(reading) as pipe:
        assert pipe.read() == "tick 1"
    assert Stream.restore(blob).tick == 0


def test_a_stream_made_after_the_fork_works_there() -> None:
    assert in_a_fork(lambda: Stream(Count(), BUDGET, 20).step(1)) == "went through"
