"""Copies of what a stream has published, made when a new stream takes the names of its files."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path

from evercount._safe_files import replaced
from evercount.files.output_file import OutputFile, digest_of

AdaptCopy = Callable[[bytes, Path], bytes]
"""From what a file holds, and the path of its copy, to what the copy holds."""


def archive(
    files: Mapping[Path, AdaptCopy | None], output: OutputFile | None, state: Path | None
) -> list[Path]:
    """Copy files and a state, so that a new stream can take their names; return the copies.

    The copies get the first number under which nothing else lies. What a run that died has copied
    already is found there and kept, so that a stream is archived once.

    **Guarantee.** No file that was there is changed, and of one stream there is one set of copies,
    wherever a run is killed. Tests: tests/files/test_run_state.py
    ::test_a_year_is_archived_once, ::test_an_archive_overwrites_nothing.
    """
    named = [*files, *([] if state is None else [state])]
    sources = [path for path in named if path.exists()]
    for number in count(1):
        copies = {path: _name_of_copy(path, output, state, number) for path in sources}
        missing = [path for path in sources if not copies[path].exists()]
        present = [path for path in sources if path not in missing]
        if all(_is_copy(path, copies[path], files.get(path)) for path in present):
            break
    for source in missing:
        adapt = files.get(source)
        with replaced(copies[source], source.stat().st_mode & 0o777) as new:
            if adapt is not None:
                new.write(adapt(source.read_bytes(), copies[source]))
                continue
            with source.open("rb") as old:
                shutil.copyfileobj(old, new)
    return list(copies.values())


def _name_of_copy(path: Path, output: OutputFile | None, state: Path | None, number: int) -> Path:
    """Name a copy: `hourly.csv` becomes `hourly.1.csv`, its state `hourly.csv.state.1`."""
    if path == state or output is None:
        return path.with_name(f"{path.name}.{number}")
    stem = output.path.stem
    return path.with_name(f"{stem}.{number}{path.name.removeprefix(stem)}")


def _is_copy(source: Path, copy: Path, adapt: AdaptCopy | None) -> bool:
    """Whether a file holds what the copy of `source` would hold."""
    if adapt is not None:
        return copy.read_bytes() == adapt(source.read_bytes(), copy)
    same_size = copy.stat().st_size == source.stat().st_size
    return same_size and digest_of(copy) == digest_of(source)
