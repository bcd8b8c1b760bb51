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
    Period,
    parse_parameters,
    shown_if_long,
)
from evercount.errors import ParameterError
from evercount.front_door.declare_stream import parse_horizon, unit_of
from evercount.privacy import Budget
from evercount.queries import Query, build_query

if TYPE_CHECKING:
    from evercount.planning.compare import Plan, Row
    from evercount.planning.compare_sparse import SparseComparison
    from evercount.planning.discovery_plan import DiscoveryPlan

WIDTH = 80  # characters of a terminal line that everybody has


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
    period: Period = None,
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
    delimiter: str | None = Option(
        None, help="With --from: separator of the columns of a CSV (default: a comma)."
    ),
    time: str | None = Option(None, help="With --from: column with the time."),
    user: str | None = Option(None, help="With --from: column with the person's id."),
    every: str = Option(
        "1d", help="Length of a tick, for per-day, per-week, --period 1d and --from."
    ),
    start: str | None = Option(None, help="With --from: start of the first tick."),
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
    from evercount.planning.compare import plan as make_plan
    from evercount.planning.compare_sparse import plan_sparse_count
    from evercount.planning.resources import measure_resources

    parameters = parse_parameters(parameter)
    asked = None if query == "sparse-count" else build_query(query, parameters)
    people = asked is not None and asked.people is not None
    unit_and_caps = unit_of(unit, max_events, max_per_tick, max_ticks, period, user=people)
    protected: dict[str, Any] = {"adjacency": adjacency, **unit_and_caps}
    if rho is not None:
        if epsilon is not None:
            raise ParameterError(f"--epsilon {epsilon} next to --rho {rho}: give only one of them")
        budget = Budget.from_rho(rho, delta, **protected)
    else:
        budget = Budget(0.5 if epsilon is None else epsilon, delta, **protected)
    schedule = Schedule.of(every, start, zone)
    budget = with_period_ticks(budget, schedule)
    if from_files:
        _show_dropped(budget, from_files, delimiter, time, user, every, start, zone)
    elif delimiter is not None:
        raise ParameterError("--delimiter is for the files of --from: add --from, or omit it")
    length, names = parse_horizon(horizon), tuple(mechanism) if mechanism else None
    if asked is None:
        if unknown := sorted(set(parameters) - {"max_ones"}):
            raise ParameterError(
                f"sparse-count has only the parameter max_ones, got {', '.join(unknown)}"
            )
        sparse = plan_sparse_count(
            budget, length, parameters.get("max_ones"), names=names, ticks=ticks
        )
        if plot is not None:
            _plot_sparse(sparse, plot)
        show = _print_json if json_output else _print_sparse
        show(sparse)
        return
    if view:
        for option, given in {"--mechanism": mechanism, "--ticks": ticks, "--plot": plot}.items():
            if given is not None:
                raise ParameterError(f"{option} is for running totals: omit it, or omit --view")
        views = {name: noise_views([name], schedule)[0] for name in view}
        _print_views(budget, length, views, asked, json_output, count)
        if optimal:
            from evercount.planning.distances import optimum_table

            with shown_if_long("computing the optimum"):
                table = optimum_table(budget, length, tuple(views.values()), asked)
            typer.echo(table, err=json_output)
        return
    if optimal:
        raise ParameterError("--optimal needs --view")
    with shown_if_long("comparing noise"):
        comparison = make_plan(budget, length, asked, names=names, ticks=ticks)
    if plot is not None:
        from evercount.plotting import error_plot

        rows = [row for row in comparison.rows if row.worst_std < 6 * comparison.rows[0].worst_std]
        error_plot(
            {row.name: (row.ticks, row.std) for row in rows},
            f"{comparison.query}: ε={comparison.epsilon:g}, δ={comparison.delta:g}, "
            f"{comparison.ticks} ticks",
            plot,
            None if math.isnan(comparison.lower_bound) else comparison.lower_bound,
            {row.name: row.band() for row in rows if row.jumps},
        )
    costs = measure_resources(asked, budget, length)
    discovery = _discovery(budget, length, asked, count)
    if json_output:
        _print_json(comparison, resources=costs, discovery=discovery)
        return
    _print_table(comparison)
    if discovery is not None:
        _print_discovery(discovery)
    _say(str(costs))
    _say(comparison.guarantee)


def _discovery(
    budget: Budget,
    horizon: int | None,
    query: Query,
    counts: list[int] | None,
    views: tuple[str, ...] = (),
) -> DiscoveryPlan | None:
    from evercount.planning.discovery_plan import plan_discovery

    found = plan_discovery(budget, horizon, query, counts or (), views=views)
    if counts and found is None:
        raise ParameterError(
            f"--count is for queries with unlisted keys, and {query.name!r} has a list or no keys"
        )
    return found


def _print_json(found: Any, **parts: Any) -> None:
    more = {name: part.to_dict() for name, part in parts.items() if part is not None}
    typer.echo(json.dumps(finite({**found.to_dict(), **more}), indent=1))


def _say(text: str) -> None:
    typer.echo(textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False))


def _table(rows: list[list[str]], left: int = 1, gap: int = 2) -> None:
    typer.echo("\n".join(line.rstrip() for line in aligned(rows, left, gap)))


def _number(value: float, places: int) -> str:
    """The number with `places` decimals; below 1, with three significant digits."""
    return f"{value:,.{places}f}" if value >= 1 or value == 0 else f"{value:.3g}"


def _print_table(comparison: Plan) -> None:
    from evercount.planning.output_errors import shares_sentence

    horizon = "no horizon" if comparison.horizon is None else f"horizon {comparison.horizon}"
    bound = (
        "" if math.isnan(comparison.lower_bound) else "; × bound: worst std over the lower bound"
    )
    _say(
        f"{comparison.query}, {horizon}, errors over {comparison.ticks} ticks. std: standard "
        "deviation of a published number; all ticks ±: with probability 95 % no number is farther "
        f"off{bound}."
    )
    rows = [
        ["mechanism", *COLUMNS],
        *([row.name, *(of(row) for of in COLUMNS.values())] for row in comparison.rows),
    ]
    if not math.isnan(comparison.lower_bound):
        least = {"std, worst": _number(comparison.lower_bound, 2), "× bound": "1.000"}
        rows.append(["lower bound, Gaussian", *(least.get(title, "") for title in COLUMNS)])
    _table(rows, gap=1)  # the usual numbers then fit into 80 characters
    if differing := shares_sentence(comparison.shares):
        _say(differing)
    if len(comparison.rows) > 1:
        _say(
            "Least error: "
            f"{', '.join(f'{what}: {name}' for what, name in comparison.best.items())}."
        )
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
    "× bound": lambda row: (
        "–" if math.isnan(row.ratio_to_lower_bound) else f"{row.ratio_to_lower_bound:.3f}"
    ),
}


def _show_dropped(
    budget: Budget,
    files: list[str],
    delimiter: str | None,
    time: str | None,
    user: str | None,
    *when: Any,
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

    if budget.unit != "user" or None in (time, user, *when):
        raise ParameterError(
            "--from shows what caps on persons drop: add --time, --user, --start, and a cap or "
            "--period"
        )
    shown: dict[str, Any] = {"views": ("running",), "columns": Columns(str(time), user=user)}
    declaration = StreamDeclaration("plan", build_query("count", {}), budget, *when, **shown)
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
    """The worst std of each view, for every noise that may be chosen."""
    from evercount.planning.plan_views import plan_views

    with shown_if_long("comparing noise for these views"):
        found = plan_views(budget, horizon, views, query)
    discovery = _discovery(budget, horizon, query, counts, tuple(views.values()))
    if json_output:
        _print_json(found, discovery=discovery)
        return
    typer.echo(
        f"{found.query}: worst std of each view, epsilon={budget.epsilon:g}, delta={budget.delta:g}"
    )
    typer.echo(str(found))
    typer.echo("twice: epsilon of two such streams over the same events.")
    if discovery is not None:
        _print_discovery(discovery)


def _print_discovery(discovery: DiscoveryPlan) -> None:
    from evercount.planning.discovery_plan import CHANCES

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
    split = sparse.split
    known = "max_ones unknown" if split.max_ones is None else f"max_ones={split.max_ones}"
    length = (
        f"no horizon, first {sparse.ticks} ticks"
        if split.horizon is None
        else f"horizon {split.horizon}"
    )
    _say(f"SparseCount({known}), {length}, bounds for all ticks together (95%)")
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
    """The split of the budget, the segments, and where the sparse counter is the best."""
    split = sparse.split
    segments = (
        "any number of segments" if split.segments is None else f"at most {split.segments} segments"
    )
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
    where = "nowhere" if sparse.wins is None else f"from {sparse.wins[0]:,} to {sparse.wins[1]:,}"
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

    split = sparse.split
    label = (
        "sparse-count, max_ones unknown"
        if split.max_ones is None
        else "sparse-count with this max_ones"
    )
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
    axes.set_xlabel("events in the whole stream" if split.max_ones is not None else "events so far")
    axes.set_ylabel("error bound for all ticks (95%)")
    save(axes, target)
