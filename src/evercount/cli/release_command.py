"""`evercount release`: an events file or standard input → private releases, once or from cron."""

from __future__ import annotations

import csv
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evercount.cli.options import parse_horizon
from evercount.errors import ParameterError

if TYPE_CHECKING:
    from evercount.declare.declaration import StreamDeclaration
    from evercount.declare.file_places import FilePlaces
    from evercount.files.release_run import Job, Outcome

_of_input = partial(typer.Option, rich_help_panel="Input")
_of_query = partial(typer.Option, rich_help_panel="What is counted")
_of_privacy = partial(typer.Option, rich_help_panel="Privacy")
_of_output = partial(typer.Option, rich_help_panel="Output")


DECLARING = (
    "time",
    "every",
    "start",
    "epsilon",
    "delta",
    "tz",
    "late",
    "query",
    "key",
    "rollup",
    "keys",
    "unknown",
    "minimum",
    "value",
    "lo",
    "hi",
    "grid",
    "bins",
    "user",
    "max-events",
    "adjacency",
    "horizon",
    "factorization",
)
"""The options that write a declaration."""
STREAMS = Path("streams.toml")
"""Where `evercount release NAME` looks for the stream NAME."""


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
            help="count, histogram (--key), discovered-keys (--key), rollup (--rollup), sum or quantiles (--value)."
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
    bins: Annotated[int | None, _of_query(help="Quantiles of --value in so many bins (a power of two).")] = None,
    user: Annotated[str | None, _of_privacy(help="Column with the user: protect users, not events.")] = None,
    max_events: Annotated[int | None, _of_privacy(help="Events counted per user, over all time.")] = None,
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
    declaration, places, files = resolve(files or [], streams, stream, flags)
    if time is not None and view:  # a declaration that the options write
        declaration = replace(declaration, views=tuple(dict.fromkeys(view)))
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


Flags = dict[str, Any]
"""What was given on the command line, by the name of the option; None where nothing was."""


def resolve(
    files: list[str], streams: Path | None, stream: str | None, flags: Flags
) -> tuple[StreamDeclaration, FilePlaces, list[str]]:
    """The declaration, the places of its files, and the event files that the command line names.

    A first argument that no file has for its name is the name of a stream: of --streams, or of streams.toml here.

    Args:
        files: the arguments.
        streams: the file of --streams.
        stream: the name of --stream.
        flags: the options that declare a stream.

    Raises:
        ParameterError: there is no such stream, or an option is missing or contradicts another.
    """
    from evercount.declare.file_places import FilePlaces

    named = (
        bool(files) and files[0] != "-" and not any(mark in files[0] for mark in "*?[/") and not Path(files[0]).exists()
    )
    if streams is None and named and STREAMS.is_file() and all(value is None for value in flags.values()):
        streams = STREAMS
    if streams is None:
        return declared(flags), FilePlaces(), files
    if stream is None and named:
        stream, files = files[0], files[1:]
    declaration, places = chosen(streams, stream, flags)
    return declaration, places, files


def chosen(path: Path, name: str | None, flags: Flags) -> tuple[StreamDeclaration, FilePlaces]:
    """The stream of a TOML file and its places.

    Args:
        path: the file.
        name: the stream; None where the file has one only.
        flags: the options of the command line; none that declares a stream goes with the file.

    Returns:
        The declaration, and where its files are.

    Raises:
        ParameterError: there is no such stream, or options contradict the file.
    """
    from evercount.declare.declaration import read_streams
    from evercount.errors import UnknownName

    given = [f"--{option}" for option, value in flags.items() if value is not None]
    if given:
        raise ParameterError(f"--streams declares the stream: omit {', '.join(given)}")
    known = {found[0].name: found for found in read_streams(path)}
    if name is None and len(known) == 1:
        return next(iter(known.values()))
    if name not in known:
        if name is None:
            raise ParameterError(f"{path} declares {len(known)} streams: choose one of {', '.join(known)} by --stream")
        raise UnknownName("stream", name, known)
    return known[name]


def declared(flags: Flags) -> StreamDeclaration:
    """The declaration that the options write.

    Args:
        flags: the options by name.

    Returns:
        The declaration.

    Raises:
        ParameterError: in the words of the options.
    """
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
        columns=Columns(
            flags["time"], _key_columns(flags["key"]), flags["value"], flags["user"], _levels(flags["rollup"])
        ),
        late=flags["late"] or "drop",
    )


def _query(flags: Flags) -> tuple[str, dict[str, Any]]:
    """The name and the parameters of the query."""
    from evercount.queries import check_is_query

    keyed = "rollup" if flags["rollup"] else "histogram" if flags["key"] else None
    valued = "quantiles" if flags["bins"] is not None else "sum"
    name = flags["query"] or keyed or (valued if flags["value"] else "count")
    check_is_query(name)
    if name == "discovered-keys":
        return _unlisted(flags)
    if flags["minimum"] is not None:
        raise ParameterError("--minimum goes with --query discovered-keys")
    if flags["key"] is not None and flags["rollup"] is not None:
        raise ParameterError("--key is one column of keys and --rollup several levels: give only one of them")
    if (keyed is None) != (flags["keys"] is None):
        raise ParameterError(
            "--key COLUMN (or --rollup COLUMNS) and --keys FILE go together: the list of keys is public and declared. "
            "Without a list, use --query discovered-keys"
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
        return name, {
            "keys": list(read_keys(flags["keys"], len(flags["key"]))),
            "unknown": flags["unknown"] or "refuse",
        }
    if name == "rollup":
        paths = list(csv.reader(read_keys(flags["keys"]), skipinitialspace=True))
        return name, {"paths": paths, "unknown": flags["unknown"] or "refuse"}
    return name, ranged


def _unlisted(flags: Flags) -> tuple[str, dict[str, Any]]:
    """`discovered-keys` and its parameters; what goes with listed keys and values is refused."""
    given = [
        f"--{name}"
        for name in ("keys", "unknown", "value", "lo", "hi", "grid", "bins", "rollup")
        if flags[name] is not None
    ]
    if flags["key"] is None or given:
        raise ParameterError(
            f"--query discovered-keys needs --key{' and goes without ' if given else ''}{', '.join(given)}"
        )
    return "discovered-keys", {} if flags["minimum"] is None else {"minimum": flags["minimum"]}


def _levels(text: str | None) -> tuple[str, ...]:
    """The columns of --rollup."""
    return () if text is None else tuple(column.strip() for column in text.split(","))


def _key_columns(columns: list[str] | None) -> str | tuple[str, ...] | None:
    """One column by its name, several as a tuple."""
    return None if not columns else columns[0] if len(columns) == 1 else tuple(columns)


def read_keys(path: Path, columns: int = 1) -> tuple[str, ...]:
    """The keys of a file, one per line; spaces around a key and empty lines do not count.

    Args:
        path: the file.
        columns: of how many columns a key is made. With several, a line holds their values as CSV.

    Returns:
        The keys, in the order of the file.

    Raises:
        ParameterError: the file cannot be read, holds no key or one key twice, or a line has another number of values.
    """
    from evercount.declare.columns import combined_key

    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ParameterError(f"--keys {path} is not UTF-8 text") from error
    except OSError as error:
        raise ParameterError(f"--keys {path} cannot be read: {error.strerror}") from error
    found: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        key = line.strip()
        if columns > 1 and key:
            values = [value.strip() for value in next(csv.reader([key], skipinitialspace=True))]
            if len(values) != columns:
                raise ParameterError(
                    f"--keys {path}: line {number} has {len(values)} values, and there are {columns} columns of --key; "
                    "write them apart by commas, as in Tyrol,f"
                )
            key = combined_key(values)
        if key in found:
            raise ParameterError(f"--keys {path}: the key {key!r} stands on lines {found[key]} and {number}")
        if key:
            found[key] = number
    if not found:
        raise ParameterError(f"--keys {path} holds no key: write one per line")
    return tuple(found)


def facts(job: Job, outcome: Outcome) -> dict[str, Any]:
    """The summary for programs. Public facts only: no number of rows."""
    places = outcome.places
    return {
        "checked": job.check,
        "released": outcome.released,
        "first_tick": outcome.first if outcome.released else None,
        "last_tick": outcome.last,
        "horizon": outcome.horizon,
        "complete": outcome.complete,
        "next_tick_ends": None if outcome.complete else outcome.next_end,
        "output": None if places.output is None else str(places.output),
        "state": str(places.state),
        "rejects": job.rejects,
        "plot": job.plot,
        "kept": [str(path) for path in outcome.archived],
        "views": [str(path) for path in outcome.views],
        "late": outcome.late,
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
        lines = [f"No tick has ended yet: the stream begins at {outcome.start}. Nothing was written."]
    if outcome.continued and outcome.late == "drop":
        where = f"they are listed in {job.rejects}" if job.rejects else "--rejects FILE lists them"
        lines.append(f"Late rows, of ticks before tick {outcome.first}, do not count (--late drop); {where}.")
    if outcome.complete:
        lines.append(
            f"The horizon of {outcome.horizon} ticks is complete; this stream releases no more, and later runs exit "
            "with status 4. To go on, start a new one with a later --start and another --out; with --horizon none it "
            "has no end."
        )
    else:
        lines.append(f"The next tick ends at {outcome.next_end}.")
    if outcome.drawn is not None and outcome.drawn[0] < outcome.drawn[1]:
        lines.append(f"The chart shows the first {outcome.drawn[0]} of {outcome.drawn[1]} cells.")
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
