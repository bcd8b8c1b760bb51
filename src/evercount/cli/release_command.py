"""`evercount release`: an events file or standard input → private releases, once or from cron.

A shell around `evercount.front_door`, whose functions say what its options are, what they mean and
what is wrong.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from evercount.cli.options import choose_stream, progress_bar, shown_if_long
from evercount.engine.write_table import round_table
from evercount.errors import HorizonReached, InputError, ParameterError
from evercount.front_door import release as release_data
from evercount.front_door.declare_stream import Declared, declare, described_options, refuse_missing
from evercount.front_door.release_data import missing_options, run

if TYPE_CHECKING:
    from evercount.declarations.declaration import StreamDeclaration
    from evercount.declarations.streams_file import FilePlaces
    from evercount.engine.release_table import ReleaseTable

# what events are in
SUFFIXES = (".csv", ".txt", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet", ".gz", ".zst")
STREAMS = Path("streams.toml")  # where `evercount release NAME` looks for the stream NAME
# options that are spelled otherwise than the parameter
SPELLED = {"views": "view", "notes": "note"}
REPEATED = ("key", "views", "notes")
OF_PYTHON = ("data", "declaration", "secret", "progress")  # parameters that are no options


def option_of(name: str) -> str:
    """How the command spells a parameter.

    >>> option_of("skip_bad"), option_of("views")
    ('--skip-bad', '--view')
    """
    return f"--{SPELLED.get(name, name)}".replace("_", "-")


def as_options(message: str) -> str:
    """A message of the library about its parameters as one about options.

    >>> as_options("omit `views` and `new_noise_stream`; `x` stays")
    'omit --view and --new-noise-stream; `x` stays'
    """
    return re.sub(
        r"`(\w+)`",
        lambda found: option_of(found[1]) if found[1] in PARAMETERS else found[0],
        message,
    )


PARAMETERS = {
    name: one
    for name, one in inspect.signature(release_data).parameters.items()
    if name not in OF_PYTHON
}


def _with_parameters(command: Callable[..., None]) -> Callable[..., None]:
    """Give the command an option for each parameter of `evercount.release`."""
    texts = described_options(declare, release_data)
    options = []
    for name, one in PARAMETERS.items():
        kind: Any = _KINDS.get(str(one.annotation), str)
        annotation = bool if kind is bool else list[str] | None if name in REPEATED else kind | None
        shown = Option(option_of(name), help=as_options(texts[name]))
        options.append(one.replace(annotation=Annotated[annotation, shown]))
    own = inspect.signature(command, eval_str=True)
    kept = [one for one in own.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    named = [one.replace(kind=inspect.Parameter.POSITIONAL_OR_KEYWORD) for one in options]
    whole = own.replace(parameters=[*kept[:3], *named, *kept[3:]])
    command.__signature__ = whole  # type: ignore[attr-defined]
    return command


_KINDS = {"bool": bool, "float | None": float, "int | None": int}


@_with_parameters
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
    declared: Any = {name: given[name] for name in Declared.__annotations__}
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
        named = vars(places) | {"out": places.output}
        given |= {
            name: given[name] or named[name]
            for name in ("out", "state", "rejects", "plot", "delimiter")
        }
    _refuse_missing(given, declaration, files)
    piped = given["out"] == "-" and given["db"] is None
    if piped:  # the state is the commit; what is printed can be printed again
        if given["state"] is None or json_output:
            raise ParameterError(
                "`out` - needs `state`, which keeps the noise for the next run, and no --json"
            )
        if len({*(() if declaration is None else declaration.views), *(given["views"] or ())}) > 1:
            raise ParameterError(
                "`out` - shows one view: name a file with `out`, which has the others next to it"
            )
        given["out"] = None
    try:
        with (
            progress_bar(hidden=quiet or not sys.stderr.isatty()) as tell,
            warnings.catch_warnings(),
        ):
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = lambda message, *_, **__: typer.echo(
                f"warning: {message}", err=True
            )
            outcome = run(files, declaration, progress=tell, **given)
    except HorizonReached as over:
        if piped and not given["check"] and over.table is not None:
            _print(over.table, given["full_digits"])
        raise
    except KeyboardInterrupt:
        typer.echo(
            "stopped: this run published nothing, or all of it; run it again to continue", err=True
        )
        raise typer.Exit(130) from None
    if outcome.dropped is not None:
        typer.echo(str(outcome.dropped), err=True)
    for reject in outcome.shown:
        typer.echo(f"skipped {reject}", err=True)
    if outcome.bad > len(outcome.shown):
        typer.echo(f"skipped {outcome.bad} bad rows in all", err=True)
    if piped and not given["check"]:
        _print(outcome.table, given["full_digits"])
    if json_output:
        typer.echo(json.dumps(outcome.facts(), indent=1))
    elif not quiet:
        typer.echo(as_options(outcome.summary()), err=True)


def _refuse_name(name: str, given: list[str]) -> None:
    """Refuse what is neither a file nor the name of a declared stream, and say what would make it
    one."""
    there = (
        f"{STREAMS} is not read, since the options declare the stream"
        if STREAMS.is_file()
        else f"no {STREAMS} here"
    )
    remedy = (
        f"omit {', '.join(given)}" if given and STREAMS.is_file() else f"declare it in {STREAMS}"
    )
    raise InputError(
        f"{name} cannot be read: there is no such file. If it is the name of a stream, {remedy} "
        f"({there}), and name its files: evercount release {name} visits.csv"
    )


EXAMPLE = (
    "evercount release visits.csv --time when --every 1d --zone UTC --start 2026-01-01 --epsilon 1 "
    "--out daily.csv"
)


def _refuse_missing(
    given: dict[str, Any], declaration: StreamDeclaration | None, files: list[str]
) -> None:
    """Say all at once what a run lacks: files, what it declares, and where it writes."""
    missing = missing_options(given) if declaration is None else []
    if given["out"] is None and given["db"] is None and not given["check"]:
        missing.append("out")
    example = (
        EXAMPLE
        if declaration is None
        else f"evercount release {declaration.name} visits.csv --out daily.csv"
    )
    refuse_missing(missing, example, [] if files else ["event files"])


def _print(table: ReleaseTable, full_digits: bool) -> None:
    typer.echo((table if full_digits else round_table(table)).to_csv(), nl=False)


def resolve_stream(
    files: list[str], streams: Path | None, stream: str | None, declared: dict[str, Any]
) -> tuple[StreamDeclaration | None, FilePlaces | None, list[str]]:
    """The declaration in a file and its places, None where the options declare the stream; and the
    event files that the command line names.

    A first argument that no file has for its name is the name of a stream: of --streams, or of
    streams.toml here.
    """
    first = files[0] if files else "-"
    named = first != "-" and not any(mark in first for mark in "*?[/") and not Path(first).exists()
    given = [
        option_of(name)
        for name, value in declared.items()
        if value not in (None, False) and name != "views"
    ]
    if streams is None and named and STREAMS.is_file() and not given:
        streams = STREAMS
    if streams is None:
        if named and Path(first).suffix.lower() not in SUFFIXES:
            _refuse_name(first, given)
        return None, None, files
    if stream is None and named:
        stream, files = first, files[1:]
    if given:
        raise ParameterError(f"--streams declares the stream: omit {', '.join(given)}")
    return *choose_stream(streams, stream), files
