"""`declare`: a stream by named options, in Python and of the command `evercount release`.

The options are the fields of `options.DeclareOptions`. Names in backquotes in messages are options;
the command writes them as it spells them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Never

from evercount._validate import check_kind
from evercount.errors import MissingExtra, ParameterError
from evercount.front_door.key_lists import keys_of, weights_of

if TYPE_CHECKING:
    from evercount.declarations.declaration import StreamDeclaration
    from evercount.front_door.options import DeclareOptions, Moment
    from evercount.queries import Query


RANGE = ("low", "high", "grid", "bins")
PARAMETERS = ("unknown", "minimum", *RANGE)
"""The options that are parameters of queries, by their names; `keys` is `keys` or, with `rollup`,
`paths`."""
NEEDED = ("time", "every", "epsilon")  # what a declaration cannot do without
AS_GIVEN = ("start", "factorization", "late", "wait", "revise_for", "carry_caps")
"""The options that are fields of a declaration as they are, with the same default."""


def refuse_missing(names: Sequence[str], example: str, others: Sequence[str] = ()) -> None:
    """Refuse to go on without these options and other things, all of them at once."""
    if not names and not others:
        return
    listed = ", ".join([*others, *(f"`{name}`" for name in names)])
    start = ". The start is public: it must not follow from the events" if "start" in names else ""
    raise ParameterError(f"missing: {listed}, as in: {example}{start}")


def is_given(value: object) -> bool:
    """Tell whether an option has another value than its default."""
    return value is not None and value is not False


def named_options(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Join the options that a function has by name with its `others`, which are no options."""
    options: dict[str, Any] = {name: value for name, value in arguments.items() if name != "others"}
    options.update(arguments["others"])
    return options


def declare(
    *,
    time: str | None = None,
    every: str | None = None,
    start: Moment | None = None,
    zone: str | None = None,
    late: str | None = None,
    wait: str | None = None,
    revise_for: int | None = None,
    query: str | Query | None = None,
    key: str | Sequence[str] | None = None,
    rollup: str | Sequence[str] | None = None,
    keys: str | Path | Sequence[Any] | None = None,
    unknown: str | None = None,
    weights: str | Path | Mapping[str, int] | None = None,
    minimum: int | None = None,
    value: str | None = None,
    low: float | None = None,
    high: float | None = None,
    grid: float | None = None,
    bins: int | None = None,
    epsilon: float | None = None,
    delta: float | None = None,
    unit: str | None = None,
    user: str | None = None,
    period: int | str | None = None,
    max_per_tick: int | None = None,
    max_ticks: int | None = None,
    max_events: int | None = None,
    carry_caps: bool = False,
    adjacency: str | None = None,
    horizon: int | str | None = None,
    factorization: str | None = None,
    views: str | Sequence[str] | None = None,
    postprocess: str | Sequence[str] | None = None,
    name: str | None = None,
    **others: Never,
) -> StreamDeclaration:
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
        others: Any other name is refused.

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
    given = named_options(locals())
    declaration_class()  # or MissingExtra
    from evercount.front_door.options import DeclareOptions, is_run_option

    for option in others:
        if is_run_option(option):
            raise ParameterError(
                f"`{option}` belongs to `release`, not to a declaration: release(data, daily, "
                f"{option}=…)"
            )
    return declare_from(DeclareOptions.of(given))


def declare_from(options: DeclareOptions) -> StreamDeclaration:
    """Declare the stream that these options describe."""
    from evercount.declarations.fields import Columns
    from evercount.privacy import Budget
    from evercount.queries import Query

    values = vars(options)
    needed = {name: values[name] for name in NEEDED}
    refuse_missing(
        [name for name, value in needed.items() if value is None],
        'declare(time="when", every="1d", epsilon=1, …)',
    )
    protection = unit_of(
        options.unit,
        options.max_events,
        options.max_per_tick,
        options.max_ticks,
        options.period,
        user=options.user is not None,
    )
    if protection["unit"] == "user" and options.user is None:
        raise ParameterError("users are protected, so their column is needed: `user`")
    postprocess = listed_names("postprocess", options.postprocess, split=True)
    views = listed_names("views", options.views)
    if not views and postprocess and "monotone" not in postprocess:
        views = ("per-tick",)
    query = query_of(options)
    if isinstance(query, Query):  # the declaration refuses other objects
        _check_caps(query, protection)
    adjacency: Any = options.adjacency or "add-remove"  # the budget refuses other texts
    horizon = options.horizon
    if isinstance(horizon, str):
        horizon = parse_horizon(horizon)
    as_given = {name: values[name] for name in AS_GIVEN}
    return declaration_class()(
        name=options.name or "release",
        query=query,
        budget=Budget(
            needed["epsilon"],
            options.delta or 0,
            adjacency=adjacency,
            **protection,
        ),
        tick=needed["every"],
        zone=options.zone or "UTC",
        horizon=horizon,
        columns=Columns(
            time=needed["time"],
            key=_key_columns(options.key),
            value=options.value,
            user=options.user,
            levels=listed_names("rollup", options.rollup, split=True, distinct=False),
        ),
        views=views,
        postprocess=postprocess,
        **{name: value for name, value in as_given.items() if value is not None},
    )


def _key_columns(key: Any) -> Any:
    """Return the columns of the key as a declaration has them: one name, or several."""
    if isinstance(key, list | tuple) and len(key) == 1:
        return key[0]
    return key or None


def _check_caps(query: Query, unit: Mapping[str, Any]) -> None:
    """Refuse persons without a cap if the query needs one, and say which caps there are."""
    if (
        unit["unit"] != "user"
        or query.people is not None
        or {"max_events", "max_per_tick"} & unit.keys()
    ):
        return
    raise ParameterError(
        "persons are protected, so say how many events of one person are counted (more are left "
        "out): add `period` 1d `max_per_tick` 1, which protects what a person does on one day. Or "
        "choose `max_per_tick` 1 and `max_ticks` 30 (a person counts on 30 days), `max_events` 10 "
        "(ten events in all), or count persons instead of events: `query` active-users and "
        "`period` 1d. `evercount inspect` shows what each choice would leave out"
    )


def declaration_class() -> type[StreamDeclaration]:
    """Import `StreamDeclaration`, or raise MissingExtra."""
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
    """Read a horizon: a number, a power, or none.

    >>> parse_horizon("2^16"), parse_horizon("8760"), parse_horizon("none")
    (65536, 8760, None)
    """
    if text.strip().lower() == "none":
        return None
    base, power_follows, power = text.partition("^")
    if not power_follows:
        power = "1"
    try:
        return int(int(base) ** int(power))
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
    """Return the fields of a budget that say whom it protects; a cap, a period or a column of
    persons means persons.

    >>> unit_of(None, None, 2, None, "7"), unit_of(None, None, None, None, None)
    ({'unit': 'user', 'max_per_tick': 2, 'period': 7}, {'unit': 'event'})
    """
    caps: dict[str, Any] = {
        "max_events": max_events,
        "max_per_tick": max_per_tick,
        "max_ticks": max_ticks,
    }
    if isinstance(period, str) and period.isdecimal():
        period = int(period)
    caps["period"] = period
    given = {name: value for name, value in caps.items() if value is not None}
    default = "user" if user or given else "event"
    return {"unit": unit or default, **given}


def query_of(options: DeclareOptions) -> Query:
    """Build the query that the options name, or return the query that is given."""
    from evercount.queries import build_query, query_parameters

    if options.query is not None and not isinstance(options.query, str):
        return options.query
    query = options.query or _default_query(options)
    legal = query_parameters(query)
    _check_keys(options, query, legal)
    values = vars(options)
    parameters = {name: values[name] for name in PARAMETERS if values[name] is not None}
    _check_range(options, parameters)
    unfit = [f"`{name}`" for name in parameters if name not in legal]
    if unfit:
        raise ParameterError(f"`query` {query} does not go with {' and '.join(unfit)}")
    if options.keys is not None:
        listed = keys_of(options.keys, options.key, bool(options.rollup))
        parameters[_list_parameter(options)] = listed
    if options.weights is not None:
        if not {"max_keys_per_event", "weights"} <= legal.keys():
            raise ParameterError(
                f"`weights` are for the keys of a histogram; `query` {query} has none"
            )
        parameters["weights"] = weights_of(options.weights)
    return build_query(query, parameters)


def _default_query(options: DeclareOptions) -> str:
    """Choose the query that follows from the columns."""
    if options.rollup is not None:
        return "rollup"
    if options.key is not None:
        return "histogram"
    if options.value is None:
        return "count"
    return "sum" if options.bins is None else "quantiles"


def _list_parameter(options: DeclareOptions) -> str:
    """Name the parameter of the query that `keys` is."""
    return "keys" if options.rollup is None else "paths"


def _check_keys(options: DeclareOptions, query: str, legal: Mapping[str, Any]) -> None:
    """Refuse a column of keys without the list that the query needs, and the other way round."""
    if options.key is not None and options.rollup is not None:
        raise ParameterError(
            "`key` is one column of keys and `rollup` several levels: give only one of them"
        )
    has_column = options.key is not None or options.rollup is not None
    column = "key" if options.rollup is None else "rollup"
    takes_list = _list_parameter(options) in legal
    if options.keys is not None and has_column and not takes_list:
        raise ParameterError(f"`query` {query} does not go with `{column}` and `keys`")
    if (options.keys is None) == (takes_list and has_column):
        raise ParameterError(
            "`key` (or `rollup`) and `keys` go together: the list of keys is public and declared. "
            "Without a list, use the query discovered-keys"
        )


def _check_range(options: DeclareOptions, parameters: Mapping[str, Any]) -> None:
    """Refuse a column of values without its range, and a range without a column."""
    has_range = {"low", "high"} <= parameters.keys()
    has_column = options.value is not None
    if has_column != has_range or (not has_column and not parameters.keys().isdisjoint(RANGE)):
        raise ParameterError(
            "`value`, `low` and `high` go together: the range of a value is public and declared"
        )


def listed_names(
    what: str, names: str | Sequence[str] | None, split: bool = False, distinct: bool = True
) -> tuple[str, ...]:
    """Read one name or several, each once where they are `distinct`; with `split` a text may hold
    several, with commas."""
    if isinstance(names, str) and split:
        names = [name.strip() for name in names.split(",")]
    elif isinstance(names, str):
        names = [names]
    example = {"postprocess": "integer", "rollup": "state"}.get(what, "last-7")
    check_kind(f"`{what}`", names, Sequence | None, f'["{example}"]')
    for name in names or ():
        check_kind(f"a name in `{what}`", name, str, f'"{example}"')
    if distinct:
        return tuple(dict.fromkeys(names or ()))
    return tuple(names or ())
