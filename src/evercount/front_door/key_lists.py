"""Public lists of keys and weights: from a file, or as Python and pandas have them."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from evercount._validate import check_public_text
from evercount.errors import ParameterError

if TYPE_CHECKING:
    from evercount.declarations.declaration import StreamDeclaration


def keys_of(
    keys: Any, columns: str | Sequence[str] | None, paths: bool, what: str = "keys"
) -> list[Any]:
    """A public list: texts, or the paths of a rollup."""
    from evercount.declarations.fields import combined_key

    if isinstance(keys, str | Path):
        lines = _lines(Path(keys), 1 if isinstance(columns, str) else len(columns or [""]), what)
        return list(csv.reader(lines, skipinitialspace=True)) if paths else list(lines)
    # sets have no order
    if not isinstance(keys, Iterable) or isinstance(keys, set | frozenset | Mapping):
        raise ParameterError(
            f'`{what}` must be a list such as ["north", "south"], or a file, got {keys!r:.80}'
        )
    listed = [
        str(int(key)) if isinstance(key, int | np.integer) and not isinstance(key, bool) else key
        for key in keys
    ]
    if not listed:
        raise ParameterError(f'`{what}` is empty: name at least one, as in ["north", "south"]')
    return [
        combined_key(list(key)) if isinstance(key, tuple) and not paths else key for key in listed
    ]


def listed_keys(keys: Any, declaration: StreamDeclaration, what: str) -> tuple[Any, ...]:
    """Keys of a file or a list as the stream has them."""
    if keys is None:
        return ()
    rows, columns = declaration.query.rows, declaration.columns
    paths = rows is not None and rows.levels > 0
    listed = keys_of(keys, None if columns is None else columns.key, paths, what)
    return tuple(tuple(key) if paths else key for key in listed)


def weights_of(given: Any) -> dict[str, int]:
    """Weights by key: of a table, or of lines KEY,WEIGHT."""
    if not isinstance(given, str | Path):
        return given  # type: ignore[no-any-return]
    found = {}
    for line in _lines(Path(given), what="weights"):
        key, _, weight = line.rpartition(",")
        if not key or not weight.strip().isdecimal():
            raise ParameterError(
                f"`weights` {given}: {line!r:.80} is not a key and a whole number, as in Vienna,3"
            )
        found[key.strip()] = int(weight)
    return found


def _lines(path: Path, columns: int = 1, what: str = "keys") -> tuple[str, ...]:
    """The keys of a file, one per line; spaces around a key and empty lines do not count."""
    from evercount.declarations.fields import combined_key

    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ParameterError(f"`{what}` {path} is not UTF-8 text") from error
    except OSError as error:
        raise ParameterError(
            f"`{what}` {path} cannot be read: {error.strerror}. In Python it may be a list such as "
            '["north", "south"]'
        ) from error
    line_of: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        key = line.strip()
        if columns > 1 and key:
            values = [value.strip() for value in next(csv.reader([key], skipinitialspace=True))]
            if len(values) != columns:
                raise ParameterError(
                    f"`{what}` {path}: line {number} has {len(values)} values, and there are "
                    f"{columns} columns of `key`; separate them with commas, as in Tyrol,f"
                )
            key = combined_key(values)
        if key in line_of:
            raise ParameterError(
                f"`{what}` {path}: the key {key!r} is duplicated on lines {line_of[key]} and "
                f"{number}"
            )
        if key:
            line_of[check_public_text(f"`{what}` {path}: the key", key)] = number
    if not line_of:
        raise ParameterError(f"`{what}` {path} holds no key: write one per line")
    return tuple(line_of)
