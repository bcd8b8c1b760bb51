"""`evercount release` as a program under audit: a CSV of events in, the published CSV out.

The secret is handed to the run in memory. It is in the state file, as every stream's is, and that lies in a temporary
folder that is removed with everything in it when the run ends.
"""

from __future__ import annotations

import csv
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from evercount.audit.library_door import stream_claim
from evercount.audit.program import Claim, Data, Published
from evercount.audit.universes import Universe, universe
from evercount.declare.columns import Columns
from evercount.declare.declaration import StreamDeclaration
from evercount.declare.schedule import Schedule
from evercount.errors import ParameterError
from evercount.files.release_run import Job, release_file
from evercount.noise import Secret
from evercount.privacy import Budget
from evercount.queries.base import Query
from evercount.queries.counts import Count, Sum
from evercount.queries.histogram import Histogram

START = "2026-01-01T00:00:00Z"
COLUMNS = ("time", "key", "value", "user")


class FilesProgram:
    """The file door: counts, sums and histograms of named keys, tick by tick an hour long.

    Args:
        query: Count, Sum or Histogram with named keys, one per event.
        budget: the promise.
        horizon: ticks of the stream, or None.
        factorization: by name; None for the default.
        runs_at: ticks after which the command runs, as cron would have it; it always runs after the last tick.
    """

    door = "files"
    unordered = False
    """Whether rows come in no order, so that a column must give it."""

    def __init__(
        self,
        query: Query,
        budget: Budget,
        horizon: int | None = None,
        factorization: str | None = None,
        *,
        runs_at: tuple[int, ...] = (),
    ) -> None:
        self.query, self.budget, self.horizon, self.factorization = query, budget, horizon, factorization
        self.runs_at = runs_at
        self.name = f"{self.door}: {query.name}"
        self.declaration = self._declared()
        self.universe = self._rows_universe()
        self.claim = cache(self._claim)

    def _rows_universe(self) -> Universe:
        """Events that are rows: a row always counts, and has exactly one key."""
        if type(self.query) is Count:
            return Universe((1,), tick=sum)
        if type(self.query) is Histogram:
            return Universe(tuple(self.query.labels[: len(self.query.parameters()["keys"])]))
        return universe(self.query)

    def _declared(self) -> StreamDeclaration:
        """The declaration of the command."""
        named = type(self.query) is Histogram
        if named:
            parameters = self.query.parameters()
            if isinstance(parameters["keys"], int):
                raise ParameterError(f"the door {self.door!r} counts named keys: give their names")
            if parameters["max_keys_per_event"] != 1 or parameters["removals"]:
                raise ParameterError("a row of a table names one key")
        elif type(self.query) not in (Count, Sum):
            raise ParameterError(
                f"the door {self.door!r} serves counts, sums and histograms of one key, not {self.query!r}"
            )
        columns = Columns(
            "time",
            "key" if named else None,
            "value" if type(self.query) is Sum else None,
            "user" if self.budget.unit == "user" else None,
            order="order" if self.budget.unit == "user" and self.unordered else None,
        )
        return StreamDeclaration(
            "audited",
            self.query,
            self.budget,
            Schedule.of("1h", START),
            horizon=self.horizon,
            factorization=self.factorization,
            columns=columns,
        )

    def _claim(self, ticks: int) -> Claim:
        return stream_claim(self.declaration.build(secret=Secret.generate()), ticks)

    def run(self, data: Data, secret: Secret) -> Published:
        """See `Program`."""
        with tempfile.TemporaryDirectory(prefix="evercount-audit-") as folder:
            events, out = Path(folder, "events.csv"), Path(folder, "out.csv")
            told = []
            for ticks in sorted({*self.runs_at, len(data)}):
                self._write(events, data[:ticks])
                now = self.declaration.schedule.start_of(ticks + 1)
                outcome = release_file(Job(str(events), self.declaration, str(out), now, secret=secret))
                told.append((outcome.first, outcome.last, outcome.guarantee, outcome.composed, outcome.next_end))
            with out.open(encoding="utf-8", newline="") as file:
                rows = list(csv.DictReader(file))
        return published_rows(rows, tuple(self.query.labels), told)

    def _write(self, path: Path, data: Data) -> None:
        """The events as rows; the same file grows from run to run."""
        with path.open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file)
            table.writerow(COLUMNS)
            table.writerows(self._rows(data))

    def _rows(self, data: Data) -> Iterator[tuple[Any, ...]]:
        """The events as rows of `COLUMNS`."""
        schedule = self.declaration.schedule
        for tick, events in enumerate(data, 1):
            moment = schedule.show(schedule.start_of(tick))
            for item in events:
                user, event = item if self.budget.unit == "user" else ("", item)
                yield self._row(moment, user, event)

    def _row(self, moment: str, user: str, event: Any) -> tuple[Any, ...]:
        if type(self.query) is Histogram:
            return moment, event[0] if isinstance(event, tuple) else event, "", user
        return moment, "", event, user


def published_rows(rows: list[dict[str, Any]], labels: tuple[str, ...], told: list[Any]) -> Published:
    """The numbers of a table of releases, sorted by tick and cell, and everything in it that is not a noisy number."""
    ticks = tuple(int(row["tick"]) for row in rows[:: len(labels)])
    values = np.asarray([float(row["value"]) for row in rows]).reshape(len(ticks), len(labels))
    facts = [(row["tick"], row["start"], row["cell"], row["std"]) for row in rows]
    halves = [round(float(row["high"]) - float(row["low"]), 6) for row in rows]
    return Published(ticks, labels, values, (tuple(facts), tuple(halves), tuple(told)))
