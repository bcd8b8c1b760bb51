"""A log into a store: every message once, garbage set aside with a count, what does not fit is
refused."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from evercount.cli import source_commands
from evercount.consume import consume_log, log_sources
from evercount.consume.consume_log import LEAST_JUDGED, LogConsumer, LogMetrics
from evercount.consume.log_sources import LogAddress
from evercount.declarations.declaration import StreamDeclaration
from evercount.engine.arrivals import Arrivals
from evercount.engine.close_ticks import TickTotals
from evercount.errors import Conflict, InputError, LogUnreachable, ParameterError, StoreError
from evercount.noise import Secret
from evercount.store import Store
from evercount.store.accept_totals import SourceBatch
from log_servers import KafkaMock, manage, publish
from soak_cases import soak_except
from store_reading import all_releases

SECRET = Secret.from_hex("5d" * 32)
HOUR = 3600 * 10**6
BEGIN = 1_767_225_600 * 10**6
GARBAGE = [
    b"",
    b"  ",
    b"null",
    b"not json",
    b'{"ts": "2026-01-01T00:10:00Z"}',
    b'{"ts": "2026-01-01T00:10:00Z", "region": "a", "region": "b"}',
    b'{"ts": "2026-01-01T00:10:00Z", "region": "a\nb"}',
    b'{"ts": "soon", "region": "a"}',
    b'{"ts": "2225-01-01T00:10:00Z", "region": "a"}',
    b'{"ts": "2026-01-01T00:10:00Z", "region": "\xff"}',
    b'{"ts": "2026-01-01T00:10:00Z", "region": "a\x00"}',
    b"[" * 100_000,
]


def declared(**more: Any) -> StreamDeclaration:
    table = {
        "name": "visits",
        "query": {"name": "histogram", "parameters": {"keys": ["a", "b"]}},
        "budget": {"epsilon": 1.0, "delta": 1e-6},
        "tick": "1h",
        "horizon": 5,
        "start": "2026-01-01T00:00:00Z",
        "columns": {"time": "ts", "key": "region"},
        "views": ["running"],
        **more,
    }
    return StreamDeclaration.from_dict(table)


def event(hour: int, region: str, **more: Any) -> bytes:
    return json.dumps({"ts": f"2026-01-01T{hour:02}:30:00Z", "region": region, **more}).encode()


class Log:
    """One log of either kind, and the store that it feeds."""

    def __init__(self, kind: str, name: str, nats_address: str, folder: Path) -> None:
        self.name, self.folder, self.kafka, self.server = name, folder, None, nats_address
        self.address = f"nats://{nats_address}/{name}"
        if kind == "kafka":
            self.kafka = KafkaMock()
            self.address = f"kafka://{self.kafka.address}/{name}"

    def publish(self, bodies: list[bytes]) -> None:
        if self.kafka is None:
            publish(self.server, self.name, bodies)
        else:
            self.kafka.publish(self.name, bodies)

    @contextmanager
    def opened_for(
        self, *declarations: StreamDeclaration, **more: Any
    ) -> Iterator[list[LogConsumer]]:
        """A new process that feeds these streams of the store."""
        with ExitStack() as stack:
            store = Store(self.folder / "store.db")
            stack.callback(store.close)
            consumers = []
            for declaration in declarations:
                store.declare(declaration, BEGIN / 1e6, SECRET)
                source = LogAddress.parse(self.address).open()
                stack.callback(source.close)
                consumer = LogConsumer(source, declaration, store, self.folder, BEGIN, **more)
                stack.callback(consumer.close)
                consumers.append(consumer)
            yield consumers

    @contextmanager
    def opened(
        self, declaration: StreamDeclaration | None = None, **more: Any
    ) -> Iterator[LogConsumer]:
        """A new process of the consumer."""
        with self.opened_for(declaration or declared(), **more) as (consumer,):
            yield consumer

    def run(
        self, hours: int, declaration: StreamDeclaration | None = None, **more: Any
    ) -> LogConsumer:
        """One round at an hour of the clock."""
        with self.opened(declaration, **more) as consumer:
            consumer.round(BEGIN + hours * HOUR)
            return consumer

    def released(self, declaration: StreamDeclaration | None = None) -> list[list[float]]:
        store = Store(self.folder / "store.db")
        values = [one["values"] for one in all_releases(store, "visits")]
        store.close()
        return values


def expected(*rows: list[int]) -> list[list[float]]:
    return declared().build(secret=SECRET, replay=True).run_totals(list(rows)).rows.tolist()


LOGS = ["nats", "kafka"]
"""A crash, caps and metrics are above what reads a log: in CI they have one, and `make soak`
both."""


@pytest.fixture(params=LOGS)
def log(request: pytest.FixtureRequest, nats_address: str, tmp_path: Path) -> Log:
    name = "".join(letter for letter in request.node.name if letter.isalnum())
    return Log(request.param, name, nats_address, tmp_path)


def test_every_message_counts_once_and_garbage_is_set_aside(log: Log, tmp_path: Path) -> None:
    aside = tmp_path / "bad.jsonl"
    log.publish(
        [event(0, "a"), *GARBAGE, event(0, "b"), b'{"ts":\n"2026-01-01T01:00:00Z","region":"a"}']
    )
    first = log.run(1, rejects=aside)
    assert sum(first.bad.values()) == len(GARBAGE)
    # the second is late: dropped by the declared rule
    log.publish([event(1, "b"), event(0, "b"), b"?"])
    again = log.run(2, rejects=aside)
    assert again.bad.total() == len(GARBAGE) + 1
    assert log.released() == expected([1, 1], [1, 1])
    assert len(aside.read_text().splitlines()) == len(GARBAGE) + 1
    assert aside.stat().st_mode & 0o077 == 0
    with pytest.raises(StoreError, match="cannot be written"):
        log.run(3, rejects=tmp_path / "nowhere" / "bad.jsonl")
    (tmp_path / "streams.toml").write_text("[[stream]]\n")
    with pytest.raises(ParameterError, match="choose another name"):
        log.run(3, rejects=tmp_path / "streams.toml")
    assert (tmp_path / "streams.toml").read_text() == "[[stream]]\n"


@pytest.mark.parametrize("log", soak_except(["nats"], LOGS), indirect=True)
def test_a_crash_before_the_commit_counts_nothing_and_after_it_once(
    log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.publish([event(0, "a")] * 5)
    plain = Store.accept_totals

    def before(*_: Any) -> bool:
        raise KeyboardInterrupt

    def after(*arguments: Any) -> bool:
        plain(*arguments)
        raise KeyboardInterrupt

    for crash in (before, after):
        monkeypatch.setattr(Store, "accept_totals", crash)
        with pytest.raises(KeyboardInterrupt):
            log.run(1)
    monkeypatch.undo()
    log.publish([event(0, "b")])
    log.run(1)
    assert log.released() == expected([5, 1])


@pytest.mark.parametrize("log", soak_except(["nats"], LOGS), indirect=True)
def test_prometheus_sees_the_lag_go_up_with_unread_messages_and_back_to_0(
    log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the command does it, with a scrape after every commit."""
    monkeypatch.setattr(consume_log, "MOST_MESSAGES", 4)
    monkeypatch.setattr(source_commands, "time", lambda: BEGIN / 10**6 + 3600)
    metrics, lags = LogMetrics(0), list[float]()

    def scrape() -> dict[str, float]:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{metrics.port}/metrics", timeout=300
        ) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        found = {}
        for sample in (one for family in families for one in family.samples):
            assert sample.labels["stream"] == "visits"
            name = sample.name.removeprefix("evercount_log_")
            found[name] = found.get(name, 0) + sample.value
        return found

    def progress(stream: str, counted: int, left: int) -> None:
        LogMetrics.progress(metrics, stream, counted, left)
        lags.append(scrape()["lag_messages"])

    monkeypatch.setattr(metrics, "progress", progress)
    log.publish([event(0, "a")] * 9 + [b"poison"])
    with log.opened() as consumer:
        read_round = source_commands._round
        assert not read_round([consumer], 0, metrics)
        assert lags[0] == 10
        assert lags[-1] == 0
        assert lags == sorted(lags, reverse=True)
        assert len(set(lags)) > 2
        seen = scrape()
        assert (seen["messages_total"], seen["bad_messages"], seen["ticks_released_total"]) == (
            10,
            1,
            1,
        )
        assert (seen["lag_messages"], seen["lost_messages"]) == (0, 0)
        lags.clear()
        read_round([consumer], 0, metrics)
        assert lags == [0]
        log.publish([event(1, "b")] * 6)
        read_round([consumer], 0, metrics)
        assert (max(lags), lags[-1], scrape()["messages_total"]) == (6, 0, 16)


REGIONS = declared()
SIZES = declared(
    name="sizes",
    query={"name": "histogram", "parameters": {"keys": ["small", "large"]}},
    columns={"time": "ts", "key": "size"},
)


def check_both(log: Log, regions: list[list[int]], sizes: list[list[int]]) -> None:
    """Check that both streams have released these counts, hour by hour."""
    with closing(Store(log.folder / "store.db")) as store:
        for declaration, counts in ((REGIONS, regions), (SIZES, sizes)):
            replay = declaration.build(secret=SECRET, replay=True).run_totals(counts)
            assert [
                one["values"] for one in all_releases(store, declaration.name)
            ] == replay.rows.tolist()


def set_aside(file: Path) -> list[tuple[str, str]]:
    """The stream and the text of each message that was set aside."""
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    return [(line["stream"], line["message"]) for line in lines]


@pytest.mark.parametrize("log", soak_except(["nats"], LOGS), indirect=True)
def test_one_log_feeds_two_streams_and_each_counts_every_message_once(
    log: Log, tmp_path: Path
) -> None:
    aside = tmp_path / "bad.jsonl"
    log.publish([event(0, "a", size="small"), event(1, "b", size="huge")])
    for _ in range(2):  # started again, they go on where they were
        with log.opened_for(REGIONS, SIZES, rejects=aside) as consumers:
            for consumer in (*consumers, *consumers):
                consumer.round(BEGIN)
    log.publish([event(1, "c", size="large")])
    with log.opened_for(REGIONS, SIZES, rejects=aside) as consumers:
        for consumer in consumers:
            consumer.round(BEGIN + 2 * HOUR)
    check_both(log, [[1, 0], [0, 1]], [[1, 0], [0, 1]])
    huge, other = (
        text.decode() for text in (event(1, "b", size="huge"), event(1, "c", size="large"))
    )
    assert set_aside(aside) == [("sizes", huge), ("visits", other)]


@pytest.mark.parametrize("log", soak_except(["nats"], LOGS), indirect=True)
def test_the_command_of_the_guide_feeds_all_streams_of_a_file(log: Log, tmp_path: Path) -> None:
    with closing(Store(tmp_path / "store.db")) as store:
        for declaration in (REGIONS, SIZES):
            store.declare(declaration, BEGIN / 1e6, SECRET)
    (tmp_path / "streams.toml").write_text(REGIONS.to_toml() + SIZES.to_toml())
    log.publish([event(0, "a", size="small"), event(2, "b", size="large"), b"neither"])
    command = [
        sys.executable,
        "-m",
        "evercount",
        "consume",
        log.address,
        "streams.toml",
        "--db",
        "store.db",
        "--once",
    ]
    for _ in range(2):
        done = subprocess.run(
            [*command, "--rejects", "bad.jsonl"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
    check_both(
        log, [[1, 0], [0, 0], [0, 1], [0, 0], [0, 0]], [[1, 0], [0, 0], [0, 1], [0, 0], [0, 0]]
    )
    assert set_aside(tmp_path / "bad.jsonl") == [("visits", "neither"), ("sizes", "neither")]


@pytest.mark.parametrize("log", soak_except(["nats"], LOGS), indirect=True)
def test_another_log_is_refused_unless_it_is_said_to_be_new(
    log: Log, nats_address: str, tmp_path: Path
) -> None:
    log.publish([event(0, "a")])
    log.run(0)
    other = Log("nats", log.name + "other", nats_address, tmp_path)
    other.publish([event(0, "b")])
    with pytest.raises(Conflict, match="--new-log"):
        other.run(1)
    other.run(1, new_log=True)
    assert log.released() == expected([1, 1])


def test_a_stream_that_was_made_again_and_deleted_messages_are_noticed(
    nats_address: str, tmp_path: Path
) -> None:
    log = Log("nats", "made", nats_address, tmp_path)
    log.publish([event(0, "a")] * 3)
    log.run(0)
    log.publish([event(0, "a")] * 3)
    manage(nats_address, lambda js: js.purge_stream("made", seq=6))
    with pytest.raises(InputError, match=r"2 positions .*4 to 5.*--skip-lost"):
        log.run(1)
    assert log.run(0, skip_lost=True).lost == 2
    manage(nats_address, lambda js: js.delete_stream("made"))
    log.publish([event(0, "a")] * 20)
    with pytest.raises(Conflict, match="--new-log"):
        log.run(1)
    log.run(1, new_log=True)
    assert log.released() == expected([24, 0])


@pytest.mark.parametrize("log", soak_except(["nats"], LOGS), indirect=True)
def test_producers_that_change_the_schema_stop_the_consumer(log: Log) -> None:
    log.publish([event(0, "a"), *[b'{"ts": "2026-01-01T00:30:00Z", "area": "a"}'] * LEAST_JUDGED])
    with pytest.raises(InputError, match="changed what they send"):
        log.run(1)
    store = Store(log.folder / "store.db")
    assert store.streams["visits"].closed == 0
    store.close()


@pytest.mark.parametrize("log", soak_except(["nats"], LOGS), indirect=True)
def test_caps_of_persons_hold_in_the_order_of_the_log(log: Log) -> None:
    user = {"epsilon": 1.0, "delta": 1e-6, "unit": "user", "max_events": 2, "period": 1}
    columns = {"time": "ts", "key": "region", "user": "who"}
    persons = declared(budget=user, columns=columns)
    log.publish([event(0, region, who="ann") for region in "aaaa"] + [event(0, "b", who="bob")])
    log.run(0, persons)
    log.publish([event(0, "b", who="ann"), event(0, "b", who="bob"), event(0, "b", who="")])
    assert log.run(1, persons).bad.total() == 1
    totals = (
        persons.build(secret=SECRET, replay=True).run_totals([[2, 2]], capped=True).rows.tolist()
    )
    assert log.released() == totals


def test_late_messages_revise_their_own_day(nats_address: str, tmp_path: Path) -> None:
    revised = declared(late="revise", revise_for=2, views=["per-tick"])
    log = Log("nats", "revised", nats_address, tmp_path)
    log.publish([event(0, "a")] * 2)
    log.run(1, revised)
    log.publish([event(0, "b"), event(1, "a")])
    log.run(2, revised)
    other = Store(tmp_path / "other.db")
    live = other.declare(revised, BEGIN / 1e6, SECRET)
    for number, rows in enumerate(([(1, 0, 2)], [(1, 1, 1), (2, 0, 1)])):
        columns = (np.asarray(column) for column in zip(*rows, strict=True))
        other.accept_totals(
            "visits", SourceBatch("q", number), Arrivals(TickTotals(1, len(rows), 2, *columns))
        )
        other.close_ticks(live, 1, 0.0)
    wanted = [one["values"] for one in all_releases(other, "visits")]
    other.close()
    assert log.released() == wanted


def test_only_the_chosen_subject_counts(nats_address: str, tmp_path: Path) -> None:
    publish(nats_address, "mixed", [event(0, "a")] * 2, "in")
    publish(nats_address, "mixed", [event(0, "b")] * 2, "out")
    log = Log("nats", "mixed", nats_address, tmp_path)
    log.address += "?subject=mixed.in"
    log.run(1)
    assert log.released() == expected([2, 0])


def test_kafka_partitions_that_are_behind_the_store_are_refused(tmp_path: Path) -> None:
    log = Log("kafka", "short", "", tmp_path)
    log.publish([event(0, "a")] * 4)
    log.run(0)
    consumer_of_copy = Log("kafka", "short", "", tmp_path)
    consumer_of_copy.publish([event(0, "a")])
    with pytest.raises(Conflict):  # another cluster with the same topic
        consumer_of_copy.run(1)


@pytest.mark.parametrize(
    "address",
    [
        "nats://host",
        "http://host/x",
        "kafka:///x",
        "nats://host/a?subject",
        "nats://host/a/b",
        "nats://h/a?subject=b&subject=c",
    ],
)
def test_addresses_that_are_none_are_refused_without_the_password(address: str) -> None:
    with pytest.raises(ParameterError, match="address") as refused:
        LogAddress.parse(address.replace("//", "//me:hunter2@"))
    assert "hunter2" not in str(refused.value)


def test_a_log_that_is_not_there_is_said_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_sources, "ANSWER_SECONDS", 0.3)
    for address in ("nats://127.0.0.1:9/none", "kafka://127.0.0.1:9/none"):
        with pytest.raises(LogUnreachable, match=r"do(es)? not answer"):
            LogAddress.parse(address).open()


def test_a_missing_stream_or_a_strange_option_is_named(nats_address: str) -> None:
    with pytest.raises(InputError, match="no stream 'missing'"):
        LogAddress.parse(f"nats://{nats_address}/missing").open()
    with pytest.raises(ParameterError, match="unknown option of a NATS address 'colour'"):
        LogAddress.parse(f"nats://{nats_address}/missing?colour=red").open()
    with pytest.raises(ParameterError, match=r"group\.id"):
        LogAddress.parse("kafka://127.0.0.1:9/x?group.id=1").open()
