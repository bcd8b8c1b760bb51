"""The stream that a call of `evercount release` means: by its options, or by its name in a file of declarations."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evercount.cli.options import parse_horizon, unit_fields
from evercount.errors import ParameterError
from evercount.text_rules import check_public_text

if TYPE_CHECKING:
    from evercount.declare.declaration import StreamDeclaration
    from evercount.declare.file_places import FilePlaces
    from evercount.queries import Query

DECLARING = (
    "time",
    "every",
    "start",
    "epsilon",
    "delta",
    "tz",
    "late",
    "query",
    "key",
    "rollup",
    "keys",
    "unknown",
    "minimum",
    "value",
    "lo",
    "hi",
    "grid",
    "bins",
    "max-keys",
    "unit",
    "user",
    "max-events",
    "max-per-tick",
    "max-ticks",
    "period",
    "adjacency",
    "horizon",
    "factorization",
)
"""The options that write a declaration."""
RANGE = ("lo", "hi", "grid", "bins")
PARAMETERS = ("unknown", "minimum", "max-keys", *RANGE)
"""The options that are parameters of queries, by their names; --keys is `keys` or, with --rollup, `paths`."""
CAPS = ("max-events", "max-per-tick", "max-ticks", "period")
"""The options that say how much of one user is counted."""
STREAMS = Path("streams.toml")
"""Where `evercount release NAME` looks for the stream NAME."""
Flags = dict[str, Any]
"""What was given on the command line, by the name of the option; None where nothing was."""


def resolve_stream(
    files: list[str], streams: Path | None, stream: str | None, flags: Flags, views: tuple[str, ...] = ()
) -> tuple[StreamDeclaration, FilePlaces, list[str]]:
    """The declaration, the places of its files, and the event files that the command line names.

    A first argument that no file has for its name is the name of a stream: of --streams, or of streams.toml here.

    """
    from evercount.declare.file_places import FilePlaces

    named = (
        bool(files) and files[0] != "-" and not any(mark in files[0] for mark in "*?[/") and not Path(files[0]).exists()
    )
    if streams is None and named and STREAMS.is_file() and all(value is None for value in flags.values()):
        streams = STREAMS
    if streams is None:
        return declared_by_options(flags, views), FilePlaces(), files
    if stream is None and named:
        stream, files = files[0], files[1:]
    declaration, places = declared_in_file(streams, stream, flags)
    return declaration, places, files


def declared_in_file(path: Path, name: str | None, flags: Flags) -> tuple[StreamDeclaration, FilePlaces]:
    """The stream of a TOML file and its places."""
    from evercount.declare.declaration import read_streams
    from evercount.errors import UnknownName

    given = [f"--{option}" for option, value in flags.items() if value is not None]
    if given:
        raise ParameterError(f"--streams declares the stream: omit {', '.join(given)}")
    known = {declaration.name: (declaration, places) for declaration, places in read_streams(path)}
    if name is None and len(known) == 1:
        return next(iter(known.values()))
    if name not in known:
        if name is None:
            raise ParameterError(f"{path} declares {len(known)} streams: choose one of {', '.join(known)} by --stream")
        raise UnknownName("stream", name, known)
    return known[name]


def declared_by_options(flags: Flags, views: tuple[str, ...] = ()) -> StreamDeclaration:
    """The declaration that the options write."""
    from evercount.declare.columns import Columns
    from evercount.declare.declaration import StreamDeclaration
    from evercount.declare.schedule import Schedule
    from evercount.privacy import Budget

    missing = [f"--{name}" for name in ("time", "every", "start", "epsilon", "delta") if flags[name] is None]
    if missing:
        raise ParameterError(f"missing: {', '.join(missing)} (or --streams FILE)")
    name, parameters = _query(flags)
    from evercount.queries import build_query

    query = build_query(name, parameters)
    return StreamDeclaration(
        name="release",
        query=query,
        budget=Budget(
            flags["epsilon"], flags["delta"], adjacency=flags["adjacency"] or "add-remove", **_unit(flags, query)
        ),
        schedule=Schedule.of(flags["every"], flags["start"], flags["tz"] or "UTC"),
        horizon=None if flags["horizon"] is None else parse_horizon(flags["horizon"]),
        factorization=flags["factorization"],
        columns=Columns(
            flags["time"], _key_columns(flags["key"]), flags["value"], flags["user"], _levels(flags["rollup"])
        ),
        late=flags["late"] or "drop",
        views=views,
    )


def _unit(flags: Flags, query: Query) -> dict[str, Any]:
    """Who is protected: users where a column names them, unless --unit event says otherwise."""
    given = [f"--{option}" for option in CAPS if flags[option] is not None]
    if flags["user"] is None and (given or flags["unit"] == "user"):
        what = " and ".join(given) or "--unit user"
        raise ParameterError(f"{what} needs --user COLUMN, the column that names the user of each row")
    unit = flags["unit"] or ("event" if flags["user"] is None else "user")
    if unit == "user" and query.people is None and flags["max-events"] is None and flags["max-per-tick"] is None:
        raise ParameterError(
            "--user COLUMN protects everything that one user does, so say how much of it is counted: --max-events, or "
            "--max-per-tick with --max-ticks or --period"
        )
    return unit_fields(unit, *(flags[option] for option in CAPS))


def _query(flags: Flags) -> tuple[str, dict[str, Any]]:
    """The name and the parameters of the query; an option goes with every query that has the parameter."""
    from evercount.queries import query_parameters

    by_column = {"rollup": "rollup", "key": "histogram", "value": "sum" if flags["bins"] is None else "quantiles"}
    default = next((query for column, query in by_column.items() if flags[column] is not None), "count")
    name = flags["query"] or default
    known = query_parameters(name)
    if flags["key"] is not None and flags["rollup"] is not None:
        raise ParameterError("--key is one column of keys and --rollup several levels: give only one of them")
    column, parameter = ("key", "keys") if flags["rollup"] is None else ("rollup", "paths")
    if flags["keys"] is not None and flags[column] is not None and parameter not in known:
        raise ParameterError(f"--query {name} does not go with --{column} and --keys")
    if (flags["keys"] is None) == (parameter in known and flags[column] is not None):
        raise ParameterError(
            "--key COLUMN (or --rollup COLUMNS) and --keys FILE go together: the list of keys is public and declared. "
            "Without a list, use --query discovered-keys"
        )
    given = {option.replace("-", "_"): flags[option] for option in PARAMETERS if flags[option] is not None}
    valued = flags["value"] is not None
    if valued != ({"lo", "hi"} <= given.keys()) or (not valued and not given.keys().isdisjoint(RANGE)):
        raise ParameterError("--value COLUMN, --lo and --hi go together: the range of a value is public and declared")
    unfit = [f"--{option.replace('_', '-')}" for option in given if option not in known]
    if unfit:
        raise ParameterError(f"--query {name} does not go with {' and '.join(unfit)}")
    if flags["keys"] is not None:
        lines = read_keys(flags["keys"], len(flags["key"] or [""]))
        given[parameter] = list(csv.reader(lines, skipinitialspace=True)) if flags["rollup"] else list(lines)
    return name, given


def _levels(text: str | None) -> tuple[str, ...]:
    """The columns of --rollup."""
    return () if text is None else tuple(column.strip() for column in text.split(","))


def _key_columns(columns: list[str] | None) -> str | tuple[str, ...] | None:
    """One column by its name, several as a tuple."""
    return None if not columns else columns[0] if len(columns) == 1 else tuple(columns)


def read_keys(path: Path, columns: int = 1) -> tuple[str, ...]:
    """The keys of a file, one per line; spaces around a key and empty lines do not count."""
    from evercount.declare.columns import combined_key

    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ParameterError(f"--keys {path} is not UTF-8 text") from error
    except OSError as error:
        raise ParameterError(f"--keys {path} cannot be read: {error.strerror}") from error
    line_of: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        key = line.strip()
        if columns > 1 and key:
            values = [value.strip() for value in next(csv.reader([key], skipinitialspace=True))]
            if len(values) != columns:
                raise ParameterError(
                    f"--keys {path}: line {number} has {len(values)} values, and there are {columns} columns of --key; "
                    "separate them with commas, as in Tyrol,f"
                )
            key = combined_key(values)
        if key in line_of:
            raise ParameterError(f"--keys {path}: the key {key!r} is duplicated on lines {line_of[key]} and {number}")
        if key:
            line_of[check_public_text(f"--keys {path}: the key", key)] = number
    if not line_of:
        raise ParameterError(f"--keys {path} holds no key: write one per line")
    return tuple(line_of)
