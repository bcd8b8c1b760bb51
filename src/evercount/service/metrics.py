"""Numbers about the service for Prometheus, in two parts: public facts, and what stands behind the admin token.

Public facts are ticks, releases, uptime and build: functions of the declarations and the clock. How often and how fast
the service was asked moves with single events where each comes in a request of its own, so only an admin sees that.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping

BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
REMEMBERED = 2000
EVENTS = "/v1/streams/{name}/events"
QUANTILES = (0.5, 0.99)

Sample = tuple[str, float]
"""Labels, as they stand in braces, and the value."""


def family(name: str, kind: str, meaning: str, samples: Iterable[Sample]) -> list[str]:
    """The lines of one metric."""
    lines = [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
    return lines + [
        f"{name}{{{labels}}} {value:.15g}" if labels else f"{name} {value:.15g}" for labels, value in samples
    ]


def public_lines(version: str, uptime: float, healthy: bool, ticks: Mapping[str, int], opened: int) -> list[str]:
    """What every reader may see.

    **Guarantee.** A function of the declarations, the clock, the build and whether the store can be written; nothing of
    it depends on an event or on a request. Test:
    `tests/service/test_service_neighbours.py::test_neighbours_look_alike_from_outside`.
    """
    return [
        *family("evercount_build_info", "gauge", "The version that runs.", [(f'version="{version}"', 1)]),
        *family("evercount_uptime_seconds", "gauge", "Seconds since the start.", [("", round(uptime))]),
        *family("evercount_healthy", "gauge", "1 while the store can be written.", [("", healthy)]),
        *family("evercount_streams_open", "gauge", "Streams that take events.", [("", opened)]),
        *family(
            "evercount_ticks_released_total",
            "counter",
            "Released ticks.",
            [(f'stream="{name}"', tick) for name, tick in ticks.items()],
        ),
    ]


class Requests:
    """Requests by route and status, and how long they took. For admins only."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._within: Counter[float] = Counter()
        self._seconds, self._number = 0.0, 0
        self._latest: deque[float] = deque(maxlen=REMEMBERED)

    def record(self, method: str, route: str, status: int, seconds: float) -> None:
        """One finished request."""
        if route == EVENTS and status < 300:
            self._latest.append(seconds)
            return
        self._requests[method, route, status] += 1
        if route.endswith("/live"):
            return
        self._seconds += seconds
        self._number += 1
        for bucket in BUCKETS:
            if seconds <= bucket:
                self._within[bucket] += 1

    def lines(self, listeners: int) -> list[str]:
        """The metrics of requests and live connections; accepted batches are not counted here either."""
        name = "evercount_request_seconds"
        ordered = sorted(self._latest)
        return [
            *family("evercount_listeners", "gauge", "Live connections.", [("", listeners)]),
            *family(
                "evercount_requests_total",
                "counter",
                "Requests by route and status, without accepted batches.",
                [
                    (f'method="{method}",route="{route}",status="{status}"', number)
                    for (method, route, status), number in sorted(self._requests.items())
                ],
            ),
            f"# HELP {name} Duration of requests, without accepted batches.",
            f"# TYPE {name} histogram",
            *(f'{name}_bucket{{le="{bucket:g}"}} {self._within[bucket]}' for bucket in BUCKETS),
            f'{name}_bucket{{le="+Inf"}} {self._number}',
            f"{name}_sum {self._seconds:.6f}",
            f"{name}_count {self._number}",
            *family(
                "evercount_accept_seconds",
                "gauge",
                "Recent durations of accepted batches.",
                [
                    (f'quantile="{share}"', ordered[min(len(ordered) - 1, int(share * len(ordered)))])
                    for share in QUANTILES
                    if ordered
                ],
            ),
        ]
