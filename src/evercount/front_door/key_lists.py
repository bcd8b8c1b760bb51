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
    """Read a public list of keys: texts, or the paths of a rollup."""
    if isinstance(keys, str | Path):
        lines = _lines(Path(keys), _column_count(columns), what)
        if paths:
            return list(csv.reader(lines, skipinitialspace=True))
        return list(lines)
    # sets have no order
    if not isinstance(keys, Iterable) or isinstance(keys, set | frozenset | Mapping):
        raise ParameterError(
            f'`{what}` must be a list such as ["north", "south"], or a file, got {keys!r:.80}'
        )
    listed = [_listed_key(key, paths) for key in keys]
    if not listed:
        raise ParameterError(f'`{what}` is empty: name at least one, as in ["north", "south"]')
    return listed


def _column_count(columns: str | Sequence[str] | None) -> int:
    """Count the columns of a key."""
    if not columns or isinstance(columns, str):
        return 1
    return len(columns)


def _listed_key(key: Any, paths: bool) -> Any:
    """Return a key of a list as the declaration has it: whole numbers and tuples are texts there,
    but for the paths of a rollup."""
    from evercount.declarations.fields import combined_key

    if isinstance(key, int | np.integer) and not isinstance(key, bool):
        return str(int(key))
    if isinstance(key, tuple) and not paths:
        return combined_key(list(key))
    return key


def listed_keys(keys: Any, declaration: StreamDeclaration, what: str) -> tuple[Any, ...]:
    """Read the keys of a file or a list as the stream has them."""
    if keys is None:
        return ()
    rows = declaration.query.rows
    paths = rows is not None and rows.levels > 0
    columns = None
    if declaration.columns is not None:
        columns = declaration.columns.key
    listed = keys_of(keys, columns, paths, what)
    if paths:
        return tuple(map(tuple, listed))
    return tuple(listed)


def weights_of(given: Any) -> dict[str, int]:
    """Read weights by key: a table, or a file of lines KEY,WEIGHT."""
    if not isinstance(given, str | Path):
        return given  # type: ignore[no-any-return]
    weights = {}
    for line in _lines(Path(given), what="weights"):
        key, _, weight = line.rpartition(",")
        if not key or not weight.strip().isdecimal():
            raise ParameterError(
                f"`weights` {given}: {line!r:.80} is not a key and a whole number, as in Vienna,3"
            )
        weights[key.strip()] = int(weight)
    return weights


def _lines(path: Path, columns: int = 1, what: str = "keys") -> tuple[str, ...]:
    """Read the keys of a file, one per line; spaces around a key and empty lines do not count."""
    line_of: dict[str, int] = {}
    for number, line in enumerate(_text(path, what).splitlines(), 1):
        key = line.strip()
        if columns > 1 and key:
            key = _key_of_columns(key, columns, f"`{what}` {path}: line {number}")
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


def _text(path: Path, what: str) -> str:
    """Read a file of UTF-8, with or without a byte-order mark."""
    try:
        return path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ParameterError(f"`{what}` {path} is not UTF-8 text") from error
    except OSError as error:
        raise ParameterError(
            f"`{what}` {path} cannot be read: {error.strerror}. In Python it may be a list such as "
            '["north", "south"]'
        ) from error


def _key_of_columns(line: str, columns: int, where: str) -> str:
    """Combine the values of a line into one key."""
    from evercount.declarations.fields import combined_key

    values = [value.strip() for value in next(csv.reader([line], skipinitialspace=True))]
    if len(values) != columns:
        raise ParameterError(
            f"{where} has {len(values)} values, and there are {columns} columns of `key`; separate "
            "them with commas, as in Tyrol,f"
        )
    return combined_key(values)
