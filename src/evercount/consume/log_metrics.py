"""Numbers about a consumer for Prometheus. They move with single events: for the operator, on 127.0.0.1 only."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from evercount.errors import ParameterError

NAME = "evercount_log"


class LogMetrics:
    """Lag, messages, set-aside messages and released ticks of each stream; served if a port is given."""

    def __init__(self, port: int | None) -> None:
        registry, by = CollectorRegistry(), ["stream"]
        gauge, counter = (
            partial(Gauge, namespace=NAME, registry=registry),
            partial(Counter, namespace=NAME, registry=registry),
        )
        self._lag = gauge("lag_messages", "Messages that are not counted yet.", by)
        self._counted = counter("messages", "Messages counted since the start.", by)
        self._bad = gauge("bad_messages", "Messages that were set aside, ever.", [*by, "reason"])
        self._lost = gauge("lost_messages", "Positions deleted before they were counted.", by)
        self._ticks = counter("ticks_released", "Ticks released since the start.", by)
        self._last = gauge("last_round_seconds", "When the last round ended.", by)
        self.port: int | None = None
        if port is not None:
            try:
                server, _ = start_http_server(port, "127.0.0.1", registry)
            except OSError as error:
                raise ParameterError(f"cannot listen on port {port}: {error.strerror}") from None
            self.port = server.server_port

    def progress(self, stream: str) -> Callable[[int, int], None]:
        counted, lag = self._counted.labels(stream), self._lag.labels(stream)

        def told(messages: int, left: int) -> None:
            counted.inc(messages)
            lag.set(left)

        return told

    def after_round(self, stream: str, bad: Mapping[str, int], lost: int, ticks: int) -> None:
        for reason, number in bad.items():
            self._bad.labels(stream, reason).set(number)
        self._lost.labels(stream).set(lost)
        self._ticks.labels(stream).inc(ticks)
        self._last.labels(stream).set_to_current_time()
