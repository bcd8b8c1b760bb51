"""Plans that anyone may ask for: few places, given back by clients that left, and in nobody else's
way."""

from __future__ import annotations

import contextlib
import re
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from evercount import Budget
from evercount.planning import plan_views
from evercount.service.access import Limits
from evercount.service.runtime import PLANNERS, Service
from evercount.store import Store

sys.path.insert(0, str(Path(__file__).parents[1]))
from loaded_program import Programs
from serving import ADMIN, HEADERS, served

COUNT = {
    "name": "open",
    "query": {"name": "count"},
    "budget": {"epsilon": 1.0, "delta": 1e-9},
    "public": True,
}


@contextlib.contextmanager
def busy(folder: Path, **limits: int) -> Iterator[tuple[Service, httpx.Client, threading.Event]]:
    """A service all of whose threads for plans are busy until the event is set."""
    service = Service(Store(folder / "a.db"), admin=ADMIN, limits=Limits(**limits))
    free = threading.Event()
    try:
        with served(service, "127.0.0.1") as client:
            for number in range(PLANNERS):
                service.plans.submit(f"other {number}", free.wait)
            yield service, client, free
    finally:
        free.set()


def ask(client: httpx.Client, address: str, epsilon: float) -> socket.socket:
    """A request for a plan of a client of that address, whose answer nobody has read."""
    made = socket.create_connection((client.base_url.host, client.base_url.port), timeout=300)
    request = (
        f"GET /v1/plan?horizon=16&epsilon={epsilon} HTTP/1.1\r\n"
        "Host: x\r\n"
        f"X-Forwarded-For: {address}\r\n"
        "\r\n"
    )
    made.sendall(request.encode())
    return made


def places(service: Service, wanted: int) -> bool:
    """Whether so many places are taken; looks again until they are."""
    return any(
        len(service.plans._places) == wanted or threading.Event().wait(0.01) for _ in range(30_000)
    )


def test_declarations_do_not_wait_for_plans(tmp_path: Path) -> None:
    with busy(tmp_path) as (service, client, _):
        asked = [ask(client, f"192.0.2.{n}", 1 + n / 100) for n in range(20)]
        assert places(service, 20 + PLANNERS)
        assert client.post("/v1/streams", json=COUNT, headers=HEADERS).status_code == 201
        assert client.get("/v1/streams/open/releases").status_code == 200
        for connection in asked:
            connection.close()


def test_clients_that_left_give_their_places_back(tmp_path: Path) -> None:
    with busy(tmp_path, plans=20 + PLANNERS) as (service, client, free):
        asked = [ask(client, f"192.0.2.{n}", 1 + n / 100) for n in range(20)]
        assert places(service, 20 + PLANNERS)
        refused = client.get("/v1/plan", headers={"X-Forwarded-For": "198.51.100.1"})
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "2")
        for connection in asked:
            connection.close()
        assert places(service, PLANNERS)
        assert not service.plans._waiting
        free.set()
        assert client.get("/v1/plan?horizon=16").status_code == 200
        page = client.get("/metrics", headers=HEADERS).text
        assert 'evercount_requests_total{method="GET",route="/v1/plan",status="499"} 20' in page


def test_one_client_has_few_places(tmp_path: Path) -> None:
    with busy(tmp_path, plans_per_client=3) as (service, client, free):
        asked = [ask(client, "192.0.2.1", 1 + n / 100) for n in range(3)]
        assert places(service, 3 + PLANNERS)
        refused = client.get("/v1/plan", headers={"X-Forwarded-For": "192.0.2.1"})
        assert (refused.status_code, refused.headers["retry-after"]) == (429, "2")
        asked.append(ask(client, "192.0.2.2", 2))  # another client still gets in
        assert places(service, 4 + PLANNERS)
        free.set()
        for connection in asked:
            assert connection.recv(12) == b"HTTP/1.1 200"
            connection.close()


def test_a_service_that_stops_does_not_wait_for_plans(tmp_path: Path) -> None:
    """Requests get their refusal at once, and the service ends while its threads still compute."""
    with busy(tmp_path) as (service, client, free):
        asked = ask(client, "192.0.2.1", 1.5)
        assert places(service, 1 + PLANNERS)
        service.end_waiting()
        answer = asked.recv(65536)
        assert answer.startswith(b"HTTP/1.1 503")
        assert re.search(rb"retry-after: 2\r\n", answer)
        asked.close()
    assert service.plans._closed
    with pytest.raises(RuntimeError):  # the pools of the service are shut down
        service._preparers.submit(free.is_set)


def test_a_process_ends_while_a_plan_is_computed(programs: Programs) -> None:
    """What never ends does not keep the process: without that, this waits for ever."""
    code = (
        "import threading; from evercount.service.computations import ComputationQueue; "
        "queue = ComputationQueue(1, 4, 4); began = threading.Event(); "
        "queue.submit('a', lambda: (began.set(), threading.Event().wait())); began.wait(); "
        "queue.close()"
    )
    assert programs.run(code).returncode == 0


def test_a_plan_that_fails_is_the_askers_problem(tmp_path: Path) -> None:
    """The thread goes on with the next one."""
    service = Service(Store(tmp_path / "a.db"), admin=ADMIN)
    failed = [service.plans.submit("a", lambda: 1 // 0) for _ in range(3)]
    assert [type(future.exception(60)) for future in failed] == [ZeroDivisionError] * 3
    with served(service) as client:
        assert client.get("/v1/plan?horizon=16").json()["horizon"] == 16


def test_plans_of_views_and_persons(tmp_path: Path) -> None:
    """The same numbers as in Python; they wait in the queue of plans, in nobody's way."""
    caps = {"max_per_tick": 2, "max_ticks": 3, "period": 7}
    asked = {
        "epsilon": 1.0,
        "delta": 1e-6,
        "horizon": 56,
        "view": ["per-tick", "last-7"],
        "unit": "user",
        **caps,
    }
    with busy(tmp_path) as (service, client, free):
        waiting = threading.Thread(
            target=lambda: got.append(client.get("/v1/plan", params=asked).json())
        )
        got: list[dict[str, object]] = []
        waiting.start()
        assert places(service, 1 + PLANNERS)
        assert client.post("/v1/streams", json=COUNT, headers=HEADERS).status_code == 201
        free.set()
        waiting.join(300)
        told = plan_views(Budget(1.0, 1e-6, unit="user", **caps), 56, ["per-tick", "last-7"])  # type: ignore[arg-type]
        assert got == [told.to_dict()]
        assert "within one period of 7 ticks" in told.guarantee
        for wrong, said in (
            ({"view": "per-day"}, "last-25"),
            ({"view": "last-0"}, "view"),
            ({"view": "last-367"}, "at most 366 ticks"),
            ({"unit": "user", "horizon": 56}, "max_events"),
            ({"max_ticks": 3}, "Use unit='user'"),
            ({"view": ["running"] * 5}, "view"),
        ):
            refused = client.get("/v1/plan", params=wrong)
            assert refused.status_code == 422, wrong
            assert said in refused.json()["error"]["message"]
