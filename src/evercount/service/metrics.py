"""Numbers about the service for Prometheus, in two parts: public facts, and what stands behind the admin token.

Public facts are ticks, releases, lag, uptime and build: functions of the declarations and the clock. How often and how
fast the service was asked moves with single events where each comes in a request of its own, and so do the sizes of the
database and the process: only an admin sees these.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True)
class StreamMetrics:
    """What the metrics say about one stream; all of it is public or released.

    Args:
        name: the stream.
        released: how many ticks are released.
        lag: for how many seconds a tick has been over without being released.
        left: how many ticks have ended and are not released.
        latest: (label, value, std) of each cell of the last release; empty where the stream is not public.
    """

    name: str
    released: int
    lag: float
    left: int
    latest: tuple[tuple[str, float, float], ...] = ()


def label_text(text: str) -> str:
    """A text as the value of a label.

    >>> label_text('a "b"')
    'a \\\\"b\\\\"'
    """
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def public_lines(
    version: str,
    uptime: float,
    healthy: bool,
    ready: bool,
    skew: float,
    opened: int,
    streams: Sequence[StreamMetrics],
) -> list[str]:
    """What every reader may see.

    **Guarantee.** A function of the declarations, the clock, the build, whether the store can be written, and of
    released numbers of public streams; nothing of it depends on an event or on a request otherwise. Test:
    `tests/service/test_service_neighbours.py::test_neighbours_look_alike_from_outside`.
    """
    cells = [(f'stream="{one.name}",cell="{label_text(label)}"', v, s) for one in streams for label, v, s in one.latest]
    of_streams: tuple[tuple[str, str, str, list[Sample]], ...] = (
        (
            "evercount_ticks_released_total",
            "counter",
            "Released ticks.",
            [(f'stream="{one.name}"', one.released) for one in streams],
        ),
        (
            "evercount_tick_lag_seconds",
            "gauge",
            "Seconds since the end of a tick that is not released; 0 if there is none.",
            [(f'stream="{one.name}"', round(one.lag)) for one in streams],
        ),
        (
            "evercount_catch_up_ticks_left",
            "gauge",
            "Ticks that have ended and are not released.",
            [(f'stream="{one.name}"', one.left) for one in streams],
        ),
        (
            "evercount_released_value",
            "gauge",
            "The last released numbers of public streams.",
            [(labels, value) for labels, value, _ in cells],
        ),
        (
            "evercount_released_std",
            "gauge",
            "The standard deviation of their noise.",
            [(labels, std) for labels, _, std in cells],
        ),
    )
    return [
        *family("evercount_build_info", "gauge", "The version that runs.", [(f'version="{version}"', 1)]),
        *family("evercount_uptime_seconds", "gauge", "Seconds since the start.", [("", round(uptime))]),
        *family("evercount_healthy", "gauge", "1 while the store can be written.", [("", healthy)]),
        *family("evercount_ready", "gauge", "1 while every stream is up to date.", [("", ready)]),
        *family("evercount_clock_skew_seconds", "gauge", "How far the clock was set ahead.", [("", round(skew))]),
        *family("evercount_streams_open", "gauge", "Streams that take events.", [("", opened)]),
        *(line for one in of_streams for line in family(*one)),
    ]


def process_lines(database_bytes: int | None) -> list[str]:
    """Sizes that move with raw data: for admins only."""
    lines = []
    if database_bytes is not None:
        meaning = "Size of the database."
        lines += family("evercount_database_bytes", "gauge", meaning, [("", database_bytes)])
    memory = resident_bytes()
    if memory is not None:
        lines += family("process_resident_memory_bytes", "gauge", "Memory of the process.", [("", memory)])
    return lines


def resident_bytes() -> int | None:
    """The memory of this process; None where the system does not tell."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


class Requests:
    """Requests by route and status, and how long they took. For admins only."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._within: Counter[float] = Counter()
        self._seconds, self._number = 0.0, 0
        self._latest: deque[float] = deque(maxlen=REMEMBERED)

    def record(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one finished request."""
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
