"""Real kill -9 of a real server while a client retries: nothing lost, nothing doubled, no other
number released.

Run as a program this file is the server: a process that has everything imported forks one server
per life.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from evercount.noise import Secret
from evercount.store import Store, StreamDeclaration

sys.path.insert(0, str(Path(__file__).parents[1]))
from postgres_cluster import Postgres
from served_service import ADMIN, HEADERS
from store_reading import all_releases, stored_labels

pytestmark = pytest.mark.slow

SECRET = "5e" * 32
KEYS = ("north", "east", "south")
DECLARATION = {
    "name": "fire",
    "query": {"name": "histogram", "parameters": {"keys": list(KEYS)}},
    "budget": {"epsilon": 0.5, "delta": 1e-9},
    "horizon": 8192,
}
CLOCKED = {
    **DECLARATION,
    "name": "clocked",
    "tick": "40ms",
    "horizon": None,
    "late": "next",
    "views": ["running"],
}
UNLISTED = {
    **DECLARATION,
    "name": "unlisted",
    "query": {"name": "discovered-keys", "parameters": {"minimum": 2}},
    "budget": {"epsilon": 8.0, "delta": 0.05},
}
PATIENCE = 300
"""Seconds after which a server that does not come up is a failure."""


# -- the server ------------------------------------------------------------------------------------


def server() -> None:
    """Fork one server for each line of standard input, and report when it is ready and when it
    ended."""
    import evercount.service.http_app
    import evercount.service.http_server  # noqa: F401 - imported before the forks

    for line in sys.stdin:
        life = json.loads(line)
        child = os.fork()
        if child == 0:
            serve_once(life)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        tell({"ended": status})


def tell(answer: dict[str, Any]) -> None:
    """One line of standard output, in one write: a kill finds it whole or not at all."""
    os.write(1, (json.dumps(answer) + "\n").encode())


def serve_once(life: dict[str, Any]) -> None:
    """One life of the server; with `kill` it dies by SIGKILL at that step of its database work."""
    from sqlalchemy import Engine, event

    from evercount.service.http_server import run
    from evercount.service.runtime import Service
    from evercount.store import commit_batches

    steps = 0

    def step(*_: object) -> None:
        nonlocal steps
        steps += 1
        if steps == life["kill"]:
            os.kill(os.getpid(), signal.SIGKILL)

    def after_commit(*_: object) -> None:
        if life["after_commit"]:
            step()

    # Statements (mid-request and mid-tick) and both sides of a commit (mid-commit).
    if not life["forget_keys"]:
        event.listen(Engine, "before_cursor_execute", step)
        event.listen(Engine, "commit", step)
    original = Store.accept

    def accept(self: Store, *arguments: Any) -> Any:
        answers = original(self, *arguments)
        after_commit()
        return answers

    Store.accept = accept  # type: ignore[method-assign]
    if life["forget_keys"]:
        commit_batches.keyed = lambda *_: None
    store = Store(life["db"], head=Path(life["head"]) if life["head"] else None)
    service = Service(store, admin=ADMIN)
    for table in life["streams"]:
        store.declare(
            StreamDeclaration.from_dict(table), service.clock.now(), Secret.from_hex(SECRET)
        )
    run(service, "127.0.0.1", 0, lambda address: tell({"address": address, "pid": os.getpid()}))


# -- the client ------------------------------------------------------------------------------------


Forge = subprocess.Popen[str]
"""The process that forks servers."""


class Supervisor(threading.Thread):
    """Starts a server, lets it be killed, starts the next, until `kills` have died; the last one
    lives."""

    def __init__(
        self,
        forge: Forge,
        place: str,
        head: Path | None,
        kills: int,
        seed: int,
        forget_keys: bool = False,
    ) -> None:
        super().__init__(daemon=True)
        self.place, self.head, self.kills, self.forget_keys = place, head, kills, forget_keys
        self.streams = [DECLARATION]
        self.steps = 60
        self.random = random.Random(seed)
        self.killed = 0
        self.news = threading.Condition()
        self.life: dict[str, Any] | None = None
        self.ending = False
        self.process = forge

    def run(self) -> None:
        while not self.ending:
            last = self.killed >= self.kills
            inside = not last and (self.random.random() < 0.75 or self.forget_keys)
            plan = {
                "db": self.place,
                "head": str(self.head) if self.head else None,
                "kill": self.random.randint(1, 2 if self.forget_keys else self.steps)
                if inside
                else 0,
                "after_commit": self.random.random() < 0.5 or self.forget_keys,
                "forget_keys": self.forget_keys,
                "streams": self.streams,
            }
            assert self.process.stdin is not None
            assert self.process.stdout is not None
            self.process.stdin.write(json.dumps(plan) + "\n")
            self.process.stdin.flush()
            answer = json.loads(self.process.stdout.readline() or '{"ended": -1}')
            timer = None
            if "address" in answer:
                if not last and not inside:
                    timer = threading.Timer(self.random.uniform(0, 0.15), kill, (answer["pid"],))
                    timer.start()
                self._tell(answer)
                answer = json.loads(self.process.stdout.readline() or '{"ended": -1}')
            if timer is not None:
                timer.join()
            self._tell(None)
            if os.WIFSIGNALED(answer["ended"]) and os.WTERMSIG(answer["ended"]) == signal.SIGKILL:
                self.killed += 1
            elif not self.ending:
                raise AssertionError(f"the server ended by itself: {answer}")

    def _tell(self, life: dict[str, Any] | None) -> None:
        with self.news:
            self.life = life
            self.news.notify_all()

    def address(self) -> str:
        """Where a server listens now, or as soon as there is one."""
        with self.news:
            assert self.news.wait_for(lambda: self.life is not None, PATIENCE), "no server came up"
            assert self.life is not None
            return str(self.life["address"])

    def stop(self) -> None:
        """End the last server gracefully."""
        self.ending = True
        with self.news:
            if self.life is not None:
                os.kill(self.life["pid"], signal.SIGTERM)
        self.join(PATIENCE)


def kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def insist(supervisor: Supervisor, client: httpx.Client, path: str, **rest: Any) -> dict[str, Any]:
    """Send a request until it is answered."""
    while True:
        try:
            answer = client.post(
                supervisor.address() + path, headers={**HEADERS, **rest.pop("headers", {})}, **rest
            )
        except httpx.TransportError:
            continue
        if answer.status_code == 503:
            continue
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found


def send(
    supervisor: Supervisor, client: httpx.Client, key: str, events: list[str], name: str = "fire"
) -> int:
    body = json.dumps(events)
    headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
    while True:
        try:
            merged = {**HEADERS, **headers}
            answer = client.post(
                supervisor.address() + f"/v1/streams/{name}/events", headers=merged, content=body
            )
        except httpx.TransportError:
            continue
        if answer.status_code == 503:
            continue
        assert answer.status_code == 200, answer.text
        return int(answer.json()["tick"])


def under_fire(
    forge: Forge, place: str, head: Path | None, kills: int, seed: int, forget_keys: bool = False
) -> tuple[list[np.ndarray], np.ndarray, list[dict[str, Any]]]:
    """(totals of every closed tick, totals of the open tick, what was answered when ticks were
    closed)."""
    generator = random.Random(seed + 1)
    supervisor = Supervisor(forge, place, head, kills, seed, forget_keys)
    supervisor.start()
    expected: list[np.ndarray] = []
    answers: list[dict[str, Any]] = []
    try:
        with httpx.Client(timeout=300) as client, ThreadPoolExecutor(3) as pool:
            number = 0
            while True:
                totals = np.zeros(len(KEYS), np.int64)
                waiting = []
                for _ in range(generator.randint(0, 5)):
                    events = generator.choices(KEYS, k=generator.randint(1, 9))
                    number += 1
                    totals += [events.count(key) for key in KEYS]
                    waiting.append(pool.submit(send, supervisor, client, f"batch-{number}", events))
                tick = len(expected) + 1
                assert {job.result() for job in waiting} <= {tick}
                if supervisor.killed >= kills and tick > 3:
                    return expected, totals, answers
                expected.append(totals)
                answers.append(
                    insist(supervisor, client, f"/v1/streams/fire/close-tick?tick={tick}")
                )
    finally:
        supervisor.stop()


def check(
    place: str,
    head: Path | None,
    expected: list[np.ndarray],
    open_totals: np.ndarray,
    answers: list[Any],
) -> None:
    """The store against an uninterrupted run with the same secret, bit for bit."""
    store = Store(place, head=head)
    try:
        live = store.find("fire")
        assert live.closed == len(expected)
        assert live.totals.tolist() == open_totals.tolist()
        released = list(all_releases(store, "fire"))
        assert [release["tick"] for release in released] == list(range(1, len(expected) + 1))
        assert released == answers
        plain = live.declaration.build(secret=Secret.from_hex(SECRET), replay=True)
        for release, totals in zip(released, expected, strict=True):
            assert release["values"] == plain.run_totals([totals])[0].values.tolist()
        assert store.verify(store.head) == []
    finally:
        store.close()


def opened_forge() -> Forge:
    return subprocess.Popen(
        [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


@pytest.fixture(scope="module")
def forge() -> Iterator[Forge]:
    with opened_forge() as made:
        yield made


def test_sqlite_survives_kills(tmp_path: Path, forge: Forge) -> None:
    place = str(tmp_path / "fire.db")
    check(place, None, *under_fire(forge, place, None, kills=4, seed=11))


def test_postgresql_survives_kills(tmp_path: Path, forge: Forge, postgres: Postgres) -> None:
    place, head = postgres.fresh(), tmp_path / "fire.head"
    check(place, head, *under_fire(forge, place, head, kills=3, seed=12))


def test_the_fire_finds_a_server_that_forgets_keys(tmp_path: Path, forge: Forge) -> None:
    """Negative control: killed between commit and answer, a server without keys counts the retry
    again."""
    place = str(tmp_path / "fire.db")
    found = under_fire(forge, place, None, kills=2, seed=13, forget_keys=True)
    with pytest.raises(AssertionError):
        check(place, None, *found)


def clock_under_fire(forge: Forge, place: str, head: Path | None, kills: int, seed: int) -> None:
    """Ticks that end by the clock while servers die: the sums under the noise are those of what was
    accepted."""
    generator = random.Random(seed)
    supervisor = Supervisor(forge, place, head, kills, seed)
    supervisor.streams = [CLOCKED]
    supervisor.start()
    accepted: list[tuple[int, str]] = []
    try:
        with httpx.Client(timeout=300) as client:
            number = 0
            while supervisor.killed < kills or number < 20:
                number += 1
                events = generator.choices(KEYS, k=generator.randint(1, 9))
                tick = send(supervisor, client, f"batch-{number}", events, "clocked")
                accepted.extend((tick, event) for event in events)
    finally:
        supervisor.stop()
    store = Store(place, head=head)
    try:
        assert store.verify(store.head) == []
        released = list(all_releases(store, "clocked"))
        noise = store.find("clocked").declaration.build(secret=Secret.from_hex(SECRET), replay=True)
        silence = noise.run_totals(np.zeros((len(released), len(KEYS)), np.int64)).values
        sums = np.asarray([release["values"] for release in released]) - silence
        ticks = np.zeros((len(released) + 1, len(KEYS)))
        for tick, event in accepted:
            ticks[tick - 1, KEYS.index(event)] += 1
        assert (sums == np.cumsum(ticks[:-1], axis=0)).all()
        assert store.find("clocked").totals.tolist() == ticks[-1].tolist()
    finally:
        store.close()


def test_the_clock_survives_kills(tmp_path: Path, forge: Forge) -> None:
    clock_under_fire(forge, str(tmp_path / "fire.db"), None, kills=3, seed=14)


def keys_under_fire(forge: Forge, place: str, head: Path | None, kills: int, seed: int) -> None:
    """Keys that nobody listed become public while servers die: as in one life, and every retry
    reads the same back."""
    generator = random.Random(seed)
    supervisor = Supervisor(forge, place, head, kills, seed)
    supervisor.streams = [UNLISTED]
    supervisor.start()
    ticks: list[list[str]] = []
    answers: list[dict[str, Any]] = []
    try:
        with httpx.Client(timeout=300) as client:
            while supervisor.killed < kills or len(ticks) < 12:
                tick, events = len(ticks) + 1, [f"only in {len(ticks)}"]
                for batch in range(generator.randint(1, 3)):
                    some = generator.choices(
                        [*KEYS, f"from {tick // 4}"], k=generator.randint(1, 40)
                    )
                    assert send(supervisor, client, f"{tick} {batch}", some, "unlisted") == tick
                    events += some
                send(supervisor, client, f"{tick} rare", events[:1], "unlisted")
                ticks.append(events)
                answers.append(
                    insist(supervisor, client, f"/v1/streams/unlisted/close-tick?tick={tick}")
                )
    finally:
        supervisor.stop()
    store = Store(place, head=head)
    try:
        assert store.verify(store.head) == []
        assert list(all_releases(store, "unlisted")) == answers
        plain = store.find("unlisted").declaration.build(
            secret=Secret.from_hex(SECRET), replay=True
        )
        assert [release["values"] for release in answers] == [
            plain.step(tick).values.tolist() for tick in ticks
        ]
        assert (
            stored_labels(store, "unlisted")
            == list(plain.labels)
            == list(store.find("unlisted").labels)
        )
        assert set(KEYS) < set(plain.labels)
    finally:
        store.close()


@pytest.mark.soak
def test_discovered_keys_survive_kills(tmp_path: Path, forge: Forge) -> None:
    keys_under_fire(forge, str(tmp_path / "fire.db"), None, kills=3, seed=15)


@pytest.mark.soak
def test_discovered_keys_survive_many_kills(
    tmp_path: Path, forge: Forge, postgres: Postgres
) -> None:
    keys_under_fire(forge, str(tmp_path / "fire.db"), None, kills=100, seed=26)
    keys_under_fire(forge, postgres.fresh(), tmp_path / "pg.head", kills=50, seed=27)


@pytest.mark.soak
def test_the_clock_survives_many_kills(tmp_path: Path, forge: Forge, postgres: Postgres) -> None:
    clock_under_fire(forge, str(tmp_path / "fire.db"), None, kills=100, seed=24)
    clock_under_fire(forge, postgres.fresh(), tmp_path / "pg.head", kills=50, seed=25)


@pytest.mark.soak
def test_sqlite_survives_many_kills(tmp_path: Path, forge: Forge) -> None:
    place = str(tmp_path / "fire.db")
    check(place, None, *under_fire(forge, place, None, kills=250, seed=21))


@pytest.mark.soak
def test_postgresql_survives_many_kills(tmp_path: Path, forge: Forge, postgres: Postgres) -> None:
    place, head = postgres.fresh(), tmp_path / "fire.head"
    check(place, head, *under_fire(forge, place, head, kills=200, seed=22))


if __name__ == "__main__":
    server()
