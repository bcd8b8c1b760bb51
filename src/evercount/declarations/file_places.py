"""Where `evercount release NAME` reads and writes: the table `files` of a stream in `streams.toml`.

It belongs to the file door alone. The declaration does not hold it: the same stream may move to another folder.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, Strict

from evercount.declarations.table import table

Text = Annotated[str, Field(min_length=1)]
Place = Annotated[Text | None, Field(description="a text")]


def _listed(value: Any) -> Any:
    return (value,) if isinstance(value, str) else value


@table("files", "files.")
class FilePlaces:
    """The files of one stream. Paths are relative to the folder of `streams.toml`.

    >>> FilePlaces(input="events/*.csv", output="flu.csv").below(Path("/srv")).output
    '/srv/flu.csv'
    """

    input: Annotated[
        tuple[Text, ...], Strict(False), BeforeValidator(_listed), Field(description="a text, or a list of texts")
    ] = ()
    output: Place = None
    state: Place = None
    rejects: Place = None
    plot: Place = None
    delimiter: Place = None

    def below(self, folder: Path) -> FilePlaces:
        def placed(text: str) -> str:
            return text if text == "-" else str(folder / text)

        files = {name: getattr(self, name) for name in ("output", "state", "rejects", "plot")}
        moved = {name: place and placed(place) for name, place in files.items()}
        return replace(self, input=tuple(map(placed, self.input)), **moved)
