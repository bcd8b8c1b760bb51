"""`evercount release`: an events file or standard input → private releases, once or from cron."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evercount.cli.release_declaration import DECLARING, resolve_stream
from evercount.errors import ParameterError

if TYPE_CHECKING:
    from evercount.declare.declaration import StreamDeclaration
    from evercount.files.release_run import Job, Outcome

_of_input = partial(typer.Option, rich_help_panel="Input")
_of_query = partial(typer.Option, rich_help_panel="What is counted")
_of_privacy = partial(typer.Option, rich_help_panel="Privacy")
_of_output = partial(typer.Option, rich_help_panel="Output")


def release(
    ctx: typer.Context,
    files: Annotated[
        list[str] | None,
        typer.Argument(
            help="Event files (CSV, JSONL, Parquet; plain, gzip or zstd), patterns such as 'log/*.csv', '-' for "
            "standard input, or the name of a stream in streams.toml.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[str | None, _of_output(help="Release file: .csv, .jsonl, .parquet, or '-'.")] = None,
    streams: Annotated[
        Path | None, _of_input(help="TOML file that declares the stream, instead of the options below.")
    ] = None,
    stream: Annotated[str | None, _of_input(help="Name of the stream in --streams, where it has several.")] = None,
    show_declaration: Annotated[
        bool, _of_output("--show-declaration", help="Print the stream as TOML and stop.")
    ] = False,
    time: Annotated[str | None, _of_input(help="Column with the time of an event.")] = None,
    every: Annotated[str | None, _of_input(help="Tick length: 15m, 1h; 1d and 1w by the calendar of --tz.")] = None,
    start: Annotated[str | None, _of_input(help="Start of the first tick, ISO 8601.")] = None,
    tz: Annotated[
        str | None, _of_input(help="Zone of days, weeks and times without offset (UTC, but days and weeks need one).")
    ] = None,
    epsilon: Annotated[float | None, _of_privacy(help="ε of all releases together.")] = None,
    delta: Annotated[float | None, _of_privacy(help="δ of all releases together.")] = None,
    end: Annotated[str | None, _of_input(help="Release no tick that ends after this.")] = None,
    now: Annotated[str | None, _of_input(help="Take this for the present time (default: the clock).")] = None,
    delimiter: Annotated[str | None, _of_input(help="Between the columns of a CSV (default: a comma).")] = None,
    late: Annotated[
        str | None,
        _of_input(help="Rows whose tick is closed: drop, or count in the next tick (a file that only grows)."),
    ] = None,
    skip_bad: Annotated[bool, _of_input("--skip-bad", help="Leave bad rows out.")] = False,
    rejects: Annotated[str | None, _of_input(help="Write all bad and all late rows to this private file.")] = None,
    check: Annotated[bool, _of_input("--check", help="Look at options, files and state; publish nothing.")] = False,
    query: Annotated[
        str | None,
        _of_query(
            help="count, histogram (--key), discovered-keys (--key), rollup (--rollup), sum or quantiles (--value), "
            "distinct-users or active-users (--user)."
        ),
    ] = None,
    key: Annotated[
        list[str] | None, _of_query(help="Column with the key; several columns together make one key.")
    ] = None,
    rollup: Annotated[str | None, _of_query(help="Columns of a rollup from the top, as in state,county.")] = None,
    keys: Annotated[
        Path | None,
        _of_query(
            help="File with the public list of keys, one per line (of several columns or a rollup: CSV lines such as "
            "Tyrol,Innsbruck)."
        ),
    ] = None,
    unknown: Annotated[
        str | None, _of_query(help="Keys not in the list: refuse (default), or count as 'other'.")
    ] = None,
    minimum: Annotated[
        int | None, _of_query(help="discovered-keys: true count below which a key is never listed.")
    ] = None,
    value: Annotated[str | None, _of_query(help="Column with the value to sum.")] = None,
    lo: Annotated[float | None, _of_query(help="Smallest legal value.")] = None,
    hi: Annotated[float | None, _of_query(help="Largest legal value.")] = None,
    grid: Annotated[float | None, _of_query(help="Values are rounded to multiples of this (default: 1).")] = None,
    bins: Annotated[int | None, _of_query(help="Number of bins for quantiles of --value (a power of two).")] = None,
    max_keys: Annotated[
        int | None, _of_query(help="distinct-users and active-users: under how many keys one user counts (default: 1).")
    ] = None,
    unit: Annotated[str | None, _of_privacy(help="What is protected: event, or user (default with --user).")] = None,
    user: Annotated[str | None, _of_privacy(help="Column with the user: protect users, not events.")] = None,
    max_events: Annotated[int | None, _of_privacy(help="Most events that count of one user, per --period.")] = None,
    max_per_tick: Annotated[int | None, _of_privacy(help="Most events that count of one user in one tick.")] = None,
    max_ticks: Annotated[int | None, _of_privacy(help="Most ticks in which one user counts, per --period.")] = None,
    period: Annotated[
        str | None,
        _of_privacy(
            help="Protect what a user does in this time: 1d, 1w, 4w, or a number of ticks (default: all time)."
        ),
    ] = None,
    adjacency: Annotated[str | None, _of_privacy(help="add-remove (default) or replace.")] = None,
    horizon: Annotated[str | None, _of_privacy(help="Number of ticks such as 8760 or 2^16, or none (default).")] = None,
    factorization: Annotated[str | None, _of_privacy(help="How noise is correlated, or best: the least error.")] = None,
    new_noise_stream: Annotated[
        bool,
        _of_privacy("--new-noise-stream", help="Start again with new noise over the same data; the budgets add up."),
    ] = False,
    state: Annotated[str | None, _of_output(help="State file (default: beside the output). Secret.")] = None,
    plot: Annotated[str | None, _of_output(help="Chart of all releases: .png, .svg or .pdf.")] = None,
    view: Annotated[
        list[str] | None,
        _of_output(
            help="Write this view beside the output, repeatable: per-tick, last-24, per-day, per-week, quantile-0.5."
        ),
    ] = None,
    json_output: Annotated[bool, _of_output("--json", help="Print the summary as JSON on standard output.")] = False,
    quiet: Annotated[bool, _of_output("--quiet", help="No summary, no progress.")] = False,
) -> None:
    """Publish running statistics of event files under one (ε, δ) for all releases, past and future.

    Run it again with the same options to continue: ticks that have ended since are added to the output, with the same
    noise stream. Without --key the events are counted; with --key per key; with --value their values are summed. The
    options are a way to write a declaration: --show-declaration prints it, --streams reads it.
    """
    flags = {name: ctx.params[name.replace("-", "_")] for name in DECLARING}
    flags["key"] = flags["key"] or None  # an option that may be repeated and is not given is an empty list
    declaration, places, files = resolve_stream(files or [], streams, stream, flags, tuple(dict.fromkeys(view or ())))
    if show_declaration:
        typer.echo(declaration.to_toml(), nl=False)
        return
    out = out or places.output
    if out is None and not check:
        raise ParameterError("--out is missing: name the release file (.csv, .jsonl or .parquet), or '-'")
    if json_output and out == "-":
        raise ParameterError("--json and --out - would both write to standard output: name a file by --out")
    from evercount.declare.schedule import parse_time, zone_named
    from evercount.files.release_run import Job, release_file
    from evercount.files.source import expand_inputs

    zone = zone_named(declaration.schedule.zone)
    with TemporaryDirectory(prefix="evercount-check-") if out is None else nullcontext() as folder:
        job = Job(
            file=expand_inputs(files or places.input),
            declaration=declaration,
            out=out or f"{folder}/out.csv",
            now=_now() if now is None else parse_time(now, zone, "--now"),
            end=None if end is None else parse_time(end, zone, "--end"),
            state=state or places.state,
            rejects=rejects or places.rejects,
            plot=plot or places.plot,
            views=tuple(view or ()),
            skip_bad=skip_bad,
            new_noise_stream=new_noise_stream,
            delimiter=delimiter or places.delimiter or ",",
            check=check,
            zone_given=tz is not None or time is None,  # without --time a file declares the stream
        )
        for caution in cautions_of(declaration):
            typer.echo(f"warning: {caution}", err=True)
        try:
            with _progress(quiet) as tell:
                outcome = release_file(job, tell)
        except KeyboardInterrupt:
            typer.echo("stopped: this run published nothing, or all of it; run it again to continue", err=True)
            raise typer.Exit(130) from None
    for reject in outcome.shown:
        typer.echo(f"skipped {reject}", err=True)
    if outcome.bad > len(outcome.shown):
        typer.echo(f"skipped {outcome.bad} bad rows in all", err=True)
    if json_output:
        typer.echo(json.dumps(facts(job, outcome), indent=1))
    elif not quiet:
        typer.echo(summary(job, outcome), err=True)


def cautions_of(declaration: StreamDeclaration) -> list[str]:
    """What is unusual in a declaration, imported late as everything else."""
    from evercount.declare.cautions import cautions

    return cautions(declaration)


def _now() -> int:
    import time as system_time

    return system_time.time_ns() // 1000


def facts(job: Job, outcome: Outcome) -> dict[str, Any]:
    """The summary for programs. Public facts only: no number of rows."""
    places = outcome.places
    return {
        "checked": job.check,
        "released": outcome.released,
        "first_tick": outcome.first if outcome.released else None,
        "last_tick": outcome.last,
        "horizon": job.declaration.horizon,
        "complete": outcome.complete,
        "next_tick_ends": None if outcome.complete else outcome.next_end,
        "output": None if places.output is None else str(places.output),
        "state": str(places.state),
        "rejects": job.rejects,
        "plot": job.plot,
        "kept": [str(path) for path in outcome.archived],
        "views": [str(path) for path in outcome.views],
        "noise_for": list(outcome.declaration.noise_for),
        "late": job.declaration.late,
        "epsilon": job.declaration.budget.epsilon,
        "delta": job.declaration.budget.delta,
        "guarantee": outcome.guarantee,
        "composed": outcome.composed,
    }


def summary(job: Job, outcome: Outcome) -> str:
    """What the run has done and what it promises. Nothing here depends on the events."""
    target = outcome.places.output or "standard output"
    ticks = f"tick {outcome.first}" if outcome.released == 1 else f"ticks {outcome.first} to {outcome.last}"
    if job.check:
        lines = ["Checked: options, files and state fit together. Nothing was published."]
    elif outcome.released:
        lines = [f"Released {ticks} to {target}; state (secret): {outcome.places.state}"]
    elif outcome.continued:
        lines = [f"No tick has ended since the last run; {target} is unchanged."]
    else:
        schedule = outcome.declaration.schedule
        begin = schedule.show(schedule.begin)
        lines = [f"No tick has ended yet: the stream begins at {begin}. Nothing was written."]
    if outcome.continued and job.declaration.late == "drop":
        where = f"they are listed in {job.rejects}" if job.rejects else "--rejects FILE lists them"
        lines.append(f"Late rows, of ticks before tick {outcome.first}, do not count (--late drop); {where}.")
    if outcome.complete:
        lines.append(
            f"The horizon of {job.declaration.horizon} ticks is complete; this stream releases no more, and later runs "
            "exit with status 4. To go on, start a new one with a later --start and another --out; with --horizon none "
            "it has no end."
        )
    else:
        lines.append(f"The next tick ends at {outcome.next_end}.")
    if outcome.drawn is not None and outcome.drawn[0] < outcome.drawn[1]:
        lines.append(f"The chart shows the first {outcome.drawn[0]} of {outcome.drawn[1]} cells.")
    lines += [f"Kept: {path}" for path in outcome.archived]
    lines += [f"View: {path}" for path in outcome.views]
    lines.append(noise_line(outcome.declaration))
    lines.append(outcome.guarantee)
    if outcome.composed is not None:
        lines.append(outcome.composed)
    return "\n".join(lines)


def noise_line(declaration: StreamDeclaration) -> str:
    """What the noise was chosen for, and what would change it."""
    views = ", ".join(declaration.noise_for)
    if declaration.noise_for == ("running",):
        return "The noise is chosen for running totals; --view per-tick on the first run chooses it for single ticks."
    name = declaration.factorization if isinstance(declaration.factorization, str) else "blend"
    return f"The noise ({name}) is chosen for {views}; running totals and other views have a larger error, as stated."


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[str, int, int], None] | None]:
    """A bar on stderr, when that is a terminal."""
    if quiet or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        tasks: dict[str, Any] = {}

        def tell(what: str, done: int, total: int) -> None:
            if what not in tasks:
                for task in tasks.values():
                    bar.update(task, visible=False)
                tasks[what] = bar.add_task(what, total=total or None)
            bar.update(tasks[what], completed=done)

        yield tell
