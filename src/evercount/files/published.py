"""What a stream has published so far, as tables for files, charts, lakes and Python.

All of it follows from the published numbers, which a keeper has.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from evercount.declarations.tick_marks import TickMark, with_marks
from evercount.declarations.view_names import all_of_view, stack_rows
from evercount.engine.build import RUNNING
from evercount.engine.carried_totals import CarriedTotals
from evercount.engine.release import Releases
from evercount.engine.release_table import ReleaseTable
from evercount.engine.revisions import by_day
from evercount.engine.stream import Stream
from evercount.engine.write_table import among
from evercount.files.keeper import Keeper
from evercount.files.lake_table import append_new
from evercount.files.release_job import Job
from evercount.queries.base import Query


@dataclass(frozen=True, eq=False)
class Publication:
    """All that a stream has published. Numbers are read when they are asked for, once."""

    job: Job
    keeper: Keeper
    stream: Stream
    # what the operator says about ticks
    marks: tuple[TickMark, ...]
    # the running totals that it goes on from
    carried: CarriedTotals | None

    @property
    def guarantee(self) -> str:
        return self.stream.guarantee_by(self.job.declaration.tick)

    @cached_property
    def releases(self) -> Releases:
        """All ticks; none if each tick has keys of its own."""
        stream = self.stream
        if stream.query.publishing.own_ticks:
            labels = stream.query.labels
            return stream.read_back(np.empty((0, len(labels))), labels=labels)
        numbers = np.empty((0, len(stream.labels)))
        if stream.tick:
            numbers = stack_rows(self.keeper.published(), numbers)  # keys may have joined since
        return stream.read_back(numbers)

    @property
    def main(self) -> ReleaseTable:
        """The view that the output shows."""
        return self.view(self.job.declaration.main_view)

    def view(self, name: str) -> ReleaseTable:
        schedule = self.job.declaration.schedule
        table = self.own_table()
        if table is None:
            postprocess = self.job.declaration.view_postprocess
            table = all_of_view(self.releases, name, schedule, postprocess)
            if self.carried is not None and name == RUNNING:
                table = self.carried.add_to(table, self.releases._errors)
        marked = with_marks(table, self.marks, name)
        return replace(marked, clock=schedule, guarantee=self.guarantee)

    def own_table(self) -> ReleaseTable | None:
        """The tables that were released, as one, if they do not follow from the numbers."""
        parts = self.keeper.own_tables()
        if not parts:
            return None
        declaration = self.job.declaration
        listed = declaration.query.labels
        discovered = sorted({cell for part in parts for cell in part["cells"]} - set(listed))
        cells = [*listed, *discovered]
        numbers, ticks = [], []
        for part in parts:
            table = ReleaseTable(part["ticks"], None, part["cells"], part["numbers"])
            numbers.append(among(table, cells).numbers)
            ticks.append(table.ticks)
        all_ticks = np.concatenate(ticks)
        starts = [declaration.schedule.start_of(tick) for tick in all_ticks.tolist()]
        return ReleaseTable(all_ticks, starts, cells, np.concatenate(numbers))

    def output(self) -> ReleaseTable:
        """What the main output has: one view; of a stream whose ticks are revised, all that was
        ever published."""
        declaration = self.job.declaration
        if declaration.revise_for is None:
            return self.main
        starts = declaration.schedule.starts_of
        released = self.releases.table(starts=starts(1, len(self.releases)))
        table = by_day(released, self.releases.query, starts)
        marked = with_marks(table, self.marks, declaration.main_view)
        return replace(marked, clock=declaration.schedule)

    def table(self) -> ReleaseTable:
        views = {name: self.view(name) for name in self.job.all_views}
        return replace(self.main, views=views)

    def fill_lake(self) -> None:
        """Append to the table of a lake what is committed and not there."""
        job = self.job
        if job.lake is None or job.check:
            return
        name = self.keeper.name_in_lakes(job.declaration, renewing=False)
        append_new(job.lake, name, [self.main], job.declaration.schedule, self.guarantee)


def keeps_tables(query: Query) -> bool:
    """Whether released tables do not follow from their values: each tick has keys of its own, or
    errors follow from sums that are not published."""
    publishing = query.publishing
    if publishing.own_ticks:
        return True
    return publishing.kept is not None and query.discovery is None


def own_tables(tables: Iterable[ReleaseTable]) -> tuple[dict[str, Any], ...]:
    """Tables as a keeper keeps them."""
    return tuple(
        {"ticks": table.ticks, "cells": list(table.cells), "numbers": table.numbers}
        for table in tables
    )
