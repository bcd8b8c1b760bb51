"""What a state file holds, as tests look at it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from evercount import Stream
from evercount.files.keeper import RunState
from evercount.files.state_file import read_state_file


def read_state(path: str | Path) -> SimpleNamespace | None:
    """The fields of `State`, with the stream's dump and the published numbers; None without a
    file."""
    content = read_state_file(Path(path))
    if content is None:
        return None
    stream, numbers = content.pop("stream"), content.pop("numbers")
    return SimpleNamespace(**vars(RunState.from_dict(content)), stream=stream, numbers=numbers)


def stream_of(path: str | Path = "out.csv.state") -> Stream:
    """The stream that goes on from a state file."""
    state = read_state(path)
    assert state is not None
    return Stream.load(state.stream)


def running_sums(path: str | Path = "out.csv.state") -> list[int]:
    """The raw running sums of a state, which only tests look at."""
    state = read_state(path)
    assert state is not None
    totals: list[int] = list(state.stream["totals"])
    return totals
