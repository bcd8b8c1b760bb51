"""The head file: a line for each release, durable at every moment of a crash, and only in a file of
our own."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from evercount.errors import StoreError
from evercount.store import Store, StreamDeclaration, rollback_guard
from evercount.store.rollback_guard import Head, HeadFile
from preloaded_programs import Programs

HEAD = Head(
    "store",
    {"one": (3, "aa"), "two": (0, "bb")},
    {"one": {"mu": 0.5}, "two": {"mu": 1.0}},
    frozenset({"two"}),
)
TABLE = {"name": "one", "query": "count", "budget": {"epsilon": 1.0, "delta": 1e-9}, "horizon": 64}

CLOSE_AND_DIE = """
import os, signal, sys
from evercount.store import Store
from store_reading import close_and_read
store = Store(sys.argv[1])
live = store.find("one")
moment = sys.argv[2]
write, sync = os.write, os.fdatasync

def die():
    os.kill(os.getpid(), signal.SIGKILL)

def writes(handle, data):
    if live.closed == 4 and moment == "before the line":
        die()
    if live.closed == 4 and moment == "half of the line":
        write(handle, data[: len(data) // 2])
        die()
    return write(handle, data)

def syncs(handle):
    if live.closed == 4 and moment == "line not on the disk":
        die()
    sync(handle)
    if live.closed == 4 and moment == "line on the disk":
        die()

os.write, os.fdatasync = writes, syncs
for _ in range(8):
    release, = close_and_read(store, live, 1, 0.0)
    write(1, f"{release['tick']}\\n".encode())
"""


def written(path: Path) -> HeadFile:
    """A file with HEAD and two more releases."""
    file = HeadFile(path)
    file.write(HEAD)
    assert file.add("one", 4, "cc")
    assert file.add("two", 2, "dd")
    return file


def test_a_crash_at_any_byte_leaves_the_head_before_or_after(tmp_path: Path) -> None:
    path = tmp_path / "head"
    file = HeadFile(path)
    file.write(HEAD)
    for tick in (4, 5):
        before, start = HeadFile(path).read(), path.stat().st_size
        assert file.add("one", tick, "cc")
        after, content = (
            replace(HEAD, streams={**HEAD.streams, "one": (tick, "cc")}),
            path.read_bytes(),
        )
        for cut in range(start, len(content) + 1):
            # some file systems know the size before the bytes
            for tail in (b"", b"\x00" * (len(content) - cut)):
                other = tmp_path / "after the crash"
                other.write_bytes(content[:cut] + tail)
                assert HeadFile(other).read() == (after if cut == len(content) else before)


@pytest.mark.parametrize(
    ("moment", "named"),
    [
        ("before the line", 3),
        ("half of the line", 3),
        ("line not on the disk", 4),
        ("line on the disk", 4),
    ],
)
def test_a_store_killed_at_any_moment_goes_on(
    programs: Programs, tmp_path: Path, moment: str, named: int
) -> None:
    """What was shown is in the head, so that an older copy is noticed; the database itself goes
    on."""
    place, copy = tmp_path / "a.db", tmp_path / "copy.db"
    store = Store(place)
    store.close_ticks(store.declare(StreamDeclaration.from_dict(TABLE), 0.0), 2, 0.0)
    store.backup(copy)
    store.close()
    child = programs.run(CLOSE_AND_DIE, place, moment)
    assert child.returncode == -signal.SIGKILL, child.stderr
    assert child.stdout.split() == ["3"]  # the fourth was committed, and nobody was told
    head = HeadFile(tmp_path / "a.db.head").read()
    assert head is not None
    assert head.streams["one"][0] == named
    shutil.copy(tmp_path / "a.db.head", tmp_path / "copy.db.head")
    store = Store(place)
    assert (store.streams["one"].closed, store.verify(store.head)) == (4, [])
    store.close_ticks(store.streams["one"], 1, 0.0)
    store.close()
    old = Store(copy)
    assert {name: ended.ending for name, ended in old.ended.items()} == {"one": "quarantined"}
    old.close()


def edit(path: Path) -> None:
    """Change one byte in place: the file keeps its size and its number."""
    with path.open("r+b") as file:
        file.write(b" ")
    state = path.stat()
    # the clock of the file system may be coarse
    os.utime(path, ns=(state.st_atime_ns, state.st_mtime_ns + 1))


def link_to(path: Path) -> None:
    """Put a symbolic link in its place."""
    path.rename(path.with_name("moved"))
    path.symlink_to(path.with_name("moved"))


def make_folder(path: Path) -> None:
    """Put a folder in its place."""
    path.unlink()
    path.mkdir()


CHANGES: dict[str, Callable[[Path], object]] = {
    "removed": Path.unlink,
    "edited": edit,
    "grown": lambda path: path.write_bytes(path.read_bytes() + b'["one", 9, "ee"]\n'),
    "replaced by a copy": lambda path: Path(shutil.copy(path, path.with_name("copy"))).replace(
        path
    ),
    "a symbolic link": link_to,
    "a second name": lambda path: path.with_name("other").hardlink_to(path),
    "another head": lambda path: HeadFile(path).write(HEAD),
    "a folder": make_folder,
}


@pytest.mark.parametrize("change", CHANGES)
def test_only_the_file_that_was_written_last_gets_a_line(tmp_path: Path, change: str) -> None:
    path = tmp_path / "head"
    file = written(path)
    CHANGES[change](path)
    before = {one: one.read_bytes() for one in tmp_path.iterdir() if one.is_file()}
    assert not file.add("one", 5, "ff")
    assert {one: one.read_bytes() for one in tmp_path.iterdir() if one.is_file()} == before
    if path.is_dir():
        with pytest.raises(StoreError, match="cannot be written"):
            file.write(HEAD)
        return
    file.write(HEAD)
    assert file.add("one", 5, "ff")
    head = HeadFile(path).read()
    assert head is not None
    assert head.streams["one"] == (5, "ff")


def test_a_file_that_nobody_wrote_yet_gets_no_line(tmp_path: Path) -> None:
    path = tmp_path / "head"
    assert not HeadFile(path).add("one", 1, "aa")
    written(path)
    assert not HeadFile(path).add("one", 5, "aa")


def test_a_line_that_does_not_fit_on_the_disk_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "head"
    file = written(path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 5, hard))
    try:
        assert not file.add("one", 5, "ff")
        assert not file.add("one", 5, "ff")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    head = HeadFile(path).read()  # five bytes of the line are there
    assert head is not None
    assert head.streams == {"one": (4, "cc"), "two": (2, "dd")}
    assert not file.add("one", 5, "ff")
    file.write(HEAD)
    assert file.add("one", 5, "ff")


@pytest.mark.parametrize(
    "line",
    [
        "one",
        "[]",
        '["one", 5]',
        '["three", 5, "ff"]',
        '["one", 2, "ff"]',
        '["one", null, "ff"]',
        "",
        "\x00",
    ],
)
def test_a_damaged_line_is_refused(tmp_path: Path, line: str) -> None:
    """Only the last line, without its end, may be a part of one."""
    path = tmp_path / "head"
    written(path)
    content = path.read_bytes()
    path.write_bytes(content + line.encode())
    assert HeadFile(path).read() is not None
    path.write_bytes(content + line.encode() + b"\n")
    with pytest.raises(StoreError, match="cannot be read"):
        HeadFile(path).read()


def test_a_long_file_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollback_guard, "MOST_ADDED", 1000)
    store = Store(tmp_path / "a.db")
    live = store.declare(StreamDeclaration.from_dict(TABLE), 0.0)
    lines = []
    for _ in range(30):
        store.close_ticks(live, 1, 0.0)
        lines.append((tmp_path / "a.db.head").read_bytes().count(b"\n"))
        head = store.head.read()
        assert head is not None
        assert head.streams["one"] == (live.closed, live.head.hex())
    assert 5 < max(lines) < 15
    assert lines.count(1) >= 2
    store.close()


def test_the_store_writes_the_head_anew_after_somebody_removed_it(tmp_path: Path) -> None:
    store = Store(tmp_path / "a.db")
    live = store.declare(StreamDeclaration.from_dict(TABLE), 0.0)
    store.close_ticks(live, 1, 0.0)
    store.head.path.unlink()
    store.close_ticks(live, 1, 0.0)
    assert store.verify(store.head) == []
    store.close()
    with sqlite3.connect(tmp_path / "a.db") as connection:
        assert connection.execute("select max(tick) from ticks").fetchone() == (2,)
    connection.close()
