"""What several commands share: options, the parameters of a query, the streams of a file, and a bar
of progress."""

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
MaxEvents = Annotated[int | None, Option(help="Events counted per person and period.")]
MaxPerTick = Annotated[int | None, Option(help="Events counted per person and tick.")]
MaxTicks = Annotated[int | None, Option(help="Ticks in which a person counts, per period.")]
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
    """The parameters of a query.

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
    """The named stream of a file, or its only one, and the places that the file names for it."""
    from evercount.declarations.streams_file import read_streams

    known = {declaration.name: (declaration, places) for declaration, places in read_streams(path)}
    if name is None and len(known) == 1:
        name = next(iter(known))
    if name is None:
        raise ParameterError(
            f"{path} declares {len(known)} streams: choose one of {', '.join(known)} with --stream"
        )
    check_name("stream", name, tuple(known))
    return known[name]


def open_store(db: str, key_file: Path | None, head: Path | None = None) -> closing[Store]:
    """The store for a block, in which nobody else writes to it."""
    from evercount.store import Store, key_from_environment

    return closing(Store(db, key_from_environment(key_file), head))


@contextmanager
def progress_bar(hidden: bool = False) -> Iterator[Callable[..., None]]:
    """A bar on stderr that goes away; what it yields is told what is being done, how much is done,
    and of how much."""
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True, disable=hidden) as bar:
        task = bar.add_task("", total=None)
        yield lambda what, done, total=0: bar.update(
            task, description=what, completed=done, total=total or None
        )


LONG = 1.0  # seconds after which a computation says on a terminal that it goes on


@contextmanager
def shown_if_long(what: str) -> Iterator[None]:
    """Show a bar on a terminal while the fits of this block take more than a second; nothing else
    is printed."""
    from evercount.factorizations.interruption import interrupted_by

    began, shown = monotonic(), not sys.stderr.isatty()
    with ExitStack() as stack:

        def look() -> None:
            nonlocal shown
            if not shown and monotonic() - began > LONG:
                shown = True
                stack.enter_context(progress_bar())(what, 0)

        with interrupted_by(look):
            yield
