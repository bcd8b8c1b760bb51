"""`evercount release`: an events file or standard input → private releases, once or from cron.

A shell around `evercount.front_door`: `options.ReleaseOptions` has its options, and `run` says what
is wrong.
"""

from __future__ import annotations

import inspect
import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, get_args

import typer
from typer import Argument, Option

from evercount._validate import aligned
from evercount.cli.grouped_help import GroupedCommand, grouped_as
from evercount.cli.options import choose_stream, progress_bar, shown_if_long
from evercount.cli.spelling import as_options, command_options, option_of
from evercount.engine.write_table import round_table
from evercount.errors import HorizonReached, InputError, ParameterError
from evercount.front_door.declare_stream import declare, is_given, refuse_missing
from evercount.front_door.options import DeclareOptions, is_repeatable
from evercount.front_door.release_data import missing_options, run

if TYPE_CHECKING:
    from pydantic.fields import FieldInfo

    from evercount.declarations.declaration import StreamDeclaration
    from evercount.declarations.streams_file import FilePlaces
    from evercount.engine.release_table import ReleaseTable
    from evercount.files.release_job import Outcome

# what events are in
SUFFIXES = (".csv", ".txt", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet", ".gz", ".zst")
STREAMS = Path("streams.toml")  # where `evercount release NAME` looks for the stream NAME


class ReleaseHelp(GroupedCommand):
    """The help of `release`."""

    examples: ClassVar = {
        "Count visits per day": (
            "evercount release visits.csv --time when --every 1d --zone UTC \\\n"
            "  --start 2026-01-01 --epsilon 1 --out daily.csv"
        ),
        "Count per region, and protect what a person does on one day": (
            "evercount release 'log/*.csv' --time when --every 1d --zone UTC \\\n"
            "  --start 2026-01-01 --key region --keys regions.txt \\\n"
            "  --user person --period 1d --max-per-tick 1 --epsilon 1 --out regions.csv"
        ),
        "Go on with a stream of streams.toml, as from cron": "evercount release visits --quiet",
    }


def with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Give the command an option for each field of `ReleaseOptions`, in place of `options`."""
    own = inspect.signature(command, eval_str=True)
    parameters = [
        parameter
        for parameter in own.parameters.values()
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD
    ]
    fields = command_options().items()
    # the files and the declaration come first, what is printed comes last
    parameters[3:3] = [_parameter(name, field) for name, field in fields]
    command.__signature__ = own.replace(parameters=parameters)  # type: ignore[attr-defined]
    return command


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    """Make the parameter of a command for a field: a flag, a number, a text, or several texts."""
    option = Option(option_of(name), help=as_options(field.description or ""))
    return inspect.Parameter(
        name,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
        default=field.default,
        annotation=Annotated[_command_type(field), option],
    )


def _command_type(field: FieldInfo) -> Any:
    """Choose the type of an option on the command line."""
    if field.annotation is bool:
        return bool
    if is_repeatable(field):
        return list[str] | None
    for number in (int, float):
        if get_args(field.annotation) == (number, type(None)):
            return number | None
    return str | None  # also for a time, a path or a list: what reads it takes texts


@grouped_as(ReleaseHelp)
@with_options
def release(
    files: list[str] | None = Argument(
        None,
        help=(
            "Event files (CSV, JSONL, Parquet; plain, gzip or zstd), patterns such as 'log/*.csv', "
            "'-' for standard input, or the name of a stream in streams.toml."
        ),
        show_default=False,
    ),
    streams: Path | None = Option(
        None, help="TOML file that declares the stream, instead of the options below."
    ),
    stream: str | None = Option(
        None, help="Name of the stream in --streams, where it has several."
    ),
    show_declaration: bool = Option(
        False, "--show-declaration", help="Print the stream as TOML and stop."
    ),
    json_output: bool = Option(
        False, "--json", help="Print the summary as JSON on standard output."
    ),
    quiet: bool = Option(False, "--quiet", help="No summary, no progress."),
    **options: Any,
) -> None:
    """Publish running statistics of event files under one (ε, δ) for all releases, past and future.

    Run it again with the same options to continue: ticks that have ended since are added to the
    output, with the same noise stream. Without --key the events are counted; with --key per key;
    with --value their values are summed. The options are a way to write a declaration:
    --show-declaration prints it, --streams reads it.
    """
    given: dict[str, Any] = {
        name: None if value == [] else value for name, value in options.items()
    }
    declared: dict[str, Any] = {name: given[name] for name in DeclareOptions.model_fields}
    with shown_if_long("choosing noise"):
        declaration, places, files = resolve_stream(files or [], streams, stream, declared)
        if show_declaration:
            declaration = declaration or declare(**declared)
    if show_declaration:
        assert declaration is not None
        typer.echo(declaration.to_toml(), nl=False)
        return
    if places is not None:
        files = files or list(places.input)
        fill_places(given, places)
    _refuse_missing(given, declaration, files)
    to_stdout = given["out"] == "-" and given["db"] is None
    if to_stdout:
        _check_stdout(given, declaration, json_output)
        given["out"] = None
    prints_rows = to_stdout and not given["check"]
    try:
        outcome = _run(files, declaration, given, hide_progress=quiet or not sys.stderr.isatty())
    except HorizonReached as end:
        if prints_rows and end.table is not None:
            _print(end.table, given["full_digits"])
        raise
    except KeyboardInterrupt:
        typer.echo(
            "stopped: this run published nothing, or all of it; run it again to continue", err=True
        )
        raise typer.Exit(130) from None
    _print_rejects(outcome)
    if prints_rows:
        _print(outcome.table, given["full_digits"])
    if json_output:
        typer.echo(json.dumps(outcome.facts(), indent=1))
    elif not quiet:
        typer.echo(as_options(outcome.summary()), err=True)
        if not prints_rows:
            _print_newest(outcome)


def fill_places(given: dict[str, Any], places: FilePlaces) -> None:
    """Take the places that a file of streams names for options that are not given."""
    defaults = vars(places) | {"out": places.output}
    for name in ("out", "state", "rejects", "plot", "delimiter"):
        given[name] = given[name] or defaults[name]


def _check_stdout(
    given: dict[str, Any], declaration: StreamDeclaration | None, json_output: bool
) -> None:
    """Refuse standard output without a state, next to JSON, and for several views."""
    # the state is the commit; what is printed can be printed again
    if given["state"] is None or json_output:
        raise ParameterError(
            "`out` - needs `state`, which keeps the noise for the next run, and no --json"
        )
    views = set(given["views"] or ())
    if declaration is not None:
        views.update(declaration.views)
    if len(views) > 1:
        raise ParameterError(
            "`out` - shows one view: name a file with `out`, which has the others next to it"
        )


def _run(
    files: list[str],
    declaration: StreamDeclaration | None,
    given: dict[str, Any],
    hide_progress: bool,
) -> Outcome:
    """Release with a bar of progress, and print warnings as lines."""
    with progress_bar(hidden=hide_progress) as progress, warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = print_warning
        return run(files, declaration, progress=progress, **given)


def print_warning(message: Warning | str, *_: Any, **__: Any) -> None:
    """Print a warning in one line."""
    typer.echo(f"warning: {message}", err=True)


def _print_rejects(outcome: Outcome) -> None:
    """Print what caps dropped, and the rows that were skipped."""
    if outcome.dropped is not None:
        typer.echo(str(outcome.dropped), err=True)
    for reject in outcome.shown:
        typer.echo(f"skipped {reject}", err=True)
    if outcome.bad > len(outcome.shown):
        typer.echo(f"skipped {outcome.bad} bad rows in all", err=True)


MOST_NEWEST = 8  # keys whose newest numbers are printed


def _print_newest(outcome: Outcome) -> None:
    """Print the newest published numbers, of the first keys, as the output has them."""
    table = outcome.newest
    if table is None or table.starts is None:
        return
    values = table.numbers[-1]
    shown = [place for place in range(values.shape[1]) if values[0, place] == values[0, place]]
    rows = [["", "value", "std", "95 % from", "to"]]
    for place in shown[:MOST_NEWEST]:
        numbers = ("-" if number != number else f"{number:,.10g}" for number in values[:, place])
        rows.append([table.cells[place], *numbers])
    begin = outcome.job.declaration.schedule.show(table.starts[-1])
    typer.echo(f"Newest numbers, of what begins at {begin}:", err=True)
    for line in aligned(rows, left=1):
        typer.echo(f"  {line}".rstrip(), err=True)
    if len(shown) > MOST_NEWEST:
        typer.echo(f"  and {len(shown) - MOST_NEWEST:,} more keys", err=True)


def _refuse_name(name: str, given: list[str]) -> None:
    """Refuse what is neither a file nor the name of a declared stream, and say what would make it
    one."""
    reason = f"no {STREAMS} here"
    remedy = f"declare it in {STREAMS}"
    if STREAMS.is_file():
        reason = f"{STREAMS} is not read, since the options declare the stream"
        if given:
            remedy = f"omit {', '.join(given)}"
    raise InputError(
        f"{name} cannot be read: there is no such file. If it is the name of a stream, {remedy} "
        f"({reason}), and name its files: evercount release {name} visits.csv"
    )


EXAMPLE = (
    "evercount release visits.csv --time when --every 1d --zone UTC --start 2026-01-01 --epsilon 1 "
    "--out daily.csv"
)


def _refuse_missing(
    given: dict[str, Any], declaration: StreamDeclaration | None, files: list[str]
) -> None:
    """Refuse a run without files, a declaration or an output, and name all that it lacks."""
    missing = []
    example = EXAMPLE
    if declaration is None:
        missing = missing_options(given)
    else:
        example = f"evercount release {declaration.name} visits.csv --out daily.csv"
    if given["out"] is None and given["db"] is None and not given["check"]:
        missing.append("out")
    refuse_missing(missing, example, [] if files else ["event files"])


def _print(table: ReleaseTable, full_digits: bool) -> None:
    """Print rows as CSV on standard output."""
    if not full_digits:
        table = round_table(table)
    typer.echo(table.to_csv(), nl=False)


def resolve_stream(
    files: list[str], streams: Path | None, stream: str | None, declared: dict[str, Any]
) -> tuple[StreamDeclaration | None, FilePlaces | None, list[str]]:
    """Find the declaration in a file and its places, None if the options declare the stream; and
    the event files that the command line names.

    A first argument that is no file is the name of a stream: of --streams, or of streams.toml here.
    """
    first = files[0] if files else "-"
    is_name = (
        first != "-" and not any(mark in first for mark in "*?[/") and not Path(first).exists()
    )
    given = [
        option_of(name) for name, value in declared.items() if is_given(value) and name != "views"
    ]
    if streams is None and is_name and STREAMS.is_file() and not given:
        streams = STREAMS
    if streams is None:
        if is_name and Path(first).suffix.lower() not in SUFFIXES:
            _refuse_name(first, given)
        return None, None, files
    if stream is None and is_name:
        stream = first
        files = files[1:]
    if given:
        raise ParameterError(f"--streams declares the stream: omit {', '.join(given)}")
    return *choose_stream(streams, stream), files
