"""Fuzz of everything that reads foreign bytes: only typed errors come out, and nothing is changed
by a refusal."""

from __future__ import annotations

import copy
import gzip
import json
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evercount import Budget, Count, Histogram, Secret, Stream
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.fields import Columns
from evercount.declarations.schedule import (
    Schedule,
    parse_instant,
    parse_tick,
    parse_time,
    zone_named,
)
from evercount.declarations.streams_file import read_declarations
from evercount.engine.snapshot_format import pack, unpack
from evercount.errors import EvercountError, MessageRejected, SnapshotError
from evercount.files.release_job import Job
from evercount.files.release_run import release_file
from evercount.files.state_file import parse_state
from evercount.local.client_and_server import LocalServer
from evercount.local.collection_plan import LocalPlan
from evercount.local.genprot import GenProtServer
from evercount.local.genprot_plan import GenProtPlan
from evercount.local.hierarchical import HierarchyPlan, HierarchyServer
from evercount.local.message_server import size
from evercount.local.message_server import unpack as unpack_message
from evercount.privacy.ledger import Ledger
from evercount.service.read_events import read_batch
from evercount.sparse import SparseCount

QUIET = settings(
    deadline=None, max_examples=75, suppress_health_check=list(HealthCheck), derandomize=True
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=8,
)
STREAM = Stream(Histogram(("a", "b")), Budget(1.0, 1e-6), 8, secret=Secret.from_hex("0e" * 32))
STREAM.step(["a"])
PURE = Stream(Count(), Budget(1.0, 0.0), 8, secret=Secret.from_hex("0e" * 32))
PURE.step(2)
SPARSE = SparseCount(1.0, 64, secret=Secret.from_hex("0e" * 32))
SPARSE.step(1)
SNAPSHOTS: dict[Any, bytes] = {one: one.snapshot() for one in (STREAM, PURE, SPARSE)}
"""Taken once: a stream that is restored takes the place of the one that lives."""


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths to everything inside nested JSON."""
    found = [path] if path else []
    if isinstance(value, dict):
        for key in value:
            found += leaves(value[key], (*path, key))
    elif isinstance(value, list):
        for number, item in enumerate(value[:4]):
            found += leaves(item, (*path, number))
    return found


def changed(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    """A deep copy with one place changed."""
    made = copy.deepcopy(value)
    inside = made
    for part in path[:-1]:
        inside = inside[part]
    inside[path[-1]] = new
    return made


@QUIET
@given(st.binary(max_size=300))
def test_bytes_that_are_no_snapshot(blob: bytes) -> None:
    for reader in (Stream.restore, SparseCount.restore, parse_state):
        with pytest.raises(SnapshotError):
            reader(blob)


@QUIET
@given(st.data())
def test_snapshots_with_a_good_checksum_and_one_wrong_entry(data: st.DataObject) -> None:
    """Whoever writes a snapshot can write its checksum, too: every entry is checked, or taken as it
    is."""
    original: Any = data.draw(st.sampled_from([STREAM, PURE, SPARSE]))
    content = unpack(SNAPSHOTS[original])
    path = data.draw(st.sampled_from(leaves(content)))
    new = data.draw(JSON)
    try:
        blob = pack(changed(content, path, new))
    except ValueError:
        return
    try:
        restored = type(original).restore(blob)
    except SnapshotError:
        return
    assert isinstance(restored, type(original))


@QUIET
@given(
    st.sampled_from(["totals", "highest"]),
    st.integers(0, 3),
    st.sampled_from(["<i8", "<f8", "<i2"]),
)
def test_snapshots_with_other_arrays(name: str, length: int, kind: str) -> None:
    content = unpack(SNAPSHOTS[STREAM])
    content[name] = np.zeros(length, kind)
    try:
        Stream.restore(pack(content))
    except SnapshotError:
        return
    assert name == "highest" or length == 2


@QUIET
@given(JSON)
def test_declarations(data: Any) -> None:
    for table in (data, {"name": "a", "query": data, "budget": {"epsilon": 1, "delta": 1e-6}}):
        try:
            made = StreamDeclaration.from_dict(table)
        except EvercountError:
            continue
        assert StreamDeclaration.from_dict(made.to_dict()).canonical() == made.canonical()


@QUIET
@given(
    st.sampled_from(
        ["query", "budget", "tick", "start", "horizon", "late", "public", "postprocess"]
    ),
    JSON,
)
def test_declarations_with_one_wrong_field(field: str, value: Any) -> None:
    table = {"name": "a", "query": "count", "budget": {"epsilon": 1.0, "delta": 1e-6}, field: value}
    try:
        StreamDeclaration.from_dict(table)
    except EvercountError:
        return


@QUIET
@given(st.text(max_size=200) | st.binary(max_size=200))
def test_toml(tmp_path_factory: pytest.TempPathFactory, text: str | bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "streams.toml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    try:
        read_declarations(path)
    except EvercountError:
        return


@QUIET
@given(st.text(max_size=30) | JSON)
def test_clocks(text: Any) -> None:
    zone = zone_named("Europe/Vienna")
    readers: list[Any] = [
        parse_tick,
        lambda t: parse_time(t, zone, "time"),
        lambda t: parse_instant(t, zone, "time"),
    ]
    if isinstance(text, str):  # options of a command are texts
        readers += [
            lambda t: Schedule.of(t, "2026-01-01T00:00:00Z", "UTC"),
            lambda t: Schedule.of("1h", t, "UTC"),
        ]
        readers.append(lambda t: Schedule.of("1h", "2026-01-01T00:00:00Z", t))
    for reader in readers:
        try:
            reader(text)
        except EvercountError:
            continue


@QUIET
@given(st.binary(max_size=100) | JSON.map(lambda value: json.dumps(value).encode()), st.booleans())
def test_bodies_of_requests(body: bytes, ndjson: bool) -> None:
    for query in (Count(), Histogram(("a", "b"))):
        for unit in ({}, {"unit": "user", "max_events": 2}):
            declaration = StreamDeclaration("a", query, Budget(1.0, 1e-6, **unit))  # type: ignore[arg-type]
            try:
                batch = read_batch(declaration, body, ndjson=ndjson)
            except EvercountError:
                continue
            assert batch.row is not None
            assert batch.row.shape == (query.cells,)


@QUIET
@given(st.data())
def test_messages_of_clients(data: st.DataObject) -> None:
    plan = LocalPlan(1.0, 1e-6, 400)
    head = data.draw(st.sampled_from([plan.header, b"", b"eL"]))
    rest = data.draw(st.binary(max_size=size(plan)))
    if data.draw(st.booleans()):
        rest = rest.ljust(size(plan) - len(head), b"\0")
    message = head + rest
    server = LocalServer(plan)
    taken = server.add_many([message, None, message])
    try:
        unpack_message(plan, message)
    except MessageRejected:
        assert (taken, server.rejected) == (0, 3)
    else:
        assert (taken, server.rejected) == (2, 1)


@QUIET
@given(st.binary(max_size=8) | JSON, JSON)
def test_messages_of_hierarchical_and_genprot_clients(message: Any, number: Any) -> None:
    """What is refused is counted, and changes no sum."""
    hierarchy, genprot = (
        HierarchyServer(HierarchyPlan(1.0, 16)),
        GenProtServer(GenProtPlan(1.0, 100, "fuzz", buckets=4)),
    )
    for server, given_ in ((hierarchy, (message,)), (genprot, (number, message))):
        try:
            server.add(*given_)
        except MessageRejected:
            assert (server.accepted, server.rejected) == (0, 1)
            continue
        assert (server.accepted, server.rejected) == (1, 0)


DUMPS: list[Any] = [
    LocalServer(LocalPlan(1.0, 1e-6, 400)),
    GenProtServer(GenProtPlan(1.0, 100, "fuzz", buckets=4)),
]
DUMPS.append(HierarchyServer(HierarchyPlan(1.0, 4)))


def with_checksum(text: bytes) -> bytes:
    """As somebody writes it who wants to be read."""
    return blake2b(text, digest_size=16).hexdigest().encode() + b" " + text


@QUIET
@given(st.data())
def test_dumps_of_servers(data: st.DataObject) -> None:
    server = data.draw(st.sampled_from(DUMPS))
    content = json.loads(server.dump().partition(b" ")[2])
    blobs = st.binary(max_size=60) | st.just(content).flatmap(
        lambda table: st.builds(changed, st.just(table), st.sampled_from(leaves(table)), JSON).map(
            lambda made: with_checksum(json.dumps(made).encode())
        )
    )
    blob = data.draw(blobs)
    try:
        loaded = type(server).load(blob)
    except SnapshotError:
        return
    assert loaded.dump()


@settings(QUIET, max_examples=60)
@given(st.data())
def test_files_of_ledgers(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """A ledger with one damaged byte, cut or replaced, is refused and left alone, or it still knows
    what was spent."""
    path = tmp_path_factory.mktemp("ledger") / "ledger.jsonl"
    with Ledger(Budget(2.0, 1e-6), path) as ledger:
        ledger.spend("first", Budget(0.5, 1e-8))
        entries = ledger.entries
    good = path.read_bytes()
    at = data.draw(st.integers(0, len(good) - 1))
    damaged = data.draw(
        st.one_of(
            st.binary(max_size=80),
            st.just(good[:at]),
            st.integers(1, 255).map(
                lambda flip: good[:at] + bytes([good[at] ^ flip]) + good[at + 1 :]
            ),
        )
    )
    path.write_bytes(damaged)
    try:
        with Ledger(Budget(2.0, 1e-6), path) as opened:
            assert opened.entries == entries
    except EvercountError:
        assert path.read_bytes() == damaged


@settings(QUIET, max_examples=40)
@given(
    st.sampled_from(
        [
            b'{"time": "2026-01-01T00:00:00Z", "key": "a"}\n',
            b"PAR1",
            b"\x1f\x8b\x08\x00",
            b"\x28\xb5\x2f\xfd",
        ]
    ),
    st.binary(max_size=80) | JSON.map(lambda value: json.dumps(value).encode()),
    st.sampled_from([b"", b"PAR1", b"\n"]),
)
def test_files_of_other_kinds(
    tmp_path_factory: pytest.TempPathFactory, head: bytes, body: bytes, foot: bytes
) -> None:
    """JSON lines, Parquet, gzip and Zstandard by their first bytes."""
    check_file_of_events(tmp_path_factory.mktemp("fuzz"), head + body + foot)


@settings(QUIET, max_examples=20)
@given(st.integers(20, 2000), st.integers(1, 255), st.sampled_from(["csv", "jsonl"]))
def test_damage_inside_compressed_files(
    tmp_path_factory: pytest.TempPathFactory, at: int, flip: int, kind: str
) -> None:
    """One wrong byte somewhere in a gzip file of a thousand rows, which may also have bad rows to
    show."""
    moments = [f"2026-01-01T0{number % 3}:{number * 7 % 60:02d}:00Z" for number in range(1000)]
    keys = ["b" if number * number % 7 < 3 else "a" for number in range(1000)]
    rows = list(zip(moments, keys, strict=True))
    lines = (
        [f"{time},{key}" for time, key in rows]
        if kind == "csv"
        else [json.dumps({"time": t, "key": k}) for t, k in rows]
    )
    head = ["time,key"] if kind == "csv" else []
    packed = bytearray(gzip.compress("\n".join([*head, *lines, ""]).encode(), mtime=0))
    packed[at % len(packed)] ^= flip
    check_file_of_events(tmp_path_factory.mktemp("fuzz"), bytes(packed))


@settings(QUIET, max_examples=40)
@given(st.binary(max_size=120) | st.text(max_size=120).map(str.encode), st.booleans())
def test_files_of_events(
    tmp_path_factory: pytest.TempPathFactory, body: bytes, header: bool
) -> None:
    """A file that cannot be read publishes nothing and leaves no state behind."""
    check_file_of_events(tmp_path_factory.mktemp("fuzz"), (b"time,key\n" if header else b"") + body)


def check_file_of_events(folder: Path, content: bytes) -> None:
    """Published is a table of all ticks and cells, or nothing at all."""
    file, out = folder / "events.csv", folder / "out.csv"
    file.write_bytes(content)
    query, columns = Histogram(["a", "b"]), Columns("time", "key")
    declaration = StreamDeclaration(
        "fuzz", query, Budget(1.0, 1e-6), "1h", "2026-01-01T00:00:00Z", columns=columns
    )
    job = Job(str(file), declaration, str(out), declaration.schedule.start_of(4))
    try:
        release_file(job)
    except EvercountError:
        assert not out.exists()
        assert not Path(f"{out}.state").exists()
        return
    assert len(out.read_text(encoding="utf-8").splitlines()) == 1 + 3 * 2
