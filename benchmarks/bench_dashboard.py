"""The dashboard of a stream of very many cells in a real Chromium: time to the first chart, and
bytes that it fetched.

    python benchmarks/bench_dashboard.py [--cells 100000] [--ticks 24] [--json FILE]

The stream has a manual clock; the browser, the server and this program share the machine. The same
with 8 cells stands next to it, so that what the cells cost can be told from what a page costs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from evercount.store import Store, StreamDeclaration

SERVER = """
import sys
from evercount.service.http_server import run
from evercount.service.runtime import Service
from evercount.store import Store
run(Service(Store(sys.argv[1])), "127.0.0.1", 0, lambda address: print(address, flush=True))
"""
CHART = "#view canvas, .chart:not([hidden]) canvas"
PATIENCE = 120_000


def fill(place: Path, name: str, cells: int, ticks: int) -> None:
    """A public histogram with released ticks."""
    table = {
        "name": name,
        "query": {
            "name": "histogram",
            "parameters": {"keys": [f"place {number}" for number in range(cells)]},
        },
        "budget": {"epsilon": 1.0, "delta": 1e-9},
        "horizon": 1000,
        "public": True,
    }
    store = Store(place)
    live = store.declare(StreamDeclaration.from_dict(table), 0.0)
    for _ in range(ticks):
        store.close_ticks(live, 1, 0.0)
    store.close()


def show(browser: Any, address: str, name: str) -> dict[str, float]:
    """Open the page of a stream with nothing in the cache."""
    context = browser.new_context(viewport={"width": 1360, "height": 900})
    try:
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        fetched: list[int] = []

        def finished(request: Any) -> None:
            if not request.url.endswith("/live"):
                fetched.append(request.sizes()["responseBodySize"])

        page.on("requestfinished", finished)
        began = time.perf_counter()
        page.goto(f"{address}/#/stream/{name}")
        page.wait_for_selector(CHART)
        page.wait_for_function("window.evercount?.page.history?.lastTick >= 1")
        first = time.perf_counter() - began
        page.wait_for_timeout(500)  # what the page asks for after its first chart
        memory = page.evaluate("performance.memory ? performance.memory.usedJSHeapSize : 0")
        return {
            "first_chart_seconds": round(first, 2),
            "requests": len(fetched),
            "fetched_kb": round(sum(fetched) / 1000),
            "largest_answer_kb": round(max(fetched) / 1000),
            "page_heap_mb": round(memory / 1e6, 1),
        }
    finally:
        context.close()


def measure(cells: int, ticks: int) -> dict[str, Any]:
    """All numbers, for few cells and for many."""
    from playwright.sync_api import sync_playwright

    program = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if program is None:
        sys.exit("Chromium is not installed (Debian: apt-get install chromium)")
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "bench.db"
        sizes = {"few": 8, "many": cells}
        for name, number in sizes.items():
            fill(place, name, number, ticks)
        server = subprocess.Popen(
            [sys.executable, "-c", SERVER, str(place)], stdout=subprocess.PIPE, text=True
        )
        try:
            assert server.stdout is not None
            address = server.stdout.readline().strip()
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(
                    executable_path=program, args=["--no-sandbox", "--disable-dev-shm-usage"]
                )
                show(browser, address, "few")  # the browser and the server are warm after this
                found = {
                    f"{number}_cells": show(browser, address, name)
                    for name, number in sizes.items()
                }
                browser.close()
        finally:
            os.kill(server.pid, signal.SIGTERM)
            server.wait(60)
    return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", type=int, default=100_000)
    parser.add_argument("--ticks", type=int, default=24)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = measure(options.cells, options.ticks)
    for size, figures in found.items():
        for name, value in figures.items():
            print(f"{size + ' ' + name:40} {value}")
    if options.json:
        options.json.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
