"""`evercount plan`: how large errors will be. Queries next to the lower bound, sparse-count next to
plain counters."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer import Option

from evercount.cli.options import (
    Adjacency,
    MaxEvents,
    MaxPerTick,
    MaxTicks,
    Parameters,
    parse_parameters,
    shown_if_long,
)
from evercount.cli.plan_tables import (
    plot_comparison,
    plot_sparse,
    print_comparison,
    print_discovery,
    print_json,
    print_sparse,
    print_text,
)
from evercount.errors import ParameterError
from evercount.front_door.declare_stream import parse_horizon, unit_of
from evercount.front_door.options import describe
from evercount.privacy import Budget
from evercount.queries import Query, build_query

if TYPE_CHECKING:
    from evercount.planning.discovery_plan import DiscoveryPlan


def _with_from(name: str) -> str:
    """Describe an option of `release` that --from takes, too."""
    text = describe(name)
    return f"With --from: {text[0].lower()}{text[1:]}"


def plan(
    epsilon: float | None = Option(
        None, "--epsilon", "-e", help="Privacy parameter ε > 0.", show_default="0.5"
    ),
    delta: float = Option(1e-10, "--delta", "-d", help="Privacy parameter δ, between 0 and 1."),
    rho: float | None = Option(None, help="zCDP parameter ρ, instead of ε."),
    horizon: str = Option("2^16", "--horizon", "-t", help="Ticks (65536, 2^16) or none."),
    query: str = Option(
        "count", "--query", "-q", help="Query by name: count, histogram, rollup, sparse-count, …"
    ),
    parameter: Parameters = None,
    adjacency: Adjacency = "add-remove",
    unit: str | None = Option(
        None, help="event or user (the default with a cap or period).", show_default="event"
    ),
    period: str | None = Option(None, help=describe("period")),
    max_per_tick: MaxPerTick = None,
    max_ticks: MaxTicks = None,
    max_events: MaxEvents = None,
    mechanism: list[str] | None = Option(
        None, "--mechanism", "-m", help="Only these factorizations, repeatable."
    ),
    ticks: int | None = Option(None, help="Without a horizon: compare over this many ticks."),
    count: list[int] | None = Option(
        None, help="discovered-keys: chance that this count is public. Repeatable."
    ),
    view: list[str] | None = Option(
        None, help="One column: running, per-tick, last-7, per-day, … Repeatable."
    ),
    optimal: bool = Option(
        False,
        "--optimal",
        help="With --view: distance to the least error of any noise (≤ 1024 ticks).",
    ),
    from_files: list[str] | None = Option(
        None,
        "--from",
        help=(
            "Share of events that caps drop, by month, for you alone: event file, pattern such as "
            "'log/*.csv', or '-' for standard input. Repeatable."
        ),
    ),
    delimiter: str | None = Option(None, help=_with_from("delimiter")),
    time: str | None = Option(None, help=_with_from("time")),
    user: str | None = Option(None, help=_with_from("user")),
    every: str = Option(
        "1d", help="Length of a tick, for per-day, per-week, --period 1d and --from."
    ),
    start: str | None = Option(None, help=_with_from("start")),
    zone: str = Option("UTC", help="Time zone of the days."),
    json_output: bool = Option(False, "--json", help="Print JSON instead of a table."),
    plot: Path | None = Option(None, help="Write a chart of error over time (PNG, SVG, PDF)."),
) -> None:
    """How large will the error be? All mechanisms side by side, with the lower bound for Gaussian
    noise.

    Example: evercount plan --epsilon 0.5 --delta 1e-10 --horizon 2^16 --plot errors.png

    Days and weeks: evercount plan --epsilon 1 --delta 1e-6 --horizon 365 --view per-tick --view
    last-7 --view running

    Thirty days of a person: evercount plan -e 1 -d 1e-6 -t 365 --max-per-tick 1 --max-ticks 30
    --view per-tick

    Rare events: evercount plan -q sparse-count -p max_ones=1000 --epsilon 1 --delta 0 --horizon
    2^20
    """
    from evercount.declarations.schedule import Schedule
    from evercount.declarations.unit_periods import with_period_ticks
    from evercount.declarations.view_names import noise_views

    parameters = parse_parameters(parameter)
    built = None
    if query != "sparse-count":
        built = build_query(query, parameters)
    counts_people = built is not None and built.people is not None
    unit_and_caps = unit_of(unit, max_events, max_per_tick, max_ticks, period, user=counts_people)
    budget = _budget(epsilon, rho, delta, adjacency=adjacency, **unit_and_caps)
    schedule = Schedule.of(every, start, zone)
    budget = with_period_ticks(budget, schedule)
    if from_files:
        _show_dropped(budget, from_files, delimiter, time, user, every, start, zone)
    elif delimiter is not None:
        raise ParameterError("--delimiter is for the files of --from: add --from, or omit it")
    length = parse_horizon(horizon)
    names = tuple(mechanism) if mechanism else None
    if built is None:
        _plan_sparse(budget, length, parameters, names, ticks, plot, json_output)
        return
    if view:
        for option, value in {"--mechanism": mechanism, "--ticks": ticks, "--plot": plot}.items():
            if value is not None:
                raise ParameterError(f"{option} is for running totals: omit it, or omit --view")
        views = {name: noise_views([name], schedule)[0] for name in view}
        _plan_views(budget, length, views, built, json_output, count)
        if optimal:
            _plan_optimum(budget, length, tuple(views.values()), built, json_output)
        return
    if optimal:
        raise ParameterError("--optimal needs --view")
    _plan_totals(budget, length, built, names, ticks, count, plot, json_output)


def _budget(epsilon: float | None, rho: float | None, delta: float, **protected: Any) -> Budget:
    """The budget of ε or of ρ, of which one at most is given."""
    if rho is None:
        return Budget(0.5 if epsilon is None else epsilon, delta, **protected)
    if epsilon is not None:
        raise ParameterError(f"--epsilon {epsilon} next to --rho {rho}: give only one of them")
    return Budget.from_rho(rho, delta, **protected)


def _plan_sparse(
    budget: Budget,
    length: int | None,
    parameters: Mapping[str, Any],
    names: tuple[str, ...] | None,
    ticks: int | None,
    plot: Path | None,
    json_output: bool,
) -> None:
    """Compare a sparse counter with plain ones."""
    from evercount.planning.compare_sparse import plan_sparse_count

    unknown = sorted(set(parameters) - {"max_ones"})
    if unknown:
        raise ParameterError(
            f"sparse-count has only the parameter max_ones, got {', '.join(unknown)}"
        )
    sparse = plan_sparse_count(budget, length, parameters.get("max_ones"), names=names, ticks=ticks)
    if plot is not None:
        plot_sparse(sparse, plot)
    if json_output:
        print_json(sparse)
    else:
        print_sparse(sparse)


def _plan_views(
    budget: Budget,
    horizon: int | None,
    views: Mapping[str, str],
    query: Query,
    json_output: bool,
    counts: list[int] | None,
) -> None:
    """Print the worst std of each view, for every noise that may be chosen."""
    from evercount.planning.plan_views import plan_views

    with shown_if_long("comparing noise for these views"):
        comparison = plan_views(budget, horizon, views, query)
    discovery = _plan_discovery(budget, horizon, query, counts, tuple(views.values()))
    if json_output:
        print_json(comparison, discovery=discovery)
        return
    typer.echo(
        f"{comparison.query}: worst std of each view, epsilon={budget.epsilon:g}, "
        f"delta={budget.delta:g}"
    )
    typer.echo(str(comparison))
    typer.echo("epsilon_if_run_twice: what two such streams cost together.")
    if discovery is not None:
        print_discovery(discovery)


def _plan_optimum(
    budget: Budget, length: int | None, views: tuple[str, ...], query: Query, json_output: bool
) -> None:
    """Print how far each view is from the least error of any noise."""
    from evercount.planning.distances import optimum_table

    with shown_if_long("computing the optimum"):
        table = optimum_table(budget, length, views, query)
    typer.echo(table, err=json_output)


def _plan_totals(
    budget: Budget,
    length: int | None,
    query: Query,
    names: tuple[str, ...] | None,
    ticks: int | None,
    counts: list[int] | None,
    plot: Path | None,
    json_output: bool,
) -> None:
    """Compare the mechanisms for running totals."""
    from evercount.planning.compare import plan as make_plan
    from evercount.planning.resources import measure_resources

    with shown_if_long("comparing noise"):
        comparison = make_plan(budget, length, query, names=names, ticks=ticks)
    if plot is not None:
        plot_comparison(comparison, plot)
    costs = measure_resources(query, budget, length)
    discovery = _plan_discovery(budget, length, query, counts)
    if json_output:
        print_json(comparison, resources=costs, discovery=discovery)
        return
    print_comparison(comparison)
    if discovery is not None:
        print_discovery(discovery)
    print_text(str(costs))
    print_text(comparison.guarantee)


def _plan_discovery(
    budget: Budget,
    horizon: int | None,
    query: Query,
    counts: list[int] | None,
    views: tuple[str, ...] = (),
) -> DiscoveryPlan | None:
    """Plan when keys become public; None if the query lists its keys or has none."""
    from evercount.planning.discovery_plan import plan_discovery

    discovery = plan_discovery(budget, horizon, query, counts or (), views=views)
    if counts and discovery is None:
        raise ParameterError(
            f"--count is for queries with unlisted keys, and {query.name!r} has a list or no keys"
        )
    return discovery


def _show_dropped(
    budget: Budget,
    files: list[str],
    delimiter: str | None,
    time: str | None,
    user: str | None,
    every: str,
    start: str | None,
    zone: str,
) -> None:
    """Print which share of the events of files the caps drop, and the rows that are no events, as
    `release` would."""
    import time as system_time
    from tempfile import TemporaryDirectory

    from evercount.declarations.declaration import StreamDeclaration
    from evercount.declarations.fields import Columns
    from evercount.declarations.schedule import instant_of
    from evercount.files.bad_rows import MOST_SHOWN, find_rejects
    from evercount.files.cap_users import dropped_events
    from evercount.files.source import expand_inputs, open_sources, with_one_line_end

    if budget.unit != "user" or time is None or user is None or start is None:
        raise ParameterError(
            "--from shows what caps on persons drop: add --time, --user, --start, and a cap or "
            "--period"
        )
    declaration = StreamDeclaration(
        "plan",
        build_query("count", {}),
        budget,
        every,
        start,
        zone,
        views=("running",),
        columns=Columns(time, user=user),
    )
    with TemporaryDirectory(prefix="evercount-plan-") as folder:
        scratch = Path(folder)
        stop = max(2, declaration.schedule.tick_of(instant_of(system_time.time())))
        opened = open_sources(
            expand_inputs(files), scratch, "," if delimiter is None else delimiter
        )
        sources = with_one_line_end(opened, scratch, "whole")
        bad = 0
        for bad, reject in enumerate(find_rejects(sources, declaration, scratch / "scratch"), 1):
            if bad <= MOST_SHOWN:
                typer.echo(f"left out {reject}", err=True)
        if bad > MOST_SHOWN:
            typer.echo(f"left out {bad:,} bad rows in all", err=True)
        dropped = dropped_events(sources, declaration, 1, stop, scratch / "scratch")
        typer.echo(str(dropped), err=True)
