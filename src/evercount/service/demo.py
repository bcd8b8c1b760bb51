"""The example's made-up epidemic feeds the demonstration: hourly flu reports of eight regions, a
year at once."""

from __future__ import annotations

import itertools
import json
import threading
import time

import numpy as np

from evercount._validate import IntArray
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.schedule import SECOND
from evercount.engine.arrivals import Arrivals
from evercount.engine.close_ticks import TickTotals
from evercount.errors import EvercountError
from evercount.examples import flu
from evercount.service.catch_up import Clock
from evercount.service.read_events import read_batch
from evercount.service.runtime import Service
from evercount.store import Store
from evercount.store.accept_totals import SourceBatch

NAME = "flu-demo"
HOUR = 3600.0
TICK_SECONDS = 1.0  # real seconds of one demonstration hour
# hours that are published before the first page is shown; then the same winter comes again
YEAR = 52 * 7 * 24
SEED = 20261001

TABLE = {
    "name": NAME,
    "description": (
        "Made-up data: hourly flu reports of eight invented regions. A year is published; now one "
        "hour passes every second."
    ),
    "query": {"name": "histogram", "parameters": {"keys": list(flu.REGIONS)}},
    "budget": {"epsilon": 1.0, "delta": 1e-9, "adjacency": "add-remove", "unit": "event"},
    "tick": "1h",
    "start": "2025-10-06T00:00:00Z",  # a Monday, as in the example
    "horizon": 4 * YEAR,
    "late": "next",
    "views": ["per-tick", "last-24"],
    "noise_for": ["per-tick"],
    "public": True,
}


DECLARATION = StreamDeclaration.from_dict(TABLE)


def reports(hour: int) -> IntArray:
    """The reports of one hour (from 0) per region: Poisson, always the same for one hour."""
    generator = np.random.default_rng([SEED, hour])
    return np.asarray(generator.poisson(flu.rates(np.asarray([hour % YEAR]))[0]), dtype=np.int64)


def prefill(store: Store) -> None:
    """Declare the stream and publish its first hours, unless that is done: the first page shows a
    year at once."""
    now = DECLARATION.schedule.begin / SECOND + YEAR * HOUR
    live = store.declare(DECLARATION, now)
    if live.closed >= YEAR:
        return
    totals = TickTotals.dense(1, np.random.default_rng(SEED).poisson(flu.rates(np.arange(YEAR))))
    # once, also after a kill
    store.accept_totals(NAME, SourceBatch("the year before", 0, fresh=True), Arrivals(totals))
    while live.closed < YEAR:
        store.close_ticks(live, YEAR - live.closed, now)


def demo_clock(store: Store) -> Clock:
    """An hour per second, from where the demonstration stopped."""
    return Clock(
        HOUR / TICK_SECONDS, DECLARATION.schedule.begin / SECOND + store.find(NAME).closed * HOUR
    )


class Feeder(threading.Thread):
    """Sends the synthetic reports in the middle of their hour, as batches with idempotency keys."""

    def __init__(self, service: Service) -> None:
        super().__init__(name="evercount-demo", daemon=True)
        self.service = service
        self.ended = threading.Event()

    def run(self) -> None:
        live = self.service.store.find(NAME)
        for hour in itertools.count(live.closed):
            due = live.declaration.schedule.begin / SECOND + (hour + 0.5) * HOUR
            if self.ended.wait(self.service.clock.seconds_until(due)) or live.finished:
                return
            body = json.dumps(np.repeat(flu.REGIONS, reports(hour)).tolist()).encode()
            batch = read_batch(live.declaration, body, key=f"{SEED}-{hour}")
            while not self.ended.is_set():
                try:
                    self.service.writer.submit(batch).result()
                    break
                except EvercountError:
                    # the store fails for the moment: the key makes the retry safe
                    time.sleep(0.2)

    def stop(self) -> None:
        self.ended.set()
        self.join(2)
