"""`streams.toml`: an array of tables named `stream`, each a declaration with the files of
`evercount release`."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, Strict

from evercount.declarations.declaration import StreamDeclaration
from evercount.declarations.fields import table
from evercount.errors import MissingExtra, ParameterError

Text = Annotated[str, Field(min_length=1)]
Place = Annotated[Text | None, Field(description="a string")]


def _listed(value: Any) -> Any:
    """Make one text a list of one."""
    if isinstance(value, str):
        return (value,)
    return value


@table("files", "files.")
class FilePlaces:
    """Where `evercount release NAME` reads and writes, relative to the folder of `streams.toml`;
    the file door's alone.

    >>> FilePlaces(input="events/*.csv", output="flu.csv").below(Path("/srv")).output
    '/srv/flu.csv'
    """

    input: Annotated[
        tuple[Text, ...],
        Strict(False),
        BeforeValidator(_listed),
        Field(description="a string, or a list of strings"),
    ] = ()
    output: Place = None
    state: Place = None
    rejects: Place = None
    plot: Place = None
    delimiter: Place = None

    def below(self, folder: Path) -> FilePlaces:
        def placed(text: str) -> str:
            if text == "-":
                return text
            return str(folder / text)

        named = ("output", "state", "rejects", "plot")
        moved = {
            name: placed(place) for name in named if (place := getattr(self, name)) is not None
        }
        return replace(self, input=tuple(map(placed, self.input)), **moved)


def write_stream(declaration: StreamDeclaration) -> str:
    try:
        import tomli_w
    except ImportError as error:
        raise MissingExtra("A declaration as TOML", "cli") from error
    return tomli_w.dumps({"stream": [_without_none(declaration.to_dict())]})


def read_stream(source: str | Path) -> StreamDeclaration:
    if isinstance(source, Path):
        streams = read_streams(source)
    else:
        streams = _streams_of(source, "the text", Path())
    if len(streams) != 1:
        raise ParameterError(f"there must be one [[stream]] table, but there are {len(streams)}")
    return streams[0][0]


def read_declarations(path: Path) -> list[StreamDeclaration]:
    return [declaration for declaration, _ in read_streams(path)]


def read_streams(path: Path) -> list[tuple[StreamDeclaration, FilePlaces]]:
    """As `read_declarations`, each with the files that `evercount release NAME` reads and
    writes."""
    try:
        return _streams_of(path.read_text(encoding="utf-8"), str(path), path.parent)
    except OSError as error:
        raise ParameterError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ParameterError(f"{path} is not TOML: {error}") from None


def _streams_of(text: str, path: str, folder: Path) -> list[tuple[StreamDeclaration, FilePlaces]]:
    """Read the [[stream]] tables of a TOML text, each with the files that it names."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ParameterError(f"{path} is not TOML: {error}") from None
    tables = data.pop("stream", [])
    if data or not isinstance(tables, list):
        raise ParameterError(
            f"{path} must hold [[stream]] tables only; it also has "
            f"{', '.join(data) or 'a [stream]'}"
        )
    streams: dict[str, tuple[StreamDeclaration, FilePlaces]] = {}
    for number, one in enumerate(tables, 1):
        try:
            files = one.pop("files", {}) if isinstance(one, dict) else {}
            if not isinstance(files, dict):
                raise ParameterError(
                    'files must be a table such as {input = "events/*.csv", output = "flu.csv"}'
                )
            places = FilePlaces(**files).below(folder)
            declaration = StreamDeclaration.from_dict(one)
            if declaration.name in streams:
                raise ParameterError(f"the name {declaration.name!r} is declared twice")
        except ParameterError as error:
            raise ParameterError(f"{path}, stream {number}: {error}") from None
        streams[declaration.name] = declaration, places
    return list(streams.values())


def _without_none(table: dict[str, Any]) -> dict[str, Any]:
    """Leave out fields that are not given: TOML has no null."""
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in table.items()
        if value is not None
    }
