"""`evercount release` as a program under audit: a CSV of events in, the published CSV out.

The secret is handed to the run in memory. It is in the state file, as every stream's is, and that lies in a temporary
folder that is removed with everything in it when the run ends.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evercount._arrays import FloatArray
from evercount.audit.library_door import DoorProgram
from evercount.audit.program import Data, Published, parts_of, published_table
from evercount.audit.universes import universe_of_rows
from evercount.declarations.columns import Columns
from evercount.declarations.declaration import StreamDeclaration
from evercount.engine.stream import Stream
from evercount.engine.view_widths import RUNNING
from evercount.errors import ParameterError
from evercount.files.release_job import Job
from evercount.files.release_run import release_file
from evercount.noise import Secret
from evercount.queries.base import Query
from evercount.queries.capabilities import rows_of

START = "2026-01-01T00:00:00Z"


class FilesProgram(DoorProgram):
    """The file door: every query whose events can be rows, tick by tick an hour long."""

    door = "files"
    unordered = False  # whether rows come in no order, so that a column must give it

    def __init__(self, *declared: Any, **rest: Any) -> None:
        super().__init__(*declared, **rest)
        self.parts = parts_of(self.query, self.budget.pure)
        self.declaration = self._declare()

    def _declare(self) -> StreamDeclaration:
        rows = self.query.rows
        if rows is None:
            raise ParameterError(f"--door {self.door} takes queries whose events are rows, not {self.query!r}")
        self.universe, columns = universe_of_rows(self.query), rows.columns
        self.levels = tuple(f"level {place + 1}" for place in range(rows.levels))
        users = self.budget.unit == "user"
        key, value = (name if name in columns else None for name in ("key", "value"))
        user, order = "user" if users or "user" in columns else None, "order" if users and self.unordered else None
        return StreamDeclaration(
            "audited", self.query, self.budget, "1h", START, horizon=self.horizon, factorization=self.factorization,
            columns=Columns("time", key, value, user, order=order, levels=self.levels),
            noise_for=(RUNNING,),  # the claim is about running sums; other views are differences of them
        )  # fmt: skip

    def open(self, secret: Secret) -> Stream:
        return self.declaration.build(secret=secret)

    def run(self, data: Data, secret: Secret) -> Published:
        with tempfile.TemporaryDirectory(prefix="evercount-audit-") as folder:
            events, out = Path(folder, "events.csv"), Path(folder, "out.csv")
            told = []
            for ticks in sorted({*self.restarts, len(data)}):
                self._write(events, data[:ticks])
                now = self.declaration.schedule.start_of(ticks + 1)
                outcome = release_file(Job(str(events), self.declaration, str(out), now, secret=secret))
                told.append((outcome.first, outcome.last, outcome.guarantee, outcome.composed, outcome.next_end))
            with out.open(encoding="utf-8", newline="") as file:
                rows = list(csv.DictReader(file))
        return published_rows(self.query, self.parts, rows, told)

    def _write(self, path: Path, data: Data) -> None:
        """The events as rows; the same file grows from run to run."""
        with path.open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file)
            table.writerow(("time", "key", "value", "user", *self.levels))
            table.writerows(self._rows(data))

    def _rows(self, data: Data) -> Iterator[tuple[Any, ...]]:
        """The events as rows of time, key, value, user and levels."""
        schedule = self.declaration.schedule
        for tick, events in enumerate(data, 1):
            moment = schedule.show(schedule.start_of(tick))
            for item in events:
                user, event = item if self.names_users else ("", item)
                yield moment, *self._row(user, event)

    def _row(self, user: str, event: Any) -> tuple[Any, ...]:
        """key, value, user and levels of an event."""
        columns = rows_of(self.query).columns
        if self.query.people is not None:
            return (event[1], "", event[0]) if "key" in columns else ("", "", event)
        if self.levels:
            return "", "", user, *event
        if "key" in columns:
            return event[0] if isinstance(event, tuple) else event, "", user
        return "", event, user


def published_rows(query: Query, parts: FloatArray | None, rows: list[dict[str, Any]], told: list[Any]) -> Published:
    """The numbers of a table of releases, and everything in it that is not a noisy number."""
    ticks = tuple(dict.fromkeys(int(row["tick"]) for row in rows))
    by_tick = {tick: dict[str, float]() for tick in ticks}
    for row in rows:
        by_tick[int(row["tick"])][row["cell"]] = float(row["value"])
    labels, values = published_table(query, parts, list(by_tick.values()))
    facts = [(row["tick"], row["start"], row["cell"], row["std"]) for row in rows]
    # intervals of discovered keys are not symmetric, and follow from the numbers
    halves = [] if query.publishing.kept else [round(float(row["high"]) - float(row["low"]), 6) for row in rows]
    return Published(ticks, labels, values, (tuple(facts), tuple(halves), tuple(told)))
