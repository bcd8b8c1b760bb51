"""One noise, one owner: a second live stream, a copy and a fork are refused."""

from __future__ import annotations

import copy
import gc
import os
import pickle
import threading
from collections.abc import Callable
from typing import Any

import pytest

from evercount import Budget, Count, Secret, Stream
from evercount.errors import EvercountError, ParameterError
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
    restored = Stream.restore(first.snapshot())
    first.close()
    with pytest.raises(ParameterError, match="another stream"):
        fresh(budget, secret)
    with pytest.raises(EvercountError, match="closed"):
        first.step(1)
    restored.close()
    assert fresh(budget, secret).step(1).tick == 1


def test_the_place_is_free_when_the_stream_is_gone() -> None:
    secret = Secret.generate()
    gc.collect()
    before = len(noise_owner._live)
    for _ in range(3):
        fresh(BUDGET, secret).step(1)
        gc.collect()
    assert len(noise_owner._live) == before


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
    clients = LocalClient(LocalPlan(1.0, 1e-6, 100)), GenProtClient(GenProtPlan(1.0, 100, "seed"), 3)
    assert "this counter belongs to another process" in in_a_fork(lambda: counter.step(1))
    assert "this counter belongs to another process" in in_a_fork(counter.snapshot)
    for client in clients:
        assert "this client belongs to another process" in in_a_fork(lambda client=client: client.message(0.5))
        client.message(0.25)


def test_a_stream_made_after_the_fork_works_there() -> None:
    assert in_a_fork(lambda: Stream(Count(), BUDGET, 20).step(1)) == "went through"
