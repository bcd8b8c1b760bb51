"""Files whose lines end in LF, in CR LF, or some in one and some in the other: read as if all ended
in LF."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from evercount import Secret, release
from evercount.cli import app
from evercount.declarations.declaration import StreamDeclaration
from evercount.errors import InputError
from evercount.files import source as sources
from evercount.files.bad_rows import find_rejects
from evercount.files.count_rows import count
from evercount.files.source import open_sources, with_one_line_end

pytest.importorskip("duckdb")
ROWS = [
    "t,who,k",
    '2026-03-01T08:00,p,"north"',
    "2026-03-01T09:00,q,south",
    '2026-03-02T10:00,p,"north"',
]
DECLARED: dict[str, Any] = {
    "time": "t",
    "every": "1d",
    "zone": "UTC",
    "start": "2026-03-01",
    "epsilon": 1,
    "key": "k",
    "keys": ["north", "south"],
    "views": ["per-tick"],
    "horizon": 10,
}
CAPPED: dict[str, Any] = {
    "name": "visits",
    "query": "count",
    "tick": "1d",
    "zone": "UTC",
    "start": "2026-03-01",
    "horizon": 10,
    "columns": {"time": "t", "user": "who"},
    "budget": {"epsilon": 1, "delta": 1e-6, "unit": "user", "max_per_tick": 1, "max_ticks": 2},
}
ENDS: dict[str, list[bytes]] = {
    "cr lf": [b"\r\n"] * 4,
    "a header with lf": [b"\n", b"\r\n", b"\r\n", b"\r\n"],
    "a header with cr lf": [b"\r\n", b"\n", b"\n", b"\n"],
    "in turns": [b"\n", b"\r\n", b"\n", b"\r\n"],
    "no last one": [b"\r\n", b"\n", b"\r\n", b""],
}


def with_ends(rows: list[str], ends: list[bytes]) -> bytes:
    return b"".join(row.encode() + end for row, end in zip(rows, ends, strict=True))


def table_of(path: Path, **more: Any) -> str:
    asked = {
        **DECLARED,
        "end": "2026-03-03",
        "now": "2026-03-04",
        "secret": Secret.from_hex("5e" * 32),
        **more,
    }
    return str(release(path, **asked).to_csv())


@pytest.mark.parametrize("chunk", [10, 11, 13, 1 << 20])
@pytest.mark.parametrize("ends", ENDS)
def test_a_table_does_not_depend_on_line_ends(
    ends: str, chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, other, packed = (tmp_path / name for name in ("plain.csv", "other.csv", "other.csv.gz"))
    plain.write_bytes(with_ends(ROWS, [b"\n"] * 4))
    other.write_bytes(with_ends(ROWS, ENDS[ends]))
    packed.write_bytes(gzip.compress(other.read_bytes()))
    wanted = table_of(plain)
    monkeypatch.setattr(sources, "COPY_BYTES", chunk)
    assert table_of(other) == wanted
    assert table_of(packed) == wanted


def test_json_lines_may_end_in_several_ways(tmp_path: Path) -> None:
    plain, other = tmp_path / "plain.jsonl", tmp_path / "other.jsonl"
    rows = [f'{{"t": "2026-03-0{day}", "k": "north"}}' for day in (1, 1, 2, 2)]
    plain.write_bytes(with_ends(rows, [b"\n"] * 4))
    other.write_bytes(with_ends(rows, ENDS["in turns"]))
    assert table_of(other) == table_of(plain)


def test_bad_rows_are_named_by_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_bytes(
        b"t,who,k\r\n2026-03-01,p,north\nnever,p,north\r\n2026-03-01,p,south,more\n2026-03-01,,\n"
    )
    with pytest.raises(InputError, match="line 3: not a time"):
        table_of(path)
    table_of(path, skip_bad=True, rejects=tmp_path / "rejects.csv")
    listed = (tmp_path / "rejects.csv").read_text().splitlines()
    assert sorted(int(line.split(",")[0]) for line in listed[1:]) == [3, 4, 5]


@pytest.mark.parametrize("late", ["next", "revise"])
def test_a_growing_file_may_change_its_line_ends(late: str, tmp_path: Path) -> None:
    """Rows that an earlier run has read are known by their bytes, whatever the line ends of those
    that follow."""
    parts = [
        b"t,who,k\r\n2026-03-01T08:00,p,north\r\n",
        b"2026-03-01T09:00,p,north\n2026-03-02T09:00,q,south\n",
        b"2026-03-02T09:00,q,south\r\n2026-03-03T09:00,q,south\n",
    ]
    more: dict[str, Any] = {"late": late, "delta": 1e-6 if late == "revise" else 0}
    if late == "revise":
        more |= {"revise_for": 2, "views": ["running"]}
    shown = []
    for name, ends in {"mixed": None, "plain": b"\n"}.items():
        folder = tmp_path / name
        folder.mkdir()
        path, text = folder / "events.csv", b""
        for day, part in enumerate(parts, 2):
            text += part if ends is None else part.replace(b"\r\n", ends)
            path.write_bytes(text)
            secret = Secret.from_hex("6f" * 32) if day == 2 else None
            asked = {**DECLARED, **more, "now": f"2026-03-0{day}T01:00", "secret": secret}
            table = release(path, out=folder / "out.csv", **asked)
        shown.append(table.to_csv())
    assert shown[0] == shown[1]


def totals_of(paths: list[Path], scratch: Path) -> dict[int, int]:
    scratch.mkdir()
    declaration = StreamDeclaration.from_dict(CAPPED)
    files = with_one_line_end(open_sources(list(map(str, paths)), scratch, ","), scratch, "whole")
    counted = count(files, declaration, 1, 4, scratch)
    assert counted.bad == 0
    return dict(zip(counted.totals.tick.tolist(), counted.totals.total.tolist(), strict=True))  # type: ignore[union-attr]


@pytest.mark.parametrize("another", [b"2026-03-02,z\n", b"2026-03-02,z\r\n"])
@pytest.mark.parametrize("own", [b"\n", b"\r\n"])
def test_one_row_changes_no_other(own: bytes, another: bytes, tmp_path: Path) -> None:
    """A person whose id has a line end in quotes is one person, whatever the line ends of another
    person's row."""
    first, second = tmp_path / "first.csv", tmp_path / "second.csv"
    first.write_bytes(b"t,who\r\n" + b'2026-03-01,"x\r\ny"\r\n2026-03-01,"x\r\ny"\r\n')
    second.write_bytes(own.join([b"t,who", b'2026-03-01,"x' + own + b'y"', b"2026-03-02,y", b""]))
    assert totals_of([first, second], tmp_path / "before") == {1: 1, 2: 1}
    second.write_bytes(second.read_bytes() + another)
    assert totals_of([first, second], tmp_path / "after") == {1: 1, 2: 2}


@pytest.mark.parametrize("chunk", range(18, 26))
def test_two_persons_stay_two(chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A carriage return in quotes is kept, wherever a piece of the file that is copied ends."""
    path = tmp_path / "events.csv"
    path.write_bytes(b't,who\r\n2026-03-01,"x\ry"\n2026-03-01,xy\r\n')
    monkeypatch.setattr(sources, "COPY_BYTES", chunk)
    assert totals_of([path], tmp_path / "scratch") == {1: 2}


@pytest.mark.parametrize("text", [b"t,who,k\n2026-03-01,p,north\r2026-03-01,q,south\n"])
def test_a_carriage_return_alone_is_refused_in_words(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "mac.csv"
    path.write_bytes(text)
    for more in ({}, {"skip_bad": True}, {"rejects": tmp_path / "rejects.csv"}):
        with pytest.raises(
            InputError, match=r"mac\.csv cannot be read: a carriage return stands alone.*dos2unix"
        ):
            table_of(path, **more)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    declaration = StreamDeclaration.from_dict(CAPPED)
    with pytest.raises(InputError, match="carriage return"):
        list(find_rejects(open_sources([str(path)], scratch, ","), declaration, scratch))
    plan = (
        "plan -e 1 -d 1e-6 -t 10 --max-per-tick 1 --time t --user who --start 2026-03-01 --view "
        "per-tick --from"
    )
    done = CliRunner().invoke(app, [*plan.split(), str(path)])
    assert isinstance(done.exception, SystemExit), done.exception
    assert "carriage return" in done.output
