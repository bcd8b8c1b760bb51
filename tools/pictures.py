"""Make the pictures of README and docs: `make pictures`. The dashboard is the demo in a real browser."""

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
DEMO_SECONDS = 480
"""The demo shows one hour per second; after this time its curve is worth looking at."""


def examples() -> None:
    """One picture for each worked example."""
    for script in sorted((ROOT / "examples").glob("*.py")):
        subprocess.run([sys.executable, script, FIGURES], check=True)


def dashboard() -> None:
    """The demo's dashboard after some minutes."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "evercount", "serve", "--demo", "--port", "0", "--db", f"{folder}/demo.db"]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder)
        try:
            assert server.stdout is not None
            address = next(found[0] for line in server.stdout if (found := re.search(r"http://[\w.:]+", line)))
            urllib.request.urlopen(f"{address}/healthz").read()
            time.sleep(DEMO_SECONDS)
            with sync_playwright() as playwright:
                browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
                page = browser.new_page(viewport={"width": 1280, "height": 860}, device_scale_factor=1)
                page.goto(f"{address}/#/stream/flu-demo/south/per-day")
                page.wait_for_timeout(4000)
                page.screenshot(path=str(FIGURES / "dashboard.png"))
                browser.close()
        finally:
            server.terminate()
            server.wait()


if __name__ == "__main__":
    examples()
    dashboard()
