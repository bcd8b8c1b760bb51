"""The state of a release stream in a store (`--db`), in place of a state file; files are then
exports of the store.

    1. count the files                                                 nothing is visible
    2. a new stream: declare it (its secret, its line of the ledger)   declared, nothing is released
    3. one transaction: rows, chain, the stream after them, what the
       run has read of a file and of persons                           <- the commit
    4. the head file, then the marker of the output, the output,
       its views and its chart                                         published a second time,
                                                                       as files

Why in this order. The store is the truth: whether a tick is released is decided by the one
transaction of step 3, and all that a later run needs is in it. A crash before 3 leaves the stream
as it was; the next run counts the files again. A crash after 3 leaves files that lack the newest
ticks; they follow from the store, and every run writes them anew. No tick is computed twice, so no
row that came in between can show in the difference of two releases. One spending, two faces:
nothing but the store draws noise. The store's lock keeps a second run and a service that writes
away.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np
from sqlalchemy import Connection, insert

from evercount.declarations.schedule import SECOND
from evercount.declarations.view_names import NewMark, TickMark
from evercount.engine.carried_totals import CarriedTotals
from evercount.engine.close_ticks import TickEvents, TickTotals
from evercount.engine.snapshot_format import pack
from evercount.engine.stream import Stream
from evercount.errors import Conflict, ParameterError, SnapshotError, StoreError
from evercount.files.output_marker import check_output, mark_output
from evercount.files.published import keeps_tables, own_tables
from evercount.files.release_job import Job
from evercount.files.run_state import State
from evercount.store import Store, key_from_environment
from evercount.store.database import find, remove
from evercount.store.declare_stream import change_late_rules
from evercount.store.open_stream import FILES
from evercount.store.schema import file_runs, noise_identities
from evercount.store.spending import read_cap
from evercount.store.stream_life import (
    hide_keys,
    join_keys,
    last_of_renewals,
    mark_ticks,
    next_name,
    renew_stream,
)


class StoreHome:
    """The stream of a run in a store that this process has locked."""

    def __init__(self, job: Job, cleanup: ExitStack) -> None:
        assert job.db is not None
        self.store = Store(job.db, key_from_environment(None))
        cleanup.callback(self.store.close)
        self.now = job.now / SECOND
        name = job.declaration.name
        if self.store.name_is_spent(name):
            raise StoreError(
                f"stream {name!r} of the store is retired: give the new stream another `name`"
            )
        self.live = last_of_renewals(self.store, name) if name in self.store.streams else None
        if self.live is not None and self.live.waiting != FILES:
            raise Conflict(
                f"stream {name!r} of the store takes events through a service, and its clock "
                "closes its ticks: send the files with `evercount push`, or give this stream "
                "another `name`"
            )

    @property
    def marks(self) -> tuple[TickMark, ...]:
        return () if self.live is None else tuple(self.live.marks)

    @property
    def carried(self) -> CarriedTotals | None:
        return None if self.live is None else self.store.carried(self.live.id)

    def totals_at_end(self) -> CarriedTotals:
        """The running totals from which the next stream goes on."""
        assert self.live is not None
        return self.store.totals_at_end(self.live.id)

    def note(self, notes: Sequence[NewMark]) -> tuple[TickMark, ...]:
        """Keep what the operator says about ticks; all that was ever said."""
        if notes and self.live is None:
            raise ParameterError(
                "the store has no such stream yet: write the notes with the second run"
            )
        for one in notes:
            assert self.live is not None
            mark_ticks(self.store, self.live.name, one.on(self.live.declaration.schedule))
        return self.marks

    @property
    def capped(self) -> bool:
        """Whether the operator has said how much streams may spend together."""
        return self.store.database.read(read_cap) is not None

    def change_keys(self, job: Job) -> list[str]:
        """Let keys join the stream of the store, and hide others; the labels of those that have
        joined."""
        if self.live is None and (job.add_keys or job.remove_keys):
            raise ParameterError("the store has no such stream yet: its keys are those of `keys`")
        if self.live is None or job.check:
            return []
        if job.remove_keys:
            hide_keys(self.store, self.live.name, job.remove_keys)
        return join_keys(self.store, self.live.name, job.add_keys) if job.add_keys else []

    def first_start(self) -> int | None:
        """The start of the first stream of a chain of renewals."""
        names = {
            one.successor: one for one in self.store.streams.values() if one.successor is not None
        }
        live = self.live
        while live is not None and live.name in names:
            live = names[live.name]
        return None if live is None else live.declaration.schedule.begin

    def new_name(self, renewing: bool) -> str | None:
        """Return the name of a stream that has released nothing; None before it is declared."""
        if self.live is None:
            return None
        return next_name(self.live.name) if renewing else self.live.name

    def identities(self) -> list[str]:
        """Return what tells the noise of this stream from that of all others, and of those that it
        goes on for."""
        found = []
        before = {
            one.successor: one for one in self.store.streams.values() if one.successor is not None
        }
        live = self.live
        while live is not None:
            found.append(
                self.store.database.read(find, noise_identities, "identity", stream=live.id).hex()
            )
            live = before.get(live.name)
        return found

    def check_output(self, output: Path, name: str, before: State | None) -> None:
        """Refuse to write over what another stream has published."""
        has_written = self.live is not None and (self.live.closed > 0 or self.live.follows)
        streams = self.identities() if has_written else []
        check_output(output, name, streams, before is not None and not before.marks_outputs)

    def mark_output(self, output: Path) -> None:
        """Name this stream next to an output, if it is declared."""
        if self.live is not None:
            mark_output(output, self.identities()[0])

    def read(self) -> State | None:
        live = self.live
        if live is None:
            return None
        sealed = self.store.database.read(find, file_runs, "sealed", stream=live.id)
        if sealed is None:  # it was declared, and nothing was released
            return None
        try:
            state = State.load(live.unseal(sealed, "files"))
        except SnapshotError as error:
            raise SnapshotError(
                f"the runs of stream {live.name!r} cannot be read: {error}"
            ) from error
        # keys that were found; lags of revised days
        width = max(len(live.labels), len(live.stream.labels))
        table = self.store.published(live, 0, live.closed, range(width))
        own = own_tables([table]) if keeps_tables(live.declaration.query) and live.closed else ()
        query, numbers = live.declaration.query, table.numbers[:, 0]
        if query.publishing.own_ticks:  # keys of the day have tables of their own
            numbers = np.empty((0, len(query.labels)))
        return replace(state, stream=live.stream.dump(), numbers=numbers, tables=own)

    def committed(self) -> tuple[State, Stream]:
        state = self.read()
        assert state is not None
        assert self.live is not None
        return state, self.live.stream

    def commit(
        self, totals: TickTotals | TickEvents, state: State, job: Job, renewing: bool
    ) -> tuple[State, Stream]:
        """Steps 2 and 3; returns the state with what is published now, and the stream."""
        live = self.live
        if renewing:
            assert live is not None
            new_name = next_name(live.name)
            live = renew_stream(
                self.store, live.name, self.now, new_name=new_name, carry_totals=job.carry_totals
            )
        if live is None or (not live.closed and not live.follows):
            live = self.store.declare(job.declaration, self.now, job.secret, waits_for=FILES)
        change_late_rules(self.store, live, job.declaration)  # a page of the store states the rule
        sealed = live.seal(pack(state.to_dict()), "files")

        def also(connection: Connection) -> None:
            remove(connection, file_runs, stream=live.id)
            connection.execute(insert(file_runs).values(stream=live.id, sealed=sealed))

        self.store.close_given(live, totals, self.now, also)
        self.live = live
        return self.committed()
