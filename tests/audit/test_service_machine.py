"""A rule-based machine over the HTTP service: batches, retries, closings, bad requests and restarts
in any order."""

from __future__ import annotations

import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from evercount import Budget, Count, Secret
from evercount.declarations.declaration import StreamDeclaration
from evercount.service.access import Limits
from evercount.service.runtime import Service
from evercount.store import Store
from served_service import ADMIN, HEADERS, served

pytestmark = pytest.mark.slow

HORIZON = 8
SECRET = Secret.from_hex("0f" * 32)
PATH = "/v1/streams/counted"


class ServiceMachine(RuleBasedStateMachine):
    """A manually clocked count over a real socket; the model is the true count plus the noise of
    the secret."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="evercount-machine-")
        self.declaration = StreamDeclaration(
            "counted", Count(), Budget(1.0, 1e-6), horizon=HORIZON, public=True
        )
        self.noise = np.asarray(
            self.declaration.started(10**15).build(secret=SECRET).run([0] * HORIZON).values
        ).reshape(HORIZON)
        self.stack = ExitStack()
        self.open, self.total, self.released = 0, 0, list[float]()
        self.keys: dict[str, int] = {}
        self.begin()

    def begin(self) -> None:
        store = Store(Path(self.folder.name, "store.db"))
        store.declare(self.declaration, 1e9, SECRET)
        service = Service(store, admin=ADMIN, limits=Limits(rate=1e6, burst=10**6))
        self.client: httpx.Client = self.stack.enter_context(served(service))

    def post(self, path: str, **given: Any) -> httpx.Response:
        headers = HEADERS | given.pop("headers", {})
        return self.client.post(f"{PATH}{path}", headers=headers, **given)

    @precondition(lambda self: len(self.released) < HORIZON)
    @rule(events=st.integers(0, 4), key=st.sampled_from([None, "k1", "k2"]))
    def events(self, events: int, key: str | None) -> None:
        answer = self.post(
            "/events", json=[1] * events, headers={} if key is None else {"Idempotency-Key": key}
        )
        if key is not None and key in self.keys:
            assert (answer.status_code == 200) == (self.keys[key] == events), answer.text
            return
        assert answer.status_code == 200, answer.text
        if key is not None:
            self.keys[key] = events
        self.open += events

    @precondition(lambda self: len(self.released) < HORIZON)
    @rule(named=st.booleans())
    def close(self, named: bool) -> None:
        tick = len(self.released) + 1
        answer = self.post("/close-tick", params={"tick": tick} if named else {})
        assert answer.status_code == 200, answer.text
        self.total, self.open = self.total + self.open, 0
        expected = float(self.noise[tick - 1] + self.total)
        assert answer.json()["values"] == [expected]
        self.released.append(expected)

    @precondition(lambda self: self.released)
    @rule()
    def close_again(self) -> None:
        answer = self.post("/close-tick", params={"tick": len(self.released)})
        assert answer.status_code == 200, answer.text
        assert answer.json()["values"] == [self.released[-1]]

    @rule(bad=st.sampled_from(["json", "negative", "text", "early", "token", "kind", "unknown"]))
    def refused(self, bad: str) -> None:
        calls: dict[str, Any] = {
            "json": lambda: self.post("/events", content=b"[1,"),
            "negative": lambda: self.post("/events", json=[-1]),
            "text": lambda: self.post("/events", json=["many"]),
            "early": lambda: self.post("/close-tick", params={"tick": len(self.released) + 2}),
            "token": lambda: self.client.post(f"{PATH}/events", json=[1]),
            "kind": lambda: self.post(
                "/events", content=b"1", headers={"Content-Type": "text/plain"}
            ),
            "unknown": lambda: self.client.post(
                "/v1/streams/other/events", json=[1], headers=HEADERS
            ),
        }
        answer = calls[bad]()
        assert 400 <= answer.status_code < 500, answer.text
        assert "error" in answer.json()

    @rule()
    def restart(self) -> None:
        self.stack.close()
        self.begin()

    @invariant()
    def readers_see_the_releases(self) -> None:
        releases = self.client.get(f"{PATH}/releases").json()["releases"]
        assert [release["values"][0] for release in releases] == self.released

    def teardown(self) -> None:
        self.stack.close()
        self.folder.cleanup()


TestServiceMachine = ServiceMachine.TestCase
TestServiceMachine.settings = settings(
    max_examples=4,
    stateful_step_count=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
