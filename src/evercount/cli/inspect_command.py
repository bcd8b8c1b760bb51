"""`evercount inspect`: how fit event files are to be published, for the operator alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import typer
from typer import Argument, Option

from evercount.cli.grouped_help import GroupedCommand, grouped_as
from evercount.cli.options import shown_if_long
from evercount.cli.release_command import fill_places, resolve_stream, with_options
from evercount.cli.spelling import as_options
from evercount.front_door.declare_stream import refuse_missing
from evercount.front_door.options import DeclareOptions
from evercount.front_door.release_data import inspect as inspect_files
from evercount.front_door.release_data import missing_options

EXAMPLE = (
    "evercount inspect visits.csv --time when --every 1d --zone UTC --start 2026-01-01 --epsilon 1"
)


class InspectHelp(GroupedCommand):
    """The help of `inspect`."""

    examples: ClassVar = {
        "Look at files before the first run": (
            "evercount inspect 'log/*.csv' --time when --every 1d --zone UTC \\\n"
            "  --start 2026-01-01 --epsilon 1"
        ),
        "Look at what caps leave out": (
            "evercount inspect visits.csv --time when --every 1d --zone UTC \\\n"
            "  --start 2026-01-01 --epsilon 1 \\\n"
            "  --user person --max-per-tick 1 --max-ticks 30"
        ),
        "Look at the files of a stream of streams.toml": "evercount inspect visits",
    }


@grouped_as(InspectHelp)
@with_options
def inspect(
    files: list[str] | None = Argument(
        None,
        help="Event files, patterns, '-', or the name of a stream in streams.toml, as in release.",
        show_default=False,
    ),
    streams: Path | None = Option(
        None, help="TOML file that declares the stream, instead of the options below."
    ),
    stream: str | None = Option(
        None, help="Name of the stream in --streams, where it has several."
    ),
    json_output: bool = Option(False, "--json", help="Print the report as JSON."),
    **options: Any,
) -> None:
    """Report how fit event files are to be published: for you alone, never to be published.

    It takes the options of `evercount release`, reads the same rows, and says what is wrong:
    repeated files and rows, rows in the future, unknown keys, rows without a person, late rows,
    keys below their error, and what caps leave out, month by month. It publishes nothing, spends
    nothing, and reads no state.
    """
    from evercount.fitness.tables import PRIVATE, show_fitness

    given: dict[str, Any] = {
        name: None if value == [] else value for name, value in options.items()
    }
    declared: dict[str, Any] = {name: given[name] for name in DeclareOptions.model_fields}
    declaration, places, files = resolve_stream(files or [], streams, stream, declared)
    if places is not None:
        files = files or list(places.input)
        fill_places(given, places)
    missing = [] if declaration is not None else missing_options(given)
    refuse_missing(missing, EXAMPLE, [] if files else ["event files"])
    try:
        with shown_if_long("choosing noise"):
            fitness = inspect_files(files, declaration, **given)
    except KeyboardInterrupt:
        typer.echo("stopped: nothing was changed", err=True)
        raise typer.Exit(130) from None
    if json_output:
        typer.echo(json.dumps({"warning": PRIVATE, **fitness.facts()}, indent=1))
    else:
        typer.echo(as_options(show_fitness(fitness)))
