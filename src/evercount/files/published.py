"""All that a stream of files or frames has published: the table of its main view, and further views.

They follow from the published numbers, which the state keeps. `hourly.csv` has its view per-day in
`hourly.per-day.csv`, written anew by every run: it can be lost, deleted and made again at any time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC
from pathlib import Path
from typing import Any

import numpy as np

from evercount._arrays import FloatArray
from evercount._safe_files import new_mode, replaced
from evercount._validate import stated
from evercount.declarations.cautions import public_facts
from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.schedule import zone_named
from evercount.declarations.tick_marks import TickMark, with_marks
from evercount.declarations.view_names import all_of_view
from evercount.engine.carried_totals import CarriedTotals
from evercount.engine.press_table import describe_csv, round_table
from evercount.engine.release import Releases
from evercount.engine.release_table import ReleaseTable
from evercount.engine.revisions import by_day
from evercount.engine.stream import Stream
from evercount.engine.table_ticks import among
from evercount.engine.view_widths import RUNNING
from evercount.engine.write_table import write_tables
from evercount.errors import EvercountError, StoreError
from evercount.files.lake_table import append_new
from evercount.files.release_job import Job, output_kind
from evercount.privacy import counted_text
from evercount.queries.base import Query

CHARTS = (".png", ".svg", ".pdf")
MOST_CELLS_DRAWN = 8  # more lines could not be told apart; these are the first of the public list


@dataclass(frozen=True)
class Published:
    declaration: StreamDeclaration
    guarantee: str
    names: tuple[str, ...]  # views besides the main one
    level: float
    releases: Releases  # all ticks; none where each tick has keys of its own
    own: tuple[dict[str, Any], ...] = ()  # the tables as they were released, where `keeps_tables`
    full_digits: bool = True  # whether files have all digits
    marks: tuple[TickMark, ...] = ()  # what the operator says about ticks, in a store
    carried: CarriedTotals | None = None  # the running totals that the stream goes on from

    @classmethod
    def of(
        cls,
        job: Job,
        stream: Stream,
        numbers: FloatArray,
        tables: tuple[dict[str, Any], ...],
        marks: tuple[TickMark, ...] = (),
    ) -> Published:
        """What a stream has published, from its numbers as a state keeps them."""
        labels = stream.query.labels if stream.query.publishing.own_ticks else None
        releases = stream.read_back(numbers, labels=labels)
        views, digits = job.all_views, bool(job.full_digits)
        said = stream.guarantee_by(job.declaration.tick)
        return cls(job.declaration, said, views, job.level, releases, tables, digits, marks, job.carried)

    def view(self, name: str) -> ReleaseTable:
        schedule = self.declaration.schedule
        table = all_of_view(self.releases, name, schedule, self.level, self.declaration.view_postprocess)
        if self.carried is not None and name == RUNNING:
            table = self.carried.add_to(table, self.releases._errors, self.level)
        if self.own:
            first = self.declaration.query.labels
            found = sorted({cell for part in self.own for cell in part["cells"]} - set(first))
            parts = [ReleaseTable(part["ticks"], None, part["cells"], part["numbers"]) for part in self.own]
            numbers = np.concatenate([among(part, [*first, *found]).numbers for part in parts])
            ticks = np.concatenate([part.ticks for part in parts])
            starts = [schedule.start_of(tick) for tick in ticks.tolist()]
            table = ReleaseTable(ticks, starts, [*first, *found], numbers)
        return replace(with_marks(table, self.marks, name), clock=schedule, guarantee=self.guarantee)

    def output(self) -> ReleaseTable:
        """What the main output has: one view; of a stream whose ticks are revised, all that was ever published."""
        if self.declaration.revise_for is None:
            return self.view(self.declaration.shown)
        starts = self.declaration.schedule.starts_of
        released = self.releases.table(self.level, starts(1, len(self.releases)))
        table = by_day(released, self.releases.query, starts)
        return replace(with_marks(table, self.marks, self.declaration.shown), clock=self.declaration.schedule)

    def table(self) -> ReleaseTable:
        return replace(self.view(self.declaration.shown), views={name: self.view(name) for name in self.names})


def fill_lake(job: Job, stream: Stream, numbers: FloatArray, tables: tuple[dict[str, Any], ...]) -> None:
    """Append to the table of a lake what is committed and not there."""
    if job.lake is not None and not job.check:
        declaration = job.declaration
        view = Published.of(job, stream, numbers, tables).view(declaration.shown)
        append_new(job.lake, declaration.name, [view], declaration.schedule, stream.guarantee_by(declaration.tick))


def keeps_tables(query: Query) -> bool:
    """Whether released tables do not follow from their values: each tick has keys of its own, or errors follow from
    sums that are not published."""
    return query.publishing.own_ticks or (query.publishing.kept is not None and query.discovery is None)


def own_tables(tables: Iterable[ReleaseTable]) -> tuple[dict[str, Any], ...]:
    return tuple({"ticks": one.ticks, "cells": list(one.cells), "numbers": one.numbers} for one in tables)


def view_path(output: Path, name: str) -> Path:
    return output.with_name(f"{output.stem}.{name}{output.suffix}")


def write_views(output: Path, published: Published, *, main: bool = False) -> list[Path]:
    """Write the further views next to the output, with `main` also that itself, and what readers of a CSV must know.
    Each file is complete or as it was before."""
    paths = [view_path(output, name) for name in published.names]
    tables = [(published.output(), output)] if main else []
    tables += [(published.view(name), path) for name, path in zip(published.names, paths, strict=True)]
    for table, path in tables:
        metadata = {"evercount.guarantee": published.guarantee}
        schedule = published.declaration.schedule
        try:
            with replaced(path, new_mode(path)) as file:
                shown = table if published.full_digits else round_table(table)
                write_tables(output_kind(output.name), file, [shown], schedule, metadata)
        except OSError as error:
            raise StoreError(f"{output} is published; its view {path} cannot be written: {error.strerror}") from error
    one, digits, carried = published.declaration, published.full_digits, published.carried
    facts = public_facts(one, published.guarantee, published.marks, full_digits=digits, carried=carried)
    for path in (output, *paths):
        describe_file(path, facts, published.level)
    return paths


def description_path(table: Path) -> Path:
    """Of a CSV: `flu.csv.meta.json`."""
    return table.with_name(f"{table.name}.meta.json")


def describe_file(path: Path, facts: Mapping[str, Any], level: float) -> None:
    """Write next to a CSV what readers must know (`public_facts`), as CSV on the Web."""
    if output_kind(path.name) != "csv":
        return
    target = description_path(path)
    try:
        with path.open("rb") as file:
            columns = file.readline().decode().strip().split(",")
        _write_json(target, describe_csv(path.name, columns, facts, level))
    except OSError as error:
        raise StoreError(f"{path} is published; {target} cannot be written: {error.strerror}") from error


def _write_json(path: Path, said: Mapping[str, Any]) -> None:
    with replaced(path, new_mode(path)) as file:
        file.write(json.dumps(said, indent=1, ensure_ascii=False).encode() + b"\n")


def rename_description(path: Path) -> None:
    """Let the copy of a description, where this path is one, name the copy of its table."""
    table = path.name.removesuffix(".meta.json")
    if table != path.name:
        _write_json(path, json.loads(path.read_text(encoding="utf-8")) | {"url": table})


def draw_releases(published: Published, target: Path, scratch: Path) -> tuple[int, int]:
    """Draw the first cells of what is published, with a title that states the promise, over the starts of the ticks.
    Returns how many cells are drawn, and how many there are."""
    from evercount.plotting import band_plot

    declaration, level = published.declaration, published.level
    schedule, table = declaration.schedule, published.view(declaration.shown)
    everything = table.cells
    labels = everything[:MOST_CELLS_DRAWN]
    values, _, low, high = (table.numbers[:, part, : len(labels)] for part in range(4))
    starts = np.asarray([schedule.start_of(tick) for tick in table.ticks.tolist()], "datetime64[us]")
    drawn = scratch / target.name
    zone = None if zone_named(schedule.zone) is UTC else zone_named(schedule.zone)
    try:
        title = chart_title(declaration, len(labels), len(everything), level)
        shown = (table.ticks, values, low, high, labels)
        band_plot(*shown, drawn, title=title, times=starts, zone=zone, left=table.left)
        with replaced(target, new_mode(target)) as file:
            file.write(drawn.read_bytes())
    except (OSError, ValueError) as error:
        raise EvercountError(f"the ticks are published; their chart could not be written: {error}") from error
    return len(labels), len(everything)


def chart_title(declaration: StreamDeclaration, drawn: int, cells: int, level: float) -> str:
    """What the chart shows, what it promises, and which cells are left out.

    >>> flu = StreamDeclaration.from_dict({"name": "flu", "query": "count", "tick": "1h",
    ...     "budget": {"epsilon": 1, "delta": 1e-9}})
    >>> print(chart_title(flu, 1, 1, 0.95))
    flu: count, per-tick, ticks of 1h; ε = 1, δ = 0 per event for all ticks together
    band: 95% interval per number
    """
    budget = declaration.budget
    name = f"{declaration.name}: " if declaration.name != "release" else ""
    whom = budget.unit if budget.period is None else f"{budget.unit} and {budget.period}"
    promise = f"ε = {stated(budget.epsilon)}, δ = {stated(budget.delta)} per {whom} for all ticks together"
    some = f"the first {drawn} of {cells} cells; " if drawn < cells else ""
    what = f"{name}{declaration.query.name}, {declaration.shown}, ticks of {declaration.schedule.tick}; {promise}"
    counted = " of counted events" if counted_text(budget) else ""
    return f"{what}\n{some}band: {level:.0%} interval per number{counted}"
