"""`declare`: a stream by named options, in Python and of the command `evercount release`.

An option of a stream is a line of `Declared` and a line of the docstring of `declare`: the command makes its options of
these, with name, type and help. Names in backquotes in messages are parameters; the command writes them as options.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, Unpack

from evercount.errors import MissingExtra, ParameterError, UnknownName
from evercount.front_door.listed_keys import keys_of, weights_of

if TYPE_CHECKING:
    from evercount.declarations.declaration import StreamDeclaration
    from evercount.planning.plan_views import ViewPlan
    from evercount.queries import Query


Moment = str | date | datetime | float
"""A time as texts, Python and pandas have it; without an offset it is a time of the stream's zone."""
RANGE = ("low", "high", "grid", "bins")
PARAMETERS = ("unknown", "minimum", *RANGE)
"""The options that are parameters of queries, by their names; `keys` is `keys` or, with `rollup`, `paths`."""
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


def with_options(options: Any) -> Callable[[F], F]:
    """Show the options in the signature of a function, for help and completion."""

    def shown(function: F) -> F:
        own = inspect.signature(function)
        named = [one for one in own.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
        for base in (Declared, options):
            for name, hint in base.__annotations__.items():
                if name not in {one.name for one in named}:
                    text = getattr(hint, "__forward_arg__", hint)
                    default = False if text == "bool" else None
                    named.append(
                        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=text)
                    )
        function.__signature__ = own.replace(parameters=named)  # type: ignore[attr-defined]
        if "        options: " in (function.__doc__ or ""):
            lines = "\n".join(f"        {name}: {text}" for name, text in described_options(declare).items())
            function.__doc__ = re.sub(r"        options: .*", lambda _: lines, function.__doc__ or "")
        return function

    return shown


@with_options(Declared)
def declare(**options: Unpack[Declared]) -> StreamDeclaration:
    """The declaration of a stream: what is counted, for whom it is private, and when it is published.

    Args:
        time: Column with the time of an event.
        every: Tick length: 15m, 1h; 1d and 1w by the calendar of `zone`.
        start: Start of the first tick, ISO 8601.
        zone: Zone of days, weeks and times without offset (UTC, but days and weeks need one).
        late: Rows whose tick is closed: drop, count in the next tick, or revise (files that only grow).
        wait: How long after its end a tick is closed, such as 12h, for rows that come late (default: 0s).
        revise_for: With `late` revise: for how many ticks each number is published again.
        query: count, histogram (`key`), discovered-keys (`key`), rollup (`rollup`), sum or quantiles (`value`),
            active-users or distinct-users (`user`).
        key: Column with the key; several columns together make one key.
        rollup: Columns of a rollup from the top, as in state,county.
        keys: File with the public list of keys, one per line (of several columns or a rollup: CSV lines such as
            Tyrol,Innsbruck).
        unknown: Keys not in the list: refuse (default), or count as 'other'.
        weights: File with lines such as Vienna,3: this key of a histogram has a third of the noise of keys without a
            line. The noise of all keys is made for the largest weight.
        minimum: discovered-keys: true count below which a key is never listed.
        value: Column with the value to sum.
        low: Smallest legal value.
        high: Largest legal value.
        grid: Values are rounded to multiples of this (default: 1).
        bins: Number of bins for quantiles of `value` (a power of two).
        epsilon: ε of all releases together.
        delta: δ of all releases together (default: 0, which is Laplace noise).
        unit: What is protected: event, or user (the default with `user`).
        user: Column with the person's id.
        period: Protect what a person does in one period: 1d, 1w, 4w, or ticks (default: all time).
        max_per_tick: Events counted per person and tick.
        max_ticks: Ticks in which a person counts, per period.
        max_events: Events counted per person and period.
        carry_caps: What persons have used of their caps stays used when the stream is renewed, which then costs nothing
            more.
        adjacency: add-remove (default) or replace.
        horizon: Number of ticks such as 8760 or 2^16, or none (default).
        factorization: How noise is correlated, or best: the least error.
        views: Publish this view, repeatable: per-tick, running, last-24, per-day, per-week, quantile-0.5. The output
            shows the first one; each of the others has a file next to it.
        postprocess: nonnegative, integer, or both with a comma: what the views show is made so (single ticks, where no
            view is named).
        name: Name of the stream, for charts and for streams.toml.

    Returns:
        The declaration. `to_toml` writes it; `release` and a service take it.

    Raises:
        ParameterError: An option is missing, or two do not go together.

    In Python `query` may be a query such as `Histogram(["north", "south"])`, and `keys` a list.

    >>> daily = declare(time="when", every="1d", zone="Europe/Vienna", start="2026-01-01", epsilon=1)
    >>> daily.query.name, daily.schedule.tick, daily.budget.delta
    ('count', '1d', 0.0)
    """
    stream_declaration = declaration_class()
    from evercount.declarations.columns import Columns
    from evercount.privacy import Budget
    from evercount.queries import Query, build_query

    given: dict[str, Any] = {name: options.pop(name, None) for name in Declared.__annotations__}  # type: ignore[misc]
    for name in options:
        from evercount.front_door.release_data import ReleaseOptions

        if name in ReleaseOptions.__annotations__:
            raise ParameterError(f"`{name}` belongs to `release`, not to a declaration: release(data, daily, {name}=…)")
        raise UnknownName("option", name, Declared.__annotations__)
    _check_kinds(given)
    missing = [f"`{name}`" for name in ("time", "every", "epsilon") if given[name] is None]
    if missing:
        raise ParameterError(
            f"missing: {', '.join(missing)}. A declaration needs a line such as "
            'time="when", every="1d", zone="UTC", start="2026-01-01", epsilon=1'
        )
    caps = (given[name] for name in ("unit", "max_events", "max_per_tick", "max_ticks", "period"))
    unit = unit_of(*caps, user=given["user"] is not None)
    if unit["unit"] == "user" and given["user"] is None:
        raise ParameterError("users are protected, so their column is needed: `user`")
    made = given["postprocess"]
    made = listed_names([name.strip() for name in made.split(",")] if isinstance(made, str) else made)
    views = listed_names(given["views"]) or (("per-tick",) if made and "monotone" not in made else ())
    query = given["query"] if isinstance(given["query"], Query) else build_query(*_query(given))
    horizon = given["horizon"]
    return stream_declaration(
        name=given["name"] or "release",
        query=query,
        budget=Budget(given["epsilon"], given["delta"] or 0, adjacency=given["adjacency"] or "add-remove", **unit),
        tick=given["every"],
        start=given["start"],
        zone=given["zone"] or "UTC",
        horizon=parse_horizon(horizon) if isinstance(horizon, str) else horizon,
        factorization=given["factorization"],
        columns=Columns(given["time"], _one_or_more(given["key"]), given["value"], given["user"], _levels(given)),
        late=given["late"] or "drop",
        wait=given["wait"] or "0s",
        revise_for=given["revise_for"],
        carry_caps=bool(given["carry_caps"]),
        views=views,
        postprocess=made,
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
    if not isinstance(declaration, declaration_class()):
        raise ParameterError(
            f"`declaration` must be a StreamDeclaration, got {type(declaration).__name__}: declare(time=…, every=…, "
            "epsilon=…) makes one; with the options themselves none is needed, as in release(data, time=…, every=…, "
            "epsilon=…)"
        )


def _check_kinds(given: dict[str, Any]) -> None:
    from evercount.queries import Query

    columns = ("time", "key", "value", "user")
    for name in columns:
        parts = given[name] if name == "key" and isinstance(given[name], list | tuple) else [given[name]]
        if not all(part is None or isinstance(part, str) for part in parts):
            raise ParameterError(f'`{name}` must be the name of a column, such as "when", got {given[name]!r:.80}')
    for name in ("every", "zone", "unit", "adjacency", "name"):
        if given[name] is not None and not isinstance(given[name], str):
            example = {"every": "1d", "zone": "Europe/Vienna", "unit": "user", "adjacency": "replace"}.get(name, "flu")
            raise ParameterError(f'`{name}` must be a text such as "{example}", got {given[name]!r:.80}')
    query = given["query"]
    if query is not None and not isinstance(query, str | Query):
        example = f"{query.__name__}()" if isinstance(query, type) else "Count()"
        raise ParameterError(f'`query` must be a name such as "count", or a query such as {example}, got {query!r:.80}')
    for name, example in (("views", "last-7"), ("postprocess", "integer"), ("rollup", "state")):
        names = [given[name] or ""] if isinstance(given[name], str | None) else given[name]
        if not isinstance(names, Sequence) or not all(isinstance(one, str) for one in names):
            raise ParameterError(f'`{name}` must be a list of names such as ["{example}"], got {given[name]!r:.80}')
    weights = given["weights"]
    if not isinstance(weights, str | Path | Mapping | None):
        raise ParameterError(f'`weights` must be a table such as {{"Vienna": 3}}, or a file, got {weights!r:.80}')
    check_flags(given, "carry_caps")


def check_flags(given: Mapping[str, Any], *names: str) -> None:
    """Refuse texts: "no" would be taken for yes."""
    for name in names:
        if not isinstance(given[name], bool | None):
            raise ParameterError(f"`{name}` must be True or False, got {given[name]!r:.80}")


def parse_horizon(text: str) -> int | None:
    """The horizon that a text writes.

    >>> parse_horizon("2^16"), parse_horizon("1e6"), parse_horizon("none")
    (65536, 1000000, None)
    """
    if text.strip().lower() in ("none", "unbounded", "inf"):
        return None
    try:
        if "^" in text:
            base, power = text.split("^")
            return int(int(base) ** int(power))
        number = float(text) if "e" in text.lower() else int(text)
    except ValueError as error:
        raise ParameterError(f"horizon must be a number of ticks such as 65536, 2^16 or none, got {text!r}") from error
    if number != int(number):
        raise ParameterError(f"horizon must be a whole number of ticks, got {text}")
    return int(number)


def unit_of(
    unit: str | None,
    max_events: int | None,
    max_per_tick: int | None,
    max_ticks: int | None,
    period: int | str | None,
    *,
    user: bool = False,
) -> dict[str, Any]:
    """The fields of a budget that say whom it protects; a cap, a period or a column of users means users.

    >>> unit_of(None, None, 2, None, "7"), unit_of(None, None, None, None, None)
    ({'unit': 'user', 'max_per_tick': 2, 'period': 7}, {'unit': 'event'})
    """
    caps: dict[str, Any] = {"max_events": max_events, "max_per_tick": max_per_tick, "max_ticks": max_ticks}
    caps["period"] = int(period) if isinstance(period, str) and period.isdecimal() else period
    given = {name: value for name, value in caps.items() if value is not None}
    return {"unit": unit or ("user" if user or given else "event"), **given}


def _query(given: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """The name and the parameters of the query; an option goes with every query that has the parameter."""
    from evercount.queries import query_parameters

    by_column = {"rollup": "rollup", "key": "histogram", "value": "sum" if given["bins"] is None else "quantiles"}
    default = next((query for column, query in by_column.items() if given[column] is not None), "count")
    name = given["query"] or default
    known = query_parameters(name)
    if given["key"] is not None and given["rollup"] is not None:
        raise ParameterError("`key` is one column of keys and `rollup` several levels: give only one of them")
    column, parameter = ("key", "keys") if given["rollup"] is None else ("rollup", "paths")
    if given["keys"] is not None and given[column] is not None and parameter not in known:
        raise ParameterError(f"`query` {name} does not go with `{column}` and `keys`")
    if (given["keys"] is None) == (parameter in known and given[column] is not None):
        raise ParameterError(
            "`key` (or `rollup`) and `keys` go together: the list of keys is public and declared. Without a list, use "
            "the query discovered-keys"
        )
    asked = {option: given[option] for option in PARAMETERS if given[option] is not None}
    valued = given["value"] is not None
    if valued != ({"low", "high"} <= asked.keys()) or (not valued and not asked.keys().isdisjoint(RANGE)):
        raise ParameterError("`value`, `low` and `high` go together: the range of a value is public and declared")
    unfit = [f"`{option}`" for option in asked if option not in known]
    if unfit:
        raise ParameterError(f"`query` {name} does not go with {' and '.join(unfit)}")
    if given["keys"] is not None:
        asked[parameter] = keys_of(given["keys"], given["key"], bool(given["rollup"]))
    if given["weights"] is not None:
        if not {"max_keys_per_event", "weights"} <= known.keys():
            raise ParameterError(f"`weights` are of the keys of a histogram; `query` {name} has none")
        asked["weights"] = weights_of(given["weights"])
    return name, asked


def _levels(given: dict[str, Any]) -> tuple[str, ...]:
    text = given["rollup"]
    columns = text.split(",") if isinstance(text, str) else text or ()
    return tuple(column.strip() for column in columns)


def listed_names(names: str | Sequence[str] | None) -> tuple[str, ...]:
    """One name or several, each once."""
    return tuple(dict.fromkeys((names,) if isinstance(names, str) else names or ()))


def _one_or_more(columns: str | Sequence[str] | None) -> str | tuple[str, ...] | None:
    """One column by its name, several as a tuple."""
    if columns is None or isinstance(columns, str):
        return columns
    return columns[0] if len(columns) == 1 else tuple(columns) or None


def described_options(*functions: Any) -> dict[str, str]:
    """What the docstrings say about each parameter."""
    found: dict[str, str] = {}
    for function in functions:
        listed = (inspect.getdoc(function) or "").partition("Args:")[2].partition("Returns:")[0]
        found |= {
            name: " ".join(text.split()) for name, text in re.findall(r"^ {4}(\w+): (.*(?:\n {8}.*)*)", listed, re.M)
        }
    return found


@with_options(Declared)
def plan(declaration: StreamDeclaration | None = None, **options: Unpack[Declared]) -> ViewPlan:
    """Which error will the numbers have? The std of each view, with every noise that a stream may have.

    Nothing is counted and nothing is spent: it follows from the declaration alone. Columns of the data may be left out.

    Args:
        declaration: The stream, instead of the options of `declare`.
        options: Those of `declare`: `every`, `epsilon`, `views` and so on.

    Returns:
        A table: the noise that is chosen first, then the others. `to_pandas` and `to_polars` give it away.

    Raises:
        ParameterError: An option is missing or not legal, or the query has no views.

    >>> plan(every="1d", zone="UTC", epsilon=1, horizon=365, views=["per-tick", "running"])
    noise           delta  per-tick  running  twice: epsilon
    fresh (chosen)      0      1.36    25.92            2.00
    ...
    """
    from evercount.declarations.unit_periods import with_period_ticks
    from evercount.declarations.view_names import noise_views
    from evercount.planning.plan_views import plan_views

    if declaration is None:
        if options.get("time") is None:
            options["time"] = "time"
        declaration = declare(**options)
    check_declaration(declaration)
    asked, schedule = declaration.asked, declaration.schedule
    names = declaration.views or declaration.noise_for
    views = {name: view for name in names for view in noise_views([name], schedule)}
    return plan_views(with_period_ticks(asked.budget, schedule), declaration.horizon, views, declaration.query)
