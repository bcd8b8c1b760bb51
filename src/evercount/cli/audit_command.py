"""`evercount audit`: attack what evercount claims."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer
from typer import Argument, Option

from evercount.cli.options import (
    Adjacency,
    Json,
    MaxEvents,
    MaxPerTick,
    MaxTicks,
    Parameters,
    Period,
    progress_bar,
)
from evercount.cli.options import parse_parameters as parse
from evercount.errors import ParameterError
from evercount.factorizations import factorization as build_factorization
from evercount.front_door.declare_stream import parse_horizon, unit_of
from evercount.noise import Secret
from evercount.privacy import Budget
from evercount.queries import build_query

if TYPE_CHECKING:
    from evercount.audit.attack import AttackReport

audit = typer.Typer(
    help="Attack what evercount claims and report what the attack found.", no_args_is_help=True
)


Epsilon = Annotated[float, Option(help="ε of the promise.")]
Delta = Annotated[float, Option(help="δ of the promise; 0 for pure privacy.")]
Horizon = Annotated[
    str, Option(help="Horizon of the stream, or none; default: the ticks that are run.")
]
Factorization = Annotated[str | None, Option("--factorization", "-f", help="By name.")]
RootSecret = Annotated[
    str | None, Option(help="Root of the runs' secrets in hex; default: a fresh one.")
]


def _secret(text: str | None) -> Secret:
    """Read the root secret; draw a fresh one if there is none."""
    if text is None:
        return Secret.generate()
    return Secret.from_hex(text)


def _show(report: Any, as_json: bool) -> None:
    """Print a report as JSON, or in words."""
    if as_json:
        typer.echo(json.dumps(report.to_dict()))
    else:
        typer.echo(report.summary())


def _finish(*reports: Any) -> None:
    """Exit 1 if a report does not hold."""
    if not all(report.holds for report in reports):
        raise typer.Exit(1)


@audit.command()
def replay(
    query: str | None = Argument(None, help="Query by name: count, histogram, substrings, …"),
    parameter: Parameters = None,
    interface: str = Option("library", help="library, files, service or spark."),
    program: str | None = Option(
        None, help="Audit other code instead: MODULE:NAME of an audit.Program."
    ),
    epsilon: Epsilon = 1.0,
    delta: Delta = 1e-6,
    adjacency: Adjacency = "add-remove",
    max_events: MaxEvents = None,
    max_per_tick: MaxPerTick = None,
    max_ticks: MaxTicks = None,
    period: Period = None,
    ticks: int = Option(6, help="Ticks of the data.", min=1, max=64),
    horizon: Horizon = "",
    factorization: Factorization = None,
    restarts: bool = Option(True, help="Stop the program halfway and continue it."),
    examples: int | None = Option(
        None, help="Random neighbours to try, or 0. Default: 100 (with Spark: 4).", min=0
    ),
    secret: RootSecret = None,
    json_output: Json = False,
) -> None:
    """Run a program twice with one secret on neighbouring data; what differs must be covered by its
    promise.

    It tries the worst neighbours that the sensitivity search finds, and random ones, which are made
    small if they break the promise. Exit 1 if it is broken. The data are synthetic, and nothing is
    kept.

    Example: evercount audit replay histogram -p keys='["a","b"]' --interface service --adjacency
    replace
    """
    from evercount.audit.doors import find_program, open_door, run_replay

    if (query is None) == (program is None):
        raise ParameterError("name a query, or a program of your own with --program MODULE:NAME")
    if program is not None:
        target = find_program(program)
    else:
        unit = unit_of(None, max_events, max_per_tick, max_ticks, period)
        budget = Budget(epsilon, delta, adjacency=cast(Any, adjacency), **unit)
        built = build_query(cast(str, query), parse(parameter))
        halfway = (ticks // 2,) if restarts and ticks > 1 else ()
        target = open_door(
            interface, built, budget, parse_horizon(horizon or str(ticks)), factorization, halfway
        )
    if examples is None:
        examples = 4 if program is None and interface == "spark" else 100
    with progress_bar() as show:
        report = run_replay(target, ticks, _secret(secret), examples, show)
    _show(report, json_output)
    _finish(report)


@audit.command()
def mechanism(
    query: str = Argument(..., help="Query by name: count, histogram, …"),
    parameter: Parameters = None,
    everything: bool = Option(
        False, "--all", help="Every factorization (or that of -f) × adjacency of the query."
    ),
    epsilon: Epsilon = 3.0,
    delta: Delta = 0.01,
    adjacency: Adjacency = "add-remove",
    ticks: int = Option(4, help="Ticks of the data.", min=1, max=32),
    horizon: Horizon = "",
    factorization: Factorization = None,
    runs: int = Option(2000, help="Runs on each side.", min=40),
    confidence: float = Option(0.9999, help="Confidence of every bound."),
    secret: RootSecret = None,
    plot: str | None = Option(None, help="Chart of claimed against attacked: .png, .svg or .pdf."),
    json_output: bool = Option(False, "--json", help="Print one JSON line for each attack."),
) -> None:
    """Attack the joint release as a black box: how well can two neighbours be told apart, compared
    with the promise?

    Exit 1 if an attack gets beyond the promise at its confidence. It is strongest on small streams
    with a large ε: there it comes close to the promise if all of the promise is spent.

    Example: evercount audit mechanism count --runs 4000
    """
    from evercount._validate import check_name
    from evercount.audit.attack import attack
    from evercount.audit.doors import LibraryProgram
    from evercount.audit.mechanism_grid import all_cases, chart, hardest_pair, run_case, summarise

    built = build_query(query, parse(parameter))
    key = _secret(secret)
    reports: list[AttackReport] = []

    def add(report: AttackReport) -> None:
        reports.append(report)
        _show(report, json_output)

    if everything:
        cases = list(all_cases(built))
        if factorization is not None:
            check_name(
                "factorization",
                factorization,
                tuple({case.factorization or "": 0 for case in cases}),
            )
            cases = [case for case in cases if case.factorization == factorization]
        with progress_bar() as show:
            for number, case in enumerate(cases):
                show(case.label, number, len(cases))
                # all share the false alarms
                add(run_case(case, runs, key, 1 - (1 - confidence) / len(cases)))
        typer.echo(summarise(reports), err=json_output)
    else:
        budget = Budget(epsilon, delta, adjacency=cast(Any, adjacency))
        program = LibraryProgram(built, budget, parse_horizon(horizon or str(ticks)), factorization)
        with progress_bar() as show:
            pair = hardest_pair(program, built, ticks, key)
            add(
                attack(
                    program, pair, runs, key, confidence, lambda done: show("runs", done, 2 * runs)
                )
            )
    if plot is not None:
        chart(reports, plot)
    _finish(*reports)


@audit.command()
def sensitivity(
    query: str = Argument(..., help="Query by name: count, histogram, substrings, triangles, …"),
    parameter: Parameters = None,
    adjacency: Adjacency = "add-remove",
    ticks: int = Option(4, help="Ticks of the streams that are tried."),
    factorization: list[str] | None = Option(
        None, "--factorization", "-f", help="Repeatable; default: several."
    ),
    pairs: int = Option(
        100_000, help="Largest number of pairs to try; all of them if there are fewer."
    ),
    claimed: float | None = Option(None, help="Test this S instead of the query's own."),
    seed: int = Option(0, help="Seed of the random search."),
) -> None:
    """Search neighbouring streams for the largest ‖R(X−X′)‖² and compare it with the claim c²·S.
    Exit 1 if beaten.

    Example: evercount audit sensitivity substrings -p alphabet='"ab"' -p max_length=2 --adjacency
    replace --claimed 4
    """
    from evercount.audit.sensitivity import audit_sensitivity

    built = build_query(query, parse(parameter))
    names = factorization or ["balanced", "normalized", "square-root", "binary-tree", "fresh"]
    matrices = {name: build_factorization(name, ticks).dense(ticks)[1] for name in names}
    with progress_bar() as show:
        report = audit_sensitivity(
            built, matrices, cast(Any, adjacency), ticks, budget=pairs, seed=seed, claimed=claimed,
            progress=partial(show, "pairs of streams"),
        )  # fmt: skip
    _show(report, False)
    _finish(report)


@audit.command()
def life(
    lives: int = Option(200, help="How many lives to try.", min=1),
    seed: str = Option("0", help="Seed of the lives: the same seed tries the same ones."),
    first: int = Option(0, help="Number of the first life, to go on where another run ended."),
    way: list[str] | None = Option(
        None,
        help=(
            "Repeatable: python, csv, jsonl, parquet, frame, store of files, moves or store. "
            "Default: mostly python, which is quick."
        ),
    ),
    coverage: bool = Option(False, "--coverage", help="Print which operations met which features."),
    json_output: Json = False,
) -> None:
    """Live whole lives of random streams in neighbouring worlds, with renewals, restarts, second
    streams and moves; all that was published there must be covered by what was stated.

    A life that breaks a promise is made small and printed as a Python script. Exit 1 if there is
    one. The data are synthetic, and nothing is kept.

    Example: evercount audit life --lives 1000 --way python --way store
    """
    from evercount._validate import check_name
    from evercount.audit.lives.search import USUAL_WAYS, search_lives
    from evercount.audit.lives.ways import WAYS

    for name in way or ():
        check_name("way", name, tuple(WAYS))
    with progress_bar() as show:
        report = search_lives(
            lives,
            seed,
            tuple(way) if way else USUAL_WAYS,
            lambda done: show("lives", done, lives),
            first,
        )
    _show(report, json_output)
    if coverage and not json_output:
        typer.echo(report.coverage.summary())
    if report.interrupted:
        raise typer.Exit(130)
    _finish(report)
