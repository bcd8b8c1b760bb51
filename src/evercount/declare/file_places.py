"""Where `evercount release NAME` reads and writes: the table `files` of a stream in `streams.toml`.

It belongs to the file door alone. The declaration does not hold it: the same stream may move to another folder.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from evercount.errors import ParameterError, UnknownName


@dataclass(frozen=True)
class FilePlaces:
    """The files of one stream. Paths are relative to the folder of `streams.toml`.

    >>> FilePlaces.from_dict({"input": "events/*.csv", "output": "flu.csv"}, Path("/srv")).output
    '/srv/flu.csv'
    """

    input: tuple[str, ...] = ()
    output: str | None = None
    state: str | None = None
    rejects: str | None = None
    plot: str | None = None
    delimiter: str | None = None

    @classmethod
    def from_dict(cls, data: Any, folder: Path) -> FilePlaces:
        known = tuple(field.name for field in fields(cls))
        if not isinstance(data, dict):
            raise ParameterError('files must be a table such as {input = "events/*.csv", output = "flu.csv"}')
        for name in data:
            if name not in known:
                raise UnknownName("field of files", name, known)
        inputs = data.get("input", [])
        given = {**data, "input": [inputs] if isinstance(inputs, str) else inputs}
        for name, value in given.items():
            texts = value if name == "input" else [value]
            if not isinstance(texts, list) or not all(isinstance(text, str) and text for text in texts):
                raise ParameterError(f"files: {name} must be a text, got {data[name]!r:.80}")
        delimiter = given.pop("delimiter", None)
        placed: dict[str, Any] = {
            name: tuple(_below(folder, text) for text in value) if name == "input" else _below(folder, value)
            for name, value in given.items()
        }
        return cls(**placed, delimiter=delimiter)


def _below(folder: Path, text: str) -> str:
    return text if text == "-" else str(folder / text)
