"""The dashboard in a real Chromium against the real service: what is drawn is what was released.

With $EVERCOUNT_ARTEFACTS, screenshots are kept there; else none is taken, as drawing them takes
longer than the tests.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

pytest.importorskip(
    "fastapi", reason="the service is not installed: pip install 'evercount[service]'"
)
pytest.importorskip("uplot", reason="uPlot is not installed: pip install 'evercount[service]'")
from free_ports import free_port
from soak_cases import soak_except

sync_api = pytest.importorskip(
    "playwright.sync_api", reason="playwright is not installed: pip install playwright"
)

pytestmark = pytest.mark.slow

STATIC = Path(__file__).parents[2] / "src" / "evercount" / "service" / "static"
ADMIN = "an-admin-token-for-tests-only"
REGIONS = [
    "Alsace",
    "Bretagne",
    "Corse",
    "Franche-Comté",
    "Lorraine",
    "Normandie",
    "Picardie",
    "Savoie",
]
MARKUP = "<img src=x onerror=\"document.title='broken'\">"
BUDGET = {"epsilon": 0.5, "delta": 1e-10}
PATIENCE = 120_000
CHEAP = ["--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu", "--disable-extensions"]

LAUNCH = """
import sys
from evercount.service.http_server import run
from evercount.service.runtime import Service
from evercount.store import Store
run(Service(Store(sys.argv[1]), admin=sys.argv[3]), "127.0.0.1", int(sys.argv[2]), lambda a: print(a, flush=True))
"""  # noqa: E501


class Running:
    """The service as a process of its own, on one port and one SQLite file."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        command = [sys.executable, "-c", LAUNCH, str(self.file), str(self.port), ADMIN]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == self.address

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait(timeout=300)
            assert self.process.stdout is not None
            self.process.stdout.close()
            self.process = None

    def call(self, path: str, body: Any = None, method: str | None = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {ADMIN}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.address}/v1/{path}", data, headers, method=method)
        with urllib.request.urlopen(request, timeout=300) as answer:
            return json.load(answer)

    def declare(self, name: str, keys: list[str] | int = 1, **more: Any) -> None:
        query = {"name": "histogram", "parameters": {"keys": keys}}
        self.call(
            "streams", {"name": name, "query": query, "budget": BUDGET, "public": True, **more}
        )

    def open(self, name: str) -> None:
        """There is no history: the clock closes the past ticks of the stream."""
        self.call(f"streams/{name}/open", method="POST")

    def close(self, name: str, events: list[Any] | None = None) -> Any:
        """Send events, close the tick, and return its release."""
        if events:
            self.call(f"streams/{name}/events", events)
        return self.call(f"streams/{name}/close-tick", method="POST")

    def releases(self, name: str) -> list[Any]:
        found: list[Any] = self.call(f"streams/{name}/releases?limit=1000")["releases"]
        return found


def flu_events(tick: int) -> list[str]:
    """Each region has its own pace, with a wave over the ticks."""
    wave = 3 + abs((tick % 24) - 12)
    return [region for i, region in enumerate(REGIONS) for _ in range((i + 2) * wave)]


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    running = Running(tmp_path_factory.mktemp("dashboard") / "store.db")
    running.start()
    try:
        running.declare(
            "flu",
            REGIONS,
            horizon=512,
            factorization="balanced",
            description="Self-assessed symptoms per region",
        )
        for tick in range(60):
            running.close("flu", flu_events(tick))
        yield running
    finally:
        running.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    found = next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )
    if found is None:
        reason = "Chromium is not installed: apt-get update && apt-get install -y chromium"
        print(reason)
        pytest.skip(reason)
    with sync_api.sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=found, args=CHEAP)
        yield started
        started.close()


@pytest.fixture
def artefacts(tmp_path: Path) -> Path:
    return Path(os.environ.get("EVERCOUNT_ARTEFACTS") or tmp_path)


def keep_picture(page: Any, path: Path, **more: Any) -> None:
    """A screenshot, where somebody wants to keep it."""
    if os.environ.get("EVERCOUNT_ARTEFACTS"):
        page.screenshot(path=path, **more)


class Complaints:
    """What must stay empty: console errors, page errors, and requests to anywhere else."""

    def __init__(self) -> None:
        self.errors: list[str] = []
        self.elsewhere: list[str] = []
        self.requests: list[str] = []

    def watch(self, page: Any, host: str) -> None:
        def console(message: Any) -> None:
            # a hint about the test's own look at the pixels
            own_reading = "willReadFrequently" in message.text
            if message.type in ("error", "warning") and not own_reading:
                self.errors.append(message.text)

        page.on("console", console)
        page.on("pageerror", lambda error: self.errors.append(str(error)))

        def request(asked: Any) -> None:
            self.requests.append(asked.url)
            if urlsplit(asked.url).netloc != host and not asked.url.startswith("data:"):
                self.elsewhere.append(asked.url)

        page.on("request", request)


@pytest.fixture
def complaints() -> Complaints:
    return Complaints()


@pytest.fixture
def visit(service: Running, browser: Any, complaints: Complaints) -> Iterator[Callable[..., Any]]:
    """Opens the dashboard; afterwards there must have been no error in the console and no request
    elsewhere."""
    with contextlib.ExitStack() as opened:

        def open_page(
            path: str = "#/stream/flu", width: int = 1360, height: int = 900, **more: Any
        ) -> Any:
            context = browser.new_context(viewport={"width": width, "height": height}, **more)
            opened.callback(context.close)
            page = context.new_page()
            page.set_default_timeout(PATIENCE)
            complaints.watch(page, urlsplit(service.address).netloc)
            page.goto(f"{service.address}/{path}")
            return page

        yield open_page
        assert complaints.requests, "the browser asked for nothing: the watch does not work"
        assert complaints.elsewhere == []
        assert complaints.errors == []


def wait_state(page: Any, state: str) -> None:
    page.wait_for_selector(f"#connection[data-state={state}]")


def wait_tick(page: Any, tick: int) -> None:
    page.wait_for_function("tick => window.evercount?.page.history?.lastTick >= tick", arg=tick)


def plain(text: str) -> str:
    return text.replace("\u2212", "-").replace(",", "")


def shown(page: Any, selector: str) -> str:
    return plain(page.locator(selector).inner_text())


def rounded(number: float) -> str:
    """As the page writes a number next to an error of ten or more: whole, and zero without a
    sign."""
    return str(int(Decimal(number).quantize(Decimal(1), ROUND_HALF_UP)))


# -- live numbers ----------------------------------------------------------------------------------


def test_a_live_update_arrives(service: Running, visit: Callable[..., Any]) -> None:
    page = visit()
    wait_state(page, "live")
    before = page.evaluate("evercount.page.history.lastTick")
    assert before == len(service.releases("flu"))
    made = service.close("flu", flu_events(before))
    assert made["tick"] == before + 1
    wait_tick(page, made["tick"])
    page.wait_for_function(
        "tick => document.querySelector('#facts').innerText.includes(`${tick} of 512`)",
        arg=made["tick"],
    )
    assert shown(page, "#focus-value") == rounded(made["values"][0])
    rows = page.locator("#table-rows tr")
    assert rows.count() == len(REGIONS)
    for i, region in enumerate(REGIONS):
        text = [plain(cell) for cell in rows.nth(i).locator("th, td").all_inner_texts()]
        expected = [made[key][i] for key in ("values", "std", "low", "high")]
        assert text == [region, *(rounded(number) for number in expected)]
    assert f"{512 - made['tick']} periods are left" in page.inner_text("#guarantee-length")
    page.click("#history summary")
    page.locator("#history-rows tr").first.wait_for()  # the rows are made when the fold opens
    newest = [
        plain(cell)
        for cell in page.locator("#history-rows tr >> nth=0").locator("th, td").all_inner_texts()
    ]
    assert newest[0] == f"Period {made['tick']}"
    assert newest[1:] == [rounded(made[key][0]) for key in ("values", "std", "low", "high")]


def test_a_key_that_becomes_public_appears_on_the_page(
    service: Running, visit: Callable[..., Any]
) -> None:
    query, budget = "discovered-keys", {"epsilon": 8.0, "delta": 0.01}
    service.call(
        "streams",
        {"name": "cities", "query": query, "budget": budget, "public": True, "horizon": 64},
    )
    service.close("cities", ["Oslo"] * 90)
    service.close("cities", ["Oslo"])
    page = visit("#/stream/cities/Oslo")
    wait_state(page, "live")
    assert page.evaluate("evercount.page.history.labels") == ["total", "other", "Oslo"]
    made = service.close("cities", ["Bergen"] * 90)
    page.wait_for_function("() => window.evercount?.page.history?.labels.length === 4")
    wait_tick(page, 3)
    assert float(shown(page, "#focus-value")) == made["values"][2], (
        "the page still shows the cell that it showed"
    )
    rows = page.locator("#table-rows tr")
    assert rows.count() == 4
    assert rows.nth(3).locator("th, td").all_inner_texts()[0] == "Bergen"
    page.goto(f"{service.address}/#/stream/cities/Bergen")
    page.wait_for_function("() => window.evercount?.page.cell === 3")
    assert float(shown(page, "#focus-value")) == made["values"][3]


@pytest.mark.soak
def test_keys_of_the_day_come_and_go_on_the_page(
    service: Running, visit: Callable[..., Any]
) -> None:
    query, budget = "discovered-keys", {"epsilon": 8.0, "delta": 0.01}
    service.call(
        "streams",
        {"name": "days", "query": query, "budget": budget, "public": True, "views": ["per-tick"]},
    )
    made = service.close("days", ["Oslo"] * 90)
    page = visit("#/stream/days/Oslo")
    wait_state(page, "live")
    assert float(shown(page, "#focus-value")) == made["values"][2]
    assert "New per period" in page.locator("#focus-eyebrow").inner_text()
    assert page.locator("#span-view option").all_inner_texts() == ["New per period"]
    service.close("days", ["Bergen"] * 90)
    wait_tick(page, 2)
    assert page.evaluate("evercount.page.history.labels") == ["total", "other", "Oslo", "Bergen"]
    assert shown(page, "#focus-value") == "–", "Oslo is not published at this tick"


def test_the_band_is_what_was_released_and_is_drawn(
    service: Running, visit: Callable[..., Any]
) -> None:
    page = visit("#/stream/flu/Corse")
    wait_state(page, "live")
    released = service.releases("flu")
    data = page.evaluate(
        "Array.from(evercount.page.view.chart.data, (column) => Array.from(column))"
    )
    cell = REGIONS.index("Corse")
    assert data == [
        [r["tick"] for r in released],
        *([r[key][cell] for r in released] for key in ("high", "low", "values")),
    ]
    places = page.evaluate(
        """() => {
          const { chart } = evercount.page.view;
          const context = chart.ctx, ratio = devicePixelRatio;
          const read = (x, y) => Array.from(context.getImageData(Math.round(x), Math.round(y), 1, 1).data);
          const [ticks, high, low, value] = chart.data;
          const middle = Math.floor(ticks.length / 2);
          return [-3, -2, -1, 0, 1, 2].map((step) => {
            const i = middle + step;
            const x = chart.valToPos((ticks[i] + ticks[i + 1]) / 2, "x", true);
            const y = (column) => chart.valToPos((column[i] + column[i + 1]) / 2, "y", true);
            const between = (a, b) => (y(a) + y(b)) / 2;
            return {
              above: read(x, between(high, value)), below: read(x, between(low, value)), line: read(x, y(value)),
              outside: read(x, y(high) - 12 * ratio), size: y(low) - y(high),
            };
          });
        }"""  # noqa: E501
    )
    assert all(pixels["size"] > 8 for pixels in places)

    def drawn(pixels: dict[str, Any]) -> bool:
        """The band's one colour on both sides of the line, and not outside: the reading itself can
        tell."""
        alike = all(abs(a - b) <= 24 for a, b in zip(pixels["above"], pixels["below"], strict=True))
        above = pixels["above"]
        return (
            alike and above[3] > 20 and pixels["line"][3] > above[3] and pixels["outside"] != above
        )

    assert sum(map(drawn, places)) >= 3, places  # a line of the grid may run through the others


@pytest.mark.soak
def test_many_ticks_are_not_read_out_one_by_one(
    service: Running, visit: Callable[..., Any]
) -> None:
    page = visit()
    wait_state(page, "live")
    page.evaluate(
        """() => {
          window.said = [];
          new MutationObserver(() => window.said.push(document.querySelector("#announcer").textContent))
            .observe(document.querySelector("#announcer"), { childList: true, characterData: true, subtree: true });
        }"""  # noqa: E501
    )
    last = 0
    for _ in range(5):
        last = service.close("flu", ["Corse"])["tick"]
        wait_tick(page, last)
    page.wait_for_function(
        "tick => document.querySelector('#focus-eyebrow').innerText.includes(`period ${tick}`)",
        arg=last,
    )
    said = page.evaluate("window.said")
    assert len(said) == 1
    assert said[0].startswith("New number. Alsace: ")


def test_a_gap_in_the_feed_is_filled(service: Running, visit: Callable[..., Any]) -> None:
    page = visit()
    wait_state(page, "live")
    page.evaluate("evercount.page.feed.stop()")
    made = [service.close("flu", ["Alsace"]) for _ in range(3)]
    page.evaluate("release => evercount.page.take(release)", made[-1])
    wait_tick(page, made[-1]["tick"])
    ticks = page.evaluate("evercount.page.history.rows.map((row) => row.tick)")
    assert ticks == list(range(1, made[-1]["tick"] + 1))


def test_it_reconnects_and_misses_nothing(browser: Any, tmp_path: Path, artefacts: Path) -> None:
    running, complaints = Running(tmp_path / "store.db"), Complaints()
    running.start()
    context = browser.new_context()
    try:
        running.declare("flu", REGIONS)
        running.close("flu", ["Corse"])
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        complaints.watch(page, urlsplit(running.address).netloc)
        page.goto(running.address)
        wait_state(page, "live")
        running.stop()
        wait_state(page, "waiting")
        assert "Connection lost" in page.inner_text("#connection")
        keep_picture(page, artefacts / "connection-lost.png")
        running.start()
        made = [running.close("flu", ["Corse"]) for _ in range(4)]
        wait_tick(page, made[-1]["tick"])
        wait_state(page, "live")
        rows = page.evaluate("evercount.page.history.rows.map(({tick, hash}) => [tick, hash])")
        assert rows == [[r["tick"], r["hash"]] for r in running.releases("flu")]
        refused = [
            text
            for text in complaints.errors
            if "ERR_CONNECTION" not in text and "ERR_INCOMPLETE" not in text
        ]
        # only the browser's own lines about the connection that was cut on purpose
        assert refused == []
        assert complaints.elsewhere == []
    finally:
        context.close()
        running.stop()


# -- all cells -------------------------------------------------------------------------------------


def test_the_table_sorts_and_the_overview_follows(
    service: Running, visit: Callable[..., Any]
) -> None:
    page = visit()
    wait_state(page, "live")
    values = dict(zip(REGIONS, service.releases("flu")[-1]["values"], strict=True))
    page.get_by_role("button", name="Value").click()
    names = page.locator("#table-rows th").all_inner_texts()
    assert names == sorted(REGIONS, key=values.__getitem__, reverse=True)
    assert page.locator(".tile-name").all_inner_texts() == names
    assert page.get_attribute("th[data-key=value]", "aria-sort") == "descending"
    page.get_by_role("button", name="Value").click()
    assert page.locator("#table-rows th").all_inner_texts() == names[::-1]
    assert page.get_attribute("th[data-key=value]", "aria-sort") == "ascending"


@pytest.mark.soak
def test_a_thousand_cells_come_in_pages(
    service: Running, visit: Callable[..., Any], artefacts: Path
) -> None:
    service.declare("large", [f"zip-{i:04d}" for i in range(1000)])
    made = [service.close("large", [f"zip-{i:04d}" for i in range(0, 1000, 7)]) for _ in range(3)][
        -1
    ]
    page = visit("#/stream/large")
    wait_state(page, "live")
    assert page.locator(".tile").count() == page.locator("#table-rows tr").count() == 24
    assert page.inner_text("#page-text") == "1 to 24 of 1,000"
    page.click("#page-next")
    assert page.inner_text(".tile-name >> nth=0") == "zip-0024"
    keep_picture(page, artefacts / "thousand-cells.png", full_page=True)
    page.fill("#find", "0999")
    assert page.locator(".tile").count() == 1
    page.click(".tile")
    assert page.inner_text("#focus-name") == "zip-0999"
    assert shown(page, "#focus-value") == rounded(made["values"][999])
    page.fill("#find", "no such cell")
    assert page.inner_text("#page-text") == "No cell has this in its name"


# -- states ----------------------------------------------------------------------------------------


@pytest.mark.soak
def test_numbers_look_as_in_the_readers_locale(service: Running, visit: Callable[..., Any]) -> None:
    service.declare("many", ["a"], horizon=2)
    service.close("many", ["a"] * 5_500)
    page = visit("#/stream/many", locale="de-DE")
    wait_tick(page, 1)
    assert re.fullmatch(r"5\.\d\d\d(,\d+)?", shown(page, "#focus-value"))
    assert "0,5" in page.inner_text("#facts")


def test_empty_and_finished_streams_say_so(
    service: Running, visit: Callable[..., Any], artefacts: Path
) -> None:
    service.declare("short", ["a", "b"], horizon=2)
    page = visit("#/stream/short")
    wait_state(page, "live")
    assert page.get_attribute("#focus-chart", "class") == "chart empty"
    assert "is not over yet" in page.get_attribute("#focus-chart", "data-empty")
    keep_picture(page, artefacts / "empty.png")
    service.close("short", ["a"])
    service.close("short", ["b"])
    wait_state(page, "finished")
    assert "All 2 periods of this stream are published" in page.inner_text("#stream-note")
    assert page.get_attribute("#focus-chart", "class") == "chart"
    page.reload()
    wait_state(page, "finished")
    assert "2 of 2" in page.inner_text("#facts")


def test_a_clocked_stream_has_a_time_axis(service: Running, visit: Callable[..., Any]) -> None:
    service.declare("clocked", ["a"], tick="1h", start="2026-01-01T00:00:00Z", horizon=30)
    service.open("clocked")
    page = visit("#/stream/clocked", timezone_id="UTC")
    wait_state(page, "finished")  # the past ticks are closed at once, in order
    assert page.evaluate("evercount.page.view.timed") is True
    assert page.inner_text("#focus-eyebrow") == "New per hour · Jan 2, 2026, 05:00 AM"
    assert "every hour" in page.inner_text("#facts")


def test_a_private_stream_needs_a_token_that_stays_in_the_tab(
    service: Running, visit: Callable[..., Any], artefacts: Path
) -> None:
    service.declare("private", ["a", MARKUP], public=False)
    service.close("private", ["a"])
    reader = service.call("tokens", {"role": "read"})["token"]
    page = visit("#/stream/private")
    page.wait_for_selector("#message >> text=Stream not found")
    assert page.locator("#stream-page").is_hidden()
    page.get_by_role("button", name="Enter a token").click()
    keep_picture(page, artefacts / "token.png")
    page.keyboard.type(reader)
    page.keyboard.press("Enter")
    wait_state(page, "live")
    # the live feed is read with the token, too
    wait_tick(page, service.close("private", ["a"])["tick"])
    # a cell's name is text, never markup
    assert page.locator(".tile-name").all_inner_texts() == ["a", MARKUP]
    assert page.locator("#stream-page img").count() == 0
    assert reader not in page.url
    kept = page.evaluate(
        "[JSON.stringify(sessionStorage), JSON.stringify(localStorage), document.cookie]"
    )
    assert reader in kept[0]
    assert reader not in kept[1] + kept[2]
    page.click("#token-menu summary")
    page.click("#token-clear")
    page.wait_for_selector("#message >> text=Stream not found")
    assert reader not in page.evaluate("JSON.stringify(sessionStorage)")


def test_the_guarantee_is_said_in_plain_words(service: Running, visit: Callable[..., Any]) -> None:
    budget = {
        "epsilon": 2,
        "delta": 1.2341e-6,
        "unit": "user",
        "max_events": 5,
        "adjacency": "replace",
    }
    service.declare("people", ["a"], budget=budget)
    page = visit("#/stream/people")
    wait_state(page, "live")
    text = page.inner_text("#guarantee")
    assert "at most its first 5 events of the whole stream" in text
    assert "cannot break AES-256" in text
    assert "That an id has events, how many and when" in text
    told = service.call("streams/people")
    assert page.text_content("#guarantee-letter") == told["explained"]["letter"]
    assert told["guarantee"] in page.text_content("#guarantee")
    assert all(sentence in text for sentence in told["explained"]["strength"])
    assert "at most 88.1 %" in text  # 100·(e²+δ)/(1+e²) = 88.08, rounded up
    assert "a chance of at most 1 in 810,000" in text  # 1/δ = 810,307
    assert "1.24 × 10⁻⁶" in text  # δ, rounded up
    assert "This stream has no end" in text
    assert "What it does not protect" in text
    assert "weak promise" not in text
    page.goto(f"{service.address}/#/stream/flu")
    page.wait_for_selector("#guarantee >> text=Every single event")
    assert "at most 62.3 %" in page.inner_text("#guarantee")


def test_pages_say_whom_a_capped_stream_protects_and_what_it_counts(
    service: Running, visit: Callable[..., Any], artefacts: Path
) -> None:
    budget = {
        "epsilon": 2,
        "delta": 1e-6,
        "unit": "user",
        "max_per_tick": 2,
        "max_ticks": 3,
        "period": 7,
    }
    for name in ("visits", "visits-too"):
        service.declare(
            name, ["a", "b"], budget=budget, views=["per-tick", "last-7", "running"], horizon=28
        )
        for tick in range(9):
            sent = [
                {"key": "ab"[i % 2], "user": f"u{i}"} for i in range(40 * tick, 40 * tick + 200)
            ]
            service.close(name, sent)
    told = service.call("streams/visits")
    counted = told["counted"]
    assert "its first 2 events of each tick, in the first 3 ticks in which it has one" in counted
    page = visit("#/stream/visits")
    wait_state(page, "live")
    page.wait_for_selector("#span-value")
    assert page.locator(".counted").all_inner_texts() == [counted] * 3
    assert told["explained"]["who"].startswith(
        page.inner_text("#facts >> text=Every id of a person")
    )
    page.click("#history summary")
    page.wait_for_function("() => document.querySelector('#history-caption').textContent !== ''")
    assert page.inner_text("#history-caption").endswith(counted)
    assert page.text_content("#table-caption").endswith(counted)
    text = page.text_content("#guarantee")
    assert told["explained"]["who"] in text
    assert counted in text
    assert "Together with the other streams" in text  # of the same neighbours, whatever they count
    assert page.text_content("#guarantee-letter") == told["explained"]["letter"]
    assert "promised" not in page.text_content("body")
    keep_picture(page, artefacts / "capped-stream.png", full_page=True)
    page.goto(f"{service.address}/#/compare/visits/a/visits/b/per-tick")
    page.wait_for_function(
        "text => document.getElementById('compare-counted').textContent === text", arg=counted
    )
    page.goto(f"{service.address}/embed#/visits/a/per-tick")
    page.wait_for_function(
        "text => document.getElementById('embed-note').textContent.endsWith(text)", arg=counted
    )
    page.goto(f"{service.address}/#/stream/flu")
    page.wait_for_selector("#guarantee >> text=Every single event")
    assert page.locator(".counted:visible").count() == 0


# -- planner ---------------------------------------------------------------------------------------


def plan_of(service: Running, epsilon: str, horizon: int) -> Any:
    return service.call(f"plan?epsilon={epsilon}&delta=1e-10&horizon={horizon}")


def test_the_planner_reacts_to_its_sliders(
    service: Running, visit: Callable[..., Any], artefacts: Path
) -> None:
    page = visit("#/planner", reduced_motion="reduce")
    page.wait_for_selector("#plan-rows tr")
    first = plan_of(service, "0.5", 4096)
    names = [row["name"] for row in first["mechanisms"]]
    assert page.locator("#plan-rows th").all_inner_texts() == [*names, "lower bound, Gaussian"]
    series = page.evaluate("evercount.planner.view.chart.data.map((column) => Array.from(column))")
    assert len(series) == len(names) + 2
    assert series[1] == first["mechanisms"][0]["std"]
    assert set(series[-1]) == {first["lower_bound"]["worst_std"]}
    swatches = (
        "[...document.querySelectorAll('#plan-rows path')].map((p) => [...p.attributes].map((a) => "
        "a.value).join())"
    )
    drawn = page.evaluate(swatches)
    assert len(set(drawn)) == len(drawn) == len(names) + 1  # no two curves look alike
    summary = page.inner_text("#plan-summary")
    assert (names[0], first["mechanisms"][0]["ratio_to_lower_bound"] < 1) == ("bridge", True)
    assert "its noise is not Gaussian" in summary
    keep_picture(page, artefacts / "planner-light.png", full_page=True)
    page.focus("#plan-epsilon")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#plan-epsilon-out") == "0.6"
    page.wait_for_function("() => evercount.planner.plan.epsilon === 0.6")
    second = plan_of(service, "0.6", 4096)
    worst = [
        float(text.replace(",", ""))
        for text in page.locator("#plan-rows td:nth-child(2)").all_inner_texts()
    ]
    expected = [
        *(row["worst_std"] for row in second["mechanisms"]),
        second["lower_bound"]["worst_std"],
    ]
    assert worst == pytest.approx(expected, rel=5e-3)
    assert second["mechanisms"][0]["worst_std"] < first["mechanisms"][0]["worst_std"]
    page.focus("#plan-horizon")
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => evercount.planner.plan.horizon === 8192")
    assert "8,192 days" in page.inner_text("#plan-caption")
    page.uncheck("#plan-log")
    assert page.evaluate("evercount.planner.view.chart.scales.y.distr") == 1
    page.wait_for_function("() => document.getElementById('plan-busy').textContent === ''")


@pytest.mark.soak
def test_the_planner_plans_a_stream_without_end(visit: Callable[..., Any]) -> None:
    page = visit("#/planner", reduced_motion="reduce")
    page.wait_for_selector("#plan-rows tr")
    page.locator("#plan-horizon").press("End")  # of the slider
    page.wait_for_function("() => evercount.planner.plan.horizon === null")
    assert "without end" in page.inner_text("#plan-caption")
    page.wait_for_function("() => document.getElementById('plan-busy').textContent === ''")


def test_the_planner_chooses_noise_for_views_and_persons(
    service: Running, visit: Callable[..., Any], artefacts: Path
) -> None:
    page = visit("#/planner", reduced_motion="reduce")
    told = service.call(
        "plan?epsilon=0.5&delta=1e-10&horizon=4096&view=per-tick&view=last-7&view=running"
    )
    page.wait_for_function(
        "reason => document.getElementById('views-summary').textContent === reason",
        arg=told["reason"],
    )
    titles = [
        "Noise",
        "Delta",
        "New per day",
        "Last 7 days",
        "Running total",
        "Epsilon of two streams",
    ]
    assert page.locator("#views-head th").all_inner_texts() == titles
    names = page.locator("#views-rows th").all_inner_texts()
    assert names == [row["name"] + (" (chosen)" if row["chosen"] else "") for row in told["rows"]]
    assert page.locator("#views-rows tr[data-chosen]").count() == 1
    for place, view in ((4, "last-7"), (5, "running")):
        cells = page.locator(f"#views-rows > tr > :nth-child({place})").all_inner_texts()
        stds = [row["stds"][view] for row in told["rows"]]
        assert [float(text.replace(",", "")) for text in cells] == pytest.approx(stds, rel=5e-3)
    assert told["guarantee"] == page.inner_text("#views-guarantee")
    page.uncheck("#plan-running")
    page.fill("#plan-horizon", "7")
    page.fill("#plan-last-ticks", "30")
    page.select_option("#plan-unit", "user")
    page.fill("#plan-period", "30")
    page.fill("#plan-max_per_tick", "2")
    page.fill("#plan-max_ticks", "10")
    page.wait_for_function(
        "() => evercount.planner.views.guarantee.includes('within one period of 30 ticks')"
    )
    page.wait_for_function(
        "() => evercount.planner.views.guarantee.includes('in the first 10 ticks')"
    )
    page.wait_for_function(
        "() => evercount.planner.plan.guarantee.includes('in the first 10 ticks')"
    )
    caps = "unit=user&period=30&max_per_tick=2&max_ticks=10"
    persons = service.call(
        f"plan?epsilon=0.5&delta=1e-10&horizon=128&{caps}&view=per-tick&view=last-30"
    )
    assert page.inner_text("#views-summary") == persons["reason"]
    caption = page.inner_text("#views-caption")
    assert caption.endswith(persons["counted"].replace("tick", "day"))
    assert "its first 2 events of each day, in the first 10 days" in caption
    assert "tick" not in page.inner_text("#planner-page")
    assert persons["rows"][0]["stds"]["per-tick"] > 4 * told["rows"][0]["stds"]["per-tick"]
    keep_picture(page, artefacts / "planner-persons.png", full_page=True)


@pytest.mark.soak
def test_the_planner_says_that_it_computes(visit: Callable[..., Any]) -> None:
    page = visit("#/planner", reduced_motion="reduce")
    page.wait_for_selector("#plan-rows tr")
    page.fill("#plan-horizon", "6")
    page.wait_for_function(
        "() => evercount.planner.plan.horizon === 64 && !document.querySelector('[aria-busy]')"
    )
    held: list[Any] = []
    page.route("**/v1/plan?*", lambda route: held.append(route))  # an answer that takes its time
    page.locator("#plan-epsilon").press("ArrowLeft")
    page.wait_for_selector("#plan-busy >> text=Computing the errors of all mechanisms")
    assert page.get_attribute("#plan-card", "aria-busy") == "true"
    page.wait_for_selector("#views-busy >> text=Computing the errors of each view")
    assert page.get_attribute("#views-card", "aria-busy") == "true"
    for route in held:
        route.continue_()
    for name in ("plan", "views"):
        page.wait_for_function(f"() => document.getElementById('{name}-busy').textContent === ''")
        assert page.get_attribute(f"#{name}-card", "aria-busy") is None
    page.unroute("**/v1/plan?*")


# -- reach -----------------------------------------------------------------------------------------


def focused(page: Any) -> str:
    name: str = page.evaluate("document.activeElement.className + '#' + document.activeElement.id")
    return name


def test_everything_works_from_the_keyboard(
    service: Running, visit: Callable[..., Any], artefacts: Path
) -> None:
    page = visit()
    wait_state(page, "live")
    page.keyboard.press("Tab")
    assert focused(page).startswith("skip#")
    for _ in range(40):
        page.keyboard.press("Tab")
        if focused(page).startswith("tile#"):
            break
    page.keyboard.press("Tab")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert focused(page).startswith("tile#")
    assert outline == "solid"
    page.keyboard.press("Enter")
    assert page.inner_text("#focus-name") == "Bretagne"
    assert focused(page).startswith("tile#")  # the focus stays where it was
    assert page.get_attribute(".tile[aria-pressed=true]", "title") == "Bretagne"
    assert page.url.endswith("#/stream/flu/Bretagne")
    keep_picture(page, artefacts / "keyboard-focus.png")
    page.focus("#focus-chart")
    page.keyboard.press("End")
    page.keyboard.press("ArrowLeft")
    released = service.releases("flu")[-2]
    assert shown(page, "#cursor-readout").startswith(f"Period {released['tick']}: ")
    page.reload()
    wait_state(page, "live")
    assert page.inner_text("#focus-name") == "Bretagne"


@pytest.mark.parametrize("path", soak_except(["#/stream/flu"], ["#/stream/flu", "#/planner"]))
def test_every_control_has_a_name_and_every_page_its_landmarks(
    visit: Callable[..., Any], path: str
) -> None:
    page = visit(path)
    page.wait_for_selector("#plan-rows tr" if "planner" in path else "#table-rows tr")
    tree = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")["nodes"]
    nodes = [node for node in tree if not node.get("ignored")]
    roles = [node["role"]["value"] for node in nodes]
    for landmark in ("banner", "navigation", "main", "contentinfo"):
        assert roles.count(landmark) == 1
    assert roles.count("heading") >= 2
    controls = {
        "button",
        "textbox",
        "searchbox",
        "combobox",
        "slider",
        "checkbox",
        "link",
        "image",
        "table",
        "region",
    }
    nameless = [
        node
        for node in nodes
        if node["role"]["value"] in controls and not node.get("name", {}).get("value")
    ]
    assert [(node["role"]["value"], node["backendDOMNodeId"]) for node in nameless] == []
    assert len(controls & set(roles)) >= 5  # the check found something to check


@pytest.mark.soak
@pytest.mark.parametrize(
    ("path", "scheme"),
    [("#/stream/flu", "light"), ("#/stream/flu", "dark"), ("#/planner", "dark")],
)
def test_a_phone_has_no_sideways_scroll(
    visit: Callable[..., Any], artefacts: Path, path: str, scheme: str
) -> None:
    page = visit(
        path, 390, 844, color_scheme=scheme, device_scale_factor=2, has_touch=True, is_mobile=True
    )
    page.wait_for_selector("#plan-rows tr" if "planner" in path else "#table-rows tr")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    assert (
        page.evaluate(
            "document.querySelector('.chart:not([hidden]) canvas').getBoundingClientRect().right"
        )
        <= 390
    )
    if "planner" in path:  # nothing of the table is cut off
        table = "document.querySelector('#plan-card .scroll')"
        assert page.evaluate(f"{table}.scrollWidth - {table}.clientWidth") == 0
    keep_picture(
        page,
        artefacts / f"phone-{'planner' if 'planner' in path else 'stream'}-{scheme}.png",
        full_page=True,
    )


def luminance(colour: str) -> float:
    red, green, blue = (int(part) / 255 for part in re.findall(r"\d+", colour)[:3])
    linear = [
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (red, green, blue)
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.soak
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_themes_are_readable_and_can_be_switched(
    visit: Callable[..., Any], artefacts: Path, scheme: str
) -> None:
    page = visit(color_scheme=scheme)
    wait_state(page, "live")
    background = "getComputedStyle(document.body).backgroundColor"
    dark = luminance(page.evaluate(background)) < 0.5
    assert dark == (scheme == "dark")
    keep_picture(page, artefacts / f"desktop-{scheme}.png", full_page=True)
    for selector in (
        "h1",
        ".lead",
        ".hint",
        ".tile-value",
        "thead button",
        ".tile[aria-pressed=true] .tile-value",
    ):
        pair = page.evaluate(
            """(selector) => {
              const node = document.querySelector(`main ${selector}`);
              let box = node;
              while (getComputedStyle(box).backgroundColor === "rgba(0, 0, 0, 0)") box = box.parentElement;
              return [getComputedStyle(node).color, getComputedStyle(box).backgroundColor];
            }""",  # noqa: E501
            selector,
        )
        low, high = sorted(map(luminance, pair))
        assert (high + 0.05) / (low + 0.05) >= 4.5, (selector, pair)
    page.click("#theme")
    assert (luminance(page.evaluate(background)) < 0.5) != dark
    page.reload()
    wait_state(page, "live")
    assert (luminance(page.evaluate(background)) < 0.5) != dark


# -- the files themselves --------------------------------------------------------------------------


def test_the_files_are_ours_and_name_no_other_place() -> None:
    files = sorted(STATIC.iterdir())
    assert {"index.html", "app.js", "style.css"} <= {file.name for file in files}
    for file in files:
        text = file.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|//[a-z0-9.-]+\.[a-z]{2,}/|@import", text), file.name
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text
        ), file.name
        assert len(text.splitlines()) <= 420, file.name
