"""LogConsumer: messages of a log → totals in the store, together with where the log goes on → due ticks released.

One round reads all that the log held when it began, and then closes the ticks that had ended by then. So a tick is
closed only after everything that the log held at its end was counted, also after days without a run.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import IO, Any

from evercount._safe_files import open_private, replaced
from evercount.consume.count_messages import AFTER_END, BAD, CountedMessages, MessageCounter
from evercount.consume.log_source import LogSource, Messages, Positions
from evercount.declarations.declaration import StreamDeclaration
from evercount.errors import Conflict, InputError, LogUnreachable, ParameterError
from evercount.store import Store
from evercount.store.accept_totals import FedStream

MOST_MESSAGES = 20_000  # messages that are counted and committed together
LEAST_JUDGED = 1000  # in batches of so many messages most must be events: else producers changed what they send
STALL_SECONDS = 30.0
Progress = Callable[[int, int], None]


def silent(_counted: int, _left: int) -> None:
    """Tell nobody."""


@dataclass(frozen=True)
class LogRound:
    """What one round has done. For the operator, but for the ticks, which are public."""

    ticks: range  # the ticks that were released
    messages: int  # messages that were read
    bad: Mapping[str, int]  # all messages so far that were set aside, for each reason
    finished: bool  # whether the horizon is reached


class LogConsumer:
    """Feeds one stream of a store from one log. `now` is in microseconds since 1970, `scratch` a private folder.

    With `new_log` the log may be new although the stream was fed from another one: it then holds no event that was
    counted already. With `skip_lost` it goes on where the log has deleted messages before they were counted.

    **Guarantee.** Every message counts once: where the log goes on is committed in the transaction that adds the
    messages' totals (`store/accept_totals.py`), and nothing else remembers it. After a crash the log is read from
    there; a second consumer's batch has a number that is taken, and is refused. Assumption: the log gives the same
    messages under the same positions. Tests: tests/consume/test_consume_log.py and
    tests/contracts/test_kill_all_doors.py.
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
        self._source, self._new_log = source, new_log
        self._fed = FedStream(store, declaration, now)
        self.declaration = self._fed.declaration
        self._query = "log " + hashlib.blake2b(source.identity.encode(), digest_size=16).hexdigest()
        known, position = self._fed.last_batches(), self._fed.position(self._query)
        if known and self._query not in known and not new_log:
            raise Conflict(
                f"stream {declaration.name!r} was fed from another source, and this log is new to it: events that were "
                "counted already would count again. Name the old log; or, if this one holds new events only, say so "
                "with --new-log"
            )
        self._batch = known.get(self._query, -1) + 1
        kept: dict[str, Any] = {"next": {}, "bad": {}, "lost": 0} if position is None else json.loads(position)
        self._stored: dict[str, int] = kept["next"]
        self.bad: Counter[str] = Counter(kept["bad"])
        self.lost: int = kept["lost"]
        self._at = self._begin(skip_lost)
        self._rejects = None if rejects is None else Rejects(rejects, self._stored)

    def _begin(self, skip_lost: bool) -> dict[str, int]:
        """Where to read from: the stored positions, or the first one; refused where messages are gone."""
        first, end = self._source.reach()
        at = {name: self._stored.get(name, first[name]) for name in first}
        for name, position in at.items():
            if position > end[name]:
                raise Conflict(
                    f"the log ends at {end[name]} and the store has counted up to {position}: it is another log of the "
                    "same name, or an older copy. Nothing was counted; put the log back, or start a new stream"
                )
            if position < first[name]:
                gone = first[name] - position
                if not skip_lost:
                    raise InputError(
                        f"the log has deleted {gone} positions before they were counted, {position} to "
                        f"{first[name] - 1}. Keep messages longer, or continue without them with --skip-lost, which "
                        "counts them as lost"
                    )
                self.lost += gone
                at[name] = first[name]
        self._source.start(at)
        return at

    def round(self, now: int, wait: int = 0, progress: Progress = silent) -> LogRound:
        """Count all that the log holds now, then release the ticks that have ended `wait` microseconds ago. After every
        commit `progress` is told how many messages were counted and how many are left."""
        number = 0
        if not self._fed.finished:
            _, end = self._source.reach()
            if set(end) - set(self._at):
                self._at = {**dict.fromkeys(end, 0), **self._at}  # a partition that was added begins with its first
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
        if self._fed.due(now) and self._at != self._stored:  # messages of other subjects were passed over
            self._commit(self._at, self.bad, self._counter.count(Messages((), (), {}), self._fed.last_tick))
        return LogRound(self._fed.close_due(now, wait), number, dict(self.bad), self._fed.finished)

    def _left(self, end: Positions) -> int:
        return sum(max(0, place - self._at[name]) for name, place in end.items())

    def _count(self, messages: Messages) -> None:
        found = self._counter.count(messages, self._fed.last_tick)
        size, reasons = len(messages.bodies), Counter(reason for _, reason in found.bad)
        no_events = len(found.bad) - reasons[BAD[AFTER_END]]
        if size >= LEAST_JUDGED and 2 * no_events > size:
            raise InputError(
                f"{no_events} of {size} messages are not events ({reasons.most_common(1)[0][0]}): the producers "
                "have changed what they send. None of them were counted; the log is read again from there"
            )
        if self._rejects is not None and found.bad:
            self._rejects.add(self._source, messages, found)
        self._commit(messages.after, self.bad + reasons, found)

    def _commit(self, after: Positions, bad: Counter[str], found: CountedMessages) -> None:
        position = json.dumps({"next": dict(after), "bad": bad, "lost": self.lost}).encode()
        if not self._fed.accept(self._query, self._batch, found, self._new_log, position):
            raise Conflict("another program counts the messages of this log for the same stream: run one of them")
        self._batch += 1
        self._stored, self.bad = dict(after), bad

    def close(self) -> None:
        self._counter.close()
        if self._rejects is not None:
            self._rejects.close()


class Rejects:
    """Messages that are not events, as JSON lines for the operator's eyes (0600), each once. They are written before
    the commit of their batch. What a crash left there of a batch that was not committed is removed when the file is
    opened again."""

    def __init__(self, path: Path, stored: Positions) -> None:
        if path.exists():
            lines = path.read_bytes().splitlines(True)
            kept = [line for line in lines if _is_counted(path, line, stored)]
            if len(kept) < len(lines):
                with replaced(path) as file:
                    file.writelines(kept)
        self._file: IO[bytes] = os.fdopen(open_private(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND), "ab")

    def add(self, source: LogSource, messages: Messages, found: CountedMessages) -> None:
        """Append the bad messages of a batch, and bring them to the disk."""
        for number, reason in found.bad:
            partition, position = source.place(messages.orders[number])
            text = messages.bodies[number].decode(errors="backslashreplace")
            line = {"partition": partition, "position": position, "reason": reason, "message": text}
            self._file.write(json.dumps(line).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _is_counted(path: Path, line: bytes, stored: Positions) -> bool:
    """Whether a line is of a message that the store has passed; one without an end was being written."""
    try:
        row = json.loads(line)
        return bool(row["position"] < stored.get(row["partition"], 0)) and line.endswith(b"\n")
    except (ValueError, KeyError, TypeError):
        if line.endswith(b"\n"):
            raise ParameterError(f"{path} is not a file of rejected messages: choose another name") from None
        return False
