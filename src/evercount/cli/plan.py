"""`evercount plan`: which error will I get?"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def plan(
    epsilon: Annotated[float, typer.Option("--epsilon", "-e", help="Privacy parameter ε > 0.")] = 0.5,
    delta: Annotated[float, typer.Option("--delta", "-d", help="Privacy parameter δ, between 0 and 1.")] = 1e-10,
    rho: Annotated[float | None, typer.Option(help="zCDP parameter ρ, instead of ε.")] = None,
    horizon: Annotated[str, typer.Option("--horizon", "-t", help="Ticks (65536, 2^16, 1e6) or none.")] = "2^16",
    query: Annotated[str, typer.Option("--query", "-q", help="Query by name: count, histogram, window, …")] = "count",
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
        if name not in FACTORIZATIONS:
            raise UnknownName("factorization", name, FACTORIZATIONS)
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
