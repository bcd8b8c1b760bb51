"""`release`: a data frame or files in, a table out; and `plan`: which errors it will have. The
command `evercount release` calls `run`.

The options are the fields of `options.ReleaseOptions`.
"""

from __future__ import annotations

import re
import time as clock
import warnings
from collections.abc import Callable, Mapping, Sequence
from datetime import tzinfo
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

from evercount.errors import InputError, ParameterError
from evercount.front_door.declare_stream import (
    NEEDED,
    check_declaration,
    declare_from,
    is_given,
    listed_names,
    named_options,
    refuse_missing,
)
from evercount.front_door.key_lists import listed_keys
from evercount.front_door.missing_parts import missing_extra

if TYPE_CHECKING:
    from evercount.declarations.declaration import StreamDeclaration
    from evercount.engine.release_table import ReleaseTable
    from evercount.files.release_job import Job, Outcome
    from evercount.fitness.report import Fitness
    from evercount.front_door.options import DeclareOptions, Moment, ReleaseOptions
    from evercount.noise import Secret
    from evercount.planning.plan_views import ViewPlan
    from evercount.queries import Query


def run(data: Any, declaration: StreamDeclaration | None = None, **given: Any) -> Outcome:
    """Do what `release` does, and return all that there is to say about it; its table is made on
    request."""
    from evercount.declarations.cautions import cautions
    from evercount.files.release_run import release_file
    from evercount.front_door.options import ReleaseOptions

    options = ReleaseOptions.of(given)
    zone_given = declaration is not None or options.zone is not None
    declaration = _declaration(declaration, options)
    job = _job(data, declaration, options, zone_given)
    for caution in cautions(declaration):
        warnings.warn(caution, stacklevel=3)
    return release_file(job, options.progress)


def _declaration(
    declaration: StreamDeclaration | None, options: ReleaseOptions
) -> StreamDeclaration:
    """Return the declaration that is given, or the one that the options describe."""
    if declaration is None:
        refuse_missing(missing_options(vars(options)), EXAMPLE)
        return declare_from(options)
    check_declaration(declaration)
    _refuse_declared(options)
    return declaration


def inspect(
    names: Sequence[str], declaration: StreamDeclaration | None = None, **given: Any
) -> Fitness:
    """Report how fit files are to be published with the options of `release`. Of the options of a
    run, `delimiter` and `now` matter; nothing is written but into a private scratch folder."""
    from tempfile import TemporaryDirectory

    from evercount.declarations.schedule import zone_named
    from evercount.files.release_run import interruptible
    from evercount.files.source import find_inputs
    from evercount.fitness.report import inspect_files
    from evercount.front_door.options import ReleaseOptions

    options = ReleaseOptions.of(given)
    declaration = _declaration(declaration, options)
    files = tuple(find_inputs(names))
    now = _instant("now", options.now, zone_named(declaration.schedule.zone))
    if now is None:
        now = clock.time_ns() // 1000
    with TemporaryDirectory(prefix="evercount-inspect-") as scratch, interruptible():
        return inspect_files(files, declaration, now, options.delimiter or ",", Path(scratch))


def _refuse_declared(options: DeclareOptions) -> None:
    """Refuse options of a stream next to its declaration. `views` may be more than it shows."""
    from evercount.front_door.options import DeclareOptions

    set_twice = [
        f"`{name}`"
        for name, value in vars(options).items()
        if name in DeclareOptions.model_fields and name != "views" and is_given(value)
    ]
    if set_twice:
        raise ParameterError(f"omit {', '.join(set_twice)}, which the declaration already sets")


def _job(
    data: Any, declaration: StreamDeclaration, options: ReleaseOptions, zone_given: bool
) -> Job:
    """Write down what a run is to do; its times are instants, its keys are those of the stream."""
    from evercount.declarations.schedule import zone_named
    from evercount.engine.add_keys import label_of
    from evercount.files.release_job import Job

    if options.add_keys_from is not None and options.add_keys is None:
        raise ParameterError(
            "`add_keys_from` is the day from which on the keys of `add_keys` count: give both"
        )
    file = _sources(data)
    zone = zone_named(declaration.schedule.zone)
    now = _instant("now", options.now, zone)
    if now is None:
        now = clock.time_ns() // 1000
    removed = listed_keys(options.remove_keys, declaration, "remove_keys")
    return Job(
        file=file,
        declaration=declaration,
        out=_path(options.out),
        now=now,
        end=_instant("end", options.end, zone),
        state=_path(options.state),
        rejects=_path(options.rejects),
        plot=_path(options.plot),
        lake=_path(options.lake),
        views=listed_names("views", options.views),
        skip_bad=options.skip_bad,
        new_noise_stream=options.new_noise_stream,
        delimiter=options.delimiter or ",",
        check=options.check,
        secret=options.secret,
        ledger=_path(options.ledger),
        total=_total(options.total),
        add_keys=listed_keys(options.add_keys, declaration, "add_keys"),
        add_keys_from=_instant("add_keys_from", options.add_keys_from, zone),
        remove_keys=tuple(map(label_of, removed)),
        full_digits=options.full_digits,
        db=_path(options.db),
        renew=options.renew,
        carry_totals=options.carry_totals,
        notes=_notes(options.notes),
        zone_given=zone_given,
    )


def _sources(data: Any) -> Any:
    """Expand paths and patterns into files; leave a data frame as it is."""
    from evercount.files.source import expand_inputs

    if isinstance(data, str | Path):
        data = [data]
    if not isinstance(data, list | tuple):
        return data
    for name in data:
        if not isinstance(name, str | Path):
            raise InputError(
                f"a list of data must hold paths, and this one holds {type(name).__name__}: make "
                "one frame first, as in pd.concat(frames) or pd.DataFrame(rows)"
            )
    return expand_inputs(list(map(str, data)))


def _instant(name: str, moment: Moment | None, zone: tzinfo) -> int | None:
    """Read the time of an option, in the zone of the stream."""
    from evercount.declarations.schedule import parse_time

    if moment is None:
        return None
    return parse_time(moment, zone, f"`{name}`")


def _path(path: str | PathLike[str] | None) -> str | None:
    """Return a path as text."""
    if path is None:
        return None
    return str(path)


EXAMPLE = 'release(visits, time="when", every="1d", zone="UTC", start="2026-01-01", epsilon=1)'


def missing_options(given: Mapping[str, Any]) -> list[str]:
    """Name what a run without a declaration lacks, in the order in which one writes it.

    A run that continues a stream has its start and its zone; whether a store has the stream, only
    the run itself finds out.
    """
    missing = [name for name in NEEDED if given.get(name) is None]
    may_continue = given.get("db") is not None or _has_state(given)
    if not may_continue:
        calendar = re.fullmatch(r"[0-9]+[dw]", str(given.get("every")).strip()) is not None
        if calendar and given.get("zone") is None:
            missing.append("zone")
        if given.get("start") is None:
            missing.append("start")
    if missing == ["zone"]:  # the refusal of the schedule says more
        return []
    return sorted(missing, key=["time", "every", "zone", "start", "epsilon"].index)


def _has_state(given: Mapping[str, Any]) -> bool:
    """Tell whether the stream of a run has a state file already."""
    from evercount.files.output_file import state_path

    out, state = (
        str(path) if isinstance(path, str | PathLike) else None
        for path in (given.get("out"), given.get("state"))
    )
    path = state_path(out, state)
    return path is not None and path.exists()


def release(
    data: Any,
    declaration: StreamDeclaration | None = None,
    *,
    time: str | None = None,
    every: str | None = None,
    start: Moment | None = None,
    zone: str | None = None,
    late: str | None = None,
    wait: str | None = None,
    revise_for: int | None = None,
    query: str | Query | None = None,
    key: str | Sequence[str] | None = None,
    rollup: str | Sequence[str] | None = None,
    keys: str | Path | Sequence[Any] | None = None,
    unknown: str | None = None,
    weights: str | Path | Mapping[str, int] | None = None,
    minimum: int | None = None,
    value: str | None = None,
    low: float | None = None,
    high: float | None = None,
    grid: float | None = None,
    bins: int | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    unit: str | None = None,
    user: str | None = None,
    period: int | str | None = None,
    max_per_tick: int | None = None,
    max_ticks: int | None = None,
    max_events: int | None = None,
    carry_caps: bool = False,
    adjacency: str | None = None,
    horizon: int | str | None = None,
    factorization: str | None = None,
    views: str | Sequence[str] | None = None,
    postprocess: str | Sequence[str] | None = None,
    name: str | None = None,
    out: str | PathLike[str] | None = None,
    state: str | PathLike[str] | None = None,
    end: Moment | None = None,
    now: Moment | None = None,
    delimiter: str | None = None,
    skip_bad: bool = False,
    rejects: str | PathLike[str] | None = None,
    check: bool = False,
    new_noise_stream: bool = False,
    db: str | PathLike[str] | None = None,
    renew: bool = False,
    carry_totals: bool = False,
    ledger: str | PathLike[str] | None = None,
    total: str | tuple[float, float] | None = None,
    plot: str | PathLike[str] | None = None,
    add_keys: str | Path | Sequence[Any] | None = None,
    add_keys_from: Moment | None = None,
    remove_keys: str | Path | Sequence[Any] | None = None,
    full_digits: bool = False,
    notes: str | Sequence[Any] | None = None,
    lake: str | PathLike[str] | None = None,
    secret: Secret | None = None,
    progress: Callable[[str, int, int], None] | None = None,
    **others: Never,
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
        time: Column with the time of an event.
        every: Tick length: 15m, 1h; 1d and 1w by the calendar of `zone`.
        start: Start of the first tick, ISO 8601.
        zone: Time zone of days, weeks and times without offset (default: UTC; days and weeks need
            one).
        late: Rows whose tick is closed: drop, next (count in the next tick), or revise (files that
            only grow).
        wait: How long after its end a tick is closed, such as 12h, for rows that come late
            (default: 0s).
        revise_for: With `late` revise: for how many ticks each number is published again.
        query: count, histogram (`key`), discovered-keys (`key`), rollup (`rollup`), sum or
            quantiles (`value`), active-users or distinct-users (`user`).
        key: Column with the key; several columns together make one key.
        rollup: Columns of a rollup from the top, as in state,county.
        keys: File with the public list of keys, one per line (of several columns or a rollup: CSV
            lines such as Tyrol,Innsbruck).
        unknown: Keys not in the list: refuse (default), or count as 'other'.
        weights: File with lines such as Vienna,3: this key of a histogram has a third of the noise
            of keys without a line. The noise of all keys is made for the largest weight.
        minimum: discovered-keys: true count below which a key is never listed.
        value: Column with the value to sum.
        low: Smallest legal value.
        high: Largest legal value.
        grid: Values are rounded to multiples of this. With 1, the default, they are whole numbers.
        bins: Number of bins for quantiles of `value` (a power of two).
        epsilon: ε of all releases together.
        delta: δ of all releases together (default: 0, which is Laplace noise).
        unit: What is protected: event, or user (the default with `user`).
        user: Column with the person's id.
        period: Protect what a person does in one period: 1d, 1w, 4w, or ticks (default: all time).
        max_per_tick: Events counted per person and tick.
        max_ticks: Ticks in which a person counts, per period.
        max_events: Events counted per person and period.
        carry_caps: What persons have used of their caps stays used when the stream is renewed,
            which then costs nothing more.
        adjacency: add-remove (default) or replace.
        horizon: Number of ticks such as 8760 or 2^16, or none (default).
        factorization: How noise is correlated, or best: the least error.
        views: Publish this view, repeatable: per-tick, running, last-24, per-day, per-week,
            quantile-0.5. The output shows the first one; each of the others has a file next to it.
        postprocess: nonnegative, integer, or both with a comma: what the views show is made so (or
            single ticks, if no view is named).
        name: Name of the stream, for charts and for streams.toml.
        out: Release file: .csv, .jsonl or .parquet. The command also accepts -, with `state`: all
            rows so far, as CSV on standard output.
        state: State file (default: next to the output). Secret.
        end: Release no tick that ends after this.
        now: Use this as the present time (default: the clock).
        delimiter: Separator of the columns of a CSV (default: a comma).
        skip_bad: Leave bad rows out.
        rejects: Write all bad and all late rows to this private file.
        check: Check options, files and state; publish nothing.
        new_noise_stream: Start again with new noise over the same data; the budgets add up.
        db: Store that keeps the stream in place of a state file, and that `evercount serve
            --read-only` shows: an SQLite file or postgresql://… The budget is spent once; files are
            exports of the store.
        renew: When the horizon is complete, the next run continues from there with a new stream and
            new noise.
        carry_totals: With `renew`: running totals continue from the last published ones, and the
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
        progress: Called with (task, done, total): what is being done, and how far it is.
        others: Any other name is refused.

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
    arguments = named_options(locals())
    try:
        outcome = run(**arguments)
    except ModuleNotFoundError as missing:
        raise missing_extra("`release`", missing, "files") from missing
    if not outcome.last and not outcome.job.kept:
        raise InputError(
            f"no tick has ended: the first one ends at {outcome.next_end}. Give an earlier "
            "`start`, a shorter `every`, or `state` to continue later; nothing was spent"
        )
    return outcome.table


def plan(
    declaration: StreamDeclaration | None = None,
    *,
    time: str | None = None,
    every: str | None = None,
    start: Moment | None = None,
    zone: str | None = None,
    late: str | None = None,
    wait: str | None = None,
    revise_for: int | None = None,
    query: str | Query | None = None,
    key: str | Sequence[str] | None = None,
    rollup: str | Sequence[str] | None = None,
    keys: str | Path | Sequence[Any] | None = None,
    unknown: str | None = None,
    weights: str | Path | Mapping[str, int] | None = None,
    minimum: int | None = None,
    value: str | None = None,
    low: float | None = None,
    high: float | None = None,
    grid: float | None = None,
    bins: int | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    unit: str | None = None,
    user: str | None = None,
    period: int | str | None = None,
    max_per_tick: int | None = None,
    max_ticks: int | None = None,
    max_events: int | None = None,
    carry_caps: bool = False,
    adjacency: str | None = None,
    horizon: int | str | None = None,
    factorization: str | None = None,
    views: str | Sequence[str] | None = None,
    postprocess: str | Sequence[str] | None = None,
    name: str | None = None,
    **others: Never,
) -> ViewPlan:
    """Which error will the numbers have? The std of each view, with every noise that a stream may
    have.

    Nothing is counted and nothing is spent: it follows from the declaration alone. Columns of the
    data may be omitted.

    Args:
        declaration: The stream, instead of the options of `declare`.
        time: Column with the time of an event.
        every: Tick length: 15m, 1h; 1d and 1w by the calendar of `zone`.
        start: Start of the first tick, ISO 8601.
        zone: Time zone of days, weeks and times without offset (default: UTC; days and weeks need
            one).
        late: Rows whose tick is closed: drop, next (count in the next tick), or revise (files that
            only grow).
        wait: How long after its end a tick is closed, such as 12h, for rows that come late
            (default: 0s).
        revise_for: With `late` revise: for how many ticks each number is published again.
        query: count, histogram (`key`), discovered-keys (`key`), rollup (`rollup`), sum or
            quantiles (`value`), active-users or distinct-users (`user`).
        key: Column with the key; several columns together make one key.
        rollup: Columns of a rollup from the top, as in state,county.
        keys: File with the public list of keys, one per line (of several columns or a rollup: CSV
            lines such as Tyrol,Innsbruck).
        unknown: Keys not in the list: refuse (default), or count as 'other'.
        weights: File with lines such as Vienna,3: this key of a histogram has a third of the noise
            of keys without a line. The noise of all keys is made for the largest weight.
        minimum: discovered-keys: true count below which a key is never listed.
        value: Column with the value to sum.
        low: Smallest legal value.
        high: Largest legal value.
        grid: Values are rounded to multiples of this. With 1, the default, they are whole numbers.
        bins: Number of bins for quantiles of `value` (a power of two).
        epsilon: ε of all releases together.
        delta: δ of all releases together (default: 0, which is Laplace noise).
        unit: What is protected: event, or user (the default with `user`).
        user: Column with the person's id.
        period: Protect what a person does in one period: 1d, 1w, 4w, or ticks (default: all time).
        max_per_tick: Events counted per person and tick.
        max_ticks: Ticks in which a person counts, per period.
        max_events: Events counted per person and period.
        carry_caps: What persons have used of their caps stays used when the stream is renewed,
            which then costs nothing more.
        adjacency: add-remove (default) or replace.
        horizon: Number of ticks such as 8760 or 2^16, or none (default).
        factorization: How noise is correlated, or best: the least error.
        views: Publish this view, repeatable: per-tick, running, last-24, per-day, per-week,
            quantile-0.5. The output shows the first one; each of the others has a file next to it.
        postprocess: nonnegative, integer, or both with a comma: what the views show is made so (or
            single ticks, if no view is named).
        name: Name of the stream, for charts and for streams.toml.
        others: Any other name is refused.

    Returns:
        A table: the noise that is chosen or declared first, then the others. `to_pandas` and
        `to_polars` export it.

    Raises:
        ParameterError: An option is missing or not legal, or the query has no views.
        MissingExtra: The extra `cli` is not installed.

    >>> plan(every="1d", zone="UTC", epsilon=1, horizon=365, views=["per-tick", "running"])
    noise             delta  per-tick  running  epsilon_if_run_twice
    terrace (chosen)      0      1.79    13.41                  2.00
    ...
    """
    arguments = named_options(locals())
    try:
        return _plan(**arguments)
    except ModuleNotFoundError as missing:
        raise missing_extra("`plan`", missing, "cli") from missing


def _plan(declaration: StreamDeclaration | None, **given: Any) -> ViewPlan:
    """Compute the errors of a stream, with every package that this needs."""
    from evercount.declarations.view_names import noise_views
    from evercount.front_door.options import DeclareOptions
    from evercount.planning.plan_views import plan_views

    options = DeclareOptions.of(given)
    if declaration is None:
        if options.time is None:
            options = options.model_copy(update={"time": "time"})
        declaration = declare_from(options)
    check_declaration(declaration)
    names = declaration.views or declaration.views_of_noise
    views = {name: view for name in names for view in noise_views([name], declaration.schedule)}
    return plan_views(
        declaration.budget,
        declaration.horizon,
        views,
        declaration.query,
        declaration.factorization,
    )


def _notes(given: Any) -> tuple[Any, ...]:
    """Read notes on ticks: texts, or (first, last, text)."""
    from evercount.declarations.tick_marks import NewMark

    if isinstance(given, str):
        given = [given]
    notes = []
    for note in given or ():
        parts = note.split(",", 2) if isinstance(note, str) else tuple(note)
        if len(parts) != 3:
            raise ParameterError(
                f"`notes` are FIRST,LAST,TEXT, such as 2026-03-05,2026-03-06,late, got {note!r:.80}"
            )
        first, last, text = (str(part).strip() for part in parts)
        notes.append(NewMark(first=first, last=last, text=text))
    return tuple(notes)


def _total(total: Any) -> tuple[float, float] | None:
    """Read ε and δ: two numbers, or a text with a comma between them."""
    if total is None:
        return None
    parts = total
    if isinstance(total, str):
        parts = total.split(",")
    try:
        epsilon, delta = map(float, parts)
    except (TypeError, ValueError):
        raise ParameterError(
            f"`total` is epsilon and delta, such as 1,1e-6, got {total!r:.80}"
        ) from None
    return epsilon, delta
