"""Make the pictures of README and docs: `make pictures`. The dashboard is the demo in a real
browser."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs" / "figures"
DEMO_SECONDS = 12
"""The demo shows a year, then one hour per second."""


def examples() -> None:
    """One picture for each worked example."""
    for script in sorted((ROOT / "examples").glob("*.py")):
        subprocess.run([sys.executable, script, FIGURES], check=True)


def home() -> None:
    """Flights to Boston day by day, as they were and as they are published: the picture of the
    site's first page."""
    from datetime import date, timedelta

    import numpy as np

    from evercount import Budget, Count, Stream
    from evercount.examples.flights import by_day, flights
    from evercount.plotting import COLOURS, new_axes, save

    true = np.asarray(
        [len(day) for day in by_day(flight for flight in flights() if flight.dest == "BOS")]
    )
    stream = Stream(Count(), Budget(epsilon=1.0, delta=1e-6), horizon=365, views=["per-tick"])
    daily = stream.run(true.tolist()).per_tick()
    span = slice(31, 31 + 59)  # February and March
    days = np.asarray([date(2013, 1, 1) + timedelta(days=number) for number in range(365)])[span]
    value, (low, high) = daily.values[span, 0], (edge[span, 0] for edge in daily.interval())
    axes = new_axes(8.0, 3.4)
    axes.fill_between(days, low, high, color=COLOURS[0], alpha=0.22, linewidth=0)
    axes.plot(days, value, color=COLOURS[0], linewidth=1.6)
    axes.plot(days, true[span], "o", color=COLOURS[1], markersize=3.2)
    axes.set_ylim(bottom=0)
    axes.set_ylabel("flights per day")
    axes.set_xticks(days[::7], [f"{day.day} {day:%b}" for day in days[::7]], fontsize=9)
    names = (
        ("published", 0, COLOURS[0]),
        ("and its 95 % interval", -5, COLOURS[0]),
        ("true", 5, COLOURS[1]),
    )
    for name, up, colour in names:
        place = (days[-1] + timedelta(days=1), value[-1] + up)
        axes.annotate(name, place, va="center", fontsize=9, color=colour, annotation_clip=False)
    save(axes, FIGURES / "home.png")


def dashboard() -> None:
    """The demo's dashboard after some minutes."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable,
            "-m",
            "evercount",
            "serve",
            "--demo",
            "--port",
            "0",
            "--db",
            f"{folder}/demo.db",
        ]
        server = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder
        )
        try:
            assert server.stdout is not None
            address = next(
                found[0] for line in server.stdout if (found := re.search(r"http://[\w.:]+", line))
            )
            urllib.request.urlopen(f"{address}/healthz").read()
            time.sleep(DEMO_SECONDS)
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(
                    executable_path="/usr/bin/chromium", args=["--no-sandbox"]
                )
                page = browser.new_page(
                    viewport={"width": 1280, "height": 860}, device_scale_factor=1
                )
                page.goto(f"{address}/#/stream/flu-demo/south/per-day")
                page.wait_for_selector("#span-chart canvas", timeout=120_000)
                page.wait_for_timeout(2000)
                page.screenshot(path=str(FIGURES / "dashboard.png"))
                browser.close()
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    home()
    examples()
    dashboard()
