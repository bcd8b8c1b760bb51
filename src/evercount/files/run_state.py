"""The state of a release stream on disk, and the commit that publishes a run whole or not at all.

    1. write the new output under a private name, down to disk        nothing is visible
    2. write the new state under a private name, down to disk         nothing is visible
    3. rename the state over the old one, sync the folder             <- the commit
    4. rename the output over the old one, sync the folder            published

Why in this order. The state names the digest of the output that belongs to it. A crash before 3
leaves the old state and the old output: the run has not happened. Its private output was seen by
nobody and is overwritten by the next run. A crash between 3 and 4 leaves the new state and the old
output; the finished output is on disk, since 1 came before 3. The next run finds that the output is
not the one that the state names and that the private one is, and does step 4. So no tick is lost.
The other order (output first) would allow a crash that leaves published ticks which the state does
not know; the next run would release them again with the same noise, and if a row had come in
between, the difference of the two releases would be that row. With the state first, a tick that was
ever visible is closed for ever.

The state holds the secret of the noise, raw sums and user ids: it is as private as the events, with
permissions 0600.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from evercount._safe_files import (
    disk_errors,
    lock_exclusively,
    new_mode,
    open_private,
    replaced,
    sync_folder,
)
from evercount._validate import FloatArray
from evercount.declarations.schedule import Schedule
from evercount.declarations.settle import Settled
from evercount.engine.snapshot_format import unpack, write
from evercount.errors import SnapshotError, StoreError
from evercount.files.cap_users import UsedBefore
from evercount.files.output_marker import STATE_SUFFIX, marked_stream
from evercount.files.source import Prefix, SeenRows

FORMAT = "evercount release state 1"


class Closed(NamedTuple):
    """The instant at which the last released tick ended, and the offsets of the time zone until
    then. Another version of the time zone data may move both, and rows that were counted would
    count again."""

    until: int
    offsets: list[list[int]]

    @classmethod
    def before(cls, tick: int, schedule: Schedule) -> Closed:
        until = schedule.start_of(tick)
        return cls(until, [[piece.since, piece.offset] for piece in schedule.pieces(until)])

    def check(self, tick: int, schedule: Schedule) -> None:
        """Refuse to go on with `tick` where the zone's rules for the released ticks have changed.

        **Guarantee.** Rows that were counted in released ticks have the same instants in this run,
        and these lie before `tick`. Test:
        tests/files/test_zone_rules.py::test_other_rules_of_the_zone_count_no_row_twice.
        """
        if Closed.before(tick, schedule) != self:
            raise StoreError(
                f"the rules of the time zone {schedule.zone} for ticks that are released have "
                "changed since the last run, so rows that were counted could count again. Run with "
                "the previous time zone data (PYTHONTZPATH), or start again with "
                "`new_noise_stream`, which adds to the spent budget"
            )


@dataclass(frozen=True)
class State:
    """All that a later run needs to continue. Secret."""

    declaration: dict[str, Any]
    output_facts: dict[str, Any]  # format and place of the output: every run must name the same
    stream: dict[str, Any]  # what `Stream.load` takes
    closed: Closed
    # all that the stream has published, shape (ticks, cells): views follow from it
    numbers: FloatArray
    output: str = ""  # digest of the output that belongs to this state
    earlier: tuple[dict[str, Any], ...] = ()  # what earlier noise streams over the same data cost
    entry: str | None = None  # the stream's name in a ledger, where it has spent there
    # in the period that is open, of each user
    users: Mapping[str, UsedBefore] = field(default_factory=dict)
    # what has been read of each file, where late rows count
    consumed: dict[str, Prefix] = field(default_factory=dict)
    # what a run that wrote rejects had read, by file
    seen: dict[str, SeenRows] = field(default_factory=dict)
    # of a renewed stream: the start of the first one, which options still name
    first_start: int | None = None
    # published tables, where they do not follow from `numbers`
    tables: tuple[dict[str, Any], ...] = ()
    # what the operator says about ticks: first, last, text. Public.
    marks: tuple[tuple[int, int, str], ...] = ()
    # the running totals that the stream goes on from (`CarriedTotals.to_dict`)
    carried: dict[str, Any] | None = None
    # of a store: whether the stream that writes an output is named next to that
    marks_outputs: bool = False

    @property
    def settled(self) -> Settled:
        """The declaration of the stream, with its noise as it was settled when the stream began."""
        return Settled.from_dict(self.declaration, lambda: self.stream["factorization"])

    def to_dict(self) -> dict[str, Any]:
        return {"format": FORMAT, **vars(self)}

    @classmethod
    def load(cls, blob: bytes) -> State:
        data = unpack(blob)
        if data.pop("format", None) != FORMAT:
            raise SnapshotError(
                "this is not the state of a release, or it is one of another version"
            )
        try:
            data["closed"] = Closed(*data["closed"])
            data["earlier"], data["tables"] = tuple(data["earlier"]), tuple(data["tables"])
            data["marks"] = tuple(tuple(one) for one in data["marks"])
            data["consumed"] = {
                name: Prefix(*prefix) for name, prefix in (data["consumed"] or {}).items()
            }
            data["seen"] = {name: SeenRows(*seen) for name, seen in data["seen"].items()}
            return cls(**data)
        except (KeyError, TypeError, AttributeError) as error:
            raise SnapshotError(f"malformed state ({type(error).__name__})") from error


@dataclass(frozen=True)
class Places:
    """Where the output, if there is one, and the state lie, and the private files next to them.

    >>> Places.of("hourly.csv", None).state.name
    'hourly.csv.state'
    """

    output: Path | None
    state: Path

    @classmethod
    def of(cls, out: str | None, state: str | None, folder: Path = Path()) -> Places:
        """The places of a run; without a name the state lies next to the output, or in a folder
        that is not kept."""
        if out is None:
            return cls(None, folder / "state" if state is None else Path(state))
        return cls(Path(out), Path(out + STATE_SUFFIX if state is None else state))

    @property
    def pending(self) -> Path | None:
        return None if self.output is None else self.output.with_name(f".{self.output.name}.new")


@contextmanager
def locked(places: Places) -> Iterator[Path]:
    """One run at a time for a state; a second one is refused. Gives a private scratch folder for
    that run. The scratch folder may hold copies of events. A killed run leaves it, and the next one
    removes it. The empty lock file stays."""
    lock = places.state.with_name(f".{places.state.name}.lock")
    scratch = places.state.with_name(f".{places.state.name}.scratch")
    with ExitStack() as cleanup:
        with disk_errors(f"the folder of {places.state} cannot be written"):
            file = open_private(lock, os.O_CREAT | os.O_RDWR)
        cleanup.callback(os.close, file)
        try:
            lock_exclusively(file)
        except OSError as error:
            raise StoreError(
                f"another run is using {places.state}: wait until it has ended"
            ) from error
        shutil.rmtree(scratch, ignore_errors=True)
        cleanup.callback(shutil.rmtree, scratch, ignore_errors=True)
        with disk_errors(f"the scratch folder {scratch} cannot be made"):
            scratch.mkdir(mode=0o700)  # which fails where a link or a folder of somebody else is
        yield scratch


def read_state(places: Places) -> State | None:
    """The committed state, or None before the first run. Finishes a run that died between commit
    and publishing. An output without its state is refused: nobody could tell what has been
    released, or with which noise."""
    try:
        blob = places.state.read_bytes()
    except FileNotFoundError:
        if places.output is not None and places.output.exists():
            if marked_stream(places.output) is not None:
                raise StoreError(
                    f"{places.output} is published by a stream of a store: go on with its `db` and "
                    "`name`. A new stream over the same data would spend its budget a second time; "
                    "if that is wanted, name another `out`"
                ) from None
            raise StoreError(
                f"{places.output} exists and its state {places.state} does not. Restore the state "
                "(`state`) to continue. A new stream over the same data would spend its budget a "
                "second time; if that is wanted and the earlier spending is accounted for "
                "elsewhere, move the output away"
            ) from None
        return None
    except OSError as error:
        raise StoreError(f"the state {places.state} cannot be read: {error.strerror}") from error
    try:
        state = State.load(blob)
    except SnapshotError as error:
        raise SnapshotError(f"{places.state}: {error}; restore it from a backup") from error
    _finish(places, state)
    return state


def commit(places: Places, state: State) -> None:
    """Steps 2 to 4 of the module's text; step 1 has written `places.pending`.

    **Guarantee.** A reader sees the run whole or not at all, a committed tick is never computed
    again, and no committed release is lost, wherever the process is killed. It is assumed that a
    rename within a folder is atomic and that fsync reaches the disk. Tests:
    tests/files/test_run_state.py, which kills a process at every step.
    """
    complete = state if places.pending is None else replace(state, output=digest_of(places.pending))
    with replaced(places.state) as file:
        write(complete.to_dict(), file)
    _finish(places, complete)


# what the copy of a file holds, from what that holds and where the copy lies
Adapt = Callable[[bytes, Path], bytes]


def archive(places: Places, outputs: Mapping[Path, Adapt | None]) -> list[Path]:
    """Copy the state, and the output with what lies next to it, so that a new stream can take their
    names.

    The copies get the first number under which nothing else lies. What a run that died has copied
    already is found there and kept, so that a stream is archived once.

    **Guarantee.** No file that was there is changed, and of one stream there is one set of copies,
    wherever a run is killed. Tests: tests/files/test_run_state.py::test_a_year_is_archived_once,
    ::test_an_archive_overwrites_nothing.
    """
    sources = [path for path in (*outputs, places.state) if path.exists()]
    for number in count(1):
        copies = {path: _archived_name(path, places, number) for path in sources}
        missing = [path for path in sources if not copies[path].exists()]
        if all(
            path in missing or _is_copy(path, copies[path], outputs.get(path)) for path in sources
        ):
            break
    for source in missing:
        with replaced(copies[source], source.stat().st_mode & 0o777) as new:
            adapt = outputs.get(source)
            if adapt is not None:
                new.write(adapt(source.read_bytes(), copies[source]))
                continue
            with source.open("rb") as old:
                shutil.copyfileobj(old, new)
    return list(copies.values())


def _archived_name(path: Path, places: Places, number: int) -> Path:
    """Name a copy: `hourly.csv` becomes `hourly.1.csv`, its state `hourly.csv.state.1`."""
    if path == places.state or places.output is None:
        return path.with_name(f"{path.name}.{number}")
    stem = places.output.stem
    return path.with_name(f"{stem}.{number}{path.name.removeprefix(stem)}")


def _is_copy(source: Path, copy: Path, adapt: Adapt | None) -> bool:
    """Whether a file holds what the copy of `source` would hold."""
    if adapt is not None:
        return copy.read_bytes() == adapt(source.read_bytes(), copy)
    return copy.stat().st_size == source.stat().st_size and digest_of(copy) == digest_of(source)


def digest_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=32)).hexdigest()


def _finish(places: Places, state: State) -> None:
    """Step 4, unless it is done."""
    if places.output is None or places.pending is None:
        return
    if places.output.exists() and digest_of(places.output) == state.output:
        return
    if not places.pending.exists() or digest_of(places.pending) != state.output:
        what = "is not what the last run has written" if places.output.exists() else "is missing"
        raise StoreError(
            f"{places.output} {what}, and its state {places.state} continues it: put the file back "
            "as it was, or name the right `out` and `state`"
        )
    places.pending.chmod(new_mode(places.output))
    places.pending.replace(places.output)
    sync_folder(places.output)
