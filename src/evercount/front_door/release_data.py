"""`release`: a data frame or files in, a table out; and `plan`: which errors it will have. The
command `evercount release` calls `run`.

An option of a run is a line of `ReleaseOptions` and a line of the docstring of `release`, as in
`declare_stream.py`.
"""

from __future__ import annotations

import re
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from evercount._validate import check_kind
from evercount.errors import InputError, ParameterError, UnknownName
from evercount.front_door.declare_stream import (
    NEEDED,
    Declared,
    Moment,
    check_declaration,
    declare,
    listed_keys,
    listed_names,
    refuse_missing,
    with_options,
)
from evercount.front_door.missing_parts import missing_extra

if TYPE_CHECKING:
    from evercount.declarations.declaration import StreamDeclaration
    from evercount.engine.release_table import ReleaseTable
    from evercount.files.release_job import Outcome
    from evercount.noise import Secret
    from evercount.planning.plan_views import ViewPlan

PATHS = ("out", "state", "db", "rejects", "ledger", "plot", "lake")
FLAGS = ("skip_bad", "check", "new_noise_stream", "renew", "carry_totals", "full_digits")


class ReleaseOptions(Declared, total=False):
    """What `release` takes; its docstring says what the other options mean."""

    out: str | Path | None
    state: str | Path | None
    end: Moment | None
    now: Moment | None
    delimiter: str | None
    skip_bad: bool
    rejects: str | Path | None
    check: bool
    new_noise_stream: bool
    db: str | Path | None
    renew: bool
    carry_totals: bool
    ledger: str | Path | None
    total: str | tuple[float, float] | None
    plot: str | Path | None
    add_keys: str | Path | Sequence[Any] | None
    add_keys_from: Moment | None
    remove_keys: str | Path | Sequence[Any] | None
    full_digits: bool
    notes: str | Sequence[Any] | None
    lake: str | None
    secret: Secret | None
    progress: Callable[[str, int, int], None] | None


def run(
    data: Any, declaration: StreamDeclaration | None = None, **options: Unpack[ReleaseOptions]
) -> Outcome:
    """What `release` does, with all that is to be said about it. The table is made when it is asked
    for."""
    from evercount.declarations.cautions import cautions
    from evercount.declarations.schedule import parse_time, zone_named
    from evercount.engine.add_keys import label_of
    from evercount.files.release_job import Job
    from evercount.files.release_run import release_file
    from evercount.files.source import expand_inputs
    from evercount.noise import Secret

    declared: Declared = {name: options[name] for name in options.keys() & Declared.__annotations__}  # type: ignore
    zone_given = declaration is not None or declared.get("zone") is not None
    if declaration is not None:
        check_declaration(declaration)
        if said := [
            f"`{name}`"
            for name, value in declared.items()
            if not (value is None or value is False or name == "views")
        ]:
            raise ParameterError(f"the declaration says that already: omit {', '.join(said)}")
    else:
        refuse_missing(missing_options(options), EXAMPLE)
        declaration = declare(**declared)
    given: dict[str, Any] = {name: options.get(name) for name in ReleaseOptions.__annotations__}
    if unknown := [name for name in options if name not in given]:
        raise UnknownName("option", unknown[0], given)
    if isinstance(data, str | Path):
        data = [data]
    if isinstance(data, list | tuple):
        if wrong := [type(name).__name__ for name in data if not isinstance(name, str | Path)]:
            raise InputError(
                f"a list of data must hold paths, and this one holds {wrong[0]}: make one frame "
                "first, as in pd.concat(frames) or pd.DataFrame(rows)"
            )
        data = expand_inputs(list(map(str, data)))
    zone = zone_named(declaration.schedule.zone)
    for name in PATHS:
        check_kind(f"`{name}`", given[name], str | PathLike | None, f'"daily.{name}"')
    for name in FLAGS:
        # "no" would be taken for yes
        check_kind(f"`{name}`", given[name], bool | None, "True or False")
    check_kind("`secret`", given["secret"], Secret | None, "Secret.generate()")
    check_kind("`delimiter`", given["delimiter"], str | None, '";"')
    check_kind("`progress`", given["progress"], Callable | None, "print")
    plain: dict[str, Any] = {name: given[name] and str(given[name]) for name in PATHS}
    plain |= {name: bool(given[name]) for name in FLAGS}
    joins = given["add_keys_from"]
    if joins is not None and given["add_keys"] is None:
        raise ParameterError(
            "`add_keys_from` is the day from which on the keys of `add_keys` count: give both"
        )
    job = Job(
        file=data,
        declaration=declaration,
        now=time.time_ns() // 1000
        if given["now"] is None
        else parse_time(given["now"], zone, "`now`"),
        end=None if given["end"] is None else parse_time(given["end"], zone, "`end`"),
        views=listed_names("views", given["views"]),
        delimiter=given["delimiter"] or ",",
        total=None if given["total"] is None else _total(given["total"]),
        zone_given=zone_given,
        secret=given["secret"],
        add_keys=listed_keys(given["add_keys"], declaration, "add_keys"),
        add_keys_from=None if joins is None else parse_time(joins, zone, "`add_keys_from`"),
        remove_keys=tuple(
            map(label_of, listed_keys(given["remove_keys"], declaration, "remove_keys"))
        ),
        notes=_notes(given["notes"]),
        **plain,
    )
    for caution in cautions(declaration):
        warnings.warn(caution, stacklevel=3)
    return release_file(job, given["progress"])


EXAMPLE = 'release(visits, time="when", every="1d", zone="UTC", start="2026-01-01", epsilon=1)'


def missing_options(given: Mapping[str, Any]) -> list[str]:
    """Name what a run lacks that has no declaration, in the order in which one would write it.

    A run that goes on with a stream has its start and its zone; whether a store has the stream,
    only a run can tell.
    """
    missing = [name for name in NEEDED if given.get(name) is None]
    goes_on = given.get("db") is not None or _has_state(given)
    if not goes_on:
        calendar = re.fullmatch(r"[0-9]+[dw]", str(given.get("every")).strip()) is not None
        missing += ["zone"] if calendar and given.get("zone") is None else []
        missing += ["start"] if given.get("start") is None else []
    if missing == ["zone"]:  # the refusal of the schedule says more
        return []
    return sorted(missing, key=["time", "every", "zone", "start", "epsilon"].index)


def _has_state(given: Mapping[str, Any]) -> bool:
    """Whether the stream of a run has a state file already."""
    from evercount.files.output_file import state_path

    named = [str(one) if isinstance(one, str | PathLike) else None for one in map(given.get, PATHS)]
    path = state_path(*named[:2])
    return path is not None and path.exists()


@with_options(ReleaseOptions)
def release(
    data: Any, declaration: StreamDeclaration | None = None, **options: Unpack[ReleaseOptions]
) -> ReleaseTable:
    """Publish statistics of events as a table, under one (ε, δ) for all its rows together.

    It is what the command `evercount release` does, with the same numbers for the same secret.
    Which rows the table has follows from `start`, `every`, `end` and the clock, never from the
    events.

    With `state`, call it again later with more events: ticks that have ended since are added, with
    the same noise stream, each once, even if the program was killed in between. Without `state`
    (and without `out`) every call is a new stream and spends its budget again.

    Args:
        data: Events, one per row: a frame of pandas or Polars, an Arrow table, a relation of
            DuckDB, a path, or a list of paths (CSV, JSONL, Parquet; plain, gzip or zstd).
        declaration: The stream, instead of the options of `declare`.
        out: Release file: .csv, .jsonl or .parquet. The command takes -, too, with `state`: all
            rows so far, as CSV on standard output.
        state: State file (default: next to the output). Secret.
        end: Release no tick that ends after this.
        now: Use this as the present time (default: the clock).
        delimiter: Separator of the columns of a CSV (default: a comma).
        skip_bad: Leave bad rows out.
        rejects: Write all bad and all late rows to this private file.
        check: Check options, files and state; publish nothing.
        new_noise_stream: Start again with new noise over the same data; the budgets add up.
        db: Store that keeps the stream in place of a state file, and that
            `evercount serve --read-only` shows: an SQLite file or postgresql://… The budget is
            spent once; files are exports of the store.
        renew: When the horizon is complete, the next run goes on from there with a new stream and
            new noise.
        carry_totals: With `renew`: running totals go on from the last published ones, and the
            errors add up.
        ledger: Ledger file of all streams over the same events: the stream is entered, or refused.
        total: ε,δ that all streams of a new ledger keep together, such as 1,1e-6.
        plot: Chart of all releases: .png, .svg or .pdf.
        add_keys: File with keys that join from the next tick on, as in `keys`: no history, their
            own noise, no new budget. Keys that are there already are left alone. Do not choose them
            by looking at the events.
        add_keys_from: Day or time from which on the keys of `add_keys` count, such as 2026-03-20
            (default: the first tick that is not released). They have no number before it. Do not
            choose it by looking at the events.
        remove_keys: File with keys that are no longer shown from the next tick on.
        full_digits: All digits in the output, instead of as many as the error allows.
        notes: Public notes on ticks, each as FIRST,LAST,TEXT, such as
            "2026-03-05,2026-03-06,reporting system down": a column of the output, and in charts.
            Write nothing that you know only from the events.
        lake: Table that gets each released tick once: delta:FOLDER or
            iceberg:FOLDER/namespace.table.
        secret: The secret of a new stream. None draws one; one secret serves one stream only.
        progress: Called with what is being done, how many ticks are done, and of how many.
        options: Those of `declare`: `time`, `every`, `start`, `epsilon` and so on.

    Returns:
        All ticks of the stream so far: tick, start, cell, value, std, low and high. `to_pandas`,
        `to_polars`, `to_arrow`, `to_csv` and `plot` export it; `views` has the other views.

    Raises:
        ParameterError: An option is missing, or does not go with the others or with the state.
        InputError: The data cannot be read, or some rows are not events. Nothing is published or
            spent.
        StoreError: The state or the output cannot be read or written.
        HorizonReached: All ticks of the horizon are released.
        BudgetExceeded: The ledger has no room for the stream.
        MissingExtra: The extra `files` is not installed.

    >>> import pandas as pd
    >>> times = ["2026-03-01 08:15", "2026-03-01 17:40", "2026-03-02 09:05"]
    >>> visits = pd.DataFrame({"when": pd.to_datetime(times)})
    >>> table = release(
    ...     visits, time="when", every="1d", zone="UTC", start="2026-03-01", end="2026-03-03",
    ...     epsilon=1,
    ... )
    >>> table.to_pandas()[["start", "cell"]]
                          start   cell
    0 2026-03-01 00:00:00+00:00  count
    1 2026-03-02 00:00:00+00:00  count
    """
    try:
        outcome = run(data, declaration, **options)
    except ModuleNotFoundError as missing:
        raise missing_extra("`release`", missing, "files") from missing
    if not outcome.last and not outcome.job.kept:
        raise InputError(
            f"no tick has ended: the first one ends at {outcome.next_end}. Give an earlier "
            "`start`, a shorter `every`, or `state` to continue later; nothing was spent"
        )
    return outcome.table


@with_options(Declared)
def plan(declaration: StreamDeclaration | None = None, **options: Unpack[Declared]) -> ViewPlan:
    """Which error will the numbers have? The std of each view, with every noise that a stream may
    have.

    Nothing is counted and nothing is spent: it follows from the declaration alone. Columns of the
    data may be omitted.

    Args:
        declaration: The stream, instead of the options of `declare`.
        options: Those of `declare`: `every`, `epsilon`, `views` and so on.

    Returns:
        A table: the noise that is chosen or declared first, then the others. `to_pandas` and
        `to_polars` export it.

    Raises:
        ParameterError: An option is missing or not legal, or the query has no views.
        MissingExtra: The extra `cli` is not installed.

    >>> plan(every="1d", zone="UTC", epsilon=1, horizon=365, views=["per-tick", "running"])
    noise             delta  per-tick  running  twice: epsilon
    terrace (chosen)      0      1.79    13.41            2.00
    ...
    """
    try:
        return _plan(declaration, options)
    except ModuleNotFoundError as missing:
        raise missing_extra("`plan`", missing, "cli") from missing


def _plan(declaration: StreamDeclaration | None, options: Declared) -> ViewPlan:
    """The errors of a stream, with every package that this needs."""
    from evercount.declarations.view_names import noise_views
    from evercount.planning.plan_views import plan_views

    if declaration is None:
        if options.get("time") is None:
            options["time"] = "time"
        declaration = declare(**options)
    check_declaration(declaration)
    schedule = declaration.schedule
    names = declaration.views or declaration.views_of_noise
    views = {name: view for name in names for view in noise_views([name], schedule)}
    horizon, named = declaration.horizon, declaration.factorization
    return plan_views(declaration.budget, horizon, views, declaration.query, named)


def _notes(given: Any) -> tuple[Any, ...]:
    """Remarks on ticks, as texts or as (first, last, text)."""
    from evercount.declarations.tick_marks import NewMark

    notes = []
    for one in [given] if isinstance(given, str) else given or ():
        parts = one.split(",", 2) if isinstance(one, str) else tuple(one)
        if len(parts) != 3:
            raise ParameterError(
                f"`notes` are FIRST,LAST,TEXT, such as 2026-03-05,2026-03-06,late, got {one!r:.80}"
            )
        first, last, text = (str(part).strip() for part in parts)
        notes.append(NewMark(first=first, last=last, text=text))
    return tuple(notes)


def _total(total: Any) -> tuple[float, float]:
    """ε and δ, in a text with a comma between them."""
    try:
        epsilon, delta = map(float, total.split(",") if isinstance(total, str) else total)
    except (TypeError, ValueError):
        raise ParameterError(
            f"`total` is epsilon and delta, such as 1,1e-6, got {total!r:.80}"
        ) from None
    return epsilon, delta
