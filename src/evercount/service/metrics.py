"""Numbers about the service for Prometheus; none of them tells how many events or batches came in.

A count of accepted batches would be a raw count where batches hold one event each. So accepted batches are not counted
at all, and their latency is shown as quantiles without a number of observations.
"""

from __future__ import annotations

from collections import Counter, deque

BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
REMEMBERED = 2000
EVENTS = "/v1/streams/{name}/events"


class Metrics:
    """Requests by route and status, and how long they took."""

    def __init__(self) -> None:
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._slower: Counter[float] = Counter()
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
                self._slower[bucket] += 1

    def text(self, gauges: dict[str, tuple[str, float]], ticks: dict[str, int]) -> str:
        """The exposition text, with gauges {name: (help, value)} and released ticks per stream."""
        lines = []
        for name, (meaning, value) in gauges.items():
            lines += [f"# HELP {name} {meaning}", f"# TYPE {name} gauge", f"{name} {value:g}"]
        lines += [
            "# HELP evercount_ticks_released_total Released ticks.",
            "# TYPE evercount_ticks_released_total counter",
        ]
        lines += [f'evercount_ticks_released_total{{stream="{name}"}} {tick}' for name, tick in ticks.items()]
        lines += [
            "# HELP evercount_requests_total Requests by route and status, without accepted batches.",
            "# TYPE evercount_requests_total counter",
        ]
        lines += [
            f'evercount_requests_total{{method="{method}",route="{route}",status="{status}"}} {number}'
            for (method, route, status), number in sorted(self._requests.items())
        ]
        lines += [
            "# HELP evercount_request_seconds Duration of requests, without accepted batches.",
            "# TYPE evercount_request_seconds histogram",
        ]
        lines += [f'evercount_request_seconds_bucket{{le="{bucket:g}"}} {self._slower[bucket]}' for bucket in BUCKETS]
        lines += [
            f'evercount_request_seconds_bucket{{le="+Inf"}} {self._number}',
            f"evercount_request_seconds_sum {self._seconds:.6f}",
            f"evercount_request_seconds_count {self._number}",
        ]
        lines += [
            "# HELP evercount_accept_seconds Recent durations of accepted batches.",
            "# TYPE evercount_accept_seconds gauge",
        ]
        ordered = sorted(self._latest)
        if ordered:
            for share in (0.5, 0.99):
                value = ordered[min(len(ordered) - 1, int(share * len(ordered)))]
                lines.append(f'evercount_accept_seconds{{quantile="{share}"}} {value:.6f}')
        return "\n".join(lines) + "\n"
