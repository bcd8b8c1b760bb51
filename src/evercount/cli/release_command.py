"""`evercount release`: an events file or standard input → private releases, once or from cron."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evercount.cli.options import parse_horizon
from evercount.errors import ParameterError

if TYPE_CHECKING:
    from evercount.declare.declaration import StreamDeclaration
    from evercount.files.release_run import Outcome

INPUT, QUERY, PRIVACY, OUTPUT = "Input", "What is counted", "Privacy", "Output"


def release(
    file: Annotated[str, typer.Argument(help="CSV, JSONL or Parquet file, plain or gzip, or '-' for standard input.")],
    out: Annotated[
        str | None, typer.Option(help="Release file: .csv, .jsonl, .parquet, or '-'.", rich_help_panel=OUTPUT)
    ] = None,
    streams: Annotated[
        Path | None,
        typer.Option(help="TOML file that declares the stream, instead of the options below.", rich_help_panel=INPUT),
    ] = None,
    stream: Annotated[
        str | None, typer.Option(help="Name of the stream in --streams, where it has several.", rich_help_panel=INPUT)
    ] = None,
    show_declaration: Annotated[
        bool,
        typer.Option("--show-declaration", help="Print the stream as TOML and stop.", rich_help_panel=OUTPUT),
    ] = False,
    time: Annotated[str | None, typer.Option(help="Column with the time of an event.", rich_help_panel=INPUT)] = None,
    every: Annotated[
        str | None,
        typer.Option(help="Tick length: 15m, 1h; 1d and 1w by the calendar of --tz.", rich_help_panel=INPUT),
    ] = None,
    start: Annotated[str | None, typer.Option(help="Start of the first tick, ISO 8601.", rich_help_panel=INPUT)] = None,
    epsilon: Annotated[float | None, typer.Option(help="ε of all releases together.", rich_help_panel=PRIVACY)] = None,
    delta: Annotated[float | None, typer.Option(help="δ of all releases together.", rich_help_panel=PRIVACY)] = None,
    end: Annotated[
        str | None, typer.Option(help="Release no tick that ends after this.", rich_help_panel=INPUT)
    ] = None,
    now: Annotated[
        str | None, typer.Option(help="Take this for the present time (default: the clock).", rich_help_panel=INPUT)
    ] = None,
    tz: Annotated[
        str | None,
        typer.Option(
            help="Zone of days, weeks and times without offset (UTC, but days and weeks need one).",
            rich_help_panel=INPUT,
        ),
    ] = None,
    delimiter: Annotated[str, typer.Option(help="Between the columns of a CSV.", rich_help_panel=INPUT)] = ",",
    late: Annotated[
        str | None,
        typer.Option(
            help="Rows whose tick is closed: drop, or count in the next tick (a file that only grows).",
            rich_help_panel=INPUT,
        ),
    ] = None,
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave bad rows out.", rich_help_panel=INPUT)] = False,
    rejects: Annotated[str | None, typer.Option(help="Write all bad rows to this file.", rich_help_panel=INPUT)] = None,
    query: Annotated[
        str | None,
        typer.Option(
            help="count, histogram (--key), rollup (--rollup), sum or quantiles (--value).", rich_help_panel=QUERY
        ),
    ] = None,
    key: Annotated[str | None, typer.Option(help="Column with the key.", rich_help_panel=QUERY)] = None,
    rollup: Annotated[
        str | None,
        typer.Option(help="Columns of a rollup from the top, as in state,county.", rich_help_panel=QUERY),
    ] = None,
    keys: Annotated[
        Path | None,
        typer.Option(
            help="File with the public list of keys, one per line (of a rollup: CSV lines such as Tyrol,Innsbruck).",
            rich_help_panel=QUERY,
        ),
    ] = None,
    unknown: Annotated[
        str | None,
        typer.Option(help="Keys not in the list: refuse (default), or count as 'other'.", rich_help_panel=QUERY),
    ] = None,
    value: Annotated[str | None, typer.Option(help="Column with the value to sum.", rich_help_panel=QUERY)] = None,
    lo: Annotated[float | None, typer.Option(help="Smallest legal value.", rich_help_panel=QUERY)] = None,
    hi: Annotated[float | None, typer.Option(help="Largest legal value.", rich_help_panel=QUERY)] = None,
    grid: Annotated[
        float | None, typer.Option(help="Values are rounded to multiples of this (default: 1).", rich_help_panel=QUERY)
    ] = None,
    bins: Annotated[
        int | None, typer.Option(help="Quantiles of --value in so many bins (a power of two).", rich_help_panel=QUERY)
    ] = None,
    user: Annotated[
        str | None, typer.Option(help="Column with the user: protect users, not events.", rich_help_panel=PRIVACY)
    ] = None,
    max_events: Annotated[
        int | None, typer.Option(help="Events counted per user, over all time.", rich_help_panel=PRIVACY)
    ] = None,
    adjacency: Annotated[
        str | None, typer.Option(help="add-remove (default) or replace.", rich_help_panel=PRIVACY)
    ] = None,
    horizon: Annotated[
        str | None,
        typer.Option(help="Number of ticks such as 8760 or 2^16, or none (default).", rich_help_panel=PRIVACY),
    ] = None,
    factorization: Annotated[
        str | None, typer.Option(help="How noise is correlated, or best: the least error.", rich_help_panel=PRIVACY)
    ] = None,
    new_noise_stream: Annotated[
        bool,
        typer.Option(
            "--new-noise-stream",
            help="Start again with new noise over the same data; the budgets add up.",
            rich_help_panel=PRIVACY,
        ),
    ] = False,
    state: Annotated[
        str | None, typer.Option(help="State file (default: beside the output). Secret.", rich_help_panel=OUTPUT)
    ] = None,
    plot: Annotated[
        str | None, typer.Option(help="Chart of all releases: .png, .svg or .pdf.", rich_help_panel=OUTPUT)
    ] = None,
    view: Annotated[
        list[str] | None,
        typer.Option(
            help="Write this view beside the output, repeatable: per-tick, last-24, per-day, per-week, quantile-0.5.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No summary, no progress.", rich_help_panel=OUTPUT)] = False,
) -> None:
    """Publish running statistics of an events file under one (ε, δ) for all releases, past and future.

    Run it again with the same options to continue: ticks that have ended since are added to the output, with the same
    noise stream. Without --key the events are counted; with --key per key; with --value their values are summed. The
    options are a way to write a declaration: --show-declaration prints it, --streams reads it.
    """
    flags = {
        "time": time,
        "every": every,
        "start": start,
        "epsilon": epsilon,
        "delta": delta,
        "tz": tz,
        "late": late,
        "query": query,
        "key": key,
        "rollup": rollup,
        "keys": keys,
        "unknown": unknown,
        "value": value,
        "lo": lo,
        "hi": hi,
        "grid": grid,
        "bins": bins,
        "user": user,
        "max-events": max_events,
        "adjacency": adjacency,
        "horizon": horizon,
        "factorization": factorization,
    }
    declaration = declared(flags) if streams is None else chosen(streams, stream, flags)
    if streams is None and view:
        declaration = replace(declaration, views=tuple(dict.fromkeys(view)))
    if show_declaration:
        typer.echo(declaration.to_toml(), nl=False)
        return
    if out is None:
        raise ParameterError("--out is missing: name the release file (.csv, .jsonl or .parquet), or '-'")
    from evercount.declare.schedule import parse_time, zone_named
    from evercount.files.release_run import Job, release_file

    zone = zone_named(declaration.schedule.zone)
    job = Job(
        file=file,
        declaration=declaration,
        out=out,
        now=_now() if now is None else parse_time(now, zone, "--now"),
        end=None if end is None else parse_time(end, zone, "--end"),
        state=state,
        rejects=rejects,
        plot=plot,
        views=tuple(view or ()),
        skip_bad=skip_bad,
        new_noise_stream=new_noise_stream,
        delimiter=delimiter,
        zone_given=tz is not None or streams is not None,
    )
    try:
        with _progress(quiet) as tell:
            outcome = release_file(job, tell)
    except KeyboardInterrupt:
        typer.echo("stopped: nothing was published by this run that is not whole; run it again to continue", err=True)
        raise typer.Exit(130) from None
    for reject in outcome.shown:
        typer.echo(f"skipped {reject}", err=True)
    if outcome.bad > len(outcome.shown):
        typer.echo(f"skipped {outcome.bad} bad rows in all", err=True)
    if not quiet:
        typer.echo(summary(outcome), err=True)


def _now() -> int:
    import time as system_time

    return system_time.time_ns() // 1000


Flags = dict[str, Any]
"""What was given on the command line, by the name of the option; None where nothing was."""


def chosen(path: Path, name: str | None, flags: Flags) -> StreamDeclaration:
    """The stream of a TOML file; options that declare a stream do not go with it."""
    from evercount.declare.declaration import read_declarations
    from evercount.errors import UnknownName

    given = [f"--{option}" for option, value in flags.items() if value is not None]
    if given:
        raise ParameterError(f"--streams declares the stream: omit {', '.join(given)}")
    known = {declaration.name: declaration for declaration in read_declarations(path)}
    if name is None and len(known) == 1:
        return next(iter(known.values()))
    if name not in known:
        if name is None:
            raise ParameterError(f"{path} declares {len(known)} streams: choose one of {', '.join(known)} by --stream")
        raise UnknownName("stream", name, known)
    return known[name]


def declared(flags: Flags) -> StreamDeclaration:
    """The declaration that the options write, or ParameterError in the words of the options."""
    from evercount.declare.columns import Columns
    from evercount.declare.declaration import StreamDeclaration
    from evercount.declare.schedule import Schedule
    from evercount.privacy import Budget

    missing = [f"--{name}" for name in ("time", "every", "start", "epsilon", "delta") if flags[name] is None]
    if missing:
        raise ParameterError(f"missing: {', '.join(missing)} (or --streams FILE)")
    if (flags["user"] is None) != (flags["max-events"] is None):
        raise ParameterError("--user and --max-events go together: that many events of a user are counted")
    unit = {} if flags["user"] is None else {"unit": "user", "max_events": flags["max-events"]}
    name, parameters = _query(flags)
    from evercount.queries import build_query

    return StreamDeclaration(
        name="release",
        query=build_query(name, parameters, stored=name != "rollup"),  # a run that starts a stream checks its keys
        budget=Budget(flags["epsilon"], flags["delta"], adjacency=flags["adjacency"] or "add-remove", **unit),
        schedule=Schedule.of(flags["every"], flags["start"], flags["tz"] or "UTC"),
        horizon=None if flags["horizon"] is None else parse_horizon(flags["horizon"]),
        factorization=flags["factorization"],
        columns=Columns(flags["time"], flags["key"], flags["value"], flags["user"], _levels(flags["rollup"])),
        late=flags["late"] or "drop",
    )


def _query(flags: Flags) -> tuple[str, dict[str, Any]]:
    """The name and the parameters of the query."""
    from evercount.queries import check_is_query

    keyed = "rollup" if flags["rollup"] else "histogram" if flags["key"] else None
    valued = "quantiles" if flags["bins"] is not None else "sum"
    name = flags["query"] or keyed or (valued if flags["value"] else "count")
    check_is_query(name)
    if flags["key"] is not None and flags["rollup"] is not None:
        raise ParameterError("--key is one column of keys and --rollup several levels: give only one of them")
    if (keyed is None) != (flags["keys"] is None):
        raise ParameterError(
            "--key COLUMN (or --rollup COLUMNS) and --keys FILE go together: the list of keys is public and declared"
        )
    if flags["unknown"] is not None and keyed is None:
        raise ParameterError("--unknown goes with --key and --keys")
    if (name == "rollup") != (flags["rollup"] is not None):
        raise ParameterError("--query rollup goes with --rollup and --keys, and they go with no other query")
    ranged = {bound: flags[bound] for bound in ("lo", "hi", "grid", "bins") if flags[bound] is not None}
    if (flags["value"] is not None) != ({"lo", "hi"} <= ranged.keys()) or (flags["value"] is None and ranged):
        raise ParameterError("--value COLUMN, --lo and --hi go together: the range of a value is public and declared")
    if (name == "histogram") != (flags["key"] is not None):
        raise ParameterError("--query histogram goes with --key and --keys, and they go with no other query")
    if (name in ("sum", "quantiles")) != (flags["value"] is not None):
        raise ParameterError(
            "--query sum (or quantiles) goes with --value, --lo and --hi, and they go with no other query"
        )
    if name != "quantiles" and flags["bins"] is not None:
        raise ParameterError("--bins goes with --query quantiles")
    if name == "quantiles" and flags["grid"] is not None:
        raise ParameterError("--grid goes with --query sum; quantiles have --bins")
    if name == "histogram":
        return name, {"keys": list(read_keys(flags["keys"])), "unknown": flags["unknown"] or "refuse"}
    if name == "rollup":
        paths = list(csv.reader(read_keys(flags["keys"]), skipinitialspace=True))
        return name, {"paths": paths, "unknown": flags["unknown"] or "refuse"}
    return name, ranged


def _levels(text: str | None) -> tuple[str, ...]:
    """The columns of --rollup."""
    return () if text is None else tuple(column.strip() for column in text.split(","))


def read_keys(path: Path) -> tuple[str, ...]:
    """The keys of a file, one per line; spaces around a key and empty lines do not count."""
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ParameterError(f"--keys {path} is not UTF-8 text") from error
    except OSError as error:
        raise ParameterError(f"--keys {path} cannot be read: {error.strerror}") from error
    found: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        key = line.strip()
        if key in found:
            raise ParameterError(f"--keys {path}: the key {key!r} stands on lines {found[key]} and {number}")
        if key:
            found[key] = number
    if not found:
        raise ParameterError(f"--keys {path} holds no key: write one per line")
    return tuple(found)


def summary(outcome: Outcome) -> str:
    """What the run has done and what it promises."""
    target = outcome.places.output or "standard output"
    done = outcome.last - outcome.first + 1
    if done > 0:
        ticks = f"tick {outcome.first}" if done == 1 else f"ticks {outcome.first} to {outcome.last}"
        lines = [f"Released {ticks} to {target}; state (secret): {outcome.places.state}"]
    else:
        lines = [f"No tick has ended since the last run; {target} is unchanged."]
    if outcome.horizon is not None and outcome.last >= outcome.horizon:
        lines.append(
            f"The horizon of {outcome.horizon} ticks is complete; this stream releases no more. To go on, start a new "
            "one with a later --start and another --out."
        )
    else:
        lines.append(f"The next tick ends at {outcome.next_end}.")
    lines += [f"Kept: {path}" for path in outcome.archived]
    lines += [f"View: {path}" for path in outcome.views]
    lines.append(outcome.guarantee)
    if outcome.composed is not None:
        lines.append(outcome.composed)
    return "\n".join(lines)


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
