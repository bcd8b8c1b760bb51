"""The tables and charts of `evercount plan`."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from evercount._validate import aligned, finite

if TYPE_CHECKING:
    from evercount.planning.compare import Plan, Row
    from evercount.planning.compare_sparse import SparseComparison
    from evercount.planning.discovery_plan import DiscoveryPlan

WIDTH = 80  # characters of a terminal line that everybody has
NO_DATA = "max_ones/2 for ever (no data)"


def print_json(plan: Any, **parts: Any) -> None:
    """Print a plan, and further parts of it if there are any."""
    more = {name: part.to_dict() for name, part in parts.items() if part is not None}
    typer.echo(json.dumps(finite({**plan.to_dict(), **more}), indent=1))


def print_text(text: str) -> None:
    """Print text in lines that fit a terminal."""
    typer.echo(textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False))


def _print_table(rows: list[list[str]], left: int = 1, gap: int = 2) -> None:
    """Print rows as a table, with the first `left` columns aligned to the left."""
    typer.echo("\n".join(line.rstrip() for line in aligned(rows, left, gap)))


def _number(value: float, places: int) -> str:
    """Show a number with `places` decimals; below 1, with three significant digits."""
    if value >= 1 or value == 0:
        return f"{value:,.{places}f}"
    return f"{value:.3g}"


def print_comparison(comparison: Plan) -> None:
    """Print the mechanisms side by side, with the lower bound if there is one."""
    from evercount.planning.output_errors import shares_sentence

    horizon = "no horizon" if comparison.horizon is None else f"horizon {comparison.horizon}"
    bounded = not math.isnan(comparison.lower_bound)
    bound = "; × bound: worst std over the lower bound" if bounded else ""
    print_text(
        f"{comparison.query}, {horizon}, errors over {comparison.ticks} ticks. std: standard "
        "deviation of a published number; all ticks ±: with probability 95 % no number is farther "
        f"off{bound}."
    )
    rows = [
        ["mechanism", *COLUMNS],
        *([row.name, *(of(row) for of in COLUMNS.values())] for row in comparison.rows),
    ]
    if bounded:
        least = {"std, worst": _number(comparison.lower_bound, 2), "× bound": "1.000"}
        rows.append(["lower bound, Gaussian", *(least.get(title, "") for title in COLUMNS)])
    _print_table(rows, gap=1)  # the usual numbers then fit into 80 characters
    shares = shares_sentence(comparison.shares)
    if shares:
        print_text(shares)
    if len(comparison.rows) > 1:
        best = ", ".join(f"{what}: {name}" for what, name in comparison.best.items())
        print_text(f"Least error: {best}.")
    if comparison.delta > 0 and any(row.delta == 0 for row in comparison.rows):
        print_text(
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


def _ratio(value: float) -> str:
    """Show a ratio to the lower bound, or a dash if there is none."""
    if math.isnan(value):
        return "–"
    return f"{value:.3f}"


def plot_comparison(comparison: Plan, target: Path) -> None:
    """Draw the errors of the mechanisms that are at most six times that of the best."""
    from evercount.plotting import error_plot

    rows = [row for row in comparison.rows if row.worst_std < 6 * comparison.rows[0].worst_std]
    bound = None
    if not math.isnan(comparison.lower_bound):
        bound = comparison.lower_bound
    error_plot(
        {row.name: (row.ticks, row.std) for row in rows},
        f"{comparison.query}: ε={comparison.epsilon:g}, δ={comparison.delta:g}, "
        f"{comparison.ticks} ticks",
        target,
        bound,
        {row.name: row.band() for row in rows if row.jumps},
    )


def print_discovery(discovery: DiscoveryPlan) -> None:
    """Print which counts make a key public."""
    from evercount.planning.discovery_plan import CHANCES

    typer.echo(f"when a key becomes public ({discovery.factorization})")
    chances = [f"{chance * 100:g} % see" for chance in CHANCES]
    rows = [["at tick", "threshold", *chances, *(f"count {count}" for count in discovery.counts)]]
    for one in discovery.ticks:
        numbers = [f"{number:,}" for number in (one.tick, one.threshold, *one.needed)]
        rows.append([*numbers, *(f"{chance:.3g}" for chance in one.visible)])
    _print_table(rows, left=0)
    print_text(
        "The columns '% see' show the count that a key needs to be public at that tick with this "
        "chance; the columns 'count' show the chance for a key with this count."
    )
    print_text(
        "A key is listed because of one unit alone with probability at most "
        f"{discovery.delta_2:.3g} over all ticks; {discovery.delta_1:.3g} of delta is left for the "
        f"counts. Keys with fewer than {discovery.minimum} events are never listed."
    )


def print_sparse(sparse: SparseComparison) -> None:
    """Print the bound of a sparse counter next to those of plain ones."""
    split = sparse.split
    max_ones = "max_ones unknown" if split.max_ones is None else f"max_ones={split.max_ones}"
    if split.horizon is None:
        length = f"no horizon, first {sparse.ticks} ticks"
    else:
        length = f"horizon {split.horizon}"
    print_text(f"SparseCount({max_ones}), {length}, bounds for all ticks together (95%)")
    if split.max_ones is None:
        _print_table(_rows_by_events(sparse), left=0)
    else:
        _print_table(_rows_by_counter(sparse, split.max_ones), left=1)
    for line in (*_facts(sparse), split.sentence()):
        print_text(line)


def _rows_by_events(sparse: SparseComparison) -> list[list[str]]:
    """The bounds for each number of events so far, if `max_ones` is unknown."""
    best_plain = f"{sparse.best_plain:,.1f}"
    rows = [["events so far", "sparse-count ±", f"{next(iter(sparse.plain))} ±"]]
    for ones, bound in zip(sparse.ones, sparse.bounds, strict=True):
        rows.append([f"{ones:,}", f"{bound:,.1f}", best_plain])
    return rows


def _rows_by_counter(sparse: SparseComparison, max_ones: int) -> list[list[str]]:
    """The bound of each counter, least first."""
    assert sparse.bound is not None
    bounds = {
        **sparse.plain,
        "sparse-count": sparse.bound,
        NO_DATA: max_ones / 2,
    }
    least_first = sorted(bounds.items(), key=lambda item: item[1])
    return [["counter", "all ticks ±"], *([name, f"{bound:,.1f}"] for name, bound in least_first)]


def _facts(sparse: SparseComparison) -> list[str]:
    """The split of the budget, the segments, and when the sparse counter is the best."""
    split = sparse.split
    if split.segments is None:
        segments = "any number of segments"
    else:
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


def plot_sparse(sparse: SparseComparison, target: Path) -> None:
    """Draw the bounds of a sparse counter next to those of plain ones."""
    from evercount.plotting import error_plot, save

    split = sparse.split
    if split.max_ones is None:
        label = "sparse-count, max_ones unknown"
        events = "events so far"
    else:
        label = "sparse-count with this max_ones"
        events = "events in the whole stream"
    plain = [sparse.best_plain] * len(sparse.ones)
    curves = {
        label: (sparse.ones, sparse.bounds),
        f"plain counter, {next(iter(sparse.plain))}": (sparse.ones, plain),
    }
    if split.max_ones is not None:
        highest = max(*sparse.bounds, sparse.best_plain)
        ones = [number for number in sparse.ones if number <= 2 * highest]
        curves[NO_DATA] = (ones, [number / 2 for number in ones])
    axes = error_plot(
        curves, f"SparseCount, ε={split.epsilon:g}, δ={split.delta:g}, {sparse.ticks} ticks"
    )
    axes.set_xscale("log")
    axes.set_xlabel(events)
    axes.set_ylabel("error bound for all ticks (95%)")
    save(axes, target)
