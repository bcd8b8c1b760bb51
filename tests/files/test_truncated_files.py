"""Files that were cut off while they were written: refused, or set aside with a count, never
counted as if whole."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from evercount.declarations.declaration import StreamDeclaration
from evercount.errors import InputError
from evercount.files.release_job import Job
from evercount.files.release_run import release_file
from evercount.noise import Secret

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

DECLARATION = StreamDeclaration.from_dict(
    {
        "name": "visits",
        "query": {"name": "histogram", "parameters": {"keys": ["north", "south"]}},
        "budget": {"epsilon": 1.0, "delta": 1e-6},
        "tick": "1h",
        "start": "2026-01-01T00:00:00Z",
        "horizon": 2,
        "columns": {"time": "ts", "key": "region"},
    }
)
ROWS = [{"ts": f"2026-01-01T00:{minute:02}:00Z", "region": "north"} for minute in range(60)]
LINES = "".join(json.dumps(row) + "\n" for row in ROWS).encode()


def release(folder: Path, file: Path, **more: Any) -> Any:
    job = Job(
        str(file), DECLARATION, str(folder / "out.csv"), DECLARATION.schedule.start_of(2), **more
    )
    return release_file(job)


@pytest.mark.parametrize("kept", [0, 4, 100, -40, -8, -1])
def test_a_parquet_file_without_its_end_is_refused(kept: int, tmp_path: Path) -> None:
    file = tmp_path / "events.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), file)
    file.write_bytes(file.read_bytes()[:kept])
    for skip_bad in (False, True):
        with pytest.raises(InputError, match=r"events\.parquet"):
            release(tmp_path, file, skip_bad=skip_bad)
    assert [path.name for path in tmp_path.iterdir() if path.suffix in (".csv", ".state")] == []


@pytest.mark.parametrize("cut", [1, 2, 10, 40])
def test_a_line_without_its_end_is_refused_or_set_aside(cut: int, tmp_path: Path) -> None:
    """Only the line's own end may be missing: an object that is complete is an event."""
    file, whole = tmp_path / "events.jsonl", tmp_path / "whole.jsonl"
    file.write_bytes(LINES[:-cut])
    complete = ROWS if cut == 1 else ROWS[:-1]
    if cut > 1:
        with pytest.raises(InputError, match="line 60"):
            release(tmp_path, file)
        assert not (tmp_path / "out.csv").exists()
    secret, rejects = Secret.from_hex("3c" * 32), tmp_path / "bad.csv"
    outcome = release(tmp_path, file, skip_bad=True, secret=secret, rejects=str(rejects))
    assert outcome.bad == len(ROWS) - len(complete) == len(rejects.read_text().splitlines()[1:])
    (tmp_path / "other").mkdir()
    whole.write_text("".join(json.dumps(row) + "\n" for row in complete))
    release(tmp_path / "other", whole, secret=secret)
    assert (tmp_path / "out.csv").read_text() == (tmp_path / "other" / "out.csv").read_text()


@pytest.mark.parametrize("kept", [10, -20, -4])
def test_a_packed_file_without_its_end_is_refused(kept: int, tmp_path: Path) -> None:
    file = tmp_path / "events.jsonl.gz"
    file.write_bytes(gzip.compress(LINES)[:kept])
    for skip_bad in (False, True):
        with pytest.raises(InputError):
            release(tmp_path, file, skip_bad=skip_bad)
    assert not (tmp_path / "out.csv").exists()
