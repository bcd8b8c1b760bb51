"""`evercount audit`: attack what evercount claims."""

from __future__ import annotations

from typing import Annotated, cast

import typer

audit = typer.Typer(help="Attack what evercount claims and report what the attack found.", no_args_is_help=True)


@audit.callback()
def _audits() -> None:
    """Attack what evercount claims and report what the attack found."""


@audit.command()
def sensitivity(
    query: Annotated[str, typer.Argument(help="Query by name: count, histogram, substrings, triangles, …")],
    parameter: Annotated[
        list[str] | None, typer.Option("--parameter", "-p", help="Query parameter KEY=VALUE (JSON), repeatable.")
    ] = None,
    adjacency: Annotated[str, typer.Option(help="add-remove or replace.")] = "add-remove",
    ticks: Annotated[int, typer.Option(help="Ticks of the streams that are tried.")] = 4,
    factorization: Annotated[
        list[str] | None, typer.Option("--factorization", "-f", help="By name, repeatable; default: several.")
    ] = None,
    pairs: Annotated[int, typer.Option(help="Most pairs to try: all of them if there are no more.")] = 100_000,
    claimed: Annotated[float | None, typer.Option(help="Test this S instead of the query's own.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random search.")] = 0,
) -> None:
    """Search neighbouring streams for the largest ‖R(X−X′)‖² and compare it with the claim c²·S. Exit 1 if beaten.

    Example: evercount audit sensitivity substrings -p alphabet='"ab"' -p max_length=2 --adjacency replace --claimed 4
    """
    from rich.console import Console
    from rich.progress import Progress

    from evercount.audit.sensitivity import audit_sensitivity
    from evercount.cli.options import parse_parameters
    from evercount.factorizations import factorization as build
    from evercount.queries import build_query
    from evercount.queries.base import Adjacency

    asked = build_query(query, parse_parameters(parameter or []))
    names = factorization or ["balanced", "normalized", "square-root", "binary-tree", "identity"]
    matrices = {name: build(name, ticks).dense(ticks)[1] for name in names}
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("pairs of streams", total=None)
        report = audit_sensitivity(
            asked,
            matrices,
            cast(Adjacency, adjacency),
            ticks,
            budget=pairs,
            seed=seed,
            claimed=claimed,
            progress=lambda done, total: progress.update(task, completed=done, total=total),
        )
    typer.echo(report.summary())
    if not report.holds:
        worst = report.pair or next((f.pair for f in report.findings if not f.holds), None)
        typer.echo(f"  stream : {worst[0] if worst else None}\n  neighbour: {worst[1] if worst else None}")
        raise typer.Exit(1)
