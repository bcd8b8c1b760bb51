"""`evercount plan`: which error will I get? Queries beside the lower bound, and sparse-count beside plain counters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from evercount.errors import ParameterError

if TYPE_CHECKING:
    from evercount.planning import SparseComparison
    from evercount.privacy import Budget


def plan(
    epsilon: Annotated[float, typer.Option("--epsilon", "-e", help="Privacy parameter ε > 0.")] = 0.5,
    delta: Annotated[float, typer.Option("--delta", "-d", help="Privacy parameter δ, between 0 and 1.")] = 1e-10,
    rho: Annotated[float | None, typer.Option(help="zCDP parameter ρ, instead of ε.")] = None,
    horizon: Annotated[str, typer.Option("--horizon", "-t", help="Ticks (65536, 2^16, 1e6) or none.")] = "2^16",
    query: Annotated[
        str, typer.Option("--query", "-q", help="Query by name: count, histogram, window, sparse-count, …")
    ] = "count",
    parameter: Annotated[
        list[str] | None, typer.Option("--parameter", "-p", help="Query parameter KEY=VALUE (JSON), repeatable.")
    ] = None,
    adjacency: Annotated[str, typer.Option(help="add-remove or replace.")] = "add-remove",
    calibration: Annotated[str, typer.Option(help="tight, classic or paper.")] = "tight",
    user_events: Annotated[
        int | None, typer.Option(help="Protect a user with at most so many events, not one event.")
    ] = None,
    mechanism: Annotated[
        list[str] | None, typer.Option("--mechanism", "-m", help="Only these factorisations, repeatable.")
    ] = None,
    ticks: Annotated[int | None, typer.Option(help="Without a horizon: compare over so many ticks.")] = None,
    beta: Annotated[float, typer.Option(help="Failure probability of the simultaneous bound.")] = 0.05,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    plot: Annotated[Path | None, typer.Option(help="Write a chart of error over time (PNG, SVG, PDF).")] = None,
) -> None:
    """Which error will I get? All mechanisms side by side, with the lower bound that none can beat.

    Example: evercount plan --epsilon 0.5 --delta 1e-10 --horizon 2^16 --plot errors.png

    Rare events: evercount plan -q sparse-count -p max_ones=1000 --epsilon 1 --delta 0 --horizon 2^20
    """
    import json

    from evercount.cli.options import parse_horizon, parse_parameters
    from evercount.errors import UnknownName
    from evercount.factorizations import FACTORIZATIONS
    from evercount.planning import plan as make_plan
    from evercount.privacy import Budget
    from evercount.queries import build_query

    unit = {"unit": "user", "max_events": user_events} if user_events is not None else {}
    if rho is not None:
        budget = Budget.from_rho(rho, delta, adjacency=adjacency, **unit)  # type: ignore[arg-type]
    else:
        budget = Budget(epsilon, delta, adjacency=adjacency, calibration=calibration, **unit)  # type: ignore[arg-type]
    for name in mechanism or []:
        if not budget.pure and name not in FACTORIZATIONS:
            raise UnknownName("factorization", name, FACTORIZATIONS)
    if query == "sparse-count":
        _sparse(
            budget,
            parse_horizon(horizon),
            parse_parameters(parameter or []),
            names=tuple(mechanism) if mechanism else None,
            ticks=ticks,
            beta=beta,
            json_output=json_output,
            plot=plot,
        )
        return
    asked = build_query(query, parse_parameters(parameter or []))
    found = make_plan(
        budget,
        parse_horizon(horizon),
        asked,
        names=tuple(mechanism) if mechanism else None,
        ticks=ticks,
        beta=beta,
    )
    if plot is not None:
        from evercount.plotting import error_plot

        curves = {row.name: (row.ticks, row.std) for row in found.rows if row.worst_std < 6 * found.rows[0].worst_std}
        floor = None if found.lower_bound != found.lower_bound else found.lower_bound
        error_plot(curves, f"{found.query}: ε={found.epsilon:g}, δ={found.delta:g}, {found.ticks} ticks", plot, floor)
    if json_output:
        typer.echo(json.dumps(_finite(found.to_dict()), indent=1))
        return
    _print_table(found, beta)


def _finite(value: object) -> object:
    """JSON has no NaN: None instead."""
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and value != value else value


def _print_table(found: object, beta: float) -> None:
    from rich.console import Console
    from rich.table import Table

    from evercount.planning import Plan

    assert isinstance(found, Plan)
    console = Console()
    if not console.is_terminal:
        console = Console(width=130)  # piped: do not cut the columns to 80
    horizon = "no horizon" if found.horizon is None else f"horizon {found.horizon}"
    table = Table(title=f"{found.query}, {horizon}, errors over {found.ticks} ticks", title_justify="left")
    table.add_column("mechanism")
    for name in ("std, last tick", "std, worst tick", "at tick", "95 % ±", f"all ticks ± ({1 - beta:.0%})"):
        table.add_column(name, justify="right")
    for name in ("× lower bound", "state, bytes/cell", "numeric δ"):
        table.add_column(name, justify="right")
    for row in found.rows:
        ratio = "" if row.ratio_to_lower_bound != row.ratio_to_lower_bound else f"{row.ratio_to_lower_bound:.3f}"
        table.add_row(
            row.name,
            f"{row.last_std:,.2f}",
            f"{row.worst_std:,.2f}",
            str(row.worst_tick),
            f"{row.interval95:,.1f}",
            f"{row.simultaneous:,.1f}",
            ratio,
            str(row.state_bytes),
            f"{row.numeric_delta:.1e}",
        )
    if found.lower_bound == found.lower_bound:
        table.add_row("lower bound", "", f"{found.lower_bound:,.2f}", "", "", "", "1.000", "", "", style="dim")
    console.print(table)
    console.print(found.guarantee, highlight=False)


# -- sparse-count ----------------------------------------------------------------------------------------------------


def _sparse(
    budget: Budget,
    horizon: int | None,
    parameters: dict[str, Any],
    *,
    names: tuple[str, ...] | None,
    ticks: int | None,
    beta: float,
    json_output: bool,
    plot: Path | None,
) -> None:
    """Print the comparison, and draw it where a chart is asked for."""
    import json

    from evercount.planning import plan_sparse_count

    unknown = sorted(set(parameters) - {"max_ones"})
    if unknown:
        raise ParameterError(
            f"parameters of 'sparse-count': unknown {', '.join(unknown)}; it has max_ones, the most events that are "
            "expected in the whole stream (leave it out where that is unknown). The rest are options of the command."
        )
    if ticks is not None:
        raise ParameterError(f"--ticks {ticks} is for streams without a horizon, and sparse-count needs one")
    found = plan_sparse_count(budget, horizon, parameters.get("max_ones"), names=names, beta=beta)
    if plot is not None:
        _plot_sparse(found, plot)
    if json_output:
        typer.echo(json.dumps(found.to_dict(), indent=1))
    else:
        _print_sparse(found)


def _print_sparse(found: SparseComparison) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    if not console.is_terminal:
        console = Console(width=130)
    known = "max_ones unknown" if found.max_ones is None else f"max_ones={found.max_ones}"
    title = f"SparseCount({known}), horizon {found.horizon}, bounds for all ticks together ({1 - found.beta:.0%})"
    table = Table()
    if found.max_ones is None:
        best = next(iter(found.plain))
        for name in ("events so far", "sparse-count ±", f"{best} ±"):
            table.add_column(name, justify="right")
        for ones, bound in zip(found.ones, found.bounds, strict=True):
            table.add_row(f"{ones:,}", f"{bound:,.1f}", f"{found.best_plain:,.1f}")
    else:
        table.add_column("counter")
        table.add_column("all ticks ±", justify="right")
        assert found.bound is not None
        rows = {**found.plain, "sparse-count": found.bound, "max_ones/2 for ever (no data)": found.max_ones / 2}
        for name, bound in sorted(rows.items(), key=lambda row: row[1]):
            table.add_row(name, f"{bound:,.1f}", style="bold" if name == "sparse-count" else None)
    console.print(title, highlight=False, style="italic")
    console.print(table)
    for line in (*_facts(found), found.guarantee):
        console.print(line, highlight=False, soft_wrap=True)


def _facts(found: SparseComparison) -> list[str]:
    """The split of the budget, the segments, and where the sparse counter is the best."""
    segments = "any number of segments" if found.segments is None else f"at most {found.segments} segments"
    gap = found.threshold - found.spread
    lines = [
        f"Split of epsilon={found.epsilon:g}: {found.threshold_epsilon:g} thresholds, {found.tick_epsilon:g} ticks, "
        f"{found.counter_epsilon:g} counter" + (f" (with delta={found.delta:g})." if found.delta else "."),
        f"Segments: threshold {found.threshold}, each closes with {gap} to {found.threshold + found.spread} events; "
        f"{segments}.",
    ]
    what = "while so many events have come" if found.max_ones is None else "for max_ones"
    if found.wins is None:
        lines.append(f"It wins nowhere at this horizon and budget ({what} from {found.ones[0]} to {found.ones[-1]:,}).")
    else:
        low, high = found.wins
        more = " or more" if high == found.ones[-1] else ""
        lines.append(f"It has the least bound {what}: from about {low:,} to about {high:,}{more}.")
    return lines


def _plot_sparse(found: SparseComparison, target: Path) -> None:
    """Bounds against the number of events."""
    from evercount.plotting import new_axes, save

    axes = new_axes()
    label = "sparse-count, max_ones unknown" if found.max_ones is None else "sparse-count with this max_ones"
    axes.plot(found.ones, found.bounds, linewidth=1.5, marker="o", markersize=3, label=label)
    best = next(iter(found.plain))
    axes.axhline(found.best_plain, linewidth=1.2, linestyle="--", color="black", label=f"plain counter, {best}")
    if found.max_ones is not None:
        most = min(found.ones[-1], 2 * max(*found.bounds, found.best_plain))
        constant = [found.ones[0] * (most / found.ones[0]) ** (i / 99) for i in range(100)]
        axes.plot(constant, [s / 2 for s in constant], color="gray", label="max_ones/2 for ever (no data)")
        axes.axvline(found.max_ones, color="gray", linestyle=":", linewidth=1)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("events in the whole stream" if found.max_ones is not None else "events so far")
    axes.set_ylabel(f"error bound for all ticks ({1 - found.beta:.0%})")
    budget = f"ε={found.epsilon:g}, δ={found.delta:g}"
    axes.set_title(f"SparseCount, {budget}, {found.horizon} ticks", fontsize=10, loc="left")
    axes.legend(frameon=False, fontsize=8)
    save(axes, target)
