"""Every query × factorisation × noise × adjacency as one table of attacks, and its chart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from evercount import queries
from evercount.audit.attack import AttackReport, attack_all
from evercount.audit.doors import Audited
from evercount.audit.library_door import LibraryProgram
from evercount.audit.neighbour_pairs import worst_pairs
from evercount.audit.replay import Pair, compare
from evercount.errors import EvercountError, ParameterError
from evercount.factorizations import FACTORIZATIONS
from evercount.factorizations.laplace_choice import PURE, PURE_ENDLESS
from evercount.mechanisms import NOISES
from evercount.noise import Secret
from evercount.plotting import new_axes, save
from evercount.privacy import Budget
from evercount.queries.base import Adjacency, Query

TICKS = 4
MOST_ROWS = 80
"""Reports that have a row of the chart each."""
GAUSSIAN = Budget(3.0, 0.01)
PURE_BUDGET = Budget(1.0, 0.0)

QUERIES: tuple[Query, ...] = (
    queries.Count(),
    queries.Sum(-2, 1, 0.25),
    queries.Average(),
    queries.Window(2),
    queries.Histogram(2),
    queries.TopK(2),
    queries.Rollup([("north", "a"), ("south", "b")]),
    queries.Marginals([["north", "south"], ["young", "old"]]),
    queries.Quantiles(0, 4, bins=4),
    queries.DistinctUsers(),
    queries.ActiveUsers(max_ticks=4),
    queries.Substrings("ab", 2),
    queries.Episodes("ab", 2),
    queries.Cuts(3),
    queries.Edges(3),
    queries.Triangles(3, max_degree=2),
    queries.KStars(3, k=2, max_degree=2),
    queries.DegreeHistogram(3, max_degree=2),
    queries.HighDegree(3, tau=1),
    queries.SpanningForest(3, max_weight=2),
    queries.Components(3),
    queries.Matching(3),
    queries.MinDegree(3),
    queries.MinCut(3),
    queries.DegreeSequence(3),
)
"""One small case of every query by name, but for windows of other queries and users' own prefix queries."""


@dataclass(frozen=True)
class Case:
    """One row of the table."""

    query: Query
    factorization: str | None
    noise: str
    adjacency: Adjacency
    pure: bool

    @property
    def label(self) -> str:
        """A short name."""
        return f"{self.query.name} · {self.factorization or 'own'} · {self.noise} · {self.adjacency}"

    @property
    def offered(self) -> bool:
        """Whether a stream takes this combination: pure noise needs an l1 sensitivity, for instance."""
        try:
            self.program()
        except EvercountError:
            return False
        return True

    def program(self) -> LibraryProgram:
        """The program of this case; a ParameterError where the combination is not offered."""
        kind = PURE_BUDGET if self.pure else GAUSSIAN
        budget = Budget(kind.epsilon, kind.delta, adjacency=self.adjacency)
        horizon = None if self.factorization == "unbounded" or self.factorization in PURE_ENDLESS else TICKS
        made = LibraryProgram(self.query, budget, horizon, self.factorization, noise=self.noise)
        made.name = self.label
        made.open(Secret.generate())
        return made


def all_cases(queries: Sequence[Query] = QUERIES) -> Iterator[Case]:
    """Every combination that a stream offers; a query that takes no factorisation by name has its own."""
    for query in queries:
        for adjacency in get_args(Adjacency):
            for noise in NOISES:
                for pure, names in ((False, FACTORIZATIONS), (True, (*PURE, *PURE_ENDLESS))):
                    named = [Case(query, name, noise, adjacency, pure) for name in names]
                    offered = [case for case in named if case.offered]
                    own = Case(query, None, noise, adjacency, pure)
                    yield from offered or ([own] if own.offered else [])


def hardest_pairs(program: Audited, query: Query, budget: Budget, ticks: int, secret: Secret) -> list[Pair]:
    """The pair that spends most in a replay."""
    left = program.claim(ticks).left
    right = np.linalg.pinv(left) @ np.tril(np.ones((ticks, ticks)))
    pairs = worst_pairs(query, budget, ticks, right, program.universe, 1000)
    if not pairs:
        raise ParameterError(f"no neighbours of {query!r} differ in {ticks} ticks")
    return [max(pairs, key=lambda pair: compare(program, pair, secret).spent)]


def run_case(
    case: Case,
    runs: int,
    secret: Secret,
    confidence: float = 1 - 1e-4,
    progress: Callable[[int], None] | None = None,
) -> AttackReport:
    """Attack one case on its hardest pair. The attack on float noise, which claims no more than real-number arithmetic,
    does not read its lowest bits."""
    program = case.program()
    pairs = hardest_pairs(program, case.query, program.budget, TICKS, secret)
    return attack_all(program, pairs, runs, secret, confidence, progress, low_bits=case.noise == "exact")


def summarise(reports: Sequence[AttackReport]) -> str:
    """One sentence about many attacks.

    >>> summarise([])
    'no attacks were made'
    """
    if not reports:
        return "no attacks were made"
    broken = [report.program for report in reports if not report.holds]
    reached = np.asarray([report.attacked / report.claimed for report in reports if np.isfinite(report.attacked)])
    proved = max(report.proved / report.claimed for report in reports)
    found = f"{len(broken)} broken promises ({', '.join(broken[:5])})" if broken else "no promise broken"
    return (
        f"{len(reports)} attacks, {reports[0].runs} runs a side: {found}. Attacked over claimed: median "
        f"{np.median(reached):.2f}, 95th percentile {np.quantile(reached, 0.95):.2f}; proved over claimed: at most "
        f"{proved:.2f}."
    )


def chart(reports: Sequence[AttackReport], target: str | Path) -> None:
    """Attacked over claimed for every report, with confidence intervals, beside what is possible.

    Up to 80 reports have a row each; more are drawn together, a row for each query and adjacency.
    """
    if len(reports) <= MOST_ROWS:
        rows = {report.program: number for number, report in enumerate(reports)}
        names = [report.program for report in reports]
    else:
        kinds = [_kind(report) for report in reports]
        names = list(dict.fromkeys(kinds))
        rows = {report.program: names.index(kind) for report, kind in zip(reports, kinds, strict=True)}
    together = len(names) < len(reports)
    axes: Any = new_axes(9.0, max(3.0, 0.16 * len(names) + 1.5))
    for report in reports:
        row, claimed = rows[report.program], report.claimed
        colour = "C0" if report.holds else "C3"
        if not together:
            axes.plot([report.low / claimed, report.high / claimed], [row, row], color=colour, linewidth=1.2)
        axes.plot([report.attacked / claimed], [row], "o", color=colour, markersize=3, alpha=0.4 if together else 1.0)
        axes.plot([report.possible / claimed], [row], "|", color="black", markersize=7)
    axes.axvline(1.0, color="black", linestyle="--", linewidth=1)
    axes.set_yticks(range(len(names)), names, fontsize=6)
    axes.invert_yaxis()
    axes.set_xlabel("attacked (dot) and possible (bar), over claimed (1)")
    save(axes, target)


def _kind(report: AttackReport) -> str:
    """Query and adjacency of a report of `run_case`."""
    parts = report.program.split(" · ")
    return f"{parts[0]} · {parts[-1]}"
