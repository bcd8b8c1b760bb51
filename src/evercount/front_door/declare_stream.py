"""`declare`: a stream by named options, in Python and of the command `evercount release`, and its
lists of keys.

An option of a stream is a line of `Declared` and a line of the docstring of `declare`: the command
makes its options of these, with name, type and help. Names in backquotes in messages are
parameters; the command writes them as options.
"""

from __future__ import annotations

import csv
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack

import numpy as np

from evercount._validate import check_kind, check_public_text
from evercount.errors import MissingExtra, ParameterError, UnknownName

if TYPE_CHECKING:
    from evercount.declarations.declaration import StreamDeclaration
    from evercount.queries import Query


Moment = str | date | datetime | float
"""A time as texts, Python and pandas have it; without an offset it is a time of the stream's
zone."""
RANGE = ("low", "high", "grid", "bins")
PARAMETERS = ("unknown", "minimum", *RANGE)
"""The options that are parameters of queries, by their names; `keys` is `keys` or, with `rollup`,
`paths`."""
F = TypeVar("F", bound=Callable[..., Any])


class Declared(TypedDict, total=False):
    """What `declare` takes; its docstring says what each option means."""

    time: str | None
    every: str | None
    start: Moment | None
    zone: str | None
    late: str | None
    wait: str | None
    revise_for: int | None
    query: str | Query | None
    key: str | Sequence[str] | None
    rollup: str | Sequence[str] | None
    keys: str | Path | Sequence[Any] | None
    unknown: str | None
    weights: str | Path | Mapping[str, int] | None
    minimum: int | None
    value: str | None
    low: float | None
    high: float | None
    grid: float | None
    bins: int | None
    epsilon: float | None
    delta: float | None
    unit: str | None
    user: str | None
    period: int | str | None
    max_per_tick: int | None
    max_ticks: int | None
    max_events: int | None
    carry_caps: bool
    adjacency: str | None
    horizon: int | str | None
    factorization: str | None
    views: str | Sequence[str] | None
    postprocess: str | Sequence[str] | None
    name: str | None


NEEDED = ("time", "every", "epsilon")  # what a declaration cannot do without


def refuse_missing(names: Sequence[str], example: str, others: Sequence[str] = ()) -> None:
    """Refuse to go on without these options and other things, all of them at once."""
    if not names and not others:
        return
    listed = ", ".join([*others, *(f"`{name}`" for name in names)])
    start = ". The start is public: it must not follow from the events" if "start" in names else ""
    raise ParameterError(f"missing: {listed}, as in: {example}{start}")


def with_options(options: Any) -> Callable[[F], F]:
    """Show the options in the signature of a function, for help and completion."""

    def decorate(function: F) -> F:
        own = inspect.signature(function)
        named = [
            one for one in own.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        for name, hint in options.__annotations__.items():
            text = getattr(hint, "__forward_arg__", hint)
            default = False if text == "bool" else None
            named.append(
                inspect.Parameter(
                    name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=text
                )
            )
        function.__signature__ = own.replace(parameters=named)  # type: ignore[attr-defined]
        if "        options: " in (function.__doc__ or ""):
            lines = "\n".join(
                f"        {name}: {text}" for name, text in described_options(declare).items()
            )
            function.__doc__ = re.sub(
                r"        options: .*", lambda _: lines, function.__doc__ or ""
            )
        return function

    return decorate


@with_options(Declared)
def declare(**options: Unpack[Declared]) -> StreamDeclaration:
    """The declaration of a stream: what is counted, for whom it is private, and when it is
    published.

    Args:
        time: Column with the time of an event.
        every: Tick length: 15m, 1h; 1d and 1w by the calendar of `zone`.
        start: Start of the first tick, ISO 8601.
        zone: Time zone of days, weeks and times without offset (default: UTC; days and weeks need
            one).
        late: Rows whose tick is closed: drop, next (count in the next tick), or revise (files that
            only grow).
        wait: How long after its end a tick is closed, such as 12h, for rows that come late
            (default: 0s).
        revise_for: With `late` revise: for how many ticks each number is published again.
        query: count, histogram (`key`), discovered-keys (`key`), rollup (`rollup`), sum or
            quantiles (`value`), active-users or distinct-users (`user`).
        key: Column with the key; several columns together make one key.
        rollup: Columns of a rollup from the top, as in state,county.
        keys: File with the public list of keys, one per line (of several columns or a rollup: CSV
            lines such as Tyrol,Innsbruck).
        unknown: Keys not in the list: refuse (default), or count as 'other'.
        weights: File with lines such as Vienna,3: this key of a histogram has a third of the noise
            of keys without a line. The noise of all keys is made for the largest weight.
        minimum: discovered-keys: true count below which a key is never listed.
        value: Column with the value to sum.
        low: Smallest legal value.
        high: Largest legal value.
        grid: Values are rounded to multiples of this. With 1, the default, they are whole numbers.
        bins: Number of bins for quantiles of `value` (a power of two).
        epsilon: ε of all releases together.
        delta: δ of all releases together (default: 0, which is Laplace noise).
        unit: What is protected: event, or user (the default with `user`).
        user: Column with the person's id.
        period: Protect what a person does in one period: 1d, 1w, 4w, or ticks (default: all time).
        max_per_tick: Events counted per person and tick.
        max_ticks: Ticks in which a person counts, per period.
        max_events: Events counted per person and period.
        carry_caps: What persons have used of their caps stays used when the stream is renewed,
            which then costs nothing more.
        adjacency: add-remove (default) or replace.
        horizon: Number of ticks such as 8760 or 2^16, or none (default).
        factorization: How noise is correlated, or best: the least error.
        views: Publish this view, repeatable: per-tick, running, last-24, per-day, per-week,
            quantile-0.5. The output shows the first one; each of the others has a file next to it.
        postprocess: nonnegative, integer, or both with a comma: what the views show is made so (or
            single ticks, if no view is named).
        name: Name of the stream, for charts and for streams.toml.

    Returns:
        The declaration. `to_toml` writes it; `release` and a service take it.

    Raises:
        ParameterError: An option is missing, or two do not go together.

    In Python `query` may be a query such as `Histogram(["north", "south"])`, and `keys` a list.

    >>> daily = declare(
    ...     time="when", every="1d", zone="Europe/Vienna", start="2026-01-01", epsilon=1
    ... )
    >>> daily.query.name, daily.schedule.tick, daily.budget.delta
    ('count', '1d', 0.0)
    """
    stream_declaration = declaration_class()
    from evercount.declarations.fields import Columns
    from evercount.privacy import Budget
    from evercount.queries import Query, build_query

    given: dict[str, Any] = {name: options.pop(name, None) for name in Declared.__annotations__}  # type: ignore[misc]
    for name in options:
        from evercount.front_door.release_data import ReleaseOptions

        if name in ReleaseOptions.__annotations__:
            raise ParameterError(
                f"`{name}` belongs to `release`, not to a declaration: release(data, daily, "
                f"{name}=…)"
            )
        raise UnknownName("option", name, Declared.__annotations__)
    refuse_missing(
        [name for name in NEEDED if given[name] is None],
        'declare(time="when", every="1d", epsilon=1, …)',
    )
    caps = (given[name] for name in ("unit", "max_events", "max_per_tick", "max_ticks", "period"))
    unit = unit_of(*caps, user=given["user"] is not None)
    if unit["unit"] == "user" and given["user"] is None:
        raise ParameterError("users are protected, so their column is needed: `user`")
    made = listed_names("postprocess", given["postprocess"], split=True)
    views = listed_names("views", given["views"]) or (
        ("per-tick",) if made and "monotone" not in made else ()
    )
    query = (
        build_query(*_query(given)) if isinstance(given["query"], str | None) else given["query"]
    )
    if isinstance(query, Query):  # other objects are refused below
        _check_caps(query, unit)
    horizon, plain = (
        given["horizon"],
        ("start", "factorization", "late", "wait", "revise_for", "carry_caps"),
    )
    return stream_declaration(
        name=given["name"] or "release",
        query=query,
        budget=Budget(
            given["epsilon"],
            given["delta"] or 0,
            adjacency=given["adjacency"] or "add-remove",
            **unit,
        ),
        tick=given["every"],
        zone=given["zone"] or "UTC",
        horizon=parse_horizon(horizon) if isinstance(horizon, str) else horizon,
        columns=Columns(
            time=given["time"],
            key=key[0]
            if isinstance(key := given["key"], list | tuple) and len(key) == 1
            else key or None,
            value=given["value"],
            user=given["user"],
            levels=listed_names("rollup", given["rollup"], split=True, distinct=False),
        ),
        views=views,
        postprocess=made,
        **{name: given[name] for name in plain if given[name] is not None},
    )


def _check_caps(query: Query, unit: Mapping[str, Any]) -> None:
    """Refuse persons without a cap, where the query needs one, and say which there are."""
    if (
        unit["unit"] != "user"
        or query.people is not None
        or {"max_events", "max_per_tick"} & unit.keys()
    ):
        return
    raise ParameterError(
        "persons are protected, so say how many events of one person are counted (more are left "
        "out). Choose one: `max_per_tick` 1 and `period` 1d (what a person does on one day is "
        "protected), `max_per_tick` 1 and `max_ticks` 30 (a person counts on 30 days), "
        "`max_events` 10 (ten events in all). Or count persons instead of events: `query` "
        "active-users and `period` 1d. A run with `check` shows what each cap would leave out"
    )


def declaration_class() -> type[StreamDeclaration]:
    """`StreamDeclaration`, or MissingExtra."""
    try:
        from evercount.declarations.declaration import StreamDeclaration
    except ModuleNotFoundError as error:
        raise MissingExtra("A declaration", "cli") from error
    return StreamDeclaration


def check_declaration(declaration: object) -> None:
    """Refuse what is not a declaration."""
    check_kind(
        "`declaration`", declaration, declaration_class(), "declare(time=…, every=…, epsilon=…)"
    )


def parse_horizon(text: str) -> int | None:
    """The horizon that a text writes.

    >>> parse_horizon("2^16"), parse_horizon("8760"), parse_horizon("none")
    (65536, 8760, None)
    """
    if text.strip().lower() == "none":
        return None
    base, power_follows, power = text.partition("^")
    try:
        return int(int(base) ** int(power if power_follows else 1))
    except ValueError as error:
        raise ParameterError(
            f"horizon must be a number of ticks such as 65536, 2^16 or none, got {text!r}"
        ) from error


def unit_of(
    unit: str | None,
    max_events: int | None,
    max_per_tick: int | None,
    max_ticks: int | None,
    period: int | str | None,
    *,
    user: bool = False,
) -> dict[str, Any]:
    """The fields of a budget that say whom it protects; a cap, a period or a column of users means
    users.

    >>> unit_of(None, None, 2, None, "7"), unit_of(None, None, None, None, None)
    ({'unit': 'user', 'max_per_tick': 2, 'period': 7}, {'unit': 'event'})
    """
    caps: dict[str, Any] = {
        "max_events": max_events,
        "max_per_tick": max_per_tick,
        "max_ticks": max_ticks,
    }
    caps["period"] = int(period) if isinstance(period, str) and period.isdecimal() else period
    given = {name: value for name, value in caps.items() if value is not None}
    return {"unit": unit or ("user" if user or given else "event"), **given}


def _query(given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name and the parameters of the query; an option goes with every query that has the
    parameter."""
    from evercount.queries import query_parameters

    by_column = {
        "rollup": "rollup",
        "key": "histogram",
        "value": "sum" if given["bins"] is None else "quantiles",
    }
    default = next(
        (query for column, query in by_column.items() if given[column] is not None), "count"
    )
    name = given["query"] or default
    known = query_parameters(name)
    if given["key"] is not None and given["rollup"] is not None:
        raise ParameterError(
            "`key` is one column of keys and `rollup` several levels: give only one of them"
        )
    column, parameter = ("key", "keys") if given["rollup"] is None else ("rollup", "paths")
    if given["keys"] is not None and given[column] is not None and parameter not in known:
        raise ParameterError(f"`query` {name} does not go with `{column}` and `keys`")
    if (given["keys"] is None) == (parameter in known and given[column] is not None):
        raise ParameterError(
            "`key` (or `rollup`) and `keys` go together: the list of keys is public and declared. "
            "Without a list, use the query discovered-keys"
        )
    asked = {option: given[option] for option in PARAMETERS if given[option] is not None}
    valued = given["value"] is not None
    if valued != ({"low", "high"} <= asked.keys()) or (
        not valued and not asked.keys().isdisjoint(RANGE)
    ):
        raise ParameterError(
            "`value`, `low` and `high` go together: the range of a value is public and declared"
        )
    unfit = [f"`{option}`" for option in asked if option not in known]
    if unfit:
        raise ParameterError(f"`query` {name} does not go with {' and '.join(unfit)}")
    if given["keys"] is not None:
        asked[parameter] = keys_of(given["keys"], given["key"], bool(given["rollup"]))
    if given["weights"] is not None:
        if not {"max_keys_per_event", "weights"} <= known.keys():
            raise ParameterError(
                f"`weights` are for the keys of a histogram; `query` {name} has none"
            )
        asked["weights"] = weights_of(given["weights"])
    return name, asked


def listed_names(
    what: str, names: str | Sequence[str] | None, split: bool = False, distinct: bool = True
) -> tuple[str, ...]:
    """One name or several, each once where they are `distinct`; with `split` a text may hold
    several, with commas."""
    if isinstance(names, str):
        names = [name.strip() for name in names.split(",")] if split else [names]
    example = {"postprocess": "integer", "rollup": "state"}.get(what, "last-7")
    check_kind(f"`{what}`", names, Sequence | None, f'["{example}"]')
    for name in names or ():
        check_kind(f"a name in `{what}`", name, str, f'"{example}"')
    return tuple(dict.fromkeys(names or ())) if distinct else tuple(names or ())


def described_options(*functions: Any) -> dict[str, str]:
    """What the docstrings say about each parameter."""
    found: dict[str, str] = {}
    for function in functions:
        listed = (inspect.getdoc(function) or "").partition("Args:")[2].partition("Returns:")[0]
        found |= {
            name: " ".join(text.split())
            for name, text in re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", listed, re.M)
        }
    return found


# -- public lists of keys and weights: from a file, or as Python and pandas have them --------------


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
