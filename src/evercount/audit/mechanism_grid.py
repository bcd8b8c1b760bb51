"""Every query × factorization × noise × adjacency as one table of attacks, and its chart."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np

from evercount import queries
from evercount.audit.attack import AttackReport, attack_all, clopper_pearson, normal_error
from evercount.audit.doors import Audited
from evercount.audit.library_door import LibraryProgram
from evercount.audit.neighbour_pairs import worst_pairs
from evercount.audit.replay import Pair, compare
from evercount.errors import EvercountError, ParameterError
from evercount.factorizations import BUILT_IN, FACTORIZATIONS
from evercount.factorizations.laplace_choice import PURE, PURE_ENDLESS
from evercount.noise import Secret
from evercount.plotting import new_axes, save
from evercount.privacy import Budget
from evercount.queries.base import Adjacency, Query

TICKS = 4
MOST_ROWS = 80
"""Reports that have a row of the chart each."""
LARGEST_Z = 4.5
"""Standard errors by which a mean of many attacks may exceed what is possible: 3e-6 each."""
GAUSSIAN = Budget(3.0, 0.01)
PURE_BUDGET = Budget(1.0, 0.0)

QUERIES: tuple[Query, ...] = (
    queries.Count(),
    queries.Sum(-2, 1, 0.25),
    queries.Average(),
    queries.Histogram(2),
    queries.TopK(2),
    queries.Rollup([("north", "a"), ("south", "b")]),
    queries.Marginals([["north", "south"], ["young", "old"]]),
    queries.Quantiles(0, 4, bins=4),
    queries.DistinctUsers(),
    queries.ActiveUsers(),
    queries.Occupancy(),
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
    query: Query
    factorization: str | None
    adjacency: Adjacency
    pure: bool

    @property
    def label(self) -> str:
        return f"{self.query.name} · {self.factorization or 'own'} · exact · {self.adjacency}"

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
        program = LibraryProgram(self.query, budget, horizon, self.factorization)
        program.name = self.label
        program.open(Secret.generate())
        return program


def all_cases(queries: Sequence[Query] = QUERIES) -> Iterator[Case]:
    """Every combination that a stream offers; a query that takes no factorization by name has its own."""
    for query in queries:
        for adjacency in get_args(Adjacency):
            for pure, names in ((False, FACTORIZATIONS), (True, (*PURE, *PURE_ENDLESS))):
                named = [Case(query, name, adjacency, pure) for name in names]
                offered = [case for case in named if case.offered]
                own = Case(query, None, adjacency, pure)
                yield from offered or ([own] if own.offered else [])


def hardest_pairs(program: Audited, query: Query, budget: Budget, ticks: int, secret: Secret) -> list[Pair]:
    """The pair that spends most in a replay."""
    left = program.claim(ticks).left
    right = np.linalg.pinv(left) @ np.tril(np.ones((ticks, ticks)))
    pairs = worst_pairs(query, budget, ticks, right, program.universe, 1000)
    if not pairs:
        raise ParameterError(f"no neighbours of {query!r} differ in {ticks} ticks")
    return [max(pairs, key=lambda pair: compare(program, pair, secret).spent)]


def run_case(case: Case, runs: int, secret: Secret, confidence: float = 1 - 1e-4) -> AttackReport:
    """Attack one case on its hardest pair. Every case has secrets of its own, so that attacks are independent."""
    program = case.program()
    secret = secret.derive(f"case {case.label} {case.pure}")
    pairs = hardest_pairs(program, case.query, program.budget, TICKS, secret)
    return attack_all(program, pairs, runs, secret, confidence)


@dataclass(frozen=True)
class Pooled:
    """All attacks on one factorization together."""

    name: str
    cases: int
    spent: float | None
    error: float
    proved: float

    @property
    def holds(self) -> bool:
        """Whether the pooled bound stays within the promise, and the mean within four and a half errors of it."""
        return self.proved <= 1 and (self.spent is None or self.spent <= 1 + LARGEST_Z * self.error)

    def summary(self) -> str:
        mean = "" if self.spent is None else f" attacked over possible {self.spent:.3f} ± {self.error:.3f},"
        line = f"{self.name}: {self.cases} attacks,{mean} proved over claimed epsilon at least {self.proved:.3f}"
        return line if self.holds else f"{line}\n  THE PROMISE IS BROKEN"


def pool(reports: Sequence[AttackReport], confidence: float = 1 - 1e-4) -> list[Pooled]:
    """The attacks of each factorization together: a defect of few percent, which one attack cannot see.

    **Guarantee.** If every case keeps its promise, some bound `proved` exceeds 1 with probability at most
    1 − confidence. Proof: `attack.proof.md`, "Many attacks together". Test:
    tests/audit/test_mechanism.py::test_pooled_attacks_see_what_one_cannot.
    """
    groups: dict[str, list[AttackReport]] = {}
    for report in reports:
        groups.setdefault(_mechanism(report), []).append(report)
    end = 1 - (1 - confidence) / max(1, 2 * len(groups))
    pooled = []
    for name, group in groups.items():
        judged = sum(report.judged for report in group)
        kind = PURE_BUDGET if group[0].measure == "epsilon" else GAUSSIAN
        more, less = (sum(report.hits[side] for report in group) for side in (0, 1))
        low, high = clopper_pearson(more, judged, end)[0], clopper_pearson(less, judged, end)[1]
        proved = max(0.0, math.log((low - kind.delta) / high)) / kind.epsilon if low > kind.delta else 0.0
        spent, error = None, 0.0
        if group[0].measure == "mu":
            shares = [(r.attacked / r.possible, normal_error(r.attacked, r.runs) / r.possible) for r in group]
            spent = float(np.mean([share for share, _ in shares]))
            error = math.sqrt(sum(one**2 for _, one in shares)) / len(shares)
        pooled.append(Pooled(name, len(group), spent, error, proved))
    return pooled


def _mechanism(report: AttackReport) -> str:
    """Factorization, noise and measure of a report of `run_case`."""
    parts = report.program.split(" · ")
    return f"{parts[1]} · {parts[2]} · {'pure' if report.measure == 'epsilon' else 'Gaussian'}"


def run_cases(
    cases: Sequence[Case], runs: int, secret: Secret, confidence: float, jobs: int = 1
) -> Iterator[AttackReport]:
    """Attack many cases, in their order, by this many processes."""
    if jobs == 1:
        yield from (run_case(case, runs, secret, confidence) for case in cases)
        return
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    own = {name for name in FACTORIZATIONS if name not in BUILT_IN}  # registered in this process alone
    with ProcessPoolExecutor(jobs, get_context("spawn")) as workers:
        asked = [(case, runs, secret.hex(), confidence) for case in cases if case.factorization not in own]
        reports = workers.map(_run_asked, asked, chunksize=4)
        for case in cases:
            yield run_case(case, runs, secret, confidence) if case.factorization in own else next(reports)


def _run_asked(asked: tuple[Case, int, str, float]) -> AttackReport:
    """`run_case` in another process; a secret is not pickled, its text is."""
    case, runs, secret, confidence = asked
    return run_case(case, runs, Secret.from_hex(secret), confidence)


def summarise(reports: Sequence[AttackReport]) -> str:
    """One sentence about many attacks, then the attacks of each factorization together.

    >>> summarise([])
    'no attacks were made'
    """
    if not reports:
        return "no attacks were made"
    broken = [report.program for report in reports if not report.holds]
    worst = max(reports, key=lambda report: report.attacked / report.claimed)
    highest = max(reports, key=lambda report: report.proved / report.claimed)
    verdict = f"{len(broken)} broken promises ({', '.join(broken[:5])})" if broken else "no promise broken"
    chance = sum(1 - report.confidence for report in reports)
    head = (
        f"{len(reports)} attacks, {reports[0].runs} runs a side: {verdict}; {chance:.2g} false alarms are expected at "
        f"most. Largest attacked over claimed {worst.attacked / worst.claimed:.2f}, at confidence at least "
        f"{worst.low / worst.claimed:.2f} ({worst.program}); largest proved over claimed "
        f"{highest.proved / highest.claimed:.2f} ({highest.program})."
    )
    return "\n".join([head, *(group.summary() for group in pool(reports))])


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
