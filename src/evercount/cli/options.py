"""What several commands share: options, the parameters of a query, the streams of a file, and a bar
of progress.

An option that `release` has, too, takes its description from there: `front_door/options.py`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from evercount._validate import check_name, strict_json
from evercount.errors import ParameterError
from evercount.front_door.options import describe

if TYPE_CHECKING:
    from evercount.declarations.declaration import StreamDeclaration
    from evercount.store import Store

_MISSING = (
    "Missing ticks: nothing is released; their events are dropped (drop) or count in the tick "
    "after them (next)."
)
Missing = Annotated[str | None, Option(help=_MISSING)]
FirstTick = Annotated[str, Argument(help="First tick: its number, or a day or time in it.")]
LastTick = Annotated[str, Argument(help="Last tick, given in the same way.")]
NoteText = Annotated[str, Argument(help="Public text.")]
StreamName = Annotated[str, Argument(help="Name of the stream.")]
Json = Annotated[bool, Option("--json", help="Print JSON.")]
Parameters = Annotated[
    list[str] | None,
    Option("--parameter", "-p", help="Query parameter KEY=VALUE (JSON), repeatable."),
]
Adjacency = Annotated[str, Option(help="add-remove or replace.")]
MaxEvents = Annotated[int | None, Option(help=describe("max_events"))]
MaxPerTick = Annotated[int | None, Option(help=describe("max_per_tick"))]
MaxTicks = Annotated[int | None, Option(help=describe("max_ticks"))]
Period = Annotated[
    str | None, Option(help="Protect what a person does in this many ticks (default: all time).")
]
Db = Annotated[
    str, Option(help="Store: an SQLite file, or a URL such as postgresql://user@host/name.")
]
KeyFile = Annotated[Path | None, Option(help="File with the key that encrypts the store.")]
Head = Annotated[
    Path | None, Option(help="Head file of the release chain, if it is not in its usual place.")
]


def parse_parameters(items: list[str] | None) -> dict[str, Any]:
    """Read the parameters of a query.

    >>> parse_parameters(["width=24", "method=periods", 'keys=["a", "b"]'])
    {'width': 24, 'method': 'periods', 'keys': ['a', 'b']}
    """
    parameters: dict[str, Any] = {}
    for item in items or []:
        key, equals, value = item.partition("=")
        if not equals or not key:
            raise ParameterError(f"parameters are KEY=VALUE, got {item!r}")
        try:
            parameters[key] = strict_json(value)
        except json.JSONDecodeError:
            parameters[key] = value
        except ValueError as error:
            raise ParameterError(f"{item!r:.80}: {error}") from None
    return parameters


def choose_stream(path: Path, name: str | None) -> tuple[StreamDeclaration, Any]:
    """Read the named stream of a file, or its only one, and the places that the file names."""
    from evercount.declarations.streams_file import read_streams

    streams = {
        declaration.name: (declaration, places) for declaration, places in read_streams(path)
    }
    if name is None and len(streams) == 1:
        name = next(iter(streams))
    if name is None:
        names = ", ".join(streams)
        raise ParameterError(
            f"{path} declares {len(streams)} streams: choose one of {names} with --stream"
        )
    check_name("stream", name, tuple(streams))
    return streams[name]


def open_store(db: str, key_file: Path | None, head: Path | None = None) -> closing[Store]:
    """Open the store for a block, in which no other program writes to it."""
    from evercount.store import Store, key_from_environment

    return closing(Store(db, key_from_environment(key_file), head))


@contextmanager
def progress_bar(hidden: bool = False) -> Iterator[Callable[..., None]]:
    """Show a bar on stderr while the block runs; call it with (task, done, total)."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=hidden) as bar:
        row = bar.add_task("", total=None)
        yield lambda task, done, total=0: bar.update(
            row, description=task, completed=done, total=total or None
        )


LONG = 1.0  # seconds after which a computation shows on a terminal that it is still running


@contextmanager
def shown_if_long(task: str) -> Iterator[None]:
    """Show a bar on a terminal once the fits of this block take more than a second; print nothing
    else."""
    from evercount.factorizations.interruption import interrupted_by

    start = monotonic()
    shown = not sys.stderr.isatty()
    with ExitStack() as stack:

        def show_if_late() -> None:
            nonlocal shown
            if not shown and monotonic() - start > LONG:
                shown = True
                stack.enter_context(progress_bar())(task, 0)

        with interrupted_by(show_if_late):
            yield
