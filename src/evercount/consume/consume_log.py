"""LogConsumer: messages of a log → totals in the store, together with where the log goes on → due
ticks released.

One round reads all that the log held when it began, and then closes the ticks that had ended by
then. So a tick is closed only after everything that the log held at its end was counted, also after
days without a run. MessageCounter adds up the messages, each a JSON object, by the SQL that counts
files.

Numbers about a consumer for Prometheus. They move with single events: for the operator, on
127.0.0.1 only.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from time import monotonic
from typing import IO, Any

import numpy as np
from prometheus_client import CollectorRegistry, Gauge, start_http_server
from prometheus_client import Counter as CounterMetric

from evercount._safe_files import disk_errors, open_private
from evercount._validate import IntArray
from evercount.consume.log_sources import LogSource, Messages, Positions
from evercount.declarations.declaration import StreamDeclaration
from evercount.engine.arrivals import Arrivals, NamedRows, PersonEvents
from evercount.engine.close_ticks import TickTotals
from evercount.errors import Conflict, InputError, LogUnreachable, ParameterError
from evercount.files.event_sql import REASONS, columns_of, placed, prepare
from evercount.files.source import Source, connect, library
from evercount.queries.sensitivities import rows_of
from evercount.store import Store
from evercount.store.accept_totals import FedStream, SourceBatch, check_fed

TOO_FAR = max(REASONS) + 1
AFTER_END = TOO_FAR + 1
BAD = {
    **REASONS,
    TOO_FAR: "a time too many ticks ahead of the open one",
    AFTER_END: "after the end of the stream",
}


def check_declaration(declaration: StreamDeclaration) -> None:
    columns_of(declaration)
    check_fed(declaration, "a log")


class _Batch(Source):
    """The messages as a file of JSON lines that is in memory."""

    def scan(self) -> str:
        return "messages"


class MessageCounter:
    def __init__(self, declaration: StreamDeclaration, scratch: Path) -> None:
        check_declaration(declaration)
        self._declaration = declaration
        used = columns_of(declaration).used
        self._source = _Batch(
            scratch / "none", "the log", "jsonl", "none", used, ("VARCHAR",) * len(used)
        )
        self._connection = connect(scratch)
        if declaration.query.discovery is None:
            prepare(self._connection, declaration, (self._source,))

    def close(self) -> None:
        self._connection.close()

    def count(self, messages: Messages, last: int) -> tuple[Arrivals, list[tuple[int, str]]]:
        """Add up messages: those of ticks after `last` or after the horizon are bad. Returns also
        the number (from 0) and the reason of each bad message.

        **Guarantee.** One message adds to one cell of one tick, by its own time, key and value
        alone: the promise of `files.count_rows.count`, with its SQL. Test:
        tests/consume/test_consume_log.py.
        """
        declaration = self._declaration
        columns, names = self._read(messages, last)
        place = _numbers(columns["place"])
        number = _numbers(columns["n"]) - 1
        good = place > 0
        bad = [
            (at, BAD[-reason])
            for at, reason in zip(number[~good].tolist(), place[~good].tolist(), strict=True)
        ]
        order = _numbers(columns["o"])[good]
        if columns_of(declaration).order is None:
            order = np.asarray(messages.orders, np.int64)[number[good]]
        events = PersonEvents(
            place[good],
            columns["who"][good].tolist(),
            _numbers(columns["us"])[good],
            order,
            _numbers(columns["cell"])[good],
            _numbers(columns["units"])[good],
        )
        return _added_up(declaration, events, names), bad

    def _read(self, messages: Messages, last: int) -> tuple[Mapping[str, Any], Sequence[str]]:
        """Read messages by the SQL of files, in their order: columns, and the names of keys that
        are not listed."""
        pa: Any = library("pyarrow")
        declaration = self._declaration
        until = min(last, declaration.horizon or last)
        beyond = TOO_FAR
        if until == declaration.horizon:
            beyond = AFTER_END
        rows = placed((self._source,), declaration, 1, until + 1, "n")
        rows = f"SELECT * REPLACE (coalesce(place, -{beyond}) AS place) FROM ({rows}) ORDER BY n"
        lines = pa.array(_lines(messages.bodies), pa.string())
        self._connection.register("messages", pa.table({"line": lines}))
        names: Sequence[str] = ()
        try:
            if declaration.query.discovery is not None:
                self._connection.execute(
                    "DROP TYPE IF EXISTS cell_key; DROP TABLE IF EXISTS cell_name"
                )
                names = prepare(self._connection, declaration, (self._source,))
            return self._connection.execute(rows).fetchnumpy(), names
        finally:
            self._connection.unregister("messages")


def _with_keys(events: PersonEvents, names: Sequence[str]) -> PersonEvents:
    """Let each cell be a place among the keys that the events name."""
    places, cell = np.unique(events.cell, return_inverse=True)
    return replace(events, cell=cell, keys=[names[place] for place in places.tolist()])


def _added_up(
    declaration: StreamDeclaration, events: PersonEvents, names: Sequence[str]
) -> Arrivals:
    """Add up the events as far as their query lets them be added before their tick closes. `names`
    are those of keys that are not listed."""
    query = declaration.query
    none = TickTotals.none(query.cells)
    if query.people is not None:
        numbers = np.stack([events.cell, events.time, events.order], axis=1)
        return Arrivals(none, rows_with_names=[NamedRows(events.tick, events.person, numbers)])
    if query.discovery is not None:
        events = _with_keys(events, names)
    if declaration.budget.unit == "user":
        return Arrivals(none, persons=events)
    if query.discovery is not None:
        (tick, cell), number = np.unique([events.tick, events.cell], axis=1, return_counts=True)
        keys = [events.keys[at] for at in cell]
        return Arrivals(none, rows_with_names=[NamedRows(tick, keys, number[:, None])])
    by_tick = np.argsort(events.tick, kind="stable")
    tick, cell, units = (column[by_tick] for column in (events.tick, events.cell, events.units))
    sums = rows_of(query).totals(tick, cell, np.ones_like(tick), units)
    return Arrivals(TickTotals.of(query.cells, *sums))


def _numbers(column: Any) -> IntArray:
    return np.ma.filled(column, 0).astype(np.int64)


def _lines(bodies: Sequence[bytes]) -> list[str]:
    """Turn each message into one line; what is not UTF-8 or blank becomes one that is not JSON."""
    lines = []
    for body in bodies:
        try:
            line = body.decode()
            if "\n" in line:
                # then line ends are between the parts of the JSON text, not inside a string
                json.loads(line)
                line = line.replace("\n", " ")
        except (ValueError, RecursionError):
            line = ""
        lines.append(line if line.strip(" \t\r\n") else "?")
    return lines


NAME = "evercount_log"


class LogMetrics:
    """Lag, messages, set-aside messages and released ticks of each stream; served if a port is
    given."""

    def __init__(self, port: int | None) -> None:
        registry, by = CollectorRegistry(), ["stream"]
        gauge = partial(Gauge, namespace=NAME, registry=registry)
        counter = partial(CounterMetric, namespace=NAME, registry=registry)
        self._lag = gauge("lag_messages", "Messages that are not counted yet.", by)
        self._counted = counter("messages", "Messages counted since the start.", by)
        self._bad = gauge("bad_messages", "Messages that were set aside, ever.", [*by, "reason"])
        self._lost = gauge("lost_messages", "Positions deleted before they were counted.", by)
        self._ticks = counter("ticks_released", "Ticks released since the start.", by)
        self._last = gauge("last_round_seconds", "When the last round ended.", by)
        self.port: int | None = None
        if port is not None:
            try:
                server, _ = start_http_server(port, "127.0.0.1", registry)
            except OSError as error:
                raise ParameterError(f"cannot listen on port {port}: {error.strerror}") from None
            self.port = server.server_port

    def progress(self, stream: str, messages: int, left: int) -> None:
        self._counted.labels(stream).inc(messages)
        self._lag.labels(stream).set(left)

    def after_round(self, stream: str, bad: Mapping[str, int], lost: int, ticks: int) -> None:
        for reason, number in bad.items():
            self._bad.labels(stream, reason).set(number)
        self._lost.labels(stream).set(lost)
        self._ticks.labels(stream).inc(ticks)
        self._last.labels(stream).set_to_current_time()


MOST_MESSAGES = 20_000  # messages that are counted and committed together
# in batches of so many messages most must be events: else producers changed what they send
LEAST_JUDGED = 1000
STALL_SECONDS = 30.0
ASIDE = b'{"partition": '  # how each line of --rejects begins
Progress = Callable[[int, int], None]


def _open_rejects(path: Path) -> IO[bytes]:
    """Open a file of messages that were set aside, to append to it; several streams may share
    it."""
    with disk_errors(f"--rejects {path} cannot be written"):
        file = os.fdopen(open_private(path, os.O_CREAT | os.O_RDWR | os.O_APPEND), "ab+")
        file.seek(0)
        if file.read(len(ASIDE)) in (b"", ASIDE):
            return file
        file.close()
    raise ParameterError(
        f"{path} is not a file of messages that were set aside: choose another name"
    )


class LogConsumer:
    """Feeds one stream of a store from one log. `now` is in microseconds since 1970, `scratch` a
    private folder.

    With `new_log` the log may be new although the stream was fed from another one: it then holds no
    event that was counted already. With `skip_lost` it goes on where the log has deleted messages
    before they were counted.

    **Guarantee.** Every message counts once: where the log goes on is committed in the transaction
    that adds the messages' totals (`store/accept_totals.py`), and nothing else remembers it. After
    a crash the log is read from there; a second consumer's batch has a number that is taken, and is
    refused. Assumption: the log gives the same messages under the same positions. Tests:
    tests/consume/test_consume_log.py and tests/contracts/test_killed_interfaces.py.
    """

    def __init__(
        self,
        source: LogSource,
        declaration: StreamDeclaration,
        store: Store,
        scratch: Path,
        now: int,
        *,
        new_log: bool = False,
        skip_lost: bool = False,
        rejects: Path | None = None,
    ) -> None:
        self._counter = MessageCounter(declaration, scratch)
        self._source = source
        self._new_log = new_log
        self._rejects = None if rejects is None else _open_rejects(rejects)
        self._fed = FedStream(store, declaration, now)
        self.declaration = self._fed.declaration
        self._query = "log " + hashlib.blake2b(source.identity.encode(), digest_size=16).hexdigest()
        self._batch = self._fed.last_batches().get(self._query, -1) + 1
        progress: dict[str, Any] = {"next": {}, "bad": {}, "lost": 0}
        if (position := self._fed.position(self._query)) is not None:
            progress = json.loads(position)
        self._stored: dict[str, int] = progress["next"]
        self.bad: Counter[str] = Counter(progress["bad"])
        self.lost: int = progress["lost"]
        self._at = self._begin(skip_lost)

    def _begin(self, skip_lost: bool) -> dict[str, int]:
        """Begin to read at the stored positions, or the first ones; refuse a log that lacks
        messages. Returns the positions."""
        first, end = self._source.reach()
        at = {name: self._stored.get(name, first[name]) for name in first}
        for name, position in at.items():
            if position > end[name]:
                raise Conflict(
                    f"the log ends at {end[name]} and the store has counted up to {position}: it "
                    "is another log of the same name, or an older copy. Nothing was counted; put "
                    "the log back, or start a new stream"
                )
            if position < first[name]:
                lost = first[name] - position
                if not skip_lost:
                    raise InputError(
                        f"the log has deleted {lost} positions before they were counted, "
                        f"{position} to {first[name] - 1}. Keep messages longer, or continue "
                        "without them with --skip-lost, which counts them as lost"
                    )
                self.lost += lost
                at[name] = first[name]
        self._source.start(at)
        return at

    def round(
        self, now: int, wait: int = 0, progress: Progress = lambda messages, left: None
    ) -> tuple[range, int]:
        """Count all that the log holds now, then release the ticks that have ended `wait`
        microseconds ago. After every commit `progress` is told how many messages were counted and
        how many are left. Returns the released ticks, and how many messages were read."""
        number = 0
        if not self._fed.finished:
            _, end = self._source.reach()
            if set(end) - set(self._at):
                # a partition that was added begins with its first
                self._at = {**dict.fromkeys(end, 0), **self._at}
                self._source.start(self._at)
            progress(0, left := self._left(end))
            moved = monotonic()
            while left:
                messages = self._source.read(MOST_MESSAGES)
                if messages.bodies:
                    self._count(messages)
                    number += len(messages.bodies)
                if messages.after != self._at:
                    moved, self._at = monotonic(), dict(messages.after)
                if monotonic() - moved > STALL_SECONDS:
                    raise LogUnreachable(f"the log gave nothing for {STALL_SECONDS:g} seconds")
                progress(len(messages.bodies), left := self._left(end))
        # messages of other subjects were passed over
        if self._fed.due(now) and self._at != self._stored:
            nothing, _ = self._counter.count(Messages((), (), {}), self._fed.last_tick)
            self._commit(self._at, self.bad, nothing)
        return self._fed.close_due(now, wait), number

    @property
    def finished(self) -> bool:
        """Whether the horizon is reached."""
        return self._fed.finished

    def _left(self, end: Positions) -> int:
        return sum(max(0, place - self._at[name]) for name, place in end.items())

    def _count(self, messages: Messages) -> None:
        """Count messages, and set aside those that are not events; refuse all if most are none."""
        arrivals, bad = self._counter.count(messages, self._fed.last_tick)
        size = len(messages.bodies)
        reasons = Counter(reason for _, reason in bad)
        no_events = len(bad) - reasons[BAD[AFTER_END]]
        if size >= LEAST_JUDGED and 2 * no_events > size:
            raise InputError(
                f"{no_events} of {size} messages are not events ({reasons.most_common(1)[0][0]}): "
                "the producers have changed what they send. None of them were counted; the log is "
                "read again from there"
            )
        self._set_aside(messages, bad)
        self._commit(messages.after, self.bad + reasons, arrivals)

    def _set_aside(self, messages: Messages, bad: Sequence[tuple[int, str]]) -> None:
        """Bring the messages that are not events to the disk, as JSON lines for the operator's eyes
        (0600), before the commit of their batch: a crash in between leaves them there twice, with
        the same stream and position."""
        if self._rejects is None or not bad:
            return
        for number, reason in bad:
            partition, position = self._source.place(messages.orders[number])
            text = messages.bodies[number].decode(errors="backslashreplace")
            line = {
                "partition": partition,
                "position": position,
                "stream": self.declaration.name,
                "reason": reason,
                "message": text,
            }
            self._rejects.write(json.dumps(line).encode() + b"\n")
        self._rejects.flush()
        os.fsync(self._rejects.fileno())

    def _commit(self, after: Positions, bad: Counter[str], arrivals: Arrivals) -> None:
        """Commit what was counted, together with where the log goes on."""
        position = json.dumps({"next": dict(after), "bad": bad, "lost": self.lost}).encode()
        batch = SourceBatch(self._query, self._batch, self._new_log, position)
        if not self._fed.accept(batch, arrivals):
            raise Conflict(
                "another program counts the messages of this log for the same stream: run only one "
                "of them"
            )
        self._batch += 1
        self._stored = dict(after)
        self.bad = bad

    def close(self) -> None:
        self._counter.close()
        if self._rejects is not None:
            self._rejects.close()
