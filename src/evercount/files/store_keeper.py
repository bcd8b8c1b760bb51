"""A stream of a store (`--db`) that runs over files feed, and the commit of such a run.

    1. a new stream: declare it (its secret, its line of the ledger)  declared, nothing is released
    2. write the new output under a private name, down to disk        nothing is visible
    3. one transaction: rows, chain, the stream after them, what the
       run has read of a file and of persons, the output's digest     <- the commit
    4. the head file, then rename the output over the old one         published as a file, too

Why in this order. The store is the truth: whether a tick is released is decided by the one
transaction of step 3, and all that a later run needs is in it. A crash before 3 leaves the stream
as it was; the next run counts the files again. A crash after 3 leaves an output that lacks the
newest ticks; the next run finds the finished one and does step 4, or writes it anew from the store.
No tick is computed twice, so no row that came in between can show in the difference of two
releases. The store's lock keeps a second run and a service that writes away.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from sqlalchemy import Connection, insert

from evercount._safe_files import disk_errors
from evercount._validate import FloatArray
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.schedule import SECOND
from evercount.declarations.tick_marks import TickMark
from evercount.engine.release_table import ReleaseTable
from evercount.engine.snapshot_format import pack, unpack
from evercount.engine.stream import Stream, TaskStream
from evercount.errors import Conflict, SnapshotError, StoreError
from evercount.files.archive import AdaptCopy, archive
from evercount.files.cap_users import UsedBefore
from evercount.files.keeper import Keeper, RunState, Totals, WriteTables
from evercount.files.output_file import IN_STORE, Marker, OutputFile, digest_of
from evercount.files.published import keeps_tables, own_tables
from evercount.files.resume_run import Run, begun_state
from evercount.noise import Secret
from evercount.store import LiveStream, Store
from evercount.store.database import Database, find, remove
from evercount.store.declare_stream import change_late_rules
from evercount.store.open_stream import FILES
from evercount.store.schema import file_runs
from evercount.store.spending import read_cap
from evercount.store.stored_releases import read_joined, read_table, read_values
from evercount.store.stream_life import (
    hide_keys,
    identities_of,
    join_keys,
    mark_ticks,
    newest_of,
    next_name,
    renew_stream,
)

TWICE = (
    "A second stream over the same events would publish the same days with new noise, and both "
    "budgets would add up; if that is wanted, name another `out`"
)


class StoreKeeper(Keeper):
    """The keeper of one stream of a store that this process has locked.

    Args:
        store: The store.
        name: The name of the stream, or of the first of its renewals.
        output: What it publishes into, if anything.
        now: The present time, in microseconds since 1970.
        leaving_for: The state file that the stream is moving to, if that is known.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        output: OutputFile | None,
        now: int,
        leaving_for: str | None = None,
    ) -> None:
        self.store = store
        self.output = output
        self.capped = store.database.read(read_cap) is not None
        self._now = now / SECOND
        self._closed = False
        self._name = name
        self.live = newest_of(store, name)
        if self.live is not None and self.live.waiting != FILES:
            raise Conflict(
                f"stream {name!r} of the store takes events through a service, and its clock "
                "closes its ticks: send the files with `evercount push`, or give this stream "
                "another `name`"
            )
        if self.live is not None and self.live.moving != leaving_for:
            self.live.check_not_moving()
        self._folder = TemporaryDirectory(prefix="evercount-")
        self.scratch = Path(self._folder.name)

    @property
    def place(self) -> str:
        return "the store"

    def close(self) -> None:
        self._folder.cleanup()
        self.store.close()
        self._closed = True

    @contextmanager
    def _reading(self) -> Iterator[Database]:
        """The database; after the run one that is opened for tables that are asked for then."""
        if not self._closed:
            yield self.store.database
            return
        place = self.store.database.url.render_as_string(hide_password=False)
        if self.store.database.file is not None:
            place = str(self.store.database.file)
        with closing(Database(place, write=False)) as database:
            yield database

    # -- what is kept ----------------------------------------------------------------------------

    def load(self) -> RunState | None:
        live = self.live
        if live is None:
            return None
        state = self._read(live)
        if not live.closed:
            self.begun = state
            return None
        self.state = state
        self._publish()
        return state

    def _read(self, live: LiveStream) -> RunState:
        sealed = self.store.database.read(find, file_runs, "sealed", stream=live.id)
        if sealed is None:
            raise StoreError(
                f"stream {live.name!r} of the store was declared by another version of evercount, "
                "whose runs this one does not read: go on with that version"
            )
        try:
            state = RunState.from_dict(unpack(live.unseal(sealed, "files")))
        except SnapshotError as error:
            raise SnapshotError(
                f"the runs of stream {live.name!r} cannot be read: {error}"
            ) from error
        joined = tuple(self.store.database.read(read_joined, live.id))
        return replace(state, marks=tuple(live.marks), joined=joined)

    def check_output(self) -> None:
        """Refuse an output that another stream has published. Its marker says which one wrote it.

        **Guarantee.** What is published under a name is never published there again by a stream
        with other noise, wherever that is kept and whatever became of its state. Tests:
        tests/files/test_output_marker.py.
        """
        output = self.output
        if output is None or not output.path.exists():
            return
        written = [] if self.live is None else identities_of(self.store, self.live)
        has_released = self.live is not None and (self.live.closed > 0 or self.live.follows)
        marker = output.read_marker()
        if has_released and marker is not None and marker.identity in written:
            if marker.in_store:
                return
            raise StoreError(
                f"this store is a copy from before stream {self._name!r} was moved to "
                f"{marker.place}: go on there with `state` and without `db`"
            )
        raise StoreError(
            f"{output.path} exists, and stream {self._name!r} of this store has not written it: go "
            f"on with the `db` and `name`, or the `state`, that it came from. {TWICE}. If "
            f"{output.path} is a copy of this stream's own releases, move it away: the run writes "
            "it anew"
        )

    def output_changes(self, facts: Mapping[str, object]) -> list[str]:
        return []  # an output is an export of the store, and may change

    def is_current(self, facts: Mapping[str, object]) -> bool:
        state, output = self.state, self.output
        if state is None or output is None or state.output is None:
            return False
        name, digest = state.output
        return name == output.path.name and state.output_facts == facts and output.is_whole(digest)

    def open_stream(self) -> Stream:
        """A copy: the store releases with its own."""
        assert self.live is not None
        return TaskStream.load(self.live.stream.dump(), self.live.declaration.period_of)

    def build_stream(
        self, declaration: StreamDeclaration, caps: Mapping[str, UsedBefore], secret: Secret | None
    ) -> Stream:
        return declaration.build(secret=secret, task=True, inherited_caps=caps)

    def published(self, after: int = 0) -> FloatArray:
        live = self.live
        if live is None:
            return np.empty((0, 0))
        # keys that became public; of a stream whose ticks are revised, lags
        width = max(len(live.labels), len(live.stream.labels))
        ticks = range(after + 1, live.closed + 1)
        with self._reading() as database:
            return database.read(read_values, live.id, ticks, width)

    def own_tables(self) -> tuple[dict[str, Any], ...]:
        live = self.live
        if live is None or not live.closed or not keeps_tables(live.declaration.query):
            return ()
        width = max(len(live.labels), len(live.stream.labels))
        with self._reading() as database:
            return own_tables([database.read(read_table, live, 0, live.closed, range(width))])

    def name_in_lakes(self, declaration: StreamDeclaration, renewing: bool) -> str:
        if self.live is None:
            return declaration.name
        return next_name(self.live.name) if renewing else self.live.name

    # -- what is committed -----------------------------------------------------------------------

    def declare(self, run: Run) -> Stream:
        live, job, caps = self.live, run.job, run.predecessors.caps
        begun = begun_state(run)

        def keep(connection: Connection, new: LiveStream) -> None:
            write_run(connection, new, begun)

        if run.predecessors.renewed:
            assert live is not None
            live = renew_stream(
                self.store,
                live.name,
                self._now,
                new_name=next_name(live.name),
                carry_totals=job.carry_totals,
                inherited_caps=caps,
                before_commit=keep,
            )
        elif live is None:
            live = self.store.declare(
                job.declaration,
                self._now,
                job.secret,
                waits_for=FILES,
                inherited_caps=caps,
                before_commit=keep,
            )
        self.live = live
        change_late_rules(self.store, live, job.declaration)  # a page of the store states the rule
        if run.joining.hidden:
            hide_keys(self.store, live.name, run.joining.hidden)
        if run.joining.keys:
            join_keys(self.store, live.name, run.joining.keys)
        if self.output is not None:
            self.output.write_marker(Marker(live.stream.identity, place_of(self.store)))
        return live.stream

    def note(self, marks: Sequence[TickMark]) -> None:
        assert self.live is not None
        for mark in marks:
            if mark.hides is None and mark not in self.live.marks:
                mark_ticks(self.store, self.live.name, mark)

    def commit(self, run: Run, state: RunState, totals: Totals, write: WriteTables) -> None:
        live, output = self.live, self.output
        assert live is not None
        run.entry.spend()
        with ExitStack() as rollback:
            if output is not None:
                rollback.callback(output.pending.unlink, missing_ok=True)

            def publish(tables: Iterator[ReleaseTable]) -> None:
                with disk_errors("the output cannot be written"):
                    write(live.stream, tables)

            def keep(connection: Connection) -> None:
                self._keep(connection, state)

            self.store.close_given(live, totals, self._now, publish, keep)
            rollback.pop_all()
        with disk_errors("the run could not be published"):
            self._publish()

    def keep(self, state: RunState) -> None:
        with self.store.database.transaction() as connection:
            self._keep(connection, state)
        self._publish()

    def _keep(self, connection: Connection, state: RunState) -> None:
        assert self.live is not None
        if self.output is not None and self.output.pending.exists():
            digest = digest_of(self.output.pending)
            state = replace(state, output=(self.output.path.name, digest))
        write_run(connection, self.live, state)
        self.state = state

    def _publish(self) -> None:
        output, state = self.output, self.state
        if output is None or state is None or state.output is None:
            return
        name, digest = state.output
        if name == output.path.name:
            output.publish(digest)

    def archive(self, beside: Mapping[Path, AdaptCopy | None]) -> list[Path]:
        return archive(beside, self.output, None)


def place_of(store: Store) -> str:
    """Name a store as markers and tombstones do."""
    return f"{IN_STORE}{store.database.describe()}"


def write_run(connection: Connection, live: LiveStream, state: RunState) -> None:
    """Keep what a later run of files needs, in the transaction that it belongs to."""
    remove(connection, file_runs, stream=live.id)
    sealed = live.seal(pack(state.to_dict()), "files")
    connection.execute(insert(file_runs).values(stream=live.id, sealed=sealed))
