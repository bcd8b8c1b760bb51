"""Rule-based machines: a stream and a store under random orders of steps, retries, restores, misuse
and interruptions.

The model is the true running sum plus the noise of an untouched stream with the same secret:
whatever happens in between, every released number must be exactly that, once.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from evercount import Budget, Count, Histogram, Secret, Stream
from evercount.declarations.declaration import StreamDeclaration
from evercount.engine import state as state_module
from evercount.errors import (
    AlreadyReleased,
    EvercountError,
    HorizonReached,
    InputError,
    ParameterError,
    SnapshotError,
)
from evercount.store import Batch, Store
from evercount.store.open_stream import encode_events
from store_reading import all_releases, close_and_read

pytestmark = pytest.mark.slow

HORIZON = 12
SECRET = Secret.from_hex("0d" * 32)
EVENTS = st.lists(st.sampled_from(["a", "b", "c"]), max_size=4)
QUERY = Histogram(("a", "b", "c"))


def fresh(query: Any, budget: Budget) -> Stream:
    return Stream(query, budget, HORIZON, secret=SECRET)


class StreamMachine(RuleBasedStateMachine):
    """A stream of histograms under one secret."""

    @initialize(pure=st.booleans())
    def start(self, pure: bool) -> None:
        self.budget = Budget(1.0, 0.0 if pure else 1e-6)
        twin = fresh(QUERY, self.budget)
        self.noise = twin.run([[]] * HORIZON).values
        twin.close()
        self.stream = fresh(QUERY, self.budget)
        self.totals = np.zeros(3)
        self.done = 0
        self.last: tuple[list[str], Any] | None = None

    def expect(self, events: list[str]) -> Any:
        self.totals += [events.count(key) for key in "abc"]
        return self.noise[self.done] + self.totals

    @precondition(lambda self: self.done < HORIZON)
    @rule(events=EVENTS, named=st.booleans())
    def step(self, events: list[str], named: bool) -> None:
        released = self.stream.step(events, self.done + 1 if named else None)
        assert np.array_equal(released.values, self.expect(events))
        self.done += 1
        self.last = (events, released.values)

    @precondition(lambda self: self.done < HORIZON)
    @rule(ticks=st.lists(EVENTS, max_size=3))
    def run(self, ticks: list[list[str]]) -> None:
        if self.done + len(ticks) > HORIZON:
            with pytest.raises(HorizonReached):
                self.stream.run(ticks)
            return
        released = self.stream.run(ticks)
        for number, events in enumerate(ticks):
            assert np.array_equal(released[number].values, self.expect(events))
            self.done += 1
        self.last = None

    @precondition(lambda self: self.last is not None)
    @rule(other=EVENTS)
    def retry(self, other: list[str]) -> None:
        assert self.last is not None
        events, values = self.last
        assert np.array_equal(self.stream.step(events, self.done).values, values)
        if other != events:
            with pytest.raises(AlreadyReleased):
                self.stream.step(other, self.done)

    @rule(cut=st.integers(0, 400), flip=st.integers(0, 400))
    def restore(self, cut: int, flip: int) -> None:
        blob = self.stream.snapshot()
        with pytest.raises(SnapshotError):
            Stream.restore(blob[: min(cut, len(blob) - 1)])
        place = flip % len(blob)
        with pytest.raises(SnapshotError):
            Stream.restore(blob[:place] + bytes([blob[place] ^ 1]) + blob[place + 1 :])
        self.stream = Stream.restore(blob)

    @rule(bad=st.sampled_from(["unknown", "number", "text", "tick", "early", "users"]))
    def misuse(self, bad: str) -> None:
        calls: dict[str, Any] = {
            "unknown": lambda: self.stream.step(["z"]),
            "number": lambda: self.stream.step(3),
            "text": lambda: self.stream.step("abc"),
            "tick": lambda: self.stream.step([], 0),
            "early": lambda: self.stream.step([], self.done + 2),
            "users": lambda: self.stream.step(["a"], users=["u"]),
        }
        with pytest.raises((InputError, ParameterError, HorizonReached)):
            calls[bad]()

    @precondition(lambda self: self.done < HORIZON)
    @rule(events=EVENTS)
    def interrupted(self, events: list[str]) -> None:
        """An interruption in the middle of a tick did not happen: the same stream, or its snapshot,
        goes on."""
        blob = self.stream.snapshot()

        class Interrupt(BaseException):
            pass

        def stop(*_: Any) -> Any:
            raise Interrupt

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(state_module, "postprocessed", stop)
            with pytest.raises(Interrupt):
                self.stream.step(events)
        with pytest.raises(EvercountError, match="interrupted"):
            self.stream.snapshot()
        if len(events) % 2:
            self.stream.close()
            self.stream = Stream.restore(blob)
        else:
            self.step(events, named=True)

    @precondition(lambda self: self.done == HORIZON)
    @rule()
    def past_the_horizon(self) -> None:
        with pytest.raises(HorizonReached):
            self.stream.step([])

    @invariant()
    def stands_where_it_should(self) -> None:
        if hasattr(self, "stream"):
            assert self.stream.tick == self.done

    def teardown(self) -> None:
        if hasattr(self, "stream"):
            self.stream.close()


class StoreMachine(RuleBasedStateMachine):
    """A store on SQLite: batches, closings, crashes between them, reopening."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="evercount-machine-")
        self.place = Path(self.folder.name, "store.db")
        self.declaration = StreamDeclaration("counted", Count(), Budget(1.0, 1e-6), horizon=HORIZON)
        self.store = Store(self.place)
        secret = Secret.generate()  # a crash leaves the stream of before alive in this process
        self.live = self.store.declare(self.declaration, 1e9, secret)
        noise = self.live.declaration.build(secret=secret, replay=True).run([0] * HORIZON).values
        self.noise = np.asarray(noise).reshape(HORIZON)
        self.open, self.total, self.released = 0, 0, list[float]()
        self.keys: dict[str, int] = {}

    def batch(self, events: int, key: str | None) -> Batch:
        payloads: list[Any] = [1] * events
        row = encode_events(self.declaration, payloads)
        return Batch("counted", payloads, row, None, None, key, b"%d" % events)

    @precondition(lambda self: len(self.released) < HORIZON)
    @rule(events=st.integers(0, 5), key=st.sampled_from([None, "k1", "k2"]))
    def accept(self, events: int, key: str | None) -> None:
        answer = self.store.accept([self.batch(events, key)], 1e9)[0]
        if key is not None and key in self.keys:
            # the same batch is counted once; another one under the same key is refused
            assert isinstance(answer, EvercountError) == (self.keys[key] != events)
            return
        assert not isinstance(answer, EvercountError)
        if key is not None:
            self.keys[key] = events
        self.open += events

    @precondition(lambda self: len(self.released) < HORIZON)
    @rule(ticks=st.integers(1, 2))
    def close(self, ticks: int) -> None:
        ticks = min(ticks, HORIZON - len(self.released))
        made = close_and_read(self.store, self.store.streams["counted"], ticks, 1e9)
        self.total += self.open
        self.open = 0
        for release in made:
            expected = self.noise[len(self.released)] + self.total
            assert release["values"] == [expected]
            self.released.append(float(expected))

    @precondition(lambda self: len(self.released) < HORIZON)
    @rule()
    def crash_while_closing(self) -> None:
        """The commit fails: nothing is released, and the next closing gives the same numbers."""
        store, transaction = self.store, self.store.database.transaction

        class Crash(Exception):
            pass

        def failing(*_: Any, **__: Any) -> Any:
            raise Crash

        store.database.transaction = failing  # type: ignore[method-assign]
        try:
            with pytest.raises(Crash):
                store.close_ticks(store.streams["counted"], 1, 1e9)
        finally:
            store.database.transaction = transaction  # type: ignore[method-assign]

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = Store(self.place)

    @rule()
    def recover(self) -> None:
        self.store.recover()

    @precondition(lambda self: len(self.released) == HORIZON)
    @rule()
    def finished(self) -> None:
        with pytest.raises(HorizonReached):
            self.store.close_ticks(self.store.streams["counted"], 1, 1e9)
        assert isinstance(self.store.accept([self.batch(1, None)], 1e9)[0], HorizonReached)

    @invariant()
    def releases_are_what_was_released(self) -> None:
        rows = [release["values"][0] for release in all_releases(self.store, "counted")]
        assert rows == self.released

    def teardown(self) -> None:
        assert self.store.verify() == []
        self.store.close()
        self.folder.cleanup()


QUIET = settings(deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
TestStreamMachine = StreamMachine.TestCase
TestStreamMachine.settings = settings(QUIET, max_examples=12, stateful_step_count=25)
TestStoreMachine = StoreMachine.TestCase
TestStoreMachine.settings = settings(QUIET, max_examples=5, stateful_step_count=20)


@pytest.mark.soak
class TestManyStreams(StreamMachine.TestCase):  # type: ignore[name-defined, misc]
    settings = settings(QUIET, max_examples=40, stateful_step_count=25)


@pytest.mark.soak
class TestManyStores(StoreMachine.TestCase):  # type: ignore[name-defined, misc]
    settings = settings(QUIET, max_examples=15, stateful_step_count=20)
