"""The command `evercount`: one file per command; nothing heavy is imported before a command runs."""

from __future__ import annotations

import os
import sys
from typing import Any

import typer
from typer.core import TyperGroup

from evercount import __version__
from evercount.cli.audit_command import audit
from evercount.cli.bench_command import bench
from evercount.cli.example_command import example
from evercount.cli.plan_command import plan
from evercount.cli.release_command import release
from evercount.cli.reproduce_command import reproduce
from evercount.cli.serve_command import serve
from evercount.cli.spark_command import spark
from evercount.cli.store_command import store
from evercount.errors import EvercountError, StoreError


class Commands(TyperGroup):
    """Errors that are the user's to solve are one line on stderr, never a traceback, with one exit code per kind."""

    def invoke(self, ctx: Any) -> Any:
        """See click."""
        try:
            return super().invoke(ctx)
        except EvercountError as error:
            typer.echo(f"error: {error.for_operator() if isinstance(error, StoreError) else error}", err=True)
            raise typer.Exit(error.exit_code) from None


app = typer.Typer(
    name="evercount",
    cls=Commands,
    help="Running statistics of a sensitive event stream under one differential-privacy guarantee.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(shown: bool) -> None:
    if shown:
        typer.echo(f"evercount {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(False, "--version", callback=_version, is_eager=True, help="Show the version."),
) -> None:
    """Shared options."""


app.command()(plan)
app.command()(release)
app.command()(serve)
app.command()(spark)
app.add_typer(store, name="store")
app.command()(reproduce)
app.add_typer(audit, name="audit")
app.command()(bench)
app.command()(example)


def main() -> None:
    """Entry point of the command."""
    try:
        app()
    except KeyboardInterrupt:
        typer.echo("interrupted; nothing is half-written", err=True)
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader went away, as `head` does
        sys.exit(1)
