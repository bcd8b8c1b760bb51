"""The client commands against a real service over a real socket: streams, tail, push, tokens."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("fastapi")
httpx = pytest.importorskip("httpx")

from evercount.cli import app, client_commands  # noqa: E402
from evercount.declarations.declaration import StreamDeclaration  # noqa: E402
from evercount.service.runtime import Service  # noqa: E402
from evercount.store import Store  # noqa: E402
from preloaded_programs import COMMAND, Programs  # noqa: E402
from product_internals import true_totals  # noqa: E402
from served_service import ADMIN, HandClock, served  # noqa: E402

BUDGET = {"epsilon": 1.0, "delta": 1e-9}
START = 1_767_225_600.0


@pytest.fixture
def service(tmp_path: Path) -> Iterator[tuple[Service, str]]:
    store = Store(str(tmp_path / "store.db"))
    service = Service(store, clock=HandClock(START + 10), admin=ADMIN)
    keys = {"name": "histogram", "parameters": {"keys": ["north", "süd, west"]}}
    common = {"budget": BUDGET, "tick": "manual"}
    service.declare(
        [
            StreamDeclaration.from_dict({"name": "flu", "query": keys, "public": True, **common}),
            StreamDeclaration.from_dict({"name": "hidden", "query": "count", **common}),
        ]
    )
    with served(service) as client:
        yield service, str(client.base_url)


def run(url: str, *arguments: str, token: str | None = ADMIN) -> Any:
    environment = {"EVERCOUNT_URL": url, "EVERCOUNT_TOKEN": token}
    return CliRunner().invoke(app, list(arguments), env=environment)


def close(url: str, stream: str = "flu") -> None:
    headers = {"Authorization": f"Bearer {ADMIN}"}
    httpx.post(
        f"{url}/v1/streams/{stream}/close-tick", headers=headers, timeout=300
    ).raise_for_status()


def open_totals(service: Service, stream: str) -> list[int]:
    """The raw sums of the open tick, which only tests look at."""
    live = service.store.streams[stream]
    return [int(total) for total in true_totals(live.stream)]


def test_streams(service: tuple[Service, str]) -> None:
    _, url = service
    done = run(url, "streams")
    assert done.exit_code == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["name", "flu", "hidden"]
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert [one["name"] for one in json.loads(run(url, "streams", "--json").stdout)["streams"]] == [
        "flu",
        "hidden",
    ]
    assert "hidden" not in run(url, "streams", token=None).stdout


def test_push_counts_every_event_once(
    service: tuple[Service, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """CSV and JSONL in small batches, sent twice; of a file that has grown the new rows are."""
    running, url = service
    monkeypatch.setattr(client_commands, "EVENTS_OF_A_BATCH", 3)
    table = tmp_path / "events.csv"
    table.write_text("region,other\n" + "north,1\n" * 5 + '"süd, west",2\n' * 2, "utf-8")
    lines = tmp_path / "events.jsonl"
    lines.write_text('{"key": "north"}\n' * 4, "utf-8")
    for _ in range(2):
        for file in (table, lines):
            done = run(
                url, "push", "flu", str(file), *(("--key", "region") if file is table else ())
            )
            assert done.exit_code == 0, done.stderr
    close(url)
    assert open_totals(running, "flu") == [9, 2]
    with table.open("a", encoding="utf-8") as more:
        more.write("north,1\n")
    for new in (1, 0):
        grown = run(url, "push", "flu", str(table), "--key", "region")
        assert f"{new} events sent, {8 - new} were sent before" in grown.stderr
        close(url)
        assert open_totals(running, "flu") == [10, 2]
    table.write_text("region,other\nnorth,1\n", "utf-8")
    assert run(url, "push", "flu", str(table), "--key", "region", "--id", "rest").exit_code == 0
    close(url)
    assert open_totals(running, "flu") == [11, 2]


def test_push_sends_every_format(service: tuple[Service, str], tmp_path: Path) -> None:
    """Parquet with times of each kind, and compressed text: the same counts as from a CSV."""
    import gzip

    duckdb = pytest.importorskip("duckdb")
    running, url = service
    table = {
        "name": "timed",
        "query": {"name": "sum", "parameters": {"low": 0, "high": 4, "grid": 1}},
        "budget": BUDGET,
    }
    table |= {"tick": "1h", "start": START, "zone": "Asia/Tokyo"}
    running.declare([StreamDeclaration.from_dict(table)])
    moments = {
        "naive": "TIMESTAMP '2026-01-01 09:00:05'",  # a clock in Tokyo
        "aware": "TIMESTAMPTZ '2026-01-01 00:00:06.5+00'",
        "number": f"{int(START) + 7}",
        "text": "'2026-01-01T00:00:08Z'",
    }
    for number, (name, moment) in enumerate(moments.items()):
        file = tmp_path / f"{name}.parquet"
        duckdb.sql(
            f"SELECT {moment} AS at, {number}::INTEGER AS n, 'north' AS region"
        ).write_parquet(str(file))
        for _ in range(2):
            done = run(url, "push", "timed", str(file), "--time", "at", "--value", "n")
            assert done.exit_code == 0, done.stderr
    live = running.store.streams["timed"]
    assert live.totals.tolist() == [0 + 1 + 2 + 3]
    assert run(url, "push", "flu", str(tmp_path / "text.parquet"), "--key", "region").exit_code == 0
    packed = tmp_path / "events.csv.gz"
    packed.write_bytes(gzip.compress('region\n"süd, west"\n'.encode()))
    assert run(url, "push", "flu", str(packed), "--key", "region").exit_code == 0
    missing = run(url, "push", "flu", str(tmp_path / "text.parquet"), "--key", "place")
    assert missing.exit_code == 3
    assert "'region'" in missing.stderr
    (tmp_path / "broken.parquet").write_bytes(b"PAR1 and no more")
    assert run(url, "push", "flu", str(tmp_path / "broken.parquet")).exit_code == 3
    close(url)
    assert open_totals(running, "flu") == [1, 1]


def test_push_guesses_nothing(service: tuple[Service, str], tmp_path: Path) -> None:
    """Lines of JSON whose first is not an object are lines of JSON; a table needs the names of its
    columns."""
    duckdb = pytest.importorskip("duckdb")
    running, url = service
    file = tmp_path / "events"
    for stream, text in (
        ("hidden", "3\n5\n2\n"),
        ("hidden", '4\n{"value": 6}\n'),
        ("flu", '"north"\n"süd, west"\n'),
    ):
        file.write_text(text, "utf-8")
        done = run(url, "push", stream, str(file))
        assert done.exit_code == 0, done.stderr
    duckdb.sql("SELECT 7 AS n").write_parquet(str(tmp_path / "table.parquet"))
    (tmp_path / "table.csv").write_text("n\n7\n")
    for name in ("table.csv", "table.parquet"):
        refused = run(url, "push", "hidden", str(tmp_path / name))
        assert refused.exit_code == 3
        assert "name the columns of a table with --time, --key, --value or --user" in refused.stderr
    file.write_text('{"key": "north"}\n')
    refused = run(url, "push", "flu", str(file), "--key", "key")
    assert refused.exit_code == 3
    assert "omit --time, --key" in refused.stderr
    for stream in ("hidden", "flu"):
        close(url, stream)
    assert (open_totals(running, "hidden"), open_totals(running, "flu")) == ([20], [1, 1])


def test_push_sends_nothing_of_a_file_without_rows(
    service: tuple[Service, str], tmp_path: Path
) -> None:
    duckdb = pytest.importorskip("duckdb")
    _, url = service
    (tmp_path / "nothing.csv").write_text("")
    (tmp_path / "header.csv").write_text("n\n")
    duckdb.sql("SELECT NULL AS n WHERE false").write_parquet(str(tmp_path / "nothing.parquet"))
    for name in ("nothing.csv", "header.csv", "nothing.parquet"):
        done = run(url, "push", "hidden", str(tmp_path / name), "--value", "n")
        assert done.exit_code == 0, done.stderr
        assert "0 events sent" in done.stderr
    (tmp_path / "nothing.jsonl").write_text("\n")
    done = run(url, "push", "hidden", str(tmp_path / "nothing.jsonl"))
    assert (done.exit_code, "0 events sent" in done.stderr) == (0, True)


def test_push_sends_long_lines(service: tuple[Service, str], tmp_path: Path) -> None:
    """The service takes 2,000,000 bytes at a time."""
    running, url = service
    file = tmp_path / "events.jsonl"
    file.write_text(f'{{"value": {" " * 9_000}2}}\n' * 300)
    done = run(url, "push", "hidden", str(file))
    assert done.exit_code == 0, done.stderr
    close(url, "hidden")
    assert open_totals(running, "hidden") == [600]
    file.write_text("".join(f'{{"value": {" " * size}2}}\n' for size in (900_000, 1_500_000)))
    done = run(url, "push", "hidden", str(file))
    assert done.exit_code == 0, done.stderr
    close(url, "hidden")
    assert open_totals(running, "hidden") == [604]


def test_push_says_what_is_wrong(service: tuple[Service, str], tmp_path: Path) -> None:
    running, url = service
    file = tmp_path / "events.csv"
    file.write_text("region\nnorth\neast\n")
    refused = run(url, "push", "flu", str(file), "--key", "region")
    assert refused.exit_code == 8
    assert "'east'" in refused.stderr
    assert run(url, "push", "flu", str(file), "--key", "place").exit_code == 3
    assert run(url, "push", "flu", str(tmp_path / "none.csv")).exit_code == 3
    assert run(url, "push", "flu", str(file), "--key", "region", token=None).exit_code == 8
    assert (
        "--token-file"
        in run(url, "push", "flu", str(file), "--key", "region", token="wrong").stderr
    )
    close(url)
    assert open_totals(running, "flu") == [0, 0]


def test_tail(service: tuple[Service, str], programs: Programs) -> None:
    """What was released before, then new releases, without a gap and without a repetition."""
    _, url = service
    for _ in range(4):
        close(url)
    process = programs.start(COMMAND, "tail", "flu", "-n", "3", "--url", url)
    rows = [process.stdout.readline().split(",")[0] for _ in range(7)]
    process.terminate()
    process.wait()
    assert rows == ["tick", "2", "2", "3", "3", "4", "4"]
    assert run(url, "tail", "hidden", token=None).exit_code == 8
    process = programs.start(COMMAND, "tail", "flu", "--json", "-n", "2", "--url", url)
    ticks = [json.loads(process.stdout.readline())["tick"] for _ in range(2)]
    for _ in range(2):
        close(url)
        ticks.append(json.loads(process.stdout.readline())["tick"])
    process.terminate()
    process.wait()
    assert ticks == [3, 4, 5, 6]


def test_tail_connects_again() -> None:
    """A service that breaks off in the middle of a release: the next connection goes on after the
    last whole one."""
    asked: list[str] = []

    def serve(listener: socket.socket) -> None:
        for part in (
            'data: {"tick": 1}\n\ndata: {"ti',
            'data: {"tick": 1}\n\ndata: {"tick": 2}\n\n',
        ):
            connection, _ = listener.accept()
            with connection:
                asked.append(connection.recv(4096).decode().splitlines()[0])
                head = (
                    "HTTP/1.1 200 OK\r\n"
                    "Content-Type: text/event-stream\r\n"
                    "Content-Length: 1000\r\n"
                    "\r\n"
                )
                connection.sendall((head + part).encode())

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        with httpx.Client(
            base_url=f"http://127.0.0.1:{listener.getsockname()[1]}", timeout=300
        ) as client:
            live = client_commands._live(client, "s", 0)
            assert [next(live)["tick"], next(live)["tick"]] == [1, 2]
            live.close()
        thread.join(300)
    assert [line.split()[1] for line in asked] == [
        "/v1/streams/s/live?after=0",
        "/v1/streams/s/live?after=1",
    ]


def test_tokens(service: tuple[Service, str], tmp_path: Path) -> None:
    _, url = service
    made = run(url, "tokens", "create", "write", "--label", "sender")
    assert made.exit_code == 0, made.stderr
    token = made.stdout.strip()
    file = tmp_path / "reader.token"
    file.write_text(run(url, "tokens", "create", "read").stdout)
    assert "hidden" in run(url, "streams", "--token-file", str(file), token=None).stdout
    listed = run(url, "tokens", "list")
    assert token not in listed.stdout
    assert [line.split()[1] for line in listed.stdout.splitlines()] == ["role", "write", "read"]
    # a time that people can read
    created = datetime.fromisoformat(listed.stdout.splitlines()[1].split()[2])
    assert abs(created - datetime.now(UTC)) < timedelta(days=1)
    gone = run(url, "tokens", "revoke", "99")
    assert "there is no such token. GET /v1/tokens lists them" in gone.stderr
    number = listed.stdout.splitlines()[2].split()[0]
    assert run(url, "tokens", "revoke", number).exit_code == 0
    assert run(url, "tail", "hidden", "--token-file", str(file), token=None).exit_code == 8
    assert run(url, "tokens", "list", token=token).exit_code == 8
    assert run(url, "tokens", "create", "king").exit_code == 8


def test_nobody_listens(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        done = run(url, "streams")
    assert done.exit_code == 8
    assert "evercount serve" in done.stderr
    assert run("ftp://example.org", "streams").exit_code == 2
    (tmp_path / "empty").touch()
    assert run(url, "streams", "--token-file", str(tmp_path / "empty")).exit_code == 2


def test_a_port_that_is_taken(tmp_path: Path) -> None:
    """One line, before a store is made."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        done = CliRunner().invoke(
            app, ["serve", "--port", str(port), "--db", str(tmp_path / "new.db")]
        )
    assert done.exit_code == 2
    assert f"cannot listen on 127.0.0.1:{port}: another program" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_completion_is_offered(programs: Programs) -> None:
    """What a shell asks when somebody types `evercount re` and presses the tab key."""

    def asked(**environment: str) -> str:
        return programs.run(COMMAND, env={**os.environ, **environment}).stdout

    assert "_EVERCOUNT_COMPLETE=complete_bash" in asked(_EVERCOUNT_COMPLETE="source_bash")
    words = {"COMP_WORDS": "evercount re", "COMP_CWORD": "1"}
    assert asked(_EVERCOUNT_COMPLETE="complete_bash", **words).split() == ["release", "reproduce"]
    assert "--install-completion" in CliRunner().invoke(app, ["--help"]).stdout
