"""`evercount audit`: attack what evercount claims."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, cast

import typer

audit = typer.Typer(help="Attack what evercount claims and report what the attack found.", no_args_is_help=True)


@audit.callback()
def _audits() -> None:
    """Attack what evercount claims and report what the attack found."""


Parameters = Annotated[
    list[str] | None, typer.Option("--parameter", "-p", help="Query parameter KEY=VALUE (JSON), repeatable.")
]
MaxEvents = Annotated[int | None, typer.Option(help="Protect persons, of whom at most this many events count.")]
MaxPerTick = Annotated[int | None, typer.Option(help="As --max-events, in one tick.")]
MaxTicks = Annotated[int | None, typer.Option(help="In how many ticks one person counts.")]
Period = Annotated[str | None, typer.Option(help="Protect what a person does in so many ticks, rather than in all.")]
AuditedHorizon = Annotated[str, typer.Option(help="Horizon of the stream, or none; default: the ticks that are run.")]


@audit.command()
def replay(
    query: Annotated[str | None, typer.Argument(help="Query by name: count, histogram, substrings, …")] = None,
    parameter: Parameters = None,
    door: Annotated[str, typer.Option(help="library, files, service or spark.")] = "library",
    program: Annotated[
        str | None,
        typer.Option(help="Audit other code instead: MODULE:NAME of an audit.Program with the attribute universe."),
    ] = None,
    epsilon: Annotated[float, typer.Option(help="ε of the promise.")] = 1.0,
    delta: Annotated[float, typer.Option(help="δ of the promise; 0 for pure privacy.")] = 1e-6,
    adjacency: Annotated[str, typer.Option(help="add-remove or replace.")] = "add-remove",
    max_events: MaxEvents = None,
    max_per_tick: MaxPerTick = None,
    max_ticks: MaxTicks = None,
    period: Period = None,
    ticks: Annotated[int, typer.Option(help="Ticks of the data.", min=1, max=64)] = 6,
    horizon: AuditedHorizon = "",
    factorization: Annotated[str | None, typer.Option("--factorization", "-f", help="By name.")] = None,
    restarts: Annotated[bool, typer.Option(help="Stop and continue the program halfway.")] = True,
    examples: Annotated[
        int | None, typer.Option(help="Random neighbours to try; 0 for none. Default: 100, by Spark 4.", min=0)
    ] = None,
    secret: Annotated[str | None, typer.Option(help="Secret of the runs in hex; default: a fresh one.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Run a program twice with one secret on neighbouring data; what differs must be covered by its promise.

    Tried are the worst neighbours that the sensitivity search finds, and random ones, which are made small if they
    break the promise. Exit 1 if it is broken. The data are synthetic, and nothing is kept.

    Example: evercount audit replay histogram -p keys='["a","b"]' --door service --adjacency replace
    """
    import json as writer

    from rich.console import Console
    from rich.progress import Progress

    from evercount.audit.doors import EXAMPLES, USUAL_EXAMPLES, find_program, open_door, run_replay
    from evercount.cli.options import parse_parameters
    from evercount.errors import ParameterError
    from evercount.front_door.declare_stream import parse_horizon, unit_of
    from evercount.noise import Secret
    from evercount.privacy import Budget
    from evercount.queries import build_query

    if (query is None) == (program is None):
        raise ParameterError("name a query, or a program of your own with --program MODULE:NAME")
    if program is not None:
        audited = find_program(program)
    else:
        whom = unit_of(None, max_events, max_per_tick, max_ticks, period)
        budget = Budget(epsilon, delta, adjacency=cast(Any, adjacency), **whom)
        ends = parse_horizon(horizon) if horizon else ticks
        asked = build_query(cast(str, query), parse_parameters(parameter or []))
        audited = open_door(door, asked, budget, ends, factorization, (ticks // 2,) if restarts and ticks > 1 else ())
    if examples is None:
        examples = USUAL_EXAMPLES if program is not None else EXAMPLES.get(door, USUAL_EXAMPLES)
    key = Secret.generate() if secret is None else Secret.from_hex(secret)
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("worst neighbours", total=None)
        report = run_replay(
            audited, ticks, key, examples, lambda what, done: progress.update(task, description=what, completed=done)
        )
    typer.echo(writer.dumps(report.to_dict(), indent=2) if json_output else report.summary())
    if not report.holds:
        raise typer.Exit(1)


@audit.command()
def mechanism(
    query: Annotated[str | None, typer.Argument(help="Query by name: count, histogram, …")] = None,
    parameter: Parameters = None,
    everything: Annotated[
        bool, typer.Option("--all", help="Every factorization (or that of -f) × adjacency, of a query or all.")
    ] = False,
    epsilon: Annotated[float, typer.Option(help="ε of the promise.")] = 3.0,
    delta: Annotated[float, typer.Option(help="δ of the promise; 0 for pure privacy.")] = 0.01,
    adjacency: Annotated[str, typer.Option(help="add-remove or replace.")] = "add-remove",
    ticks: Annotated[int, typer.Option(help="Ticks of the data.", min=1, max=32)] = 4,
    horizon: AuditedHorizon = "",
    factorization: Annotated[str | None, typer.Option("--factorization", "-f", help="By name.")] = None,
    runs: Annotated[int, typer.Option(help="Runs on either side.", min=40)] = 2000,
    confidence: Annotated[float, typer.Option(help="Of every bound.")] = 0.9999,
    secret: Annotated[str | None, typer.Option(help="Root of the runs' secrets in hex; default: fresh.")] = None,
    jobs: Annotated[int, typer.Option(help="Processes that share the attacks of --all.", min=1)] = 1,
    plot: Annotated[str | None, typer.Option(help="Chart of claimed against attacked: .png, .svg or .pdf.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON, a line for each attack.")] = False,
) -> None:
    """Attack the joint release as a black box: how well can two neighbours be told apart, compared with the promise?

    Exit 1 if an attack gets beyond the promise at its confidence. Small streams with a large ε give it power: then it
    comes close to the promise where the promise is spent.

    Example: evercount audit mechanism count --runs 4000
    """
    import json as writer

    from rich.console import Console
    from rich.progress import Progress

    from evercount._validate import check_name
    from evercount.audit.attack import AttackReport, attack_all
    from evercount.audit.library_door import LibraryProgram
    from evercount.audit.mechanism_grid import QUERIES, all_cases, chart, hardest_pairs, pool, run_cases, summarise
    from evercount.cli.options import parse_parameters
    from evercount.errors import ParameterError
    from evercount.front_door.declare_stream import parse_horizon
    from evercount.noise import Secret
    from evercount.privacy import Budget
    from evercount.queries import build_query

    if query is None and not everything:
        raise ParameterError("name a query, or attack them all with --all")
    key = Secret.generate() if secret is None else Secret.from_hex(secret)
    reports: list[AttackReport] = []

    def tell(report: AttackReport) -> None:
        reports.append(report)
        typer.echo(writer.dumps(report.to_dict()) if json_output else report.summary())

    with Progress(console=Console(stderr=True), transient=True) as progress:
        if everything:
            if query is not None:
                check_name("query", query, tuple(known.name for known in QUERIES))
            cases = list(all_cases([known for known in QUERIES if query in (None, known.name)]))
            if factorization is not None:
                check_name("factorization", factorization, tuple({case.factorization or "": 0 for case in cases}))
                cases = [case for case in cases if case.factorization == factorization]
            task = progress.add_task("attacks", total=len(cases))
            each = 1 - (1 - confidence) / len(cases)  # all attacks share the chance of a false alarm
            for report in run_cases(cases, runs, key, each, jobs):
                tell(report)
                progress.update(task, description=report.program, advance=1)
        else:
            budget = Budget(epsilon, delta, adjacency=cast(Any, adjacency))
            asked = build_query(cast(str, query), parse_parameters(parameter or []))
            ends = parse_horizon(horizon) if horizon else ticks
            program = LibraryProgram(asked, budget, ends, factorization)
            task = progress.add_task("runs", total=2 * runs)
            pairs = hardest_pairs(program, asked, budget, ticks, key)
            step = lambda done: progress.update(task, completed=done)  # noqa: E731 - shorter than a function
            tell(attack_all(program, pairs, runs, key, confidence, step))
    if plot is not None:
        chart(reports, plot)
    if everything:
        typer.echo(summarise(reports), err=json_output)
    pooled = pool(reports) if everything else []
    if not (all(report.holds for report in reports) and all(group.holds for group in pooled)):
        raise typer.Exit(1)


@audit.command()
def sensitivity(
    query: Annotated[str, typer.Argument(help="Query by name: count, histogram, substrings, triangles, …")],
    parameter: Parameters = None,
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
    names = factorization or ["balanced", "normalized", "square-root", "binary-tree", "fresh"]
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
        worst = next(claim.pair for claim in report.claims if not claim.holds)
        typer.echo(f"  stream : {worst[0] if worst else None}\n  neighbour: {worst[1] if worst else None}")
        raise typer.Exit(1)


@audit.command()
def discovery(
    parameter: Parameters = None,
    epsilon: Annotated[float, typer.Option(help="ε of the promise.")] = 1.0,
    delta: Annotated[float, typer.Option(help="δ of the promise, so large that the runs can see it.")] = 0.2,
    adjacency: Annotated[str, typer.Option(help="add-remove or replace.")] = "add-remove",
    max_events: MaxEvents = None,
    max_per_tick: MaxPerTick = None,
    max_ticks: MaxTicks = None,
    period: Period = None,
    ticks: Annotated[int, typer.Option(help="Ticks of the streams.", min=1, max=64)] = 6,
    view: Annotated[list[str] | None, typer.Option(help="What is published: per-tick for keys of the day.")] = None,
    runs: Annotated[int, typer.Option(help="Runs on either side.")] = 400,
    secret: Annotated[str | None, typer.Option(help="Root of the runs' secrets in hex; default: fresh.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Attack discovered keys: do releases reveal whether one person's key was there? Exit 1 if so.

    Example: evercount audit discovery -p minimum=20 --runs 1000
    """
    import json as writer

    from rich.console import Console
    from rich.progress import Progress

    from evercount.audit.discovery_attack import attack_discovery, library_program, neighbours
    from evercount.cli.options import parse_parameters
    from evercount.front_door.declare_stream import unit_of
    from evercount.noise import Secret
    from evercount.privacy import Budget
    from evercount.queries import DiscoveredKeys, build_query
    from evercount.queries.sensitivities import bounded

    whom = unit_of(None, max_events, max_per_tick, max_ticks, period)
    budget = Budget(epsilon, delta, adjacency=cast(Any, adjacency), **whom)
    query = cast(DiscoveredKeys, build_query("discovered-keys", parse_parameters(parameter or [])))
    with Progress(console=Console(stderr=True), transient=True) as progress:
        task = progress.add_task("runs", total=2 * runs)
        report = attack_discovery(
            library_program(query, budget, ticks, views=view or ()),
            budget,
            neighbours(ticks, bounded("events", budget, ticks), query.minimum),
            runs,
            None if secret is None else Secret.from_hex(secret),
            progress=lambda done: progress.update(task, completed=done),
        )
    typer.echo(writer.dumps(report.to_dict()) if json_output else report.summary())
    if not report.holds:
        raise typer.Exit(1)


@audit.command()
def law(
    epsilon: Annotated[float, typer.Option(help="ε of the promise.")] = 1.0,
    draws: Annotated[int, typer.Option(help="Runs of each program that are compared with its law.", min=100)] = 2000,
    secret: Annotated[str | None, typer.Option(help="Root of the runs' secrets in hex; default: fresh.")] = None,
    json_output: Annotated[bool, typer.Option("--json", help="Print JSON, a line for each program.")] = False,
) -> None:
    """Audit what is not linear in its noise: the sparse counter and the clients of the local model. Exit 1 if broken.

    The exact probability of every outcome is computed for neighbours, and draws of the running program are compared
    with it. Clients with Gaussian noise are attacked as `audit mechanism` does.

    Example: evercount audit law --draws 4000
    """
    import json as writer

    from evercount.audit.attack import AttackReport
    from evercount.audit.exact_laws import LawReport, audit_sparse
    from evercount.audit.local_laws import LocalProgram, attack_local, audit_genprot, audit_hierarchical
    from evercount.noise import Secret

    key = Secret.generate() if secret is None else Secret.from_hex(secret)
    holds = True

    def tell(report: LawReport | AttackReport) -> None:
        nonlocal holds
        holds = holds and report.holds
        typer.echo(writer.dumps(report.to_dict()) if json_output else report.summary())

    tell(audit_sparse(epsilon, draws=draws, secret=key))
    tell(audit_hierarchical(epsilon, draws=draws, secret=key))
    tell(audit_genprot(epsilon, draws=draws, secret=key))
    tell(audit_genprot(epsilon, rule="paper", draws=draws, secret=key))
    tell(attack_local(LocalProgram(epsilon, 1e-6), draws, key))
    tell(attack_local(LocalProgram(epsilon, 1e-6, "two-counter"), draws, key))
    if not holds:
        raise typer.Exit(1)


@audit.command()
def vectors(
    folder: Annotated[Path, typer.Argument(help="Folder of the JSON files, such as docs/vectors.")],
    write: Annotated[bool, typer.Option("--write", help="Write the files instead of checking them.")] = False,
) -> None:
    """Check this installation against test vectors, or write them. Exit 1 if a number differs.

    Example: evercount audit vectors docs/vectors
    """
    from evercount.audit.vectors import check_vectors, write_vectors

    if write:
        for path in write_vectors(folder):
            typer.echo(f"wrote {path}")
        return
    wrong = check_vectors(folder)
    for place in wrong:
        typer.echo(f"differs: {place}")
    if wrong:
        raise typer.Exit(1)
    typer.echo("all vectors agree")
