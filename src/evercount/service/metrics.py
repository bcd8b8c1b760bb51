"""Numbers about the service for Prometheus, in two parts: public facts, and what is behind the
admin token.

Public facts are ticks, releases, lag, uptime and build: functions of the declarations and the
clock. How often and how fast requests were answered moves with single events if each comes in a
request of its own, and so do the sizes of the database and the process: only an admin sees these.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain
from types import SimpleNamespace
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric

from evercount.service.every_request import Requests

StreamMetrics = tuple[str, int, float, int, list[tuple[str, float, float]]]
"""Name, released ticks, seconds for which a tick has been over without being released, ticks that
have ended and are not released, and (label, value, std) of each cell of the last release; none
where the stream is not public."""


def public_metrics(
    version: str,
    uptime: float,
    healthy: bool,
    ready: bool,
    skew: float,
    opened: int,
    streams: Sequence[StreamMetrics],
) -> Iterator[Metric]:
    """What every reader may see.

    **Guarantee.** A function of the declarations, the clock, the build, whether the store can be
    written, and of released numbers of public streams; nothing of it depends on an event or on a
    request otherwise. Test:
    `tests/service/test_service_neighbours.py::test_neighbours_look_alike_from_outside`.
    """
    yield InfoMetricFamily("evercount_build", "The running version.", {"version": version})
    yield GaugeMetricFamily("evercount_uptime_seconds", "Seconds since the start.", round(uptime))
    yield GaugeMetricFamily("evercount_healthy", "1 while the store can be written to.", healthy)
    yield GaugeMetricFamily("evercount_ready", "1 while every stream is up to date.", ready)
    yield GaugeMetricFamily(
        "evercount_clock_skew_seconds", "How far the clock was set ahead.", round(skew)
    )
    yield GaugeMetricFamily("evercount_streams_open", "Streams that take events.", opened)
    released = CounterMetricFamily("evercount_ticks_released", "Released ticks.", labels=["stream"])
    overdue = "Seconds since the end of a tick that is not released; 0 if there is none."
    lag = GaugeMetricFamily("evercount_tick_lag_seconds", overdue, labels=["stream"])
    ended = "Ticks that have ended and are not released."
    left = GaugeMetricFamily("evercount_catch_up_ticks_left", ended, labels=["stream"])
    cells = ["stream", "cell"]
    values = GaugeMetricFamily(
        "evercount_released_value", "The last released numbers of public streams.", labels=cells
    )
    stds = GaugeMetricFamily(
        "evercount_released_std", "The standard deviation of their noise.", labels=cells
    )
    for name, closed, late, behind, latest in streams:
        released.add_metric([name], closed)
        lag.add_metric([name], round(late))
        left.add_metric([name], behind)
        for label, value, std in latest:
            values.add_metric([name, label], value)
            stds.add_metric([name, label], std)
    yield from (released, lag, left, values, stds)


def admin_metrics(requests: Requests, listeners: int, database_bytes: int) -> Iterator[Metric]:
    """What moves with raw data: for admins only."""
    yield GaugeMetricFamily("evercount_listeners", "Live connections.", listeners)
    yield from requests.collect()
    yield GaugeMetricFamily("evercount_database_bytes", "Size of the database.", database_bytes)


def exposition(*parts: Iterable[Metric]) -> str:
    page: Any = SimpleNamespace(collect=partial(chain, *parts))
    return generate_latest(page).decode()
