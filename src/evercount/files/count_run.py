"""The rows of a run: which count in its ticks, and which are bad or late."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from evercount.errors import BadRows, ParameterError, StoreError
from evercount.files.bad_rows import MOST_SHOWN, LateRows, Reject, find_rejects, write_rejects
from evercount.files.count_rows import CountedRows, count
from evercount.files.dropped_events import DroppedEvents, dropped_events
from evercount.files.event_sql import columns_of
from evercount.files.frame_source import frame_source
from evercount.files.new_rows import split_new
from evercount.files.resume_run import Run
from evercount.files.source import Prefix, SeenRows, Source, open_source


@dataclass(frozen=True)
class Counted:
    """What a run counts. Secret."""

    rows: CountedRows
    shown: tuple[Reject, ...]
    consumed: dict[str, Prefix]  # with late=next and late=revise, how much of each file the counts come from
    seen: dict[str, SeenRows]
    dropped: DroppedEvents | None


def count_rows_of(run: Run, stdin: IO[bytes] | None) -> Counted:
    """Count the due ticks, and report rows that do not count.

    Why every row counts once. late=drop: a row counts in the run that releases the tick of its time, and a tick is
    released by one run. late=next, late=revise: call a row new in the first run whose copy of the files holds it and
    which releases something. If the tick of its time is still open then, it counts with that tick, in whichever run
    releases it. If it is closed, the row counts in this run, in the first open tick (revise: for its own); later runs
    find it inside the prefix that was consumed and its tick closed, and leave it alone. The prefixes are advanced only
    by a commit, together with the ticks.
    """
    job, before = run.job, run.before
    sources: tuple[Source, ...] = tuple(
        open_source(name, run.scratch, job.delimiter, stdin, number=number) for number, name in enumerate(job.files)
    ) or (frame_source(job.file, columns_of(run.declaration).used, run.scratch),)
    shown, seen = _write_rejects(run, sources)
    late: tuple[Source, ...] = ()
    consumed: dict[str, Prefix] = {}
    if run.declaration.late != "drop":
        if job.files == ("-",) or sources[0].kind == "frame":
            raise ParameterError(
                f"`late` {run.declaration.late} needs files that only grow, to tell late rows from rows that were "
                "counted; use `late` drop for data frames and standard input"
            )
        split = split_new(sources, run.scratch, (before.consumed or None) if before else None)
        sources, late, consumed = split.files, split.new, split.consumed
    users = before.users if before else run.handed_on
    rows = count(sources, run.declaration, run.first, run.stop, run.scratch, late=late, users=users)
    dropped = None
    if job.check and columns_of(run.declaration).user is not None and run.declaration.revise_for is None:
        dropped = dropped_events(sources, run.declaration, run.first, run.stop, run.scratch)
    if rows.bad and shown is None:
        shown = tuple(itertools.islice(find_rejects(sources, run.declaration, run.scratch), MOST_SHOWN))
    if rows.bad and not job.skip_bad:
        raise BadRows(sources[0].name if len(sources) == 1 else f"{len(sources)} files", rows.bad, shown or ())
    return Counted(rows, (shown or ()) if rows.bad else (), consumed, seen, dropped)


def _write_rejects(run: Run, sources: tuple[Source, ...]) -> tuple[tuple[Reject, ...] | None, dict[str, SeenRows]]:
    """Write --rejects, before anything is counted: rows that come in between may be called late, never forgotten.
    Returns the first bad rows (None without --rejects), and what was read."""
    job = run.job
    if job.rejects is None:
        return None, {}
    for source in sources:
        source.require(*columns_of(run.declaration).used)
    late = LateRows(run.first, run.before.seen if run.before else {}) if run.declaration.late == "drop" else None
    try:
        shown = write_rejects(Path(job.rejects), find_rejects(sources, run.declaration, run.scratch, late))
    except OSError as error:
        raise StoreError(f"`rejects` {job.rejects} cannot be written: {error.strerror}") from error
    return tuple(shown), {} if late is None else late.now
