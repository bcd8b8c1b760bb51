"""The command `evercount`: one file per command; nothing heavy is imported before a command
runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

import typer
import typer.main
from typer import Option
from typer.core import TyperGroup

from evercount import __version__
from evercount.errors import EvercountError, MissingExtra, StoreError
from evercount.front_door.missing_parts import missing_extra

CommandsByName = dict[str, Any]
"""Functions, or groups of them."""


def _audit() -> CommandsByName:
    from evercount.cli.audit_command import audit

    return {"audit": audit}


def _client() -> CommandsByName:
    from evercount.cli.client_commands import push, streams, tail, tokens

    return {"push": push, "streams": streams, "tail": tail, "tokens": tokens}


def _inspect() -> CommandsByName:
    from evercount.cli.inspect_command import inspect

    return {"inspect": inspect}


def _plan() -> CommandsByName:
    from evercount.cli.plan_command import plan

    return {"plan": plan}


def _release() -> CommandsByName:
    from evercount.cli.release_command import release

    return {"release": release}


def _serve() -> CommandsByName:
    from evercount.cli.serve_command import serve

    return {"serve": serve}


def _showcase() -> CommandsByName:
    from evercount.cli.showcase_commands import bench, example, reproduce

    return {"bench": bench, "example": example, "reproduce": reproduce}


def _sources() -> CommandsByName:
    from evercount.cli.source_commands import consume, spark

    return {"consume": consume, "spark": spark}


def _store() -> CommandsByName:
    from evercount.cli.store_command import store

    return {"store": store}


def _where() -> CommandsByName:
    from evercount.cli.where_command import where

    return {"where": where}


COMMANDS: dict[str, Callable[[], CommandsByName]] = {
    "plan": _plan,
    "inspect": _inspect,
    "release": _release,
    "serve": _serve,
    "spark": _sources,
    "consume": _sources,
    "tail": _client,
    "push": _client,
    "reproduce": _showcase,
    "bench": _showcase,
    "example": _showcase,
    "store": _store,
    "where": _where,
    "streams": _client,
    "tokens": _client,
    "audit": _audit,
}
"""What imports each command: what it needs is loaded when it runs, and not for the others."""


@cache
def _build(name: str) -> Any:
    """Build one command: to read the options of all would take longer than most of them run."""
    command = COMMANDS[name]()[name]
    alone = typer.Typer(rich_markup_mode=None)
    if isinstance(command, typer.Typer):
        alone.add_typer(command, name=name)
    else:
        alone.command(name, cls=getattr(command, "command_class", None))(command)
    return typer.main.get_group(alone).commands[name]


class Commands(TyperGroup):
    """Errors that are the user's to solve are one line on stderr, never a traceback, with one exit
    code per kind."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        # their names; `get_command` builds them
        self.commands = dict.fromkeys(COMMANDS)  # type: ignore[assignment]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            return None
        return _build(cmd_name)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        from evercount.cli.grouped_help import write_commands

        write_commands({name: self.get_command(ctx, name) for name in COMMANDS}, formatter)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except EvercountError as error:
            raise _refused(error) from None
        except ModuleNotFoundError as error:
            raise _refused(missing_extra("this command", error)) from None


def _refused(error: EvercountError) -> typer.Exit:
    """Print an error as one line; return the exit of its kind."""
    typer.echo(f"error: {_message(error)}", err=True)
    return typer.Exit(error.exit_code)


def _message(error: EvercountError) -> str:
    """Write the message of an error, with options as commands spell them."""
    from evercount.cli.spelling import as_options

    if isinstance(error, MissingExtra):
        return str(error)  # the options need a package that may be the missing one
    if isinstance(error, StoreError):
        return as_options(error.for_operator())
    return as_options(str(error))


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
    version: bool = Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version."
    ),
) -> None:
    """Shared options."""


def main() -> None:
    """Entry point of the command."""
    try:
        app(prog_name="evercount")  # also as `python -m evercount`
    except KeyboardInterrupt:
        typer.echo("interrupted; nothing is half-written", err=True)
        sys.exit(130)
    except BrokenPipeError:
        # the reader went away, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
