"""Counting: messages of a log, each a JSON object → what each tick adds to each cell, by the SQL of the file door."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from evercount._arrays import IntArray
from evercount.consume.log_source import Messages
from evercount.declarations.declaration import StreamDeclaration
from evercount.engine.tick_totals import TickTotals
from evercount.files.event_sql import NO_ORDER, REASONS, columns_of, is_valued, placed, prepare
from evercount.files.source import Source, arrow, connect
from evercount.queries.capabilities import rows_of
from evercount.store.accept_totals import Counted, check_fed
from evercount.store.named_events import NamedEvents, UserEvents

TOO_FAR, AFTER_END = NO_ORDER + 1, NO_ORDER + 2
BAD = {**REASONS, TOO_FAR: "a time too many ticks ahead of the open one", AFTER_END: "after the end of the stream"}


@dataclass(frozen=True, eq=False)
class CountedMessages(Counted):
    """What messages add up to. Secret."""

    bad: Sequence[tuple[int, str]] = field(default_factory=tuple)  # number (from 0) and reason of each


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
        self._source = _Batch(scratch / "none", "the log", "jsonl", "none", used, ("VARCHAR",) * len(used))
        self._connection = connect(scratch)
        self._names: list[str] = []
        self._none = TickTotals.none(declaration.query.cells)
        if declaration.query.discovery is None:
            prepare(self._connection, declaration, (self._source,))

    def close(self) -> None:
        self._connection.close()

    def count(self, messages: Messages, last: int) -> CountedMessages:
        """Add up messages: those of ticks after `last` or after the horizon are bad.

        **Guarantee.** One message adds to one cell of one tick, by its own time, key and value alone: the promise of
        `files.count_rows.count`, with its SQL. Test: tests/consume/test_consume_log.py.
        """
        pa: Any = arrow()
        lines = _lines(messages.bodies)
        self._source = _like(self._source, lines)
        self._connection.register("messages", pa.table({"line": pa.array(lines, pa.string())}))
        try:
            if self._declaration.query.discovery is not None:
                self._connection.execute("DROP TYPE IF EXISTS cell_key; DROP TABLE IF EXISTS cell_name")
                self._names = prepare(self._connection, self._declaration, (self._source,))
            if self._declaration.query.people is not None or self._declaration.budget.unit == "user":
                return self._users(messages, last)
            return self._totals(last)
        finally:
            self._connection.unregister("messages")

    def _placed(self, last: int, number: bool) -> str:
        """SQL: the rows with their place: a tick or −reason."""
        horizon = self._declaration.horizon
        until = last if horizon is None else min(last, horizon)
        rows = placed(self._source, self._declaration, 1, until + 1, number=number)
        beyond = AFTER_END if until == horizon else TOO_FAR
        return f"SELECT * REPLACE (coalesce(place, -{beyond}) AS place) FROM ({rows})"

    def _totals(self, last: int) -> CountedMessages:
        units = "sum(units)::BIGINT" if is_valued(self._declaration) else "0::BIGINT"
        found = self._connection.execute(
            f"SELECT place, cell, count(*) AS events, {units} AS total FROM ({self._placed(last, False)}) "
            "GROUP BY place, cell ORDER BY place, cell"
        ).fetchnumpy()
        place, cell, events, total = (_numbers(found[name]) for name in ("place", "cell", "events", "total"))
        good = place > 0
        bad = () if good.all() else self._bad(last)
        if self._declaration.query.discovery is not None:
            names = [self._names[place] for place in cell[good].tolist()]
            return CountedMessages(self._none, None, [NamedEvents(place[good], names, events[good, None])], bad)
        sums = rows_of(self._declaration.query).totals(place[good], cell[good], events[good], total[good])
        return CountedMessages(TickTotals.of(self._declaration.query.cells, *sums), bad=bad)

    def _users(self, messages: Messages, last: int) -> CountedMessages:
        """The events with their users: those that a cap may keep, or each counted user once for each tick and key."""
        counts_users = self._declaration.query.people is not None
        own_order = columns_of(self._declaration).order is not None
        most, each, _ = self._declaration.budget.caps
        limit = min(filter(None, (most, each)), default=len(messages.bodies))
        among, turn = ("place, who, cell", "row_number()") if counts_users else ("place, who", "rank()")
        found = self._connection.execute(
            f"SELECT place, cell, units, who, us, n, o FROM ({self._placed(last, True)}) QUALIFY place < 0 OR {turn} "
            f"OVER (PARTITION BY {among} ORDER BY us, {'o' if own_order else 'n'}) <= {1 if counts_users else limit} "
            "ORDER BY n"
        ).fetchnumpy()
        good = _numbers(found["place"]) > 0
        place, cell, units, time, number, order = (
            _numbers(found[name])[good] for name in ("place", "cell", "units", "us", "n", "o")
        )
        bad, who = () if good.all() else self._bad(last), found["who"][good].tolist()
        if not own_order:
            order = np.asarray(messages.orders, np.int64)[number - 1]
        if counts_users:
            named = NamedEvents(place, who, np.stack([cell, time, order], axis=1))
            return CountedMessages(self._none, None, [named], bad)
        keys, cell = _renumbered(cell, self._names)
        return CountedMessages(self._none, UserEvents(place, who, time, order, cell, units, keys=keys), bad=bad)

    def _bad(self, last: int) -> list[tuple[int, str]]:
        bad = f"SELECT n, place FROM ({self._placed(last, True)}) WHERE place < 0 ORDER BY n"
        return [(n - 1, BAD[-place]) for n, place in self._connection.execute(bad).fetchall()]


def _like(source: _Batch, lines: Sequence[str]) -> _Batch:
    """The source with the fields of the first message, if they are the declared ones: most others have the same."""
    try:
        names = tuple(json.loads(lines[0]))
    except (IndexError, TypeError, ValueError, RecursionError):
        return source
    same = set(source.columns) <= set(names)
    return replace(source, columns=names, types=("VARCHAR",) * len(names)) if same else source


def _renumbered(cell: IntArray, names: Sequence[str]) -> tuple[list[str], IntArray]:
    """The names of the cells that came, and each cell's place among them; without names the cells as they are."""
    if not names:
        return [], cell
    places, at = np.unique(cell, return_inverse=True)
    return [names[place] for place in places.tolist()], at.reshape(-1)


def _numbers(column: Any) -> IntArray:
    return np.ma.filled(column, 0).astype(np.int64)


def _lines(bodies: Sequence[bytes]) -> list[str]:
    """Each message as one line; what is not UTF-8 or blank becomes a line that is not JSON."""
    lines = []
    for body in bodies:
        try:
            line = body.decode()
            if "\n" in line:
                json.loads(line)  # then line ends are between the parts of the JSON text, not inside a string
                line = line.replace("\n", " ")
        except (ValueError, RecursionError):
            line = ""
        lines.append(line if line.strip(" \t\r\n") else "?")
    return lines
