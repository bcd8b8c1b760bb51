"""Every query × factorization × adjacency attacked, and the attacks of each factorization together.

    python tools/audit_table.py --runs 100 --secret 5e5e… --plot out/all.png

About five minutes of processor time: 900 combinations. `evercount audit mechanism QUERY --all`
attacks one query.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np

from evercount import queries
from evercount.audit.attack import AttackReport, clopper_pearson, normal_error
from evercount.audit.mechanism_grid import (
    GAUSSIAN,
    PURE_BUDGET,
    MechanismCase,
    all_cases,
    chart,
    run_case,
    summarise,
)
from evercount.noise import Secret
from evercount.queries import Query

LARGEST_Z = 4.5
"""Standard errors by which a mean of many attacks may exceed what is possible: 3e-6 each."""
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
"""One small case of every query by name, but for users' own prefix queries and keys that nobody
listed."""


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
        """Whether the pooled bound stays within the promise, and the mean within four and a half
        errors of it."""
        return self.proved <= 1 and (self.spent is None or self.spent <= 1 + LARGEST_Z * self.error)

    def summary(self) -> str:
        """One line for people."""
        mean = (
            ""
            if self.spent is None
            else f" attacked over possible {self.spent:.3f} ± {self.error:.3f},"
        )
        line = (
            f"{self.name}: {self.cases} attacks,{mean} proved over claimed epsilon at least "
            f"{self.proved:.3f}"
        )
        return line if self.holds else f"{line}\n  THE PROMISE IS BROKEN"


def pool(reports: Sequence[AttackReport], confidence: float = 1 - 1e-4) -> list[Pooled]:
    """The attacks of each factorization together: a defect of few percent, which one attack cannot
    see.

    **Guarantee.** If every case keeps its promise, some bound `proved` exceeds 1 with probability
    at most 1 − confidence. Proof: `src/evercount/audit/attack.proof.md`, "Many attacks together".
    Test: tests/audit/test_audit_table.py::test_pooled_attacks_see_what_one_cannot.
    """
    groups: dict[str, list[AttackReport]] = {}
    for report in reports:
        _, factorization, noise, _ = report.program.split(" · ")
        kind = "pure" if report.measure == "epsilon" else "Gaussian"
        groups.setdefault(f"{factorization} · {noise} · {kind}", []).append(report)
    end = 1 - (1 - confidence) / max(1, 2 * len(groups))
    pooled = []
    for name, group in groups.items():
        judged = sum(report.judged for report in group)
        budget = PURE_BUDGET if group[0].measure == "epsilon" else GAUSSIAN
        more, less = (sum(report.hits[side] for report in group) for side in (0, 1))
        low, high = clopper_pearson(more, judged, end)[0], clopper_pearson(less, judged, end)[1]
        proved = (
            max(0.0, math.log((low - budget.delta) / high)) / budget.epsilon
            if low > budget.delta
            else 0.0
        )
        spent, error = None, 0.0
        if group[0].measure == "mu":
            shares = [
                (r.attacked / r.possible, normal_error(r.attacked, r.runs) / r.possible)
                for r in group
            ]
            spent = float(np.mean([share for share, _ in shares]))
            error = math.sqrt(sum(one**2 for _, one in shares)) / len(shares)
        pooled.append(Pooled(name, len(group), spent, error, proved))
    return pooled


def run_cases(
    cases: Sequence[MechanismCase], runs: int, secret: Secret, confidence: float, jobs: int = 1
) -> Iterator[AttackReport]:
    """Attack many cases, in their order, by this many processes."""
    with ProcessPoolExecutor(jobs, get_context("spawn")) as workers:
        asked = [(case, runs, secret.hex(), confidence) for case in cases]
        yield from workers.map(_run_asked, asked, chunksize=4)


def _run_asked(asked: tuple[MechanismCase, int, str, float]) -> AttackReport:
    """`run_case` in another process; a secret is not pickled, its text is."""
    case, runs, secret, confidence = asked
    return run_case(case, runs, Secret.from_hex(secret), confidence)


def main() -> None:
    """Attack all cases, print each, and all of a factorization together; exit 1 if a promise is
    broken."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=100, help="runs on either side")
    parser.add_argument("--factorization", "-f", help="only this one")
    parser.add_argument("--secret", help="root of the runs' secrets in hex; default: fresh")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--plot", help="chart of claimed against attacked, by query and adjacency")
    asked = parser.parse_args()
    cases = [case for query in QUERIES for case in all_cases(query)]
    cases = [case for case in cases if asked.factorization in (None, case.factorization)]
    secret = Secret.generate() if asked.secret is None else Secret.from_hex(asked.secret)
    each = 1 - 1e-4 / len(cases)  # all attacks share the chance of a false alarm
    reports = []
    for report in run_cases(cases, asked.runs, secret, each, asked.jobs):
        reports.append(report)
        print(json.dumps(report.to_dict()), flush=True)
    if asked.plot:
        chart(reports, asked.plot, lambda report: " · ".join(report.program.split(" · ")[::3]))
    pooled = pool(reports)
    print("\n".join([summarise(reports), *(group.summary() for group in pooled)]))
    holds = [report.holds for report in reports] + [group.holds for group in pooled]
    raise SystemExit(not all(holds))


if __name__ == "__main__":
    main()
