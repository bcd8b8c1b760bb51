"""Views over HTTP: the library's numbers and errors, comparisons, files, and refusals."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

pytest.importorskip(
    "fastapi", reason="the service is not installed: pip install 'evercount[service]'"
)

from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.view_names import all_of_view
from evercount.engine.release import Releases
from evercount.queries import QUERIES as KNOWN
from evercount.service.http_app import STATIC
from evercount.service.read_events import read_batch
from evercount.service.runtime import Service
from evercount.store import Accepted, Store
from evercount.store.stored_releases import public_keys_of
from served_service import ADMIN, HandClock, served

START = 1_774_641_600.0  # 2026-03-27T20:00Z: the days after it hold a change of the clock in Vienna
HOURS = 60
BUDGET = {"epsilon": 1.0, "delta": 1e-6}
HOURLY = {
    "tick": "1h",
    "start": "2026-03-27T20:00:00Z",
    "zone": "Europe/Vienna",
    "public": True,
    "budget": BUDGET,
}
QUERIES: dict[str, Any] = {
    "regions": {"name": "histogram", "parameters": {"keys": ["north", "south"]}},
    "tree": {"name": "rollup", "parameters": {"paths": [["n", "a"], ["n", "b"], ["s", "c"]]}},
    "waits": {"name": "quantiles", "parameters": {"low": 0, "high": 8, "bins": 8}},
    "pure": "count",
    "places": {"name": "discovered-keys", "parameters": {"every": 2}},
}
EVENTS: dict[str, list[Any]] = {
    "regions": ["north"] * 9 + ["south"],
    "tree": [["n", "a"]] * 5 + [["s", "c"]],
    "waits": [1.0, 2.5, 7.0] * 40,
    "pure": [3],
    "places": ["oslo"] * 40 + ["bergen"] * 3 + ["a hut"],
}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Service:
    store = Store(tmp_path_factory.mktemp("views") / "store.db")
    for name, query in QUERIES.items():
        budget = {"epsilon": 1.0, "delta": 0} if name == "pure" else BUDGET
        declaration = StreamDeclaration.from_dict(
            {**HOURLY, "name": name, "query": query, "budget": budget}
        )
        live = store.declare(declaration, START)
        for hour in range(0, HOURS, 3):
            moment = START + hour * 3600
            batch = read_batch(declaration, json.dumps(EVENTS[name] * (1 + hour % 5)).encode())
            assert isinstance(store.accept([batch], moment)[0], Accepted)
            store.close_ticks(live, 3, moment)
    for name, more in (("tidy", {"postprocess": ["nonnegative"]}), ("private", {"public": False})):
        store.declare(
            StreamDeclaration.from_dict({**HOURLY, "name": name, "query": "count", **more}), START
        )
    others: dict[str, Any] = {
        "means": {"query": "average"},
        "counts": {
            "query": {"name": "histogram", "parameters": {"keys": ["a", "b", "c"]}},
            "postprocess": ["nonnegative"],
        },
    }
    for name, more in others.items():
        live = store.declare(StreamDeclaration.from_dict({**HOURLY, "name": name, **more}), START)
        store.close_ticks(live, 2, START)
    today = {"name": "today", "query": "discovered-keys", "views": ["per-tick"]}
    live = store.declare(StreamDeclaration.from_dict({**HOURLY, **today}), START)
    for hour in range(6):
        towns = ["bergen"] * (80 * (hour % 2)) + ["oslo"] * (90 * (hour % 3 > 0)) + ["a hut"]
        assert isinstance(
            store.accept([read_batch(live.declaration, json.dumps(towns).encode())], START)[0],
            Accepted,
        )
        store.close_ticks(live, 1, START)
    manual = {"name": "manual", "query": "count", "budget": BUDGET, "public": True}
    store.close_ticks(store.declare(StreamDeclaration.from_dict(manual), START), 2, START)
    return Service(store, clock=HandClock(START + (HOURS - 1) * 3600), admin=ADMIN)


@pytest.fixture(scope="module")
def client(service: Service) -> Iterator[httpx.Client]:
    with served(service) as made:
        yield made


def released(service: Service, name: str) -> Releases:
    """All releases of a stream, read back from the store, as the library's own."""
    live = service.store.find(name)
    table = service.store.published(live, 0, live.closed, range(len(live.labels)))
    return live.stream.read_back(table.numbers[:, 0])


def get(client: httpx.Client, name: str, **asked: Any) -> dict[str, Any]:
    answer = client.get(f"/v1/streams/{name}/releases", params=asked)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def refusal(client: httpx.Client, name: str, status: int = 422, **asked: Any) -> str:
    answer = client.get(f"/v1/streams/{name}/releases", params=asked)
    assert answer.status_code == status, answer.text
    return str(answer.json()["error"]["message"])


@pytest.mark.parametrize("view", ["per-tick", "last-24", "per-day", "per-week", "quantile-0.5"])
@pytest.mark.parametrize("name", QUERIES)
def test_views_are_those_of_the_library(
    client: httpx.Client, service: Service, name: str, view: str
) -> None:
    if view.startswith("quantile") != (name == "waits"):
        return
    schedule = service.store.find(name).declaration.schedule
    table = all_of_view(released(service, name), view, schedule)
    wanted = {column: numbers.tolist() for column, numbers in table.columns(schedule.show).items()}
    found = get(client, name, view=view, limit=1000)
    width = len(found["labels"])
    assert found["view"] == view
    shown = [
        (span, cell)
        for span in found["releases"]
        for cell in range(width)
        if span["values"][cell] is not None
    ]
    hidden = len(shown) < width * len(found["releases"])
    if view == "per-week":
        assert not shown, "these hours hold a part of one week only"
    else:
        assert hidden == (name == "places"), "a key is not shown before it is public"
    assert [found["labels"][cell] for _, cell in shown] == wanted["cell"]
    assert [(span["tick"], span["start"]) for span, _ in shown] == list(
        zip(wanted["tick"], wanted["start"], strict=True)
    )
    for part, column in (("values", "value"), ("std", "std"), ("low", "low"), ("high", "high")):
        told = [span[part][cell] for span, cell in shown]
        # a quantile has no std
        assert np.array_equal(np.asarray(told, float), wanted[column], equal_nan=True)
    lines = client.get(f"/v1/streams/{name}/releases.csv", params={"view": view}).text.splitlines()
    assert len(lines) == 1 + len(shown)
    if view == "per-day":
        assert len(found["releases"]) == 2
        assert get(client, name, view=view, limit=1)["releases"] == found["releases"][-1:]


def test_running_totals_and_single_cells(client: httpx.Client, service: Service) -> None:
    whole = get(client, "regions", view="running", limit=10)
    assert [span["tick"] for span in whole["releases"]] == list(range(HOURS - 9, HOURS + 1))
    assert [span["values"] for span in whole["releases"]] == released(service, "regions").rows[
        -10:
    ].tolist()
    one = get(client, "regions", view="running", cell="south", limit=10)
    assert one["labels"] == ["south"]
    assert [s["values"] for s in one["releases"]] == [s["values"][1:] for s in whole["releases"]]
    pair = get(client, "tree", view="per-tick", cell=["s", "n / a"], limit=4)
    assert pair["labels"] == ["s", "n / a"]


def test_two_cells_are_compared_with_their_exact_error(
    client: httpx.Client, service: Service
) -> None:
    for name, one, other in (
        ("regions", "north", "south"),
        ("tree", "n", "n / b"),
        ("tree", "n / a", "s"),
    ):
        wanted = released(service, name).last(24).compare(one, other)
        found = get(client, name, view="last-24", cell=one, minus=other, limit=1000)
        assert found["labels"] == [f"{one} − {other}"]
        assert [span["values"][0] for span in found["releases"]] == wanted.values[:, 0].tolist()
        assert [span["std"][0] for span in found["releases"]] == wanted.std[:, 0].tolist()


def test_discovered_keys_are_shown_from_the_tick_in_which_they_became_public(
    client: httpx.Client, service: Service
) -> None:
    since = dict(service.store.database.read(public_keys_of, service.store.find("places").id))
    assert since["oslo"] < since["bergen"]
    assert "a hut" not in since or since["a hut"] > since["bergen"]
    for cell in ("oslo", "bergen"):
        alone = get(client, "places", view="per-tick", cell=cell, limit=1000)
        assert alone["labels"] == [cell]
        values = [span["values"][0] for span in alone["releases"]]
        assert [value is not None for value in values] == [
            tick > since[cell] for tick in range(1, HOURS + 1)
        ]
    whole = get(client, "places", view="last-24", limit=1000)
    for span in whole["releases"]:
        shown = [value for value in span["values"][1:] if value is not None]
        assert sum(shown) == span["values"][0], (
            "other holds what is not shown: the numbers add up to the total"
        )
    found = get(client, "places", view="last-24", cell="oslo", minus="bergen", limit=1000)
    wanted = released(service, "places").last(24).compare("oslo", "bergen")
    for part, numbers in (
        ("values", wanted.values),
        ("std", wanted.std),
        ("low", wanted.interval()[0]),
    ):
        told = [span[part][0] for span in found["releases"]]
        assert [np.nan if number is None else number for number in told] == pytest.approx(
            numbers[:, 0], nan_ok=True
        )
    both = get(
        client,
        "places",
        view="per-day",
        cell="bergen",
        minus="north",
        minus_stream="regions",
        limit=1000,
    )
    assert [span["values"][0] is None for span in both["releases"]] == [
        span["values"][0] is None
        for span in get(client, "places", view="per-day", cell="bergen")["releases"]
    ]


def test_keys_of_the_day_are_shown_at_their_ticks_only(
    client: httpx.Client, service: Service
) -> None:
    found = get(client, "today", view="per-tick")
    assert found["labels"] == ["total", "other", "bergen", "oslo"]
    known = [[value is not None for value in span["values"][2:]] for span in found["releases"]]
    assert known[:6] == [[hour % 2 > 0, hour % 3 > 0] for hour in range(6)]
    assert not any(map(any, known[6:])), "nothing came later"
    for span in found["releases"]:
        assert sum(value for value in span["values"][1:] if value is not None) == span["values"][0]
        assert span["first"] == span["tick"]
    published = get(client, "today")
    for span, release in zip(found["releases"], published["releases"], strict=True):
        for part in ("values", "std", "low", "high"):
            assert span[part][: len(release[part])] == pytest.approx(release[part])
            assert span[part][len(release[part]) :] == [None] * (4 - len(release[part]))
    assert get(client, "today", view="running")["releases"] == found["releases"], (
        "the published numbers as they are"
    )
    assert (
        get(client, "today", view="per-tick", cell="oslo")["releases"][1]["values"]
        == found["releases"][1]["values"][3:]
    )
    compared = get(client, "today", view="per-tick", cell="oslo", minus="bergen")["releases"]
    assert [span["values"][0] is not None for span in compared] == [all(both) for both in known]
    for kind in ("csv", "json", "jsonl"):
        text = client.get(f"/v1/streams/today/releases.{kind}").text
        assert (text.count("oslo"), text.count("bergen"), text.count("a hut")) == (4, 3, 0)
        view = client.get(f"/v1/streams/today/releases.{kind}", params={"view": "per-tick"}).text
        assert kind == "json" or view.count("oslo") == 4
    facts = client.get("/v1/streams/today").json()
    assert facts["views"] == ["per-tick"]
    assert facts["query"]["own_ticks"]
    assert "no sum over several" in refusal(client, "today", view="last-24")
    assert client.get("/v1/streams/today/plan").json()["std"]
    newest = [line for line in service.metrics_page(False).splitlines() if 'stream="today"' in line]
    assert any('cell="total"' in line for line in newest)
    assert not any("bergen" in line for line in newest), "it is not in the last release"


def test_two_streams_are_compared_over_common_spans(client: httpx.Client, service: Service) -> None:
    found = get(
        client,
        "regions",
        view="per-day",
        cell="north",
        minus="count",
        minus_stream="pure",
        limit=1000,
    )
    mine = get(client, "regions", view="per-day", cell="north")["releases"]
    theirs = get(client, "pure", view="per-day")["releases"]
    assert len(found["releases"]) == 2
    for span, one, other in zip(found["releases"], mine, theirs, strict=True):
        assert span["values"][0] == one["values"][0] - other["values"][0]
        assert span["std"][0] == pytest.approx(np.hypot(one["std"][0], other["std"][0]))
        # Laplace tails are heavier
        assert span["high"][0] - span["values"][0] > 1.96 * span["std"][0]
    assert "in common" in refusal(
        client, "manual", view="per-tick", cell="count", minus="north", minus_stream="regions"
    )
    refusal(
        client, "regions", 401, view="per-tick", cell="north", minus="count", minus_stream="private"
    )


@pytest.mark.parametrize(
    ("name", "cells"),
    [("means", ["average"]), ("counts", ["c"]), ("counts", ["c", "a"]), ("counts", [])],
)
def test_streams_without_differences_show_what_they_published(
    client: httpx.Client, name: str, cells: list[str]
) -> None:
    """As numbers, as a file, and for the chart that others embed; an interval of a count does not
    go below zero."""
    answer = get(client, name, view="running", cell=cells, limit=7)
    labels = answer["labels"]
    assert labels == (cells or client.get(f"/v1/streams/{name}").json()["labels"])
    published = client.get(f"/v1/streams/{name}/releases", params={"after": HOURS - 8}).json()
    places = [published["labels"].index(label) for label in labels]
    assert (
        [span["tick"] for span in answer["releases"]]
        == [row["tick"] for row in published["releases"]]
        == list(range(HOURS - 7, HOURS))
    )
    lowest = 0.0 if name == "counts" else -np.inf
    for span, row in zip(answer["releases"], published["releases"], strict=True):
        for part in ("values", "std", "high"):
            assert span[part] == [row[part][i] for i in places]
        assert span["low"] == [max(lowest, row["low"][i]) for i in places]
    assert any(low < 0 for row in published["releases"] for low in row["low"])
    text = client.get(
        f"/v1/streams/{name}/releases.csv",
        params={"view": "running", "cell": cells, "limit": 7, "full_digits": True},
    ).text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert [float(row["value"]) for row in rows] == [
        value for span in answer["releases"] for value in span["values"]
    ]
    assert "no cell" in refusal(client, name, view="running", cell="nobody")
    refusal(client, name, view="running", cell=labels[0], minus=labels[0])


def test_files_hold_the_same_numbers(client: httpx.Client) -> None:
    wanted = get(client, "tree", view="per-day")
    flat = [
        (
            span["tick"],
            span["start"],
            cell,
            *(span[part][i] for part in ("values", "std", "low", "high")),
        )
        for span in wanted["releases"]
        for i, cell in enumerate(wanted["labels"])
    ]
    answer = client.get(
        "/v1/streams/tree/releases.csv", params={"view": "per-day", "full_digits": True}
    )
    assert answer.headers["content-type"].startswith("text/csv")
    assert 'filename="tree.per-day.csv"' in answer.headers["content-disposition"]
    rows = list(csv.reader(io.StringIO(answer.text)))
    assert [(int(a), b, c, *map(float, rest)) for a, b, c, *rest in rows[1:]] == flat
    found = client.get(
        "/v1/streams/tree/releases.json", params={"view": "per-day", "full_digits": True}
    ).json()
    assert [tuple(row.values()) for row in found] == flat
    pq = pytest.importorskip("pyarrow.parquet")
    answer = client.get(
        "/v1/streams/tree/releases.parquet", params={"view": "per-day", "full_digits": True}
    )
    table = pq.read_table(io.BytesIO(answer.content))
    columns = table.to_pydict()
    assert table.schema.field("start").type.tz == client.get("/v1/streams/tree").json()["zone"]
    columns["start"] = [start.isoformat() for start in columns["start"]]
    assert list(zip(*columns.values(), strict=True)) == flat
    assert b"evercount.guarantee" in table.schema.metadata
    assert client.get("/v1/streams/tree/releases.xls").status_code == 422


def test_refusals_say_what_is_wrong(client: httpx.Client) -> None:
    assert "view" in refusal(client, "regions", view="daily")
    assert "no cell 'east'" in refusal(client, "regions", view="per-tick", cell="east")
    assert "post-processed" in refusal(client, "tidy", view="per-tick")
    assert "manual" in refusal(client, "manual", view="per-day")
    assert "quantiles" in refusal(client, "regions", view="quantile-0.5")
    assert "all cells" in refusal(client, "waits", view="quantile-0.5", cell="total")
    assert "one cell" in refusal(client, "regions", view="per-tick", minus="south")
    assert "view" in refusal(client, "regions", cell="north")
    assert "token" in refusal(client, "private", 401, view="per-tick")
    facts = client.get("/v1/streams").json()["streams"]
    views = {one["name"]: one["views"] for one in facts}
    assert views["regions"] == ["per-tick", "last-24", "per-day", "per-week"]
    assert views["tidy"] == []
    assert "quantile-0.5" in views["waits"]
    assert views["manual"] == ["per-tick", "last-24"]


def test_every_query_has_words_on_the_page() -> None:
    """A new query must say what its number is; "Running number" is for encoders of a user's own."""
    text = (STATIC / "format.js").read_text(encoding="utf-8")
    words = text[text.index("const KINDS") :]
    assert [name for name in KNOWN if f'{name}: "' not in words and f'"{name}"' not in words] == []
