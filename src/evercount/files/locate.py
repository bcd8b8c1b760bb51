"""`evercount where`: what a file is, which stream it belongs to, and where that is kept now.

Nothing is locked or changed, and nothing secret is told.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from evercount.engine.stream import TaskStream
from evercount.errors import InputError, SnapshotError
from evercount.files.keeper import RunState
from evercount.files.output_file import Marker, OutputFile
from evercount.files.state_file import parse_state, read_state_file

SQLITE = b"SQLite format 3\0"
Facts = dict[str, Any]
"""What is known of a file or a stream, by name, in the order in which it is told."""


def locate(name: str, db: str | None = None) -> list[Facts]:
    """What there is to say of a file, or of a stream of a store (`db`); one entry for a stream."""
    if db is not None:
        return [facts for facts in locate_in_store(db) if facts["stream"] == name] or _unknown(
            f"the store {db} has no stream {name!r}"
        )
    path = Path(name)
    if not path.exists():
        return _unknown(
            f"there is no file {name}. If it is the name of a stream in a store, name the store: "
            f"evercount where {name} --db evercount.db"
        )
    with path.open("rb") as file:
        is_database = file.read(len(SQLITE)) == SQLITE
    if is_database:
        return [{"what": "a store", **facts} for facts in locate_in_store(name)]
    output = OutputFile(path)
    marker = output.read_marker()  # newer than a state next to the output, which has moved
    if marker is not None:
        return [{"what": "the output of a stream", **_facts_of_marker(marker)}]
    if output.state_path.exists():
        return [{"what": "the output of a stream", **_facts_of_state(output.state_path)}]
    try:
        parse_state(path.read_bytes())
    except SnapshotError as error:
        raise InputError(
            f"{name} is no store and no state, and nothing next to it says that a stream has "
            f"published it ({error})"
        ) from None
    return [{"what": "the state of a stream", **_facts_of_state(path)}]


def _unknown(text: str) -> list[Facts]:
    raise InputError(text)


def _facts_of_state(path: Path) -> Facts:
    content = read_state_file(path)
    assert content is not None
    if "moved" in content:
        moved = Marker(*content["moved"])
        return {"stream": content["name"], "identity": moved.identity, "moved to": moved.place}
    stream, _ = content.pop("stream"), content.pop("numbers")
    moving = content.pop("moving", None)
    content.pop("origin", None)
    state = RunState.from_dict(content)
    settled = state.settled
    schedule = settled.schedule
    live = TaskStream.load(stream, settled.period_of)
    facts: Facts = {
        "stream": settled.name,
        "identity": live.identity,
        "kept in": f"the state file {path.absolute()}",
        "ticks": _ticks(live.tick, settled.horizon),
        "released until": schedule.show(state.closed.until),
        "ledger": state.entry or "none",
        "streams before it": len(state.earlier),
    }
    if moving is not None:
        facts["moving to"] = Marker(*moving).place
    if settled.horizon is not None and live.tick >= settled.horizon:
        facts["successor"] = "none yet: the next run with --renew makes it"
    return facts


def _ticks(released: int, horizon: int | None) -> str:
    if not released:
        return "none yet"
    return f"1 to {released}" + ("" if horizon is None else f" of {horizon}")


def _facts_of_marker(marker: Marker) -> Facts:
    kind, _, place = marker.place.partition("the store ")
    if not kind and place:
        for facts in locate_in_store(place):
            if facts["identity"] == marker.identity:
                return facts
    state = Path(marker.place.removeprefix("the state file "))
    if state.exists():
        return _facts_of_state(state)
    return {"identity": marker.identity, "kept in": marker.place}


def locate_in_store(db: str) -> list[Facts]:
    """What there is to say of every stream of a store."""
    from evercount.store import Reading
    from evercount.store.locate_streams import stream_facts

    reading = Reading.open(db)
    try:
        return stream_facts(reading)
    finally:
        reading.close()
