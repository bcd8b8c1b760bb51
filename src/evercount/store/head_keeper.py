"""HeadKeeper: what the head file repeats from one write to the next, and the spending of streams that a copy lost."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy import insert

from evercount.store import schema
from evercount.store.ended_stream import EndedStream
from evercount.store.open_stream import LiveStream
from evercount.store.reader import Reading
from evercount.store.rollback_guard import Head, HeadFile, Heads, Quarantine
from evercount.store.spending import Spending

log = logging.getLogger("evercount.store")


class HeadKeeper:
    """Writes the head file of one store.

    **Guarantee.** The head of a stream in quarantine, and of one that a restored copy lost, never goes back to an
    earlier tick: otherwise the next start would let the stream go on with noise that was used already. A stream that
    was retired once stays retired in the file. Test:
    `tests/store/test_store_rollback.py::test_a_quarantine_outlives_restarts`.
    """

    def __init__(
        self, file: HeadFile, reading: Reading, ended: Mapping[str, EndedStream], lost: frozenset[str]
    ) -> None:
        self.file = file
        self.lost = lost
        before, now = file.read(), reading.current_head()
        self._store = now.store
        self._spent = {**now.spent, **(before.spent if before else {})}  # the file knows the noise of lost streams
        self._retired = (before.retired if before else frozenset()) | (now.retired - lost)
        self._fixed: Heads = {}
        for name, head in (before.streams if before else {}).items():
            if name in lost or (name in ended and ended[name].ending == "quarantined"):
                self._fixed[name] = head
        for name, stream in ended.items():
            if stream.ending == "retired":
                self._fixed[name] = now.streams[name]

    def spend(self, line: Spending, identity: bytes) -> None:
        self._spent[line.stream] = {**line.to_dict(), "identity": identity.hex()}

    def retire(self, name: str, closed: int, digest: str) -> None:
        """From now on the file says that the stream is retired, with the history that this database has."""
        self._retired |= {name}
        self._fixed[name] = (closed, digest)

    def lost_identity(self, identity: bytes) -> bool:
        """Whether a stream that the database lost had this noise."""
        return any(self._spent[name].get("identity") == identity.hex() for name in self.lost)

    def write(self, streams: Iterable[LiveStream], released: LiveStream | None = None) -> None:
        """Bring the file up to date, after a commit that released, declared or retired something."""
        if released is not None and self.file.add(released.name, released.closed, released.head.hex()):
            return
        live = {one.name: (one.closed, one.head.hex()) for one in streams}
        self.file.write(Head(self._store, {**self._fixed, **live}, self._spent, self._retired))


def keep_lost_spending(reading: Reading, file: HeadFile, lost: Sequence[Quarantine]) -> None:
    """Write down the streams that this copy of the database does not have: their names and budgets stay spent."""
    content = file.read()
    for one in lost:
        assert content is not None  # it names the stream
        row = {"name": one.name, "moment": time.time(), "reason": one.reason}
        with reading.database.transaction() as connection:
            connection.execute(insert(schema.retired).values(**row, facts=json.dumps(content.spent[one.name])))
        log.error("stream %s is not in this copy of the database: it has ended, and its budget stays spent", one.name)


def quarantine(live: LiveStream, why: Quarantine) -> EndedStream:
    """Drop all of a stream that could release, and tell the operator by the log what can be done."""
    log.error(
        "stream %s is in quarantine, the others continue: %s (the head is at tick %d, this copy at tick %d). Restore "
        "the newest database, or continue with a new stream: `evercount store retire %s --successor NAME`",
        live.name,
        why.reason,
        why.tick,
        live.closed,
        live.name,
    )
    guarantee, noise = live.guarantee, live.stream.noise
    live.stream.close()
    return EndedStream(
        live.id,
        live.declaration,
        live.closed,
        "quarantined",
        why.reason,
        guarantee,
        noise,
        why.readable,
        labels=live.labels,
    )
