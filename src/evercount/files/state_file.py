"""A stream that is kept in a state file, and the commit that publishes a run whole or not at all.

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

import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evercount._safe_files import disk_errors, lock_exclusively, open_private, replaced
from evercount._validate import FloatArray
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.tick_marks import TickMark
from evercount.declarations.view_names import stack_rows
from evercount.engine.close_ticks import close_ticks
from evercount.engine.release_table import ReleaseTable
from evercount.engine.snapshot_format import unpack, write
from evercount.engine.stream import Stream
from evercount.errors import SnapshotError, StoreError
from evercount.files.archive import AdaptCopy, archive
from evercount.files.cap_users import UsedBefore
from evercount.files.keeper import Keeper, RunState, Totals, WriteTables
from evercount.files.output_file import IN_STATE, Marker, OutputFile, digest_of
from evercount.files.published import keeps_tables, own_tables
from evercount.noise import Secret

if TYPE_CHECKING:
    from evercount.files.resume_run import Run

FORMAT = "evercount release state 2"
NEW_NOISE = (
    "A new stream over the same data would spend its budget a second time; if that is wanted and "
    "the earlier spending is accounted for elsewhere"
)


class StateFile(Keeper):
    """The keeper of one state file. A tombstone takes the file's place when its stream has moved.

    Args:
        path: The state file.
        output: What it publishes into, if anything.
    """

    def __init__(self, path: Path, output: OutputFile | None) -> None:
        self.path = path
        self.output = output
        self._locked = ExitStack()
        self.scratch = self._locked.enter_context(locked(path))
        # where the stream has gone, is going, or has come from and may still be
        self.tombstone: Marker | None = None
        self.moving: Marker | None = None
        self.origin: Marker | None = None
        self._stream: dict[str, Any] | None = None
        self._numbers: FloatArray = np.empty((0, 0))

    @property
    def place(self) -> str:
        return f"{self.path} (the state, which is secret)"

    @property
    def state_name(self) -> str:
        return str(self.path)

    def close(self) -> None:
        self._locked.close()

    # -- what is kept ----------------------------------------------------------------------------

    def load(self) -> RunState | None:
        self.read()
        if self.tombstone is not None:
            raise StoreError(self._moved_text(self.tombstone))
        if self.moving is not None:
            raise StoreError(moving_text(self.path, self.moving))
        self.finish()
        return self.state

    def finish(self) -> None:
        """Do what is left of a run, or of a move to here, that was killed."""
        if self.origin is not None:
            from evercount.files.move_stream import finish_take_back  # a store is an extra

            finish_take_back(self)
        self._check_marker()
        self._publish()

    def _check_marker(self) -> None:
        """Refuse a copy of the state from before the stream was moved into a store.

        **Guarantee.** A state that is restored from a backup releases nothing if its output was
        written by a store since. Test: tests/files/test_move_stream.py
        ::test_a_state_from_a_backup_is_refused.
        """
        marker = None if self.output is None else self.output.read_marker()
        if self.state is not None and marker is not None and marker.in_store:
            raise StoreError(
                f"{self.path} is a copy from before its stream was moved to {marker.place}: go on "
                f"there with its `db` and `name`, and move {self.path} away"
            )

    def read(self) -> RunState | None:
        """Read the state; None before the first run, and if the stream has moved."""
        content = read_state_file(self.path)
        if content is None:
            return self.state
        self.tombstone = _marker(content.get("moved"))
        if self.tombstone is not None:
            return None
        self.moving = _marker(content.pop("moving", None))
        self.origin = _marker(content.pop("origin", None))
        try:
            self._stream = content.pop("stream")
            self._numbers = content.pop("numbers")
            self.state = RunState.from_dict(content)
        except (KeyError, SnapshotError) as error:
            raise SnapshotError(f"{self.path}: {error}; restore it from a backup") from error
        return self.state

    def _moved_text(self, tombstone: Marker) -> str:
        """Say where the stream is now: the output knows if it has moved on since."""
        newest = None if self.output is None else self.output.read_marker()
        place = tombstone.place if newest is None else newest.place
        return (
            f"the stream of {self.path} was moved to {place}: go on there with its `db` and "
            "`name`, or its `state`. A store gives it back to a `state` that is not there yet"
        )

    def _publish(self) -> None:
        """Do step 4, unless it is done. An output that is not the committed one is refused."""
        output, state = self.output, self.state
        if output is None or state is None or state.output is None:
            return
        if output.publish(state.output[1]):
            return
        what = "is missing"
        if output.path.exists():
            what = "is not what the last run has written"
        raise StoreError(
            f"{output.path} {what}, and its state {self.path} continues it: put the file back as "
            "it was, or name the right `out` and `state`"
        )

    def check_output(self) -> None:
        output = self.output
        if self.state is not None or output is None or not output.path.exists():
            return  # `load` has compared an output with its state
        marker = output.read_marker()
        if marker is not None:
            raise StoreError(
                f"{output.path} is published by a stream that is kept in {marker.place}: go on "
                "with its `db` and `name`, or take the stream back with `state`, a state file of "
                f"its own. {NEW_NOISE}, name another `out`"
            )
        raise StoreError(
            f"{output.path} exists and its state {self.path} does not. Restore the state (`state`) "
            f"to continue. {NEW_NOISE}, move the output away"
        )

    def output_changes(self, facts: Mapping[str, object]) -> list[str]:
        before = {} if self.state is None else self.state.output_facts
        names = ("out format", "digits")
        pairs = [(name, before.get(name, "full"), facts.get(name, "full")) for name in names]
        return [f"{name} was {was!r} and is now {now!r}" for name, was, now in pairs if was != now]

    def is_current(self, facts: Mapping[str, object]) -> bool:
        return self.state is not None

    def open_stream(self) -> Stream:
        assert self.state is not None
        assert self._stream is not None
        return Stream.load(self._stream, self.state.settled.period_of)

    def build_stream(
        self, declaration: StreamDeclaration, caps: Mapping[str, UsedBefore], secret: Secret | None
    ) -> Stream:
        return declaration.build(secret=secret, inherited_caps=caps)

    def published(self, after: int = 0) -> FloatArray:
        return self._numbers[after:]

    def own_tables(self) -> tuple[dict[str, Any], ...]:
        return () if self.state is None else self.state.tables

    def name_in_lakes(self, declaration: StreamDeclaration, renewing: bool) -> str:
        return declaration.name

    # -- what is committed -----------------------------------------------------------------------

    def declare(self, run: Run) -> Stream:
        return run.stream

    def note(self, marks: Sequence[TickMark]) -> None:
        """Nothing: marks are in the state, which the commit writes."""

    def commit(self, run: Run, state: RunState, totals: Totals, write: WriteTables) -> None:
        stream = run.stream
        numbers = [np.empty((0, len(stream.labels)))]
        kept: tuple[dict[str, Any], ...] = ()
        if run.before is not None:
            numbers.insert(0, self._numbers)
            kept = run.before.tables
        tables: list[ReleaseTable] = []

        def released() -> Iterator[ReleaseTable]:
            for table in close_ticks(stream, totals, run.declaration.schedule.starts_of):
                if keeps_tables(stream.query):
                    tables.append(table)
                if not stream.query.publishing.own_ticks:
                    numbers.append(table.numbers[:, 0])
                yield table

        with disk_errors("the output cannot be written"), ExitStack() as rollback:
            if self.output is not None:
                rollback.callback(self.output.pending.unlink, missing_ok=True)
            write(stream, released())
            run.entry.spend()  # on the disk before anything is published
            rollback.pop_all()
        self._stream = stream.dump()
        self._numbers = stack_rows(*numbers)
        self.state = replace(state, tables=(*kept, *own_tables(tables)))
        if run.job.kept:
            with disk_errors("the run could not be published"):
                self.keep(self.state)

    def keep(self, state: RunState) -> None:
        output = self.output
        if output is not None and output.pending.exists():
            state = replace(state, output=(output.path.name, digest_of(output.pending)))
        self.state = state
        self._mark_output()  # before the commit: a marker that names a store is a refusal
        self._write()
        self._publish()

    def _mark_output(self) -> None:
        """Name this state in the marker of the output, if there is one or must be one."""
        output = self.output
        if output is None:
            return
        if output.state_path == self.path and output.read_marker() is None:
            return
        with self.open_stream() as stream:
            output.write_marker(Marker(stream.identity, f"{IN_STATE}{self.path.absolute()}"))

    def _write(self) -> None:
        """Steps 2 and 3 of the module's text."""
        assert self.state is not None
        content = {**self.state.to_dict(), "stream": self._stream, "numbers": self._numbers}
        for name, marker in (("moving", self.moving), ("origin", self.origin)):
            if marker is not None:
                content[name] = list(marker)
        write_state_file(self.path, content)

    def archive(self, beside: Mapping[Path, AdaptCopy | None]) -> list[Path]:
        return archive(beside, self.output, self.path)

    # -- moves (`move_stream.py`) ----------------------------------------------------------------

    def identity(self) -> str:
        """What tells the noise of the stream from that of all others.

        It opens no stream that a store may have by now: of two with the same noise in one process
        only the one that was opened last goes on.
        """
        if self.moving is not None:
            return self.moving.identity
        with self.open_stream() as stream:
            return stream.identity

    def begin_to_leave(self, target: Marker) -> None:
        """Say where the stream is moving. From now on it is not released from here."""
        self.moving = target
        self._write()

    def bury(self, target: Marker) -> None:
        """Put a tombstone in the place of the state: the stream is there now, and only there."""
        assert self.state is not None
        facts = {"name": self.state.declaration["name"], "until": self.state.closed.until}
        write_state_file(self.path, {"moved": list(target), **facts})

    def receive(self, state: RunState, source: Keeper, origin: Marker) -> None:
        """Become the keeper of a stream that another one has; `origin` says which."""
        with source.open_stream() as stream:
            self._stream = stream.dump()
            self._numbers = np.empty((0, len(stream.labels)))
            if not stream.query.publishing.own_ticks:
                self._numbers = source.published()
        self.state = replace(state, tables=source.own_tables())
        self.origin = origin
        self.tombstone = None
        self._write()

    def forget_origin(self) -> None:
        """The stream is here, and only here."""
        self._mark_output()
        self.origin = None
        self._write()


def _marker(fields: list[str] | None) -> Marker | None:
    return None if fields is None else Marker(*fields)


def moving_text(path: Path, target: Marker) -> str:
    return (
        f"the stream of {path} is moving to {target.place}: finish that with its `db` and `name`. "
        "Nothing is released from here meanwhile"
    )


def read_state_file(path: Path) -> dict[str, Any] | None:
    """The content of a state file, or None if there is none."""
    try:
        blob = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"the state {path} cannot be read: {error.strerror}") from error
    try:
        return parse_state(blob)
    except SnapshotError as error:
        raise SnapshotError(f"{path}: {error}; restore it from a backup") from error


def parse_state(blob: bytes) -> dict[str, Any]:
    """The content of a state file of this format; SnapshotError for all else."""
    content = unpack(blob)
    if content.pop("format", None) != FORMAT:
        raise SnapshotError("this is not the state of a release, or one of another version")
    return content


def write_state_file(path: Path, content: Mapping[str, Any]) -> None:
    """Replace the state: steps 2 and 3 of the module's text."""
    with replaced(path) as file:
        write({"format": FORMAT, **content}, file)


@contextmanager
def locked(state: Path) -> Iterator[Path]:
    """Lock a state and give a private scratch folder; a second run is refused.

    The scratch folder may hold copies of events. A killed run leaves it, and the next one removes
    it. The empty lock file stays.
    """
    lock = state.with_name(f".{state.name}.lock")
    scratch = state.with_name(f".{state.name}.scratch")
    with ExitStack() as cleanup:
        with disk_errors(f"the folder of {state} cannot be written"):
            file = open_private(lock, os.O_CREAT | os.O_RDWR)
        cleanup.callback(os.close, file)
        try:
            lock_exclusively(file)
        except OSError as error:
            raise StoreError(f"another run is using {state}: wait until it has ended") from error
        shutil.rmtree(scratch, ignore_errors=True)
        cleanup.callback(shutil.rmtree, scratch, ignore_errors=True)
        with disk_errors(f"the scratch folder {scratch} cannot be made"):
            scratch.mkdir(mode=0o700)  # fails on a link, or a folder of somebody else
        yield scratch
