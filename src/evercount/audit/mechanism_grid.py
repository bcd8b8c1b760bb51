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
from evercount.queries.window import Window

TICKS = 4
GAUSSIAN = Budget(3.0, 0.01)
PURE_BUDGET = Budget(1.0, 0.0)

QUERIES: tuple[Query, ...] = (
    queries.Count(),
    queries.Sum(-2, 1, 0.25),
    queries.Average(),
    Window(2),
    queries.Histogram(2),
    queries.TopK(2),
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
    """Every combination that a stream offers."""
    for query in queries:
        for adjacency in get_args(Adjacency):
            for noise in NOISES:
                for pure, names in ((False, FACTORIZATIONS), (True, (*PURE, *PURE_ENDLESS))):
                    for name in (None,) if isinstance(query, Window) else names:
                        case = Case(query, name, noise, adjacency, pure)
                        try:
                            case.program()
                        except EvercountError:
                            continue  # not offered: pure noise for queries without an l1 sensitivity, for instance
                        yield case


def hardest_pairs(program: Audited, query: Query, budget: Budget, ticks: int, secret: Secret) -> list[Pair]:
    """The pair that spends most in a replay."""
    left = program.claim(ticks).left
    right = np.linalg.pinv(left) @ np.tril(np.ones((ticks, ticks)))
    pairs = worst_pairs(query, budget, ticks, right, program.universe, 1000)
    if not pairs:
        raise ParameterError(f"no neighbours of {query!r} differ in {ticks} ticks")
    return [max(pairs, key=lambda pair: compare(program, pair, secret).spent)]


def run_case(case: Case, runs: int, secret: Secret, progress: Callable[[int], None] | None = None) -> AttackReport:
    """Attack one case on its hardest pair. Float noise claims real-number arithmetic only: its low bits are let be."""
    program = case.program()
    pairs = hardest_pairs(program, case.query, program.budget, TICKS, secret)
    return attack_all(program, pairs, runs, secret, progress=progress, low_bits=case.noise == "exact")


def chart(reports: Sequence[AttackReport], target: str | Path) -> None:
    """Attacked over claimed for every report, with confidence intervals, beside what is possible."""
    axes: Any = new_axes(9.0, max(3.0, 0.16 * len(reports) + 1.5))
    for row, report in enumerate(reports):
        claimed = report.claimed
        colour = "C0" if report.holds else "C3"
        axes.plot([report.low / claimed, report.high / claimed], [row, row], color=colour, linewidth=1.2)
        axes.plot([report.attacked / claimed], [row], "o", color=colour, markersize=3)
        axes.plot([report.possible / claimed], [row], "|", color="black", markersize=7)
    axes.axvline(1.0, color="black", linestyle="--", linewidth=1)
    axes.set_yticks(range(len(reports)), [report.program for report in reports], fontsize=6)
    axes.invert_yaxis()
    axes.set_xlabel("attacked (dot, with its interval) and possible (bar), over claimed (1)")
    save(axes, target)
