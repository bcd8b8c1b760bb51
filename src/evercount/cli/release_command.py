"""`evercount release`: an events file or standard input → private releases, once or from cron."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from evercount.errors import EvercountError, ParameterError

if TYPE_CHECKING:
    from evercount.files.count_rows import Spec
    from evercount.files.release_run import Job, Outcome

INPUT, QUERY, PRIVACY, OUTPUT = "Input", "What is counted", "Privacy", "Output"


def release(
    file: Annotated[str, typer.Argument(help="CSV, JSONL or Parquet file, plain or gzip, or '-' for standard input.")],
    time: Annotated[str, typer.Option(help="Column with the time of an event.", rich_help_panel=INPUT)],
    every: Annotated[str, typer.Option(help="Tick length: 15m, 1h, 1d, 1w …", rich_help_panel=INPUT)],
    start: Annotated[str, typer.Option(help="Start of the first tick, ISO 8601.", rich_help_panel=INPUT)],
    epsilon: Annotated[float, typer.Option(help="ε of all releases together.", rich_help_panel=PRIVACY)],
    delta: Annotated[float, typer.Option(help="δ of all releases together.", rich_help_panel=PRIVACY)],
    out: Annotated[str, typer.Option(help="Release file: .csv, .jsonl, .parquet, or '-'.", rich_help_panel=OUTPUT)],
    end: Annotated[
        str | None, typer.Option(help="Release no tick that ends after this.", rich_help_panel=INPUT)
    ] = None,
    now: Annotated[
        str | None, typer.Option(help="Take this for the present time (default: the clock).", rich_help_panel=INPUT)
    ] = None,
    tz: Annotated[
        str, typer.Option(help="Zone of days, weeks and times without offset.", rich_help_panel=INPUT)
    ] = "UTC",
    delimiter: Annotated[str, typer.Option(help="Between the columns of a CSV.", rich_help_panel=INPUT)] = ",",
    late: Annotated[
        str,
        typer.Option(
            help="Rows whose tick is closed: drop, or count in the next tick (a file that only grows).",
            rich_help_panel=INPUT,
        ),
    ] = "drop",
    skip_bad: Annotated[bool, typer.Option("--skip-bad", help="Leave bad rows out.", rich_help_panel=INPUT)] = False,
    rejects: Annotated[str | None, typer.Option(help="Write all bad rows to this file.", rich_help_panel=INPUT)] = None,
    query: Annotated[
        str | None, typer.Option(help="count, histogram (with --key) or sum (with --value).", rich_help_panel=QUERY)
    ] = None,
    key: Annotated[str | None, typer.Option(help="Column with the key.", rich_help_panel=QUERY)] = None,
    keys: Annotated[
        Path | None, typer.Option(help="File with the public list of keys, one per line.", rich_help_panel=QUERY)
    ] = None,
    unknown: Annotated[
        str, typer.Option(help="Keys not in the list: refuse, or count as 'other'.", rich_help_panel=QUERY)
    ] = "refuse",
    value: Annotated[str | None, typer.Option(help="Column with the value to sum.", rich_help_panel=QUERY)] = None,
    lo: Annotated[float | None, typer.Option(help="Smallest legal value.", rich_help_panel=QUERY)] = None,
    hi: Annotated[float | None, typer.Option(help="Largest legal value.", rich_help_panel=QUERY)] = None,
    grid: Annotated[float, typer.Option(help="Values are rounded to multiples of this.", rich_help_panel=QUERY)] = 1.0,
    user: Annotated[
        str | None, typer.Option(help="Column with the user: protect users, not events.", rich_help_panel=PRIVACY)
    ] = None,
    max_events: Annotated[
        int | None, typer.Option(help="Events counted per user, over all time.", rich_help_panel=PRIVACY)
    ] = None,
    adjacency: Annotated[str, typer.Option(help="add-remove or replace.", rich_help_panel=PRIVACY)] = "add-remove",
    horizon: Annotated[
        str, typer.Option(help="Number of ticks, or none (without end).", rich_help_panel=PRIVACY)
    ] = "none",
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
    quiet: Annotated[bool, typer.Option("--quiet", help="No summary, no progress.", rich_help_panel=OUTPUT)] = False,
) -> None:
    """Publish running statistics of an events file under one (ε, δ) for all releases, past and future.

    Run it again with the same options to continue: ticks that have ended since are added to the output, with the same
    noise stream. Without --key the events are counted; with --key per key; with --value their values are summed.
    """
    given = dict(locals())
    try:
        job = build_job(given)
        with _progress(quiet) as tell:
            from evercount.files.release_run import release_file

            outcome = release_file(job, tell)
    except EvercountError as error:
        _fail(f"error: {error}", 1)
    except KeyboardInterrupt:
        _fail("stopped: nothing was published by this run that is not whole; run it again to continue", 130)
    for reject in outcome.shown:
        typer.echo(f"skipped {reject}", err=True)
    if outcome.bad > len(outcome.shown):
        typer.echo(f"skipped {outcome.bad} bad rows in all", err=True)
    if not quiet:
        typer.echo(summary(outcome), err=True)


def build_job(given: dict[str, Any]) -> Job:
    """The job that the options describe, or ParameterError."""
    import time as system_time

    from evercount.declare.schedule import Clock, parse_time, zone_named
    from evercount.files.release_run import Job
    from evercount.privacy import Budget

    clock = Clock.of(given["every"], given["start"], given["tz"])
    zone = zone_named(given["tz"])
    if (given["user"] is None) != (given["max_events"] is None):
        raise ParameterError("--user and --max-events go together: a user's first so many events are counted")
    unit = {} if given["user"] is None else {"unit": "user", "max_events": given["max_events"]}
    budget = Budget(given["epsilon"], given["delta"], adjacency=given["adjacency"], **unit)
    return Job(
        file=given["file"],
        spec=_spec(given, clock),
        budget=budget,
        out=given["out"],
        now=system_time.time_ns() // 1000 if given["now"] is None else parse_time(given["now"], zone, "--now"),
        end=None if given["end"] is None else parse_time(given["end"], zone, "--end"),
        horizon=_horizon(given["horizon"]),
        **{
            name: given[name]
            for name in ("factorization", "state", "rejects", "plot", "skip_bad", "new_noise_stream", "delimiter")
        },
    )


def _spec(given: dict[str, Any], clock: Any) -> Spec:
    from evercount.files.count_rows import Spec
    from evercount.queries import check_is_query

    query = given["query"] or ("histogram" if given["key"] else "sum" if given["value"] else "count")
    check_is_query(query)
    if (given["key"] is None) != (given["keys"] is None):
        raise ParameterError("--key COLUMN and --keys FILE go together: the list of keys is public and declared")
    if given["unknown"] != "refuse" and given["key"] is None:
        raise ParameterError("--unknown goes with --key and --keys")
    bounds = (given["lo"], given["hi"])
    if (given["value"] is not None) != (None not in bounds) or (given["value"] is None and bounds != (None, None)):
        raise ParameterError("--value COLUMN, --lo and --hi go together: the range of a value is public and declared")
    ranged = {} if given["value"] is None else {"lo": given["lo"], "hi": given["hi"], "grid": given["grid"]}
    return Spec(
        clock,
        given["time"],
        query,
        given["key"],
        () if given["keys"] is None else read_keys(given["keys"]),
        given["unknown"],
        given["value"],
        user=given["user"],
        max_events=given["max_events"] if given["max_events"] is not None else 1,
        late=given["late"],
        **ranged,
    )


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


def _horizon(text: str) -> int | None:
    if text.lower() == "none":
        return None
    from evercount.factorizations import check_horizon

    try:
        number = int(text)
    except ValueError:
        raise ParameterError(f"--horizon must be a whole number of ticks or none, got {text!r}") from None
    return check_horizon(number)


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


def _fail(message: str, code: int) -> NoReturn:
    typer.echo(message, err=True)
    raise typer.Exit(code)
