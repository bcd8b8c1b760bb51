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
from evercount.cli.client_commands import push, streams, tail, tokens
from evercount.cli.consume_command import consume
from evercount.cli.example_command import example
from evercount.cli.plan_command import plan
from evercount.cli.release_command import as_options, release
from evercount.cli.reproduce_command import reproduce
from evercount.cli.serve_command import serve
from evercount.cli.spark_command import spark
from evercount.cli.store_command import store
from evercount.errors import EvercountError, MissingExtra, StoreError

EXTRA_OF_PACKAGE = {
    "rich": "cli",
    "duckdb": "files",
    "pyarrow": "files",
    "matplotlib": "plot",
    "sqlalchemy": "service",
    "fastapi": "service",
    "uvicorn": "service",
    "psycopg": "postgres",
    "pyspark": "spark",
    "nats": "consume",
    "confluent_kafka": "consume",
    "prometheus_client": "consume",
    "pandas": "frames",
    "polars": "frames",
    "hypothesis": "audit",
    "httpx": "client",
}
"""Which extra installs a package that a command lacks."""


def _missing_extra(missing: ModuleNotFoundError) -> MissingExtra:
    """The answer to a package that is not installed; a module of our own that is missing is a defect."""
    extra = EXTRA_OF_PACKAGE.get((missing.name or "").partition(".")[0])
    if extra is None:
        raise missing
    return MissingExtra(f"this command ({missing.name})", extra)


class Commands(TyperGroup):
    """Errors that are the user's to solve are one line on stderr, never a traceback, with one exit code per kind."""

    def invoke(self, ctx: Any) -> Any:
        """See click."""
        try:
            return super().invoke(ctx)
        except ModuleNotFoundError as missing:
            extra = _missing_extra(missing)
            typer.echo(f"error: {extra}", err=True)
            raise typer.Exit(extra.exit_code) from None
        except EvercountError as error:
            said = error.for_operator() if isinstance(error, StoreError) else str(error)
            typer.echo(f"error: {as_options(said)}", err=True)
            raise typer.Exit(error.exit_code) from None


app = typer.Typer(
    name="evercount",
    cls=Commands,
    help="Running statistics of a sensitive event stream under one differential-privacy guarantee.",
    no_args_is_help=True,
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
app.command()(consume)
app.add_typer(store, name="store")
app.add_typer(streams, name="streams")
app.command()(tail)
app.command()(push)
app.add_typer(tokens, name="tokens")
app.command()(reproduce)
app.add_typer(audit, name="audit")
app.command()(bench)
app.command()(example)


def main() -> None:
    """Entry point of the command."""
    try:
        app(prog_name="evercount")  # also as `python -m evercount`
    except KeyboardInterrupt:
        typer.echo("interrupted; nothing is half-written", err=True)
        sys.exit(130)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader went away, as `head` does
        sys.exit(1)
