"""`evercount plan`: how large errors will be. Queries next to the lower bound, sparse-count next to
plain counters."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer import Option

from evercount._validate import aligned, finite
from evercount.cli.options import (
    Adjacency,
    MaxEvents,
    MaxPerTick,
    MaxTicks,
    Parameters,
    parse_parameters,
    shown_if_long,
)
from evercount.errors import ParameterError
from evercount.front_door.declare_stream import parse_horizon, unit_of
from evercount.front_door.options import describe
from evercount.privacy import Budget
from evercount.queries import Query, build_query

if TYPE_CHECKING:
    from evercount.declarations.schedule import Schedule
    from evercount.planning.compare import Plan, Row
    from evercount.planning.special_plans import DiscoveryPlan, SparseComparison

WIDTH = 80  # characters of a terminal line that everybody has


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

    parameters = parse_parameters(parameter)
    stream_query = None
    if query != "sparse-count":
        stream_query = build_query(query, parameters)
    protects_persons = stream_query is not None and stream_query.people is not None
    protection = unit_of(unit, max_events, max_per_tick, max_ticks, period, user=protects_persons)
    schedule = Schedule.of(every, start, zone)
    budget = with_period_ticks(
        _budget(epsilon, rho, delta, adjacency=adjacency, **protection), schedule
    )
    if from_files:
        _show_dropped(budget, from_files, delimiter, time, user, every, start, zone)
    elif delimiter is not None:
        raise ParameterError("--delimiter is for the files of --from: add --from, or omit it")
    ticks_in_all = parse_horizon(horizon)
    mechanisms = tuple(mechanism or ()) or None
    if stream_query is None:
        _plan_sparse(budget, ticks_in_all, parameters, mechanisms, ticks, plot, json_output)
        return
    if view:
        _refuse_with_view({"--mechanism": mechanism, "--ticks": ticks, "--plot": plot})
        _plan_views(budget, ticks_in_all, view, schedule, stream_query, count, optimal, json_output)
        return
    if optimal:
        raise ParameterError("--optimal needs --view")
    _plan_totals(budget, ticks_in_all, stream_query, mechanisms, ticks, count, plot, json_output)


def _budget(epsilon: float | None, rho: float | None, delta: float, **protected: Any) -> Budget:
    """Make the budget of ε, of ρ, or the default."""
    if rho is None:
        return Budget(0.5 if epsilon is None else epsilon, delta, **protected)
    if epsilon is not None:
        raise ParameterError(f"--epsilon {epsilon} next to --rho {rho}: give only one of them")
    return Budget.from_rho(rho, delta, **protected)


def _plan_sparse(
    budget: Budget,
    horizon: int | None,
    parameters: dict[str, Any],
    mechanisms: tuple[str, ...] | None,
    ticks: int | None,
    plot: Path | None,
    json_output: bool,
) -> None:
    """Compare the sparse counter with plain ones."""
    from evercount.planning.special_plans import plan_sparse_count

    unknown = sorted(set(parameters) - {"max_ones"})
    if unknown:
        raise ParameterError(
            f"sparse-count has only the parameter max_ones, got {', '.join(unknown)}"
        )
    sparse = plan_sparse_count(
        budget, horizon, parameters.get("max_ones"), names=mechanisms, ticks=ticks
    )
    if plot is not None:
        _plot_sparse(sparse, plot)
    if json_output:
        _print_json(sparse)
    else:
        _print_sparse(sparse)


def _refuse_with_view(options: dict[str, object]) -> None:
    """Refuse options that a plan of views does not take."""
    for option, value in options.items():
        if value is not None:
            raise ParameterError(f"{option} is for running totals: omit it, or omit --view")


def _plan_views(
    budget: Budget,
    horizon: int | None,
    names: list[str],
    schedule: Schedule,
    query: Query,
    counts: list[int] | None,
    optimal: bool,
    json_output: bool,
) -> None:
    """Compare all noise for the named views, and with `optimal` with the least error of any."""
    from evercount.declarations.view_names import noise_views
    from evercount.planning.plan_views import optimum_table

    views = {name: noise_views([name], schedule)[0] for name in names}
    _print_views(budget, horizon, views, query, json_output, counts)
    if optimal:
        with shown_if_long("computing the optimum"):
            table = optimum_table(budget, horizon, tuple(views.values()), query)
        typer.echo(table, err=json_output)


def _plan_totals(
    budget: Budget,
    horizon: int | None,
    query: Query,
    mechanisms: tuple[str, ...] | None,
    ticks: int | None,
    counts: list[int] | None,
    plot: Path | None,
    json_output: bool,
) -> None:
    """Compare all mechanisms for running totals."""
    from evercount.planning.compare import plan as compare
    from evercount.planning.special_plans import measure_resources

    with shown_if_long("comparing noise"):
        comparison = compare(budget, horizon, query, names=mechanisms, ticks=ticks)
    if plot is not None:
        _plot_totals(comparison, plot)
    costs = measure_resources(query, budget, horizon)
    discovery = _discovery(budget, horizon, query, counts)
    if json_output:
        _print_json(comparison, resources=costs, discovery=discovery)
        return
    _print_table(comparison)
    if discovery is not None:
        _print_discovery(discovery)
    _say(str(costs))
    _say(comparison.guarantee)


def _plot_totals(comparison: Plan, target: Path) -> None:
    """Draw the error of each mechanism over time, but for those far above the best."""
    from evercount.plotting import error_plot

    rows = [row for row in comparison.rows if row.worst_std < 6 * comparison.rows[0].worst_std]
    lower_bound = None if math.isnan(comparison.lower_bound) else comparison.lower_bound
    error_plot(
        {row.name: (row.ticks, row.std) for row in rows},
        f"{comparison.query}: ε={comparison.epsilon:g}, δ={comparison.delta:g}, "
        f"{comparison.ticks} ticks",
        target,
        lower_bound,
        {row.name: row.band() for row in rows if row.jumps},
    )


def _discovery(
    budget: Budget,
    horizon: int | None,
    query: Query,
    counts: list[int] | None,
    views: tuple[str, ...] = (),
) -> DiscoveryPlan | None:
    """Compute when an unlisted key becomes public, if the query has unlisted keys."""
    from evercount.planning.special_plans import plan_discovery

    discovery = plan_discovery(budget, horizon, query, counts or (), views=views)
    if counts and discovery is None:
        raise ParameterError(
            f"--count is for queries with unlisted keys, and {query.name!r} has a list or no keys"
        )
    return discovery


def _print_json(main: Any, **parts: Any) -> None:
    """Print a plan and its parts as one JSON object."""
    more = {name: part.to_dict() for name, part in parts.items() if part is not None}
    typer.echo(json.dumps(finite({**main.to_dict(), **more}), indent=1))


def _say(text: str) -> None:
    """Print a paragraph, wrapped for a terminal."""
    typer.echo(textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False))


def _table(rows: list[list[str]], left: int = 1, gap: int = 2) -> None:
    """Print rows as aligned columns, the first `left` of them flush left."""
    typer.echo("\n".join(line.rstrip() for line in aligned(rows, left, gap)))


def _number(value: float, places: int) -> str:
    """Write a number with `places` decimals; below 1, with three significant digits."""
    if value >= 1 or value == 0:
        return f"{value:,.{places}f}"
    return f"{value:.3g}"


def _print_table(comparison: Plan) -> None:
    """Print the errors of all mechanisms for running totals."""
    from evercount.planning.plan_views import shares_sentence

    has_bound = not math.isnan(comparison.lower_bound)
    horizon = "no horizon"
    if comparison.horizon is not None:
        horizon = f"horizon {comparison.horizon}"
    bound = "; × bound: worst std over the lower bound" if has_bound else ""
    _say(
        f"{comparison.query}, {horizon}, errors over {comparison.ticks} ticks. std: standard "
        "deviation of a published number; all ticks ±: with probability 95 % no number is farther "
        f"off{bound}."
    )
    rows = [
        ["mechanism", *COLUMNS],
        *([row.name, *(of(row) for of in COLUMNS.values())] for row in comparison.rows),
    ]
    if has_bound:
        least = {"std, worst": _number(comparison.lower_bound, 2), "× bound": "1.000"}
        rows.append(["lower bound, Gaussian", *(least.get(title, "") for title in COLUMNS)])
    _table(rows, gap=1)  # the usual numbers then fit into 80 characters
    shares = shares_sentence(comparison.shares)
    if shares:
        _say(shares)
    if len(comparison.rows) > 1:
        best = ", ".join(f"{what}: {name}" for what, name in comparison.best.items())
        _say(f"Least error: {best}.")
    if comparison.delta > 0 and any(row.delta == 0 for row in comparison.rows):
        _say(
            "bridge and pure-* keep the promise with delta=0, which is stronger. "
            + comparison.ledger_sentence()
        )


COLUMNS: dict[str, Callable[[Row], str]] = {
    "std, last": lambda row: _number(row.last_std, 2),
    "std, worst": lambda row: _number(row.worst_std, 2),
    "at tick": lambda row: str(row.worst_tick),
    "95 % ±": lambda row: _number(row.interval95, 1),
    "all ticks ±": lambda row: _number(row.simultaneous, 1),
    "× bound": lambda row: _ratio(row.ratio_to_lower_bound),
}


def _ratio(ratio: float) -> str:
    """Write a ratio to the lower bound, if there is one."""
    if math.isnan(ratio):
        return "–"
    return f"{ratio:.3f}"


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
    """Print which share of the events in files the caps drop, and the rows that are not events, as
    `release` does."""
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
        if delimiter is None:
            delimiter = ","
        opened = open_sources(expand_inputs(files), scratch, delimiter)
        sources = with_one_line_end(opened, scratch, "whole")
        bad = 0
        for bad, reject in enumerate(find_rejects(sources, declaration, scratch / "scratch"), 1):
            if bad <= MOST_SHOWN:
                typer.echo(f"left out {reject}", err=True)
        if bad > MOST_SHOWN:
            typer.echo(f"left out {bad} bad rows in all", err=True)
        typer.echo(
            str(dropped_events(sources, declaration, 1, stop, scratch / "scratch")), err=True
        )


def _print_views(
    budget: Budget,
    horizon: int | None,
    views: Mapping[str, str],
    query: Query,
    json_output: bool,
    counts: Any,
) -> None:
    """Print the worst std of each view, for every noise that may be chosen."""
    from evercount.planning.plan_views import plan_views

    with shown_if_long("comparing noise for these views"):
        view_plan = plan_views(budget, horizon, views, query)
    discovery = _discovery(budget, horizon, query, counts, tuple(views.values()))
    if json_output:
        _print_json(view_plan, discovery=discovery)
        return
    typer.echo(
        f"{view_plan.query}: worst std of each view, epsilon={budget.epsilon:g}, "
        f"delta={budget.delta:g}"
    )
    typer.echo(str(view_plan))
    typer.echo("twice: epsilon of two such streams over the same events.")
    if discovery is not None:
        _print_discovery(discovery)


def _print_discovery(discovery: DiscoveryPlan) -> None:
    """Print when an unlisted key becomes public, and how likely."""
    from evercount.planning.special_plans import CHANCES

    typer.echo(f"when a key becomes public ({discovery.factorization})")
    chances = [f"{chance * 100:g} % see" for chance in CHANCES]
    rows = [["at tick", "threshold", *chances, *(f"count {count}" for count in discovery.counts)]]
    for one in discovery.ticks:
        numbers = (one.tick, one.threshold, *one.needed)
        rows.append(
            [*(f"{number:,}" for number in numbers), *(f"{chance:.3g}" for chance in one.visible)]
        )
    _table(rows, left=0)
    _say(
        "The columns '% see' show the count that a key needs to be public at that tick with this "
        "chance; the columns 'count' show the chance for a key with this count."
    )
    _say(
        "A key is listed because of one unit alone with probability at most "
        f"{discovery.delta_2:.3g} over all ticks; {discovery.delta_1:.3g} of delta is left for the "
        f"counts. Keys with fewer than {discovery.minimum} events are never listed."
    )


def _print_sparse(sparse: SparseComparison) -> None:
    """Print the bounds of the sparse counter next to those of plain ones."""
    split = sparse.split
    parameter = "max_ones unknown"
    if split.max_ones is not None:
        parameter = f"max_ones={split.max_ones}"
    length = f"no horizon, first {sparse.ticks} ticks"
    if split.horizon is not None:
        length = f"horizon {split.horizon}"
    _say(f"SparseCount({parameter}), {length}, bounds for all ticks together (95%)")
    if split.max_ones is None:
        numbers = zip(sparse.ones, sparse.bounds, strict=True)
        rows = [
            [f"{ones:,}", f"{bound:,.1f}", f"{sparse.best_plain:,.1f}"] for ones, bound in numbers
        ]
        rows.insert(0, ["events so far", "sparse-count ±", f"{next(iter(sparse.plain))} ±"])
    else:
        assert sparse.bound is not None
        all_of = {
            **sparse.plain,
            "sparse-count": sparse.bound,
            "max_ones/2 for ever (no data)": split.max_ones / 2,
        }
        best_first = sorted(all_of.items(), key=lambda row: row[1])
        rows = [
            ["counter", "all ticks ±"],
            *([name, f"{bound:,.1f}"] for name, bound in best_first),
        ]
    _table(rows, left=split.max_ones is not None)
    for line in (*_facts(sparse), split.sentence()):
        _say(line)


def _facts(sparse: SparseComparison) -> list[str]:
    """Describe the split of the budget, the segments, and where the sparse counter is the best."""
    split = sparse.split
    segments = "any number of segments"
    if split.segments is not None:
        segments = f"at most {split.segments} segments"
    gap = split.threshold - split.spread
    with_delta = f" (with delta={split.delta:g})" if split.delta else ""
    lines = [
        f"Split of epsilon={split.epsilon:g}: {max(split.threshold_epsilon, split.tick_epsilon):g} "
        f"partition (thresholds {split.threshold_epsilon:g}, ticks {split.tick_epsilon:g}), "
        f"{split.counter_epsilon:g} counter"
        f"{with_delta}.",
        f"Segments: threshold {split.threshold}, each closes with {gap} to "
        f"{split.threshold + split.spread} events; {segments}.",
    ]
    what = "the number of events so far" if split.max_ones is None else "max_ones"
    where = "nowhere"
    if sparse.wins is not None:
        where = f"from {sparse.wins[0]:,} to {sparse.wins[1]:,}"
    lines.append(
        f"For {what} of 1, 3, 10, … to {sparse.ones[-1]:,} it has the least bound {where}."
    )
    ways = {
        "partition": "this partition",
        "plain": "a plain counter over ticks",
        "constant": "max_ones/2 for ever",
    }
    lines.append(f"SparseCount chooses the least bound by itself: here {ways[sparse.method]}.")
    return lines


def _plot_sparse(sparse: SparseComparison, target: Path) -> None:
    from evercount.plotting import error_plot, save

    """Draw the bounds of the sparse counter and of plain ones over the number of events."""
    split = sparse.split
    label = "sparse-count with this max_ones"
    x_label = "events in the whole stream"
    if split.max_ones is None:
        label = "sparse-count, max_ones unknown"
        x_label = "events so far"
    curves = {label: (sparse.ones, sparse.bounds)}
    curves[f"plain counter, {next(iter(sparse.plain))}"] = (
        sparse.ones,
        [sparse.best_plain] * len(sparse.ones),
    )
    if split.max_ones is not None:
        half = [(s, s / 2) for s in sparse.ones if s <= 2 * max(*sparse.bounds, sparse.best_plain)]
        curves["max_ones/2 for ever (no data)"] = [s for s, _ in half], [bound for _, bound in half]
    axes = error_plot(
        curves, f"SparseCount, ε={split.epsilon:g}, δ={split.delta:g}, {sparse.ticks} ticks"
    )
    axes.set_xscale("log")
    axes.set_xlabel(x_label)
    axes.set_ylabel("error bound for all ticks (95%)")
    save(axes, target)
